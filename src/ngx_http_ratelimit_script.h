
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
    ngx_http_ratelimit_bucket_t     bucket;
    unsigned                        shadow:1;  /* denies nobody but itself */

    int64_t                         state[NGX_HTTP_RATELIMIT_STATES];
    ngx_http_ratelimit_decision_t   decision;
} ngx_http_ratelimit_claim_t;


/* the claims of one request that go to one server together */

typedef struct {
    ngx_http_ratelimit_claim_t     *claims[NGX_HTTP_RATELIMIT_CLAIMS];
    size_t                          n;
    uint64_t                        now;       /* nginx's clock, us */
    const char                     *id;        /* unique */
    size_t                          id_len;
    unsigned                        preview:1; /* take nothing */
    unsigned                        clock:1;   /* nginx's time counts */
    unsigned                        eval:1;    /* with the script's text */
} ngx_http_ratelimit_script_t;


/*
 * These return the length of the command, -1 if there is no memory; it is
 * released by redisFreeCommand().
 */

long long ngx_http_ratelimit_script_take(char **command,
    const ngx_http_ratelimit_script_t *script);

/* gives back what a call has taken */
long long ngx_http_ratelimit_script_refund(char **command,
    const ngx_http_ratelimit_script_t *script);

/* asks, by writing to this key, whether a server can be used */
long long ngx_http_ratelimit_script_probe(char **command, const char *key,
    size_t len);

/* SCRIPT LOAD of script number i; -2 if there is none */
long long ngx_http_ratelimit_script_load(char **command, size_t i);

/* any command of zero-terminated words; the list ends with NULL */
long long ngx_http_ratelimit_script_command(char **command, ...);

/* fills the claims' decisions, or says why there are none */
ngx_http_ratelimit_failure_e ngx_http_ratelimit_script_reply(
    const ngx_http_ratelimit_reply_t *reply,
    ngx_http_ratelimit_script_t *script);

/* whether a call that was answered took something */
int ngx_http_ratelimit_script_taken(const ngx_http_ratelimit_script_t *script);


#endif /* _NGX_HTTP_RATELIMIT_SCRIPT_H_INCLUDED_ */
