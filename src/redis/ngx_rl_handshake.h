
/*
 * From a socket that is connected to a connection that is ready: the handshake
 * of TLS, and the commands that come before all others.
 */


#ifndef _NGX_RL_HANDSHAKE_H_INCLUDED_
#define _NGX_RL_HANDSHAKE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "redis/ngx_rl_connection.h"


/*
 * NGX_OK: the greeting is in the output buffer; NGX_AGAIN: it follows the
 * handshake; NGX_ERROR: the connection is gone
 */
ngx_int_t ngx_rl_handshake_connected(ngx_rl_connection_t *connection);

/* the next reply to the greeting; the connection may be gone, or ready, then */
void ngx_rl_handshake_reply(ngx_rl_connection_t *connection,
    ngx_rl_reply_t *reply);

/* the end of a connection that TLS has failed on */
void ngx_rl_handshake_insecure(ngx_rl_connection_t *connection,
    const char *why);

/* what to add, for the log, to the news that the connection was lost */
const char *ngx_rl_handshake_cure(ngx_rl_connection_t *connection);


#endif /* _NGX_RL_HANDSHAKE_H_INCLUDED_ */
