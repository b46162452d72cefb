
#include "topology/ngx_rl_record.h"
#include "pure/ngx_rl_hash.h"


static ngx_rl_record_t *ngx_rl_record_get(ngx_rl_zone_t *zone,
    ngx_rl_stats_t *stats, ngx_str_t *name, ngx_uint_t lend);
static void ngx_rl_record_mark(ngx_rl_record_t *record, ngx_uint_t used);
static ngx_uint_t ngx_rl_record_unused(void *data, void *living);


const char  *const ngx_rl_event_names[] = {
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


const char  *const ngx_rl_role_names[] = {
    "shard",
    "master",
    "node",
    "sentinel"
};


/* gauges of a process without a place in shared memory; nobody reads them */
static ngx_rl_gauges_t  ngx_rl_record_nowhere;


/* all that lives in shared memory, field by field */

static const uint32_t  ngx_rl_record_fields[] = {
    sizeof(ngx_rl_breaker_t),
    ngx_rl_zone_field(breaker, state),
    ngx_rl_zone_field(breaker, attempt),
    ngx_rl_zone_field(breaker, prober),
    ngx_rl_zone_field(breaker, until),
    ngx_rl_zone_field(breaker, closed),
    ngx_rl_zone_field(breaker, since),
    ngx_rl_zone_field(breaker, last),
    ngx_rl_zone_field(breaker, times),

    sizeof(ngx_rl_counters_t),
    ngx_rl_zone_field(counters, commands),
    ngx_rl_zone_field(counters, failures),
    ngx_rl_zone_field(counters, latency),
    ngx_rl_zone_field(counters, reconnects),
    ngx_rl_zone_field(counters, script_reloads),
    ngx_rl_zone_field(counters, refunds),
    ngx_rl_zone_field(counters, refunds_lost),
    ngx_rl_zone_field(counters, transitions),
    ngx_rl_zone_field(counters, events),

    sizeof(ngx_rl_traffic_t),
    ngx_rl_zone_field(traffic, sent),
    ngx_rl_zone_field(traffic, received),

    sizeof(ngx_rl_place_t),
    ngx_rl_zone_field(place, role),
    ngx_rl_zone_field(place, set),
    ngx_rl_zone_field(place, logged),
    ngx_rl_zone_field(place, mapped),
    ngx_rl_zone_field(place, address),
    ngx_rl_zone_field(place, len),

    sizeof(ngx_rl_gauges_t),
    ngx_rl_zone_field(gauges, calls),
    ngx_rl_zone_field(gauges, connections),

    sizeof(ngx_rl_record_t),
    ngx_rl_zone_field(record, breaker),
    ngx_rl_zone_field(record, failure),
    ngx_rl_zone_field(record, changed),
    ngx_rl_zone_field(record, counters),
    ngx_rl_zone_field(record, traffic),
    ngx_rl_zone_field(record, place),
    ngx_rl_zone_field(record, log.failure),
    ngx_rl_zone_field(record, log.changes),
    ngx_rl_zone_field(record, log.outages),
    ngx_rl_zone_field(record, log.open),
    ngx_rl_zone_field(record, users),
    ngx_rl_zone_field(record, gauges)
};


uint64_t
ngx_rl_record_layout(void)
{
    return ngx_rl_hash(ngx_rl_record_fields, sizeof(ngx_rl_record_fields));
}


ngx_rl_record_t *
ngx_rl_record(ngx_rl_zone_t *zone, ngx_rl_stats_t *stats, ngx_str_t *name)
{
    return ngx_rl_record_get(zone, stats, name, 0);
}


ngx_rl_record_t *
ngx_rl_record_lend(ngx_rl_zone_t *zone, ngx_rl_stats_t *stats, ngx_str_t *name)
{
    if (ngx_rl_process() == NGX_RL_PROCESSES) {
        return NULL;
    }

    return ngx_rl_record_get(zone, stats, name, 1);
}


static ngx_rl_record_t *
ngx_rl_record_get(ngx_rl_zone_t *zone, ngx_rl_stats_t *stats, ngx_str_t *name,
    ngx_uint_t lend)
{
    ngx_rl_record_t    *record;
    ngx_rl_zone_ask_t   ask;
    ngx_rl_processes_t  living;

    ask.kind = NGX_RL_ZONE_SERVER;
    ask.name = name;
    ask.size = sizeof(ngx_rl_record_t);
    ask.unused = ngx_rl_record_unused;
    ask.data = living;

    ngx_rl_zone_lock(zone);

    /* only now: a process that starts may get a record at any time */

    ngx_rl_process_living(stats, living);

    if (lend) {
        record = ngx_rl_zone_lend(zone, &ask);

        if (record) {
            ngx_rl_record_mark(record, 1);
        }

    } else {
        record = ngx_rl_zone_record(zone, &ask);
    }

    ngx_rl_zone_unlock(zone);

    return record;
}


void
ngx_rl_record_begin(ngx_rl_zone_t *zone)
{
    ngx_str_t         name;
    ngx_rl_record_t  *record;

    ngx_str_set(&name, "");
    record = NULL;

    for ( ;; ) {
        record = ngx_rl_zone_next(zone, NGX_RL_ZONE_SERVER, record, &name, 0);
        if (record == NULL) {
            return;
        }

        ngx_memzero(ngx_rl_record_gauges(record), sizeof(ngx_rl_gauges_t));

        ngx_rl_zone_lock(zone);
        ngx_rl_record_mark(record, 0);
        ngx_rl_zone_unlock(zone);
    }
}


void
ngx_rl_record_use(ngx_rl_zone_t *zone, ngx_rl_record_t *record)
{
    ngx_rl_zone_lock(zone);
    ngx_rl_record_mark(record, 1);
    ngx_rl_zone_unlock(zone);
}


void
ngx_rl_record_return(ngx_rl_zone_t *zone,
    ngx_rl_stats_t *stats, ngx_rl_record_t *record)
{
    ngx_rl_processes_t  living;

    ngx_rl_zone_lock(zone);

    ngx_rl_process_living(stats, living);
    ngx_rl_record_mark(record, 0);

    if (ngx_rl_record_unused(record, living)) {
        record->place.mapped = 0;
    }

    ngx_rl_zone_unlock(zone);
}


ngx_uint_t
ngx_rl_record_used(ngx_rl_stats_t *stats, ngx_rl_record_t *record)
{
    ngx_rl_processes_t  living;

    ngx_rl_process_living(stats, living);

    return !ngx_rl_record_unused(record, living);
}


/* whether this process uses it; a process without a place cannot mark this */

static void
ngx_rl_record_mark(ngx_rl_record_t *record, ngx_uint_t used)
{
    uint64_t    bit, *users;
    ngx_uint_t  i;

    i = ngx_rl_process();

    if (i == NGX_RL_PROCESSES) {
        return;
    }

    bit = (uint64_t) 1 << i % 64;
    users = &record->users[i / 64];

    *users = used ? *users | bit : *users & ~bit;
}


/* a dead process uses nothing */

static ngx_uint_t
ngx_rl_record_unused(void *data, void *living)
{
    uint64_t         *processes = living;
    ngx_rl_record_t  *record = data;

    ngx_uint_t  i;

    for (i = 0; i < NGX_RL_PROCESSES / 64; i++) {

        if (record->users[i] & processes[i]) {
            return 0;
        }
    }

    return 1;
}


ngx_rl_gauges_t *
ngx_rl_record_gauges(ngx_rl_record_t *record)
{
    if (ngx_rl_process() == NGX_RL_PROCESSES) {
        return &ngx_rl_record_nowhere;
    }

    return &record->gauges[ngx_rl_process()];
}


void
ngx_rl_record_sum(ngx_rl_stats_t *stats,
    ngx_rl_record_t *record, ngx_rl_gauges_t *sum)
{
    ngx_uint_t          i;
    ngx_rl_processes_t  living;

    ngx_rl_process_living(stats, living);
    ngx_memzero(sum, sizeof(ngx_rl_gauges_t));

    for (i = 0; i < NGX_RL_PROCESSES; i++) {

        if (ngx_rl_process_is(living, i)) {
            sum->calls += record->gauges[i].calls;
            sum->connections += record->gauges[i].connections;
        }
    }
}


ngx_uint_t
ngx_rl_record_may_log(ngx_rl_record_t *record, ngx_rl_failure_e failure)
{
    return ngx_rl_throttle(&record->log.failure[failure], 1, NULL);
}


ngx_uint_t
ngx_rl_record_found(ngx_rl_zone_t *zone,
    ngx_rl_record_t *record, ngx_str_t *address)
{
    size_t           len;
    ngx_uint_t       changed;
    ngx_rl_place_t  *place;

    place = &record->place;
    len = ngx_min(address->len, NGX_SOCKADDR_STRLEN);

    ngx_rl_zone_lock(zone);

    changed = place->len != len
              || ngx_memcmp(place->address, address->data, len) != 0;

    if (changed) {
        ngx_memcpy(place->address, address->data, len);
        place->len = len;
    }

    ngx_rl_zone_unlock(zone);

    return changed;
}


ngx_uint_t
ngx_rl_record_news(ngx_rl_zone_t *zone, ngx_rl_record_t *record, uint64_t hash)
{
    ngx_uint_t  news;

    ngx_rl_zone_lock(zone);

    news = (record->place.logged != hash);
    record->place.logged = hash;

    ngx_rl_zone_unlock(zone);

    return news;
}
