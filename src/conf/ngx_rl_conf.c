
/*
 * The limits of a location: its own limit, if any, and the named ones.
 *
 * A location that sets any of the parameters (key, capacity, rate, algorithm,
 * window, refill interval) makes a limit of its own.  A location that sets
 * none of them shares the limit of its parent, including the buckets.  Such a
 * limit is named after the server and location that made it, so that machines
 * with the same configuration agree on the names.  Names are unique: if two
 * locations would get the same name, the later one gets "#2" and so on.
 *
 * "ratelimit" replaces the parent's list of named limits; "ratelimit off"
 * inherits nothing from the parent.
 *
 * Likewise, a location that sets the shards, or any parameter of the
 * connections to them, makes a set of shards of its own.  Servers that are the
 * same in every respect exist once.
 */


#include "conf/ngx_rl_conf.h"
#include "conf/ngx_rl_origin.h"


static char *ngx_rl_merge_limit(ngx_conf_t *cf,
    ngx_rl_loc_conf_t *prev, ngx_rl_loc_conf_t *conf);
static char *ngx_rl_merge_incomplete(ngx_conf_t *cf,
    ngx_rl_loc_conf_t *prev, ngx_rl_loc_conf_t *conf);
static void ngx_rl_merge_servers(ngx_rl_loc_conf_t *conf);
static char *ngx_rl_merge_location_limits(ngx_conf_t *cf,
    ngx_rl_loc_conf_t *conf);
static char *ngx_rl_location_limit_add(ngx_conf_t *cf,
    ngx_rl_loc_conf_t *conf, ngx_rl_limit_t *limit);
static char *ngx_rl_location_limit_advise(ngx_conf_t *cf,
    ngx_rl_loc_conf_t *conf, ngx_rl_location_limit_t *ll);
static ngx_uint_t ngx_rl_location_limit_log_key(
    ngx_http_complex_value_t *key, ngx_uint_t log_key);
static ngx_uint_t ngx_rl_merge_server_defaults(
    ngx_rl_loc_conf_t *prev, ngx_rl_loc_conf_t *conf);
static ngx_int_t ngx_rl_conf_attach(ngx_rl_zone_t *zone, void *data);
static ngx_int_t ngx_rl_conf_attach_limit(ngx_rl_zone_t *zone,
    ngx_rl_main_conf_t *rmcf, ngx_rl_limit_t *limit);
static ngx_int_t ngx_rl_conf_watch(ngx_rl_zone_t *zone,
    ngx_rl_main_conf_t *rmcf, ngx_rl_limit_t *limit);
static char *ngx_rl_make_shards(ngx_conf_t *cf, ngx_rl_loc_conf_t *conf);
static void ngx_rl_server_defaults_init(ngx_rl_server_defaults_t *defaults);
static char *ngx_rl_server_defaults_tls(ngx_conf_t *cf,
    ngx_rl_loc_conf_t *conf);
static char *ngx_rl_server_defaults_user(ngx_conf_t *cf,
    ngx_rl_loc_conf_t *conf, char *directive, ngx_str_t *user,
    ngx_str_t *password);


/* the configuration that is being read: create_loc_conf() cannot reach it */

static ngx_rl_main_conf_t  *ngx_rl_loading;


const ngx_rl_breaker_conf_t  ngx_rl_breaker_default = { 5, 30000, 10000 };


void *
ngx_rl_create_main_conf(ngx_conf_t *cf)
{
    ngx_rl_main_conf_t  *rmcf;

    rmcf = ngx_pcalloc(cf->pool, sizeof(ngx_rl_main_conf_t));
    if (rmcf == NULL) {
        return NULL;
    }

    if (ngx_array_init(&rmcf->servers, cf->pool, 4,
                       sizeof(ngx_rl_server_conf_t *))
        != NGX_OK
        || ngx_array_init(&rmcf->limits, cf->pool, 4, sizeof(ngx_rl_limit_t *))
        != NGX_OK
        || ngx_array_init(&rmcf->watches, cf->pool, 4, sizeof(ngx_rl_watch_t))
        != NGX_OK
        || ngx_array_init(&rmcf->uses, cf->pool, 16, sizeof(ngx_rl_use_t))
        != NGX_OK
        || ngx_array_init(&rmcf->apis, cf->pool, 1, sizeof(ngx_rl_api_place_t))
        != NGX_OK
        || ngx_array_init(&rmcf->consoles, cf->pool, 1,
                          sizeof(ngx_rl_loc_conf_t *))
        != NGX_OK
        || ngx_array_init(&rmcf->text.blocks, cf->pool, 16,
                          sizeof(ngx_rl_block_t *))
        != NGX_OK)
    {
        return NULL;
    }

    rmcf->zone_size = NGX_CONF_UNSET_SIZE;
    rmcf->overrides_size = NGX_CONF_UNSET_SIZE;

    ngx_rl_loading = rmcf;

    return rmcf;
}


