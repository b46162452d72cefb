
#include "memory/ngx_rl_stats.h"
#include "pure/ngx_rl_hash.h"


/* kinds of records in the zone */

#define NGX_RL_RECORD_STATS  0
#define NGX_RL_RECORD_LIMIT  1
#define NGX_RL_RECORD_SHARD  2


static void ngx_rl_stats_mark(ngx_rl_record_t *shard, ngx_uint_t used);
static void ngx_rl_stats_ask(ngx_rl_zone_ask_t *ask,
    ngx_str_t *name, ngx_rl_users_t living);
static void ngx_rl_stats_living(ngx_rl_stats_t *stats, ngx_rl_users_t living);
static ngx_uint_t ngx_rl_stats_unused(void *record, void *data);
static ngx_uint_t ngx_rl_stats_alive(ngx_atomic_uint_t pid);


const uint32_t
    ngx_rl_latency_bounds[NGX_RL_LATENCIES] =
{
    100, 250, 500, 1000, 2500, 5000, 10000, 25000, 50000, 100000, 250000,
    1000000
};


static const char  *ngx_rl_decision_names[] = {
    "passed",
    "rejected",
    "dry_run_rejected",
    "skipped"
};


static const char  *ngx_rl_event_names[] = {
    "map_refresh",
    "moved",
    "ask",
    "tryagain",
    "clusterdown",
    "failover",
    "resolved",
    "resolve_failed",
    "refused"
};


static const char  *ngx_rl_role_names[] = {
    "shard",
    "master",
    "node",
    "sentinel"
};


/* which of the processes this one is */
static ngx_uint_t  ngx_rl_stats_process =
    NGX_RL_PROCESSES;

/* where a process counts that has found no place; nobody reads it */
static ngx_rl_gauges_t  ngx_rl_stats_nowhere;


/* all that lives in shared memory, field by field */

static const uint32_t  ngx_rl_stats_fields[] = {
    sizeof(ngx_rl_limit_stats_t),
    ngx_rl_zone_field(limit_stats, requests),
    ngx_rl_zone_field(limit_stats, previews),
    ngx_rl_zone_field(limit_stats, tokens),
    ngx_rl_zone_field(limit_stats, near_limit),
    ngx_rl_zone_field(limit_stats, invalid),
    ngx_rl_zone_field(limit_stats, log_invalid),
    ngx_rl_zone_field(limit_stats, log_cost),

    sizeof(ngx_rl_histogram_t),
    ngx_rl_zone_field(histogram, bins),
    ngx_rl_zone_field(histogram, sum),

    sizeof(ngx_rl_gauges_t),
    ngx_rl_zone_field(gauges, calls),
    ngx_rl_zone_field(gauges, connections),

    sizeof(ngx_rl_throttle_t),
    ngx_rl_zone_field(throttle, minute),
    ngx_rl_zone_field(throttle, lines),
    ngx_rl_zone_field(throttle, dropped),

    sizeof(ngx_rl_breaker_t),
    ngx_rl_zone_field(breaker, state),
    ngx_rl_zone_field(breaker, attempt),
    ngx_rl_zone_field(breaker, prober),
    ngx_rl_zone_field(breaker, until),
    ngx_rl_zone_field(breaker, closed),
    ngx_rl_zone_field(breaker, since),
    ngx_rl_zone_field(breaker, last),
    ngx_rl_zone_field(breaker, times),

    sizeof(ngx_rl_record_t),
    ngx_rl_zone_field(record, breaker),
    ngx_rl_zone_field(record, calls),
    ngx_rl_zone_field(record, failures),
    ngx_rl_zone_field(record, latency),
    ngx_rl_zone_field(record, reconnects),
    ngx_rl_zone_field(record, script_reloads),
    ngx_rl_zone_field(record, refunds),
    ngx_rl_zone_field(record, refunds_lost),
    ngx_rl_zone_field(record, sent),
    ngx_rl_zone_field(record, received),
    ngx_rl_zone_field(record, transitions),
    ngx_rl_zone_field(record, events),
    ngx_rl_zone_field(record, role),
    ngx_rl_zone_field(record, set),
    ngx_rl_zone_field(record, news),
    ngx_rl_zone_field(record, mapped),
    ngx_rl_zone_field(record, node),
    ngx_rl_zone_field(record, node_len),
    ngx_rl_zone_field(record, failure),
    ngx_rl_zone_field(record, changed),
    ngx_rl_zone_field(record, log.failure),
    ngx_rl_zone_field(record, log.changes),
    ngx_rl_zone_field(record, log.outages),
    ngx_rl_zone_field(record, log.open),
    ngx_rl_zone_field(record, users),
    ngx_rl_zone_field(record, gauges),

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
    ngx_str_t          name;
    ngx_rl_stats_t    *stats;
    ngx_rl_zone_ask_t  ask;

    ngx_str_set(&name, "");
    ngx_memzero(&ask, sizeof(ngx_rl_zone_ask_t));

    ask.kind = NGX_RL_RECORD_STATS;
    ask.name = &name;
    ask.size = sizeof(ngx_rl_stats_t);

    ngx_rl_zone_lock(zone);
    stats = ngx_rl_zone_record(zone, &ask);
    ngx_rl_zone_unlock(zone);

    return stats;
}


