
#include "topology/ngx_rl_server_conf.h"
#include "core/ngx_rl_core.h"
#include "redis/ngx_rl_address.h"
#include "pure/ngx_rl_hash.h"
#include "pure/ngx_rl_resp.h"
#include "script/ngx_rl_scripts.h"


static ngx_uint_t ngx_rl_server_conf_same(
    ngx_rl_server_conf_t *conf, ngx_rl_server_conf_t *other);
static ngx_int_t ngx_rl_server_conf_tls(ngx_conf_t *cf,
    ngx_rl_server_conf_t *conf, ngx_array_t *confs);
static ngx_int_t ngx_rl_server_conf_label(ngx_conf_t *cf,
    ngx_rl_server_conf_t *conf, ngx_uint_t named, ngx_array_t *confs);
static ngx_int_t ngx_rl_server_conf_probe(ngx_conf_t *cf,
    ngx_rl_server_conf_t *conf);
static ngx_int_t ngx_rl_server_conf_seeds(ngx_rl_zone_t *zone,
    ngx_rl_stats_t *stats, ngx_rl_server_conf_t *cluster);
static ngx_int_t ngx_rl_server_conf_handshake(ngx_conf_t *cf,
    ngx_rl_server_conf_t *conf);
static ngx_int_t ngx_rl_server_conf_auth(ngx_conf_t *cf,
    ngx_rl_server_conf_t *conf);
static ngx_int_t ngx_rl_server_conf_introduce(ngx_conf_t *cf,
    ngx_rl_server_conf_t *conf);
static ngx_rl_handshake_step_t *ngx_rl_server_conf_step(ngx_conf_t *cf,
    ngx_rl_server_conf_t *conf, char *name, char **command, ssize_t len);


const char  ngx_rl_server_conf_unused[] = "no limits are stored there";


ngx_rl_server_conf_t *
ngx_rl_server_conf_create(ngx_conf_t *cf, ngx_rl_url_t *url,
    ngx_rl_server_defaults_t *defaults,
    ngx_rl_sentinels_conf_t *sentinels, ngx_array_t *seeds, ngx_array_t *confs)
{
    ngx_uint_t             i;
    ngx_rl_server_conf_t  *conf, **pp;

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_rl_server_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    conf->index = confs->nelts;
    conf->user = url->password.data ? url->user : defaults->user;
    conf->password = url->password.data ? url->password : defaults->password;
    conf->database = (url->database != NGX_CONF_UNSET) ? url->database
                                                       : defaults->database;
    conf->host = url->host;
    conf->port = url->port;
    conf->resolver = defaults->resolver;
    conf->resolver_timeout = defaults->resolver_timeout;
    conf->networks = defaults->networks;
    conf->sentinels = sentinels;
    conf->seeds = seeds;
    conf->breaker = defaults->breaker;
    conf->prefix = defaults->prefix;
    conf->timeout = NGX_MAX_INT32_VALUE;
    conf->outage = ngx_rl_server_conf_unused;

    /* Redis has no TLS on unix sockets, and needs none */

    conf->tls = defaults->tls;

    if (url->tls) {
        conf->tls.enable = 1;

    } else if (url->naddrs && url->port == 0) {
        conf->tls.enable = 0;
    }

    conf->redis.name = url->name;
    conf->redis.host = url->host;
    conf->redis.addrs = url->addrs;
    conf->redis.naddrs = url->naddrs;
    conf->redis.connect_timeout = defaults->connect_timeout;

    if (seeds) {
        conf->kind = NGX_RL_CLUSTER;
        conf->role = NGX_RL_ROLE_NODE;
        conf->redis.node = 1;

    } else if (sentinels) {
        conf->kind = NGX_RL_SENTINEL;
        conf->role = NGX_RL_ROLE_MASTER;
    }

    /* another set may have the same server */

    pp = confs->elts;

    for (i = 0; i < confs->nelts; i++) {
        if (ngx_rl_server_conf_same(conf, pp[i])) {
            return pp[i];
        }
    }

    if (ngx_array_init(&conf->redis.handshake, cf->pool, 8,
                       sizeof(ngx_rl_handshake_step_t))
        != NGX_OK
        || ngx_rl_server_conf_tls(cf, conf, confs) != NGX_OK
        || ngx_rl_server_conf_label(cf, conf, url->database != NGX_CONF_UNSET,
                                    confs)
        != NGX_OK
        || ngx_rl_server_conf_handshake(cf, conf) != NGX_OK
        || ngx_rl_server_conf_probe(cf, conf) != NGX_OK)
    {
        return NULL;
    }

    pp = ngx_array_push(confs);
    if (pp == NULL) {
        return NULL;
    }

    *pp = conf;

    return conf;
}


