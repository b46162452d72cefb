
/*
 * One EVALSHA: turns calls or refunds into one command, and its reply into the
 * states of their claims.  It knows neither sockets nor nginx: bytes out,
 * numbers in.
 */


#ifndef _NGX_RL_EVAL_H_INCLUDED_
#define _NGX_RL_EVAL_H_INCLUDED_


#include "pure/ngx_rl_reply.h"
#include "pure/ngx_rl_resp.h"
#include "script/ngx_rl_call.h"


/* limits of one command, so that it does not block a server for long */
#define NGX_RL_EVAL_CALLS    32         /* calls, and limits */
#define NGX_RL_EVAL_NUMBERS  96         /* limits of all calls */
#define NGX_RL_REFUNDS       32


/*
 * Calls to one server that share a command.  Either all use the same short
 * script and their limits only differ in the key, or all use take.lua.
 */

typedef struct {
    ngx_rl_call_t   *calls[NGX_RL_EVAL_CALLS];
    size_t           n;

    /* for take.lua: each limit once, and the limits of each call */

    ngx_rl_claim_t  *limits[NGX_RL_EVAL_CALLS];
    size_t           nlimits;
    unsigned char    numbers[NGX_RL_EVAL_NUMBERS];
    size_t           nnumbers;

    /* of the reply, by call */

    size_t           elements[NGX_RL_EVAL_CALLS];
} ngx_rl_eval_t;


/* tokens to refund */

typedef struct {
    const char      *key;  /* in Redis */
    size_t           len;
    ngx_rl_bucket_t  bucket;
    uint64_t         tokens;
    uint64_t         period;  /* of the claim that took */
    const char      *id;   /* of the command that took */
    size_t           id_len;
} ngx_rl_refund_t;


/*
 * Whether a call can be added; the first one always can.  The command has the
 * time and the id of the first call.
 */
int ngx_rl_eval_add(ngx_rl_eval_t *eval, ngx_rl_call_t *call);

/* these write a command; ngx_rl_resp_end() returns it */

void ngx_rl_eval_format(ngx_rl_eval_t *eval,
    ngx_rl_resp_t *resp, unsigned with_text);
void ngx_rl_eval_refund(ngx_rl_refund_t *const *refunds, size_t n,
    ngx_rl_resp_t *resp, unsigned with_text);

/*
 * Fills in the states of the claims, and "passed", or the reason why there are
 * none, for all calls of the command.  Calls that are NULL by now are left
 * out.  A single call may have failed.
 */
ngx_rl_failure_e ngx_rl_eval_reply(const ngx_rl_reply_t *reply,
    ngx_rl_eval_t *eval);


#endif /* _NGX_RL_EVAL_H_INCLUDED_ */
