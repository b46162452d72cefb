
/*
 * The inside of a connection.  Internal: for the three files that make it up,
 * ngx_rl_redis.c, _pipe.c and _greet.c, and for no others.
 */


#ifndef _NGX_RL_CONNECTION_INTERNAL_H_INCLUDED_
#define _NGX_RL_CONNECTION_INTERNAL_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "redis/ngx_rl_connection.h"


#define NGX_RL_CONNECTION_STALL  500             /* ms */

/* ms: a timer that is later than that says that the worker was held up */
#define NGX_RL_CONNECTION_HELD   2

#define ngx_rl_connection_late(ev)                                            \
    ((ngx_msec_t) (ngx_current_msec - (ev)->timer.key))


typedef enum {
    NGX_RL_CONNECTION_IDLE = 0,
    NGX_RL_CONNECTION_CONNECTING,
    NGX_RL_CONNECTION_TLS,
    NGX_RL_CONNECTION_HANDSHAKE,
    NGX_RL_CONNECTION_READY,
    NGX_RL_CONNECTION_WAITING
} ngx_rl_connection_state_e;


struct ngx_rl_pending_s {
    ngx_queue_t           queue;
    ngx_rl_connection_t  *connection;
    ngx_socket_t          ident;  /* see ngx_rl_event_init() */

    ngx_rl_pending_pt     handler;   /* NULL: an orphan */
    void                 *data;
    ngx_event_t           timer;
    ngx_msec_t            expired;   /* when it was orphaned */
    ngx_str_t             command;   /* malloc()ed; kept when sent
                                        if it may be redirected */
    ngx_uint_t            hops;      /* to other servers */
    void                 *place;     /* where it is parked */
    unsigned              sent:1;
    unsigned              asking:1;  /* needs an ASKING */
    unsigned              parked:1;  /* refused, to be tried on */
    unsigned              large:1;   /* its reply may be */
    unsigned              due:1;     /* its time is over */
    unsigned              grace:1;   /* and it got some more */
};


struct ngx_rl_connection_s {
    ngx_connection_t          *c;
    ngx_rl_connection_conf_t  *conf;
    void                      *owner;
    ngx_socket_t               ident;  /* see ngx_rl_event_init() */

    const ngx_rl_events_t     *events;
    ngx_rl_traffic_t          *traffic;
    ngx_queue_t                queue;     /* of all, or retired ones */
    ngx_addr_t                *addrs;
    ngx_uint_t                 naddrs;
    ngx_rl_gauges_t           *gauges;
    ngx_rl_reader_t           *reader;
    ngx_rl_tls_session_t       session;
    ngx_rl_connection_state_e  state;
    ngx_rl_failure_e           failure;   /* of the last connection */
    ngx_uint_t                 generation;
    ngx_uint_t                 steps;     /* replies to the greeting */
    ngx_uint_t                 address;   /* the next one to try */
    ngx_msec_t                 ready;     /* since when */
    ngx_msec_t                 created;
    ngx_msec_t                 grace;     /* ms, of this attempt */

    ngx_queue_t                waiting;   /* slots not sent */
    ngx_queue_t                sent;      /* slots, oldest first */
    ngx_uint_t                 pendings;  /* in waiting and sent */
    ngx_uint_t                 holds;     /* so often */

    u_char                    *out;
    u_char                    *out_pos;
    u_char                    *out_last;
    u_char                    *out_end;

    ngx_event_t                flush;     /* posted */
    ngx_event_t                timer;     /* connect, back-off, stall */

    ngx_log_t                  log;       /* of the connection */
    ngx_log_t                 *cycle_log;
    unsigned                   moved:1;   /* addrs are malloc()ed */
    unsigned                   retired:1;
    unsigned                   known:1;   /* was ready once */
};


/* What the connection offers its pipe and its greeting. */

/* whether a failure of this class is to be logged now */
ngx_uint_t ngx_rl_connection_may_log(ngx_rl_connection_t *connection,
    ngx_rl_failure_e failure);

/* the way out of a connection: all slots fail, the next attempt is set */
void ngx_rl_connection_close(ngx_rl_connection_t *connection,
    ngx_rl_failure_e failure);

/*
 * Of one that has retired, when it has no calls any more, be they parked
 * elsewhere; and not before those who are using it have returned
 */
void ngx_rl_connection_end(ngx_rl_connection_t *connection);


#endif /* _NGX_RL_CONNECTION_INTERNAL_H_INCLUDED_ */