static ngx_uint_t
ngx_rl_server_conf_same(ngx_rl_server_conf_t *conf, ngx_rl_server_conf_t *other)
{
    if (conf->kind != other->kind
        || !ngx_rl_str_equal(&conf->redis.name, &other->redis.name)
        || !ngx_rl_str_equal(&conf->user, &other->user)
        || !ngx_rl_str_equal(&conf->password, &other->password)
        || conf->database != other->database
        || conf->redis.connect_timeout != other->redis.connect_timeout
        || !ngx_rl_tls_conf_equal(&conf->tls, &other->tls)
        || conf->breaker.failures != other->breaker.failures
        || conf->breaker.window != other->breaker.window
        || conf->breaker.probe != other->breaker.probe
        || conf->resolver != other->resolver
        || conf->networks != other->networks)
    {
        return 0;
    }

    return conf->sentinels == NULL
           || (ngx_rl_str_equal(&conf->sentinels->name, &other->sentinels->name)
               && ngx_rl_str_equal(&conf->sentinels->user,
                                   &other->sentinels->user)
               && ngx_rl_str_equal(&conf->sentinels->password,
                                   &other->sentinels->password));
}


/* a system has many certificates: load them once for all servers */

static ngx_int_t
ngx_rl_server_conf_tls(ngx_conf_t *cf, ngx_rl_server_conf_t *conf,
    ngx_array_t *confs)
{
    ngx_uint_t              i;
    ngx_rl_server_conf_t  **other;

    if (conf->tls.enable != 1) {
        return NGX_OK;
    }

    other = confs->elts;

    for (i = 0; i < confs->nelts; i++) {

        if (ngx_rl_tls_conf_equal(&conf->tls, &other[i]->tls)) {
            conf->redis.tls = other[i]->redis.tls;
            return NGX_OK;
        }
    }

    conf->redis.tls = ngx_rl_tls_create(cf, &conf->tls);

    return conf->redis.tls ? NGX_OK : NGX_ERROR;
}


/*
 * What all sentinels share.  The handshake asks for the addresses of the
 * masters and subscribes to their changes, in one piece of output, so that no
 * change is missed in between.
 */

ngx_int_t
ngx_rl_server_conf_sentinel(ngx_conf_t *cf, ngx_rl_sentinels_conf_t *sentinels,
    ngx_str_t *label, ngx_rl_server_defaults_t *defaults)
{
    char                     *command;
    ssize_t                   len;
    ngx_uint_t                i;
    ngx_rl_server_conf_t     *conf, **master;
    ngx_rl_handshake_step_t  *step;

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_rl_server_conf_t));
    if (conf == NULL) {
        return NGX_ERROR;
    }

    sentinels->conf = conf;

    master = sentinels->masters.elts;

    conf->label = *label;
    conf->redis.tls = master[0]->redis.tls;
    conf->role = NGX_RL_ROLE_SENTINEL;
    conf->resolver = defaults->resolver;
    conf->resolver_timeout = defaults->resolver_timeout;
    conf->user = sentinels->user;
    conf->password = sentinels->password;
    conf->redis.name = *label;
    conf->redis.connect_timeout = defaults->connect_timeout;
    conf->breaker = defaults->breaker;

    if (ngx_array_init(&conf->redis.handshake, cf->pool, 4,
                       sizeof(ngx_rl_handshake_step_t))
        != NGX_OK
        || ngx_rl_server_conf_auth(cf, conf) != NGX_OK
        || ngx_rl_server_conf_introduce(cf, conf) != NGX_OK)
    {
        return NGX_ERROR;
    }

    for (i = 0; i < sentinels->masters.nelts; i++) {
        len = ngx_rl_resp_command(&command, "SENTINEL",
                                  "GET-MASTER-ADDR-BY-NAME",
                                  master[i]->redis.name.data, NULL);
        step = ngx_rl_server_conf_step(cf, conf,
                                       "SENTINEL GET-MASTER-ADDR-BY-NAME",
                                       &command, len);
        if (step == NULL) {
            return NGX_ERROR;
        }

        step->tag = i + 1;
    }

    len = ngx_rl_resp_command(&command, "SUBSCRIBE", "+switch-master", NULL);
    step = ngx_rl_server_conf_step(cf, conf, "SUBSCRIBE", &command, len);

    return step ? NGX_OK : NGX_ERROR;
}


