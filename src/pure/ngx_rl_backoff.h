
/*
 * The pause before the next attempt to connect.  Pure.
 */


#ifndef _NGX_RL_BACKOFF_H_INCLUDED_
#define _NGX_RL_BACKOFF_H_INCLUDED_


#include <stdint.h>


#define NGX_RL_BACKOFF_MIN  50       /* ms */


/*
 * Milliseconds before attempt number "attempt" (0 is the first retry).  The
 * pause doubles from 50 ms up to "max".  A random part of up to one half is
 * subtracted, so that workers and machines do not retry in step.
 */
uint32_t ngx_rl_backoff(uint32_t attempt, uint32_t max, uint32_t random);


#endif /* _NGX_RL_BACKOFF_H_INCLUDED_ */
