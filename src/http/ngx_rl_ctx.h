
/*
 * The context of a request: its claims, the decision, and what locations before
 * this one have decided.
 */


#ifndef _NGX_RL_CTX_H_INCLUDED_
#define _NGX_RL_CTX_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_rl_conf.h"
#include "http/ngx_rl_evaluate.h"
#include "pure/ngx_rl_policy.h"
#include "store/ngx_rl_take.h"


typedef struct ngx_rl_ctx_s  ngx_rl_ctx_t;

typedef void (*ngx_rl_ctx_pt)(ngx_rl_ctx_t *ctx);


struct ngx_rl_ctx_s {
    ngx_http_request_t    *request;
    ngx_rl_main_conf_t    *main;
    ngx_rl_loc_conf_t     *conf;        /* of the location that decides */
    ngx_rl_ctx_pt          cleanup;     /* called when the request ends */
    ngx_rl_policy_t        policy;
    ngx_rl_http_claim_t   *claims;      /* conf->n of them */
    ngx_rl_claim_t       **list;        /* the same, for the policy */
    ngx_rl_take_t          take;

    /* the decision about the request has the numbers of one limit */

    ngx_rl_decision_t      decision;
    ngx_rl_http_claim_t   *shown;       /* of this one */
    ngx_rl_server_conf_t  *server;      /* that was asked for it, or NULL */
    uint64_t               start;       /* us, monotonic */
    uint64_t               latency;     /* us */
    time_t                 time;        /* of the decision */
    unsigned               done:1;
    unsigned               returned:1;  /* the verdict was */
    unsigned               final:1;     /* no other location decides */

    /* a location before this one, in a dry run or a preview, or NULL */
    ngx_rl_ctx_t          *before;
};


/*
 * The context of a main request, also after an internal redirect; NULL if
 * there is none
 */
ngx_rl_ctx_t *ngx_rl_ctx_get(ngx_http_request_t *r);

/*
 * The context for the limits of a location: a new one if "ctx" is NULL, else
 * the same one, cleared.  What was decided in it moves to "before", unless all
 * keys were empty.  NULL: no memory, and "ctx" is as it was.
 */
ngx_rl_ctx_t *ngx_rl_ctx_begin(ngx_http_request_t *r, ngx_rl_ctx_t *ctx,
    ngx_rl_loc_conf_t *conf, ngx_rl_ctx_pt cleanup);

/*
 * The location before this one is shown after all; what was asked here is
 * remembered behind it
 */
void ngx_rl_ctx_step_back(ngx_rl_ctx_t *ctx);


#endif /* _NGX_RL_CTX_H_INCLUDED_ */
