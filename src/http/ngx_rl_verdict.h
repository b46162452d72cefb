
/*
 * The verdict on a request: from the answers about its limits to one decision,
 * and from that to counters, log lines and a status.
 */


#ifndef _NGX_RL_VERDICT_H_INCLUDED_
#define _NGX_RL_VERDICT_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "http/ngx_rl_ctx.h"


/*
 * Makes the decision, when all answers there will be are there.  Claims that
 * nobody has answered are decided in this machine's memory, if it may.
 */
void ngx_rl_verdict_reach(ngx_rl_ctx_t *ctx);

/*
 * Counts and logs the decision; returns what a handler of a phase has to
 * return
 */
ngx_int_t ngx_rl_verdict_return(ngx_http_request_t *r, ngx_rl_ctx_t *ctx);

/* the request has ended: counts it, if it has met no enforced limit */
void ngx_rl_verdict_end(ngx_rl_ctx_t *ctx);


#endif /* _NGX_RL_VERDICT_H_INCLUDED_ */
