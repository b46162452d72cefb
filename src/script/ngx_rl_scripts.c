
#include <string.h>

#include "script/ngx_rl_scripts.h"
#include "ngx_rl_lua.h"


/* by ngx_rl_script_e */

static const struct {
    const char  *text;
    const char  *sha1;
} ngx_rl_scripts[NGX_RL_SCRIPTS] = {
    { NGX_RL_LUA_TOKEN_BUCKET, NGX_RL_LUA_TOKEN_BUCKET_SHA1 },
    { NGX_RL_LUA_GCRA, NGX_RL_LUA_GCRA_SHA1 },
    { NGX_RL_LUA_FIXED_WINDOW, NGX_RL_LUA_FIXED_WINDOW_SHA1 },
    { NGX_RL_LUA_SLIDING_WINDOW_COUNTER,
      NGX_RL_LUA_SLIDING_WINDOW_COUNTER_SHA1 },
    { NGX_RL_LUA_TAKE, NGX_RL_LUA_TAKE_SHA1 },
    { NGX_RL_LUA_REFUND, NGX_RL_LUA_REFUND_SHA1 }
};


void
ngx_rl_scripts_begin(ngx_rl_resp_t *resp,
    ngx_rl_script_e script, size_t keys, unsigned with_text)
{
    ngx_rl_resp_begin(resp);

    if (with_text) {
        ngx_rl_resp_text(resp, "EVAL");
        ngx_rl_resp_text(resp, ngx_rl_scripts[script].text);

    } else {
        ngx_rl_resp_text(resp, "EVALSHA");
        ngx_rl_resp_text(resp, ngx_rl_scripts[script].sha1);
    }

    ngx_rl_resp_number(resp, keys);
}


ssize_t
ngx_rl_scripts_load(char **command, size_t i)
{
    if (i >= NGX_RL_SCRIPTS) {
        return -2;
    }

    return ngx_rl_resp_command(command, "SCRIPT", "LOAD",
                               ngx_rl_scripts[i].text, NULL);
}


/* sent as text: a new server may not know any script */

ssize_t
ngx_rl_scripts_probe(char **command, const char *key, size_t len)
{
    ngx_rl_resp_t  resp;

    memset(&resp, 0, sizeof(ngx_rl_resp_t));

    ngx_rl_resp_begin(&resp);
    ngx_rl_resp_text(&resp, "EVAL");
    ngx_rl_resp_text(&resp, NGX_RL_LUA_PROBE);
    ngx_rl_resp_number(&resp, 1);
    ngx_rl_resp_word(&resp, key, len);

    return ngx_rl_resp_detach(&resp, command);
}
