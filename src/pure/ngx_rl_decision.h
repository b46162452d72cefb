
/*
 * The decision on a request, and the arithmetic of its numbers.  Pure.  One
 * struct serves all deciders: Redis, a remembered denial, a lease, local
 * memory.  Headers, variables and the log read nothing else.
 */


#ifndef _NGX_RL_DECISION_H_INCLUDED_
#define _NGX_RL_DECISION_H_INCLUDED_


#include "pure/ngx_rl_bucket.h"
#include "pure/ngx_rl_failure.h"


typedef enum {
    NGX_RL_SKIPPED = 0,        /* empty key, or exempt: not limited */
    NGX_RL_PASSED,
    NGX_RL_REJECTED,
    NGX_RL_REJECTED_DRY_RUN,
    NGX_RL_DEGRADED,           /* the failure policy decided */
    NGX_RL_REJECTED_PREVIEW    /* nothing is left; not counted */
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
    NGX_RL_SOURCE_OVERRIDE,    /* a ban, or an exemption */

    NGX_RL_SOURCES
} ngx_rl_source_e;


typedef struct {
    ngx_rl_outcome_e  outcome;
    ngx_rl_source_e   source;
    ngx_rl_failure_e  failure;      /* why degraded */

    uint64_t          limit;
    uint64_t          remaining;    /* whole tokens left */

    /*
     * For a bucket that may go into debt: the capacity with which the request
     * would have passed, if all requests before it had passed, too.
     * NGX_RL_NEVER: more than the bucket can tell; 0: not known.
     */
    uint64_t          needed;

    /* seconds, rounded up; NGX_RL_NEVER if no token will come */
    uint64_t          reset;        /* until the bucket is full, the
                                       oldest entry leaves a log, a
                                       fixed window ends, or nothing
                                       of a counter counts */
    uint64_t          retry_after;  /* at least 1; 0 if passed */
} ngx_rl_decision_t;


/* makes a decision, except for its source, from the state after a call */
void ngx_rl_decide(ngx_rl_decision_t *d,
    const ngx_rl_bucket_t *bucket, const int64_t *state);

/*
 * A wait with a random part added: from 0 to "percent" of it, rounded up, by a
 * random number below 2^31.  A longer wait never becomes the shorter one.
 */
uint64_t ngx_rl_jitter(uint64_t wait, unsigned percent, uint32_t random);

/* whether "a" has a smaller part of its limit left than "b" */
int ngx_rl_tighter(const ngx_rl_decision_t *a, const ngx_rl_decision_t *b);

extern const char  *const ngx_rl_outcome_names[];
extern const char  *const ngx_rl_source_names[];


#endif /* _NGX_RL_DECISION_H_INCLUDED_ */
