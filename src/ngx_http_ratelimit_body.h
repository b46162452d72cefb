
/*
 * Bodies of rejections, for "ratelimit_body json" and "problem".
 */


#ifndef _NGX_HTTP_RATELIMIT_BODY_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_BODY_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_http_ratelimit_handler.h"


/* the whole answer; returns what a handler of a phase has to return */
ngx_int_t ngx_http_ratelimit_body_send(ngx_http_request_t *r,
    ngx_http_ratelimit_ctx_t *ctx);


#endif /* _NGX_HTTP_RATELIMIT_BODY_H_INCLUDED_ */
