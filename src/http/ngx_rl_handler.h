
/*
 * The handlers of the phases.
 */


#ifndef _NGX_RL_HANDLER_H_INCLUDED_
#define _NGX_RL_HANDLER_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>


/* "ratelimit_phase" says which of the two acts */
ngx_int_t ngx_rl_access_handler(ngx_http_request_t *r);
ngx_int_t ngx_rl_precontent_handler(ngx_http_request_t *r);


#endif /* _NGX_RL_HANDLER_H_INCLUDED_ */
