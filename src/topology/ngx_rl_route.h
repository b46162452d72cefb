
/*
 * Finds the server of a key in all topologies: configured shards, masters that
 * sentinels report, and nodes of a cluster.
 */


#ifndef _NGX_RL_ROUTE_H_INCLUDED_
#define _NGX_RL_ROUTE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "topology/ngx_rl_server.h"


/* makes the servers of this process */
ngx_int_t ngx_rl_route_init(ngx_cycle_t *cycle,
    ngx_array_t *confs, ngx_rl_zone_t *zone, ngx_rl_stats_t *stats);
void ngx_rl_route_exit(void);

/*
 * Keys with the same server and the same part may share a command.  The server
 * lives as long as the process, but a key may move to another server at any
 * moment.
 */
ngx_rl_server_t *ngx_rl_route_find(
    ngx_rl_server_conf_t *conf, const char *key, size_t len, ngx_uint_t *part);

/* the current server of a key that used to live on this one */
ngx_rl_server_t *ngx_rl_route_now(
    ngx_rl_server_t *server, const char *key, size_t len);


#endif /* _NGX_RL_ROUTE_H_INCLUDED_ */
