
/*
 * Numbers that users write: rates, capacities, costs, shares.  Pure.
 *
 * A rate is stored as a reduced fraction of tokens per second, so "1r/d" and
 * "100000r/s" are both exact.  A token is 1000000 microtokens and a second is
 * 1000000 microseconds, so the same fraction counts microtokens per
 * microsecond.
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


/* the part of a limit that one machine grants by itself */

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
 * The cost from a variable.  A client may influence it, so every text is a
 * cost: an empty text and zero count as 1, and a number above the maximum, or
 * a text that is not a number, counts as the maximum.  Returns NULL, or a
 * sentence for the log if the value was replaced by the maximum.
 */
const char *ngx_rl_cost_bound(const void *data, size_t len, uint64_t *cost);

/* whether a rate and a capacity fit each other */
const char *ngx_rl_rate_check(const ngx_rl_rate_t *rate, uint64_t capacity);

/* whether GCRA can represent such a limit */
const char *ngx_rl_gcra_check(const ngx_rl_rate_t *rate, uint64_t capacity);

/* the largest capacity that GCRA can represent at this rate */
uint64_t ngx_rl_gcra_capacity(const ngx_rl_rate_t *rate);

/* value of a token in ticks of GCRA, sixteenths of a microsecond */
uint64_t ngx_rl_gcra_tick(const ngx_rl_rate_t *rate);

/*
 * Microseconds until so many microtokens have been refilled, rounded up;
 * NGX_RL_NEVER for a rate of zero.
 */
uint64_t ngx_rl_rate_wait(const ngx_rl_rate_t *rate, uint64_t microtokens);

/* microtokens refilled in so many microseconds, rounded down */
uint64_t ngx_rl_rate_refill(const ngx_rl_rate_t *rate, uint64_t us);


#endif /* _NGX_RL_RATE_H_INCLUDED_ */
