
/*
 * Calls of the scripts as they go over the wire, and what their replies mean.
 */

#include "tap.h"

#include "ngx_http_ratelimit_script.h"
#include "ngx_http_ratelimit_lua.h"


#define SHA1  NGX_HTTP_RATELIMIT_LUA_TOKEN_BUCKET_SHA1
#define TEXT  NGX_HTTP_RATELIMIT_LUA_TOKEN_BUCKET

#define ARGS  16

#define bytes_of(text)  text, sizeof(text) - 1


typedef struct {
    size_t       n;
    size_t       len[ARGS];
    const char  *data[ARGS];
} args_t;


static ngx_http_ratelimit_bucket_t
bucket_of(uint64_t capacity, const char *rate, uint64_t cost)
{
    ngx_http_ratelimit_bucket_t  bucket;

    bucket.capacity = capacity;
    bucket.cost = cost;

    if (ngx_http_ratelimit_rate_parse(rate, strlen(rate), &bucket.rate)) {
        ok(0, "%s is a rate", rate);
    }

    return bucket;
}


/* the first byte after a number and its line end, NULL if there is none */

static const char *
number_of(const char *p, const char *last, char type, size_t *n)
{
    if (p == NULL || p == last || *p++ != type) {
        return NULL;
    }

    for (*n = 0; p < last && *p >= '0' && *p <= '9'; p++) {
        *n = *n * 10 + (*p - '0');
    }

    return (last - p >= 2 && memcmp(p, "\r\n", 2) == 0) ? p + 2 : NULL;
}


/* takes a command apart, to the last byte; 0 if it is none */

static int
args_of(const char *command, long long len, args_t *args)
{
    size_t       i;
    const char  *p, *last;

    last = command + len;
    p = number_of(command, last, '*', &args->n);

    if (p == NULL || args->n > ARGS) {
        return 0;
    }

    for (i = 0; i < args->n; i++) {
        p = number_of(p, last, '$', &args->len[i]);

        if (p == NULL || (size_t) (last - p) < args->len[i] + 2
            || memcmp(p + args->len[i], "\r\n", 2) != 0)
        {
            return 0;
        }

        args->data[i] = p;
        p += args->len[i] + 2;
    }

    return p == last;
}


static int
arg_is(const args_t *args, size_t i, const char *data, size_t len)
{
    return i < args->n && args->len[i] == len
           && memcmp(args->data[i], data, len) == 0;
}


static uint64_t
arg_number(const args_t *args, size_t i)
{
    char  text[32];

    if (i >= args->n || args->len[i] >= sizeof(text)) {
        return 0;
    }

    memcpy(text, args->data[i], args->len[i]);
    text[args->len[i]] = '\0';

    return strtoull(text, NULL, 10);
}


static void
test_wire(void)
{
    char                         *command;
    long long                     len;
    ngx_http_ratelimit_bucket_t   bucket;

    /* 10 tokens at 7/60 tokens a second are full after 85.714 s */

    bucket = bucket_of(10, "7r/m", 3);
    len = ngx_http_ratelimit_script_take(&command, "ratelimit:a:{k}", 15,
                                         &bucket, 0);

    is_bytes(command, len, bytes_of("*9\r\n$7\r\nEVALSHA\r\n"
             "$40\r\n" SHA1 "\r\n" "$1\r\n1\r\n" "$15\r\nratelimit:a:{k}\r\n"
             "$2\r\n10\r\n" "$1\r\n7\r\n" "$2\r\n60\r\n" "$1\r\n3\r\n"
             "$5\r\n86714\r\n"), "EVALSHA, byte by byte");
    redisFreeCommand(command);

    len = ngx_http_ratelimit_script_command(&command, "AUTH", "bob", "s cret",
                                            NULL);
    is_bytes(command, len, bytes_of("*3\r\n$4\r\nAUTH\r\n$3\r\nbob\r\n"
             "$6\r\ns cret\r\n"), "AUTH with a user");
    redisFreeCommand(command);

    len = ngx_http_ratelimit_script_command(&command, "AUTH", "", NULL);
    is_bytes(command, len, bytes_of("*2\r\n$4\r\nAUTH\r\n$0\r\n\r\n"),
             "an empty word");
    redisFreeCommand(command);

    len = ngx_http_ratelimit_script_command(&command, "CLIENT", "SETNAME",
                                            "a\r\nb", NULL);
    is_bytes(command, len, bytes_of("*3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n"
             "$4\r\na\r\nb\r\n"), "a word with a line end in it");
    redisFreeCommand(command);
}


