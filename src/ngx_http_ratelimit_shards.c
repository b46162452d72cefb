
#include "ngx_http_ratelimit_shards.h"
#include "ngx_http_ratelimit_hash.h"
#include "ngx_http_ratelimit_script.h"


#define NGX_HTTP_RATELIMIT_REDIS_PORT  6379


static ngx_int_t ngx_http_ratelimit_shard_url(ngx_conf_t *cf, ngx_str_t *word,
    ngx_http_ratelimit_shard_t *shard);
static ngx_int_t ngx_http_ratelimit_shard_no_password(ngx_conf_t *cf,
    u_char *p, u_char *last);
static ngx_int_t ngx_http_ratelimit_shard_decode(ngx_conf_t *cf,
    ngx_str_t *text, u_char *start, u_char *end);
static ngx_http_ratelimit_peer_t *ngx_http_ratelimit_peer(ngx_conf_t *cf,
    ngx_http_ratelimit_shard_t *shard, ngx_http_ratelimit_access_t *access,
    ngx_array_t *peers);
static ngx_int_t ngx_http_ratelimit_peer_label(ngx_conf_t *cf,
    ngx_http_ratelimit_peer_t *peer, ngx_array_t *peers);
static ngx_int_t ngx_http_ratelimit_peer_probe(ngx_conf_t *cf,
    ngx_http_ratelimit_peer_t *peer, ngx_str_t *prefix);
static ngx_int_t ngx_http_ratelimit_peer_greeting(ngx_conf_t *cf,
    ngx_http_ratelimit_peer_t *peer);
static ngx_int_t ngx_http_ratelimit_peer_greet(ngx_conf_t *cf,
    ngx_http_ratelimit_peer_t *peer, char *name, ngx_uint_t required,
    char *command, long long len);
static ngx_uint_t ngx_http_ratelimit_str_equal(ngx_str_t *a, ngx_str_t *b);


ngx_int_t
ngx_http_ratelimit_shard_parse(ngx_conf_t *cf, ngx_str_t *word,
    ngx_http_ratelimit_shard_t *shard)
{
    u_char     *p;
    ngx_url_t   u;

    ngx_memzero(shard, sizeof(ngx_http_ratelimit_shard_t));

    shard->url = *word;
    shard->database = NGX_CONF_UNSET;

    if (ngx_http_ratelimit_shard_url(cf, word, shard) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_memzero(&u, sizeof(ngx_url_t));

    u.url = shard->url;
    u.default_port = NGX_HTTP_RATELIMIT_REDIS_PORT;

    if (ngx_parse_url(cf->pool, &u) != NGX_OK) {

        /* the part without credentials */

        if (u.err) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "%s in \"%V\" of \"ratelimit_shards\"",
                               u.err, &u.url);
        }

        return NGX_ERROR;
    }

    shard->addrs = u.addrs;
    shard->naddrs = u.naddrs;

    if (u.family == AF_UNIX) {
        shard->name = shard->url;
        return NGX_OK;
    }

    p = ngx_pnalloc(cf->pool, u.host.len + sizeof(":65535/65535"));
    if (p == NULL) {
        return NGX_ERROR;
    }

    shard->name.data = p;

    p = ngx_sprintf(p, "%V:%ui", &u.host, (ngx_uint_t) u.port);

    if (shard->database > 0) {
        p = ngx_sprintf(p, "/%i", shard->database);
    }

    shard->name.len = p - shard->name.data;

    ngx_strlow(shard->name.data, shard->name.data, shard->name.len);

    return NGX_OK;
}


/* redis://[user[:password]@]host[:port][/database] */

