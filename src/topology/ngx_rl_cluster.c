
/*
 * The map of slots comes with CLUSTER SLOTS: with the greeting of every new
 * connection, and again when there is reason to believe that it has changed,
 * at most once a second: after a redirect, and as long as a node of the map
 * does not answer.  It comes from any node that has a connection.  Before
 * there is a map any seed will do: it redirects.
 *
 * Redirects are followed below whoever made a call, who does not notice:
 *
 *     MOVED         the slot is that node's from now on; the call goes there
 *     ASK           this call goes there, after an ASKING; the map stays
 *     TRYAGAIN      the same again in a moment
 *     CLUSTERDOWN   the same, and the map is asked for
 *
 * All of that in the time that the call has, and with a few hops at most.
 *
 * A node is a peer with a link of its own, breaker and counters included, made
 * when it is first heard of.  One that leaves the map loses its connection,
 * and, as soon as nothing is under way, its record; then the next node that
 * comes gets its place.  Whoever still holds on to its link, as leases do, asks
 * where the key is by now.  The seeds are the first nodes, and stay; one that
 * is in the map under the same address is that node.
 *
 * A node is found by its address, or, if the cluster announces names and there
 * is a resolver, by its name, which is looked up again and again.  What is
 * announced is input: nodes are bounded, and so is the work for a map; only
 * what is in "ratelimit_redis_networks" is connected to.
 */


#include "topology/ngx_rl_cluster.h"
#include "core/ngx_rl_core.h"
#include "redis/ngx_rl_address.h"
#include "pure/ngx_rl_hash.h"
#include "topology/ngx_rl_resolve.h"
#include "script/ngx_rl_scripts.h"
#include "pure/ngx_rl_slots.h"


#define NGX_RL_CLUSTER_NODES    1024    /* at a time */
#define NGX_RL_CLUSTER_CHAINS   1024
#define NGX_RL_CLUSTER_SCANS    1024    /* of all nodes, a map */
#define NGX_RL_CLUSTER_HOPS     5
#define NGX_RL_CLUSTER_REFRESH  1000    /* ms, between two */
#define NGX_RL_CLUSTER_JITTER   50      /* ms */
#define NGX_RL_CLUSTER_AGAIN    10      /* ms */
#define NGX_RL_CLUSTER_ASKED    10000   /* ms */

#define NGX_RL_CLUSTER_NOBODY   0xffff


typedef struct {
    ngx_rl_cluster_t     *cluster;
    ngx_rl_server_conf_t  conf;
    ngx_rl_server_t      *server;
    ngx_rl_address_t      addr;     /* unless it is a seed's */
    ngx_rl_resolve_t     *resolve;  /* NULL: found by its address */
    ngx_str_t             host;     /* that the cluster calls it
                                       by; len 0: its address */
    u_char               *called;   /* room for that */
    u_char               *label;    /* and for the label */
    in_port_t             port;
    uint16_t              next;     /* of the same chain */
    uint16_t              chain;
    ngx_rl_record_t
                                   *own;        /* without a record; NULL */
    ngx_msec_t            asked;    /* when an ASK named it */
    uint16_t              probe;    /* the slot of its probe */
    char                 *command;  /* that; malloc()ed */
    unsigned              lent:1;   /* has a record */
    unsigned              left:1;   /* may be another one */
    unsigned              seed:1;
    unsigned              mapped:1;
    unsigned              seen:1;   /* in the map just read */
} ngx_rl_node_t;


struct ngx_rl_cluster_s {
    ngx_rl_server_conf_t  *conf;     /* what nodes have in common */
    ngx_rl_zone_t         *zone;
    ngx_pool_t            *pool;
    ngx_socket_t           ident;    /* see ngx_rl_event_init() */

    ngx_rl_stats_t        *stats;
    ngx_log_t             *log;

    ngx_rl_node_t        **nodes;
    ngx_uint_t             n;
    ngx_uint_t             next;     /* to be asked for the map */
    ngx_uint_t             served;   /* slots */
    uint16_t               slots[NGX_RL_SLOTS];
    uint16_t               chains[NGX_RL_CLUSTER_CHAINS];
    ngx_uint_t             scans;    /* left, of this map */

    /* of nodes that have left, which nobody asks */
    ngx_rl_record_t        gone;

    ngx_event_t            refresh;
    ngx_msec_t             refreshed;
    ngx_event_t            again;
    ngx_queue_t            parked;   /* slots of calls */
    ngx_str_t              probe;    /* its key, with any tag */
    ngx_event_t            tidy;     /* posted */

    ngx_rl_server_t       *asking;
    unsigned               asked:1;  /* a refresh is under way */
    unsigned               full:1;   /* of nodes, just now */
    unsigned               ending:1;
};


/* a map while it is read */

typedef struct {
    ngx_rl_cluster_t  *cluster;
    ngx_rl_server_t   *from;
    ngx_uint_t         served;
    uint16_t           slots[NGX_RL_SLOTS];
} ngx_rl_map_t;


static ngx_rl_node_t *ngx_rl_cluster_seed(
    ngx_rl_cluster_t *cluster, ngx_rl_url_t *url);
static ngx_uint_t ngx_rl_cluster_renamed(void *data,
    ngx_addr_t *addrs, ngx_uint_t n);
static ngx_int_t ngx_rl_cluster_node(
    ngx_rl_cluster_t *cluster, ngx_rl_server_t *from,
    const ngx_rl_slot_range_t *there);
static ngx_int_t ngx_rl_cluster_by_name(
    ngx_rl_cluster_t *cluster, ngx_rl_server_t *from,
    const ngx_rl_slot_range_t *there);
