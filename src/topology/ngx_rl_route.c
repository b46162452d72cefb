
#include "topology/ngx_rl_route.h"
#include "topology/ngx_rl_cluster.h"
#include "topology/ngx_rl_resolve.h"
#include "topology/ngx_rl_sentinel.h"


/* for each configured server one of these is set */

typedef struct {
    ngx_rl_server_t     *server;
    ngx_rl_cluster_t    *cluster;
    ngx_rl_sentinels_t  *sentinels;  /* if it is the first that asks them */
    ngx_rl_resolve_t    *resolve;    /* NULL: need not look it up */
} ngx_rl_route_t;


static ngx_int_t ngx_rl_route_shard(ngx_cycle_t *cycle, ngx_rl_route_t *route,
    ngx_rl_server_conf_t *conf, ngx_rl_zone_t *zone, ngx_rl_stats_t *stats);
static void ngx_rl_route_failed(void *owner, ngx_rl_failure_e failure);
static ngx_int_t ngx_rl_route_sentinel(ngx_cycle_t *cycle,
    ngx_rl_server_conf_t *conf, ngx_rl_zone_t *zone, ngx_rl_stats_t *stats);


static const ngx_rl_events_t  ngx_rl_route_events = {
    ngx_rl_server_may_connect,             /* may_connect */
    ngx_rl_server_ready,                   /* ready */
    ngx_rl_server_closed,                  /* closed */
    ngx_rl_server_may_log,                 /* may_log */
    NULL,                                  /* step */
    NULL,                                  /* redirect */
    NULL,                                  /* forward_failed */
    NULL,                                  /* push */
    ngx_rl_route_failed                    /* failed */
};


/* the routes of this process, by the index of the configuration */
static ngx_rl_route_t  *ngx_rl_routes;
static ngx_uint_t       ngx_rl_nroutes;


ngx_int_t
ngx_rl_route_init(ngx_cycle_t *cycle, ngx_array_t *confs,
    ngx_rl_zone_t *zone, ngx_rl_stats_t *stats)
{
    ngx_int_t               rc;
    ngx_uint_t              i;
    ngx_rl_route_t         *route;
    ngx_rl_server_conf_t  **conf;

    route = ngx_pcalloc(cycle->pool, confs->nelts * sizeof(ngx_rl_route_t));
    if (route == NULL) {
        return NGX_ERROR;
    }

    ngx_rl_server_confs_use(zone, confs);

    ngx_rl_routes = route;
    ngx_rl_nroutes = confs->nelts;

    conf = confs->elts;

    for (i = 0; i < confs->nelts; i++) {

        switch (conf[i]->kind) {

        case NGX_RL_CLUSTER:
            route[i].cluster = ngx_rl_cluster_create(cycle, conf[i],
                                                     zone, stats);
            rc = route[i].cluster ? NGX_OK : NGX_ERROR;
            break;

        case NGX_RL_SENTINEL:
            rc = ngx_rl_route_sentinel(cycle, conf[i], zone, stats);
            break;

        default: /* NGX_RL_SHARDS */
            rc = ngx_rl_route_shard(cycle, &route[i], conf[i], zone, stats);
            break;
        }

        if (rc != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_rl_route_shard(ngx_cycle_t *cycle, ngx_rl_route_t *route,
    ngx_rl_server_conf_t *conf, ngx_rl_zone_t *zone, ngx_rl_stats_t *stats)
{
    route->server = ngx_rl_server_create(cycle->pool, cycle->log, conf,
                                         zone, stats, &ngx_rl_route_events,
                                         route);

    if (route->server == NULL
        || ngx_rl_resolve_watch(&route->resolve, cycle->log, conf, &conf->label,
                                &conf->host, conf->port, conf->redis.addrs,
                                conf->redis.naddrs, ngx_rl_server_renamed,
                                route->server)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_rl_connection_wake(route->server->connection);

    return NGX_OK;
}


static void
ngx_rl_route_failed(void *owner, ngx_rl_failure_e failure)
{
    ngx_rl_server_t  *server = owner;

    ngx_rl_route_t  *route;

    route = server->route;

    if (ngx_rl_failure_breaks(failure)) {
        ngx_rl_resolve_again(route->resolve);
    }
}


/* the first master of a set of sentinels starts all its masters */

static ngx_int_t
ngx_rl_route_sentinel(ngx_cycle_t *cycle,
    ngx_rl_server_conf_t *conf, ngx_rl_zone_t *zone, ngx_rl_stats_t *stats)
{
    ngx_uint_t              i;
    ngx_rl_route_t         *route;
    ngx_rl_sentinels_t     *sentinels;
    ngx_rl_server_conf_t  **master;

    master = conf->sentinels->masters.elts;

    if (conf != master[0]) {
        return NGX_OK;
    }

    sentinels = ngx_rl_sentinels_create(cycle, conf->sentinels, zone, stats);
    if (sentinels == NULL) {
        return NGX_ERROR;
    }

    route = ngx_rl_routes;
    route[conf->index].sentinels = sentinels;

    for (i = 0; i < conf->sentinels->masters.nelts; i++) {
        route[master[i]->index].server = ngx_rl_sentinels_server(sentinels, i);
    }

    return NGX_OK;
}


ngx_rl_server_t *
ngx_rl_route_find(ngx_rl_server_conf_t *conf,
    const char *key, size_t len, ngx_uint_t *part)
{
    ngx_rl_route_t  *route;

    route = &ngx_rl_routes[conf->index];

    if (route->cluster) {
        return ngx_rl_cluster_find(route->cluster, key, len, part);
    }

    *part = 0;

    return route->server;
}


ngx_rl_server_t *
ngx_rl_route_now(ngx_rl_server_t *server, const char *key, size_t len)
{
    ngx_uint_t  slot;

    return server->conf->redis.node
           ? ngx_rl_cluster_find(server->route, key, len, &slot) : server;
}


void
ngx_rl_route_exit(void)
{
    ngx_uint_t       i;
    ngx_rl_route_t  *route;

    route = ngx_rl_routes;

    for (i = 0; i < ngx_rl_nroutes; i++) {
        ngx_rl_resolve_end(route[i].resolve);

        if (route[i].sentinels) {
            ngx_rl_sentinels_exit(route[i].sentinels);
        }

        if (route[i].cluster) {
            ngx_rl_cluster_exit(route[i].cluster);
        }

        if (route[i].server) {
            ngx_rl_server_exit(route[i].server);
        }
    }

    ngx_rl_nroutes = 0;

    ngx_rl_connection_done();
}
