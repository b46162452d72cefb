
#include "core/ngx_rl_clock.h"


#define NGX_RL_CLOCK_SECOND  1000000ULL

/*
 * us: a refill interval may have begun before this machine started.  An
 * interval is a day at most, and the slowest rate makes a microtoken a day.
 */
#define NGX_RL_CLOCK_BEGIN   (4 * 86400 * NGX_RL_CLOCK_SECOND)


uint64_t
ngx_rl_clock_us(void)
{
    struct timespec  ts;

    (void) clock_gettime(CLOCK_MONOTONIC, &ts);

    return NGX_RL_CLOCK_BEGIN
           + (uint64_t) ts.tv_sec * NGX_RL_CLOCK_SECOND + ts.tv_nsec / 1000;
}


uint64_t
ngx_rl_clock_wall_us(void)
{
    struct timeval  tv;

    ngx_gettimeofday(&tv);

    return (uint64_t) tv.tv_sec * NGX_RL_CLOCK_SECOND + tv.tv_usec;
}
