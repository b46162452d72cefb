
/*
 * Writing and reading at process exit, without an event loop.
 */


#ifndef _NGX_RL_DRAIN_H_INCLUDED_
#define _NGX_RL_DRAIN_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


/*
 * Writes what waits and delivers the replies.  NGX_OK: something happened;
 * NGX_DECLINED: nothing happened for so many ms, or nothing is under way.
 */
ngx_int_t ngx_rl_drain_turn(ngx_msec_t timeout);


#endif /* _NGX_RL_DRAIN_H_INCLUDED_ */
