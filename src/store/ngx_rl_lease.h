
/*
 * Leases: tokens taken in advance, and when the rest of them is refunded.
 */


#ifndef _NGX_RL_LEASE_H_INCLUDED_
#define _NGX_RL_LEASE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "topology/ngx_rl_server.h"
#include "memory/ngx_rl_known.h"
#include "pure/ngx_rl_claim.h"


void ngx_rl_lease_init(ngx_cycle_t *cycle, ngx_rl_zone_t *zone);

/* refunds all held tokens, while connections still exist */
void ngx_rl_lease_exit(void);

/*
 * Whether one more lease of this time to live may be taken; a refusal is
 * counted.
 */
ngx_uint_t ngx_rl_lease_room(ngx_rl_server_t *server, ngx_msec_t ttl);

/*
 * Stores what a call has taught about the bucket of the claim, and the tokens
 * that it took in advance; "sent" is the time of the call, in us.  The tokens
 * are spent from shared memory.  Those that are left when the lease ends are
 * refunded.  NGX_DECLINED: there is no room to hold them.
 */
ngx_int_t ngx_rl_lease(ngx_rl_server_t *server,
    ngx_rl_claim_t *claim, ngx_rl_known_ttl_t *ttl,
    uint64_t sent, uint64_t tokens, ngx_msec_t timeout);


#endif /* _NGX_RL_LEASE_H_INCLUDED_ */
