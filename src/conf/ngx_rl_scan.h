
/*
 * The configuration as it is written: where a directive stands, and what other
 * modules' directives say that no module tells.
 *
 * nginx forgets file and line of a directive as soon as it was parsed, and what
 * "return", "auth_request_set" or "map" have made of it is private to their
 * modules.  So the files are read once more, by nginx's rules for words and
 * blocks, and what matters here is kept as a tree.  That needs no knowledge of
 * other modules' structures, which differ between versions and forks of nginx.
 *
 * It serves messages only: nothing is limited, or not, for what is found here.
 */


#ifndef _NGX_RL_SCAN_H_INCLUDED_
#define _NGX_RL_SCAN_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


typedef struct ngx_rl_statement_s  ngx_rl_statement_t;


/*
 * A directive, and what is in its block.  Maps come first in "http", whatever
 * stands before them.
 */

struct ngx_rl_statement_s {
    ngx_rl_statement_t   *parent;
    ngx_rl_statement_t   *next;    /* in the same block */
    ngx_rl_statement_t   *child;   /* the first one */
    ngx_rl_statement_t  **last;    /* where the next child goes */
    ngx_str_t            *words;   /* the first is its name */
    ngx_uint_t            n;
    ngx_str_t             file;
    ngx_uint_t            line;    /* of its ";" or "{" */
    ngx_uint_t            marks;   /* of whoever looks at it */
    ngx_uint_t            search;  /* the last one to see it */
    unsigned              map:1;   /* a "map" or a "geo" */
};


/*
 * Reads all files.  Lives in cf->temp_pool.  NULL: no memory, or a file can't
 * be read twice, as a pipe, or makes no sense.
 */
ngx_rl_statement_t *ngx_rl_scan(ngx_conf_t *cf);

/* whether a word is one of those names, of which the last is NULL */
ngx_uint_t ngx_rl_word_among(u_char *word, const char **names);


#endif /* _NGX_RL_SCAN_H_INCLUDED_ */
