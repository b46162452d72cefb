
/*
 * The variables $ratelimit_...
 */


#ifndef _NGX_RL_VARIABLES_H_INCLUDED_
#define _NGX_RL_VARIABLES_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>


ngx_int_t ngx_rl_add_variables(ngx_conf_t *cf);

/* NGX_ERROR, with an error logged: a variable names a limit that is none */
ngx_int_t ngx_rl_variables_check(ngx_conf_t *cf);


#endif /* _NGX_RL_VARIABLES_H_INCLUDED_ */
