
/*
 * What guards a place: the limit of its own, if any, and the named ones.
 *
 * A location that sets any of the terms (key, capacity, rate, algorithm,
 * window, refill interval) makes a limit of its own; one that sets none of
 * them shares its parent's, bucket and all.  Such a limit is named after the
 * server and location that made it, so that machines with one configuration
 * agree on the names, and the names are unique: where two places would get the
 * same one, the later gets "#2" and so on.
 *
 * "ratelimit" replaces the parent's list of named limits; "ratelimit off"
 * takes over nothing from the parent at all.
 *
 * Likewise, a location that sets the shards, or anything that says how to get
 * at them, makes a set of shards of its own; peers that are the same in every
 * respect exist once.
 */


#include "ngx_http_ratelimit_conf.h"


#define NGX_HTTP_RATELIMIT_PASSWORD_MAX  4096
#define NGX_HTTP_RATELIMIT_TIMEOUT_MAX   60000      /* ms */
#define NGX_HTTP_RATELIMIT_ALLOWED_LEN   128        /* of an error message */


static char *ngx_http_ratelimit_merge_limit(ngx_conf_t *cf,
    ngx_http_ratelimit_loc_conf_t *prev, ngx_http_ratelimit_loc_conf_t *conf);
static void ngx_http_ratelimit_merge_terms(ngx_http_ratelimit_terms_t *prev,
    ngx_http_ratelimit_terms_t *conf);
static ngx_uint_t ngx_http_ratelimit_terms_set(
    ngx_http_ratelimit_terms_t *terms);
static char *ngx_http_ratelimit_merge_guards(ngx_conf_t *cf,
    ngx_http_ratelimit_loc_conf_t *conf);
static ngx_int_t ngx_http_ratelimit_guard(ngx_conf_t *cf,
    ngx_http_ratelimit_loc_conf_t *conf, ngx_http_ratelimit_limit_t *limit);
static ngx_uint_t ngx_http_ratelimit_merge_access(
    ngx_http_ratelimit_loc_conf_t *prev, ngx_http_ratelimit_loc_conf_t *conf);
static char *ngx_http_ratelimit_make_shards(ngx_conf_t *cf,
    ngx_http_ratelimit_shards_t *shared, ngx_http_ratelimit_loc_conf_t *conf);
static char *ngx_http_ratelimit_conf_choice(ngx_conf_t *cf, ngx_str_t *word,
    ngx_conf_enum_t *e, ngx_uint_t *np);


void *
ngx_http_ratelimit_create_main_conf(ngx_conf_t *cf)
{
    ngx_http_ratelimit_main_conf_t  *rmcf;

    rmcf = ngx_pcalloc(cf->pool, sizeof(ngx_http_ratelimit_main_conf_t));
    if (rmcf == NULL) {
        return NULL;
    }

    if (ngx_array_init(&rmcf->peers, cf->pool, 4,
                       sizeof(ngx_http_ratelimit_peer_t *))
        != NGX_OK)
    {
        return NULL;
    }

    if (ngx_array_init(&rmcf->limits, cf->pool, 4,
                       sizeof(ngx_http_ratelimit_limit_t *))
        != NGX_OK)
    {
        return NULL;
    }

    rmcf->zone_size = NGX_CONF_UNSET_SIZE;

    return rmcf;
}


void *
ngx_http_ratelimit_create_loc_conf(ngx_conf_t *cf)
{
    ngx_http_ratelimit_loc_conf_t  *conf;

    /*
     * set by ngx_pcalloc():
     *
     *     conf->guards, n, shards, cost
     *     conf->terms but the algorithm
     *     conf->headers, limit, named, prefix, addresses, off
     *     conf->access.user, password
     */

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_http_ratelimit_loc_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    conf->status = NGX_CONF_UNSET_UINT;
    conf->error_status = NGX_CONF_UNSET_UINT;
    conf->on_error = NGX_CONF_UNSET_UINT;
    conf->body = NGX_CONF_UNSET_UINT;
    conf->phase = NGX_CONF_UNSET_UINT;
    conf->clock = NGX_CONF_UNSET_UINT;
    conf->log_level = NGX_CONF_UNSET_UINT;
    conf->ipv6_prefix = NGX_CONF_UNSET_UINT;
    conf->dry_run = NGX_CONF_UNSET;
    conf->preview = NGX_CONF_UNSET;
    conf->preview_cache = NGX_CONF_UNSET_MSEC;
    conf->timeout = NGX_CONF_UNSET_MSEC;
    conf->terms.algorithm = NGX_CONF_UNSET_UINT;
    conf->hash = NGX_CONF_UNSET_UINT;
    conf->access.database = NGX_CONF_UNSET;
    conf->access.connect_timeout = NGX_CONF_UNSET_MSEC;

    return conf;
}


