
/*
 * A multiplexed, pipelined connection to one Redis server.  Knows no requests
 * and no limits: it sends commands and hands back their replies.
 */


#ifndef _NGX_RL_CONNECTION_H_INCLUDED_
#define _NGX_RL_CONNECTION_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_event_connect.h>

#include "pure/ngx_rl_failure.h"
#include "pure/ngx_rl_reply.h"
#include "redis/ngx_rl_tls.h"


typedef struct ngx_rl_connection_s  ngx_rl_connection_t;
typedef struct ngx_rl_pending_s   ngx_rl_pending_t;


/* a command that every new connection sends before anything else */

typedef struct {
    ngx_str_t   command;      /* as it goes over the wire */
    ngx_str_t   name;         /* for the log */
    ngx_uint_t  tag;          /* 0, or for the owner's step() */
    unsigned    required:1;   /* no use of the server without it */
    unsigned    secret:1;     /* must not get into the log */
    unsigned    elsewhere:1;  /* MOVED is as good as any answer */
    unsigned    gate:1;       /* the rest is sent when it is answered */
    unsigned    large:1;      /* see ngx_rl_pending_large() */
} ngx_rl_handshake_step_t;


/* what a connection needs to know; outlives it */

typedef struct {
    ngx_str_t      name;             /* host:port, without credentials */
    ngx_addr_t    *addrs;            /* tried in turn, unless it was moved */
    ngx_uint_t     naddrs;           /* 0: not known yet */
    ngx_array_t    greeting;         /* ngx_rl_handshake_step_t */
    ngx_msec_t     connect_timeout;  /* until the greeting is answered */

    ngx_rl_tls_t  *tls;              /* NULL: plain */

    /* who it has to be; if that is empty, the address */
    ngx_str_t      host;

    unsigned       node:1;           /* of a cluster */
} ngx_rl_connection_conf_t;


/* bytes, counted by all connections to a server */

typedef struct {
    ngx_atomic_t  sent;
    ngx_atomic_t  received;
} ngx_rl_traffic_t;


/* what there is of them now, in one process */

typedef struct {
    uint32_t  calls;        /* under way */
    uint32_t  connections;  /* that are ready */
} ngx_rl_gauges_t;


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


/* NULL if there is no memory; connects when it is woken or used */
ngx_rl_connection_t *ngx_rl_connection_create(ngx_log_t *log,
    ngx_rl_connection_conf_t *conf, const ngx_rl_events_t *events, void *owner,
    ngx_rl_traffic_t *traffic, ngx_rl_gauges_t *gauges);

/*
 * The server has other addresses now, which are copied.  If the connection is
 * to none of them it ends: at once, with its calls, if "drop" is set; else by
 * and by, see ngx_rl_connection_retire().
 * No addresses (n is 0): calls wait for some, as long as a connect may take.
 * NGX_DECLINED: it can't stay, and "drop" is not set; NGX_ERROR: no memory
 */
ngx_int_t ngx_rl_connection_move(ngx_rl_connection_t *connection,
    ngx_addr_t *addrs, ngx_uint_t n, ngx_uint_t drop);

/*
 * Another one takes its place: gets what has not been sent, and all to come.
 * It lives on until its last call has ended; its owner hears nothing more.
 */
void ngx_rl_connection_retire(ngx_rl_connection_t *connection,
    ngx_rl_connection_t *heir);

/* of the connection, or where the next one goes; NULL: not known */
ngx_addr_t *ngx_rl_connection_addr(ngx_rl_connection_t *connection);

/* nobody needs it for now: an idle connection is closed, and none is made */
void ngx_rl_connection_close_idle(ngx_rl_connection_t *connection);

/* it rests, no call is under way, nor on one that has retired for it */
ngx_uint_t ngx_rl_connection_unused(ngx_rl_connection_t *connection);

/* one that rests connects as soon as its owner lets it */
void ngx_rl_connection_schedule(ngx_rl_connection_t *connection);

/* a command whose reply is for the owner's push() */
void ngx_rl_connection_ping(ngx_rl_connection_t *connection,
    ngx_str_t *command);

/* whether there is, or soon may be, a connection; makes one if needed */
ngx_rl_failure_e ngx_rl_connection_check(ngx_rl_connection_t *connection);

/*
 * NGX_RL_OK: *slot is set, and the handler will be called exactly
 * once, not before this function has returned, at the latest after "timeout",
 * unless the slot is cancelled.  Otherwise nothing was sent, and the handler
 * will not be called.
 */
ngx_rl_failure_e ngx_rl_connection_send(
    ngx_rl_connection_t *connection, ngx_str_t *command, ngx_msec_t timeout,
    ngx_rl_pending_pt handler, void *data, ngx_rl_pending_t **pending);

/* nobody waits for the reply: it does not hold up the end of the process */
void ngx_rl_pending_background(ngx_rl_pending_t *pending);

/* the handler will not be called; a command that was sent may still run */
void ngx_rl_pending_cancel(ngx_rl_pending_t *pending);

/*
 * For the owner's redirect(): the command goes to that server, in the time that
 * is left, after an ASKING if "asking" is set.  Anything but
 * NGX_RL_OK: it does not, and the slot is as it was.
 */
ngx_rl_failure_e ngx_rl_pending_forward(
    ngx_rl_pending_t *pending, ngx_rl_connection_t *connection,
    ngx_uint_t asking);

/* or it waits there, until it is sent again or its time is over */
void ngx_rl_pending_park(ngx_rl_pending_t *pending,
    ngx_queue_t *queue, void *place);

/* the first one that waits, and the place it was parked with */
ngx_rl_pending_t *ngx_rl_pending_parked(ngx_queue_t *queue, void **place);

/* the same again, by the server that refused it; or the end of it */
void ngx_rl_pending_again(ngx_rl_pending_t *pending,
    ngx_rl_connection_t *connection);

/* its reply, and no other one, may be as large as the map of a cluster */
void ngx_rl_pending_large(ngx_rl_pending_t *pending);

/* its reply is for the handler, whatever it is: it is not redirected */
void ngx_rl_pending_no_redirect(ngx_rl_pending_t *pending);

/* an error of a node of a cluster that is well, but has not got the key */
ngx_uint_t ngx_rl_connection_moved_ok(ngx_rl_reply_t *reply);

/* counts how often the command was forwarded */
ngx_uint_t ngx_rl_pending_hops(ngx_rl_pending_t *pending);

/* whether commands go out at once */
ngx_uint_t ngx_rl_connection_ready(ngx_rl_connection_t *connection);

/* there is reason to believe that the server is there: don't wait */
void ngx_rl_connection_wake(ngx_rl_connection_t *connection);

/*
 * While it is kept, the process does not close it for being idle when it is
 * told to leave: something is to be sent at the very end.  As often as it is
 * kept it has to be released.
 */
void ngx_rl_connection_hold(ngx_rl_connection_t *connection);
void ngx_rl_connection_release(ngx_rl_connection_t *connection);

/*
 * For the end of the process, where there are no events any more: writes what
 * waits, and hands over what has been answered.  NGX_OK: something happened;
 * NGX_DECLINED: nothing did, for so many ms, or nothing is under way
 */
ngx_int_t ngx_rl_connection_turn(ngx_msec_t timeout);

/* for the end of the process: closes the socket, calls no handlers */
void ngx_rl_connection_exit(ngx_rl_connection_t *connection);

/* and then, once: those that have retired, and the memory of all */
void ngx_rl_connection_done(void);


#endif /* _NGX_RL_CONNECTION_H_INCLUDED_ */
