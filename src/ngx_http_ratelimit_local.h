
/*
 * Limits that live in the memory of this machine: all of them where there are
 * no shards, and a share of those whose shard can't be asked.  Also what was
 * seen of the shards a moment ago.
 */


#ifndef _NGX_HTTP_RATELIMIT_LOCAL_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_LOCAL_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_ratelimit_script.h"
#include "ngx_http_ratelimit_zone.h"


/* the clock of all that happens on this machine: us, never steps back */
uint64_t ngx_http_ratelimit_local_clock(void);

/*
 * Takes the claims' costs, all or nothing, as the scripts do, and fills in
 * their decisions; "preview" takes nothing.  "share" is NULL where the machine
 * grants all of the limits.  NGX_DECLINED: no memory, nothing is decided.
 */
ngx_int_t ngx_http_ratelimit_local_take(ngx_http_ratelimit_zone_t *zone,
    ngx_http_ratelimit_claim_t **claims, ngx_uint_t n,
    const ngx_http_ratelimit_share_t *share, ngx_uint_t preview, uint64_t now);

/*
 * What a preview was told about a claim by the shard with this label, if that
 * is younger than "age", ms: NGX_OK, the state is filled in; NGX_DECLINED
 */
ngx_int_t ngx_http_ratelimit_local_recall(ngx_http_ratelimit_zone_t *zone,
    ngx_str_t *label, ngx_http_ratelimit_claim_t *claim, ngx_msec_t age);
void ngx_http_ratelimit_local_remember(ngx_http_ratelimit_zone_t *zone,
    ngx_str_t *label, ngx_http_ratelimit_claim_t *claim);


#endif /* _NGX_HTTP_RATELIMIT_LOCAL_H_INCLUDED_ */
