
/*
 * NAME and KEY are percent-encoded, so they are taken from the URI as the
 * client sent it.
 *
 * A request that waits does so with its own write event handler, as other
 * content handlers do, and a cleanup of the main request cancels what is under
 * way.  The request may be a subrequest (SSI, "auth_request", "mirror").
 *
 * Errors are problem+json and say what to do.
 */


#include "http/ngx_rl_api_request.h"
#include "http/ngx_rl_handler.h"


typedef struct {
    ngx_uint_t   status;
    const char  *title;
} ngx_rl_api_title_t;


static ngx_uint_t ngx_rl_api_segments(ngx_str_t *text);
static ngx_int_t ngx_rl_api_problem_send(ngx_rl_api_t *api, ngx_uint_t status,
    const char *field, const char *fmt, va_list args);
static void ngx_rl_api_resume(ngx_http_request_t *r);
static void ngx_rl_api_cleanup(void *data);


static const ngx_rl_api_title_t  ngx_rl_api_titles[] = {
    { NGX_HTTP_BAD_REQUEST, "Bad Request" },
    { NGX_HTTP_FORBIDDEN, "Forbidden" },
    { NGX_HTTP_NOT_FOUND, "Not Found" },
    { NGX_HTTP_NOT_ALLOWED, "Method Not Allowed" },
    { NGX_HTTP_CONFLICT, "Conflict" },
    { NGX_HTTP_REQUEST_ENTITY_TOO_LARGE, "Content Too Large" },
    { NGX_HTTP_UNSUPPORTED_MEDIA_TYPE, "Unsupported Media Type" },
    { NGX_HTTP_SERVICE_UNAVAILABLE, "Service Unavailable" },
    { NGX_HTTP_INSUFFICIENT_STORAGE, "Insufficient Storage" },
    { 0, "Error" }
};


ngx_rl_api_t *
ngx_rl_api_create(ngx_http_request_t *r)
{
    ngx_rl_api_t        *api;
    ngx_http_cleanup_t  *cln;

    api = ngx_pcalloc(r->pool, sizeof(ngx_rl_api_t));
    cln = ngx_http_cleanup_add(r, 0);

    if (api == NULL || cln == NULL) {
        return NULL;
    }

    cln->handler = ngx_rl_api_cleanup;
    cln->data = api;

    api->request = r;
    api->rmcf = ngx_http_get_module_main_conf(r, ngx_http_ratelimit_module);
    ngx_rl_output_init(&api->json.output, r);

    return api;
}


/*
 * The segments of the path behind the name of the location.  An internal
 * redirect has only left the decoded URI.
 */

ngx_int_t
ngx_rl_api_path(ngx_rl_api_t *api)
{
    u_char                    *p, *end, *start, *dst;
    ngx_str_t                  uri, *segment;
    ngx_uint_t                 skip;
    ngx_http_request_t        *r;
    ngx_http_core_loc_conf_t  *clcf;

    r = api->request;
    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    uri = r->internal ? r->uri : r->unparsed_uri;

    end = uri.data + uri.len;

    if (!r->internal) {
        p = ngx_strlchr(uri.data, end, '?');
        end = p ? p : end;
    }

    skip = ngx_rl_api_segments(&clcf->name);
    p = uri.data;

    for ( ;; ) {

        while (p < end && *p == '/') {
            p++;
        }

        if (p == end) {
            return NGX_OK;
        }

        start = p;

        while (p < end && *p != '/') {
            p++;
        }

        if (skip) {
            skip--;
            continue;
        }

        if (api->n == NGX_RL_API_PATH) {
            return NGX_DECLINED;
        }

        segment = &api->path[api->n++];

        dst = ngx_pnalloc(r->pool, p - start);
        if (dst == NULL) {
            return NGX_ERROR;
        }

        segment->data = dst;

        if (r->internal) {
            dst = ngx_cpymem(dst, start, p - start);

        } else {
            ngx_unescape_uri(&dst, &start, p - start, 0);
        }

        segment->len = dst - segment->data;
    }
}


static ngx_uint_t
ngx_rl_api_segments(ngx_str_t *text)
{
    size_t      i;
    ngx_uint_t  n;

    n = 0;

    for (i = 0; i < text->len; i++) {
        n += text->data[i] != '/' && (i == 0 || text->data[i - 1] == '/');
    }

    return n;
}


ngx_int_t
ngx_rl_api_arg(ngx_rl_api_t *api, const char *name, ngx_str_t *value)
{
    u_char  *src, *dst;

    if (ngx_http_arg(api->request, (u_char *) name, ngx_strlen(name), value)
        != NGX_OK)
    {
        return NGX_DECLINED;
    }

    src = value->data;

    dst = ngx_pnalloc(api->request->pool, value->len + 1);
    if (dst == NULL) {
        return NGX_ERROR;
    }

    value->data = dst;
    ngx_unescape_uri(&dst, &src, value->len, 0);
    value->len = dst - value->data;

    return NGX_OK;
}


