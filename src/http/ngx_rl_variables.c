
/*
 * The variables read the decision.  A variable that does not apply is "not
 * found", and logs show it as "-".  A subrequest sees the decision on its main
 * request.
 *
 * Variables of one limit end with its name.  nginx changes the names of
 * variables to lower case, and knows only letters, digits and "_" in them.  So
 * the name of a limit is compared without regard to case, and "_" stands for
 * any other character in it.
 *
 * A request may have met limits in earlier locations, too.
 */


#include "http/ngx_rl_variables.h"
#include "http/ngx_rl_ctx.h"
#include "core/ngx_rl_core.h"
#include "pure/ngx_rl_text.h"


/* bytes of a limit in JSON, without its name */
#define NGX_RL_VARIABLE_JSON                                                  \
    (sizeof("{\"name\":,\"status\":\"REJECTED_DRY_RUN\",\"limit\":,"          \
            "\"remaining\":,\"reset\":,\"retry_after\":,"                     \
            "\"source\":\"override\",\"dry_run\":false},")                    \
     + 4 * NGX_INT64_LEN)


typedef enum {
    NGX_RL_VAR_STATUS = 0,
    NGX_RL_VAR_NAME,
    NGX_RL_VAR_LIMIT,
    NGX_RL_VAR_REMAINING,
    NGX_RL_VAR_RESET,
    NGX_RL_VAR_RETRY_AFTER,
    NGX_RL_VAR_SOURCE,
    NGX_RL_VAR_SHARD,
    NGX_RL_VAR_LATENCY,
    NGX_RL_VAR_NONE
} ngx_rl_variable_e;


