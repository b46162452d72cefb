
/*
 * Numbers that a user writes: rates, capacities, costs, shares.  Pure.
 *
 * A rate is kept as a reduced fraction of tokens per second, so "1r/d" and
 * "100000r/s" are both exact.  As a token is 1000000 microtokens and a second
 * 1000000 microseconds, the same fraction counts microtokens per microsecond.
 */


#ifndef _NGX_RL_RATE_H_INCLUDED_
#define _NGX_RL_RATE_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


#define NGX_RL_MAX_CAPACITY  1000000000
#define NGX_RL_MAX_COST      100000
#define NGX_RL_MAX_RATE      1000000000
#define NGX_RL_MAX_SHARE     1000        /* of its numerator and denominator */
#define NGX_RL_NEVER         UINT64_MAX


typedef struct {
    uint64_t  num;
    uint64_t  den;
    uint64_t  count;  /* the number as written, rounded up */
} ngx_rl_rate_t;


/* the part of a limit that one machine may grant by itself */

typedef struct {
    uint64_t  num;
    uint64_t  den;
} ngx_rl_share_t;


/* these return NULL, or a sentence that says what is allowed */

const char *ngx_rl_rate_parse(const void *data, size_t len,
    ngx_rl_rate_t *rate);
const char *ngx_rl_capacity_parse(const void *data, size_t len,
    uint64_t *capacity);
const char *ngx_rl_cost_parse(const void *data, size_t len, uint64_t *cost);
const char *ngx_rl_share_parse(const void *data, size_t len,
    ngx_rl_share_t *share);

/*
 * The cost that a variable gives.  A client may have a say in it, so every text
 * is a cost: nothing and zero are 1, what is above the maximum or no number is
 * the maximum.  Returns NULL, or a sentence that says so where it is not what
 * was written.
 */
const char *ngx_rl_cost_bound(const void *data, size_t len, uint64_t *cost);

/* whether a rate and a capacity make sense together */
const char *ngx_rl_rate_check(const ngx_rl_rate_t *rate, uint64_t capacity);

/* whether GCRA can keep such a limit */
const char *ngx_rl_gcra_check(const ngx_rl_rate_t *rate, uint64_t capacity);

/* ticks of GCRA, sixteenths of a microsecond, that a token is worth */
uint64_t ngx_rl_gcra_tick(const ngx_rl_rate_t *rate);

/*
 * microseconds until so many microtokens have come, rounded up;
 * NGX_RL_NEVER for a rate of zero
 */
uint64_t ngx_rl_rate_wait(const ngx_rl_rate_t *rate, uint64_t microtokens);

/* microtokens that come in so many microseconds, rounded down */
uint64_t ngx_rl_rate_refill(const ngx_rl_rate_t *rate, uint64_t us);


#endif /* _NGX_RL_RATE_H_INCLUDED_ */
