
#include "script/ngx_rl_eval.h"
#include "script/ngx_rl_scripts.h"


static int ngx_rl_eval_fits(const ngx_rl_eval_t *eval,
    const ngx_rl_call_t *call);
static int ngx_rl_eval_number(ngx_rl_eval_t *eval, ngx_rl_call_t *call);
static void ngx_rl_eval_short(ngx_rl_eval_t *eval,
    ngx_rl_resp_t *resp, unsigned with_text);
static void ngx_rl_eval_short_limit(ngx_rl_resp_t *resp,
    const ngx_rl_bucket_t *bucket);
static void ngx_rl_eval_take(ngx_rl_eval_t *eval,
    ngx_rl_resp_t *resp, unsigned with_text);
static void ngx_rl_eval_claim(ngx_rl_resp_t *resp, const ngx_rl_claim_t *claim);
static size_t ngx_rl_eval_states(const ngx_rl_call_t *call);
static int ngx_rl_eval_answer(ngx_rl_call_t *call,
    ngx_rl_reply_t *const *element, size_t n);
static void ngx_rl_eval_claim_states(ngx_rl_claim_t *claim,
    ngx_rl_reply_t *const *element);
static int64_t ngx_rl_eval_state(const ngx_rl_bucket_t *bucket, int64_t n);


/* their names in the scripts, in the order of their numbers */

static const char  *ngx_rl_algorithm_names[] = {
    "bucket",
    "window",
    "gcra",
    "fixed",
    "counter"
};


/* the short script of each; a window log has none */

static const ngx_rl_script_e  ngx_rl_algorithm_scripts[] = {
    NGX_RL_SCRIPT_TOKEN_BUCKET,
    NGX_RL_SCRIPT_TAKE,
    NGX_RL_SCRIPT_GCRA,
    NGX_RL_SCRIPT_FIXED_WINDOW,
    NGX_RL_SCRIPT_SLIDING_WINDOW_COUNTER
};


int
ngx_rl_eval_add(ngx_rl_eval_t *eval, ngx_rl_call_t *call)
{
    if (eval->n == 0) {
        eval->nlimits = 0;
        eval->nnumbers = 0;

    } else if (eval->n == NGX_RL_EVAL_CALLS) {
        return 0;
    }

    if (ngx_rl_call_short(call) ? !ngx_rl_eval_fits(eval, call)
                                : !ngx_rl_eval_number(eval, call))
    {
        return 0;
    }

    eval->calls[eval->n++] = call;

    return 1;
}


/*
 * Short calls that only differ in key and times.  A key occurs once, because
 * all keys are read before any is written.
 */

static int
ngx_rl_eval_fits(const ngx_rl_eval_t *eval, const ngx_rl_call_t *call)
{
    size_t                  i;
    const ngx_rl_bucket_t  *x, *y;

    if (eval->n == 0) {
        return 1;
    }

    x = &eval->calls[0]->claims[0]->bucket;
    y = &call->claims[0]->bucket;

    if (!ngx_rl_call_short(eval->calls[0])
        || x->algorithm != y->algorithm || x->capacity != y->capacity
        || x->debt != y->debt || x->cost != y->cost
        || x->rate.num != y->rate.num || x->rate.den != y->rate.den
        || x->period.length != y->period.length
        || x->period.shift != y->period.shift
        || x->varies != y->varies)
    {
        return 0;
    }

    for (i = 0; i < eval->n; i++) {
        if (ngx_rl_claim_same(eval->calls[i]->claims[0], call->claims[0])) {
            return 0;
        }
    }

    return 1;
}


/*
 * Which limits belong to a call.  A limit that another call has, too, must be
 * the same in all respects, because the script reads each limit once.
 */

