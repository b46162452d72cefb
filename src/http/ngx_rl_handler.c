
/*
 * A request comes here once to ask and once to hear.
 *
 * The first visit evaluates the limits of the place and hands the claims to
 * the store; the request is parked by NGX_AGAIN.  The answer is kept in the
 * context and the request's own write event is posted, which runs the phases
 * again: the second visit only turns the decision into a verdict.  Any other
 * event may run the phases in between: not done means NGX_AGAIN, never a
 * second take.
 *
 * While parked, the client's connection is watched, so that one who leaves is
 * noticed; the cleanup of the request's pool cancels what is under way.
 *
 * A request is charged once.  Internal redirects wipe the contexts of modules
 * and run the phases again; the context is then found through the cleanup, and
 * the limits of the new location are not applied to a request that has been
 * decided before, as with limit_req.  Limits that were skipped for their empty
 * keys have decided nothing, and neither have previews and dry runs: a place
 * behind them whose limits are enforced decides.  What a dry run on the way has
 * taken of a limit is not taken again.  Where nothing enforced follows, the
 * first of these places speaks.
 *
 * One decision for all limits: the one with the longest wait of those that
 * reject, or else the one with the least left.  Limits in a dry run speak only
 * where there are no others.
 *
 * Limits that live in this machine's memory are decided at once; so is the
 * share of those that Redis gave no answer about, when all answers are there.
 *
 * To pass is NGX_DECLINED: NGX_OK would grant access under "satisfy any".
 */


#include "http/ngx_rl_handler.h"
#include "http/ngx_rl_body.h"
#include "core/ngx_rl_digest.h"
#include "pure/ngx_rl_text.h"
#include "memory/ngx_rl_local.h"


#define NGX_RL_LOG_KEY   64     /* bytes of a key, logged */
#define NGX_RL_LOG_HASH  16     /* digits of its digest */


static ngx_int_t ngx_rl_handler(ngx_http_request_t *r, ngx_uint_t phase);
static ngx_rl_ctx_t *ngx_rl_ctx_create(ngx_http_request_t *r);
static ngx_int_t ngx_rl_ask(ngx_http_request_t *r, ngx_rl_ctx_t *ctx);
static ngx_int_t ngx_rl_asked(ngx_rl_ctx_t *ctx, ngx_rl_http_claim_t *claims);
static ngx_int_t ngx_rl_known(ngx_rl_ctx_t *ctx, ngx_rl_http_claim_t *claims);
static ngx_int_t ngx_rl_park(ngx_http_request_t *r);
static void ngx_rl_answer(ngx_rl_take_t *take);
static void ngx_rl_decided(ngx_rl_ctx_t *ctx);
static void ngx_rl_learn(ngx_rl_ctx_t *ctx, ngx_rl_http_claim_t *claims);
static void ngx_rl_decide_here(ngx_rl_ctx_t *ctx);
static void ngx_rl_outcome(ngx_rl_ctx_t *ctx, ngx_rl_http_claim_t *claims);
static ngx_rl_http_claim_t *ngx_rl_blocker(
    ngx_rl_ctx_t *ctx, ngx_uint_t shadow);
static ngx_rl_http_claim_t *ngx_rl_tightest(
    ngx_rl_ctx_t *ctx, ngx_uint_t shadow);
static ngx_rl_http_claim_t *ngx_rl_failed(ngx_rl_ctx_t *ctx);
static ngx_uint_t ngx_rl_closed(ngx_rl_ctx_t *ctx, ngx_rl_http_claim_t *failed);
static ngx_int_t ngx_rl_verdict(ngx_http_request_t *r, ngx_rl_ctx_t *ctx);
static ngx_uint_t ngx_rl_counts(ngx_rl_ctx_t *ctx, ngx_rl_http_claim_t *claims);
static ngx_uint_t ngx_rl_final(ngx_rl_ctx_t *ctx);
static void ngx_rl_step_back(ngx_rl_ctx_t *ctx);
static void ngx_rl_count_request(ngx_rl_ctx_t *ctx);
static void ngx_rl_count_limits(ngx_rl_ctx_t *ctx);
static void ngx_rl_count_previews(ngx_rl_ctx_t *ctx);
static void ngx_rl_log(ngx_http_request_t *r,
    ngx_rl_ctx_t *ctx, ngx_rl_http_claim_t *claims);