/*
 * A label is the name of a server in metrics and in the log, and the name
 * under which its breaker is found.  Servers that only differ in timeouts
 * share a label.  Servers with different passwords, or with and without TLS,
 * must not.
 */

static ngx_int_t
ngx_rl_server_conf_label(ngx_conf_t *cf, ngx_rl_server_conf_t *conf,
    ngx_uint_t named, ngx_array_t *confs)
{
    u_char                 *p, *end;
    ngx_uint_t              i, n;
    ngx_rl_server_conf_t  **other;

    p = ngx_pnalloc(cf->pool, conf->user.len + conf->redis.name.len
                    + 2 * NGX_INT_T_LEN + 3);
    if (p == NULL) {
        return NGX_ERROR;
    }

    ngx_rl_server_conf_node(conf, &conf->redis.name, p, &conf->label);
    p += conf->label.len;

    if (conf->database && !named) {
        p = ngx_sprintf(p, "/%i", conf->database);
    }

    end = p;
    other = confs->elts;
    n = 1;

    for (i = 0; i < confs->nelts; i++) {
        conf->label.len = p - conf->label.data;

        if (ngx_rl_str_equal(&conf->label, &other[i]->label)
            && (!ngx_rl_str_equal(&conf->password, &other[i]->password)
                || !ngx_rl_tls_conf_equal(&conf->tls, &other[i]->tls)
                || conf->sentinels != other[i]->sentinels))
        {
            p = ngx_sprintf(end, "#%ui", ++n);
        }
    }

    conf->label.len = p - conf->label.data;
    conf->hash = ngx_rl_hash(conf->label.data, conf->label.len);

    return NGX_OK;
}


/*
 * The probe tests whether the server can store limits.  It ends the handshake,
 * and is repeated while the breaker is open.
 */

static ngx_int_t
ngx_rl_server_conf_probe(ngx_conf_t *cf, ngx_rl_server_conf_t *conf)
{
    char                     *command;
    u_char                   *key, *p;
    ssize_t                   len;
    ngx_rl_handshake_step_t  *step;

    key = ngx_pnalloc(cf->pool, conf->prefix.len + sizeof(":{probe}"));
    if (key == NULL) {
        return NGX_ERROR;
    }

    p = ngx_sprintf(key, "%V:{probe}", &conf->prefix);

    len = ngx_rl_scripts_probe(&command, (char *) key, p - key);
    step = ngx_rl_server_conf_step(cf, conf, "a script that writes", &command,
                                   len);
    if (step == NULL) {
        return NGX_ERROR;
    }

    step->moved_ok = (conf->kind == NGX_RL_CLUSTER);
    conf->probe = step->command;

    return NGX_OK;
}


void
ngx_rl_server_conf_node(ngx_rl_server_conf_t *cluster,
    ngx_str_t *name, u_char *p, ngx_str_t *label)
{
    label->data = p;

    if (cluster->user.len) {
        p = ngx_sprintf(p, "%V@", &cluster->user);
    }

    p = ngx_cpymem(p, name->data, name->len);

    label->len = p - label->data;
}


ngx_uint_t
ngx_rl_server_conf_allows(ngx_rl_server_conf_t *conf, ngx_addr_t *addr)
{
    ngx_uint_t     i, k;
    ngx_array_t   *named;
    ngx_rl_url_t  *url;

    if (conf->networks == NULL
        || ngx_cidr_match(addr->sockaddr, conf->networks) == NGX_OK)
    {
        return 1;
    }

    named = conf->sentinels ? conf->sentinels->addresses : conf->seeds;
    url = named->elts;

    for (i = 0; i < named->nelts; i++) {
        for (k = 0; k < url[i].naddrs; k++) {

            if (ngx_rl_address_equal(&url[i].addrs[k], addr)) {
                return 1;
            }
        }
    }

    return 0;
}


