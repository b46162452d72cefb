
/*
 * Requests of a worker for one bucket go to Redis together.
 */


#ifndef _NGX_RL_COMBINE_H_INCLUDED_
#define _NGX_RL_COMBINE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/ngx_rl_take.h"


ngx_int_t ngx_rl_combine_init(ngx_cycle_t *cycle, ngx_rl_zone_t *zone);

void ngx_rl_combine_exit(void);

/*
 * Sends a take of a single claim, now or with others.  NGX_AGAIN: the take's
 * handler will be called, exactly once and within its timeout; NGX_OK: it will
 * not, as the call has failed already
 */
ngx_int_t ngx_rl_combine_join(ngx_rl_take_t *take, ngx_rl_server_t *server);

/* the take's handler will not be called */
void ngx_rl_combine_leave(ngx_rl_take_t *take);


#endif /* _NGX_RL_COMBINE_H_INCLUDED_ */
