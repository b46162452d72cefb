
#include "ngx_http_ratelimit_topology.h"
#include "ngx_http_ratelimit_cluster.h"
#include "ngx_http_ratelimit_name.h"
#include "ngx_http_ratelimit_sentinel.h"


/* of a peer, one or the other */

typedef struct {
    ngx_http_ratelimit_link_t      *link;
    ngx_http_ratelimit_cluster_t   *cluster;
    ngx_http_ratelimit_sentinel_t  *sentinel;    /* if it is the first that
                                                    has to ask them */
    ngx_http_ratelimit_name_t      *name;        /* NULL: need not look it up */
} ngx_http_ratelimit_way_t;


static ngx_int_t ngx_http_ratelimit_topology_shard(ngx_cycle_t *cycle,
    ngx_http_ratelimit_way_t *way, ngx_http_ratelimit_peer_t *peer,
    ngx_http_ratelimit_zone_t *zone, ngx_http_ratelimit_stats_t *stats);
static ngx_uint_t ngx_http_ratelimit_topology_renamed(void *data,
    ngx_addr_t *addrs, ngx_uint_t n);
static void ngx_http_ratelimit_topology_trouble(void *data,
    ngx_http_ratelimit_link_t *link, ngx_http_ratelimit_failure_e failure);
static ngx_int_t ngx_http_ratelimit_topology_sentinel(ngx_cycle_t *cycle,
    ngx_http_ratelimit_peer_t *peer, ngx_http_ratelimit_zone_t *zone,
    ngx_http_ratelimit_stats_t *stats);


/* this process's, by the index of the peer */
static ngx_http_ratelimit_way_t  *ngx_http_ratelimit_ways;
static ngx_uint_t                 ngx_http_ratelimit_ways_n;


