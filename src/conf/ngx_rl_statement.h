
/*
 * Messages about places of a configuration, with file and line, once it has
 * been parsed.  Only while a configuration is loaded.
 */


#ifndef _NGX_RL_STATEMENT_H_INCLUDED_
#define _NGX_RL_STATEMENT_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_rl_conf.h"
#include "conf/ngx_rl_scan.h"


/* the block that a conf was made for; NULL: not known */
ngx_rl_statement_t *ngx_rl_statement_of(ngx_conf_t *cf,
    ngx_rl_loc_conf_t *conf);

/* all that is written; NULL: not known */
ngx_rl_statement_t *ngx_rl_statement_root(ngx_conf_t *cf);

/*
 * Makes ngx_conf_log_error() show where a directive stands, by "file" instead
 * of cf->conf_file, which is to be restored
 */
void ngx_rl_statement_set(ngx_conf_t *cf,
    ngx_rl_loc_conf_t *conf, const char *directive, ngx_conf_file_t *file);

/*
 * Logs an error about a directive, which is looked for in the block of the conf
 * and those around it.  If it is not there, the place is that of the block.
 */
void ngx_cdecl ngx_rl_statement_error(ngx_conf_t *cf,
    ngx_rl_loc_conf_t *conf, const char *directive, const char *fmt, ...);


#endif /* _NGX_RL_STATEMENT_H_INCLUDED_ */
