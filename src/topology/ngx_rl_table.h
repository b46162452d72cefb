
/*
 * Where the overrides of a limit are stored: in shared memory, and in a hash in
 * Redis if the limit has its state there.
 */


#ifndef _NGX_RL_TABLE_H_INCLUDED_
#define _NGX_RL_TABLE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "memory/ngx_rl_overrides.h"
#include "topology/ngx_rl_shards.h"


typedef struct {
    ngx_rl_table_t        *table;     /* shared memory */
    ngx_str_t             *limit;     /* its name */
    ngx_str_t              key;       /* of the hash; also names the table */
    ngx_rl_server_conf_t  *home;      /* NULL: there is no hash */
    ngx_msec_t             timeout;
    ngx_array_t            prefixes;  /* ngx_str_t, of keys of this limit */
} ngx_rl_table_conf_t;


#endif /* _NGX_RL_TABLE_H_INCLUDED_ */
