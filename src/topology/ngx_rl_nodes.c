
/*
 * Each node has a server of its own, with breaker and counters, which is made
 * when the node is first seen.  A node that leaves the map loses its
 * connection and, as soon as nothing is under way, its record.  Its struct is
 * reused for the next new node.  Leases outlive this: they look up again where
 * their key is.  The seeds are the first nodes, and they stay.  A seed that is
 * in the map under the same address is that node.
 *
 * A node is found by its address.  If the cluster announces names and there is
 * a resolver, it is found by its name, which is looked up repeatedly.
 * Announced data is input: the number of nodes is bounded, and so is the work
 * for a map. nginx only connects to addresses in "ratelimit_redis_networks".
 */


#include "topology/ngx_rl_nodes.h"
#include "core/ngx_rl_core.h"
#include "pure/ngx_rl_hash.h"
#include "script/ngx_rl_scripts.h"


/* ms for a node to get slots, after an ASK has named it */
#define NGX_RL_NODES_ASKED  10000


static ngx_rl_node_t *ngx_rl_nodes_create(ngx_rl_nodes_t *nodes, size_t len);
static ngx_rl_node_t *ngx_rl_nodes_by_name(ngx_rl_nodes_t *nodes,
    ngx_rl_server_t *from, const ngx_rl_slot_range_t *there);
static ngx_rl_node_t *ngx_rl_nodes_by_addr(ngx_rl_nodes_t *nodes,
    ngx_rl_server_t *from, ngx_rl_address_t *address, in_port_t port);
static ngx_rl_node_t *ngx_rl_nodes_named(ngx_rl_nodes_t *nodes,
    const ngx_rl_slot_range_t *there);
static ngx_rl_node_t *ngx_rl_nodes_at(ngx_rl_nodes_t *nodes, ngx_addr_t *addr);
static ngx_rl_node_t *ngx_rl_nodes_add(ngx_rl_nodes_t *nodes,
    ngx_rl_address_t *address, ngx_str_t *host, in_port_t port);
static ngx_rl_node_t *ngx_rl_nodes_unused(ngx_rl_nodes_t *nodes);
static ngx_int_t ngx_rl_node_attach(ngx_rl_node_t *node);
static ngx_int_t ngx_rl_node_record(ngx_rl_node_t *node);
static ngx_int_t ngx_rl_node_follow(ngx_rl_node_t *node);
static ngx_uint_t ngx_rl_node_renamed(void *data, ngx_addr_t *addrs,
    ngx_uint_t n);
static void ngx_rl_node_leave(ngx_rl_node_t *node);
static void ngx_rl_node_share(ngx_rl_node_t *node);
static void ngx_rl_node_index(ngx_rl_node_t *node);
static void ngx_rl_node_unindex(ngx_rl_node_t *node);
static ngx_uint_t ngx_rl_nodes_chain(const void *text, size_t len,
    in_port_t port);
static void ngx_rl_nodes_tidy(ngx_event_t *ev);


ngx_int_t
ngx_rl_nodes_init(ngx_rl_nodes_t *nodes, ngx_cycle_t *cycle,
    ngx_rl_server_conf_t *conf, ngx_rl_zone_t *zone, ngx_rl_stats_t *stats,
    const ngx_rl_events_t *events, void *cluster)
{
    u_char         *p;
    ngx_uint_t      i;
    ngx_rl_url_t   *seed;
    ngx_rl_node_t  *node;

    nodes->conf = conf;
    nodes->zone = zone;
    nodes->stats = stats;
    nodes->pool = cycle->pool;
    nodes->log = cycle->log;
    nodes->events = events;
    nodes->cluster = cluster;

    ngx_rl_event_init(&nodes->tidy, ngx_rl_nodes_t, ngx_rl_nodes_tidy, nodes,
                      cycle->log);
    nodes->tidy.cancelable = 1;

    for (i = 0; i < NGX_RL_NODES_CHAINS; i++) {
        nodes->chains[i] = NGX_RL_NODES_NONE;
    }

    nodes->probe.len = conf->prefix.len + sizeof(":{}") - 1 + NGX_RL_SLOT_TAG;
    nodes->probe.data = ngx_pcalloc(cycle->pool, nodes->probe.len);
    nodes->list = ngx_palloc(cycle->pool, NGX_RL_NODES_MAX
                             * sizeof(ngx_rl_node_t *));

    if (nodes->probe.data == NULL || nodes->list == NULL) {
        return NGX_ERROR;
    }

    p = ngx_sprintf(nodes->probe.data, "%V:{", &conf->prefix);
    p[NGX_RL_SLOT_TAG] = '}';

    seed = conf->seeds->elts;

    for (i = 0; i < conf->seeds->nelts && i < NGX_RL_NODES_MAX; i++) {

        node = ngx_rl_nodes_create(nodes, seed[i].name.len);
        if (node == NULL) {
            return NGX_ERROR;
        }

        node->conf.redis.name = seed[i].name;
        node->conf.redis.host = seed[i].host;
        node->conf.redis.addrs = seed[i].addrs;
        node->conf.redis.naddrs = seed[i].naddrs;
        node->host = seed[i].host;
        node->port = seed[i].port;
        node->seed = 1;
        node->left = 0;

        if (ngx_rl_node_attach(node) != NGX_OK
            || ngx_rl_node_follow(node) != NGX_OK)
        {
            return NGX_ERROR;
        }

        ngx_rl_node_index(node);
    }

    return NGX_OK;
}


