
/*
 * Time in microseconds, read from the system whenever it is asked for: the time
 * of nginx stands still while it works on events.
 */


#ifndef _NGX_RL_CLOCK_H_INCLUDED_
#define _NGX_RL_CLOCK_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


/*
 * The clock of all that happens on this machine: it never steps back, all
 * processes see the same, and it has been running for at least four days.
 */
uint64_t ngx_rl_clock_us(void);

/* since 1970, by the clock of the machine, which people set */
uint64_t ngx_rl_clock_wall_us(void);


#endif /* _NGX_RL_CLOCK_H_INCLUDED_ */
