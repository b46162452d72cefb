
/*
 * What this machine knows about buckets and windows in Redis without asking:
 * the answers to previews, denials, and tokens taken in advance.
 */


#ifndef _NGX_RL_KNOWN_H_INCLUDED_
#define _NGX_RL_KNOWN_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "pure/ngx_rl_claim.h"
#include "memory/ngx_rl_zone.h"


/* identifies a claim in this machine's memory, separately for each shard */
void ngx_rl_known_hash(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, uint64_t shard);

/*
 * What a preview learned about a claim less than "age" ms ago.  NGX_OK: the
 * state is filled in; NGX_DECLINED: nothing is known.
 */
ngx_int_t ngx_rl_known_preview(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, ngx_msec_t age);
void ngx_rl_known_preview_save(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, ngx_msec_t age);

/*
 * How long a denial is used, and how long tokens are held, in ms.  Without a
 * lease, held tokens are not spent.
 */

typedef struct {
    ngx_msec_t  deny;  /* 0: not at all */
    ngx_msec_t  lease;
} ngx_rl_known_ttl_t;


/*
 * Decides without asking Redis, if the bucket is known to be empty or this
 * machine holds tokens of it.  NGX_OK: the claim is decided; NGX_DECLINED.
 */
ngx_int_t ngx_rl_known_decide(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, ngx_rl_known_ttl_t *ttl, uint64_t now);

/*
 * Stores the answer of a shard to a call sent at "sent"; the state of the
 * claim is what was left.  "held" more tokens were taken by a lease, which
 * must be ended with the mark that it gets.  NGX_DECLINED: there is no room.
 */
ngx_int_t ngx_rl_known_learn(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, ngx_rl_known_ttl_t *ttl,
    uint64_t sent, uint64_t held, uint32_t *mark);

/*
 * The same for a denial by one of several shards.  The missing tokens may be
 * held by a request that another shard denies, and be refunded in a moment.
 * So the first such denial is used for a moment only.  If the next answer
 * agrees, it is used for the full time.
 */
void ngx_rl_known_suspect(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, ngx_rl_known_ttl_t *ttl, uint64_t sent);

/* so many tokens were refunded: corrects what was learned before */
void ngx_rl_known_lease_returned(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, uint64_t tokens);

/* tokens of a bucket that this machine holds, for people who look at it */
uint64_t ngx_rl_known_held(ngx_rl_zone_t *zone, ngx_rl_claim_t *claim);

/* how many tokens to take in advance for the current demand, at most "max" */
uint64_t ngx_rl_known_lease_size(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, ngx_rl_known_ttl_t *ttl, uint64_t max, uint64_t now);

/* whether the tokens of a lease, and of all before it, have been used up */
ngx_uint_t ngx_rl_known_lease_spent(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, uint32_t mark);

/* ends a lease: takes its remaining tokens back and returns their number */
uint64_t ngx_rl_known_lease_end(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, uint32_t mark);


#endif /* _NGX_RL_KNOWN_H_INCLUDED_ */