ngx_rl_limit_stats_t *
ngx_rl_stats_limit(ngx_rl_zone_t *zone, ngx_str_t *name)
{
    ngx_rl_zone_ask_t      ask;
    ngx_rl_limit_stats_t  *limit;

    ngx_memzero(&ask, sizeof(ngx_rl_zone_ask_t));

    ask.kind = NGX_RL_RECORD_LIMIT;
    ask.name = name;
    ask.size = sizeof(ngx_rl_limit_stats_t);

    ngx_rl_zone_lock(zone);
    limit = ngx_rl_zone_record(zone, &ask);
    ngx_rl_zone_unlock(zone);

    return limit;
}


ngx_rl_record_t *
ngx_rl_stats_record(ngx_rl_zone_t *zone, ngx_rl_stats_t *stats, ngx_str_t *name)
{
    ngx_rl_users_t     living;
    ngx_rl_record_t   *shard;
    ngx_rl_zone_ask_t  ask;

    ngx_rl_stats_ask(&ask, name, living);

    ngx_rl_zone_lock(zone);

    ngx_rl_stats_living(stats, living);
    shard = ngx_rl_zone_record(zone, &ask);

    ngx_rl_zone_unlock(zone);

    return shard;
}


ngx_rl_record_t *
ngx_rl_stats_lend(ngx_rl_zone_t *zone, ngx_rl_stats_t *stats, ngx_str_t *name)
{
    ngx_rl_users_t     living;
    ngx_rl_record_t   *shard;
    ngx_rl_zone_ask_t  ask;

    if (ngx_rl_stats_process == NGX_RL_PROCESSES) {
        return NULL;
    }

    ngx_rl_stats_ask(&ask, name, living);

    ngx_rl_zone_lock(zone);

    ngx_rl_stats_living(stats, living);
    shard = ngx_rl_zone_lend(zone, &ask);

    if (shard) {
        ngx_rl_stats_mark(shard, 1);
    }

    ngx_rl_zone_unlock(zone);

    return shard;
}


void
ngx_rl_stats_use(ngx_rl_zone_t *zone, ngx_rl_record_t *shard)
{
    if (ngx_rl_stats_process == NGX_RL_PROCESSES) {
        return;
    }

    ngx_rl_zone_lock(zone);
    ngx_rl_stats_mark(shard, 1);
    ngx_rl_zone_unlock(zone);
}


void
ngx_rl_stats_return(ngx_rl_zone_t *zone,
    ngx_rl_stats_t *stats, ngx_rl_record_t *shard)
{
    ngx_rl_users_t  living;

    if (ngx_rl_stats_process == NGX_RL_PROCESSES) {
        return;
    }

    ngx_rl_zone_lock(zone);

    ngx_rl_stats_living(stats, living);
    ngx_rl_stats_mark(shard, 0);

    if (ngx_rl_stats_unused(shard, living)) {
        shard->mapped = 0;
    }

    ngx_rl_zone_unlock(zone);
}