/* the http level has no parent: it is merged with a conf that sets nothing */

char *
ngx_http_ratelimit_init_main_conf(ngx_conf_t *cf, void *conf)
{
    void                           *none;
    ngx_http_ratelimit_loc_conf_t  *rlcf;

    none = ngx_http_ratelimit_create_loc_conf(cf);
    if (none == NULL) {
        return NGX_CONF_ERROR;
    }

    rlcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_ratelimit_module);

    return ngx_http_ratelimit_merge_loc_conf(cf, none, rlcf);
}


char *
ngx_http_ratelimit_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child)
{
    ngx_http_ratelimit_loc_conf_t *prev = parent;
    ngx_http_ratelimit_loc_conf_t *conf = child;

    char                      *rv;
    ngx_uint_t                 own;
    ngx_http_core_srv_conf_t  *cscf;

    ngx_conf_merge_uint_value(conf->status, prev->status,
                              NGX_HTTP_TOO_MANY_REQUESTS);
    ngx_conf_merge_uint_value(conf->error_status, prev->error_status,
                              NGX_HTTP_SERVICE_UNAVAILABLE);
    ngx_conf_merge_uint_value(conf->on_error, prev->on_error,
                              NGX_HTTP_RATELIMIT_ON_ERROR_OPEN);
    ngx_conf_merge_uint_value(conf->body, prev->body,
                              NGX_HTTP_RATELIMIT_BODY_DEFAULT);
    ngx_conf_merge_uint_value(conf->phase, prev->phase,
                              NGX_HTTP_RATELIMIT_PHASE_ACCESS);
    ngx_conf_merge_uint_value(conf->clock, prev->clock,
                              NGX_HTTP_RATELIMIT_CLOCK_REDIS);
    ngx_conf_merge_uint_value(conf->log_level, prev->log_level, NGX_LOG_ERR);
    ngx_conf_merge_uint_value(conf->ipv6_prefix, prev->ipv6_prefix, 64);
    ngx_conf_merge_value(conf->dry_run, prev->dry_run, 0);
    ngx_conf_merge_value(conf->preview, prev->preview, 0);
    ngx_conf_merge_msec_value(conf->preview_cache, prev->preview_cache, 50);
    ngx_conf_merge_bitmask_value(conf->headers, prev->headers,
                                 (NGX_CONF_BITMASK_SET
                                  |NGX_HTTP_RATELIMIT_HEADERS_LEGACY));
    ngx_conf_merge_msec_value(conf->timeout, prev->timeout, 50);
    ngx_conf_merge_str_value(conf->prefix, prev->prefix, "ratelimit");

    if (conf->cost.value == NULL) {
        conf->cost = prev->cost;
    }

    own = ngx_http_ratelimit_merge_access(prev, conf);

    if ((conf->headers & NGX_HTTP_RATELIMIT_HEADERS_OFF)
        && (conf->headers & (NGX_HTTP_RATELIMIT_HEADERS_LEGACY
                             |NGX_HTTP_RATELIMIT_HEADERS_DRAFT_8)))
    {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"off\" stands beside other families in "
                      "\"ratelimit_headers\"");
        return NGX_CONF_ERROR;
    }

    rv = ngx_http_ratelimit_merge_limit(cf, prev, conf);
    if (rv != NGX_CONF_OK) {
        return rv;
    }

    if (conf->limit == NULL && conf->named == NULL) {
        return NGX_CONF_OK;
    }

    /* no request is served at the http level: what lacks there may follow */

    cscf = ngx_http_conf_get_module_srv_conf(cf, ngx_http_core_module);

    if (cscf->ctx == NULL) {
        return NGX_CONF_OK;
    }

    rv = ngx_http_ratelimit_make_shards(cf, own ? NULL : prev->shards, conf);
    if (rv != NGX_CONF_OK) {
        return rv;
    }

    return ngx_http_ratelimit_merge_guards(cf, conf);
}


