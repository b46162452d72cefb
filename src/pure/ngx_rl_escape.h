
/*
 * Making any bytes fit for log lines, headers and bodies.  Pure.
 */


#ifndef _NGX_RL_ESCAPE_H_INCLUDED_
#define _NGX_RL_ESCAPE_H_INCLUDED_


#include <stddef.h>


/* what n bytes may become at most */
#define ngx_rl_escape_size(n)  (4 * (n))


/*
 * Control characters, quotes, backslashes and all that is not ASCII become
 * \xHH; returns the number of bytes written
 */
size_t ngx_rl_escape(unsigned char *dst, const void *src, size_t len);



/* what a quoted string of n bytes may become at most */
#define ngx_rl_quote_size(n)   (3 * (n) + 2)


/*
 * A string in double quotes as both JSON and structured fields have it, and so
 * of the same text in both: quotes and backslashes get a backslash, and what is
 * not printable ASCII, or a %, becomes %HH, so that no two strings become the
 * same; returns the end of what was written
 */
unsigned char *ngx_rl_quote(unsigned char *dst, const void *src, size_t len);


#endif /* _NGX_RL_ESCAPE_H_INCLUDED_ */