static size_t ngx_rl_log_key(u_char *buf,
    ngx_rl_location_limit_t *ll, ngx_str_t *key);
static void ngx_rl_cleanup(void *data);


ngx_int_t
ngx_rl_access_handler(ngx_http_request_t *r)
{
    return ngx_rl_handler(r, NGX_RL_PHASE_ACCESS);
}


ngx_int_t
ngx_rl_precontent_handler(ngx_http_request_t *r)
{
    return ngx_rl_handler(r, NGX_RL_PHASE_PRECONTENT);
}


static ngx_int_t
ngx_rl_handler(ngx_http_request_t *r, ngx_uint_t phase)
{
    ngx_int_t           rc;
    ngx_rl_ctx_t       *ctx, *before;
    ngx_rl_loc_conf_t  *rlcf;

    if (r != r->main) {
        return NGX_DECLINED;
    }

    ctx = ngx_rl_ctx_get(r);

    if (ctx && ctx->conf) {

        if (!ctx->done) {
            return NGX_AGAIN;
        }

        if (!ctx->told) {

            /* the same two lines that end a delay of limit_req */

            if (ngx_handle_read_event(r->connection->read, 0) != NGX_OK) {
                return NGX_HTTP_INTERNAL_SERVER_ERROR;
            }

            r->read_event_handler = ngx_http_block_reading;

            return ngx_rl_verdict(r, ctx);
        }

        if (ctx->final) {
            return NGX_DECLINED;
        }
    }

    rlcf = ngx_http_get_module_loc_conf(r, ngx_http_ratelimit_module);

    if (rlcf->n == 0 || rlcf->phase != phase) {
        return NGX_DECLINED;
    }

    if (ctx == NULL) {
        ctx = ngx_rl_ctx_create(r);
        if (ctx == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

    } else {
        before = NULL;

        if (ctx->conf && ctx->decision.outcome != NGX_RL_SKIPPED) {

            if (ctx->conf->preview ? rlcf->preview : rlcf->enforced == 0) {
                return NGX_DECLINED;
            }

            before = ngx_palloc(r->pool, sizeof(ngx_rl_ctx_t));
            if (before == NULL) {
                return NGX_HTTP_INTERNAL_SERVER_ERROR;
            }

            *before = *ctx;
        }

        ngx_memzero(ctx, sizeof(ngx_rl_ctx_t));
        ctx->before = before;
    }

    ctx->request = r;
    ctx->conf = rlcf;
    ctx->start = ngx_rl_clock_us();

    rc = ngx_rl_ask(r, ctx);

    if (rc == NGX_ERROR) {
        /* nothing is under way: a place that error_page leads to may ask */
        ctx->conf = NULL;
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (rc == NGX_AGAIN) {
        return ngx_rl_park(r);
    }

    ngx_rl_decided(ctx);

    return ngx_rl_verdict(r, ctx);
}


ngx_rl_ctx_t *
ngx_rl_ctx_get(ngx_http_request_t *r)
{
    ngx_rl_ctx_t        *ctx;
    ngx_pool_cleanup_t  *cln;

    ctx = ngx_http_get_module_ctx(r, ngx_http_ratelimit_module);

    if (ctx == NULL && (r->internal || r->filter_finalize)) {

        /* module contexts were wiped, but the cleanup still has the address */

        for (cln = r->pool->cleanup; cln; cln = cln->next) {
            if (cln->handler == ngx_rl_cleanup) {
                ctx = cln->data;
                break;
            }
        }
    }

    return ctx;
}


static ngx_rl_ctx_t *
ngx_rl_ctx_create(ngx_http_request_t *r)
{
    ngx_rl_ctx_t        *ctx;
    ngx_pool_cleanup_t  *cln;

    cln = ngx_pool_cleanup_add(r->pool, sizeof(ngx_rl_ctx_t));
    if (cln == NULL) {
        return NULL;
    }

    ctx = cln->data;
    ngx_memzero(ctx, sizeof(ngx_rl_ctx_t));

    cln->handler = ngx_rl_cleanup;

    ngx_http_set_ctx(r, ctx, ngx_http_ratelimit_module);

    return ctx;
}


/* NGX_AGAIN: the store was asked; NGX_OK: all is known already */

static ngx_int_t
ngx_rl_ask(ngx_http_request_t *r, ngx_rl_ctx_t *ctx)
{
    ngx_int_t              rc;
    ngx_uint_t             i;
    ngx_rl_take_t         *take;
    ngx_rl_loc_conf_t     *conf;
    ngx_rl_main_conf_t    *rmcf;
    ngx_rl_http_claim_t   *claims;
    ngx_rl_server_conf_t  *peer;

    conf = ctx->conf;
    take = &ctx->take;
    rmcf = ngx_http_get_module_main_conf(r, ngx_http_ratelimit_module);

    take->pool = r->pool;
    take->timeout = conf->timeout;
    take->trust.deny = conf->deny_cache;
    take->preview = conf->preview;
    take->clock = conf->clock;
    take->closed = !conf->preview
                   && conf->on_error == NGX_RL_ON_ERROR_CLOSED;
    take->handler = ngx_rl_answer;
    take->data = ctx;

    claims = ngx_pcalloc(r->pool, conf->n * sizeof(ngx_rl_http_claim_t));
    if (claims == NULL) {
        return NGX_ERROR;
    }

    ctx->claims = claims;

    if (ngx_rl_take_begin(take) != NGX_OK) {
        return NGX_ERROR;
    }

    for (i = 0; i < conf->n; i++) {

        rc = ngx_rl_evaluate(r, conf, &conf->limits[i], &claims[i]);

        if (rc == NGX_ERROR) {
            return NGX_ERROR;
        }

        if (rc == NGX_DECLINED) {
            continue;
        }

        if (ctx->before && ngx_rl_asked(ctx, &claims[i]) == NGX_OK) {
            continue;
        }

        if (conf->shards == NULL) {
            claims[i].claimed = 1;
            continue;
        }

        peer = ngx_rl_shards_find(conf->shards, &claims[i].key);

        ngx_rl_local_hash(rmcf->zone, &claims[i].claim, peer->hash);

        if (ngx_rl_known(ctx, &claims[i]) == NGX_OK) {
            continue;
        }

        claims[i].claimed = 1;

        if (ngx_rl_take_add(take, &claims[i].claim, peer) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    /* a request that can't pass takes nothing from the other limits */

    if (take->calls.nelts == 0
        || (!conf->preview && ngx_rl_blocker(ctx, 0))
        || ngx_rl_closed(ctx, ngx_rl_failed(ctx)))
    {
        take->calls.nelts = 0;
        return NGX_OK;
    }

    return ngx_rl_take_send(take);
}


/*
 * NGX_OK: the limit has told, and taken, at a place on the way here that was in
 * a dry run; for another cost, or by other numbers, it is asked again
 */

static ngx_int_t
ngx_rl_asked(ngx_rl_ctx_t *ctx, ngx_rl_http_claim_t *claims)
{
    ngx_str_t            *key;
    ngx_uint_t            i;
    ngx_rl_ctx_t         *before;
    ngx_rl_claim_t       *claim, *told;
    ngx_rl_loc_conf_t    *here, *there;
    ngx_rl_http_claim_t  *other;

    key = &claims->key;
    claim = &claims->claim;
    here = ctx->conf;

    for (before = ctx->before; before; before = before->before) {
        there = before->conf;

        if (there->preview || !here->shards != !there->shards
            || (here->shards
                && ngx_rl_shards_find(here->shards, key)
                != ngx_rl_shards_find(there->shards, key)))
        {
            continue;
        }

        for (i = 0; i < there->n; i++) {
            other = &before->claims[i];
            told = &other->claim;

            if (told->decision.limit == 0
                || ngx_memcmp(&told->bucket, &claim->bucket,
                              sizeof(ngx_rl_bucket_t))
                != 0
                || told->len != claim->len
                || ngx_memcmp(told->key, claim->key, claim->len) != 0)
            {
                continue;
            }

            claim->decision = told->decision;
            claim->decision.outcome =
                (told->decision.outcome == NGX_RL_REJECTED_DRY_RUN)
                ? NGX_RL_REJECTED : NGX_RL_PASSED;

            claims->failure = other->failure;
            claims->asked = 1;

            return NGX_OK;
        }
    }

    return NGX_DECLINED;
}


/*
 * NGX_OK: no need to ask, as another preview has seen it a moment ago, or the
 * bucket is known to be empty, or tokens of it are held.  Leases are for limits
 * that stand alone: of several, all would have to be held.
 */

static ngx_int_t
ngx_rl_known(ngx_rl_ctx_t *ctx, ngx_rl_http_claim_t *claims)
{
    ngx_rl_take_t       *take;
    ngx_rl_claim_t      *claim;
    ngx_rl_loc_conf_t   *conf;
    ngx_rl_main_conf_t  *rmcf;

    conf = ctx->conf;
    take = &ctx->take;
    claim = &claims->claim;

    rmcf = ngx_http_get_module_main_conf(ctx->request,
                                         ngx_http_ratelimit_module);

    if (conf->preview) {

        if (conf->preview_cache == 0
            || ngx_rl_known_preview(rmcf->zone, claim, conf->preview_cache)
            != NGX_OK)
        {
            return NGX_DECLINED;
        }

        ngx_rl_decide(&claim->decision, &claim->bucket, claim->state);
        claim->decision.source = NGX_RL_SOURCE_CACHE;

        return NGX_OK;
    }

    if (conf->n == 1 && conf->lease.ttl
        && claim->bucket.algorithm != NGX_RL_SLIDING_WINDOW_LOG)
    {
        take->lease = conf->lease.percent
                      ? claim->bucket.capacity * conf->lease.percent / 100
                      : ngx_min(conf->lease.tokens, claim->bucket.capacity);

        /* of a small bucket a percentage may be nothing */

        take->trust.lease = take->lease ? conf->lease.ttl : 0;
    }

    if ((take->trust.deny == 0 && take->trust.lease == 0)
        || (conf->n > 1 && claim->shadow))
    {
        return NGX_DECLINED;
    }

    return ngx_rl_known_decide(rmcf->zone, claim, &take->trust, ctx->start);
}


static ngx_int_t
ngx_rl_park(ngx_http_request_t *r)
{
    ngx_event_t  *rev;

    rev = r->connection->read;

    if (rev->ready) {
        ngx_post_event(rev, &ngx_posted_events);

    } else if (ngx_handle_read_event(rev, 0) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->read_event_handler = ngx_http_test_reading;

    return NGX_AGAIN;
}


static void
ngx_rl_answer(ngx_rl_take_t *take)
{
    ngx_rl_ctx_t      *ctx;
    ngx_connection_t  *c;

    ctx = take->data;

    ngx_rl_decided(ctx);

    c = ctx->request->connection;

    ngx_post_event(c->write, &ngx_posted_events);
}


/* makes one decision of what is known about all limits */

static void
ngx_rl_decided(ngx_rl_ctx_t *ctx)
{
    ngx_uint_t            i;
    ngx_rl_decision_t    *d;
    ngx_rl_take_call_t   *call;
    ngx_rl_http_claim_t  *failed, *speaker;

    ctx->done = 1;
    ctx->time = ngx_time();
    ctx->latency = ctx->take.ended ? ctx->take.ended - ctx->start : 0;

    for (i = 0; i < ctx->conf->n; i++) {
        ngx_rl_learn(ctx, &ctx->claims[i]);
    }

    ngx_rl_decide_here(ctx);

    for (i = 0; i < ctx->conf->n; i++) {
        ngx_rl_outcome(ctx, &ctx->claims[i]);
    }

    d = &ctx->decision;

    failed = ngx_rl_failed(ctx);
    speaker = ngx_rl_blocker(ctx, 0);

    if (speaker == NULL) {
        speaker = ngx_rl_tightest(ctx, 0);
    }

    /* nothing is known of those that are enforced: no numbers of others */

    if (speaker == NULL && (failed == NULL || failed->claim.shadow)) {
        speaker = ngx_rl_blocker(ctx, 1);

        if (speaker == NULL) {
            speaker = ngx_rl_tightest(ctx, 1);
        }
    }

    if (speaker) {
        *d = speaker->claim.decision;
    }

    if (failed && d->outcome != NGX_RL_REJECTED) {

        if (ngx_rl_closed(ctx, failed)) {
            ngx_rl_take_refund(&ctx->take);

            ngx_memzero(d, sizeof(ngx_rl_decision_t));
            failed->claim.decision.source = NGX_RL_SOURCE_CLOSED;
            d->retry_after = 1;

        } else if (d->outcome != NGX_RL_REJECTED_DRY_RUN) {
            d->retry_after = 0;
        }

        if (d->outcome != NGX_RL_REJECTED_DRY_RUN) {
            d->outcome = NGX_RL_DEGRADED;
        }

        d->source = failed->claim.decision.source;
        d->failure = failed->failure;

        if (speaker == NULL || d->limit == 0) {
            speaker = failed;
        }
    }

    ctx->speaker = speaker ? speaker : &ctx->claims[0];

    call = ngx_rl_take_find(&ctx->take, &ctx->speaker->claim);
    ctx->peer = call ? call->server->conf : NULL;
}


/* what came of one claim that was sent */

static void
ngx_rl_learn(ngx_rl_ctx_t *ctx, ngx_rl_http_claim_t *claims)
{
    ngx_rl_take_call_t  *call;
    ngx_rl_main_conf_t  *rmcf;

    call = ngx_rl_take_find(&ctx->take, &claims->claim);

    if (call == NULL) {
        return;
    }

    claims->failure = call->failure;
    claims->claimed = (call->failure != NGX_RL_OK);

    if (!claims->claimed && ctx->conf->preview && ctx->conf->preview_cache) {
        rmcf = ngx_http_get_module_main_conf(ctx->request,
                                             ngx_http_ratelimit_module);

        ngx_rl_known_preview_save(rmcf->zone, &claims->claim,
                                  ctx->conf->preview_cache);
    }
}


/*
 * Claims that nobody has answered: all, where there are no shards, and those
 * for which a shard had no answer.  Who has been denied already takes nothing,
 * and who is denied here gives back what he took elsewhere.
 */

static void
ngx_rl_decide_here(ngx_rl_ctx_t *ctx)
{
    ngx_uint_t            i, n;
    ngx_rl_claim_t       *claims[NGX_RL_CLAIMS];
    ngx_rl_loc_conf_t    *conf;
    ngx_rl_main_conf_t   *rmcf;
    ngx_rl_http_claim_t  *applied;

    conf = ctx->conf;
    applied = ctx->claims;

    if ((conf->shards && conf->on_error != NGX_RL_ON_ERROR_LOCAL)
        || (!conf->preview && ngx_rl_blocker(ctx, 0))
        || ngx_rl_closed(ctx, ngx_rl_failed(ctx)))
    {
        return;
    }

    n = 0;

    for (i = 0; i < conf->n; i++) {
        if (applied[i].claimed) {
            claims[n++] = &applied[i].claim;
        }
    }

    if (n == 0) {
        return;
    }

    rmcf = ngx_http_get_module_main_conf(ctx->request,
                                         ngx_http_ratelimit_module);

    if (ngx_rl_local_take(rmcf->zone, claims, n,
                          conf->shards ? &conf->local_share : NULL,
                          conf->preview, ctx->start)
        != NGX_OK)
    {
        for (i = 0; i < conf->n; i++) {
            if (applied[i].claimed && applied[i].failure == NGX_RL_OK) {
                applied[i].failure = NGX_RL_OVERLOAD;
            }
        }

        return;
    }

    if (!conf->preview && ngx_rl_blocker(ctx, 0)) {
        ngx_rl_take_refund(&ctx->take);
    }
}


/* what that means for the request */

static void
ngx_rl_outcome(ngx_rl_ctx_t *ctx, ngx_rl_http_claim_t *claims)
{
    ngx_rl_decision_t  *d;

    d = &claims->claim.decision;

    if (ctx->conf->preview && d->outcome == NGX_RL_REJECTED) {
        d->outcome = NGX_RL_PASSED;
        d->retry_after = 0;
    }

    if (d->outcome == NGX_RL_REJECTED && claims->claim.shadow) {
        d->outcome = NGX_RL_REJECTED_DRY_RUN;
    }

    if (claims->failure == NGX_RL_OK) {
        return;
    }

    d->failure = claims->failure;

    if (d->source == NGX_RL_SOURCE_NONE) {
        d->source = NGX_RL_SOURCE_OPEN;
        d->outcome = NGX_RL_DEGRADED;

    } else if (d->outcome == NGX_RL_PASSED) {
        d->outcome = NGX_RL_DEGRADED;
    }
}


/* of the limits that reject, or would, the one with the longest wait */

static ngx_rl_http_claim_t *
ngx_rl_blocker(ngx_rl_ctx_t *ctx, ngx_uint_t shadow)
{
    ngx_uint_t            i;
    ngx_rl_decision_t    *d;
    ngx_rl_http_claim_t  *blocker;

    blocker = NULL;

    for (i = 0; i < ctx->conf->n; i++) {
        d = &ctx->claims[i].claim.decision;

        if (ctx->claims[i].claim.shadow != shadow
            || (d->outcome != NGX_RL_REJECTED
                && d->outcome != NGX_RL_REJECTED_DRY_RUN))
        {
            continue;
        }

        if (blocker == NULL
            || d->retry_after > blocker->claim.decision.retry_after)
        {
            blocker = &ctx->claims[i];
        }
    }

    return blocker;
}


/* of the limits that were decided, the one with the least left */

static ngx_rl_http_claim_t *
ngx_rl_tightest(ngx_rl_ctx_t *ctx, ngx_uint_t shadow)
{
    ngx_uint_t            i;
    ngx_rl_decision_t    *d;
    ngx_rl_http_claim_t  *tightest;

    tightest = NULL;

    for (i = 0; i < ctx->conf->n; i++) {
        d = &ctx->claims[i].claim.decision;

        if (d->limit == 0 || ctx->claims[i].claim.shadow != shadow) {
            continue;
        }

        if (tightest == NULL || ngx_rl_tighter(d, &tightest->claim.decision)) {
            tightest = &ctx->claims[i];
        }
    }

    return tightest;
}


/*
 * A limit that the shard said nothing about, and if possible one that was not
 * decided here either; one in a dry run does not matter beside those that are
 * enforced
 */

static ngx_rl_http_claim_t *
ngx_rl_failed(ngx_rl_ctx_t *ctx)
{
    ngx_uint_t            i, shadow;
    ngx_rl_http_claim_t  *claims, *failed;

    claims = ctx->claims;
    failed = NULL;
    shadow = 1;

    for (i = 0; i < ctx->conf->n; i++) {
        if (claims[i].key.len) {
            shadow &= claims[i].claim.shadow;
        }
    }

    for (i = 0; i < ctx->conf->n; i++) {

        if (claims[i].failure == NGX_RL_OK || claims[i].claim.shadow != shadow)
        {
            continue;
        }

        if (failed == NULL
            || (claims[i].claim.decision.source
                != NGX_RL_SOURCE_LOCAL
                && failed->claim.decision.source
                == NGX_RL_SOURCE_LOCAL))
        {
            failed = &claims[i];
        }
    }

    return failed;
}


/* whether such a failure ends the request */

static ngx_uint_t
ngx_rl_closed(ngx_rl_ctx_t *ctx, ngx_rl_http_claim_t *failed)
{
    return failed && !failed->claim.shadow && !ctx->conf->preview
           && ctx->conf->on_error == NGX_RL_ON_ERROR_CLOSED;
}


static ngx_int_t
ngx_rl_verdict(ngx_http_request_t *r, ngx_rl_ctx_t *ctx)
{
    ngx_uint_t  i;

    ctx->told = 1;
    ctx->final = ngx_rl_final(ctx);

    /* a request that may still meet other limits is counted at its end */

    if (ctx->final) {
        ngx_rl_count_request(ctx);
    }

    if (ctx->decision.outcome != NGX_RL_SKIPPED) {
        ngx_rl_count_limits(ctx);
    }

    for (i = 0; i < ctx->conf->n; i++) {
        if (ngx_rl_counts(ctx, &ctx->claims[i])) {
            ngx_rl_log(r, ctx, &ctx->claims[i]);
        }
    }

    if (ctx->decision.outcome == NGX_RL_REJECTED) {

        if (ctx->conf->body == NGX_RL_BODY_DEFAULT) {
            return ctx->conf->status;
        }

        return ngx_rl_body_send(r, ctx);
    }

    if (ctx->decision.source == NGX_RL_SOURCE_CLOSED) {
        return ctx->conf->error_status;
    }

    if (ctx->before && !ctx->final) {
        ngx_rl_step_back(ctx);
    }

    return NGX_DECLINED;
}


/* whether a limit that is enforced had a say */

static ngx_uint_t
ngx_rl_final(ngx_rl_ctx_t *ctx)
{
    ngx_uint_t  i;

    if (ctx->conf->preview) {
        return 0;
    }

    for (i = 0; i < ctx->conf->n; i++) {
        if (ctx->claims[i].key.len && !ctx->claims[i].claim.shadow) {
            return 1;
        }
    }

    return 0;
}


/* the place before speaks; what was asked here is remembered behind it */

static void
ngx_rl_step_back(ngx_rl_ctx_t *ctx)
{
    ngx_rl_ctx_t  here, *before;

    here = *ctx;
    before = ctx->before;

    *ctx = *before;
    here.before = before->before;
    *before = here;

    ctx->before = before;
}


/*
 * Whether a limit decided anything: not if it would have let pass a request
 * that another one rejected, or was not asked for that reason
 */

static ngx_uint_t
ngx_rl_counts(ngx_rl_ctx_t *ctx, ngx_rl_http_claim_t *claims)
{
    ngx_rl_decision_t  *d;

    d = &claims->claim.decision;

    if (claims->asked && d->outcome != NGX_RL_REJECTED) {
        return 0;
    }

    switch (d->outcome) {

    case NGX_RL_SKIPPED:
        return claims->key.len == 0;

    case NGX_RL_PASSED:
    case NGX_RL_DEGRADED:
        return d->source == NGX_RL_SOURCE_CLOSED
               || (ctx->decision.outcome != NGX_RL_REJECTED
                   && ctx->decision.source
                   != NGX_RL_SOURCE_CLOSED);

    default:
        return 1;
    }
}


/* a look at a limit is no request to it */

static void
ngx_rl_count_request(ngx_rl_ctx_t *ctx)
{
    ngx_rl_decision_t   *d;
    ngx_rl_main_conf_t  *rmcf;

    if (ctx->conf->preview) {
        return;
    }

    rmcf = ngx_http_get_module_main_conf(ctx->request,
                                         ngx_http_ratelimit_module);
    d = &ctx->decision;

    ngx_rl_stats_decision(rmcf->stats->decisions, d);
    ngx_rl_stats_latency(&rmcf->stats->latency, ctx->latency);

    if (d->failure != NGX_RL_OK) {
        ngx_rl_count(rmcf->stats->fallback[d->source]
                     [ngx_rl_failure_reason(d->failure)]);
    }
}


static void
ngx_rl_count_limits(ngx_rl_ctx_t *ctx)
{
    ngx_uint_t            i;
    ngx_rl_http_claim_t  *claims;

    if (ctx->conf->preview) {
        ngx_rl_count_previews(ctx);
        return;
    }

    for (i = 0; i < ctx->conf->n; i++) {
        claims = &ctx->claims[i];

        if (ngx_rl_counts(ctx, claims)) {
            ngx_rl_stats_decision(claims->limit->stats->requests,
                                  &claims->claim.decision);
            ngx_rl_stats_taken(claims->limit->stats, &claims->claim.decision,
                               claims->claim.bucket.cost);
        }
    }
}


static void
ngx_rl_count_previews(ngx_rl_ctx_t *ctx)
{
    ngx_uint_t            i;
    ngx_rl_source_e       source;
    ngx_rl_http_claim_t  *claims;

    claims = ctx->claims;

    for (i = 0; i < ctx->conf->n; i++) {
        source = claims[i].claim.decision.source;

        if (source != NGX_RL_SOURCE_NONE) {
            ngx_rl_count(claims[i].limit->stats->previews[source]);
        }
    }
}


static void
ngx_rl_log(ngx_http_request_t *r, ngx_rl_ctx_t *ctx,
    ngx_rl_http_claim_t *claims)
{
    size_t                          len;
    u_char                          key[sizeof(", key: \"\"")
                                        + ngx_rl_escape_size(NGX_RL_LOG_KEY)];
    ngx_uint_t                      level;
    ngx_rl_decision_t  *d;

    d = &claims->claim.decision;

    level = (d->outcome == NGX_RL_REJECTED
             || d->outcome == NGX_RL_REJECTED_DRY_RUN)
            ? ctx->conf->log_level : NGX_LOG_INFO;

    if (r->connection->log->log_level < level) {
        return;
    }

    len = ngx_rl_log_key(key, &ctx->conf->limits[claims
                         - ctx->claims], &claims->key);

    switch (d->outcome) {

    case NGX_RL_SKIPPED:
        ngx_log_error(level, r->connection->log, 0,
                      "ratelimit SKIPPED, limit: \"%V\", the key is empty",
                      &claims->limit->name);
        break;

    case NGX_RL_DEGRADED:
        ngx_log_error(level, r->connection->log, 0,
                      "ratelimit DEGRADED, limit: \"%V\"%*s, "
                      "source: %s, failure: %s", &claims->limit->name, len, key,
                      ngx_rl_source_name(d->source),
                      ngx_rl_failure_name(d->failure));
        break;

    default:
        ngx_log_error(level, r->connection->log, 0,
                      "ratelimit %s, limit: \"%V\"%*s, cost: %uL, "
                      "remaining: %uL of %uL, retry after: %L, source: %s%s%s",
                      ngx_rl_outcome_name(d->outcome),
                      &claims->limit->name, len, key,
                      claims->claim.bucket.cost, d->remaining, d->limit,
                      /* -1: never */
                      (int64_t) d->retry_after,
                      ngx_rl_source_name(d->source),
                      d->failure ? ", failure: " : "",
                      d->failure ? ngx_rl_failure_name(d->failure)
                                 : "");
        break;
    }
}


/* the key as the log may show it, or nothing */

static size_t
ngx_rl_log_key(u_char *buf, ngx_rl_location_limit_t *ll, ngx_str_t *key)
{
    u_char    *p;
    u_char     digest[NGX_RL_DIGEST_LEN];
    ngx_str_t  text;

    text = *key;
    p = ngx_cpymem(buf, ", key: \"", sizeof(", key: \"") - 1);

    switch (ll->log_key) {

    case NGX_RL_KEY_OFF:
        return 0;

    case NGX_RL_KEY_HASH:

        /* of a key that is a digest already, its beginning */

        if (!ngx_rl_digested(key)) {
            ngx_rl_digest(digest, key);
            text.data = digest;
        }

        text.len = sizeof(NGX_RL_DIGEST) - 1
                   + NGX_RL_LOG_HASH;
        break;

    case NGX_RL_KEY_ADDRESS:

        if (key->len == 4) {
            p += ngx_inet_ntop(AF_INET, key->data, p, NGX_SOCKADDR_STRLEN);
            text.len = 0;

#if (NGX_HAVE_INET6)
        } else if (key->len == 16) {
            p += ngx_inet_ntop(AF_INET6, key->data, p, NGX_SOCKADDR_STRLEN);
            text.len = 0;
#endif
        }

        break;

    default: /* NGX_RL_KEY_PLAIN */
        break;
    }

    p += ngx_rl_escape(p, text.data, ngx_min(text.len, NGX_RL_LOG_KEY));
    *p++ = '"';

    return p - buf;
}


static void
ngx_rl_cleanup(void *data)
{
    ngx_rl_ctx_t  *ctx = data;

    ngx_rl_take_cancel(&ctx->take);

    if (!ctx->told || ctx->final) {
        return;
    }

    if (ctx->decision.outcome == NGX_RL_SKIPPED) {
        ngx_rl_count_limits(ctx);
    }

    while (ctx->conf->preview && ctx->before) {
        ctx = ctx->before;
    }

    ngx_rl_count_request(ctx);
}