static void
test_eval(void)
{
    char                         *sha, *text;
    args_t                        a, b;
    size_t                        i, same;
    long long                     sha_len, text_len;
    ngx_http_ratelimit_bucket_t   bucket;

    bucket = bucket_of(1000000000, "999999999.999999r/d", 100000);

    sha_len = ngx_http_ratelimit_script_take(&sha, "k", 1, &bucket, 0);
    text_len = ngx_http_ratelimit_script_take(&text, "k", 1, &bucket, 1);

    ok(args_of(sha, sha_len, &a), "EVALSHA is a command");
    ok(args_of(text, text_len, &b), "EVAL is a command");
    ok(arg_is(&a, 0, bytes_of("EVALSHA")) && arg_is(&a, 1, bytes_of(SHA1)),
       "one names the script");
    ok(arg_is(&b, 0, bytes_of("EVAL")) && arg_is(&b, 1, bytes_of(TEXT)),
       "the other brings it");

    same = 0;

    for (i = 2; i < 9; i++) {
        same += arg_is(&b, i, a.data[i], a.len[i]);
    }

    ok(a.n == 9 && b.n == 9 && same == 7, "and all else is the same");

    is_number(arg_number(&a, 4), 1000000000, "the capacity");
    is_number(arg_number(&a, 5), bucket.rate.num, "the rate's numerator");
    is_number(arg_number(&a, 6), bucket.rate.den, "its denominator");
    is_number(arg_number(&a, 7), 100000, "the cost");

    redisFreeCommand(sha);
    redisFreeCommand(text);

    text_len = ngx_http_ratelimit_script_load(&text);
    ok(args_of(text, text_len, &a) && a.n == 3
       && arg_is(&a, 0, bytes_of("SCRIPT")) && arg_is(&a, 1, bytes_of("LOAD"))
       && arg_is(&a, 2, bytes_of(TEXT)), "SCRIPT LOAD brings the same text");
    redisFreeCommand(text);
}


