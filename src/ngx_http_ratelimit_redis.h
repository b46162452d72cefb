
/*
 * A multiplexed, pipelined connection to one Redis server.  Knows no requests
 * and no limits: it sends commands and hands back their replies.
 */


#ifndef _NGX_HTTP_RATELIMIT_REDIS_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_REDIS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_event_connect.h>

#include "ngx_http_ratelimit_failure.h"
#include "ngx_http_ratelimit_reply.h"
#include "ngx_http_ratelimit_stats.h"


typedef struct ngx_http_ratelimit_redis_s  ngx_http_ratelimit_redis_t;
typedef struct ngx_http_ratelimit_slot_s   ngx_http_ratelimit_slot_t;


/* a command that every new connection sends before anything else */

typedef struct {
    ngx_str_t     command;           /* as it goes over the wire */
    ngx_str_t     name;              /* for the log */
    unsigned      required:1;        /* no use of the server without it */
    unsigned      secret:1;          /* must not get into the log */
} ngx_http_ratelimit_greeting_t;


/* what a connection needs to know; outlives it */

typedef struct {
    ngx_str_t     name;              /* host:port, without credentials */
    ngx_addr_t   *addrs;             /* tried in turn */
    ngx_uint_t    naddrs;
    ngx_array_t   greeting;          /* ngx_http_ratelimit_greeting_t */
    ngx_msec_t    connect_timeout;   /* for connect and greeting together */
} ngx_http_ratelimit_redis_conf_t;


/* who owns a connection is told about it, and asked */

typedef struct {
    void         *data;

    /* 0: connect now; else when to ask again, ms */
    ngx_msec_t  (*may_connect)(void *data);

    void        (*ready)(void *data);

    /*
     * It ended by a failure, or, NGX_HTTP_RATELIMIT_OK, while nobody used it;
     * "stable" if it had lived for a while.  Returns when to connect again,
     * ms; 0: at once
     */
    ngx_msec_t  (*closed)(void *data, ngx_http_ratelimit_failure_e failure,
                          ngx_uint_t stable);

    /* whether a failure of this class is to be logged now */
    ngx_uint_t  (*loud)(void *data, ngx_http_ratelimit_failure_e failure);

    ngx_http_ratelimit_shard_stats_t  *stats;
} ngx_http_ratelimit_redis_owner_t;


/*
 * reply is NULL when there is a failure; it is valid during the call only.
 * NGX_ERROR says that it is none that the command could have: then nobody knows
 * whose the next ones are, and the connection is closed.
 */
typedef ngx_int_t (*ngx_http_ratelimit_redis_pt)(void *data,
    ngx_http_ratelimit_reply_t *reply, ngx_http_ratelimit_failure_e failure);


/* NULL if there is no memory; connects when it is woken or used */
ngx_http_ratelimit_redis_t *ngx_http_ratelimit_redis_create(ngx_pool_t *pool,
    ngx_log_t *log, ngx_http_ratelimit_redis_conf_t *conf,
    ngx_http_ratelimit_redis_owner_t *owner);

/* whether there is, or soon may be, a connection; makes one if needed */
ngx_http_ratelimit_failure_e ngx_http_ratelimit_redis_check(
    ngx_http_ratelimit_redis_t *redis);

/*
 * NGX_HTTP_RATELIMIT_OK: *slot is set, and the handler will be called exactly
 * once, not before this function has returned, at the latest after "timeout",
 * unless the slot is cancelled.  Otherwise nothing was sent, and the handler
 * will not be called.
 */
ngx_http_ratelimit_failure_e ngx_http_ratelimit_redis_send(
    ngx_http_ratelimit_redis_t *redis, ngx_str_t *command, ngx_msec_t timeout,
    ngx_http_ratelimit_redis_pt handler, void *data,
    ngx_http_ratelimit_slot_t **slot);

/* from now on the handler's data is this */
void ngx_http_ratelimit_redis_adopt(ngx_http_ratelimit_slot_t *slot,
    void *data);

/* nobody waits for the reply: it does not hold up the end of the process */
void ngx_http_ratelimit_redis_quiet(ngx_http_ratelimit_slot_t *slot);

/* the handler will not be called; a command that was sent may still run */
void ngx_http_ratelimit_redis_cancel(ngx_http_ratelimit_slot_t *slot);

/* whether commands go out at once */
ngx_uint_t ngx_http_ratelimit_redis_ready(ngx_http_ratelimit_redis_t *redis);

/* whether it is about to fail all calls of a connection that was lost */
ngx_uint_t ngx_http_ratelimit_redis_failing(ngx_http_ratelimit_redis_t *redis);

/* there is reason to believe that the server is there: don't wait */
void ngx_http_ratelimit_redis_wake(ngx_http_ratelimit_redis_t *redis);

/*
 * While it is kept, the process does not close it for being idle when it is
 * told to leave: something is to be sent at the very end.  As often as it is
 * kept it has to be released.
 */
void ngx_http_ratelimit_redis_keep(ngx_http_ratelimit_redis_t *redis);
void ngx_http_ratelimit_redis_release(ngx_http_ratelimit_redis_t *redis);

/* for the end of the process: closes the socket, calls no handlers */
void ngx_http_ratelimit_redis_exit(ngx_http_ratelimit_redis_t *redis);


#endif /* _NGX_HTTP_RATELIMIT_REDIS_H_INCLUDED_ */
