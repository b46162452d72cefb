
/*
 * What all workers share about a server, in shared memory, over reloads:
 * breaker, counters, address, log throttles.  Counters only grow, by atomic
 * operations.  Each process has gauges of its own, so that the gauges of a
 * killed process end with it.
 */


#ifndef _NGX_RL_RECORD_H_INCLUDED_
#define _NGX_RL_RECORD_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "pure/ngx_rl_breaker.h"
#include "pure/ngx_rl_failure.h"
#include "core/ngx_rl_throttle.h"
#include "redis/ngx_rl_connection.h"
#include "memory/ngx_rl_stats.h"


/*
 * Log lines a minute about changes of one server or cluster, for all workers.
 */
#define NGX_RL_RECORD_CHANGES  10


/* changes in a topology, for metrics */

typedef enum {
    NGX_RL_EVENT_MAP_REFRESH = 0,
    NGX_RL_EVENT_MOVED,
    NGX_RL_EVENT_ASK,
    NGX_RL_EVENT_TRYAGAIN,
    NGX_RL_EVENT_CLUSTERDOWN,
    NGX_RL_EVENT_FAILOVER,
    NGX_RL_EVENT_RESOLVED,
    NGX_RL_EVENT_RESOLVE_FAILED,
    NGX_RL_EVENT_REFUSED,         /* an address announced */

    NGX_RL_EVENTS
} ngx_rl_event_e;


typedef enum {
    NGX_RL_ROLE_SHARD = 0,
    NGX_RL_ROLE_MASTER,           /* by a sentinel */
    NGX_RL_ROLE_NODE,             /* of a cluster */
    NGX_RL_ROLE_SENTINEL,

    NGX_RL_ROLES
} ngx_rl_role_e;


typedef struct {
    ngx_atomic_t        commands;
    ngx_atomic_t        failures[NGX_RL_FAILURES];
    ngx_rl_histogram_t  latency;       /* of a command's reply */
    ngx_atomic_t        reconnects;
    ngx_atomic_t        script_reloads;
    ngx_atomic_t        refunds;       /* commands */
    ngx_atomic_t        refunds_lost;  /* one by one */
    ngx_atomic_t        transitions[NGX_RL_BREAKER_STATES];
    ngx_atomic_t        events[NGX_RL_EVENTS];
} ngx_rl_counters_t;


/* address and hash are changed with the zone locked */

typedef struct {
    ngx_atomic_t  role;
    uint64_t      set;     /* of a node: its cluster; of a master: sentinels */
    uint64_t      logged;  /* hash of what was logged about it last */
    ngx_atomic_t  mapped;  /* of a node: is in use */
    u_char        address[NGX_SOCKADDR_STRLEN];
    size_t        len;     /* of the address that it had last */
} ngx_rl_place_t;


typedef struct {

    /* changed with the zone locked; the state is read without the lock */

    ngx_rl_breaker_t    breaker;
    ngx_atomic_t        failure;     /* the last one that counted */
    ngx_atomic_t        changed;     /* s: when its state has */

    ngx_rl_counters_t   counters;
    ngx_rl_traffic_t    traffic;
    ngx_rl_place_t      place;

    struct {
        ngx_rl_throttle_t  failure[NGX_RL_FAILURES];
        ngx_rl_throttle_t  changes;  /* to fallback and back */
        ngx_rl_throttle_t  outages;  /* begun and ended */
        ngx_rl_throttle_t  open;     /* one that goes on */
    } log;

    ngx_rl_processes_t  users;       /* with the zone locked */
    ngx_rl_gauges_t     gauges[NGX_RL_PROCESSES];
} ngx_rl_record_t;


/* of all these structs, for ngx_rl_zone_add() */
uint64_t ngx_rl_record_layout(void);

/* finds or makes a record, while the zone is attached; NULL: no memory */
ngx_rl_record_t *ngx_rl_record(ngx_rl_zone_t *zone, ngx_rl_stats_t *stats,
    ngx_str_t *name);

/*
 * This process has a place now: zeroes its gauges, and it uses no record yet.
 */
void ngx_rl_record_begin(ngx_rl_zone_t *zone);

/* this process uses a record that its configuration has requested */
void ngx_rl_record_use(ngx_rl_zone_t *zone, ngx_rl_record_t *record);

/*
 * A record for a server that a process has found at run time.  All processes
 * get the same record, until all have returned it or have ended.  NULL: no
 * room.
 */
ngx_rl_record_t *ngx_rl_record_lend(ngx_rl_zone_t *zone, ngx_rl_stats_t *stats,
    ngx_str_t *name);
void ngx_rl_record_return(ngx_rl_zone_t *zone, ngx_rl_stats_t *stats,
    ngx_rl_record_t *record);

/* whether a living process uses it */
ngx_uint_t ngx_rl_record_used(ngx_rl_stats_t *stats, ngx_rl_record_t *record);

/* the gauges of this process; never NULL */
ngx_rl_gauges_t *ngx_rl_record_gauges(ngx_rl_record_t *record);

/* the sum over all living processes */
void ngx_rl_record_sum(ngx_rl_stats_t *stats,
    ngx_rl_record_t *record, ngx_rl_gauges_t *sum);

/* whether to log such a failure now: once a minute for all workers */
ngx_uint_t ngx_rl_record_may_log(ngx_rl_record_t *record,
    ngx_rl_failure_e failure);

/* stores the address of a server; returns whether it is new */
ngx_uint_t ngx_rl_record_found(ngx_rl_zone_t *zone,
    ngx_rl_record_t *record, ngx_str_t *address);

/* whether this differs from what was logged last */
ngx_uint_t ngx_rl_record_news(ngx_rl_zone_t *zone,
    ngx_rl_record_t *record, uint64_t hash);

extern const char  *const ngx_rl_event_names[];
extern const char  *const ngx_rl_role_names[];


#endif /* _NGX_RL_RECORD_H_INCLUDED_ */
