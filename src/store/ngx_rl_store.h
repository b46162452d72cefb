
/*
 * The store: everything that a process needs to call Redis.
 */


#ifndef _NGX_RL_STORE_H_INCLUDED_
#define _NGX_RL_STORE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "memory/ngx_rl_stats.h"
#include "memory/ngx_rl_zone.h"


/* makes the connections of this process; "confs" lists all servers */
ngx_int_t ngx_rl_store_init(ngx_cycle_t *cycle, ngx_array_t *confs,
    ngx_rl_zone_t *zone, ngx_rl_stats_t *stats);
void ngx_rl_store_exit(void);


#endif /* _NGX_RL_STORE_H_INCLUDED_ */
