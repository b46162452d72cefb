
/*
 * The configuration: what the directives say, merged, and the limits that
 * come of it.  Never written after it was parsed.
 */


#ifndef _NGX_HTTP_RATELIMIT_CONF_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_CONF_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_http_ratelimit_rate.h"
#include "ngx_http_ratelimit_shards.h"


#define NGX_HTTP_RATELIMIT_ON_ERROR_OPEN    0
#define NGX_HTTP_RATELIMIT_ON_ERROR_CLOSED  1

#define NGX_HTTP_RATELIMIT_HEADERS_OFF      0
#define NGX_HTTP_RATELIMIT_HEADERS_LEGACY   1


/* a parameter: a number, parsed with the configuration, or a variable */

typedef struct {
    ngx_http_complex_value_t          *value;    /* NULL: not set */
    unsigned                           dynamic:1;
    union {
        uint64_t                       number;   /* capacity, cost */
        ngx_http_ratelimit_rate_t      rate;
    } u;
} ngx_http_ratelimit_param_t;


/* a limit that guards one or more locations */

typedef struct {
    ngx_str_t                          name;
    ngx_http_complex_value_t          *key;      /* NULL: $remote_addr */
    ngx_http_ratelimit_param_t         capacity; /* not set: the rate's count */
    ngx_http_ratelimit_param_t         rate;
} ngx_http_ratelimit_limit_t;


typedef struct {
    ngx_array_t                        peers;    /* ..._peer_t *, all of them */
    ngx_array_t                        names;    /* ngx_str_t, of the limits */
} ngx_http_ratelimit_main_conf_t;


typedef struct {
    /* NULL: not limited here */
    ngx_http_ratelimit_limit_t        *limit;
    ngx_http_ratelimit_shards_t       *shards;
    ngx_str_t                          key_prefix;   /* PREFIX:NAME:{ */

    ngx_http_ratelimit_param_t         cost;
    ngx_uint_t                         status;
    ngx_uint_t                         error_status;
    ngx_uint_t                         on_error;
    ngx_uint_t                         headers;
    ngx_uint_t                         log_level;
    ngx_flag_t                         dry_run;
    ngx_msec_t                         timeout;

    /* as written; the limit and the shards are made of these */

    ngx_http_complex_value_t          *key;
    ngx_http_ratelimit_param_t         capacity;
    ngx_http_ratelimit_param_t         rate;
    ngx_str_t                          prefix;
    ngx_array_t                       *addresses;    /* ..._shard_t */
    ngx_uint_t                         hash;
    ngx_http_ratelimit_access_t        access;
} ngx_http_ratelimit_loc_conf_t;


extern ngx_module_t  ngx_http_ratelimit_module;


void *ngx_http_ratelimit_create_main_conf(ngx_conf_t *cf);
char *ngx_http_ratelimit_init_main_conf(ngx_conf_t *cf, void *conf);
void *ngx_http_ratelimit_create_loc_conf(ngx_conf_t *cf);
char *ngx_http_ratelimit_merge_loc_conf(ngx_conf_t *cf, void *parent,
    void *child);

/* handlers of directives */
char *ngx_http_ratelimit_conf_shards(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_ratelimit_conf_capacity(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_ratelimit_conf_rate(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_ratelimit_conf_cost(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_ratelimit_conf_status(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_ratelimit_conf_enum(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_ratelimit_conf_timeout(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_ratelimit_conf_prefix(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_ratelimit_conf_database(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_ratelimit_conf_password(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_ratelimit_conf_password_file(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);


#endif /* _NGX_HTTP_RATELIMIT_CONF_H_INCLUDED_ */
