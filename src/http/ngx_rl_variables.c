
/*
 * They read the decision; what does not apply to it is "not found", which logs
 * show as "-".  A subrequest sees what was decided about its main request.
 */


#include "http/ngx_rl_variables.h"
#include "http/ngx_rl_ctx.h"


typedef enum {
    NGX_RL_VAR_LIMIT = 0,
    NGX_RL_VAR_REMAINING,
    NGX_RL_VAR_RESET,
    NGX_RL_VAR_RETRY_AFTER
} ngx_rl_variable_e;


static ngx_rl_ctx_t *ngx_rl_variable_ctx(ngx_http_request_t *r);
static ngx_int_t ngx_rl_variable_status(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_rl_variable_name(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_rl_variable_number(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_rl_variable_source(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_rl_variable_shard(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_rl_variable_latency(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_rl_variable_client_net(
    ngx_http_request_t *r, ngx_http_variable_value_t *v, uintptr_t data);
static void ngx_rl_variable_set(ngx_http_variable_value_t *v,
    const void *data, size_t len);


static ngx_http_variable_t  ngx_rl_variables[] = {

    { ngx_string("ratelimit_status"), NULL,
      ngx_rl_variable_status, 0,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("ratelimit_name"), NULL,
      ngx_rl_variable_name, 0,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("ratelimit_limit"), NULL,
      ngx_rl_variable_number, NGX_RL_VAR_LIMIT,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("ratelimit_remaining"), NULL,
      ngx_rl_variable_number, NGX_RL_VAR_REMAINING,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("ratelimit_reset"), NULL,
      ngx_rl_variable_number, NGX_RL_VAR_RESET,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("ratelimit_retry_after"), NULL,
      ngx_rl_variable_number, NGX_RL_VAR_RETRY_AFTER,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("ratelimit_source"), NULL,
      ngx_rl_variable_source, 0,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("ratelimit_shard"), NULL,
      ngx_rl_variable_shard, 0,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("ratelimit_latency"), NULL,
      ngx_rl_variable_latency, 0,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("ratelimit_client_net"), NULL,
      ngx_rl_variable_client_net, 0,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

      ngx_http_null_variable
};


ngx_int_t
ngx_rl_add_variables(ngx_conf_t *cf)
{
    ngx_http_variable_t  *var, *v;

    for (v = ngx_rl_variables; v->name.len; v++) {
        var = ngx_http_add_variable(cf, &v->name, v->flags);
        if (var == NULL) {
            return NGX_ERROR;
        }

        var->get_handler = v->get_handler;
        var->data = v->data;
    }

    return NGX_OK;
}


/* NULL: not limited, or not decided yet */

static ngx_rl_ctx_t *
ngx_rl_variable_ctx(ngx_http_request_t *r)
{
    ngx_rl_ctx_t  *ctx;

    ctx = ngx_rl_ctx_get(r->main);

    return (ctx && ctx->done) ? ctx : NULL;
}


static ngx_int_t
ngx_rl_variable_status(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    const char    *name;
    ngx_rl_ctx_t  *ctx;

    ctx = ngx_rl_variable_ctx(r);

    if (ctx == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    name = ngx_rl_outcome_name(ctx->decision.outcome);
    ngx_rl_variable_set(v, name, ngx_strlen(name));

    return NGX_OK;
}


static ngx_int_t
ngx_rl_variable_name(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_str_t     *name;
    ngx_rl_ctx_t  *ctx;

    ctx = ngx_rl_variable_ctx(r);

    if (ctx == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    name = &ctx->shown->limit->name;
    ngx_rl_variable_set(v, name->data, name->len);

    return NGX_OK;
}


static ngx_int_t
ngx_rl_variable_number(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    u_char             *p;
    uint64_t            n;
    ngx_rl_ctx_t       *ctx;
    ngx_rl_decision_t  *d;

    ctx = ngx_rl_variable_ctx(r);

    if (ctx == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    d = &ctx->decision;

    /* a decision that knows no bucket has no limit */

    n = d->limit ? d->limit : NGX_RL_NEVER;

    switch (data) {

    case NGX_RL_VAR_LIMIT:
        break;

    case NGX_RL_VAR_REMAINING:
        n = d->limit ? d->remaining : NGX_RL_NEVER;
        break;

    case NGX_RL_VAR_RESET:
        n = (d->limit && d->reset != NGX_RL_NEVER)
            ? ctx->time + d->reset : NGX_RL_NEVER;
        break;

    default: /* NGX_RL_VAR_RETRY_AFTER */
        n = d->retry_after ? d->retry_after : NGX_RL_NEVER;
        break;
    }

    if (n == NGX_RL_NEVER) {
        v->not_found = 1;
        return NGX_OK;
    }

    p = ngx_pnalloc(r->pool, NGX_INT64_LEN);
    if (p == NULL) {
        return NGX_ERROR;
    }

    ngx_rl_variable_set(v, p, ngx_sprintf(p, "%uL", n) - p);

    return NGX_OK;
}


static ngx_int_t
ngx_rl_variable_source(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    const char    *name;
    ngx_rl_ctx_t  *ctx;

    ctx = ngx_rl_variable_ctx(r);

    if (ctx == NULL || ctx->decision.source == NGX_RL_SOURCE_NONE) {
        v->not_found = 1;
        return NGX_OK;
    }

    name = ngx_rl_source_name(ctx->decision.source);
    ngx_rl_variable_set(v, name, ngx_strlen(name));

    return NGX_OK;
}


static ngx_int_t
ngx_rl_variable_shard(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_str_t     *name;
    ngx_rl_ctx_t  *ctx;

    ctx = ngx_rl_variable_ctx(r);

    if (ctx == NULL || ctx->server == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    name = &ctx->server->label;
    ngx_rl_variable_set(v, name->data, name->len);

    return NGX_OK;
}


/* seconds, to the microsecond */

static ngx_int_t
ngx_rl_variable_latency(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    u_char        *p;
    ngx_rl_ctx_t  *ctx;

    ctx = ngx_rl_variable_ctx(r);

    if (ctx == NULL || ctx->server == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    p = ngx_pnalloc(r->pool, NGX_INT64_LEN + sizeof(".000000"));
    if (p == NULL) {
        return NGX_ERROR;
    }

    ngx_rl_variable_set(v, p, ngx_sprintf(p, "%uL.%06uL",
                                          ctx->latency / NGX_RL_MICRO,
                                          ctx->latency % NGX_RL_MICRO)
                        - p);

    return NGX_OK;
}


static ngx_int_t
ngx_rl_variable_client_net(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_str_t  net;

    if (ngx_rl_client_net(r, &net) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_rl_variable_set(v, net.data, net.len);

    return NGX_OK;
}


static void
ngx_rl_variable_set(ngx_http_variable_value_t *v, const void *data, size_t len)
{
    v->data = (u_char *) data;
    v->len = len;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
}