static int
ngx_rl_eval_number(ngx_rl_eval_t *eval, ngx_rl_call_t *call)
{
    size_t           i, k, limits, numbers;
    ngx_rl_claim_t  *claim;

    if (eval->n
        && (ngx_rl_call_short(eval->calls[0])
            || eval->calls[0]->preview != call->preview
            || eval->calls[0]->clock != call->clock))
    {
        return 0;
    }

    limits = eval->nlimits;
    numbers = eval->nnumbers;

    if (numbers + call->n > NGX_RL_EVAL_NUMBERS) {
        return 0;
    }

    for (i = 0; i < call->n; i++) {
        claim = call->claims[i];

        for (k = 0; k < eval->nlimits; k++) {
            if (ngx_rl_claim_same(eval->limits[k], claim)) {
                break;
            }
        }

        if (k == eval->nlimits) {
            k = limits;

            if (k == NGX_RL_EVAL_CALLS) {
                return 0;
            }

            eval->limits[limits++] = claim;

        } else if (eval->limits[k]->shadow != claim->shadow
                   || !ngx_rl_bucket_same(&eval->limits[k]->bucket,
                                          &claim->bucket))
        {
            return 0;
        }

        eval->numbers[numbers++] = (unsigned char) (k + 1);
    }

    eval->nlimits = limits;
    eval->nnumbers = numbers;

    return 1;
}


void
ngx_rl_eval_format(ngx_rl_eval_t *eval, ngx_rl_resp_t *resp, unsigned with_text)
{
    size_t  i;

    for (i = 0; i < eval->n; i++) {
        eval->elements[i] = ngx_rl_eval_states(eval->calls[i])
                            + (eval->calls[i]->times > 1);
    }

    if (ngx_rl_call_short(eval->calls[0])) {
        ngx_rl_eval_short(eval, resp, with_text);

    } else {
        ngx_rl_eval_take(eval, resp, with_text);
    }
}


static void
ngx_rl_eval_short(ngx_rl_eval_t *eval, ngx_rl_resp_t *resp, unsigned with_text)
{
    size_t                  i;
    uint64_t                several, now;
    const ngx_rl_bucket_t  *bucket;

    bucket = &eval->calls[0]->claims[0]->bucket;

    ngx_rl_scripts_begin(resp, ngx_rl_algorithm_scripts[bucket->algorithm],
                         eval->n, with_text);

    several = 0;

    for (i = 0; i < eval->n; i++) {
        ngx_rl_resp_word(resp, eval->calls[i]->claims[0]->key,
                         eval->calls[i]->claims[0]->len);
        several |= (eval->calls[i]->times > 1);
    }

    ngx_rl_eval_short_limit(resp, bucket);

    if (bucket->algorithm == NGX_RL_TOKEN_BUCKET) {
        now = ngx_rl_bucket_slow(bucket) ? eval->calls[0]->now : 0;

        if (now || several) {
            ngx_rl_resp_number(resp, now);
        }
    }

    for (i = 0; several && i < eval->n; i++) {
        ngx_rl_resp_number(resp, eval->calls[i]->times);

        /* if one reply has the number that pass, all have it */
        eval->elements[i] = 1 + ngx_rl_bucket_states(bucket);
    }
}


static void
ngx_rl_eval_short_limit(ngx_rl_resp_t *resp, const ngx_rl_bucket_t *bucket)
{
    uint64_t  tick;

    if (ngx_rl_algorithm_period(bucket->algorithm)) {
        ngx_rl_resp_number(resp, bucket->capacity);
        ngx_rl_resp_number(resp, bucket->cost);
        ngx_rl_resp_number(resp, bucket->period.length);
        ngx_rl_resp_number(resp, bucket->period.shift);

    } else if (bucket->algorithm == NGX_RL_GCRA) {
        tick = ngx_rl_gcra_tick(&bucket->rate);

        ngx_rl_resp_number(resp, ngx_rl_bucket_size(bucket) * tick);
        ngx_rl_resp_number(resp, bucket->cost * tick);
        ngx_rl_resp_number(resp, bucket->varies);

    } else {
        ngx_rl_resp_number(resp, ngx_rl_bucket_size(bucket));
        ngx_rl_resp_number(resp, bucket->rate.num);
        ngx_rl_resp_number(resp, bucket->rate.den);
        ngx_rl_resp_number(resp, bucket->cost);
        ngx_rl_resp_number(resp, ngx_rl_bucket_ttl(bucket));
    }
}


