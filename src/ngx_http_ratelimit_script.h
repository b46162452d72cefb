
/*
 * Calls and replies of the Lua scripts in lua/.  Knows no sockets and no
 * nginx: bytes out, decisions in.
 */


#ifndef _NGX_HTTP_RATELIMIT_SCRIPT_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_SCRIPT_H_INCLUDED_


#include "ngx_http_ratelimit_decision.h"
#include "ngx_http_ratelimit_failure.h"
#include "ngx_http_ratelimit_reply.h"


/* limits that one request may meet */
#define NGX_HTTP_RATELIMIT_CLAIMS   16

/* longest time to live of a key: 100 years, for rates that never refill */
#define NGX_HTTP_RATELIMIT_TTL_MAX  3155760000000ULL        /* ms */


/* what a request wants of one limit, and what came of it */

typedef struct {
    const char                     *key;       /* Redis's */
    size_t                          len;
    uint64_t                        hash[2];   /* of the key and its shard */
    ngx_http_ratelimit_bucket_t     bucket;
    unsigned                        shadow:1;  /* denies nobody but itself */

    int64_t                         state[NGX_HTTP_RATELIMIT_STATES];
    ngx_http_ratelimit_failure_e    failure;   /* of this one in a batch */
    ngx_http_ratelimit_decision_t   decision;
} ngx_http_ratelimit_claim_t;


/* the claims of one request that go to one server together */

typedef struct {
    ngx_http_ratelimit_claim_t     *claims[NGX_HTTP_RATELIMIT_CLAIMS];
    size_t                          n;
    uint32_t                        times;     /* requests; 1 unless n is */
    uint32_t                        passed;    /* so many of them */
    uint64_t                        now;       /* nginx's clock, us */
    const char                     *id;        /* unique */
    size_t                          id_len;
    unsigned                        preview:1; /* take nothing */
    unsigned                        clock:1;   /* nginx's time counts */
    unsigned                        eval:1;    /* with the script's text */
} ngx_http_ratelimit_script_t;


/*
 * These return the length of the command, -1 if there is no memory; it is
 * released by ngx_http_ratelimit_script_free().
 */

long long ngx_http_ratelimit_script_take(char **command,
    const ngx_http_ratelimit_script_t *script);

/*
 * The same for single requests to several limits that are alike, and have
 * nothing to do with each other
 */
long long ngx_http_ratelimit_script_batch(char **command,
    ngx_http_ratelimit_claim_t **claims, size_t n, unsigned eval);

/* whether two calls, or a call at all, can be part of such a one */
int ngx_http_ratelimit_script_alike(const ngx_http_ratelimit_script_t *a,
    const ngx_http_ratelimit_script_t *b);

/* whether one of the short scripts will do, without time and id */
int ngx_http_ratelimit_script_short(const ngx_http_ratelimit_script_t *script);

/* gives back what a call has taken for so many requests */
long long ngx_http_ratelimit_script_refund(char **command,
    const ngx_http_ratelimit_script_t *script, uint64_t times);

/* asks, by writing to this key, whether a server can be used */
long long ngx_http_ratelimit_script_probe(char **command, const char *key,
    size_t len);

/* SCRIPT LOAD of script number i; -2 if there is none */
long long ngx_http_ratelimit_script_load(char **command, size_t i);

/* any command of zero-terminated words; the list ends with NULL */
long long ngx_http_ratelimit_script_command(char **command, ...);

/* fills the claims' states, and "passed", or says why there are none */
ngx_http_ratelimit_failure_e ngx_http_ratelimit_script_reply(
    const ngx_http_ratelimit_reply_t *reply,
    ngx_http_ratelimit_script_t *script);

ngx_http_ratelimit_failure_e ngx_http_ratelimit_script_batch_reply(
    const ngx_http_ratelimit_reply_t *reply,
    ngx_http_ratelimit_claim_t **claims, size_t n);

void ngx_http_ratelimit_script_free(char *command);

/* whether a call that was answered took something */
int ngx_http_ratelimit_script_taken(const ngx_http_ratelimit_script_t *script);


#endif /* _NGX_HTTP_RATELIMIT_SCRIPT_H_INCLUDED_ */
