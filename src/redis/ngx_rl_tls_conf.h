
/*
 * The "ratelimit_redis_ssl..." directives: their values, merged and compared.
 * An nginx without SSL has them, too.
 */


#ifndef _NGX_RL_TLS_CONF_H_INCLUDED_
#define _NGX_RL_TLS_CONF_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#define NGX_RL_TLS_V1      0x0002
#define NGX_RL_TLS_V1_1    0x0004
#define NGX_RL_TLS_V1_2    0x0008
#define NGX_RL_TLS_V1_3    0x0010


typedef struct {
    ngx_flag_t    enable;
    ngx_flag_t    verify;
    ngx_flag_t    session_reuse;
    ngx_flag_t    server_name;          /* SNI */
    ngx_int_t     verify_depth;
    ngx_uint_t    protocols;            /* 0: not set */
    ngx_str_t     ciphers;
    ngx_str_t     name;                 /* empty: the host */
    ngx_str_t     trusted_certificate;  /* empty: the system's */
    ngx_str_t     crl;
    ngx_str_t     certificate;
    ngx_str_t     certificate_key;
    ngx_array_t  *passwords;            /* while it is parsed */
} ngx_rl_tls_conf_t;


/* initialises a zeroed conf as one that sets nothing */
void ngx_rl_tls_conf_init(ngx_rl_tls_conf_t *conf);

/* sets the default of everything except "enable" where neither conf sets it */
void ngx_rl_tls_conf_merge(ngx_rl_tls_conf_t *prev, ngx_rl_tls_conf_t *conf);

/* the name of a directive that has no effect without TLS, or NULL */
const char *ngx_rl_tls_conf_given(ngx_rl_tls_conf_t *conf);

/* whether two merged confs lead to the same connections */
ngx_uint_t ngx_rl_tls_conf_equal(ngx_rl_tls_conf_t *a, ngx_rl_tls_conf_t *b);


#endif /* _NGX_RL_TLS_CONF_H_INCLUDED_ */
