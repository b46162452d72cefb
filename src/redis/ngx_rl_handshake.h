
/*
 * From a socket that is connected to a connection that is ready: the handshake
 * of TLS, and the commands that come before all others.  It logs why it has
 * failed, and closes nothing: its connection does.
 */


#ifndef _NGX_RL_HANDSHAKE_H_INCLUDED_
#define _NGX_RL_HANDSHAKE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "redis/ngx_rl_address.h"
#include "redis/ngx_rl_pipeline.h"


typedef struct {
    ngx_rl_connection_conf_t  *conf;
    ngx_rl_pipeline_t         *pipeline;
    ngx_rl_addresses_t        *addresses;
    ngx_rl_tls_session_t       session;
    ngx_uint_t                 steps;    /* that were answered */
    unsigned                   known:1;  /* it went well once */
} ngx_rl_handshake_t;


/*
 * Begins, on a connected socket.  NGX_OK: the commands are in the output
 * buffer; NGX_AGAIN: they follow TLS, and the handler, which has to set the
 * handlers of events again, is called when that is over; NGX_ERROR: *failure
 * is set
 */
ngx_int_t ngx_rl_handshake_start(ngx_rl_handshake_t *handshake,
    void (*handler)(ngx_connection_t *c), ngx_rl_failure_e *failure);

/* TLS is over, one way or the other; as above, without NGX_AGAIN */
ngx_int_t ngx_rl_handshake_secured(ngx_rl_handshake_t *handshake,
    ngx_rl_failure_e *failure);

/*
 * The next reply.  NGX_OK: it was the last one, and the connection is ready;
 * NGX_AGAIN: others follow; NGX_ERROR: *failure is set
 */
ngx_int_t ngx_rl_handshake_reply(ngx_rl_handshake_t *handshake,
    ngx_rl_reply_t *reply, ngx_rl_failure_e *failure);

/* the connection was lost before it was ready, for what TLS says is a reason */
void ngx_rl_handshake_insecure(ngx_rl_handshake_t *handshake, const char *why);

/* what to add, for the log, to the news that the connection was lost */
const char *ngx_rl_handshake_cure(ngx_rl_handshake_t *handshake);

/* an error of a node of a cluster that is well, but has not got the key */
ngx_uint_t ngx_rl_handshake_moved_ok(ngx_rl_reply_t *reply);


#endif /* _NGX_RL_HANDSHAKE_H_INCLUDED_ */
