
/*
 * Numbers in decimal, in a fraction of the time that printf() takes.  Pure.
 */


#ifndef _NGX_HTTP_RATELIMIT_NUMBER_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_NUMBER_H_INCLUDED_


#include <stdint.h>


/* bytes that a number may take */
#define NGX_HTTP_RATELIMIT_NUMBER_LEN  (sizeof("18446744073709551615") - 1)


/* writes a number that ends before "last"; returns where it begins */
char *ngx_http_ratelimit_number(char *last, uint64_t n);


#endif /* _NGX_HTTP_RATELIMIT_NUMBER_H_INCLUDED_ */