ngx_uint_t
ngx_rl_stats_room(ngx_rl_zone_t *zone, ngx_uint_t *wanted)
{
    return ngx_rl_zone_room(zone, sizeof(ngx_rl_record_t), wanted);
}


ngx_uint_t
ngx_rl_stats_used(ngx_rl_stats_t *stats, ngx_rl_record_t *shard)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_RL_PROCESSES; i++) {

        if ((shard->users[i / 64] >> i % 64 & 1)
            && ngx_rl_stats_alive(stats->pids[i]))
        {
            return 1;
        }
    }

    return 0;
}


/* whether this process uses it */

static void
ngx_rl_stats_mark(ngx_rl_record_t *shard, ngx_uint_t used)
{
    uint64_t    bit;
    ngx_uint_t  i;

    i = ngx_rl_stats_process / 64;
    bit = (uint64_t) 1 << ngx_rl_stats_process % 64;

    shard->users[i] = used ? shard->users[i] | bit : shard->users[i] & ~bit;
}


static void
ngx_rl_stats_ask(ngx_rl_zone_ask_t *ask, ngx_str_t *name, ngx_rl_users_t living)
{
    ask->kind = NGX_RL_RECORD_SHARD;
    ask->name = name;
    ask->size = sizeof(ngx_rl_record_t);
    ask->unused = ngx_rl_stats_unused;
    ask->data = living;
}


/* while the zone is held: one that begins now may get a record next */

static void
ngx_rl_stats_living(ngx_rl_stats_t *stats, ngx_rl_users_t living)
{
    ngx_uint_t  i;

    ngx_memzero(living, sizeof(ngx_rl_users_t));

    for (i = 0; i < NGX_RL_PROCESSES; i++) {

        if (ngx_rl_stats_alive(stats->pids[i])) {
            living[i / 64] |= (uint64_t) 1 << i % 64;
        }
    }
}


/* what the dead have used nobody uses */

static ngx_uint_t
ngx_rl_stats_unused(void *record, void *data)
{
    uint64_t  *living = data;

    ngx_uint_t                         i;
    ngx_rl_record_t  *shard;

    shard = record;

    for (i = 0; i < NGX_RL_PROCESSES / 64; i++) {

        if (shard->users[i] & living[i]) {
            return 0;
        }
    }

    return 1;
}


ngx_rl_record_t *
ngx_rl_stats_next(ngx_rl_zone_t *zone,
    ngx_rl_record_t *after, ngx_str_t *name, size_t room)
{
    return ngx_rl_zone_next(zone, NGX_RL_RECORD_SHARD, after, name, room);
}


/* takes the place of a process that has ended or was killed */

void
ngx_rl_stats_begin(ngx_rl_zone_t *zone, ngx_rl_stats_t *stats)
{
    ngx_str_t          name;
    ngx_uint_t         i;
    ngx_rl_record_t   *shard;
    ngx_atomic_uint_t  pid;

    for (i = 0; i < NGX_RL_PROCESSES; i++) {

        pid = stats->pids[i];

        if ((!ngx_rl_stats_alive(pid)
             || pid == (ngx_atomic_uint_t) ngx_pid)
            && ngx_atomic_cmp_set(&stats->pids[i], pid, ngx_pid))
        {
            break;
        }
    }

    ngx_rl_stats_process = i;

    if (i == NGX_RL_PROCESSES) {
        return;
    }

    ngx_str_set(&name, "");
    shard = NULL;

    for ( ;; ) {
        shard = ngx_rl_stats_next(zone, shard, &name, 0);
        if (shard == NULL) {
            break;
        }

        ngx_memzero(ngx_rl_stats_gauges(shard), sizeof(ngx_rl_gauges_t));

        ngx_rl_zone_lock(zone);
        ngx_rl_stats_mark(shard, 0);
        ngx_rl_zone_unlock(zone);
    }
}


