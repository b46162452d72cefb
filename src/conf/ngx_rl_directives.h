
/*
 * The handlers of the directives.  They return NGX_CONF_OK, or NGX_CONF_ERROR
 * with the reason logged, or the reason for nginx to log.
 */


#ifndef _NGX_RL_DIRECTIVES_H_INCLUDED_
#define _NGX_RL_DIRECTIVES_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_rl_conf.h"


char *ngx_rl_directive_names(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_rl_directive_param(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_rl_directive_enum(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_rl_directive_headers(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_rl_directive_bitmask(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_rl_directive_silence(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_rl_directive_lease(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_rl_directive_share(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_rl_directive_breaker(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_rl_directive_overrides(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_rl_directive_zone(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_rl_directive_prefix(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_rl_directive_number(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_rl_directive_password(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_rl_directive_password_file(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);
char *ngx_rl_directive_networks(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_rl_directive_ssl_passwords(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);


#endif /* _NGX_RL_DIRECTIVES_H_INCLUDED_ */
