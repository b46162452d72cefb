
/*
 * The map of slots comes from CLUSTER SLOTS.  It is read in the handshake of
 * each new connection.  It is read again when it may have changed, at most
 * once a second: after a redirect, and as long as a node of the map does not
 * answer.  Any connected node is asked.  Before the first map, calls go to any
 * seed, which redirects them.
 *
 * Redirects are followed here, and the callers do not notice them:
 *
 *     MOVED         the slot belongs to that node from now on; the call
 *                   goes there
 *     ASK           this call goes there, after an ASKING; the map stays
 *     TRYAGAIN      the call is sent again in a moment
 *     CLUSTERDOWN   the same, and the map is refreshed
 *
 * All of this happens within the timeout of the call, with a bounded number of
 * hops.
 */


#include "topology/ngx_rl_cluster.h"
#include "core/ngx_rl_core.h"
#include "topology/ngx_rl_nodes.h"
#include "pure/ngx_rl_slots.h"


#define NGX_RL_CLUSTER_SCANS    1024    /* of all nodes, a map */
#define NGX_RL_CLUSTER_HOPS     5
#define NGX_RL_CLUSTER_REFRESH  1000    /* ms, between two */
#define NGX_RL_CLUSTER_JITTER   50      /* ms */
#define NGX_RL_CLUSTER_AGAIN    10      /* ms */


struct ngx_rl_cluster_s {
    ngx_rl_server_conf_t  *conf;
    ngx_rl_zone_t         *zone;
    ngx_log_t             *log;
    ngx_socket_t           ident;                /* see ngx_rl_event_init() */

    ngx_rl_nodes_t         nodes;
    ngx_uint_t             next;                 /* to be asked for the map */
    ngx_uint_t             served;               /* slots */
    uint16_t               slots[NGX_RL_SLOTS];  /* indexes of nodes */

    ngx_event_t            refresh;
    ngx_msec_t             refreshed;
    ngx_event_t            again;
    ngx_queue_t            parked;               /* pendings */

    ngx_rl_server_t       *asking;               /* NULL: no refresh */
    unsigned               ending:1;
};


/* a map that is being read */

typedef struct {
    ngx_rl_cluster_t  *cluster;
    ngx_rl_server_t   *from;
    ngx_uint_t         served;
    uint16_t           slots[NGX_RL_SLOTS];
} ngx_rl_map_t;


static ngx_rl_server_t *ngx_rl_cluster_any(ngx_rl_cluster_t *cluster);
static ngx_rl_failure_e ngx_rl_cluster_step(
    void *owner, ngx_uint_t tag, ngx_rl_reply_t *reply);
static ngx_int_t ngx_rl_cluster_redirect(void *owner, ngx_rl_pending_t *pending,
    ngx_rl_reply_t *reply, ngx_rl_failure_e *failure);
static ngx_int_t ngx_rl_cluster_forward(ngx_rl_server_t *server,
    ngx_rl_pending_t *pending, ngx_uint_t asking, ngx_rl_failure_e *failure);
static void ngx_rl_cluster_park(ngx_rl_cluster_t *cluster,
    ngx_rl_pending_t *pending);
static void ngx_rl_cluster_failed(void *owner, ngx_rl_failure_e failure);
static ngx_int_t ngx_rl_cluster_learn(
    ngx_rl_cluster_t *cluster, ngx_rl_server_t *from, ngx_rl_reply_t *reply);
static void ngx_rl_cluster_range(void *data, const ngx_rl_slot_range_t *range);
static void ngx_rl_cluster_nodes(
    ngx_rl_cluster_t *cluster, ngx_rl_server_t *from);
static void ngx_rl_cluster_probes(ngx_rl_cluster_t *cluster);
static void ngx_rl_cluster_want(ngx_rl_cluster_t *cluster);
static void ngx_rl_cluster_refresh(ngx_event_t *ev);
static ngx_int_t ngx_rl_cluster_refreshed(void *data,
    const ngx_rl_answer_t *answer);
static ngx_uint_t ngx_rl_cluster_failing(ngx_rl_cluster_t *cluster);
static void ngx_rl_cluster_again(ngx_event_t *ev);


