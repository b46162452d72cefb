
/*
 * A call: the claims of one request that go to one server together, and what
 * the script replied.
 */


#ifndef _NGX_RL_CALL_H_INCLUDED_
#define _NGX_RL_CALL_H_INCLUDED_


#include "pure/ngx_rl_claim.h"
#include "pure/ngx_rl_failure.h"
#include "pure/ngx_rl_reply.h"


/* bytes that the id of a command may have */
#define NGX_RL_CALL_ID  40


typedef struct {
    ngx_rl_claim_t   *claims[NGX_RL_CLAIMS];
    size_t            n;
    uint32_t          times;      /* requests; 1 unless n is */
    uint32_t          passed;     /* so many of them */
    ngx_rl_failure_e  failure;    /* of this one among others */
    ngx_rl_reply_t   *error;      /* its reply then; valid as long
                                     as that of all of them */
    uint64_t          now;        /* nginx's clock, us */
    char              id[NGX_RL_CALL_ID];
                                  /* of the command; unique */
    size_t            id_len;
    unsigned          preview:1;  /* take nothing */
    unsigned          clock:1;    /* nginx's time counts */
    unsigned          part:1;     /* of a request with others */
} ngx_rl_call_t;


/* whether one of the short scripts can serve it, without an id */
int ngx_rl_call_short(const ngx_rl_call_t *call);

/* whether one of its limits can reject the request */
int ngx_rl_call_enforced(const ngx_rl_call_t *call);

/* whether an answered call took something */
int ngx_rl_call_taken(const ngx_rl_call_t *call);


#endif /* _NGX_RL_CALL_H_INCLUDED_ */
