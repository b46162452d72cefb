
/*
 * Headers are set when a response is sent, not when the request is decided.
 * Headers that a handler adds earlier get lost in error_page and other
 * internal redirects.
 *
 * A backend may have a limiter of its own.  All headers that it sent of the
 * same family are removed, even those for which this module has no value: its
 * numbers must not appear beside ours as if they belonged to one limit.  Its
 * Retry-After is kept unless this module sends one, because it may have
 * another reason.
 *
 * A limit in a dry run sends no headers unless this is configured.
 *
 * A script of a browser reads a header of another origin only if
 * Access-Control-Expose-Headers lists it.  The names of the headers that are
 * sent are appended to the list of the backend, if there is one.  A header
 * that "add_header" adds is not known here yet.  It becomes a second one, and
 * browsers read both as one list.
 *
 * The headers of gRPC are the answer itself, so they are always sent.
 */


#include "http/ngx_rl_headers.h"
#include "http/ngx_rl_output.h"
#include "http/ngx_rl_ctx.h"
#include "pure/ngx_rl_text.h"


/* the headers of a family are adjacent */

typedef enum {
    NGX_RL_H_LIMIT = 0,
    NGX_RL_H_REMAINING,
    NGX_RL_H_RESET,
    NGX_RL_H_RETRY,

    NGX_RL_H_POLICY,
    NGX_RL_H_RATELIMIT,

    NGX_RL_H_DEGRADED,
    NGX_RL_H_REASON,
    NGX_RL_H_RETRY_AFTER,

    NGX_RL_H_GRPC_STATUS,
    NGX_RL_H_GRPC_MESSAGE,
    NGX_RL_H_GRPC_PUSHBACK,

    NGX_RL_H_EXPOSE  /* lists those above */
} ngx_rl_header_e;


static ngx_int_t ngx_rl_header_filter(ngx_http_request_t *r);
static ngx_int_t ngx_rl_headers_legacy(ngx_rl_ctx_t *ctx);
static ngx_int_t ngx_rl_headers_draft(ngx_rl_ctx_t *ctx);
static uint64_t ngx_rl_headers_effective(ngx_rl_ctx_t *ctx, uint64_t *left);
static ngx_int_t ngx_rl_headers_policy(ngx_rl_ctx_t *ctx);
static ngx_int_t ngx_rl_headers_common(ngx_rl_ctx_t *ctx);
static ngx_int_t ngx_rl_headers_grpc(ngx_rl_ctx_t *ctx);
static ngx_int_t ngx_rl_headers_expose(ngx_rl_ctx_t *ctx);
static ngx_uint_t ngx_rl_headers_wait(ngx_rl_decision_t *d);
static void ngx_rl_headers_remove(ngx_rl_ctx_t *ctx, ngx_rl_header_e first,
    ngx_rl_header_e last);
static ngx_int_t ngx_rl_header_number(ngx_rl_ctx_t *ctx, ngx_rl_header_e name,
    uint64_t number);
static ngx_int_t ngx_rl_header_set(ngx_rl_ctx_t *ctx, ngx_rl_header_e name,
    const void *value, size_t len);


static ngx_http_output_header_filter_pt  ngx_http_next_header_filter;


#define NGX_RL_GRPC_EXHAUSTED    8
#define NGX_RL_GRPC_UNAVAILABLE  14


#define ngx_rl_header(name, lowcase)  { ngx_string(name), (u_char *) lowcase }

static struct {
    ngx_str_t  name;
    u_char    *lowcase;
} ngx_rl_headers[] = {
    ngx_rl_header("X-RateLimit-Limit", "x-ratelimit-limit"),
    ngx_rl_header("X-RateLimit-Remaining", "x-ratelimit-remaining"),
    ngx_rl_header("X-RateLimit-Reset", "x-ratelimit-reset"),
    ngx_rl_header("X-RateLimit-Retry-After", "x-ratelimit-retry-after"),
    ngx_rl_header("RateLimit-Policy", "ratelimit-policy"),
    ngx_rl_header("RateLimit", "ratelimit"),
    ngx_rl_header("X-RateLimit-Degraded", "x-ratelimit-degraded"),
    ngx_rl_header("X-RateLimit-Degraded-Reason", "x-ratelimit-degraded-reason"),
    ngx_rl_header("Retry-After", "retry-after"),
    ngx_rl_header("grpc-status", "grpc-status"),
    ngx_rl_header("grpc-message", "grpc-message"),
    ngx_rl_header("grpc-retry-pushback-ms", "grpc-retry-pushback-ms"),
    ngx_rl_header("Access-Control-Expose-Headers",
                  "access-control-expose-headers")
};


void
ngx_rl_headers_init(void)
{
    ngx_http_next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_rl_header_filter;
}


