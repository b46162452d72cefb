
/*
 * Requests of a worker for one bucket go to Redis together.
 */


#ifndef _NGX_HTTP_RATELIMIT_GROUP_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_GROUP_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_ratelimit_store.h"


ngx_int_t ngx_http_ratelimit_group_init(ngx_cycle_t *cycle,
    ngx_http_ratelimit_zone_t *zone);

void ngx_http_ratelimit_group_exit(void);

/*
 * Sends a take of a single claim, now or with others.  NGX_AGAIN: the take's
 * handler will be called, exactly once and within its timeout; NGX_OK: it will
 * not, as the call has failed already
 */
ngx_int_t ngx_http_ratelimit_group_join(ngx_http_ratelimit_take_t *take,
    ngx_http_ratelimit_link_t *link);

/* the take's handler will not be called */
void ngx_http_ratelimit_group_leave(ngx_http_ratelimit_take_t *take);


#endif /* _NGX_HTTP_RATELIMIT_GROUP_H_INCLUDED_ */
