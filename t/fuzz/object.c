
/*
 * Bodies of the API: flat JSON objects, and whatever else a client sends.
 */

#include "fuzz.h"

#include "pure/ngx_rl_object.h"


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char             *text;
    size_t            len, members;
    input_t           in;
    ngx_rl_member_t   m;
    ngx_rl_object_t   object;

    in.pos = data;
    in.end = data + size;

    text = rest(&in, &len);
    members = 0;

    ngx_rl_object_init(&object, text, len);

    while (ngx_rl_object_next(&object, &m)) {
        check(m.name >= text && m.name + m.name_len <= text + len);
        check(m.value >= text && m.value + m.value_len <= text + len);
        check(m.type <= NGX_RL_OBJECT_NULL);
        check(++members <= len);
    }

    /* the end is final */

    check(ngx_rl_object_next(&object, &m) == 0 || object.err == NULL);

    free(text);

    return 0;
}
