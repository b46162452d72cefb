
/*
 * Calls of the scripts as they go over the wire, and what their replies mean.
 */

#include "tap.h"

#include "ngx_http_ratelimit_script.h"
#include "ngx_http_ratelimit_lua.h"


#define SHA1         NGX_HTTP_RATELIMIT_LUA_TOKEN_BUCKET_SHA1
#define TEXT         NGX_HTTP_RATELIMIT_LUA_TOKEN_BUCKET
#define TAKE_SHA1    NGX_HTTP_RATELIMIT_LUA_TAKE_SHA1
#define TAKE_TEXT    NGX_HTTP_RATELIMIT_LUA_TAKE
#define REFUND_SHA1  NGX_HTTP_RATELIMIT_LUA_REFUND_SHA1
#define REFUND_TEXT  NGX_HTTP_RATELIMIT_LUA_REFUND
#define PROBE_SHA1   NGX_HTTP_RATELIMIT_LUA_PROBE_SHA1
#define PROBE_TEXT   NGX_HTTP_RATELIMIT_LUA_PROBE

#define SECOND       1000000ULL
#define CLAIMS       NGX_HTTP_RATELIMIT_CLAIMS

/* the longest command that can be made, and some more */
#define ARGS         200

#define bytes_of(text)  text, sizeof(text) - 1
#define nelts_of(a)     (sizeof(a) / sizeof((a)[0]))


typedef struct {
    size_t       n;
    size_t       len[ARGS];
    const char  *data[ARGS];
} args_t;


static ngx_http_ratelimit_bucket_t
bucket_of(uint64_t capacity, const char *rate, uint64_t cost)
{
    ngx_http_ratelimit_bucket_t  bucket;

    /* fields that no bucket needs have a value that would show */

    memset(&bucket, 0xaa, sizeof(bucket));

    bucket.algorithm = NGX_HTTP_RATELIMIT_TOKEN_BUCKET;
    bucket.capacity = capacity;
    bucket.cost = cost;
    bucket.step = 0;

    if (ngx_http_ratelimit_rate_parse(rate, strlen(rate), &bucket.rate)) {
        ok(0, "%s is a rate", rate);
    }

    return bucket;
}


/* "length" in microseconds */

static ngx_http_ratelimit_bucket_t
window_of(uint64_t limit, uint64_t length, uint64_t cost)
{
    ngx_http_ratelimit_bucket_t  window;

    memset(&window, 0xaa, sizeof(window));

    window.algorithm = NGX_HTTP_RATELIMIT_SLIDING_WINDOW_LOG;
    window.capacity = limit;
    window.cost = cost;
    window.window = length;
    window.step = 0;

    return window;
}


static ngx_http_ratelimit_claim_t
claim_of(const char *key, ngx_http_ratelimit_bucket_t bucket)
{
    ngx_http_ratelimit_claim_t  claim;

    memset(&claim, 0, sizeof(claim));

    claim.key = key;
    claim.len = strlen(key);
    claim.bucket = bucket;

    return claim;
}


/* the claims of an array go out together */

