
/*
 * What this machine knows of buckets and windows in Redis without asking: what
 * previews were told, which of them are empty or full, and tokens taken in
 * advance.
 */


#ifndef _NGX_RL_KNOWN_H_INCLUDED_
#define _NGX_RL_KNOWN_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "pure/ngx_rl_claim.h"
#include "memory/ngx_rl_zone.h"


/* names a claim in this machine's memory, apart from those of other shards */
void ngx_rl_known_hash(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, uint64_t shard);

/*
 * What a preview was told about a claim less than "age" ms ago.  NGX_OK: the
 * state is filled in; NGX_DECLINED
 */
ngx_int_t ngx_rl_known_preview(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, ngx_msec_t age);
void ngx_rl_known_preview_save(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, ngx_msec_t age);

/*
 * For how long a denial is believed, and tokens are held, ms.  Without a lease,
 * tokens that are held are not spent.
 */

typedef struct {
    ngx_msec_t  deny;  /* 0: not at all */
    ngx_msec_t  lease;
} ngx_rl_known_ttl_t;


/*
 * Decides without asking, if the bucket is known to be empty or tokens of it
 * are held here.  NGX_OK: the claim is decided; NGX_DECLINED
 */
ngx_int_t ngx_rl_known_decide(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, ngx_rl_known_ttl_t *ttl, uint64_t now);

/*
 * A shard was asked at "sent", and the claim's state is what was left.  "held"
 * more tokens were taken, by a lease that has to be ended with the mark that it
 * gets.  NGX_DECLINED: there is no room to store that
 */
ngx_int_t ngx_rl_known_learn(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, ngx_rl_known_ttl_t *ttl,
    uint64_t sent, uint64_t held, uint32_t *mark);

/*
 * The same for a denial by one of several shards.  What the bucket lacks may be
 * held by a request that another shard denies, and come back in a moment.  So
 * the denial is believed for a moment, and in full if a later answer says the
 * same.
 */
void ngx_rl_known_suspect(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, ngx_rl_known_ttl_t *ttl, uint64_t sent);

/* so much has been given back: what was learned before is corrected */
void ngx_rl_known_lease_returned(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, uint64_t tokens);

/* how many tokens to take in advance, at most "max", for the demand there is */
uint64_t ngx_rl_known_lease_size(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, ngx_rl_known_ttl_t *ttl, uint64_t max, uint64_t now);

/* whether nothing is left of a lease, and of all before it */
ngx_uint_t ngx_rl_known_lease_spent(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, uint32_t mark);

/* a lease is over: takes back what is left of it, and says how much it was */
uint64_t ngx_rl_known_lease_end(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, uint32_t mark);


#endif /* _NGX_RL_KNOWN_H_INCLUDED_ */
