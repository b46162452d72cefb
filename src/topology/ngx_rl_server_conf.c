
#include "topology/ngx_rl_server_conf.h"
#include "redis/ngx_rl_address.h"
#include "pure/ngx_rl_hash.h"
#include "script/ngx_rl_script.h"


static ngx_uint_t ngx_rl_peer_same(
    ngx_rl_peer_t *peer, ngx_rl_peer_t *other);
static ngx_int_t ngx_rl_peer_tls(ngx_conf_t *cf,
    ngx_rl_peer_t *peer, ngx_array_t *peers);
static ngx_int_t ngx_rl_peer_label(ngx_conf_t *cf,
    ngx_rl_peer_t *peer, ngx_uint_t named, ngx_array_t *peers);
static ngx_int_t ngx_rl_peer_probe(ngx_conf_t *cf,
    ngx_rl_peer_t *peer, ngx_str_t *prefix);
static ngx_int_t ngx_rl_peer_seeds(ngx_rl_zone_t *zone,
    ngx_rl_stats_t *stats, ngx_rl_peer_t *cluster);
static ngx_int_t ngx_rl_peer_greeting(ngx_conf_t *cf,
    ngx_rl_peer_t *peer);
static ngx_int_t ngx_rl_peer_auth(ngx_conf_t *cf,
    ngx_rl_peer_t *peer);
static ngx_int_t ngx_rl_peer_introduce(ngx_conf_t *cf,
    ngx_rl_peer_t *peer);
static ngx_int_t ngx_rl_peer_greet(ngx_conf_t *cf,
    ngx_rl_peer_t *peer, char *name, ngx_uint_t required,
    char *command, long long len);
static void ngx_rl_peer_tell(ngx_rl_peer_t *peer,
    ngx_uint_t tell);
static ngx_uint_t ngx_rl_str_equal(ngx_str_t *a, ngx_str_t *b);


const char  ngx_rl_peer_unused[] = "no limits live there";


ngx_rl_peer_t *
ngx_rl_peer(ngx_conf_t *cf, ngx_rl_shard_t *shard,
    ngx_rl_access_t *access,
    ngx_rl_sentinels_t *sentinels, ngx_array_t *seeds,
    ngx_array_t *peers)
{
    ngx_uint_t                   i;
    ngx_rl_peer_t   *peer, **pp;

    peer = ngx_pcalloc(cf->pool, sizeof(ngx_rl_peer_t));
    if (peer == NULL) {
        return NULL;
    }

    peer->index = peers->nelts;
    peer->user = shard->password.data ? shard->user : access->user;
    peer->password = shard->password.data ? shard->password
                                          : access->password;
    peer->database = (shard->database != NGX_CONF_UNSET) ? shard->database
                                                         : access->database;
    peer->host = shard->host;
    peer->port = shard->port;
    peer->resolver = access->resolver;
    peer->resolver_timeout = access->resolver_timeout;
    peer->networks = access->networks;
    peer->sentinels = sentinels;
    peer->seeds = seeds;
    peer->breaker = access->breaker;
    peer->prefix = access->prefix;
    peer->timeout = NGX_MAX_INT32_VALUE;
    peer->outage = ngx_rl_peer_unused;

    /* Redis has no TLS on unix sockets, and no need of it */

    peer->tls = access->tls;

    if (shard->tls) {
        peer->tls.enable = 1;

    } else if (shard->naddrs && shard->port == 0) {
        peer->tls.enable = 0;
    }

    peer->redis.name = shard->name;
    peer->redis.host = shard->host;
    peer->redis.addrs = shard->addrs;
    peer->redis.naddrs = shard->naddrs;
    peer->redis.connect_timeout = access->connect_timeout;

    if (seeds) {
        peer->kind = NGX_RL_CLUSTER;
        peer->role = NGX_RL_ROLE_NODE;
        peer->node = 1;

    } else if (sentinels) {
        peer->kind = NGX_RL_SENTINEL;
        peer->role = NGX_RL_ROLE_MASTER;
    }

    /* another set may have it already */

    pp = peers->elts;

    for (i = 0; i < peers->nelts; i++) {
        if (ngx_rl_peer_same(peer, pp[i])) {
            return pp[i];
        }
    }

    if (ngx_array_init(&peer->redis.greeting, cf->pool, 8,
                       sizeof(ngx_rl_greeting_t))
        != NGX_OK
        || ngx_rl_peer_tls(cf, peer, peers) != NGX_OK
        || ngx_rl_peer_label(cf, peer,
                                         shard->database != NGX_CONF_UNSET,
                                         peers)
           != NGX_OK
        || ngx_rl_peer_greeting(cf, peer) != NGX_OK
        || ngx_rl_peer_probe(cf, peer, &access->prefix) != NGX_OK)
    {
        return NULL;
    }

    pp = ngx_array_push(peers);
    if (pp == NULL) {
        return NULL;
    }

    *pp = peer;

    return peer;
}


