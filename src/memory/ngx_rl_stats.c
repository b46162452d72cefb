
#include "memory/ngx_rl_stats.h"
#include "pure/ngx_rl_hash.h"


static ngx_uint_t ngx_rl_process_alive(ngx_atomic_uint_t pid);


const uint32_t  ngx_rl_latency_bounds[NGX_RL_LATENCIES] = {
    100, 250, 500, 1000, 2500, 5000, 10000, 25000, 50000, 100000, 250000,
    1000000
};


const char  *const ngx_rl_decision_names[] = {
    "passed",
    "rejected",
    "dry_run_rejected",
    "skipped"
};


static ngx_uint_t  ngx_rl_process_place = NGX_RL_PROCESSES;


/* by outcome */

static const ngx_rl_decision_e  ngx_rl_stats_outcomes[] = {
    NGX_RL_DECISION_SKIPPED,
    NGX_RL_DECISION_PASSED,
    NGX_RL_DECISION_REJECTED,
    NGX_RL_DECISION_DRY_RUN,
    NGX_RL_DECISION_PASSED,   /* degraded */
    NGX_RL_DECISION_PASSED    /* a preview, which is not counted */
};


/* all that lives in shared memory, field by field */

static const uint32_t  ngx_rl_stats_fields[] = {
    sizeof(ngx_rl_limit_stats_t),
    ngx_rl_zone_field(limit_stats, requests),
    ngx_rl_zone_field(limit_stats, previews),
    ngx_rl_zone_field(limit_stats, tokens),
    ngx_rl_zone_field(limit_stats, near_limit),
    ngx_rl_zone_field(limit_stats, invalid),
    ngx_rl_zone_field(limit_stats, degraded),
    ngx_rl_zone_field(limit_stats, log_invalid),
    ngx_rl_zone_field(limit_stats, log_cost),

    sizeof(ngx_rl_throttle_t),
    ngx_rl_zone_field(throttle, minute),
    ngx_rl_zone_field(throttle, lines),
    ngx_rl_zone_field(throttle, dropped),

    sizeof(ngx_rl_histogram_t),
    ngx_rl_zone_field(histogram, bins),
    ngx_rl_zone_field(histogram, sum),

    sizeof(ngx_rl_advice_t),
    ngx_rl_zone_field(advice, bins),
    ngx_rl_zone_field(advice, sum),

    sizeof(ngx_rl_stats_t),
    ngx_rl_zone_field(stats, decisions),
    ngx_rl_zone_field(stats, fallback),
    ngx_rl_zone_field(stats, latency),
    ngx_rl_zone_field(stats, leases_refused),
    ngx_rl_zone_field(stats, pids)
};


uint64_t
ngx_rl_stats_layout(void)
{
    return ngx_rl_hash(ngx_rl_stats_fields, sizeof(ngx_rl_stats_fields));
}


ngx_rl_stats_t *
ngx_rl_stats(ngx_rl_zone_t *zone)
{
    static ngx_str_t  name = ngx_string("");

    return ngx_rl_stats_record(zone, NGX_RL_ZONE_STATS, &name,
                               sizeof(ngx_rl_stats_t));
}


ngx_rl_limit_stats_t *
ngx_rl_stats_limit(ngx_rl_zone_t *zone, ngx_str_t *name)
{
    return ngx_rl_stats_record(zone, NGX_RL_ZONE_LIMIT, name,
                               sizeof(ngx_rl_limit_stats_t));
}


ngx_rl_advice_t *
ngx_rl_stats_advice(ngx_rl_zone_t *zone, ngx_str_t *name)
{
    return ngx_rl_stats_record(zone, NGX_RL_ZONE_ADVICE, name,
                               sizeof(ngx_rl_advice_t));
}


