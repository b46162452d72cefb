
/*
 * The embedded scripts: their text and SHA-1, and the commands that run them
 * or bring them to a server.
 */

#include "calls.h"

#include "script/ngx_rl_scripts.h"


#define PROBE_SHA1  NGX_RL_LUA_PROBE_SHA1
#define PROBE_TEXT  NGX_RL_LUA_PROBE


static void
test_begin(void)
{
    args_t  args;
    size_t  i;

    static const struct {
        const char  *sha1;
        const char  *text;
    } scripts[NGX_RL_SCRIPTS] = {
        { SHA1, TEXT },
        { GCRA_SHA1, GCRA_TEXT },
        { FIXED_SHA1, FIXED_TEXT },
        { COUNTER_SHA1, COUNTER_TEXT },
        { TAKE_SHA1, TAKE_TEXT },
        { REFUND_SHA1, REFUND_TEXT }
    };

    for (i = 0; i < NGX_RL_SCRIPTS; i++) {
        ngx_rl_scripts_begin(&writer, i, 7, 0);
        ok(writer_args(&args), "script %zu is named by a command", i);
        args_are(&args, 0, "by its SHA-1", "EVALSHA", scripts[i].sha1, "7",
                 NULL);

        ngx_rl_scripts_begin(&writer, i, 0, 1);
        ok(writer_args(&args), "or brought by one");
        args_are(&args, 0, "by its text", "EVAL", scripts[i].text, "0", NULL);
    }
}


/* comes with its text: it has to work where nothing was loaded yet */

static void
test_probe(void)
{
    char      *command;
    args_t     args;
    long long  len;

    len = ngx_rl_scripts_probe(&command, bytes_of("ratelimit:{probe}"));

    ok(args_of(command, len, &args), "a probe is a command");
    args_are(&args, 0, "with the text and one key", "EVAL", PROBE_TEXT, "1",
             "ratelimit:{probe}", NULL);
    ngx_rl_resp_free(command);

    len = ngx_rl_scripts_probe(&command, "a\0b\r\nc", 5);

    ok(args_of(command, len, &args) && args.n == 4
       && arg_is(&args, 3, "a\0b\r\nc", 5), "the key by its length");
    ngx_rl_resp_free(command);
}


static void
test_load(void)
{
    char      *command;
    args_t     args;
    size_t     i;
    long long  len;

    static const char  *texts[] = {
        TEXT, GCRA_TEXT, FIXED_TEXT, COUNTER_TEXT, TAKE_TEXT, REFUND_TEXT
    };

    for (i = 0; i < nelts_of(texts); i++) {
        len = ngx_rl_scripts_load(&command, i);

        ok(args_of(command, len, &args), "SCRIPT LOAD %zu is a command", i);
        args_are(&args, 0, "and brings a script", "SCRIPT", "LOAD", texts[i],
                 NULL);
        ngx_rl_resp_free(command);
    }

    ok(ngx_rl_scripts_load(&command, i) == -2, "there are six");
    ok(ngx_rl_scripts_load(&command, (size_t) -1) == -2,
       "and no more, however far");
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
    char    hex[41], file[65536];
    FILE   *in;
    size_t  i, n;

    static const struct {
        const char  *file;
        const char  *text;
        const char  *sha1;
    } scripts[] = {
        { "build/lua/token_bucket.lua", TEXT, SHA1 },
        { "build/lua/gcra.lua", GCRA_TEXT, GCRA_SHA1 },
        { "build/lua/take.lua", TAKE_TEXT, TAKE_SHA1 },
        { "build/lua/refund.lua", REFUND_TEXT, REFUND_SHA1 },
        { "build/lua/probe.lua", PROBE_TEXT, PROBE_SHA1 }
    };

    sha1_of((const unsigned char *) bytes_of("abc"), hex);
    is_text(hex, "a9993e364706816aba3e25717850c26c9cd0d89d",
            "SHA-1 of this test is right");

    /* tests are run in the top folder */

    for (i = 0; i < nelts_of(scripts); i++) {
        sha1_of((const unsigned char *) scripts[i].text,
                strlen(scripts[i].text), hex);
        is_text(scripts[i].sha1, hex, "the SHA-1 is that of the embedded text");

        in = fopen(scripts[i].file, "rb");

        if (ok(in != NULL, "%s is there", scripts[i].file)) {
            n = fread(file, 1, sizeof(file), in);
            fclose(in);

            is_bytes(scripts[i].text, strlen(scripts[i].text), file, n,
                     "and embedded to the byte");
        }
    }
}


int
main(void)
{
    test_begin();
    test_probe();
    test_load();
    test_embedded();

    return tap_done();
}
