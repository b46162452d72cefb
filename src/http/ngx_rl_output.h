
/*
 * A response that this module writes itself: text that grows in a chain of
 * buffers and is sent at once.
 */


#ifndef _NGX_RL_OUTPUT_H_INCLUDED_
#define _NGX_RL_OUTPUT_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>


typedef struct {
    ngx_http_request_t  *request;
    ngx_chain_t         *out;
    ngx_chain_t        **last;
    ngx_buf_t           *buf;
    unsigned             failed:1;  /* out of memory: writes no more */
} ngx_rl_output_t;


void ngx_rl_output_init(ngx_rl_output_t *output, ngx_http_request_t *r);

/*
 * Where to write up to "size" bytes, or NULL if there is no memory.  The writer
 * moves output->buf->last.
 */
u_char *ngx_rl_output_room(ngx_rl_output_t *output, size_t size);

/* copies a text */
void ngx_rl_output_text(ngx_rl_output_t *output, const ngx_str_t *text);

/* adds a header to the response; the strings are not copied */
ngx_int_t ngx_rl_output_header(ngx_http_request_t *r, ngx_str_t *key,
    u_char *lowcase_key, ngx_str_t *value);

/* sends the response; returns what a content handler must return */
ngx_int_t ngx_rl_output_send(ngx_rl_output_t *output, ngx_uint_t status,
    ngx_str_t *type);


#endif /* _NGX_RL_OUTPUT_H_INCLUDED_ */
