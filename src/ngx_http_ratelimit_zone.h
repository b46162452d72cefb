
/*
 * Shared memory of all workers: what is known about keys, for a while.
 */


#ifndef _NGX_HTTP_RATELIMIT_ZONE_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_ZONE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_ratelimit_decision.h"


#define NGX_HTTP_RATELIMIT_ZONE_SIZE  (10 * 1024 * 1024)


/* adds the zone to the configuration; NULL: an error was logged */
ngx_shm_zone_t *ngx_http_ratelimit_zone_add(ngx_conf_t *cf, size_t size,
    void *tag);

/*
 * NGX_OK: the state is filled in; NGX_DECLINED: nothing known that is younger
 * than "age"
 */
ngx_int_t ngx_http_ratelimit_zone_get(ngx_shm_zone_t *shm_zone,
    ngx_str_t *key, int64_t *state, ngx_msec_t age);

/* remembers a state; a full zone forgets the least recently used */
void ngx_http_ratelimit_zone_set(ngx_shm_zone_t *shm_zone, ngx_str_t *key,
    int64_t *state);


#endif /* _NGX_HTTP_RATELIMIT_ZONE_H_INCLUDED_ */