static char *
ngx_http_ratelimit_merge_limit(ngx_conf_t *cf,
    ngx_http_ratelimit_loc_conf_t *prev, ngx_http_ratelimit_loc_conf_t *conf)
{
    ngx_uint_t                        own;
    ngx_http_core_srv_conf_t         *cscf;
    ngx_http_core_loc_conf_t         *clcf;
    ngx_http_ratelimit_limit_t      **limitp;
    ngx_http_ratelimit_main_conf_t   *rmcf;

    own = ngx_http_ratelimit_terms_set(&conf->terms);

    if (!conf->off) {
        ngx_http_ratelimit_merge_terms(&prev->terms, &conf->terms);

        if (conf->named == NULL) {
            conf->named = prev->named;
        }

        if (!own) {
            conf->limit = prev->limit;
            return NGX_CONF_OK;
        }
    }

    if (conf->terms.algorithm == NGX_CONF_UNSET_UINT) {
        conf->terms.algorithm = NGX_HTTP_RATELIMIT_TOKEN_BUCKET;
    }

    if (!own) {
        return NGX_CONF_OK;
    }

    if (!ngx_http_ratelimit_terms_complete(&conf->terms)) {

        /*
         * outside of locations, values may stand alone as defaults, unless
         * they end a limit that there was
         */

        clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
        cscf = ngx_http_conf_get_module_srv_conf(cf, ngx_http_core_module);

        if (clcf->name.len == 0 && prev->limit == NULL) {
            return NGX_CONF_OK;
        }

        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"%s\" without \"%s\" in %s \"%V\": "
                      "nothing would be limited",
                      conf->terms.capacity.value ? "ratelimit_capacity"
                      : conf->terms.key ? "ratelimit_key"
                      : conf->terms.window.value ? "ratelimit_window"
                      : conf->terms.step.value ? "ratelimit_refill_interval"
                      : "ratelimit_algorithm",
                      conf->terms.algorithm
                      == NGX_HTTP_RATELIMIT_SLIDING_WINDOW_LOG
                      ? "ratelimit_capacity" : "ratelimit_rate",
                      clcf->name.len ? "location" : "server",
                      clcf->name.len ? &clcf->name : &cscf->server_name);
        return NGX_CONF_ERROR;
    }

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    conf->limit = ngx_pcalloc(cf->pool, sizeof(ngx_http_ratelimit_limit_t));
    if (conf->limit == NULL) {
        return NGX_CONF_ERROR;
    }

    if (ngx_http_ratelimit_limit_name(cf, &rmcf->limits, &conf->limit->name)
        != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    conf->limit->terms = conf->terms;

    limitp = ngx_array_push(&rmcf->limits);
    if (limitp == NULL) {
        return NGX_CONF_ERROR;
    }

    *limitp = conf->limit;

    return NGX_CONF_OK;
}


static ngx_uint_t
ngx_http_ratelimit_terms_set(ngx_http_ratelimit_terms_t *terms)
{
    return terms->key || terms->capacity.value || terms->rate.value
           || terms->window.value || terms->step.value
           || terms->algorithm != NGX_CONF_UNSET_UINT;
}


static void
ngx_http_ratelimit_merge_terms(ngx_http_ratelimit_terms_t *prev,
    ngx_http_ratelimit_terms_t *conf)
{
    if (conf->key == NULL) {
        conf->key = prev->key;
    }

    if (conf->capacity.value == NULL) {
        conf->capacity = prev->capacity;
    }

    if (conf->rate.value == NULL) {
        conf->rate = prev->rate;
    }

    if (conf->window.value == NULL) {
        conf->window = prev->window;
    }

    if (conf->step.value == NULL) {
        conf->step = prev->step;
    }

    ngx_conf_merge_uint_value(conf->algorithm, prev->algorithm,
                              NGX_HTTP_RATELIMIT_TOKEN_BUCKET);
}


