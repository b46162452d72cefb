
#include "pure/ngx_rl_text.h"


static const char  ngx_rl_hex[] = "0123456789ABCDEF";


size_t
ngx_rl_escape(unsigned char *dst, const void *src, size_t len)
{
    size_t                i;
    unsigned char        *p;
    const unsigned char  *s;

    p = dst;
    s = src;

    for (i = 0; i < len; i++) {

        if (s[i] < 0x20 || s[i] >= 0x7f || s[i] == '"' || s[i] == '\\') {
            *p++ = '\\';
            *p++ = 'x';
            *p++ = ngx_rl_hex[s[i] >> 4];
            *p++ = ngx_rl_hex[s[i] & 0xf];

        } else {
            *p++ = s[i];
        }
    }

    return p - dst;
}


unsigned char *
ngx_rl_quote(unsigned char *dst, const void *src, size_t len)
{
    size_t                i;
    const unsigned char  *s;

    s = src;

    *dst++ = '"';

    for (i = 0; i < len; i++) {

        if (s[i] < 0x20 || s[i] >= 0x7f || s[i] == '%') {
            *dst++ = '%';
            *dst++ = ngx_rl_hex[s[i] >> 4];
            *dst++ = ngx_rl_hex[s[i] & 0xf];
            continue;
        }

        if (s[i] == '"' || s[i] == '\\') {
            *dst++ = '\\';
        }

        *dst++ = s[i];
    }

    *dst++ = '"';

    return dst;
}


unsigned char *
ngx_rl_percent(unsigned char *dst, const void *src, size_t len)
{
    size_t                i;
    const unsigned char  *s;

    s = src;

    for (i = 0; i < len; i++) {

        if (s[i] < 0x20 || s[i] >= 0x7f || s[i] == '%') {
            *dst++ = '%';
            *dst++ = ngx_rl_hex[s[i] >> 4];
            *dst++ = ngx_rl_hex[s[i] & 0xf];

        } else {
            *dst++ = s[i];
        }
    }

    return dst;
}


char *
ngx_rl_number(char *last, uint64_t n)
{
    do {
        *--last = (char) ('0' + n % 10);
        n /= 10;
    } while (n);

    return last;
}
