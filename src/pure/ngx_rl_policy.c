
/*
 * A limit is enforced, in a dry run, or in a preview.  A table gives the
 * outcome of a claim by this mode, by its answer, and by whether the server
 * failed.
 *
 * The request has one decision, that of the shown limit.  If enforced limits
 * reject, it is the one with the longest wait.  Otherwise it is the one with
 * the smallest part left.  Limits in a dry run are shown only if no enforced
 * limit was decided or failed.  If a limit has no answer, the decision is
 * degraded, unless another limit rejects the request anyway.
 */


#include <string.h>

#include "pure/ngx_rl_policy.h"


typedef enum {
    NGX_RL_MODE_ENFORCED = 0,
    NGX_RL_MODE_DRY_RUN,
    NGX_RL_MODE_PREVIEW
} ngx_rl_mode_e;


/* selects one of the claims: the best match, and the first of equals */

typedef enum {
    NGX_RL_PICK_REJECTED = 0,  /* rejects, or would: the longest wait */
    NGX_RL_PICK_TIGHTEST,      /* was decided: the least left */
    NGX_RL_PICK_FAILED         /* has no answer, also not by this machine */
} ngx_rl_pick_e;


static void ngx_rl_policy_outcome(const ngx_rl_policy_t *policy,
    ngx_rl_claim_t *claim);
static size_t ngx_rl_policy_shown(ngx_rl_claim_t *const *claims, size_t n,
    size_t failed);
static size_t ngx_rl_policy_failed(ngx_rl_claim_t *const *claims, size_t n);
static int ngx_rl_policy_closes(const ngx_rl_policy_t *policy,
    const ngx_rl_claim_t *failed);
static unsigned ngx_rl_policy_all_shadow(ngx_rl_claim_t *const *claims,
    size_t n);
static size_t ngx_rl_policy_pick(ngx_rl_pick_e pick, unsigned shadow,
    ngx_rl_claim_t *const *claims, size_t n);
static int ngx_rl_policy_fits(ngx_rl_pick_e pick, const ngx_rl_decision_t *d);
static int ngx_rl_policy_better(ngx_rl_pick_e pick, const ngx_rl_decision_t *a,
    const ngx_rl_decision_t *b);


/* the outcome of a claim, by failure, answer and mode */

static const ngx_rl_outcome_e  ngx_rl_policy_outcomes[2][3][3] = {

    /* enforced, in a dry run, in a preview */

    { { NGX_RL_SKIPPED, NGX_RL_SKIPPED, NGX_RL_SKIPPED },  /* no answer */
      { NGX_RL_PASSED, NGX_RL_PASSED, NGX_RL_PASSED },
      { NGX_RL_REJECTED, NGX_RL_REJECTED_DRY_RUN, NGX_RL_REJECTED_PREVIEW } },

    /* the server failed: an answer is this machine's own */

    { { NGX_RL_DEGRADED, NGX_RL_DEGRADED, NGX_RL_DEGRADED },
      { NGX_RL_DEGRADED, NGX_RL_DEGRADED, NGX_RL_DEGRADED },
      { NGX_RL_REJECTED, NGX_RL_REJECTED_DRY_RUN, NGX_RL_DEGRADED } }
};


int
ngx_rl_policy_ends(const ngx_rl_policy_t *policy,
    ngx_rl_claim_t *const *claims, size_t n)
{
    size_t  failed;

    if (policy->preview) {
        return 0;
    }

    if (ngx_rl_policy_pick(NGX_RL_PICK_REJECTED, 0, claims, n) != n) {
        return 1;
    }

    failed = ngx_rl_policy_failed(claims, n);

    return failed != n && ngx_rl_policy_closes(policy, claims[failed]);
}


int
ngx_rl_policy_final(const ngx_rl_policy_t *policy,
    ngx_rl_claim_t *const *claims, size_t n)
{
    return !policy->preview && !ngx_rl_policy_all_shadow(claims, n);
}


size_t
ngx_rl_policy_decide(const ngx_rl_policy_t *policy, ngx_rl_claim_t **claims,
    size_t n, ngx_rl_decision_t *d)
{
    size_t              i, failed, shown;
    ngx_rl_decision_t  *f;

    for (i = 0; i < n; i++) {
        ngx_rl_policy_outcome(policy, claims[i]);
    }

    failed = ngx_rl_policy_failed(claims, n);
    shown = ngx_rl_policy_shown(claims, n, failed);

    memset(d, 0, sizeof(ngx_rl_decision_t));

    if (shown != n) {
        *d = claims[shown]->decision;
    }

    if (failed == n || d->outcome == NGX_RL_REJECTED) {
        return (shown != n) ? shown : 0;
    }

    f = &claims[failed]->decision;

    if (ngx_rl_policy_closes(policy, claims[failed])) {
        f->source = NGX_RL_SOURCE_CLOSED;

        memset(d, 0, sizeof(ngx_rl_decision_t));
        d->outcome = NGX_RL_DEGRADED;
        d->retry_after = policy->retry_after;

    } else if (d->outcome != NGX_RL_REJECTED_DRY_RUN) {
        d->outcome = NGX_RL_DEGRADED;
        d->retry_after = 0;
    }

    d->source = f->source;
    d->failure = f->failure;

    return d->limit ? shown : failed;
}