static const ngx_rl_events_t  ngx_rl_cluster_events = {
    ngx_rl_server_may_connect,             /* may_connect */
    ngx_rl_server_ready,                   /* ready */
    ngx_rl_server_closed,                  /* closed */
    ngx_rl_server_may_log,                 /* may_log */
    ngx_rl_cluster_step,                   /* step */
    ngx_rl_cluster_redirect,               /* redirect */
    ngx_rl_server_failed,                  /* forward_failed */
    NULL,                                  /* push */
    ngx_rl_cluster_failed                  /* failed */
};


/* only one map is read at a time */
static ngx_rl_map_t  ngx_rl_cluster_fresh;


ngx_rl_cluster_t *
ngx_rl_cluster_create(ngx_cycle_t *cycle,
    ngx_rl_server_conf_t *conf, ngx_rl_zone_t *zone, ngx_rl_stats_t *stats)
{
    ngx_uint_t         i;
    ngx_rl_cluster_t  *cluster;

    cluster = ngx_pcalloc(cycle->pool, sizeof(ngx_rl_cluster_t));
    if (cluster == NULL) {
        return NULL;
    }

    cluster->conf = conf;
    cluster->zone = zone;
    cluster->log = cycle->log;

    ngx_rl_event_init(&cluster->refresh, ngx_rl_cluster_t,
                      ngx_rl_cluster_refresh, cluster, cycle->log);
    cluster->refresh.cancelable = 1;

    ngx_rl_event_init(&cluster->again, ngx_rl_cluster_t,
                      ngx_rl_cluster_again, cluster, cycle->log);

    ngx_queue_init(&cluster->parked);

    for (i = 0; i < NGX_RL_SLOTS; i++) {
        cluster->slots[i] = NGX_RL_NODES_NONE;
    }

    if (ngx_rl_nodes_init(&cluster->nodes, cycle, conf, zone, stats,
                          &ngx_rl_cluster_events, cluster)
        != NGX_OK)
    {
        return NULL;
    }

    /* workers start with different seeds */

    cluster->next = ngx_random() % cluster->nodes.n;

    for (i = 0; i < cluster->nodes.n; i++) {
        ngx_rl_connection_wake(cluster->nodes.list[i]->server->connection);
    }

    return cluster;
}


void
ngx_rl_cluster_exit(ngx_rl_cluster_t *cluster)
{
    cluster->ending = 1;

    ngx_rl_timer_end(&cluster->refresh);
    ngx_rl_timer_end(&cluster->again);

    while (!ngx_queue_empty(&cluster->parked)) {
        ngx_rl_pending_cancel(ngx_rl_pending_first(&cluster->parked));
    }

    ngx_rl_nodes_exit(&cluster->nodes);
}


ngx_rl_server_t *
ngx_rl_cluster_find(ngx_rl_cluster_t *cluster,
    const char *key, size_t len, ngx_uint_t *slot)
{
    ngx_uint_t  n;

    *slot = ngx_rl_slot(key, len);

    n = cluster->slots[*slot];

    if (n != NGX_RL_NODES_NONE) {
        return cluster->nodes.list[n]->server;
    }

    ngx_rl_cluster_want(cluster);

    return ngx_rl_cluster_any(cluster);
}


/* a node that answers, if there is one; otherwise one that should answer */

static ngx_rl_server_t *
ngx_rl_cluster_any(ngx_rl_cluster_t *cluster)
{
    ngx_uint_t        i;
    ngx_rl_node_t    *node;
    ngx_rl_server_t  *server;

    server = NULL;

    for (i = 0; i < cluster->nodes.n; i++) {
        node = cluster->nodes.list[(cluster->next + i) % cluster->nodes.n];

        if (ngx_rl_server_usable(node->server)) {
            return node->server;
        }

        if (server == NULL && (node->seed || node->mapped)) {
            server = node->server;
        }
    }

    return server;
}


/* reads the map that comes with a new connection */

static ngx_rl_failure_e
ngx_rl_cluster_step(void *owner, ngx_uint_t tag, ngx_rl_reply_t *reply)
{
    ngx_rl_server_t  *server = owner;

    return ngx_rl_cluster_learn(server->route, server, reply) == NGX_OK
           ? NGX_RL_OK : NGX_RL_PROTOCOL;
}


