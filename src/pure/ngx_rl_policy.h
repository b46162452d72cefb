
/*
 * What the decisions on its limits mean for a request: in a dry run, in a
 * preview, without an answer.  Pure.
 */


#ifndef _NGX_RL_POLICY_H_INCLUDED_
#define _NGX_RL_POLICY_H_INCLUDED_


#include <stddef.h>

#include "pure/ngx_rl_claim.h"
#include "pure/ngx_rl_decision.h"


typedef struct {
    unsigned  preview:1;    /* looks, and rejects nobody */
    unsigned  closed:1;     /* "ratelimit_on_error closed" */
    uint64_t  retry_after;  /* seconds, for those that it rejects */
} ngx_rl_policy_t;


/*
 * The claims of a request are all claims of its location, in order.  A claim
 * without a key was skipped.  A decision without a source was not made; its
 * failure, if any, says why.
 */

/*
 * Whether the request will be rejected whatever the undecided claims bring, so
 * that nothing should be taken for them.
 */
int ngx_rl_policy_ends(const ngx_rl_policy_t *policy,
    ngx_rl_claim_t *const *claims, size_t n);

/* whether an enforced limit has decided, so that no other location may */
int ngx_rl_policy_final(const ngx_rl_policy_t *policy,
    ngx_rl_claim_t *const *claims, size_t n);

/*
 * Turns the answers about the claims into decisions, and these into one for
 * the request.  Returns the index of the claim whose limit is shown; the
 * numbers of the decision, if any, belong to it.  If the source of the
 * decision is NGX_RL_SOURCE_CLOSED, taken tokens must be refunded.
 */
size_t ngx_rl_policy_decide(const ngx_rl_policy_t *policy,
    ngx_rl_claim_t **claims, size_t n, ngx_rl_decision_t *d);

/*
 * Whether a claim counts as decided, given the decision on the request.  It
 * does not if it would have passed a request that another limit rejected, or
 * if it was not asked for that reason.
 */
int ngx_rl_policy_counts(const ngx_rl_decision_t *d,
    const ngx_rl_claim_t *claim);


#endif /* _NGX_RL_POLICY_H_INCLUDED_ */