void *
ngx_rl_create_loc_conf(ngx_conf_t *cf)
{
    ngx_rl_loc_conf_t  *conf;

    /*
     * set by ngx_pcalloc():
     *
     *     conf->limits, n, enforced, shards
     *     conf->params but the algorithm
     *     conf->headers, limit, names, prefix, shards_conf, off
     *     conf->defaults.user, password, sentinel_..., breaker
     *     conf->local_share, lease, silence, console
     */

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_rl_loc_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    conf->status = NGX_CONF_UNSET_UINT;
    conf->error_status = NGX_CONF_UNSET_UINT;
    conf->error_retry_after = NGX_CONF_UNSET_MSEC;
    conf->on_error = NGX_CONF_UNSET_UINT;
    conf->body = NGX_CONF_UNSET_UINT;
    conf->jitter = NGX_CONF_UNSET_UINT;
    conf->phase = NGX_CONF_UNSET_UINT;
    conf->clock = NGX_CONF_UNSET_UINT;
    conf->log_level = NGX_CONF_UNSET_UINT;
    conf->log_key = NGX_RL_KEY_AUTO;
    conf->ipv6_prefix = NGX_CONF_UNSET_UINT;
    conf->top = NGX_CONF_UNSET_UINT;
    conf->dry_run = NGX_CONF_UNSET;
    conf->advise = NGX_CONF_UNSET;
    conf->preview = NGX_CONF_UNSET;
    conf->preview_cache = NGX_CONF_UNSET_MSEC;
    conf->write = NGX_CONF_UNSET;
    conf->deny_cache = NGX_CONF_UNSET_MSEC;
    conf->timeout = NGX_CONF_UNSET_MSEC;
    conf->params.algorithm = NGX_CONF_UNSET_UINT;

    ngx_rl_server_defaults_init(&conf->defaults);

    if (ngx_rl_statement_block(cf, &ngx_rl_loading->text, &conf->block)
        != NGX_OK)
    {
        return NULL;
    }

    return conf;
}


/* "defaults" is all zeroes until now */

static void
ngx_rl_server_defaults_init(ngx_rl_server_defaults_t *defaults)
{
    defaults->database = NGX_CONF_UNSET;
    defaults->networks = NGX_CONF_UNSET_PTR;
    defaults->connect_timeout = NGX_CONF_UNSET_MSEC;

    ngx_rl_tls_conf_init(&defaults->tls);
}


/* the http level has no parent: it is merged with a conf that sets nothing */

char *
ngx_rl_init_main_conf(ngx_conf_t *cf, void *conf)
{
    void               *none;
    ngx_rl_loc_conf_t  *rlcf;

    none = ngx_rl_create_loc_conf(cf);
    if (none == NULL) {
        return NGX_CONF_ERROR;
    }

    rlcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_ratelimit_module);

    return ngx_rl_merge_loc_conf(cf, none, rlcf);
}


