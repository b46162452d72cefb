
/*
 * The store: takes tokens from a bucket that lives on a Redis shard, and
 * answers with a decision or with the reason why there is none.
 */


#ifndef _NGX_HTTP_RATELIMIT_STORE_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_STORE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_ratelimit_decision.h"
#include "ngx_http_ratelimit_shards.h"


typedef struct ngx_http_ratelimit_take_s  ngx_http_ratelimit_take_t;

typedef void (*ngx_http_ratelimit_take_pt)(ngx_http_ratelimit_take_t *take);


/* a take under way; its memory is the caller's */

struct ngx_http_ratelimit_take_s {

    /* set by the caller */

    ngx_http_ratelimit_shards_t     *shards;
    ngx_str_t                        key;       /* the client's */
    ngx_str_t                        redis_key; /* of the bucket */
    ngx_http_ratelimit_bucket_t      bucket;
    ngx_msec_t                       timeout;
    ngx_http_ratelimit_take_pt       handler;
    void                            *data;

    /* the answer: valid when failure is NGX_HTTP_RATELIMIT_OK */

    ngx_http_ratelimit_decision_t    decision;
    ngx_http_ratelimit_failure_e     failure;
    ngx_http_ratelimit_peer_t       *peer;

    /* the store's own */

    ngx_msec_t                       start;
    ngx_http_ratelimit_slot_t       *slot;      /* NULL: nothing under way */
    unsigned                         eval:1;    /* with the script's text */
};


/* makes the connections of this process */
ngx_int_t ngx_http_ratelimit_store_init(ngx_cycle_t *cycle,
    ngx_array_t *peers);
void ngx_http_ratelimit_store_exit(void);

/*
 * NGX_AGAIN: the handler will be called, exactly once and within the timeout;
 * NGX_ERROR: it will not, and take->failure says why
 */
ngx_int_t ngx_http_ratelimit_store_take(ngx_http_ratelimit_take_t *take);

/* the handler will not be called any more; may be called at any time */
void ngx_http_ratelimit_store_cancel(ngx_http_ratelimit_take_t *take);


#endif /* _NGX_HTTP_RATELIMIT_STORE_H_INCLUDED_ */