static ngx_int_t
ngx_rl_cluster_redirect(void *owner, ngx_rl_pending_t *pending,
    ngx_rl_reply_t *reply, ngx_rl_failure_e *failure)
{
    ngx_rl_server_t  *server = owner;

    ngx_rl_node_t       *node;
    ngx_rl_cluster_t    *cluster;
    ngx_rl_redirect_t    there;
    ngx_rl_slot_range_t  where;

    cluster = server->route;

    (void) ngx_rl_redirect_parse(reply->str, reply->len, &there);

    switch (there.kind) {

    case NGX_RL_REDIRECT_NONE:
        return NGX_DECLINED;

    case NGX_RL_REDIRECT_TRYAGAIN:
        ngx_rl_count(server->record->counters.events[NGX_RL_EVENT_TRYAGAIN]);
        ngx_rl_cluster_park(cluster, pending);
        return NGX_OK;

    case NGX_RL_REDIRECT_CLUSTERDOWN:
        ngx_rl_count(server->record->counters.events[NGX_RL_EVENT_CLUSTERDOWN]);
        ngx_rl_cluster_want(cluster);
        ngx_rl_cluster_park(cluster, pending);
        return NGX_OK;

    default: /* NGX_RL_REDIRECT_MOVED, ASK */
        ngx_rl_cluster_want(cluster);
        break;
    }

    ngx_memzero(&where, sizeof(ngx_rl_slot_range_t));

    where.host = there.host;
    where.host_len = there.host_len;
    where.port = there.port;

    ngx_rl_nodes_begin(&cluster->nodes, 1);

    node = ngx_rl_nodes_find(&cluster->nodes, server, &where);
    if (node == NULL) {
        return NGX_DECLINED;
    }

    if (there.kind == NGX_RL_REDIRECT_MOVED) {
        ngx_rl_count(server->record->counters.events[NGX_RL_EVENT_MOVED]);

        if (cluster->slots[there.slot] == NGX_RL_NODES_NONE) {
            cluster->served++;
        }

        cluster->slots[there.slot] = node->index;
        ngx_rl_node_map(node, 1);

    } else {
        ngx_rl_count(server->record->counters.events[NGX_RL_EVENT_ASK]);
        node->asked = ngx_current_msec;
    }

    return ngx_rl_cluster_forward(node->server, pending,
                                  there.kind == NGX_RL_REDIRECT_ASK, failure);
}


static ngx_int_t
ngx_rl_cluster_forward(ngx_rl_server_t *server, ngx_rl_pending_t *pending,
    ngx_uint_t asking, ngx_rl_failure_e *failure)
{
    if (pending->hops >= NGX_RL_CLUSTER_HOPS) {
        return NGX_DECLINED;
    }

    *failure = ngx_rl_server_forward(server, pending, asking);

    if (*failure == NGX_RL_OK) {
        return NGX_OK;
    }

    /* the failure belongs to the other node, not to the one that redirected */

    ngx_rl_server_unsent(server, *failure);

    if (*failure != NGX_RL_CIRCUIT) {
        *failure = NGX_RL_MOVED;
    }

    return NGX_ERROR;
}


/* parks the call until the redirect is over, or its time is */

static void
ngx_rl_cluster_park(ngx_rl_cluster_t *cluster, ngx_rl_pending_t *pending)
{
    ngx_rl_pending_park(pending, &cluster->parked);

    if (!cluster->again.timer_set) {
        ngx_add_timer(&cluster->again, NGX_RL_CLUSTER_AGAIN);
    }
}


static void
ngx_rl_cluster_failed(void *owner, ngx_rl_failure_e failure)
{
    ngx_rl_server_t  *server = owner;

    ngx_rl_node_t  *node;

    if (!ngx_rl_failure_breaks(failure)) {
        return;
    }

    ngx_rl_cluster_want(server->route);

    node = ngx_rl_container(server->conf, ngx_rl_node_t, conf);

    ngx_rl_resolve_again(node->resolve);
}


