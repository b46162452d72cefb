
#include "topology/ngx_rl_shards.h"
#include "core/ngx_rl_core.h"
#include "pure/ngx_rl_hash.h"


static ngx_int_t ngx_rl_shards_add(
    ngx_rl_shards_t *shards, ngx_rl_server_conf_t *conf, ngx_str_t *name);
static ngx_int_t ngx_rl_shards_cluster(ngx_conf_t *cf,
    ngx_rl_shards_t *shards, ngx_rl_shards_conf_t *shards_conf,
    ngx_rl_server_defaults_t *defaults, ngx_array_t *confs);
static ngx_int_t ngx_rl_shards_sentinel(ngx_conf_t *cf,
    ngx_rl_shards_t *shards, ngx_rl_shards_conf_t *shards_conf,
    ngx_rl_server_defaults_t *defaults, ngx_array_t *confs);
static ngx_int_t ngx_rl_shards_join(ngx_conf_t *cf,
    const char *prefix, ngx_array_t *addresses, ngx_str_t *name);


ngx_rl_shards_t *
ngx_rl_shards_create(ngx_conf_t *cf, ngx_rl_shards_conf_t *shards_conf,
    ngx_rl_server_defaults_t *defaults, ngx_array_t *confs)
{
    ngx_int_t              rc;
    ngx_uint_t             i, n;
    ngx_rl_url_t          *url;
    ngx_rl_shards_t       *shards;
    ngx_rl_server_conf_t  *conf;

    shards = ngx_pcalloc(cf->pool, sizeof(ngx_rl_shards_t));
    if (shards == NULL) {
        return NULL;
    }

    n = ngx_max(shards_conf->addresses.nelts, shards_conf->masters.nelts);

    shards->kind = shards_conf->kind;
    shards->hash = shards_conf->hash;
    shards->confs = ngx_palloc(cf->pool, n * sizeof(ngx_rl_server_conf_t *));
    shards->hashes = ngx_palloc(cf->pool, n * sizeof(uint64_t));

    if (shards->confs == NULL || shards->hashes == NULL) {
        return NULL;
    }

    if (shards_conf->kind != NGX_RL_SHARDS) {

        rc = (shards_conf->kind == NGX_RL_CLUSTER)
             ? ngx_rl_shards_cluster(cf, shards, shards_conf, defaults, confs)
             : ngx_rl_shards_sentinel(cf, shards, shards_conf, defaults, confs);

        return (rc == NGX_OK) ? shards : NULL;
    }

    url = shards_conf->addresses.elts;

    for (i = 0; i < shards_conf->addresses.nelts; i++) {
        conf = ngx_rl_server_conf_create(cf, &url[i], defaults, NULL, NULL,
                                         confs);

        if (ngx_rl_shards_add(shards, conf, &url[i].name) != NGX_OK) {
            return NULL;
        }
    }

    return shards;
}


static ngx_int_t
ngx_rl_shards_add(ngx_rl_shards_t *shards,
    ngx_rl_server_conf_t *conf, ngx_str_t *name)
{
    if (conf == NULL) {
        return NGX_ERROR;
    }

    shards->hashes[shards->n] = ngx_rl_hash(name->data, name->len);
    shards->confs[shards->n++] = conf;

    return NGX_OK;
}


static ngx_int_t
ngx_rl_shards_cluster(ngx_conf_t *cf,
    ngx_rl_shards_t *shards, ngx_rl_shards_conf_t *shards_conf,
    ngx_rl_server_defaults_t *defaults, ngx_array_t *confs)
{
    ngx_uint_t             i;
    ngx_rl_url_t           all, *seed;
    ngx_rl_server_conf_t  *conf;

    /* what the nodes share; a password is used for all of them */

    ngx_memzero(&all, sizeof(ngx_rl_url_t));

    seed = shards_conf->addresses.elts;
    all.database = 0;

    for (i = 0; i < shards_conf->addresses.nelts; i++) {

        if (seed[i].password.data && all.password.data == NULL) {
            all.user = seed[i].user;
            all.password = seed[i].password;

        } else if (seed[i].password.data
                   && (!ngx_rl_str_equal(&seed[i].user, &all.user)
                       || !ngx_rl_str_equal(&seed[i].password, &all.password)))
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"%V\" in \"ratelimit_shards cluster\" has "
                               "another user or password than an earlier node: "
                               "write the same for all nodes of a cluster",
                               &seed[i].name);
            return NGX_ERROR;
        }

        all.tls |= seed[i].tls;
    }

    if (ngx_rl_shards_join(cf, "cluster=", &shards_conf->addresses, &all.name)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    conf = ngx_rl_server_conf_create(cf, &all, defaults, NULL,
                                     &shards_conf->addresses, confs);

    return ngx_rl_shards_add(shards, conf, &all.name);
}


