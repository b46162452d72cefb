
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
#define GCRA_SHA1    NGX_HTTP_RATELIMIT_LUA_GCRA_SHA1
#define GCRA_TEXT    NGX_HTTP_RATELIMIT_LUA_GCRA
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

#define usual_reader()                                                        \
    ngx_http_ratelimit_reader_create(NGX_HTTP_RATELIMIT_REPLY_ARENA,          \
                                     NGX_HTTP_RATELIMIT_REPLY_MAX)


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
    bucket.varies = 0;

    if (ngx_http_ratelimit_rate_parse(rate, strlen(rate), &bucket.rate)) {
        ok(0, "%s is a rate", rate);
    }

    return bucket;
}


static ngx_http_ratelimit_bucket_t
gcra_of(uint64_t capacity, const char *rate, uint64_t cost)
{
    ngx_http_ratelimit_bucket_t  bucket;

    bucket = bucket_of(capacity, rate, cost);
    bucket.algorithm = NGX_HTTP_RATELIMIT_GCRA;

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
    script.times = 1;
    script.passed = 77;
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
    ngx_http_ratelimit_script_free(command);

    claims[1] = claim_of("b", window_of(5, 60 * SECOND, 2));
    script = script_of(claims, 2);

    len = ngx_http_ratelimit_script_take(&command, &script);

    is_bytes(command, len, bytes_of("*26\r\n$7\r\nEVALSHA\r\n"
             "$40\r\n" TAKE_SHA1 "\r\n" "$1\r\n2\r\n"
             "$15\r\nratelimit:a:{k}\r\n" "$1\r\nb\r\n"
             "$4\r\ntake\r\n" "$5\r\nredis\r\n" "$16\r\n1800000000123456\r\n"
             "$4\r\n7f-1\r\n" "$1\r\n1\r\n"
             "$6\r\nbucket\r\n" "$8\r\nenforced\r\n" "$2\r\n10\r\n"
             "$1\r\n3\r\n" "$1\r\n7\r\n" "$2\r\n60\r\n" "$1\r\n0\r\n"
             "$5\r\n86714\r\n"
             "$6\r\nwindow\r\n" "$8\r\nenforced\r\n" "$1\r\n5\r\n"
             "$1\r\n2\r\n" "$8\r\n60000000\r\n" "$1\r\n0\r\n" "$1\r\n0\r\n"
             "$5\r\n61000\r\n"), "a bucket and a window, byte by byte");
    ngx_http_ratelimit_script_free(command);

    len = ngx_http_ratelimit_script_refund(&command, &script, 1);

    is_bytes(command, len, bytes_of("*12\r\n$7\r\nEVALSHA\r\n"
             "$40\r\n" REFUND_SHA1 "\r\n" "$1\r\n2\r\n"
             "$15\r\nratelimit:a:{k}\r\n" "$1\r\nb\r\n" "$4\r\n7f-1\r\n"
             "$6\r\nbucket\r\n" "$2\r\n10\r\n" "$1\r\n3\r\n"
             "$6\r\nwindow\r\n" "$1\r\n5\r\n" "$1\r\n2\r\n"),
             "and what gives them back");
    ngx_http_ratelimit_script_free(command);

    claims[0] = claim_of("ratelimit:a:{k}", gcra_of(10, "7r/m", 3));
    script = script_of(claims, 1);

    /* a token is 60/7 s, of 16000000 ticks each */

    len = ngx_http_ratelimit_script_take(&command, &script);

    is_bytes(command, len, bytes_of("*6\r\n$7\r\nEVALSHA\r\n"
             "$40\r\n" GCRA_SHA1 "\r\n" "$1\r\n1\r\n"
             "$15\r\nratelimit:a:{k}\r\n"
             "$10\r\n1371428580\r\n" "$9\r\n411428574\r\n"),
             "the same limit by gcra, byte by byte");
    ngx_http_ratelimit_script_free(command);

    len = ngx_http_ratelimit_script_command(&command, "AUTH", "bob", "s cret",
                                            NULL);
    is_bytes(command, len, bytes_of("*3\r\n$4\r\nAUTH\r\n$3\r\nbob\r\n"
             "$6\r\ns cret\r\n"), "AUTH with a user");
    ngx_http_ratelimit_script_free(command);

    len = ngx_http_ratelimit_script_command(&command, "AUTH", "", NULL);
    is_bytes(command, len, bytes_of("*2\r\n$4\r\nAUTH\r\n$0\r\n\r\n"),
             "an empty word");
    ngx_http_ratelimit_script_free(command);

    len = ngx_http_ratelimit_script_command(&command, "CLIENT", "SETNAME",
                                            "a\r\nb", NULL);
    is_bytes(command, len, bytes_of("*3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n"
             "$4\r\na\r\nb\r\n"), "a word with a line end in it");
    ngx_http_ratelimit_script_free(command);
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
        unsigned      gcra;
    } cases[] = {
        { "one bucket", 1, "1r/s", 10, 0, 1, 0, 0, 0, 0 },
        { "one shadow bucket", 1, "1r/s", 10, 0, 1, 0, 0, 1, 0 },
        { "full within an hour", 1, "1r/s", 3599, 0, 1, 0, 0, 0, 0 },
        { "in a second more", 0, "1r/s", 3600, 0, 1, 0, 0, 0, 0 },
        { "never", 0, "0r/s", 10, 0, 1, 0, 0, 0, 0 },
        { "a preview", 0, "1r/s", 10, 0, 1, 1, 0, 0, 0 },
        { "nginx's clock", 0, "1r/s", 10, 0, 1, 0, 1, 0, 0 },
        { "a step", 0, "1r/s", 10, 1000, 1, 0, 0, 0, 0 },
        { "a window", 0, NULL, 10, 0, 1, 0, 0, 0, 0 },
        { "two buckets", 0, "1r/s", 10, 0, 2, 0, 0, 0, 0 },
        { "one gcra", 1, "1r/s", 10, 0, 1, 0, 0, 0, 1 },
        { "one shadow gcra", 1, "1r/s", 10, 0, 1, 0, 0, 1, 1 },
        { "gcra, full in a day", 1, "1r/d", 1, 0, 1, 0, 0, 0, 1 },
        { "a preview of gcra", 0, "1r/s", 10, 0, 1, 1, 0, 0, 1 },
        { "gcra by nginx's clock", 0, "1r/s", 10, 0, 1, 0, 1, 0, 1 },
        { "two gcra", 0, "1r/s", 10, 0, 2, 0, 0, 0, 1 }
    };

    for (i = 0; i < nelts_of(cases); i++) {
        claims[0] = claim_of("k", cases[i].rate
                                  ? bucket_of(cases[i].capacity,
                                              cases[i].rate, 1)
                                  : window_of(cases[i].capacity, SECOND, 1));
        claims[0].bucket.step = cases[i].step;
        claims[0].shadow = cases[i].shadow;

        if (cases[i].gcra) {
            claims[0].bucket.algorithm = NGX_HTTP_RATELIMIT_GCRA;
        }

        claims[1] = claims[0];

        script = script_of(claims, cases[i].n);
        script.preview = cases[i].preview;
        script.clock = cases[i].clock;

        len = ngx_http_ratelimit_script_take(&command, &script);
        is_short = cases[i].is_short;

        ok(args_of(command, len, &args)
           && arg_is(&args, 1, !is_short ? TAKE_SHA1
                               : cases[i].gcra ? GCRA_SHA1 : SHA1, 40),
           "%s: %s", cases[i].name,
           is_short ? "the short script" : "the long one");

        is_number(ngx_http_ratelimit_script_short(&script), is_short,
                  is_short ? "which needs no id" : "which needs an id");
        is_number(ngx_http_ratelimit_script_alike(&script, &script), is_short,
                  is_short ? "and can be one of a batch"
                           : "and goes by itself");

        ngx_http_ratelimit_script_free(command);
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
             "7f-1", "1",
             "bucket", "enforced", "1000000000", "100000",
             "37037037037037", "3200000000", "86400000000", "172801000",
             "window", "shadow", "1000000000", "100000",
             "31536000000000", "0", "0", "31536001000",
             "bucket", "enforced", "7", "1", "0", "1", "0",
             "3155760000000", NULL);
    ngx_http_ratelimit_script_free(command);

    script.preview = 1;
    script.clock = 1;
    script.now = 0;
    script.id = "x y\r\n";
    script.id_len = 3;
    script.n = 1;

    len = ngx_http_ratelimit_script_take(&command, &script);
    ok(args_of(command, len, &args), "a preview by nginx's clock: a command");
    args_are(&args, 4, "word by word", "peek", "nginx", "0", "x y",
             "1",
             "bucket", "enforced", "1000000000", "100000",
             "37037037037037", "3200000000", "86400000000", "172801000",
             NULL);
    ngx_http_ratelimit_script_free(command);

    /* a window has no step, whatever is set beside it */

    claims[0] = claim_of("w", window_of(5, SECOND, 1));
    claims[0].bucket.step = 7;
    script = script_of(claims, 1);

    len = ngx_http_ratelimit_script_take(&command, &script);
    ok(args_of(command, len, &args) && arg_number(&args, 15) == 0,
       "a window is sent without a step");
    ngx_http_ratelimit_script_free(command);

    /* capacity and cost of gcra are ticks, a sixteenth of a microsecond */

    claims[0] = claim_of("a", gcra_of(100, "50r/s", 3));
    claims[1] = claim_of("b", gcra_of(5, "1r/m", 2));
    claims[1].shadow = 1;
    script = script_of(claims, 2);

    len = ngx_http_ratelimit_script_take(&command, &script);
    ok(args_of(command, len, &args), "two of gcra: a command");
    args_are(&args, 5, "in ticks", "take", "redis", "1800000000123456",
             "7f-1", "1",
             "gcra", "enforced", "32000000", "960000", "50", "1", "0", "3000",
             "gcra", "shadow", "4800000000", "1920000000", "1", "60", "0",
             "301000", NULL);
    ngx_http_ratelimit_script_free(command);
}