static void
ngx_rl_eval_take(ngx_rl_eval_t *eval, ngx_rl_resp_t *resp, unsigned with_text)
{
    size_t                i, k;
    ngx_rl_call_t        *call;
    const unsigned char  *number;

    call = eval->calls[0];

    ngx_rl_scripts_begin(resp, NGX_RL_SCRIPT_TAKE, eval->nlimits, with_text);

    for (i = 0; i < eval->nlimits; i++) {
        ngx_rl_resp_word(resp, eval->limits[i]->key, eval->limits[i]->len);
    }

    ngx_rl_resp_text(resp, call->preview ? "peek" : "take");
    ngx_rl_resp_text(resp, call->clock ? "nginx" : "redis");
    ngx_rl_resp_number(resp, call->now);
    ngx_rl_resp_word(resp, call->id, call->id_len);
    ngx_rl_resp_number(resp, call->times);

    for (i = 0; i < eval->nlimits; i++) {
        ngx_rl_eval_claim(resp, eval->limits[i]);
    }

    /* a single call has all limits */

    number = eval->numbers;

    for (i = 0; eval->n > 1 && i < eval->n; i++) {
        call = eval->calls[i];

        ngx_rl_resp_number(resp, call->times);
        ngx_rl_resp_number(resp, call->n);

        for (k = 0; k < call->n; k++) {
            ngx_rl_resp_number(resp, *number++);
        }
    }
}


static void
ngx_rl_eval_claim(ngx_rl_resp_t *resp, const ngx_rl_claim_t *claim)
{
    uint64_t                tick;
    const ngx_rl_bucket_t  *bucket;

    bucket = &claim->bucket;
    tick = (bucket->algorithm == NGX_RL_GCRA)
           ? ngx_rl_gcra_tick(&bucket->rate) : 1;

    ngx_rl_resp_text(resp, ngx_rl_algorithm_names[bucket->algorithm]);
    ngx_rl_resp_text(resp, claim->shadow ? "shadow" : "enforced");
    ngx_rl_resp_number(resp, ngx_rl_bucket_size(bucket) * tick);
    ngx_rl_resp_number(resp, bucket->cost * tick);

    if (bucket->algorithm == NGX_RL_SLIDING_WINDOW_LOG) {
        ngx_rl_resp_number(resp, bucket->window);
        ngx_rl_resp_number(resp, 0);
        ngx_rl_resp_number(resp, 0);

    } else if (ngx_rl_algorithm_period(bucket->algorithm)) {
        ngx_rl_resp_number(resp, bucket->period.length);
        ngx_rl_resp_number(resp, bucket->period.shift);
        ngx_rl_resp_number(resp, 0);

    } else {
        ngx_rl_resp_number(resp, bucket->rate.num);
        ngx_rl_resp_number(resp, bucket->rate.den);
        ngx_rl_resp_number(resp, bucket->algorithm == NGX_RL_GCRA
                           ? bucket->varies : bucket->step);
    }

    /* the script itself computes the time to live of some */

    ngx_rl_resp_number(resp, bucket->algorithm == NGX_RL_GCRA
                       ? 0 : ngx_rl_bucket_ttl(bucket));
}


void
ngx_rl_eval_refund(ngx_rl_refund_t *const *refunds, size_t n,
    ngx_rl_resp_t *resp, unsigned with_text)
{
    size_t                  i;
    uint64_t                amount;
    const ngx_rl_bucket_t  *bucket;

    ngx_rl_scripts_begin(resp, NGX_RL_SCRIPT_REFUND, n, with_text);

    for (i = 0; i < n; i++) {
        ngx_rl_resp_word(resp, refunds[i]->key, refunds[i]->len);
    }

    for (i = 0; i < n; i++) {
        bucket = &refunds[i]->bucket;
        amount = refunds[i]->tokens;

        if (bucket->algorithm == NGX_RL_GCRA) {
            amount *= ngx_rl_gcra_tick(&bucket->rate);
        }

        ngx_rl_resp_text(resp, ngx_rl_algorithm_names[bucket->algorithm]);
        ngx_rl_resp_number(resp, ngx_rl_bucket_size(bucket));
        ngx_rl_resp_number(resp, amount);

        if (ngx_rl_algorithm_period(bucket->algorithm)) {
            ngx_rl_resp_number(resp, refunds[i]->period);

        } else {
            ngx_rl_resp_word(resp, refunds[i]->id, refunds[i]->id_len);
        }
    }
}


