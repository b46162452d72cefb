
/*
 * "ratelimit_console": one page that shows what the API of this machine, and
 * those of others, answer.
 */


#ifndef _NGX_RL_CONSOLE_H_INCLUDED_
#define _NGX_RL_CONSOLE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>


/* the handler of the directive */
char *ngx_rl_console(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);

/*
 * Finds the API of each console that does not name one.  Called when all
 * servers are known: an API may stand below its console.
 */
ngx_int_t ngx_rl_console_init(ngx_conf_t *cf);


#endif /* _NGX_RL_CONSOLE_H_INCLUDED_ */
