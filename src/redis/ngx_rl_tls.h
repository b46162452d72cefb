
/*
 * TLS on connections to Redis, with nginx's own SSL layer.  It knows neither
 * commands nor replies.  It takes a connected socket through the handshake,
 * checks that the server is the right one, and ends the connection.
 *
 * An nginx without SSL has the same functions, but TLS cannot be enabled.
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
 * What successive connections of one owner share: the session that the next
 * one may resume, and the last error.  It starts as zeroes, must not move
 * while there is a connection, and is freed at the end.
 */

typedef struct {
    void       *session;
    uint32_t    name;    /* hash of its owner */
    ngx_log_t   log;     /* of the connection */
    ngx_log_t  *parent;  /* as it was before */
    size_t      len;
    char        text[NGX_RL_TLS_TEXT];
} ngx_rl_tls_session_t;


/* passwords of keys, one per line; NULL: an error was logged */
ngx_array_t *ngx_rl_tls_passwords(ngx_conf_t *cf, ngx_str_t *file);


/* lives as long as cf->pool; NULL: an error was logged */
ngx_rl_tls_t *ngx_rl_tls_create(ngx_conf_t *cf, ngx_rl_tls_conf_t *conf);


/*
 * Starts the handshake on a connected socket.  NGX_AGAIN: the handler will be
 * called when it is over.  Until then nginx's own event handlers are set, and
 * the handler must set the connection's own again.  NGX_OK: the handshake is
 * over; NGX_ERROR: it has failed.
 *
 * "host" is the name or address of the server as configured, without the port.
 */
ngx_int_t ngx_rl_tls_start(ngx_rl_tls_t *tls,
    ngx_connection_t *c, ngx_str_t *host, ngx_rl_tls_session_t *session,
    void (*handler)(ngx_connection_t *c));

/*
 * Checks the server after the handshake.  NGX_OK: the connection may be used;
 * NGX_DECLINED: "why" is a text for the log, valid until the next start.
 */
ngx_int_t ngx_rl_tls_verified(ngx_rl_tls_t *tls,
    ngx_connection_t *c, ngx_str_t *host, const char **why);

/*
 * Why the last read, write or handshake failed, or NULL. nginx itself logs
 * none of this on such a connection.
 */
const char *ngx_rl_tls_error(ngx_rl_tls_session_t *session);

/*
 * Sends the close notification if the peer can receive it, and never waits.
 * Call it before ngx_close_connection(), on any connection.
 */
void ngx_rl_tls_close(ngx_connection_t *c);

/* the next connection makes a new session */
void ngx_rl_tls_forget(ngx_rl_tls_session_t *session);


#endif /* _NGX_RL_TLS_H_INCLUDED_ */
