
/*
 * The configuration of one server, with its credentials.  It exists once,
 * however many locations use the server, so that a worker has one connection
 * to it.  A master of sentinels is a server that moves.  A cluster has one
 * such configuration, which all its nodes share.
 */


#ifndef _NGX_RL_SERVER_CONF_H_INCLUDED_
#define _NGX_RL_SERVER_CONF_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "pure/ngx_rl_breaker.h"
#include "redis/ngx_rl_redis.h"
#include "pure/ngx_rl_slots.h"
#include "topology/ngx_rl_record.h"
#include "redis/ngx_rl_tls.h"
#include "memory/ngx_rl_zone.h"


/* tags of handshake steps, see ngx_rl_events_t */

#define NGX_RL_TAG_ROLE   1
#define NGX_RL_TAG_SLOTS  2

/* longest name of a server, without its user: @host:port */
#define NGX_RL_SERVER_NAME                                                    \
    (NGX_RL_SLOT_HOST + sizeof("@[]:65535"))


typedef enum {
    NGX_RL_SHARDS = 0,                /* servers, as named */
    NGX_RL_SENTINEL,                  /* masters, as found */
    NGX_RL_CLUSTER
} ngx_rl_topology_e;


/* one address of "ratelimit_shards", as written */

typedef struct {
    ngx_str_t    url;       /* host[:port], unix:path */
    ngx_str_t    name;      /* unique in the set */
    ngx_str_t    host;      /* len 0: needs no lookup */
    in_port_t    port;
    ngx_str_t    user;      /* the URL's; data may be */
    ngx_str_t    password;  /* NULL: not given */
    ngx_int_t    database;  /* NGX_CONF_UNSET */
    ngx_addr_t  *addrs;
    ngx_uint_t   naddrs;
    unsigned     tls:1;     /* the URL says so */
} ngx_rl_url_t;


/* defaults for shards whose URL says nothing else */

typedef struct {
    ngx_str_t              user;
    ngx_str_t              password;
    ngx_int_t              database;
    ngx_msec_t             connect_timeout;
    ngx_rl_tls_conf_t      tls;
    ngx_rl_breaker_conf_t  breaker;   /* failures 0: not set */
    ngx_str_t              sentinel_user;
    ngx_str_t              sentinel_password;
    ngx_str_t              prefix;    /* of keys */
    ngx_resolver_t        *resolver;  /* NULL: none */
    ngx_msec_t             resolver_timeout;
    ngx_array_t           *networks;  /* ngx_cidr_t; NULL: all */
} ngx_rl_server_defaults_t;


typedef struct ngx_rl_server_conf_s  ngx_rl_server_conf_t;


/* a set of sentinels that watch some masters */

typedef struct {
    ngx_str_t              name;       /* made of all addresses */
    ngx_array_t           *addresses;  /* ngx_rl_url_t */
    ngx_array_t            masters;    /* ngx_rl_server_conf_t * */
    ngx_str_t              user;
    ngx_str_t              password;
    ngx_rl_server_conf_t  *conf;       /* the connection to them */
} ngx_rl_sentinels_conf_t;


struct ngx_rl_server_conf_s {
    ngx_rl_connection_conf_t  redis;
    ngx_uint_t                index;      /* among all servers */
    ngx_rl_topology_e         kind;
    ngx_rl_sentinels_conf_t  *sentinels;  /* of a master */
    ngx_array_t              *seeds;      /* of a cluster */
    ngx_str_t                 host;       /* to be looked up again */
    in_port_t                 port;
    ngx_resolver_t           *resolver;
    ngx_msec_t                resolver_timeout;
    ngx_array_t              *networks;   /* see above */
    ngx_str_t                 user;
    ngx_str_t                 password;
    ngx_int_t                 database;
    ngx_rl_tls_conf_t         tls;        /* redis.tls is made of it */
    ngx_rl_breaker_conf_t     breaker;
    ngx_msec_t                timeout;    /* the shortest of calls */
    const char               *outage;     /* what that means for its
                                             limits, in words */
    ngx_str_t                 label;      /* [user@]name[/database] */
    uint64_t                  hash;       /* of the label */
    ngx_str_t                 probe;      /* a call that writes */
    ngx_str_t                 prefix;     /* of its key */
    ngx_rl_record_t          *record;     /* shared memory */
    ngx_rl_role_e             role;
};


/* the "outage" of a server that stores no limits */
extern const char  ngx_rl_server_conf_unused[];


/*
 * Finds or makes the configuration of a shard, of a master (with sentinels) or
 * of a cluster (with seeds).  "confs" lists all of them (pointers).  NULL: an
 * error was logged.
 */
ngx_rl_server_conf_t *ngx_rl_server_conf_create(ngx_conf_t *cf,
    ngx_rl_url_t *url, ngx_rl_server_defaults_t *defaults,
    ngx_rl_sentinels_conf_t *sentinels, ngx_array_t *seeds, ngx_array_t *confs);

/* makes the connection to sentinels, when all their masters are known */
ngx_int_t ngx_rl_server_conf_sentinel(ngx_conf_t *cf,
    ngx_rl_sentinels_conf_t *sentinels, ngx_str_t *label,
    ngx_rl_server_defaults_t *defaults);

/* writes the label of a node of that cluster to "p", which has room for it */
void ngx_rl_server_conf_node(ngx_rl_server_conf_t *cluster,
    ngx_str_t *name, u_char *p, ngx_str_t *label);

/*
 * Whether a master, or a node of a cluster, may be at an announced address: it
 * must be in "ratelimit_redis_networks", or in the configuration itself.
 */
ngx_uint_t ngx_rl_server_conf_allows(ngx_rl_server_conf_t *conf,
    ngx_addr_t *addr);

/*
 * Keeps the allowed addresses and returns their number.  The others are
 * counted and logged, as announced by "who" called "name".
 */
ngx_uint_t ngx_rl_server_conf_filter(ngx_rl_server_conf_t *conf, ngx_log_t *log,
    const char *who, ngx_str_t *name, ngx_addr_t *addrs, ngx_uint_t n);

/* finds or makes the records of the servers in the zone */
ngx_int_t ngx_rl_server_confs_attach(ngx_rl_zone_t *zone,
    ngx_rl_stats_t *stats, ngx_array_t *confs);

/* marks them as used by this process */
void ngx_rl_server_confs_use(ngx_rl_zone_t *zone, ngx_array_t *confs);


#endif /* _NGX_RL_SERVER_CONF_H_INCLUDED_ */
