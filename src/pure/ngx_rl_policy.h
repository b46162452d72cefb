
/*
 * What the decisions about the limits of a request mean for the request: in a
 * dry run, in a preview, without an answer.  Pure.
 */


#ifndef _NGX_RL_POLICY_H_INCLUDED_
#define _NGX_RL_POLICY_H_INCLUDED_


#include <stddef.h>

#include "pure/ngx_rl_claim.h"
#include "pure/ngx_rl_decision.h"


typedef struct {
    unsigned  preview:1;  /* looks, and rejects nobody */
    unsigned  closed:1;   /* "ratelimit_on_error closed" */
} ngx_rl_policy_t;


/*
 * The claims of a request are all those that its location makes, in order.  A
 * claim without a key was skipped.  A decision without a source was not made:
 * its failure, if any, says why.
 */

/*
 * Whether the request is rejected whatever comes of claims that are not decided
 * yet, so that nothing is to be taken for them
 */
int ngx_rl_policy_ends(const ngx_rl_policy_t *policy,
    ngx_rl_claim_t *const *claims, size_t n);

/* whether an enforced limit has decided, so that no other location does */
int ngx_rl_policy_final(const ngx_rl_policy_t *policy,
    ngx_rl_claim_t *const *claims, size_t n);

/*
 * Turns the answers about the claims into decisions, and these into one about
 * the request.  Returns the index of the claim whose limit is shown: the
 * numbers of the decision, if it has any, are of this one.  If the source of
 * the decision is NGX_RL_SOURCE_CLOSED, what was taken has to be given back.
 */
size_t ngx_rl_policy_decide(const ngx_rl_policy_t *policy,
    ngx_rl_claim_t **claims, size_t n, ngx_rl_decision_t *d);

/*
 * Whether a claim counts as decided, given the decision about the request: not
 * if it would have let pass a request that another one rejected, or was not
 * asked for that reason
 */
int ngx_rl_policy_counts(const ngx_rl_decision_t *d,
    const ngx_rl_claim_t *claim);


#endif /* _NGX_RL_POLICY_H_INCLUDED_ */
