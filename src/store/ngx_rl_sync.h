
/*
 * Keeps the tables of overrides on this machine the same as those in Redis.
 *
 * A table in Redis is a hash: a field for each key, whose value is the text of
 * the override, and the field "" for the version, any text that changes with
 * the table.
 */


#ifndef _NGX_RL_SYNC_H_INCLUDED_
#define _NGX_RL_SYNC_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "memory/ngx_rl_zone.h"
#include "pure/ngx_rl_resp.h"
#include "topology/ngx_rl_route.h"
#include "topology/ngx_rl_table.h"


/* "tables" are pointers; NGX_ERROR: no memory */
ngx_int_t ngx_rl_sync_init(ngx_cycle_t *cycle, ngx_rl_overrides_t *overrides,
    ngx_rl_zone_t *zone, ngx_array_t *tables);
void ngx_rl_sync_exit(void);

/* the server that has the table, which must have a home */
ngx_rl_server_t *ngx_rl_sync_home(ngx_rl_table_conf_t *conf);

/* write commands that change a table in Redis, each with a new version */
void ngx_rl_sync_format_set(ngx_rl_resp_t *resp, ngx_rl_table_conf_t *conf,
    ngx_str_t *key, ngx_str_t *text);
void ngx_rl_sync_format_remove(ngx_rl_resp_t *resp, ngx_rl_table_conf_t *conf,
    ngx_str_t *key);
void ngx_rl_sync_format_touch(ngx_rl_resp_t *resp, ngx_rl_table_conf_t *conf);

/*
 * Applies an override on this machine; "scan" as of ngx_rl_overrides_put(),
 * which also says what is returned.  Resets the key where the override says so.
 */
ngx_int_t ngx_rl_sync_apply(ngx_rl_table_conf_t *conf, ngx_str_t *key,
    ngx_str_t *text, ngx_uint_t scan);


#endif /* _NGX_RL_SYNC_H_INCLUDED_ */
