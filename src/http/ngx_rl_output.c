
#include "http/ngx_rl_output.h"


#define NGX_RL_OUTPUT_BLOCK  16384


void
ngx_rl_output_init(ngx_rl_output_t *output, ngx_http_request_t *r)
{
    ngx_memzero(output, sizeof(ngx_rl_output_t));

    output->request = r;
    output->last = &output->out;
}


u_char *
ngx_rl_output_room(ngx_rl_output_t *output, size_t size)
{
    ngx_buf_t    *b;
    ngx_pool_t   *pool;
    ngx_chain_t  *cl;

    if (output->failed) {
        return NULL;
    }

    if (output->buf && (size_t) (output->buf->end - output->buf->last) >= size)
    {
        return output->buf->last;
    }

    pool = output->request->pool;

    b = ngx_create_temp_buf(pool, ngx_max(size, NGX_RL_OUTPUT_BLOCK));
    cl = ngx_alloc_chain_link(pool);

    if (b == NULL || cl == NULL) {
        output->failed = 1;
        return NULL;
    }

    cl->buf = b;
    cl->next = NULL;

    *output->last = cl;
    output->last = &cl->next;
    output->buf = b;

    return b->last;
}


void
ngx_rl_output_text(ngx_rl_output_t *output, const ngx_str_t *text)
{
    u_char  *p;

    p = ngx_rl_output_room(output, text->len);

    if (p) {
        output->buf->last = ngx_cpymem(p, text->data, text->len);
    }
}


ngx_int_t
ngx_rl_output_header(ngx_http_request_t *r, ngx_str_t *key,
    u_char *lowcase_key, ngx_str_t *value)
{
    ngx_table_elt_t  *h;

    h = ngx_list_push(&r->headers_out.headers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    h->hash = 1;
    h->key = *key;
    h->lowcase_key = lowcase_key;
    h->value = *value;
#if (nginx_version >= 1023000)
    h->next = NULL;
#endif

    return NGX_OK;
}


ngx_int_t
ngx_rl_output_send(ngx_rl_output_t *output, ngx_uint_t status, ngx_str_t *type)
{
    off_t                length;
    ngx_int_t            rc;
    ngx_chain_t         *cl;
    ngx_http_request_t  *r;

    r = output->request;

    if (output->failed || output->out == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    length = 0;

    for (cl = output->out; cl; cl = cl->next) {
        length += ngx_buf_size(cl->buf);
    }

    output->buf->last_buf = (r == r->main);
    output->buf->last_in_chain = 1;

    r->headers_out.content_type = *type;
    r->headers_out.content_type_len = type->len;
    r->headers_out.content_type_lowcase = NULL;
    r->headers_out.status = status;
    r->headers_out.content_length_n = length;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    return ngx_http_output_filter(r, output->out);
}
