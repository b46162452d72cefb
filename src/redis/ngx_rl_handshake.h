
/*
 * From a connected socket to a connection that is ready: the TLS handshake,
 * and the commands that come before all others.  It logs why it failed, but
 * closes nothing: the connection does.
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
    ngx_uint_t                 steps;    /* answered so far */
    unsigned                   known:1;  /* succeeded once */
} ngx_rl_handshake_t;


/*
 * Starts the handshake on a connected socket.  NGX_OK: the commands are in the
 * output buffer; NGX_AGAIN: they follow TLS, and the handler will be called
 * when TLS is over, which must set the event handlers again; NGX_ERROR:
 * *failure is set.
 */
ngx_int_t ngx_rl_handshake_start(ngx_rl_handshake_t *handshake,
    void (*handler)(ngx_connection_t *c), ngx_rl_failure_e *failure);

/* TLS is over, successfully or not; returns as above, but never NGX_AGAIN */
ngx_int_t ngx_rl_handshake_secured(ngx_rl_handshake_t *handshake,
    ngx_rl_failure_e *failure);

/*
 * Handles the next reply.  NGX_OK: it was the last one, and the connection is
 * ready; NGX_AGAIN: more replies follow; NGX_ERROR: *failure is set.
 */
ngx_int_t ngx_rl_handshake_reply(ngx_rl_handshake_t *handshake,
    ngx_rl_reply_t *reply, ngx_rl_failure_e *failure);

/*
 * The connection was lost before it was ready: what TLS says about the reason.
 */
void ngx_rl_handshake_insecure(ngx_rl_handshake_t *handshake, const char *why);

/* a hint for the log line about the lost connection */
const char *ngx_rl_handshake_cure(ngx_rl_handshake_t *handshake);

/* whether a cluster node is healthy and just does not serve the key */
ngx_uint_t ngx_rl_handshake_moved_ok(ngx_rl_reply_t *reply);


#endif /* _NGX_RL_HANDSHAKE_H_INCLUDED_ */
