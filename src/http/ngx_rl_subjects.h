
/*
 * What figures exist: of limits, servers, sentinels, clusters and the zone, for
 * all that the current configuration contains.
 */


#ifndef _NGX_RL_SUBJECTS_H_INCLUDED_
#define _NGX_RL_SUBJECTS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_rl_conf.h"


/* what figures are about */

typedef enum {
    NGX_RL_OF_ALL = 0,    /* ngx_rl_stats_t */
    NGX_RL_OF_LIMITS,     /* ngx_rl_limit_stats_t */
    NGX_RL_OF_ADVICE,     /* ngx_rl_advice_t, of limits that have one */
    NGX_RL_OF_TABLES,     /* ngx_rl_table_t, if overrides are on */
    NGX_RL_OF_SERVERS,    /* ngx_rl_record_t of a server that stores limits */
    NGX_RL_OF_SENTINELS,  /* the same of sentinels */
    NGX_RL_OF_CLUSTERS,   /* the same of a cluster as a whole */
    NGX_RL_OF_ZONE,       /* ngx_rl_zone_usage_t */

    NGX_RL_OF_N
} ngx_rl_of_e;


/* one limit or server; its name is a label value */

typedef struct {
    ngx_str_t  name;
    void      *figures;
} ngx_rl_subject_t;


/* arrays of ngx_rl_subject_t */
typedef ngx_array_t  ngx_rl_subjects_t[NGX_RL_OF_N];


/* fills in "usage" as well; NGX_ERROR: no memory */
ngx_int_t ngx_rl_subjects_find(ngx_rl_subjects_t subjects, ngx_pool_t *pool,
    ngx_rl_main_conf_t *rmcf, ngx_rl_zone_usage_t *usage);


#endif /* _NGX_RL_SUBJECTS_H_INCLUDED_ */
