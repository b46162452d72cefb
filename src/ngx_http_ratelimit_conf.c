
/*
 * How a limit comes to be.
 *
 * A location that sets any of key, capacity and rate makes a limit of its own;
 * one that sets none of them shares its parent's, bucket and all.  A limit is
 * named after the server and location that made it, so that machines with one
 * configuration agree on the names, and the names are unique: where two places
 * would get the same one, the later gets "#2" and so on.
 *
 * Likewise, a location that sets the shards, or anything that says how to get
 * at them, makes a set of shards of its own; peers that are the same in every
 * respect exist once.
 */


#include "ngx_http_ratelimit_conf.h"


#define NGX_HTTP_RATELIMIT_PASSWORD_MAX  4096
#define NGX_HTTP_RATELIMIT_TIMEOUT_MAX   60000      /* ms */
#define NGX_HTTP_RATELIMIT_ALLOWED_LEN   128        /* of an error message */


typedef const char *(*ngx_http_ratelimit_parse_pt)(const void *data,
    size_t len, void *number);


static char *ngx_http_ratelimit_conf_param(ngx_conf_t *cf, void *conf,
    ngx_uint_t offset, ngx_http_ratelimit_parse_pt parse);
static const char *ngx_http_ratelimit_parse_capacity(const void *data,
    size_t len, void *number);
static const char *ngx_http_ratelimit_parse_cost(const void *data, size_t len,
    void *number);
static const char *ngx_http_ratelimit_parse_rate(const void *data, size_t len,
    void *rate);
static char *ngx_http_ratelimit_merge_limit(ngx_conf_t *cf,
    ngx_http_ratelimit_loc_conf_t *prev, ngx_http_ratelimit_loc_conf_t *conf);
static char *ngx_http_ratelimit_check_limit(ngx_conf_t *cf,
    ngx_http_ratelimit_loc_conf_t *conf);
static ngx_int_t ngx_http_ratelimit_limit_name(ngx_conf_t *cf,
    ngx_str_t *name);
static ngx_uint_t ngx_http_ratelimit_merge_access(
    ngx_http_ratelimit_loc_conf_t *prev, ngx_http_ratelimit_loc_conf_t *conf);
static char *ngx_http_ratelimit_make_shards(ngx_conf_t *cf,
    ngx_http_ratelimit_shards_t *shared, ngx_http_ratelimit_loc_conf_t *conf);
static ngx_int_t ngx_http_ratelimit_key_prefix(ngx_conf_t *cf,
    ngx_http_ratelimit_loc_conf_t *conf);


void *
ngx_http_ratelimit_create_main_conf(ngx_conf_t *cf)
{
    ngx_http_ratelimit_main_conf_t  *rmcf;

    rmcf = ngx_palloc(cf->pool, sizeof(ngx_http_ratelimit_main_conf_t));
    if (rmcf == NULL) {
        return NULL;
    }

    if (ngx_array_init(&rmcf->peers, cf->pool, 4,
                       sizeof(ngx_http_ratelimit_peer_t *))
        != NGX_OK)
    {
        return NULL;
    }

    if (ngx_array_init(&rmcf->names, cf->pool, 4, sizeof(ngx_str_t))
        != NGX_OK)
    {
        return NULL;
    }

    return rmcf;
}


