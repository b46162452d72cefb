
/*
 * Limits in the memory of this machine: all limits if there are no shards, and
 * a share of those whose shard cannot be asked.
 */


#ifndef _NGX_RL_LOCAL_H_INCLUDED_
#define _NGX_RL_LOCAL_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "pure/ngx_rl_claim.h"
#include "memory/ngx_rl_zone.h"


/*
 * Takes the costs of all claims or of none, as the scripts do, and fills in
 * their decisions; "preview" takes nothing.  "share" is NULL where the machine
 * grants the whole limits.  NGX_DECLINED: no memory, nothing is decided.
 */
ngx_int_t ngx_rl_local_take(ngx_rl_zone_t *zone,
    ngx_rl_claim_t **claims, ngx_uint_t n,
    const ngx_rl_share_t *share, ngx_uint_t preview, uint64_t now);

/* a bucket is full again, and a window is empty; the key is that of Redis */
void ngx_rl_local_reset(ngx_rl_zone_t *zone, const char *key, size_t len);


#endif /* _NGX_RL_LOCAL_H_INCLUDED_ */
