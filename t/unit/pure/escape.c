
/*
 * Bytes from outside on their way to a log line.
 */

#include "tap.h"

#include "pure/ngx_rl_escape.h"


static void
is_escaped(const char *src, size_t len, const char *expected, const char *name)
{
    size_t          n;
    unsigned char  *dst;

    /* of exactly the announced size: a byte more would be seen */

    dst = malloc(ngx_rl_escape_size(len) + (len == 0));
    n = ngx_rl_escape(dst, src, len);

    is_bytes(dst, n, expected, strlen(expected), name);

    free(dst);
}


int
main(void)
{
    int            c, plain;
    char           src[256], expected[8];
    size_t         n, i;
    unsigned char  dst[ngx_rl_escape_size(256)];

    is_escaped("", 0, "", "nothing");
    is_escaped("192.0.2.1", 9, "192.0.2.1", "an address stays as it is");
    is_escaped("a b~!'{}", 8, "a b~!'{}", "so does printable ASCII");
    is_escaped("a\0b", 3, "a\\x00b", "a zero byte does not end it");
    is_escaped("a\r\nb", 4, "a\\x0D\\x0Ab", "no line is ended");
    is_escaped("\"\\", 2, "\\x22\\x5C", "no quote is closed");
    is_escaped("\\x41", 4, "\\x5Cx41", "nothing looks like an escape");
    is_escaped("\x7f\x80\xff", 3, "\\x7F\\x80\\xFF", "nothing but ASCII");
    is_escaped("\033[31m", 5, "\\x1B[31m", "no terminal is steered");
    is_escaped("\xc3\xa9", 2, "\\xC3\\xA9", "UTF-8 becomes hex too");

    for (c = 0; c < 256; c++) {
        src[c] = (char) c;
        plain = c >= 0x20 && c < 0x7f && c != '"' && c != '\\';

        if (plain) {
            snprintf(expected, sizeof(expected), "%c", c);

        } else {
            snprintf(expected, sizeof(expected), "\\x%02X", c);
        }

        n = ngx_rl_escape(dst, &src[c], 1);

        if (n != strlen(expected) || memcmp(dst, expected, n) != 0) {
            ok(0, "byte %d becomes %s", c, expected);
        }
    }

    n = ngx_rl_escape(dst, src, 256);
    plain = 0;

    for (i = 0; i < n; i++) {
        plain += dst[i] >= 0x20 && dst[i] < 0x7f && dst[i] != '"';
    }

    is_number(plain, n, "all 256 bytes become printable ones");
    ok(n <= ngx_rl_escape_size(256), "within the size announced");

    return tap_done();
}