/* has room for a label with a name of that length; not in the list yet */

static ngx_rl_node_t *
ngx_rl_nodes_create(ngx_rl_nodes_t *nodes, size_t len)
{
    ngx_rl_node_t  *node;

    node = ngx_pcalloc(nodes->pool, sizeof(ngx_rl_node_t));
    if (node == NULL) {
        return NULL;
    }

    node->label = ngx_pnalloc(nodes->pool, nodes->conf->user.len + 1 + len);
    if (node->label == NULL) {
        return NULL;
    }

    node->nodes = nodes;
    node->conf = *nodes->conf;
    node->index = (uint16_t) nodes->n;
    node->chain = NGX_RL_NODES_NONE;
    node->left = 1;

    return node;
}


void
ngx_rl_nodes_exit(ngx_rl_nodes_t *nodes)
{
    ngx_uint_t      i;
    ngx_rl_node_t  *node;

    ngx_rl_event_end(&nodes->tidy);

    for (i = 0; i < nodes->n; i++) {
        node = nodes->list[i];

        ngx_rl_resolve_end(node->resolve);
        ngx_rl_server_exit(node->server);

        if (node->probe) {
            ngx_rl_resp_free(node->probe);
        }
    }
}


void
ngx_rl_nodes_begin(ngx_rl_nodes_t *nodes, ngx_uint_t scans)
{
    nodes->full = 0;
    nodes->scans = scans;
}


ngx_rl_node_t *
ngx_rl_nodes_find(ngx_rl_nodes_t *nodes, ngx_rl_server_t *from,
    const ngx_rl_slot_range_t *there)
{
    ngx_addr_t       *addr;
    ngx_rl_address_t  where;

    if (there->host_len == 0) {
        addr = ngx_rl_connection_addr(from->connection);
        if (addr == NULL) {
            return NULL;
        }

        ngx_rl_address_port(&where, addr, there->port);

    } else if (ngx_rl_address(&where, there->host, there->host_len, there->port)
               != NGX_OK)
    {
        return ngx_rl_nodes_by_name(nodes, from, there);
    }

    return ngx_rl_nodes_by_addr(nodes, from, &where, there->port);
}


/* the announced address is used if the name cannot be used */

