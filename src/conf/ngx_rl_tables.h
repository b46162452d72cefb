
/*
 * The tables of overrides that the limits of this configuration have.
 */


#ifndef _NGX_RL_TABLES_H_INCLUDED_
#define _NGX_RL_TABLES_H_INCLUDED_


#include "conf/ngx_rl_conf.h"


/* adds the shared memory of overrides and the tables, if they are wanted */
ngx_int_t ngx_rl_tables(ngx_conf_t *cf);

/* where a limit is enforced, or else where it is used at all, or NULL */
ngx_rl_use_t *ngx_rl_tables_use(ngx_rl_main_conf_t *rmcf,
    ngx_rl_limit_t *limit);


#endif /* _NGX_RL_TABLES_H_INCLUDED_ */
