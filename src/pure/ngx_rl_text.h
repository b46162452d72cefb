
/*
 * Any bytes made fit for log lines, headers and bodies, and numbers in
 * decimal.  Pure.
 */


#ifndef _NGX_RL_TEXT_H_INCLUDED_
#define _NGX_RL_TEXT_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


/* what n bytes may become at most */
#define ngx_rl_escape_size(n)  (4 * (n))
#define ngx_rl_quote_size(n)   (3 * (n) + 2)

/* bytes that a number may take */
#define NGX_RL_NUMBER_LEN      (sizeof("18446744073709551615") - 1)


/*
 * Control characters, quotes, backslashes and all that is not ASCII become
 * \xHH; returns the number of bytes written
 */
size_t ngx_rl_escape(unsigned char *dst, const void *src, size_t len);

/*
 * A string in double quotes, the same text in JSON and in structured fields:
 * quotes and backslashes get a backslash; what is not printable ASCII, and %
 * itself, becomes %HH, so that no two strings become the same.  Returns the end
 * of what was written
 */
unsigned char *ngx_rl_quote(unsigned char *dst, const void *src, size_t len);

/*
 * Writes a number that ends before "last", and returns where it begins; takes
 * a fraction of the time that printf() does
 */
char *ngx_rl_number(char *last, uint64_t n);


#endif /* _NGX_RL_TEXT_H_INCLUDED_ */
