
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


/* who knows where servers are, above the link; all functions may be NULL */

typedef struct {
    void         *data;

    /* see ngx_http_ratelimit_redis_owner_t */

    ngx_http_ratelimit_failure_e
                (*greeted)(void *data, ngx_http_ratelimit_link_t *link,
                           ngx_uint_t tell, ngx_http_ratelimit_reply_t *reply);

    ngx_int_t   (*redirect)(void *data, ngx_http_ratelimit_link_t *link,
                            ngx_http_ratelimit_slot_t *slot,
                            ngx_http_ratelimit_reply_t *reply,
                            ngx_http_ratelimit_failure_e *failure);

    /* it did not answer, or not as it should: it may be elsewhere by now */
    void        (*trouble)(void *data, ngx_http_ratelimit_link_t *link,
                           ngx_http_ratelimit_failure_e failure);

    /* where a key lives by now; never NULL */
    ngx_http_ratelimit_link_t *
                (*find)(void *data, const char *key, size_t len);
} ngx_http_ratelimit_guide_t;


/* NULL if there is no memory; connects when it is used or woken */
ngx_http_ratelimit_link_t *ngx_http_ratelimit_link_create(ngx_pool_t *pool,
    ngx_log_t *log, ngx_http_ratelimit_peer_t *peer,
    ngx_http_ratelimit_zone_t *zone, ngx_http_ratelimit_stats_t *all,
    ngx_http_ratelimit_guide_t *guide);

/* connects now */
void ngx_http_ratelimit_link_wake(ngx_http_ratelimit_link_t *link);

/* nobody needs it for now */
void ngx_http_ratelimit_link_rest(ngx_http_ratelimit_link_t *link);

/* whether it rests, and no call is under way */
ngx_uint_t ngx_http_ratelimit_link_unused(ngx_http_ratelimit_link_t *link);

/*
 * The peer of an unused link is another server now, with its own counters.
 * NGX_ERROR: no memory, all is as before but for the peer
 */
ngx_int_t ngx_http_ratelimit_link_reuse(ngx_http_ratelimit_link_t *link);

/*
 * The peer has other addresses.  Calls under way end as failures if "drop" is
 * set: nothing more shall get to where it was.  No addresses (n is 0, with
 * "drop"): calls wait until they are known.  NGX_ERROR: no memory, it is where
 * it was.
 */
ngx_int_t ngx_http_ratelimit_link_move(ngx_http_ratelimit_link_t *link,
    ngx_addr_t *addrs, ngx_uint_t n, ngx_uint_t drop);

ngx_http_ratelimit_peer_t *ngx_http_ratelimit_link_peer(
    ngx_http_ratelimit_link_t *link);

/* its connection: changes when the peer has moved */
ngx_http_ratelimit_redis_t *ngx_http_ratelimit_link_redis(
    ngx_http_ratelimit_link_t *link);

/* places for what batches and refunds keep of it, NULL at first */
void **ngx_http_ratelimit_link_lane(ngx_http_ratelimit_link_t *link);
void **ngx_http_ratelimit_link_refunds(ngx_http_ratelimit_link_t *link);

/* the link to a key that this one led to some time ago */
ngx_http_ratelimit_link_t *ngx_http_ratelimit_link_now(
    ngx_http_ratelimit_link_t *link, const char *key, size_t len);

/* keeps where the peer is; returns whether other workers don't know that yet */
ngx_uint_t ngx_http_ratelimit_link_found(ngx_http_ratelimit_link_t *link,
    ngx_str_t *address);

/*
 * What has become of the peer's name: other addresses, or none (n is 0) and the
 * old ones stay.  Returns whether it is to be logged.
 */
ngx_uint_t ngx_http_ratelimit_link_renamed(ngx_http_ratelimit_link_t *link,
    ngx_addr_t *addrs, ngx_uint_t n);

/* whether a failure of this class is to be logged now */
ngx_uint_t ngx_http_ratelimit_link_loud(ngx_http_ratelimit_link_t *link,
    ngx_http_ratelimit_failure_e failure);

/* counts what becomes of the topology */
void ngx_http_ratelimit_link_event(ngx_http_ratelimit_link_t *link,
    ngx_http_ratelimit_event_e event);

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

/* whether calls go out at once */
ngx_uint_t ngx_http_ratelimit_link_usable(ngx_http_ratelimit_link_t *link);

/* as ngx_http_ratelimit_redis_forward(), unless the breaker is open */
ngx_http_ratelimit_failure_e ngx_http_ratelimit_link_forward(
    ngx_http_ratelimit_link_t *link, ngx_http_ratelimit_slot_t *slot,
    ngx_uint_t asking);

/* a call was answered, so many microseconds after it was made */
void ngx_http_ratelimit_link_answered(ngx_http_ratelimit_link_t *link,
    uint64_t us);

/*
 * There is no answer to a command, or to a call that was part of one; the error
 * reply, if it is one, may be logged.  Of a command one failure counts for the
 * breaker.
 */
void ngx_http_ratelimit_link_failed(ngx_http_ratelimit_link_t *link,
    ngx_http_ratelimit_failure_e failure, ngx_http_ratelimit_reply_t *reply,
    ngx_uint_t counts);

/* the same for a call that could not be sent */
void ngx_http_ratelimit_link_unsent(ngx_http_ratelimit_link_t *link,
    ngx_http_ratelimit_failure_e failure);

/*
 * What else is counted: calls that give back, refunds that nobody knows to have
 * arrived, and scripts sent again
 */
void ngx_http_ratelimit_link_refund(ngx_http_ratelimit_link_t *link);
void ngx_http_ratelimit_link_refund_lost(ngx_http_ratelimit_link_t *link);
void ngx_http_ratelimit_link_reload(ngx_http_ratelimit_link_t *link);

/* see ngx_http_ratelimit_redis_keep() */
void ngx_http_ratelimit_link_keep(ngx_http_ratelimit_link_t *link);
void ngx_http_ratelimit_link_release(ngx_http_ratelimit_link_t *link);

/* for the end of the process */
void ngx_http_ratelimit_link_exit(ngx_http_ratelimit_link_t *link);


#endif /* _NGX_HTTP_RATELIMIT_LINK_H_INCLUDED_ */
