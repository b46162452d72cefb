
/*
 * So many lines a minute in the log.  A throttle begins as zeroes: in the
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
 * Whether one more line is to be logged, of at most "lines" a minute.  If
 * "dropped" is not NULL, a line that is not logged is counted, and the next one
 * that is gets the number of those before it.
 */
ngx_uint_t ngx_rl_throttle(ngx_rl_throttle_t *throttle,
    ngx_uint_t lines, ngx_atomic_uint_t *dropped);

/*
 * How many lines have been dropped, if the minute is over without another line
 * that could have said so; 0: none.  They are not counted any more then.
 */
ngx_atomic_uint_t ngx_rl_throttle_dropped(ngx_rl_throttle_t *throttle);

/* the minute begins, as if a line had just been logged */
void ngx_rl_throttle_start(ngx_rl_throttle_t *throttle);

/* the next line is logged, whenever it comes */
#define ngx_rl_throttle_reset(throttle)  ((throttle)->minute = 0)


#endif /* _NGX_RL_THROTTLE_H_INCLUDED_ */
