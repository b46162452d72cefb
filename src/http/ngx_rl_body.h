
/*
 * The response to a request that is rejected: a status alone, a body for
 * "ratelimit_body json" and "problem", or the headers that gRPC wants.
 */


#ifndef _NGX_RL_BODY_H_INCLUDED_
#define _NGX_RL_BODY_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "http/ngx_rl_ctx.h"


/*
 * Sends the whole response, or leaves it to nginx and its "error_page";
 * returns what a phase handler must return.
 */
ngx_int_t ngx_rl_body_send(ngx_http_request_t *r, ngx_rl_ctx_t *ctx);


#endif /* _NGX_RL_BODY_H_INCLUDED_ */
