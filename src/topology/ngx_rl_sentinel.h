
/*
 * Sentinels, and the masters that they report.  A worker has one connection to
 * one of the sentinels, and a server for each master.
 */


#ifndef _NGX_RL_SENTINEL_H_INCLUDED_
#define _NGX_RL_SENTINEL_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "topology/ngx_rl_server.h"


typedef struct ngx_rl_sentinels_s  ngx_rl_sentinels_t;


/* starts to look for the masters; NULL: no memory */
ngx_rl_sentinels_t *ngx_rl_sentinels_create(ngx_cycle_t *cycle,
    ngx_rl_sentinels_conf_t *conf, ngx_rl_zone_t *zone, ngx_rl_stats_t *stats);

/* the master with this number */
ngx_rl_server_t *ngx_rl_sentinels_server(
    ngx_rl_sentinels_t *sentinels, ngx_uint_t i);

/* at process exit; the caller ends the servers */
void ngx_rl_sentinels_exit(ngx_rl_sentinels_t *sentinels);


#endif /* _NGX_RL_SENTINEL_H_INCLUDED_ */
