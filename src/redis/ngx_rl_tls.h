
/*
 * TLS on connections to Redis, by nginx's own SSL layer.  Knows no commands and
 * no replies: it takes a connected socket through the handshake, says whether
 * the server is the right one, and ends the connection.
 *
 * In an nginx without SSL all this is there, and TLS can't be switched on.
 */


#ifndef _NGX_RL_TLS_H_INCLUDED_
#define _NGX_RL_TLS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "redis/ngx_rl_tls_conf.h"


#define NGX_RL_TLS_TEXT    512         /* of an error */


typedef struct ngx_rl_tls_s  ngx_rl_tls_t;


/*
 * What the connections of one owner, one after the other, have in common: the
 * session that the next one may resume, and what went wrong last.  Starts as
 * zeros, must not move while there is a connection, and is freed at the end.
 */

typedef struct {
    void       *session;
    uint32_t    name;    /* whose it is, a hash */
    ngx_log_t   log;     /* of the connection */
    ngx_log_t  *parent;  /* as it was before */
    size_t      len;
    char        text[NGX_RL_TLS_TEXT];
} ngx_rl_tls_session_t;


/* the passwords of keys, one in a line; NULL: an error was logged */
ngx_array_t *ngx_rl_tls_passwords(ngx_conf_t *cf, ngx_str_t *file);


/* lives as long as cf->pool; NULL: an error was logged */
ngx_rl_tls_t *ngx_rl_tls_create(ngx_conf_t *cf, ngx_rl_tls_conf_t *conf);


/*
 * Begins the handshake on a connected socket.  NGX_AGAIN: the handler will be
 * called when it is over; until then the handlers of the connection's events
 * are nginx's, and the handler has to set its own again.  NGX_OK: it is over;
 * NGX_ERROR: and it has failed.
 *
 * "host" is the server's name or address as it was written, without the port.
 */
ngx_int_t ngx_rl_tls_start(ngx_rl_tls_t *tls,
    ngx_connection_t *c, ngx_str_t *host, ngx_rl_tls_session_t *session,
    void (*handler)(ngx_connection_t *c));

/*
 * When the handshake is over: NGX_OK, and the connection may be used;
 * NGX_DECLINED, and "why" is a text for the log, valid until the next start
 */
ngx_int_t ngx_rl_tls_verified(ngx_rl_tls_t *tls,
    ngx_connection_t *c, ngx_str_t *host, const char **why);

/*
 * Why the last read, write or handshake failed, or NULL: nginx logs none of
 * this by itself on such a connection
 */
const char *ngx_rl_tls_error(ngx_rl_tls_session_t *session);

/*
 * Says goodbye, if the peer is there to hear it, and never waits; to be called
 * before ngx_close_connection(), on any connection
 */
void ngx_rl_tls_close(ngx_connection_t *c);

/* the next connection will make a new session */
void ngx_rl_tls_forget(ngx_rl_tls_session_t *session);


#endif /* _NGX_RL_TLS_H_INCLUDED_ */