/* several requests for one limit in one call */

static void
test_times(void)
{
    char                         *command;
    args_t                        args;
    long long                     len;
    ngx_http_ratelimit_claim_t    claim;
    ngx_http_ratelimit_script_t   script;

    claim = claim_of("k", bucket_of(10, "7r/m", 3));
    script = script_of(&claim, 1);
    script.times = 12;

    len = ngx_http_ratelimit_script_take(&command, &script);
    ok(args_of(command, len, &args), "12 requests for a bucket: a command");
    args_are(&args, 0, "whose last word says how many", "EVALSHA", SHA1, "1",
             "k", "10", "7", "60", "3", "86714", "12", NULL);
    ngx_http_ratelimit_script_free(command);

    claim = claim_of("k", gcra_of(10, "1r/s", 3));
    script = script_of(&claim, 1);
    script.times = UINT32_MAX;

    len = ngx_http_ratelimit_script_take(&command, &script);
    ok(args_of(command, len, &args), "for gcra: a command");
    args_are(&args, 0, "whose last word says how many", "EVALSHA", GCRA_SHA1,
             "1", "k", "160000000", "48000000", "4294967295", NULL);
    ngx_http_ratelimit_script_free(command);

    /* where numbers come from variables, that is said as well, in any case */

    claim.bucket.varies = 1;
    script.times = 2;

    len = ngx_http_ratelimit_script_take(&command, &script);
    ok(args_of(command, len, &args), "for gcra with variables: a command");
    args_are(&args, 4, "which says so at the end", "160000000", "48000000",
             "2", "1", NULL);
    ngx_http_ratelimit_script_free(command);

    script.times = 1;

    len = ngx_http_ratelimit_script_take(&command, &script);
    ok(args_of(command, len, &args), "of one request: a command");
    args_are(&args, 4, "the same", "160000000", "48000000", "1", "1", NULL);
    ngx_http_ratelimit_script_free(command);

    script.preview = 1;

    len = ngx_http_ratelimit_script_take(&command, &script);
    ok(args_of(command, len, &args), "of the long script: a command");
    args_are(&args, 9, "in place of a step", "gcra", "enforced", "160000000",
             "48000000", "1", "1", "1", "11000", NULL);
    ngx_http_ratelimit_script_free(command);

    claim = claim_of("k", window_of(10, SECOND, 3));
    script = script_of(&claim, 1);
    script.times = 2;

    len = ngx_http_ratelimit_script_take(&command, &script);
    ok(args_of(command, len, &args), "for a window: a command");
    args_are(&args, 0, "which says it before the limit", "EVALSHA", TAKE_SHA1,
             "1", "k", "take", "redis", "1800000000123456", "7f-1", "2",
             "window", "enforced", "10", "3", "1000000", "0", "0", "2000",
             NULL);

    ok(ngx_http_ratelimit_script_alike(&script, &script) == 0,
       "no batch has a window");
    ngx_http_ratelimit_script_free(command);
}


