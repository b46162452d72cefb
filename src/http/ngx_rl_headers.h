
/*
 * The header filter: adds the decision to the response headers.
 */


#ifndef _NGX_RL_HEADERS_H_INCLUDED_
#define _NGX_RL_HEADERS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>


void ngx_rl_headers_init(void);


#endif /* _NGX_RL_HEADERS_H_INCLUDED_ */