char *
ngx_rl_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child)
{
    ngx_rl_loc_conf_t  *prev = parent;
    ngx_rl_loc_conf_t  *conf = child;

    ngx_uint_t                 own;
    ngx_http_core_srv_conf_t  *cscf;

    ngx_conf_merge_uint_value(conf->status, prev->status,
                              NGX_HTTP_TOO_MANY_REQUESTS);
    ngx_conf_merge_uint_value(conf->error_status, prev->error_status,
                              NGX_HTTP_SERVICE_UNAVAILABLE);
    ngx_conf_merge_msec_value(conf->error_retry_after, prev->error_retry_after,
                              NGX_RL_ERROR_RETRY);
    ngx_conf_merge_uint_value(conf->on_error, prev->on_error,
                              NGX_RL_ON_ERROR_LOCAL);
    ngx_conf_merge_uint_value(conf->body, prev->body, NGX_RL_BODY_DEFAULT);
    ngx_conf_merge_uint_value(conf->jitter, prev->jitter, 0);
    ngx_conf_merge_uint_value(conf->phase, prev->phase, NGX_RL_PHASE_ACCESS);
    ngx_conf_merge_uint_value(conf->clock, prev->clock, NGX_RL_CLOCK_REDIS);
    ngx_conf_merge_uint_value(conf->log_level, prev->log_level, NGX_LOG_ERR);
    ngx_conf_merge_uint_value(conf->ipv6_prefix, prev->ipv6_prefix, 64);
    ngx_conf_merge_uint_value(conf->top, prev->top, 0);
    ngx_conf_merge_value(conf->dry_run, prev->dry_run, 0);
    ngx_conf_merge_value(conf->advise, prev->advise, 0);
    ngx_conf_merge_value(conf->preview, prev->preview, 0);
    ngx_conf_merge_msec_value(conf->preview_cache, prev->preview_cache, 50);
    ngx_conf_merge_value(conf->write, prev->write, 0);
    ngx_conf_merge_msec_value(conf->deny_cache, prev->deny_cache,
                              NGX_RL_DENY_CACHE);
    ngx_conf_merge_bitmask_value(conf->headers, prev->headers,
                                 (NGX_CONF_BITMASK_SET|NGX_RL_HEADERS_LEGACY));
    ngx_conf_merge_msec_value(conf->timeout, prev->timeout, 50);
    ngx_conf_merge_str_value(conf->prefix, prev->prefix, "ratelimit");

    if (conf->log_key == NGX_RL_KEY_AUTO) {
        conf->log_key = prev->log_key;
    }

    if (!conf->lease.set) {
        conf->lease = prev->lease;
    }

    /* an "if" in a location has the handler of that location */

    if (conf->console == NULL) {
        conf->console = prev->console;
    }

    if (conf->local_share.den == 0) {
        conf->local_share = prev->local_share;
    }

    if (conf->local_share.den == 0) {
        conf->local_share.num = 1;
        conf->local_share.den = 1;
    }

    conf->silence |= prev->silence;

    own = ngx_rl_merge_server_defaults(prev, conf);

    if (ngx_rl_merge_limit(cf, prev, conf) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    if (conf->limit == NULL && conf->names == NULL) {
        return NGX_CONF_OK;
    }

    /* the http level serves no requests: missing values may follow below */

    cscf = ngx_http_conf_get_module_srv_conf(cf, ngx_http_core_module);

    if (cscf->ctx == NULL) {
        return NGX_CONF_OK;
    }

    if (!own) {
        conf->shards = prev->shards;
    }

    if (conf->shards == NULL && ngx_rl_make_shards(cf, conf) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    ngx_rl_merge_servers(conf);

    return ngx_rl_merge_location_limits(cf, conf);
}


/* locations that share a shard may have different policies; for the log */

static void
ngx_rl_merge_servers(ngx_rl_loc_conf_t *conf)
{
    ngx_uint_t             i;
    const char            *outage;
    ngx_rl_server_conf_t  *server;

    static const char  *outages[] = {
        "its keys are not limited",            /* NGX_RL_ON_ERROR_OPEN */
        "requests for its keys are rejected",  /* NGX_RL_ON_ERROR_CLOSED */
        "limits of its keys are local",        /* NGX_RL_ON_ERROR_LOCAL */
    };

    static const char  mixed[] =
        "limits of its keys follow \"ratelimit_on_error\"";

    outage = outages[conf->on_error];

    for (i = 0; conf->shards && i < conf->shards->n; i++) {
        server = conf->shards->confs[i];

        server->timeout = ngx_min(server->timeout, conf->timeout);
        server->outage = (server->outage == ngx_rl_server_conf_unused
                          || server->outage == outage)
                         ? outage : mixed;
    }
}


static char *
ngx_rl_merge_limit(ngx_conf_t *cf,
    ngx_rl_loc_conf_t *prev, ngx_rl_loc_conf_t *conf)
{
    ngx_uint_t           i, own, either;
    ngx_rl_param_t      *param;
    ngx_rl_main_conf_t  *rmcf;

    own = (conf->params.algorithm != NGX_CONF_UNSET_UINT);

    /*
     * A window and a period are two words for one thing: a block that sets one
     * of them does not inherit the other.
     */

    either = conf->params.window.value != NULL
             || conf->params.period.value != NULL;

    if (conf->params.window.value && conf->params.period.value) {
        return ngx_rl_statement_error(cf, &conf->block, "ratelimit_period",
                                      "\"ratelimit_window\" and "
                                      "\"ratelimit_period\" in one block: "
                                      "remove one of them");
    }

    /* a cost alone makes no limit, and also applies to named limits */

    for (i = 0; i < NGX_RL_PARAMS; i++) {
        param = ngx_rl_param(&conf->params, i);

        if (param->value) {
            own |= (i != NGX_RL_COST);

        } else if (either && (i == NGX_RL_WINDOW || i == NGX_RL_PERIOD)) {
            continue;

        } else if (!conf->off || i == NGX_RL_COST) {
            *param = *ngx_rl_param(&prev->params, i);
        }
    }

    if (!conf->off) {

        if (conf->params.algorithm == NGX_CONF_UNSET_UINT) {
            conf->params.algorithm = prev->params.algorithm;
        }

        if (conf->names == NULL) {
            conf->names = prev->names;
        }

        if (!own) {
            conf->limit = prev->limit;
        }
    }

    ngx_conf_init_uint_value(conf->params.algorithm, NGX_RL_TOKEN_BUCKET);

    if (!own) {
        return NGX_CONF_OK;
    }

    if (!ngx_rl_limit_params_complete(&conf->params)) {
        return ngx_rl_merge_incomplete(cf, prev, conf);
    }

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    conf->limit = ngx_rl_limit_add(cf, &rmcf->limits, NULL);
    if (conf->limit == NULL) {
        return NGX_CONF_ERROR;
    }

    conf->limit->params = conf->params;

    /* a location that shares this limit may have another cost */

    ngx_memzero(&conf->limit->params.cost, sizeof(ngx_rl_param_t));

    return NGX_CONF_OK;
}


/*
 * Outside of locations, values may stand alone as defaults, unless they would
 * remove an inherited limit.
 */

static char *
ngx_rl_merge_incomplete(ngx_conf_t *cf,
    ngx_rl_loc_conf_t *prev, ngx_rl_loc_conf_t *conf)
{
    const char                *given, *needed;
    const ngx_rl_param_e      *what;
    ngx_http_core_srv_conf_t  *cscf;
    ngx_http_core_loc_conf_t  *clcf;

    static const ngx_rl_param_e  blamed[] = {
        NGX_RL_CAPACITY, NGX_RL_KEY, NGX_RL_WINDOW, NGX_RL_PERIOD,
        NGX_RL_TIMEZONE, NGX_RL_ANCHOR, NGX_RL_INTERVAL, NGX_RL_PARAMS
    };

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    cscf = ngx_http_conf_get_module_srv_conf(cf, ngx_http_core_module);

    if (clcf->name.len == 0 && prev->limit == NULL) {
        return NGX_CONF_OK;
    }

    given = "ratelimit_algorithm";

    for (what = blamed; *what != NGX_RL_PARAMS; what++) {

        if (ngx_rl_param(&conf->params, *what)->value) {
            given = (char *) ngx_rl_param_defs[*what].directive.data;
            break;
        }
    }

    needed = ngx_rl_algorithm_window(conf->params.algorithm)
             ? "ratelimit_capacity" : "ratelimit_rate";

    return ngx_rl_statement_error(cf, &conf->block, given, "\"%s\" without "
                                  "\"%s\" in %s \"%V\": nothing would be "
                                  "limited", given, needed,
                                  clcf->name.len ? "location" : "server",
                                  clcf->name.len ? &clcf->name
                                                 : &cscf->server_name);
}


static char *
ngx_rl_merge_location_limits(ngx_conf_t *cf, ngx_rl_loc_conf_t *conf)
{
    ngx_str_t                 *name;
    ngx_uint_t                 i, n, named;
    ngx_rl_limit_t            *limit;
    ngx_rl_main_conf_t        *rmcf;
    ngx_http_core_srv_conf_t  *cscf;
    ngx_http_core_loc_conf_t  *clcf;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    named = conf->names ? conf->names->nelts : 0;
    n = (conf->limit ? 1 : 0) + named;

    if (n > NGX_RL_CLAIMS) {
        return ngx_rl_statement_error(cf, &conf->block, "ratelimit",
                                      "\"ratelimit\" applies %ui limits in one "
                                      "location: at most %d are allowed", n,
                                      NGX_RL_CLAIMS);
    }

    conf->limits = ngx_palloc(cf->pool, n * sizeof(ngx_rl_location_limit_t));
    if (conf->limits == NULL) {
        return NGX_CONF_ERROR;
    }

    if (conf->limit
        && ngx_rl_location_limit_add(cf, conf, conf->limit) != NGX_CONF_OK)
    {
        return NGX_CONF_ERROR;
    }

    name = named ? conf->names->elts : NULL;

    for (i = 0; i < named; i++) {
        limit = ngx_rl_limit_find(&rmcf->limits, &name[i]);

        if (limit == NULL || !limit->named) {
            cscf = ngx_http_conf_get_module_srv_conf(cf, ngx_http_core_module);
            clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

            return ngx_rl_statement_error(cf, &conf->block, "ratelimit",
                                          "unknown limit \"%V\" in "
                                          "\"ratelimit\", server \"%V\", "
                                          "location \"%V\": add "
                                          "\"ratelimit_limit %V ...;\"",
                                          &name[i], &cscf->server_name,
                                          &clcf->name, &name[i]);
        }

        if (ngx_rl_location_limit_add(cf, conf, limit) != NGX_CONF_OK) {
            return NGX_CONF_ERROR;
        }
    }

    rmcf->used = 1;

    return NGX_CONF_OK;
}


static char *
ngx_rl_location_limit_add(ngx_conf_t *cf, ngx_rl_loc_conf_t *conf,
    ngx_rl_limit_t *limit)
{
    u_char                    *p;
    ngx_rl_use_t              *use;
    ngx_rl_param_t            *cost;
    ngx_rl_main_conf_t        *rmcf;
    ngx_rl_location_limit_t   *ll;
    ngx_http_core_srv_conf_t  *cscf;
    ngx_http_core_loc_conf_t  *clcf;

    cost = limit->params.cost.value ? &limit->params.cost : &conf->params.cost;

    if (ngx_rl_limit_check(cf, &conf->block, limit, cost) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    limit->used = 1;

    ll = &conf->limits[conf->n++];
    ll->limit = limit;

    ll->log_key = ngx_rl_location_limit_log_key(limit->params.key.value,
                                                conf->log_key);

    /* a key that must not be shown is not kept, and a preview is no request */

    ll->top = conf->top && !conf->preview && ll->log_key != NGX_RL_KEY_OFF;

    if (ll->top) {
        limit->top = ngx_max(limit->top, conf->top);
    }

    if (!limit->dry_run && !conf->dry_run && !conf->preview) {
        conf->enforced++;
    }

    ll->advise = 0;

    if ((limit->advise || conf->advise)
        && ngx_rl_location_limit_advise(cf, conf, ll) != NGX_CONF_OK)
    {
        return NGX_CONF_ERROR;
    }

    p = ngx_pnalloc(cf->pool, conf->prefix.len + limit->name.len + 3);
    if (p == NULL) {
        return NGX_CONF_ERROR;
    }

    ll->key_prefix.data = p;
    p = ngx_sprintf(p, "%V:%V:{", &conf->prefix, &limit->name);
    ll->key_prefix.len = p - ll->key_prefix.data;

    /* the text in braces determines the slot of a key in a cluster */

    ll->braces = conf->shards_conf && conf->shards_conf->kind == NGX_RL_CLUSTER;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);
    cscf = ngx_http_conf_get_module_srv_conf(cf, ngx_http_core_module);
    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    use = ngx_array_push(&rmcf->uses);
    if (use == NULL) {
        return NGX_CONF_ERROR;
    }

    use->conf = conf;
    use->limit = ll;
    use->server = cscf->server_name;
    use->location = clcf->name;

    return NGX_CONF_OK;
}


/* what "ratelimit_limit" says was checked when it was parsed */

static char *
ngx_rl_location_limit_advise(ngx_conf_t *cf, ngx_rl_loc_conf_t *conf,
    ngx_rl_location_limit_t *ll)
{
    ngx_rl_limit_t  *limit;

    limit = ll->limit;

    if (!limit->dry_run && !conf->dry_run && !conf->preview) {
        return ngx_rl_statement_error(cf, &conf->block, "ratelimit_advise",
                                      "\"ratelimit_advise\" applies to limit "
                                      "\"%V\", which is enforced: only a dry "
                                      "run can give advice; add "
                                      "\"ratelimit_dry_run on\", or write "
                                      "\"ratelimit_advise off\"",
                                      &limit->name);
    }

    if (ngx_rl_algorithm_window(limit->params.algorithm)) {
        return ngx_rl_statement_error(cf, &conf->block, "ratelimit_advise",
                             "\"ratelimit_advise\" applies to limit \"%V\", "
                             "which is a %s: only \"token_bucket\" and "
                             "\"gcra\" can give advice; write "
                             "\"ratelimit_advise off\"", &limit->name,
                             ngx_rl_algorithm_words[limit->params.algorithm]);
    }

    ll->advise = 1;
    limit->advised = 1;

    return NGX_CONF_OK;
}


/*
 * A key that consists of the client's address, and of text from the
 * configuration, is shown as it is.  Any other key may be a secret.
 */

static ngx_uint_t
ngx_rl_location_limit_log_key(ngx_http_complex_value_t *key, ngx_uint_t log_key)
{
    u_char     *p, *last;
    ngx_str_t   name;
    ngx_uint_t  i, binary;

    static ngx_str_t  addresses[] = {
        ngx_string("binary_remote_addr"),
        ngx_string("ratelimit_client_net"),
        ngx_string("remote_addr"),
        ngx_string("realip_remote_addr"),
        ngx_string("proxy_protocol_addr"),
        ngx_null_string
    };

    if (key == NULL) {
        return log_key == NGX_RL_KEY_AUTO ? NGX_RL_KEY_PLAIN : log_key;
    }

    binary = 0;

    p = key->value.data;
    last = p + key->value.len;

    while (ngx_rl_origin_next(&p, last, &name)) {

        for (i = 0; addresses[i].len; i++) {
            if (addresses[i].len == name.len
                && ngx_strncasecmp(addresses[i].data, name.data, name.len) == 0)
            {
                break;
            }
        }

        if (addresses[i].len == 0) {
            return log_key == NGX_RL_KEY_AUTO ? NGX_RL_KEY_HASH : log_key;
        }

        /* the whole value, with nothing before or after it */

        binary = (i == 0 && key->value.data[0] == '$'
                  && (p == last || (p + 1 == last && *p == '}')));
    }

    if (log_key != NGX_RL_KEY_AUTO && log_key != NGX_RL_KEY_PLAIN) {
        return log_key;
    }

    return binary ? NGX_RL_KEY_ADDRESS : NGX_RL_KEY_PLAIN;
}


/* whether this level sets anything about the shards */

static ngx_uint_t
ngx_rl_merge_server_defaults(ngx_rl_loc_conf_t *prev, ngx_rl_loc_conf_t *conf)
{
    ngx_uint_t                own;
    ngx_rl_server_defaults_t  unset;

    ngx_memzero(&unset, sizeof(ngx_rl_server_defaults_t));
    ngx_rl_server_defaults_init(&unset);

    own = conf->shards_conf
          || ngx_memcmp(&conf->defaults, &unset, sizeof(unset)) != 0;

    if (conf->shards_conf == NULL) {
        conf->shards_conf = prev->shards_conf;
    }

    ngx_conf_merge_str_value(conf->defaults.user, prev->defaults.user, "");
    ngx_conf_merge_str_value(conf->defaults.password,
                             prev->defaults.password, "");
    ngx_conf_merge_value(conf->defaults.database, prev->defaults.database, 0);
    ngx_conf_merge_msec_value(conf->defaults.connect_timeout,
                              prev->defaults.connect_timeout, 100);
    ngx_conf_merge_str_value(conf->defaults.sentinel_user,
                             prev->defaults.sentinel_user, "");
    ngx_conf_merge_str_value(conf->defaults.sentinel_password,
                             prev->defaults.sentinel_password, "");
    ngx_conf_merge_ptr_value(conf->defaults.networks, prev->defaults.networks,
                             NULL);

    ngx_rl_tls_conf_merge(&prev->defaults.tls, &conf->defaults.tls);

    if (conf->defaults.breaker.failures == 0) {
        conf->defaults.breaker = prev->defaults.breaker;
    }

    if (conf->defaults.breaker.failures == 0) {
        conf->defaults.breaker = ngx_rl_breaker_default;
    }

    return own;
}


/*
 * Makes the shards only if a limit uses them, so that nginx does not connect
 * to unused servers.  Without shards, limits live in this machine's memory.
 */

static char *
ngx_rl_make_shards(ngx_conf_t *cf, ngx_rl_loc_conf_t *conf)
{
    const char                *given;
    ngx_conf_file_t            file, *saved;
    ngx_rl_main_conf_t        *rmcf;
    ngx_rl_server_defaults_t  *defaults;
    ngx_http_core_loc_conf_t  *clcf;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);
    defaults = &conf->defaults;

    if (conf->shards_conf == NULL) {

        /* directives that have no effect without shards */

        given = defaults->password.len ? "ratelimit_redis_password"
                : defaults->user.len ? "ratelimit_redis_user"
                : defaults->database ? "ratelimit_redis_database"
                : defaults->sentinel_password.len
                  ? "ratelimit_sentinel_password"
                : defaults->sentinel_user.len ? "ratelimit_sentinel_user"
                : defaults->networks ? "ratelimit_redis_networks"
                : defaults->tls.enable == 1 ? "ratelimit_redis_ssl"
                : ngx_rl_tls_conf_given(&defaults->tls);

        return given == NULL ? NGX_CONF_OK
               : ngx_rl_statement_error(cf, &conf->block, given, "\"%s\" "
                                        "without \"ratelimit_shards\": limits "
                                        "would be kept in this machine's "
                                        "memory only; add \"ratelimit_shards\"",
                                        given);
    }

    if (ngx_rl_server_defaults_user(cf, conf, "ratelimit_redis_user",
                                    &defaults->user, &defaults->password)
        != NGX_CONF_OK
        || ngx_rl_server_defaults_user(cf, conf, "ratelimit_sentinel_user",
                                       &defaults->sentinel_user,
                                       &defaults->sentinel_password)
        != NGX_CONF_OK
        || ngx_rl_server_defaults_tls(cf, conf) != NGX_CONF_OK)
    {
        return NGX_CONF_ERROR;
    }

    if (conf->shards_conf->kind == NGX_RL_CLUSTER && defaults->database) {
        return ngx_rl_statement_error(cf, &conf->block,
                                      "ratelimit_redis_database",
                                      "\"ratelimit_redis_database\" %i with "
                                      "\"ratelimit_shards cluster\": a cluster "
                                      "has only database 0",
                                      defaults->database);
    }

    defaults->prefix = conf->prefix;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->resolver->connections.nelts) {
        defaults->resolver = clcf->resolver;
        defaults->resolver_timeout = clcf->resolver_timeout;
    }

    /* errors about servers are reported there */

    saved = cf->conf_file;
    ngx_rl_statement_set(cf, &conf->block, "ratelimit_shards", &file);

    conf->shards = ngx_rl_shards_create(cf, conf->shards_conf, defaults,
                                        &rmcf->servers);
    cf->conf_file = saved;

    return conf->shards ? NGX_CONF_OK : NGX_CONF_ERROR;
}


