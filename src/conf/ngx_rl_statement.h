
/*
 * The statements of a parsed configuration: which exist, where they are, and
 * messages about them with file and line.  Available only while a
 * configuration is loaded.
 */


#ifndef _NGX_RL_STATEMENT_H_INCLUDED_
#define _NGX_RL_STATEMENT_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "conf/ngx_rl_scan.h"


/* the whole text */

typedef struct {
    ngx_array_t          blocks;  /* ngx_rl_block_t *, in their order */
    ngx_rl_statement_t  *root;    /* NULL: not known */
    unsigned             scanned:1;
} ngx_rl_text_t;


/* a block with a conf: its beginning and its content */

typedef struct {
    ngx_rl_text_t       *text;
    ngx_str_t            file;
    ngx_uint_t           line;
    ngx_rl_statement_t  *statement;  /* NULL: not known, or not yet */
} ngx_rl_block_t;


/* the block that nginx is about to parse */
ngx_int_t ngx_rl_statement_block(ngx_conf_t *cf, ngx_rl_text_t *text,
    ngx_rl_block_t *block);

/*
 * Reads the configuration a second time, at the first call, and finds the
 * statement of each block.  NULL: this is not possible.
 */
ngx_rl_statement_t *ngx_rl_statement_root(ngx_conf_t *cf, ngx_rl_text_t *text);

ngx_uint_t ngx_rl_statement_is(ngx_rl_statement_t *statement, const char *name);

/* the next one in the order of the text; NULL: there is none */
ngx_rl_statement_t *ngx_rl_statement_next(ngx_rl_statement_t *statement);

/* the first of that name in this block, or in the nearest outer one */
ngx_rl_statement_t *ngx_rl_statement_find(
    ngx_rl_statement_t *block, const char *name);

/*
 * Makes ngx_conf_log_error() show the position of a directive, through "file"
 * instead of cf->conf_file, which the caller must restore.
 */
void ngx_rl_statement_set(ngx_conf_t *cf, ngx_rl_block_t *block,
    const char *directive, ngx_conf_file_t *file);

/*
 * These log an error and return NGX_CONF_ERROR.  The first concerns a
 * directive, which is searched in the block and in outer ones; if it is not
 * there, the block itself is shown.  The second concerns the directive that
 * nginx is parsing, as does the first without a block.
 */
char *ngx_cdecl ngx_rl_statement_error(ngx_conf_t *cf, ngx_rl_block_t *block,
    const char *directive, const char *fmt, ...);
char *ngx_cdecl ngx_rl_conf_error(ngx_conf_t *cf, const char *fmt, ...);


#endif /* _NGX_RL_STATEMENT_H_INCLUDED_ */
