
/*
 * TLS on connections to Redis.
 *
 * nginx's SSL layer does the work, as it does for upstreams.  The handshake
 * replaces the event handlers of the connection until it is over.  After that,
 * c->recv and c->send encrypt.  As with upstreams, a handshake succeeds
 * whatever the certificate says.  Its owner must check the certificate before
 * it sends anything.
 *
 * The SSL layer logs each failure itself and would fill the error log while a
 * server is unavailable.  So such a connection has a log of its own.  This log
 * keeps the last text, so that the owner can log it once, and only passes on
 * debug lines and broken invariants.  The log also leads from a connection to
 * its holder of sessions.
 *
 * A session is stored whenever the server offers one.  With TLS 1.3 this
 * happens after the handshake, possibly several times.  It is dropped if the
 * certificate turns out to be wrong.
 */


#include "redis/ngx_rl_tls.h"


#if (NGX_SSL)


struct ngx_rl_tls_s {
    ngx_ssl_t          ssl;
    ngx_rl_tls_conf_t  conf;
};


static ngx_int_t ngx_rl_tls_verification(ngx_conf_t *cf, ngx_rl_tls_t *tls);
static ngx_int_t ngx_rl_tls_certificate(ngx_conf_t *cf, ngx_rl_tls_t *tls);
static void ngx_rl_tls_wrong(ngx_conf_t *cf, char *directive, ngx_str_t *value);
static ngx_uint_t ngx_rl_tls_name(ngx_rl_tls_t *tls,
    ngx_str_t *host, ngx_str_t *name);
static void ngx_rl_tls_save(ngx_connection_t *c);
static void ngx_rl_tls_log_writer(ngx_log_t *log, ngx_uint_t level,
    u_char *buf, size_t len);
static void ngx_rl_tls_log_use(ngx_connection_t *c, ngx_log_t *log);


ngx_array_t *
ngx_rl_tls_passwords(ngx_conf_t *cf, ngx_str_t *file)
{
    return ngx_ssl_read_password_file(cf, file);
}


ngx_rl_tls_t *
ngx_rl_tls_create(ngx_conf_t *cf, ngx_rl_tls_conf_t *conf)
{
    ngx_uint_t           protocols;
    ngx_rl_tls_t        *tls;
    ngx_pool_cleanup_t  *cln;

    tls = ngx_pcalloc(cf->pool, sizeof(ngx_rl_tls_t));
    if (tls == NULL) {
        return NULL;
    }

    tls->conf = *conf;
    tls->ssl.log = cf->log;

    protocols = ((conf->protocols & NGX_RL_TLS_V1) ? NGX_SSL_TLSv1 : 0)
                | ((conf->protocols & NGX_RL_TLS_V1_1) ? NGX_SSL_TLSv1_1 : 0)
                | ((conf->protocols & NGX_RL_TLS_V1_2) ? NGX_SSL_TLSv1_2 : 0)
                | ((conf->protocols & NGX_RL_TLS_V1_3) ? NGX_SSL_TLSv1_3 : 0);

    if (ngx_ssl_create(&tls->ssl, protocols, NULL) != NGX_OK) {
        return NULL;
    }

    cln = ngx_pool_cleanup_add(cf->pool, 0);
    if (cln == NULL) {
        ngx_ssl_cleanup_ctx(&tls->ssl);
        return NULL;
    }

    cln->handler = ngx_ssl_cleanup_ctx;
    cln->data = &tls->ssl;

    /* unwritten data may move when more is added */

    SSL_CTX_set_mode(tls->ssl.ctx, SSL_MODE_ENABLE_PARTIAL_WRITE
                     |SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);

    if (ngx_ssl_ciphers(cf, &tls->ssl, &tls->conf.ciphers, 0) != NGX_OK) {
        ngx_rl_tls_wrong(cf, "ciphers", &tls->conf.ciphers);
        return NULL;
    }

    if (ngx_rl_tls_certificate(cf, tls) != NGX_OK
        || ngx_rl_tls_verification(cf, tls) != NGX_OK
        || ngx_ssl_client_session_cache(cf, &tls->ssl, conf->session_reuse)
        != NGX_OK)
    {
        return NULL;
    }

    return tls;
}


