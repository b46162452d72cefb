
/*
 * How many requests a limit has had in the last seconds.  Once a second, one
 * worker of the machine writes the counters of all limits down.
 */


#ifndef _NGX_RL_RATES_H_INCLUDED_
#define _NGX_RL_RATES_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "memory/ngx_rl_stats.h"


/* seconds that are kept, a power of two */
#define NGX_RL_RATES  64


typedef struct {
    uint64_t  passed;
    uint64_t  rejected;
    uint64_t  degraded;
} ngx_rl_counts_t;


/* in shared memory */

typedef struct {
    ngx_atomic_t     begun;   /* s, monotonic: the first second */
    ngx_atomic_t     second;  /* the last one */
    ngx_rl_counts_t  counts[NGX_RL_RATES];
} ngx_rl_rates_t;


/* a limit that is watched */

typedef struct {
    ngx_rl_limit_stats_t  *stats;
    ngx_rl_rates_t        *rates;
} ngx_rl_watch_t;


/* the layout of shared memory, see ngx_rl_zone_add() */
uint64_t ngx_rl_rates_layout(void);

/* the record of a limit; NULL: no memory */
ngx_rl_rates_t *ngx_rl_rates(ngx_rl_zone_t *zone, ngx_str_t *name);

/* this process takes part; "watches" are ngx_rl_watch_t */
void ngx_rl_rates_begin(ngx_cycle_t *cycle, ngx_array_t *watches);
void ngx_rl_rates_end(void);

/*
 * The requests in the last "span" seconds, up to NGX_RL_RATES - 2.  NGX_OK;
 * NGX_DECLINED: the limit has not been watched for so long.
 */
ngx_int_t ngx_rl_rates_count(ngx_rl_rates_t *rates, ngx_uint_t span,
    ngx_rl_counts_t *counts);


#endif /* _NGX_RL_RATES_H_INCLUDED_ */
