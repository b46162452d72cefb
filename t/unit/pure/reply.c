
/*
 * The reader of replies: whole, in pieces, many at once, wrong, hostile.
 */

#include "tap.h"

#include "pure/ngx_rl_reply.h"


/* more than the reader may ever hold, with room for how its buffer grows */
#define BOUND  (8 * NGX_RL_REPLY_MAX)

#define bytes_of(text)  text, sizeof(text) - 1



typedef struct {
    char    data[65536];
    size_t  len;
} text_t;


typedef struct {
    const char  *name;
    const char  *wire;
    size_t       len;
    const char  *expected;  /* as render() writes it */
} sample_t;


/* of the sanitizer's run time; absent in a plain build */
size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));


static text_t  text;


static const sample_t  samples[] = {
    { "a status", bytes_of("+OK\r\n"), "+OK" },
    { "an empty status", bytes_of("+\r\n"), "+" },
    { "an error", bytes_of("-ERR no\r\n"), "-ERR no" },
    { "an empty error", bytes_of("-\r\n"), "-" },
    { "an integer", bytes_of(":1234567890123\r\n"), ":1234567890123" },
    { "a negative integer", bytes_of(":-42\r\n"), ":-42" },
    { "zero", bytes_of(":0\r\n"), ":0" },
    { "the greatest integer", bytes_of(":9223372036854775807\r\n"),
      ":9223372036854775807" },
    { "the least integer", bytes_of(":-9223372036854775808\r\n"),
      ":-9223372036854775808" },
    { "a string", bytes_of("$5\r\nhello\r\n"), "$hello" },
    { "an empty string", bytes_of("$0\r\n\r\n"), "$" },
    { "a string of line ends", bytes_of("$6\r\n\r\n+x\r\n\r\n"),
      "$\r\n+x\r\n" },
    { "a string with zero bytes", bytes_of("$3\r\na\0b\r\n"), "$a\\0b" },
    { "no string", bytes_of("$-1\r\n"), "nil" },
    { "no array", bytes_of("*-1\r\n"), "nil" },
    { "an empty array", bytes_of("*0\r\n"), "[]" },
    { "an array", bytes_of("*4\r\n:1\r\n$3\r\nabc\r\n+OK\r\n$-1\r\n"),
      "[:1 $abc +OK nil ]" },
    { "arrays in an array",
      bytes_of("*3\r\n*2\r\n:1\r\n*1\r\n-E x\r\n*0\r\n:9\r\n"),
      "[[:1 [-E x ] ] [] :9 ]" },
    { "seven levels",
      bytes_of("*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:7\r\n"),
      "[[[[[[[:7 ] ] ] ] ] ] ]" }
};


#define NSAMPLES  (sizeof(samples) / sizeof(samples[0]))


static void
put(const char *data, size_t len)
{
    size_t  i;

    for (i = 0; i < len && text.len + 3 < sizeof(text.data); i++) {

        if (data[i] == '\0') {
            text.data[text.len++] = '\\';
            text.data[text.len++] = '0';
            continue;
        }

        text.data[text.len++] = data[i];
    }
}


/* touches every byte of a reply */

static void
render(const ngx_rl_reply_t *reply)
{
    char    number[32];
    size_t  i;

    switch (reply->type) {

    case REDIS_REPLY_STATUS:
        put("+", 1);
        break;

    case REDIS_REPLY_ERROR:
        put("-", 1);
        break;

    case REDIS_REPLY_INTEGER:
        put(number, snprintf(number, sizeof(number), ":%lld", reply->integer));
        return;

    case REDIS_REPLY_NIL:
        put("nil", 3);
        return;

    case REDIS_REPLY_ARRAY:
        put("[", 1);

        for (i = 0; i < reply->elements; i++) {
            render(reply->element[i]);
            put(" ", 1);
        }

        put("]", 1);
        return;

    case REDIS_REPLY_STRING:
        put("$", 1);
        break;

    default:

        /* types that hiredis 1.0 and later know: walk through them */

        for (i = 0; i < reply->elements; i++) {
            render(reply->element[i]);
        }

        break;
    }

    put(reply->str, reply->len);

    if (reply->str && reply->str[reply->len] != '\0') {
        put("(no zero)", 9);
    }
}


