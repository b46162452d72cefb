
/*
 * The Lua scripts of lua/, which are embedded in the module, and the commands
 * that load or run them.
 *
 * token_bucket.lua serves the most frequent call: one bucket without steps, by
 * the clock of Redis.  gcra.lua, fixed_window.lua and
 * sliding_window_counter.lua do the same for their algorithms.  These are the
 * short scripts.  All other calls use take.lua, which stores limits in the same
 * form.
 */


#ifndef _NGX_RL_SCRIPTS_H_INCLUDED_
#define _NGX_RL_SCRIPTS_H_INCLUDED_


#include "pure/ngx_rl_resp.h"


typedef enum {
    NGX_RL_SCRIPT_TOKEN_BUCKET = 0,
    NGX_RL_SCRIPT_GCRA,
    NGX_RL_SCRIPT_FIXED_WINDOW,
    NGX_RL_SCRIPT_SLIDING_WINDOW_COUNTER,
    NGX_RL_SCRIPT_TAKE,
    NGX_RL_SCRIPT_REFUND,

    NGX_RL_SCRIPTS
} ngx_rl_script_e;


/* begins a command: EVALSHA, or EVAL with the text, and the number of keys */
void ngx_rl_scripts_begin(ngx_rl_resp_t *resp,
    ngx_rl_script_e script, size_t keys, unsigned with_text);

/*
 * These return the length of a command, or -1 if there is no memory.
 * ngx_rl_resp_free() releases the command.
 */

/* SCRIPT LOAD of script number i; -2 if there is none */
ssize_t ngx_rl_scripts_load(char **command, size_t i);

/* tests, by writing to this key, whether a server can be used */
ssize_t ngx_rl_scripts_probe(char **command, const char *key, size_t len);


#endif /* _NGX_RL_SCRIPTS_H_INCLUDED_ */
