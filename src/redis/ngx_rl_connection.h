
/*
 * A multiplexed, pipelined connection to one Redis server.  Knows no requests
 * and no limits: it sends commands and hands back their replies.
 */


#ifndef _NGX_RL_CONNECTION_H_INCLUDED_
#define _NGX_RL_CONNECTION_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "redis/ngx_rl_pipeline.h"


/*
 * NULL if there is no memory; connects when it is woken or used.  What it is
 * given outlives it.
 */
ngx_rl_connection_t *ngx_rl_connection_create(ngx_log_t *log,
    ngx_rl_connection_conf_t *conf, const ngx_rl_events_t *events, void *owner,
    ngx_rl_traffic_t *traffic, ngx_rl_gauges_t *gauges);

/*
 * The server has other addresses now, which are copied.  If the connection is
 * to none of them it ends: at once, with its commands, if "drop" is set; else
 * when they are answered, see ngx_rl_connection_retire().  No addresses (n is
 * 0): commands wait for some, as long as a connect may take.  NGX_DECLINED: it
 * can't stay, and "drop" is not set; NGX_ERROR: no memory
 */
ngx_int_t ngx_rl_connection_move(ngx_rl_connection_t *connection,
    ngx_addr_t *addrs, ngx_uint_t n, ngx_uint_t drop);

/*
 * Another one takes its place: gets what has not been sent, and all to come.
 * It lives on until its last command has ended.
 */
void ngx_rl_connection_retire(ngx_rl_connection_t *connection,
    ngx_rl_connection_t *successor);

/* of the connection, or where the next one goes; NULL: not known */
ngx_addr_t *ngx_rl_connection_addr(ngx_rl_connection_t *connection);

/* nobody needs it for now: an idle connection is closed, and none is made */
void ngx_rl_connection_close_idle(ngx_rl_connection_t *connection);

/* it is idle, and has no commands, nor has one that has retired for it */
ngx_uint_t ngx_rl_connection_unused(ngx_rl_connection_t *connection);

/* one that is idle connects as soon as its owner lets it */
void ngx_rl_connection_schedule(ngx_rl_connection_t *connection);

/* a command whose reply is for the owner's push() */
void ngx_rl_connection_ping(ngx_rl_connection_t *connection,
    ngx_str_t *command);

/* whether there is, or soon may be, a connection; makes one if needed */
ngx_rl_failure_e ngx_rl_connection_check(ngx_rl_connection_t *connection);

/*
 * NGX_RL_OK: *pending is set, and the handler will be called exactly once, not
 * before this function has returned, at the latest after "timeout", unless the
 * pending is cancelled.  Otherwise nothing was sent, and the handler will not
 * be called.
 */
ngx_rl_failure_e ngx_rl_connection_send(ngx_rl_connection_t *connection,
    ngx_str_t *command, ngx_msec_t timeout, ngx_rl_pending_pt handler,
    void *data, ngx_rl_pending_t **pending);

/* whether commands go out at once */
ngx_uint_t ngx_rl_connection_ready(ngx_rl_connection_t *connection);

/* there is reason to believe that the server is there: don't wait */
void ngx_rl_connection_wake(ngx_rl_connection_t *connection);

/*
 * While it is held, the process does not close it for being idle when it is
 * told to leave: something is to be sent at the very end.  It has to be
 * released as often as it is held.
 */
void ngx_rl_connection_hold(ngx_rl_connection_t *connection);
void ngx_rl_connection_release(ngx_rl_connection_t *connection);

/*
 * For the owner's redirect(): the command goes to that server, in the time that
 * is left, after an ASKING if "asking" is set.  Anything but NGX_RL_OK: it does
 * not, and the pending is as it was.
 */
ngx_rl_failure_e ngx_rl_pending_forward(ngx_rl_pending_t *pending,
    ngx_rl_connection_t *connection, ngx_uint_t asking);

/* one that was parked goes to that server, as it was; or it ends */
void ngx_rl_pending_again(ngx_rl_pending_t *pending,
    ngx_rl_connection_t *connection);

/* for the end of the process: closes the socket, calls no handlers */
void ngx_rl_connection_exit(ngx_rl_connection_t *connection);

/* and then, once: those that have retired, and the memory of all */
void ngx_rl_connection_done(void);


#endif /* _NGX_RL_CONNECTION_H_INCLUDED_ */