int
ngx_rl_policy_counts(const ngx_rl_decision_t *d, const ngx_rl_claim_t *claim)
{
    switch (claim->decision.outcome) {

    case NGX_RL_SKIPPED:
        return claim->len == 0
               || claim->decision.source == NGX_RL_SOURCE_OVERRIDE;

    case NGX_RL_PASSED:
    case NGX_RL_DEGRADED:
        return claim->decision.source == NGX_RL_SOURCE_CLOSED
               || (d->outcome != NGX_RL_REJECTED
                   && d->source != NGX_RL_SOURCE_CLOSED);

    default: /* rejected, also in a dry run */
        return 1;
    }
}


static void
ngx_rl_policy_outcome(const ngx_rl_policy_t *policy, ngx_rl_claim_t *claim)
{
    int                 failed;
    ngx_rl_mode_e       mode;
    ngx_rl_decision_t  *d;

    d = &claim->decision;
    failed = (d->failure != NGX_RL_OK);

    if (policy->preview) {
        mode = NGX_RL_MODE_PREVIEW;
        d->retry_after = 0;

        /*
         * Whatever the cost: is anything left?  A limit with nothing left is
         * the tightest, so it is shown.
         */

        if (d->limit) {
            d->outcome = d->remaining ? NGX_RL_PASSED : NGX_RL_REJECTED;
        }

    } else {
        mode = claim->shadow ? NGX_RL_MODE_DRY_RUN : NGX_RL_MODE_ENFORCED;
    }

    d->outcome = ngx_rl_policy_outcomes[failed][d->outcome][mode];

    if (failed && d->source == NGX_RL_SOURCE_NONE) {
        d->source = NGX_RL_SOURCE_OPEN;
    }
}


/*
 * Which limit is shown: a rejecting one, or else the tightest; in both cases
 * an enforced one before those in a dry run; n: none.
 */

static size_t
ngx_rl_policy_shown(ngx_rl_claim_t *const *claims, size_t n, size_t failed)
{
    size_t    i;
    unsigned  shadow;

    for (shadow = 0; shadow <= 1; shadow++) {

        /*
         * Nothing is known of the enforced limits: show no numbers of others.
         */

        if (shadow && failed != n && !claims[failed]->shadow) {
            break;
        }

        i = ngx_rl_policy_pick(NGX_RL_PICK_REJECTED, shadow, claims, n);

        if (i == n) {
            i = ngx_rl_policy_pick(NGX_RL_PICK_TIGHTEST, shadow, claims, n);
        }

        if (i != n) {
            return i;
        }
    }

    return n;
}


/*
 * A limit whose server gave no answer; n: none.  A dry run does not matter
 * beside enforced limits.
 */

static size_t
ngx_rl_policy_failed(ngx_rl_claim_t *const *claims, size_t n)
{
    return ngx_rl_policy_pick(NGX_RL_PICK_FAILED,
                              ngx_rl_policy_all_shadow(claims, n), claims, n);
}


/* whether such a failure rejects the request */

static int
ngx_rl_policy_closes(const ngx_rl_policy_t *policy,
    const ngx_rl_claim_t *failed)
{
    return policy->closed && !policy->preview && !failed->shadow;
}


/* whether no limit with a key is enforced */

static unsigned
ngx_rl_policy_all_shadow(ngx_rl_claim_t *const *claims, size_t n)
{
    size_t  i;

    for (i = 0; i < n; i++) {
        if (claims[i]->len && !claims[i]->shadow) {
            return 0;
        }
    }

    return 1;
}


/* n: none matches */

static size_t
ngx_rl_policy_pick(ngx_rl_pick_e pick, unsigned shadow,
    ngx_rl_claim_t *const *claims, size_t n)
{
    size_t              i, best;
    ngx_rl_decision_t  *d;

    best = n;

    for (i = 0; i < n; i++) {
        d = &claims[i]->decision;

        if (claims[i]->shadow == shadow && ngx_rl_policy_fits(pick, d)
            && (best == n
                || ngx_rl_policy_better(pick, d, &claims[best]->decision)))
        {
            best = i;
        }
    }

    return best;
}


static int
ngx_rl_policy_fits(ngx_rl_pick_e pick, const ngx_rl_decision_t *d)
{
    switch (pick) {

    case NGX_RL_PICK_REJECTED:
        return d->outcome == NGX_RL_REJECTED
               || d->outcome == NGX_RL_REJECTED_DRY_RUN;

    case NGX_RL_PICK_TIGHTEST:
        return d->limit != 0;

    default: /* NGX_RL_PICK_FAILED */
        return d->failure != NGX_RL_OK;
    }
}


static int
ngx_rl_policy_better(ngx_rl_pick_e pick, const ngx_rl_decision_t *a,
    const ngx_rl_decision_t *b)
{
    switch (pick) {

    case NGX_RL_PICK_REJECTED:
        return a->retry_after > b->retry_after;

    case NGX_RL_PICK_TIGHTEST:
        return ngx_rl_tighter(a, b);

    default: /* NGX_RL_PICK_FAILED */
        return a->source != NGX_RL_SOURCE_LOCAL
               && b->source == NGX_RL_SOURCE_LOCAL;
    }
}
