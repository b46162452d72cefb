
/*
 * Calls and replies of the Lua scripts in lua/.  Knows no sockets and no
 * nginx: bytes out, decisions in.
 */


#ifndef _NGX_RL_SCRIPT_H_INCLUDED_
#define _NGX_RL_SCRIPT_H_INCLUDED_


#include "pure/ngx_rl_claim.h"
#include "pure/ngx_rl_failure.h"
#include "pure/ngx_rl_reply.h"


/* the claims of one request that go to one server together */

typedef struct {
    ngx_rl_claim_t   *claims[NGX_RL_CLAIMS];
    size_t            n;
    uint32_t          times;      /* requests; 1 unless n is */
    uint32_t          passed;     /* so many of them */
    ngx_rl_failure_e  failure;    /* of this one among others */
    ngx_rl_reply_t   *error;      /* its reply then; valid as long
                                     as that of all of them */
    uint64_t          now;        /* nginx's clock, us */
    char             *id;         /* of the command; unique */
    size_t            id_len;
    unsigned          preview:1;  /* take nothing */
    unsigned          clock:1;    /* nginx's time counts */
    unsigned          part:1;     /* of a request with others */
} ngx_rl_call_t;


/* of one command, so that none holds up a server for long */
#define NGX_RL_EVAL_CALLS   32         /* requests, and limits */
#define NGX_RL_NUMBERS  96         /* limits of all requests */


/*
 * Calls to one server that are one command.  Their limits are the same but for
 * the key, and the short scripts will do; or they are told apart.
 */

typedef struct {
    ngx_rl_call_t   *scripts[NGX_RL_EVAL_CALLS];
    size_t           n;

    /* unless it is for one of the short scripts: each limit once */

    ngx_rl_claim_t  *limits[NGX_RL_EVAL_CALLS];
    size_t           nlimits;
    unsigned char    numbers[NGX_RL_NUMBERS];
    size_t           nnumbers;

    size_t           elements[NGX_RL_EVAL_CALLS];
                                               /* of the reply */
} ngx_rl_eval_t;


/* tokens that go back to where they were taken */

typedef struct {
    const char      *key;  /* Redis's */
    size_t           len;
    ngx_rl_bucket_t  bucket;
    uint64_t         tokens;
    const char      *id;   /* of the call that took */
    size_t           id_len;
} ngx_rl_refund_t;


/* of one call that gives back */
#define NGX_RL_REFUNDS  32


/*
 * Whether a call could be added, which the first one of an empty bundle always
 * can; time and id are those of the first one
 */
int ngx_rl_eval_add(ngx_rl_eval_t *eval, ngx_rl_call_t *call);

/* whether one of the short scripts will do, without an id */
int ngx_rl_call_short(const ngx_rl_call_t *call);

/*
 * These return the length of the command, -1 if there is no memory; it is
 * released by ngx_rl_resp_free().
 */

long long ngx_rl_eval_format(char **command,
    ngx_rl_eval_t *eval, unsigned with_text);
long long ngx_rl_eval_refund(char **command,
    const ngx_rl_refund_t *refunds, size_t n, unsigned with_text);

/* asks, by writing to this key, whether a server can be used */
long long ngx_rl_scripts_probe(char **command, const char *key, size_t len);

/* SCRIPT LOAD of script number i; -2 if there is none */
long long ngx_rl_scripts_load(char **command, size_t i);

/* any command of zero-terminated words; the list ends with NULL */
long long ngx_rl_resp_command(char **command, ...);

/*
 * Fills the claims' states, and "passed", or says why there are none, for all
 * calls that were formatted; those that are NULL meanwhile are left out.  A
 * single one may have failed.
 */
ngx_rl_failure_e ngx_rl_eval_reply(const ngx_rl_reply_t *reply,
    ngx_rl_eval_t *eval);

void ngx_rl_resp_free(char *command);

/* whether it has a limit that may end the request */
int ngx_rl_call_enforced(const ngx_rl_call_t *call);

/* whether a call that was answered took something */
int ngx_rl_call_taken(const ngx_rl_call_t *call);


#endif /* _NGX_RL_SCRIPT_H_INCLUDED_ */
