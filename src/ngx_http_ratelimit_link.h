
/*
 * A worker's link to one peer: its connection, the peer's circuit breaker,
 * which all workers share, and the peer's counters.
 */


#ifndef _NGX_HTTP_RATELIMIT_LINK_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_LINK_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_ratelimit_redis.h"
#include "ngx_http_ratelimit_shards.h"


typedef struct ngx_http_ratelimit_link_s  ngx_http_ratelimit_link_t;


/* NULL if there is no memory; connects at once */
ngx_http_ratelimit_link_t *ngx_http_ratelimit_link_create(ngx_pool_t *pool,
    ngx_log_t *log, ngx_http_ratelimit_peer_t *peer,
    ngx_http_ratelimit_zone_t *zone, ngx_http_ratelimit_stats_t *all);

/* whether a call could be sent now */
ngx_http_ratelimit_failure_e ngx_http_ratelimit_link_check(
    ngx_http_ratelimit_link_t *link);

/*
 * As ngx_http_ratelimit_redis_send(), but sends nothing while the breaker is
 * open.  Of every call that was to be sent the caller says what came of it.
 */
ngx_http_ratelimit_failure_e ngx_http_ratelimit_link_send(
    ngx_http_ratelimit_link_t *link, ngx_str_t *command, ngx_msec_t timeout,
    ngx_http_ratelimit_redis_pt handler, void *data,
    ngx_http_ratelimit_slot_t **slot);

/* a call was answered, so many microseconds after it was made */
void ngx_http_ratelimit_link_answered(ngx_http_ratelimit_link_t *link,
    uint64_t us);

/* there is no answer; the error reply, if it is one, may be logged */
void ngx_http_ratelimit_link_failed(ngx_http_ratelimit_link_t *link,
    ngx_http_ratelimit_failure_e failure, ngx_http_ratelimit_reply_t *reply);

/* the same for a call that could not be sent */
void ngx_http_ratelimit_link_unsent(ngx_http_ratelimit_link_t *link,
    ngx_http_ratelimit_failure_e failure);

/* what else is counted: calls that give back, and scripts sent again */
void ngx_http_ratelimit_link_refund(ngx_http_ratelimit_link_t *link);
void ngx_http_ratelimit_link_reload(ngx_http_ratelimit_link_t *link);

/* see ngx_http_ratelimit_redis_keep() */
void ngx_http_ratelimit_link_keep(ngx_http_ratelimit_link_t *link);
void ngx_http_ratelimit_link_release(ngx_http_ratelimit_link_t *link);

/* for the end of the process */
void ngx_http_ratelimit_link_exit(ngx_http_ratelimit_link_t *link);


#endif /* _NGX_HTTP_RATELIMIT_LINK_H_INCLUDED_ */
