
/*
 * Headers are set when a response is sent, not when it is decided: what a
 * handler pushes gets lost in error_page and other internal redirects.
 *
 * A backend may have a limiter too.  All headers of the family that it sent go,
 * also those that we have no value for: its numbers must not stand beside ours
 * as if they told of one limit.  Its Retry-After stays unless there is one of
 * ours, as it may be about something else.
 */


#include "ngx_http_ratelimit_headers.h"
#include "ngx_http_ratelimit_handler.h"


/* the family, and Retry-After as the last one */

typedef enum {
    NGX_HTTP_RATELIMIT_H_LIMIT = 0,
    NGX_HTTP_RATELIMIT_H_REMAINING,
    NGX_HTTP_RATELIMIT_H_RESET,
    NGX_HTTP_RATELIMIT_H_RETRY,
    NGX_HTTP_RATELIMIT_H_DEGRADED,
    NGX_HTTP_RATELIMIT_H_REASON,
    NGX_HTTP_RATELIMIT_H_FAMILY,           /* how many they are */
    NGX_HTTP_RATELIMIT_H_RETRY_AFTER = NGX_HTTP_RATELIMIT_H_FAMILY,
    NGX_HTTP_RATELIMIT_H_ALL
} ngx_http_ratelimit_header_e;


static ngx_int_t ngx_http_ratelimit_header_filter(ngx_http_request_t *r);
static void ngx_http_ratelimit_headers_remove(ngx_http_request_t *r,
    ngx_uint_t n);
static ngx_int_t ngx_http_ratelimit_header_number(ngx_http_request_t *r,
    ngx_http_ratelimit_header_e name, uint64_t number);
static ngx_int_t ngx_http_ratelimit_header_set(ngx_http_request_t *r,
    ngx_http_ratelimit_header_e name, const char *value, size_t len);


static ngx_http_output_header_filter_pt  ngx_http_next_header_filter;


static ngx_str_t  ngx_http_ratelimit_header_names[] = {
    ngx_string("X-RateLimit-Limit"),
    ngx_string("X-RateLimit-Remaining"),
    ngx_string("X-RateLimit-Reset"),
    ngx_string("X-RateLimit-Retry-After"),
    ngx_string("X-RateLimit-Degraded"),
    ngx_string("X-RateLimit-Degraded-Reason"),
    ngx_string("Retry-After")
};


void
ngx_http_ratelimit_headers_init(void)
{
    ngx_http_next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_http_ratelimit_header_filter;
}


static ngx_int_t
ngx_http_ratelimit_header_filter(ngx_http_request_t *r)
{
    ngx_uint_t                      retry;
    const char                     *reason;
    ngx_http_ratelimit_ctx_t       *ctx;
    ngx_http_ratelimit_decision_t  *d;

    if (r != r->main) {
        return ngx_http_next_header_filter(r);
    }

    ctx = ngx_http_ratelimit_get_ctx(r);

    if (ctx == NULL || !ctx->done
        || ctx->decision.outcome == NGX_HTTP_RATELIMIT_SKIPPED
        || ctx->conf->headers == NGX_HTTP_RATELIMIT_HEADERS_OFF)
    {
        return ngx_http_next_header_filter(r);
    }

    d = &ctx->decision;

    /* a dry run tells nobody to wait */

    retry = d->retry_after && d->retry_after != NGX_HTTP_RATELIMIT_NEVER
            && d->outcome != NGX_HTTP_RATELIMIT_REJECTED_DRY_RUN;

    ngx_http_ratelimit_headers_remove(r,
                                      retry ? NGX_HTTP_RATELIMIT_H_ALL
                                            : NGX_HTTP_RATELIMIT_H_FAMILY);

    if (d->outcome == NGX_HTTP_RATELIMIT_DEGRADED) {

        reason = ngx_http_ratelimit_failure_reason(d->failure);

        if (ngx_http_ratelimit_header_set(r, NGX_HTTP_RATELIMIT_H_DEGRADED,
                                          "true", sizeof("true") - 1)
            != NGX_OK
            || ngx_http_ratelimit_header_set(r, NGX_HTTP_RATELIMIT_H_REASON,
                                             reason, ngx_strlen(reason))
               != NGX_OK)
        {
            return NGX_ERROR;
        }

    } else {

        if (ngx_http_ratelimit_header_number(r, NGX_HTTP_RATELIMIT_H_LIMIT,
                                             d->limit)
            != NGX_OK
            || ngx_http_ratelimit_header_number(r,
                                                NGX_HTTP_RATELIMIT_H_REMAINING,
                                                d->remaining)
               != NGX_OK)
        {
            return NGX_ERROR;
        }

        if (d->reset != NGX_HTTP_RATELIMIT_NEVER
            && ngx_http_ratelimit_header_number(r, NGX_HTTP_RATELIMIT_H_RESET,
                                                ctx->time + d->reset)
               != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (retry
        && (ngx_http_ratelimit_header_number(r,
                                             NGX_HTTP_RATELIMIT_H_RETRY_AFTER,
                                             d->retry_after)
            != NGX_OK
            || ngx_http_ratelimit_header_number(r, NGX_HTTP_RATELIMIT_H_RETRY,
                                                d->retry_after)
               != NGX_OK))
    {
        return NGX_ERROR;
    }

    return ngx_http_next_header_filter(r);
}


/* the first n of the names, however a backend spelt them */

static void
ngx_http_ratelimit_headers_remove(ngx_http_request_t *r, ngx_uint_t n)
{
    ngx_str_t        *name;
    ngx_uint_t        i, k;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    name = ngx_http_ratelimit_header_names;

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

        for (k = 0; k < n; k++) {
            if (h[i].key.len == name[k].len
                && ngx_strncasecmp(h[i].key.data, name[k].data, name[k].len)
                   == 0)
            {
                h[i].hash = 0;
                break;
            }
        }
    }
}


static ngx_int_t
ngx_http_ratelimit_header_number(ngx_http_request_t *r,
    ngx_http_ratelimit_header_e name, uint64_t number)
{
    u_char  *p;

    p = ngx_pnalloc(r->pool, NGX_INT64_LEN);
    if (p == NULL) {
        return NGX_ERROR;
    }

    return ngx_http_ratelimit_header_set(r, name, (char *) p,
                                         ngx_sprintf(p, "%uL", number) - p);
}


/* the value is not copied */

static ngx_int_t
ngx_http_ratelimit_header_set(ngx_http_request_t *r,
    ngx_http_ratelimit_header_e name, const char *value, size_t len)
{
    ngx_table_elt_t  *h;

    h = ngx_list_push(&r->headers_out.headers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    h->hash = 1;
    h->key = ngx_http_ratelimit_header_names[name];
    h->value.data = (u_char *) value;
    h->value.len = len;
#if (nginx_version >= 1023000)
    h->next = NULL;
#endif

    h->lowcase_key = ngx_pnalloc(r->pool, h->key.len);
    if (h->lowcase_key == NULL) {
        h->hash = 0;
        return NGX_ERROR;
    }

    ngx_strlow(h->lowcase_key, h->key.data, h->key.len);

    return NGX_OK;
}
