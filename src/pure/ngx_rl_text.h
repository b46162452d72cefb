
/*
 * Makes any bytes fit for log lines, headers and bodies, and formats decimal
 * numbers.  Pure.
 */


#ifndef _NGX_RL_TEXT_H_INCLUDED_
#define _NGX_RL_TEXT_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


/* the most that n bytes may become */
#define ngx_rl_escape_size(n)   (4 * (n))
#define ngx_rl_quote_size(n)    (3 * (n) + 2)
#define ngx_rl_percent_size(n)  (3 * (n))

/* bytes that a number may take */
#define NGX_RL_NUMBER_LEN       (sizeof("18446744073709551615") - 1)


/*
 * Replaces control characters, quotes, backslashes and non-ASCII bytes by
 * \xHH; returns the number of bytes written.
 */
size_t ngx_rl_escape(unsigned char *dst, const void *src, size_t len);

/*
 * Writes a string in double quotes, in a form that is valid in JSON and in
 * structured fields.  Quotes and backslashes get a backslash.  Bytes other
 * than printable ASCII, and % itself, become %HH, so that different strings
 * stay different.  Returns the end of the text.
 */
unsigned char *ngx_rl_quote(unsigned char *dst, const void *src, size_t len);

/*
 * Replaces bytes other than printable ASCII, and % itself, by %HH, as the
 * header grpc-message wants it.  Returns the end of the text.
 */
unsigned char *ngx_rl_percent(unsigned char *dst, const void *src, size_t len);

/*
 * Writes a number that ends before "last", and returns its beginning; much
 * faster than printf().
 */
char *ngx_rl_number(char *last, uint64_t n);


#endif /* _NGX_RL_TEXT_H_INCLUDED_ */
