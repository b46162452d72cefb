
#include "ngx_http_ratelimit_escape.h"


size_t
ngx_http_ratelimit_escape(unsigned char *dst, const void *src, size_t len)
{
    size_t                i;
    unsigned char        *p;
    const unsigned char  *s;

    static const char     hex[] = "0123456789ABCDEF";

    p = dst;
    s = src;

    for (i = 0; i < len; i++) {

        if (s[i] < 0x20 || s[i] >= 0x7f || s[i] == '"' || s[i] == '\\') {
            *p++ = '\\';
            *p++ = 'x';
            *p++ = hex[s[i] >> 4];
            *p++ = hex[s[i] & 0xf];

        } else {
            *p++ = s[i];
        }
    }

    return p - dst;
}
