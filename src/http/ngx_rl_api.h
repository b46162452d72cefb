
/*
 * "ratelimit_api": limits, keys and servers of this machine as JSON, for people
 * and programs.
 */


#ifndef _NGX_RL_API_H_INCLUDED_
#define _NGX_RL_API_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>


/* the handler of the directive */
char *ngx_rl_api(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);


#endif /* _NGX_RL_API_H_INCLUDED_ */
