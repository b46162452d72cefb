
#include "pure/ngx_rl_advice.h"


#define NGX_RL_ADVICE_WHOLE  1000000


const uint32_t  ngx_rl_advice_bounds[NGX_RL_ADVICE_BOUNDS] = {
    1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 32, 40, 50, 64, 80, 100, 125, 160,
    200, 250, 320, 400, 500, 640, 800, 1000, 1250, 1600, 2000, 2500, 3200,
    4000, 5000, 6400, 8000, 10000, 12500, 16000, 20000, 25000, 32000, 40000,
    50000, 64000, 80000, 100000, 125000, 160000, 200000, 250000, 320000,
    400000, 500000, 640000, 800000, 1000000, 1250000, 1600000, 2000000,
    2500000, 3200000, 4000000, 5000000, 6400000, 8000000, 10000000, 12500000,
    16000000, 20000000, 25000000, 32000000, 40000000, 50000000, 64000000,
    80000000, 100000000, 125000000, 160000000, 200000000, 250000000, 320000000,
    400000000, 500000000, 640000000, 800000000, 1000000000
};


size_t
ngx_rl_advice_bin(uint64_t needed)
{
    size_t  low, high, mid;

    low = 0;
    high = NGX_RL_ADVICE_BOUNDS;

    while (low < high) {
        mid = (low + high) / 2;

        if (needed > ngx_rl_advice_bounds[mid]) {
            low = mid + 1;

        } else {
            high = mid;
        }
    }

    return low;
}


/* counters of requests stay below 2^44, so the product fits */

uint64_t
ngx_rl_advice_share(uint64_t part, uint64_t all)
{
    uint64_t  share;

    if (part == 0) {
        return 0;
    }

    share = (part * NGX_RL_ADVICE_WHOLE + all / 2) / all;

    return share ? share : 1;
}
