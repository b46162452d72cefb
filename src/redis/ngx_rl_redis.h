
/*
 * Types that connections and their users share: the configuration of a
 * connection, the events that it reports to its owner, and the result of a
 * command.
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


/* gauges of one worker for one server; only that worker writes them */

typedef struct {
    uint32_t  calls;        /* pendings */
    uint32_t  connections;  /* that are ready */
} ngx_rl_gauges_t;


/* a command that every new connection sends before anything else */

typedef struct {
    ngx_str_t   command;     /* as it goes over the wire */
    ngx_str_t   name;        /* for the log */
    ngx_uint_t  tag;         /* 0, or for the owner's step() */
    unsigned    required:1;  /* the server is unusable without it */
    unsigned    secret:1;    /* must not get into the log */
    unsigned    moved_ok:1;  /* MOVED counts as success */
    unsigned    wait:1;      /* the next step waits for its reply */
    unsigned    large:1;     /* as of a pending */
} ngx_rl_handshake_step_t;


/* the configuration of a connection; outlives it */

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


/* the result of a command; valid only during the call of its handler */

typedef struct {
    ngx_rl_reply_t    *reply;      /* NULL if there is a failure */
    ngx_rl_failure_e   failure;

    /*
     * The owner of the connection has counted the failure already, or the
     * failure says nothing about the server that it is connected to now.
     */
    unsigned           counted:1;
} ngx_rl_answer_t;


/*
 * What a connection reports to its owner, a server or a sentinel, and what it
 * asks it.  All owners of a kind share one table.  A retired connection only
 * calls forward_failed() and redirect().
 */

typedef struct {
    /* 0: connect now; otherwise ms after which to ask again */
    ngx_msec_t  (*may_connect)(void *owner);

    void        (*ready)(void *owner);

    /*
     * The connection ended by a failure or, with NGX_RL_OK, while it was
     * unused; "stable" if it had lived for a while.  Returns the ms after
     * which to connect again; 0: at once; NGX_TIMER_INFINITE: when it is woken
     * or used.
     */
    ngx_msec_t  (*closed)(void *owner, ngx_rl_failure_e failure,
                          ngx_uint_t stable);

    /* whether a failure of this class should be logged now */
    ngx_uint_t  (*may_log)(void *owner, ngx_rl_failure_e failure);

    /*
     * The reply to a handshake step that has a tag, unless it is an error.
     * Any result other than NGX_RL_OK ends the connection; the owner has
     * logged why.  NULL: no step has a tag.
     */
    ngx_rl_failure_e
                (*step)(void *owner, ngx_uint_t tag, ngx_rl_reply_t *reply);

    /*
     * An error reply to a command that has a handler.  NGX_OK: the pending was
     * forwarded or parked; NGX_DECLINED: the handler gets the reply;
     * NGX_ERROR: the handler gets *failure.  NULL: nothing is redirected.
     */
    ngx_int_t   (*redirect)(void *owner, ngx_rl_pending_t *pending,
                            ngx_rl_reply_t *reply, ngx_rl_failure_e *failure);

    /*
     * A command that was forwarded from another server failed.  Its handler
     * only knows the other server and does not learn why.  NULL: as redirect.
     */
    void        (*forward_failed)(void *owner, const ngx_rl_answer_t *answer);

    /*
     * Everything that the server sends after the handshake, if it is never
     * asked anything, see ngx_rl_connection_ping().  NULL: it answers
     * commands.
     */
    void        (*push)(void *owner, ngx_rl_reply_t *reply);

    /*
     * Called by a server, not by its connection: a command failed, so the
     * server may have moved.  NULL: nobody looks for it.
     */
    void        (*failed)(void *owner, ngx_rl_failure_e failure);
} ngx_rl_events_t;


/*
 * NGX_ERROR: the command cannot have such a reply.  Then the next replies
 * cannot be assigned to commands, and the connection is closed.
 */
typedef ngx_int_t (*ngx_rl_pending_pt)(void *data,
    const ngx_rl_answer_t *answer);


#endif /* _NGX_RL_REDIS_H_INCLUDED_ */
