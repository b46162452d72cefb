
/*
 * The variables read the decision.  A variable that does not apply is "not
 * found", and logs show it as "-".  A subrequest sees the decision on its main
 * request.
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
    NGX_RL_VAR_SHARD,
    NGX_RL_VAR_LATENCY
} ngx_rl_variable_e;


static ngx_int_t ngx_rl_variable_decision(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_rl_variable_client_net(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_rl_variable_set(ngx_http_variable_value_t *v,
    const void *data, size_t len);


#define ngx_rl_variable(name, handler, what)                                  \
    { ngx_string(name), NULL, ngx_rl_variable_##handler, what,                \
      NGX_HTTP_VAR_NOCACHEABLE, 0 }


static ngx_http_variable_t  ngx_rl_variables[] = {
    ngx_rl_variable("ratelimit_status", decision, NGX_RL_VAR_STATUS),
    ngx_rl_variable("ratelimit_name", decision, NGX_RL_VAR_NAME),
    ngx_rl_variable("ratelimit_limit", decision, NGX_RL_VAR_LIMIT),
    ngx_rl_variable("ratelimit_remaining", decision, NGX_RL_VAR_REMAINING),
    ngx_rl_variable("ratelimit_reset", decision, NGX_RL_VAR_RESET),
    ngx_rl_variable("ratelimit_retry_after", decision, NGX_RL_VAR_RETRY_AFTER),
    ngx_rl_variable("ratelimit_source", decision, NGX_RL_VAR_SOURCE),
    ngx_rl_variable("ratelimit_shard", decision, NGX_RL_VAR_SHARD),
    ngx_rl_variable("ratelimit_latency", decision, NGX_RL_VAR_LATENCY),
    ngx_rl_variable("ratelimit_client_net", client_net, 0),
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
ngx_rl_variable_decision(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data)
{
    u_char             *p;
    uint64_t            n;
    ngx_str_t          *text;
    const char         *name;
    ngx_rl_ctx_t       *ctx;
    ngx_rl_decision_t  *d;

    ctx = ngx_rl_ctx_get(r->main);

    if (ctx == NULL || !ctx->done) {
        return ngx_rl_variable_set(v, NULL, 0);
    }

    d = &ctx->decision;
    n = NGX_RL_NEVER;
    text = NULL;
    name = NULL;

    /* a decision without a bucket has no numbers except "retry after" */

    switch (data) {

    case NGX_RL_VAR_STATUS:
        name = ngx_rl_outcome_names[d->outcome];
        break;

    case NGX_RL_VAR_NAME:
        text = &ctx->shown->limit->name;
        break;

    case NGX_RL_VAR_LIMIT:
        n = d->limit ? d->limit : NGX_RL_NEVER;
        break;

    case NGX_RL_VAR_REMAINING:
        n = d->limit ? d->remaining : NGX_RL_NEVER;
        break;

    case NGX_RL_VAR_RESET:
        n = (d->limit && d->reset != NGX_RL_NEVER) ? ctx->time + d->reset
                                                   : NGX_RL_NEVER;
        break;

    case NGX_RL_VAR_RETRY_AFTER:
        n = d->retry_after ? d->retry_after : NGX_RL_NEVER;
        break;

    case NGX_RL_VAR_SOURCE:
        name = d->source ? ngx_rl_source_names[d->source] : NULL;
        break;

    case NGX_RL_VAR_SHARD:
        text = ctx->server ? &ctx->server->label : NULL;
        break;

    default: /* NGX_RL_VAR_LATENCY */
        n = ctx->server ? ctx->latency : NGX_RL_NEVER;
        break;
    }

    if (text) {
        return ngx_rl_variable_set(v, text->data, text->len);
    }

    if (n == NGX_RL_NEVER) {
        return ngx_rl_variable_set(v, name, name ? ngx_strlen(name) : 0);
    }

    p = ngx_pnalloc(r->pool, NGX_INT64_LEN + sizeof(".000000"));
    if (p == NULL) {
        return NGX_ERROR;
    }

    v->data = p;

    if (data == NGX_RL_VAR_LATENCY) {
        /* seconds, to the microsecond */
        p = ngx_sprintf(p, "%uL.%06uL", n / NGX_RL_MICRO, n % NGX_RL_MICRO);

    } else {
        p = ngx_sprintf(p, "%uL", n);
    }

    return ngx_rl_variable_set(v, v->data, p - v->data);
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
