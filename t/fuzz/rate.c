
/*
 * Rates, capacities, costs and shares as users and variables write them, and
 * the arithmetic that follows: nothing overflows, and nothing that waits comes
 * earlier than it was refilled.
 */

#include "fuzz.h"

#include "pure/ngx_rl_bucket.h"


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char            *text;
    size_t           len;
    input_t          in;
    uint64_t         n, us, wait;
    const char      *err;
    ngx_rl_rate_t    rate;
    ngx_rl_share_t   share;
    ngx_rl_bucket_t  bucket;

    in.pos = data;
    in.end = data + size;

    n = number(&in, 6);
    us = number(&in, 7);
    text = rest(&in, &len);

    if (ngx_rl_capacity_parse(text, len, &wait) == NULL) {
        check(wait >= 1 && wait <= NGX_RL_MAX_CAPACITY);
    }

    if (ngx_rl_cost_parse(text, len, &wait) == NULL) {
        check(wait >= 1 && wait <= NGX_RL_MAX_COST);
    }

    (void) ngx_rl_cost_bound(text, len, &wait);
    check(wait >= 1 && wait <= NGX_RL_MAX_COST);

    memset(&bucket, 0, sizeof(bucket));
    bucket.capacity = 1 + n % NGX_RL_MAX_CAPACITY;
    bucket.cost = 1;

    if (ngx_rl_share_parse(text, len, &share) == NULL) {
        check(share.num >= 1 && share.den >= 1 && share.num <= share.den);
        ngx_rl_bucket_share(&bucket, &share);
        check(bucket.capacity >= 1
              && bucket.capacity <= NGX_RL_MAX_CAPACITY);
    }

    err = ngx_rl_rate_parse(text, len, &rate);
    free(text);

    if (err || ngx_rl_rate_check(&rate, bucket.capacity)) {
        return 0;
    }

    check(rate.den != 0);

    bucket.rate = rate;
    (void) ngx_rl_bucket_ttl(&bucket);
    (void) ngx_rl_bucket_span(&bucket);
    (void) ngx_rl_bucket_slow(&bucket);

    n %= bucket.capacity * NGX_RL_MICRO;
    wait = ngx_rl_rate_wait(&rate, n);

    if (wait == NGX_RL_NEVER) {
        /* or later than a number of 64 bits can say */
        check(rate.num == 0
              || (unsigned __int128) n * rate.den / rate.num
                 >= NGX_RL_NEVER - 1);

    } else {
        check(ngx_rl_rate_refill(&rate, wait) >= n);
        check(wait == 0 || ngx_rl_rate_refill(&rate, wait - 1) < n);
    }

    us %= 1ULL << 52;
    check(ngx_rl_rate_refill(&rate, us) <= ngx_rl_rate_refill(&rate, us + 1));

    if (ngx_rl_gcra_check(&rate, bucket.capacity) == NULL) {
        check(rate.num == 0 || ngx_rl_gcra_tick(&rate) > 0);
    }

    return 0;
}
