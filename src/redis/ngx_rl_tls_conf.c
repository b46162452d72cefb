
#include "redis/ngx_rl_tls_conf.h"
#include "core/ngx_rl_core.h"


#define ngx_rl_tls_number(conf, i)                                            \
    ((ngx_int_t *) ((u_char *) (conf) + ngx_rl_tls_numbers[i].offset))

#define ngx_rl_tls_string(conf, i)                                            \
    ((ngx_str_t *) ((u_char *) (conf) + ngx_rl_tls_strings[i].offset))


/* flags are such numbers too */

static const struct {
    size_t     offset;
    ngx_int_t  value;    /* the default */
} ngx_rl_tls_numbers[] = {
    { offsetof(ngx_rl_tls_conf_t, enable), NGX_CONF_UNSET },
    { offsetof(ngx_rl_tls_conf_t, verify), 1 },
    { offsetof(ngx_rl_tls_conf_t, session_reuse), 1 },
    { offsetof(ngx_rl_tls_conf_t, server_name), 1 },
    { offsetof(ngx_rl_tls_conf_t, verify_depth), 1 }
};


static const struct {
    size_t       offset;
    ngx_str_t    value;      /* the default */
    const char  *directive;  /* of no use without TLS */
} ngx_rl_tls_strings[] = {
    { offsetof(ngx_rl_tls_conf_t, certificate), ngx_string(""),
      "ratelimit_redis_ssl_certificate" },
    { offsetof(ngx_rl_tls_conf_t, certificate_key), ngx_string(""),
      "ratelimit_redis_ssl_certificate_key" },
    { offsetof(ngx_rl_tls_conf_t, trusted_certificate), ngx_string(""),
      "ratelimit_redis_ssl_trusted_certificate" },
    { offsetof(ngx_rl_tls_conf_t, crl), ngx_string(""),
      "ratelimit_redis_ssl_crl" },
    { offsetof(ngx_rl_tls_conf_t, name), ngx_string(""),
      "ratelimit_redis_ssl_name" },
    { offsetof(ngx_rl_tls_conf_t, ciphers), ngx_string("DEFAULT"), NULL }
};


#define NGX_RL_TLS_NUMBERS                                                    \
    (sizeof(ngx_rl_tls_numbers) / sizeof(ngx_rl_tls_numbers[0]))

#define NGX_RL_TLS_STRINGS                                                    \
    (sizeof(ngx_rl_tls_strings) / sizeof(ngx_rl_tls_strings[0]))


void
ngx_rl_tls_conf_init(ngx_rl_tls_conf_t *conf)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_RL_TLS_NUMBERS; i++) {
        *ngx_rl_tls_number(conf, i) = NGX_CONF_UNSET;
    }
}


void
ngx_rl_tls_conf_merge(ngx_rl_tls_conf_t *prev, ngx_rl_tls_conf_t *conf)
{
    ngx_str_t  *s;
    ngx_uint_t  i;

    for (i = 0; i < NGX_RL_TLS_NUMBERS; i++) {
        ngx_conf_merge_value(*ngx_rl_tls_number(conf, i),
                             *ngx_rl_tls_number(prev, i),
                             ngx_rl_tls_numbers[i].value);
    }

    for (i = 0; i < NGX_RL_TLS_STRINGS; i++) {
        s = ngx_rl_tls_string(conf, i);

        if (s->data == NULL) {
            *s = *ngx_rl_tls_string(prev, i);
        }

        if (s->data == NULL) {
            *s = ngx_rl_tls_strings[i].value;
        }
    }

    if (conf->protocols == 0) {
        conf->protocols = prev->protocols ? prev->protocols
                                          : (NGX_RL_TLS_V1_2|NGX_RL_TLS_V1_3);
    }

    if (conf->passwords == NULL) {
        conf->passwords = prev->passwords;
    }
}


const char *
ngx_rl_tls_conf_given(ngx_rl_tls_conf_t *conf)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_RL_TLS_STRINGS; i++) {

        if (ngx_rl_tls_strings[i].directive && ngx_rl_tls_string(conf, i)->len)
        {
            return ngx_rl_tls_strings[i].directive;
        }
    }

    return conf->passwords ? "ratelimit_redis_ssl_password_file" : NULL;
}


ngx_uint_t
ngx_rl_tls_conf_equal(ngx_rl_tls_conf_t *a, ngx_rl_tls_conf_t *b)
{
    ngx_str_t  *s1, *s2;
    ngx_uint_t  i;

    if (a->enable != 1 && b->enable != 1) {
        return 1;
    }

    if (a->protocols != b->protocols) {
        return 0;
    }

    for (i = 0; i < NGX_RL_TLS_NUMBERS; i++) {
        if (*ngx_rl_tls_number(a, i) != *ngx_rl_tls_number(b, i)) {
            return 0;
        }
    }

    for (i = 0; i < NGX_RL_TLS_STRINGS; i++) {
        if (!ngx_rl_str_equal(ngx_rl_tls_string(a, i),
                              ngx_rl_tls_string(b, i)))
        {
            return 0;
        }
    }

    if (a->passwords == b->passwords) {
        return 1;
    }

    if (a->passwords == NULL || b->passwords == NULL
        || a->passwords->nelts != b->passwords->nelts)
    {
        return 0;
    }

    s1 = a->passwords->elts;
    s2 = b->passwords->elts;

    for (i = 0; i < a->passwords->nelts; i++) {
        if (!ngx_rl_str_equal(&s1[i], &s2[i])) {
            return 0;
        }
    }

    return 1;
}
