
/*
 * gRPC clients look at the header grpc-status, and take any HTTP status but
 * 200 for a failure of the network.  So a request that is gRPC gets an answer
 * of gRPC whatever the body is, unless it would get an error page: that page
 * may be made for gRPC.
 *
 * Such an answer has no body.  HTTP/2 ends the stream with its headers, which
 * gRPC calls "trailers only".
 */


#include "http/ngx_rl_body.h"
#include "pure/ngx_rl_text.h"


static ngx_uint_t ngx_rl_body_has_page(ngx_http_request_t *r,
    ngx_uint_t status);
static ngx_str_t *ngx_rl_body_grpc_type(ngx_http_request_t *r);
static ngx_int_t ngx_rl_body_grpc(ngx_http_request_t *r, ngx_rl_ctx_t *ctx,
    ngx_str_t *type);
static ngx_int_t ngx_rl_body_json(ngx_rl_ctx_t *ctx, ngx_str_t *body);
static ngx_int_t ngx_rl_body_problem(ngx_rl_ctx_t *ctx, ngx_str_t *body);


static ngx_str_t  ngx_rl_body_grpc_plain = ngx_string("application/grpc");
static ngx_str_t  ngx_rl_body_grpc_web = ngx_string("application/grpc-web");
static ngx_str_t  ngx_rl_body_grpc_text =
    ngx_string("application/grpc-web-text");


ngx_int_t
ngx_rl_body_send(ngx_http_request_t *r, ngx_rl_ctx_t *ctx)
{
    ngx_int_t                 rc;
    ngx_str_t                *type;
    ngx_uint_t                closed, status;
    ngx_http_complex_value_t  body;

    static ngx_str_t  json = ngx_string("application/json");
    static ngx_str_t  problem = ngx_string("application/problem+json");

    closed = (ctx->decision.source == NGX_RL_SOURCE_CLOSED);
    status = closed ? ctx->conf->error_status : ctx->conf->status;

    type = ngx_rl_body_grpc_type(r);

    if (ctx->conf->body == NGX_RL_BODY_GRPC) {
        return ngx_rl_body_grpc(r, ctx, type ? type : &ngx_rl_body_grpc_plain);
    }

    if (closed || ctx->conf->body == NGX_RL_BODY_DEFAULT) {

        if (type == NULL || ngx_rl_body_has_page(r, status)) {
            return status;
        }
    }

    if (type) {
        return ngx_rl_body_grpc(r, ctx, type);
    }

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

    rc = ngx_http_send_response(r, status, type, &body);

    ngx_http_finalize_request(r, rc);

    /* the request may have been freed */

    return NGX_DONE;
}


/* as ngx_http_special_response_handler() looks for it */

static ngx_uint_t
ngx_rl_body_has_page(ngx_http_request_t *r, ngx_uint_t status)
{
    ngx_uint_t                 i;
    ngx_http_err_page_t       *page;
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (r->error_page || clcf->error_pages == NULL || r->uri_changes == 0) {
        return 0;
    }

    page = clcf->error_pages->elts;

    for (i = 0; i < clcf->error_pages->nelts; i++) {
        if (page[i].status == (ngx_int_t) status) {
            return 1;
        }
    }

    return 0;
}


/*
 * The type of a gRPC answer, by the type of the request; NULL: it is not gRPC.
 * Only gRPC-Web works over HTTP/1.
 */

static ngx_str_t *
ngx_rl_body_grpc_type(ngx_http_request_t *r)
{
    u_char      c;
    ngx_str_t  *type, *value;
    ngx_uint_t  i;

    static ngx_str_t  *types[] = {
        &ngx_rl_body_grpc_text, &ngx_rl_body_grpc_web, &ngx_rl_body_grpc_plain
    };

    if (r->headers_in.content_type == NULL) {
        return NULL;
    }

    value = &r->headers_in.content_type->value;

    for (i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        type = types[i];

        if (value->len < type->len
            || ngx_strncasecmp(value->data, type->data, type->len) != 0)
        {
            continue;
        }

        /* a suffix and parameters may follow: application/grpc+proto */

        c = (value->len > type->len) ? value->data[type->len] : ';';

        if (c == ';' || c == '+' || c == ' ') {
            return (type == &ngx_rl_body_grpc_plain
                    && r->http_version < NGX_HTTP_VERSION_20) ? NULL : type;
        }
    }

    return NULL;
}


/* the header filter adds the headers */

static ngx_int_t
ngx_rl_body_grpc(ngx_http_request_t *r, ngx_rl_ctx_t *ctx, ngx_str_t *type)
{
    ngx_int_t  rc;

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    ctx->grpc = 1;

    r->err_status = 0;
    r->header_only = 1;
    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = 0;
    r->headers_out.content_type = *type;
    r->headers_out.content_type_len = type->len;
    r->headers_out.content_type_lowcase = NULL;

    rc = ngx_http_send_header(r);

    ngx_http_finalize_request(r, rc);

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
