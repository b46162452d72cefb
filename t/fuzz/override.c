
/*
 * Overrides as text: what is accepted is written and read again as the same,
 * and no bucket gets numbers that it cannot have.
 */

#include "fuzz.h"

#include "pure/ngx_rl_override.h"


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char                     *text, again[NGX_RL_OVERRIDE_TEXT];
    size_t                    len, n;
    input_t                   in;
    ngx_rl_bucket_t           bucket, before;
    ngx_rl_override_t         o, o2;
    ngx_rl_override_words_t   words;

    in.pos = data;
    in.end = data + size;

    memset(&bucket, 0, sizeof(bucket));

    bucket.algorithm = number(&in, 1) % 3;
    bucket.capacity = 1 + number(&in, 2);
    bucket.cost = 1;
    (void) ngx_rl_rate_parse("10r/s", 5, &bucket.rate);
    before = bucket;

    text = rest(&in, &len);

    if (ngx_rl_override_parse(text, len, &o, &words) == NULL) {
        check(o.set || o.reset);

        n = ngx_rl_override_format(again, &o, &words);

        if (n) {
            check(ngx_rl_override_parse(again, n, &o2, NULL) == NULL);
            check(memcmp(&o, &o2, sizeof(o)) == 0);
        }

        if (ngx_rl_override_apply(&o, &bucket, len & 1)) {
            check(ngx_rl_bucket_same(&bucket, &before));

        } else {
            check(bucket.capacity >= 1
                  && bucket.capacity <= NGX_RL_MAX_CAPACITY);
            check(bucket.cost >= 1 && bucket.cost <= NGX_RL_MAX_COST);
        }
    }

    free(text);

    return 0;
}
