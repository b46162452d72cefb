
#include "pure/ngx_rl_backoff.h"


uint32_t
ngx_rl_backoff(uint32_t attempt, uint32_t max, uint32_t random)
{
    uint32_t  delay;

    for (delay = NGX_RL_BACKOFF_MIN; attempt && delay < max; attempt--) {
        delay *= 2;
    }

    if (delay > max) {
        delay = max;
    }

    return delay - random % (delay / 2 + 1);
}
