
#include <string.h>

#include "pure/ngx_rl_breaker.h"
#include "pure/ngx_rl_backoff.h"


/* how soon to look again while another worker probes */
#define NGX_RL_BREAKER_LOOK  100        /* ms */

/* attempts that count for the next outage, if it comes soon */
#define NGX_RL_BREAKER_KEPT  3


const char  *const ngx_rl_breaker_names[] = {
    "distributed",
    "fallback",
    "circuit_open"
};


int
ngx_rl_breaker_failure(ngx_rl_breaker_t *b,
    const ngx_rl_breaker_conf_t *conf, uint64_t now, uint32_t random)
{
    uint32_t  first;
    uint64_t  time;

    b->last = (b->last + 1) % NGX_RL_BREAKER_MAX;
    b->times[b->last] = now;

    if (b->state == NGX_RL_CIRCUIT_OPEN) {
        return 0;
    }

    /* the oldest of the last so many failures */

    first = (b->last + NGX_RL_BREAKER_MAX + 1 - conf->failures)
            % NGX_RL_BREAKER_MAX;
    time = b->times[first];

    if (time && (now <= time || now - time <= conf->window)) {
        b->state = NGX_RL_CIRCUIT_OPEN;
        b->prober = 0;

        if (now > b->since && now - b->since > conf->window) {
            b->attempt = 0;
        }

        b->until = now + ngx_rl_backoff(b->attempt++, conf->probe, random);
        return 1;
    }

    if (b->state == NGX_RL_DISTRIBUTED) {
        b->state = NGX_RL_FALLBACK;
        return 1;
    }

    return 0;
}


int
ngx_rl_breaker_success(ngx_rl_breaker_t *b)
{
    if (b->state != NGX_RL_FALLBACK) {
        return 0;
    }

    b->state = NGX_RL_DISTRIBUTED;

    return 1;
}


int
ngx_rl_breaker_close(ngx_rl_breaker_t *b, uint64_t now)
{
    if (b->state == NGX_RL_DISTRIBUTED) {
        return 0;
    }

    if (b->state == NGX_RL_CIRCUIT_OPEN) {

        /* failures from before this outage do not count for the next one */

        memset(b->times, 0, sizeof(b->times));
        b->prober = 0;
        b->since = now;
        b->closed++;

        if (b->attempt > NGX_RL_BREAKER_KEPT) {
            b->attempt = NGX_RL_BREAKER_KEPT;
        }
    }

    b->state = NGX_RL_DISTRIBUTED;

    return 1;
}


uint64_t
ngx_rl_breaker_probe(ngx_rl_breaker_t *b,
    uint64_t now, uint64_t timeout, uint64_t prober)
{
    uint64_t  left;

    if (b->state != NGX_RL_CIRCUIT_OPEN) {
        return 0;
    }

    if (now < b->until) {
        left = b->until - now;

        if (b->prober && left > NGX_RL_BREAKER_LOOK) {
            return NGX_RL_BREAKER_LOOK;
        }

        return left;
    }

    b->prober = prober;
    b->until = now + timeout;

    return 0;
}


void
ngx_rl_breaker_probed(ngx_rl_breaker_t *b, const ngx_rl_breaker_conf_t *conf,
    uint64_t now, uint32_t random, uint64_t prober)
{
    if (b->state != NGX_RL_CIRCUIT_OPEN || b->prober != prober) {
        return;
    }

    b->prober = 0;
    b->until = now + ngx_rl_backoff(b->attempt++, conf->probe, random);
}
