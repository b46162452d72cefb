
#include "topology/ngx_rl_route.h"
#include "topology/ngx_rl_cluster.h"
#include "topology/ngx_rl_resolve.h"
#include "topology/ngx_rl_sentinel.h"


/* of a peer, one or the other */

typedef struct {
    ngx_rl_link_t      *link;
    ngx_rl_cluster_t   *cluster;
    ngx_rl_sentinel_t  *sentinel;    /* if it is the first that
                                                    has to ask them */
    ngx_rl_name_t      *name;        /* NULL: need not look it up */
} ngx_rl_way_t;


static ngx_int_t ngx_rl_topology_shard(ngx_cycle_t *cycle,
    ngx_rl_way_t *way, ngx_rl_peer_t *peer,
    ngx_rl_zone_t *zone, ngx_rl_stats_t *stats);
static ngx_uint_t ngx_rl_topology_renamed(void *data,
    ngx_addr_t *addrs, ngx_uint_t n);
static void ngx_rl_topology_trouble(void *data,
    ngx_rl_link_t *link, ngx_rl_failure_e failure);
static ngx_int_t ngx_rl_topology_sentinel(ngx_cycle_t *cycle,
    ngx_rl_peer_t *peer, ngx_rl_zone_t *zone,
    ngx_rl_stats_t *stats);


/* this process's, by the index of the peer */
static ngx_rl_way_t  *ngx_rl_ways;
static ngx_uint_t                 ngx_rl_ways_n;


ngx_int_t
ngx_rl_topology_init(ngx_cycle_t *cycle, ngx_array_t *peers,
    ngx_rl_zone_t *zone, ngx_rl_stats_t *stats)
{
    ngx_int_t                    rc;
    ngx_uint_t                   i;
    ngx_rl_way_t    *way;
    ngx_rl_peer_t  **peer;

    way = ngx_pcalloc(cycle->pool,
                      peers->nelts * sizeof(ngx_rl_way_t));
    if (way == NULL) {
        return NGX_ERROR;
    }

    ngx_rl_peers_use(zone, peers);

    ngx_rl_ways = way;
    ngx_rl_ways_n = peers->nelts;

    peer = peers->elts;

    for (i = 0; i < peers->nelts; i++) {

        switch (peer[i]->kind) {

        case NGX_RL_CLUSTER:
            way[i].cluster = ngx_rl_cluster_create(cycle, peer[i],
                                                               zone, stats);
            rc = way[i].cluster ? NGX_OK : NGX_ERROR;
            break;

        case NGX_RL_SENTINEL:
            rc = ngx_rl_topology_sentinel(cycle, peer[i], zone,
                                                      stats);
            break;

        default: /* NGX_RL_SHARDS */
            rc = ngx_rl_topology_shard(cycle, &way[i], peer[i],
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
ngx_rl_topology_shard(ngx_cycle_t *cycle,
    ngx_rl_way_t *way, ngx_rl_peer_t *peer,
    ngx_rl_zone_t *zone, ngx_rl_stats_t *stats)
{
    ngx_rl_guide_t  guide;

    ngx_memzero(&guide, sizeof(ngx_rl_guide_t));

    guide.data = way;
    guide.trouble = ngx_rl_topology_trouble;

    way->link = ngx_rl_link_create(cycle->pool, cycle->log, peer,
                                               zone, stats, &guide);
    if (way->link == NULL) {
        return NGX_ERROR;
    }

    if (ngx_rl_name_check(peer->resolver, &peer->host) == NGX_OK) {
        way->name = ngx_rl_name_watch(cycle->log, peer->resolver,
                                         peer->resolver_timeout, &peer->label,
                                         &peer->host, peer->port,
                                         peer->redis.addrs,
                                         peer->redis.naddrs,
                                         ngx_rl_topology_renamed,
                                         way);
        if (way->name == NULL) {
            return NGX_ERROR;
        }
    }

    ngx_rl_link_wake(way->link);

    return NGX_OK;
}


static ngx_uint_t
ngx_rl_topology_renamed(void *data, ngx_addr_t *addrs,
    ngx_uint_t n)
{
    ngx_rl_way_t *way = data;

    return ngx_rl_link_renamed(way->link, addrs, n);
}


static void
ngx_rl_topology_trouble(void *data,
    ngx_rl_link_t *link, ngx_rl_failure_e failure)
{
    ngx_rl_way_t *way = data;

    if (way->name && ngx_rl_failure_breaks(failure)) {
        ngx_rl_name_again(way->name);
    }
}


/* all masters of the same sentinels at once, with the first of them */

static ngx_int_t
ngx_rl_topology_sentinel(ngx_cycle_t *cycle,
    ngx_rl_peer_t *peer, ngx_rl_zone_t *zone,
    ngx_rl_stats_t *stats)
{
    ngx_uint_t                       i;
    ngx_rl_way_t        *way;
    ngx_rl_peer_t      **master;
    ngx_rl_sentinel_t   *sentinel;

    master = peer->sentinels->masters.elts;

    if (peer != master[0]) {
        return NGX_OK;
    }

    sentinel = ngx_rl_sentinel_create(cycle, peer->sentinels, zone,
                                                  stats);
    if (sentinel == NULL) {
        return NGX_ERROR;
    }

    way = ngx_rl_ways;
    way[peer->index].sentinel = sentinel;

    for (i = 0; i < peer->sentinels->masters.nelts; i++) {
        way[master[i]->index].link =
                               ngx_rl_sentinel_link(sentinel, i);
    }

    return NGX_OK;
}


ngx_rl_link_t *
ngx_rl_topology_find(ngx_rl_peer_t *peer,
    const char *key, size_t len, ngx_uint_t *part)
{
    ngx_rl_way_t  *way;

    way = &ngx_rl_ways[peer->index];

    if (way->cluster) {
        return ngx_rl_cluster_find(way->cluster, key, len, part);
    }

    *part = 0;

    return way->link;
}


void
ngx_rl_topology_exit(void)
{
    ngx_uint_t                 i;
    ngx_rl_way_t  *way;

    way = ngx_rl_ways;

    for (i = 0; i < ngx_rl_ways_n; i++) {

        if (way[i].name) {
            ngx_rl_name_end(way[i].name);
        }

        if (way[i].sentinel) {
            ngx_rl_sentinel_exit(way[i].sentinel);
        }

        if (way[i].cluster) {
            ngx_rl_cluster_exit(way[i].cluster);
        }

        if (way[i].link) {
            ngx_rl_link_exit(way[i].link);
        }
    }

    ngx_rl_ways_n = 0;

    ngx_rl_redis_done();
}
