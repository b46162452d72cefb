
#include "memory/ngx_rl_rates.h"
#include "core/ngx_rl_clock.h"
#include "core/ngx_rl_core.h"
#include "pure/ngx_rl_hash.h"


#define NGX_RL_RATES_TICK  250          /* ms */

#define ngx_rl_rates_now()  ((ngx_atomic_uint_t) (ngx_rl_clock_us() / 1000000))


/* of this process */

typedef struct {
    ngx_rl_watch_t  *watches;
    ngx_uint_t       n;
    void            *unused;
    ngx_socket_t     ident;             /* see ngx_rl_event_init() */
    ngx_event_t      timer;
} ngx_rl_rates_process_t;


static void ngx_rl_rates_tick(ngx_event_t *ev);
static void ngx_rl_rates_sample(ngx_rl_watch_t *watch, ngx_atomic_uint_t now);
static void ngx_rl_rates_read(ngx_rl_limit_stats_t *stats,
    ngx_rl_counts_t *counts);


static ngx_rl_rates_process_t  ngx_rl_rates_process;


static const uint32_t  ngx_rl_rates_fields[] = {
    NGX_RL_RATES,

    sizeof(ngx_rl_counts_t),
    ngx_rl_zone_field(counts, passed),
    ngx_rl_zone_field(counts, rejected),
    ngx_rl_zone_field(counts, degraded),

    sizeof(ngx_rl_rates_t),
    ngx_rl_zone_field(rates, begun),
    ngx_rl_zone_field(rates, second),
    ngx_rl_zone_field(rates, counts)
};


uint64_t
ngx_rl_rates_layout(void)
{
    return ngx_rl_hash(ngx_rl_rates_fields, sizeof(ngx_rl_rates_fields));
}


ngx_rl_rates_t *
ngx_rl_rates(ngx_rl_zone_t *zone, ngx_str_t *name)
{
    return ngx_rl_stats_record(zone, NGX_RL_ZONE_RATES, name,
                               sizeof(ngx_rl_rates_t));
}


void
ngx_rl_rates_begin(ngx_cycle_t *cycle, ngx_array_t *watches)
{
    ngx_memzero(&ngx_rl_rates_process, sizeof(ngx_rl_rates_process_t));

    if (watches->nelts == 0) {
        return;
    }

    ngx_rl_rates_process.watches = watches->elts;
    ngx_rl_rates_process.n = watches->nelts;

    ngx_rl_event_init(&ngx_rl_rates_process.timer, ngx_rl_rates_process_t,
                      ngx_rl_rates_tick, &ngx_rl_rates_process, cycle->log);
    ngx_rl_rates_process.timer.cancelable = 1;

    ngx_rl_rates_tick(&ngx_rl_rates_process.timer);
}


void
ngx_rl_rates_end(void)
{
    ngx_rl_timer_end(&ngx_rl_rates_process.timer);
}


static void
ngx_rl_rates_tick(ngx_event_t *ev)
{
    ngx_uint_t         i;
    ngx_atomic_uint_t  now;

    if (ngx_exiting) {
        return;
    }

    ngx_add_timer(ev, NGX_RL_RATES_TICK);

    now = ngx_rl_rates_now();

    for (i = 0; i < ngx_rl_rates_process.n; i++) {
        ngx_rl_rates_sample(&ngx_rl_rates_process.watches[i], now);
    }
}


/* the first worker that sees a new second writes it down */

static void
ngx_rl_rates_sample(ngx_rl_watch_t *watch, ngx_atomic_uint_t now)
{
    ngx_rl_rates_t     *rates;
    ngx_rl_counts_t     counts;
    ngx_atomic_uint_t   last, second;

    rates = watch->rates;
    last = rates->second;

    if (now <= last || !ngx_atomic_cmp_set(&rates->second, last, now)) {
        return;
    }

    ngx_rl_rates_read(watch->stats, &counts);

    /* nginx may have stood still, or it has just been started */

    if (last == 0 || now - last >= NGX_RL_RATES) {
        rates->begun = now;
        last = now - 1;
    }

    for (second = last + 1; second <= now; second++) {
        rates->counts[second % NGX_RL_RATES] = counts;
    }
}


static void
ngx_rl_rates_read(ngx_rl_limit_stats_t *stats, ngx_rl_counts_t *counts)
{
    ngx_uint_t  i;

    ngx_memzero(counts, sizeof(ngx_rl_counts_t));

    for (i = 0; i < NGX_RL_SOURCES; i++) {
        counts->passed += stats->requests[NGX_RL_DECISION_PASSED][i]
                          + stats->requests[NGX_RL_DECISION_DRY_RUN][i];
        counts->rejected += stats->requests[NGX_RL_DECISION_REJECTED][i];
    }

    counts->degraded = stats->degraded;
}


ngx_int_t
ngx_rl_rates_count(ngx_rl_rates_t *rates, ngx_uint_t span,
    ngx_rl_counts_t *counts)
{
    ngx_rl_counts_t     from, to;
    ngx_atomic_uint_t   last;

    last = rates->second;

    if (last < rates->begun + span || ngx_rl_rates_now() > last + span) {
        return NGX_DECLINED;
    }

    to = rates->counts[last % NGX_RL_RATES];
    from = rates->counts[(last - span) % NGX_RL_RATES];

    counts->passed = to.passed - from.passed;
    counts->rejected = to.rejected - from.rejected;
    counts->degraded = to.degraded - from.degraded;

    return NGX_OK;
}
