
/*
 * A request runs through this handler twice: the first visit asks, the second
 * returns the verdict.
 *
 * The first visit evaluates the limits of the location and passes the claims
 * to the store.  NGX_AGAIN then parks the request.  When the decision is made,
 * it is stored in the context, and the request's own write event is posted.
 * That event runs the phases again, and the second visit returns the verdict.
 * Other events may run the phases in between.  A request that is not decided
 * yet gets NGX_AGAIN again, and never asks a second time.
 *
 * While a request is parked, its client connection is watched, so that nginx
 * notices when the client leaves.  The cleanup of the request's pool then
 * cancels the calls under way.
 *
 * A request is charged once.  Internal redirects run the phases again, but a
 * request that is already decided does not meet the limits of the new
 * location; limit_req behaves in the same way.  Skipped limits (empty keys),
 * previews and dry runs do not decide.  After them, a location with enforced
 * limits still decides.  Tokens that a dry run took from a limit are not taken
 * again.  If no enforced limit follows, the first of these locations is shown.
 *
 * Limits in this machine's memory are decided at once.
 *
 * Passing is NGX_DECLINED.  NGX_OK would grant access under "satisfy any".
 */


#include "http/ngx_rl_handler.h"
#include "http/ngx_rl_ctx.h"
#include "http/ngx_rl_verdict.h"
#include "core/ngx_rl_clock.h"
#include "memory/ngx_rl_known.h"


static ngx_int_t ngx_rl_handler(ngx_http_request_t *r, ngx_uint_t phase);
static ngx_int_t ngx_rl_handler_ask(ngx_rl_ctx_t *ctx);
static ngx_int_t ngx_rl_handler_claim(ngx_rl_ctx_t *ctx,
    ngx_rl_http_claim_t *hc);
static ngx_int_t ngx_rl_handler_before(ngx_rl_ctx_t *ctx,
    ngx_rl_http_claim_t *hc);
static ngx_int_t ngx_rl_handler_known(ngx_rl_ctx_t *ctx, ngx_rl_claim_t *claim);
static void ngx_rl_handler_answer(ngx_rl_take_t *take);
static void ngx_rl_handler_cleanup(ngx_rl_ctx_t *ctx);


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
    ngx_rl_ctx_t       *ctx;
    ngx_rl_loc_conf_t  *rlcf;

    if (r != r->main) {
        return NGX_DECLINED;
    }

    ctx = ngx_rl_ctx_get(r);

    if (ctx && ctx->conf) {

        if (!ctx->done) {
            return NGX_AGAIN;
        }

        if (!ctx->returned) {

            /* limit_req ends a delay with the same two lines */

            if (ngx_handle_read_event(r->connection->read, 0) != NGX_OK) {
                return NGX_HTTP_INTERNAL_SERVER_ERROR;
            }

            r->read_event_handler = ngx_http_block_reading;

            return ngx_rl_verdict_return(r, ctx);
        }

        if (ctx->final) {
            return NGX_DECLINED;
        }
    }

    rlcf = ngx_http_get_module_loc_conf(r, ngx_http_ratelimit_module);

    if (rlcf->n == 0 || rlcf->phase != phase) {
        return NGX_DECLINED;
    }

    /* after a dry run or a preview, only enforced limits are applied */

    if (ctx && ctx->conf && ctx->decision.outcome != NGX_RL_SKIPPED
        && (ctx->conf->preview ? rlcf->preview : rlcf->enforced == 0))
    {
        return NGX_DECLINED;
    }

    ctx = ngx_rl_ctx_begin(r, ctx, rlcf, ngx_rl_handler_cleanup);
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ctx->start = ngx_rl_clock_us();

    rc = ngx_rl_handler_ask(ctx);

    if (rc == NGX_ERROR) {
        /* nothing is under way, so a location of error_page may ask */
        ctx->conf = NULL;
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (rc == NGX_AGAIN) {
        return ngx_rl_handler_park(r);
    }

    ngx_rl_verdict_reach(ctx);

    return ngx_rl_verdict_return(r, ctx);
}


/* NGX_AGAIN: the store was asked; NGX_OK: everything is known already */

