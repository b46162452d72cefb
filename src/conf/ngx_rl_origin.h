
/*
 * Where the value of a variable comes from, as far as the text of the
 * configuration says so.
 */


#ifndef _NGX_RL_ORIGIN_H_INCLUDED_
#define _NGX_RL_ORIGIN_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "conf/ngx_rl_statement.h"


/* the variables to look for in a text */

typedef enum {

    /*
     * Variables that "auth_request_set" sets in this block, or that "map" or
     * "set" derive from such a variable.
     */
    NGX_RL_ORIGIN_AUTH = 0,

    /* variables of a "map" or a "geo" that lacks a value for some cases */
    NGX_RL_ORIGIN_MAP,

    /*
     * Variables that a client sends, or that are derived from such a variable,
     * as a whole or through a regex.
     */
    NGX_RL_ORIGIN_CLIENT
} ngx_rl_origin_e;


#define NGX_RL_ORIGIN_SET  2


/*
 * Whether a text has such a variable; "name" is the one in the text.
 * NGX_RL_ORIGIN_SET: it passes through a "set", which runs before any
 * authentication.
 */
ngx_uint_t ngx_rl_origin(ngx_rl_statement_t *block, ngx_rl_origin_e what,
    ngx_str_t *text, ngx_str_t *name);

/* the next variable of a text, and where to go on; 0: there is none */
ngx_uint_t ngx_rl_origin_next(u_char **pos, u_char *last, ngx_str_t *name);

/* a regex that certainly matches anything; in a map, after "~" or "~*" */
ngx_uint_t ngx_rl_regex_any(ngx_str_t *regex);


#endif /* _NGX_RL_ORIGIN_H_INCLUDED_ */