static ngx_int_t
ngx_rl_shards_sentinel(ngx_conf_t *cf,
    ngx_rl_shards_t *shards, ngx_rl_shards_conf_t *shards_conf,
    ngx_rl_server_defaults_t *defaults, ngx_array_t *confs)
{
    ngx_str_t                *name, label;
    ngx_uint_t                i;
    ngx_array_t               urls;
    ngx_rl_url_t              master, *url;
    ngx_rl_server_conf_t     *conf, **pp;
    ngx_rl_sentinels_conf_t  *sentinels;

    sentinels = ngx_pcalloc(cf->pool, sizeof(ngx_rl_sentinels_conf_t));
    if (sentinels == NULL) {
        return NGX_ERROR;
    }

    if (ngx_array_init(&sentinels->masters, cf->pool,
                       shards_conf->masters.nelts,
                       sizeof(ngx_rl_server_conf_t *))
        != NGX_OK
        || ngx_array_init(&urls, cf->pool, shards_conf->masters.nelts,
                          sizeof(ngx_rl_url_t))
        != NGX_OK
        || ngx_rl_shards_join(cf, "", &shards_conf->addresses, &sentinels->name)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    sentinels->addresses = &shards_conf->addresses;
    sentinels->user = defaults->sentinel_user;
    sentinels->password = defaults->sentinel_password;

    ngx_memzero(&master, sizeof(ngx_rl_url_t));

    master.database = NGX_CONF_UNSET;
    name = shards_conf->masters.elts;
    url = shards_conf->addresses.elts;

    /* if one of them uses TLS, none is contacted without */

    for (i = 0; i < shards_conf->addresses.nelts; i++) {
        master.tls |= url[i].tls;
    }

    for (i = 0; i < shards_conf->masters.nelts; i++) {
        master.name = name[i];

        conf = ngx_rl_server_conf_create(cf, &master, defaults, sentinels, NULL,
                                         confs);

        if (ngx_rl_shards_add(shards, conf, &name[i]) != NGX_OK) {
            return NGX_ERROR;
        }

        /* another set of shards may have it: its sentinels serve both */

        if (conf->sentinels == sentinels) {

            pp = ngx_array_push(&sentinels->masters);
            url = ngx_array_push(&urls);

            if (pp == NULL || url == NULL) {
                return NGX_ERROR;
            }

            *pp = conf;
            *url = master;
        }
    }

    if (urls.nelts == 0) {
        return NGX_OK;
    }

    if (ngx_rl_shards_join(cf, "sentinel=", &urls, &label) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_rl_server_conf_sentinel(cf, sentinels, &label, defaults);
}


/* one name for several addresses */

static ngx_int_t
ngx_rl_shards_join(ngx_conf_t *cf, const char *prefix,
    ngx_array_t *addresses, ngx_str_t *name)
{
    u_char        *p;
    size_t         len;
    ngx_uint_t     i;
    ngx_rl_url_t  *url;

    url = addresses->elts;
    len = ngx_strlen(prefix);

    for (i = 0; i < addresses->nelts; i++) {
        len += url[i].name.len + 1;
    }

    p = ngx_pnalloc(cf->pool, len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    name->data = p;
    p = ngx_cpymem(p, prefix, ngx_strlen(prefix));

    for (i = 0; i < addresses->nelts; i++) {
        p = ngx_cpymem(p, url[i].name.data, url[i].name.len);
        *p++ = ',';
    }

    name->len = p - 1 - name->data;

    return NGX_OK;
}


ngx_rl_server_conf_t *
ngx_rl_shards_find(ngx_rl_shards_t *shards, ngx_str_t *key)
{
    size_t    i;
    uint64_t  hash;

    if (shards->n == 1) {
        return shards->confs[0];
    }

    if (shards->hash == NGX_RL_HASH_MODULO) {
        i = ngx_rl_hash32(key->data, key->len) % shards->n;

    } else {
        hash = ngx_rl_hash(key->data, key->len);
        i = ngx_rl_hash_consistent(hash, shards->hashes, shards->n);
    }

    return shards->confs[i];
}
