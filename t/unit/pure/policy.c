
/*
 * What decisions about limits mean for a request.  All combinations of answers
 * about up to four limits, each enforced or in a dry run, with and without
 * previews and "ratelimit_on_error closed", are compared with the rules as the
 * documentation states them.
 */

#include "tap.h"

#include "pure/ngx_rl_policy.h"


#define RETRY_AFTER  7      /* of a request that a failure rejects */


#define CLAIMS  4


/* what is known of a claim when all answers are there */

typedef struct {
    const char  *name;
    uint64_t     remaining;
    uint64_t     limit;   /* 0: nobody has decided */
    uint64_t     wait;    /* 0: it passes */
    unsigned     failed:1;
    unsigned     keyless:1;
} answer_t;


static const answer_t  answers[] = {
    { "empty key", 0, 0, 0, 0, 1 },
    { "not asked", 0, 0, 0, 0, 0 },
    { "passed, half left", 5, 10, 0, 0, 0 },
    { "passed, little left", 1, 20, 0, 0, 0 },
    { "rejected for 1 s", 0, 10, 1, 0, 0 },
    { "rejected for 7 s", 2, 10, 7, 0, 0 },
    { "failed", 0, 0, 0, 1, 0 },
    { "failed, passed here", 1, 4, 0, 1, 0 },
    { "failed, rejected here for 3 s", 0, 4, 3, 1, 0 }
};

#define ANSWERS  (sizeof(answers) / sizeof(answers[0]))


/* one case: limits, what is known of each, and which are in a dry run */

typedef struct {
    ngx_rl_policy_t  policy;
    size_t           n;
    const answer_t  *answer[CLAIMS];
    unsigned         dry_run[CLAIMS];
} case_t;


static ngx_rl_failure_e
failure_of(size_t i)
{
    static const ngx_rl_failure_e  failures[CLAIMS] = {
        NGX_RL_TIMEOUT, NGX_RL_REFUSED, NGX_RL_CIRCUIT, NGX_RL_CONFIG
    };

    return failures[i];
}


static ngx_rl_source_e
source_of(const answer_t *a)
{
    return a->limit == 0 ? NGX_RL_SOURCE_NONE
           : a->failed ? NGX_RL_SOURCE_LOCAL : NGX_RL_SOURCE_REDIS;
}


static void
claim_of(const case_t *t, size_t i, ngx_rl_claim_t *claim)
{
    const answer_t     *a;
    ngx_rl_decision_t  *d;

    a = t->answer[i];
    d = &claim->decision;

    memset(claim, 0, sizeof(*claim));

    claim->key = "key";
    claim->len = a->keyless ? 0 : 3;
    claim->shadow = t->dry_run[i];

    d->source = source_of(a);
    d->failure = a->failed ? failure_of(i) : NGX_RL_OK;
    d->limit = a->limit;
    d->remaining = a->remaining;
    d->reset = a->limit ? 100 + i : 0;
    d->retry_after = a->wait;

    if (a->limit) {
        d->outcome = a->wait ? NGX_RL_REJECTED : NGX_RL_PASSED;
    }
}


/* the rules: a dry run and a preview reject nobody */

static int
rejects(const case_t *t, size_t i)
{
    return t->answer[i]->wait && !t->dry_run[i] && !t->policy.preview;
}


static int
would_reject(const case_t *t, size_t i)
{
    return t->answer[i]->wait && t->dry_run[i] && !t->policy.preview;
}


static int
has_enforced(const case_t *t)
{
    size_t  i;

    for (i = 0; i < t->n; i++) {
        if (!t->answer[i]->keyless && !t->dry_run[i]) {
            return 1;
        }
    }

    return 0;
}


/* a dry run does not matter beside enforced limits if its shard is away */

static int
fails(const case_t *t, size_t i)
{
    return t->answer[i]->failed && (!t->dry_run[i] || !has_enforced(t));
}


/* the first that nobody decided, else the first that this machine decided */