static ngx_int_t ngx_rl_variable_decision(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_rl_variable_limit(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_rl_variable_limits(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static u_char *ngx_rl_variable_json(u_char *p, ngx_rl_ctx_t *ctx,
    ngx_rl_http_claim_t *hc);
static ngx_uint_t ngx_rl_variable_repeated(ngx_rl_ctx_t *first,
    ngx_rl_ctx_t *ctx, ngx_rl_limit_t *limit);
static ngx_rl_variable_e ngx_rl_variable_split(ngx_str_t *variable,
    ngx_str_t *name);
static ngx_uint_t ngx_rl_variable_names(ngx_str_t *name, ngx_str_t *limit);
static const char *ngx_rl_variable_status(ngx_rl_claim_t *claim);
static uint64_t ngx_rl_variable_figure(ngx_rl_variable_e what,
    ngx_rl_decision_t *d, time_t time);
static ngx_int_t ngx_rl_variables_find(ngx_conf_t *cf, ngx_str_t *variable,
    ngx_str_t *name);
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
    ngx_rl_variable("ratelimit_limits", limits, 0),
    ngx_rl_variable("ratelimit_client_net", client_net, 0),
    ngx_http_null_variable
};


/* the name of a limit follows */

#define ngx_rl_per_limit(name, what)                                          \
    { ngx_string(name), NULL, ngx_rl_variable_limit, what,                    \
      NGX_HTTP_VAR_NOCACHEABLE|NGX_HTTP_VAR_PREFIX, 0 }


static ngx_http_variable_t  ngx_rl_per_limit_variables[] = {
    ngx_rl_per_limit("ratelimit_status_", NGX_RL_VAR_STATUS),
    ngx_rl_per_limit("ratelimit_limit_", NGX_RL_VAR_LIMIT),
    ngx_rl_per_limit("ratelimit_remaining_", NGX_RL_VAR_REMAINING),
    ngx_rl_per_limit("ratelimit_reset_", NGX_RL_VAR_RESET),
    ngx_rl_per_limit("ratelimit_retry_after_", NGX_RL_VAR_RETRY_AFTER),
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

    for (v = ngx_rl_per_limit_variables; v->name.len; v++) {
        var = ngx_http_add_variable(cf, &v->name, v->flags);
        if (var == NULL) {
            return NGX_ERROR;
        }

        /* nginx passes the name of the variable as its data */

        var->get_handler = v->get_handler;
    }

    return NGX_OK;
}


/* a variable that a map, for example, defines is not ours */

ngx_int_t
ngx_rl_variables_check(ngx_conf_t *cf)
{
    ngx_str_t                   name;
    ngx_uint_t                  i, k;
    ngx_hash_key_t             *key;
    ngx_http_variable_t        *v;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    v = cmcf->variables.elts;
    key = cmcf->variables_keys->keys.elts;

    for (i = 0; i < cmcf->variables.nelts; i++) {

        if (ngx_rl_variable_split(&v[i].name, &name) == NGX_RL_VAR_NONE) {
            continue;
        }

        for (k = 0; k < cmcf->variables_keys->keys.nelts; k++) {
            if (ngx_rl_str_equal(&key[k].key, &v[i].name)) {
                break;
            }
        }

        if (k == cmcf->variables_keys->keys.nelts
            && ngx_rl_variables_find(cf, &v[i].name, &name) != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* exactly one limit has this name */

static ngx_int_t
ngx_rl_variables_find(ngx_conf_t *cf, ngx_str_t *variable, ngx_str_t *name)
{
    ngx_uint_t           i;
    ngx_rl_limit_t     **limit, *found;
    ngx_rl_main_conf_t  *rmcf;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    limit = rmcf->limits.elts;
    found = NULL;

    for (i = 0; i < rmcf->limits.nelts; i++) {

        if (!ngx_rl_variable_names(name, &limit[i]->name)) {
            continue;
        }

        if (found) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "the variable \"$%V\" may mean limit \"%V\" or "
                          "limit \"%V\": rename one of them", variable,
                          &found->name, &limit[i]->name);
            return NGX_ERROR;
        }

        found = limit[i];
    }

    if (found == NULL) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "unknown limit \"%V\" in the variable \"$%V\"", name,
                      variable);
        return NGX_ERROR;
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

    switch (data) {

    case NGX_RL_VAR_STATUS:
        name = ngx_rl_outcome_names[d->outcome];
        break;

    case NGX_RL_VAR_NAME:
        text = &ctx->shown->limit->name;
        break;

    case NGX_RL_VAR_SOURCE:
        name = d->source ? ngx_rl_source_names[d->source] : NULL;
        break;

    case NGX_RL_VAR_SHARD:
        text = ctx->server ? &ctx->server->label : NULL;
        break;

    case NGX_RL_VAR_LATENCY:
        n = ctx->server ? ctx->latency : NGX_RL_NEVER;
        break;

    default:
        n = ngx_rl_variable_figure(data, d, ctx->time);
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


/* of one limit: not found if it was not asked */

static ngx_int_t
ngx_rl_variable_limit(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data)
{
    u_char             *p;
    uint64_t            n;
    ngx_str_t           name;
    ngx_uint_t          i;
    const char         *status;
    ngx_rl_ctx_t       *ctx;
    ngx_rl_claim_t     *claim;
    ngx_rl_variable_e   what;

    what = ngx_rl_variable_split((ngx_str_t *) data, &name);

    ctx = ngx_rl_ctx_get(r->main);

    if (ctx == NULL || !ctx->done) {
        return ngx_rl_variable_set(v, NULL, 0);
    }

    for ( /* void */ ; ctx; ctx = ctx->before) {

        for (i = 0; i < ctx->conf->n; i++) {

            if (!ngx_rl_variable_names(&name, &ctx->claims[i].limit->name)) {
                continue;
            }

            claim = &ctx->claims[i].claim;
            status = ngx_rl_variable_status(claim);

            if (status == NULL) {
                break;
            }

            if (what == NGX_RL_VAR_STATUS) {
                return ngx_rl_variable_set(v, status, ngx_strlen(status));
            }

            n = ngx_rl_variable_figure(what, &claim->decision, ctx->time);

            if (n == NGX_RL_NEVER) {
                return ngx_rl_variable_set(v, NULL, 0);
            }

            p = ngx_pnalloc(r->pool, NGX_INT64_LEN);
            if (p == NULL) {
                return NGX_ERROR;
            }

            return ngx_rl_variable_set(v, p, ngx_sprintf(p, "%uL", n) - p);
        }
    }

    return ngx_rl_variable_set(v, NULL, 0);
}


/* all limits of the request, as a JSON array */

static ngx_int_t
ngx_rl_variable_limits(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data)
{
    size_t         len;
    u_char        *p, *start;
    ngx_uint_t     i;
    ngx_rl_ctx_t  *first, *ctx;

    first = ngx_rl_ctx_get(r->main);

    if (first == NULL || !first->done) {
        return ngx_rl_variable_set(v, "[]", 2);
    }

    len = sizeof("[]");

    for (ctx = first; ctx; ctx = ctx->before) {
        for (i = 0; i < ctx->conf->n; i++) {
            len += NGX_RL_VARIABLE_JSON
                   + ngx_rl_quote_size(ctx->claims[i].limit->name.len);
        }
    }

    start = ngx_pnalloc(r->pool, len);
    if (start == NULL) {
        return NGX_ERROR;
    }

    p = start;
    *p++ = '[';

    for (ctx = first; ctx; ctx = ctx->before) {
        for (i = 0; i < ctx->conf->n; i++) {

            if (ngx_rl_variable_repeated(first, ctx, ctx->claims[i].limit)) {
                continue;
            }

            if (p[-1] != '[') {
                *p++ = ',';
            }

            p = ngx_rl_variable_json(p, ctx, &ctx->claims[i]);
        }
    }

    *p++ = ']';

    return ngx_rl_variable_set(v, start, p - start);
}


static u_char *
ngx_rl_variable_json(u_char *p, ngx_rl_ctx_t *ctx, ngx_rl_http_claim_t *hc)
{
    uint64_t            n;
    ngx_uint_t          i;
    const char         *status;
    ngx_rl_decision_t  *d;

    static const struct {
        ngx_rl_variable_e   what;
        const char         *name;
    } figures[] = {
        { NGX_RL_VAR_LIMIT, "limit" },
        { NGX_RL_VAR_REMAINING, "remaining" },
        { NGX_RL_VAR_RESET, "reset" },
        { NGX_RL_VAR_RETRY_AFTER, "retry_after" }
    };

    d = &hc->claim.decision;
    status = ngx_rl_variable_status(&hc->claim);

    p = ngx_sprintf(p, "{\"name\":");
    p = ngx_rl_quote(p, hc->limit->name.data, hc->limit->name.len);

    p = ngx_sprintf(p, status ? ",\"status\":\"%s\"" : ",\"status\":null",
                    status);

    for (i = 0; i < sizeof(figures) / sizeof(figures[0]); i++) {
        n = ngx_rl_variable_figure(figures[i].what, d, ctx->time);

        p = ngx_sprintf(p, (n == NGX_RL_NEVER) ? ",\"%s\":null"
                                               : ",\"%s\":%uL",
                        figures[i].name, n);
    }

    p = ngx_sprintf(p, d->source ? ",\"source\":\"%s\"" : ",\"source\":null",
                    ngx_rl_source_names[d->source]);

    return ngx_sprintf(p, ",\"dry_run\":%s}",
                       hc->claim.shadow ? "true" : "false");
}


/* the limit has been listed for a location before "ctx" */

static ngx_uint_t
ngx_rl_variable_repeated(ngx_rl_ctx_t *first, ngx_rl_ctx_t *ctx,
    ngx_rl_limit_t *limit)
{
    ngx_uint_t  i;

    for ( /* void */ ; first != ctx; first = first->before) {
        for (i = 0; i < first->conf->n; i++) {
            if (first->claims[i].limit == limit) {
                return 1;
            }
        }
    }

    return 0;
}


/* NGX_RL_VAR_NONE: not the variable of one limit */

static ngx_rl_variable_e
ngx_rl_variable_split(ngx_str_t *variable, ngx_str_t *name)
{
    ngx_http_variable_t  *v;

    for (v = ngx_rl_per_limit_variables; v->name.len; v++) {

        if (variable->len > v->name.len
            && ngx_strncasecmp(variable->data, v->name.data, v->name.len) == 0)
        {
            name->data = variable->data + v->name.len;
            name->len = variable->len - v->name.len;

            return (ngx_rl_variable_e) v->data;
        }
    }

    return NGX_RL_VAR_NONE;
}


static ngx_uint_t
ngx_rl_variable_names(ngx_str_t *name, ngx_str_t *limit)
{
    u_char  c;
    size_t  i;

    if (name->len != limit->len) {
        return 0;
    }

    for (i = 0; i < limit->len; i++) {
        c = ngx_tolower(limit->data[i]);

        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))) {
            c = '_';
        }

        if (c != ngx_tolower(name->data[i])) {
            return 0;
        }
    }

    return 1;
}


/* NULL: the limit was not asked, as another one had rejected the request */

static const char *
ngx_rl_variable_status(ngx_rl_claim_t *claim)
{
    return (claim->decision.outcome == NGX_RL_SKIPPED && claim->len
            && claim->decision.source != NGX_RL_SOURCE_OVERRIDE)
           ? NULL : ngx_rl_outcome_names[claim->decision.outcome];
}


/*
 * A decision without a bucket has no numbers except "retry after".
 * NGX_RL_NEVER: none.
 */

static uint64_t
ngx_rl_variable_figure(ngx_rl_variable_e what, ngx_rl_decision_t *d,
    time_t time)
{
    switch (what) {

    case NGX_RL_VAR_LIMIT:
        return d->limit ? d->limit : NGX_RL_NEVER;

    case NGX_RL_VAR_REMAINING:
        return d->limit ? d->remaining : NGX_RL_NEVER;

    case NGX_RL_VAR_RESET:
        return (d->limit && d->reset != NGX_RL_NEVER) ? time + d->reset
                                                      : NGX_RL_NEVER;

    default: /* NGX_RL_VAR_RETRY_AFTER */
        return d->retry_after ? d->retry_after : NGX_RL_NEVER;
    }
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