/* "text" is what all replies so far look like; the last result of next() */

static int
read_all(ngx_rl_reader_t *reader)
{
    int              rc;
    ngx_rl_reply_t  *reply;

    while ((rc = ngx_rl_reader_next(reader, &reply)) == 1) {
        render(reply);
        put("\n", 1);
    }

    return rc;
}


static int
text_is(const char *expected)
{
    return text.len == strlen(expected) + 1
           && memcmp(text.data, expected, text.len - 1) == 0
           && text.data[text.len - 1] == '\n';
}


static size_t
allocated(void)
{
    return __sanitizer_get_current_allocated_bytes
           ? __sanitizer_get_current_allocated_bytes() : 0;
}


/* each portion is a copy of exactly its length */

static int
feed(ngx_rl_reader_t *reader, const char *data, size_t len)
{
    int    rc;
    char  *copy;

    copy = malloc(len ? len : 1);
    memcpy(copy, data, len);
    rc = ngx_rl_reader_feed(reader, copy, len);
    free(copy);

    return rc;
}


static void
test_splits(void)
{
    size_t            i, a, b, wrong;
    const sample_t   *s;
    ngx_rl_reader_t  *reader;

    for (i = 0; i < NSAMPLES; i++) {
        s = &samples[i];
        wrong = 0;

        reader = ngx_rl_reader_create();

        /* in three portions, cut at every two places; also empty ones */

        for (a = 0; a <= s->len; a++) {
            for (b = a; b <= s->len; b++) {
                text.len = 0;

                wrong += feed(reader, s->wire, a) != 0;
                wrong += read_all(reader) != 0;
                wrong += feed(reader, s->wire + a, b - a) != 0;
                wrong += read_all(reader) != 0;
                wrong += feed(reader, s->wire + b, s->len - b) != 0;
                wrong += read_all(reader) != 0;
                wrong += !text_is(s->expected);
            }
        }

        /* byte by byte */

        text.len = 0;

        for (a = 0; a < s->len; a++) {
            wrong += text.len != 0;
            wrong += feed(reader, s->wire + a, 1) != 0;
            wrong += read_all(reader) != 0;
        }

        wrong += !text_is(s->expected);

        if (!ok(wrong == 0, "%s, split anywhere", s->name)) {
            diag("%zu times not; last: \"%.*s\"", wrong, (int) text.len,
                 text.data);
        }

        ngx_rl_reader_free(reader);
    }
}


static void
test_many(void)
{
    char              wire[8192], expected[8192], number[32];
    size_t            i, len, n, portion, before, wrong;
    uint64_t          seed, sent, received;
    ngx_rl_reply_t   *reply;
    ngx_rl_reader_t  *reader;

    /* all samples in one portion */

    len = 0;
    n = 0;

    for (i = 0; i < NSAMPLES; i++) {
        memcpy(wire + len, samples[i].wire, samples[i].len);
        len += samples[i].len;
        n += snprintf(expected + n, sizeof(expected) - n, "%s\n",
                      samples[i].expected);
    }

    reader = ngx_rl_reader_create();

    text.len = 0;
    is_number(feed(reader, wire, len), 0, "all kinds in one portion");
    is_number(read_all(reader), 0, "are read to the end");
    is_bytes(text.data, text.len, expected, n, "each in its turn");

    text.len = 0;
    feed(reader, wire, len);
    feed(reader, ":1", 2);
    is_number(read_all(reader), 0, "and the beginning of one more");
    is_bytes(text.data, text.len, expected, n, "is not read as one");

    text.len = 0;
    feed(reader, "7\r\n", 3);
    read_all(reader);
    is_bytes(text.data, text.len, bytes_of(":17\n"), "until its end comes");

    ngx_rl_reader_free(reader);

    /* a long life: a million replies, in portions that respect no border */

    reader = ngx_rl_reader_create();

    seed = 3;
    sent = 0;
    received = 0;
    wrong = 0;
    len = 0;
    before = 0;

    while (received < 1000000) {

        while (len < 4096) {
            n = snprintf(number, sizeof(number), ":%" PRIu64 "\r\n", sent++);
            memcpy(wire + len, number, n);
            len += n;
        }

        portion = tap_random(&seed) % len + 1;
        wrong += feed(reader, wire, portion) != 0;
        memmove(wire, wire + portion, len - portion);
        len -= portion;

        while (ngx_rl_reader_next(reader, &reply) == 1) {
            wrong += reply->type != REDIS_REPLY_INTEGER
                     || (uint64_t) reply->integer != received;
            received++;
        }

        if (before == 0) {
            before = allocated();
        }
    }

    is_number(wrong, 0, "a million replies, each the right one");
    ok(allocated() <= before + BOUND, "in bounded memory");

    ngx_rl_reader_free(reader);
}