static int
failed_of(const case_t *t)
{
    int  i;

    for (i = 0; i < (int) t->n; i++) {
        if (fails(t, i) && t->answer[i]->limit == 0) {
            return i;
        }
    }

    for (i = 0; i < (int) t->n; i++) {
        if (fails(t, i)) {
            return i;
        }
    }

    return -1;
}


static int
rejecting(const case_t *t)
{
    size_t  i;

    for (i = 0; i < t->n; i++) {
        if (rejects(t, i)) {
            return 1;
        }
    }

    return 0;
}


/* previews and dry runs pass also where "closed" would not let them */

static int
closing(const case_t *t)
{
    size_t  i;

    for (i = 0; i < t->n; i++) {
        if (t->answer[i]->failed && !t->dry_run[i]) {
            return t->policy.closed && !t->policy.preview;
        }
    }

    return 0;
}


/* an enforced one, always; one that rejects; one that was decided */

static unsigned
rank_of(const case_t *t, size_t i)
{
    if (t->answer[i]->limit == 0) {
        return 0;
    }

    if (!t->dry_run[i]) {
        return rejects(t, i) ? 4 : 3;
    }

    return would_reject(t, i) ? 2 : 1;
}


static int
shows_rather(const case_t *t, size_t a, size_t b)
{
    const answer_t  *x, *y;

    x = t->answer[a];
    y = t->answer[b];

    if (rank_of(t, a) != rank_of(t, b)) {
        return rank_of(t, a) > rank_of(t, b);
    }

    if (rejects(t, a) || would_reject(t, a)) {
        return x->wait > y->wait;
    }

    return (double) x->remaining / x->limit < (double) y->remaining / y->limit;
}


static int
shown_of(const case_t *t)
{
    int     best;
    size_t  i;

    best = -1;

    for (i = 0; i < t->n; i++) {
        if (rank_of(t, i)
            && (best == -1 || shows_rather(t, i, best)))
        {
            best = i;
        }
    }

    /* numbers of a dry run say nothing about an enforced limit that failed */

    if (best != -1 && t->dry_run[best] && failed_of(t) != -1
        && has_enforced(t))
    {
        return -1;
    }

    return best;
}


static ngx_rl_outcome_e
outcome_of(const case_t *t, size_t i)
{
    const answer_t  *a;

    a = t->answer[i];

    if (rejects(t, i)) {
        return NGX_RL_REJECTED;
    }

    if (would_reject(t, i)) {
        return NGX_RL_REJECTED_DRY_RUN;
    }

    if (a->failed) {
        return NGX_RL_DEGRADED;
    }

    if (t->policy.preview && a->limit && a->remaining == 0) {
        return NGX_RL_REJECTED_PREVIEW;
    }

    return a->limit ? NGX_RL_PASSED : NGX_RL_SKIPPED;
}


/* who decided about a claim in the end */

static ngx_rl_source_e
final_source_of(const case_t *t, size_t i)
{
    const answer_t  *a;

    a = t->answer[i];

    if (!rejecting(t) && closing(t) && failed_of(t) == (int) i) {
        return NGX_RL_SOURCE_CLOSED;
    }

    return (a->failed && a->limit == 0) ? NGX_RL_SOURCE_OPEN : source_of(a);
}


static size_t
expected(const case_t *t, ngx_rl_decision_t *d)
{
    int  failed, shown;

    failed = failed_of(t);
    shown = shown_of(t);

    memset(d, 0, sizeof(*d));

    if (closing(t) && !rejecting(t)) {
        d->outcome = NGX_RL_DEGRADED;
        d->source = NGX_RL_SOURCE_CLOSED;
        d->failure = failure_of(failed);
        d->retry_after = RETRY_AFTER;

        return failed;
    }

    if (shown != -1) {
        d->outcome = outcome_of(t, shown);
        d->source = final_source_of(t, shown);
        d->failure = t->answer[shown]->failed ? failure_of(shown) : NGX_RL_OK;
        d->limit = t->answer[shown]->limit;
        d->remaining = t->answer[shown]->remaining;
        d->reset = 100 + shown;
        d->retry_after = (rejects(t, shown) || would_reject(t, shown))
                         ? t->answer[shown]->wait : 0;
    }

    /* it passes, but not everybody was asked who should have been */

    if (failed != -1 && !rejecting(t)) {

        if (d->outcome != NGX_RL_REJECTED_DRY_RUN) {
            d->outcome = NGX_RL_DEGRADED;
        }

        d->source = final_source_of(t, failed);
        d->failure = failure_of(failed);
    }

    return shown != -1 ? shown : failed != -1 ? failed : 0;
}


