
/*
 * Tokens go back to where they were taken.
 */


#ifndef _NGX_RL_REFUND_H_INCLUDED_
#define _NGX_RL_REFUND_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "topology/ngx_rl_server.h"
#include "script/ngx_rl_eval.h"


void ngx_rl_refund_init(void);

/* the process ends: what comes from now on is all there is */
void ngx_rl_refund_end(void);

/*
 * Sends what has not been sent and waits for the answers, for some seconds at
 * most, while there still are connections
 */
void ngx_rl_refund_exit(void);

/*
 * Gives back tokens of a claim that a call took, or NULL: a lease, with others
 * of the same event-loop turn.  What it points to is copied.  Nobody waits for
 * that: if it fails, tokens stay taken that come back with time, and the loss
 * is counted.
 */
void ngx_rl_refund(ngx_rl_server_t *server, const ngx_rl_claim_t *claim,
    uint64_t tokens, const ngx_rl_call_t *call, ngx_msec_t timeout);


#endif /* _NGX_RL_REFUND_H_INCLUDED_ */
