
/*
 * The files that are built into the module: the page of "ratelimit_console" and
 * the description of the API.  tools/embed-text.sh makes C strings of them.
 */


#ifndef _NGX_RL_FILES_H_INCLUDED_
#define _NGX_RL_FILES_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


typedef struct {
    ngx_str_t  name;
    ngx_str_t  type;  /* without a charset: all of them are UTF-8 */
    ngx_str_t  text;
} ngx_rl_file_t;


/* "openapi.json" */
extern const ngx_rl_file_t  ngx_rl_openapi;

/* a file of the console; the empty name is the page.  NULL: there is none */
const ngx_rl_file_t *ngx_rl_console_file(ngx_str_t *name);


#endif /* _NGX_RL_FILES_H_INCLUDED_ */
