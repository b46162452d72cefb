
/*
 * A worker's view of one Redis server: its connection, and the breaker and
 * counters that all workers share.
 */


#ifndef _NGX_RL_SERVER_H_INCLUDED_
#define _NGX_RL_SERVER_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "redis/ngx_rl_connection.h"
#include "topology/ngx_rl_shards.h"


typedef struct ngx_rl_server_s  ngx_rl_server_t;


/* the store's part of a server: everything that waits to be sent */

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


/* connects when it is used or woken; NULL: no memory */
ngx_rl_server_t *ngx_rl_server_create(ngx_pool_t *pool, ngx_log_t *log,
    ngx_rl_server_conf_t *conf, ngx_rl_zone_t *zone, ngx_rl_stats_t *stats,
    const ngx_rl_events_t *events, void *route);

/*
 * For the event tables of all topologies; the owner is a server.  The store
 * calls server_failed(), too: a command, or a call that was part of one, has
 * no answer.  An error reply may be logged.  One failure of a command counts
 * for the breaker; the others have been counted.
 */
ngx_msec_t ngx_rl_server_may_connect(void *owner);
void ngx_rl_server_ready(void *owner);
ngx_msec_t ngx_rl_server_closed(void *owner,
    ngx_rl_failure_e failure, ngx_uint_t stable);
ngx_uint_t ngx_rl_server_may_log(void *owner, ngx_rl_failure_e failure);
void ngx_rl_server_failed(void *owner, const ngx_rl_answer_t *answer);

/* not needed for now */
void ngx_rl_server_close_idle(ngx_rl_server_t *server);

/*
 * An unused server gets the configuration and the record of another one.
 * NGX_ERROR: no memory, nothing has changed.
 */
ngx_int_t ngx_rl_server_reuse(ngx_rl_server_t *server);

/*
 * The server has other addresses.  If "drop" is set, calls under way fail, and
 * nothing more is sent to the old address.  Without addresses (n is 0, with
 * "drop"), calls wait until some are known.  NGX_ERROR: no memory, the server
 * stays where it was.
 */
ngx_int_t ngx_rl_server_move(ngx_rl_server_t *server,
    ngx_addr_t *addrs, ngx_uint_t n, ngx_uint_t drop);

/*
 * The handler of a name, see ngx_rl_resolve_pt; its data is the server.  The
 * server has other addresses, or the lookup has failed (n is 0) and the old
 * ones stay.  Returns whether to log it.
 */
ngx_uint_t ngx_rl_server_renamed(void *data, ngx_addr_t *addrs, ngx_uint_t n);

/*
 * Whether a call can be sent now: the breaker is closed, and a connection
 * exists or may exist soon.  Also makes sure that the server is tried again.
 */
ngx_rl_failure_e ngx_rl_server_check(ngx_rl_server_t *server);

/*
 * As ngx_rl_connection_send().  The caller has checked the server when it
 * queued the call, and reports the result of every call.
 */
ngx_rl_failure_e ngx_rl_server_send(
    ngx_rl_server_t *server, ngx_str_t *command, ngx_msec_t timeout,
    ngx_rl_pending_pt handler, void *data, ngx_rl_pending_t **pending);

/* whether calls are sent at once */
ngx_uint_t ngx_rl_server_usable(ngx_rl_server_t *server);

/* as ngx_rl_pending_forward(), unless the breaker is open */
ngx_rl_failure_e ngx_rl_server_forward(
    ngx_rl_server_t *server, ngx_rl_pending_t *pending, ngx_uint_t asking);

/* a call was answered, after so many microseconds */
void ngx_rl_server_answered(ngx_rl_server_t *server, uint64_t us);

/* a call could not be sent */
void ngx_rl_server_unsent(ngx_rl_server_t *server, ngx_rl_failure_e failure);

/* at process exit */
void ngx_rl_server_exit(ngx_rl_server_t *server);


#endif /* _NGX_RL_SERVER_H_INCLUDED_ */
