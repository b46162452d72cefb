
#include "ngx_http_ratelimit_decision.h"


static void ngx_http_ratelimit_decide_bucket(ngx_http_ratelimit_decision_t *d,
    const ngx_http_ratelimit_bucket_t *bucket, uint64_t left,
    const int64_t *state);
static void ngx_http_ratelimit_decide_window(ngx_http_ratelimit_decision_t *d,
    const ngx_http_ratelimit_bucket_t *bucket, uint64_t left,
    const int64_t *state);
static uint64_t ngx_http_ratelimit_refill(
    const ngx_http_ratelimit_bucket_t *bucket, uint64_t microtokens,
    uint64_t gone);
static uint64_t ngx_http_ratelimit_seconds(uint64_t us);


static const char  *ngx_http_ratelimit_outcome_names[] = {
    "SKIPPED",
    "PASSED",
    "REJECTED",
    "REJECTED_DRY_RUN",
    "DEGRADED"
};


static const char  *ngx_http_ratelimit_source_names[] = {
    "none",
    "redis",
    "cache",
    "denied",
    "lease",
    "local",
    "open",
    "closed"
};


size_t
ngx_http_ratelimit_states(const ngx_http_ratelimit_bucket_t *bucket)
{
    if (bucket->algorithm == NGX_HTTP_RATELIMIT_SLIDING_WINDOW_LOG) {
        return 3;
    }

    return bucket->step ? 2 : 1;
}


void
ngx_http_ratelimit_decide(ngx_http_ratelimit_decision_t *d,
    const ngx_http_ratelimit_bucket_t *bucket, const int64_t *state)
{
    uint64_t  left;

    left = (state[0] >= 0) ? (uint64_t) state[0] : (uint64_t) (-1 - state[0]);

    d->outcome = (state[0] >= 0) ? NGX_HTTP_RATELIMIT_PASSED
                                 : NGX_HTTP_RATELIMIT_REJECTED;
    d->limit = bucket->capacity;
    d->retry_after = 0;

    if (bucket->algorithm == NGX_HTTP_RATELIMIT_SLIDING_WINDOW_LOG) {
        ngx_http_ratelimit_decide_window(d, bucket, left, state);

    } else {
        ngx_http_ratelimit_decide_bucket(d, bucket, left, state);
    }

    if (d->outcome == NGX_HTTP_RATELIMIT_PASSED) {
        return;
    }

    if (bucket->cost > bucket->capacity) {
        d->retry_after = NGX_HTTP_RATELIMIT_NEVER;
    }

    if (d->retry_after == 0) {
        d->retry_after = 1;
    }
}


static void
ngx_http_ratelimit_decide_bucket(ngx_http_ratelimit_decision_t *d,
    const ngx_http_ratelimit_bucket_t *bucket, uint64_t left,
    const int64_t *state)
{
    uint64_t  full, cost, gone, owed;

    full = bucket->capacity * NGX_HTTP_RATELIMIT_MICRO;
    cost = bucket->cost * NGX_HTTP_RATELIMIT_MICRO;
    gone = (bucket->step && state[1] > 0) ? (uint64_t) state[1] : 0;
    owed = (state[2] > 0) ? (uint64_t) state[2] : 0;

    if (left > full) {
        left = full;
    }

    d->remaining = left / NGX_HTTP_RATELIMIT_MICRO;
    d->reset = ngx_http_ratelimit_refill(bucket, full - left + owed, gone);

    if (d->outcome == NGX_HTTP_RATELIMIT_REJECTED && cost > left) {
        d->retry_after = ngx_http_ratelimit_refill(bucket, cost - left + owed,
                                                   gone);
    }
}


static void
ngx_http_ratelimit_decide_window(ngx_http_ratelimit_decision_t *d,
    const ngx_http_ratelimit_bucket_t *bucket, uint64_t left,
    const int64_t *state)
{
    d->remaining = (left < bucket->capacity) ? left : bucket->capacity;
    d->reset = ngx_http_ratelimit_seconds(state[1] > 0 ? state[1] : 0);

    if (d->outcome == NGX_HTTP_RATELIMIT_REJECTED) {
        d->retry_after = ngx_http_ratelimit_seconds(state[2] > 0 ? state[2]
                                                                 : 0);
    }
}


uint64_t
ngx_http_ratelimit_span(const ngx_http_ratelimit_bucket_t *bucket)
{
    if (bucket->algorithm == NGX_HTTP_RATELIMIT_SLIDING_WINDOW_LOG) {
        return ngx_http_ratelimit_seconds(bucket->window);
    }

    return ngx_http_ratelimit_refill(bucket,
                              bucket->capacity * NGX_HTTP_RATELIMIT_MICRO, 0);
}


int
ngx_http_ratelimit_tighter(const ngx_http_ratelimit_decision_t *a,
    const ngx_http_ratelimit_decision_t *b)
{
    /* remaining and limit are below 2^30 */

    return a->remaining * b->limit < b->remaining * a->limit;
}


const char *
ngx_http_ratelimit_outcome_name(ngx_http_ratelimit_outcome_e o)
{
    return ngx_http_ratelimit_outcome_names[o];
}


const char *
ngx_http_ratelimit_source_name(ngx_http_ratelimit_source_e s)
{
    return ngx_http_ratelimit_source_names[s];
}


/* seconds until so many tokens have come; "gone" is spent of this step */

static uint64_t
ngx_http_ratelimit_refill(const ngx_http_ratelimit_bucket_t *bucket,
    uint64_t microtokens, uint64_t gone)
{
    uint64_t  us;

    us = ngx_http_ratelimit_rate_wait(&bucket->rate, microtokens);

    if (bucket->step && us && us < NGX_HTTP_RATELIMIT_NEVER - bucket->step) {
        us += bucket->step - 1;
        us -= us % bucket->step;
        us -= (gone < us) ? gone : us;
    }

    return ngx_http_ratelimit_seconds(us);
}


static uint64_t
ngx_http_ratelimit_seconds(uint64_t us)
{
    if (us == NGX_HTTP_RATELIMIT_NEVER) {
        return NGX_HTTP_RATELIMIT_NEVER;
    }

    return us / NGX_HTTP_RATELIMIT_MICRO
           + (us % NGX_HTTP_RATELIMIT_MICRO ? 1 : 0);
}