static void
test_keys(void)
{
    char                         *command, *copy, name[64];
    char                          all[256], large[4096];
    args_t                        args;
    size_t                        i;
    long long                     len;
    ngx_http_ratelimit_bucket_t   bucket;

    struct {
        const char  *name;
        const char  *data;
        size_t       len;
    } keys[] = {
        { "empty", "", 0 },
        { "with a zero byte", bytes_of("ratelimit:a:{x\0y}") },
        { "with line ends", bytes_of("{\r\n$3\r\nfoo\r\n}") },
        { "with quotes", bytes_of("{\"'\\\"}") },
        { "with percent signs", bytes_of("{%s%n%b}") },
        { "with blanks", bytes_of("{ a  b }") },
        { "of all 256 bytes", all, sizeof(all) },
        { "of 4096 bytes", large, sizeof(large) }
    };

    for (i = 0; i < sizeof(all); i++) {
        all[i] = (char) i;
    }

    memset(large, 'k', sizeof(large));

    bucket = bucket_of(10, "1r/s", 1);

    for (i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {

        /* of exactly its length, without a zero byte behind */

        copy = malloc(keys[i].len ? keys[i].len : 1);
        memcpy(copy, keys[i].data, keys[i].len);

        len = ngx_http_ratelimit_script_take(&command, copy, keys[i].len,
                                             &bucket, i % 2);

        snprintf(name, sizeof(name), "a key %s arrives as it is",
                 keys[i].name);
        ok(args_of(command, len, &args) && args.n == 9
           && arg_is(&args, 3, keys[i].data, keys[i].len), "%s", name);

        redisFreeCommand(command);
        free(copy);
    }
}


static uint64_t
ttl_of(const ngx_http_ratelimit_bucket_t *bucket)
{
    char      *command;
    args_t     args;
    uint64_t   ttl;
    long long  len;

    len = ngx_http_ratelimit_script_take(&command, "k", 1, bucket, 0);
    ttl = args_of(command, len, &args) ? arg_number(&args, 8) : 0;

    redisFreeCommand(command);

    return ttl;
}


static void
test_ttl(void)
{
    char                         text[64];
    unsigned                     i, wrong;
    uint64_t                     seed, us, ttl;
    ngx_http_ratelimit_bucket_t  bucket;

    static const char  units[] = "smhd";

    bucket = bucket_of(1, "1r/d", 1);
    is_number(ttl_of(&bucket), 86401000, "once a day: a day and a second");

    bucket = bucket_of(100000, "100000r/s", 1);
    is_number(ttl_of(&bucket), 2000, "100000 a second: two seconds");

    bucket = bucket_of(1, "1000r/s", 1);
    is_number(ttl_of(&bucket), 1001, "never less than a second");

    bucket = bucket_of(10, "0r/s", 1);
    is_number(ttl_of(&bucket), NGX_HTTP_RATELIMIT_TTL_MAX,
              "a rate of zero: as long as there is");

    bucket = bucket_of(1000000000, "0.000001r/d", 1);
    is_number(ttl_of(&bucket), NGX_HTTP_RATELIMIT_TTL_MAX,
              "and so for a rate that is nearly zero");

    /* 36525 days are the limit: at it, and half a second below it */

    bucket = bucket_of(36525, "1r/d", 1);
    is_number(ttl_of(&bucket), NGX_HTTP_RATELIMIT_TTL_MAX,
              "a hundred years, not a second more");

    bucket.rate.num = 2;
    bucket.rate.den = 6311519999;
    bucket.capacity = 1;
    is_number(ttl_of(&bucket), NGX_HTTP_RATELIMIT_TTL_MAX,
              "rounding does not pass the limit");

    seed = 11;
    wrong = 0;

    for (i = 0; i < 100000; i++) {
        snprintf(text, sizeof(text), "%u.%06ur/%c",
                 (unsigned) (tap_random(&seed) % 1000000000)
                 >> tap_random(&seed) % 30,
                 (unsigned) (tap_random(&seed) % 1000000),
                 units[tap_random(&seed) % 4]);

        bucket = bucket_of((tap_random(&seed) % 1000000000
                            >> tap_random(&seed) % 30) + 1, text, 1);

        us = ngx_http_ratelimit_rate_wait(&bucket.rate,
                                          bucket.capacity * 1000000);
        ttl = ttl_of(&bucket);

        wrong += ttl < 1000 || ttl > NGX_HTTP_RATELIMIT_TTL_MAX
                 || (ttl != NGX_HTTP_RATELIMIT_TTL_MAX
                     && (ttl * 1000 < us || ttl > us / 1000 + 1000));
    }

    is_number(wrong, 0, "100000 random limits: never shorter than the time to "
              "refill, a second longer at most");
}


/* FIPS 180-4, short and slow */

static void
sha1_of(const unsigned char *data, size_t len, char *hex)
{
    int        t;
    size_t     i, n, total;
    uint32_t   a, b, c, d, e, f, k, x, w[80];
    uint32_t   h[5] = {
        0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0
    };

    total = (len + 8) / 64 * 64 + 64;

    for (n = 0; n < total; n += 64) {

        memset(w, 0, sizeof(w));

        for (i = 0; i < 64; i++) {
            if (n + i < len) {
                x = data[n + i];

            } else if (n + i == len) {
                x = 0x80;

            } else if (n + i >= total - 8) {
                x = (uint32_t) ((uint64_t) len * 8
                                >> (8 * (total - 1 - n - i))) & 0xff;

            } else {
                x = 0;
            }

            w[i / 4] |= x << (24 - 8 * (i % 4));
        }

        for (t = 16; t < 80; t++) {
            x = w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16];
            w[t] = x << 1 | x >> 31;
        }

        a = h[0];
        b = h[1];
        c = h[2];
        d = h[3];
        e = h[4];

        for (t = 0; t < 80; t++) {

            if (t < 20) {
                f = (b & c) | (~b & d);
                k = 0x5a827999;

            } else if (t < 40) {
                f = b ^ c ^ d;
                k = 0x6ed9eba1;

            } else if (t < 60) {
                f = (b & c) | (b & d) | (c & d);
                k = 0x8f1bbcdc;

            } else {
                f = b ^ c ^ d;
                k = 0xca62c1d6;
            }

            x = (a << 5 | a >> 27) + f + e + k + w[t];
            e = d;
            d = c;
            c = b << 30 | b >> 2;
            b = a;
            a = x;
        }

        h[0] += a;
        h[1] += b;
        h[2] += c;
        h[3] += d;
        h[4] += e;
    }

    for (t = 0; t < 5; t++) {
        sprintf(hex + 8 * t, "%08x", (unsigned) h[t]);
    }
}