static ngx_http_ratelimit_script_t
script_of(ngx_http_ratelimit_claim_t *claims, size_t n)
{
    size_t                       i;
    ngx_http_ratelimit_script_t  script;

    memset(&script, 0, sizeof(script));

    for (i = 0; i < n; i++) {
        script.claims[i] = &claims[i];
    }

    script.n = n;
    script.now = 1800000000123456ULL;
    script.id = "7f-1";
    script.id_len = 4;

    return script;
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


/* compares all arguments from number i on with words up to NULL */

static void
args_are(const args_t *args, size_t i, const char *name, ...)
{
    int          same;
    size_t       first;
    va_list      words;
    const char  *word;

    same = 1;
    first = i;

    va_start(words, name);

    for ( ;; ) {
        word = va_arg(words, const char *);

        if (word == NULL) {
            break;
        }

        if (!arg_is(args, i, word, strlen(word))) {
            same = 0;
        }

        i++;
    }

    va_end(words);

    if (!ok(same && i == args->n, "%s", name)) {
        for (i = first; i < args->n; i++) {
            diag("%zu: %.*s", i, (int) args->len[i], args->data[i]);
        }
    }
}


static void
test_wire(void)
{
    char                         *command;
    long long                     len;
    ngx_http_ratelimit_claim_t    claims[2];
    ngx_http_ratelimit_script_t   script;

    /* 10 tokens at 7/60 tokens a second are full after 85.714 s */

    claims[0] = claim_of("ratelimit:a:{k}", bucket_of(10, "7r/m", 3));
    script = script_of(claims, 1);

    len = ngx_http_ratelimit_script_take(&command, &script);

    is_bytes(command, len, bytes_of("*9\r\n$7\r\nEVALSHA\r\n"
             "$40\r\n" SHA1 "\r\n" "$1\r\n1\r\n" "$15\r\nratelimit:a:{k}\r\n"
             "$2\r\n10\r\n" "$1\r\n7\r\n" "$2\r\n60\r\n" "$1\r\n3\r\n"
             "$5\r\n86714\r\n"), "one bucket, byte by byte");
    redisFreeCommand(command);

    claims[1] = claim_of("b", window_of(5, 60 * SECOND, 2));
    script = script_of(claims, 2);

    len = ngx_http_ratelimit_script_take(&command, &script);

    is_bytes(command, len, bytes_of("*25\r\n$7\r\nEVALSHA\r\n"
             "$40\r\n" TAKE_SHA1 "\r\n" "$1\r\n2\r\n"
             "$15\r\nratelimit:a:{k}\r\n" "$1\r\nb\r\n"
             "$4\r\ntake\r\n" "$5\r\nredis\r\n" "$16\r\n1800000000123456\r\n"
             "$4\r\n7f-1\r\n"
             "$6\r\nbucket\r\n" "$8\r\nenforced\r\n" "$2\r\n10\r\n"
             "$1\r\n3\r\n" "$1\r\n7\r\n" "$2\r\n60\r\n" "$1\r\n0\r\n"
             "$5\r\n86714\r\n"
             "$6\r\nwindow\r\n" "$8\r\nenforced\r\n" "$1\r\n5\r\n"
             "$1\r\n2\r\n" "$8\r\n60000000\r\n" "$1\r\n0\r\n" "$1\r\n0\r\n"
             "$5\r\n61000\r\n"), "a bucket and a window, byte by byte");
    redisFreeCommand(command);

    len = ngx_http_ratelimit_script_refund(&command, &script);

    is_bytes(command, len, bytes_of("*12\r\n$7\r\nEVALSHA\r\n"
             "$40\r\n" REFUND_SHA1 "\r\n" "$1\r\n2\r\n"
             "$15\r\nratelimit:a:{k}\r\n" "$1\r\nb\r\n" "$4\r\n7f-1\r\n"
             "$6\r\nbucket\r\n" "$2\r\n10\r\n" "$1\r\n3\r\n"
             "$6\r\nwindow\r\n" "$1\r\n5\r\n" "$1\r\n2\r\n"),
             "and what gives them back");
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


/*
 * The short script knows no preview, no step, no window, no clock but Redis's,
 * no leap of it, and one key
 */

static void
test_short(void)
{
    int                           is_short;
    char                         *command;
    args_t                        args;
    size_t                        i;
    long long                     len;
    ngx_http_ratelimit_claim_t    claims[2];
    ngx_http_ratelimit_script_t   script;

    static const struct {
        const char   *name;
        int           is_short;
        const char   *rate;         /* NULL: a window */
        uint64_t      capacity, step;
        size_t        n;
        unsigned      preview, clock, shadow;
    } cases[] = {
        { "one bucket", 1, "1r/s", 10, 0, 1, 0, 0, 0 },
        { "one shadow bucket", 1, "1r/s", 10, 0, 1, 0, 0, 1 },
        { "full within an hour", 1, "1r/s", 3599, 0, 1, 0, 0, 0 },
        { "in a second more", 0, "1r/s", 3600, 0, 1, 0, 0, 0 },
        { "never", 0, "0r/s", 10, 0, 1, 0, 0, 0 },
        { "a preview", 0, "1r/s", 10, 0, 1, 1, 0, 0 },
        { "nginx's clock", 0, "1r/s", 10, 0, 1, 0, 1, 0 },
        { "a step", 0, "1r/s", 10, 1000, 1, 0, 0, 0 },
        { "a window", 0, NULL, 10, 0, 1, 0, 0, 0 },
        { "two buckets", 0, "1r/s", 10, 0, 2, 0, 0, 0 }
    };

    for (i = 0; i < nelts_of(cases); i++) {
        claims[0] = claim_of("k", cases[i].rate
                                  ? bucket_of(cases[i].capacity,
                                              cases[i].rate, 1)
                                  : window_of(cases[i].capacity, SECOND, 1));
        claims[0].bucket.step = cases[i].step;
        claims[0].shadow = cases[i].shadow;
        claims[1] = claims[0];

        script = script_of(claims, cases[i].n);
        script.preview = cases[i].preview;
        script.clock = cases[i].clock;

        len = ngx_http_ratelimit_script_take(&command, &script);
        is_short = cases[i].is_short;

        ok(args_of(command, len, &args)
           && (is_short ? arg_is(&args, 1, bytes_of(SHA1))
                        : arg_is(&args, 1, bytes_of(TAKE_SHA1))),
           "%s: %s", cases[i].name,
           is_short ? "the short script" : "the long one");

        redisFreeCommand(command);
    }
}


static void
test_take_args(void)
{
    char                         *command;
    args_t                        args;
    long long                     len;
    ngx_http_ratelimit_claim_t    claims[3];
    ngx_http_ratelimit_script_t   script;

    claims[0] = claim_of("user", bucket_of(1000000000,
                                           "999999999.999999r/d", 100000));
    claims[0].bucket.step = 86400 * SECOND;
    claims[1] = claim_of("ip", window_of(1000000000, 31536000 * SECOND,
                                         100000));
    claims[1].shadow = 1;
    claims[2] = claim_of("global", bucket_of(7, "0r/s", 1));

    script = script_of(claims, 3);

    len = ngx_http_ratelimit_script_take(&command, &script);
    ok(args_of(command, len, &args), "three limits: a command");
    args_are(&args, 0, "word by word", "EVALSHA", TAKE_SHA1, "3",
             "user", "ip", "global", "take", "redis", "1800000000123456",
             "7f-1",
             "bucket", "enforced", "1000000000", "100000",
             "37037037037037", "3200000000", "86400000000", "172801000",
             "window", "shadow", "1000000000", "100000",
             "31536000000000", "0", "0", "31536001000",
             "bucket", "enforced", "7", "1", "0", "1", "0",
             "3155760000000", NULL);
    redisFreeCommand(command);

    script.preview = 1;
    script.clock = 1;
    script.now = 0;
    script.id = "x y\r\n";
    script.id_len = 3;
    script.n = 1;

    len = ngx_http_ratelimit_script_take(&command, &script);
    ok(args_of(command, len, &args), "a preview by nginx's clock: a command");
    args_are(&args, 4, "word by word", "peek", "nginx", "0", "x y",
             "bucket", "enforced", "1000000000", "100000",
             "37037037037037", "3200000000", "86400000000", "172801000",
             NULL);
    redisFreeCommand(command);

    /* a window has no step, whatever is set beside it */

    claims[0] = claim_of("w", window_of(5, SECOND, 1));
    claims[0].bucket.step = 7;
    script = script_of(claims, 1);

    len = ngx_http_ratelimit_script_take(&command, &script);
    ok(args_of(command, len, &args) && arg_number(&args, 14) == 0,
       "a window is sent without a step");
    redisFreeCommand(command);
}


static void
test_refund_args(void)
{
    char                         *command;
    args_t                        args;
    long long                     len;
    ngx_http_ratelimit_claim_t    claims[4];
    ngx_http_ratelimit_script_t   script;

    claims[0] = claim_of("a", bucket_of(10, "1r/s", 3));
    claims[1] = claim_of("b", bucket_of(20, "1r/s", 4));
    claims[2] = claim_of("c", window_of(30, SECOND, 5));
    claims[3] = claim_of("d", window_of(40, SECOND, 6));

    /* two that took, two shadow limits that did not */

    claims[0].state[0] = -1;
    claims[0].shadow = 1;
    claims[1].state[0] = 0;
    claims[2].state[0] = -31;
    claims[2].shadow = 1;
    claims[3].state[0] = 34;

    script = script_of(claims, 4);

    len = ngx_http_ratelimit_script_refund(&command, &script);
    ok(args_of(command, len, &args), "a refund is a command");
    args_are(&args, 0, "of those limits that took", "EVALSHA", REFUND_SHA1,
             "2", "b", "d", "7f-1", "bucket", "20", "4", "window", "40", "6",
             NULL);
    redisFreeCommand(command);

    ok(script.n == 4 && script.claims[0] == &claims[0]
       && script.claims[1] == &claims[1], "the call is left as it was");

    /* one bucket, as token_bucket.lua took it, with the script's text */

    script = script_of(&claims[1], 1);
    script.eval = 1;

    len = ngx_http_ratelimit_script_refund(&command, &script);
    ok(args_of(command, len, &args), "a refund by EVAL is a command");
    args_are(&args, 0, "with the text", "EVAL", REFUND_TEXT, "1", "b", "7f-1",
             "bucket", "20", "4", NULL);
    redisFreeCommand(command);
}


static void
test_eval(void)
{
    char                         *sha, *text;
    args_t                        a, b;
    size_t                        i, n, same;
    long long                     sha_len, text_len;
    ngx_http_ratelimit_claim_t    claims[2];
    ngx_http_ratelimit_script_t   script;

    static const struct {
        const char  *sha1;
        const char  *text;
        size_t       args;
    } scripts[] = {
        { SHA1, TEXT, 9 },
        { TAKE_SHA1, TAKE_TEXT, 25 }
    };

    for (n = 1; n <= 2; n++) {
        claims[0] = claim_of("k", bucket_of(1000000000,
                                            "999999999.999999r/h", 100000));
        claims[1] = claims[0];
        claims[0].bucket.capacity = 1000;

        script = script_of(claims, n);

        sha_len = ngx_http_ratelimit_script_take(&sha, &script);
        script.eval = 1;
        text_len = ngx_http_ratelimit_script_take(&text, &script);

        ok(args_of(sha, sha_len, &a), "EVALSHA is a command");
        ok(args_of(text, text_len, &b), "EVAL is a command");
        ok(arg_is(&a, 0, bytes_of("EVALSHA"))
           && arg_is(&a, 1, scripts[n - 1].sha1, 40), "one names the script");
        ok(arg_is(&b, 0, bytes_of("EVAL"))
           && arg_is(&b, 1, scripts[n - 1].text, strlen(scripts[n - 1].text)),
           "the other brings it");

        same = 0;

        for (i = 2; i < a.n; i++) {
            same += arg_is(&b, i, a.data[i], a.len[i]);
        }

        ok(a.n == scripts[n - 1].args && b.n == a.n && same == a.n - 2,
           "and all else is the same");

        redisFreeCommand(sha);
        redisFreeCommand(text);
    }
}


/* comes with its text: it has to work where nothing was loaded yet */

static void
test_probe(void)
{
    char       *command;
    args_t      args;
    long long   len;

    len = ngx_http_ratelimit_script_probe(&command,
                                          bytes_of("ratelimit:{probe}"));

    ok(args_of(command, len, &args), "a probe is a command");
    args_are(&args, 0, "with the text and one key", "EVAL", PROBE_TEXT, "1",
             "ratelimit:{probe}", NULL);
    redisFreeCommand(command);

    len = ngx_http_ratelimit_script_probe(&command, "a\0b\r\nc", 5);

    ok(args_of(command, len, &args) && args.n == 4
       && arg_is(&args, 3, "a\0b\r\nc", 5), "the key by its length");
    redisFreeCommand(command);
}


static void
test_load(void)
{
    char       *command;
    args_t      args;
    size_t      i;
    long long   len;

    static const char  *texts[] = { TEXT, TAKE_TEXT, REFUND_TEXT };

    for (i = 0; i < nelts_of(texts); i++) {
        len = ngx_http_ratelimit_script_load(&command, i);

        ok(args_of(command, len, &args), "SCRIPT LOAD %zu is a command", i);
        args_are(&args, 0, "and brings a script", "SCRIPT", "LOAD", texts[i],
                 NULL);
        redisFreeCommand(command);
    }

    ok(ngx_http_ratelimit_script_load(&command, i) == -2, "there are three");
    ok(ngx_http_ratelimit_script_load(&command, (size_t) -1) == -2,
       "and no more, however far");
}


/* as many as there may be, with the longest numbers */

static void
test_many(void)
{
    char                         *command, names[CLAIMS][8];
    args_t                        args;
    size_t                        i, wrong;
    long long                     len;
    ngx_http_ratelimit_claim_t    claims[CLAIMS];
    ngx_http_ratelimit_script_t   script;

    for (i = 0; i < CLAIMS; i++) {
        snprintf(names[i], sizeof(names[i]), "k%zu", i);

        claims[i] = claim_of(names[i], i % 3 ? bucket_of(1, "1r/s", 1)
                                             : window_of(1, SECOND, 1));

        claims[i].bucket.capacity = UINT64_MAX - i;
        claims[i].bucket.cost = UINT64_MAX;
        claims[i].bucket.rate.num = UINT64_MAX;
        claims[i].bucket.rate.den = UINT64_MAX;
        claims[i].bucket.window = UINT64_MAX;
        claims[i].bucket.step = UINT64_MAX;
    }

    script = script_of(claims, CLAIMS);
    script.now = UINT64_MAX;
    script.id_len = 4;

    len = ngx_http_ratelimit_script_take(&command, &script);

    ok(args_of(command, len, &args) && args.n == 7 + 9 * CLAIMS,
       "16 limits: a command of all");

    wrong = 0;

    for (i = 0; i < CLAIMS; i++) {
        wrong += !arg_is(&args, 3 + i, names[i], strlen(names[i]))
                 || !arg_is(&args, 7 + CLAIMS + 8 * i,
                            i % 3 ? "bucket" : "window", 6)
                 || arg_number(&args, 7 + CLAIMS + 8 * i + 2)
                    != UINT64_MAX - i
                 || arg_number(&args, 7 + CLAIMS + 8 * i + 3) != UINT64_MAX
                 || arg_number(&args, 7 + CLAIMS + 8 * i + 4) != UINT64_MAX
                 || arg_number(&args, 7 + CLAIMS + 8 * i + 6)
                    != (i % 3 ? UINT64_MAX : 0)
                 || arg_number(&args, 7 + CLAIMS + 8 * i + 7)
                    != NGX_HTTP_RATELIMIT_TTL_MAX;
    }

    is_number(wrong, 0, "each in its place");
    redisFreeCommand(command);

    len = ngx_http_ratelimit_script_refund(&command, &script);

    ok(args_of(command, len, &args) && args.n == 4 + 4 * CLAIMS,
       "and all of them in a refund");

    wrong = 0;

    for (i = 0; i < CLAIMS; i++) {
        wrong += !arg_is(&args, 3 + i, names[i], strlen(names[i]))
                 || arg_number(&args, 4 + CLAIMS + 3 * i + 1)
                    != UINT64_MAX - i;
    }

    is_number(wrong, 0, "each in its place");
    redisFreeCommand(command);
}


static void
test_keys(void)
{
    char                         *command, *copy, name[64];
    char                          all[256], large[4096];
    args_t                        args;
    size_t                        i;
    long long                     len;
    ngx_http_ratelimit_claim_t    claims[2];
    ngx_http_ratelimit_script_t   script;

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

    for (i = 0; i < nelts_of(keys); i++) {

        /* of exactly its length, without a zero byte behind */

        copy = malloc(keys[i].len ? keys[i].len : 1);
        memcpy(copy, keys[i].data, keys[i].len);

        claims[0] = claim_of("", bucket_of(10, "1r/s", 1));
        claims[0].key = copy;
        claims[0].len = keys[i].len;
        claims[1] = claims[0];

        script = script_of(claims, 1);
        script.eval = i % 2;

        len = ngx_http_ratelimit_script_take(&command, &script);

        snprintf(name, sizeof(name), "a key %s arrives as it is",
                 keys[i].name);
        ok(args_of(command, len, &args) && args.n == 9
           && arg_is(&args, 3, keys[i].data, keys[i].len), "%s", name);
        redisFreeCommand(command);

        script.n = 2;
        script.claims[1] = &claims[1];

        len = ngx_http_ratelimit_script_take(&command, &script);
        ok(args_of(command, len, &args) && args.n == 25
           && arg_is(&args, 4, keys[i].data, keys[i].len),
           "and as the second of two");
        redisFreeCommand(command);

        len = ngx_http_ratelimit_script_refund(&command, &script);
        ok(args_of(command, len, &args) && args.n == 12
           && arg_is(&args, 4, keys[i].data, keys[i].len),
           "and in a refund");
        redisFreeCommand(command);

        free(copy);
    }
}


static uint64_t
ttl_of(const ngx_http_ratelimit_bucket_t *bucket)
{
    char                         *command;
    args_t                        args;
    uint64_t                      ttl;
    long long                     len;
    ngx_http_ratelimit_claim_t    claim;
    ngx_http_ratelimit_script_t   script;

    claim = claim_of("k", *bucket);
    script = script_of(&claim, 1);

    /* the last argument of either script */

    len = ngx_http_ratelimit_script_take(&command, &script);
    ttl = args_of(command, len, &args) ? arg_number(&args, args.n - 1) : 0;

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

    bucket = bucket_of(10, "1r/s", 1);
    bucket.step = 60 * SECOND;
    is_number(ttl_of(&bucket), 71000, "a step longer");

    bucket = bucket_of(10, "0r/s", 1);
    bucket.step = 60 * SECOND;
    is_number(ttl_of(&bucket), NGX_HTTP_RATELIMIT_TTL_MAX,
              "but nothing is longer than the longest");

    bucket = window_of(10, 60 * SECOND, 1);
    is_number(ttl_of(&bucket), 61000, "a window: its length and a second");

    bucket = window_of(10, 1000, 1);
    is_number(ttl_of(&bucket), 1001, "the shortest window");

    bucket = window_of(10, 31536000 * SECOND, 1);
    is_number(ttl_of(&bucket), 31536001000ULL, "the longest window");

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

    wrong = 0;

    for (i = 0; i < 20000; i++) {
        snprintf(text, sizeof(text), "%ur/%c",
                 (unsigned) (tap_random(&seed) % 1000 + 1),
                 units[tap_random(&seed) % 4]);

        bucket = bucket_of(tap_random(&seed) % 1000 + 1, text, 1);
        bucket.step = tap_random(&seed) % (86400 * SECOND) + 1;

        us = ngx_http_ratelimit_rate_wait(&bucket.rate,
                                          bucket.capacity * SECOND);
        us = (us + bucket.step - 1) / bucket.step * bucket.step;
        ttl = ttl_of(&bucket);

        wrong += ttl * 1000 < us
                 || ttl * 1000 > us + bucket.step + 1000000;
    }

    is_number(wrong, 0, "20000 with steps: never shorter than the steps that "
              "refill all of it");
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
    size_t   i, n;

    static const struct {
        const char  *file;
        const char  *text;
        const char  *sha1;
    } scripts[] = {
        { "lua/token_bucket.lua", TEXT, SHA1 },
        { "lua/take.lua", TAKE_TEXT, TAKE_SHA1 },
        { "lua/refund.lua", REFUND_TEXT, REFUND_SHA1 },
        { "lua/probe.lua", PROBE_TEXT, PROBE_SHA1 }
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


/* the first reply in "wire" */

static ngx_http_ratelimit_reply_t *
reply_of(ngx_http_ratelimit_reader_t *reader, const char *wire)
{
    ngx_http_ratelimit_reply_t  *reply;

    ngx_http_ratelimit_reader_feed(reader, wire, strlen(wire));
    ngx_http_ratelimit_reader_next(reader, &reply);

    return reply;
}


static int
decision_is(const ngx_http_ratelimit_claim_t *claim, int passed,
    uint64_t limit, uint64_t remaining, uint64_t reset, uint64_t retry_after)
{
    const ngx_http_ratelimit_decision_t  *d;

    d = &claim->decision;

    return d->outcome == (passed ? NGX_HTTP_RATELIMIT_PASSED
                                 : NGX_HTTP_RATELIMIT_REJECTED)
           && d->source == NGX_HTTP_RATELIMIT_SOURCE_REDIS
           && d->limit == limit && d->remaining == remaining
           && d->reset == reset && d->retry_after == retry_after;
}


static void
test_replies(void)
{
    size_t                         i;
    ngx_http_ratelimit_claim_t     claim;
    ngx_http_ratelimit_script_t    script;
    ngx_http_ratelimit_reader_t   *reader;
    ngx_http_ratelimit_failure_e   failure;

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
        { "-CLOCK nginx is behind\r\n", NGX_HTTP_RATELIMIT_CLOCK },
        { "-ERR what\r\n", NGX_HTTP_RATELIMIT_ERROR },
        { "-\r\n", NGX_HTTP_RATELIMIT_ERROR }
    };

    claim = claim_of("k", bucket_of(10, "1r/s", 3));
    script = script_of(&claim, 1);
    reader = ngx_http_ratelimit_reader_create();

    is_number(ngx_http_ratelimit_script_reply(
                  reply_of(reader, ":7000000\r\n"), &script),
              NGX_HTTP_RATELIMIT_OK, "an integer is a decision");
    ok(decision_is(&claim, 1, 10, 7, 3, 0),
       "not negative: passed, what is left");

    is_number(ngx_http_ratelimit_script_reply(
                  reply_of(reader, ":-2500001\r\n"), &script),
              NGX_HTTP_RATELIMIT_OK, "so is a negative one");
    ok(decision_is(&claim, 0, 10, 2, 8, 1),
       "negative: rejected, what is there");

    for (i = 0; i < nelts_of(replies); i++) {
        failure = ngx_http_ratelimit_script_reply(
                      reply_of(reader, replies[i].wire), &script);

        ok(failure == replies[i].failure, "\"%.*s\" is no decision: %s",
           (int) strcspn(replies[i].wire, "\r"), replies[i].wire,
           ngx_http_ratelimit_failure_name(failure));
    }

    ngx_http_ratelimit_reader_free(reader);
}


/* a bucket, a bucket with a step, a window: one, two and three numbers */

static void
test_arrays(void)
{
    size_t                         i;
    ngx_http_ratelimit_claim_t     claims[3];
    ngx_http_ratelimit_script_t    script;
    ngx_http_ratelimit_reader_t   *reader;

    static const char  *wrong[] = {
        ":5\r\n",
        "*-1\r\n",
        "*0\r\n",
        "*5\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
        "*7\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
        "*6\r\n$1\r\n1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
        "*6\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n$-1\r\n",
        "*6\r\n:1\r\n:1\r\n*1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
        "*6\r\n:1\r\n:1\r\n:1\r\n-ERR x\r\n:1\r\n:1\r\n",
        "*3\r\n:1\r\n*2\r\n:1\r\n:1\r\n*3\r\n:1\r\n:1\r\n:1\r\n"
    };

    claims[0] = claim_of("a", bucket_of(10, "1r/s", 3));
    claims[1] = claim_of("b", bucket_of(20, "2r/s", 3));
    claims[1].bucket.step = 5 * SECOND;
    claims[2] = claim_of("c", window_of(30, 60 * SECOND, 3));

    script = script_of(claims, 3);
    reader = ngx_http_ratelimit_reader_create();

    is_number(ngx_http_ratelimit_script_reply(
                  reply_of(reader, "*6\r\n:7000000\r\n:-2000001\r\n"
                                   ":1000000\r\n:-3\r\n:5000000\r\n"
                                   ":8000001\r\n"), &script),
              NGX_HTTP_RATELIMIT_OK, "three limits in one reply");
    ok(decision_is(&claims[0], 1, 10, 7, 3, 0), "the bucket's number");
    ok(decision_is(&claims[1], 0, 20, 2, 9, 4), "the two of one with steps");
    ok(decision_is(&claims[2], 0, 30, 2, 5, 9), "the window's three");

    for (i = 0; i < nelts_of(wrong); i++) {
        is_number(ngx_http_ratelimit_script_reply(reply_of(reader, wrong[i]),
                                                  &script),
                  NGX_HTTP_RATELIMIT_PROTOCOL,
                  "another number or type of elements is no decision");
    }

    /* the same elements, in another order of limits */

    script.claims[0] = &claims[2];
    script.claims[2] = &claims[0];

    ngx_http_ratelimit_script_reply(
        reply_of(reader, "*6\r\n:29\r\n:60000000\r\n:0\r\n"
                         ":-2000001\r\n:1000000\r\n:-1\r\n"), &script);
    ok(decision_is(&claims[2], 1, 30, 29, 60, 0)
       && decision_is(&claims[1], 0, 20, 2, 9, 4)
       && decision_is(&claims[0], 0, 10, 0, 10, 3),
       "limits and numbers are in the same order");

    /* single limits of several numbers */

    script = script_of(&claims[1], 1);
    is_number(ngx_http_ratelimit_script_reply(
                  reply_of(reader, "*2\r\n:17000000\r\n:0\r\n"), &script),
              NGX_HTTP_RATELIMIT_OK, "one bucket with a step is an array");
    ok(decision_is(&claims[1], 1, 20, 17, 5, 0), "of two numbers");
    is_number(ngx_http_ratelimit_script_reply(
                  reply_of(reader, ":17000000\r\n"), &script),
              NGX_HTTP_RATELIMIT_PROTOCOL, "and not an integer");

    script = script_of(&claims[2], 1);
    is_number(ngx_http_ratelimit_script_reply(
                  reply_of(reader, "*3\r\n:27\r\n:1\r\n:0\r\n"), &script),
              NGX_HTTP_RATELIMIT_OK, "one window is an array");
    ok(decision_is(&claims[2], 1, 30, 27, 1, 0), "of three numbers");

    ngx_http_ratelimit_reader_free(reader);
}


static void
test_many_replies(void)
{
    char                          wire[4096];
    size_t                        i, n, wrong;
    ngx_http_ratelimit_claim_t    claims[CLAIMS];
    ngx_http_ratelimit_script_t   script;
    ngx_http_ratelimit_reader_t  *reader;

    reader = ngx_http_ratelimit_reader_create();

    n = snprintf(wire, sizeof(wire), "*%d\r\n", 3 * CLAIMS);

    for (i = 0; i < CLAIMS; i++) {
        claims[i] = claim_of("k", window_of(100, 60 * SECOND, 1));

        n += snprintf(wire + n, sizeof(wire) - n,
                      ":%zu\r\n:%zu000000\r\n:0\r\n", i, i + 1);
    }

    script = script_of(claims, CLAIMS);

    is_number(ngx_http_ratelimit_script_reply(reply_of(reader, wire),
                                              &script),
              NGX_HTTP_RATELIMIT_OK, "16 windows answer with 48 numbers");

    wrong = 0;

    for (i = 0; i < CLAIMS; i++) {
        wrong += !decision_is(&claims[i], 1, 100, i, i + 1, 0);
    }

    is_number(wrong, 0, "each has its own");

    ngx_http_ratelimit_reader_free(reader);
}


static void
test_taken(void)
{
    size_t                        i, j;
    ngx_http_ratelimit_claim_t    claims[3];
    ngx_http_ratelimit_script_t   script;

    /* p: passed, d: denied; in capitals for a shadow limit */

    static const struct {
        const char  *claims;
        unsigned     preview;
        int          taken;
    } cases[] = {
        { "p", 0, 1 }, { "d", 0, 0 }, { "p", 1, 0 }, { "P", 0, 1 },
        { "D", 0, 0 }, { "pp", 0, 1 }, { "pd", 0, 0 }, { "dp", 0, 0 },
        { "pD", 0, 1 }, { "Dp", 0, 1 }, { "dD", 0, 0 }, { "DD", 0, 0 },
        { "PD", 0, 1 }, { "Pd", 0, 0 }, { "pDd", 0, 0 }, { "pDp", 0, 1 },
        { "pDp", 1, 0 }
    };

    for (i = 0; i < nelts_of(cases); i++) {

        for (j = 0; cases[i].claims[j]; j++) {
            claims[j] = claim_of("k", bucket_of(10, "1r/s", 1));
            claims[j].shadow = strchr("PD", cases[i].claims[j]) != NULL;
            claims[j].state[0] = strchr("dD", cases[i].claims[j]) ? -1 : 0;
        }

        script = script_of(claims, j);
        script.preview = cases[i].preview;

        ok(!ngx_http_ratelimit_script_taken(&script) == !cases[i].taken,
           "%s%s: %s", cases[i].claims,
           cases[i].preview ? ", a preview" : "",
           cases[i].taken ? "something was taken" : "nothing was taken");
    }
}


int
main(void)
{
    test_wire();
    test_short();
    test_take_args();
    test_refund_args();
    test_eval();
    test_probe();
    test_load();
    test_many();
    test_keys();
    test_ttl();
    test_embedded();
    test_replies();
    test_arrays();
    test_many_replies();
    test_taken();

    return tap_done();
}
