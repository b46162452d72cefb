
/*
 * Which connection leads to a key, whatever the servers are: named by the
 * configuration, found by sentinels, or nodes of a cluster.
 */


#ifndef _NGX_HTTP_RATELIMIT_TOPOLOGY_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_TOPOLOGY_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_ratelimit_link.h"


/* makes the links of this process */
ngx_int_t ngx_http_ratelimit_topology_init(ngx_cycle_t *cycle,
    ngx_array_t *peers, ngx_http_ratelimit_zone_t *zone,
    ngx_http_ratelimit_stats_t *stats);
void ngx_http_ratelimit_topology_exit(void);

/*
 * Keys that have the same link and the same part can be asked for by one
 * command.  The link lives as long as the process, but a key may have another
 * one in a moment.
 */
ngx_http_ratelimit_link_t *ngx_http_ratelimit_topology_find(
    ngx_http_ratelimit_peer_t *peer, const char *key, size_t len,
    ngx_uint_t *part);


#endif /* _NGX_HTTP_RATELIMIT_TOPOLOGY_H_INCLUDED_ */