/* the reply is of no use, and so is the reader from then on */

static void
is_refused(const char *wire, size_t len, const char *name)
{
    int               rc;
    size_t            before;
    ngx_rl_reply_t   *reply;
    ngx_rl_reader_t  *reader;

    before = allocated();

    reader = ngx_rl_reader_create();
    text.len = 0;

    rc = feed(reader, wire, len);

    if (rc == 0) {
        rc = read_all(reader);
    }

    if (!ok(rc == -1 && text.len == 0, "%s", name)) {
        diag("%d, \"%.*s\"", rc, (int) text.len, text.data);
    }

    (void) feed(reader, "+OK\r\n", 5);

    is_number(ngx_rl_reader_next(reader, &reply), -1,
              "and nothing is read after it");

    ok(allocated() <= before + BOUND, "at no cost");

    ngx_rl_reader_free(reader);
}


static void
test_garbage(void)
{
    int               c, rc, wrong;
    char              wire[32];
    ngx_rl_reader_t  *reader;

    wrong = 0;

    for (c = 0; c < 256; c++) {

        /* types of either version of the protocol */

        if (c && strchr("+-:$*,#_%~>(=|!", c)) {
            continue;
        }

        reader = ngx_rl_reader_create();
        text.len = 0;
        snprintf(wire, sizeof(wire), "x1\r\nOK\r\n");
        wire[0] = (char) c;
        feed(reader, wire, 8);
        rc = read_all(reader);
        wrong += rc != -1 || text.len != 0;
        ngx_rl_reader_free(reader);
    }

    is_number(wrong, 0, "no other byte begins a reply");

    is_refused(bytes_of("HTTP/1.1 400 Bad Request\r\n\r\n"),
               "another protocol's server");
    is_refused(bytes_of("\x15\x03\x01\x00\x02\x02\x28\r\n"), "a TLS alert");
    is_refused(bytes_of("\r\n"), "an empty line");
    is_refused(bytes_of(":\r\n"), "an integer without digits");
    is_refused(bytes_of(":1x\r\n"), "an integer with a letter");
    is_refused(bytes_of(":+-1\r\n"), "an integer with two signs");
    is_refused(bytes_of(":9223372036854775808\r\n"), "an integer too great");
    is_refused(bytes_of(":-9223372036854775809\r\n"), "an integer too small");
    is_refused(bytes_of("$x\r\n"), "a length that is no number");
    is_refused(bytes_of("$99999999999999999999\r\n"), "a length too great");
    is_refused(bytes_of("*x\r\n"), "a count that is no number");
    is_refused(bytes_of("*99999999999999999999\r\n"), "a count too great");
    is_refused(bytes_of("*2\r\n:1\r\nxyz\r\n"), "garbage inside an array");

    /* the reply before it is still good */

    reader = ngx_rl_reader_create();
    text.len = 0;
    feed(reader, ":5\r\nxyz\r\n", 9);
    is_number(read_all(reader), -1, "garbage after a reply");
    is_bytes(text.data, text.len, bytes_of(":5\n"), "comes after it");
    ngx_rl_reader_free(reader);
}


