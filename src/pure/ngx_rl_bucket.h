
/*
 * A bucket or window: its algorithm and parameters, the cost of a request, and
 * what follows from these alone.  Pure.
 */


#ifndef _NGX_RL_BUCKET_H_INCLUDED_
#define _NGX_RL_BUCKET_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>

#include "pure/ngx_rl_period.h"
#include "pure/ngx_rl_rate.h"


#define NGX_RL_MICRO      1000000

/*
 * Time to live of a key in Redis, in ms: until the bucket is full.  A bucket
 * that never refills gets a year, which the scripts renew before half of it is
 * over.
 */
#define NGX_RL_TTL_NEVER  31536000000ULL        /* 365 days */
#define NGX_RL_TTL_MAX    3155760000000ULL      /* 100 years */


typedef enum {
    NGX_RL_TOKEN_BUCKET = 0,
    NGX_RL_SLIDING_WINDOW_LOG,
    NGX_RL_GCRA,               /* a bucket, otherwise kept */
    NGX_RL_FIXED_WINDOW,
    NGX_RL_SLIDING_WINDOW_COUNTER
} ngx_rl_algorithm_e;


/* these have a window and count requests; all others have tokens and a rate */
#define ngx_rl_algorithm_window(algorithm)                                    \
    ((algorithm) == NGX_RL_SLIDING_WINDOW_LOG                                 \
     || ngx_rl_algorithm_period(algorithm))

/* these count by periods of the wall clock, which follow each other */
#define ngx_rl_algorithm_period(algorithm)                                    \
    ((algorithm) == NGX_RL_FIXED_WINDOW                                       \
     || (algorithm) == NGX_RL_SLIDING_WINDOW_COUNTER)


/* buckets are compared as bytes: every byte of the struct must be set */

typedef struct {
    ngx_rl_algorithm_e  algorithm;
    uint64_t            capacity;  /* or the window's limit */
    uint64_t            debt;      /* tokens that may be taken beyond
                                      the capacity, for advice; or 0 */
    uint64_t            cost;
    ngx_rl_rate_t       rate;      /* of a bucket */
    uint64_t            step;      /* of its refill, us, or 0 */
    uint64_t            window;    /* of a log, us */
    ngx_rl_period_t     period;    /* of the other windows */
    uint64_t            varies;    /* 1: other requests for it
                                      may have other numbers */
} ngx_rl_bucket_t;


/*
 * The state after a call, as the scripts reply it:
 *
 * state[0]: t >= 0: the cost was taken, or would have been taken if no other
 *           limit had denied, and t is left; t < 0: denied, -1 - t is there.
 *           In microtokens for a bucket, in whole requests for a window.  A
 *           bucket that may go into debt counts from the deepest debt on.
 * state[1]: bucket with a step: microseconds of the current step gone;
 *           window log: microseconds until the oldest entry leaves;
 *           fixed window: microseconds until it ends;
 *           window counter: microseconds until nothing of it counts
 * state[2]: window: microseconds until the cost fits;
 *           bucket: microtokens owed, which are repaid first
 */
#define NGX_RL_STATES     3

/*
 * How many of these numbers a script replies.  The last one of a window that
 * counts by periods is not a state: it says from which period was taken.
 */
size_t ngx_rl_bucket_states(const ngx_rl_bucket_t *bucket);

/*
 * Lets a bucket go into debt, to find out which capacity requests need.  How
 * far is bounded: by what a bucket can store, and to 1000 times the capacity,
 * so that a client does not owe for weeks what it took in an hour.
 */
void ngx_rl_bucket_advise(ngx_rl_bucket_t *bucket);

/* whether two buckets are the same in every field */
int ngx_rl_bucket_same(const ngx_rl_bucket_t *a, const ngx_rl_bucket_t *b);

/*
 * Seconds in which the whole limit comes back: the time to refill a bucket, or
 * the length of a window; NGX_RL_NEVER for a rate of zero, and for months,
 * which differ in length.
 */
uint64_t ngx_rl_bucket_span(const ngx_rl_bucket_t *bucket);

/*
 * Seconds until so many microtokens have been refilled; "gone" microseconds of
 * the current step have passed.
 */
uint64_t ngx_rl_bucket_wait(const ngx_rl_bucket_t *bucket,
    uint64_t microtokens, uint64_t gone);

/* of its key in Redis, ms; the scripts add the time for its debt */
uint64_t ngx_rl_bucket_ttl(const ngx_rl_bucket_t *bucket);

/* whether a clock step could refill so much that a second clock must agree */
int ngx_rl_bucket_slow(const ngx_rl_bucket_t *bucket);

/* the share of a limit that one machine grants: at least one token */
void ngx_rl_bucket_share(ngx_rl_bucket_t *bucket, const ngx_rl_share_t *share);

/* tokens that can be taken from a full bucket */
#define ngx_rl_bucket_size(bucket)  ((bucket)->capacity + (bucket)->debt)

/* rounded up; NGX_RL_NEVER stays */
uint64_t ngx_rl_seconds(uint64_t us);


#endif /* _NGX_RL_BUCKET_H_INCLUDED_ */