static ngx_rl_node_t *
ngx_rl_nodes_by_name(ngx_rl_nodes_t *nodes, ngx_rl_server_t *from,
    const ngx_rl_slot_range_t *there)
{
    ngx_str_t         host;
    ngx_addr_t       *addr;
    ngx_uint_t        known;
    ngx_rl_node_t    *node;
    ngx_rl_address_t  where;

    host.data = (u_char *) there->host;
    host.len = there->host_len;

    known = there->ip_len
            && ngx_rl_address(&where, there->ip, there->ip_len, there->port)
               == NGX_OK;

    node = ngx_rl_nodes_named(nodes, there);

    if (node && (node->resolve || !known)) {

        /* the cluster may know earlier than DNS that the node has moved */

        addr = ngx_rl_connection_addr(node->server->connection);

        if (known && addr && !ngx_rl_address_equal(addr, &where.addr)) {
            ngx_rl_resolve_again(node->resolve);
        }

        return node;
    }

    if (node == NULL
        && ngx_rl_resolve_valid(nodes->conf->resolver, &host)
        && !(known && ngx_rl_nodes_at(nodes, &where.addr)))
    {
        /* DNS decides, but until it answers the node may be there */

        known = known && ngx_rl_server_conf_allows(nodes->conf, &where.addr);

        return ngx_rl_nodes_add(nodes, known ? &where : NULL, &host,
                                there->port);
    }

    if (known) {
        return ngx_rl_nodes_by_addr(nodes, from, &where, there->port);
    }

    if (ngx_rl_server_may_log(from, NGX_RL_CONFIG)) {
        ngx_log_error(NGX_LOG_ERR, nodes->log, 0,
                      "redis %V announces cluster node \"%V\" by name, without "
                      "an address: set \"resolver\" in nginx, or make the "
                      "cluster announce addresses "
                      "(cluster-preferred-endpoint-type ip)",
                      &from->conf->label, &host);
    }

    return NULL;
}


static ngx_rl_node_t *
ngx_rl_nodes_by_addr(ngx_rl_nodes_t *nodes, ngx_rl_server_t *from,
    ngx_rl_address_t *address, in_port_t port)
{
    ngx_rl_node_t  *node;

    node = ngx_rl_nodes_at(nodes, &address->addr);

    if (node) {
        return node;
    }

    if (!ngx_rl_server_conf_filter(nodes->conf, nodes->log, "redis",
                                   &from->conf->label, &address->addr, 1))
    {
        return NULL;
    }

    return ngx_rl_nodes_add(nodes, address, NULL, port);
}


/*
 * By name, which may be that of a seed, or was announced with an address
 * before.
 */

static ngx_rl_node_t *
ngx_rl_nodes_named(ngx_rl_nodes_t *nodes, const ngx_rl_slot_range_t *there)
{
    ngx_uint_t      i, scan;
    ngx_rl_node_t  *node;

    i = nodes->chains[ngx_rl_nodes_chain(there->host, there->host_len,
                                         there->port)];

    for (scan = 0; scan < 2; scan++) {

        while (i < nodes->n) {
            node = nodes->list[i];

            if (node->host.len == there->host_len && node->port == there->port
                && ngx_strncasecmp(node->host.data, (u_char *) there->host,
                                   there->host_len)
                == 0)
            {
                return node;
            }

            i = scan ? i + 1 : node->next;
        }

        /* otherwise search the whole list, which is bounded for a map */

        if (nodes->scans == 0) {
            break;
        }

        nodes->scans -= (scan == 0);
        i = 0;
    }

    return NULL;
}


/* by address; a node with a name may have moved to another address */

static ngx_rl_node_t *
ngx_rl_nodes_at(ngx_rl_nodes_t *nodes, ngx_addr_t *addr)
{
    ngx_uint_t      i;
    ngx_rl_node_t  *node;

    i = nodes->chains[ngx_rl_nodes_chain(addr->name.data, addr->name.len, 0)];

    for ( /* void */ ; i < nodes->n; i = node->next) {
        node = nodes->list[i];

        if (node->resolve == NULL && node->conf.redis.naddrs == 1
            && ngx_rl_address_equal(&node->conf.redis.addrs[0], addr))
        {
            return node;
        }
    }

    return NULL;
}


/* at an address, by a name, or both */

