
#include "conf/ngx_rl_shards_conf.h"
#include "conf/ngx_rl_statement.h"
#include "core/ngx_rl_core.h"


#define NGX_RL_REDIS_PORT     6379
#define NGX_RL_SENTINEL_PORT  26379


static char *ngx_rl_url_parse(ngx_conf_t *cf,
    ngx_str_t *word, ngx_rl_url_t *url, in_port_t port);
static char *ngx_rl_url_split(ngx_conf_t *cf, ngx_str_t *word,
    ngx_rl_url_t *url);
static char *ngx_rl_url_credentials(ngx_conf_t *cf,
    ngx_rl_url_t *url, u_char *p, u_char *at);
static char *ngx_rl_url_host(ngx_conf_t *cf, ngx_str_t *url);
static char *ngx_rl_url_single(ngx_conf_t *cf, u_char *p, u_char *last);
static char *ngx_rl_url_no_password(ngx_conf_t *cf, u_char *p, u_char *last);
static ngx_uint_t ngx_rl_url_plain(u_char *p, u_char *last);
static char *ngx_rl_url_decode(ngx_conf_t *cf,
    ngx_str_t *text, u_char *start, u_char *end);
static char *ngx_rl_shards_conf_hash(ngx_conf_t *cf,
    ngx_rl_shards_conf_t *shards_conf, ngx_str_t *word);
static char *ngx_rl_shards_conf_param(ngx_conf_t *cf, ngx_str_t *word);
static char *ngx_rl_shards_conf_masters(ngx_conf_t *cf,
    ngx_array_t *masters, ngx_str_t *word);
static char *ngx_rl_shards_conf_fit(ngx_conf_t *cf,
    ngx_rl_shards_conf_t *shards_conf, ngx_rl_url_t *url);