void *
ngx_http_ratelimit_create_loc_conf(ngx_conf_t *cf)
{
    ngx_http_ratelimit_loc_conf_t  *conf;

    /*
     * set by ngx_pcalloc():
     *
     *     conf->limit, shards, key_prefix
     *     conf->key, capacity, rate, cost
     *     conf->prefix, addresses
     *     conf->access.user, password
     */

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_http_ratelimit_loc_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    conf->status = NGX_CONF_UNSET_UINT;
    conf->error_status = NGX_CONF_UNSET_UINT;
    conf->on_error = NGX_CONF_UNSET_UINT;
    conf->headers = NGX_CONF_UNSET_UINT;
    conf->log_level = NGX_CONF_UNSET_UINT;
    conf->dry_run = NGX_CONF_UNSET;
    conf->timeout = NGX_CONF_UNSET_MSEC;
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
    ngx_conf_merge_uint_value(conf->headers, prev->headers,
                              NGX_HTTP_RATELIMIT_HEADERS_LEGACY);
    ngx_conf_merge_uint_value(conf->log_level, prev->log_level, NGX_LOG_ERR);
    ngx_conf_merge_value(conf->dry_run, prev->dry_run, 0);
    ngx_conf_merge_msec_value(conf->timeout, prev->timeout, 50);
    ngx_conf_merge_str_value(conf->prefix, prev->prefix, "ratelimit");

    if (conf->cost.value == NULL) {
        conf->cost = prev->cost;
    }

    own = ngx_http_ratelimit_merge_access(prev, conf);

    rv = ngx_http_ratelimit_merge_limit(cf, prev, conf);
    if (rv != NGX_CONF_OK || conf->limit == NULL) {
        return rv;
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

    rv = ngx_http_ratelimit_check_limit(cf, conf);
    if (rv != NGX_CONF_OK) {
        return rv;
    }

    if (ngx_http_ratelimit_key_prefix(cf, conf) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_ratelimit_merge_limit(ngx_conf_t *cf,
    ngx_http_ratelimit_loc_conf_t *prev, ngx_http_ratelimit_loc_conf_t *conf)
{
    ngx_uint_t                   own;
    ngx_http_core_loc_conf_t    *clcf;
    ngx_http_ratelimit_limit_t  *limit;

    own = conf->key || conf->capacity.value || conf->rate.value;

    if (!own) {
        conf->key = prev->key;
        conf->capacity = prev->capacity;
        conf->rate = prev->rate;
        conf->limit = prev->limit;

        return NGX_CONF_OK;
    }

    /* outside of locations, values may stand alone as defaults */

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (conf->rate.value == NULL && prev->rate.value == NULL
        && clcf->name.len)
    {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"%s\" without \"ratelimit_rate\" in location \"%V\": "
                      "nothing would be limited",
                      conf->capacity.value ? "ratelimit_capacity"
                                           : "ratelimit_key",
                      &clcf->name);
        return NGX_CONF_ERROR;
    }

    if (conf->key == NULL) {
        conf->key = prev->key;
    }

    if (conf->capacity.value == NULL) {
        conf->capacity = prev->capacity;
    }

    if (conf->rate.value == NULL) {
        conf->rate = prev->rate;
    }

    if (conf->rate.value == NULL) {
        return NGX_CONF_OK;
    }

    limit = ngx_palloc(cf->pool, sizeof(ngx_http_ratelimit_limit_t));
    if (limit == NULL) {
        return NGX_CONF_ERROR;
    }

    if (ngx_http_ratelimit_limit_name(cf, &limit->name) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    limit->key = conf->key;
    limit->capacity = conf->capacity;
    limit->rate = conf->rate;

    conf->limit = limit;

    return NGX_CONF_OK;
}


/* numbers that don't fit each other; those of variables are checked later */

static char *
ngx_http_ratelimit_check_limit(ngx_conf_t *cf,
    ngx_http_ratelimit_loc_conf_t *conf)
{
    uint64_t                     capacity;
    const char                  *err;
    ngx_http_ratelimit_limit_t  *limit;

    limit = conf->limit;

    if (limit->capacity.value) {

        if (limit->capacity.dynamic) {
            return NGX_CONF_OK;
        }

        capacity = limit->capacity.u.number;

    } else {

        if (limit->rate.dynamic) {
            return NGX_CONF_OK;
        }

        capacity = limit->rate.u.rate.count;

        if (capacity == 0) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "\"ratelimit_rate\" \"%V\" of limit \"%V\" "
                          "never refills and needs \"ratelimit_capacity\"",
                          &limit->rate.value->value, &limit->name);
            return NGX_CONF_ERROR;
        }
    }

    if (!limit->rate.dynamic) {
        err = ngx_http_ratelimit_rate_check(&limit->rate.u.rate, capacity);

        if (err) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "\"ratelimit_rate\" \"%V\" of limit \"%V\" does "
                          "not fit capacity %uL: %s",
                          &limit->rate.value->value, &limit->name,
                          capacity, err);
            return NGX_CONF_ERROR;
        }
    }

    if (conf->cost.value && !conf->cost.dynamic
        && conf->cost.u.number > capacity)
    {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"ratelimit_cost\" \"%V\" is above capacity %uL of "
                      "limit \"%V\": no request could ever pass",
                      &conf->cost.value->value, capacity, &limit->name);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_ratelimit_limit_name(ngx_conf_t *cf, ngx_str_t *name)
{
    char                            *kind;
    u_char                          *p, *last;
    size_t                           len;
    ngx_str_t                       *names, *slot, *server;
    ngx_uint_t                       i, n;
    ngx_http_core_srv_conf_t        *cscf;
    ngx_http_core_loc_conf_t        *clcf;
    ngx_http_ratelimit_main_conf_t  *rmcf;

    static ngx_str_t  http = ngx_string("http");
    static ngx_str_t  unnamed = ngx_string("_");

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);
    cscf = ngx_http_conf_get_module_srv_conf(cf, ngx_http_core_module);
    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    /* at the http level there is no server */

    if (cscf->ctx == NULL) {
        server = &http;

    } else {
        server = cscf->server_name.len ? &cscf->server_name : &unnamed;
    }

    kind = "";

    if (clcf->exact_match) {
        kind = "=";

#if (NGX_PCRE)
    } else if (clcf->regex) {
        kind = "~";
#endif
    }

    len = server->len + 1 + clcf->name.len + sizeof("#18446744073709551615");

    p = ngx_pnalloc(cf->pool, len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    name->data = p;
    last = ngx_sprintf(p, "%V%s%V", server, kind, &clcf->name);
    name->len = last - name->data;

    /* the braces of a regex would move the hash tag of a cluster's keys */

    for ( /* void */ ; p < last; p++) {

        if (*p == '{') {
            *p = '(';

        } else if (*p == '}') {
            *p = ')';
        }
    }

    n = 1;

again:

    names = rmcf->names.elts;

    for (i = 0; i < rmcf->names.nelts; i++) {

        if (names[i].len == name->len
            && ngx_memcmp(names[i].data, name->data, name->len) == 0)
        {
            name->len = ngx_sprintf(p, "#%ui", ++n) - name->data;
            goto again;
        }
    }

    slot = ngx_array_push(&rmcf->names);
    if (slot == NULL) {
        return NGX_ERROR;
    }

    *slot = *name;

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
                      "limit \"%V\" has no place to live: "
                      "\"ratelimit_rate\" needs \"ratelimit_shards\"",
                      &conf->limit->name);
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


