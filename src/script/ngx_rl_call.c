
#include "script/ngx_rl_call.h"


/*
 * Calls that are only a part of a request are not combined, so there may be
 * many for one key.  Those for slow buckets share commands of take.lua.
 */

int
ngx_rl_call_short(const ngx_rl_call_t *call)
{
    const ngx_rl_bucket_t  *bucket;

    bucket = &call->claims[0]->bucket;

    return call->n == 1
           && !call->preview
           && !call->clock
           && bucket->step == 0
           && bucket->algorithm != NGX_RL_SLIDING_WINDOW_LOG
           && (!call->part
               || bucket->algorithm != NGX_RL_TOKEN_BUCKET
               || !ngx_rl_bucket_slow(bucket));
}


int
ngx_rl_call_enforced(const ngx_rl_call_t *call)
{
    size_t  i;

    for (i = 0; i < call->n; i++) {
        if (!call->claims[i]->shadow) {
            return 1;
        }
    }

    return 0;
}


int
ngx_rl_call_taken(const ngx_rl_call_t *call)
{
    int     taken;
    size_t  i;

    if (call->preview) {
        return 0;
    }

    taken = 0;

    for (i = 0; i < call->n; i++) {

        if (call->claims[i]->state[0] >= 0) {
            taken = 1;

        } else if (!call->claims[i]->shadow) {
            return 0;
        }
    }

    return taken;
}
