
/*
 * What was decided about a request, and the arithmetic behind its numbers.
 * Pure.  One struct, whoever decided: headers, variables and the log read it
 * and nothing else.
 */


#ifndef _NGX_RL_DECISION_H_INCLUDED_
#define _NGX_RL_DECISION_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>

#include "pure/ngx_rl_failure.h"
#include "pure/ngx_rl_rate.h"


#define NGX_RL_MICRO  1000000


typedef enum {
    NGX_RL_SKIPPED = 0,        /* empty key: not limited */
    NGX_RL_PASSED,
    NGX_RL_REJECTED,
    NGX_RL_REJECTED_DRY_RUN,
    NGX_RL_DEGRADED            /* the failure policy decided */
} ngx_rl_outcome_e;


typedef enum {
    NGX_RL_SOURCE_NONE = 0,
    NGX_RL_SOURCE_REDIS,
    NGX_RL_SOURCE_CACHE,       /* a preview */
    NGX_RL_SOURCE_DENIED,      /* remembered */
    NGX_RL_SOURCE_LEASE,       /* tokens taken before */
    NGX_RL_SOURCE_LOCAL,       /* this machine's memory */
    NGX_RL_SOURCE_OPEN,
    NGX_RL_SOURCE_CLOSED,

    NGX_RL_SOURCES
} ngx_rl_source_e;


typedef enum {
    NGX_RL_TOKEN_BUCKET = 0,
    NGX_RL_SLIDING_WINDOW_LOG,
    NGX_RL_GCRA                /* a bucket, otherwise kept */
} ngx_rl_algorithm_e;


/* one bucket or window, and what a request wants of it */

typedef struct {
    ngx_rl_algorithm_e  algorithm;
    uint64_t            capacity;  /* or the window's limit */
    uint64_t            cost;
    ngx_rl_rate_t       rate;      /* of a bucket */
    uint64_t            step;      /* of its refill, us, or 0 */
    uint64_t            window;    /* us */
    uint64_t            varies;    /* 1: other requests for it
                                      may have other numbers */
} ngx_rl_bucket_t;


typedef struct {
    ngx_rl_outcome_e  outcome;
    ngx_rl_source_e   source;
    ngx_rl_failure_e  failure;      /* why degraded */

    uint64_t          limit;
    uint64_t          remaining;    /* whole tokens left */

    /* seconds, rounded up; NGX_RL_NEVER where no token comes */
    uint64_t          reset;        /* until the bucket is full,
                                       or the oldest leaves */
    uint64_t          retry_after;  /* at least 1; 0 if passed */
} ngx_rl_decision_t;


/* how many numbers make the state of such a bucket or window */
#define NGX_RL_STATES  3

size_t ngx_rl_states(const ngx_rl_bucket_t *bucket);

/*
 * The state after a call, as the scripts reply it:
 *
 * state[0]: t >= 0: the cost was taken, or would have been if no other limit
 *           had denied, and t is left; t < 0: denied, -1 - t is there.
 *           In microtokens for a bucket, in whole ones for a window.
 * state[1]: bucket with a step: microseconds of the present step gone;
 *           window: microseconds until the oldest entry leaves
 * state[2]: window: microseconds until the cost fits;
 *           bucket: microtokens owed, which come before all others
 */
void ngx_rl_decide(ngx_rl_decision_t *d,
    const ngx_rl_bucket_t *bucket, const int64_t *state);

/*
 * Seconds in which the whole limit comes back: to refill a bucket, or the
 * length of a window; NGX_RL_NEVER for a rate of zero
 */
uint64_t ngx_rl_span(const ngx_rl_bucket_t *bucket);

/* whether a leaves less of its limit than b does */
int ngx_rl_tighter(const ngx_rl_decision_t *a, const ngx_rl_decision_t *b);

const char *ngx_rl_outcome_name(ngx_rl_outcome_e o);
const char *ngx_rl_source_name(ngx_rl_source_e s);


#endif /* _NGX_RL_DECISION_H_INCLUDED_ */