static ngx_int_t
ngx_rl_header_filter(ngx_http_request_t *r)
{
    ngx_rl_ctx_t  *ctx;

    if (r != r->main) {
        return ngx_http_next_header_filter(r);
    }

    ctx = ngx_rl_ctx_get(r);

    if (ctx && ctx->grpc && ngx_rl_headers_grpc(ctx) != NGX_OK) {
        return NGX_ERROR;
    }

    if (ctx == NULL || !ctx->done
        || ctx->decision.outcome == NGX_RL_SKIPPED
        || (ctx->conf->headers & NGX_RL_HEADERS_OFF)
        || (ctx->shown->claim.shadow
            && !(ctx->conf->headers & NGX_RL_HEADERS_DRY_RUN)))
    {
        return ngx_http_next_header_filter(r);
    }

    if (((ctx->conf->headers & NGX_RL_HEADERS_LEGACY)
         && ngx_rl_headers_legacy(ctx) != NGX_OK)
        || ((ctx->conf->headers & NGX_RL_HEADERS_DRAFT)
            && ngx_rl_headers_draft(ctx) != NGX_OK)
        || ngx_rl_headers_common(ctx) != NGX_OK
        || ((ctx->conf->headers & NGX_RL_HEADERS_EXPOSE)
            && ngx_rl_headers_expose(ctx) != NGX_OK))
    {
        return NGX_ERROR;
    }

    return ngx_http_next_header_filter(r);
}


