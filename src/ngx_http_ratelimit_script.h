
/*
 * Calls and replies of the Lua scripts in lua/.  Knows no sockets and no
 * nginx: bytes out, decisions in.
 */


#ifndef _NGX_HTTP_RATELIMIT_SCRIPT_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_SCRIPT_H_INCLUDED_


#include "ngx_http_ratelimit_decision.h"
#include "ngx_http_ratelimit_failure.h"
#include "ngx_http_ratelimit_reply.h"


/* longest time to live of a key: 100 years, for rates that never refill */
#define NGX_HTTP_RATELIMIT_TTL_MAX  3155760000000ULL        /* ms */


/*
 * All three return the length of the command, -1 if there is no memory; it is
 * released by redisFreeCommand().
 */

/* the script by its SHA-1, or, with "eval", in full */
long long ngx_http_ratelimit_script_take(char **command, const char *key,
    size_t len, const ngx_http_ratelimit_bucket_t *bucket, int eval);

long long ngx_http_ratelimit_script_load(char **command);

/* any command of zero-terminated words; the list ends with NULL */
long long ngx_http_ratelimit_script_command(char **command, ...);

/* fills the decision, or says why there is none */
ngx_http_ratelimit_failure_e ngx_http_ratelimit_script_reply(
    const ngx_http_ratelimit_reply_t *reply,
    const ngx_http_ratelimit_bucket_t *bucket,
    ngx_http_ratelimit_decision_t *decision);


#endif /* _NGX_HTTP_RATELIMIT_SCRIPT_H_INCLUDED_ */
