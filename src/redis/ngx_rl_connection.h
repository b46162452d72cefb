
/*
 * A multiplexed, pipelined connection to one Redis server.  It knows neither
 * requests nor limits: it sends commands and returns their replies.
 */


#ifndef _NGX_RL_CONNECTION_H_INCLUDED_
#define _NGX_RL_CONNECTION_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "redis/ngx_rl_pipeline.h"


/*
 * Returns NULL if there is no memory.  Connects when it is woken or used.  Its
 * arguments must outlive it.
 */
ngx_rl_connection_t *ngx_rl_connection_create(ngx_log_t *log,
    ngx_rl_connection_conf_t *conf, const ngx_rl_events_t *events, void *owner,
    ngx_rl_traffic_t *traffic, ngx_rl_gauges_t *gauges);

/*
 * The server has other addresses, which are copied.  If the connection uses
 * none of them, it ends.  If "drop" is set, it ends at once, and its commands
 * fail.  Otherwise it ends when its commands are answered, see
 * ngx_rl_connection_retire().  Without addresses (n is 0), commands wait for
 * some, for as long as a connect may take.  NGX_DECLINED: the connection
 * cannot stay, and "drop" is not set; NGX_ERROR: no memory.
 */
ngx_int_t ngx_rl_connection_move(ngx_rl_connection_t *connection,
    ngx_addr_t *addrs, ngx_uint_t n, ngx_uint_t drop);

/*
 * Another connection takes over: it gets the commands that have not been sent,
 * and all new ones.  The old connection lives until its last command has
 * ended.
 */
void ngx_rl_connection_retire(ngx_rl_connection_t *connection,
    ngx_rl_connection_t *successor);

/* the current address, or the next one to connect to; NULL: not known */
ngx_addr_t *ngx_rl_connection_addr(ngx_rl_connection_t *connection);

/* not needed for now: closes an idle connection, and makes no new one */
void ngx_rl_connection_close_idle(ngx_rl_connection_t *connection);

/* whether it is idle, and neither it nor a retired predecessor has commands */
ngx_uint_t ngx_rl_connection_unused(ngx_rl_connection_t *connection);

/* connects, if it is idle, as soon as its owner allows it */
void ngx_rl_connection_schedule(ngx_rl_connection_t *connection);

/* sends a command whose reply goes to the owner's push() */
void ngx_rl_connection_ping(ngx_rl_connection_t *connection,
    ngx_str_t *command);

/* whether a connection exists or may exist soon; makes one if needed */
ngx_rl_failure_e ngx_rl_connection_check(ngx_rl_connection_t *connection);

/*
 * NGX_RL_OK: *pending is set, and the handler will be called exactly once,
 * after this function has returned and within "timeout", unless the pending is
 * cancelled.  Otherwise nothing was sent, and the handler will not be called.
 */
ngx_rl_failure_e ngx_rl_connection_send(ngx_rl_connection_t *connection,
    ngx_str_t *command, ngx_msec_t timeout, ngx_rl_pending_pt handler,
    void *data, ngx_rl_pending_t **pending);

/* whether commands are sent at once */
ngx_uint_t ngx_rl_connection_ready(ngx_rl_connection_t *connection);

/* the server is probably available: do not wait */
void ngx_rl_connection_wake(ngx_rl_connection_t *connection);

/*
 * Keeps an idle connection open when the process is told to exit, because
 * something will be sent at the very end.  Each hold needs one release.
 */
void ngx_rl_connection_hold(ngx_rl_connection_t *connection);
void ngx_rl_connection_release(ngx_rl_connection_t *connection);

/*
 * For the owner's redirect(): sends the command to another server, within the
 * time that is left, after an ASKING if "asking" is set.  On any result other
 * than NGX_RL_OK the pending is unchanged.
 */
ngx_rl_failure_e ngx_rl_pending_forward(ngx_rl_pending_t *pending,
    ngx_rl_connection_t *connection, ngx_uint_t asking);

/* sends a parked command to that server unchanged, or ends it */
void ngx_rl_pending_again(ngx_rl_pending_t *pending,
    ngx_rl_connection_t *connection);

/* at process exit: closes the socket, calls no handlers */
void ngx_rl_connection_exit(ngx_rl_connection_t *connection);

/* after that, once: frees retired connections, and all memory */
void ngx_rl_connection_done(void);


#endif /* _NGX_RL_CONNECTION_H_INCLUDED_ */
