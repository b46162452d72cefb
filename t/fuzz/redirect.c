
/*
 * Error replies: their class, redirects of a cluster, and slots of keys.
 */

#include "fuzz.h"

#include "pure/ngx_rl_failure.h"
#include "pure/ngx_rl_slots.h"


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char               *text;
    size_t              len;
    input_t             in;
    ngx_rl_failure_e    failure;
    ngx_rl_redirect_t   r;

    in.pos = data;
    in.end = data + size;

    text = rest(&in, &len);

    failure = ngx_rl_failure(text, len);
    check(failure > NGX_RL_OK && failure < NGX_RL_FAILURES);
    (void) ngx_rl_failure_breaks(failure);

    check(ngx_rl_redirect_parse(text, len, &r) == (int) r.kind);

    if (r.kind == NGX_RL_REDIRECT_MOVED || r.kind == NGX_RL_REDIRECT_ASK) {
        check(r.slot < 16384 && r.port != 0);
        check(r.host_len <= NGX_RL_SLOT_HOST);
        check(r.host_len == 0
              || (r.host >= text && r.host + r.host_len <= text + len));
    }

    check(ngx_rl_slot(text, len) < 16384);

    free(text);

    return 0;
}