static ngx_int_t ngx_rl_cluster_called(ngx_rl_cluster_t *cluster,
    const ngx_rl_slot_range_t *there, ngx_uint_t chain);
static ngx_int_t ngx_rl_cluster_at(ngx_rl_cluster_t *cluster, ngx_addr_t *addr);
static ngx_int_t ngx_rl_cluster_add(
    ngx_rl_cluster_t *cluster, ngx_rl_address_t *address,
    ngx_str_t *host, in_port_t port);
static ngx_rl_node_t *ngx_rl_cluster_place(
    ngx_rl_cluster_t *cluster, ngx_int_t *n);
static void ngx_rl_cluster_leave(
    ngx_rl_cluster_t *cluster, ngx_rl_node_t *node);
static ngx_int_t ngx_rl_cluster_attach(
    ngx_rl_cluster_t *cluster, ngx_rl_node_t *node);
static ngx_int_t ngx_rl_cluster_record(
    ngx_rl_cluster_t *cluster, ngx_rl_node_t *node);
static void ngx_rl_cluster_share(
    ngx_rl_cluster_t *cluster, ngx_rl_node_t *node);
static ngx_int_t ngx_rl_cluster_follow(
    ngx_rl_cluster_t *cluster, ngx_rl_node_t *node);
static void ngx_rl_cluster_index(ngx_rl_cluster_t *cluster, ngx_rl_node_t *node,
    ngx_uint_t n);
static void ngx_rl_cluster_unindex(
    ngx_rl_cluster_t *cluster, ngx_rl_node_t *node);
static ngx_uint_t ngx_rl_cluster_chain(const void *text,
    size_t len, in_port_t port);
static ngx_rl_server_t *ngx_rl_cluster_any(ngx_rl_cluster_t *cluster);
static ngx_rl_failure_e ngx_rl_cluster_step(
    void *owner, ngx_uint_t tag, ngx_rl_reply_t *reply);
static ngx_int_t ngx_rl_cluster_redirect(void *owner,
    ngx_rl_pending_t *pending, ngx_rl_reply_t *reply,
    ngx_rl_failure_e *failure);
static void ngx_rl_cluster_failed(void *owner, ngx_rl_failure_e failure);
static ngx_int_t ngx_rl_cluster_learn(
    ngx_rl_cluster_t *cluster, ngx_rl_server_t *from, ngx_rl_reply_t *reply);
static void ngx_rl_cluster_range(void *data, const ngx_rl_slot_range_t *range);
static void ngx_rl_cluster_call(ngx_rl_cluster_t *cluster, ngx_rl_node_t *node,
    const ngx_rl_slot_range_t *range);
static void ngx_rl_cluster_nodes(
    ngx_rl_cluster_t *cluster, ngx_rl_server_t *from);
static void ngx_rl_cluster_probes(ngx_rl_cluster_t *cluster);
static void ngx_rl_cluster_probe(ngx_rl_cluster_t *cluster, ngx_rl_node_t *node,
    uint16_t slot);
static void ngx_rl_cluster_tidy(ngx_event_t *ev);
static void ngx_rl_cluster_map(ngx_rl_cluster_t *cluster, ngx_rl_node_t *node,
    ngx_uint_t mapped);
static void ngx_rl_cluster_want(ngx_rl_cluster_t *cluster);
static void ngx_rl_cluster_refresh(ngx_event_t *ev);
static ngx_int_t ngx_rl_cluster_refreshed(void *data,
    const ngx_rl_answer_t *answer);
static ngx_uint_t ngx_rl_cluster_ill(ngx_rl_cluster_t *cluster);
static void ngx_rl_cluster_wake(ngx_rl_cluster_t *cluster);
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


/* read one at a time */
static ngx_rl_map_t  ngx_rl_cluster_fresh;


ngx_rl_cluster_t *
ngx_rl_cluster_create(ngx_cycle_t *cycle,
    ngx_rl_server_conf_t *conf, ngx_rl_zone_t *zone, ngx_rl_stats_t *stats)
{
    u_char            *p;
    ngx_uint_t         i;
    ngx_rl_url_t      *seed;
    ngx_rl_node_t     *node;
    ngx_rl_cluster_t  *cluster;

    cluster = ngx_pcalloc(cycle->pool, sizeof(ngx_rl_cluster_t));
    if (cluster == NULL) {
        return NULL;
    }

    cluster->conf = conf;
    cluster->zone = zone;
    cluster->stats = stats;
    cluster->pool = cycle->pool;
    cluster->log = cycle->log;

    ngx_rl_event_init(&cluster->refresh, ngx_rl_cluster_t,
                      ngx_rl_cluster_refresh, cluster, cycle->log);
    cluster->refresh.cancelable = 1;

    ngx_rl_event_init(&cluster->again, ngx_rl_cluster_t,
                      ngx_rl_cluster_again, cluster, cycle->log);

    ngx_rl_event_init(&cluster->tidy, ngx_rl_cluster_t,
                      ngx_rl_cluster_tidy, cluster, cycle->log);
    cluster->tidy.cancelable = 1;

    ngx_queue_init(&cluster->parked);

    for (i = 0; i < NGX_RL_SLOTS; i++) {
        cluster->slots[i] = NGX_RL_CLUSTER_NOBODY;
    }

    for (i = 0; i < NGX_RL_CLUSTER_CHAINS; i++) {
        cluster->chains[i] = NGX_RL_CLUSTER_NOBODY;
    }

    cluster->nodes = ngx_palloc(cycle->pool, NGX_RL_CLUSTER_NODES
                                * sizeof(ngx_rl_node_t *));
    if (cluster->nodes == NULL) {
        return NULL;
    }

    cluster->probe.len = conf->prefix.len + sizeof(":{}") - 1
                         + NGX_RL_SLOT_TAG;
    cluster->probe.data = ngx_pcalloc(cycle->pool, cluster->probe.len);
    if (cluster->probe.data == NULL) {
        return NULL;
    }

    p = ngx_sprintf(cluster->probe.data, "%V:{", &conf->prefix);
    p[NGX_RL_SLOT_TAG] = '}';

    seed = conf->seeds->elts;

    for (i = 0; i < conf->seeds->nelts && i < NGX_RL_CLUSTER_NODES; i++) {
        node = ngx_rl_cluster_seed(cluster, &seed[i]);
        if (node == NULL) {
            return NULL;
        }
    }

    /* workers begin with different ones */

    cluster->next = ngx_random() % cluster->n;

    for (i = 0; i < cluster->n; i++) {
        ngx_rl_connection_wake(cluster->nodes[i]->server->connection);
    }

    return cluster;
}