static ngx_rl_node_t *
ngx_rl_nodes_add(ngx_rl_nodes_t *nodes, ngx_rl_address_t *address,
    ngx_str_t *host, in_port_t port)
{
    u_char                     text[NGX_RL_SERVER_NAME];
    ngx_rl_node_t             *node;
    ngx_rl_connection_conf_t  *redis;

    node = ngx_rl_nodes_unused(nodes);
    if (node == NULL) {
        return NULL;
    }

    redis = &node->conf.redis;

    redis->addrs = NULL;
    redis->naddrs = 0;
    ngx_str_null(&redis->host);
    ngx_str_null(&node->host);

    if (address) {
        ngx_rl_address_copy(&node->addr, address);
        redis->addrs = &node->addr.addr;
        redis->naddrs = 1;
        redis->name = node->addr.addr.name;
    }

    node->port = port;

    if (host) {
        ngx_memcpy(node->text, host->data, host->len);
        node->host.data = node->text;
        node->host.len = host->len;

        redis->host = node->host;
        redis->name.data = text;
        redis->name.len = ngx_sprintf(text, "%V:%ui", host, (ngx_uint_t) port)
                          - text;
        ngx_strlow(text, text, redis->name.len);
    }

    if (ngx_rl_node_attach(node) != NGX_OK) {
        return NULL;
    }

    if (host && ngx_rl_node_follow(node) != NGX_OK) {
        ngx_rl_node_leave(node);
        return NULL;
    }

    node->left = 0;
    node->asked = ngx_current_msec - NGX_RL_NODES_ASKED;

    ngx_rl_node_index(node);

    return node;
}


/* reuses a node that has left, or makes a new one */

static ngx_rl_node_t *
ngx_rl_nodes_unused(ngx_rl_nodes_t *nodes)
{
    ngx_uint_t      i;
    ngx_rl_node_t  *node;

    if (nodes->full) {
        return NULL;
    }

    for (i = 0; i < nodes->n; i++) {
        node = nodes->list[i];

        if (node->left && ngx_rl_connection_unused(node->server->connection)) {
            return node;
        }
    }

    if (nodes->n == NGX_RL_NODES_MAX) {
        nodes->full = 1;

        if (ngx_rl_record_may_log(nodes->conf->record, NGX_RL_OVERLOAD)) {
            ngx_log_error(NGX_LOG_ERR, nodes->log, 0,
                          "%V has more than %d nodes at once: the others are "
                          "not used", &nodes->conf->label, NGX_RL_NODES_MAX);
        }

        return NULL;
    }

    return ngx_rl_nodes_create(nodes, NGX_RL_SERVER_NAME);
}


/* sets label, record and server, which a reused node has already */

static ngx_int_t
ngx_rl_node_attach(ngx_rl_node_t *node)
{
    void                  *steps;
    ngx_array_t           *common;
    ngx_rl_nodes_t        *nodes;
    ngx_rl_server_conf_t  *conf;

    nodes = node->nodes;
    conf = &node->conf;

    ngx_rl_server_conf_node(conf, &conf->redis.name, node->label, &conf->label);

    /* the label is never freed */

    conf->redis.name.data = conf->label.data + conf->label.len
                            - conf->redis.name.len;
    conf->hash = ngx_rl_hash(conf->label.data, conf->label.len);

    if (ngx_rl_node_record(node) != NGX_OK) {
        return NGX_ERROR;
    }

    if (node->server) {

        if (ngx_rl_server_reuse(node->server) == NGX_OK) {
            return NGX_OK;
        }

        goto failed;
    }

    /* a copy, because its handshake ends with a probe of its own */

    common = &nodes->conf->redis.handshake;

    steps = ngx_palloc(nodes->pool, common->nelts * common->size);
    if (steps == NULL) {
        goto failed;
    }

    ngx_memcpy(steps, common->elts, common->nelts * common->size);
    conf->redis.handshake.elts = steps;

    node->server = ngx_rl_server_create(nodes->pool, nodes->log, conf,
                                        nodes->zone, nodes->stats,
                                        nodes->events, nodes->cluster);
    if (node->server == NULL) {
        goto failed;
    }

    nodes->list[nodes->n++] = node;

    return NGX_OK;

failed:

    if (node->lent) {
        node->lent = 0;
        ngx_rl_record_return(nodes->zone, nodes->stats, conf->record);
    }

    conf->record = &nodes->gone;

    return NGX_ERROR;
}


/* if the zone has no room, each worker has a breaker of its own */