static char *
ngx_http_ratelimit_merge_guards(ngx_conf_t *cf,
    ngx_http_ratelimit_loc_conf_t *conf)
{
    ngx_str_t                       *name;
    ngx_uint_t                       i, n;
    ngx_http_core_srv_conf_t        *cscf;
    ngx_http_core_loc_conf_t        *clcf;
    ngx_http_ratelimit_limit_t      *limit;
    ngx_http_ratelimit_main_conf_t  *rmcf;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    n = (conf->limit ? 1 : 0) + (conf->named ? conf->named->nelts : 0);

    if (n > NGX_HTTP_RATELIMIT_CLAIMS) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "%ui limits in one place, at most %d are possible",
                      n, NGX_HTTP_RATELIMIT_CLAIMS);
        return NGX_CONF_ERROR;
    }

    conf->guards = ngx_palloc(cf->pool,
                              n * sizeof(ngx_http_ratelimit_guard_t));
    if (conf->guards == NULL) {
        return NGX_CONF_ERROR;
    }

    if (conf->limit
        && ngx_http_ratelimit_guard(cf, conf, conf->limit) != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    if (conf->named) {
        name = conf->named->elts;

        for (i = 0; i < conf->named->nelts; i++) {
            limit = ngx_http_ratelimit_limit_find(&rmcf->limits, &name[i]);

            if (limit == NULL || !limit->named) {
                cscf = ngx_http_conf_get_module_srv_conf(cf,
                                                     ngx_http_core_module);
                clcf = ngx_http_conf_get_module_loc_conf(cf,
                                                     ngx_http_core_module);

                ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                              "unknown limit \"%V\" in \"ratelimit\": "
                              "there is no \"ratelimit_limit %V ...\", "
                              "server \"%V\", location \"%V\"",
                              &name[i], &name[i], &cscf->server_name,
                              &clcf->name);
                return NGX_CONF_ERROR;
            }

            if (ngx_http_ratelimit_guard(cf, conf, limit) != NGX_OK) {
                return NGX_CONF_ERROR;
            }
        }
    }

    if (conf->preview && conf->preview_cache) {
        rmcf->caches++;
    }

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_ratelimit_guard(ngx_conf_t *cf, ngx_http_ratelimit_loc_conf_t *conf,
    ngx_http_ratelimit_limit_t *limit)
{
    u_char                      *p;
    ngx_http_ratelimit_guard_t  *guard;

    if (ngx_http_ratelimit_limit_check(cf, limit, limit->cost.value
                                                  ? &limit->cost
                                                  : &conf->cost)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    guard = &conf->guards[conf->n++];
    guard->limit = limit;

    p = ngx_pnalloc(cf->pool, conf->prefix.len + limit->name.len + 3);
    if (p == NULL) {
        return NGX_ERROR;
    }

    guard->key_prefix.data = p;
    p = ngx_sprintf(p, "%V:%V:{", &conf->prefix, &limit->name);
    guard->key_prefix.len = p - guard->key_prefix.data;

    return NGX_OK;
}


/* whether this level says anything about the shards */

static ngx_uint_t
ngx_http_ratelimit_merge_access(ngx_http_ratelimit_loc_conf_t *prev,
    ngx_http_ratelimit_loc_conf_t *conf)
{
    ngx_uint_t  own;

    own = conf->addresses || conf->access.user.data
          || conf->access.password.data
          || conf->access.database != NGX_CONF_UNSET
          || conf->access.connect_timeout != NGX_CONF_UNSET_MSEC;

    if (conf->addresses == NULL) {
        conf->addresses = prev->addresses;
        conf->hash = prev->hash;
    }

    ngx_conf_merge_str_value(conf->access.user, prev->access.user, "");
    ngx_conf_merge_str_value(conf->access.password, prev->access.password, "");
    ngx_conf_merge_value(conf->access.database, prev->access.database, 0);
    ngx_conf_merge_msec_value(conf->access.connect_timeout,
                              prev->access.connect_timeout, 100);

    return own;
}


/* made where a limit uses them, so that nobody connects to unused servers */

static char *
ngx_http_ratelimit_make_shards(ngx_conf_t *cf,
    ngx_http_ratelimit_shards_t *shared, ngx_http_ratelimit_loc_conf_t *conf)
{
    ngx_http_ratelimit_main_conf_t  *rmcf;

    if (shared) {
        conf->shards = shared;
        return NGX_CONF_OK;
    }

    if (conf->addresses == NULL) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "limits have no place to live: "
                      "there is no \"ratelimit_shards\"");
        return NGX_CONF_ERROR;
    }

    if (conf->access.user.len && conf->access.password.len == 0) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"ratelimit_redis_user\" \"%V\" needs "
                      "\"ratelimit_redis_password\" or "
                      "\"ratelimit_redis_password_file\"",
                      &conf->access.user);
        return NGX_CONF_ERROR;
    }

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    conf->shards = ngx_http_ratelimit_shards_create(cf, conf->addresses,
                                                    conf->hash, &conf->access,
                                                    &rmcf->peers);
    if (conf->shards == NULL) {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


char *
ngx_http_ratelimit_conf_shards(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_ratelimit_loc_conf_t *rlcf = conf;

    ngx_str_t                   *value;
    ngx_uint_t                   i, j;
    ngx_http_ratelimit_shard_t  *shard, *other;

    if (rlcf->addresses) {
        return "is duplicate";
    }

    rlcf->hash = NGX_HTTP_RATELIMIT_HASH_CONSISTENT;
    rlcf->addresses = ngx_array_create(cf->pool, cf->args->nelts - 1,
                                       sizeof(ngx_http_ratelimit_shard_t));
    if (rlcf->addresses == NULL) {
        return NGX_CONF_ERROR;
    }

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "hash=", 5) == 0) {

            if (ngx_strcmp(&value[i].data[5], "consistent") == 0) {
                rlcf->hash = NGX_HTTP_RATELIMIT_HASH_CONSISTENT;

            } else if (ngx_strcmp(&value[i].data[5], "modulo") == 0) {
                rlcf->hash = NGX_HTTP_RATELIMIT_HASH_MODULO;

            } else {
                ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                                   "invalid value \"%V\" in \"%V\": it must "
                                   "be \"hash=consistent\" or "
                                   "\"hash=modulo\"", &value[i], &cmd->name);
                return NGX_CONF_ERROR;
            }

            continue;
        }

        shard = ngx_array_push(rlcf->addresses);
        if (shard == NULL) {
            return NGX_CONF_ERROR;
        }

        if (ngx_http_ratelimit_shard_parse(cf, &value[i], shard) != NGX_OK) {
            return NGX_CONF_ERROR;
        }

        other = rlcf->addresses->elts;

        for (j = 0; j + 1 < rlcf->addresses->nelts; j++) {

            if (other[j].name.len == shard->name.len
                && ngx_memcmp(other[j].name.data, shard->name.data,
                              shard->name.len)
                   == 0)
            {
                ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                                   "duplicate shard \"%V\" in \"%V\"",
                                   &shard->name, &cmd->name);
                return NGX_CONF_ERROR;
            }
        }
    }

    if (rlcf->addresses->nelts == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "no address in \"%V\"",
                           &cmd->name);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


