
/*
 * The Lua scripts of lua/, which are embedded, and the commands that run them
 * or bring them to a server.
 *
 * token_bucket.lua is for the most common call: one bucket without steps, by
 * the clock of Redis; gcra.lua is the same for its algorithm.  These are the
 * short scripts.  All other calls go to take.lua, which keeps limits in the
 * same form.
 */


#ifndef _NGX_RL_SCRIPTS_H_INCLUDED_
#define _NGX_RL_SCRIPTS_H_INCLUDED_


#include "pure/ngx_rl_resp.h"


typedef enum {
    NGX_RL_SCRIPT_TOKEN_BUCKET = 0,
    NGX_RL_SCRIPT_GCRA,
    NGX_RL_SCRIPT_TAKE,
    NGX_RL_SCRIPT_REFUND,

    NGX_RL_SCRIPTS
} ngx_rl_script_e;


/* begins a command: EVALSHA, or EVAL with the text, and the number of keys */
void ngx_rl_scripts_begin(ngx_rl_resp_t *resp,
    ngx_rl_script_e script, size_t keys, unsigned with_text);

/*
 * These return the length of a command, -1 if there is no memory; it is
 * released by ngx_rl_resp_free().
 */

/* SCRIPT LOAD of script number i; -2 if there is none */
ssize_t ngx_rl_scripts_load(char **command, size_t i);

/* asks, by writing to this key, whether a server can be used */
ssize_t ngx_rl_scripts_probe(char **command, const char *key, size_t len);


#endif /* _NGX_RL_SCRIPTS_H_INCLUDED_ */
