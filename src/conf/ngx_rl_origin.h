
/*
 * Where the value of a variable comes from, as far as the text of the
 * configuration says so.
 */


#ifndef _NGX_RL_ORIGIN_H_INCLUDED_
#define _NGX_RL_ORIGIN_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "conf/ngx_rl_statement.h"


/*
 * Whether a text has a variable that "auth_request_set" sets in this block, or
 * one that is made of such by "map" or "set"; "name" is the one in the text.
 * "set" is whether it takes a "set", which comes before any authentication.
 */
ngx_uint_t ngx_rl_origin_auth(ngx_rl_statement_t *block, ngx_str_t *text,
    ngx_str_t *name, ngx_uint_t *set);

/* whether it has one of a "map" or a "geo" that has no value for everything */
ngx_uint_t ngx_rl_origin_map(
    ngx_rl_statement_t *block, ngx_str_t *text, ngx_str_t *name);

/*
 * Whether it has one that a client sends, or one that such a one may become, as
 * a whole or by what a regex takes of it
 */
ngx_uint_t ngx_rl_origin_client(
    ngx_rl_statement_t *block, ngx_str_t *text, ngx_str_t *name);

/* the next variable of a text, and where to go on; 0: there is none */
ngx_uint_t ngx_rl_origin_next(u_char **pos, u_char *last, ngx_str_t *name);

/* a regex that is known to match anything; in a map, after "~" or "~*" */
ngx_uint_t ngx_rl_regex_any(ngx_str_t *regex);


#endif /* _NGX_RL_ORIGIN_H_INCLUDED_ */