char *
ngx_rl_shards_conf_parse(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    in_port_t              port;
    ngx_str_t             *value;
    ngx_uint_t             i, j;
    ngx_rl_url_t          *url, *other;
    ngx_rl_shards_conf_t  *shards_conf, **shards_confp;

    shards_confp = (ngx_rl_shards_conf_t **) ((u_char *) conf + cmd->offset);

    if (*shards_confp) {
        return "is duplicate";
    }

    value = cf->args->elts;

    shards_conf = ngx_pcalloc(cf->pool, sizeof(ngx_rl_shards_conf_t));

    if (shards_conf == NULL
        || ngx_array_init(&shards_conf->addresses, cf->pool, cf->args->nelts,
                          sizeof(ngx_rl_url_t))
        != NGX_OK
        || ngx_array_init(&shards_conf->masters, cf->pool, 1, sizeof(ngx_str_t))
        != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    *shards_confp = shards_conf;
    shards_conf->hash = NGX_RL_HASH_CONSISTENT;

    port = NGX_RL_REDIS_PORT;
    i = 1;

    if (ngx_strcmp(value[1].data, "cluster") == 0) {
        shards_conf->kind = NGX_RL_CLUSTER;
        i = 2;

    } else if (ngx_strncmp(value[1].data, "sentinel=", 9) == 0
               || ngx_strcmp(value[1].data, "sentinel") == 0)
    {
        shards_conf->kind = NGX_RL_SENTINEL;
        port = NGX_RL_SENTINEL_PORT;
        i = 2;

        if (ngx_rl_shards_conf_masters(cf, &shards_conf->masters, &value[1])
            != NGX_CONF_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    for ( /* void */ ; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "hash=", 5) == 0) {

            if (ngx_rl_shards_conf_hash(cf, shards_conf, &value[i])
                != NGX_CONF_OK)
            {
                return NGX_CONF_ERROR;
            }

            continue;
        }

        if (ngx_rl_shards_conf_param(cf, &value[i]) != NGX_CONF_OK) {
            return NGX_CONF_ERROR;
        }

        url = ngx_array_push(&shards_conf->addresses);

        if (url == NULL
            || ngx_rl_url_parse(cf, &value[i], url, port) != NGX_CONF_OK
            || ngx_rl_shards_conf_fit(cf, shards_conf, url) != NGX_CONF_OK)
        {
            return NGX_CONF_ERROR;
        }

        other = shards_conf->addresses.elts;

        for (j = 0; j + 1 < shards_conf->addresses.nelts; j++) {

            if (ngx_rl_str_equal(&other[j].name, &url->name)) {
                return ngx_rl_conf_error(cf, "duplicate shard \"%V\" in \"%V\"",
                                         &url->name, &value[0]);
            }
        }
    }

    if (shards_conf->addresses.nelts == 0) {
        return ngx_rl_conf_error(cf, "no address in \"%V\": add one, for "
                                 "example \"127.0.0.1:6379\"", &value[0]);
    }

    return NGX_CONF_OK;
}


static char *
ngx_rl_shards_conf_hash(ngx_conf_t *cf,
    ngx_rl_shards_conf_t *shards_conf, ngx_str_t *word)
{
    if (ngx_strcmp(word->data, "hash=consistent") == 0) {
        shards_conf->hash = NGX_RL_HASH_CONSISTENT;

    } else if (ngx_strcmp(word->data, "hash=modulo") == 0) {
        shards_conf->hash = NGX_RL_HASH_MODULO;

    } else {
        return ngx_rl_conf_error(cf, "invalid value \"%V\" in "
                                 "\"ratelimit_shards\": it must be "
                                 "\"hash=consistent\" or \"hash=modulo\"",
                                 word);
    }

    if (shards_conf->kind == NGX_RL_CLUSTER) {
        return ngx_rl_conf_error(cf, "\"%V\" in \"ratelimit_shards\" has no "
                                 "meaning for a cluster, which distributes "
                                 "keys itself: remove it", word);
    }

    return NGX_CONF_OK;
}


/*
 * An unknown parameter rather than an address, because a host has no "=".  Its
 * value may be a password, so it is not shown.
 */

static char *
ngx_rl_shards_conf_param(ngx_conf_t *cf, ngx_str_t *word)
{
    u_char  *p, *last;

    last = word->data + word->len;

    for (p = word->data; p < last && *p != '='; p++) {
        if (!(*p >= 'a' && *p <= 'z') && *p != '_' && *p != '-') {
            return NGX_CONF_OK;
        }
    }

    if (p == last || p == word->data) {
        return NGX_CONF_OK;
    }

    p++;

    if (p - word->data == 9 && ngx_strncmp(word->data, "sentinel=", 9) == 0) {
        return ngx_rl_conf_error(cf, "\"%V\" must be the first parameter of "
                                 "\"ratelimit_shards\"", word);
    }

    return ngx_rl_conf_error(cf, "invalid parameter \"%*s\" in "
                             "\"ratelimit_shards\": %sit must be an address, "
                             "\"hash=consistent\" or \"hash=modulo\"",
                             (size_t) (p - word->data), word->data,
                             ngx_strncmp(word->data, "weight=", 7) == 0
                             ? "shards have no weights, each gets an "
                             "equal part of the keys; " : "");
}


/* sentinel=NAME[,NAME...] */

static char *
ngx_rl_shards_conf_masters(ngx_conf_t *cf, ngx_array_t *masters,
    ngx_str_t *word)
{
    u_char     *p, *last;
    ngx_str_t  *name, *other;
    ngx_uint_t  i;

    p = word->data + ngx_min(word->len, sizeof("sentinel=") - 1);
    last = word->data + word->len;

    for ( ;; ) {
        name = ngx_array_push(masters);
        if (name == NULL) {
            return NGX_CONF_ERROR;
        }

        name->len = 0;

        while (p + name->len < last && p[name->len] != ',') {

            if (p[name->len] <= ' ' || p[name->len] >= 0x7f) {
                return ngx_rl_conf_error(cf, "invalid master name in \"%V\" of "
                                         "\"ratelimit_shards\": it must be "
                                         "printable ASCII without spaces",
                                         word);
            }

            name->len++;
        }

        if (name->len == 0) {
            return ngx_rl_conf_error(cf, "no master name in \"%V\" of "
                                     "\"ratelimit_shards\": write "
                                     "sentinel=NAME with the name that the "
                                     "sentinels use for it", word);
        }

        name->data = ngx_pnalloc(cf->pool, name->len + 1);
        if (name->data == NULL) {
            return NGX_CONF_ERROR;
        }

        *ngx_cpymem(name->data, p, name->len) = '\0';

        other = masters->elts;

        for (i = 0; i + 1 < masters->nelts; i++) {

            if (ngx_rl_str_equal(&other[i], name)) {
                return ngx_rl_conf_error(cf, "duplicate master \"%V\" in "
                                         "\"%V\" of \"ratelimit_shards\"", name,
                                         word);
            }
        }

        p += name->len;

        if (p == last) {
            return NGX_CONF_OK;
        }

        p++;
    }
}


/* clusters and sentinels do not accept every kind of address */

static char *
ngx_rl_shards_conf_fit(ngx_conf_t *cf,
    ngx_rl_shards_conf_t *shards_conf, ngx_rl_url_t *url)
{
    const char  *err;

    if (shards_conf->kind == NGX_RL_SHARDS) {
        return NGX_CONF_OK;
    }

    err = NULL;

    if (url->port == 0) {
        err = "a unix socket can't be a cluster node or a sentinel: write "
              "host:port";

    } else if (shards_conf->kind == NGX_RL_CLUSTER) {

        if (url->database > 0) {
            err = "a cluster has only database 0: remove \"/\" and the number";
        }

    } else if (url->password.data) {
        err = "the address of a sentinel has no password: set "
              "\"ratelimit_sentinel_password\" for the sentinels and "
              "\"ratelimit_redis_password\" for the masters";

    } else if (url->database != NGX_CONF_UNSET) {
        err = "a sentinel has no databases: write "
              "\"ratelimit_redis_database\" for the masters";
    }

    if (err == NULL) {
        return NGX_CONF_OK;
    }

    return ngx_rl_conf_error(cf, "invalid address \"%V\" in "
                             "\"ratelimit_shards\": %s", &url->name, err);
}


static char *
ngx_rl_url_parse(ngx_conf_t *cf, ngx_str_t *word,
    ngx_rl_url_t *url, in_port_t port)
{
    u_char    *p;
    ngx_url_t  u;

    ngx_memzero(url, sizeof(ngx_rl_url_t));

    url->url = *word;
    url->database = NGX_CONF_UNSET;

    if (ngx_rl_url_split(cf, word, url) != NGX_CONF_OK
        || ngx_rl_url_host(cf, &url->url) != NGX_CONF_OK)
    {
        return NGX_CONF_ERROR;
    }

    ngx_memzero(&u, sizeof(ngx_url_t));

    u.url = url->url;
    u.default_port = port;

    if (ngx_parse_url(cf->pool, &u) != NGX_OK) {

        /* the part without credentials */

        if (u.err) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "%s in \"%V\" of \"ratelimit_shards\"",
                               u.err, &u.url);
        }

        return NGX_CONF_ERROR;
    }

    url->addrs = u.addrs;
    url->naddrs = u.naddrs;

    if (u.family == AF_UNIX) {
        url->name = url->url;
        return NGX_CONF_OK;
    }

    url->host = u.host;
    url->port = u.port;

    p = ngx_pnalloc(cf->pool, u.host.len + sizeof(":65535/65535"));
    if (p == NULL) {
        return NGX_CONF_ERROR;
    }

    url->name.data = p;

    p = ngx_sprintf(p, "%V:%ui", &u.host, (ngx_uint_t) u.port);

    if (url->database > 0) {
        p = ngx_sprintf(p, "/%i", url->database);
    }

    url->name.len = p - url->name.data;

    ngx_strlow(url->name.data, url->name.data, url->name.len);

    return NGX_CONF_OK;
}


