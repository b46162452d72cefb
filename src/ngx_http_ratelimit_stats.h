
/*
 * What is counted, in shared memory: by all workers together, kept over
 * reloads.  Counters only grow, each by one atomic operation; gauges are kept
 * by each process for itself, as one that is killed takes its own with it.
 */


#ifndef _NGX_HTTP_RATELIMIT_STATS_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_STATS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_ratelimit_breaker.h"
#include "ngx_http_ratelimit_decision.h"
#include "ngx_http_ratelimit_failure.h"
#include "ngx_http_ratelimit_zone.h"


/* upper bounds of the histogram, and one more for all others */
#define NGX_HTTP_RATELIMIT_LATENCIES  12

/* processes that gauges are kept of */
#define NGX_HTTP_RATELIMIT_PROCESSES  128


typedef enum {
    NGX_HTTP_RATELIMIT_DECISION_PASSED = 0,
    NGX_HTTP_RATELIMIT_DECISION_REJECTED,
    NGX_HTTP_RATELIMIT_DECISION_DRY_RUN,
    NGX_HTTP_RATELIMIT_DECISION_SKIPPED,

    NGX_HTTP_RATELIMIT_DECISIONS
} ngx_http_ratelimit_decision_e;


typedef ngx_atomic_t  ngx_http_ratelimit_decisions_t
    [NGX_HTTP_RATELIMIT_DECISIONS][NGX_HTTP_RATELIMIT_SOURCES];


typedef struct {
    ngx_http_ratelimit_decisions_t  requests;
    ngx_atomic_t                    invalid;       /* values of variables */
} ngx_http_ratelimit_limit_stats_t;


typedef struct {
    uint32_t                        calls;         /* under way */
    uint32_t                        connections;
} ngx_http_ratelimit_gauges_t;


typedef struct {

    /* changed with the zone held; its state is read without */

    ngx_http_ratelimit_breaker_t    breaker;

    ngx_atomic_t                    calls;
    ngx_atomic_t                    failures[NGX_HTTP_RATELIMIT_FAILURES];
    ngx_atomic_t                    latency[NGX_HTTP_RATELIMIT_LATENCIES + 1];
    ngx_atomic_t                    latency_sum;   /* us */
    ngx_atomic_t                    reconnects;
    ngx_atomic_t                    script_reloads;
    ngx_atomic_t                    refunds;
    ngx_atomic_t                    sent;          /* bytes */
    ngx_atomic_t                    received;
    ngx_atomic_t                    transitions
                                      [NGX_HTTP_RATELIMIT_BREAKER_STATES];

    /* what was logged, all times in seconds */

    ngx_atomic_t                    failure;       /* the last one */
    ngx_atomic_t                    opened;        /* or changed otherwise */
    ngx_atomic_t                    still;         /* when told that it is */
    ngx_atomic_t                    told;          /* since when there are */
    ngx_atomic_t                    lines;         /* so many on changes, */
    ngx_atomic_t                    untold;        /* and so many left out */
    ngx_atomic_t                    logged[NGX_HTTP_RATELIMIT_FAILURES];

    ngx_http_ratelimit_gauges_t     gauges[NGX_HTTP_RATELIMIT_PROCESSES];
} ngx_http_ratelimit_shard_stats_t;


/* once in a zone */

typedef struct {
    ngx_http_ratelimit_decisions_t  decisions;     /* a request: one of them */
    ngx_atomic_t                    fallback[NGX_HTTP_RATELIMIT_SOURCES]
                                            [NGX_HTTP_RATELIMIT_REASONS];
    ngx_atomic_t                    pids[NGX_HTTP_RATELIMIT_PROCESSES];
} ngx_http_ratelimit_stats_t;


/* find or make the records; NULL: no memory.  While the zone is attached */

ngx_http_ratelimit_stats_t *ngx_http_ratelimit_stats(
    ngx_http_ratelimit_zone_t *zone);
ngx_http_ratelimit_limit_stats_t *ngx_http_ratelimit_stats_limit(
    ngx_http_ratelimit_zone_t *zone, ngx_str_t *name);
ngx_http_ratelimit_shard_stats_t *ngx_http_ratelimit_stats_shard(
    ngx_http_ratelimit_zone_t *zone, ngx_str_t *name);

/* a process begins: its gauges are zero; and ends */
void ngx_http_ratelimit_stats_begin(ngx_http_ratelimit_zone_t *zone,
    ngx_http_ratelimit_stats_t *stats);
void ngx_http_ratelimit_stats_end(ngx_http_ratelimit_stats_t *stats);

/* of this process; never NULL */
ngx_http_ratelimit_gauges_t *ngx_http_ratelimit_stats_gauges(
    ngx_http_ratelimit_shard_stats_t *shard);

/* the sum over all processes that live */
void ngx_http_ratelimit_stats_sum(ngx_http_ratelimit_stats_t *stats,
    ngx_http_ratelimit_shard_stats_t *shard, ngx_http_ratelimit_gauges_t *sum);

/* counts a decision */
void ngx_http_ratelimit_stats_decision(ngx_http_ratelimit_decisions_t counters,
    ngx_http_ratelimit_decision_t *d);

/* counts a call that was answered after so many microseconds */
void ngx_http_ratelimit_stats_latency(ngx_http_ratelimit_shard_stats_t *shard,
    uint64_t us);

extern const uint32_t
    ngx_http_ratelimit_latency_bounds[NGX_HTTP_RATELIMIT_LATENCIES];  /* us */

const char *ngx_http_ratelimit_decision_name(ngx_http_ratelimit_decision_e d);


#define ngx_http_ratelimit_count(counter)                                     \
    (void) ngx_atomic_fetch_add(&(counter), 1)


#endif /* _NGX_HTTP_RATELIMIT_STATS_H_INCLUDED_ */
