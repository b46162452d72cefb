
/*
 * Buckets and windows for the unit tests.
 */


#ifndef _BUCKETS_H_INCLUDED_
#define _BUCKETS_H_INCLUDED_


#include "tap.h"

#include "pure/ngx_rl_bucket.h"


static inline ngx_rl_bucket_t
bucket_of(uint64_t capacity, const char *rate, uint64_t cost)
{
    ngx_rl_bucket_t  bucket;

    /* fields that no bucket needs have a value that would show */

    memset(&bucket, 0xaa, sizeof(bucket));

    bucket.algorithm = NGX_RL_TOKEN_BUCKET;
    bucket.capacity = capacity;
    bucket.debt = 0;
    bucket.cost = cost;
    bucket.step = 0;
    bucket.varies = 0;

    if (ngx_rl_rate_parse(rate, strlen(rate), &bucket.rate)) {
        ok(0, "%s is a rate", rate);
    }

    return bucket;
}


static inline ngx_rl_bucket_t
gcra_of(uint64_t capacity, const char *rate, uint64_t cost)
{
    ngx_rl_bucket_t  bucket;

    bucket = bucket_of(capacity, rate, cost);
    bucket.algorithm = NGX_RL_GCRA;

    return bucket;
}


/* "length" in microseconds */

static inline ngx_rl_bucket_t
window_of(uint64_t limit, uint64_t length, uint64_t cost)
{
    ngx_rl_bucket_t  window;

    memset(&window, 0xaa, sizeof(window));

    window.algorithm = NGX_RL_SLIDING_WINDOW_LOG;
    window.capacity = limit;
    window.debt = 0;
    window.cost = cost;
    window.window = length;
    window.step = 0;

    return window;
}


/* the same; a length of 0: months in UTC */

static inline ngx_rl_bucket_t
fixed_of(uint64_t limit, uint64_t length, uint64_t cost)
{
    ngx_rl_bucket_t  window;

    window = window_of(limit, length, cost);
    window.algorithm = NGX_RL_FIXED_WINDOW;

    if (length) {
        ngx_rl_period_window(&window.period, length);

    } else {
        ngx_rl_period_calendar(&window.period, NGX_RL_MONTH, 0, 1);
    }

    return window;
}


static inline ngx_rl_bucket_t
counter_of(uint64_t limit, uint64_t length, uint64_t cost)
{
    ngx_rl_bucket_t  window;

    window = fixed_of(limit, length, cost);
    window.algorithm = NGX_RL_SLIDING_WINDOW_COUNTER;

    return window;
}


#endif /* _BUCKETS_H_INCLUDED_ */
