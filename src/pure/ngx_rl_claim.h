
/*
 * A claim: what one request wants of one limit, and the decision on it.  Pure.
 */


#ifndef _NGX_RL_CLAIM_H_INCLUDED_
#define _NGX_RL_CLAIM_H_INCLUDED_


#include <string.h>

#include "pure/ngx_rl_decision.h"


/* limits that one request may meet */
#define NGX_RL_CLAIMS  16


typedef struct {
    const char        *key;       /* in Redis */
    size_t             len;
    uint64_t           hash[2];   /* of the key and its shard; the second
                                     one is of the key alone */
    uint64_t           limit;     /* any number for it, in this
                                     machine's memory */
    uint64_t           stamp;     /* of its override: what was learned
                                     under another one is not used */
    ngx_rl_bucket_t    bucket;
    unsigned           shadow:1;  /* denies nobody but itself */

    int64_t            state[NGX_RL_STATES];
    uint64_t           period;    /* that was taken from, as the script
                                     calls it; not for all algorithms */
    ngx_rl_decision_t  decision;
} ngx_rl_claim_t;


/* whether two claims are for the same key */

static inline int
ngx_rl_claim_same(const ngx_rl_claim_t *a, const ngx_rl_claim_t *b)
{
    return a->hash[0] == b->hash[0] && a->hash[1] == b->hash[1]
           && a->len == b->len && memcmp(a->key, b->key, a->len) == 0;
}


#endif /* _NGX_RL_CLAIM_H_INCLUDED_ */
