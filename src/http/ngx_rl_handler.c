
/*
 * A request comes here twice: first to ask, then to learn what was decided.
 *
 * The first visit evaluates the limits of the location and hands the claims to
 * the store; the request is parked by NGX_AGAIN.  The decision is kept in the
 * context and the request's own write event is posted, which runs the phases
 * again: the second visit only returns the verdict.  Any other event may run
 * the phases in between: not done means NGX_AGAIN, never a second take.
 *
 * While the request is parked, its client's connection is watched, so that a
 * client that leaves is noticed; the cleanup of the request's pool cancels what
 * is under way.
 *
 * A request is charged once.  Internal redirects run the phases again; the
 * limits of the new location are not applied to a request that has been decided
 * before, as with limit_req.  Limits that were skipped for their empty keys
 * have decided nothing, and neither have previews and dry runs: a location
 * behind them whose limits are enforced decides.  What a dry run on the way has
 * taken of a limit is not taken again.  Where no enforced limit follows, the
 * first of these locations is shown.
 *
 * Limits that live in this machine's memory are decided at once.
 *
 * To pass is NGX_DECLINED: NGX_OK would grant access under "satisfy any".
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
static ngx_int_t ngx_rl_handler_park(ngx_http_request_t *r);
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

            /* the same two lines that end a delay of limit_req */

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

    /* a dry run or a preview gives way to enforced limits alone */

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
        /* nothing is under way: a location of error_page may ask */
        ctx->conf = NULL;
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (rc == NGX_AGAIN) {
        return ngx_rl_handler_park(r);
    }

    ngx_rl_verdict_reach(ctx);

    return ngx_rl_verdict_return(r, ctx);
}


/* NGX_AGAIN: the store was asked; NGX_OK: all is known already */

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

    /* a request that can't pass takes nothing from the other limits */

    if (take->calls.nelts == 0
        || ngx_rl_policy_ends(&ctx->policy, ctx->list, conf->n))
    {
        take->calls.nelts = 0;
        return NGX_OK;
    }

    return ngx_rl_take_send(take);
}


/*
 * Decides a claim that needs no answer, and adds any other to the take if its
 * limit lives on a server.  NGX_ERROR: no memory
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
 * NGX_OK: a location before this one asked the limit, and took from it, in a
 * dry run.  For another cost, or by other numbers, the limit is asked again.
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
 * NGX_OK: no need to ask, as another preview has seen it a moment ago, or the
 * bucket is known to be empty, or tokens of it are held.  Leases are for limits
 * that stand alone: of several, all would have to be held.
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

    if (conf->n == 1 && conf->lease.ttl
        && claim->bucket.algorithm != NGX_RL_SLIDING_WINDOW_LOG)
    {
        take->lease = conf->lease.percent
                      ? claim->bucket.capacity * conf->lease.percent / 100
                      : ngx_min(conf->lease.tokens, claim->bucket.capacity);

        /* a percentage of a small bucket may be nothing */

        take->ttl.lease = take->lease ? conf->lease.ttl : 0;
    }

    if ((take->ttl.deny == 0 && take->ttl.lease == 0)
        || (conf->n > 1 && claim->shadow))
    {
        return NGX_DECLINED;
    }

    return ngx_rl_known_decide(zone, claim, &take->ttl, ctx->start);
}


static ngx_int_t
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
