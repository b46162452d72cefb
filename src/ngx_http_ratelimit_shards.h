
/*
 * Where state lives: the servers that a configuration names, and which of
 * them a key belongs to.
 *
 * A peer is one server with its credentials; it exists once, however many
 * places of the configuration name it, so that a worker has one connection to
 * it.  A set of shards is a list of peers and the rule to choose one.
 */


#ifndef _NGX_HTTP_RATELIMIT_SHARDS_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_SHARDS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_ratelimit_breaker.h"
#include "ngx_http_ratelimit_redis.h"
#include "ngx_http_ratelimit_stats.h"
#include "ngx_http_ratelimit_zone.h"


#define NGX_HTTP_RATELIMIT_HASH_CONSISTENT  0
#define NGX_HTTP_RATELIMIT_HASH_MODULO      1

#define NGX_HTTP_RATELIMIT_REDIS_DATABASES  65535       /* the last one */


/* one address of "ratelimit_shards", as written */

typedef struct {
    ngx_str_t                          url;       /* host[:port], unix:path */
    ngx_str_t                          name;      /* unique in the set */
    ngx_str_t                          user;      /* the URL's; data may be */
    ngx_str_t                          password;  /* NULL: not given */
    ngx_int_t                          database;  /* NGX_CONF_UNSET */
    ngx_addr_t                        *addrs;
    ngx_uint_t                         naddrs;
} ngx_http_ratelimit_shard_t;


/* for those shards whose URL says nothing else */

typedef struct {
    ngx_str_t                          user;
    ngx_str_t                          password;
    ngx_int_t                          database;
    ngx_msec_t                         connect_timeout;
    ngx_http_ratelimit_breaker_conf_t  breaker;   /* failures 0: not set */
    ngx_str_t                          prefix;    /* of keys */
} ngx_http_ratelimit_access_t;


typedef struct {
    ngx_http_ratelimit_redis_conf_t    redis;
    ngx_uint_t                         index;     /* among all peers */
    ngx_str_t                          user;
    ngx_str_t                          password;
    ngx_int_t                          database;
    ngx_http_ratelimit_breaker_conf_t  breaker;
    ngx_msec_t                         timeout;   /* the shortest of calls */
    ngx_str_t                          label;     /* [user@]name[/database] */
    uint64_t                           hash;      /* of the label */
    ngx_str_t                          probe;     /* a call that writes */
    ngx_http_ratelimit_shard_stats_t  *stats;     /* shared memory */
} ngx_http_ratelimit_peer_t;


typedef struct {
    ngx_http_ratelimit_peer_t        **peers;
    uint64_t                          *hashes;    /* of the shards' names */
    ngx_uint_t                         n;
    ngx_uint_t                         hash;
} ngx_http_ratelimit_shards_t;


/* parses one word of the directive; errors are logged */
ngx_int_t ngx_http_ratelimit_shard_parse(ngx_conf_t *cf, ngx_str_t *word,
    ngx_http_ratelimit_shard_t *shard);

/*
 * Makes a set of an array of ngx_http_ratelimit_shard_t; "peers" is the array
 * of all peers (pointers) of the configuration.  NULL: an error was logged.
 */
ngx_http_ratelimit_shards_t *ngx_http_ratelimit_shards_create(ngx_conf_t *cf,
    ngx_array_t *shards, ngx_uint_t hash, ngx_http_ratelimit_access_t *access,
    ngx_array_t *peers);

/* finds or makes the peers' counters in the zone */
ngx_int_t ngx_http_ratelimit_shards_attach(ngx_http_ratelimit_zone_t *zone,
    ngx_array_t *peers);

ngx_http_ratelimit_peer_t *ngx_http_ratelimit_shards_find(
    ngx_http_ratelimit_shards_t *shards, ngx_str_t *key);


#endif /* _NGX_HTTP_RATELIMIT_SHARDS_H_INCLUDED_ */
