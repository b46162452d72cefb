
/*
 * They read the decision; what does not apply to it is "not found", which logs
 * show as "-".  A subrequest sees what was decided about its main request.
 */


#include "ngx_http_ratelimit_variables.h"
#include "ngx_http_ratelimit_handler.h"


typedef enum {
    NGX_HTTP_RATELIMIT_VAR_LIMIT = 0,
    NGX_HTTP_RATELIMIT_VAR_REMAINING,
    NGX_HTTP_RATELIMIT_VAR_RESET,
    NGX_HTTP_RATELIMIT_VAR_RETRY_AFTER
} ngx_http_ratelimit_variable_e;


static ngx_http_ratelimit_ctx_t *ngx_http_ratelimit_variable_ctx(
    ngx_http_request_t *r);
static ngx_int_t ngx_http_ratelimit_variable_status(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_ratelimit_variable_name(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_ratelimit_variable_number(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_ratelimit_variable_source(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_ratelimit_variable_shard(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_ratelimit_variable_latency(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_ratelimit_variable_client_net(
    ngx_http_request_t *r, ngx_http_variable_value_t *v, uintptr_t data);
static void ngx_http_ratelimit_variable_set(ngx_http_variable_value_t *v,
    const void *data, size_t len);


static ngx_http_variable_t  ngx_http_ratelimit_variables[] = {

    { ngx_string("ratelimit_status"), NULL,
      ngx_http_ratelimit_variable_status, 0,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("ratelimit_name"), NULL,
      ngx_http_ratelimit_variable_name, 0,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("ratelimit_limit"), NULL,
      ngx_http_ratelimit_variable_number, NGX_HTTP_RATELIMIT_VAR_LIMIT,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("ratelimit_remaining"), NULL,
      ngx_http_ratelimit_variable_number, NGX_HTTP_RATELIMIT_VAR_REMAINING,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("ratelimit_reset"), NULL,
      ngx_http_ratelimit_variable_number, NGX_HTTP_RATELIMIT_VAR_RESET,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("ratelimit_retry_after"), NULL,
      ngx_http_ratelimit_variable_number, NGX_HTTP_RATELIMIT_VAR_RETRY_AFTER,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("ratelimit_source"), NULL,
      ngx_http_ratelimit_variable_source, 0,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("ratelimit_shard"), NULL,
      ngx_http_ratelimit_variable_shard, 0,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("ratelimit_latency"), NULL,
      ngx_http_ratelimit_variable_latency, 0,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("ratelimit_client_net"), NULL,
      ngx_http_ratelimit_variable_client_net, 0,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

      ngx_http_null_variable
};


ngx_int_t
ngx_http_ratelimit_add_variables(ngx_conf_t *cf)
{
    ngx_http_variable_t  *var, *v;

    for (v = ngx_http_ratelimit_variables; v->name.len; v++) {
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

static ngx_http_ratelimit_ctx_t *
ngx_http_ratelimit_variable_ctx(ngx_http_request_t *r)
{
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = ngx_http_ratelimit_get_ctx(r->main);

    return (ctx && ctx->done) ? ctx : NULL;
}


static ngx_int_t
ngx_http_ratelimit_variable_status(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    const char                *name;
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = ngx_http_ratelimit_variable_ctx(r);

    if (ctx == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    name = ngx_http_ratelimit_outcome_name(ctx->decision.outcome);
    ngx_http_ratelimit_variable_set(v, name, ngx_strlen(name));

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_variable_name(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_str_t                 *name;
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = ngx_http_ratelimit_variable_ctx(r);

    if (ctx == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    name = &ctx->speaker->limit->name;
    ngx_http_ratelimit_variable_set(v, name->data, name->len);

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_variable_number(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    u_char                         *p;
    uint64_t                        n;
    ngx_http_ratelimit_ctx_t       *ctx;
    ngx_http_ratelimit_decision_t  *d;

    ctx = ngx_http_ratelimit_variable_ctx(r);

    if (ctx == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    d = &ctx->decision;

    /* a decision that knows no bucket has no limit */

    n = d->limit ? d->limit : NGX_HTTP_RATELIMIT_NEVER;

    switch (data) {

    case NGX_HTTP_RATELIMIT_VAR_LIMIT:
        break;

    case NGX_HTTP_RATELIMIT_VAR_REMAINING:
        n = d->limit ? d->remaining : NGX_HTTP_RATELIMIT_NEVER;
        break;

    case NGX_HTTP_RATELIMIT_VAR_RESET:
        n = (d->limit && d->reset != NGX_HTTP_RATELIMIT_NEVER)
            ? ctx->time + d->reset : NGX_HTTP_RATELIMIT_NEVER;
        break;

    default: /* NGX_HTTP_RATELIMIT_VAR_RETRY_AFTER */
        n = d->retry_after ? d->retry_after : NGX_HTTP_RATELIMIT_NEVER;
        break;
    }

    if (n == NGX_HTTP_RATELIMIT_NEVER) {
        v->not_found = 1;
        return NGX_OK;
    }

    p = ngx_pnalloc(r->pool, NGX_INT64_LEN);
    if (p == NULL) {
        return NGX_ERROR;
    }

    ngx_http_ratelimit_variable_set(v, p, ngx_sprintf(p, "%uL", n) - p);

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_variable_source(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    const char                *name;
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = ngx_http_ratelimit_variable_ctx(r);

    if (ctx == NULL
        || ctx->decision.source == NGX_HTTP_RATELIMIT_SOURCE_NONE)
    {
        v->not_found = 1;
        return NGX_OK;
    }

    name = ngx_http_ratelimit_source_name(ctx->decision.source);
    ngx_http_ratelimit_variable_set(v, name, ngx_strlen(name));

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_variable_shard(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_str_t                 *name;
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = ngx_http_ratelimit_variable_ctx(r);

    if (ctx == NULL || ctx->peer == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    name = &ctx->peer->label;
    ngx_http_ratelimit_variable_set(v, name->data, name->len);

    return NGX_OK;
}


/* seconds, to the microsecond */

static ngx_int_t
ngx_http_ratelimit_variable_latency(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    u_char                    *p;
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = ngx_http_ratelimit_variable_ctx(r);

    if (ctx == NULL || ctx->peer == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    p = ngx_pnalloc(r->pool, NGX_INT64_LEN + sizeof(".000000"));
    if (p == NULL) {
        return NGX_ERROR;
    }

    ngx_http_ratelimit_variable_set(v, p,
                    ngx_sprintf(p, "%uL.%06uL",
                                ctx->latency / NGX_HTTP_RATELIMIT_MICRO,
                                ctx->latency % NGX_HTTP_RATELIMIT_MICRO)
                    - p);

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_variable_client_net(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_str_t  net;

    if (ngx_http_ratelimit_client_net(r, &net) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_http_ratelimit_variable_set(v, net.data, net.len);

    return NGX_OK;
}


static void
ngx_http_ratelimit_variable_set(ngx_http_variable_value_t *v,
    const void *data, size_t len)
{
    v->data = (u_char *) data;
    v->len = len;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
}
