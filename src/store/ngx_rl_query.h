
/*
 * A query is a plain Redis command, other than those of limits.  It never
 * counts for the breaker of a server, and its error replies are up to the
 * caller.
 */


#ifndef _NGX_RL_QUERY_H_INCLUDED_
#define _NGX_RL_QUERY_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "pure/ngx_rl_resp.h"
#include "topology/ngx_rl_server.h"


typedef struct ngx_rl_query_s  ngx_rl_query_t;

/* reply is NULL if there was no answer; an error reply is passed on */
typedef void (*ngx_rl_query_pt)(ngx_rl_query_t *query, ngx_rl_reply_t *reply);


struct ngx_rl_query_s {

    /* set by the caller */

    ngx_rl_query_pt    handler;
    void              *data;
    unsigned           background:1;  /* does not delay the exit */
    unsigned           large:1;       /* its reply may be large */

    /* valid when the handler is called */

    ngx_rl_failure_e   failure;       /* also that of an error reply */

    ngx_rl_pending_t  *pending;       /* NULL: not under way */
};


/*
 * Sends the command that was written last.  NGX_RL_OK: the handler will be
 * called exactly once, and not before this function has returned.  Otherwise
 * it will not be called.
 */
ngx_rl_failure_e ngx_rl_query_send(ngx_rl_query_t *query,
    ngx_rl_server_t *server, ngx_rl_resp_t *resp, ngx_msec_t timeout);

/* the handler will not be called any more; the command may still run */
void ngx_rl_query_cancel(ngx_rl_query_t *query);


#endif /* _NGX_RL_QUERY_H_INCLUDED_ */
