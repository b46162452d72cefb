
/*
 * Bytes from outside on their way to a log line, a header or a body, and
 * numbers in decimal, as printf() writes them.
 */

#include "tap.h"

#include "pure/ngx_rl_text.h"


#define LEN    NGX_RL_NUMBER_LEN
#define GUARD  '\xa5'        /* no digit */


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


static void
test_escape(void)
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
}


static void
is_quoted(const char *src, size_t len, const char *expected, const char *name)
{
    unsigned char  *dst, *last;

    /* of exactly the announced size: a byte more would be seen */

    dst = malloc(ngx_rl_quote_size(len));
    last = ngx_rl_quote(dst, src, len);

    is_bytes(dst, last - dst, expected, strlen(expected), name);

    free(dst);
}


static void
test_quote(void)
{
    int            i, printable;
    char           src[256];
    unsigned char  dst[ngx_rl_quote_size(256)], *p, *last;

    is_quoted("", 0, "\"\"", "nothing in quotes");
    is_quoted("api", 3, "\"api\"", "a name");
    is_quoted("a\"b\\", 4, "\"a\\\"b\\\\\"",
              "quotes and backslashes get a backslash");
    is_quoted("50%", 3, "\"50%25\"", "a % becomes hex");
    is_quoted("%25", 3, "\"%2525\"", "nothing looks like hex that is none");
    is_quoted("a\0\r\n", 4, "\"a%00%0D%0A\"", "control characters do, too");
    is_quoted("\x7f\xc3\xa9", 3, "\"%7F%C3%A9\"", "and what is not ASCII");

    for (i = 0; i < 256; i++) {
        src[i] = (char) i;
    }

    last = ngx_rl_quote(dst, src, 256);
    printable = 0;

    for (p = dst; p < last; p++) {
        printable += *p >= 0x20 && *p < 0x7f;
    }

    is_number(printable, last - dst, "all 256 bytes become printable ones");
}


static void
test_percent(void)
{
    int            c, plain;
    char           src[1], expected[8];
    size_t         wrong;
    unsigned char  dst[ngx_rl_percent_size(1)], *last;

    wrong = 0;

    for (c = 0; c < 256; c++) {
        src[0] = (char) c;
        plain = c >= 0x20 && c < 0x7f && c != '%';

        snprintf(expected, sizeof(expected), plain ? "%c" : "%%%02X", c);

        last = ngx_rl_percent(dst, src, 1);

        wrong += (size_t) (last - dst) != strlen(expected)
                 || memcmp(dst, expected, last - dst) != 0;
    }

    is_number(wrong, 0, "a message for gRPC is percent-encoded");

    last = ngx_rl_percent(dst, src, 0);
    is_number(last - dst, 0, "nothing stays nothing");
}


/* compares with printf(), and the bytes on both sides with what they were */

static int
is_right(uint64_t n)
{
    char    buf[3 * LEN], text[32], *p, *last;
    size_t  i, len;

    memset(buf, GUARD, sizeof(buf));

    last = buf + 2 * LEN;
    p = ngx_rl_number(last, n);

    len = snprintf(text, sizeof(text), "%" PRIu64, n);

    if (p != last - len || memcmp(p, text, len) != 0) {
        diag("%s is wrong", text);
        return 0;
    }

    for (i = 0; i < sizeof(buf); i++) {

        if (buf[i] != GUARD && (buf + i < p || buf + i >= last)) {
            diag("%s is written to byte %zu of %zu to %zu", text, i,
                 (size_t) (p - buf), (size_t) (last - buf - 1));
            return 0;
        }
    }

    return 1;
}


static void
test_edges(void)
{
    unsigned  i;
    uint64_t  power;

    ok(is_right(0), "nothing is a digit");
    ok(is_right(9), "the last number of one digit");
    ok(is_right(10), "the first one of two");
    ok(is_right(UINT32_MAX) && is_right((uint64_t) UINT32_MAX + 1),
       "around 32 bits");
    ok(is_right(INT64_MAX) && is_right((uint64_t) INT64_MAX + 1),
       "around the greatest with a sign");
    ok(is_right(UINT64_MAX - 1) && is_right(UINT64_MAX), "the greatest of all");

    power = 1;

    for (i = 0; i < LEN; i++) {
        ok(is_right(power - 1) && is_right(power) && is_right(power + 1),
           "10^%u, one less and one more", i);

        /* ten times the last one would be no number */

        power = (i < LEN - 1) ? power * 10 : power;
    }

    ok(power == 10000000000000000000ULL, "all powers of ten");
}


static void
test_any(void)
{
    unsigned  i, wrong;
    uint64_t  seed;

    wrong = 0;

    for (i = 0; i < 10000; i++) {
        wrong += !is_right(i);
    }

    is_number(wrong, 0, "all below 10000");

    seed = 3;

    for (i = 0; i < 100000; i++) {
        wrong += !is_right(tap_random(&seed) >> tap_random(&seed) % 64);
    }

    is_number(wrong, 0, "100000 random numbers of any length");
}


/* of exactly its size, so that a sanitizer sees more than the guards do */

static void
test_room(void)
{
    char  *buf;

    buf = malloc(LEN);

    ok(ngx_rl_number(buf + LEN, UINT64_MAX) == buf,
       "the greatest takes all of the room");
    is_bytes(buf, LEN, "18446744073709551615", 20, "which is 20 bytes");

    free(buf);

    buf = malloc(1);

    ok(ngx_rl_number(buf + 1, 0) == buf && *buf == '0',
       "zero takes one byte, and no zero byte behind");

    free(buf);
}


int
main(void)
{
    test_escape();
    test_quote();
    test_percent();
    test_edges();
    test_any();
    test_room();

    return tap_done();
}