void
ngx_rl_cluster_exit(ngx_rl_cluster_t *cluster)
{
    void              *server;
    ngx_uint_t         i;
    ngx_rl_pending_t  *pending;

    cluster->ending = 1;

    if (cluster->refresh.timer_set) {
        ngx_del_timer(&cluster->refresh);
    }

    if (cluster->again.timer_set) {
        ngx_del_timer(&cluster->again);
    }

    if (cluster->tidy.posted) {
        ngx_delete_posted_event(&cluster->tidy);
    }

    if (cluster->tidy.timer_set) {
        ngx_del_timer(&cluster->tidy);
    }

    while (!ngx_queue_empty(&cluster->parked)) {
        pending = ngx_rl_pending_parked(&cluster->parked, &server);
        ngx_rl_pending_cancel(pending);
    }

    for (i = 0; i < cluster->n; i++) {

        if (cluster->nodes[i]->resolve) {
            ngx_rl_resolve_end(cluster->nodes[i]->resolve);
        }

        ngx_rl_server_exit(cluster->nodes[i]->server);

        if (cluster->nodes[i]->command) {
            ngx_rl_resp_free(cluster->nodes[i]->command);
        }
    }
}


ngx_rl_server_t *
ngx_rl_cluster_find(ngx_rl_cluster_t *cluster,
    const char *key, size_t len, ngx_uint_t *slot)
{
    ngx_uint_t  n;

    *slot = ngx_rl_slot(key, len);

    n = cluster->slots[*slot];

    if (n != NGX_RL_CLUSTER_NOBODY) {
        return cluster->nodes[n]->server;
    }

    ngx_rl_cluster_want(cluster);

    return ngx_rl_cluster_any(cluster);
}


/* one that answers, if there is any; else one that should */

static ngx_rl_server_t *
ngx_rl_cluster_any(ngx_rl_cluster_t *cluster)
{
    ngx_uint_t        i;
    ngx_rl_node_t    *node;
    ngx_rl_server_t  *server;

    server = NULL;

    for (i = 0; i < cluster->n; i++) {
        node = cluster->nodes[(cluster->next + i) % cluster->n];

        if (ngx_rl_server_usable(node->server)) {
            return node->server;
        }

        if (server == NULL && (node->seed || node->mapped)) {
            server = node->server;
        }
    }

    return server;
}


static ngx_rl_node_t *
ngx_rl_cluster_seed(ngx_rl_cluster_t *cluster, ngx_rl_url_t *url)
{
    ngx_rl_node_t  *node;

    node = ngx_pcalloc(cluster->pool, sizeof(ngx_rl_node_t));
    if (node == NULL) {
        return NULL;
    }

    node->label = ngx_pnalloc(cluster->pool,
                              cluster->conf->user.len + 1 + url->name.len);
    if (node->label == NULL) {
        return NULL;
    }

    node->cluster = cluster;
    node->conf = *cluster->conf;
    node->conf.redis.name = url->name;
    node->conf.redis.host = url->host;
    node->conf.redis.addrs = url->addrs;
    node->conf.redis.naddrs = url->naddrs;
    node->host = url->host;
    node->port = url->port;
    node->seed = 1;

    if (ngx_rl_cluster_attach(cluster, node) != NGX_OK
        || ngx_rl_cluster_follow(cluster, node) != NGX_OK)
    {
        return NULL;
    }

    cluster->nodes[cluster->n] = node;
    ngx_rl_cluster_index(cluster, node, cluster->n++);

    return node;
}


static ngx_int_t
ngx_rl_cluster_follow(ngx_rl_cluster_t *cluster, ngx_rl_node_t *node)
{
    ngx_rl_server_conf_t  *conf;

    conf = &node->conf;

    if (ngx_rl_resolve_check(conf->resolver, &node->host) != NGX_OK) {
        return NGX_OK;
    }

    node->resolve = ngx_rl_resolve_watch(cluster->log, conf->resolver,
                                         conf->resolver_timeout, &conf->label,
                                         &node->host, node->port,
                                         conf->redis.addrs, conf->redis.naddrs,
                                         ngx_rl_cluster_renamed, node);

    return node->resolve ? NGX_OK : NGX_ERROR;
}


/* where a node is now that has a name */

static ngx_uint_t
ngx_rl_cluster_renamed(void *data, ngx_addr_t *addrs, ngx_uint_t n)
{
    ngx_rl_node_t  *node = data;

    ngx_addr_t                     allowed[NGX_RL_RESOLVE_ADDRS];
    ngx_uint_t                     i, k, news;
    ngx_rl_cluster_t  *cluster;

    cluster = node->cluster;

    /* the configuration knows the name of a seed, but not those of others */

    for (i = 0, k = 0; !node->seed && i < n; i++) {

        if (ngx_rl_server_conf_allows(cluster->conf, &addrs[i])) {
            allowed[k++] = addrs[i];
            continue;
        }

        ngx_rl_server_conf_refused(cluster->conf->record, cluster->log,
                                   "cluster node", &node->conf.label,
                                   &addrs[i]);
    }

    if (!node->seed && n) {

        if (k == 0) {
            return 0;
        }

        addrs = allowed;
        n = k;
    }

    news = ngx_rl_server_renamed(node->server, addrs, n);

    /* it was moved to be there when it is needed */

    if (n && !node->mapped && cluster->served) {
        ngx_rl_server_close_idle(node->server);
    }

    return news;
}


