
#include "core/ngx_rl_throttle.h"


#define NGX_RL_THROTTLE_MINUTE  60         /* s */


static ngx_atomic_uint_t ngx_rl_throttle_now(void);
static ngx_uint_t ngx_rl_throttle_over(
    ngx_atomic_uint_t minute, ngx_atomic_uint_t now);


ngx_uint_t
ngx_rl_throttle(ngx_rl_throttle_t *throttle,
    ngx_uint_t lines, ngx_atomic_uint_t *dropped)
{
    ngx_atomic_uint_t  now, minute;

    now = ngx_rl_throttle_now();
    minute = throttle->minute;

    /* one of several workers starts the minute: its line is the first */

    if (ngx_rl_throttle_over(minute, now)
        && ngx_atomic_cmp_set(&throttle->minute, minute, now))
    {
        throttle->lines = 0;

    } else if (lines == 1
               || ngx_atomic_fetch_add(&throttle->lines, 1) >= lines - 1)
    {
        if (dropped) {
            (void) ngx_atomic_fetch_add(&throttle->dropped, 1);
        }

        return 0;
    }

    if (dropped) {
        *dropped = throttle->dropped;
        throttle->dropped = 0;
    }

    return 1;
}


ngx_atomic_uint_t
ngx_rl_throttle_dropped(ngx_rl_throttle_t *throttle)
{
    ngx_atomic_uint_t  dropped;

    dropped = throttle->dropped;

    if (dropped == 0
        || !ngx_rl_throttle_over(throttle->minute, ngx_rl_throttle_now())
        || !ngx_atomic_cmp_set(&throttle->dropped, dropped, 0))
    {
        return 0;
    }

    return dropped;
}


void
ngx_rl_throttle_start(ngx_rl_throttle_t *throttle)
{
    throttle->minute = ngx_rl_throttle_now();
}


/* s, by a clock that never steps back; 0 is at least a minute ago */

static ngx_atomic_uint_t
ngx_rl_throttle_now(void)
{
    return ngx_current_msec / 1000 + NGX_RL_THROTTLE_MINUTE;
}


/* the clock of another worker may be slightly ahead */

static ngx_uint_t
ngx_rl_throttle_over(ngx_atomic_uint_t minute, ngx_atomic_uint_t now)
{
    return (ngx_atomic_int_t) (now - minute) >= NGX_RL_THROTTLE_MINUTE;
}