static ngx_int_t
ngx_rl_cluster_learn(ngx_rl_cluster_t *cluster,
    ngx_rl_server_t *from, ngx_rl_reply_t *reply)
{
    ngx_uint_t     i;
    ngx_rl_map_t  *map;

    map = &ngx_rl_cluster_fresh;

    map->cluster = cluster;
    map->from = from;
    map->served = 0;

    ngx_rl_nodes_begin(&cluster->nodes, NGX_RL_CLUSTER_SCANS);

    for (i = 0; i < NGX_RL_SLOTS; i++) {
        map->slots[i] = NGX_RL_NODES_NONE;
    }

    for (i = 0; i < cluster->nodes.n; i++) {
        cluster->nodes.list[i]->seen = 0;
    }

    if (ngx_rl_slots_parse(reply, ngx_rl_cluster_range, map) < 0) {
        if (ngx_rl_server_may_log(from, NGX_RL_PROTOCOL)) {
            ngx_log_error(NGX_LOG_ERR, cluster->log, 0,
                          "invalid CLUSTER SLOTS reply from redis %V",
                          &from->conf->label);
        }

        return NGX_ERROR;
    }

    ngx_rl_count(from->record->counters.events[NGX_RL_EVENT_MAP_REFRESH]);

    /* a node that has left its cluster knows no other nodes */

    if (map->served == 0 && cluster->served) {
        return NGX_OK;
    }

    ngx_memcpy(cluster->slots, map->slots, sizeof(cluster->slots));
    cluster->served = map->served;

    ngx_rl_cluster_nodes(cluster, from);

    return NGX_OK;
}


static void
ngx_rl_cluster_range(void *data, const ngx_rl_slot_range_t *range)
{
    ngx_rl_map_t  *map = data;

    ngx_uint_t      i;
    ngx_rl_node_t  *node;

    node = ngx_rl_nodes_find(&map->cluster->nodes, map->from, range);
    if (node == NULL) {
        return;
    }

    node->seen = 1;

    if (range->ip_len && node->resolve == NULL) {
        ngx_rl_node_name(node, range);
    }

    for (i = range->first; i <= range->last; i++) {

        if (map->slots[i] == NGX_RL_NODES_NONE) {
            map->served++;
        }

        map->slots[i] = node->index;
    }
}


/* nodes of the map connect as soon as they are needed, others do not */

static void
ngx_rl_cluster_nodes(ngx_rl_cluster_t *cluster, ngx_rl_server_t *from)
{
    uint64_t        hash;
    ngx_uint_t      i, n;
    ngx_rl_node_t  *node;

    n = 0;
    hash = cluster->served;

    for (i = 0; i < cluster->nodes.n; i++) {
        node = cluster->nodes.list[i];

        if (node->seen) {
            n++;
            hash += node->conf.hash;
        }

        ngx_rl_node_map(node, node->seen);
    }

    ngx_rl_cluster_probes(cluster);

    ngx_post_event(&cluster->nodes.tidy, &ngx_posted_events);

    /* the first worker that finds a new map logs it */

    if (ngx_rl_record_news(cluster->zone, cluster->conf->record, hash)
        && ngx_rl_throttle(&cluster->conf->record->log.changes,
                           NGX_RL_RECORD_CHANGES, NULL))
    {
        ngx_log_error(NGX_LOG_NOTICE, cluster->log, 0,
                      "ratelimit cluster: %ui nodes serve %ui of %d slots, "
                      "reported by redis %V", n, cluster->served, NGX_RL_SLOTS,
                      &from->conf->label);
    }
}


/*
 * One pass over all slots finds a slot to probe for each node that serves any.
 */

static void
ngx_rl_cluster_probes(ngx_rl_cluster_t *cluster)
{
    ngx_uint_t      i, n;
    ngx_rl_node_t  *node;

    for (i = 0; i < NGX_RL_SLOTS; i++) {

        n = cluster->slots[i];

        if (n == NGX_RL_NODES_NONE) {
            continue;
        }

        node = cluster->nodes.list[n];

        if (node->probe == NULL || cluster->slots[node->probe_slot] != n) {
            ngx_rl_node_probe(node, (uint16_t) i);
        }
    }
}


