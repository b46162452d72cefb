
/*
 * What was decided about a request, and the arithmetic behind its numbers.
 * Pure.  One struct, whoever decided: headers, variables and the log read it
 * and nothing else.
 */


#ifndef _NGX_HTTP_RATELIMIT_DECISION_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_DECISION_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>

#include "ngx_http_ratelimit_failure.h"
#include "ngx_http_ratelimit_rate.h"


#define NGX_HTTP_RATELIMIT_MICRO  1000000


typedef enum {
    NGX_HTTP_RATELIMIT_SKIPPED = 0,        /* empty key: not limited */
    NGX_HTTP_RATELIMIT_PASSED,
    NGX_HTTP_RATELIMIT_REJECTED,
    NGX_HTTP_RATELIMIT_REJECTED_DRY_RUN,
    NGX_HTTP_RATELIMIT_DEGRADED            /* the failure policy decided */
} ngx_http_ratelimit_outcome_e;


typedef enum {
    NGX_HTTP_RATELIMIT_SOURCE_NONE = 0,
    NGX_HTTP_RATELIMIT_SOURCE_REDIS,
    NGX_HTTP_RATELIMIT_SOURCE_CACHE,       /* a preview */
    NGX_HTTP_RATELIMIT_SOURCE_DENIED,      /* remembered */
    NGX_HTTP_RATELIMIT_SOURCE_LEASE,       /* tokens taken before */
    NGX_HTTP_RATELIMIT_SOURCE_LOCAL,       /* this machine's memory */
    NGX_HTTP_RATELIMIT_SOURCE_OPEN,
    NGX_HTTP_RATELIMIT_SOURCE_CLOSED,

    NGX_HTTP_RATELIMIT_SOURCES
} ngx_http_ratelimit_source_e;


typedef enum {
    NGX_HTTP_RATELIMIT_TOKEN_BUCKET = 0,
    NGX_HTTP_RATELIMIT_SLIDING_WINDOW_LOG,
    NGX_HTTP_RATELIMIT_GCRA                /* a bucket, otherwise kept */
} ngx_http_ratelimit_algorithm_e;


/* one bucket or window, and what a request wants of it */

typedef struct {
    ngx_http_ratelimit_algorithm_e  algorithm;
    uint64_t                        capacity;    /* or the window's limit */
    uint64_t                        cost;
    ngx_http_ratelimit_rate_t       rate;        /* of a bucket */
    uint64_t                        step;        /* of its refill, us, or 0 */
    uint64_t                        window;      /* us */
    uint64_t                        varies;      /* 1: other requests for it
                                                    may have other numbers */
} ngx_http_ratelimit_bucket_t;


typedef struct {
    ngx_http_ratelimit_outcome_e    outcome;
    ngx_http_ratelimit_source_e     source;
    ngx_http_ratelimit_failure_e    failure;     /* why degraded */

    uint64_t                        limit;
    uint64_t                        remaining;   /* whole tokens left */

    /* seconds, rounded up; NGX_HTTP_RATELIMIT_NEVER where no token comes */
    uint64_t                        reset;       /* until the bucket is full,
                                                    or the oldest leaves */
    uint64_t                        retry_after; /* at least 1; 0 if passed */
} ngx_http_ratelimit_decision_t;


/* how many numbers make the state of such a bucket or window */
#define NGX_HTTP_RATELIMIT_STATES  3

size_t ngx_http_ratelimit_states(const ngx_http_ratelimit_bucket_t *bucket);

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
void ngx_http_ratelimit_decide(ngx_http_ratelimit_decision_t *d,
    const ngx_http_ratelimit_bucket_t *bucket, const int64_t *state);

/*
 * Seconds in which the whole limit comes back: to refill a bucket, or the
 * length of a window; NGX_HTTP_RATELIMIT_NEVER for a rate of zero
 */
uint64_t ngx_http_ratelimit_span(const ngx_http_ratelimit_bucket_t *bucket);

/* whether a leaves less of its limit than b does */
int ngx_http_ratelimit_tighter(const ngx_http_ratelimit_decision_t *a,
    const ngx_http_ratelimit_decision_t *b);

const char *ngx_http_ratelimit_outcome_name(ngx_http_ratelimit_outcome_e o);
const char *ngx_http_ratelimit_source_name(ngx_http_ratelimit_source_e s);


#endif /* _NGX_HTTP_RATELIMIT_DECISION_H_INCLUDED_ */