ngx_int_t
ngx_rl_api_send(ngx_rl_api_t *api, ngx_uint_t status, ngx_str_t *type)
{
    u_char     *p;
    ngx_int_t   rc;

    static ngx_str_t  json = ngx_string("application/json");

    /* or a body that was not read would be the next request */

    rc = ngx_http_discard_request_body(api->request);

    if (rc != NGX_OK) {
        return rc;
    }

    p = ngx_rl_output_room(&api->json.output, 1);

    if (p) {
        *p++ = LF;
        api->json.output.buf->last = p;
    }

    return ngx_rl_output_send(&api->json.output, status, type ? type : &json);
}


ngx_int_t
ngx_rl_api_problem(ngx_rl_api_t *api, ngx_uint_t status, const char *fmt, ...)
{
    va_list    args;
    ngx_int_t  rc;

    va_start(args, fmt);
    rc = ngx_rl_api_problem_send(api, status, NULL, fmt, args);
    va_end(args);

    return rc;
}


ngx_int_t
ngx_rl_api_refuse(ngx_rl_api_t *api, ngx_uint_t status, const char *field,
    const char *fmt, ...)
{
    va_list  args;

    va_start(args, fmt);
    api->rc = ngx_rl_api_problem_send(api, status, field, fmt, args);
    va_end(args);

    return NGX_DECLINED;
}


ngx_int_t
ngx_rl_api_result(ngx_rl_api_t *api, ngx_int_t rc)
{
    return (rc == NGX_ERROR) ? NGX_HTTP_INTERNAL_SERVER_ERROR : api->rc;
}


static ngx_int_t
ngx_rl_api_problem_send(ngx_rl_api_t *api, ngx_uint_t status,
    const char *field, const char *fmt, va_list args)
{
    u_char                     text[NGX_MAX_ERROR_STR];
    ngx_str_t                  detail;
    const ngx_rl_api_title_t  *title;

    static ngx_str_t  problem = ngx_string("application/problem+json");

    detail.data = text;
    detail.len = ngx_vslprintf(text, text + sizeof(text), fmt, args) - text;

    title = ngx_rl_api_titles;

    while (title->status && title->status != status) {
        title++;
    }

    ngx_rl_output_init(&api->json.output, api->request);
    api->json.comma = 0;

    ngx_rl_json_open(&api->json, NULL, '{');
    ngx_rl_json_text(&api->json, "type", "about:blank");
    ngx_rl_json_text(&api->json, "title", title->title);
    ngx_rl_json_number(&api->json, "status", status);
    ngx_rl_json_string(&api->json, "detail", &detail);

    if (field) {
        ngx_rl_json_text(&api->json, "field", field);
    }

    ngx_rl_json_close(&api->json, '{');

    return ngx_rl_api_send(api, status, &problem);
}


ngx_int_t
ngx_rl_api_wait(ngx_rl_api_t *api, ngx_rl_api_pt next,
    ngx_rl_api_cancel_pt cancel)
{
    ngx_int_t            rc;
    ngx_http_request_t  *r;

    r = api->request;

    api->next = next;
    api->cancel = cancel;
    api->waiting = 1;

    if (api->parked) {
        return NGX_DONE;
    }

    rc = ngx_rl_handler_park(r);

    if (rc != NGX_AGAIN) {
        api->waiting = 0;
        cancel(api);
        return rc;
    }

    api->parked = 1;

    r->write_event_handler = ngx_rl_api_resume;
    r->main->count++;

    return NGX_DONE;
}


void
ngx_rl_api_wake(ngx_rl_api_t *api)
{
    ngx_http_request_t  *r;

    r = api->request;

    api->waiting = 0;

    /* a write event is for the request that may write now, perhaps another */

    if (r != r->main) {
        (void) ngx_http_post_request(r, &api->posted);
    }

    ngx_post_event(r->connection->write, &ngx_posted_events);
}


/* other write events may come while the request waits */

static void
ngx_rl_api_resume(ngx_http_request_t *r)
{
    ngx_int_t      rc;
    ngx_rl_api_t  *api;

    api = ngx_rl_api_find(r);

    if (api == NULL || api->waiting) {
        return;
    }

    rc = api->next(api);

    if (api->waiting) {
        return;
    }

    r->write_event_handler = ngx_http_request_empty_handler;

    ngx_http_finalize_request(r, rc);
}


/* subrequests share the cleanups of the main request */

ngx_rl_api_t *
ngx_rl_api_find(ngx_http_request_t *r)
{
    ngx_rl_api_t        *api;
    ngx_http_cleanup_t  *cln;

    for (cln = r->main->cleanup; cln; cln = cln->next) {

        if (cln->handler != ngx_rl_api_cleanup) {
            continue;
        }

        api = cln->data;

        if (api->request == r) {
            return api;
        }
    }

    return NULL;
}


static void
ngx_rl_api_cleanup(void *data)
{
    ngx_rl_api_t  *api = data;

    if (api->waiting) {
        api->waiting = 0;
        api->cancel(api);
    }
}