static ngx_int_t
ngx_rl_node_record(ngx_rl_node_t *node)
{
    ngx_rl_nodes_t        *nodes;
    ngx_rl_server_conf_t  *conf;

    nodes = node->nodes;
    conf = &node->conf;

    conf->record = ngx_rl_record_lend(nodes->zone, nodes->stats, &conf->label);
    node->lent = (conf->record != NULL);

    if (conf->record == NULL) {

        if (node->own == NULL) {
            node->own = ngx_palloc(nodes->pool, sizeof(ngx_rl_record_t));
            if (node->own == NULL) {
                conf->record = &nodes->gone;
                return NGX_ERROR;
            }
        }

        ngx_memzero(node->own, sizeof(ngx_rl_record_t));
        conf->record = node->own;

        if (ngx_rl_record_may_log(nodes->conf->record, NGX_RL_OVERLOAD)) {
            ngx_log_error(NGX_LOG_WARN, nodes->log, 0,
                          "\"ratelimit_zone\" has no room for cluster node %V: "
                          "each worker keeps its own breaker for this node, "
                          "and the metrics do not show it; make the zone "
                          "larger",
                          &conf->label);
        }
    }

    conf->record->place.role = conf->role;
    conf->record->place.set = nodes->conf->hash;

    return NGX_OK;
}


static ngx_int_t
ngx_rl_node_follow(ngx_rl_node_t *node)
{
    return ngx_rl_resolve_watch(&node->resolve, node->nodes->log, &node->conf,
                                &node->conf.label, &node->host, node->port,
                                node->conf.redis.addrs, node->conf.redis.naddrs,
                                ngx_rl_node_renamed, node);
}


/* the current address of a node with a name */

static ngx_uint_t
ngx_rl_node_renamed(void *data, ngx_addr_t *addrs, ngx_uint_t n)
{
    ngx_rl_node_t  *node = data;

    ngx_uint_t       news;
    ngx_rl_nodes_t  *nodes;

    nodes = node->nodes;

    /* the configuration knows the name of a seed, but not of other nodes */

    if (!node->seed && n) {
        n = ngx_rl_server_conf_filter(nodes->conf, nodes->log, "cluster node",
                                      &node->conf.label, addrs, n);
        if (n == 0) {
            return 0;
        }
    }

    news = ngx_rl_server_renamed(node->server, addrs, n);

    /*
     * Moving has made a connection, which a node outside the map does not
     * need.
     */

    if (n && !node->mapped && nodes->mapped) {
        ngx_rl_server_close_idle(node->server);
    }

    return news;
}


/* a node that is not in the map any more and has nothing under way */

static void
ngx_rl_node_leave(ngx_rl_node_t *node)
{
    ngx_rl_nodes_t   *nodes;
    ngx_rl_record_t  *record;

    nodes = node->nodes;

    record = node->conf.record;
    node->conf.record = &nodes->gone;

    if (ngx_rl_server_reuse(node->server) != NGX_OK) {
        node->conf.record = record;
        return;
    }

    if (node->lent) {
        ngx_rl_record_return(nodes->zone, nodes->stats, record);
    }

    ngx_rl_resolve_end(node->resolve);
    node->resolve = NULL;

    ngx_rl_node_unindex(node);

    node->host.len = 0;
    node->lent = 0;
    node->left = 1;
}


/*
 * The zone may have room now.  A node in use tries again with the next map.  A
 * node that was moved by its name does not, because a new connection would not
 * know the address.
 */

static void
ngx_rl_node_share(ngx_rl_node_t *node)
{
    ngx_rl_nodes_t   *nodes;
    ngx_rl_record_t  *record;

    nodes = node->nodes;

    if (node->resolve || !ngx_rl_connection_unused(node->server->connection)) {
        return;
    }

    record = ngx_rl_record_lend(nodes->zone, nodes->stats, &node->conf.label);
    if (record == NULL) {
        return;
    }

    node->conf.record = record;

    if (ngx_rl_server_reuse(node->server) != NGX_OK) {
        node->conf.record = node->own;
        ngx_rl_record_return(nodes->zone, nodes->stats, record);
        return;
    }

    record->place.role = node->conf.role;
    record->place.set = nodes->conf->hash;
    record->place.mapped = 1;

    node->lent = 1;
}


/*
 * Each node is in one chain: by name if the name is looked up, else by
 * address.
 */

static void
ngx_rl_node_index(ngx_rl_node_t *node)
{
    uint16_t         *first;
    ngx_rl_address_t  address;

    if (node->resolve == NULL && node->conf.redis.naddrs == 1) {
        ngx_rl_address_port(&address, &node->conf.redis.addrs[0], node->port);

        node->chain = ngx_rl_nodes_chain(address.addr.name.data,
                                         address.addr.name.len, 0);

    } else {
        node->chain = ngx_rl_nodes_chain(node->host.data, node->host.len,
                                         node->port);
    }

    first = &node->nodes->chains[node->chain];

    node->next = *first;
    *first = node->index;
}


