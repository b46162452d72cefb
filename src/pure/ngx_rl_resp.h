
/*
 * Commands to a Redis server, written into one growing buffer.  Pure: no I/O.
 *
 * A command is an array of bulk strings.  The number of words comes first, and
 * is known last: it is written into room that is left before the words.
 *
 * hiredis has functions for that, which take a microsecond a command, most of
 * it in sprintf(): too much for every request.
 */


#ifndef _NGX_RL_RESP_H_INCLUDED_
#define _NGX_RL_RESP_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>


/* a writer; all zero: a new one.  Its memory is kept for the next command */

typedef struct {
    char     *start;
    char     *pos;
    char     *end;
    size_t    n;         /* words */
    unsigned  failed:1;  /* no memory */
} ngx_rl_resp_t;


/* the command before this one is gone */
void ngx_rl_resp_begin(ngx_rl_resp_t *resp);

void ngx_rl_resp_word(ngx_rl_resp_t *resp, const void *data, size_t len);
void ngx_rl_resp_text(ngx_rl_resp_t *resp, const char *text);
void ngx_rl_resp_number(ngx_rl_resp_t *resp, uint64_t n);

/* the length of the command, which is the writer's; -1: no memory */
ssize_t ngx_rl_resp_end(ngx_rl_resp_t *resp, char **command);

/* the same; the command is the caller's, and the writer is a new one */
ssize_t ngx_rl_resp_detach(ngx_rl_resp_t *resp, char **command);

/* a writer is not needed any more */
void ngx_rl_resp_close(ngx_rl_resp_t *resp);

/*
 * Any command of zero-terminated words; the list ends with NULL.  It is
 * released by ngx_rl_resp_free(), as is a detached one.
 */
ssize_t ngx_rl_resp_command(char **command, ...);
void ngx_rl_resp_free(char *command);


#endif /* _NGX_RL_RESP_H_INCLUDED_ */
