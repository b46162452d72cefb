
/*
 * Tokens that were taken in advance go back in time.
 */


#ifndef _NGX_RL_LEASE_H_INCLUDED_
#define _NGX_RL_LEASE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "topology/ngx_rl_server.h"
#include "memory/ngx_rl_known.h"
#include "pure/ngx_rl_claim.h"


void ngx_rl_lease_init(ngx_cycle_t *cycle, ngx_rl_zone_t *zone);

/* gives back what is held, while there still are connections */
void ngx_rl_lease_exit(void);

/* whether one more of this time to live may be taken; else that is counted */
ngx_uint_t ngx_rl_lease_room(ngx_rl_server_t *server, ngx_msec_t ttl);

/*
 * The claim's limit is learned, with tokens that were taken by a call that was
 * sent then, us.  They are spent from shared memory, and what is left of them
 * when the time of the lease is over goes back.  NGX_DECLINED: there is nowhere
 * to hold them.
 */
ngx_int_t ngx_rl_lease(ngx_rl_server_t *server,
    ngx_rl_claim_t *claim, ngx_rl_known_ttl_t *ttl,
    uint64_t sent, uint64_t tokens, ngx_msec_t timeout);


#endif /* _NGX_RL_LEASE_H_INCLUDED_ */
