
/*
 * The phases, and the context in which a request's decision is kept.
 */


#ifndef _NGX_RL_HANDLER_H_INCLUDED_
#define _NGX_RL_HANDLER_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "http/ngx_rl_evaluate.h"
#include "conf/ngx_rl_conf.h"
#include "store/ngx_rl_take.h"


typedef struct ngx_rl_ctx_s  ngx_rl_ctx_t;

struct ngx_rl_ctx_s {
    ngx_http_request_t    *request;
    ngx_rl_loc_conf_t     *conf;     /* of where it was decided */
    ngx_rl_http_claim_t   *claims;   /* conf->n of them */
    ngx_rl_take_t          take;

    /* the answer; its numbers are those of the limit that speaks */

    ngx_rl_decision_t      decision;
    ngx_rl_http_claim_t   *speaker;
    ngx_rl_server_conf_t  *peer;     /* who told, or NULL */
    uint64_t               start;    /* us, monotonic */
    uint64_t               latency;  /* us */
    time_t                 time;     /* of the decision */
    unsigned               done:1;
    unsigned               told:1;   /* the verdict was returned */
    unsigned               final:1;  /* no other place decides */

    /* a place on the way here that was in a dry run or previewed, or NULL */
    ngx_rl_ctx_t          *before;
};


/* "ratelimit_phase" says which of the two acts */
ngx_int_t ngx_rl_access_handler(ngx_http_request_t *r);
ngx_int_t ngx_rl_precontent_handler(ngx_http_request_t *r);

/*
 * The context of a main request, also after an internal redirect; NULL if
 * there is none
 */
ngx_rl_ctx_t *ngx_rl_ctx_get(ngx_http_request_t *r);


#endif /* _NGX_RL_HANDLER_H_INCLUDED_ */