/* the number of the node that is announced there, or NGX_ERROR */

static ngx_int_t
ngx_rl_cluster_node(ngx_rl_cluster_t *cluster,
    ngx_rl_server_t *from, const ngx_rl_slot_range_t *there)
{
    ngx_int_t         n;
    ngx_addr_t       *addr;
    ngx_rl_address_t  where;

    if (there->host_len == 0) {
        addr = ngx_rl_connection_addr(from->connection);
        if (addr == NULL) {
            return NGX_ERROR;
        }

        ngx_rl_address_port(&where, addr, there->port);

    } else if (ngx_rl_address(&where, there->host, there->host_len, there->port)
               != NGX_OK)
    {
        n = ngx_rl_cluster_by_name(cluster, from, there);

        if (n != NGX_DECLINED) {
            return n;
        }

        if (ngx_rl_address(&where, there->ip, there->ip_len, there->port)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    n = ngx_rl_cluster_at(cluster, &where.addr);

    if (n != NGX_ERROR) {
        return n;
    }

    if (!ngx_rl_server_conf_allows(cluster->conf, &where.addr)) {
        ngx_rl_server_conf_refused(cluster->conf->record, cluster->log,
                                   "redis", &from->conf->label, &where.addr);
        return NGX_ERROR;
    }

    return ngx_rl_cluster_add(cluster, &where, NULL, there->port);
}


/* NGX_DECLINED: by the address that came with the name, as there is one */

static ngx_int_t
ngx_rl_cluster_by_name(ngx_rl_cluster_t *cluster,
    ngx_rl_server_t *from, const ngx_rl_slot_range_t *there)
{
    ngx_int_t         n;
    ngx_str_t         host;
    ngx_uint_t        known;
    ngx_addr_t       *addr;
    ngx_rl_node_t    *node;
    ngx_rl_address_t  where;

    host.data = (u_char *) there->host;
    host.len = there->host_len;

    known = there->ip_len
            && ngx_rl_address(&where, there->ip, there->ip_len, there->port)
               == NGX_OK;

    n = ngx_rl_cluster_called(cluster, there,
                              ngx_rl_cluster_chain(host.data, host.len,
                                                   there->port));
    if (n != NGX_ERROR) {
        node = cluster->nodes[n];

        if (node->resolve == NULL && known) {
            return NGX_DECLINED;
        }

        /* the cluster may know that it has moved before DNS does */

        addr = ngx_rl_connection_addr(node->server->connection);

        if (node->resolve && known && addr
            && !ngx_rl_address_equal(addr, &where.addr))
        {
            ngx_rl_resolve_again(node->resolve);
        }

        return n;
    }

    if (ngx_rl_resolve_check(cluster->conf->resolver, &host)
        != NGX_OK
        || !ngx_rl_resolve_valid(host.data, host.len)
        || (known && ngx_rl_cluster_at(cluster, &where.addr)
            != NGX_ERROR))
    {
        if (known) {
            return NGX_DECLINED;
        }

        if (ngx_rl_server_may_log(from, NGX_RL_CONFIG)) {
            ngx_log_error(NGX_LOG_ERR, cluster->log, 0,
                          "redis %V names a node of its cluster \"%V\", and "
                          "no address: set \"resolver\" in nginx, or have the "
                          "cluster announce addresses "
                          "(cluster-preferred-endpoint-type ip)",
                          &from->conf->label, &host);
        }

        return NGX_ERROR;
    }

    /* what DNS says counts, but until then it may be there */

    known = known && ngx_rl_server_conf_allows(cluster->conf, &where.addr);

    return ngx_rl_cluster_add(cluster, known ? &where : NULL,
                              &host, there->port);
}


/* by name, which may be that of a seed, or have come with an address before */

static ngx_int_t
ngx_rl_cluster_called(ngx_rl_cluster_t *cluster,
    const ngx_rl_slot_range_t *there, ngx_uint_t chain)
{
    ngx_uint_t      i, scan;
    ngx_rl_node_t  *node;

    i = cluster->chains[chain];

    for (scan = 0; scan < 2; scan++) {

        while (i < cluster->n) {
            node = cluster->nodes[i];

            if (node->host.len == there->host_len && node->port == there->port
                && ngx_strncasecmp(node->host.data, (u_char *) there->host,
                                   there->host_len)
                == 0)
            {
                return i;
            }

            i = scan ? i + 1 : node->next;
        }

        /* then all of them, which is bounded for a map */

        if (cluster->scans == 0) {
            break;
        }

        cluster->scans -= (scan == 0);
        i = 0;
    }

    return NGX_ERROR;
}


/* by address; one with a name may be elsewhere by now */

static ngx_int_t
ngx_rl_cluster_at(ngx_rl_cluster_t *cluster, ngx_addr_t *addr)
{
    ngx_uint_t      i;
    ngx_rl_node_t  *node;

    i = cluster->chains[ngx_rl_cluster_chain(addr->name.data,
                                             addr->name.len, 0)];

    for ( /* void */ ; i < cluster->n; i = node->next) {
        node = cluster->nodes[i];

        if (node->resolve == NULL && node->conf.redis.naddrs == 1
            && ngx_rl_address_equal(&node->conf.redis.addrs[0], addr))
        {
            return i;
        }
    }

    return NGX_ERROR;
}


/* at an address, or by a name, or both */

static ngx_int_t
ngx_rl_cluster_add(ngx_rl_cluster_t *cluster,
    ngx_rl_address_t *address, ngx_str_t *host, in_port_t port)
{
    u_char                 text[NGX_RL_SERVER_NAME];
    ngx_int_t              n;
    ngx_rl_node_t         *node;
    ngx_rl_server_conf_t  *conf;

    node = ngx_rl_cluster_place(cluster, &n);
    if (node == NULL) {
        return NGX_ERROR;
    }

    conf = &node->conf;

    conf->redis.addrs = NULL;
    conf->redis.naddrs = 0;
    ngx_str_null(&conf->redis.host);
    ngx_str_null(&node->host);

    if (address) {
        ngx_rl_address_copy(&node->addr, address);
        conf->redis.addrs = &node->addr.addr;
        conf->redis.naddrs = 1;
        conf->redis.name = node->addr.addr.name;
    }

    node->port = port;

    if (host) {
        ngx_memcpy(node->called, host->data, host->len);
        node->host.data = node->called;
        node->host.len = host->len;

        conf->redis.host = node->host;
        conf->redis.name.data = text;
        conf->redis.name.len = ngx_sprintf(text, "%V:%ui", host,
                                           (ngx_uint_t) port)
                               - text;
        ngx_strlow(text, text, conf->redis.name.len);
    }

    if (ngx_rl_cluster_attach(cluster, node) != NGX_OK) {
        return NGX_ERROR;
    }

    if (host && ngx_rl_cluster_follow(cluster, node) != NGX_OK) {
        ngx_rl_cluster_leave(cluster, node);
        return NGX_ERROR;
    }

    node->left = 0;
    node->asked = ngx_current_msec - NGX_RL_CLUSTER_ASKED;

    ngx_rl_cluster_index(cluster, node, n);

    return n;
}


/* that of one that has left, or a new one, which is as one that has left */

static ngx_rl_node_t *
ngx_rl_cluster_place(ngx_rl_cluster_t *cluster, ngx_int_t *n)
{
    ngx_uint_t      i;
    ngx_rl_node_t  *node;

    if (cluster->full) {
        return NULL;
    }

    for (i = 0; i < cluster->n; i++) {
        node = cluster->nodes[i];

        if (node->left && ngx_rl_server_unused(node->server)) {
            *n = i;
            return node;
        }
    }

    if (cluster->n == NGX_RL_CLUSTER_NODES) {
        cluster->full = 1;

        if (ngx_rl_record_may_log(cluster->conf->record, NGX_RL_OVERLOAD)) {
            ngx_log_error(NGX_LOG_ERR, cluster->log, 0,
                          "%V has more than %d nodes at a time: the others are "
                          "not used", &cluster->conf->label,
                          NGX_RL_CLUSTER_NODES);
        }

        return NULL;
    }

    node = ngx_pcalloc(cluster->pool, sizeof(ngx_rl_node_t));
    if (node == NULL) {
        return NULL;
    }

    node->label = ngx_pnalloc(cluster->pool, cluster->conf->user.len
                              + NGX_RL_SERVER_NAME);
    node->called = ngx_pnalloc(cluster->pool, NGX_RL_SLOT_HOST);

    if (node->label == NULL || node->called == NULL) {
        return NULL;
    }

    node->cluster = cluster;
    node->conf = *cluster->conf;
    node->left = 1;
    node->chain = NGX_RL_CLUSTER_NOBODY;

    *n = cluster->n;
    cluster->nodes[cluster->n] = node;

    return node;
}


/* of one that is not in the map any more, and has nothing under way */

static void
ngx_rl_cluster_leave(ngx_rl_cluster_t *cluster, ngx_rl_node_t *node)
{
    ngx_rl_record_t  *record;

    record = node->conf.record;
    node->conf.record = &cluster->gone;

    if (ngx_rl_server_reuse(node->server) != NGX_OK) {
        node->conf.record = record;
        return;
    }

    if (node->lent) {
        ngx_rl_stats_return(cluster->zone, cluster->stats, record);
    }

    if (node->resolve) {
        ngx_rl_resolve_end(node->resolve);
        node->resolve = NULL;
    }

    ngx_rl_cluster_unindex(cluster, node);

    node->host.len = 0;
    node->lent = 0;
    node->left = 1;
}


/* a node of its own right: label, counters, link */

static ngx_int_t
ngx_rl_cluster_attach(ngx_rl_cluster_t *cluster, ngx_rl_node_t *node)
{
    void                  *greeting;
    ngx_array_t           *all;
    ngx_rl_server_conf_t  *conf;

    conf = &node->conf;

    ngx_rl_server_conf_node(conf, &conf->redis.name, node->label, &conf->label);

    /* the label is there for good */

    conf->redis.name.data = conf->label.data + conf->label.len
                            - conf->redis.name.len;
    conf->hash = ngx_rl_hash(conf->label.data, conf->label.len);

    if (ngx_rl_cluster_record(cluster, node) != NGX_OK) {
        return NGX_ERROR;
    }

    if (node->server) {

        if (ngx_rl_server_reuse(node->server) == NGX_OK) {
            return NGX_OK;
        }

        goto failed;
    }

    /* its own, as it ends with a probe of its own */

    all = &cluster->conf->redis.greeting;

    greeting = ngx_palloc(cluster->pool, all->nelts * all->size);
    if (greeting == NULL) {
        goto failed;
    }

    ngx_memcpy(greeting, all->elts, all->nelts * all->size);
    conf->redis.greeting.elts = greeting;

    node->server = ngx_rl_server_create(cluster->pool, cluster->log,
                                        conf, cluster->zone, cluster->stats,
                                        &ngx_rl_cluster_events, cluster);
    if (node->server == NULL) {
        goto failed;
    }

    if (!node->seed) {
        cluster->n++;
    }

    return NGX_OK;

failed:

    if (node->lent) {
        node->lent = 0;
        ngx_rl_stats_return(cluster->zone, cluster->stats, conf->record);
    }

    conf->record = &cluster->gone;

    return NGX_ERROR;
}


/* if there is no room for it, this worker has a breaker for it by itself */

static ngx_int_t
ngx_rl_cluster_record(ngx_rl_cluster_t *cluster, ngx_rl_node_t *node)
{
    ngx_rl_server_conf_t  *conf;

    conf = &node->conf;

    conf->record = ngx_rl_stats_lend(cluster->zone, cluster->stats,
                                     &conf->label);
    node->lent = (conf->record != NULL);

    if (conf->record == NULL) {

        if (node->own == NULL) {
            node->own = ngx_palloc(cluster->pool, sizeof(ngx_rl_record_t));
            if (node->own == NULL) {
                conf->record = &cluster->gone;
                return NGX_ERROR;
            }
        }

        ngx_memzero(node->own, sizeof(ngx_rl_record_t));
        conf->record = node->own;

        if (ngx_rl_record_may_log(cluster->conf->record, NGX_RL_OVERLOAD)) {
            ngx_log_error(NGX_LOG_WARN, cluster->log, 0,
                          "\"ratelimit_zone\" has no room for node %V of a "
                          "cluster: each worker has a breaker of its own for "
                          "it, and metrics lack it; make it larger",
                          &conf->label);
        }
    }

    conf->record->role = conf->role;
    conf->record->set = cluster->conf->hash;

    return NGX_OK;
}


/*
 * There may be room now.  If it is in use, with the next map; and not for one
 * that a name has moved, as a new connection would not know where to.
 */

static void
ngx_rl_cluster_share(ngx_rl_cluster_t *cluster, ngx_rl_node_t *node)
{
    ngx_rl_record_t  *record;

    if (node->resolve || !ngx_rl_server_unused(node->server)) {
        return;
    }

    record = ngx_rl_stats_lend(cluster->zone, cluster->stats,
                               &node->conf.label);
    if (record == NULL) {
        return;
    }

    node->conf.record = record;

    if (ngx_rl_server_reuse(node->server) != NGX_OK) {
        node->conf.record = node->own;
        ngx_rl_stats_return(cluster->zone, cluster->stats, record);
        return;
    }

    record->role = node->conf.role;
    record->set = cluster->conf->hash;
    record->mapped = 1;

    node->lent = 1;
}


/* each is in one chain: by name if it is followed, else by address */

static void
ngx_rl_cluster_index(ngx_rl_cluster_t *cluster,
    ngx_rl_node_t *node, ngx_uint_t n)
{
    ngx_rl_address_t  address;

    if (node->resolve == NULL && node->conf.redis.naddrs == 1) {
        ngx_rl_address_port(&address, &node->conf.redis.addrs[0], node->port);

        node->chain = ngx_rl_cluster_chain(address.addr.name.data,
                                           address.addr.name.len, 0);

    } else {
        node->chain = ngx_rl_cluster_chain(node->host.data, node->host.len,
                                           node->port);
    }

    node->next = cluster->chains[node->chain];
    cluster->chains[node->chain] = n;
}


static void
ngx_rl_cluster_unindex(ngx_rl_cluster_t *cluster, ngx_rl_node_t *node)
{
    uint16_t  *n;

    if (node->chain == NGX_RL_CLUSTER_NOBODY) {
        return;
    }

    n = &cluster->chains[node->chain];

    while (*n != NGX_RL_CLUSTER_NOBODY && cluster->nodes[*n] != node) {
        n = &cluster->nodes[*n]->next;
    }

    if (*n != NGX_RL_CLUSTER_NOBODY) {
        *n = node->next;
    }

    node->chain = NGX_RL_CLUSTER_NOBODY;
}


static ngx_uint_t
ngx_rl_cluster_chain(const void *text, size_t len, in_port_t port)
{
    u_char  lower[NGX_RL_SLOT_HOST];

    len = ngx_min(len, sizeof(lower));
    ngx_strlow(lower, (u_char *) text, len);

    return (ngx_rl_hash(lower, len) + port)
           % NGX_RL_CLUSTER_CHAINS;
}


/* the map that comes with a new connection */

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

    ngx_int_t            n;
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
    case NGX_RL_REDIRECT_CLUSTERDOWN:

        if (there.kind == NGX_RL_REDIRECT_TRYAGAIN) {
            ngx_rl_server_event(server, NGX_RL_EVENT_TRYAGAIN);

        } else {
            ngx_rl_server_event(server, NGX_RL_EVENT_CLUSTERDOWN);
            ngx_rl_cluster_want(cluster);
        }

        /* until it is over, or the call's time is */

        ngx_rl_pending_park(pending, &cluster->parked, server);

        if (!cluster->again.timer_set) {
            ngx_add_timer(&cluster->again, NGX_RL_CLUSTER_AGAIN);
        }

        return NGX_OK;

    default: /* NGX_RL_REDIRECT_MOVED, ASK */
        break;
    }

    ngx_rl_cluster_want(cluster);

    ngx_memzero(&where, sizeof(ngx_rl_slot_range_t));

    where.host = there.host;
    where.host_len = there.host_len;
    where.port = there.port;

    cluster->full = 0;
    cluster->scans = 1;

    n = ngx_rl_cluster_node(cluster, server, &where);
    if (n == NGX_ERROR) {
        return NGX_DECLINED;
    }

    node = cluster->nodes[n];

    if (there.kind == NGX_RL_REDIRECT_MOVED) {
        ngx_rl_server_event(server, NGX_RL_EVENT_MOVED);

        if (cluster->slots[there.slot] == NGX_RL_CLUSTER_NOBODY) {
            cluster->served++;
        }

        cluster->slots[there.slot] = n;
        ngx_rl_cluster_map(cluster, node, 1);

    } else {
        ngx_rl_server_event(server, NGX_RL_EVENT_ASK);
        node->asked = ngx_current_msec;
    }

    if (ngx_rl_pending_hops(pending) >= NGX_RL_CLUSTER_HOPS)
    {
        return NGX_DECLINED;
    }

    *failure = ngx_rl_server_forward(node->server, pending,
                                     there.kind == NGX_RL_REDIRECT_ASK);

    if (*failure == NGX_RL_OK) {
        return NGX_OK;
    }

    /* that is the other node's affair, not that of who has sent it there */

    ngx_rl_server_unsent(node->server, *failure);

    if (*failure != NGX_RL_CIRCUIT) {
        *failure = NGX_RL_MOVED;
    }

    return NGX_ERROR;
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

    if (node->resolve) {
        ngx_rl_resolve_again(node->resolve);
    }
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

    cluster->full = 0;
    cluster->scans = NGX_RL_CLUSTER_SCANS;

    for (i = 0; i < NGX_RL_SLOTS; i++) {
        map->slots[i] = NGX_RL_CLUSTER_NOBODY;
    }

    for (i = 0; i < cluster->n; i++) {
        cluster->nodes[i]->seen = 0;
    }

    if (ngx_rl_slots_parse(reply, ngx_rl_cluster_range, map) < 0) {
        if (ngx_rl_server_may_log(from, NGX_RL_PROTOCOL)) {
            ngx_log_error(NGX_LOG_ERR, cluster->log, 0,
                          "redis %V answered CLUSTER SLOTS with what is no "
                          "map", &from->conf->label);
        }

        return NGX_ERROR;
    }

    ngx_rl_server_event(from, NGX_RL_EVENT_MAP_REFRESH);

    /* a node that has left its cluster knows of nobody */

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

    ngx_int_t                     n;
    ngx_uint_t                    i;
    ngx_rl_node_t  *node;

    n = ngx_rl_cluster_node(map->cluster, map->from, range);

    if (n == NGX_ERROR) {
        return;
    }

    node = map->cluster->nodes[n];
    node->seen = 1;

    if (range->ip_len && node->resolve == NULL) {
        ngx_rl_cluster_call(map->cluster, node, range);
    }

    for (i = range->first; i <= range->last; i++) {

        if (map->slots[i] == NGX_RL_CLUSTER_NOBODY) {
            map->served++;
        }

        map->slots[i] = n;
    }
}


