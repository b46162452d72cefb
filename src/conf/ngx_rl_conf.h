
/*
 * The configuration: the values of all directives, merged.  It is never
 * written after it was parsed.
 */


#ifndef _NGX_RL_CONF_H_INCLUDED_
#define _NGX_RL_CONF_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_rl_limit.h"
#include "pure/ngx_rl_claim.h"
#include "conf/ngx_rl_shards_conf.h"
#include "conf/ngx_rl_statement.h"
#include "memory/ngx_rl_rates.h"
#include "memory/ngx_rl_stats.h"
#include "memory/ngx_rl_zone.h"


#define NGX_RL_ON_ERROR_OPEN     0
#define NGX_RL_ON_ERROR_CLOSED   1
#define NGX_RL_ON_ERROR_LOCAL    2

#define NGX_RL_DENY_CACHE        1000        /* ms */
#define NGX_RL_LEASE_TTL         1000        /* ms */
#define NGX_RL_ERROR_RETRY       1000        /* ms */
#define NGX_RL_TIMEOUT_MAX       60000       /* ms */

#define NGX_RL_HEADERS_LEGACY    0x0002
#define NGX_RL_HEADERS_DRAFT_8   0x0004
#define NGX_RL_HEADERS_OFF       0x0008
#define NGX_RL_HEADERS_DRY_RUN   0x0010
#define NGX_RL_HEADERS_HEALTHY   0x0020  /* none of degradation */
#define NGX_RL_HEADERS_EXPOSE    0x0040  /* to scripts of browsers */
#define NGX_RL_HEADERS_DRAFT_11  0x0080
#define NGX_RL_HEADERS_DRAFT     (NGX_RL_HEADERS_DRAFT_8                      \
                                  |NGX_RL_HEADERS_DRAFT_11)

#define NGX_RL_BODY_DEFAULT      0
#define NGX_RL_BODY_JSON         1
#define NGX_RL_BODY_PROBLEM      2
#define NGX_RL_BODY_GRPC         3

#define NGX_RL_PHASE_ACCESS      0
#define NGX_RL_PHASE_PRECONTENT  1

#define NGX_RL_KEY_PLAIN         0
#define NGX_RL_KEY_HASH          1
#define NGX_RL_KEY_OFF           2
#define NGX_RL_KEY_ADDRESS       3       /* plain, from bytes */
/* not set: as the key is made */
#define NGX_RL_KEY_AUTO          NGX_CONF_UNSET_UINT

#define NGX_RL_CLOCK_REDIS       0
#define NGX_RL_CLOCK_NGINX       1


typedef struct {
    ngx_array_t      servers;  /* ngx_rl_server_conf_t *, all */
    ngx_array_t      limits;   /* ngx_rl_limit_t *, all */
    ngx_array_t      uses;     /* ngx_rl_use_t, all */
    ngx_array_t      apis;     /* ngx_rl_api_place_t, all */
    ngx_array_t      consoles; /* ngx_rl_loc_conf_t *, those with one */
    size_t           zone_size;
    ngx_rl_zone_t   *zone;     /* NULL: nobody needs it */

    size_t               overrides_size;
    ngx_rl_overrides_t  *overrides;  /* NULL: off */
    ngx_array_t          tables;     /* ngx_rl_table_conf_t * */
    ngx_rl_stats_t  *stats;    /* shared memory */
    ngx_array_t      watches;  /* ngx_rl_watch_t, if there is an API */
    ngx_array_t      names;    /* ngx_http_server_name_t; likewise */
    unsigned         used:1;   /* somebody does */
    unsigned         api:1;    /* there is an API */
    unsigned         writes:1; /* that may write */
    ngx_rl_text_t    text;     /* while it is loaded */
} ngx_rl_main_conf_t;


/* a location with "ratelimit_api" */

typedef struct {
    ngx_http_core_srv_conf_t  *server;
    ngx_str_t                  location;
} ngx_rl_api_place_t;


/* what "ratelimit_console" says: http/ngx_rl_console.c */

typedef struct ngx_rl_console_s  ngx_rl_console_t;


/* tokens taken in advance */

typedef struct {
    uint64_t    tokens;
    ngx_uint_t  percent;  /* of the capacity */
    ngx_msec_t  ttl;      /* 0: none */
    unsigned    set:1;
} ngx_rl_lease_conf_t;


/* a limit that applies to a location */

typedef struct {
    ngx_rl_limit_t  *limit;
    ngx_str_t        key_prefix;  /* PREFIX:NAME:{ */
    ngx_uint_t       log_key;     /* how it is shown */
    unsigned         braces:1;    /* have a meaning */
    unsigned         advise:1;    /* which capacity it needs */
    unsigned         top:1;       /* its keys are listed */
} ngx_rl_location_limit_t;


typedef struct {
    ngx_rl_location_limit_t  *limits;
    ngx_uint_t                n;            /* 0: not limited here */
    ngx_uint_t                enforced;     /* how many can reject */
    ngx_rl_shards_t          *shards;       /* NULL: lives here */

    ngx_flag_t                write;        /* "ratelimit_api" may */
    ngx_uint_t                status;
    ngx_uint_t                error_status;
    ngx_msec_t                error_retry_after;
    ngx_uint_t                on_error;
    ngx_rl_share_t            local_share;  /* den 0: not set */
    ngx_uint_t                headers;
    ngx_uint_t                body;
    ngx_uint_t                jitter;       /* % of Retry-After */
    ngx_uint_t                phase;
    ngx_uint_t                clock;
    ngx_uint_t                log_level;
    ngx_uint_t                log_key;
    ngx_uint_t                ipv6_prefix;  /* bits */
    ngx_uint_t                top;          /* keys; 0: off */
    ngx_flag_t                dry_run;
    ngx_flag_t                advise;
    ngx_flag_t                preview;
    ngx_msec_t                preview_cache;
    ngx_msec_t                deny_cache;
    ngx_rl_lease_conf_t       lease;
    ngx_msec_t                timeout;
    ngx_rl_console_t         *console;      /* NULL: none here */

    /* as written; limits and shards are made from these */

    ngx_rl_limit_params_t     params;
    ngx_rl_limit_t           *limit;        /* made of params */
    ngx_array_t              *names;        /* ngx_str_t, of limits */
    ngx_str_t                 prefix;
    ngx_rl_shards_conf_t     *shards_conf;
    ngx_rl_server_defaults_t  defaults;     /* of servers */
    unsigned                  off:1;        /* nothing inherited */

    /* for messages, while the configuration is loaded */

    ngx_uint_t                silence;      /* bits of warnings */
    ngx_rl_block_t            block;
} ngx_rl_loc_conf_t;


/* a server or location that uses a limit */

typedef struct {
    ngx_rl_loc_conf_t        *conf;
    ngx_rl_location_limit_t  *limit;
    ngx_str_t                 server;
    ngx_str_t                 location;  /* empty: the server itself */
} ngx_rl_use_t;


extern ngx_module_t  ngx_http_ratelimit_module;

extern const ngx_rl_breaker_conf_t  ngx_rl_breaker_default;


void *ngx_rl_create_main_conf(ngx_conf_t *cf);
char *ngx_rl_init_main_conf(ngx_conf_t *cf, void *conf);
void *ngx_rl_create_loc_conf(ngx_conf_t *cf);
char *ngx_rl_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child);

/* adds the zone, if it is needed */
ngx_int_t ngx_rl_conf_zone(ngx_conf_t *cf);


#endif /* _NGX_RL_CONF_H_INCLUDED_ */