char *
ngx_http_ratelimit_conf_limit(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_ratelimit_main_conf_t *rmcf = conf;

    return ngx_http_ratelimit_limit_parse(cf, &rmcf->limits);
}


/* names are looked up when all limits are known */

char *
ngx_http_ratelimit_conf_names(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_ratelimit_loc_conf_t *rlcf = conf;

    ngx_str_t   *value, *name;
    ngx_uint_t   i, j;

    if (rlcf->named || rlcf->off) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "off") == 0) {
        rlcf->off = 1;
        return NGX_CONF_OK;
    }

    rlcf->named = ngx_array_create(cf->pool, cf->args->nelts - 1,
                                   sizeof(ngx_str_t));
    if (rlcf->named == NULL) {
        return NGX_CONF_ERROR;
    }

    for (i = 1; i < cf->args->nelts; i++) {

        for (j = 1; j < i; j++) {
            if (value[i].len == value[j].len
                && ngx_strcmp(value[i].data, value[j].data) == 0)
            {
                ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                                   "duplicate limit \"%V\" in \"%V\"",
                                   &value[i], &cmd->name);
                return NGX_CONF_ERROR;
            }
        }

        if (ngx_strcmp(value[i].data, "off") == 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"off\" stands beside limits in \"%V\"",
                               &cmd->name);
            return NGX_CONF_ERROR;
        }

        name = ngx_array_push(rlcf->named);
        if (name == NULL) {
            return NGX_CONF_ERROR;
        }

        *name = value[i];
    }

    return NGX_CONF_OK;
}


/* cmd->post is the kind of the parameter */

