
/*
 * Headers are set when a response is sent, not when it is decided: what a
 * handler pushes gets lost in error_page and other internal redirects.  A
 * header of the same name that a backend sent is replaced.
 */


#include "ngx_http_ratelimit_headers.h"
#include "ngx_http_ratelimit_handler.h"


static ngx_int_t ngx_http_ratelimit_header_filter(ngx_http_request_t *r);
static ngx_int_t ngx_http_ratelimit_header_number(ngx_http_request_t *r,
    ngx_str_t *name, uint64_t number);
static ngx_int_t ngx_http_ratelimit_header_set(ngx_http_request_t *r,
    ngx_str_t *name, ngx_str_t *value);
static void ngx_http_ratelimit_header_remove(ngx_http_request_t *r,
    ngx_str_t *name);


static ngx_http_output_header_filter_pt  ngx_http_next_header_filter;


static ngx_str_t  ngx_http_ratelimit_h_limit = ngx_string("X-RateLimit-Limit");
static ngx_str_t  ngx_http_ratelimit_h_remaining =
    ngx_string("X-RateLimit-Remaining");
static ngx_str_t  ngx_http_ratelimit_h_reset = ngx_string("X-RateLimit-Reset");
static ngx_str_t  ngx_http_ratelimit_h_retry =
    ngx_string("X-RateLimit-Retry-After");
static ngx_str_t  ngx_http_ratelimit_h_retry_after = ngx_string("Retry-After");
static ngx_str_t  ngx_http_ratelimit_h_degraded =
    ngx_string("X-RateLimit-Degraded");
static ngx_str_t  ngx_http_ratelimit_h_reason =
    ngx_string("X-RateLimit-Degraded-Reason");


void
ngx_http_ratelimit_headers_init(void)
{
    ngx_http_next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_http_ratelimit_header_filter;
}


static ngx_int_t
ngx_http_ratelimit_header_filter(ngx_http_request_t *r)
{
    ngx_str_t                       value;
    ngx_http_ratelimit_ctx_t       *ctx;
    ngx_http_ratelimit_decision_t  *d;

    static ngx_str_t  yes = ngx_string("true");

    if (r != r->main) {
        return ngx_http_next_header_filter(r);
    }

    ctx = ngx_http_ratelimit_get_ctx(r);

    if (ctx == NULL || !ctx->done
        || ctx->conf->headers == NGX_HTTP_RATELIMIT_HEADERS_OFF)
    {
        return ngx_http_next_header_filter(r);
    }

    d = &ctx->decision;

    switch (d->outcome) {

    case NGX_HTTP_RATELIMIT_SKIPPED:
        break;

    case NGX_HTTP_RATELIMIT_DEGRADED:

        value.data = (u_char *) ngx_http_ratelimit_failure_reason(d->failure);
        value.len = ngx_strlen(value.data);

        if (ngx_http_ratelimit_header_set(r, &ngx_http_ratelimit_h_degraded,
                                          &yes)
            != NGX_OK
            || ngx_http_ratelimit_header_set(r, &ngx_http_ratelimit_h_reason,
                                             &value)
               != NGX_OK)
        {
            return NGX_ERROR;
        }

        break;

    default:

        if (ngx_http_ratelimit_header_number(r, &ngx_http_ratelimit_h_limit,
                                             d->limit)
            != NGX_OK
            || ngx_http_ratelimit_header_number(r,
                                  &ngx_http_ratelimit_h_remaining,
                                  d->remaining)
               != NGX_OK)
        {
            return NGX_ERROR;
        }

        if (d->reset != NGX_HTTP_RATELIMIT_NEVER
            && ngx_http_ratelimit_header_number(r, &ngx_http_ratelimit_h_reset,
                                                ctx->time + d->reset)
               != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    /* a dry run tells nobody to wait */

    if (d->retry_after && d->retry_after != NGX_HTTP_RATELIMIT_NEVER
        && d->outcome != NGX_HTTP_RATELIMIT_REJECTED_DRY_RUN)
    {
        if (ngx_http_ratelimit_header_number(r,
                                  &ngx_http_ratelimit_h_retry_after,
                                  d->retry_after)
            != NGX_OK
            || ngx_http_ratelimit_header_number(r, &ngx_http_ratelimit_h_retry,
                                                d->retry_after)
               != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return ngx_http_next_header_filter(r);
}


static ngx_int_t
ngx_http_ratelimit_header_number(ngx_http_request_t *r, ngx_str_t *name,
    uint64_t number)
{
    ngx_str_t  value;

    value.data = ngx_pnalloc(r->pool, NGX_INT64_LEN);
    if (value.data == NULL) {
        return NGX_ERROR;
    }

    value.len = ngx_sprintf(value.data, "%uL", number) - value.data;

    return ngx_http_ratelimit_header_set(r, name, &value);
}


static ngx_int_t
ngx_http_ratelimit_header_set(ngx_http_request_t *r, ngx_str_t *name,
    ngx_str_t *value)
{
    ngx_table_elt_t  *h;

    ngx_http_ratelimit_header_remove(r, name);

    h = ngx_list_push(&r->headers_out.headers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    h->hash = 1;
    h->key = *name;
    h->value = *value;
#if (nginx_version >= 1023000)
    h->next = NULL;
#endif

    h->lowcase_key = ngx_pnalloc(r->pool, name->len);
    if (h->lowcase_key == NULL) {
        h->hash = 0;
        return NGX_ERROR;
    }

    ngx_strlow(h->lowcase_key, name->data, name->len);

    return NGX_OK;
}


static void
ngx_http_ratelimit_header_remove(ngx_http_request_t *r, ngx_str_t *name)
{
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    part = &r->headers_out.headers.part;
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

        if (h[i].hash && h[i].key.len == name->len
            && ngx_strncasecmp(h[i].key.data, name->data, name->len) == 0)
        {
            h[i].hash = 0;
        }
    }
}
