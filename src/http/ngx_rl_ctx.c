
/*
 * A request has one context.  It stays at the same address for the whole life
 * of the request, as the data of a pool cleanup.  An internal redirect clears
 * the contexts of all modules, but it keeps the cleanups, so the context is
 * found again through them.
 */


#include "http/ngx_rl_ctx.h"


static void ngx_rl_ctx_cleanup(void *data);


ngx_rl_ctx_t *
ngx_rl_ctx_get(ngx_http_request_t *r)
{
    ngx_rl_ctx_t        *ctx;
    ngx_pool_cleanup_t  *cln;

    ctx = ngx_http_get_module_ctx(r, ngx_http_ratelimit_module);

    if (ctx == NULL && (r->internal || r->filter_finalize)) {
        for (cln = r->pool->cleanup; cln; cln = cln->next) {
            if (cln->handler == ngx_rl_ctx_cleanup) {
                ctx = cln->data;
                break;
            }
        }
    }

    return ctx;
}


ngx_rl_ctx_t *
ngx_rl_ctx_begin(ngx_http_request_t *r, ngx_rl_ctx_t *ctx,
    ngx_rl_loc_conf_t *conf, ngx_rl_ctx_pt cleanup)
{
    ngx_uint_t            i;
    ngx_rl_ctx_t         *before;
    ngx_rl_claim_t      **list;
    ngx_pool_cleanup_t   *cln;
    ngx_rl_http_claim_t  *claims;

    claims = ngx_pcalloc(r->pool, conf->n * sizeof(ngx_rl_http_claim_t));
    list = ngx_palloc(r->pool, conf->n * sizeof(ngx_rl_claim_t *));

    if (claims == NULL || list == NULL) {
        return NULL;
    }

    for (i = 0; i < conf->n; i++) {
        list[i] = &claims[i].claim;
    }

    before = NULL;

    if (ctx == NULL) {
        cln = ngx_pool_cleanup_add(r->pool, sizeof(ngx_rl_ctx_t));
        if (cln == NULL) {
            return NULL;
        }

        ctx = cln->data;
        cln->handler = ngx_rl_ctx_cleanup;

        ngx_http_set_ctx(r, ctx, ngx_http_ratelimit_module);

    } else if (ctx->conf && ctx->decision.outcome != NGX_RL_SKIPPED) {
        before = ngx_palloc(r->pool, sizeof(ngx_rl_ctx_t));
        if (before == NULL) {
            return NULL;
        }

        *before = *ctx;
    }

    ngx_memzero(ctx, sizeof(ngx_rl_ctx_t));

    ctx->request = r;
    ctx->main = ngx_http_get_module_main_conf(r, ngx_http_ratelimit_module);
    ctx->conf = conf;
    ctx->cleanup = cleanup;
    ctx->policy.preview = conf->preview;
    ctx->policy.closed = !conf->preview
                         && conf->on_error == NGX_RL_ON_ERROR_CLOSED;
    ctx->policy.retry_after = (conf->error_retry_after + 999) / 1000;
    ctx->claims = claims;
    ctx->list = list;
    ctx->before = before;

    return ctx;
}


void
ngx_rl_ctx_step_back(ngx_rl_ctx_t *ctx)
{
    ngx_rl_ctx_t  here, *before;

    here = *ctx;
    before = ctx->before;

    *ctx = *before;
    here.before = before->before;
    *before = here;

    ctx->before = before;
}


static void
ngx_rl_ctx_cleanup(void *data)
{
    ngx_rl_ctx_t  *ctx = data;

    ctx->cleanup(ctx);
}
