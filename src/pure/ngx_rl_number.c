
#include "pure/ngx_rl_number.h"


char *
ngx_rl_number(char *last, uint64_t n)
{
    do {
        *--last = (char) ('0' + n % 10);
        n /= 10;
    } while (n);

    return last;
}
