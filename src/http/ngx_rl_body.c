
#include "http/ngx_rl_body.h"
#include "pure/ngx_rl_text.h"


static ngx_int_t ngx_rl_body_json(ngx_rl_ctx_t *ctx, ngx_str_t *body);
static ngx_int_t ngx_rl_body_problem(ngx_rl_ctx_t *ctx, ngx_str_t *body);


ngx_int_t
ngx_rl_body_send(ngx_http_request_t *r, ngx_rl_ctx_t *ctx)
{
    ngx_int_t                 rc;
    ngx_str_t                *type;
    ngx_http_complex_value_t  body;

    static ngx_str_t  json = ngx_string("application/json");
    static ngx_str_t  problem = ngx_string("application/problem+json");

    ngx_memzero(&body, sizeof(ngx_http_complex_value_t));

    if (ctx->conf->body == NGX_RL_BODY_JSON) {
        type = &json;
        rc = ngx_rl_body_json(ctx, &body.value);

    } else {
        type = &problem;
        rc = ngx_rl_body_problem(ctx, &body.value);
    }

    if (rc != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    /* without this, the status of an earlier "error_page" would be sent */

    r->err_status = 0;

    rc = ngx_http_send_response(r, ctx->conf->status, type, &body);

    ngx_http_finalize_request(r, rc);

    /* the request may have been freed */

    return NGX_DONE;
}


static ngx_int_t
ngx_rl_body_json(ngx_rl_ctx_t *ctx, ngx_str_t *body)
{
    u_char             *p;
    ngx_str_t          *name;
    ngx_rl_decision_t  *d;

    static const char  head[] = "{\"error\":\"rate_limit_exceeded\","
                                "\"blocking_limit\":";
    static const char  numbers[] = ",\"limit\":%uL,\"remaining\":%uL,"
                                   "\"retry_after\":";

    d = &ctx->decision;
    name = &ctx->shown->limit->name;

    p = ngx_pnalloc(ctx->request->pool,
                    sizeof(head) + ngx_rl_quote_size(name->len)
                    + sizeof(numbers) + 3 * NGX_INT64_LEN + sizeof("}"));
    if (p == NULL) {
        return NGX_ERROR;
    }

    body->data = p;

    p = ngx_cpymem(p, head, sizeof(head) - 1);
    p = ngx_rl_quote(p, name->data, name->len);
    p = ngx_sprintf(p, numbers, d->limit, d->remaining);

    p = ngx_sprintf(p, d->retry_after == NGX_RL_NEVER ? "null}" : "%uL}",
                    d->retry_after);

    body->len = p - body->data;

    return NGX_OK;
}


/* the problem type of the IETF draft on rate limit headers */

static ngx_int_t
ngx_rl_body_problem(ngx_rl_ctx_t *ctx, ngx_str_t *body)
{
    u_char               *p;
    size_t                len;
    ngx_str_t            *name;
    ngx_uint_t            i;
    ngx_rl_http_claim_t  *claims;

    static const char  head[] =
        "{\"type\":\"https://iana.org/assignments/http-problem-types"
        "#quota-exceeded\","
        "\"title\":\"Request cannot be satisfied as assigned quota has been "
        "exceeded\","
        "\"status\":%ui,\"violated-policies\":[";

    claims = ctx->claims;
    len = sizeof(head) + NGX_INT_T_LEN + sizeof("]}");

    for (i = 0; i < ctx->conf->n; i++) {
        len += ngx_rl_quote_size(claims[i].limit->name.len) + sizeof(",");
    }

    p = ngx_pnalloc(ctx->request->pool, len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    body->data = p;
    p = ngx_sprintf(p, head, ctx->conf->status);

    for (i = 0; i < ctx->conf->n; i++) {

        if (claims[i].claim.decision.outcome != NGX_RL_REJECTED) {
            continue;
        }

        name = &claims[i].limit->name;

        if (p[-1] != '[') {
            *p++ = ',';
        }

        p = ngx_rl_quote(p, name->data, name->len);
    }

    *p++ = ']';
    *p++ = '}';

    body->len = p - body->data;

    return NGX_OK;
}