static void
test_batch(void)
{
    char                         *command, names[32][8];
    args_t                        args;
    size_t                        i, wrong;
    long long                     len;
    ngx_http_ratelimit_claim_t    claims[32], *p[32], other;
    ngx_http_ratelimit_script_t   a, b;

    for (i = 0; i < 32; i++) {
        snprintf(names[i], sizeof(names[i]), "k%zu", i);
        claims[i] = claim_of(names[i], bucket_of(10, "7r/m", 3));
        p[i] = &claims[i];
    }

    len = ngx_http_ratelimit_script_batch(&command, p, 3, 0);
    ok(args_of(command, len, &args), "a batch of three: a command");
    args_are(&args, 0, "with their keys, and the limit once", "EVALSHA", SHA1,
             "3", "k0", "k1", "k2", "10", "7", "60", "3", "86714", NULL);
    ngx_http_ratelimit_script_free(command);

    len = ngx_http_ratelimit_script_batch(&command, p, 2, 1);
    ok(args_of(command, len, &args), "a batch with the text: a command");
    args_are(&args, 0, "word by word", "EVAL", TEXT,
             "2", "k0", "k1", "10", "7", "60", "3", "86714", NULL);
    ngx_http_ratelimit_script_free(command);

    len = ngx_http_ratelimit_script_batch(&command, p, 32, 0);
    wrong = !args_of(command, len, &args) || args.n != 40;

    for (i = 0; i < 32; i++) {
        wrong += !arg_is(&args, 3 + i, names[i], strlen(names[i]));
    }

    is_number(wrong, 0, "a batch of 32");
    ngx_http_ratelimit_script_free(command);

    for (i = 0; i < 32; i++) {
        claims[i].bucket = gcra_of(10, "7r/m", 3);
    }

    len = ngx_http_ratelimit_script_batch(&command, p, 2, 0);
    ok(args_of(command, len, &args), "a batch of gcra: a command");
    args_are(&args, 0, "with their keys, and the limit once", "EVALSHA",
             GCRA_SHA1, "2", "k0", "k1", "1371428580", "411428574", NULL);
    ngx_http_ratelimit_script_free(command);

    /* which calls may share one */

    claims[0] = claim_of("a", bucket_of(10, "7r/m", 3));
    a = script_of(claims, 1);

#define alike(what, name, expected)                                           \
    other = claim_of("b", bucket_of(10, "7r/m", 3));                          \
    b = script_of(&other, 1);                                                 \
    what;                                                                     \
    ok(ngx_http_ratelimit_script_alike(&a, &b) == expected                    \
       && ngx_http_ratelimit_script_alike(&b, &a) == expected, name)

    alike((void) 0, "two that differ by their keys are alike", 1);
    alike(other.shadow = 1, "and so if one is a shadow", 1);
    alike(b.id = "x", "or has another id", 1);
    alike(other.bucket.capacity = 11, "not with another capacity", 0);
    alike(other.bucket.cost = 1, "another cost", 0);
    alike(other.bucket = bucket_of(10, "8r/m", 3), "another rate", 0);
    alike(other.bucket = bucket_of(10, "7r/s", 3), "another unit of it", 0);
    alike(other.bucket = gcra_of(10, "7r/m", 3), "another algorithm", 0);
    alike(other.bucket.varies = 1, "numbers that vary", 0);
    alike(other.bucket.step = 1, "a step", 0);
    alike(b.times = 2, "two requests", 0);
    alike(b.preview = 1, "a preview", 0);
    alike(b.clock = 1, "or nginx's clock", 0);

#undef alike
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

    len = ngx_http_ratelimit_script_refund(&command, &script, 1);
    ok(args_of(command, len, &args), "a refund is a command");
    args_are(&args, 0, "of those limits that took", "EVALSHA", REFUND_SHA1,
             "2", "b", "d", "7f-1", "bucket", "20", "4", "window", "40", "6",
             NULL);
    ngx_http_ratelimit_script_free(command);

    ok(script.n == 4 && script.claims[0] == &claims[0]
       && script.claims[1] == &claims[1], "the call is left as it was");

    /* one bucket, as token_bucket.lua took it, with the script's text */

    script = script_of(&claims[1], 1);
    script.eval = 1;

    len = ngx_http_ratelimit_script_refund(&command, &script, 1);
    ok(args_of(command, len, &args), "a refund by EVAL is a command");
    args_are(&args, 0, "with the text", "EVAL", REFUND_TEXT, "1", "b", "7f-1",
             "bucket", "20", "4", NULL);
    ngx_http_ratelimit_script_free(command);

    /* for some of several requests */

    claims[0] = claim_of("a", bucket_of(100, "1r/s", 3));
    script = script_of(claims, 1);
    script.times = 20;

    len = ngx_http_ratelimit_script_refund(&command, &script, 7);
    ok(args_of(command, len, &args), "a refund for 7 requests is a command");
    args_are(&args, 4, "of 7 times the cost", "7f-1", "bucket", "100", "21",
             NULL);
    ngx_http_ratelimit_script_free(command);

    claims[0] = claim_of("a", window_of(100, SECOND, 3));
    script = script_of(claims, 1);
    script.times = 20;

    len = ngx_http_ratelimit_script_refund(&command, &script, 7);
    ok(args_of(command, len, &args), "of a window");
    args_are(&args, 4, "the same", "7f-1", "window", "100", "21", NULL);
    ngx_http_ratelimit_script_free(command);

    claims[0] = claim_of("a", gcra_of(100, "1r/s", 3));
    script = script_of(claims, 1);
    script.id_len = 0;

    len = ngx_http_ratelimit_script_refund(&command, &script, 7);
    ok(args_of(command, len, &args), "of gcra");
    args_are(&args, 4, "in ticks; an empty id is an id", "", "gcra", "100",
             "336000000", NULL);
    ngx_http_ratelimit_script_free(command);
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
        { TAKE_SHA1, TAKE_TEXT, 26 },
        { GCRA_SHA1, GCRA_TEXT, 6 }
    };

    for (n = 1; n <= nelts_of(scripts); n++) {
        claims[0] = claim_of("k", bucket_of(1000000000,
                                            "999999999.999999r/h", 100000));
        claims[1] = claims[0];
        claims[0].bucket.capacity = 1000;

        script = script_of(claims, n == 2 ? 2 : 1);

        if (n == 3) {
            claims[0].bucket.algorithm = NGX_HTTP_RATELIMIT_GCRA;
        }

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

        ngx_http_ratelimit_script_free(sha);
        ngx_http_ratelimit_script_free(text);
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
    ngx_http_ratelimit_script_free(command);

    len = ngx_http_ratelimit_script_probe(&command, "a\0b\r\nc", 5);

    ok(args_of(command, len, &args) && args.n == 4
       && arg_is(&args, 3, "a\0b\r\nc", 5), "the key by its length");
    ngx_http_ratelimit_script_free(command);
}