void *
ngx_rl_stats_record(ngx_rl_zone_t *zone,
    ngx_rl_zone_kind_e kind, ngx_str_t *name, size_t size)
{
    void              *data;
    ngx_rl_zone_ask_t  ask;

    ngx_memzero(&ask, sizeof(ngx_rl_zone_ask_t));

    ask.kind = kind;
    ask.name = name;
    ask.size = size;

    ngx_rl_zone_lock(zone);
    data = ngx_rl_zone_record(zone, &ask);
    ngx_rl_zone_unlock(zone);

    return data;
}


/* a failure policy that lets a request pass, or rejects it, also decides */

void
ngx_rl_stats_decision(ngx_rl_decisions_t counters, ngx_rl_decision_t *d)
{
    ngx_rl_decision_e  decision;

    decision = ngx_rl_stats_outcomes[d->outcome];

    if (decision == NGX_RL_DECISION_PASSED
        && d->source == NGX_RL_SOURCE_CLOSED)
    {
        decision = NGX_RL_DECISION_REJECTED;
    }

    ngx_rl_count(counters[decision][d->source]);
}


/* a policy that lets requests pass takes no tokens; the local share does */

void
ngx_rl_stats_taken(ngx_rl_limit_stats_t *limit,
    ngx_rl_decision_t *d, uint64_t cost)
{
    if (d->outcome != NGX_RL_PASSED
        && (d->outcome != NGX_RL_DEGRADED
            || d->source != NGX_RL_SOURCE_LOCAL))
    {
        return;
    }

    (void) ngx_atomic_fetch_add(&limit->tokens, cost);

    if (d->remaining * NGX_RL_NEAR < d->limit) {
        ngx_rl_count(limit->near_limit);
    }
}


/* a request that needed too much to tell adds the size of its bucket */

void
ngx_rl_stats_needed(ngx_rl_advice_t *advice, const ngx_rl_decision_t *d,
    const ngx_rl_bucket_t *bucket)
{
    ngx_rl_count(advice->bins[ngx_rl_advice_bin(d->needed)]);

    (void) ngx_atomic_fetch_add(&advice->sum,
                                (d->needed == NGX_RL_NEVER)
                                ? ngx_rl_bucket_size(bucket) : d->needed);
}


void
ngx_rl_stats_latency(ngx_rl_histogram_t *histogram, uint64_t us)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_RL_LATENCIES && us > ngx_rl_latency_bounds[i]; i++) {
        /* void */
    }

    ngx_rl_count(histogram->bins[i]);
    (void) ngx_atomic_fetch_add(&histogram->sum, us);
}


void
ngx_rl_process_begin(ngx_rl_stats_t *stats)
{
    ngx_uint_t         i;
    ngx_atomic_uint_t  pid;

    for (i = 0; i < NGX_RL_PROCESSES; i++) {

        pid = stats->pids[i];

        if ((!ngx_rl_process_alive(pid) || pid == (ngx_atomic_uint_t) ngx_pid)
            && ngx_atomic_cmp_set(&stats->pids[i], pid, ngx_pid))
        {
            break;
        }
    }

    ngx_rl_process_place = i;
}


void
ngx_rl_process_end(ngx_rl_stats_t *stats)
{
    if (ngx_rl_process_place < NGX_RL_PROCESSES) {
        stats->pids[ngx_rl_process_place] = 0;
    }

    ngx_rl_process_place = NGX_RL_PROCESSES;
}


ngx_uint_t
ngx_rl_process(void)
{
    return ngx_rl_process_place;
}


void
ngx_rl_process_living(ngx_rl_stats_t *stats, ngx_rl_processes_t living)
{
    ngx_uint_t  i;

    ngx_memzero(living, sizeof(ngx_rl_processes_t));

    for (i = 0; i < NGX_RL_PROCESSES; i++) {

        if (ngx_rl_process_alive(stats->pids[i])) {
            living[i / 64] |= (uint64_t) 1 << i % 64;
        }
    }
}


static ngx_uint_t
ngx_rl_process_alive(ngx_atomic_uint_t pid)
{
    return pid && (kill((ngx_pid_t) pid, 0) == 0 || ngx_errno != ESRCH);
}
