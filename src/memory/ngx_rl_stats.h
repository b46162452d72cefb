
/*
 * Decisions are counted in shared memory, per limit and in total, by all
 * workers together and over reloads.  Counters only grow, by atomic
 * operations.  This file also knows which processes are alive.  The gauges of
 * a process end with it, even if it is killed.
 */


#ifndef _NGX_RL_STATS_H_INCLUDED_
#define _NGX_RL_STATS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "pure/ngx_rl_advice.h"
#include "pure/ngx_rl_decision.h"
#include "pure/ngx_rl_failure.h"
#include "core/ngx_rl_throttle.h"
#include "memory/ngx_rl_zone.h"


/* upper bounds of the histogram, and one more for all others */
#define NGX_RL_LATENCIES  12

/* a limit is near when less than 1/n of it is left */
#define NGX_RL_NEAR       5

/* processes with a place in shared memory */
#define NGX_RL_PROCESSES  128


typedef enum {
    NGX_RL_DECISION_PASSED = 0,
    NGX_RL_DECISION_REJECTED,
    NGX_RL_DECISION_DRY_RUN,
    NGX_RL_DECISION_SKIPPED,

    NGX_RL_DECISIONS
} ngx_rl_decision_e;


typedef ngx_atomic_t  ngx_rl_decisions_t[NGX_RL_DECISIONS][NGX_RL_SOURCES];


typedef struct {
    ngx_rl_decisions_t  requests;
    ngx_atomic_t        previews[NGX_RL_SOURCES];
    ngx_atomic_t        tokens;       /* taken */
    ngx_atomic_t        near_limit;
    ngx_atomic_t        invalid;      /* values of variables */
    ngx_atomic_t        degraded;     /* decided without Redis, after a
                                         failure */

    ngx_rl_throttle_t   log_invalid;  /* lines about these, */
    ngx_rl_throttle_t   log_cost;     /* and about a cost that never passes */
} ngx_rl_limit_stats_t;


typedef struct {
    ngx_atomic_t  bins[NGX_RL_LATENCIES + 1];
    ngx_atomic_t  sum;  /* us */
} ngx_rl_histogram_t;


/* of a limit in a dry run: which capacity its requests needed */

typedef struct {
    ngx_atomic_t  bins[NGX_RL_ADVICE_BINS];
    ngx_atomic_t  sum;  /* tokens */
} ngx_rl_advice_t;


/* once in a zone */

typedef struct {
    ngx_rl_decisions_t  decisions;  /* a request: one of them */
    ngx_atomic_t        fallback[NGX_RL_SOURCES][NGX_RL_REASONS];
    ngx_rl_histogram_t  latency;    /* of a decision */
    ngx_atomic_t        leases_refused;
    ngx_atomic_t        pids[NGX_RL_PROCESSES];
} ngx_rl_stats_t;


/* a bit for each process */
typedef uint64_t  ngx_rl_processes_t[NGX_RL_PROCESSES / 64];


/* of all these structs, for ngx_rl_zone_add() */
uint64_t ngx_rl_stats_layout(void);

/* find or make records, while the zone is attached; NULL: no memory */

ngx_rl_stats_t *ngx_rl_stats(ngx_rl_zone_t *zone);
ngx_rl_limit_stats_t *ngx_rl_stats_limit(ngx_rl_zone_t *zone, ngx_str_t *name);
ngx_rl_advice_t *ngx_rl_stats_advice(ngx_rl_zone_t *zone, ngx_str_t *name);

/* counts a decision */
void ngx_rl_stats_decision(ngx_rl_decisions_t counters, ngx_rl_decision_t *d);

/* a record of the zone that stays; NULL: no memory */
void *ngx_rl_stats_record(ngx_rl_zone_t *zone,
    ngx_rl_zone_kind_e kind, ngx_str_t *name, size_t size);

/* counts the tokens that a request took, and whether it came near the limit */
void ngx_rl_stats_taken(ngx_rl_limit_stats_t *limit,
    ngx_rl_decision_t *d, uint64_t cost);

/* counts a request to such a bucket, by the capacity that it needed */
void ngx_rl_stats_needed(ngx_rl_advice_t *advice,
    const ngx_rl_decision_t *d, const ngx_rl_bucket_t *bucket);

/* counts an answer that took so many microseconds */
void ngx_rl_stats_latency(ngx_rl_histogram_t *histogram, uint64_t us);

/* this process starts, in the place of one that has ended; and ends */
void ngx_rl_process_begin(ngx_rl_stats_t *stats);
void ngx_rl_process_end(ngx_rl_stats_t *stats);

/* the place of this process; NGX_RL_PROCESSES: it has none */
ngx_uint_t ngx_rl_process(void);

/* the living processes, without those that have ended or were killed */
void ngx_rl_process_living(ngx_rl_stats_t *stats, ngx_rl_processes_t living);

extern const uint32_t  ngx_rl_latency_bounds[NGX_RL_LATENCIES];  /* us */

extern const char  *const ngx_rl_decision_names[];


#define ngx_rl_count(counter)                                                 \
    (void) ngx_atomic_fetch_add(&(counter), 1)

/* whether a process is among them */
#define ngx_rl_process_is(processes, i)                                       \
    ((processes)[(i) / 64] >> (i) % 64 & 1)


#endif /* _NGX_RL_STATS_H_INCLUDED_ */
