
/*
 * Figures in the text format of Prometheus, or as JSON:
 *
 *     nginx_ratelimit_zone_keys 42
 *     "nginx_ratelimit_zone_keys": [{"value": 42}]
 *
 * All samples of one name are written one after the other.
 */


#ifndef _NGX_RL_EXPOSITION_H_INCLUDED_
#define _NGX_RL_EXPOSITION_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>


typedef struct {
    const char  *name;
    ngx_str_t    value;
} ngx_rl_label_t;


typedef struct {
    ngx_http_request_t  *request;
    ngx_chain_t         *out;
    ngx_chain_t        **last;
    ngx_buf_t           *buf;
    const char          *name;      /* of the samples of JSON so far */
    const char          *suffix;
    unsigned             json:1;
    unsigned             failed:1;  /* no memory: nothing more is written */
} ngx_rl_exposition_t;


/* in the format that the request asks for */
void ngx_rl_exposition_init(ngx_rl_exposition_t *x, ngx_http_request_t *r);

/* before the first sample of a family */
void ngx_rl_exposition_family(ngx_rl_exposition_t *x, const char *name,
    const char *type, const char *help);

/* the suffix is "_bucket", "_sum" or "_count" of a histogram, or "" */
void ngx_rl_exposition_sample(ngx_rl_exposition_t *x, const char *name,
    const char *suffix, ngx_rl_label_t *labels, ngx_uint_t n, uint64_t value);

/* a value in microseconds, written in seconds */
void ngx_rl_exposition_seconds(ngx_rl_exposition_t *x, const char *name,
    const char *suffix, ngx_rl_label_t *labels, ngx_uint_t n, uint64_t us);

/* the response; returns what a content handler returns */
ngx_int_t ngx_rl_exposition_send(ngx_rl_exposition_t *x);

void ngx_rl_label_set(ngx_rl_label_t *label, const char *name,
    const char *value);


#endif /* _NGX_RL_EXPOSITION_H_INCLUDED_ */