/*
 * Certificates without TLS are a mistake, unless "ratelimit_redis_ssl off" is
 * set.
 */

static char *
ngx_rl_server_defaults_tls(ngx_conf_t *cf, ngx_rl_loc_conf_t *conf)
{
    ngx_uint_t     i;
    const char    *given;
    ngx_rl_url_t  *url;

    given = ngx_rl_tls_conf_given(&conf->defaults.tls);

    if (given == NULL || conf->defaults.tls.enable != NGX_CONF_UNSET) {
        return NGX_CONF_OK;
    }

    url = conf->shards_conf->addresses.elts;

    for (i = 0; i < conf->shards_conf->addresses.nelts; i++) {
        if (url[i].tls) {
            return NGX_CONF_OK;
        }
    }

    return ngx_rl_statement_error(cf, &conf->block, given, "\"%s\" without "
                                  "TLS: write \"ratelimit_redis_ssl on\" or "
                                  "\"rediss://\" addresses to use TLS, or "
                                  "\"ratelimit_redis_ssl off\" not to", given);
}


static char *
ngx_rl_server_defaults_user(ngx_conf_t *cf, ngx_rl_loc_conf_t *conf,
    char *directive, ngx_str_t *user, ngx_str_t *password)
{
    size_t  len;

    if (user->len == 0 || password->len) {
        return NGX_CONF_OK;
    }

    len = ngx_strlen(directive) - (sizeof("user") - 1);

    return ngx_rl_statement_error(cf, &conf->block, directive, "\"%s\" \"%V\" "
                                  "needs \"%*spassword\" or "
                                  "\"%*spassword_file\"", directive, user, len,
                                  directive, len, directive);
}