static ngx_int_t
ngx_rl_handler_ask(ngx_rl_ctx_t *ctx)
{
    ngx_uint_t          i;
    ngx_rl_take_t      *take;
    ngx_rl_loc_conf_t  *conf;

    conf = ctx->conf;
    take = &ctx->take;

    take->pool = ctx->request->pool;
    take->timeout = conf->timeout;
    take->ttl.deny = conf->deny_cache;
    take->preview = conf->preview;
    take->clock = conf->clock;
    take->closed = ctx->policy.closed;
    take->handler = ngx_rl_handler_answer;
    take->data = ctx;

    if (ngx_rl_take_begin(take) != NGX_OK) {
        return NGX_ERROR;
    }

    for (i = 0; i < conf->n; i++) {
        if (ngx_rl_handler_claim(ctx, &ctx->claims[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    /* a request that cannot pass takes nothing from its other limits */

    if (take->calls.nelts == 0
        || ngx_rl_policy_ends(&ctx->policy, ctx->list, conf->n))
    {
        take->calls.nelts = 0;
        return NGX_OK;
    }

    return ngx_rl_take_send(take);
}


/*
 * Decides a claim that needs no answer.  Any other claim is added to the take
 * if its limit lives on a server.  Returns NGX_ERROR if there is no memory.
 */

static ngx_int_t
ngx_rl_handler_claim(ngx_rl_ctx_t *ctx, ngx_rl_http_claim_t *hc)
{
    ngx_int_t              rc;
    ngx_rl_loc_conf_t     *conf;
    ngx_rl_server_conf_t  *server;

    conf = ctx->conf;

    rc = ngx_rl_evaluate(ctx->request, conf, &conf->limits[hc - ctx->claims],
                         hc);

    if (rc != NGX_OK) {
        return (rc == NGX_DECLINED) ? NGX_OK : NGX_ERROR;
    }

    if (ngx_rl_handler_before(ctx, hc) == NGX_OK) {
        return NGX_OK;
    }

    if (conf->shards == NULL) {
        hc->unanswered = 1;
        return NGX_OK;
    }

    server = ngx_rl_shards_find(conf->shards, &hc->key);

    ngx_rl_known_hash(ctx->main->zone, &hc->claim, server->hash);

    if (ngx_rl_handler_known(ctx, &hc->claim) == NGX_OK) {
        return NGX_OK;
    }

    hc->unanswered = 1;

    return ngx_rl_take_add(&ctx->take, &hc->claim, server);
}


/*
 * NGX_OK: an earlier location in a dry run asked this limit and took from it.
 * If the cost or the parameters differ, the limit is asked again.
 */

static ngx_int_t
ngx_rl_handler_before(ngx_rl_ctx_t *ctx, ngx_rl_http_claim_t *hc)
{
    ngx_uint_t          i;
    ngx_rl_ctx_t       *before;
    ngx_rl_claim_t     *claim, *earlier;
    ngx_rl_loc_conf_t  *here, *there;

    claim = &hc->claim;
    here = ctx->conf;

    for (before = ctx->before; before; before = before->before) {
        there = before->conf;

        if (there->preview || !here->shards != !there->shards
            || (here->shards
                && ngx_rl_shards_find(here->shards, &hc->key)
                != ngx_rl_shards_find(there->shards, &hc->key)))
        {
            continue;
        }

        for (i = 0; i < there->n; i++) {
            earlier = &before->claims[i].claim;

            if (earlier->decision.limit == 0
                || !ngx_rl_bucket_same(&earlier->bucket, &claim->bucket)
                || earlier->len != claim->len
                || ngx_memcmp(earlier->key, claim->key, claim->len) != 0)
            {
                continue;
            }

            claim->decision = earlier->decision;
            claim->decision.outcome =
                (earlier->decision.outcome == NGX_RL_REJECTED_DRY_RUN)
                ? NGX_RL_REJECTED : NGX_RL_PASSED;

            hc->asked = 1;

            return NGX_OK;
        }
    }

    return NGX_DECLINED;
}


/*
 * NGX_OK: Redis need not be asked.  Another preview has just seen the bucket,
 * or the bucket is known to be empty, or a lease holds tokens of it.  Leases
 * only serve requests with a single limit.  Advice needs each request in the
 * bucket.
 */

static ngx_int_t
ngx_rl_handler_known(ngx_rl_ctx_t *ctx, ngx_rl_claim_t *claim)
{
    ngx_rl_take_t      *take;
    ngx_rl_zone_t      *zone;
    ngx_rl_loc_conf_t  *conf;

    conf = ctx->conf;
    take = &ctx->take;
    zone = ctx->main->zone;

    if (conf->preview) {

        if (conf->preview_cache == 0
            || ngx_rl_known_preview(zone, claim, conf->preview_cache)
            != NGX_OK)
        {
            return NGX_DECLINED;
        }

        ngx_rl_decide(&claim->decision, &claim->bucket, claim->state);
        claim->decision.source = NGX_RL_SOURCE_CACHE;

        return NGX_OK;
    }

    if (claim->bucket.debt) {
        return NGX_DECLINED;
    }

    if (conf->n == 1 && conf->lease.ttl
        && !ngx_rl_algorithm_window(claim->bucket.algorithm))
    {
        take->lease = conf->lease.percent
                      ? claim->bucket.capacity * conf->lease.percent / 100
                      : ngx_min(conf->lease.tokens, claim->bucket.capacity);

        /* a percentage of a small bucket may round to zero */

        take->ttl.lease = take->lease ? conf->lease.ttl : 0;
    }

    if ((take->ttl.deny == 0 && take->ttl.lease == 0)
        || (conf->n > 1 && claim->shadow))
    {
        return NGX_DECLINED;
    }

    return ngx_rl_known_decide(zone, claim, &take->ttl, ctx->start);
}


ngx_int_t
ngx_rl_handler_park(ngx_http_request_t *r)
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
ngx_rl_handler_answer(ngx_rl_take_t *take)
{
    ngx_rl_ctx_t  *ctx = take->data;

    ngx_rl_verdict_reach(ctx);

    ngx_post_event(ctx->request->connection->write, &ngx_posted_events);
}


/* the request ends; its client may have left while it was parked */

static void
ngx_rl_handler_cleanup(ngx_rl_ctx_t *ctx)
{
    ngx_rl_take_cancel(&ctx->take);
    ngx_rl_verdict_end(ctx);
}
