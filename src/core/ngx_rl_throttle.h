
/*
 * Limits log lines to so many a minute.  A throttle starts as zeroes, in the
 * memory of a process, or in shared memory, where the lines of all workers
 * count together.
 */


#ifndef _NGX_RL_THROTTLE_H_INCLUDED_
#define _NGX_RL_THROTTLE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


typedef struct {
    ngx_atomic_t  minute;   /* s: when it began; 0: long ago */
    ngx_atomic_t  lines;    /* in it, after the first one */
    ngx_atomic_t  dropped;  /* not logged, and not mentioned either */
} ngx_rl_throttle_t;


/*
 * Whether one more line may be logged, of at most "lines" a minute.  If
 * "dropped" is not NULL, a line that is not logged is counted, and the next
 * logged line gets the number of lines dropped before it.
 */
ngx_uint_t ngx_rl_throttle(ngx_rl_throttle_t *throttle,
    ngx_uint_t lines, ngx_atomic_uint_t *dropped);

/*
 * Returns how many lines were dropped, if the minute ended without a line that
 * could report them; 0: none.  The count is reset.
 */
ngx_atomic_uint_t ngx_rl_throttle_dropped(ngx_rl_throttle_t *throttle);

/* starts the minute, as if a line had just been logged */
void ngx_rl_throttle_start(ngx_rl_throttle_t *throttle);

/* the next line is logged, whenever it comes */
#define ngx_rl_throttle_reset(throttle)  ((throttle)->minute = 0)


#endif /* _NGX_RL_THROTTLE_H_INCLUDED_ */
