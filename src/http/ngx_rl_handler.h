
/*
 * The phase handlers.
 */


#ifndef _NGX_RL_HANDLER_H_INCLUDED_
#define _NGX_RL_HANDLER_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>


/* "ratelimit_phase" selects which of the two is active */
ngx_int_t ngx_rl_access_handler(ngx_http_request_t *r);
ngx_int_t ngx_rl_precontent_handler(ngx_http_request_t *r);

/*
 * Watches the client's connection while a request waits, so that nginx notices
 * when the client leaves.  Returns NGX_AGAIN, or an error for the phase.
 */
ngx_int_t ngx_rl_handler_park(ngx_http_request_t *r);


#endif /* _NGX_RL_HANDLER_H_INCLUDED_ */
