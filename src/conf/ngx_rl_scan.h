
/*
 * The configuration as written: the position of each directive, and directives
 * of other modules that these modules keep to themselves.
 *
 * nginx forgets the file and line of a directive as soon as it is parsed, and
 * the results of "return", "auth_request_set" or "map" are private to their
 * modules.  So the files are read a second time, by nginx's rules for words
 * and blocks, and the relevant statements are kept as a tree.  This needs no
 * knowledge of other modules' structures, which differ between versions and
 * forks of nginx.
 *
 * The tree only serves messages: no limit depends on it.
 */


#ifndef _NGX_RL_SCAN_H_INCLUDED_
#define _NGX_RL_SCAN_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


typedef struct ngx_rl_statement_s  ngx_rl_statement_t;


/*
 * A directive, and the content of its block.  Maps come first in "http",
 * whatever stands before them.
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
 * Reads all files, into cf->temp_pool.  NULL: no memory, or a file cannot be
 * read twice, such as a pipe, or makes no sense.
 */
ngx_rl_statement_t *ngx_rl_scan(ngx_conf_t *cf);

/* whether a word is one of these names; the list ends with NULL */
ngx_uint_t ngx_rl_word_among(u_char *word, const char **names);


#endif /* _NGX_RL_SCAN_H_INCLUDED_ */
