
/*
 * Which capacity requests needed: the bins of a histogram, and the curve that
 * says what share of the requests each capacity would have rejected.  Pure.
 */


#ifndef _NGX_RL_ADVICE_H_INCLUDED_
#define _NGX_RL_ADVICE_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


/* capacities, from 10 on each at most a third above the one before */
#define NGX_RL_ADVICE_BOUNDS  88

/* bin i: up to bound i, and above bound i - 1; the last: all others */
#define NGX_RL_ADVICE_BINS    (NGX_RL_ADVICE_BOUNDS + 1)


extern const uint32_t  ngx_rl_advice_bounds[NGX_RL_ADVICE_BOUNDS];


/* the bin of a request that needed so much; NGX_RL_NEVER: the last one */
size_t ngx_rl_advice_bin(uint64_t needed);

/* so many parts of a million, rounded; of something at least one */
uint64_t ngx_rl_advice_share(uint64_t part, uint64_t all);


#endif /* _NGX_RL_ADVICE_H_INCLUDED_ */
