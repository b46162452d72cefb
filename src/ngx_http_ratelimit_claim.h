
/*
 * A limit applied to a request: key, capacity, rate and cost as they are for
 * it, variables evaluated.
 */


#ifndef _NGX_HTTP_RATELIMIT_CLAIM_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_CLAIM_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_http_ratelimit_conf.h"
#include "ngx_http_ratelimit_script.h"


typedef struct {
    ngx_http_ratelimit_limit_t     *limit;
    ngx_str_t                       key;      /* the client's */
    ngx_http_ratelimit_claim_t      claim;    /* with the decision */
    ngx_http_ratelimit_failure_e    failure;  /* why there is none */
    unsigned                        claimed:1;    /* and nobody answered */
    unsigned                        asked:1;      /* at a place before */
} ngx_http_ratelimit_applied_t;


/*
 * NGX_OK: the claim can be made;
 * NGX_DECLINED: it can't, and the outcome or the failure says why;
 * NGX_ERROR: no memory
 */
ngx_int_t ngx_http_ratelimit_claim(ngx_http_request_t *r,
    ngx_http_ratelimit_loc_conf_t *conf, ngx_http_ratelimit_guard_t *guard,
    ngx_http_ratelimit_applied_t *applied);

/*
 * The client's address as a limit should see it: of IPv6 only the network,
 * since a client has all of it to choose from
 */
ngx_int_t ngx_http_ratelimit_client_net(ngx_http_request_t *r, ngx_str_t *net);


#endif /* _NGX_HTTP_RATELIMIT_CLAIM_H_INCLUDED_ */