void
ngx_rl_stats_end(ngx_rl_stats_t *stats)
{
    if (ngx_rl_stats_process < NGX_RL_PROCESSES) {
        stats->pids[ngx_rl_stats_process] = 0;
    }

    ngx_rl_stats_process = NGX_RL_PROCESSES;
}


static ngx_uint_t
ngx_rl_stats_alive(ngx_atomic_uint_t pid)
{
    return pid && (kill((ngx_pid_t) pid, 0) == 0 || ngx_errno != ESRCH);
}


ngx_rl_gauges_t *
ngx_rl_stats_gauges(ngx_rl_record_t *shard)
{
    if (ngx_rl_stats_process == NGX_RL_PROCESSES) {
        return &ngx_rl_stats_nowhere;
    }

    return &shard->gauges[ngx_rl_stats_process];
}


void
ngx_rl_stats_sum(ngx_rl_stats_t *stats,
    ngx_rl_record_t *shard, ngx_rl_gauges_t *sum)
{
    ngx_uint_t  i;

    ngx_memzero(sum, sizeof(ngx_rl_gauges_t));

    for (i = 0; i < NGX_RL_PROCESSES; i++) {

        if (ngx_rl_stats_alive(stats->pids[i])) {
            sum->calls += shard->gauges[i].calls;
            sum->connections += shard->gauges[i].connections;
        }
    }
}


/* a failure policy that lets a request pass, or not, also decides */

void
ngx_rl_stats_decision(ngx_rl_decisions_t counters, ngx_rl_decision_t *d)
{
    ngx_rl_decision_e  decision;

    switch (d->outcome) {

    case NGX_RL_SKIPPED:
        decision = NGX_RL_DECISION_SKIPPED;
        break;

    case NGX_RL_REJECTED:
        decision = NGX_RL_DECISION_REJECTED;
        break;

    case NGX_RL_REJECTED_DRY_RUN:
        decision = NGX_RL_DECISION_DRY_RUN;
        break;

    default: /* passed, degraded */
        decision = (d->source == NGX_RL_SOURCE_CLOSED)
                   ? NGX_RL_DECISION_REJECTED
                   : NGX_RL_DECISION_PASSED;
        break;
    }

    ngx_rl_count(counters[decision][d->source]);
}


/* a policy that lets requests pass takes nothing; this machine's share does */

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


ngx_uint_t
ngx_rl_record_may_log(ngx_rl_record_t *record, ngx_rl_failure_e failure)
{
    return ngx_rl_throttle(&record->log.failure[failure], 1, NULL);
}


ngx_uint_t
ngx_rl_stats_found(ngx_rl_zone_t *zone,
    ngx_rl_record_t *shard, ngx_str_t *address)
{
    size_t      len;
    ngx_uint_t  changed;

    len = ngx_min(address->len, NGX_SOCKADDR_STRLEN);

    ngx_rl_zone_lock(zone);

    changed = shard->node_len != len
              || ngx_memcmp(shard->node, address->data, len) != 0;

    if (changed) {
        ngx_memcpy(shard->node, address->data, len);
        shard->node_len = len;
    }

    ngx_rl_zone_unlock(zone);

    return changed;
}


ngx_uint_t
ngx_rl_stats_news(ngx_rl_zone_t *zone, ngx_rl_record_t *shard, uint64_t hash)
{
    ngx_uint_t  news;

    ngx_rl_zone_lock(zone);

    news = (shard->news != hash);
    shard->news = hash;

    ngx_rl_zone_unlock(zone);

    return news;
}


const char *
ngx_rl_decision_name(ngx_rl_decision_e d)
{
    return ngx_rl_decision_names[d];
}


const char *
ngx_rl_event_name(ngx_rl_event_e e)
{
    return ngx_rl_event_names[e];
}


const char *
ngx_rl_role_name(ngx_rl_role_e r)
{
    return ngx_rl_role_names[r];
}
