
/*
 * Refunds: tokens that are returned to their buckets in Redis.
 */


#ifndef _NGX_RL_REFUND_H_INCLUDED_
#define _NGX_RL_REFUND_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "topology/ngx_rl_server.h"
#include "script/ngx_rl_eval.h"


void ngx_rl_refund_init(void);

/* the process exits: collects everything that is still to be refunded */
void ngx_rl_refund_end(void);

/*
 * Sends what has not been sent and waits for the answers, for some seconds at
 * most.  Connections must still exist.
 */
void ngx_rl_refund_exit(void);

/*
 * Refunds tokens of a claim, together with other refunds of the same
 * event-loop turn.  "call" is the call that took them, or NULL for a lease.
 * All arguments are copied.  Nobody waits for a refund.  If it fails, the
 * tokens stay taken until they are refilled, and the loss is counted.
 */
void ngx_rl_refund(ngx_rl_server_t *server, const ngx_rl_claim_t *claim,
    uint64_t tokens, const ngx_rl_call_t *call, ngx_msec_t timeout);


#endif /* _NGX_RL_REFUND_H_INCLUDED_ */
