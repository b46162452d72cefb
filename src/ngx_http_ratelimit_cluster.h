
/*
 * A Redis Cluster, as a worker knows it: its nodes, and which of them serves
 * which slot.
 */


#ifndef _NGX_HTTP_RATELIMIT_CLUSTER_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_CLUSTER_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_ratelimit_link.h"


typedef struct ngx_http_ratelimit_cluster_s  ngx_http_ratelimit_cluster_t;


/* NULL: no memory; begins to look for the map */
ngx_http_ratelimit_cluster_t *ngx_http_ratelimit_cluster_create(
    ngx_cycle_t *cycle, ngx_http_ratelimit_peer_t *peer,
    ngx_http_ratelimit_zone_t *zone, ngx_http_ratelimit_stats_t *stats);

/* where the key lives, as far as is known, and its slot; never NULL */
ngx_http_ratelimit_link_t *ngx_http_ratelimit_cluster_find(
    ngx_http_ratelimit_cluster_t *cluster, const char *key, size_t len,
    ngx_uint_t *slot);

/* for the end of the process */
void ngx_http_ratelimit_cluster_exit(ngx_http_ratelimit_cluster_t *cluster);


#endif /* _NGX_HTTP_RATELIMIT_CLUSTER_H_INCLUDED_ */
