
/*
 * The words between connections and those who use them: what a connection is to
 * be like, what it tells its owner, and what came of a command.
 */


#ifndef _NGX_RL_REDIS_H_INCLUDED_
#define _NGX_RL_REDIS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "pure/ngx_rl_failure.h"
#include "pure/ngx_rl_reply.h"
#include "redis/ngx_rl_tls.h"


typedef struct ngx_rl_connection_s  ngx_rl_connection_t;
typedef struct ngx_rl_pending_s     ngx_rl_pending_t;


/* bytes of all connections to a server, counted by all workers */

typedef struct {
    ngx_atomic_t  sent;
    ngx_atomic_t  received;
} ngx_rl_traffic_t;


/* of the connections of one worker to a server, which alone writes it */

typedef struct {
    uint32_t  calls;        /* pendings */
    uint32_t  connections;  /* that are ready */
} ngx_rl_gauges_t;


/* a command that every new connection sends before anything else */

typedef struct {
    ngx_str_t   command;     /* as it goes over the wire */
    ngx_str_t   name;        /* for the log */
    ngx_uint_t  tag;         /* 0, or for the owner's step() */
    unsigned    required:1;  /* no use of the server without it */
    unsigned    secret:1;    /* must not get into the log */
    unsigned    moved_ok:1;  /* MOVED is as good as any answer */
    unsigned    wait:1;      /* the rest is sent when it is answered */
    unsigned    large:1;     /* as of a pending */
} ngx_rl_handshake_step_t;


/* what a connection needs to know; outlives it */

typedef struct {
    ngx_str_t      name;             /* host:port, without credentials */
    ngx_addr_t    *addrs;            /* tried in turn, unless it was moved */
    ngx_uint_t     naddrs;           /* 0: not known yet */
    ngx_array_t    handshake;        /* ngx_rl_handshake_step_t */
    ngx_msec_t     connect_timeout;  /* until the handshake is over */

    ngx_rl_tls_t  *tls;              /* NULL: plain */

    /* who it has to be; if that is empty, the address */
    ngx_str_t      host;

    unsigned       node:1;           /* of a cluster */
} ngx_rl_connection_conf_t;


/* what came of a command; valid during the call of its handler only */

typedef struct {
    ngx_rl_reply_t    *reply;      /* NULL if there is a failure */
    ngx_rl_failure_e   failure;

    /*
     * The owner of the connection knows of the failure already, or it says
     * nothing about the server that its connection leads to now
     */
    unsigned           counted:1;
} ngx_rl_answer_t;


/*
 * What a connection tells its owner, a server or a sentinel, and asks it; there
 * is one table for all owners of a kind.  A connection that has retired tells
 * nothing but forward_failed() and redirect().
 */

typedef struct {
    /* 0: connect now; else when to ask again, ms */
    ngx_msec_t  (*may_connect)(void *owner);

    void        (*ready)(void *owner);

    /*
     * It ended by a failure, or, NGX_RL_OK, while nobody used it; "stable" if
     * it had lived for a while.  Returns when to connect again, ms; 0: at once;
     * NGX_TIMER_INFINITE: when it is woken or used
     */
    ngx_msec_t  (*closed)(void *owner, ngx_rl_failure_e failure,
                          ngx_uint_t stable);

    /* whether a failure of this class is to be logged now */
    ngx_uint_t  (*may_log)(void *owner, ngx_rl_failure_e failure);

    /*
     * The reply to a step of the handshake that has a tag, if it is no error.
     * Anything but NGX_RL_OK ends the connection; then the owner has logged
     * why.  NULL: no step has a tag
     */
    ngx_rl_failure_e
                (*step)(void *owner, ngx_uint_t tag, ngx_rl_reply_t *reply);

    /*
     * NULL: nothing is redirected.  An error reply to a command that has a
     * handler: NGX_OK if the pending was forwarded or parked, NGX_DECLINED if
     * the handler is to have the reply, NGX_ERROR if it is to have *failure
     */
    ngx_int_t   (*redirect)(void *owner, ngx_rl_pending_t *pending,
                            ngx_rl_reply_t *reply, ngx_rl_failure_e *failure);

    /*
     * A command that came from another server was not answered as it should
     * be.  Its handler, which knows only that server, does not learn why.
     * NULL: as redirect
     */
    void        (*forward_failed)(void *owner, const ngx_rl_answer_t *answer);

    /*
     * All that the server says after the handshake: it is never asked anything,
     * see ngx_rl_connection_ping().  NULL: it answers commands
     */
    void        (*push)(void *owner, ngx_rl_reply_t *reply);

    /*
     * Called by a server, not by its connection: it did not answer, or not as
     * it should, and may be elsewhere by now.  NULL: nobody looks for it
     */
    void        (*failed)(void *owner, ngx_rl_failure_e failure);
} ngx_rl_events_t;


/*
 * NGX_ERROR says that the command can't have such a reply: then nobody knows
 * which command the next one belongs to, and the connection is closed.
 */
typedef ngx_int_t (*ngx_rl_pending_pt)(void *data,
    const ngx_rl_answer_t *answer);


#endif /* _NGX_RL_REDIS_H_INCLUDED_ */
