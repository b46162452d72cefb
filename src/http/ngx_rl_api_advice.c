
#include "http/ngx_rl_api_advice.h"


/*
 * The curve ends with the largest capacity that is known to have been enough
 * for a request.  What is above it needed more than the bucket could tell.
 */

void
ngx_rl_api_advice(ngx_rl_json_t *json, ngx_rl_limit_t *limit)
{
    uint64_t    all, above, bins[NGX_RL_ADVICE_BINS];
    ngx_uint_t  i, n;

    if (limit->advice == NULL) {
        ngx_rl_json_text(json, "advise", NULL);
        return;
    }

    /* a copy, because other workers are counting */

    all = 0;
    n = 0;

    for (i = 0; i < NGX_RL_ADVICE_BINS; i++) {
        bins[i] = limit->advice->bins[i];
        all += bins[i];

        if (i < NGX_RL_ADVICE_BOUNDS && bins[i]) {
            n = i + 1;
        }
    }

    ngx_rl_json_open(json, "advise", '{');
    ngx_rl_json_number(json, "requests", all);
    ngx_rl_json_open(json, "curve", '[');

    above = all;

    for (i = 0; i < n; i++) {
        above -= bins[i];

        ngx_rl_json_open(json, NULL, '{');
        ngx_rl_json_number(json, "capacity", ngx_rl_advice_bounds[i]);

        /* millionths, written as a fraction */

        ngx_rl_json_seconds(json, "rejected", ngx_rl_advice_share(above, all));
        ngx_rl_json_close(json, '{');
    }

    ngx_rl_json_close(json, '[');
    ngx_rl_json_close(json, '{');
}