static ngx_uint_t
ngx_rl_peer_same(ngx_rl_peer_t *peer,
    ngx_rl_peer_t *other)
{
    if (peer->kind != other->kind
        || !ngx_rl_str_equal(&peer->redis.name,
                                         &other->redis.name)
        || !ngx_rl_str_equal(&peer->user, &other->user)
        || !ngx_rl_str_equal(&peer->password, &other->password)
        || peer->database != other->database
        || peer->redis.connect_timeout != other->redis.connect_timeout
        || !ngx_rl_tls_conf_equal(&peer->tls, &other->tls)
        || peer->breaker.failures != other->breaker.failures
        || peer->breaker.window != other->breaker.window
        || peer->breaker.probe != other->breaker.probe
        || peer->resolver != other->resolver
        || peer->networks != other->networks)
    {
        return 0;
    }

    return peer->sentinels == NULL
           || (ngx_rl_str_equal(&peer->sentinels->name,
                                            &other->sentinels->name)
               && ngx_rl_str_equal(&peer->sentinels->user,
                                               &other->sentinels->user)
               && ngx_rl_str_equal(&peer->sentinels->password,
                                               &other->sentinels->password));
}


/* certificates of a system are many: they are loaded once for all peers */

static ngx_int_t
ngx_rl_peer_tls(ngx_conf_t *cf, ngx_rl_peer_t *peer,
    ngx_array_t *peers)
{
    ngx_uint_t                   i;
    ngx_rl_peer_t  **other;

    if (peer->tls.enable != 1) {
        return NGX_OK;
    }

    other = peers->elts;

    for (i = 0; i < peers->nelts; i++) {

        if (ngx_rl_tls_conf_equal(&peer->tls, &other[i]->tls)) {
            peer->redis.tls = other[i]->redis.tls;
            return NGX_OK;
        }
    }

    peer->redis.tls = ngx_rl_tls_create(cf, &peer->tls);

    return peer->redis.tls ? NGX_OK : NGX_ERROR;
}


/*
 * What all of them have in common.  The greeting asks where the masters are,
 * and then to be told when one is elsewhere; it is one piece of output, so
 * nothing happens in between.
 */

