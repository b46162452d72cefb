
#include "conf/ngx_rl_tables.h"
#include "core/ngx_rl_core.h"


static ngx_rl_table_conf_t *ngx_rl_tables_make(ngx_conf_t *cf,
    ngx_rl_main_conf_t *rmcf, ngx_rl_use_t *use);
static ngx_int_t ngx_rl_tables_prefixes(ngx_conf_t *cf,
    ngx_rl_main_conf_t *rmcf, ngx_rl_limit_t *limit);
static ngx_int_t ngx_rl_tables_attach(ngx_rl_overrides_t *overrides,
    void *data);


ngx_int_t
ngx_rl_tables(ngx_conf_t *cf)
{
    ngx_uint_t             i;
    ngx_rl_use_t          *use;
    ngx_rl_limit_t       **limit;
    ngx_rl_main_conf_t    *rmcf;
    ngx_rl_table_conf_t  **conf;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    if (rmcf->zone == NULL) {
        return NGX_OK;
    }

    if (rmcf->overrides_size == NGX_CONF_UNSET_SIZE) {
        rmcf->overrides_size = rmcf->writes ? NGX_RL_OVERRIDES_SIZE : 0;
    }

    if (rmcf->overrides_size == 0) {
        return NGX_OK;
    }

    if (ngx_array_init(&rmcf->tables, cf->pool, 8,
                       sizeof(ngx_rl_table_conf_t *))
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    limit = rmcf->limits.elts;

    for (i = 0; i < rmcf->limits.nelts; i++) {

        use = ngx_rl_tables_use(rmcf, limit[i]);

        if (use == NULL) {
            continue;
        }

        conf = ngx_array_push(&rmcf->tables);
        if (conf == NULL) {
            return NGX_ERROR;
        }

        *conf = ngx_rl_tables_make(cf, rmcf, use);
        if (*conf == NULL) {
            return NGX_ERROR;
        }
    }

    rmcf->overrides = ngx_rl_overrides_add(cf, rmcf->overrides_size,
                                           &ngx_http_ratelimit_module,
                                           ngx_rl_tables_attach, rmcf);

    return rmcf->overrides ? NGX_OK : NGX_ERROR;
}


ngx_rl_use_t *
ngx_rl_tables_use(ngx_rl_main_conf_t *rmcf, ngx_rl_limit_t *limit)
{
    ngx_uint_t     i;
    ngx_rl_use_t  *use, *found;

    use = rmcf->uses.elts;
    found = NULL;

    for (i = 0; i < rmcf->uses.nelts; i++) {

        if (use[i].limit->limit != limit) {
            continue;
        }

        if (!use[i].conf->preview && !use[i].conf->dry_run) {
            return &use[i];
        }

        found = found ? found : &use[i];
    }

    return found;
}


/*
 * The key of a bucket ends with a brace, so it is never that of a table.  In a
 * cluster, the name of the limit chooses the slot.
 */

static ngx_rl_table_conf_t *
ngx_rl_tables_make(ngx_conf_t *cf, ngx_rl_main_conf_t *rmcf,
    ngx_rl_use_t *use)
{
    size_t                len;
    ngx_rl_limit_t       *limit;
    ngx_rl_table_conf_t  *conf;

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_rl_table_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    limit = use->limit->limit;
    limit->table = conf;

    len = use->conf->prefix.len + sizeof(":{}:overrides") - 1 + limit->name.len;

    conf->key.data = ngx_pnalloc(cf->pool, len);

    if (conf->key.data == NULL
        || ngx_rl_tables_prefixes(cf, rmcf, limit) != NGX_OK)
    {
        return NULL;
    }

    conf->key.len = ngx_sprintf(conf->key.data, "%V:{%V}:overrides",
                                &use->conf->prefix, &limit->name)
                    - conf->key.data;

    conf->limit = &limit->name;
    conf->timeout = use->conf->timeout;

    if (use->conf->shards) {
        conf->home = ngx_rl_shards_find(use->conf->shards, &limit->name);
    }

    return conf;
}


/* several locations may have the same limit under different prefixes */

static ngx_int_t
ngx_rl_tables_prefixes(ngx_conf_t *cf, ngx_rl_main_conf_t *rmcf,
    ngx_rl_limit_t *limit)
{
    ngx_str_t     *prefix;
    ngx_uint_t     i, k;
    ngx_array_t   *prefixes;
    ngx_rl_use_t  *use;

    prefixes = &limit->table->prefixes;

    if (ngx_array_init(prefixes, cf->pool, 1, sizeof(ngx_str_t)) != NGX_OK) {
        return NGX_ERROR;
    }

    use = rmcf->uses.elts;

    for (i = 0; i < rmcf->uses.nelts; i++) {

        if (use[i].limit->limit != limit) {
            continue;
        }

        prefix = prefixes->elts;

        for (k = 0; k < prefixes->nelts; k++) {
            if (ngx_rl_str_equal(&prefix[k], &use[i].limit->key_prefix)) {
                break;
            }
        }

        if (k < prefixes->nelts) {
            continue;
        }

        prefix = ngx_array_push(prefixes);
        if (prefix == NULL) {
            return NGX_ERROR;
        }

        *prefix = use[i].limit->key_prefix;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_rl_tables_attach(ngx_rl_overrides_t *overrides, void *data)
{
    ngx_rl_main_conf_t  *rmcf = data;

    ngx_uint_t             i;
    ngx_rl_table_conf_t  **conf;

    conf = rmcf->tables.elts;

    for (i = 0; i < rmcf->tables.nelts; i++) {
        conf[i]->table = ngx_rl_overrides_table(overrides, &conf[i]->key);

        if (conf[i]->table == NULL) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}
