
/*
 * Variables to claims: the key of a limit, its capacity, rate and cost as they
 * are for one request.
 */


#ifndef _NGX_RL_EVALUATE_H_INCLUDED_
#define _NGX_RL_EVALUATE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_rl_conf.h"
#include "pure/ngx_rl_claim.h"


/* a claim with what HTTP knows of it; its decision says why it failed, too */

typedef struct {
    ngx_rl_limit_t  *limit;
    ngx_str_t        key;           /* the client's */
    ngx_rl_claim_t   claim;
    unsigned         unanswered:1;  /* nobody has decided it yet */
    unsigned         asked:1;       /* by a location before */
} ngx_rl_http_claim_t;


/*
 * NGX_OK: the claim can be made;
 * NGX_DECLINED: it can't, and the outcome or the failure says why;
 * NGX_ERROR: no memory
 */
ngx_int_t ngx_rl_evaluate(ngx_http_request_t *r, ngx_rl_loc_conf_t *conf,
    ngx_rl_location_limit_t *ll, ngx_rl_http_claim_t *hc);

/*
 * The client's address as a limit should see it: of IPv6 only the network,
 * since a client has all of it to choose from
 */
ngx_int_t ngx_rl_client_net(ngx_http_request_t *r, ngx_str_t *net);


#endif /* _NGX_RL_EVALUATE_H_INCLUDED_ */
