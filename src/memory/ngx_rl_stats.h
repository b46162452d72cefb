
/*
 * What is counted, in shared memory: by all workers together, kept over
 * reloads.  Counters only grow, each by one atomic operation; gauges are kept
 * by each process for itself, as one that is killed takes its own with it.
 */


#ifndef _NGX_RL_STATS_H_INCLUDED_
#define _NGX_RL_STATS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "pure/ngx_rl_breaker.h"
#include "pure/ngx_rl_decision.h"
#include "pure/ngx_rl_failure.h"
#include "core/ngx_rl_throttle.h"
#include "memory/ngx_rl_zone.h"


/* upper bounds of the histogram, and one more for all others */
#define NGX_RL_LATENCIES  12

/* a limit is near when less than one part in so many is left */
#define NGX_RL_NEAR       5

/* processes that gauges are kept of */
#define NGX_RL_PROCESSES  128


typedef enum {
    NGX_RL_DECISION_PASSED = 0,
    NGX_RL_DECISION_REJECTED,
    NGX_RL_DECISION_DRY_RUN,
    NGX_RL_DECISION_SKIPPED,

    NGX_RL_DECISIONS
} ngx_rl_decision_e;


typedef ngx_atomic_t  ngx_rl_decisions_t
    [NGX_RL_DECISIONS][NGX_RL_SOURCES];


typedef struct {
    ngx_rl_decisions_t  requests;
    ngx_atomic_t        previews[NGX_RL_SOURCES];
    ngx_atomic_t        tokens;   /* taken */
    ngx_atomic_t        near_limit;
    ngx_atomic_t        invalid;  /* values of variables */

    /* lines about that, and about a cost that can never pass */
    ngx_rl_throttle_t   log_invalid;
    ngx_rl_throttle_t   log_cost;
} ngx_rl_limit_stats_t;


typedef struct {
    ngx_atomic_t  bins[NGX_RL_LATENCIES + 1];
    ngx_atomic_t  sum;  /* us */
} ngx_rl_histogram_t;


/* what becomes of a topology */

typedef enum {
    NGX_RL_EVENT_MAP_REFRESH = 0,
    NGX_RL_EVENT_MOVED,
    NGX_RL_EVENT_ASK,
    NGX_RL_EVENT_TRYAGAIN,
    NGX_RL_EVENT_CLUSTERDOWN,
    NGX_RL_EVENT_FAILOVER,
    NGX_RL_EVENT_RESOLVED,
    NGX_RL_EVENT_RESOLVE_FAILED,
    NGX_RL_EVENT_REFUSED,              /* an address announced */

    NGX_RL_EVENTS
} ngx_rl_event_e;


typedef enum {
    NGX_RL_ROLE_SHARD = 0,
    NGX_RL_ROLE_MASTER,                /* by a sentinel */
    NGX_RL_ROLE_NODE,                  /* of a cluster */
    NGX_RL_ROLE_SENTINEL,

    NGX_RL_ROLES
} ngx_rl_role_e;


typedef struct {
    uint32_t  calls;  /* under way */
    uint32_t  connections;
} ngx_rl_gauges_t;


/* a bit for each process */
typedef uint64_t  ngx_rl_users_t[NGX_RL_PROCESSES / 64];


typedef struct {

    /* changed with the zone held; its state is read without */

    ngx_rl_breaker_t    breaker;

    ngx_atomic_t        calls;
    ngx_atomic_t        failures[NGX_RL_FAILURES];
    ngx_rl_histogram_t  latency;       /* of a command's reply */
    ngx_atomic_t        reconnects;
    ngx_atomic_t        script_reloads;
    ngx_atomic_t        refunds;       /* commands */
    ngx_atomic_t        refunds_lost;  /* one by one */
    ngx_atomic_t        sent;          /* bytes */
    ngx_atomic_t        received;
    ngx_atomic_t                    transitions
                                      [NGX_RL_BREAKER_STATES];
    ngx_atomic_t        events[NGX_RL_EVENTS];

    /* what is known about it; the address and the news with the zone held */

    ngx_atomic_t        role;
    uint64_t            set;           /* of a node: its cluster;
                                          of a master: sentinels */
    uint64_t            news;          /* hash of what was told */
    ngx_atomic_t        mapped;        /* of a node: is in use */
    u_char              node[NGX_SOCKADDR_STRLEN];
    size_t              node_len;      /* where it was last */

    ngx_atomic_t        failure;       /* the last one */
    ngx_atomic_t        changed;       /* s: when the breaker was */

    struct {
        ngx_rl_throttle_t  failure[NGX_RL_FAILURES];
        ngx_rl_throttle_t  changes;    /* to fallback and back */
        ngx_rl_throttle_t  outages;    /* begun and ended */
        ngx_rl_throttle_t  open;       /* one that goes on */
    } log;

    ngx_rl_users_t      users;         /* with the zone held */
    ngx_rl_gauges_t     gauges[NGX_RL_PROCESSES];
} ngx_rl_record_t;