static ngx_int_t
ngx_http_ratelimit_shard_url(ngx_conf_t *cf, ngx_str_t *word,
    ngx_http_ratelimit_shard_t *shard)
{
    u_char  *p, *at, *host, *last, *colon;

    static ngx_str_t  scheme = ngx_string("redis://");
    static ngx_str_t  tls = ngx_string("rediss://");
    static ngx_str_t  unix_socket = ngx_string("unix:");

    if (word->len >= tls.len
        && ngx_strncasecmp(word->data, tls.data, tls.len) == 0)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"rediss://\" in \"ratelimit_shards\" is not "
                           "supported: use \"redis://\", or a TLS tunnel "
                           "on a unix socket");
        return NGX_ERROR;
    }

    if (word->len < scheme.len
        || ngx_strncasecmp(word->data, scheme.data, scheme.len) != 0)
    {
        if (ngx_strncasecmp(word->data, unix_socket.data, unix_socket.len)
            == 0)
        {
            return NGX_OK;
        }

        return ngx_http_ratelimit_shard_no_password(cf, word->data,
                                                    word->data + word->len);
    }

    host = word->data + scheme.len;
    last = word->data + word->len;

    at = NULL;

    for (p = host; p < last && *p != '/'; p++) {
        if (*p == '@') {
            at = p;
        }
    }

    if (ngx_http_ratelimit_shard_no_password(cf, p, last) != NGX_OK) {
        return NGX_ERROR;
    }

    if (p < last) {
        shard->database = ngx_atoi(p + 1, last - p - 1);

        if (p + 1 == last) {
            shard->database = NGX_CONF_UNSET;

        } else if (shard->database == NGX_ERROR
                   || shard->database > NGX_HTTP_RATELIMIT_REDIS_DATABASES)
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid database \"%*s\" in "
                               "\"ratelimit_shards\": it must be a number "
                               "from 0 to %d", (size_t) (last - p - 1), p + 1,
                               NGX_HTTP_RATELIMIT_REDIS_DATABASES);
            return NGX_ERROR;
        }

        last = p;
    }

    if (at) {
        colon = ngx_strlchr(host, at, ':');

        if (colon == NULL) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "no password before \"%*s\" in "
                               "\"ratelimit_shards\": write "
                               "redis://user:password@host, or "
                               "redis://:password@host for the default user",
                               (size_t) (last - at), at);
            return NGX_ERROR;
        }

        if (ngx_http_ratelimit_shard_decode(cf, &shard->user, host, colon)
            != NGX_OK
            || ngx_http_ratelimit_shard_decode(cf, &shard->password, colon + 1,
                                               at)
               != NGX_OK)
        {
            return NGX_ERROR;
        }

        host = at + 1;
    }

    shard->url.data = host;
    shard->url.len = last - host;

    return NGX_OK;
}


/*
 * An "@" where none belongs may follow a password, so what stands there is not
 * shown, and does not get as far as to nginx's own complaints
 */

static ngx_int_t
ngx_http_ratelimit_shard_no_password(ngx_conf_t *cf, u_char *p, u_char *last)
{
    if (ngx_strlchr(p, last, '@') == NULL) {
        return NGX_OK;
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "an address with \"@\" in \"ratelimit_shards\" is no "
                       "URL: write redis://user:password@host, "
                       "with \"%%2F\" for \"/\" in a password");

    return NGX_ERROR;
}


static ngx_int_t
ngx_http_ratelimit_shard_decode(ngx_conf_t *cf, ngx_str_t *text, u_char *start,
    u_char *end)
{
    u_char  *dst;

    text->data = ngx_pcalloc(cf->pool, end - start + 1);
    if (text->data == NULL) {
        return NGX_ERROR;
    }

    dst = text->data;
    ngx_unescape_uri(&dst, &start, end - start, 0);
    text->len = dst - text->data;

    *dst = '\0';

    return NGX_OK;
}


ngx_http_ratelimit_shards_t *
ngx_http_ratelimit_shards_create(ngx_conf_t *cf, ngx_array_t *array,
    ngx_uint_t hash, ngx_http_ratelimit_access_t *access, ngx_array_t *peers)
{
    ngx_uint_t                    i;
    ngx_http_ratelimit_shard_t   *shard;
    ngx_http_ratelimit_shards_t  *shards;

    shards = ngx_palloc(cf->pool, sizeof(ngx_http_ratelimit_shards_t));
    if (shards == NULL) {
        return NULL;
    }

    shard = array->elts;

    shards->n = array->nelts;
    shards->hash = hash;

    shards->peers = ngx_palloc(cf->pool,
                           shards->n * sizeof(ngx_http_ratelimit_peer_t *));
    shards->hashes = ngx_palloc(cf->pool, shards->n * sizeof(uint64_t));

    if (shards->peers == NULL || shards->hashes == NULL) {
        return NULL;
    }

    for (i = 0; i < shards->n; i++) {
        shards->peers[i] = ngx_http_ratelimit_peer(cf, &shard[i], access,
                                                   peers);
        if (shards->peers[i] == NULL) {
            return NULL;
        }

        shards->hashes[i] = ngx_http_ratelimit_hash(shard[i].name.data,
                                                    shard[i].name.len);
    }

    return shards;
}