static ngx_int_t
ngx_rl_tls_certificate(ngx_conf_t *cf, ngx_rl_tls_t *tls)
{
    ngx_rl_tls_conf_t  *conf;

    conf = &tls->conf;

    if (conf->certificate.len == 0 && conf->certificate_key.len == 0) {
        return NGX_OK;
    }

    if (conf->certificate_key.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"ratelimit_redis_ssl_certificate\" \"%V\" needs "
                           "\"ratelimit_redis_ssl_certificate_key\"",
                           &conf->certificate);
        return NGX_ERROR;
    }

    if (conf->certificate.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"ratelimit_redis_ssl_certificate_key\" \"%V\" "
                           "needs \"ratelimit_redis_ssl_certificate\"",
                           &conf->certificate_key);
        return NGX_ERROR;
    }

    if (ngx_ssl_certificate(cf, &tls->ssl, &conf->certificate,
                            &conf->certificate_key, conf->passwords)
        != NGX_OK)
    {
        ngx_rl_tls_wrong(cf, "certificate", &conf->certificate);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_rl_tls_verification(ngx_conf_t *cf, ngx_rl_tls_t *tls)
{
    ngx_rl_tls_conf_t  *conf;

    conf = &tls->conf;

    if (!conf->verify) {
        return NGX_OK;
    }

    if (ngx_ssl_trusted_certificate(cf, &tls->ssl, &conf->trusted_certificate,
                                    conf->verify_depth)
        != NGX_OK)
    {
        ngx_rl_tls_wrong(cf, "trusted_certificate", &conf->trusted_certificate);
        return NGX_ERROR;
    }

    if (conf->trusted_certificate.len == 0) {

        if (SSL_CTX_set_default_verify_paths(tls->ssl.ctx) == 0) {
            ngx_ssl_error(NGX_LOG_EMERG, cf->log, 0,
                          "the system's certificates can't be loaded: "
                          "set \"ratelimit_redis_ssl_trusted_certificate\"");
            return NGX_ERROR;
        }

        /* missing files may leave errors in OpenSSL's queue */

        ERR_clear_error();
    }

    if (ngx_ssl_crl(cf, &tls->ssl, &conf->crl) != NGX_OK) {
        ngx_rl_tls_wrong(cf, "crl", &conf->crl);
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* nginx has logged the error, but not the directive */

static void
ngx_rl_tls_wrong(ngx_conf_t *cf, char *directive, ngx_str_t *value)
{
    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid value \"%V\" in \"ratelimit_redis_ssl_%s\"%s",
                       value, directive,
                       ngx_strcmp(directive, "certificate") == 0
                       ? ", or \"ratelimit_redis_ssl_certificate_key\"" : "");
}


ngx_int_t
ngx_rl_tls_start(ngx_rl_tls_t *tls, ngx_connection_t *c, ngx_str_t *host,
    ngx_rl_tls_session_t *session, void (*handler)(ngx_connection_t *c))
{
    u_char     *sni;
    uint32_t    hash;
    ngx_int_t   rc;
    ngx_str_t   name;
    ngx_uint_t  address;

    session->parent = c->log;
    session->len = 0;

    ngx_memzero(&session->log, sizeof(ngx_log_t));

    session->log.log_level = ngx_max(c->log->log_level, NGX_LOG_INFO);
    session->log.writer = ngx_rl_tls_log_writer;
    session->log.wdata = session;

    ngx_rl_tls_log_use(c, &session->log);

    /* a connection to a peer has no pool, but SSL needs one */

    c->pool = ngx_create_pool(NGX_MIN_POOL_SIZE, c->log);
    if (c->pool == NULL) {
        return NGX_ERROR;
    }

    if (ngx_ssl_create_connection(&tls->ssl, c, NGX_SSL_CLIENT) != NGX_OK) {
        return NGX_ERROR;
    }

    address = ngx_rl_tls_name(tls, host, &name);

    if (tls->conf.server_name && !address && name.len) {
        sni = ngx_pnalloc(c->pool, name.len + 1);
        if (sni == NULL) {
            return NGX_ERROR;
        }

        ngx_cpystrn(sni, name.data, name.len + 1);

        if (SSL_set_tlsext_host_name(c->ssl->connection, (char *) sni) == 0) {
            ngx_ssl_error(NGX_LOG_ERR, c->log, 0,
                          "SSL_set_tlsext_host_name(\"%V\") failed", &name);
            return NGX_ERROR;
        }
    }

    if (tls->conf.session_reuse) {
        c->ssl->save_session = ngx_rl_tls_save;

        /* a session is only valid for the name that it was made for */

        hash = ngx_crc32_short(name.data, name.len);

        if (session->name != hash) {
            ngx_rl_tls_forget(session);
            session->name = hash;
        }

        if (ngx_ssl_set_session(c, session->session) != NGX_OK) {
            ngx_rl_tls_forget(session);
            return NGX_ERROR;
        }
    }

    rc = ngx_ssl_handshake(c);

    if (rc == NGX_AGAIN) {
        c->ssl->handler = handler;
    }

    return rc;
}


/* the name that the certificate must have; returns whether it is an address */

static ngx_uint_t
ngx_rl_tls_name(ngx_rl_tls_t *tls, ngx_str_t *host, ngx_str_t *name)
{
#if (NGX_HAVE_INET6)
    u_char  address[16];
#endif

    *name = tls->conf.name.len ? tls->conf.name : *host;

    if (ngx_inet_addr(name->data, name->len) != INADDR_NONE) {
        return 1;
    }

    if (name->len > 2 && name->data[0] == '['
        && name->data[name->len - 1] == ']')
    {
        name->data++;
        name->len -= 2;
    }

#if (NGX_HAVE_INET6)

    if (ngx_inet6_addr(name->data, name->len, address) == NGX_OK) {
        return 1;
    }

#endif

    /* the trailing dot of "example.com." is for DNS only */

    if (name->len && name->data[name->len - 1] == '.') {
        name->len--;
    }

    return 0;
}


ngx_int_t
ngx_rl_tls_verified(ngx_rl_tls_t *tls,
    ngx_connection_t *c, ngx_str_t *host, const char **why)
{
    int                    matches;
    long                   rc;
    X509                  *cert;
    u_char                 text[NGX_SOCKADDR_STRLEN], *last;
    ngx_str_t              name;
    ngx_rl_tls_session_t  *session;

    session = c->log->wdata;

    if (c->ssl == NULL || !c->ssl->handshaked) {
        *why = ngx_rl_tls_error(session);

        if (*why == NULL) {
            *why = "no memory";
        }

        return NGX_DECLINED;
    }

    if (!tls->conf.verify) {
        return NGX_OK;
    }

    rc = SSL_get_verify_result(c->ssl->connection);
    cert = SSL_get_peer_certificate(c->ssl->connection);

    if (rc != X509_V_OK) {
        *why = X509_verify_cert_error_string(rc);

    } else if (cert == NULL) {
        *why = "the server sent no certificate";

    } else {
        if (ngx_rl_tls_name(tls, host, &name)) {
            ngx_sprintf(text, "%*s%Z",
                        ngx_min(name.len, NGX_SOCKADDR_STRLEN - 1), name.data);

            matches = X509_check_ip_asc(cert, (char *) text, 0) == 1;

        } else {
            matches = ngx_ssl_check_host(c, &name) == NGX_OK;
        }

        if (matches) {
            X509_free(cert);
            return NGX_OK;
        }

        last = ngx_snprintf((u_char *) session->text, NGX_RL_TLS_TEXT - 1,
                            "certificate is not for \"%V\"", &name);
        *last = '\0';

        session->len = last - (u_char *) session->text;
        *why = session->text;
    }

    X509_free(cert);
    ngx_rl_tls_forget(session);

    return NGX_DECLINED;
}


/*
 * Extracts the useful part of "SSL_read() failed (SSL: error:0A00045C:SSL
 * routines::tlsv13 alert ...:SSL alert number 116)".  Only OpenSSL 1.1 adds
 * the name of a function.
 */

const char *
ngx_rl_tls_error(ngx_rl_tls_session_t *session)
{
    char       *p, *end;
    ngx_uint_t  i;

    if (session->len == 0) {
        return NULL;
    }

    p = strstr(session->text, "(SSL: error:");

    for (i = 0; p && i < 5; i++) {
        p = strchr(p, ':');
        p = p ? p + 1 : NULL;
    }

    if (p == NULL) {
        return session->text;
    }

    end = p + strcspn(p, ":)");
    *end = '\0';

    if (ngx_strcmp(p, "wrong version number") == 0) {
        return "wrong version number, the server may not use TLS on this port";
    }

    return p;
}


static void
ngx_rl_tls_save(ngx_connection_t *c)
{
    ngx_ssl_session_t     *saved;
    ngx_rl_tls_session_t  *session;

    session = c->log->wdata;

    saved = ngx_ssl_get_session(c);

    if (saved) {
        ngx_log_debug1(NGX_LOG_DEBUG_EVENT, c->log, 0,
                       "ratelimit redis save TLS session: %p", saved);

        ngx_rl_tls_forget(session);
        session->session = saved;
    }
}


void
ngx_rl_tls_forget(ngx_rl_tls_session_t *session)
{
    if (session->session) {
        ngx_ssl_free_session(session->session);
        session->session = NULL;
    }
}


void
ngx_rl_tls_close(ngx_connection_t *c)
{
    ngx_pool_t            *pool;
    ngx_rl_tls_session_t  *session;

    if (c->log->writer != ngx_rl_tls_log_writer) {
        return;
    }

    if (c->ssl) {
        c->ssl->no_wait_shutdown = 1;

        if (ngx_ssl_shutdown(c) == NGX_AGAIN) {

            /*
             * The socket accepts nothing: skip the close notification this
             * time.
             */

            c->timedout = 1;
            (void) ngx_ssl_shutdown(c);
        }
    }

    session = c->log->wdata;
    pool = c->pool;

    ngx_rl_tls_log_use(c, session->parent);

    if (pool) {
        c->pool = NULL;
        ngx_destroy_pool(pool);
    }
}


static void
ngx_rl_tls_log_writer(ngx_log_t *log, ngx_uint_t level, u_char *buf, size_t len)
{
    u_char                *p, *last;
    ngx_rl_tls_session_t  *session;

    session = log->wdata;

    /* strips "time [level] pid#tid: " and the end of the line */

    last = buf + len - NGX_LINEFEED_SIZE;

    p = ngx_strlchr(buf, last, '#');
    p = p ? ngx_strlchr(p, last, ' ') : NULL;
    p = p ? p + 1 : buf;

    len = last - p;

    if (level <= NGX_LOG_ALERT || level == NGX_LOG_DEBUG) {
        ngx_log_error(level, session->parent, 0, "%*s", len, p);
        return;
    }

    session->len = ngx_min(len, NGX_RL_TLS_TEXT - 1);
    ngx_memcpy(session->text, p, session->len);
    session->text[session->len] = '\0';
}


static void
ngx_rl_tls_log_use(ngx_connection_t *c, ngx_log_t *log)
{
    c->log = log;
    c->read->log = log;
    c->write->log = log;

    if (c->pool) {
        c->pool->log = log;
    }
}


#else


ngx_array_t *
ngx_rl_tls_passwords(ngx_conf_t *cf, ngx_str_t *file)
{
    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "\"ratelimit_redis_ssl_password_file\" needs SSL, but "
                       "nginx was built without --with-http_ssl_module");
    return NULL;
}


ngx_rl_tls_t *
ngx_rl_tls_create(ngx_conf_t *cf, ngx_rl_tls_conf_t *conf)
{
    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "\"ratelimit_redis_ssl on\" and \"rediss://\" need SSL, "
                       "but nginx was built without --with-http_ssl_module");
    return NULL;
}


ngx_int_t
ngx_rl_tls_start(ngx_rl_tls_t *tls, ngx_connection_t *c, ngx_str_t *host,
    ngx_rl_tls_session_t *session, void (*handler)(ngx_connection_t *c))
{
    return NGX_ERROR;
}


ngx_int_t
ngx_rl_tls_verified(ngx_rl_tls_t *tls,
    ngx_connection_t *c, ngx_str_t *host, const char **why)
{
    *why = "nginx was built without SSL";
    return NGX_DECLINED;
}


const char *
ngx_rl_tls_error(ngx_rl_tls_session_t *session)
{
    return NULL;
}


void
ngx_rl_tls_close(ngx_connection_t *c)
{
}


void
ngx_rl_tls_forget(ngx_rl_tls_session_t *session)
{
}


#endif /* NGX_SSL */