/* nginx would report an invalid port, or a host that was not found */

static char *
ngx_rl_url_host(ngx_conf_t *cf, ngx_str_t *url)
{
    u_char     *p, *last, *colon;
    u_char      addr[16];
    ngx_uint_t  n;

    last = url->data + url->len;

    if (url->len == 0 || *url->data == '['
        || (url->len >= 5
            && ngx_strncasecmp(url->data, (u_char *) "unix:", 5) == 0))
    {
        return NGX_CONF_OK;
    }

    if (ngx_rl_url_single(cf, url->data, last) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    colon = NULL;
    n = 0;

    for (p = url->data; p < last; p++) {
        if (*p == ':') {
            colon = p;
            n++;
        }
    }

    if (n < 2) {
        return NGX_CONF_OK;
    }

    /* the last number is a port if it can be one */

    if (ngx_atoi(colon + 1, last - colon - 1) == NGX_ERROR
        || ngx_inet6_addr(url->data, colon - url->data, addr) != NGX_OK)
    {
        colon = last;
    }

    return ngx_rl_conf_error(cf, "invalid address \"%V\" in "
                             "\"ratelimit_shards\": an IPv6 address needs "
                             "brackets, write \"[%*s]%*s\"", url,
                             (size_t) (colon - url->data), url->data,
                             (size_t) (last - colon), colon);
}


static char *
ngx_rl_url_single(ngx_conf_t *cf, u_char *p, u_char *last)
{
    if (ngx_strlchr(p, last, ',') == NULL) {
        return NGX_CONF_OK;
    }

    return ngx_rl_conf_error(cf, "invalid address \"%*s\" in "
                             "\"ratelimit_shards\": addresses are separated by "
                             "spaces, write \"host1:port host2:port\"",
                             (size_t) (last - p), p);
}


/* redis[s]://[user[:password]@]host[:port][/database] */

static char *
ngx_rl_url_split(ngx_conf_t *cf, ngx_str_t *word, ngx_rl_url_t *url)
{
    u_char  *p, *at, *host, *last;

    if (ngx_strncasecmp(word->data, (u_char *) "unix:", 5) == 0) {
        return NGX_CONF_OK;
    }

    if (ngx_strncasecmp(word->data, (u_char *) "rediss://", 9) == 0) {
        host = word->data + 9;
        url->tls = 1;

    } else if (ngx_strncasecmp(word->data, (u_char *) "redis://", 8) == 0) {
        host = word->data + 8;

    } else {
        if (ngx_strstr(word->data, "://")) {
            return ngx_rl_conf_error(cf, "an address in \"ratelimit_shards\" "
                                     "has an unknown scheme: write "
                                     "redis://user:password@host, or rediss:// "
                                     "for TLS");
        }

        return ngx_rl_url_no_password(cf, word->data, word->data + word->len);
    }

    last = word->data + word->len;

    at = NULL;

    for (p = host; p < last && *p != '/'; p++) {
        if (*p == '@') {
            at = p;
        }
    }

    if (at == NULL && !ngx_rl_url_plain(host, p)
        && ngx_strlchr(p, last, '@') == NULL)
    {
        /* the text after the colon may be a password */

        return ngx_rl_conf_error(cf, "a URL in \"ratelimit_shards\" has no "
                                 "host, or no port after \":\": write "
                                 "redis://host:port, or "
                                 "redis://user:password@host");
    }

    url->url.data = at ? at + 1 : host;
    url->url.len = p - url->url.data;

    if (ngx_rl_url_no_password(cf, url->url.data, last) != NGX_CONF_OK
        || ngx_rl_url_single(cf, url->url.data, p) != NGX_CONF_OK)
    {
        return NGX_CONF_ERROR;
    }

    if (p + 1 < last) {
        url->database = ngx_atoi(p + 1, last - p - 1);

        if (url->database == NGX_ERROR
            || url->database > NGX_RL_REDIS_DATABASES)
        {
            return ngx_rl_conf_error(cf, "invalid database \"%*s\" in "
                                     "\"ratelimit_shards\": it must be a "
                                     "number from 0 to %d",
                                     at || ngx_strlchr(host, p, ':') == NULL
                                     ? (size_t) (last - p - 1) : 0, p + 1,
                                     NGX_RL_REDIS_DATABASES);
        }
    }

    return at ? ngx_rl_url_credentials(cf, url, host, at) : NGX_CONF_OK;
}


/* user:password, up to the "@" */

static char *
ngx_rl_url_credentials(ngx_conf_t *cf, ngx_rl_url_t *url, u_char *p, u_char *at)
{
    u_char  *colon;

    colon = ngx_strlchr(p, at, ':');

    if (colon == NULL) {
        return ngx_rl_conf_error(cf, "no password before \"@%V\" in "
                                 "\"ratelimit_shards\": write "
                                 "redis://user:password@host, or "
                                 "redis://:password@host for the default user",
                                 &url->url);
    }

    return ngx_rl_url_decode(cf, &url->user, p, colon) == NGX_CONF_OK
           ? ngx_rl_url_decode(cf, &url->password, colon + 1, at)
           : NGX_CONF_ERROR;
}


/*
 * A misplaced "@" may follow a password, and other programs accept passwords
 * as parameters ("?password=" or ",password=").  So the text is not shown, and
 * is not passed on to nginx, which would show it.
 */

static char *
ngx_rl_url_no_password(ngx_conf_t *cf, u_char *p, u_char *last)
{
    if (ngx_strlchr(p, last, '@')) {
        return ngx_rl_conf_error(cf, "an address with \"@\" in "
                                 "\"ratelimit_shards\" is not a URL: write "
                                 "redis://user:password@host, with \"%%2F\" "
                                 "for \"/\" in a password");
    }

    if (ngx_strlchr(p, last, '?') || ngx_strlchr(p, last, '=')) {
        return ngx_rl_conf_error(cf, "an address in \"ratelimit_shards\" has "
                                 "parameters: remove them, and write "
                                 "redis://user:password@host or set "
                                 "\"ratelimit_redis_password\"");
    }

    return NGX_CONF_OK;
}


/* host, host:port, or an IPv6 address with or without brackets */

static ngx_uint_t
ngx_rl_url_plain(u_char *p, u_char *last)
{
    u_char      c, *colon;
    ngx_uint_t  colons;

    colon = ngx_strlchr(p, last, ':');

    if (colon == NULL || *p == '[') {
        return 1;
    }

    if (colon > p && colon + 1 < last
        && ngx_atoi(colon + 1, last - colon - 1) != NGX_ERROR)
    {
        return 1;
    }

    colons = 0;

    for ( /* void */ ; p < last; p++) {
        c = (u_char) (*p | 0x20);

        if (*p == ':') {
            colons++;

        } else if (*p != '.' && (*p < '0' || *p > '9') && (c < 'a' || c > 'f'))
        {
            return 0;
        }
    }

    return colons > 1;
}


static char *
ngx_rl_url_decode(ngx_conf_t *cf, ngx_str_t *text, u_char *start, u_char *end)
{
    u_char  *dst;

    text->data = ngx_pcalloc(cf->pool, end - start + 1);
    if (text->data == NULL) {
        return NGX_CONF_ERROR;
    }

    dst = text->data;
    ngx_unescape_uri(&dst, &start, end - start, 0);
    text->len = dst - text->data;

    return NGX_CONF_OK;
}
