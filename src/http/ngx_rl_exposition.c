
#include "http/ngx_rl_exposition.h"
#include "pure/ngx_rl_text.h"


#define NGX_RL_EXPOSITION_BLOCK   16384
#define NGX_RL_EXPOSITION_SAMPLE  256     /* without its labels */


static u_char *ngx_rl_exposition_open(ngx_rl_exposition_t *x, const char *name,
    const char *suffix, ngx_rl_label_t *labels, ngx_uint_t n);
static u_char *ngx_rl_exposition_room(ngx_rl_exposition_t *x, size_t size);


void
ngx_rl_exposition_init(ngx_rl_exposition_t *x, ngx_http_request_t *r)
{
    ngx_str_t  format;

    ngx_memzero(x, sizeof(ngx_rl_exposition_t));

    x->request = r;
    x->last = &x->out;
    x->json = ngx_http_arg(r, (u_char *) "format", 6, &format) == NGX_OK
              && format.len == 4 && ngx_strncmp(format.data, "json", 4) == 0;
}


void
ngx_rl_exposition_family(ngx_rl_exposition_t *x, const char *name,
    const char *type, const char *help)
{
    u_char  *p;

    if (x->json) {
        return;
    }

    p = ngx_rl_exposition_room(x, 2 * ngx_strlen(name) + ngx_strlen(type)
                                  + ngx_strlen(help)
                                  + sizeof("# HELP  \n# TYPE  \n"));
    if (p) {
        x->buf->last = ngx_sprintf(p, "# HELP %s %s\n# TYPE %s %s\n",
                                   name, help, name, type);
    }
}


void
ngx_rl_exposition_sample(ngx_rl_exposition_t *x, const char *name,
    const char *suffix, ngx_rl_label_t *labels, ngx_uint_t n, uint64_t value)
{
    u_char  *p;

    p = ngx_rl_exposition_open(x, name, suffix, labels, n);

    if (p) {
        x->buf->last = ngx_sprintf(p, x->json ? "%uL}" : "%uL\n", value);
    }
}


void
ngx_rl_exposition_seconds(ngx_rl_exposition_t *x, const char *name,
    const char *suffix, ngx_rl_label_t *labels, ngx_uint_t n, uint64_t us)
{
    u_char  *p;

    p = ngx_rl_exposition_open(x, name, suffix, labels, n);

    if (p) {
        x->buf->last = ngx_sprintf(p, x->json ? "%uL.%06uL}" : "%uL.%06uL\n",
                                   us / 1000000, us % 1000000);
    }
}


/* all of a sample before its value */

static u_char *
ngx_rl_exposition_open(ngx_rl_exposition_t *x, const char *name,
    const char *suffix, ngx_rl_label_t *labels, ngx_uint_t n)
{
    u_char     *p;
    size_t      size;
    ngx_uint_t  i;

    size = NGX_RL_EXPOSITION_SAMPLE;

    for (i = 0; i < n; i++) {
        size += ngx_strlen(labels[i].name) + sizeof("\"\": , ")
                + ngx_rl_quote_size(labels[i].value.len);
    }

    p = ngx_rl_exposition_room(x, size);
    if (p == NULL) {
        return NULL;
    }

    if (x->json) {

        if (x->name && ngx_strcmp(x->name, name) == 0
            && ngx_strcmp(x->suffix, suffix) == 0)
        {
            p = ngx_sprintf(p, ",\n{");

        } else {
            p = ngx_sprintf(p, "%s\n\"%s%s\": [\n{", x->name ? "\n]," : "{",
                            name, suffix);
        }

        x->name = name;
        x->suffix = suffix;

    } else {
        p = ngx_sprintf(p, n ? "%s%s{" : "%s%s ", name, suffix);
    }

    for (i = 0; i < n; i++) {
        p = ngx_sprintf(p, x->json ? "\"%s\": " : i ? ",%s=" : "%s=",
                        labels[i].name);
        p = ngx_rl_quote(p, labels[i].value.data, labels[i].value.len);

        if (x->json) {
            *p++ = ',';
            *p++ = ' ';
        }
    }

    if (x->json) {
        p = ngx_cpymem(p, "\"value\": ", sizeof("\"value\": ") - 1);

    } else if (n) {
        *p++ = '}';
        *p++ = ' ';
    }

    return p;
}


static u_char *
ngx_rl_exposition_room(ngx_rl_exposition_t *x, size_t size)
{
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    if (x->failed) {
        return NULL;
    }

    if (x->buf && (size_t) (x->buf->end - x->buf->last) >= size) {
        return x->buf->last;
    }

    b = ngx_create_temp_buf(x->request->pool,
                            ngx_max(size, NGX_RL_EXPOSITION_BLOCK));
    cl = ngx_alloc_chain_link(x->request->pool);

    if (b == NULL || cl == NULL) {
        x->failed = 1;
        return NULL;
    }

    cl->buf = b;
    cl->next = NULL;

    *x->last = cl;
    x->last = &cl->next;
    x->buf = b;

    return b->last;
}


ngx_int_t
ngx_rl_exposition_send(ngx_rl_exposition_t *x)
{
    off_t                length;
    u_char              *p;
    ngx_int_t            rc;
    ngx_chain_t         *cl;
    ngx_http_request_t  *r;

    r = x->request;

    if (x->json) {
        p = ngx_rl_exposition_room(x, sizeof("\n]\n}\n"));

        if (p) {
            x->buf->last = ngx_sprintf(p, "\n]\n}\n");
        }
    }

    if (x->failed) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    length = 0;

    for (cl = x->out; cl; cl = cl->next) {
        length += ngx_buf_size(cl->buf);
    }

    x->buf->last_buf = (r == r->main);
    x->buf->last_in_chain = 1;

    if (x->json) {
        ngx_str_set(&r->headers_out.content_type, "application/json");

    } else {
        ngx_str_set(&r->headers_out.content_type,
                    "text/plain; version=0.0.4; charset=utf-8");
    }

    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;
    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = length;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    return ngx_http_output_filter(r, x->out);
}


void
ngx_rl_label_set(ngx_rl_label_t *label, const char *name, const char *value)
{
    label->name = name;
    label->value.data = (u_char *) value;
    label->value.len = ngx_strlen(value);
}
