
/*
 * Claims, calls and refunds for the unit tests, and the commands that they
 * become.
 */


#ifndef _CALLS_H_INCLUDED_
#define _CALLS_H_INCLUDED_


#include "args.h"
#include "buckets.h"

#include "script/ngx_rl_eval.h"
#include "ngx_rl_lua.h"


#define SHA1         NGX_RL_LUA_TOKEN_BUCKET_SHA1
#define TEXT         NGX_RL_LUA_TOKEN_BUCKET
#define TAKE_SHA1    NGX_RL_LUA_TAKE_SHA1
#define TAKE_TEXT    NGX_RL_LUA_TAKE
#define GCRA_SHA1    NGX_RL_LUA_GCRA_SHA1
#define GCRA_TEXT    NGX_RL_LUA_GCRA
#define FIXED_SHA1   NGX_RL_LUA_FIXED_WINDOW_SHA1
#define FIXED_TEXT   NGX_RL_LUA_FIXED_WINDOW
#define COUNTER_SHA1 NGX_RL_LUA_SLIDING_WINDOW_COUNTER_SHA1
#define COUNTER_TEXT NGX_RL_LUA_SLIDING_WINDOW_COUNTER
#define REFUND_SHA1  NGX_RL_LUA_REFUND_SHA1
#define REFUND_TEXT  NGX_RL_LUA_REFUND

#define SECOND       1000000ULL
#define CLAIMS       NGX_RL_CLAIMS
#define REFUNDS      NGX_RL_REFUNDS
#define CALLS_MAX    NGX_RL_EVAL_CALLS
#define NUMBERS      NGX_RL_EVAL_NUMBERS


/* one writer for all commands, as the store has it */

static ngx_rl_resp_t  writer;


/* another key, another hash; one that was copied has the same */

static inline ngx_rl_claim_t
claim_of(const char *key, ngx_rl_bucket_t bucket)
{
    size_t          i;
    uint64_t        hash;
    ngx_rl_claim_t  claim;

    memset(&claim, 0, sizeof(claim));

    claim.key = key;
    claim.len = strlen(key);
    claim.bucket = bucket;

    hash = 0xcbf29ce484222325ULL;

    for (i = 0; i < claim.len; i++) {
        hash = (hash ^ (unsigned char) key[i]) * 0x100000001b3ULL;
    }

    claim.hash[0] = hash;
    claim.hash[1] = tap_random(&hash);

    return claim;
}


/* no two of which are the same */

static inline const char *
key_of(size_t i)
{
    static char  keys[4 * CLAIMS][8];

    snprintf(keys[i], sizeof(keys[i]), "k%u", (unsigned) i % 1000);

    return keys[i];
}


static inline void
call_id(ngx_rl_call_t *call, const char *id)
{
    call->id_len = strlen(id);
    memcpy(call->id, id, call->id_len);
}


/* on different keys, and all of the same limit */

static inline void
claims_of(ngx_rl_claim_t *claims, size_t n, ngx_rl_bucket_t bucket)
{
    size_t  i;

    for (i = 0; i < n; i++) {
        claims[i] = claim_of(key_of(i), bucket);
    }
}


/* the claims of an array go out together */

static inline ngx_rl_call_t
call_of(ngx_rl_claim_t *claims, size_t n)
{
    size_t         i;
    ngx_rl_call_t  call;

    memset(&call, 0, sizeof(call));

    for (i = 0; i < n; i++) {
        call.claims[i] = &claims[i];
    }

    call.n = n;
    call.times = 1;
    call.passed = 77;
    call.now = 1800000000123456ULL;

    call_id(&call, "7f-1");

    return call;
}


/* a call each for the claims of an array */

static inline void
calls_of(ngx_rl_call_t *calls, ngx_rl_claim_t *claims, size_t n)
{
    size_t  i;

    for (i = 0; i < n; i++) {
        calls[i] = call_of(&claims[i], 1);
    }
}


/* the calls of an array, which have to go together */

static inline void
eval_of(ngx_rl_eval_t *eval, ngx_rl_call_t *calls, size_t n)
{
    size_t  i;

    /* an empty one is one whose number is 0, whatever else was there */

    memset(eval, 0xaa, sizeof(ngx_rl_eval_t));
    eval->n = 0;

    for (i = 0; i < n; i++) {

        if (!ngx_rl_eval_add(eval, &calls[i])) {
            ok(0, "call %zu goes with those before", i);
        }
    }
}


/* a command of its own */

static inline long long
eval_format(char **command, ngx_rl_eval_t *eval, unsigned with_text)
{
    ngx_rl_resp_t  resp;

    memset(&resp, 0, sizeof(resp));

    ngx_rl_eval_format(eval, &resp, with_text);

    return ngx_rl_resp_detach(&resp, command);
}


static inline long long
eval_command(char **command, ngx_rl_call_t *calls, size_t n, unsigned with_text)
{
    ngx_rl_eval_t  eval;

    eval_of(&eval, calls, n);

    return eval_format(command, &eval, with_text);
}


/* a command that is taken apart, valid until the next one; 0 if it is none */

static inline int
writer_args(args_t *args)
{
    char    *command;
    ssize_t  len;

    len = ngx_rl_resp_end(&writer, &command);

    return len > 0 && args_of(command, len, args);
}


static inline int
format_args(args_t *args, ngx_rl_eval_t *eval, unsigned with_text)
{
    ngx_rl_eval_format(eval, &writer, with_text);

    return writer_args(args);
}


static inline int
eval_args(args_t *args, ngx_rl_call_t *calls, size_t n, unsigned with_text)
{
    ngx_rl_eval_t  eval;

    eval_of(&eval, calls, n);

    return format_args(args, &eval, with_text);
}


static inline int
refund_args(args_t *args, ngx_rl_refund_t *refunds, size_t n,
    unsigned with_text)
{
    size_t            i;
    ngx_rl_refund_t  *all[REFUNDS];

    for (i = 0; i < n; i++) {
        all[i] = &refunds[i];
    }

    ngx_rl_eval_refund(all, n, &writer, with_text);

    return writer_args(args);
}


/* one that waits for its reply */

static inline void
eval_sent(ngx_rl_eval_t *eval, ngx_rl_call_t *calls, size_t n)
{
    args_t  args;

    eval_of(eval, calls, n);

    if (!format_args(&args, eval, 0)) {
        ok(0, "calls are a command");
    }
}


static inline ngx_rl_refund_t
refund_of(const char *key, ngx_rl_bucket_t bucket,
    uint64_t tokens, const char *id)
{
    ngx_rl_refund_t  refund;

    memset(&refund, 0, sizeof(refund));

    refund.key = key;
    refund.len = strlen(key);
    refund.bucket = bucket;
    refund.tokens = tokens;
    refund.id = id;
    refund.id_len = strlen(id);

    return refund;
}


#endif /* _CALLS_H_INCLUDED_ */
