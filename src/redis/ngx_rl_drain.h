
/*
 * What is still to be written, and to be read, when the process ends.
 */


#ifndef _NGX_RL_DRAIN_H_INCLUDED_
#define _NGX_RL_DRAIN_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


/*
 * For the end of the process, where there are no events any more: writes what
 * waits, and hands over what has been answered.  NGX_OK: something happened;
 * NGX_DECLINED: nothing did, for so many ms, or nothing is under way
 */
ngx_int_t ngx_rl_drain_turn(ngx_msec_t timeout);


#endif /* _NGX_RL_DRAIN_H_INCLUDED_ */
