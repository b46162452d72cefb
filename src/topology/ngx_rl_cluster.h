
/*
 * A Redis Cluster as a worker knows it: its nodes, and which node serves which
 * slot.
 */


#ifndef _NGX_RL_CLUSTER_H_INCLUDED_
#define _NGX_RL_CLUSTER_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "topology/ngx_rl_server.h"


typedef struct ngx_rl_cluster_s  ngx_rl_cluster_t;


/* starts to look for the map; NULL: no memory */
ngx_rl_cluster_t *ngx_rl_cluster_create(ngx_cycle_t *cycle,
    ngx_rl_server_conf_t *conf, ngx_rl_zone_t *zone, ngx_rl_stats_t *stats);

/*
 * The node that serves the key, as far as is known, and its slot; never NULL.
 */
ngx_rl_server_t *ngx_rl_cluster_find(
    ngx_rl_cluster_t *cluster, const char *key, size_t len, ngx_uint_t *slot);

/* at process exit */
void ngx_rl_cluster_exit(ngx_rl_cluster_t *cluster);


#endif /* _NGX_RL_CLUSTER_H_INCLUDED_ */
