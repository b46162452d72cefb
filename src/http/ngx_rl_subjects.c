
#include "http/ngx_rl_subjects.h"


static ngx_int_t ngx_rl_subjects_nodes(ngx_rl_subjects_t subjects,
    ngx_pool_t *pool, ngx_rl_main_conf_t *rmcf, ngx_rl_server_conf_t *cluster);
static ngx_int_t ngx_rl_subjects_add(ngx_rl_subjects_t subjects,
    ngx_rl_of_e of, ngx_str_t *name, void *figures);


ngx_int_t
ngx_rl_subjects_find(ngx_rl_subjects_t subjects, ngx_pool_t *pool,
    ngx_rl_main_conf_t *rmcf, ngx_rl_zone_usage_t *usage)
{
    ngx_int_t                 rc;
    ngx_uint_t                i;
    ngx_rl_limit_t          **limit;
    ngx_rl_server_conf_t    **conf;
    ngx_rl_sentinels_conf_t  *sentinels;

    static ngx_str_t  no_name = ngx_null_string;

    for (i = 0; i < NGX_RL_OF_N; i++) {
        if (ngx_array_init(&subjects[i], pool, 4, sizeof(ngx_rl_subject_t))
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    ngx_rl_zone_usage(rmcf->zone, usage);

    rc = ngx_rl_subjects_add(subjects, NGX_RL_OF_ALL, &no_name, rmcf->stats);

    if (rc == NGX_OK) {
        rc = ngx_rl_subjects_add(subjects, NGX_RL_OF_ZONE, &no_name, usage);
    }

    limit = rmcf->limits.elts;

    for (i = 0; rc == NGX_OK && i < rmcf->limits.nelts; i++) {
        rc = ngx_rl_subjects_add(subjects, NGX_RL_OF_LIMITS, &limit[i]->name,
                                 limit[i]->stats);

        if (rc == NGX_OK && limit[i]->advice) {
            rc = ngx_rl_subjects_add(subjects, NGX_RL_OF_ADVICE,
                                     &limit[i]->name, limit[i]->advice);
        }

        if (rc == NGX_OK && limit[i]->table) {
            rc = ngx_rl_subjects_add(subjects, NGX_RL_OF_TABLES,
                                     &limit[i]->name, limit[i]->table->table);
        }
    }

    conf = rmcf->servers.elts;

    for (i = 0; rc == NGX_OK && i < rmcf->servers.nelts; i++) {

        if (conf[i]->kind == NGX_RL_CLUSTER) {
            rc = ngx_rl_subjects_nodes(subjects, pool, rmcf, conf[i]);

            if (rc == NGX_OK) {
                rc = ngx_rl_subjects_add(subjects, NGX_RL_OF_CLUSTERS,
                                         &conf[i]->label, conf[i]->record);
            }

            continue;
        }

        rc = ngx_rl_subjects_add(subjects, NGX_RL_OF_SERVERS, &conf[i]->label,
                                 conf[i]->record);

        sentinels = conf[i]->sentinels;

        if (rc == NGX_OK && sentinels) {
            rc = ngx_rl_subjects_add(subjects, NGX_RL_OF_SENTINELS,
                                     &sentinels->conf->label,
                                     sentinels->conf->record);
        }
    }

    return rc;
}


/* nodes that were in the map when a worker last read it */

static ngx_int_t
ngx_rl_subjects_nodes(ngx_rl_subjects_t subjects, ngx_pool_t *pool,
    ngx_rl_main_conf_t *rmcf, ngx_rl_server_conf_t *cluster)
{
    size_t            room;
    ngx_str_t         name;
    ngx_rl_record_t  *record;

    record = NULL;
    room = 0;

    for ( ;; ) {

        if (room == 0) {
            room = cluster->user.len + NGX_RL_SERVER_NAME;

            name.data = ngx_pnalloc(pool, room);
            if (name.data == NULL) {
                return NGX_ERROR;
            }
        }

        record = ngx_rl_zone_next(rmcf->zone, NGX_RL_ZONE_SERVER, record, &name,
                                  room);
        if (record == NULL) {
            return NGX_OK;
        }

        /* the process that last saw it may have ended */

        if (record->place.role == NGX_RL_ROLE_NODE && record->place.mapped
            && record->place.set == cluster->hash
            && ngx_rl_record_used(rmcf->stats, record))
        {
            if (ngx_rl_subjects_add(subjects, NGX_RL_OF_SERVERS, &name, record)
                != NGX_OK)
            {
                return NGX_ERROR;
            }

            room = 0;
        }
    }
}


/* several configurations of one server share one record */

static ngx_int_t
ngx_rl_subjects_add(ngx_rl_subjects_t subjects, ngx_rl_of_e of,
    ngx_str_t *name, void *figures)
{
    ngx_uint_t         i;
    ngx_rl_subject_t  *subject;

    subject = subjects[of].elts;

    for (i = 0; i < subjects[of].nelts; i++) {
        if (subject[i].figures == figures) {
            return NGX_OK;
        }
    }

    subject = ngx_array_push(&subjects[of]);
    if (subject == NULL) {
        return NGX_ERROR;
    }

    subject->name = *name;
    subject->figures = figures;

    return NGX_OK;
}
