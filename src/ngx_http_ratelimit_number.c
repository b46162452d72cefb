
#include "ngx_http_ratelimit_number.h"


char *
ngx_http_ratelimit_number(char *last, uint64_t n)
{
    do {
        *--last = (char) ('0' + n % 10);
        n /= 10;
    } while (n);

    return last;
}
