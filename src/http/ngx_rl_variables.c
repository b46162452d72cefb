
/*
 * The variables read the decision.  One that does not apply to it is "not
 * found", which logs show as "-".  A subrequest sees what was decided about its
 * main request.
 */


#include "http/ngx_rl_variables.h"
#include "http/ngx_rl_ctx.h"


typedef enum {
    NGX_RL_VAR_STATUS = 0,
    NGX_RL_VAR_NAME,
    NGX_RL_VAR_LIMIT,
    NGX_RL_VAR_REMAINING,
    NGX_RL_VAR_RESET,
    NGX_RL_VAR_RETRY_AFTER,
    NGX_RL_VAR_SOURCE,
    NGX_RL_VAR_SHARD
} ngx_rl_variable_e;


static ngx_int_t ngx_rl_variable_text(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_rl_variable_number(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_rl_variable_latency(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_rl_variable_client_net(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_rl_ctx_t *ngx_rl_variable_ctx(ngx_http_request_t *r);
static ngx_int_t ngx_rl_variable_set(ngx_http_variable_value_t *v,
    const void *data, size_t len);


static ngx_http_variable_t  ngx_rl_variables[] = {

    { ngx_string("ratelimit_status"), NULL,
      ngx_rl_variable_text, NGX_RL_VAR_STATUS,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("ratelimit_name"), NULL,
      ngx_rl_variable_text, NGX_RL_VAR_NAME,
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
      ngx_rl_variable_text, NGX_RL_VAR_SOURCE,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("ratelimit_shard"), NULL,
      ngx_rl_variable_text, NGX_RL_VAR_SHARD,
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


static ngx_int_t
ngx_rl_variable_text(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_str_t     *text;
    const char    *name;
    ngx_rl_ctx_t  *ctx;

    ctx = ngx_rl_variable_ctx(r);
    text = NULL;
    name = NULL;

    if (ctx) {

        switch (data) {

        case NGX_RL_VAR_STATUS:
            name = ngx_rl_outcome_names[ctx->decision.outcome];
            break;

        case NGX_RL_VAR_NAME:
            text = &ctx->shown->limit->name;
            break;

        case NGX_RL_VAR_SOURCE:
            if (ctx->decision.source != NGX_RL_SOURCE_NONE) {
                name = ngx_rl_source_names[ctx->decision.source];
            }

            break;

        default: /* NGX_RL_VAR_SHARD */
            if (ctx->server) {
                text = &ctx->server->label;
            }

            break;
        }
    }

    if (text) {
        return ngx_rl_variable_set(v, text->data, text->len);
    }

    return ngx_rl_variable_set(v, name, name ? ngx_strlen(name) : 0);
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
    n = NGX_RL_NEVER;

    if (ctx) {
        d = &ctx->decision;

        /* a decision that knows no bucket has no numbers but the last */

        switch (data) {

        case NGX_RL_VAR_LIMIT:
            n = d->limit ? d->limit : NGX_RL_NEVER;
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
    }

    if (n == NGX_RL_NEVER) {
        return ngx_rl_variable_set(v, NULL, 0);
    }

    p = ngx_pnalloc(r->pool, NGX_INT64_LEN);
    if (p == NULL) {
        return NGX_ERROR;
    }

    return ngx_rl_variable_set(v, p, ngx_sprintf(p, "%uL", n) - p);
}


/* seconds, to the microsecond */

static ngx_int_t
ngx_rl_variable_latency(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    u_char        *p, *last;
    ngx_rl_ctx_t  *ctx;

    ctx = ngx_rl_variable_ctx(r);

    if (ctx == NULL || ctx->server == NULL) {
        return ngx_rl_variable_set(v, NULL, 0);
    }

    p = ngx_pnalloc(r->pool, NGX_INT64_LEN + sizeof(".000000"));
    if (p == NULL) {
        return NGX_ERROR;
    }

    last = ngx_sprintf(p, "%uL.%06uL", ctx->latency / NGX_RL_MICRO,
                       ctx->latency % NGX_RL_MICRO);

    return ngx_rl_variable_set(v, p, last - p);
}


static ngx_int_t
ngx_rl_variable_client_net(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_str_t  net;

    if (ngx_rl_client_net(r, &net) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_rl_variable_set(v, net.data, net.len);
}


/* NULL: not limited, or not decided yet */

static ngx_rl_ctx_t *
ngx_rl_variable_ctx(ngx_http_request_t *r)
{
    ngx_rl_ctx_t  *ctx;

    ctx = ngx_rl_ctx_get(r->main);

    return (ctx && ctx->done) ? ctx : NULL;
}


/* no data: not found */

static ngx_int_t
ngx_rl_variable_set(ngx_http_variable_value_t *v, const void *data, size_t len)
{
    if (data == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    v->data = (u_char *) data;
    v->len = len;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return NGX_OK;
}
