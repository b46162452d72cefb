
/*
 * Numbers in decimal, as printf() writes them.
 */

#include "tap.h"

#include "pure/ngx_rl_number.h"


#define LEN    NGX_RL_NUMBER_LEN
#define GUARD  '\xa5'        /* no digit */


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
    test_edges();
    test_any();
    test_room();

    return tap_done();
}
