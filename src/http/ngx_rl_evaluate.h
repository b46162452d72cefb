
/*
 * Turns variables into claims: the key, capacity, rate and cost that a limit
 * has for one request.
 */


#ifndef _NGX_RL_EVALUATE_H_INCLUDED_
#define _NGX_RL_EVALUATE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_rl_conf.h"
#include "pure/ngx_rl_claim.h"


/*
 * A claim with what the HTTP layer adds to it; the decision also says why a
 * claim failed.
 */

typedef struct {
    ngx_rl_limit_t  *limit;
    ngx_str_t        key;           /* the client's */
    ngx_rl_claim_t   claim;
    unsigned         unanswered:1;  /* not decided yet */
    unsigned         asked:1;       /* decided by an earlier location */
} ngx_rl_http_claim_t;


/*
 * NGX_OK: the claim can be made;
 * NGX_DECLINED: it can't, and the outcome or the failure says why;
 * NGX_ERROR: no memory
 */
ngx_int_t ngx_rl_evaluate(ngx_http_request_t *r, ngx_rl_loc_conf_t *conf,
    ngx_rl_location_limit_t *ll, ngx_rl_http_claim_t *hc);

/*
 * Makes the key in Redis of hc->key, which is replaced by its digest if it is
 * too long or must not be used as it is.  NGX_ERROR: no memory
 */
ngx_int_t ngx_rl_evaluate_claim_key(ngx_pool_t *pool,
    ngx_rl_location_limit_t *ll, ngx_rl_http_claim_t *hc);

/*
 * Applies the override of this key, if it has one; the bucket must be filled
 * in.  NGX_OK: the claim can be made, perhaps with other numbers;
 * NGX_DECLINED: the override has decided it.
 */
ngx_int_t ngx_rl_evaluate_override(ngx_rl_overrides_t *overrides,
    ngx_rl_http_claim_t *hc, ngx_log_t *log);

/*
 * If the limit of a location gives advice, its bucket may go into debt, and
 * has a key of its own; bucket and key are set already.
 */
void ngx_rl_evaluate_advise(ngx_rl_location_limit_t *ll,
    ngx_rl_http_claim_t *hc);

/*
 * The address of the client as limits use it.  Of an IPv6 address only the
 * network is kept, because a client can use any address in it.
 */
ngx_int_t ngx_rl_client_net(ngx_http_request_t *r, ngx_str_t *net);


#endif /* _NGX_RL_EVALUATE_H_INCLUDED_ */