ngx_int_t
ngx_rl_peer_sentinel(ngx_conf_t *cf,
    ngx_rl_sentinels_t *sentinels,
    ngx_rl_access_t *access)
{
    char                         *command;
    u_char                       *p;
    size_t                        len;
    long long                     n;
    ngx_uint_t                    i;
    ngx_rl_peer_t    *peer, **master;

    peer = ngx_pcalloc(cf->pool, sizeof(ngx_rl_peer_t));
    if (peer == NULL) {
        return NGX_ERROR;
    }

    sentinels->peer = peer;

    master = sentinels->masters.elts;

    len = sizeof("sentinel=") - 1;

    for (i = 0; i < sentinels->masters.nelts; i++) {
        len += master[i]->redis.name.len + 1;
    }

    p = ngx_pnalloc(cf->pool, len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    peer->label.data = p;
    p = ngx_cpymem(p, "sentinel=", sizeof("sentinel=") - 1);

    for (i = 0; i < sentinels->masters.nelts; i++) {
        p = ngx_cpymem(p, master[i]->redis.name.data,
                       master[i]->redis.name.len);
        *p++ = ',';
    }

    peer->label.len = p - 1 - peer->label.data;

    peer->redis.tls = master[0]->redis.tls;
    peer->role = NGX_RL_ROLE_SENTINEL;
    peer->resolver = access->resolver;
    peer->resolver_timeout = access->resolver_timeout;
    peer->user = sentinels->user;
    peer->password = sentinels->password;
    peer->redis.name = peer->label;
    peer->redis.connect_timeout = access->connect_timeout;
    peer->breaker = access->breaker;

    if (ngx_array_init(&peer->redis.greeting, cf->pool, 4,
                       sizeof(ngx_rl_greeting_t))
        != NGX_OK
        || ngx_rl_peer_auth(cf, peer) != NGX_OK
        || ngx_rl_peer_introduce(cf, peer) != NGX_OK)
    {
        return NGX_ERROR;
    }

    for (i = 0; i < sentinels->masters.nelts; i++) {

        n = ngx_rl_script_command(&command, "SENTINEL",
                                              "GET-MASTER-ADDR-BY-NAME",
                                              master[i]->redis.name.data,
                                              NULL);

        if (ngx_rl_peer_greet(cf, peer,
                                          "SENTINEL GET-MASTER-ADDR-BY-NAME",
                                          1, command, n)
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        ngx_rl_peer_tell(peer, i + 1);
    }

    n = ngx_rl_script_command(&command, "SUBSCRIBE",
                                          "+switch-master", NULL);

    return ngx_rl_peer_greet(cf, peer, "SUBSCRIBE", 1, command, n);
}


/*
 * What peers are called in metrics and in the log, and by which they find their
 * breaker: those that differ in nothing but timeouts share one, those with
 * different passwords, or with and without TLS, must not
 */

static ngx_int_t
ngx_rl_peer_label(ngx_conf_t *cf, ngx_rl_peer_t *peer,
    ngx_uint_t named, ngx_array_t *peers)
{
    u_char                      *p, *end;
    ngx_uint_t                   i, n;
    ngx_rl_peer_t  **other;

    p = ngx_pnalloc(cf->pool, peer->user.len + peer->redis.name.len
                              + 2 * NGX_INT_T_LEN + 3);
    if (p == NULL) {
        return NGX_ERROR;
    }

    peer->label.data = p;

    if (peer->user.len) {
        p = ngx_sprintf(p, "%V@", &peer->user);
    }

    p = ngx_cpymem(p, peer->redis.name.data, peer->redis.name.len);

    if (peer->database && !named) {
        p = ngx_sprintf(p, "/%i", peer->database);
    }

    end = p;
    other = peers->elts;
    n = 1;

    for (i = 0; i < peers->nelts; i++) {
        peer->label.len = p - peer->label.data;

        if (ngx_rl_str_equal(&peer->label, &other[i]->label)
            && (!ngx_rl_str_equal(&peer->password,
                                              &other[i]->password)
                || !ngx_rl_tls_conf_equal(&peer->tls,
                                                      &other[i]->tls)
                || peer->sentinels != other[i]->sentinels))
        {
            p = ngx_sprintf(end, "#%ui", ++n);
        }
    }

    peer->label.len = p - peer->label.data;
    peer->hash = ngx_rl_hash(peer->label.data, peer->label.len);

    return NGX_OK;
}


/*
 * Whether limits can be kept there.  It ends the greeting, and is asked again
 * and again while the breaker is open.
 */

static ngx_int_t
ngx_rl_peer_probe(ngx_conf_t *cf, ngx_rl_peer_t *peer,
    ngx_str_t *prefix)
{
    char                           *command;
    u_char                         *key, *p;
    long long                       len;
    ngx_rl_greeting_t  *greeting;

    key = ngx_pnalloc(cf->pool, prefix->len + sizeof(":{probe}"));
    if (key == NULL) {
        return NGX_ERROR;
    }

    p = ngx_sprintf(key, "%V:{probe}", prefix);

    len = ngx_rl_script_probe(&command, (char *) key, p - key);

    if (ngx_rl_peer_greet(cf, peer, "a script that writes", 1,
                                      command, len)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    greeting = peer->redis.greeting.elts;
    greeting += peer->redis.greeting.nelts - 1;

    greeting->elsewhere = (peer->kind == NGX_RL_CLUSTER);
    peer->probe = greeting->command;

    return NGX_OK;
}


void
ngx_rl_peer_node(ngx_rl_peer_t *cluster,
    ngx_str_t *name, u_char *p, ngx_str_t *label)
{
    label->data = p;

    if (cluster->user.len) {
        p = ngx_sprintf(p, "%V@", &cluster->user);
    }

    p = ngx_cpymem(p, name->data, name->len);

    label->len = p - label->data;
}


ngx_uint_t
ngx_rl_peer_allows(ngx_rl_peer_t *peer,
    ngx_addr_t *addr)
{
    ngx_uint_t                   i, k;
    ngx_array_t                 *named;
    ngx_rl_shard_t  *shard;

    if (peer->networks == NULL
        || ngx_cidr_match(addr->sockaddr, peer->networks) == NGX_OK)
    {
        return 1;
    }

    named = peer->sentinels ? peer->sentinels->addresses : peer->seeds;
    shard = named->elts;

    for (i = 0; i < named->nelts; i++) {
        for (k = 0; k < shard[i].naddrs; k++) {

            if (ngx_rl_addr_equal(&shard[i].addrs[k], addr)) {
                return 1;
            }
        }
    }

    return 0;
}


void
ngx_rl_peer_refused(ngx_rl_shard_stats_t *stats,
    ngx_log_t *log, const char *who, ngx_str_t *name, ngx_addr_t *addr)
{
    ngx_rl_count(stats->events[NGX_RL_EVENT_REFUSED]);

    if (ngx_rl_stats_loud(stats, NGX_RL_CONFIG)) {
        ngx_log_error(NGX_LOG_ERR, log, 0,
                      "%s %V announces %V, which is in none of "
                      "\"ratelimit_redis_networks\": it is not used", who,
                      name, &addr->name);
    }
}


ngx_int_t
ngx_rl_peers_attach(ngx_rl_zone_t *zone,
    ngx_rl_stats_t *stats, ngx_array_t *peers)
{
    ngx_uint_t                       i;
    ngx_rl_peer_t      **peer;
    ngx_rl_sentinels_t  *sentinels;

    peer = peers->elts;

    for (i = 0; i < peers->nelts; i++) {
        peer[i]->stats = ngx_rl_stats_shard(zone, stats,
                                                        &peer[i]->label);
        if (peer[i]->stats == NULL) {
            return NGX_ERROR;
        }

        peer[i]->stats->role = peer[i]->role;

        /* what new workers find is told anew */

        (void) ngx_rl_stats_news(zone, peer[i]->stats, 0);

        sentinels = peer[i]->sentinels;

        if (sentinels) {
            sentinels->peer->stats = ngx_rl_stats_shard(zone, stats,
                                                   &sentinels->peer->label);
            if (sentinels->peer->stats == NULL) {
                return NGX_ERROR;
            }

            sentinels->peer->stats->role = sentinels->peer->role;
        }

        if (peer[i]->seeds
            && ngx_rl_peer_seeds(zone, stats, peer[i]) != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* they have their place before any other node */

static ngx_int_t
ngx_rl_peer_seeds(ngx_rl_zone_t *zone,
    ngx_rl_stats_t *stats, ngx_rl_peer_t *cluster)
{
    u_char                            *p;
    ngx_str_t                          label;
    ngx_uint_t                         i;
    ngx_rl_shard_t        *seed;
    ngx_rl_shard_stats_t  *shard;

    seed = cluster->seeds->elts;

    for (i = 0; i < cluster->seeds->nelts; i++) {

        p = ngx_alloc(cluster->user.len + 1 + seed[i].name.len,
                      zone->shm_zone->shm.log);
        if (p == NULL) {
            return NGX_ERROR;
        }

        ngx_rl_peer_node(cluster, &seed[i].name, p, &label);
        shard = ngx_rl_stats_shard(zone, stats, &label);

        ngx_free(p);

        if (shard == NULL) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


void
ngx_rl_peers_use(ngx_rl_zone_t *zone,
    ngx_array_t *peers)
{
    ngx_uint_t                   i;
    ngx_rl_peer_t  **peer;

    peer = peers->elts;

    for (i = 0; i < peers->nelts; i++) {
        ngx_rl_stats_use(zone, peer[i]->stats);

        if (peer[i]->sentinels) {
            ngx_rl_stats_use(zone,
                                         peer[i]->sentinels->peer->stats);
        }
    }
}


static ngx_int_t
ngx_rl_peer_greeting(ngx_conf_t *cf,
    ngx_rl_peer_t *peer)
{
    char                           *command;
    u_char                          database[NGX_INT_T_LEN + 1];
    size_t                          i;
    long long                       len;
    ngx_rl_greeting_t  *greeting;

    if (ngx_rl_peer_auth(cf, peer) != NGX_OK) {
        return NGX_ERROR;
    }

    if (peer->database) {
        ngx_sprintf(database, "%i%Z", peer->database);

        len = ngx_rl_script_command(&command, "SELECT", database,
                                                NULL);

        if (ngx_rl_peer_greet(cf, peer, "SELECT", 1, command, len)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (ngx_rl_peer_introduce(cf, peer) != NGX_OK) {
        return NGX_ERROR;
    }

    if (peer->kind == NGX_RL_SENTINEL) {

        len = ngx_rl_script_command(&command, "ROLE", NULL);

        if (ngx_rl_peer_greet(cf, peer, "ROLE", 1, command, len)
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        ngx_rl_peer_tell(peer, NGX_RL_TELL_ROLE);

        /* one that is no master gets nothing to write */

        greeting = peer->redis.greeting.elts;
        greeting[peer->redis.greeting.nelts - 1].gate = 1;
    }

    if (peer->kind == NGX_RL_CLUSTER) {

        len = ngx_rl_script_command(&command, "CLUSTER", "SLOTS",
                                                NULL);

        if (ngx_rl_peer_greet(cf, peer, "CLUSTER SLOTS", 1,
                                          command, len)
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        ngx_rl_peer_tell(peer, NGX_RL_TELL_SLOTS);

        greeting = peer->redis.greeting.elts;
        greeting[peer->redis.greeting.nelts - 1].large = 1;
    }

    for (i = 0; /* void */ ; i++) {
        len = ngx_rl_script_load(&command, i);

        if (len == -2) {
            return NGX_OK;
        }

        if (ngx_rl_peer_greet(cf, peer, "SCRIPT LOAD", 0, command,
                                          len)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }
}


static ngx_int_t
ngx_rl_peer_auth(ngx_conf_t *cf, ngx_rl_peer_t *peer)
{
    char       *command, *user, *password;
    long long   len;

    if (peer->password.len == 0) {
        return NGX_OK;
    }

    user = (char *) peer->user.data;
    password = (char *) peer->password.data;

    len = peer->user.len
          ? ngx_rl_script_command(&command, "AUTH", user, password,
                                              NULL)
          : ngx_rl_script_command(&command, "AUTH", password,
                                              NULL);

    return ngx_rl_peer_greet(cf, peer, "AUTH", 1, command, len);
}


static ngx_int_t
ngx_rl_peer_introduce(ngx_conf_t *cf,
    ngx_rl_peer_t *peer)
{
    char       *command;
    u_char      name[sizeof("nginx-ratelimit@") + NGX_MAXHOSTNAMELEN];
    long long   len;

    ngx_snprintf(name, sizeof(name), "nginx-ratelimit@%V%Z",
                 &cf->cycle->hostname);

    len = ngx_rl_script_command(&command, "CLIENT", "SETNAME",
                                            name, NULL);

    return ngx_rl_peer_greet(cf, peer, "CLIENT SETNAME", 0,
                                         command, len);
}


/* takes the command over */

static ngx_int_t
ngx_rl_peer_greet(ngx_conf_t *cf, ngx_rl_peer_t *peer,
    char *name, ngx_uint_t required, char *command, long long len)
{
    ngx_rl_greeting_t  *greeting;

    if (len < 0) {
        return NGX_ERROR;
    }

    greeting = ngx_array_push(&peer->redis.greeting);

    if (greeting) {
        greeting->name.data = (u_char *) name;
        greeting->name.len = ngx_strlen(name);
        greeting->tell = 0;
        greeting->required = required;
        greeting->elsewhere = 0;
        greeting->gate = 0;
        greeting->large = 0;
        greeting->secret = (ngx_strcmp(name, "AUTH") == 0);
        greeting->command.len = len;
        greeting->command.data = ngx_pnalloc(cf->pool, len);

        if (greeting->command.data) {
            ngx_memcpy(greeting->command.data, command, len);
        }
    }

    ngx_rl_script_free(command);

    return (greeting && greeting->command.data) ? NGX_OK : NGX_ERROR;
}


/* who knows the topology hears the reply to the last command */

static void
ngx_rl_peer_tell(ngx_rl_peer_t *peer, ngx_uint_t tell)
{
    ngx_rl_greeting_t  *greeting;

    greeting = peer->redis.greeting.elts;
    greeting[peer->redis.greeting.nelts - 1].tell = tell;
}


static ngx_uint_t
ngx_rl_str_equal(ngx_str_t *a, ngx_str_t *b)
{
    return a->len == b->len && ngx_memcmp(a->data, b->data, a->len) == 0;
}
