
/*
 * Sentinels, and the masters that they name: a worker has one connection to
 * one of the sentinels, and a link to each master.
 */


#ifndef _NGX_HTTP_RATELIMIT_SENTINEL_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_SENTINEL_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_ratelimit_link.h"


typedef struct ngx_http_ratelimit_sentinel_s  ngx_http_ratelimit_sentinel_t;


/* NULL: no memory; begins to look for the masters */
ngx_http_ratelimit_sentinel_t *ngx_http_ratelimit_sentinel_create(
    ngx_cycle_t *cycle, ngx_http_ratelimit_sentinels_t *sentinels,
    ngx_http_ratelimit_zone_t *zone, ngx_http_ratelimit_stats_t *stats);

/* to the master with this number */
ngx_http_ratelimit_link_t *ngx_http_ratelimit_sentinel_link(
    ngx_http_ratelimit_sentinel_t *sentinel, ngx_uint_t i);

/* for the end of the process; links are their users' */
void ngx_http_ratelimit_sentinel_exit(ngx_http_ratelimit_sentinel_t *sentinel);


#endif /* _NGX_HTTP_RATELIMIT_SENTINEL_H_INCLUDED_ */
