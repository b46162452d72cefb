
/*
 * Replies of a Redis server, read from bytes that arrive in any portions.
 * Pure: no I/O; hiredis parses the protocol.
 *
 * A server is not trusted with memory.  A reply lives in an arena of fixed
 * size, which the next reply overwrites.  So arrays of any announced length
 * and depth cost no more than the arena, and reading allocates nothing.  The
 * bytes buffered until a reply is complete are bounded as well.  A reply that
 * is known to be large may get a larger arena for itself.
 */


#ifndef _NGX_RL_REPLY_H_INCLUDED_
#define _NGX_RL_REPLY_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>
#include <hiredis/hiredis.h>


/* bounds of a reader, unless a larger reply is expected */
#define NGX_RL_REPLY_MAX     65536   /* bytes not yet parsed */
#define NGX_RL_REPLY_ARENA   32768   /* bytes of one reply */

#define NGX_RL_REPLY_DEPTH   7       /* arrays in arrays */


typedef struct ngx_rl_reply_s    ngx_rl_reply_t;
typedef struct ngx_rl_reader_s   ngx_rl_reader_t;


struct ngx_rl_reply_s {
    int               type;  /* REDIS_REPLY_... */
    long long         integer;
    size_t            len;
    char             *str;   /* zero-terminated as well */
    size_t            elements;
    ngx_rl_reply_t  **element;
};


/* NULL if there is no memory */
ngx_rl_reader_t *ngx_rl_reader_create(void);
void ngx_rl_reader_free(ngx_rl_reader_t *reader);

/*
 * Between two replies: the next one may have so many bytes; 0: as usual.
 * Returns 0, or -1 if there is no memory.
 */
int ngx_rl_reader_expect(ngx_rl_reader_t *reader, size_t large);

/* 0, or -1: no memory, or the reply is too large */
int ngx_rl_reader_feed(ngx_rl_reader_t *reader, const void *data, size_t len);

/*
 * 1: a reply, valid until the next call; 0: not complete yet; -1: not RESP or
 * too large, and the reader cannot be used any more.
 */
int ngx_rl_reader_next(ngx_rl_reader_t *reader, ngx_rl_reply_t **reply);


#endif /* _NGX_RL_REPLY_H_INCLUDED_ */
