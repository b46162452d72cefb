
/*
 * A worker's view of one Redis server: its connection, and what all workers
 * share about it: circuit breaker and counters.
 */


#ifndef _NGX_RL_SERVER_H_INCLUDED_
#define _NGX_RL_SERVER_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "redis/ngx_rl_connection.h"
#include "topology/ngx_rl_shards.h"


typedef struct ngx_rl_server_s  ngx_rl_server_t;


/* what the store keeps of a server: all that waits to be sent there */

typedef struct {
    ngx_queue_t  entries;          /* of calls, oldest first */
    ngx_event_t  flush;            /* posted, and a timer: a process that
                                      leaves waits for nothing else */
    ngx_queue_t  refunds;          /* oldest first */
    ngx_queue_t  refunding;        /* of servers that had any */
    ngx_uint_t   refund_commands;  /* under way */
    unsigned     grew:1;           /* entries, in this turn */
} ngx_rl_server_queue_t;


struct ngx_rl_server_s {
    ngx_rl_server_conf_t   *conf;
    ngx_rl_connection_t    *connection;   /* changes when it has moved */
    ngx_rl_zone_t          *zone;
    ngx_socket_t            ident;        /* see ngx_rl_event_init() */

    const ngx_rl_events_t  *events;       /* of its topology */
    void                   *route;        /* its cluster, its sentinels or
                                             its ngx_rl_route_t */
    ngx_rl_server_queue_t   queue;
    ngx_rl_record_t        *record;
    ngx_rl_stats_t         *stats;
    ngx_log_t              *log;
    ngx_event_t             probe;
    uint32_t                attempt;      /* to connect */
    uint64_t                closed;       /* the breaker was, when last
                                             looked at */
    uint64_t                who;          /* among all probers */
    unsigned                connected:1;  /* once */
    unsigned                up:1;         /* now */
};


/* NULL if there is no memory; connects when it is used or woken */
ngx_rl_server_t *ngx_rl_server_create(ngx_pool_t *pool, ngx_log_t *log,
    ngx_rl_server_conf_t *conf, ngx_rl_zone_t *zone, ngx_rl_stats_t *stats,
    const ngx_rl_events_t *events, void *route);

/*
 * For the tables of events of all topologies; the owner is a server.  The store
 * calls server_failed() as well: there is no answer to a command, or to a call
 * that was part of one; the error reply, if it is one, may be logged.  Of a
 * command one failure counts for the breaker: the others have been counted.
 */
ngx_msec_t ngx_rl_server_may_connect(void *owner);
void ngx_rl_server_ready(void *owner);
ngx_msec_t ngx_rl_server_closed(void *owner,
    ngx_rl_failure_e failure, ngx_uint_t stable);
ngx_uint_t ngx_rl_server_may_log(void *owner, ngx_rl_failure_e failure);
void ngx_rl_server_failed(void *owner, const ngx_rl_answer_t *answer);

/* nobody needs it for now */
void ngx_rl_server_close_idle(ngx_rl_server_t *server);

/*
 * The configuration of an unused server is that of another one now, with a
 * record of its own.  NGX_ERROR: no memory, all is as before
 */
ngx_int_t ngx_rl_server_reuse(ngx_rl_server_t *server);

/*
 * The server has other addresses.  Calls under way end as failures if "drop" is
 * set: nothing more shall get to where it was.  No addresses (n is 0, with
 * "drop"): calls wait until they are known.  NGX_ERROR: no memory, it is where
 * it was.
 */
ngx_int_t ngx_rl_server_move(ngx_rl_server_t *server,
    ngx_addr_t *addrs, ngx_uint_t n, ngx_uint_t drop);

/*
 * The handler of a name, see ngx_rl_resolve_pt: the server, which is the data,
 * has other addresses, or the lookup has failed (n is 0) and the old ones stay.
 * Returns whether it is to be logged.
 */
ngx_uint_t ngx_rl_server_renamed(void *data, ngx_addr_t *addrs, ngx_uint_t n);

/*
 * Whether a call could be sent now: the breaker is closed, and there is, or
 * soon may be, a connection.  Sees to it that the server is tried again.
 */
ngx_rl_failure_e ngx_rl_server_check(ngx_rl_server_t *server);

/*
 * As ngx_rl_connection_send().  The caller has checked the server when the call
 * was queued, and says of every call that was to be sent what came of it.
 */
ngx_rl_failure_e ngx_rl_server_send(
    ngx_rl_server_t *server, ngx_str_t *command, ngx_msec_t timeout,
    ngx_rl_pending_pt handler, void *data, ngx_rl_pending_t **pending);

/* whether calls go out at once */
ngx_uint_t ngx_rl_server_usable(ngx_rl_server_t *server);

/* as ngx_rl_pending_forward(), unless the breaker is open */
ngx_rl_failure_e ngx_rl_server_forward(
    ngx_rl_server_t *server, ngx_rl_pending_t *pending, ngx_uint_t asking);

/* a call was answered, so many microseconds after it was made */
void ngx_rl_server_answered(ngx_rl_server_t *server, uint64_t us);

/* a call could not be sent */
void ngx_rl_server_unsent(ngx_rl_server_t *server, ngx_rl_failure_e failure);

/* for the end of the process */
void ngx_rl_server_exit(ngx_rl_server_t *server);


#endif /* _NGX_RL_SERVER_H_INCLUDED_ */