/* redirects have its name alone, and it is what a certificate is for */

static void
ngx_rl_cluster_call(ngx_rl_cluster_t *cluster, ngx_rl_node_t *node,
    const ngx_rl_slot_range_t *range)
{
    node->port = range->port;

    if (node->host.len == range->host_len
        && ngx_memcmp(node->host.data, range->host, range->host_len) == 0)
    {
        return;
    }

    /* it may change, and has a bounded length */

    if (node->called == NULL) {
        node->called = ngx_pnalloc(cluster->pool, NGX_RL_SLOT_HOST);
        if (node->called == NULL) {
            return;
        }
    }

    ngx_memcpy(node->called, range->host, range->host_len);

    node->host.data = node->called;
    node->host.len = range->host_len;

    /* a seed has to be whom the configuration names */

    if (!node->seed) {
        node->conf.redis.host = node->host;
    }
}


/* who is in the map has a connection as soon as it is needed, others none */

static void
ngx_rl_cluster_nodes(ngx_rl_cluster_t *cluster, ngx_rl_server_t *from)
{
    uint64_t        hash;
    ngx_uint_t      i, n;
    ngx_rl_node_t  *node;

    n = 0;
    hash = cluster->served;

    for (i = 0; i < cluster->n; i++) {
        node = cluster->nodes[i];

        if (node->seen) {
            n++;
            hash += node->conf.hash;
        }

        ngx_rl_cluster_map(cluster, node, node->seen);
    }

    ngx_rl_cluster_probes(cluster);

    ngx_post_event(&cluster->tidy, &ngx_posted_events);

    /* told by the first worker that finds it so */

    if (ngx_rl_stats_news(cluster->zone, cluster->conf->record, hash)
        && ngx_rl_throttle(&cluster->conf->record->log.changes,
                           NGX_RL_SERVER_CHANGES, NULL))
    {
        ngx_log_error(NGX_LOG_NOTICE, cluster->log, 0,
                      "ratelimit cluster: %ui nodes serve %ui of %d slots, "
                      "says redis %V", n, cluster->served, NGX_RL_SLOTS,
                      &from->conf->label);
    }
}