static void
test_load(void)
{
    char       *command;
    args_t      args;
    size_t      i;
    long long   len;

    static const char  *texts[] = { TEXT, GCRA_TEXT, TAKE_TEXT, REFUND_TEXT };

    for (i = 0; i < nelts_of(texts); i++) {
        len = ngx_http_ratelimit_script_load(&command, i);

        ok(args_of(command, len, &args), "SCRIPT LOAD %zu is a command", i);
        args_are(&args, 0, "and brings a script", "SCRIPT", "LOAD", texts[i],
                 NULL);
        ngx_http_ratelimit_script_free(command);
    }

    ok(ngx_http_ratelimit_script_load(&command, i) == -2, "there are four");
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
    script.times = UINT32_MAX;

    len = ngx_http_ratelimit_script_take(&command, &script);

    ok(args_of(command, len, &args) && args.n == 8 + 9 * CLAIMS,
       "16 limits: a command of all");

    wrong = 0;

    for (i = 0; i < CLAIMS; i++) {
        wrong += !arg_is(&args, 3 + i, names[i], strlen(names[i]))
                 || !arg_is(&args, 8 + CLAIMS + 8 * i,
                            i % 3 ? "bucket" : "window", 6)
                 || arg_number(&args, 8 + CLAIMS + 8 * i + 2)
                    != UINT64_MAX - i
                 || arg_number(&args, 8 + CLAIMS + 8 * i + 3) != UINT64_MAX
                 || arg_number(&args, 8 + CLAIMS + 8 * i + 4) != UINT64_MAX
                 || arg_number(&args, 8 + CLAIMS + 8 * i + 6)
                    != (i % 3 ? UINT64_MAX : 0)
                 || arg_number(&args, 8 + CLAIMS + 8 * i + 7)
                    != NGX_HTTP_RATELIMIT_TTL_MAX;
    }

    is_number(wrong, 0, "each in its place");
    ngx_http_ratelimit_script_free(command);

    len = ngx_http_ratelimit_script_refund(&command, &script, 1);

    ok(args_of(command, len, &args) && args.n == 4 + 4 * CLAIMS,
       "and all of them in a refund");

    wrong = 0;

    for (i = 0; i < CLAIMS; i++) {
        wrong += !arg_is(&args, 3 + i, names[i], strlen(names[i]))
                 || arg_number(&args, 4 + CLAIMS + 3 * i + 1)
                    != UINT64_MAX - i;
    }

    is_number(wrong, 0, "each in its place");
    ngx_http_ratelimit_script_free(command);
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
        ngx_http_ratelimit_script_free(command);

        script.n = 2;
        script.claims[1] = &claims[1];

        len = ngx_http_ratelimit_script_take(&command, &script);
        ok(args_of(command, len, &args) && args.n == 26
           && arg_is(&args, 4, keys[i].data, keys[i].len),
           "and as the second of two");
        ngx_http_ratelimit_script_free(command);

        len = ngx_http_ratelimit_script_refund(&command, &script, 1);
        ok(args_of(command, len, &args) && args.n == 12
           && arg_is(&args, 4, keys[i].data, keys[i].len),
           "and in a refund");
        ngx_http_ratelimit_script_free(command);

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

    ngx_http_ratelimit_script_free(command);

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
        { "lua/gcra.lua", GCRA_TEXT, GCRA_SHA1 },
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


/* reads a reply, and decides by it as its callers do */

static ngx_http_ratelimit_failure_e
answer(ngx_http_ratelimit_reader_t *reader, const char *wire,
    ngx_http_ratelimit_script_t *script)
{
    size_t                         i;
    ngx_http_ratelimit_claim_t    *claim;
    ngx_http_ratelimit_failure_e   failure;

    failure = ngx_http_ratelimit_script_reply(reply_of(reader, wire), script);

    for (i = 0; failure == NGX_HTTP_RATELIMIT_OK && i < script->n; i++) {
        claim = script->claims[i];

        ngx_http_ratelimit_decide(&claim->decision, &claim->bucket,
                                  claim->state);
    }

    return failure;
}


static int
decision_is(const ngx_http_ratelimit_claim_t *claim, int passed,
    uint64_t limit, uint64_t remaining, uint64_t reset, uint64_t retry_after)
{
    const ngx_http_ratelimit_decision_t  *d;

    d = &claim->decision;

    return d->outcome == (passed ? NGX_HTTP_RATELIMIT_PASSED
                                 : NGX_HTTP_RATELIMIT_REJECTED)
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
    reader = usual_reader();

    is_number(answer(reader, ":7000000\r\n", &script),
              NGX_HTTP_RATELIMIT_OK, "an integer is a decision");
    ok(decision_is(&claim, 1, 10, 7, 3, 0),
       "not negative: passed, what is left");
    is_number(script.passed, 1, "one of one");

    is_number(answer(reader, ":-2500001\r\n", &script),
              NGX_HTTP_RATELIMIT_OK, "so is a negative one");
    ok(decision_is(&claim, 0, 10, 2, 8, 1),
       "negative: rejected, what is there");
    is_number(script.passed, 0, "none of one");

    for (i = 0; i < nelts_of(replies); i++) {
        failure = answer(reader, replies[i].wire, &script);

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
    reader = usual_reader();

    is_number(answer(reader, "*6\r\n:7000000\r\n:-2000001\r\n:1000000\r\n"
                             ":-3\r\n:5000000\r\n:8000001\r\n", &script),
              NGX_HTTP_RATELIMIT_OK, "three limits in one reply");
    ok(decision_is(&claims[0], 1, 10, 7, 3, 0), "the bucket's number");
    ok(decision_is(&claims[1], 0, 20, 2, 9, 4), "the two of one with steps");
    ok(decision_is(&claims[2], 0, 30, 2, 5, 9), "the window's three");

    for (i = 0; i < nelts_of(wrong); i++) {
        is_number(answer(reader, wrong[i], &script),
                  NGX_HTTP_RATELIMIT_PROTOCOL,
                  "another number or type of elements is no decision");
    }

    /* the same elements, in another order of limits */

    script.claims[0] = &claims[2];
    script.claims[2] = &claims[0];

    answer(reader, "*6\r\n:29\r\n:60000000\r\n:0\r\n"
                   ":-2000001\r\n:1000000\r\n:-1\r\n", &script);
    ok(decision_is(&claims[2], 1, 30, 29, 60, 0)
       && decision_is(&claims[1], 0, 20, 2, 9, 4)
       && decision_is(&claims[0], 0, 10, 0, 10, 3),
       "limits and numbers are in the same order");

    /* single limits of several numbers */

    script = script_of(&claims[1], 1);
    is_number(answer(reader, "*2\r\n:17000000\r\n:0\r\n", &script),
              NGX_HTTP_RATELIMIT_OK, "one bucket with a step is an array");
    ok(decision_is(&claims[1], 1, 20, 17, 5, 0), "of two numbers");
    is_number(answer(reader, ":17000000\r\n", &script),
              NGX_HTTP_RATELIMIT_PROTOCOL, "and not an integer");

    script = script_of(&claims[2], 1);
    is_number(answer(reader, "*3\r\n:27\r\n:1\r\n:0\r\n", &script),
              NGX_HTTP_RATELIMIT_OK, "one window is an array");
    ok(decision_is(&claims[2], 1, 30, 27, 1, 0), "of three numbers");
    is_number(script.passed, 1, "one of one");

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

    reader = usual_reader();

    n = snprintf(wire, sizeof(wire), "*%d\r\n", 3 * CLAIMS);

    for (i = 0; i < CLAIMS; i++) {
        claims[i] = claim_of("k", window_of(100, 60 * SECOND, 1));

        n += snprintf(wire + n, sizeof(wire) - n,
                      ":%zu\r\n:%zu000000\r\n:0\r\n", i, i + 1);
    }

    script = script_of(claims, CLAIMS);

    is_number(answer(reader, wire, &script),
              NGX_HTTP_RATELIMIT_OK, "16 windows answer with 48 numbers");

    wrong = 0;

    for (i = 0; i < CLAIMS; i++) {
        wrong += !decision_is(&claims[i], 1, 100, i, i + 1, 0);
    }

    is_number(wrong, 0, "each has its own");

    ngx_http_ratelimit_reader_free(reader);
}


/* what comes first is how many passed */

static void
test_times_replies(void)
{
    size_t                        i;
    ngx_http_ratelimit_claim_t    bucket, window;
    ngx_http_ratelimit_script_t   script;
    ngx_http_ratelimit_reader_t  *reader;

    static const char  *wrong[] = {
        ":7000000\r\n",
        "*0\r\n",
        "*1\r\n:2\r\n",
        "*3\r\n:2\r\n:7000000\r\n:1\r\n",
        "*2\r\n:-1\r\n:7000000\r\n",
        "*2\r\n:6\r\n:7000000\r\n",
        "*2\r\n:9223372036854775807\r\n:7000000\r\n",
        "*2\r\n$1\r\n2\r\n:7000000\r\n",
        "*2\r\n:2\r\n$-1\r\n"
    };

    reader = usual_reader();

    bucket = claim_of("k", bucket_of(10, "1r/s", 1));
    script = script_of(&bucket, 1);
    script.times = 5;

    is_number(answer(reader, "*2\r\n:5\r\n:3500000\r\n", &script),
              NGX_HTTP_RATELIMIT_OK, "five requests, two numbers");
    ok(script.passed == 5 && bucket.state[0] == 3500000,
       "all passed, so much is left");

    answer(reader, "*2\r\n:2\r\n:500000\r\n", &script);
    ok(script.passed == 2 && bucket.state[0] == 500000,
       "two passed, so much is left");

    answer(reader, "*2\r\n:0\r\n:-500001\r\n", &script);
    ok(script.passed == 0 && bucket.state[0] == -500001,
       "none passed, so much is there");

    for (i = 0; i < nelts_of(wrong); i++) {
        is_number(answer(reader, wrong[i], &script),
                  NGX_HTTP_RATELIMIT_PROTOCOL, "what else is no answer");
    }

    is_number(answer(reader, "-OOM no\r\n", &script), NGX_HTTP_RATELIMIT_OOM,
              "an error is an error");

    window = claim_of("k", window_of(10, 60 * SECOND, 1));
    script = script_of(&window, 1);
    script.times = 5;

    is_number(answer(reader, "*4\r\n:3\r\n:0\r\n:5\r\n:7\r\n", &script),
              NGX_HTTP_RATELIMIT_OK, "of a window, four numbers");
    ok(script.passed == 3 && window.state[0] == 0 && window.state[1] == 5
       && window.state[2] == 7, "how many passed, and its three");
    is_number(answer(reader, "*3\r\n:0\r\n:5\r\n:7\r\n", &script),
              NGX_HTTP_RATELIMIT_PROTOCOL, "three are too few");

    ngx_http_ratelimit_reader_free(reader);
}


/* ticks in, microtokens out, never more than there are */

static void
test_gcra_replies(void)
{
    char                          wire[64];
    int64_t                       ticks;
    unsigned                      i, wrong;
    uint64_t                      seed, tick, left;
    ngx_http_ratelimit_claim_t    claims[2];
    ngx_http_ratelimit_script_t   script;
    ngx_http_ratelimit_reader_t  *reader;

    reader = usual_reader();

    claims[0] = claim_of("a", gcra_of(10, "1r/s", 3));
    claims[1] = claim_of("b", gcra_of(20, "7r/s", 1));
    script = script_of(claims, 1);

    is_number(answer(reader, ":112000000\r\n", &script),
              NGX_HTTP_RATELIMIT_OK, "gcra answers with ticks");
    ok(claims[0].state[0] == 7000000 && decision_is(&claims[0], 1, 10, 7, 3, 0)
       && script.passed == 1, "which are microtokens by its rate");

    answer(reader, ":-40000001\r\n", &script);
    ok(claims[0].state[0] == -2500001
       && decision_is(&claims[0], 0, 10, 2, 8, 1) && script.passed == 0,
       "and so if it denied");

    answer(reader, ":-1\r\n", &script);
    is_number(-claims[0].state[0], 1, "nothing is nothing");

    script = script_of(claims, 2);

    is_number(answer(reader, "*2\r\n:15999999\r\n:2285715\r\n", &script),
              NGX_HTTP_RATELIMIT_OK, "two answer with a number each");
    ok(claims[0].state[0] == 999999 && claims[1].state[0] == 1000000,
       "rounded down, each by its rate");

    script = script_of(claims, 1);
    script.times = 9;

    answer(reader, "*2\r\n:2\r\n:16000000\r\n", &script);
    ok(script.passed == 2 && claims[0].state[0] == 1000000,
       "of several requests, only what is left is in ticks");

    /* the largest limit that there can be, a year's */

    claims[0] = claim_of("a", gcra_of(1000000000, "31.709792r/s", 1));
    script = script_of(claims, 1);
    tick = ngx_http_ratelimit_gcra_tick(&claims[0].bucket.rate);

    snprintf(wire, sizeof(wire), ":%" PRIu64 "\r\n", 1000000000 * tick);
    answer(reader, wire, &script);
    is_number(claims[0].state[0], 1000000000000000ULL,
              "a thousand million tokens");

    seed = 5;
    wrong = 0;

    for (i = 0; i < 20000; i++) {
        ticks = tap_random(&seed) % (1000000000 * tick);

        snprintf(wire, sizeof(wire), ":%" PRId64 "\r\n",
                 i % 2 ? ticks : -1 - ticks);
        answer(reader, wire, &script);

        left = i % 2 ? claims[0].state[0] : -1 - claims[0].state[0];

        wrong += left * (double) tick > ticks * 1e6 * (1 + 1e-12)
                 || (left + 1) * (double) tick < ticks * 1e6 * (1 - 1e-12);
    }

    is_number(wrong, 0, "20000 random answers: to the microtoken");

    ngx_http_ratelimit_reader_free(reader);
}


static ngx_http_ratelimit_failure_e
batch_answer(ngx_http_ratelimit_reader_t *reader, const char *wire,
    ngx_http_ratelimit_claim_t **claims, size_t n)
{
    return ngx_http_ratelimit_script_batch_reply(reply_of(reader, wire),
                                                 claims, n);
}


static void
test_batch_replies(void)
{
    size_t                        i;
    ngx_http_ratelimit_claim_t    claims[3], *p[3];
    ngx_http_ratelimit_reader_t  *reader;

    static const struct {
        const char                    *wire;
        ngx_http_ratelimit_failure_e   failure;
    } replies[] = {
        { ":5\r\n", NGX_HTTP_RATELIMIT_PROTOCOL },
        { "+OK\r\n", NGX_HTTP_RATELIMIT_PROTOCOL },
        { "*-1\r\n", NGX_HTTP_RATELIMIT_PROTOCOL },
        { "*0\r\n", NGX_HTTP_RATELIMIT_PROTOCOL },
        { "*2\r\n:1\r\n:1\r\n", NGX_HTTP_RATELIMIT_PROTOCOL },
        { "*4\r\n:1\r\n:1\r\n:1\r\n:1\r\n", NGX_HTTP_RATELIMIT_PROTOCOL },
        { "*3\r\n:1\r\n$1\r\n1\r\n:1\r\n", NGX_HTTP_RATELIMIT_PROTOCOL },
        { "*3\r\n:1\r\n:1\r\n*1\r\n:1\r\n", NGX_HTTP_RATELIMIT_PROTOCOL },
        { "-NOSCRIPT No matching script.\r\n", NGX_HTTP_RATELIMIT_NOSCRIPT },
        { "-OOM command not allowed\r\n", NGX_HTTP_RATELIMIT_OOM },
        { "-WRONGTYPE Operation\r\n", NGX_HTTP_RATELIMIT_WRONGTYPE }
    };

    reader = usual_reader();

    for (i = 0; i < 3; i++) {
        claims[i] = claim_of("k", bucket_of(10, "1r/s", 1));
        claims[i].failure = NGX_HTTP_RATELIMIT_TIMEOUT;
        p[i] = &claims[i];
    }

    is_number(batch_answer(reader, "*3\r\n:7000000\r\n:-1\r\n:0\r\n", p, 3),
              NGX_HTTP_RATELIMIT_OK, "a batch answers with a number each");
    ok(claims[0].state[0] == 7000000 && claims[1].state[0] == -1
       && claims[2].state[0] == 0, "in the order of the keys");
    ok(claims[0].failure == NGX_HTTP_RATELIMIT_OK
       && claims[1].failure == NGX_HTTP_RATELIMIT_OK
       && claims[2].failure == NGX_HTTP_RATELIMIT_OK, "and none has failed");

    is_number(batch_answer(reader, "*3\r\n:1\r\n-WRONGTYPE no\r\n:2\r\n",
                           p, 3),
              NGX_HTTP_RATELIMIT_OK, "one may be an error");
    ok(claims[0].failure == NGX_HTTP_RATELIMIT_OK && claims[0].state[0] == 1
       && claims[1].failure == NGX_HTTP_RATELIMIT_WRONGTYPE
       && claims[2].failure == NGX_HTTP_RATELIMIT_OK
       && claims[2].state[0] == 2, "which is that one's, the others are fine");

    for (i = 0; i < nelts_of(replies); i++) {
        ok(batch_answer(reader, replies[i].wire, p, 3) == replies[i].failure,
           "\"%.*s\" fails for all: %s",
           (int) strcspn(replies[i].wire, "\r"), replies[i].wire,
           ngx_http_ratelimit_failure_name(replies[i].failure));
    }

    for (i = 0; i < 3; i++) {
        claims[i].bucket = gcra_of(10, "1r/s", 1);
    }

    batch_answer(reader, "*3\r\n:16000000\r\n:-24000001\r\n:0\r\n", p, 3);
    ok(claims[0].state[0] == 1000000 && claims[1].state[0] == -1500001
       && claims[2].state[0] == 0, "a batch of gcra answers with ticks");

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
    test_times();
    test_batch();
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
    test_times_replies();
    test_gcra_replies();
    test_batch_replies();
    test_taken();

    return tap_done();
}