char *
ngx_http_ratelimit_conf_param(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_str_t                   *value;
    ngx_http_ratelimit_param_t  *param;

    param = (ngx_http_ratelimit_param_t *) ((u_char *) conf + cmd->offset);

    if (param->value) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_http_ratelimit_param_compile(cf, param,
                            *(ngx_http_ratelimit_param_e *) cmd->post,
                            &value[0], &value[1])
        != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


/* 401, 403 and 407 would let a request in under "satisfy any" */

char *
ngx_http_ratelimit_conf_status(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_int_t    n;
    ngx_str_t   *value;
    ngx_uint_t  *status;

    status = (ngx_uint_t *) ((u_char *) conf + cmd->offset);

    if (*status != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;
    n = ngx_atoi(value[1].data, value[1].len);

    if (n == NGX_ERROR || n < 400 || n > 599
        || n == NGX_HTTP_UNAUTHORIZED || n == NGX_HTTP_FORBIDDEN || n == 407)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\": it must be "
                           "a status from 400 to 599 other than 401, 403 and "
                           "407, which \"satisfy any\" may overrule",
                           &value[1], &cmd->name);
        return NGX_CONF_ERROR;
    }

    *status = n;

    return NGX_CONF_OK;
}


/* unlike nginx's own, names the directive and what is allowed */

char *
ngx_http_ratelimit_conf_enum(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_str_t   *value;
    ngx_uint_t  *np;

    np = (ngx_uint_t *) ((u_char *) conf + cmd->offset);

    if (*np != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;

    return ngx_http_ratelimit_conf_choice(cf, &value[1], cmd->post, np);
}


char *
ngx_http_ratelimit_conf_bitmask(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    char        *rv;
    ngx_str_t   *value;
    ngx_uint_t   i, bit, *np;

    np = (ngx_uint_t *) ((u_char *) conf + cmd->offset);

    if (*np) {
        return "is duplicate";
    }

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        rv = ngx_http_ratelimit_conf_choice(cf, &value[i], cmd->post, &bit);
        if (rv != NGX_CONF_OK) {
            return rv;
        }

        if (*np & bit) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "duplicate value \"%V\" in \"%V\"",
                               &value[i], &cmd->name);
            return NGX_CONF_ERROR;
        }

        *np |= bit;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_ratelimit_conf_choice(ngx_conf_t *cf, ngx_str_t *word,
    ngx_conf_enum_t *e, ngx_uint_t *np)
{
    char        *comma;
    u_char      *p, *last;
    u_char       allowed[NGX_HTTP_RATELIMIT_ALLOWED_LEN];
    ngx_str_t   *value;
    ngx_uint_t   i;

    p = allowed;
    last = allowed + NGX_HTTP_RATELIMIT_ALLOWED_LEN;
    comma = "";

    for (i = 0; e[i].name.len; i++) {

        if (e[i].name.len == word->len
            && ngx_strncasecmp(e[i].name.data, word->data, word->len) == 0)
        {
            *np = e[i].value;
            return NGX_CONF_OK;
        }

        p = ngx_slprintf(p, last, "%s\"%V\"", comma, &e[i].name);
        comma = e[i + 1].name.len && e[i + 2].name.len ? ", " : " or ";
    }

    value = cf->args->elts;

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid value \"%V\" in \"%V\": it must be %*s",
                       word, &value[0], (size_t) (p - allowed), allowed);

    return NGX_CONF_ERROR;
}


char *
ngx_http_ratelimit_conf_timeout(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_str_t   *value;
    ngx_msec_t  *timeout;

    timeout = (ngx_msec_t *) ((u_char *) conf + cmd->offset);

    if (*timeout != NGX_CONF_UNSET_MSEC) {
        return "is duplicate";
    }

    value = cf->args->elts;
    *timeout = ngx_parse_time(&value[1], 0);

    if (*timeout == (ngx_msec_t) NGX_ERROR || *timeout == 0
        || *timeout > NGX_HTTP_RATELIMIT_TIMEOUT_MAX)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\": it must be a time "
                           "from 1ms to 60s, for example \"50ms\"",
                           &value[1], &cmd->name);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


char *
ngx_http_ratelimit_conf_cache(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_str_t   *value;
    ngx_msec_t  *time;

    time = (ngx_msec_t *) ((u_char *) conf + cmd->offset);

    if (*time != NGX_CONF_UNSET_MSEC) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_strcmp(value[1].data, "off") == 0) {
        *time = 0;
        return NGX_CONF_OK;
    }

    *time = ngx_parse_time(&value[1], 0);

    if (*time == (ngx_msec_t) NGX_ERROR
        || *time > NGX_HTTP_RATELIMIT_TIMEOUT_MAX)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\": it must be a "
                           "time up to 60s, for example \"50ms\", or \"off\"",
                           &value[1], &cmd->name);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


