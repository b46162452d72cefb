
#include "ngx_http_ratelimit_stats.h"


/* kinds of records in the zone */

#define NGX_HTTP_RATELIMIT_RECORD_STATS  0
#define NGX_HTTP_RATELIMIT_RECORD_LIMIT  1
#define NGX_HTTP_RATELIMIT_RECORD_SHARD  2


static ngx_uint_t ngx_http_ratelimit_stats_alive(ngx_atomic_uint_t pid);


const uint32_t
    ngx_http_ratelimit_latency_bounds[NGX_HTTP_RATELIMIT_LATENCIES] =
{
    100, 250, 500, 1000, 2500, 5000, 10000, 25000, 50000, 100000, 250000,
    1000000
};


static const char  *ngx_http_ratelimit_decision_names[] = {
    "passed",
    "rejected",
    "dry_run_rejected",
    "skipped"
};


/* which of the processes this one is */
static ngx_uint_t  ngx_http_ratelimit_stats_process =
    NGX_HTTP_RATELIMIT_PROCESSES;

/* where a process counts that has found no place; nobody reads it */
static ngx_http_ratelimit_gauges_t  ngx_http_ratelimit_stats_nowhere;


ngx_http_ratelimit_stats_t *
ngx_http_ratelimit_stats(ngx_http_ratelimit_zone_t *zone)
{
    ngx_str_t  name = ngx_string("");

    return ngx_http_ratelimit_zone_record(zone,
                                          NGX_HTTP_RATELIMIT_RECORD_STATS,
                                          &name,
                                          sizeof(ngx_http_ratelimit_stats_t));
}


ngx_http_ratelimit_limit_stats_t *
ngx_http_ratelimit_stats_limit(ngx_http_ratelimit_zone_t *zone,
    ngx_str_t *name)
{
    return ngx_http_ratelimit_zone_record(zone,
                                    NGX_HTTP_RATELIMIT_RECORD_LIMIT, name,
                                    sizeof(ngx_http_ratelimit_limit_stats_t));
}


ngx_http_ratelimit_shard_stats_t *
ngx_http_ratelimit_stats_shard(ngx_http_ratelimit_zone_t *zone,
    ngx_str_t *name)
{
    return ngx_http_ratelimit_zone_record(zone,
                                    NGX_HTTP_RATELIMIT_RECORD_SHARD, name,
                                    sizeof(ngx_http_ratelimit_shard_stats_t));
}


/* takes the place of a process that has ended or was killed */

void
ngx_http_ratelimit_stats_begin(ngx_http_ratelimit_zone_t *zone,
    ngx_http_ratelimit_stats_t *stats)
{
    ngx_uint_t                         i;
    ngx_atomic_uint_t                  pid;
    ngx_http_ratelimit_shard_stats_t  *shard;

    for (i = 0; i < NGX_HTTP_RATELIMIT_PROCESSES; i++) {

        pid = stats->pids[i];

        if ((!ngx_http_ratelimit_stats_alive(pid)
             || pid == (ngx_atomic_uint_t) ngx_pid)
            && ngx_atomic_cmp_set(&stats->pids[i], pid, ngx_pid))
        {
            break;
        }
    }

    ngx_http_ratelimit_stats_process = i;

    shard = NULL;

    for ( ;; ) {
        shard = ngx_http_ratelimit_zone_next(zone,
                                             NGX_HTTP_RATELIMIT_RECORD_SHARD,
                                             shard);
        if (shard == NULL) {
            break;
        }

        ngx_memzero(ngx_http_ratelimit_stats_gauges(shard),
                    sizeof(ngx_http_ratelimit_gauges_t));
    }
}


void
ngx_http_ratelimit_stats_end(ngx_http_ratelimit_stats_t *stats)
{
    if (ngx_http_ratelimit_stats_process < NGX_HTTP_RATELIMIT_PROCESSES) {
        stats->pids[ngx_http_ratelimit_stats_process] = 0;
    }

    ngx_http_ratelimit_stats_process = NGX_HTTP_RATELIMIT_PROCESSES;
}


static ngx_uint_t
ngx_http_ratelimit_stats_alive(ngx_atomic_uint_t pid)
{
    return pid && (kill((ngx_pid_t) pid, 0) == 0 || ngx_errno != ESRCH);
}


ngx_http_ratelimit_gauges_t *
ngx_http_ratelimit_stats_gauges(ngx_http_ratelimit_shard_stats_t *shard)
{
    if (ngx_http_ratelimit_stats_process == NGX_HTTP_RATELIMIT_PROCESSES) {
        return &ngx_http_ratelimit_stats_nowhere;
    }

    return &shard->gauges[ngx_http_ratelimit_stats_process];
}


void
ngx_http_ratelimit_stats_sum(ngx_http_ratelimit_stats_t *stats,
    ngx_http_ratelimit_shard_stats_t *shard, ngx_http_ratelimit_gauges_t *sum)
{
    ngx_uint_t  i;

    ngx_memzero(sum, sizeof(ngx_http_ratelimit_gauges_t));

    for (i = 0; i < NGX_HTTP_RATELIMIT_PROCESSES; i++) {

        if (ngx_http_ratelimit_stats_alive(stats->pids[i])) {
            sum->calls += shard->gauges[i].calls;
            sum->connections += shard->gauges[i].connections;
        }
    }
}


/* a failure policy that lets a request pass, or not, also decides */

void
ngx_http_ratelimit_stats_decision(ngx_http_ratelimit_decisions_t counters,
    ngx_http_ratelimit_decision_t *d)
{
    ngx_http_ratelimit_decision_e  decision;

    switch (d->outcome) {

    case NGX_HTTP_RATELIMIT_SKIPPED:
        decision = NGX_HTTP_RATELIMIT_DECISION_SKIPPED;
        break;

    case NGX_HTTP_RATELIMIT_REJECTED:
        decision = NGX_HTTP_RATELIMIT_DECISION_REJECTED;
        break;

    case NGX_HTTP_RATELIMIT_REJECTED_DRY_RUN:
        decision = NGX_HTTP_RATELIMIT_DECISION_DRY_RUN;
        break;

    default: /* passed, degraded */
        decision = (d->source == NGX_HTTP_RATELIMIT_SOURCE_CLOSED)
                   ? NGX_HTTP_RATELIMIT_DECISION_REJECTED
                   : NGX_HTTP_RATELIMIT_DECISION_PASSED;
        break;
    }

    ngx_http_ratelimit_count(counters[decision][d->source]);
}


void
ngx_http_ratelimit_stats_latency(ngx_http_ratelimit_shard_stats_t *shard,
    uint64_t us)
{
    ngx_uint_t  i;

    for (i = 0;
         i < NGX_HTTP_RATELIMIT_LATENCIES
         && us > ngx_http_ratelimit_latency_bounds[i];
         i++)
    {
        /* void */
    }

    ngx_http_ratelimit_count(shard->latency[i]);
    (void) ngx_atomic_fetch_add(&shard->latency_sum, us);
}


const char *
ngx_http_ratelimit_decision_name(ngx_http_ratelimit_decision_e d)
{
    return ngx_http_ratelimit_decision_names[d];
}