ngx_http_ratelimit_peer_t *
ngx_http_ratelimit_shards_find(ngx_http_ratelimit_shards_t *shards,
    ngx_str_t *key)
{
    size_t    i;
    uint64_t  hash;

    if (shards->n == 1) {
        return shards->peers[0];
    }

    hash = ngx_http_ratelimit_hash(key->data, key->len);

    if (shards->hash == NGX_HTTP_RATELIMIT_HASH_MODULO) {
        i = ngx_http_ratelimit_hash_modulo(hash, shards->n);

    } else {
        i = ngx_http_ratelimit_hash_consistent(hash, shards->hashes,
                                               shards->n);
    }

    return shards->peers[i];
}


/* finds the peer if another set has it already */

static ngx_http_ratelimit_peer_t *
ngx_http_ratelimit_peer(ngx_conf_t *cf, ngx_http_ratelimit_shard_t *shard,
    ngx_http_ratelimit_access_t *access, ngx_array_t *peers)
{
    ngx_int_t                    database;
    ngx_str_t                   *user, *password;
    ngx_uint_t                   i;
    ngx_http_ratelimit_peer_t   *peer, **pp;

    user = shard->password.data ? &shard->user : &access->user;
    password = shard->password.data ? &shard->password : &access->password;
    database = (shard->database != NGX_CONF_UNSET) ? shard->database
                                                   : access->database;

    pp = peers->elts;

    for (i = 0; i < peers->nelts; i++) {
        peer = pp[i];

        if (ngx_http_ratelimit_str_equal(&peer->redis.name, &shard->name)
            && ngx_http_ratelimit_str_equal(&peer->user, user)
            && ngx_http_ratelimit_str_equal(&peer->password, password)
            && peer->database == database
            && peer->redis.connect_timeout == access->connect_timeout
            && peer->breaker.failures == access->breaker.failures
            && peer->breaker.window == access->breaker.window
            && peer->breaker.probe == access->breaker.probe)
        {
            return peer;
        }
    }

    peer = ngx_pcalloc(cf->pool, sizeof(ngx_http_ratelimit_peer_t));
    if (peer == NULL) {
        return NULL;
    }

    peer->index = peers->nelts;
    peer->user = *user;
    peer->password = *password;
    peer->database = database;

    peer->redis.name = shard->name;
    peer->redis.addrs = shard->addrs;
    peer->redis.naddrs = shard->naddrs;
    peer->redis.connect_timeout = access->connect_timeout;
    peer->breaker = access->breaker;
    peer->timeout = NGX_MAX_INT32_VALUE;

    if (ngx_http_ratelimit_peer_label(cf, peer, peers) != NGX_OK
        || ngx_http_ratelimit_peer_greeting(cf, peer) != NGX_OK
        || ngx_http_ratelimit_peer_probe(cf, peer, &access->prefix) != NGX_OK)
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


/*
 * What peers are called in metrics and in the log, and by which they find their
 * breaker: those that differ in nothing but timeouts share one, those with
 * different passwords must not
 */

static ngx_int_t
ngx_http_ratelimit_peer_label(ngx_conf_t *cf, ngx_http_ratelimit_peer_t *peer,
    ngx_array_t *peers)
{
    u_char                      *p, *end;
    ngx_uint_t                   i, n;
    ngx_http_ratelimit_peer_t  **other;

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

    if (peer->database) {
        p = ngx_sprintf(p, "/%i", peer->database);
    }

    end = p;
    other = peers->elts;
    n = 1;

    for (i = 0; i < peers->nelts; i++) {
        peer->label.len = p - peer->label.data;

        if (ngx_http_ratelimit_str_equal(&peer->label, &other[i]->label)
            && !ngx_http_ratelimit_str_equal(&peer->password,
                                             &other[i]->password))
        {
            p = ngx_sprintf(end, "#%ui", ++n);
        }
    }

    peer->label.len = p - peer->label.data;
    peer->hash = ngx_http_ratelimit_hash(peer->label.data, peer->label.len);

    return NGX_OK;
}


/*
 * Whether limits can be kept there.  It ends the greeting, and is asked again
 * and again while the breaker is open.
 */

static ngx_int_t
ngx_http_ratelimit_peer_probe(ngx_conf_t *cf, ngx_http_ratelimit_peer_t *peer,
    ngx_str_t *prefix)
{
    char                           *command;
    u_char                         *key, *p;
    long long                       len;
    ngx_http_ratelimit_greeting_t  *greeting;

    key = ngx_pnalloc(cf->pool, prefix->len + sizeof(":{probe}"));
    if (key == NULL) {
        return NGX_ERROR;
    }

    p = ngx_sprintf(key, "%V:{probe}", prefix);

    len = ngx_http_ratelimit_script_probe(&command, (char *) key, p - key);

    if (ngx_http_ratelimit_peer_greet(cf, peer, "a script that writes", 1,
                                      command, len)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    greeting = peer->redis.greeting.elts;
    peer->probe = greeting[peer->redis.greeting.nelts - 1].command;

    return NGX_OK;
}


ngx_int_t
ngx_http_ratelimit_shards_attach(ngx_http_ratelimit_zone_t *zone,
    ngx_array_t *peers)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_peer_t  **peer;

    peer = peers->elts;

    for (i = 0; i < peers->nelts; i++) {
        peer[i]->stats = ngx_http_ratelimit_stats_shard(zone,
                                                        &peer[i]->label);
        if (peer[i]->stats == NULL) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_peer_greeting(ngx_conf_t *cf,
    ngx_http_ratelimit_peer_t *peer)
{
    char       *command, *user, *password;
    u_char      name[sizeof("nginx-ratelimit@") + NGX_MAXHOSTNAMELEN];
    u_char      database[NGX_INT_T_LEN + 1];
    size_t      i;
    long long   len;

    if (ngx_array_init(&peer->redis.greeting, cf->pool, 4,
                       sizeof(ngx_http_ratelimit_greeting_t))
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (peer->password.len) {
        user = (char *) peer->user.data;
        password = (char *) peer->password.data;

        len = peer->user.len
              ? ngx_http_ratelimit_script_command(&command, "AUTH", user,
                                                  password, NULL)
              : ngx_http_ratelimit_script_command(&command, "AUTH", password,
                                                  NULL);

        if (ngx_http_ratelimit_peer_greet(cf, peer, "AUTH", 1, command, len)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (peer->database) {
        ngx_sprintf(database, "%i%Z", peer->database);

        len = ngx_http_ratelimit_script_command(&command, "SELECT", database,
                                                NULL);

        if (ngx_http_ratelimit_peer_greet(cf, peer, "SELECT", 1, command, len)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    ngx_snprintf(name, sizeof(name), "nginx-ratelimit@%V%Z",
                 &cf->cycle->hostname);

    len = ngx_http_ratelimit_script_command(&command, "CLIENT", "SETNAME",
                                            name, NULL);

    if (ngx_http_ratelimit_peer_greet(cf, peer, "CLIENT SETNAME", 0, command,
                                      len)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    for (i = 0; /* void */ ; i++) {
        len = ngx_http_ratelimit_script_load(&command, i);

        if (len == -2) {
            return NGX_OK;
        }

        if (ngx_http_ratelimit_peer_greet(cf, peer, "SCRIPT LOAD", 0, command,
                                          len)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }
}


/* takes the command over */

static ngx_int_t
ngx_http_ratelimit_peer_greet(ngx_conf_t *cf, ngx_http_ratelimit_peer_t *peer,
    char *name, ngx_uint_t required, char *command, long long len)
{
    ngx_http_ratelimit_greeting_t  *greeting;

    if (len < 0) {
        return NGX_ERROR;
    }

    greeting = ngx_array_push(&peer->redis.greeting);

    if (greeting) {
        greeting->name.data = (u_char *) name;
        greeting->name.len = ngx_strlen(name);
        greeting->required = required;
        greeting->secret = (ngx_strcmp(name, "AUTH") == 0);
        greeting->command.len = len;
        greeting->command.data = ngx_pnalloc(cf->pool, len);

        if (greeting->command.data) {
            ngx_memcpy(greeting->command.data, command, len);
        }
    }

    ngx_http_ratelimit_script_free(command);

    return (greeting && greeting->command.data) ? NGX_OK : NGX_ERROR;
}


static ngx_uint_t
ngx_http_ratelimit_str_equal(ngx_str_t *a, ngx_str_t *b)
{
    return a->len == b->len && ngx_memcmp(a->data, b->data, a->len) == 0;
}