static void
ngx_rl_node_unindex(ngx_rl_node_t *node)
{
    uint16_t        *n;
    ngx_rl_nodes_t  *nodes;

    if (node->chain == NGX_RL_NODES_NONE) {
        return;
    }

    nodes = node->nodes;

    n = &nodes->chains[node->chain];

    while (*n != NGX_RL_NODES_NONE && *n != node->index) {
        n = &nodes->list[*n]->next;
    }

    if (*n != NGX_RL_NODES_NONE) {
        *n = node->next;
    }

    node->chain = NGX_RL_NODES_NONE;
}


static ngx_uint_t
ngx_rl_nodes_chain(const void *text, size_t len, in_port_t port)
{
    u_char  lower[NGX_RL_SLOT_HOST];

    len = ngx_min(len, sizeof(lower));
    ngx_strlow(lower, (u_char *) text, len);

    return (ngx_rl_hash(lower, len) + port) % NGX_RL_NODES_CHAINS;
}


/* redirects only contain the name, and certificates are issued for it */

void
ngx_rl_node_name(ngx_rl_node_t *node, const ngx_rl_slot_range_t *range)
{
    node->port = range->port;

    if (node->host.len == range->host_len
        && ngx_memcmp(node->host.data, range->host, range->host_len) == 0)
    {
        return;
    }

    ngx_memcpy(node->text, range->host, range->host_len);

    node->host.data = node->text;
    node->host.len = range->host_len;

    /* a seed must have the name that is configured */

    if (!node->seed) {
        node->conf.redis.host = node->host;
    }
}


void
ngx_rl_node_map(ngx_rl_node_t *node, ngx_uint_t mapped)
{
    node->mapped = mapped;
    node->nodes->mapped |= mapped;

    if (!node->left) {
        node->conf.record->place.mapped = mapped;
    }
}


void
ngx_rl_node_probe(ngx_rl_node_t *node, uint16_t slot)
{
    char                     *command, *tag;
    long long                 len;
    ngx_rl_nodes_t           *nodes;
    ngx_rl_handshake_step_t  *step;

    nodes = node->nodes;

    /* even without memory for it: there is none for the next slot either */

    node->probe_slot = slot;

    tag = (char *) nodes->probe.data + nodes->conf->prefix.len
          + sizeof(":{") - 1;

    ngx_rl_slot_tag(slot, tag);

    len = ngx_rl_scripts_probe(&command, (char *) nodes->probe.data,
                               nodes->probe.len);
    if (len < 0) {
        return;
    }

    if (node->probe) {
        ngx_rl_resp_free(node->probe);
    }

    node->probe = command;

    node->conf.probe.data = (u_char *) command;
    node->conf.probe.len = len;

    step = node->conf.redis.handshake.elts;
    step[node->conf.redis.handshake.nelts - 1].command = node->conf.probe;
}


/* posted, because the node that sent the map may have to leave */

static void
ngx_rl_nodes_tidy(ngx_event_t *ev)
{
    ngx_msec_t       age;
    ngx_uint_t       i;
    ngx_rl_node_t   *node;
    ngx_rl_nodes_t  *nodes;

    nodes = ev->data;

    for (i = 0; nodes->mapped && i < nodes->n; i++) {
        node = nodes->list[i];

        if (node->mapped) {

            if (!node->lent) {
                ngx_rl_node_share(node);
            }

            continue;
        }

        age = ngx_current_msec - node->asked;

        if (node->left || age >= NGX_RL_NODES_ASKED) {
            ngx_rl_server_close_idle(node->server);

            if (node->left || node->seed) {
                continue;
            }

            if (ngx_rl_connection_unused(node->server->connection)) {
                ngx_rl_node_leave(node);
            }

            /* it has calls under way, or calls that have not been sent yet */

            age = 0;
        }

        /* a node that an ASK has named will get slots soon */

        if (!ev->timer_set) {
            ngx_add_timer(ev, NGX_RL_NODES_ASKED - age);
        }
    }
}