static void
ngx_rl_cluster_want(ngx_rl_cluster_t *cluster)
{
    ngx_msec_t  age, delay;

    if (cluster->asking || cluster->refresh.timer_set || cluster->ending
        || ngx_exiting)
    {
        return;
    }

    age = ngx_current_msec - cluster->refreshed;

    delay = (age < NGX_RL_CLUSTER_REFRESH) ? NGX_RL_CLUSTER_REFRESH - age : 1;

    ngx_add_timer(&cluster->refresh,
                  delay + ngx_random() % NGX_RL_CLUSTER_JITTER);
}


static void
ngx_rl_cluster_refresh(ngx_event_t *ev)
{
    ngx_uint_t         i;
    ngx_rl_node_t     *node;
    ngx_rl_server_t   *server;
    ngx_rl_pending_t  *pending;
    ngx_rl_cluster_t  *cluster;

    static ngx_str_t  command = ngx_string("*2\r\n$7\r\nCLUSTER\r\n"
                                           "$5\r\nSLOTS\r\n");

    cluster = ev->data;

    if (ngx_exiting) {
        return;
    }

    cluster->refreshed = ngx_current_msec;

    /* asks another node each time: a node that is cut off may still answer */

    cluster->next++;
    server = ngx_rl_cluster_any(cluster);

    if (server && ngx_rl_server_usable(server)
        && ngx_rl_connection_send(server->connection, &command,
                                  cluster->conf->redis.connect_timeout,
                                  ngx_rl_cluster_refreshed, cluster, &pending)
        == NGX_RL_OK)
    {
        ngx_rl_pending_background(pending);
        pending->large = 1;

        cluster->asking = server;
        return;
    }

    /*
     * No node is connected.  The handshake of the next connection, to a seed
     * or to a node of the last map, brings the map.
     */

    for (i = 0; i < cluster->nodes.n; i++) {
        node = cluster->nodes.list[i];

        if (node->seed || node->mapped) {
            ngx_rl_connection_schedule(node->server->connection);
        }
    }

    ngx_rl_cluster_want(cluster);
}


static ngx_int_t
ngx_rl_cluster_refreshed(void *data, const ngx_rl_answer_t *answer)
{
    ngx_rl_cluster_t  *cluster = data;

    ngx_int_t         rc;
    ngx_rl_server_t  *server;

    server = cluster->asking;
    cluster->asking = NULL;

    rc = NGX_OK;

    if (answer->failure == NGX_RL_OK
        && answer->reply->type != REDIS_REPLY_ERROR)
    {
        rc = ngx_rl_cluster_learn(cluster, server, answer->reply);
    }

    if (ngx_rl_cluster_failing(cluster)) {
        ngx_rl_cluster_want(cluster);
    }

    return rc;
}


/* whether slots have no node, or a node of the map does not answer */

static ngx_uint_t
ngx_rl_cluster_failing(ngx_rl_cluster_t *cluster)
{
    ngx_uint_t      i;
    ngx_rl_node_t  *node;

    if (cluster->served < NGX_RL_SLOTS) {
        return 1;
    }

    for (i = 0; i < cluster->nodes.n; i++) {
        node = cluster->nodes.list[i];

        if (node->mapped
            && node->conf.record->breaker.state != NGX_RL_DISTRIBUTED)
        {
            return 1;
        }
    }

    return 0;
}


static void
ngx_rl_cluster_again(ngx_event_t *ev)
{
    ngx_queue_t        parked;
    ngx_rl_server_t   *server;
    ngx_rl_pending_t  *pending;
    ngx_rl_cluster_t  *cluster;

    cluster = ev->data;

    if (ngx_queue_empty(&cluster->parked)) {
        return;
    }

    /* some may be parked again at once */

    ngx_queue_init(&parked);
    ngx_queue_add(&parked, &cluster->parked);
    ngx_queue_init(&cluster->parked);

    while (!ngx_queue_empty(&parked)) {
        pending = ngx_rl_pending_first(&parked);
        server = pending->pipeline->owner;

        ngx_rl_pending_again(pending, server->connection);
    }
}