/* once in a zone */

typedef struct {
    ngx_rl_decisions_t  decisions;  /* a request: one of them */
    ngx_atomic_t        fallback[NGX_RL_SOURCES]
                                            [NGX_RL_REASONS];
    ngx_rl_histogram_t  latency;    /* of a decision */
    ngx_atomic_t        leases_refused;
    ngx_atomic_t        pids[NGX_RL_PROCESSES];
} ngx_rl_stats_t;


/* of all these structs, for ngx_rl_zone_add() */
uint64_t ngx_rl_stats_layout(void);

/* find or make the records; NULL: no memory.  While the zone is attached */

ngx_rl_stats_t *ngx_rl_stats(ngx_rl_zone_t *zone);
ngx_rl_limit_stats_t *ngx_rl_stats_limit(ngx_rl_zone_t *zone, ngx_str_t *name);
ngx_rl_record_t *ngx_rl_stats_record(ngx_rl_zone_t *zone, ngx_rl_stats_t *stats,
    ngx_str_t *name);

/* how many more shards there is room for, and how many records are in use */
ngx_uint_t ngx_rl_stats_room(ngx_rl_zone_t *zone, ngx_uint_t *wanted);

/* a process uses a record that its configuration has asked for */
void ngx_rl_stats_use(ngx_rl_zone_t *zone, ngx_rl_record_t *shard);

/*
 * A record for a server that a process has found by itself, the same for all
 * processes, until all have returned it or have ended.  NULL: no room.
 */
ngx_rl_record_t *ngx_rl_stats_lend(ngx_rl_zone_t *zone, ngx_rl_stats_t *stats,
    ngx_str_t *name);
void ngx_rl_stats_return(ngx_rl_zone_t *zone, ngx_rl_stats_t *stats,
    ngx_rl_record_t *shard);

/* whether a process that lives uses a record that was lent */
ngx_uint_t ngx_rl_stats_used(ngx_rl_stats_t *stats, ngx_rl_record_t *shard);

/*
 * All of them, in any order: the one after that, NULL at the end.  The name is
 * copied.
 */
ngx_rl_record_t *ngx_rl_stats_next(ngx_rl_zone_t *zone, ngx_rl_record_t *after,
    ngx_str_t *name, size_t room);

/* a process begins: its gauges are zero; and ends */
void ngx_rl_stats_begin(ngx_rl_zone_t *zone, ngx_rl_stats_t *stats);
void ngx_rl_stats_end(ngx_rl_stats_t *stats);

/* of this process; never NULL */
ngx_rl_gauges_t *ngx_rl_stats_gauges(ngx_rl_record_t *shard);

/* the sum over all processes that live */
void ngx_rl_stats_sum(ngx_rl_stats_t *stats,
    ngx_rl_record_t *shard, ngx_rl_gauges_t *sum);

/* counts a decision */
void ngx_rl_stats_decision(ngx_rl_decisions_t counters, ngx_rl_decision_t *d);

/* counts what a request took from a limit, and how near to it that came */
void ngx_rl_stats_taken(ngx_rl_limit_stats_t *limit,
    ngx_rl_decision_t *d, uint64_t cost);

/* counts an answer that came after so many microseconds */
void ngx_rl_stats_latency(ngx_rl_histogram_t *histogram, uint64_t us);

/*
 * Whether a failure of this class is to be logged now: once a minute, and once
 * for all workers
 */
ngx_uint_t ngx_rl_record_may_log(ngx_rl_record_t *record,
    ngx_rl_failure_e failure);

/* keeps where a shard is; returns whether that was not known */
ngx_uint_t ngx_rl_stats_found(ngx_rl_zone_t *zone,
    ngx_rl_record_t *shard, ngx_str_t *address);

/* whether that is not what a worker has told last */
ngx_uint_t ngx_rl_stats_news(ngx_rl_zone_t *zone,
    ngx_rl_record_t *shard, uint64_t hash);

extern const uint32_t
    ngx_rl_latency_bounds[NGX_RL_LATENCIES];  /* us */

const char *ngx_rl_decision_name(ngx_rl_decision_e d);
const char *ngx_rl_event_name(ngx_rl_event_e e);
const char *ngx_rl_role_name(ngx_rl_role_e r);


#define ngx_rl_count(counter)                                                 \
    (void) ngx_atomic_fetch_add(&(counter), 1)


#endif /* _NGX_RL_STATS_H_INCLUDED_ */