ngx_int_t
ngx_rl_conf_zone(ngx_conf_t *cf)
{
    ngx_rl_main_conf_t  *rmcf;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    if (!rmcf->used && rmcf->zone_size == NGX_CONF_UNSET_SIZE) {
        return NGX_OK;
    }

    ngx_conf_init_size_value(rmcf->zone_size, NGX_RL_ZONE_SIZE);

    rmcf->zone = ngx_rl_zone_add(cf, rmcf->zone_size,
                                 &ngx_http_ratelimit_module,
                                 ngx_rl_stats_layout() ^ ngx_rl_tops_layout()
                                 ^ ngx_rl_record_layout()
                                 ^ ngx_rl_rates_layout(),
                                 ngx_rl_conf_attach, rmcf);

    return rmcf->zone ? NGX_OK : NGX_ERROR;
}


/* all counters get their records in the zone before anybody counts */

static ngx_int_t
ngx_rl_conf_attach(ngx_rl_zone_t *zone, void *data)
{
    ngx_rl_main_conf_t  *rmcf = data;

    ngx_uint_t        i;
    ngx_rl_limit_t  **limit;

    rmcf->stats = ngx_rl_stats(zone);
    if (rmcf->stats == NULL) {
        return NGX_ERROR;
    }

    limit = rmcf->limits.elts;

    for (i = 0; i < rmcf->limits.nelts; i++) {
        limit[i]->stats = ngx_rl_stats_limit(zone, &limit[i]->name);
        if (limit[i]->stats == NULL) {
            return NGX_ERROR;
        }

        if (ngx_rl_conf_attach_limit(zone, rmcf, limit[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return ngx_rl_server_confs_attach(zone, rmcf->stats, &rmcf->servers);
}


/* what a limit has beside its counters, if that is wanted */

static ngx_int_t
ngx_rl_conf_attach_limit(ngx_rl_zone_t *zone, ngx_rl_main_conf_t *rmcf,
    ngx_rl_limit_t *limit)
{
    if (rmcf->api && ngx_rl_conf_watch(zone, rmcf, limit) != NGX_OK) {
        return NGX_ERROR;
    }

    if (limit->advised) {
        limit->advice = ngx_rl_stats_advice(zone, &limit->name);

        if (limit->advice == NULL) {
            return NGX_ERROR;
        }
    }

    if (limit->top) {
        limit->tops = ngx_rl_tops(zone, &limit->name, limit->top);

        if (limit->tops == NULL) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_rl_conf_watch(ngx_rl_zone_t *zone, ngx_rl_main_conf_t *rmcf,
    ngx_rl_limit_t *limit)
{
    ngx_rl_watch_t  *watch;

    limit->rates = ngx_rl_rates(zone, &limit->name);
    watch = ngx_array_push(&rmcf->watches);

    if (limit->rates == NULL || watch == NULL) {
        return NGX_ERROR;
    }

    watch->stats = limit->stats;
    watch->rates = limit->rates;

    return NGX_OK;
}