ngx_uint_t
ngx_rl_server_conf_filter(ngx_rl_server_conf_t *conf, ngx_log_t *log,
    const char *who, ngx_str_t *name, ngx_addr_t *addrs, ngx_uint_t n)
{
    ngx_uint_t  i, allowed;

    for (i = 0, allowed = 0; i < n; i++) {

        if (ngx_rl_server_conf_allows(conf, &addrs[i])) {
            addrs[allowed++] = addrs[i];
            continue;
        }

        ngx_rl_count(conf->record->counters.events[NGX_RL_EVENT_REFUSED]);

        if (ngx_rl_record_may_log(conf->record, NGX_RL_CONFIG)) {
            ngx_log_error(NGX_LOG_ERR, log, 0,
                          "%s %V announces %V, which is not in "
                          "\"ratelimit_redis_networks\": the address is not "
                          "used", who,
                          name, &addrs[i].name);
        }
    }

    return allowed;
}


ngx_int_t
ngx_rl_server_confs_attach(ngx_rl_zone_t *zone,
    ngx_rl_stats_t *stats, ngx_array_t *confs)
{
    ngx_uint_t                i;
    ngx_rl_server_conf_t    **conf;
    ngx_rl_sentinels_conf_t  *sentinels;

    conf = confs->elts;

    for (i = 0; i < confs->nelts; i++) {
        conf[i]->record = ngx_rl_record(zone, stats, &conf[i]->label);
        if (conf[i]->record == NULL) {
            return NGX_ERROR;
        }

        conf[i]->record->place.role = conf[i]->role;

        /* new workers log their findings again */

        (void) ngx_rl_record_news(zone, conf[i]->record, 0);

        sentinels = conf[i]->sentinels;

        if (sentinels) {
            sentinels->conf->record = ngx_rl_record(zone, stats,
                                                    &sentinels->conf->label);
            if (sentinels->conf->record == NULL) {
                return NGX_ERROR;
            }

            sentinels->conf->record->place.role = sentinels->conf->role;
        }

        if (conf[i]->seeds
            && ngx_rl_server_conf_seeds(zone, stats, conf[i]) != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* seeds get their records before all other nodes */

static ngx_int_t
ngx_rl_server_conf_seeds(ngx_rl_zone_t *zone,
    ngx_rl_stats_t *stats, ngx_rl_server_conf_t *cluster)
{
    u_char           *p;
    ngx_str_t         label;
    ngx_uint_t        i;
    ngx_rl_url_t     *seed;
    ngx_rl_record_t  *record;

    seed = cluster->seeds->elts;

    for (i = 0; i < cluster->seeds->nelts; i++) {

        p = ngx_alloc(cluster->user.len + 1 + seed[i].name.len,
                      zone->shm_zone->shm.log);
        if (p == NULL) {
            return NGX_ERROR;
        }

        ngx_rl_server_conf_node(cluster, &seed[i].name, p, &label);
        record = ngx_rl_record(zone, stats, &label);

        ngx_free(p);

        if (record == NULL) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


void
ngx_rl_server_confs_use(ngx_rl_zone_t *zone, ngx_array_t *confs)
{
    ngx_uint_t              i;
    ngx_rl_server_conf_t  **conf;

    conf = confs->elts;

    for (i = 0; i < confs->nelts; i++) {
        ngx_rl_record_use(zone, conf[i]->record);

        if (conf[i]->sentinels) {
            ngx_rl_record_use(zone, conf[i]->sentinels->conf->record);
        }
    }
}


static ngx_int_t
ngx_rl_server_conf_handshake(ngx_conf_t *cf, ngx_rl_server_conf_t *conf)
{
    char                     *command;
    u_char                    database[NGX_INT_T_LEN + 1];
    size_t                    i;
    ssize_t                   len;
    ngx_rl_handshake_step_t  *step;

    if (ngx_rl_server_conf_auth(cf, conf) != NGX_OK) {
        return NGX_ERROR;
    }

    if (conf->database) {
        ngx_sprintf(database, "%i%Z", conf->database);

        len = ngx_rl_resp_command(&command, "SELECT", database, NULL);
        step = ngx_rl_server_conf_step(cf, conf, "SELECT", &command, len);
        if (step == NULL) {
            return NGX_ERROR;
        }
    }

    if (ngx_rl_server_conf_introduce(cf, conf) != NGX_OK) {
        return NGX_ERROR;
    }

    if (conf->kind == NGX_RL_SENTINEL) {
        len = ngx_rl_resp_command(&command, "ROLE", NULL);
        step = ngx_rl_server_conf_step(cf, conf, "ROLE", &command, len);
        if (step == NULL) {
            return NGX_ERROR;
        }

        /* a server that is not a master gets no writes */

        step->tag = NGX_RL_TAG_ROLE;
        step->wait = 1;
    }

    if (conf->kind == NGX_RL_CLUSTER) {
        len = ngx_rl_resp_command(&command, "CLUSTER", "SLOTS", NULL);
        step = ngx_rl_server_conf_step(cf, conf, "CLUSTER SLOTS", &command,
                                       len);
        if (step == NULL) {
            return NGX_ERROR;
        }

        step->tag = NGX_RL_TAG_SLOTS;
        step->large = 1;
    }

    for (i = 0; i < NGX_RL_SCRIPTS; i++) {
        len = ngx_rl_scripts_load(&command, i);
        step = ngx_rl_server_conf_step(cf, conf, "SCRIPT LOAD", &command, len);
        if (step == NULL) {
            return NGX_ERROR;
        }

        step->required = 0;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_rl_server_conf_auth(ngx_conf_t *cf, ngx_rl_server_conf_t *conf)
{
    char                     *command;
    ssize_t                   len;
    ngx_rl_handshake_step_t  *step;

    if (conf->password.len == 0) {
        return NGX_OK;
    }

    len = conf->user.len
          ? ngx_rl_resp_command(&command, "AUTH", conf->user.data,
                                conf->password.data, NULL)
          : ngx_rl_resp_command(&command, "AUTH", conf->password.data, NULL);

    step = ngx_rl_server_conf_step(cf, conf, "AUTH", &command, len);
    if (step == NULL) {
        return NGX_ERROR;
    }

    step->secret = 1;

    return NGX_OK;
}


static ngx_int_t
ngx_rl_server_conf_introduce(ngx_conf_t *cf, ngx_rl_server_conf_t *conf)
{
    char                     *command;
    u_char                    name[sizeof("nginx-ratelimit@")
                                   + NGX_MAXHOSTNAMELEN];
    ssize_t                   len;
    ngx_rl_handshake_step_t  *step;

    ngx_snprintf(name, sizeof(name), "nginx-ratelimit@%V%Z",
                 &cf->cycle->hostname);

    len = ngx_rl_resp_command(&command, "CLIENT", "SETNAME", name, NULL);
    step = ngx_rl_server_conf_step(cf, conf, "CLIENT SETNAME", &command, len);
    if (step == NULL) {
        return NGX_ERROR;
    }

    step->required = 0;

    return NGX_OK;
}


/*
 * Adds a command to the handshake and releases it.  The server is unusable
 * without it, unless the caller changes that in the step.  NULL: no memory for
 * the step or, with a "len" below 0, for the command.
 */

static ngx_rl_handshake_step_t *
ngx_rl_server_conf_step(ngx_conf_t *cf, ngx_rl_server_conf_t *conf, char *name,
    char **command, ssize_t len)
{
    u_char                   *data;
    ngx_rl_handshake_step_t  *step;

    if (len < 0) {
        return NULL;
    }

    step = NULL;
    data = ngx_pnalloc(cf->pool, len);

    if (data) {
        ngx_memcpy(data, *command, len);
        step = ngx_array_push(&conf->redis.handshake);
    }

    ngx_rl_resp_free(*command);

    if (step) {
        ngx_memzero(step, sizeof(ngx_rl_handshake_step_t));

        step->command.data = data;
        step->command.len = len;
        step->name.data = (u_char *) name;
        step->name.len = ngx_strlen(name);
        step->required = 1;
    }

    return step;
}