ngx_rl_failure_e
ngx_rl_eval_reply(const ngx_rl_reply_t *reply, ngx_rl_eval_t *eval)
{
    size_t          i, n;
    ngx_rl_reply_t  single, *first, **element;

    if (reply->type == REDIS_REPLY_ERROR) {
        return ngx_rl_failure(reply->str, reply->len);
    }

    n = 0;

    for (i = 0; i < eval->n; i++) {
        n += eval->elements[i];
    }

    if (n == 1) {

        /* not an array */

        single = *reply;
        first = &single;
        element = &first;

    } else if (reply->type == REDIS_REPLY_ARRAY && reply->elements == n) {
        element = reply->element;

    } else {
        return NGX_RL_PROTOCOL;
    }

    for (i = 0; i < eval->n; i++) {

        if (eval->calls[i]
            && !ngx_rl_eval_answer(eval->calls[i], element, eval->elements[i]))
        {
            return NGX_RL_PROTOCOL;
        }

        element += eval->elements[i];
    }

    return NGX_RL_OK;
}


/* how many numbers the states of all claims of a call have */

static size_t
ngx_rl_eval_states(const ngx_rl_call_t *call)
{
    size_t  i, n;

    n = 0;

    for (i = 0; i < call->n; i++) {
        n += ngx_rl_bucket_states(&call->claims[i]->bucket);
    }

    return n;
}


/* fills in the states of one call; 0: the numbers do not fit the call */

static int
ngx_rl_eval_answer(ngx_rl_call_t *call,
    ngx_rl_reply_t *const *element, size_t n)
{
    size_t           i, counted;
    ngx_rl_reply_t  *error;

    call->failure = NGX_RL_OK;
    call->passed = 0;

    error = NULL;

    for (i = 0; i < n; i++) {

        if (element[i]->type == REDIS_REPLY_ERROR) {
            error = element[i];

        } else if (element[i]->type != REDIS_REPLY_INTEGER) {
            return 0;
        }
    }

    if (error) {
        /* one of its keys holds foreign data */

        call->failure = ngx_rl_failure(error->str, error->len);
        call->error = error;
        return 1;
    }

    /* the states may follow the number of requests that pass */

    counted = n - ngx_rl_eval_states(call);

    if (counted
        && (element[0]->integer < 0 || element[0]->integer > call->times))
    {
        return 0;
    }

    if (counted) {
        call->passed = (uint32_t) (*element++)->integer;
    }

    for (i = 0; i < call->n; i++) {
        ngx_rl_eval_claim_states(call->claims[i], element);
        element += ngx_rl_bucket_states(&call->claims[i]->bucket);
    }

    if (!counted) {
        call->passed = (call->claims[0]->state[0] >= 0);
    }

    return 1;
}


static void
ngx_rl_eval_claim_states(ngx_rl_claim_t *claim, ngx_rl_reply_t *const *element)
{
    size_t  i, n;

    n = ngx_rl_bucket_states(&claim->bucket);

    if (ngx_rl_algorithm_period(claim->bucket.algorithm)) {
        claim->period = (uint64_t) element[--n]->integer;
    }

    for (i = 0; i < n; i++) {
        claim->state[i] = ngx_rl_eval_state(&claim->bucket,
                                            element[i]->integer);
    }

    /* what does not fit into a fixed window fits when it ends */

    if (claim->bucket.algorithm == NGX_RL_FIXED_WINDOW) {
        claim->state[2] = claim->state[1];
    }
}


/* gcra replies in ticks, the module counts microtokens */

static int64_t
ngx_rl_eval_state(const ngx_rl_bucket_t *bucket, int64_t n)
{
    uint64_t       left;
    ngx_rl_rate_t  rate;

    if (bucket->algorithm != NGX_RL_GCRA) {
        return n;
    }

    left = (n < 0) ? (uint64_t) (-1 - n) : (uint64_t) n;

    /* a year of ticks times a million needs more than 64 bits */

    rate.num = NGX_RL_MICRO;
    rate.den = ngx_rl_gcra_tick(&bucket->rate);

    left = ngx_rl_rate_refill(&rate, left);
    left = (left < INT64_MAX) ? left : INT64_MAX;

    return (n < 0) ? -1 - (int64_t) left : (int64_t) left;
}
