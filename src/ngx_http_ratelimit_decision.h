
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
    NGX_HTTP_RATELIMIT_SOURCE_LOCAL,       /* cost above capacity */
    NGX_HTTP_RATELIMIT_SOURCE_OPEN,
    NGX_HTTP_RATELIMIT_SOURCE_CLOSED
} ngx_http_ratelimit_source_e;


/* one bucket, and what a request wants of it */

typedef struct {
    uint64_t                        capacity;
    uint64_t                        cost;
    ngx_http_ratelimit_rate_t       rate;
} ngx_http_ratelimit_bucket_t;


typedef struct {
    ngx_http_ratelimit_outcome_e    outcome;
    ngx_http_ratelimit_source_e     source;
    ngx_http_ratelimit_failure_e    failure;     /* why degraded */

    uint64_t                        limit;
    uint64_t                        remaining;   /* whole tokens left */

    /* seconds, rounded up; NGX_HTTP_RATELIMIT_NEVER where no token comes */
    uint64_t                        reset;       /* until the bucket is full */
    uint64_t                        retry_after; /* at least 1; 0 if passed */
} ngx_http_ratelimit_decision_t;


/*
 * A bucket's state after a call as one number, the scripts' reply:
 * t >= 0: the tokens were taken, t microtokens are left;
 * t < 0: denied, -1 - t microtokens are there.
 */
void ngx_http_ratelimit_decide(ngx_http_ratelimit_decision_t *d,
    const ngx_http_ratelimit_bucket_t *bucket, int64_t state);

const char *ngx_http_ratelimit_outcome_name(ngx_http_ratelimit_outcome_e o);
const char *ngx_http_ratelimit_source_name(ngx_http_ratelimit_source_e s);


#endif /* _NGX_HTTP_RATELIMIT_DECISION_H_INCLUDED_ */