static void
test_hostile(void)
{
    int               rc, sound;
    char             *wire;
    size_t            i, n;
    ngx_rl_reader_t  *reader;

    static const char  *negative[] = {
        "$-2\r\n", "$-2147483648\r\n", "$-9223372036854775808\r\n",
        "*-2\r\n", "*-2147483648\r\n", "*-4294967297\r\n",
        "*-9223372036854775808\r\n"
    };

    is_refused(bytes_of("*2147483647\r\n"), "an array of 2^31 - 1");
    is_refused(bytes_of("*2147483648\r\n"), "an array of 2^31");
    is_refused(bytes_of("*4294967295\r\n"), "an array of 2^32 - 1");
    is_refused(bytes_of("*4294967297\r\n:1\r\n"), "an array of 2^32 + 1");
    is_refused(bytes_of("*2305843009213693953\r\n:1\r\n"),
               "an array of 2^61 + 1");
    is_refused(bytes_of("*9223372036854775807\r\n"), "an array of 2^63 - 1");
    is_refused(bytes_of("*4096\r\n"), "an array larger than the arena");
    is_refused(bytes_of("*2\r\n:1\r\n*2147483647\r\n"),
               "a huge array in a small one");

    /* a negative length is an error or nothing, as hiredis likes */

    for (i = 0; i < sizeof(negative) / sizeof(negative[0]); i++) {
        reader = ngx_rl_reader_create();
        text.len = 0;
        feed(reader, negative[i], strlen(negative[i]));
        rc = read_all(reader);
        sound = (rc == -1 && text.len == 0) || (rc == 0 && text_is("nil"));
        ok(sound, "the length %.*s does no harm",
           (int) strcspn(negative[i], "\r"), negative[i]);
        ngx_rl_reader_free(reader);
    }

    /* nested a hundred thousand deep */

    n = 100000;
    wire = malloc(4 * n);

    for (i = 0; i < n; i++) {
        memcpy(wire + 4 * i, "*1\r\n", 4);
    }

    is_refused(wire, 4 * n, "a tower of arrays");

    free(wire);

    /* larger than the arena in all: by one string, and by many */

    n = NGX_RL_REPLY_ARENA;
    wire = malloc(n + 64);
    memset(wire, 'x', n + 64);
    i = snprintf(wire, 64, "$%zu\r\n", n);
    wire[i] = 'x';
    wire[i + n] = '\r';
    wire[i + n + 1] = '\n';

    is_refused(wire, i + n + 2, "a string as large as the arena");

    memset(wire, 'x', n + 64);
    memcpy(wire, "-ERR ", 5);
    wire[n] = '\r';
    wire[n + 1] = '\n';
    is_refused(wire, n + 2, "an error as long as the arena");

    free(wire);

    wire = malloc(32 + 4 * 1000);
    n = snprintf(wire, 32, "*1000\r\n");

    for (i = 0; i < 1000; i++) {
        memcpy(wire + n, ":1\r\n", 4);
        n += 4;
    }

    is_refused(wire, n, "an array whose elements fill the arena");

    free(wire);
}


/* what fits is read: the largest string, up to the last byte of the arena */

static void
test_fill(void)
{
    int               rc;
    char             *wire;
    size_t            n, head, largest;
    ngx_rl_reply_t   *reply;
    ngx_rl_reader_t  *reader;

    wire = malloc(NGX_RL_REPLY_ARENA + 64);
    largest = 0;

    reader = ngx_rl_reader_create();

    for (n = NGX_RL_REPLY_ARENA - 256; n < NGX_RL_REPLY_ARENA + 16; n++) {
        head = snprintf(wire, 32, "$%zu\r\n", n);
        memset(wire + head, 'y', n);
        memcpy(wire + head + n, "\r\n", 2);

        feed(reader, wire, head + n + 2);
        rc = ngx_rl_reader_next(reader, &reply);

        if (rc != 1 || reply->len != n
            || memcmp(reply->str, wire + head, n) != 0
            || reply->str[n] != '\0')
        {
            break;
        }

        largest = n;
    }

    is_number(rc, -1, "a string is too large at some length");
    ok(largest > NGX_RL_REPLY_ARENA - 128,
       "which is near the size of the arena");

    ngx_rl_reader_free(reader);
    free(wire);
}