/*
 * Each node is probed with a key of its own: one of other nodes says nothing
 * about it.  One look at each slot finds a key for all nodes that have any.
 */

static void
ngx_rl_cluster_probes(ngx_rl_cluster_t *cluster)
{
    ngx_uint_t      i, n;
    ngx_rl_node_t  *node;

    for (i = 0; i < NGX_RL_SLOTS; i++) {

        n = cluster->slots[i];

        if (n == NGX_RL_CLUSTER_NOBODY) {
            continue;
        }

        node = cluster->nodes[n];

        if (node->command == NULL || cluster->slots[node->probe] != n) {
            ngx_rl_cluster_probe(cluster, node, (uint16_t) i);
        }
    }
}


static void
ngx_rl_cluster_probe(ngx_rl_cluster_t *cluster,
    ngx_rl_node_t *node, uint16_t slot)
{
    char                     *command, *tag;
    long long                 len;
    ngx_rl_handshake_step_t  *step;

    /* even if there is no memory for it: there is none for the next slot */

    node->probe = slot;

    tag = (char *) cluster->probe.data + cluster->conf->prefix.len
          + sizeof(":{") - 1;

    ngx_rl_slot_tag(slot, tag);

    len = ngx_rl_scripts_probe(&command, (char *) cluster->probe.data,
                               cluster->probe.len);
    if (len < 0) {
        return;
    }

    if (node->command) {
        ngx_rl_resp_free(node->command);
    }

    node->command = command;

    node->conf.probe.data = (u_char *) command;
    node->conf.probe.len = len;

    step = node->conf.redis.greeting.elts;
    step[node->conf.redis.greeting.nelts - 1].command = node->conf.probe;
}