static void
test_embedded(void)
{
    char     hex[41], file[65536];
    FILE    *in;
    size_t   n;

    sha1_of((const unsigned char *) bytes_of("abc"), hex);
    is_text(hex, "a9993e364706816aba3e25717850c26c9cd0d89d",
            "SHA-1 of this test is right");

    sha1_of((const unsigned char *) bytes_of(TEXT), hex);
    is_text(SHA1, hex, "the SHA-1 is that of the embedded text");

    /* tests are run in the top folder */

    in = fopen("lua/token_bucket.lua", "rb");

    if (ok(in != NULL, "the script is there")) {
        n = fread(file, 1, sizeof(file), in);
        fclose(in);

        is_bytes(bytes_of(TEXT), file, n, "and embedded to the byte");
    }
}


static void
test_replies(void)
{
    size_t                          i;
    ngx_http_ratelimit_reply_t     *reply;
    ngx_http_ratelimit_bucket_t     bucket;
    ngx_http_ratelimit_reader_t    *reader;
    ngx_http_ratelimit_failure_e    failure;
    ngx_http_ratelimit_decision_t   d;

    static const struct {
        const char                    *wire;
        ngx_http_ratelimit_failure_e   failure;
    } replies[] = {
        { "+OK\r\n", NGX_HTTP_RATELIMIT_PROTOCOL },
        { "$1\r\n5\r\n", NGX_HTTP_RATELIMIT_PROTOCOL },
        { "$-1\r\n", NGX_HTTP_RATELIMIT_PROTOCOL },
        { "*-1\r\n", NGX_HTTP_RATELIMIT_PROTOCOL },
        { "*1\r\n:5\r\n", NGX_HTTP_RATELIMIT_PROTOCOL },
        { "*0\r\n", NGX_HTTP_RATELIMIT_PROTOCOL },
        { "-NOSCRIPT No matching script.\r\n", NGX_HTTP_RATELIMIT_NOSCRIPT },
        { "-OOM command not allowed\r\n", NGX_HTTP_RATELIMIT_OOM },
        { "-ERR what\r\n", NGX_HTTP_RATELIMIT_ERROR },
        { "-\r\n", NGX_HTTP_RATELIMIT_ERROR }
    };

    bucket = bucket_of(10, "1r/s", 3);
    reader = ngx_http_ratelimit_reader_create();

    ngx_http_ratelimit_reader_feed(reader, ":7000000\r\n:-2500001\r\n", 21);

    memset(&d, 0, sizeof(d));
    ngx_http_ratelimit_reader_next(reader, &reply);
    is_number(ngx_http_ratelimit_script_reply(reply, &bucket, &d),
              NGX_HTTP_RATELIMIT_OK, "an integer is a decision");
    ok(d.outcome == NGX_HTTP_RATELIMIT_PASSED && d.limit == 10
       && d.remaining == 7 && d.reset == 3 && d.retry_after == 0
       && d.source == NGX_HTTP_RATELIMIT_SOURCE_REDIS,
       "not negative: passed, what is left");

    memset(&d, 0, sizeof(d));
    ngx_http_ratelimit_reader_next(reader, &reply);
    is_number(ngx_http_ratelimit_script_reply(reply, &bucket, &d),
              NGX_HTTP_RATELIMIT_OK, "so is a negative one");
    ok(d.outcome == NGX_HTTP_RATELIMIT_REJECTED && d.limit == 10
       && d.remaining == 2 && d.reset == 8 && d.retry_after == 1
       && d.source == NGX_HTTP_RATELIMIT_SOURCE_REDIS,
       "negative: rejected, what is there");

    for (i = 0; i < sizeof(replies) / sizeof(replies[0]); i++) {
        ngx_http_ratelimit_reader_feed(reader, replies[i].wire,
                                       strlen(replies[i].wire));
        ngx_http_ratelimit_reader_next(reader, &reply);
        failure = ngx_http_ratelimit_script_reply(reply, &bucket, &d);

        ok(failure == replies[i].failure, "\"%.*s\" is no decision: %s",
           (int) strcspn(replies[i].wire, "\r"), replies[i].wire,
           ngx_http_ratelimit_failure_name(failure));
    }

    ngx_http_ratelimit_reader_free(reader);
}


int
main(void)
{
    test_wire();
    test_eval();
    test_keys();
    test_ttl();
    test_embedded();
    test_replies();

    return tap_done();
}
