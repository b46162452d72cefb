
/*
 * A bucket or a window in memory, with requests at any times: never more passes
 * than the capacity and what was refilled, or than the window allows.
 */

#include "fuzz.h"

#include "pure/ngx_rl_decision.h"
#include "pure/ngx_rl_level.h"


#define REQUESTS  256


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int                 fits, window;
    size_t              i, n;
    int64_t             state[NGX_RL_STATES];
    input_t             in;
    uint64_t            now, start, taken, most;
    ngx_rl_log_t        log;
    ngx_rl_level_t      level;
    ngx_rl_bucket_t     bucket;
    ngx_rl_decision_t   d;

    static const char *const  rates[] = {
        "10r/s", "1r/s", "7r/m", "1r/d", "0r/s", "100000r/s", "0.3r/s"
    };

    static struct {
        uint64_t  time, cost;
    } passed[REQUESTS];

    in.pos = data;
    in.end = data + size;

    memset(&log, 0, sizeof(log));
    memset(&level, 0, sizeof(level));
    memset(&bucket, 0, sizeof(bucket));

    window = number(&in, 1) & 1;
    i = number(&in, 1) % 7;

    bucket.algorithm = window ? NGX_RL_SLIDING_WINDOW_LOG
                              : NGX_RL_TOKEN_BUCKET;
    bucket.capacity = 1 + number(&in, 2) % 1000;
    bucket.window = 1000 + number(&in, 4);
    bucket.step = number(&in, 1) & 1 ? 1 + number(&in, 3) : 0;
    (void) ngx_rl_rate_parse(rates[i], strlen(rates[i]), &bucket.rate);

    now = start = 1000000000000ULL;
    taken = 0;
    n = 0;

    while (in.pos < in.end && n < REQUESTS) {
        now += number(&in, 1) << number(&in, 1) % 28;
        bucket.cost = 1 + number(&in, 1) % bucket.capacity;

        fits = window ? ngx_rl_log_look(&log, &bucket, now, state)
                      : ngx_rl_level_look(&level, &bucket, now, state);

        check(fits == (state[0] >= 0));

        if (fits && window) {
            ngx_rl_log_take(&log, &bucket, now, state);

        } else if (fits) {
            ngx_rl_level_take(&level, &bucket, state);
        }

        ngx_rl_decide(&d, &bucket, state);
        check(d.outcome == (fits ? NGX_RL_PASSED : NGX_RL_REJECTED));
        check(d.remaining <= bucket.capacity);
        check(fits || d.retry_after >= 1);

        if (!fits) {
            continue;
        }

        passed[n].time = now;
        passed[n++].cost = bucket.cost;

        if (!window) {
            taken += bucket.cost * NGX_RL_MICRO;
            most = bucket.capacity * NGX_RL_MICRO
                   + ngx_rl_rate_refill(&bucket.rate, now - start);
            check(taken <= most);
            continue;
        }

        for (i = n, taken = 0; i > 0; i--) {

            if (passed[i - 1].time + bucket.window <= now) {
                break;
            }

            taken += passed[i - 1].cost;
        }

        check(taken <= bucket.capacity);
    }

    return 0;
}
