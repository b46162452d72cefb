
#include <string.h>

#include "pure/ngx_rl_bucket.h"


#define NGX_RL_HOUR          3600000        /* ms */

/* how many times the capacity a bucket has for advice */
#define NGX_RL_ADVISE_TIMES  1000


size_t
ngx_rl_bucket_states(const ngx_rl_bucket_t *bucket)
{
    if (ngx_rl_algorithm_window(bucket->algorithm)) {
        return (bucket->algorithm == NGX_RL_SLIDING_WINDOW_COUNTER) ? 4 : 3;
    }

    return bucket->step ? 2 : 1;
}


void
ngx_rl_bucket_advise(ngx_rl_bucket_t *bucket)
{
    uint64_t  most;

    most = (bucket->algorithm == NGX_RL_GCRA)
           ? ngx_rl_gcra_capacity(&bucket->rate) : NGX_RL_MAX_CAPACITY;

    if (most > bucket->capacity * NGX_RL_ADVISE_TIMES) {
        most = bucket->capacity * NGX_RL_ADVISE_TIMES;
    }

    bucket->debt = (most > bucket->capacity) ? most - bucket->capacity : 1;
}


int
ngx_rl_bucket_same(const ngx_rl_bucket_t *a, const ngx_rl_bucket_t *b)
{
    return memcmp(a, b, sizeof(ngx_rl_bucket_t)) == 0;
}


uint64_t
ngx_rl_bucket_span(const ngx_rl_bucket_t *bucket)
{
    if (bucket->algorithm == NGX_RL_SLIDING_WINDOW_LOG) {
        return ngx_rl_seconds(bucket->window);
    }

    if (ngx_rl_algorithm_period(bucket->algorithm)) {
        return bucket->period.length ? ngx_rl_seconds(bucket->period.length)
                                     : NGX_RL_NEVER;
    }

    return ngx_rl_bucket_wait(bucket, bucket->capacity * NGX_RL_MICRO, 0);
}


uint64_t
ngx_rl_bucket_wait(const ngx_rl_bucket_t *bucket,
    uint64_t microtokens, uint64_t gone)
{
    uint64_t  us;

    us = ngx_rl_rate_wait(&bucket->rate, microtokens);

    if (bucket->step && us && us < NGX_RL_NEVER - bucket->step) {
        us += bucket->step - 1;
        us -= us % bucket->step;
        us -= (gone < us) ? gone : us;
    }

    return ngx_rl_seconds(us);
}


/*
 * A missing bucket counts as full and a missing window as empty.  So a key may
 * expire when its bucket is full again, plus a second for rounding.  A bucket
 * that never refills cannot be kept for ever: it expires when it is not used
 * any more.  The scripts know when a period ends.
 */

uint64_t
ngx_rl_bucket_ttl(const ngx_rl_bucket_t *bucket)
{
    uint64_t  us;

    if (bucket->algorithm == NGX_RL_SLIDING_WINDOW_LOG) {
        us = bucket->window;

    } else if (ngx_rl_algorithm_period(bucket->algorithm)) {
        return 0;

    } else if (bucket->rate.num == 0) {
        return NGX_RL_TTL_NEVER;

    } else {
        us = ngx_rl_rate_wait(&bucket->rate, bucket->capacity * NGX_RL_MICRO);
    }

    us = (us > UINT64_MAX - bucket->step) ? us : us + bucket->step;

    if (us / 1000 > NGX_RL_TTL_MAX - 1000) {
        return NGX_RL_TTL_MAX;
    }

    return us / 1000 + 1000;
}


int
ngx_rl_bucket_slow(const ngx_rl_bucket_t *bucket)
{
    return ngx_rl_bucket_ttl(bucket) > NGX_RL_HOUR;
}


void
ngx_rl_bucket_share(ngx_rl_bucket_t *bucket, const ngx_rl_share_t *share)
{
    bucket->capacity = bucket->capacity * share->num / share->den;

    if (bucket->capacity == 0) {
        bucket->capacity = 1;
    }

    if (bucket->debt) {
        bucket->debt = bucket->debt * share->num / share->den + 1;
    }

    bucket->rate.num *= share->num;
    bucket->rate.den *= share->den;
}


uint64_t
ngx_rl_seconds(uint64_t us)
{
    if (us == NGX_RL_NEVER) {
        return NGX_RL_NEVER;
    }

    return us / NGX_RL_MICRO + (us % NGX_RL_MICRO ? 1 : 0);
}
