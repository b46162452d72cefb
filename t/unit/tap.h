
/*
 * Just enough TAP for the unit tests: each check prints one line that prove
 * understands, a failed one also what it got.  A program ends with
 *
 *     return tap_done();
 */


#ifndef _TAP_H_INCLUDED_
#define _TAP_H_INCLUDED_


#include <inttypes.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>


#define nelts_of(a)  (sizeof(a) / sizeof((a)[0]))


static unsigned  tap_tests;
static unsigned  tap_failed;


static inline int ok(int success, const char *name, ...)
    __attribute__((format(printf, 2, 3)));
static inline void diag(const char *text, ...)
    __attribute__((format(printf, 1, 2)));


/* prints the line of one test; returns what it is given */

static inline int
ok(int success, const char *name, ...)
{
    va_list  args;

    tap_tests++;

    if (!success) {
        tap_failed++;
    }

    printf("%sok %u - ", success ? "" : "not ", tap_tests);

    va_start(args, name);
    vprintf(name, args);
    va_end(args);

    printf("\n");
    fflush(stdout);

    return success;
}


/* a line that explains the test before it */

static inline void
diag(const char *text, ...)
{
    va_list  args;

    fprintf(stderr, "#   ");

    va_start(args, text);
    vfprintf(stderr, text, args);
    va_end(args);

    fprintf(stderr, "\n");
}


static inline void
is_number(uint64_t got, uint64_t expected, const char *name)
{
    if (!ok(got == expected, "%s", name)) {
        diag("got %" PRIu64 ", expected %" PRIu64, got, expected);
    }
}


/* either may be NULL */

static inline void
is_text(const char *got, const char *expected, const char *name)
{
    int  same;

    same = (got == NULL || expected == NULL) ? got == expected
                                             : strcmp(got, expected) == 0;

    if (!ok(same, "%s", name)) {
        diag("got \"%s\", expected \"%s\"", got ? got : "(null)",
             expected ? expected : "(null)");
    }
}


static inline void
is_bytes(const void *got, size_t got_len, const void *expected,
    size_t expected_len, const char *name)
{
    if (!ok(got_len == expected_len
            && memcmp(got, expected, expected_len) == 0, "%s", name))
    {
        diag("got %zu bytes: %.*s", got_len, (int) got_len, (const char *) got);
        diag("expected %zu bytes: %.*s", expected_len, (int) expected_len,
             (const char *) expected);
    }
}


/* numbers that are the same in every run */

static inline uint64_t
tap_random(uint64_t *seed)
{
    uint64_t  x;

    x = (*seed += 0x9e3779b97f4a7c15ULL);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;

    return x ^ (x >> 31);
}


static inline int
tap_done(void)
{
    printf("1..%u\n", tap_tests);

    return tap_failed != 0;
}


#endif /* _TAP_H_INCLUDED_ */