/* 1, -1: what a reader that expects so much says to a string of this length */

static int
read_string(size_t large, size_t len)
{
    int               rc;
    char             *wire;
    size_t            head, portion, fed;
    ngx_rl_reply_t   *reply;
    ngx_rl_reader_t  *reader;

    wire = malloc(len + 64);
    head = snprintf(wire, 64, "$%zu\r\n", len);
    memset(wire + head, 'z', len);
    memcpy(wire + head + len, "\r\n", 2);

    reader = ngx_rl_reader_create();
    rc = ngx_rl_reader_expect(reader, large);

    for (fed = 0; fed < head + len + 2 && rc == 0; fed += portion) {
        portion = head + len + 2 - fed;
        portion = portion < 16384 ? portion : 16384;

        rc = feed(reader, wire + fed, portion);

        if (rc == 0) {
            rc = ngx_rl_reader_next(reader, &reply);
        }
    }

    if (rc == 1 && (reply->len != len
                    || memcmp(reply->str, wire + head, len) != 0))
    {
        rc = 2;
    }

    ngx_rl_reader_free(reader);
    free(wire);

    return rc;
}


/* a reply that is expected to be large may be so, and no other one */

static void
test_bounds(void)
{
    int               rc;
    size_t            i, wrong, before, usual;
    ngx_rl_reply_t   *reply;
    ngx_rl_reader_t  *reader;

    static const char  head[] = "*50000\r\n";
    static const char  element[] = "*2\r\n:1\r\n$2\r\nab\r\n";

    is_number(read_string(256, 150), 1, "a small arena, a string");
    is_number(read_string(256, 250), -1, "one that is too long for it");
    is_number(read_string(253, 150), 1, "an arena of an odd size");
    is_number(read_string(4194304, 1000000), 1,
              "a large arena, a large string");
    is_number(read_string(4194304, 4194304), -1,
              "one that is too large for it");

    is_number(read_string(0, 1000000), -1,
              "which is too large for the usual one");

    before = allocated();

    reader = ngx_rl_reader_create();
    usual = allocated();

    is_number(ngx_rl_reader_expect(reader, 16777216), 0,
              "an arena for one reply");
    rc = feed(reader, head, sizeof(head) - 1);

    for (i = 0; i < 50000 && rc == 0; i++) {
        rc = ngx_rl_reader_next(reader, &reply);

        if (rc == 0) {
            rc = feed(reader, element, sizeof(element) - 1);
        }
    }

    is_number(rc, 0, "a large array of arrays");
    is_number(ngx_rl_reader_next(reader, &reply), 1, "is read");

    wrong = 0;

    for (i = 0; i < reply->elements; i++) {
        wrong += reply->element[i]->elements != 2
                 || reply->element[i]->element[0]->integer != 1
                 || memcmp(reply->element[i]->element[1]->str, "ab", 3) != 0;
    }

    is_number(reply->elements, 50000, "to its end");
    is_number(wrong, 0, "all of it");

    is_number(ngx_rl_reader_expect(reader, 0), 0, "the next one is as usual");
    ok(allocated() < usual + BOUND, "the large arena is free again");

    is_number(feed(reader, head, sizeof(head) - 1), 0, "the same array");
    is_number(ngx_rl_reader_next(reader, &reply), -1, "which is too large now");

    is_number(ngx_rl_reader_expect(reader, 16777216), 0,
              "a reader that ends while it expects a large one");
    ngx_rl_reader_free(reader);
    is_number(allocated(), before, "leaves nothing behind");
}


/* portions of what never becomes a reply, until the reader has enough */

static void
is_bounded(const char *begin, const char *filler, const char *name)
{
    int               rc;
    char              portion[4096];
    size_t            i, before, most, fed;
    ngx_rl_reply_t   *reply;
    ngx_rl_reader_t  *reader;

    for (i = 0; i < sizeof(portion); i++) {
        portion[i] = filler[i % strlen(filler)];
    }

    before = allocated();
    most = before;

    reader = ngx_rl_reader_create();

    rc = feed(reader, begin, strlen(begin));

    for (fed = 0; fed < 100000000 && rc == 0; fed += sizeof(portion)) {
        rc = feed(reader, portion, sizeof(portion));

        while (rc == 0) {
            rc = ngx_rl_reader_next(reader, &reply);

            if (rc == 0) {
                break;
            }
        }

        most = allocated() > most ? allocated() : most;
    }

    is_number(rc, -1, name);
    ok(fed <= 2 * NGX_RL_REPLY_MAX && most <= before + BOUND,
       "after %zu bytes, in bounded memory", fed);

    ngx_rl_reader_free(reader);
}


