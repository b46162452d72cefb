
/*
 * One EVALSHA: calls or refunds become one command, and its reply the states
 * of their claims.  Knows no sockets and no nginx: bytes out, numbers in.
 */


#ifndef _NGX_RL_EVAL_H_INCLUDED_
#define _NGX_RL_EVAL_H_INCLUDED_


#include "pure/ngx_rl_reply.h"
#include "pure/ngx_rl_resp.h"
#include "script/ngx_rl_call.h"


/* of one command, so that none holds up a server for long */
#define NGX_RL_EVAL_CALLS    32         /* calls, and limits */
#define NGX_RL_EVAL_NUMBERS  96         /* limits of all calls */
#define NGX_RL_REFUNDS       32


/*
 * Calls to one server that are one command.  Either all are for the same short
 * script, and their limits are the same except for the key, or all are for
 * take.lua.
 */

typedef struct {
    ngx_rl_call_t   *calls[NGX_RL_EVAL_CALLS];
    size_t           n;

    /* for take.lua: each limit once, and for each call which ones it has */

    ngx_rl_claim_t  *limits[NGX_RL_EVAL_CALLS];
    size_t           nlimits;
    unsigned char    numbers[NGX_RL_EVAL_NUMBERS];
    size_t           nnumbers;

    /* of the reply, by call */

    size_t           elements[NGX_RL_EVAL_CALLS];
} ngx_rl_eval_t;


/* tokens that go back to where they were taken */

typedef struct {
    const char      *key;  /* in Redis */
    size_t           len;
    ngx_rl_bucket_t  bucket;
    uint64_t         tokens;
    const char      *id;   /* of the command that took */
    size_t           id_len;
} ngx_rl_refund_t;


/*
 * Whether a call could be added: the first one always can.  Time and id of the
 * command are those of the first one
 */
int ngx_rl_eval_add(ngx_rl_eval_t *eval, ngx_rl_call_t *call);

/* these write a command, which ngx_rl_resp_end() returns */

void ngx_rl_eval_format(ngx_rl_eval_t *eval,
    ngx_rl_resp_t *resp, unsigned with_text);
void ngx_rl_eval_refund(ngx_rl_refund_t *const *refunds, size_t n,
    ngx_rl_resp_t *resp, unsigned with_text);

/*
 * Fills the claims' states, and "passed", or says why there are none, for all
 * calls that were formatted; those that are NULL meanwhile are left out.  A
 * single one may have failed.
 */
ngx_rl_failure_e ngx_rl_eval_reply(const ngx_rl_reply_t *reply,
    ngx_rl_eval_t *eval);


#endif /* _NGX_RL_EVAL_H_INCLUDED_ */
