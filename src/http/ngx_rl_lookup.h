
/*
 * Looks at the state of one key of a limit, for the API.  Takes nothing, and is
 * not counted as a request.
 */


#ifndef _NGX_RL_LOOKUP_H_INCLUDED_
#define _NGX_RL_LOOKUP_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "http/ngx_rl_evaluate.h"
#include "store/ngx_rl_take.h"


typedef struct ngx_rl_lookup_s  ngx_rl_lookup_t;

typedef void (*ngx_rl_lookup_pt)(ngx_rl_lookup_t *lookup);


struct ngx_rl_lookup_s {

    /* set by the caller */

    ngx_rl_use_t          *use;
    ngx_rl_lookup_pt       handler;
    void                  *data;

    /* set by prepare; its decision is valid after an answer */

    ngx_rl_http_claim_t    hc;
    ngx_rl_server_conf_t  *server;       /* NULL: this machine's memory */

    ngx_rl_override_copy_t
                          *override;     /* of the key, or NULL */
    unsigned               decided:1;    /* by it: nobody is asked */
    unsigned               cost:1;       /* is an argument of the request */

    /* after prepare has declined: which parameter, and what is wrong with it */

    ngx_rl_param_e         param;
    const char            *err;

    /* after an answer */

    ngx_rl_failure_e       failure;      /* OK: the decision is valid */
    ngx_str_t              label;        /* of the server that was asked */
    unsigned               denied:1;     /* this machine rejects by itself */
    uint64_t               held;         /* tokens, by a lease */

    ngx_rl_take_t          take;         /* private */
};


/*
 * Makes the claim for a key.  Parameters that come from variables are taken
 * from the arguments of the request.  NGX_DECLINED: one is missing or wrong;
 * NGX_ERROR: no memory
 */
ngx_int_t ngx_rl_lookup_prepare(ngx_rl_lookup_t *lookup, ngx_http_request_t *r,
    ngx_str_t *key);

/*
 * NGX_OK: the answer is there; NGX_AGAIN: the handler will be called once;
 * NGX_ERROR: no memory
 */
ngx_int_t ngx_rl_lookup_ask(ngx_rl_lookup_t *lookup, ngx_http_request_t *r);

/* the handler will not be called any more */
void ngx_rl_lookup_cancel(ngx_rl_lookup_t *lookup);


#endif /* _NGX_RL_LOOKUP_H_INCLUDED_ */