/* PREFIX:NAME:{ */

static ngx_int_t
ngx_http_ratelimit_key_prefix(ngx_conf_t *cf,
    ngx_http_ratelimit_loc_conf_t *conf)
{
    u_char     *p;
    ngx_str_t  *name;

    name = &conf->limit->name;

    p = ngx_pnalloc(cf->pool, conf->prefix.len + name->len + 3);
    if (p == NULL) {
        return NGX_ERROR;
    }

    conf->key_prefix.data = p;
    p = ngx_sprintf(p, "%V:%V:{", &conf->prefix, name);
    conf->key_prefix.len = p - conf->key_prefix.data;

    return NGX_OK;
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
ngx_http_ratelimit_conf_capacity(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    return ngx_http_ratelimit_conf_param(cf, conf, cmd->offset,
                                         ngx_http_ratelimit_parse_capacity);
}


char *
ngx_http_ratelimit_conf_rate(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    return ngx_http_ratelimit_conf_param(cf, conf, cmd->offset,
                                         ngx_http_ratelimit_parse_rate);
}


char *
ngx_http_ratelimit_conf_cost(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    return ngx_http_ratelimit_conf_param(cf, conf, cmd->offset,
                                         ngx_http_ratelimit_parse_cost);
}


static char *
ngx_http_ratelimit_conf_param(ngx_conf_t *cf, void *conf, ngx_uint_t offset,
    ngx_http_ratelimit_parse_pt parse)
{
    ngx_str_t                         *value;
    const char                        *err;
    ngx_http_ratelimit_param_t        *param;
    ngx_http_compile_complex_value_t   ccv;

    param = (ngx_http_ratelimit_param_t *) ((u_char *) conf + offset);

    if (param->value) {
        return "is duplicate";
    }

    value = cf->args->elts;

    param->value = ngx_pcalloc(cf->pool, sizeof(ngx_http_complex_value_t));
    if (param->value == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_memzero(&ccv, sizeof(ngx_http_compile_complex_value_t));

    ccv.cf = cf;
    ccv.value = &value[1];
    ccv.complex_value = param->value;

    if (ngx_http_compile_complex_value(&ccv) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    if (param->value->lengths) {
        param->dynamic = 1;
        return NGX_CONF_OK;
    }

    err = parse(value[1].data, value[1].len, &param->u);

    if (err) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\": %s", &value[1],
                           &value[0], err);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static const char *
ngx_http_ratelimit_parse_capacity(const void *data, size_t len, void *number)
{
    return ngx_http_ratelimit_capacity_parse(data, len, number);
}


static const char *
ngx_http_ratelimit_parse_cost(const void *data, size_t len, void *number)
{
    return ngx_http_ratelimit_cost_parse(data, len, number);
}


static const char *
ngx_http_ratelimit_parse_rate(const void *data, size_t len, void *rate)
{
    return ngx_http_ratelimit_rate_parse(data, len, rate);
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
    char             *comma;
    u_char           *p, *last;
    u_char            allowed[NGX_HTTP_RATELIMIT_ALLOWED_LEN];
    ngx_str_t        *value;
    ngx_uint_t        i, *np;
    ngx_conf_enum_t  *e;

    np = (ngx_uint_t *) ((u_char *) conf + cmd->offset);

    if (*np != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;
    e = cmd->post;

    p = allowed;
    last = allowed + NGX_HTTP_RATELIMIT_ALLOWED_LEN;
    comma = "";

    for (i = 0; e[i].name.len; i++) {

        if (e[i].name.len == value[1].len
            && ngx_strcasecmp(e[i].name.data, value[1].data) == 0)
        {
            *np = e[i].value;
            return NGX_CONF_OK;
        }

        p = ngx_slprintf(p, last, "%s\"%V\"", comma, &e[i].name);
        comma = e[i + 1].name.len && e[i + 2].name.len ? ", " : " or ";
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid value \"%V\" in \"%V\": it must be %*s",
                       &value[1], &cmd->name, (size_t) (p - allowed), allowed);

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


char *
ngx_http_ratelimit_conf_database(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_ratelimit_loc_conf_t *rlcf = conf;

    ngx_str_t  *value;

    if (rlcf->access.database != NGX_CONF_UNSET) {
        return "is duplicate";
    }

    value = cf->args->elts;
    rlcf->access.database = ngx_atoi(value[1].data, value[1].len);

    if (rlcf->access.database == NGX_ERROR || rlcf->access.database > 65535) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\": it must be "
                           "a number from 0 to 65535",
                           &value[1], &cmd->name);
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