/* each limit counts that decided something */

static int
counts(const case_t *t, size_t i)
{
    if (rejects(t, i) || would_reject(t, i)) {
        return 1;
    }

    if (t->answer[i]->keyless) {
        return 1;
    }

    if (!t->answer[i]->limit && !t->answer[i]->failed) {
        return 0;
    }

    if (rejecting(t)) {
        return 0;
    }

    return !closing(t) || failed_of(t) == (int) i;
}


/* NULL, or where the policy differs from the rules */

static const char *
wrong(const case_t *t)
{
    int                ends;
    size_t             i, shown, right;
    ngx_rl_claim_t     claims[CLAIMS], *list[CLAIMS];
    ngx_rl_decision_t  d, e;

    for (i = 0; i < t->n; i++) {
        claim_of(t, i, &claims[i]);
        list[i] = &claims[i];
    }

    ends = ngx_rl_policy_ends(&t->policy, list, t->n);

    memset(&d, 0xff, sizeof(d));
    shown = ngx_rl_policy_decide(&t->policy, list, t->n, &d);
    right = expected(t, &e);

    for (i = 0; i < t->n; i++) {
        if (claims[i].decision.outcome != outcome_of(t, i)) {
            return "outcome of a limit";
        }

        if (claims[i].decision.source != final_source_of(t, i)) {
            return "source of a limit";
        }

        if (ngx_rl_policy_counts(&d, &claims[i]) != counts(t, i)) {
            return "which limits count";
        }
    }

    if (shown != right) {
        return "which limit is shown";
    }

    if (d.outcome != e.outcome || d.source != e.source
        || d.failure != e.failure)
    {
        return "decision";
    }

    if (d.limit != e.limit || d.remaining != e.remaining
        || d.reset != e.reset || d.retry_after != e.retry_after)
    {
        return "numbers";
    }

    if (ends != (rejecting(t) || closing(t))) {
        return "whether it ends the request";
    }

    if (ngx_rl_policy_final(&t->policy, list, t->n)
        != (has_enforced(t) && !t->policy.preview))
    {
        return "whether it is final";
    }

    return NULL;
}


static void
test_all(unsigned preview, unsigned closed, size_t n)
{
    size_t       i, k, left, cases, failures;
    case_t       t;
    const char  *what;

    memset(&t, 0, sizeof(t));

    t.policy.preview = preview;
    t.policy.closed = closed;
    t.policy.retry_after = RETRY_AFTER;
    t.n = n;

    cases = 1;
    failures = 0;

    for (i = 0; i < n; i++) {
        cases *= 2 * ANSWERS;
    }

    for (k = 0; k < cases; k++) {
        left = k;

        for (i = 0; i < n; i++) {
            t.answer[i] = &answers[left % ANSWERS];
            left /= ANSWERS;
            t.dry_run[i] = left % 2;
            left /= 2;
        }

        what = wrong(&t);

        if (what == NULL || failures++) {
            continue;
        }

        diag("%s:", what);

        for (i = 0; i < n; i++) {
            diag("  %s%s", t.answer[i]->name,
                 t.dry_run[i] ? ", in a dry run" : "");
        }
    }

    ok(failures == 0, "%zu cases of %zu limits%s%s", cases, n,
       preview ? ", preview" : "", closed ? ", closed" : "");
}


int
main(void)
{
    size_t    n;
    unsigned  i;

    for (n = 1; n <= CLAIMS; n++) {
        for (i = 0; i < 4; i++) {
            test_all(i & 1, i >> 1, n);
        }
    }

    return tap_done();
}