/* not before the one that has brought the map was heard out */

static void
ngx_rl_cluster_tidy(ngx_event_t *ev)
{
    ngx_msec_t         age;
    ngx_uint_t         i;
    ngx_rl_node_t     *node;
    ngx_rl_cluster_t  *cluster;

    cluster = ev->data;

    for (i = 0; cluster->served && i < cluster->n; i++) {
        node = cluster->nodes[i];

        if (node->mapped && !node->lent) {
            ngx_rl_cluster_share(cluster, node);
        }

        if (node->mapped) {
            continue;
        }

        if (node->left) {
            ngx_rl_server_close_idle(node->server);
            continue;
        }

        age = ngx_current_msec - node->asked;

        if (age >= NGX_RL_CLUSTER_ASKED) {
            ngx_rl_server_close_idle(node->server);

            if (node->seed) {
                continue;
            }

            if (ngx_rl_server_unused(node->server)) {
                ngx_rl_cluster_leave(cluster, node);
            }

            /* it has calls, or some that have not been sent yet */

            age = 0;
        }

        /* one that is about to get slots is not there in vain */

        if (!ev->timer_set) {
            ngx_add_timer(ev, NGX_RL_CLUSTER_ASKED - age);
        }
    }
}


static void
ngx_rl_cluster_map(ngx_rl_cluster_t *cluster,
    ngx_rl_node_t *node, ngx_uint_t mapped)
{
    node->mapped = mapped;

    if (!node->left) {
        node->conf.record->mapped = mapped;
    }
}