ngx_int_t
ngx_http_ratelimit_topology_init(ngx_cycle_t *cycle, ngx_array_t *peers,
    ngx_http_ratelimit_zone_t *zone, ngx_http_ratelimit_stats_t *stats)
{
    ngx_int_t                    rc;
    ngx_uint_t                   i;
    ngx_http_ratelimit_way_t    *way;
    ngx_http_ratelimit_peer_t  **peer;

    way = ngx_pcalloc(cycle->pool,
                      peers->nelts * sizeof(ngx_http_ratelimit_way_t));
    if (way == NULL) {
        return NGX_ERROR;
    }

    ngx_http_ratelimit_peers_use(zone, peers);

    ngx_http_ratelimit_ways = way;
    ngx_http_ratelimit_ways_n = peers->nelts;

    peer = peers->elts;

    for (i = 0; i < peers->nelts; i++) {

        switch (peer[i]->kind) {

        case NGX_HTTP_RATELIMIT_CLUSTER:
            way[i].cluster = ngx_http_ratelimit_cluster_create(cycle, peer[i],
                                                               zone, stats);
            rc = way[i].cluster ? NGX_OK : NGX_ERROR;
            break;

        case NGX_HTTP_RATELIMIT_SENTINEL:
            rc = ngx_http_ratelimit_topology_sentinel(cycle, peer[i], zone,
                                                      stats);
            break;

        default: /* NGX_HTTP_RATELIMIT_SHARDS */
            rc = ngx_http_ratelimit_topology_shard(cycle, &way[i], peer[i],
                                                   zone, stats);
            break;
        }

        if (rc != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_topology_shard(ngx_cycle_t *cycle,
    ngx_http_ratelimit_way_t *way, ngx_http_ratelimit_peer_t *peer,
    ngx_http_ratelimit_zone_t *zone, ngx_http_ratelimit_stats_t *stats)
{
    ngx_http_ratelimit_guide_t  guide;

    ngx_memzero(&guide, sizeof(ngx_http_ratelimit_guide_t));

    guide.data = way;
    guide.trouble = ngx_http_ratelimit_topology_trouble;

    way->link = ngx_http_ratelimit_link_create(cycle->pool, cycle->log, peer,
                                               zone, stats, &guide);
    if (way->link == NULL) {
        return NGX_ERROR;
    }

    if (ngx_http_ratelimit_name_check(peer->resolver, &peer->host) == NGX_OK) {
        way->name = ngx_http_ratelimit_name_watch(cycle->log, peer->resolver,
                                         peer->resolver_timeout, &peer->label,
                                         &peer->host, peer->port,
                                         peer->redis.addrs,
                                         peer->redis.naddrs,
                                         ngx_http_ratelimit_topology_renamed,
                                         way);
        if (way->name == NULL) {
            return NGX_ERROR;
        }
    }

    ngx_http_ratelimit_link_wake(way->link);

    return NGX_OK;
}


static ngx_uint_t
ngx_http_ratelimit_topology_renamed(void *data, ngx_addr_t *addrs,
    ngx_uint_t n)
{
    ngx_http_ratelimit_way_t *way = data;

    return ngx_http_ratelimit_link_renamed(way->link, addrs, n);
}


static void
ngx_http_ratelimit_topology_trouble(void *data,
    ngx_http_ratelimit_link_t *link, ngx_http_ratelimit_failure_e failure)
{
    ngx_http_ratelimit_way_t *way = data;

    if (way->name && ngx_http_ratelimit_failure_breaks(failure)) {
        ngx_http_ratelimit_name_again(way->name);
    }
}


/* all masters of the same sentinels at once, with the first of them */

static ngx_int_t
ngx_http_ratelimit_topology_sentinel(ngx_cycle_t *cycle,
    ngx_http_ratelimit_peer_t *peer, ngx_http_ratelimit_zone_t *zone,
    ngx_http_ratelimit_stats_t *stats)
{
    ngx_uint_t                       i;
    ngx_http_ratelimit_way_t        *way;
    ngx_http_ratelimit_peer_t      **master;
    ngx_http_ratelimit_sentinel_t   *sentinel;

    master = peer->sentinels->masters.elts;

    if (peer != master[0]) {
        return NGX_OK;
    }

    sentinel = ngx_http_ratelimit_sentinel_create(cycle, peer->sentinels, zone,
                                                  stats);
    if (sentinel == NULL) {
        return NGX_ERROR;
    }

    way = ngx_http_ratelimit_ways;
    way[peer->index].sentinel = sentinel;

    for (i = 0; i < peer->sentinels->masters.nelts; i++) {
        way[master[i]->index].link =
                               ngx_http_ratelimit_sentinel_link(sentinel, i);
    }

    return NGX_OK;
}


ngx_http_ratelimit_link_t *
ngx_http_ratelimit_topology_find(ngx_http_ratelimit_peer_t *peer,
    const char *key, size_t len, ngx_uint_t *part)
{
    ngx_http_ratelimit_way_t  *way;

    way = &ngx_http_ratelimit_ways[peer->index];

    if (way->cluster) {
        return ngx_http_ratelimit_cluster_find(way->cluster, key, len, part);
    }

    *part = 0;

    return way->link;
}


void
ngx_http_ratelimit_topology_exit(void)
{
    ngx_uint_t                 i;
    ngx_http_ratelimit_way_t  *way;

    way = ngx_http_ratelimit_ways;

    for (i = 0; i < ngx_http_ratelimit_ways_n; i++) {

        if (way[i].name) {
            ngx_http_ratelimit_name_end(way[i].name);
        }

        if (way[i].sentinel) {
            ngx_http_ratelimit_sentinel_exit(way[i].sentinel);
        }

        if (way[i].cluster) {
            ngx_http_ratelimit_cluster_exit(way[i].cluster);
        }

        if (way[i].link) {
            ngx_http_ratelimit_link_exit(way[i].link);
        }
    }

    ngx_http_ratelimit_ways_n = 0;

    ngx_http_ratelimit_redis_done();
}
