
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

#include "http/ngx_rl_output.h"


typedef struct {
    const char  *name;
    ngx_str_t    value;
} ngx_rl_label_t;


typedef struct {
    ngx_rl_output_t  output;
    const char      *name;    /* of the current JSON samples */
    const char      *suffix;
    unsigned         json:1;
} ngx_rl_exposition_t;


/* uses the format that the request asks for */
void ngx_rl_exposition_init(ngx_rl_exposition_t *x, ngx_http_request_t *r);

/* before the first sample of a family */
void ngx_rl_exposition_family(ngx_rl_exposition_t *x, const char *name,
    const char *type, const char *help);

/* "suffix" is "_bucket", "_sum" or "_count" of a histogram, or "" */
void ngx_rl_exposition_sample(ngx_rl_exposition_t *x, const char *name,
    const char *suffix, ngx_rl_label_t *labels, ngx_uint_t n, uint64_t value);

/* a value in microseconds, written in seconds */
void ngx_rl_exposition_seconds(ngx_rl_exposition_t *x, const char *name,
    const char *suffix, ngx_rl_label_t *labels, ngx_uint_t n, uint64_t us);

/* sends the response; returns what a content handler must return */
ngx_int_t ngx_rl_exposition_send(ngx_rl_exposition_t *x);

void ngx_rl_label_set(ngx_rl_label_t *label, const char *name,
    const char *value);


#endif /* _NGX_RL_EXPOSITION_H_INCLUDED_ */
