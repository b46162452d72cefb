
/*
 * The verdict on a request: turns the answers about its limits into one
 * decision, and that decision into counters, log lines and a status.
 */


#ifndef _NGX_RL_VERDICT_H_INCLUDED_
#define _NGX_RL_VERDICT_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "http/ngx_rl_ctx.h"
#include "pure/ngx_rl_text.h"


#define NGX_RL_LOG_KEY          64      /* bytes of a key in the log */

#define NGX_RL_VERDICT_LOG_KEY                                                \
    (sizeof(", key: \"\"") + ngx_rl_escape_size(NGX_RL_LOG_KEY))


/*
 * Makes the decision when no more answers are expected.  Claims without an
 * answer are decided in this machine's memory, if the configuration allows it.
 */
void ngx_rl_verdict_reach(ngx_rl_ctx_t *ctx);

/*
 * Counts and logs the decision; returns what a phase handler must return.
 */
ngx_int_t ngx_rl_verdict_return(ngx_http_request_t *r, ngx_rl_ctx_t *ctx);

/* called when the request has ended: counts it if it met no enforced limit */
void ngx_rl_verdict_end(ngx_rl_ctx_t *ctx);


/*
 * Writes ", key: ...", with the key in the form that the log may show, or
 * nothing; returns the length.  The buffer has NGX_RL_VERDICT_LOG_KEY bytes.
 */
size_t ngx_rl_verdict_log_key(u_char *buf, ngx_rl_location_limit_t *ll,
    ngx_str_t *key);


#endif /* _NGX_RL_VERDICT_H_INCLUDED_ */
