
/*
 * Commands to a Redis server, written into one growing buffer.  Pure: no I/O.
 *
 * A command is an array of bulk strings.  The number of words comes first but
 * is known last, so it is written into room left before the words.
 *
 * hiredis has functions for this.  They take a microsecond per command, mostly
 * in sprintf(), which is too much for every request.
 */


#ifndef _NGX_RL_RESP_H_INCLUDED_
#define _NGX_RL_RESP_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>


/*
 * A writer; all zeroes: a new one.  Its memory is reused for the next command.
 */

typedef struct {
    char     *start;
    char     *pos;
    char     *end;
    size_t    n;         /* words */
    unsigned  failed:1;  /* no memory */
} ngx_rl_resp_t;


/* starts a command; the previous one is discarded */
void ngx_rl_resp_begin(ngx_rl_resp_t *resp);

void ngx_rl_resp_word(ngx_rl_resp_t *resp, const void *data, size_t len);
void ngx_rl_resp_text(ngx_rl_resp_t *resp, const char *text);
void ngx_rl_resp_number(ngx_rl_resp_t *resp, uint64_t n);

/* the length of the command, which the writer owns; -1: no memory */
ssize_t ngx_rl_resp_end(ngx_rl_resp_t *resp, char **command);

/* the same, but the caller owns the command, and the writer is new again */
ssize_t ngx_rl_resp_detach(ngx_rl_resp_t *resp, char **command);

/* releases a writer */
void ngx_rl_resp_close(ngx_rl_resp_t *resp);

/*
 * Formats any command of zero-terminated words; the list ends with NULL.
 * ngx_rl_resp_free() releases it, as it does a detached command.
 */
ssize_t ngx_rl_resp_command(char **command, ...);
void ngx_rl_resp_free(char *command);


#endif /* _NGX_RL_RESP_H_INCLUDED_ */
