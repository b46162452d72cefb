
/*
 * Time in microseconds, read from the system at each call. nginx's cached time
 * stands still while it handles events.
 */


#ifndef _NGX_RL_CLOCK_H_INCLUDED_
#define _NGX_RL_CLOCK_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


/*
 * The clock for everything on this machine.  It never steps back, all
 * processes see the same time, and it appears to have run for at least four
 * days.
 */
uint64_t ngx_rl_clock_us(void);

/* since 1970, by the wall clock, which may be set */
uint64_t ngx_rl_clock_wall_us(void);


#endif /* _NGX_RL_CLOCK_H_INCLUDED_ */
