
/*
 * Making bytes that came from outside fit for a log line.  Pure.
 */


#ifndef _NGX_HTTP_RATELIMIT_ESCAPE_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_ESCAPE_H_INCLUDED_


#include <stddef.h>


/* what n bytes may become at most */
#define ngx_http_ratelimit_escape_size(n)  (4 * (n))


/*
 * Control characters, quotes, backslashes and all that is not ASCII become
 * \xHH; returns the number of bytes written
 */
size_t ngx_http_ratelimit_escape(unsigned char *dst, const void *src,
    size_t len);


#endif /* _NGX_HTTP_RATELIMIT_ESCAPE_H_INCLUDED_ */