static ngx_int_t
ngx_rl_headers_legacy(ngx_rl_ctx_t *ctx)
{
    ngx_rl_decision_t  *d;

    d = &ctx->decision;

    ngx_rl_headers_remove(ctx, NGX_RL_H_LIMIT, NGX_RL_H_RETRY);

    if (d->limit
        && (ngx_rl_header_number(ctx, NGX_RL_H_LIMIT, d->limit) != NGX_OK
            || ngx_rl_header_number(ctx, NGX_RL_H_REMAINING, d->remaining)
            != NGX_OK))
    {
        return NGX_ERROR;
    }

    if (d->limit && d->reset != NGX_RL_NEVER
        && ngx_rl_header_number(ctx, NGX_RL_H_RESET, ctx->time + d->reset)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (!ngx_rl_headers_wait(d)) {
        return NGX_OK;
    }

    return ngx_rl_header_number(ctx, NGX_RL_H_RETRY, d->retry_after);
}


/*
 * RateLimit-Policy: "ip";q=100;w=20, "user";q=1000;w=100
 * RateLimit: "ip";r=7;t=3
 *
 * Structured fields: a list of strings with integer parameters.
 */

static ngx_int_t
ngx_rl_headers_draft(ngx_rl_ctx_t *ctx)
{
    u_char             *p, *start;
    uint64_t            r, t;
    ngx_str_t          *name;
    ngx_rl_decision_t  *d;

    ngx_rl_headers_remove(ctx, NGX_RL_H_POLICY, NGX_RL_H_RATELIMIT);

    if (ngx_rl_headers_policy(ctx) != NGX_OK) {
        return NGX_ERROR;
    }

    d = &ctx->decision;

    if (d->limit == 0) {
        return NGX_OK;
    }

    name = &ctx->shown->limit->name;

    p = ngx_pnalloc(ctx->request->pool, ngx_rl_quote_size(name->len)
                    + sizeof(";r=;t=") + 2 * NGX_INT64_LEN);
    if (p == NULL) {
        return NGX_ERROR;
    }

    start = p;

    p = ngx_rl_quote(p, name->data, name->len);

    r = d->remaining;

    if (ctx->conf->headers & NGX_RL_HEADERS_DRAFT_11) {
        t = ngx_rl_headers_effective(ctx, &r);

    } else {
        t = ngx_rl_headers_wait(d) ? d->retry_after : d->reset;
    }

    p = ngx_sprintf(p, ";r=%uL", r);

    if (t != NGX_RL_NEVER) {
        p = ngx_sprintf(p, ";t=%uL", t);
    }

    return ngx_rl_header_set(ctx, NGX_RL_H_RATELIMIT, start, p - start);
}


/*
 * The effective window of draft 11.  A client may divide r by t, so this must
 * not be more than q by w: t is the time in which r tokens come back.  On a
 * rejection t is the wait, and r is lowered instead if that is too short.
 */

static uint64_t
ngx_rl_headers_effective(ngx_rl_ctx_t *ctx, uint64_t *left)
{
    uint64_t            w, t;
    ngx_rl_decision_t  *d;

    d = &ctx->decision;
    w = ngx_rl_bucket_span(&ctx->shown->claim.bucket);

    if (w == NGX_RL_NEVER) {
        return NGX_RL_NEVER;
    }

    if (ngx_rl_headers_wait(d)) {
        *left = ngx_min(*left, d->retry_after * d->limit / w);
        return d->retry_after;
    }

    t = (ngx_max(*left, 1) * w + d->limit - 1) / d->limit;

    if (ngx_rl_algorithm_window(ctx->shown->claim.bucket.algorithm)) {
        t = ngx_max(t, d->reset);
    }

    return t;
}


static ngx_int_t
ngx_rl_headers_policy(ngx_rl_ctx_t *ctx)
{
    u_char               *p, *start;
    size_t                len;
    uint64_t              t;
    ngx_str_t            *name;
    ngx_uint_t            i;
    ngx_rl_claim_t       *claim;
    ngx_rl_http_claim_t  *hc;

    len = 0;

    for (i = 0; i < ctx->conf->n; i++) {
        len += ngx_rl_quote_size(ctx->claims[i].limit->name.len)
               + sizeof(";q=;w=, ") + 2 * NGX_INT64_LEN;
    }

    p = ngx_pnalloc(ctx->request->pool, len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    start = p;

    for (i = 0; i < ctx->conf->n; i++) {
        hc = &ctx->claims[i];
        claim = &hc->claim;

        /*
         * Limits that were skipped, invalid, or in a dry run beside enforced
         * ones are not listed.
         */

        if (claim->decision.failure == NGX_RL_CONFIG || hc->key.len == 0
            || (claim->shadow && hc != ctx->shown))
        {
            continue;
        }

        if (p != start) {
            *p++ = ',';
            *p++ = ' ';
        }

        name = &hc->limit->name;

        p = ngx_rl_quote(p, name->data, name->len);

        /* during an outage the limit may be this machine's share */

        p = ngx_sprintf(p, ";q=%uL", claim->decision.limit
                                     ? claim->decision.limit
                                     : claim->bucket.capacity);

        t = ngx_rl_bucket_span(&claim->bucket);

        if (t != NGX_RL_NEVER) {
            p = ngx_sprintf(p, ";w=%uL", t);
        }
    }

    if (p == start) {
        return NGX_OK;
    }

    return ngx_rl_header_set(ctx, NGX_RL_H_POLICY, start, p - start);
}


/* headers that both families have */

static ngx_int_t
ngx_rl_headers_common(ngx_rl_ctx_t *ctx)
{
    const char         *reason;
    ngx_rl_decision_t  *d;

    d = &ctx->decision;

    ngx_rl_headers_remove(ctx, NGX_RL_H_DEGRADED,
                          ngx_rl_headers_wait(d) ? NGX_RL_H_RETRY_AFTER
                                                 : NGX_RL_H_REASON);

    if (d->failure != NGX_RL_OK
        && !(ctx->conf->headers & NGX_RL_HEADERS_HEALTHY))
    {
        reason = ngx_rl_reason_names[ngx_rl_failure_reason(d->failure)];

        if (ngx_rl_header_set(ctx, NGX_RL_H_DEGRADED, "true", 4) != NGX_OK
            || ngx_rl_header_set(ctx, NGX_RL_H_REASON, reason,
                                 ngx_strlen(reason))
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (!ngx_rl_headers_wait(d)) {
        return NGX_OK;
    }

    return ngx_rl_header_number(ctx, NGX_RL_H_RETRY_AFTER, d->retry_after);
}


/*
 * grpc-status: 8
 * grpc-message: rate limit "ip" exceeded
 * grpc-retry-pushback-ms: 3000
 *
 * A client with a retry policy obeys the last one; -1 is "do not retry".
 * nginx's own page does not name the limit, so its place does not either.
 */

static ngx_int_t
ngx_rl_headers_grpc(ngx_rl_ctx_t *ctx)
{
    u_char             *p, *start;
    ngx_str_t          *name;
    ngx_uint_t          closed;
    ngx_rl_decision_t  *d;

    static const char  exceeded[] = "rate limit exceeded";
    static const char  unavailable[] = "rate limit unavailable";

    d = &ctx->decision;
    name = &ctx->shown->limit->name;
    closed = (d->source == NGX_RL_SOURCE_CLOSED);

    p = ngx_pnalloc(ctx->request->pool, sizeof(unavailable) + sizeof(" \"\"")
                    + ngx_rl_percent_size(name->len)
                    + NGX_INT64_LEN + sizeof("000"));
    if (p == NULL) {
        return NGX_ERROR;
    }

    start = p;

    if (closed) {
        p = ngx_cpymem(p, unavailable, sizeof(unavailable) - 1);

    } else if (ctx->conf->body == NGX_RL_BODY_DEFAULT) {
        p = ngx_cpymem(p, exceeded, sizeof(exceeded) - 1);

    } else {
        p = ngx_sprintf(p, "rate limit \"");
        p = ngx_rl_percent(p, name->data, name->len);
        p = ngx_sprintf(p, "\" exceeded");
    }

    if (ngx_rl_header_number(ctx, NGX_RL_H_GRPC_STATUS,
                             closed ? NGX_RL_GRPC_UNAVAILABLE
                                    : NGX_RL_GRPC_EXHAUSTED)
        != NGX_OK
        || ngx_rl_header_set(ctx, NGX_RL_H_GRPC_MESSAGE, start, p - start)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    start = p;

    p = ngx_rl_headers_wait(d) ? ngx_sprintf(p, "%uL000", d->retry_after)
                               : ngx_sprintf(p, "-1");

    return ngx_rl_header_set(ctx, NGX_RL_H_GRPC_PUSHBACK, start, p - start);
}


static ngx_int_t
ngx_rl_headers_expose(ngx_rl_ctx_t *ctx)
{
    u_char           *p, *start;
    size_t            len;
    ngx_str_t        *name;
    ngx_uint_t        i, k, sent;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h, *expose;

    len = 0;
    sent = 0;
    expose = NULL;

    part = &ctx->request->headers_out.headers.part;
    h = part->elts;

    for (i = 0; /* void */ ; i++) {

        if (i >= part->nelts) {
            if (part->next == NULL) {
                break;
            }

            part = part->next;
            h = part->elts;
            i = 0;
        }

        if (h[i].hash == 0) {
            continue;
        }

        /* the headers that this module has set have names of this table */

        for (k = 0; k < NGX_RL_H_EXPOSE; k++) {
            if (h[i].key.data == ngx_rl_headers[k].name.data) {
                sent |= (ngx_uint_t) 1 << k;
                len += sizeof(", ") + h[i].key.len;
            }
        }

        name = &ngx_rl_headers[NGX_RL_H_EXPOSE].name;

        if (h[i].key.len == name->len
            && ngx_strncasecmp(h[i].key.data, name->data, name->len) == 0)
        {
            expose = &h[i];
        }
    }

    if (sent == 0) {
        return NGX_OK;
    }

    p = ngx_pnalloc(ctx->request->pool, (expose ? expose->value.len : 0) + len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    start = p;

    if (expose) {
        p = ngx_cpymem(p, expose->value.data, expose->value.len);
    }

    for (k = 0; k < NGX_RL_H_EXPOSE; k++) {

        if (!(sent & ((ngx_uint_t) 1 << k))) {
            continue;
        }

        if (p != start) {
            *p++ = ',';
            *p++ = ' ';
        }

        p = ngx_cpymem(p, ngx_rl_headers[k].name.data,
                       ngx_rl_headers[k].name.len);
    }

    if (expose == NULL) {
        return ngx_rl_header_set(ctx, NGX_RL_H_EXPOSE, start, p - start);
    }

    expose->value.data = start;
    expose->value.len = p - start;

    return NGX_OK;
}


/* a dry run makes nobody wait, and some waits never end */

static ngx_uint_t
ngx_rl_headers_wait(ngx_rl_decision_t *d)
{
    return d->retry_after && d->retry_after != NGX_RL_NEVER
           && d->outcome != NGX_RL_REJECTED_DRY_RUN;
}


/* removes the headers from "first" to "last", in any case of letters */

static void
ngx_rl_headers_remove(ngx_rl_ctx_t *ctx, ngx_rl_header_e first,
    ngx_rl_header_e last)
{
    ngx_str_t        *name;
    ngx_uint_t        i, k;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    part = &ctx->request->headers_out.headers.part;
    h = part->elts;

    for (i = 0; /* void */ ; i++) {

        if (i >= part->nelts) {
            if (part->next == NULL) {
                break;
            }

            part = part->next;
            h = part->elts;
            i = 0;
        }

        for (k = first; k <= (ngx_uint_t) last; k++) {
            name = &ngx_rl_headers[k].name;

            if (h[i].key.len == name->len
                && ngx_strncasecmp(h[i].key.data, name->data, name->len) == 0)
            {
                h[i].hash = 0;
                break;
            }
        }
    }
}


static ngx_int_t
ngx_rl_header_number(ngx_rl_ctx_t *ctx, ngx_rl_header_e name, uint64_t number)
{
    char  *p, *digits;

    p = ngx_pnalloc(ctx->request->pool, NGX_RL_NUMBER_LEN);
    if (p == NULL) {
        return NGX_ERROR;
    }

    p += NGX_RL_NUMBER_LEN;
    digits = ngx_rl_number(p, number);

    return ngx_rl_header_set(ctx, name, digits, p - digits);
}


/* the value is not copied */

static ngx_int_t
ngx_rl_header_set(ngx_rl_ctx_t *ctx, ngx_rl_header_e name, const void *value,
    size_t len)
{
    ngx_str_t  text;

    text.data = (u_char *) value;
    text.len = len;

    return ngx_rl_output_header(ctx->request, &ngx_rl_headers[name].name,
                                ngx_rl_headers[name].lowcase, &text);
}