static void
test_endless(void)
{
    is_bounded("+", "x", "an endless line comes to an end");
    is_bounded("-ERR ", "x", "an endless error");
    is_bounded(":", "1", "an endless integer");
    is_bounded("$", "0", "an endless length");
    is_bounded("*", "0", "an endless count");
    is_bounded("$536870912\r\n", "x", "a string of 512 MB");
    is_bounded("$536870913\r\n", "x", "a string of more than 512 MB");
    is_bounded("$9223372036854775807\r\n", "x", "a string of 2^63 - 1");
    is_bounded("*2000\r\n", "$0\r\n\r\n", "an array of many strings");
    is_bounded("*1\r\n$536870912\r\n", "x", "a huge string in an array");
    is_bounded("*100\r\n", "+x\r\n*100\r\n", "arrays in arrays");
}


/*
 * Streams of sound replies, with bytes changed, lost, doubled and swapped, in
 * portions of any size.  The sanitizers say whether something went wrong; the
 * test says that it stayed bounded.
 */

static void
test_fuzz(void)
{
    int               rc;
    char              wire[2048];
    size_t            i, n, len, portion, at, count, before;
    size_t            replies, errors;
    uint64_t          seed, dice;
    const sample_t   *s;
    ngx_rl_reply_t   *reply;
    ngx_rl_reader_t  *reader;

    static const char  alphabet[] = "+-:$*0123456789\r\n\r\n\0x%>~_#,(=|";

    seed = 20240229;
    replies = 0;
    errors = 0;
    before = allocated();

    for (n = 0; n < 150000; n++) {

        len = 0;
        count = tap_random(&seed) % 12 + 1;

        for (i = 0; i < count; i++) {
            s = &samples[tap_random(&seed) % NSAMPLES];
            memcpy(wire + len, s->wire, s->len);
            len += s->len;
        }

        count = tap_random(&seed) % 6;

        for (i = 0; i < count && len > 2; i++) {
            dice = tap_random(&seed);
            at = (dice >> 8) % (len - 1);

            switch (dice % 6) {

            case 0:
                wire[at] = (char) (dice >> 40);
                break;

            case 1:
            case 2:
                wire[at] = alphabet[(dice >> 40) % (sizeof(alphabet) - 1)];
                break;

            case 3:
                memmove(wire + at, wire + at + 1, len - at - 1);
                len--;
                break;

            case 4:
                memmove(wire + at + 1, wire + at, len - at);
                len++;
                break;

            default:
                wire[len - 1] = wire[at];
                wire[at] = wire[at + 1];
                break;
            }
        }

        reader = ngx_rl_reader_create();
        rc = 0;

        for (at = 0; at < len && rc == 0; at += portion) {
            portion = tap_random(&seed) % 40 + 1;
            portion = portion < len - at ? portion : len - at;

            rc = feed(reader, wire + at, portion);

            while (rc == 0 && (rc = ngx_rl_reader_next(reader, &reply)) == 1) {
                text.len = 0;
                render(reply);
                replies++;
                rc = 0;
            }
        }

        errors += rc < 0;

        if (allocated() > before + BOUND) {
            break;
        }

        ngx_rl_reader_free(reader);
    }

    is_number(n, 150000, "150000 broken streams stay within their bounds");
    ok(errors > 50000, "many of them are refused (%zu)", errors);
    ok(replies > 300000, "and many replies are read before (%zu)", replies);
}


int
main(void)
{
    test_splits();
    test_many();
    test_garbage();
    test_hostile();
    test_fill();
    test_bounds();
    test_endless();
    test_fuzz();

    return tap_done();
}
