
/*
 * The pause before a new connection: doubled, bounded, never in step.
 */

#include "tap.h"

#include "pure/ngx_rl_backoff.h"


int
main(void)
{
    uint32_t  attempt, max, delay, full, least, greatest, wrong;
    uint64_t  seed, i;

    max = 10000;

    /* without luck: the whole delay */

    static const uint32_t  expected[] = {
        50, 100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000, 10000
    };

    for (attempt = 0; attempt < 11; attempt++) {
        is_number(ngx_rl_backoff(attempt, max, 0),
                  expected[attempt], "doubled from 50 ms up to 10 s");
    }

    is_number(ngx_rl_backoff(UINT32_MAX, max, 0), max,
              "and not more after four billion attempts");

    /* a random part of up to one half is taken off */

    seed = 1;

    for (attempt = 0; attempt < 11; attempt++) {
        full = expected[attempt];
        least = UINT32_MAX;
        greatest = 0;

        for (i = 0; i < 100000; i++) {
            delay = ngx_rl_backoff(attempt, max, (uint32_t) tap_random(&seed));
            least = delay < least ? delay : least;
            greatest = delay > greatest ? delay : greatest;
        }

        ok(least >= full / 2 && least <= full / 2 + full / 50
           && greatest <= full && greatest >= full - full / 50,
           "attempt %u: between %u and %u ms, and all of that", attempt,
           full / 2, full);
    }

    /* any maximum */

    wrong = 0;

    for (i = 0; i < 1000000; i++) {
        max = (uint32_t) (tap_random(&seed) % 100000);
        delay = ngx_rl_backoff((uint32_t) (tap_random(&seed) % 40),
                               max, (uint32_t) tap_random(&seed));
        wrong += delay > max || (max && delay == 0);
    }

    is_number(wrong, 0, "never above the maximum, never none");
    is_number(ngx_rl_backoff(3, 0, 12345), 0, "a maximum of zero is no pause");
    is_number(ngx_rl_backoff(0, 20, 0), 20,
              "a maximum below 50 ms holds from the start");

    return tap_done();
}