char *
ngx_http_ratelimit_conf_zone(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_ratelimit_main_conf_t *rmcf = conf;

    ssize_t     size;
    ngx_str_t  *value;

    if (rmcf->zone_size != NGX_CONF_UNSET_SIZE) {
        return "is duplicate";
    }

    value = cf->args->elts;
    size = ngx_parse_size(&value[1]);

    if (size == NGX_ERROR || size < (ssize_t) (8 * ngx_pagesize)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\": it must be "
                           "a size of at least %uzk, for example \"10m\"",
                           &value[1], &cmd->name,
                           (size_t) (8 * ngx_pagesize / 1024));
        return NGX_CONF_ERROR;
    }

    rmcf->zone_size = size;

    return NGX_CONF_OK;
}


char *
ngx_http_ratelimit_conf_prefix(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_ratelimit_loc_conf_t *rlcf = conf;

    size_t      i;
    ngx_str_t  *value;

    if (rlcf->prefix.data) {
        return "is duplicate";
    }

    value = cf->args->elts;

    /* braces would move the hash tag of a cluster's keys */

    for (i = 0; i < value[1].len; i++) {
        if (value[1].data[i] <= ' ' || value[1].data[i] > '~'
            || value[1].data[i] == '{' || value[1].data[i] == '}')
        {
            break;
        }
    }

    if (i != value[1].len || i == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\": it must be "
                           "printable ASCII without spaces and braces",
                           &value[1], &cmd->name);
        return NGX_CONF_ERROR;
    }

    rlcf->prefix = value[1];

    return NGX_CONF_OK;
}


/* cmd->post are its bounds */

char *
ngx_http_ratelimit_conf_number(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_int_t                    *number;
    ngx_str_t                    *value;
    ngx_http_ratelimit_bounds_t  *bounds;

    number = (ngx_int_t *) ((u_char *) conf + cmd->offset);
    bounds = cmd->post;

    if (*number != NGX_CONF_UNSET) {
        return "is duplicate";
    }

    value = cf->args->elts;
    *number = ngx_atoi(value[1].data, value[1].len);

    if (*number == NGX_ERROR || *number < bounds->min
        || *number > bounds->max)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\": it must be "
                           "a number from %i to %i",
                           &value[1], &cmd->name, bounds->min, bounds->max);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


char *
ngx_http_ratelimit_conf_password(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_ratelimit_loc_conf_t *rlcf = conf;

    ngx_str_t  *value;

    if (rlcf->access.password.data) {
        return "is duplicate, or stands beside "
               "\"ratelimit_redis_password_file\"";
    }

    value = cf->args->elts;
    rlcf->access.password = value[1];

    return NGX_CONF_OK;
}


/* the first line of the file, read once, with the rights of the master */

char *
ngx_http_ratelimit_conf_password_file(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_ratelimit_loc_conf_t *rlcf = conf;

    u_char     *p;
    ssize_t     n;
    ngx_fd_t    fd;
    ngx_str_t  *value;

    if (rlcf->access.password.data) {
        return "is duplicate, or stands beside \"ratelimit_redis_password\"";
    }

    value = cf->args->elts;

    if (ngx_conf_full_name(cf->cycle, &value[1], 1) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    fd = ngx_open_file(value[1].data, NGX_FILE_RDONLY, NGX_FILE_OPEN, 0);

    if (fd == NGX_INVALID_FILE) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           ngx_open_file_n " \"%V\" of \"%V\" failed",
                           &value[1], &cmd->name);
        return NGX_CONF_ERROR;
    }

    p = ngx_pcalloc(cf->pool, NGX_HTTP_RATELIMIT_PASSWORD_MAX + 1);

    n = p ? ngx_read_fd(fd, p, NGX_HTTP_RATELIMIT_PASSWORD_MAX) : 0;

    if (n == -1) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           ngx_read_fd_n " \"%V\" of \"%V\" failed",
                           &value[1], &cmd->name);
    }

    if (ngx_close_file(fd) == NGX_FILE_ERROR) {
        ngx_log_error(NGX_LOG_ALERT, cf->log, ngx_errno,
                      ngx_close_file_n " \"%V\" failed", &value[1]);
    }

    if (p == NULL || n == -1) {
        return NGX_CONF_ERROR;
    }

    rlcf->access.password.data = p;

    while (*p && *p != CR && *p != LF) {
        p++;
    }

    *p = '\0';
    rlcf->access.password.len = p - rlcf->access.password.data;

    if (rlcf->access.password.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "no password in the first line of \"%V\" that "
                           "\"%V\" names", &value[1], &cmd->name);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}
