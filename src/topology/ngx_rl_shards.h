
/*
 * Where state is stored: the configured servers, and which of them a key
 * belongs to.
 *
 * A set of shards is a list of servers, and the rule that chooses one.  A
 * cluster is a set of one: the node of a key is only known at run time.
 */


#ifndef _NGX_RL_SHARDS_H_INCLUDED_
#define _NGX_RL_SHARDS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "topology/ngx_rl_server_conf.h"


#define NGX_RL_HASH_CONSISTENT  0
#define NGX_RL_HASH_MODULO      1


/* "ratelimit_shards", as written */

typedef struct {
    ngx_rl_topology_e  kind;
    ngx_array_t        masters;    /* ngx_str_t */
    ngx_array_t        addresses;  /* ngx_rl_url_t */
    ngx_uint_t         hash;
} ngx_rl_shards_conf_t;


typedef struct {
    ngx_rl_server_conf_t  **confs;
    uint64_t               *hashes;  /* of the shards' names */
    ngx_uint_t              n;
    ngx_uint_t              hash;
    ngx_rl_topology_e       kind;
} ngx_rl_shards_t;


/*
 * Makes a set; "confs" lists the servers (pointers) of the whole
 * configuration.  NULL: an error was logged.
 */
ngx_rl_shards_t *ngx_rl_shards_create(ngx_conf_t *cf,
    ngx_rl_shards_conf_t *shards_conf, ngx_rl_server_defaults_t *defaults,
    ngx_array_t *confs);

ngx_rl_server_conf_t *ngx_rl_shards_find(
    ngx_rl_shards_t *shards, ngx_str_t *key);


#endif /* _NGX_RL_SHARDS_H_INCLUDED_ */
