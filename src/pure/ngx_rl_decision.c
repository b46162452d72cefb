
#include "pure/ngx_rl_decision.h"


static void ngx_rl_decide_bucket(ngx_rl_decision_t *d,
    const ngx_rl_bucket_t *bucket, uint64_t left, const int64_t *state);


const char  *const ngx_rl_outcome_names[] = {
    "SKIPPED",
    "PASSED",
    "REJECTED",
    "REJECTED_DRY_RUN",
    "DEGRADED",
    "REJECTED_PREVIEW"
};


const char  *const ngx_rl_source_names[] = {
    "none",
    "redis",
    "cache",
    "denied",
    "lease",
    "local",
    "open",
    "closed",
    "override"
};


void
ngx_rl_decide(ngx_rl_decision_t *d,
    const ngx_rl_bucket_t *bucket, const int64_t *state)
{
    uint64_t  left;

    left = (state[0] >= 0) ? (uint64_t) state[0] : (uint64_t) (-1 - state[0]);

    d->outcome = (state[0] >= 0) ? NGX_RL_PASSED : NGX_RL_REJECTED;
    d->limit = bucket->capacity;
    d->needed = 0;
    d->retry_after = 0;

    if (ngx_rl_algorithm_window(bucket->algorithm)) {
        d->remaining = (left < bucket->capacity) ? left : bucket->capacity;
        d->reset = ngx_rl_seconds(state[1] > 0 ? state[1] : 0);

        if (d->outcome == NGX_RL_REJECTED) {
            d->retry_after = ngx_rl_seconds(state[2] > 0 ? state[2] : 0);
        }

    } else {
        ngx_rl_decide_bucket(d, bucket, left, state);
    }

    if (d->outcome == NGX_RL_PASSED) {
        return;
    }

    if (bucket->cost > bucket->capacity) {
        d->retry_after = NGX_RL_NEVER;
    }

    if (d->retry_after == 0) {
        d->retry_after = 1;
    }
}


/*
 * Tokens below the debt are beyond the capacity.  A request that took them
 * would have been rejected.
 */

static void
ngx_rl_decide_bucket(ngx_rl_decision_t *d,
    const ngx_rl_bucket_t *bucket, uint64_t left, const int64_t *state)
{
    uint64_t  full, debt, wanted, gone, owed;

    full = ngx_rl_bucket_size(bucket) * NGX_RL_MICRO;
    debt = bucket->debt * NGX_RL_MICRO;
    wanted = debt;
    gone = (bucket->step && state[1] > 0) ? (uint64_t) state[1] : 0;
    owed = (state[2] > 0) ? (uint64_t) state[2] : 0;

    if (left > full) {
        left = full;
    }

    if (bucket->debt) {
        d->needed = (d->outcome == NGX_RL_REJECTED) ? NGX_RL_NEVER
                    : (full - left + owed + NGX_RL_MICRO - 1) / NGX_RL_MICRO;
    }

    d->remaining = (left > debt) ? (left - debt) / NGX_RL_MICRO : 0;
    d->reset = ngx_rl_bucket_wait(bucket, full - left + owed, gone);

    if (d->outcome == NGX_RL_REJECTED) {
        wanted += bucket->cost * NGX_RL_MICRO;
    }

    if (wanted > left) {
        d->outcome = NGX_RL_REJECTED;
        d->retry_after = ngx_rl_bucket_wait(bucket, wanted - left + owed, gone);
    }
}


uint64_t
ngx_rl_jitter(uint64_t wait, unsigned percent, uint32_t random)
{
    uint64_t  most;

    if (wait == 0 || wait == NGX_RL_NEVER || percent == 0) {
        return wait;
    }

    most = wait / 100 * percent + (wait % 100 * percent + 99) / 100;

    /* more would not fit below; it is 136 years */

    if (most > UINT32_MAX) {
        most = UINT32_MAX;
    }

    return wait + (((uint64_t) random * (most + 1)) >> 31);
}


int
ngx_rl_tighter(const ngx_rl_decision_t *a, const ngx_rl_decision_t *b)
{
    /* remaining and limit are below 2^30 */

    return a->remaining * b->limit < b->remaining * a->limit;
}