static void
ngx_rl_cluster_want(ngx_rl_cluster_t *cluster)
{
    ngx_msec_t  age, delay;

    if (cluster->asked || cluster->refresh.timer_set || cluster->ending
        || ngx_exiting)
    {
        return;
    }

    age = ngx_current_msec - cluster->refreshed;

    delay = (age < NGX_RL_CLUSTER_REFRESH)
            ? NGX_RL_CLUSTER_REFRESH - age : 1;

    ngx_add_timer(&cluster->refresh,
                  delay + ngx_random() % NGX_RL_CLUSTER_JITTER);
}


static void
ngx_rl_cluster_refresh(ngx_event_t *ev)
{
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

    /* another one each time: one that is cut off from the others may answer */

    cluster->next++;
    server = ngx_rl_cluster_any(cluster);

    if (ngx_rl_server_usable(server)
        && ngx_rl_connection_send(server->connection, &command,
                                  cluster->conf->redis.connect_timeout,
                                  ngx_rl_cluster_refreshed, cluster, &pending)
        == NGX_RL_OK)
    {
        ngx_rl_pending_background(pending);
        ngx_rl_pending_large(pending);

        cluster->asked = 1;
        cluster->asking = server;
        return;
    }

    /* nobody is there: the greeting of the next connection brings the map */

    ngx_rl_cluster_wake(cluster);
    ngx_rl_cluster_want(cluster);
}


static ngx_int_t
ngx_rl_cluster_refreshed(void *data, const ngx_rl_answer_t *answer)
{
    ngx_rl_cluster_t  *cluster = data;

    ngx_int_t  rc;

    cluster->asked = 0;
    rc = NGX_OK;

    if (answer->failure == NGX_RL_OK
        && answer->reply->type != REDIS_REPLY_ERROR)
    {
        rc = ngx_rl_cluster_learn(cluster, cluster->asking, answer->reply);
    }

    if (ngx_rl_cluster_ill(cluster)) {
        ngx_rl_cluster_want(cluster);
    }

    return rc;
}


/* a node is missed, or one of the map does not answer */

static ngx_uint_t
ngx_rl_cluster_ill(ngx_rl_cluster_t *cluster)
{
    ngx_uint_t      i;
    ngx_rl_node_t  *node;

    if (cluster->served < NGX_RL_SLOTS) {
        return 1;
    }

    for (i = 0; i < cluster->n; i++) {
        node = cluster->nodes[i];

        if (node->mapped
            && node->conf.record->breaker.state
            != NGX_RL_DISTRIBUTED)
        {
            return 1;
        }
    }

    return 0;
}


/* seeds, and nodes of the map, that have no connection */

static void
ngx_rl_cluster_wake(ngx_rl_cluster_t *cluster)
{
    ngx_uint_t      i;
    ngx_rl_node_t  *node;

    for (i = 0; i < cluster->n; i++) {
        node = cluster->nodes[i];

        if (node->seed || node->mapped) {
            ngx_rl_connection_schedule(node->server->connection);
        }
    }
}


static void
ngx_rl_cluster_again(ngx_event_t *ev)
{
    void              *place;
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
        pending = ngx_rl_pending_parked(&parked, &place);
        server = place;

        ngx_rl_pending_again(pending, server->connection);
    }
}
