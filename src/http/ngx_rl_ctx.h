
/*
 * The context of a request: its claims, its decision, and the decisions of
 * earlier locations.
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
    ngx_rl_loc_conf_t     *conf;        /* the deciding location */
    ngx_rl_ctx_pt          cleanup;     /* called when the request ends */
    ngx_rl_policy_t        policy;
    ngx_rl_http_claim_t   *claims;      /* conf->n elements */
    ngx_rl_claim_t       **list;        /* pointers to them, for the policy */
    ngx_rl_take_t          take;

    /* the decision on the request, with the numbers of the limit "shown" */

    ngx_rl_decision_t      decision;
    ngx_rl_http_claim_t   *shown;       /* in headers and variables */
    ngx_rl_server_conf_t  *server;      /* asked for "shown", or NULL */
    uint64_t               start;       /* us, monotonic */
    uint64_t               latency;     /* us */
    time_t                 time;        /* when it was decided */
    unsigned               done:1;
    unsigned               returned:1;  /* the phase handler has returned */
    unsigned               final:1;     /* no later location may decide */
    unsigned               grpc:1;      /* rejected in the way of gRPC */

    /* an earlier location in a dry run or a preview, or NULL */
    ngx_rl_ctx_t          *before;
};


/*
 * Returns the context of a main request, also after an internal redirect, or
 * NULL if there is none.
 */
ngx_rl_ctx_t *ngx_rl_ctx_get(ngx_http_request_t *r);

/*
 * Prepares a context for the limits of a location.  If "ctx" is NULL, a new
 * context is made, otherwise "ctx" is cleared and reused.  An earlier decision
 * moves to "before", unless all keys were empty.  Returns NULL if there is no
 * memory; "ctx" is unchanged then.
 */
ngx_rl_ctx_t *ngx_rl_ctx_begin(ngx_http_request_t *r, ngx_rl_ctx_t *ctx,
    ngx_rl_loc_conf_t *conf, ngx_rl_ctx_pt cleanup);

/*
 * Shows the earlier location after all.  The claims of the current one are
 * kept behind it.
 */
void ngx_rl_ctx_step_back(ngx_rl_ctx_t *ctx);


#endif /* _NGX_RL_CTX_H_INCLUDED_ */
