
#include "ngx_http_ratelimit_decision.h"


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
    "local",
    "open",
    "closed"
};


void
ngx_http_ratelimit_decide(ngx_http_ratelimit_decision_t *d,
    const ngx_http_ratelimit_bucket_t *bucket, int64_t state)
{
    uint64_t  tokens, full, cost;

    full = bucket->capacity * NGX_HTTP_RATELIMIT_MICRO;
    cost = bucket->cost * NGX_HTTP_RATELIMIT_MICRO;
    tokens = (state >= 0) ? (uint64_t) state : (uint64_t) (-1 - state);

    if (tokens > full) {
        tokens = full;
    }

    d->limit = bucket->capacity;
    d->remaining = tokens / NGX_HTTP_RATELIMIT_MICRO;
    d->reset = ngx_http_ratelimit_seconds(
                   ngx_http_ratelimit_rate_wait(&bucket->rate, full - tokens));

    if (state >= 0) {
        d->outcome = NGX_HTTP_RATELIMIT_PASSED;
        d->retry_after = 0;
        return;
    }

    d->outcome = NGX_HTTP_RATELIMIT_REJECTED;

    if (cost > full) {
        d->retry_after = NGX_HTTP_RATELIMIT_NEVER;
        return;
    }

    d->retry_after = 1;

    if (cost > tokens) {
        d->retry_after = ngx_http_ratelimit_seconds(
                             ngx_http_ratelimit_rate_wait(&bucket->rate,
                                                          cost - tokens));
    }
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


static uint64_t
ngx_http_ratelimit_seconds(uint64_t us)
{
    if (us == NGX_HTTP_RATELIMIT_NEVER) {
        return NGX_HTTP_RATELIMIT_NEVER;
    }

    return us / NGX_HTTP_RATELIMIT_MICRO
           + (us % NGX_HTTP_RATELIMIT_MICRO ? 1 : 0);
}
