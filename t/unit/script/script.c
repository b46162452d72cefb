
/*
 * Calls of the scripts as they go over the wire, and what their replies mean.
 */

#include "tap.h"

#include "script/ngx_rl_script.h"
#include "ngx_rl_lua.h"


#define SHA1         NGX_RL_LUA_TOKEN_BUCKET_SHA1
#define TEXT         NGX_RL_LUA_TOKEN_BUCKET
#define TAKE_SHA1    NGX_RL_LUA_TAKE_SHA1
#define TAKE_TEXT    NGX_RL_LUA_TAKE
#define GCRA_SHA1    NGX_RL_LUA_GCRA_SHA1
#define GCRA_TEXT    NGX_RL_LUA_GCRA
#define REFUND_SHA1  NGX_RL_LUA_REFUND_SHA1
#define REFUND_TEXT  NGX_RL_LUA_REFUND
#define PROBE_SHA1   NGX_RL_LUA_PROBE_SHA1
#define PROBE_TEXT   NGX_RL_LUA_PROBE

#define SECOND       1000000ULL
#define CLAIMS       NGX_RL_CLAIMS
#define REFUNDS      NGX_RL_REFUNDS

#define BUNDLE       NGX_RL_EVAL_CALLS
#define NUMBERS      NGX_RL_NUMBERS

/* the longest command that can be made, and some more */
#define ARGS         500

#define bytes_of(text)  text, sizeof(text) - 1
#define nelts_of(a)     (sizeof(a) / sizeof((a)[0]))



typedef struct {
    size_t       n;
    size_t       len[ARGS];
    const char  *data[ARGS];
} args_t;


static ngx_rl_bucket_t
bucket_of(uint64_t capacity, const char *rate, uint64_t cost)
{
    ngx_rl_bucket_t  bucket;

    /* fields that no bucket needs have a value that would show */

    memset(&bucket, 0xaa, sizeof(bucket));

    bucket.algorithm = NGX_RL_TOKEN_BUCKET;
    bucket.capacity = capacity;
    bucket.cost = cost;
    bucket.step = 0;
    bucket.varies = 0;

    if (ngx_rl_rate_parse(rate, strlen(rate), &bucket.rate)) {
        ok(0, "%s is a rate", rate);
    }

    return bucket;
}


static ngx_rl_bucket_t
gcra_of(uint64_t capacity, const char *rate, uint64_t cost)
{
    ngx_rl_bucket_t  bucket;

    bucket = bucket_of(capacity, rate, cost);
    bucket.algorithm = NGX_RL_GCRA;

    return bucket;
}


/* "length" in microseconds */

static ngx_rl_bucket_t
window_of(uint64_t limit, uint64_t length, uint64_t cost)
{
    ngx_rl_bucket_t  window;

    memset(&window, 0xaa, sizeof(window));

    window.algorithm = NGX_RL_SLIDING_WINDOW_LOG;
    window.capacity = limit;
    window.cost = cost;
    window.window = length;
    window.step = 0;

    return window;
}


/* another key, another hash; one that was copied has the same */

static ngx_rl_claim_t
claim_of(const char *key, ngx_rl_bucket_t bucket)
{
    size_t          i;
    uint64_t        hash;
    ngx_rl_claim_t  claim;

    memset(&claim, 0, sizeof(claim));

    claim.key = key;
    claim.len = strlen(key);
    claim.bucket = bucket;

    hash = 0xcbf29ce484222325ULL;

    for (i = 0; i < claim.len; i++) {
        hash = (hash ^ (unsigned char) key[i]) * 0x100000001b3ULL;
    }

    claim.hash[0] = hash;
    claim.hash[1] = tap_random(&hash);

    return claim;
}


/* no two of which are the same */

static const char *
key_of(size_t i)
{
    static char  keys[BUNDLE][8];

    snprintf(keys[i], sizeof(keys[i]), "k%u", (unsigned) i % BUNDLE);

    return keys[i];
}


/* the claims of an array go out together */

static ngx_rl_call_t
script_of(ngx_rl_claim_t *claims, size_t n)
{
    size_t         i;
    ngx_rl_call_t  call;

    memset(&call, 0, sizeof(call));

    for (i = 0; i < n; i++) {
        call.claims[i] = &claims[i];
    }

    call.n = n;
    call.times = 1;
    call.passed = 77;
    call.now = 1800000000123456ULL;
    call.id = "7f-1";
    call.id_len = 4;

    return call;
}


/* a call each for the claims of an array */

static void
scripts_of(ngx_rl_call_t *scripts, ngx_rl_claim_t *claims, size_t n)
{
    size_t  i;

    for (i = 0; i < n; i++) {
        scripts[i] = script_of(&claims[i], 1);
    }
}


/* the calls of an array, which have to go together */

static void
bundle_of(ngx_rl_eval_t *eval, ngx_rl_call_t *scripts, size_t n)
{
    size_t  i;

    /* an empty one is one whose number is 0, whatever else was there */

    memset(eval, 0xaa, sizeof(ngx_rl_eval_t));
    eval->n = 0;

    for (i = 0; i < n; i++) {

        if (!ngx_rl_eval_add(eval, &scripts[i])) {
            ok(0, "call %zu goes with those before", i);
        }
    }
}


static long long
eval_command(char **command, ngx_rl_call_t *scripts, size_t n, unsigned eval)
{
    ngx_rl_eval_t  bundle;

    bundle_of(&bundle, scripts, n);

    return ngx_rl_eval_format(command, &bundle, eval);
}


/* one that waits for its reply */

static void
bundle_sent(ngx_rl_eval_t *eval, ngx_rl_call_t *scripts, size_t n)
{
    char  *command;

    bundle_of(eval, scripts, n);

    if (ngx_rl_eval_format(&command, eval, 0) < 0) {
        ok(0, "a bundle is a command");
        return;
    }

    ngx_rl_resp_free(command);
}


/* whether a call is not added, and nothing changes by it */

static int
bundle_refuses(ngx_rl_eval_t *eval, ngx_rl_call_t *call)
{
    int            added, same;
    char          *before, *after;
    long long      before_len, after_len;
    ngx_rl_eval_t  was;

    before_len = ngx_rl_eval_format(&before, eval, 0);
    was = *eval;

    added = ngx_rl_eval_add(eval, call);

    same = eval->n == was.n && eval->nlimits == was.nlimits
           && eval->nnumbers == was.nnumbers
           && memcmp(eval->scripts, was.scripts,
                     was.n * sizeof(was.scripts[0])) == 0
           && memcmp(eval->limits, was.limits,
                     was.nlimits * sizeof(was.limits[0])) == 0
           && memcmp(eval->numbers, was.numbers,
                     was.nnumbers * sizeof(was.numbers[0])) == 0;

    after_len = ngx_rl_eval_format(&after, eval, 0);

    same = same && after_len == before_len
           && memcmp(after, before, before_len) == 0;

    ngx_rl_resp_free(before);
    ngx_rl_resp_free(after);

    return !added && same;
}


static ngx_rl_refund_t
refund_of(const char *key, ngx_rl_bucket_t bucket,
    uint64_t tokens, const char *id)
{
    ngx_rl_refund_t  refund;

    memset(&refund, 0, sizeof(refund));

    refund.key = key;
    refund.len = strlen(key);
    refund.bucket = bucket;
    refund.tokens = tokens;
    refund.id = id;
    refund.id_len = strlen(id);

    return refund;
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
    char            *command;
    long long        len;
    ngx_rl_call_t    scripts[2], call;
    ngx_rl_claim_t   claims[3];
    ngx_rl_refund_t  refunds[2];

    /* 10 tokens at 7/60 tokens a second are full after 85.714 s */

    claims[0] = claim_of("ratelimit:a:{k}", bucket_of(10, "7r/m", 3));
    call = script_of(claims, 1);

    len = eval_command(&command, &call, 1, 0);

    is_bytes(command, len, bytes_of("*9\r\n$7\r\nEVALSHA\r\n"
             "$40\r\n" SHA1 "\r\n" "$1\r\n1\r\n" "$15\r\nratelimit:a:{k}\r\n"
             "$2\r\n10\r\n" "$1\r\n7\r\n" "$2\r\n60\r\n" "$1\r\n3\r\n"
             "$5\r\n86714\r\n"), "one bucket, byte by byte");
    ngx_rl_resp_free(command);

    claims[1] = claim_of("b", window_of(5, 60 * SECOND, 2));
    call = script_of(claims, 2);

    len = eval_command(&command, &call, 1, 0);

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
    ngx_rl_resp_free(command);

    claims[2] = claims[1];
    scripts[0] = call;
    scripts[1] = script_of(&claims[2], 1);
    scripts[1].times = 12;

    len = eval_command(&command, scripts, 2, 0);

    is_bytes(command, len, bytes_of("*33\r\n$7\r\nEVALSHA\r\n"
                                    "$40\r\n" TAKE_SHA1 "\r\n" "$1\r\n2\r\n"
                                    "$15\r\nratelimit:a:{k}\r\n" "$1\r\nb\r\n"
             "$4\r\ntake\r\n" "$5\r\nredis\r\n" "$16\r\n1800000000123456\r\n"
                                    "$4\r\n7f-1\r\n" "$1\r\n1\r\n"
             "$6\r\nbucket\r\n" "$8\r\nenforced\r\n" "$2\r\n10\r\n"
             "$1\r\n3\r\n" "$1\r\n7\r\n" "$2\r\n60\r\n" "$1\r\n0\r\n"
                                    "$5\r\n86714\r\n"
             "$6\r\nwindow\r\n" "$8\r\nenforced\r\n" "$1\r\n5\r\n"
             "$1\r\n2\r\n" "$8\r\n60000000\r\n" "$1\r\n0\r\n" "$1\r\n0\r\n"
                                    "$5\r\n61000\r\n"
             "$1\r\n1\r\n" "$1\r\n2\r\n" "$1\r\n1\r\n" "$1\r\n2\r\n"
                                    "$2\r\n12\r\n" "$1\r\n1\r\n" "$1\r\n2\r\n"),
             "with 12 requests for the window alone, byte by byte");
    ngx_rl_resp_free(command);

    refunds[0] = refund_of("ratelimit:a:{k}", claims[0].bucket, 3, "7f-1");
    refunds[1] = refund_of("b", claims[1].bucket, 2, "7f-2");

    len = ngx_rl_eval_refund(&command, refunds, 2, 0);

    is_bytes(command, len, bytes_of("*13\r\n$7\r\nEVALSHA\r\n"
                                    "$40\r\n" REFUND_SHA1 "\r\n" "$1\r\n2\r\n"
                                    "$15\r\nratelimit:a:{k}\r\n" "$1\r\nb\r\n"
             "$6\r\nbucket\r\n" "$2\r\n10\r\n" "$1\r\n3\r\n"
                                    "$4\r\n7f-1\r\n"
             "$6\r\nwindow\r\n" "$1\r\n5\r\n" "$1\r\n2\r\n"
                                    "$4\r\n7f-2\r\n"),
             "and what gives them back");
    ngx_rl_resp_free(command);

    claims[1] = claim_of("b", bucket_of(10, "7r/m", 3));
    scripts_of(scripts, claims, 2);
    scripts[1].times = 12;

    len = eval_command(&command, scripts, 2, 0);

    is_bytes(command, len, bytes_of("*13\r\n$7\r\nEVALSHA\r\n"
                                    "$40\r\n" SHA1 "\r\n" "$1\r\n2\r\n"
                                    "$15\r\nratelimit:a:{k}\r\n" "$1\r\nb\r\n"
             "$2\r\n10\r\n" "$1\r\n7\r\n" "$2\r\n60\r\n" "$1\r\n3\r\n"
             "$5\r\n86714\r\n" "$1\r\n0\r\n" "$1\r\n1\r\n" "$2\r\n12\r\n"),
             "two buckets in a bundle, one of them for 12 requests");
    ngx_rl_resp_free(command);

    claims[0] = claim_of("ratelimit:a:{k}", gcra_of(10, "7r/m", 3));
    call = script_of(claims, 1);

    /* a token is 60/7 s, of 16000000 ticks each */

    len = eval_command(&command, &call, 1, 0);

    is_bytes(command, len, bytes_of("*7\r\n$7\r\nEVALSHA\r\n"
                                    "$40\r\n" GCRA_SHA1 "\r\n" "$1\r\n1\r\n"
                                    "$15\r\nratelimit:a:{k}\r\n"
             "$10\r\n1371428580\r\n" "$9\r\n411428574\r\n"
                                    "$1\r\n0\r\n"),
             "the same limit by gcra, byte by byte");
    ngx_rl_resp_free(command);

    len = ngx_rl_resp_command(&command, "AUTH", "bob", "s cret", NULL);
    is_bytes(command, len, bytes_of("*3\r\n$4\r\nAUTH\r\n$3\r\nbob\r\n"
                                    "$6\r\ns cret\r\n"), "AUTH with a user");
    ngx_rl_resp_free(command);

    len = ngx_rl_resp_command(&command, "AUTH", "", NULL);
    is_bytes(command, len, bytes_of("*2\r\n$4\r\nAUTH\r\n$0\r\n\r\n"),
             "an empty word");
    ngx_rl_resp_free(command);

    len = ngx_rl_resp_command(&command, "CLIENT", "SETNAME", "a\r\nb", NULL);
    is_bytes(command, len, bytes_of("*3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n"
             "$4\r\na\r\nb\r\n"), "a word with a line end in it");
    ngx_rl_resp_free(command);
}


/*
 * The short script knows no preview, no step, no window, no clock that counts
 * but Redis's, and one key
 */

static void
test_short(void)
{
    int             is_short;
    char           *command;
    args_t          args;
    size_t          i, k;
    long long       len;
    const char     *sha1;
    ngx_rl_call_t   scripts[2], *call;
    ngx_rl_claim_t  claims[4];

    static const char  *keys[] = { "a", "b", "c", "d" };

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
        { "in a second more", 1, "1r/s", 3600, 0, 1, 0, 0, 0, 0 },
        { "never", 1, "0r/s", 10, 0, 1, 0, 0, 0, 0 },
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
        for (k = 0; k < 4; k++) {
            claims[k] = claim_of(keys[k], cases[i].rate
                                 ? bucket_of(cases[i].capacity,
                                             cases[i].rate, 1)
                                 : window_of(cases[i].capacity, SECOND, 1));
            claims[k].bucket.step = cases[i].step;
            claims[k].shadow = cases[i].shadow;

            if (cases[i].gcra) {
                claims[k].bucket.algorithm = NGX_RL_GCRA;
            }
        }

        for (k = 0; k < 2; k++) {
            scripts[k] = script_of(&claims[2 * k], cases[i].n);
            scripts[k].preview = cases[i].preview;
            scripts[k].clock = cases[i].clock;
        }

        call = &scripts[0];
        is_short = cases[i].is_short;
        sha1 = !is_short ? TAKE_SHA1 : cases[i].gcra ? GCRA_SHA1 : SHA1;

        len = eval_command(&command, call, 1, 0);

        ok(args_of(command, len, &args) && arg_is(&args, 1, sha1, 40)
           && arg_number(&args, 2) == cases[i].n, "%s: %s", cases[i].name,
           is_short ? "the short script" : "the long one");
        ngx_rl_resp_free(command);

        is_number(ngx_rl_call_short(call), is_short,
                  is_short ? "which needs no id" : "which needs an id");

        len = eval_command(&command, scripts, 2, 0);

        ok(args_of(command, len, &args) && arg_is(&args, 1, sha1, 40)
           && arg_number(&args, 2) == 2 * cases[i].n,
           "the same one for two such calls");
        ngx_rl_resp_free(command);
    }
}


static void
test_take_args(void)
{
    char           *command;
    args_t          args;
    long long       len;
    ngx_rl_call_t   call;
    ngx_rl_claim_t  claims[3];

    claims[0] = claim_of("user", bucket_of(1000000000,
                                           "999999999.999999r/d", 100000));
    claims[0].bucket.step = 86400 * SECOND;
    claims[1] = claim_of("ip", window_of(1000000000, 31536000 * SECOND,
                                         100000));
    claims[1].shadow = 1;
    claims[2] = claim_of("global", bucket_of(7, "0r/s", 1));

    call = script_of(claims, 3);

    len = eval_command(&command, &call, 1, 0);
    ok(args_of(command, len, &args), "three limits: a command");
    args_are(&args, 0, "word by word", "EVALSHA", TAKE_SHA1, "3",
             "user", "ip", "global", "take", "redis", "1800000000123456",
             "7f-1", "1",
             "bucket", "enforced", "1000000000", "100000",
             "37037037037037", "3200000000", "86400000000", "172801000",
             "window", "shadow", "1000000000", "100000",
             "31536000000000", "0", "0", "31536001000",
             "bucket", "enforced", "7", "1", "0", "1", "0",
             "31536000000", NULL);
    ngx_rl_resp_free(command);

    call.preview = 1;
    call.clock = 1;
    call.now = 0;
    call.id = "x y\r\n";
    call.id_len = 3;
    call.n = 1;

    len = eval_command(&command, &call, 1, 0);
    ok(args_of(command, len, &args), "a preview by nginx's clock: a command");
    args_are(&args, 4, "word by word", "peek", "nginx", "0", "x y",
             "1",
             "bucket", "enforced", "1000000000", "100000",
             "37037037037037", "3200000000", "86400000000", "172801000", NULL);
    ngx_rl_resp_free(command);

    /* a window has no step, whatever is set beside it */

    claims[0] = claim_of("w", window_of(5, SECOND, 1));
    claims[0].bucket.step = 7;
    call = script_of(claims, 1);

    len = eval_command(&command, &call, 1, 0);
    ok(args_of(command, len, &args) && arg_number(&args, 15) == 0,
       "a window is sent without a step");
    ngx_rl_resp_free(command);

    /* capacity and cost of gcra are ticks, a sixteenth of a microsecond */

    claims[0] = claim_of("a", gcra_of(100, "50r/s", 3));
    claims[1] = claim_of("b", gcra_of(5, "1r/m", 2));
    claims[1].shadow = 1;
    call = script_of(claims, 2);

    len = eval_command(&command, &call, 1, 0);
    ok(args_of(command, len, &args), "two of gcra: a command");
    args_are(&args, 5, "in ticks", "take", "redis", "1800000000123456",
             "7f-1", "1",
             "gcra", "enforced", "32000000", "960000", "50", "1", "0", "0",
             "gcra", "shadow", "4800000000", "1920000000", "1", "60", "0",
             "0", NULL);
    ngx_rl_resp_free(command);
}


/* several requests for one limit in one call */

static void
test_times(void)
{
    char           *command;
    args_t          args;
    long long       len;
    ngx_rl_eval_t   eval;
    ngx_rl_call_t   call, bucket;
    ngx_rl_claim_t  claim, other;

    claim = claim_of("k", bucket_of(10, "7r/m", 3));
    call = script_of(&claim, 1);
    call.times = 12;

    len = eval_command(&command, &call, 1, 0);
    ok(args_of(command, len, &args), "12 requests for a bucket: a command");
    args_are(&args, 0, "whose last word says how many", "EVALSHA", SHA1, "1",
             "k", "10", "7", "60", "3", "86714", "0", "12", NULL);
    ngx_rl_resp_free(command);

    claim = claim_of("k", gcra_of(10, "1r/s", 3));
    call = script_of(&claim, 1);
    call.times = UINT32_MAX;

    len = eval_command(&command, &call, 1, 0);
    ok(args_of(command, len, &args), "for gcra: a command");
    args_are(&args, 0, "whose last word says how many", "EVALSHA", GCRA_SHA1,
             "1", "k", "160000000", "48000000", "0", "4294967295", NULL);
    ngx_rl_resp_free(command);

    /* where numbers come from variables, that is said before */

    claim.bucket.varies = 1;
    call.times = 2;

    len = eval_command(&command, &call, 1, 0);
    ok(args_of(command, len, &args), "for gcra with variables: a command");
    args_are(&args, 4, "which says so", "160000000", "48000000", "1", "2",
             NULL);
    ngx_rl_resp_free(command);

    call.times = 1;

    len = eval_command(&command, &call, 1, 0);
    ok(args_of(command, len, &args), "of one request: a command");
    args_are(&args, 4, "which says so, and no number of them", "160000000",
             "48000000", "1", NULL);
    ngx_rl_resp_free(command);

    call.preview = 1;

    len = eval_command(&command, &call, 1, 0);
    ok(args_of(command, len, &args), "of the long script: a command");
    args_are(&args, 9, "in place of a step", "gcra", "enforced", "160000000",
             "48000000", "1", "1", "1", "0", NULL);
    ngx_rl_resp_free(command);

    claim = claim_of("k", window_of(10, SECOND, 3));
    call = script_of(&claim, 1);
    call.times = 2;

    len = eval_command(&command, &call, 1, 0);
    ok(args_of(command, len, &args), "for a window: a command");
    args_are(&args, 0, "which says it before the limit", "EVALSHA", TAKE_SHA1,
             "1", "k", "take", "redis", "1800000000123456", "7f-1", "2",
             "window", "enforced", "10", "3", "1000000", "0", "0", "2000",
             NULL);
    ngx_rl_resp_free(command);

    other = claim_of("l", bucket_of(10, "7r/m", 3));
    bucket = script_of(&other, 1);
    bundle_of(&eval, &bucket, 1);
    ok(bundle_refuses(&eval, &call), "and does not go with a bucket");
}


static void
test_alike(void)
{
    char           *command, names[BUNDLE][8];
    args_t          args;
    size_t          i, wrong;
    long long       len;
    ngx_rl_call_t   scripts[BUNDLE], a, b;
    ngx_rl_eval_t   ab, ba;
    ngx_rl_claim_t  claims[BUNDLE], other;

    for (i = 0; i < BUNDLE; i++) {
        snprintf(names[i], sizeof(names[i]), "k%zu", i);
        claims[i] = claim_of(names[i], bucket_of(10, "7r/m", 3));
    }

    scripts_of(scripts, claims, BUNDLE);

    len = eval_command(&command, scripts, 3, 0);
    ok(args_of(command, len, &args), "a bundle of three: a command");
    args_are(&args, 0, "with their keys, and the limit once", "EVALSHA", SHA1,
             "3", "k0", "k1", "k2", "10", "7", "60", "3", "86714", NULL);
    ngx_rl_resp_free(command);

    len = eval_command(&command, scripts, 2, 1);
    ok(args_of(command, len, &args), "a bundle with the text: a command");
    args_are(&args, 0, "word by word", "EVAL", TEXT,
             "2", "k0", "k1", "10", "7", "60", "3", "86714", NULL);
    ngx_rl_resp_free(command);

    len = eval_command(&command, scripts, BUNDLE, 0);
    wrong = !args_of(command, len, &args) || args.n != 8 + BUNDLE;

    for (i = 0; i < BUNDLE; i++) {
        wrong += !arg_is(&args, 3 + i, names[i], strlen(names[i]));
    }

    is_number(wrong, 0, "a bundle of 32");
    ngx_rl_resp_free(command);

    for (i = 0; i < BUNDLE; i++) {
        claims[i].bucket = gcra_of(10, "7r/m", 3);
    }

    len = eval_command(&command, scripts, 2, 0);
    ok(args_of(command, len, &args), "a bundle of gcra: a command");
    args_are(&args, 0, "with their keys, and the limit once", "EVALSHA",
             GCRA_SHA1, "2", "k0", "k1", "1371428580", "411428574", "0", NULL);
    ngx_rl_resp_free(command);

    /* which calls may share one */

    claims[0] = claim_of("a", bucket_of(10, "7r/m", 3));
    a = script_of(claims, 1);

#define alike(what, name, expected)                                           \
    other = claim_of("b", bucket_of(10, "7r/m", 3));                          \
    b = script_of(&other, 1);                                                 \
    what;                                                                     \
    bundle_of(&ab, &a, 1);                                                    \
    bundle_of(&ba, &b, 1);                                                    \
    ok(expected                                                               \
       ? ngx_rl_eval_add(&ab, &b) == 1                                        \
         && ngx_rl_eval_add(&ba, &a) == 1                                     \
         && ab.n == 2 && ba.n == 2                                            \
       : bundle_refuses(&ab, &b) && bundle_refuses(&ba, &a), name)

    alike((void) 0, "two that differ by their keys are alike", 1);
    alike(other.shadow = 1, "and so if one is a shadow", 1);
    alike(b.id = "x", "or has another id", 1);
    alike(b.times = 2, "or is for two requests", 1);
    alike(b.times = UINT32_MAX, "or for any number of them", 1);
    alike(other.bucket.window = 1, "or has a window that none looks at", 1);
    alike(other = claims[0], "not with the same key", 0);
    alike(other.bucket.capacity = 11, "another capacity", 0);
    alike(other.bucket.cost = 1, "another cost", 0);
    alike(other.bucket = bucket_of(10, "8r/m", 3), "another rate", 0);
    alike(other.bucket = bucket_of(10, "7r/s", 3), "another unit of it", 0);
    alike(other.bucket = gcra_of(10, "7r/m", 3), "another algorithm", 0);
    alike(other.bucket = window_of(10, SECOND, 3), "a window", 0);
    alike(other.bucket.varies = 1, "numbers that vary", 0);
    alike(other.bucket.step = 1, "a step", 0);
    alike(other.bucket = bucket_of(3600, "1r/s", 3), "more than an hour", 0);
    alike(b.preview = 1, "a preview", 0);
    alike(b.clock = 1, "nginx's clock", 0);

    alike((b.n = 2, b.claims[1] = &claims[1]), "or a second limit", 0);

#undef alike

    /* a refused one does not stop the others, and 32 are enough */

    for (i = 0; i < BUNDLE; i++) {
        claims[i].bucket = bucket_of(10, "7r/m", 3);
    }

    scripts_of(scripts, claims, BUNDLE);

    other = claim_of("k", bucket_of(11, "7r/m", 3));
    b = script_of(&other, 1);

    bundle_of(&ab, scripts, 1);
    wrong = 0;

    for (i = 1; i < BUNDLE; i++) {
        wrong += !bundle_refuses(&ab, &b)
                 || !ngx_rl_eval_add(&ab, &scripts[i])
                 || ab.n != i + 1;
    }

    is_number(wrong, 0, "others are refused, and 32 find a place");

    other = claim_of("k", bucket_of(10, "7r/m", 3));
    ok(bundle_refuses(&ab, &b), "but not one more");

    /* one that is emptied begins anew, and may become one of the other kind */

    b.preview = 1;
    ab.n = 0;
    ok(ngx_rl_eval_add(&ab, &b) == 1 && ab.n == 1
       && ab.nlimits == 1 && ab.nnumbers == 1, "the next one takes any call");

    b.preview = 0;
    ab.n = 0;
    ok(ngx_rl_eval_add(&ab, &b) == 1 && ab.n == 1
       && ngx_rl_eval_add(&ab, &scripts[3]) == 1 && ab.n == 2,
       "and the next one");
}


/* each for a number of requests of its own */

static void
test_alike_times(void)
{
    char           *command, names[BUNDLE][8];
    args_t          args;
    size_t          i, wrong;
    long long       len;
    ngx_rl_call_t   scripts[BUNDLE];
    ngx_rl_claim_t  claims[BUNDLE];

    for (i = 0; i < BUNDLE; i++) {
        snprintf(names[i], sizeof(names[i]), "k%zu", i);
        claims[i] = claim_of(names[i], bucket_of(10, "7r/m", 3));
    }

    scripts_of(scripts, claims, BUNDLE);

    /* one that is for several is enough, wherever it is */

    for (i = 0; i < 3; i++) {
        scripts[0].times = (i == 0) ? 7 : 1;
        scripts[1].times = (i == 1) ? 7 : 1;
        scripts[2].times = (i == 2) ? 7 : 1;

        len = eval_command(&command, scripts, 3, 0);
        ok(args_of(command, len, &args),
           "a bundle of three, number %zu for 7 requests: a command", i);
        args_are(&args, 0, "which says of each how many", "EVALSHA", SHA1,
                 "3", "k0", "k1", "k2", "10", "7", "60", "3", "86714", "0",
                 i == 0 ? "7" : "1", i == 1 ? "7" : "1", i == 2 ? "7" : "1",
                 NULL);
        ngx_rl_resp_free(command);
    }

    /* those that are not part of it do not count */

    len = eval_command(&command, scripts, 2, 1);
    ok(args_of(command, len, &args), "without that one: a command");
    args_are(&args, 0, "which says nothing of it", "EVAL", TEXT, "2", "k0",
             "k1", "10", "7", "60", "3", "86714", NULL);
    ngx_rl_resp_free(command);

    for (i = 0; i < BUNDLE; i++) {
        scripts[i].times = UINT32_MAX - i;
    }

    len = eval_command(&command, scripts, BUNDLE, 0);
    wrong = !args_of(command, len, &args) || args.n != 9 + 2 * BUNDLE;

    for (i = 0; i < BUNDLE; i++) {
        wrong += !arg_is(&args, 3 + i, names[i], strlen(names[i]))
                 || arg_number(&args, 9 + BUNDLE + i) != UINT32_MAX - i;
    }

    is_number(wrong, 0, "a bundle of 32, all of them for many: each in its "
              "place");
    ngx_rl_resp_free(command);

    for (i = 0; i < BUNDLE; i++) {
        claims[i].bucket = gcra_of(10, "7r/m", 3);
        scripts[i].times = i % 3 + 1;
    }

    len = eval_command(&command, scripts, 4, 0);
    ok(args_of(command, len, &args), "of gcra: a command");
    args_are(&args, 0, "which says how many at the end as well", "EVALSHA",
             GCRA_SHA1, "4", "k0", "k1", "k2", "k3", "1371428580",
             "411428574", "0", "1", "2", "3", "1", NULL);
    ngx_rl_resp_free(command);

    for (i = 0; i < BUNDLE; i++) {
        claims[i].bucket.varies = 1;
    }

    len = eval_command(&command, scripts, 3, 0);
    ok(args_of(command, len, &args), "of gcra with variables: a command");
    args_are(&args, 6, "which says so before", "1371428580", "411428574",
             "1", "1", "2", "3", NULL);
    ngx_rl_resp_free(command);

    scripts[1].times = 1;

    len = eval_command(&command, scripts, 2, 0);
    ok(args_of(command, len, &args), "of one request each: a command");
    args_are(&args, 5, "which says so, and no number of them", "1371428580",
             "411428574", "1", NULL);
    ngx_rl_resp_free(command);

    /* of a bucket that can't be told */

    for (i = 0; i < 2; i++) {
        claims[i].bucket = bucket_of(10, "7r/m", 3);
        claims[i].bucket.varies = 1;
        scripts[i].times = 2;
    }

    len = eval_command(&command, scripts, 2, 0);
    ok(args_of(command, len, &args), "of buckets with variables: a command");
    args_are(&args, 5, "which need not know", "10", "7", "60", "3", "86714",
             "0", "2", "2", NULL);
    ngx_rl_resp_free(command);
}


/*
 * Five calls whose limits are of all kinds, and some of them the same; what
 * they are told, in the order of the limits
 */

#define CALLS     5
#define ELEMENTS  21
#define UNTOLD    99


typedef struct {
    ngx_rl_claim_t  claims[10];
    ngx_rl_call_t   scripts[CALLS];
} family_t;


static const char  *family_elements[ELEMENTS] = {
    ":7000000\r\n", ":-2000001\r\n", ":1000000\r\n",
    ":9\r\n", ":5000000\r\n", ":0\r\n",

    ":3\r\n", ":0\r\n", ":6000000\r\n", ":0\r\n",

    ":-10\r\n", ":5000001\r\n", ":8000001\r\n", ":32000000\r\n",
    ":6000000\r\n",

    ":-24000001\r\n", ":1500000\r\n", ":1000001\r\n",

    ":0\r\n", ":-500001\r\n", ":250000\r\n"
};


/* the states of the claims, as far as they have any */

static const int64_t  family_states[10][NGX_RL_STATES] = {
    { 7000000, UNTOLD, UNTOLD },
    { -2000001, 1000000, UNTOLD },
    { 9, 5000000, 0 },

    { 0, 6000000, 0 },

    { -10, 5000001, 8000001 },
    { 2000000, UNTOLD, UNTOLD },
    { 6000000, UNTOLD, UNTOLD },

    { -1500001, UNTOLD, UNTOLD },
    { 1500000, 1000001, UNTOLD },

    { -500001, 250000, UNTOLD }
};


static const struct {
    size_t         claim;         /* the first one */
    size_t         n;
    uint32_t       times, passed;
    size_t         element;
    size_t         elements;
} family_calls[CALLS] = {
    { 0, 3, 1, 1, 0, 6 },
    { 3, 1, 5, 3, 6, 4 },
    { 4, 3, 1, 0, 10, 5 },
    { 7, 2, 1, 0, 15, 3 },
    { 9, 1, 3, 0, 18, 3 }
};


static void
family_of(family_t *f)
{
    size_t           i;
    ngx_rl_claim_t  *claims;

    claims = f->claims;

    claims[0] = claim_of("user:1", bucket_of(10, "1r/s", 3));
    claims[1] = claim_of("ip:1", bucket_of(20, "2r/s", 3));
    claims[1].bucket.step = 5 * SECOND;
    claims[2] = claim_of("all", window_of(30, 60 * SECOND, 3));

    claims[3] = claim_of("other", window_of(5, SECOND, 1));

    claims[4] = claims[2];
    claims[5] = claim_of("gcra", gcra_of(40, "1r/s", 2));
    claims[5].shadow = 1;
    claims[6] = claims[0];

    claims[7] = claims[5];
    claims[8] = claims[1];

    claims[9] = claim_of("step", bucket_of(7, "1r/m", 1));
    claims[9].bucket.step = SECOND;

    for (i = 0; i < CALLS; i++) {
        f->scripts[i] = script_of(&claims[family_calls[i].claim],
                                  family_calls[i].n);
        f->scripts[i].times = family_calls[i].times;
    }
}


static void
family_forget(family_t *f)
{
    size_t  i, k;

    for (i = 0; i < nelts_of(f->claims); i++) {
        for (k = 0; k < NGX_RL_STATES; k++) {
            f->claims[i].state[k] = UNTOLD;
        }
    }

    for (i = 0; i < CALLS; i++) {
        f->scripts[i].passed = UNTOLD;
        f->scripts[i].failure = NGX_RL_TIMEOUT;
    }
}


/* whether a call was told what it should be */

static int
family_told(const family_t *f, size_t call)
{
    size_t  i, first;

    first = family_calls[call].claim;

    for (i = 0; i < family_calls[call].n; i++) {

        if (memcmp(f->claims[first + i].state, family_states[first + i],
                   sizeof(family_states[0]))
            != 0)
        {
            return 0;
        }
    }

    return f->scripts[call].passed == family_calls[call].passed
           && f->scripts[call].failure == NGX_RL_OK;
}


/* or nothing of its limits */

static int
family_untold(const family_t *f, size_t call)
{
    size_t  i, k;

    for (i = 0; i < family_calls[call].n; i++) {
        for (k = 0; k < NGX_RL_STATES; k++) {

            if (f->claims[family_calls[call].claim + i].state[k] != UNTOLD) {
                return 0;
            }
        }
    }

    return 1;
}


/* the reply to all of them, with something else in one place, or NULL */

static const char *
family_wire(size_t at, const char *instead)
{
    size_t       i, n;
    static char  wire[1024];

    n = snprintf(wire, sizeof(wire), "*%d\r\n", ELEMENTS);

    for (i = 0; i < ELEMENTS; i++) {
        n += snprintf(wire + n, sizeof(wire) - n, "%s",
                      instead && i == at ? instead : family_elements[i]);
    }

    return wire;
}


/* the call that an element belongs to */

static size_t
family_call(size_t element)
{
    size_t  call;

    for (call = CALLS - 1; element < family_calls[call].element; call--) {
        /* void */
    }

    return call;
}


/* calls with several limits each, of which some are the same */

static void
test_bundle(void)
{
    char           *command, *single;
    args_t          args;
    size_t          i, wrong;
    family_t        family;
    long long       len, single_len;
    ngx_rl_eval_t   eval;
    ngx_rl_call_t   scripts[3];
    ngx_rl_claim_t  claims[9];

    claims[0] = claim_of("user:1", bucket_of(10, "7r/m", 3));
    claims[1] = claim_of("ip:1", gcra_of(100, "50r/s", 3));
    claims[1].shadow = 1;
    claims[2] = claim_of("all", window_of(5, 60 * SECOND, 2));

    claims[3] = claims[0];
    claims[3].key = "user:2";
    claims[3].hash[1]++;
    claims[4] = claims[1];
    claims[5] = claims[2];

    claims[6] = claims[2];
    claims[7] = claims[0];
    claims[8] = claims[0];
    claims[8].key = "user:3";
    claims[8].hash[0]++;

    for (i = 0; i < 3; i++) {
        scripts[i] = script_of(&claims[3 * i], 3);
    }

    /* the time is that of the first one, as the id is */

    scripts[1].now = 5;
    scripts[1].id = "7f-22";
    scripts[1].id_len = 5;

    len = eval_command(&command, scripts, 3, 0);
    ok(args_of(command, len, &args), "three calls: a command");
    args_are(&args, 0, "with each limit once, and the numbers of the calls'",
             "EVALSHA", TAKE_SHA1, "5",
             "user:1", "ip:1", "all", "user:2", "user:3",
             "take", "redis", "1800000000123456", "7f-1", "1",
             "bucket", "enforced", "10", "3", "7", "60", "0", "86714",
             "gcra", "shadow", "32000000", "960000", "50", "1", "0", "0",
             "window", "enforced", "5", "2", "60000000", "0", "0", "61000",
             "bucket", "enforced", "10", "3", "7", "60", "0", "86714",
             "bucket", "enforced", "10", "3", "7", "60", "0", "86714",
             "1", "3", "1", "2", "3",
             "1", "3", "4", "2", "3",
             "1", "3", "3", "1", "5", NULL);
    ngx_rl_resp_free(command);

    len = eval_command(&command, &scripts[1], 2, 1);
    ok(args_of(command, len, &args), "two of them with the text: a command");
    args_are(&args, 0, "with their own limits", "EVAL", TAKE_TEXT, "5",
             "user:2", "ip:1", "all", "user:1", "user:3",
             "take", "redis", "5", "7f-22", "1",
             "bucket", "enforced", "10", "3", "7", "60", "0", "86714",
             "gcra", "shadow", "32000000", "960000", "50", "1", "0", "0",
             "window", "enforced", "5", "2", "60000000", "0", "0", "61000",
             "bucket", "enforced", "10", "3", "7", "60", "0", "86714",
             "bucket", "enforced", "10", "3", "7", "60", "0", "86714",
             "1", "3", "1", "2", "3",
             "1", "3", "3", "4", "5", NULL);
    ngx_rl_resp_free(command);

    /* the same limits in the same order, and in another one */

    scripts[1] = scripts[0];
    scripts[2].claims[0] = &claims[6];
    scripts[2].claims[1] = &claims[4];
    scripts[2].claims[2] = &claims[7];

    len = eval_command(&command, scripts, 3, 0);
    ok(args_of(command, len, &args) && arg_number(&args, 2) == 3,
       "three calls with the same limits: these once");
    args_are(&args, 35, "in the order that each call has them",
             "1", "3", "1", "2", "3",
             "1", "3", "1", "2", "3",
             "1", "3", "3", "2", "1", NULL);
    ngx_rl_resp_free(command);

    /* one call has no numbers, however it is made */

    for (i = 0; i < 4; i++) {
        scripts[0].preview = i >> 1;

        len = eval_command(&command, scripts, 1, i & 1);
        ok(args_of(command, len, &args) && args.n == 35,
           "a single call: without the numbers of its limits");
        ngx_rl_resp_free(command);
    }

    /* of all kinds, some for several requests */

    family_of(&family);
    bundle_of(&eval, family.scripts, CALLS);

    len = ngx_rl_eval_format(&command, &eval, 0);
    ok(args_of(command, len, &args), "five calls: a command");
    args_are(&args, 0, "word by word", "EVALSHA", TAKE_SHA1, "6",
             "user:1", "ip:1", "all", "other", "gcra", "step",
             "take", "redis", "1800000000123456", "7f-1", "1",
             "bucket", "enforced", "10", "3", "1", "1", "0", "11000",
             "bucket", "enforced", "20", "3", "2", "1", "5000000", "16000",
             "window", "enforced", "30", "3", "60000000", "0", "0", "61000",
             "window", "enforced", "5", "1", "1000000", "0", "0", "2000",
             "gcra", "shadow", "640000000", "32000000", "1", "1", "0",
             "0",
             "bucket", "enforced", "7", "1", "1", "60", "1000000", "422000",
             "1", "3", "1", "2", "3",
             "5", "1", "4",
             "1", "3", "3", "5", "1",
             "1", "2", "5", "2",
             "3", "1", "6", NULL);
    ngx_rl_resp_free(command);

    wrong = 0;

    for (i = 0; i < CALLS; i++) {
        wrong += eval.elements[i] != family_calls[i].elements;
    }

    is_number(wrong, 0, "and so many numbers are expected for each");

    /* its first call may be one for several requests */

    len = eval_command(&command, &family.scripts[1], 2, 0);
    ok(args_of(command, len, &args), "the first one for 5: a command");
    args_are(&args, 7, "which says so twice",
             "take", "redis", "1800000000123456", "7f-1", "5",
             "window", "enforced", "5", "1", "1000000", "0", "0", "2000",
             "window", "enforced", "30", "3", "60000000", "0", "0", "61000",
             "gcra", "shadow", "640000000", "32000000", "1", "1", "0",
             "0",
             "bucket", "enforced", "10", "3", "1", "1", "0", "11000",
             "5", "1", "1",
             "1", "3", "2", "3", "4", NULL);
    ngx_rl_resp_free(command);

    /* formatted again it is the same, and once emptied it begins anew */

    single_len = eval_command(&single, family.scripts, CALLS, 1);
    len = ngx_rl_eval_format(&command, &eval, 1);
    is_bytes(command, len, single, single_len, "a bundle can be sent again");
    ngx_rl_resp_free(command);
    ngx_rl_resp_free(single);

    single_len = eval_command(&single, &family.scripts[2], 2, 0);

    eval.n = 0;

    ok(ngx_rl_eval_add(&eval, &family.scripts[2])
       && ngx_rl_eval_add(&eval, &family.scripts[3])
       && eval.n == 2 && eval.nlimits == 4 && eval.nnumbers == 5,
       "those of its calls that still wait can be put together again");
    len = ngx_rl_eval_format(&command, &eval, 0);
    is_bytes(command, len, single, single_len, "and nothing is left of the "
             "others");
    ngx_rl_resp_free(command);
    ngx_rl_resp_free(single);
}


/* a preview, or a call by nginx's clock, has the long script for one limit */

static void
test_bundle_previews(void)
{
    char           *command;
    args_t          args;
    size_t          i;
    long long       len;
    ngx_rl_eval_t   eval;
    ngx_rl_call_t   scripts[3];
    ngx_rl_claim_t  claims[3];

    claims[0] = claim_of("a", bucket_of(10, "7r/m", 3));
    claims[1] = claim_of("b", bucket_of(20, "1r/s", 1));
    claims[2] = claims[0];

    scripts_of(scripts, claims, 3);

    for (i = 0; i < 3; i++) {
        scripts[i].preview = 1;
    }

    len = eval_command(&command, scripts, 3, 0);
    ok(args_of(command, len, &args), "three previews: a command");
    args_are(&args, 0, "of buckets that are not alike, one of them twice",
             "EVALSHA", TAKE_SHA1, "2", "a", "b",
             "peek", "redis", "1800000000123456", "7f-1", "1",
             "bucket", "enforced", "10", "3", "7", "60", "0", "86714",
             "bucket", "enforced", "20", "1", "1", "1", "0", "21000",
             "1", "1", "1", "1", "1", "2", "1", "1", "1", NULL);
    ngx_rl_resp_free(command);

    for (i = 0; i < 3; i++) {
        scripts[i].preview = 0;
        scripts[i].clock = 1;
        scripts[i].times = i + 1;
    }

    bundle_of(&eval, scripts, 3);
    len = ngx_rl_eval_format(&command, &eval, 0);
    ok(args_of(command, len, &args), "three by nginx's clock: a command");
    args_are(&args, 5, "each with its number of requests",
             "take", "nginx", "1800000000123456", "7f-1", "1",
             "bucket", "enforced", "10", "3", "7", "60", "0", "86714",
             "bucket", "enforced", "20", "1", "1", "1", "0", "21000",
             "1", "1", "1", "2", "1", "2", "3", "1", "1", NULL);
    ngx_rl_resp_free(command);

    ok(eval.elements[0] == 1 && eval.elements[1] == 2
       && eval.elements[2] == 2,
       "of which only those for several are told how many pass");

    for (i = 0; i < 3; i++) {
        scripts[i].preview = 1;
        scripts[i].times = 1;
    }

    len = eval_command(&command, scripts, 3, 0);
    ok(args_of(command, len, &args) && arg_is(&args, 5, bytes_of("peek"))
       && arg_is(&args, 6, bytes_of("nginx")), "or both");
    ngx_rl_resp_free(command);
}


/* which calls can't go together, after which all is as it was */

static void
test_bundle_refusals(void)
{
    char           *command;
    args_t          args;
    size_t          i;
    unsigned        preview, clock;
    long long       len;
    ngx_rl_eval_t   eval;
    ngx_rl_call_t   call, other, one;
    ngx_rl_claim_t  claims[2], others[3], last[2];

    claims[0] = claim_of("a", bucket_of(10, "7r/m", 3));
    claims[1] = claim_of("w", window_of(5, 60 * SECOND, 2));
    call = script_of(claims, 2);

    bundle_of(&eval, &call, 1);

    /* the first limit of the other one is new, and so is its last */

#define refused(what, name)                                                   \
    others[0] = claim_of("b", bucket_of(10, "7r/m", 3));                      \
    others[1] = claims[0];                                                    \
    others[2] = claim_of("c", bucket_of(10, "7r/m", 3));                      \
    other = script_of(others, 3);                                             \
    what;                                                                     \
    ok(bundle_refuses(&eval, &other), name)

    refused(other.preview = 1, "a preview does not go with a take");
    refused(other.clock = 1, "nor does one by another clock");
    refused(others[1].bucket.capacity++, "a limit has another capacity");
    refused(others[1].bucket.cost--, "or another cost");
    refused(others[1].bucket.rate.num++, "or another rate");
    refused(others[1].bucket.rate.den--, "or another unit of it");
    refused(others[1].bucket.step = SECOND, "or a step");
    refused(others[1].bucket.varies = 1, "or numbers that vary");
    refused(others[1].bucket.algorithm = NGX_RL_GCRA, "or another algorithm");
    refused(others[1].shadow = 1, "or is a shadow");
    refused((others[1] = claims[1], others[1].bucket.window++),
            "a window has another length");
    refused((others[1] = claims[1], others[1].bucket.capacity--),
            "or another limit");
    refused((others[1] = claims[1], others[1].shadow = 1), "or is a shadow");
    refused((others[2] = claims[1], others[2].bucket.cost++),
            "the last limit is another one");
    refused((others[0] = claims[1], others[0].bucket.cost++), "or the first");
    refused(other.n = 1, "a call that is short does not go with a long one");
    refused((other.n = 1, others[0] = claims[0]), "though its limit is there");
    refused((other.n = 1, others[0].bucket = gcra_of(10, "7r/m", 3)),
            "nor does one of gcra");

    /* and not the other way round */

    one = script_of(&others[1], 1);
    others[1] = claims[0];
    bundle_of(&eval, &one, 1);
    ok(bundle_refuses(&eval, &call), "nor a long one with a short one");

    others[1] = claims[1];
    bundle_of(&eval, &one, 1);
    ok(ngx_rl_eval_add(&eval, &call) == 1, "but one with a window alone");

    /* all that a bundle can be, and all that a call can be */

    for (i = 0; i < 16; i++) {
        call.preview = i & 1;
        call.clock = i >> 1 & 1;
        preview = i >> 2 & 1;
        clock = i >> 3 & 1;

        bundle_of(&eval, &call, 1);

        others[0] = claims[0];
        others[1] = claims[1];
        other = script_of(others, 2);
        other.preview = preview;
        other.clock = clock;

        if (call.preview == preview && call.clock == clock) {
            ok(ngx_rl_eval_add(&eval, &other) == 1
               && eval.n == 2 && eval.nlimits == 2
               && eval.nnumbers == 4, "two %ss by %s's clock go together",
               preview ? "preview" : "take", clock ? "nginx" : "redis");

        } else {
            ok(bundle_refuses(&eval, &other),
               "a %s by %s's clock does not go with a %s by %s's",
               preview ? "preview" : "take", clock ? "nginx" : "redis",
               call.preview ? "preview" : "take",
               call.clock ? "nginx" : "redis");
        }
    }

    /* after all that was refused, the numbers are right */

    call = script_of(claims, 2);
    bundle_of(&eval, &call, 1);

    refused(others[1].bucket.cost++, "refused with two new limits");

    last[0] = claim_of("d", gcra_of(1, "1r/s", 1));
    last[1] = claims[0];
    one = script_of(last, 2);

    ok(ngx_rl_eval_add(&eval, &one) == 1,
       "one with a new limit is added after it");

    refused(others[1].shadow = 1, "refused again");

    others[1].shadow = 0;
    ok(ngx_rl_eval_add(&eval, &other) == 1,
       "and added, now that it is all right");

#undef refused

    len = ngx_rl_eval_format(&command, &eval, 0);
    ok(args_of(command, len, &args) && arg_number(&args, 2) == 5
       && arg_is(&args, 3, bytes_of("a")) && arg_is(&args, 4, bytes_of("w"))
       && arg_is(&args, 5, bytes_of("d")) && arg_is(&args, 6, bytes_of("b"))
       && arg_is(&args, 7, bytes_of("c")), "their limits are there");
    args_are(&args, 53, "and their numbers are right", "1", "2", "1", "2",
             "1", "2", "3", "1", "1", "3", "4", "1", "5", NULL);
    ngx_rl_resp_free(command);
}


/* limits are told apart by their hashes, and by the length of the key */

static void
test_bundle_hashes(void)
{
    char           *command;
    args_t          args;
    long long       len;
    ngx_rl_eval_t   eval;
    ngx_rl_call_t   scripts[5];
    ngx_rl_claim_t  claims[5];

    claims[0] = claim_of("aa", window_of(5, SECOND, 2));
    claims[1] = claims[0];
    claims[1].key = "bb";
    claims[1].hash[0] ^= 1ULL << 63;
    claims[2] = claims[0];
    claims[2].key = "cc";
    claims[2].hash[1] ^= 1ULL << 63;
    claims[3] = claims[0];
    claims[3].key = "aaa";
    claims[3].len = 3;
    claims[4] = claims[0];

    scripts_of(scripts, claims, 5);
    bundle_of(&eval, scripts, 5);

    len = ngx_rl_eval_format(&command, &eval, 0);
    ok(args_of(command, len, &args) && arg_number(&args, 2) == 4
       && arg_is(&args, 3, bytes_of("aa")) && arg_is(&args, 4, bytes_of("bb"))
       && arg_is(&args, 5, bytes_of("cc"))
       && arg_is(&args, 6, bytes_of("aaa")), "four different limits of five");
    args_are(&args, 44, "which are not mixed up", "1", "1", "1", "1", "1",
             "2", "1", "1", "3", "1", "1", "4", "1", "1", "1", NULL);
    ngx_rl_resp_free(command);

    /* those that are different may differ */

    claims[1].bucket.cost = 1;
    claims[2].shadow = 1;
    claims[3].bucket = bucket_of(1, "1r/d", 1);
    claims[3].bucket.step = SECOND;

    bundle_of(&eval, scripts, 5);
    ok(eval.n == 5 && eval.nlimits == 4 && eval.nnumbers == 5
       && memcmp(eval.numbers, "\1\2\3\4\1", 5) == 0,
       "and may be any limits");
}


/* "n" limits for a call, in order from "first" on */

static ngx_rl_call_t
windows_of(ngx_rl_claim_t *claims, char names[][8], size_t first, size_t n)
{
    size_t  i;

    for (i = 0; i < n; i++) {
        claims[i] = claim_of(names[first + i], window_of(5, 60 * SECOND, 2));
    }

    return script_of(claims, n);
}


/* as much as there may be, and not one more */

static void
test_bundle_edges(void)
{
    char           *command, names[4 * CLAIMS][8];
    args_t          args;
    size_t          i, k, arg, wrong;
    long long       len;
    ngx_rl_eval_t   eval;
    ngx_rl_call_t   scripts[BUNDLE + 1], call, last;
    ngx_rl_claim_t  claims[NUMBERS + CLAIMS];
    ngx_rl_claim_t  more[CLAIMS], all[BUNDLE + 1], own;

    for (i = 0; i < nelts_of(names); i++) {
        snprintf(names[i], sizeof(names[i]), "k%02zu", i);
    }

    /* 32 calls, with one limit and with 32 */

    for (i = 0; i <= BUNDLE; i++) {
        scripts[i] = windows_of(&all[i], names, 0, 1);
    }

    bundle_of(&eval, scripts, BUNDLE);
    ok(eval.n == BUNDLE && eval.nlimits == 1 && eval.nnumbers == BUNDLE,
       "32 calls for one limit");
    ok(bundle_refuses(&eval, &scripts[BUNDLE]), "and not one more");

    for (i = 0; i <= BUNDLE; i++) {
        scripts[i] = windows_of(&all[i], names, i, 1);
    }

    bundle_of(&eval, scripts, BUNDLE);
    ok(eval.n == BUNDLE && eval.nlimits == BUNDLE
       && eval.nnumbers == BUNDLE, "32 calls for 32 limits");
    ok(bundle_refuses(&eval, &scripts[BUNDLE]), "and not one more");

    /* 32 limits of two calls */

    scripts[0] = windows_of(claims, names, 0, CLAIMS);
    scripts[1] = windows_of(&claims[CLAIMS], names, CLAIMS, CLAIMS);

    bundle_of(&eval, scripts, 2);
    ok(eval.n == 2 && eval.nlimits == BUNDLE && eval.nnumbers == BUNDLE,
       "two calls for 32 limits");

    call = windows_of(more, names, BUNDLE, 1);
    ok(bundle_refuses(&eval, &call), "a limit more is too much");

    call = windows_of(more, names, BUNDLE - CLAIMS + 1, CLAIMS);
    ok(bundle_refuses(&eval, &call), "even if it is the last of a call");

    call = windows_of(more, names, BUNDLE, CLAIMS);
    ok(bundle_refuses(&eval, &call), "and so are 16");

    call = windows_of(more, names, 8, CLAIMS);
    ok(ngx_rl_eval_add(&eval, &call) == 1
       && eval.n == 3 && eval.nlimits == BUNDLE
       && eval.nnumbers == 3 * CLAIMS, "another call for those is not");

    wrong = 0;

    for (i = 0; i < CLAIMS; i++) {
        wrong += eval.numbers[2 * CLAIMS + i] != 9 + i;
    }

    is_number(wrong, 0, "and has their numbers");

    /* up to the last one */

    scripts[1].n = CLAIMS - 1;
    bundle_of(&eval, scripts, 2);

    call = windows_of(more, names, BUNDLE - 1, 2);
    ok(bundle_refuses(&eval, &call), "of 31 limits: two are too many");

    last = windows_of(&own, names, BUNDLE, 1);
    ok(ngx_rl_eval_add(&eval, &last) == 1
       && eval.nlimits == BUNDLE && eval.numbers[BUNDLE - 1] == BUNDLE,
       "one is not");

    call = windows_of(more, names, 4 * CLAIMS - 1, 1);
    ok(bundle_refuses(&eval, &call), "and then there are 32");

    /* 96 numbers of six calls, and of seven */

    for (i = 0; i < NUMBERS / CLAIMS; i++) {
        scripts[i] = windows_of(&claims[i * CLAIMS], names, i % 3, CLAIMS);
    }

    bundle_of(&eval, scripts, NUMBERS / CLAIMS);
    ok(eval.nlimits == CLAIMS + 2 && eval.nnumbers == NUMBERS,
       "six calls with 16 limits each");

    call = windows_of(more, names, 0, 1);
    ok(bundle_refuses(&eval, &call), "and not one limit more");

    scripts[i - 1].n--;
    bundle_of(&eval, scripts, NUMBERS / CLAIMS);
    ok(eval.nnumbers == NUMBERS - 1, "one less");

    call = windows_of(more, names, 0, 2);
    ok(bundle_refuses(&eval, &call), "two more are too many");

    last = windows_of(&own, names, CLAIMS + 2, 1);
    ok(ngx_rl_eval_add(&eval, &last) == 1
       && eval.nnumbers == NUMBERS && eval.numbers[NUMBERS - 1] == 19
       && eval.nlimits == 19, "one is not");

    call = windows_of(more, names, 0, 1);
    ok(bundle_refuses(&eval, &call), "and then there are 96");

    /* all of that at once, with the longest numbers */

    for (i = 0; i < BUNDLE; i++) {

        for (k = 0; k < 3; k++) {
            claims[3 * i + k] = claim_of(names[(i + k) % BUNDLE],
                                         bucket_of(1, "1r/s", 1));
            claims[3 * i + k].bucket.capacity = UINT64_MAX - (i + k) % BUNDLE;
            claims[3 * i + k].bucket.cost = UINT64_MAX;
            claims[3 * i + k].bucket.rate.num = UINT64_MAX;
            claims[3 * i + k].bucket.rate.den = UINT64_MAX;
            claims[3 * i + k].bucket.step = UINT64_MAX;
        }

        scripts[i] = script_of(&claims[3 * i], 3);
        scripts[i].now = UINT64_MAX;
        scripts[i].times = UINT32_MAX - i;
    }

    bundle_of(&eval, scripts, BUNDLE);
    ok(eval.n == BUNDLE && eval.nlimits == BUNDLE
       && eval.nnumbers == NUMBERS, "32 calls, 32 limits, 96 numbers");

    len = ngx_rl_eval_format(&command, &eval, 0);
    ok(args_of(command, len, &args) && args.n == 8 + 11 * BUNDLE + NUMBERS
       && arg_number(&args, 2) == BUNDLE, "a command of all");

    wrong = 0;

    for (i = 0; i < BUNDLE; i++) {
        arg = 8 + BUNDLE + 8 * i;

        wrong += !arg_is(&args, 3 + i, names[i], 3)
                 || !arg_is(&args, arg, bytes_of("bucket"))
                 || arg_number(&args, arg + 2) != UINT64_MAX - i
                 || arg_number(&args, arg + 6) != UINT64_MAX
                 || arg_number(&args, arg + 7) != NGX_RL_TTL_MAX;

        arg = 8 + 9 * BUNDLE + 5 * i;

        wrong += arg_number(&args, arg) != UINT32_MAX - i
                 || arg_number(&args, arg + 1) != 3
                 || arg_number(&args, arg + 2) != i + 1
                 || arg_number(&args, arg + 3) != (i + 1) % BUNDLE + 1
                 || arg_number(&args, arg + 4) != (i + 2) % BUNDLE + 1
                 || eval.elements[i] != 7;
    }

    is_number(wrong, 0, "each in its place");
    ngx_rl_resp_free(command);
}


static void
test_refund_args(void)
{
    char            *command;
    args_t           args;
    long long        len;
    ngx_rl_refund_t  refunds[4];

    /* the tokens count, and not what a request costs */

    refunds[0] = refund_of("a", bucket_of(10, "1r/s", 3), 1, "7f-1");
    refunds[1] = refund_of("b", window_of(20, SECOND, 3), 21, "7f-2");
    refunds[2] = refund_of("c", gcra_of(30, "1r/s", 3), 21, "7f-3");
    refunds[3] = refund_of("d", bucket_of(40, "1r/s", 3), 1000000000, "");

    len = ngx_rl_eval_refund(&command, refunds, 4, 0);
    ok(args_of(command, len, &args), "a refund is a command");
    args_are(&args, 0, "of the keys, and four words for each; an empty id is "
             "an id", "EVALSHA", REFUND_SHA1, "4", "a", "b", "c", "d",
             "bucket", "10", "1", "7f-1", "window", "20", "21", "7f-2",
             "gcra", "30", "336000000", "7f-3", "bucket", "40", "1000000000",
             "", NULL);
    ngx_rl_resp_free(command);

    len = ngx_rl_eval_refund(&command, &refunds[1], 2, 0);
    ok(args_of(command, len, &args), "a refund of some is a command");
    args_are(&args, 0, "of those alone", "EVALSHA", REFUND_SHA1, "2", "b",
             "c", "window", "20", "21", "7f-2", "gcra", "30", "336000000",
             "7f-3", NULL);
    ngx_rl_resp_free(command);

    len = ngx_rl_eval_refund(&command, refunds, 1, 1);
    ok(args_of(command, len, &args), "a refund by EVAL is a command");
    args_are(&args, 0, "with the text", "EVAL", REFUND_TEXT, "1", "a",
             "bucket", "10", "1", "7f-1", NULL);
    ngx_rl_resp_free(command);

    /* an id by its length; the ticks of a token by the rate, rounded up */

    refunds[0] = refund_of("a", gcra_of(100, "7r/s", 3), 2, "x y\r\n");
    refunds[0].id_len = 3;

    len = ngx_rl_eval_refund(&command, refunds, 1, 0);
    ok(args_of(command, len, &args), "a refund of gcra is a command");
    args_are(&args, 4, "in ticks", "gcra", "100", "4571430", "x y", NULL);
    ngx_rl_resp_free(command);

    /* the same key twice, taken by two calls */

    refunds[0] = refund_of("a", window_of(20, SECOND, 3), 3, "7f-1");
    refunds[1] = refund_of("a", window_of(20, SECOND, 3), 6, "7f-2");

    len = ngx_rl_eval_refund(&command, refunds, 2, 0);
    ok(args_of(command, len, &args), "a refund for two calls is a command");
    args_are(&args, 2, "which has the key twice", "2", "a", "a",
             "window", "20", "3", "7f-1", "window", "20", "6", "7f-2", NULL);
    ngx_rl_resp_free(command);
}


static void
test_eval(void)
{
    char           *sha, *text;
    args_t          a, b;
    size_t          i, n, same;
    long long       sha_len, text_len;
    ngx_rl_call_t   call;
    ngx_rl_claim_t  claims[2];

    static const struct {
        const char  *sha1;
        const char  *text;
        size_t       args;
    } scripts[] = {
        { SHA1, TEXT, 9 },
        { TAKE_SHA1, TAKE_TEXT, 26 },
        { GCRA_SHA1, GCRA_TEXT, 7 }
    };

    for (n = 1; n <= nelts_of(scripts); n++) {
        claims[0] = claim_of("k", bucket_of(1000000000,
                                            "999999999.999999r/h", 100000));
        claims[1] = claims[0];
        claims[0].bucket.capacity = 1000;

        call = script_of(claims, n == 2 ? 2 : 1);

        if (n == 3) {
            claims[0].bucket.algorithm = NGX_RL_GCRA;
        }

        sha_len = eval_command(&sha, &call, 1, 0);
        text_len = eval_command(&text, &call, 1, 1);

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

        ngx_rl_resp_free(sha);
        ngx_rl_resp_free(text);
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

    static const char  *texts[] = { TEXT, GCRA_TEXT, TAKE_TEXT, REFUND_TEXT };

    for (i = 0; i < nelts_of(texts); i++) {
        len = ngx_rl_scripts_load(&command, i);

        ok(args_of(command, len, &args), "SCRIPT LOAD %zu is a command", i);
        args_are(&args, 0, "and brings a script", "SCRIPT", "LOAD", texts[i],
                 NULL);
        ngx_rl_resp_free(command);
    }

    ok(ngx_rl_scripts_load(&command, i) == -2, "there are four");
    ok(ngx_rl_scripts_load(&command, (size_t) -1) == -2,
       "and no more, however far");
}


/* as many as there may be, with the longest numbers */

static void
test_many(void)
{
    char           *command, names[CLAIMS][8];
    args_t          args;
    size_t          i, wrong;
    long long       len;
    ngx_rl_call_t   call;
    ngx_rl_claim_t  claims[CLAIMS];

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

    call = script_of(claims, CLAIMS);
    call.now = UINT64_MAX;
    call.times = UINT32_MAX;

    len = eval_command(&command, &call, 1, 0);

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
                    != NGX_RL_TTL_MAX;
    }

    is_number(wrong, 0, "each in its place");
    ngx_rl_resp_free(command);
}


static void
test_many_refunds(void)
{
    char            *command;
    char             names[REFUNDS][8], ids[REFUNDS][40];
    args_t           args;
    size_t           i, arg, wrong;
    uint64_t         amount;
    long long        len;
    const char      *kind;
    ngx_rl_refund_t  refunds[REFUNDS];

    for (i = 0; i < REFUNDS; i++) {
        snprintf(names[i], sizeof(names[i]), "k%zu", i);

        /* of any length, and none is the beginning of another */

        snprintf(ids[i], sizeof(ids[i]), "%zx-%0*d", i, (int) i, 1);

        refunds[i] = refund_of(names[i], i % 3 == 0 ? bucket_of(1, "1r/s", 1)
                               : i % 3 == 1 ? window_of(1, SECOND, 1)
                               : gcra_of(1, "1r/s", 1),
                               i % 3 == 2 ? i + 1 : UINT64_MAX - i, ids[i]);

        refunds[i].bucket.capacity = UINT64_MAX - 2 * i;
    }

    len = ngx_rl_eval_refund(&command, refunds, REFUNDS, 0);

    ok(args_of(command, len, &args) && args.n == 3 + 5 * REFUNDS
       && arg_is(&args, 1, REFUND_SHA1, 40)
       && arg_number(&args, 2) == REFUNDS, "32 refunds: a command of all");

    wrong = 0;

    for (i = 0; i < REFUNDS; i++) {
        arg = 3 + REFUNDS + 4 * i;
        kind = (i % 3 == 0) ? "bucket" : (i % 3 == 1) ? "window" : "gcra";
        amount = (i % 3 == 2) ? (i + 1) * 16 * SECOND : UINT64_MAX - i;

        wrong += !arg_is(&args, 3 + i, names[i], strlen(names[i]))
                 || !arg_is(&args, arg, kind, strlen(kind))
                 || arg_number(&args, arg + 1) != UINT64_MAX - 2 * i
                 || arg_number(&args, arg + 2) != amount
                 || !arg_is(&args, arg + 3, ids[i], strlen(ids[i]));
    }

    is_number(wrong, 0, "each in its place, and with its id");
    ngx_rl_resp_free(command);
}


static void
test_keys(void)
{
    char            *command, *copy, name[64];
    char             all[256], large[4096];
    args_t           args;
    size_t           i;
    long long        len;
    ngx_rl_call_t    scripts[2], call;
    ngx_rl_claim_t   claims[2], other;
    ngx_rl_refund_t  refunds[2];

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

        call = script_of(claims, 1);

        len = eval_command(&command, &call, 1, i % 2);

        snprintf(name, sizeof(name), "a key %s arrives as it is", keys[i].name);
        ok(args_of(command, len, &args) && args.n == 9
           && arg_is(&args, 3, keys[i].data, keys[i].len), "%s", name);
        ngx_rl_resp_free(command);

        call.n = 2;
        call.claims[1] = &claims[1];

        len = eval_command(&command, &call, 1, 0);
        ok(args_of(command, len, &args) && args.n == 26
           && arg_is(&args, 4, keys[i].data, keys[i].len),
           "and as the second of two");
        ngx_rl_resp_free(command);

        other = claim_of("some other key", claims[0].bucket);
        scripts[0] = script_of(&other, 1);
        scripts[1] = script_of(claims, 1);

        len = eval_command(&command, scripts, 2, i % 2);
        ok(args_of(command, len, &args) && args.n == 10
           && arg_is(&args, 4, keys[i].data, keys[i].len),
           "and in a bundle");
        ngx_rl_resp_free(command);

        scripts_of(scripts, claims, 2);
        scripts[0].preview = 1;
        scripts[1].preview = 1;

        len = eval_command(&command, scripts, 2, i % 2);
        ok(args_of(command, len, &args) && args.n == 23
           && arg_is(&args, 3, keys[i].data, keys[i].len),
           "once, if it is one of the long script");
        ngx_rl_resp_free(command);

        refunds[0] = refund_of("", claims[0].bucket, 1, "");
        refunds[0].key = copy;
        refunds[0].len = keys[i].len;
        refunds[0].id = copy;
        refunds[0].id_len = keys[i].len;
        refunds[1] = refunds[0];

        len = ngx_rl_eval_refund(&command, refunds, 2, i % 2);
        ok(args_of(command, len, &args) && args.n == 13
           && arg_is(&args, 4, keys[i].data, keys[i].len)
           && arg_is(&args, 12, keys[i].data, keys[i].len),
           "and in a refund, where it may be an id as well");
        ngx_rl_resp_free(command);

        free(copy);
    }
}


static uint64_t
ttl_of(const ngx_rl_bucket_t *bucket)
{
    char           *command;
    args_t          args;
    uint64_t        ttl;
    long long       len;
    ngx_rl_call_t   call;
    ngx_rl_claim_t  claim;

    claim = claim_of("k", *bucket);
    call = script_of(&claim, 1);

    /*
     * the last argument of a script, but for gcra.lua, and for a slow bucket,
     * which also knows the time: the last but one
     */

    len = eval_command(&command, &call, 1, 0);
    ttl = 0;

    if (args_of(command, len, &args)) {
        ttl = arg_number(&args, bucket->algorithm == NGX_RL_GCRA
                         ? args.n - 2 : args.n - 1);

        if (ttl == call.now) {
            ttl = arg_number(&args, args.n - 2);
        }
    }

    ngx_rl_resp_free(command);

    return ttl;
}


static void
test_ttl(void)
{
    char             text[64];
    unsigned         i, wrong;
    uint64_t         seed, us, ttl;
    ngx_rl_bucket_t  bucket;

    static const char  units[] = "smhd";

    bucket = bucket_of(1, "1r/d", 1);
    is_number(ttl_of(&bucket), 86401000, "once a day: a day and a second");

    bucket = bucket_of(100000, "100000r/s", 1);
    is_number(ttl_of(&bucket), 2000, "100000 a second: two seconds");

    bucket = bucket_of(1, "1000r/s", 1);
    is_number(ttl_of(&bucket), 1001, "never less than a second");

    bucket = bucket_of(10, "0r/s", 1);
    is_number(ttl_of(&bucket), 31536000000ULL, "a rate of zero: a year");

    bucket = bucket_of(1000000000, "0.000001r/d", 1);
    is_number(ttl_of(&bucket), NGX_RL_TTL_MAX,
              "a rate that is nearly zero: as long as there is");

    /* 36525 days are the limit: at it, and half a second below it */

    bucket = bucket_of(36525, "1r/d", 1);
    is_number(ttl_of(&bucket), NGX_RL_TTL_MAX,
              "a hundred years, not a second more");

    bucket.rate.num = 2;
    bucket.rate.den = 6311519999;
    bucket.capacity = 1;
    is_number(ttl_of(&bucket), NGX_RL_TTL_MAX,
              "rounding does not pass the limit");

    bucket = bucket_of(10, "1r/s", 1);
    bucket.step = 60 * SECOND;
    is_number(ttl_of(&bucket), 71000, "a step longer");

    bucket = bucket_of(10, "0r/s", 1);
    bucket.step = 60 * SECOND;
    is_number(ttl_of(&bucket), 31536000000ULL, "a step of nothing: a year");

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

        us = ngx_rl_rate_wait(&bucket.rate, bucket.capacity * 1000000);
        ttl = ttl_of(&bucket);

        wrong += ttl < 1000 || ttl > NGX_RL_TTL_MAX
                 || (ttl != NGX_RL_TTL_MAX
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

        us = ngx_rl_rate_wait(&bucket.rate, bucket.capacity * SECOND);
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


/* the first reply in "wire" */

static ngx_rl_reply_t *
reply_of(ngx_rl_reader_t *reader, const char *wire)
{
    ngx_rl_reply_t  *reply;

    ngx_rl_reader_feed(reader, wire, strlen(wire));
    ngx_rl_reader_next(reader, &reply);

    return reply;
}


/* reads a reply, and decides by it as its callers do */

static ngx_rl_failure_e
answer(ngx_rl_reader_t *reader, const char *wire, ngx_rl_call_t *call)
{
    size_t            i;
    ngx_rl_eval_t     eval;
    ngx_rl_claim_t   *claim;
    ngx_rl_failure_e  failure;

    bundle_sent(&eval, call, 1);

    failure = ngx_rl_eval_reply(reply_of(reader, wire), &eval);

    if (failure == NGX_RL_OK) {
        failure = call->failure;
    }

    for (i = 0; failure == NGX_RL_OK && i < call->n; i++) {
        claim = call->claims[i];

        ngx_rl_decide(&claim->decision, &claim->bucket, claim->state);
    }

    return failure;
}


static int
decision_is(const ngx_rl_claim_t *claim, int passed,
    uint64_t limit, uint64_t remaining, uint64_t reset, uint64_t retry_after)
{
    const ngx_rl_decision_t  *d;

    d = &claim->decision;

    return d->outcome == (passed ? NGX_RL_PASSED
                          : NGX_RL_REJECTED)
           && d->limit == limit && d->remaining == remaining
           && d->reset == reset && d->retry_after == retry_after;
}


static void
test_replies(void)
{
    size_t            i;
    ngx_rl_call_t     call;
    ngx_rl_claim_t    claim;
    ngx_rl_reader_t  *reader;
    ngx_rl_failure_e  failure;

    static const struct {
        const char                    *wire;
        ngx_rl_failure_e   failure;
    } replies[] = {
        { "+OK\r\n", NGX_RL_PROTOCOL },
        { "$1\r\n5\r\n", NGX_RL_PROTOCOL },
        { "$-1\r\n", NGX_RL_PROTOCOL },
        { "*-1\r\n", NGX_RL_PROTOCOL },
        { "*1\r\n:5\r\n", NGX_RL_PROTOCOL },
        { "*0\r\n", NGX_RL_PROTOCOL },
        { "-NOSCRIPT No matching script.\r\n", NGX_RL_NOSCRIPT },
        { "-OOM command not allowed\r\n", NGX_RL_OOM },
        { "-CLOCK nginx is behind\r\n", NGX_RL_CLOCK },
        { "-ERR what\r\n", NGX_RL_ERROR },
        { "-\r\n", NGX_RL_ERROR }
    };

    claim = claim_of("k", bucket_of(10, "1r/s", 3));
    call = script_of(&claim, 1);
    reader = ngx_rl_reader_create();

    is_number(answer(reader, ":7000000\r\n", &call),
              NGX_RL_OK, "an integer is a decision");
    ok(decision_is(&claim, 1, 10, 7, 3, 0),
       "not negative: passed, what is left");
    is_number(call.passed, 1, "one of one");

    is_number(answer(reader, ":-2500001\r\n", &call),
              NGX_RL_OK, "so is a negative one");
    ok(decision_is(&claim, 0, 10, 2, 8, 1),
       "negative: rejected, what is there");
    is_number(call.passed, 0, "none of one");

    for (i = 0; i < nelts_of(replies); i++) {
        failure = answer(reader, replies[i].wire, &call);

        ok(failure == replies[i].failure, "\"%.*s\" is no decision: %s",
           (int) strcspn(replies[i].wire, "\r"), replies[i].wire,
           ngx_rl_failure_name(failure));
    }

    ngx_rl_reader_free(reader);
}


/* a bucket, a bucket with a step, a window: one, two and three numbers */

static void
test_arrays(void)
{
    size_t            i;
    ngx_rl_call_t     call;
    ngx_rl_claim_t    claims[3];
    ngx_rl_reader_t  *reader;

    static const char  *wrong[] = {
        ":5\r\n",
        "*-1\r\n",
        "*0\r\n",
        "*5\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
        "*7\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
        "*6\r\n$1\r\n1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
        "*6\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n$-1\r\n",
        "*6\r\n:1\r\n:1\r\n*1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
        "*6\r\n:1\r\n:1\r\n:1\r\n-ERR x\r\n:1\r\n+OK\r\n",
        "*3\r\n:1\r\n*2\r\n:1\r\n:1\r\n*3\r\n:1\r\n:1\r\n:1\r\n"
    };

    claims[0] = claim_of("a", bucket_of(10, "1r/s", 3));
    claims[1] = claim_of("b", bucket_of(20, "2r/s", 3));
    claims[1].bucket.step = 5 * SECOND;
    claims[2] = claim_of("c", window_of(30, 60 * SECOND, 3));

    call = script_of(claims, 3);
    reader = ngx_rl_reader_create();

    is_number(answer(reader, "*6\r\n:7000000\r\n:-2000001\r\n:1000000\r\n"
                     ":-3\r\n:5000000\r\n:8000001\r\n", &call),
              NGX_RL_OK, "three limits in one reply");
    ok(decision_is(&claims[0], 1, 10, 7, 3, 0), "the bucket's number");
    ok(decision_is(&claims[1], 0, 20, 2, 9, 4), "the two of one with steps");
    ok(decision_is(&claims[2], 0, 30, 2, 5, 9), "the window's three");

    for (i = 0; i < nelts_of(wrong); i++) {
        is_number(answer(reader, wrong[i], &call), NGX_RL_PROTOCOL,
                  "another number or type of elements is no decision");
    }

    is_number(answer(reader, "*6\r\n:1\r\n:1\r\n:1\r\n-ERR x\r\n:1\r\n:1\r\n",
                     &call), NGX_RL_ERROR, "nor is an error among them");
    is_number(answer(reader, "-CLOCK x\r\n", &call),
              NGX_RL_CLOCK, "or in place of them");

    /* the same elements, in another order of limits */

    call.claims[0] = &claims[2];
    call.claims[2] = &claims[0];

    answer(reader, "*6\r\n:29\r\n:60000000\r\n:0\r\n"
           ":-2000001\r\n:1000000\r\n:-1\r\n", &call);
    ok(decision_is(&claims[2], 1, 30, 29, 60, 0)
       && decision_is(&claims[1], 0, 20, 2, 9, 4)
       && decision_is(&claims[0], 0, 10, 0, 10, 3),
       "limits and numbers are in the same order");

    /* single limits of several numbers */

    call = script_of(&claims[1], 1);
    is_number(answer(reader, "*2\r\n:17000000\r\n:0\r\n", &call),
              NGX_RL_OK, "one bucket with a step is an array");
    ok(decision_is(&claims[1], 1, 20, 17, 5, 0), "of two numbers");
    is_number(answer(reader, ":17000000\r\n", &call),
              NGX_RL_PROTOCOL, "and not an integer");

    call = script_of(&claims[2], 1);
    is_number(answer(reader, "*3\r\n:27\r\n:1\r\n:0\r\n", &call),
              NGX_RL_OK, "one window is an array");
    ok(decision_is(&claims[2], 1, 30, 27, 1, 0), "of three numbers");
    is_number(call.passed, 1, "one of one");

    ngx_rl_reader_free(reader);
}


static void
test_many_replies(void)
{
    char              wire[4096];
    size_t            i, n, wrong;
    ngx_rl_call_t     call;
    ngx_rl_claim_t    claims[CLAIMS];
    ngx_rl_reader_t  *reader;

    reader = ngx_rl_reader_create();

    n = snprintf(wire, sizeof(wire), "*%d\r\n", 3 * CLAIMS);

    for (i = 0; i < CLAIMS; i++) {
        claims[i] = claim_of("k", window_of(100, 60 * SECOND, 1));

        n += snprintf(wire + n, sizeof(wire) - n,
                      ":%zu\r\n:%zu000000\r\n:0\r\n", i, i + 1);
    }

    call = script_of(claims, CLAIMS);

    is_number(answer(reader, wire, &call),
              NGX_RL_OK, "16 windows answer with 48 numbers");

    wrong = 0;

    for (i = 0; i < CLAIMS; i++) {
        wrong += !decision_is(&claims[i], 1, 100, i, i + 1, 0);
    }

    is_number(wrong, 0, "each has its own");

    ngx_rl_reader_free(reader);
}


/* what comes first is how many passed */

static void
test_times_replies(void)
{
    size_t            i;
    ngx_rl_call_t     call;
    ngx_rl_claim_t    bucket, window;
    ngx_rl_reader_t  *reader;

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

    reader = ngx_rl_reader_create();

    bucket = claim_of("k", bucket_of(10, "1r/s", 1));
    call = script_of(&bucket, 1);
    call.times = 5;

    is_number(answer(reader, "*2\r\n:5\r\n:3500000\r\n", &call),
              NGX_RL_OK, "five requests, two numbers");
    ok(call.passed == 5 && bucket.state[0] == 3500000,
       "all passed, so much is left");

    answer(reader, "*2\r\n:2\r\n:500000\r\n", &call);
    ok(call.passed == 2 && bucket.state[0] == 500000,
       "two passed, so much is left");

    answer(reader, "*2\r\n:0\r\n:-500001\r\n", &call);
    ok(call.passed == 0 && bucket.state[0] == -500001,
       "none passed, so much is there");

    for (i = 0; i < nelts_of(wrong); i++) {
        is_number(answer(reader, wrong[i], &call),
                  NGX_RL_PROTOCOL, "what else is no answer");
    }

    is_number(answer(reader, "-OOM no\r\n", &call), NGX_RL_OOM,
              "an error is an error");

    window = claim_of("k", window_of(10, 60 * SECOND, 1));
    call = script_of(&window, 1);
    call.times = 5;

    is_number(answer(reader, "*4\r\n:3\r\n:0\r\n:5\r\n:7\r\n", &call),
              NGX_RL_OK, "of a window, four numbers");
    ok(call.passed == 3 && window.state[0] == 0 && window.state[1] == 5
       && window.state[2] == 7, "how many passed, and its three");
    is_number(answer(reader, "*3\r\n:0\r\n:5\r\n:7\r\n", &call),
              NGX_RL_PROTOCOL, "three are too few");

    ngx_rl_reader_free(reader);
}


/* ticks in, microtokens out, never more than there are */

static void
test_gcra_replies(void)
{
    char              wire[64];
    int64_t           ticks;
    unsigned          i, wrong;
    uint64_t          seed, tick, left;
    ngx_rl_call_t     call;
    ngx_rl_claim_t    claims[2];
    ngx_rl_reader_t  *reader;

    reader = ngx_rl_reader_create();

    claims[0] = claim_of("a", gcra_of(10, "1r/s", 3));
    claims[1] = claim_of("b", gcra_of(20, "7r/s", 1));
    call = script_of(claims, 1);

    is_number(answer(reader, ":112000000\r\n", &call),
              NGX_RL_OK, "gcra answers with ticks");
    ok(claims[0].state[0] == 7000000 && decision_is(&claims[0], 1, 10, 7, 3, 0)
       && call.passed == 1, "which are microtokens by its rate");

    answer(reader, ":-40000001\r\n", &call);
    ok(claims[0].state[0] == -2500001
       && decision_is(&claims[0], 0, 10, 2, 8, 1) && call.passed == 0,
       "and so if it denied");

    answer(reader, ":-1\r\n", &call);
    is_number(-claims[0].state[0], 1, "nothing is nothing");

    call = script_of(claims, 2);

    is_number(answer(reader, "*2\r\n:15999999\r\n:2285715\r\n", &call),
              NGX_RL_OK, "two answer with a number each");
    ok(claims[0].state[0] == 999999 && claims[1].state[0] == 1000000,
       "rounded down, each by its rate");

    call = script_of(claims, 1);
    call.times = 9;

    answer(reader, "*2\r\n:2\r\n:16000000\r\n", &call);
    ok(call.passed == 2 && claims[0].state[0] == 1000000,
       "of several requests, only what is left is in ticks");

    /* the largest limit that there can be, a year's */

    claims[0] = claim_of("a", gcra_of(1000000000, "31.709792r/s", 1));
    call = script_of(claims, 1);
    tick = ngx_rl_gcra_tick(&claims[0].bucket.rate);

    snprintf(wire, sizeof(wire), ":%" PRIu64 "\r\n", 1000000000 * tick);
    answer(reader, wire, &call);
    is_number(claims[0].state[0], 1000000000000000ULL,
              "a thousand million tokens");

    seed = 5;
    wrong = 0;

    for (i = 0; i < 20000; i++) {
        ticks = tap_random(&seed) % (1000000000 * tick);

        snprintf(wire, sizeof(wire), ":%" PRId64 "\r\n",
                 i % 2 ? ticks : -1 - ticks);
        answer(reader, wire, &call);

        left = i % 2 ? claims[0].state[0] : -1 - claims[0].state[0];

        wrong += left * (double) tick > ticks * 1e6 * (1 + 1e-12)
                 || (left + 1) * (double) tick < ticks * 1e6 * (1 - 1e-12);
    }

    is_number(wrong, 0, "20000 random answers: to the microtoken");

    /* more than a Redis in its right mind says */

    answer(reader, ":9223372036854775807\r\n", &call);
    ok(claims[0].state[0] > 0 && call.passed == 1, "too much is much");
    answer(reader, ":-9223372036854775808\r\n", &call);
    ok(claims[0].state[0] < 0 && call.passed == 0, "denied all the same");

    ngx_rl_reader_free(reader);
}


/*
 * From the fastest rate to the slowest that gcra can have, and all orders of
 * magnitude between them: what is left just before a token is whole, just
 * after, and in the middle, against a wider type
 */

static void
test_gcra_edges(void)
{
    char              wire[64];
    int64_t           got;
    unsigned          i, k, times, wrong;
    uint64_t          capacity, tick, ticks;
    long double       wanted, seconds, unit;
    ngx_rl_call_t     call;
    ngx_rl_claim_t    claim;
    ngx_rl_reader_t  *reader;

    static const char  *rates[] = {
        "100000r/s", "99999.999999r/s", "1000r/s", "7r/s", "1r/s", "0.1r/s",
        "7r/m", "1r/m", "1r/h", "7r/d", "1r/d", "0.1r/d", "0.075r/d",
        "0.074r/d", "0.05r/d", "0.01r/d", "0.003r/d", "0.00274r/d"
    };

    reader = ngx_rl_reader_create();

    claim = claim_of("a", gcra_of(1, "0.05r/d", 1));
    call = script_of(&claim, 1);

    /* a token in 20 days; 19.9 have gone */

    answer(reader, ":-27509760000001\r\n", &call);
    is_number(claim.state[0] == -995001, 1, "0.05r/d after 19.9 days");

    ngx_rl_decide(&claim.decision, &claim.bucket, claim.state);
    is_number(claim.decision.retry_after, 8640, "a tenth of a day more");

    for (i = 0; i < nelts_of(rates); i++) {
        wrong = 0;

        for (times = 0; times < 2; times++) {
            claim = claim_of("a", gcra_of(1, rates[i], 1));
            tick = ngx_rl_gcra_tick(&claim.bucket.rate);

            /* one token, or as many as a year makes */

            capacity = times ? 31536000ULL * 16 * 1000000 / tick : 1;
            capacity = capacity < 1000000000 ? capacity : 1000000000;
            claim.bucket.capacity = capacity;
            call = script_of(&claim, 1);

            if (ngx_rl_gcra_check(&claim.bucket.rate, capacity)) {
                wrong = 1000;
            }

            for (k = 0; k <= 1000; k++) {
                ticks = (k % 10 == 0) ? tick * (capacity - 1) + tick / 1000 * k
                        : (k % 10 < 5) ? tick * capacity - k % 10
                        : tick * (capacity - 1) + k % 10 - 5;

                snprintf(wire, sizeof(wire), ":%" PRId64 "\r\n",
                         k % 2 ? (int64_t) ticks : -1 - (int64_t) ticks);
                answer(reader, wire, &call);

                got = k % 2 ? claim.state[0] : -1 - claim.state[0];
                wanted = (long double) ticks * 1000000 / tick;

                wrong += got > wanted || got + 1 < wanted;

                if (capacity > 1 || k % 2) {
                    continue;
                }

                /* when there is a token, to the microtoken and the second */

                ngx_rl_decide(&claim.decision, &claim.bucket, claim.state);

                unit = (long double) tick / 16e12L;
                seconds = (long double) (tick - ticks) / 16e6L;

                wrong += claim.decision.retry_after + 1e-6L < seconds
                         || claim.decision.retry_after
                            > seconds + unit + 1.000001L;
            }
        }

        is_number(wrong, 0, rates[i]);
    }

    ngx_rl_reader_free(reader);
}


static ngx_rl_failure_e
calls_answer(ngx_rl_reader_t *reader, const char *wire, ngx_rl_eval_t *eval)
{
    return ngx_rl_eval_reply(reply_of(reader, wire), eval);
}


static void
test_alike_replies(void)
{
    size_t            i;
    ngx_rl_call_t     scripts[3];
    ngx_rl_eval_t     eval;
    ngx_rl_claim_t    claims[3];
    ngx_rl_reader_t  *reader;

    static const struct {
        const char                    *wire;
        ngx_rl_failure_e   failure;
    } replies[] = {
        { ":5\r\n", NGX_RL_PROTOCOL },
        { "+OK\r\n", NGX_RL_PROTOCOL },
        { "*-1\r\n", NGX_RL_PROTOCOL },
        { "*0\r\n", NGX_RL_PROTOCOL },
        { "*2\r\n:1\r\n:1\r\n", NGX_RL_PROTOCOL },
        { "*4\r\n:1\r\n:1\r\n:1\r\n:1\r\n", NGX_RL_PROTOCOL },
        { "*6\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
          NGX_RL_PROTOCOL },
        { "*3\r\n:1\r\n$1\r\n1\r\n:1\r\n", NGX_RL_PROTOCOL },
        { "*3\r\n:1\r\n:1\r\n*1\r\n:1\r\n", NGX_RL_PROTOCOL },
        { "-NOSCRIPT No matching script.\r\n", NGX_RL_NOSCRIPT },
        { "-OOM command not allowed\r\n", NGX_RL_OOM },
        { "-WRONGTYPE Operation\r\n", NGX_RL_WRONGTYPE }
    };

    reader = ngx_rl_reader_create();

    for (i = 0; i < 3; i++) {
        claims[i] = claim_of(key_of(i), bucket_of(10, "1r/s", 1));
    }

    scripts_of(scripts, claims, 3);
    bundle_sent(&eval, scripts, 3);

    for (i = 0; i < 3; i++) {
        scripts[i].failure = NGX_RL_TIMEOUT;
    }

    is_number(calls_answer(reader, "*3\r\n:7000000\r\n:-1\r\n:0\r\n", &eval),
              NGX_RL_OK, "a bundle answers with a number each");
    ok(claims[0].state[0] == 7000000 && claims[1].state[0] == -1
       && claims[2].state[0] == 0, "in the order of the keys");
    ok(scripts[0].failure == NGX_RL_OK
       && scripts[1].failure == NGX_RL_OK
       && scripts[2].failure == NGX_RL_OK, "and none has failed");
    ok(scripts[0].passed == 1 && scripts[1].passed == 0
       && scripts[2].passed == 1, "of each it is known whether it passed");

    is_number(calls_answer(reader, "*3\r\n:1\r\n-WRONGTYPE no\r\n:2\r\n",
                           &eval), NGX_RL_OK, "one may be an error");
    ok(scripts[0].failure == NGX_RL_OK && claims[0].state[0] == 1
       && scripts[1].failure == NGX_RL_WRONGTYPE
       && scripts[2].failure == NGX_RL_OK
       && claims[2].state[0] == 2, "which is that one's, the others are fine");

    for (i = 0; i < nelts_of(replies); i++) {
        ok(calls_answer(reader, replies[i].wire, &eval)
           == replies[i].failure,
           "\"%.*s\" fails for all: %s",
           (int) strcspn(replies[i].wire, "\r"), replies[i].wire,
           ngx_rl_failure_name(replies[i].failure));
    }

    for (i = 0; i < 3; i++) {
        claims[i].bucket = gcra_of(10, "1r/s", 1);
    }

    bundle_sent(&eval, scripts, 3);

    calls_answer(reader, "*3\r\n:16000000\r\n:-24000001\r\n:0\r\n", &eval);
    ok(claims[0].state[0] == 1000000 && claims[1].state[0] == -1500001
       && claims[2].state[0] == 0, "a bundle of gcra answers with ticks");

    ngx_rl_reader_free(reader);
}


/* as soon as one of them is for several requests, two numbers for each */

static void
test_alike_pairs(void)
{
    size_t            i;
    ngx_rl_call_t     scripts[3];
    ngx_rl_eval_t     eval;
    ngx_rl_claim_t    claims[3];
    ngx_rl_reader_t  *reader;

    reader = ngx_rl_reader_create();

    for (i = 0; i < 3; i++) {
        claims[i] = claim_of(key_of(i), bucket_of(10, "1r/s", 1));
    }

    scripts_of(scripts, claims, 3);

    scripts[0].times = 5;
    scripts[2].times = 3;

    bundle_sent(&eval, scripts, 3);

    for (i = 0; i < 3; i++) {
        scripts[i].failure = NGX_RL_TIMEOUT;
    }

    is_number(calls_answer(reader, "*6\r\n:4\r\n:500000\r\n:1\r\n:7000000\r\n"
                           ":0\r\n:-300001\r\n", &eval),
              NGX_RL_OK, "for 5, 1 and 3 requests: two numbers "
              "each");
    ok(scripts[0].passed == 4 && scripts[1].passed == 1
       && scripts[2].passed == 0, "how many of them passed");
    ok(claims[0].state[0] == 500000 && claims[1].state[0] == 7000000
       && claims[2].state[0] == -300001, "and what is left");
    ok(scripts[0].failure == NGX_RL_OK
       && scripts[1].failure == NGX_RL_OK
       && scripts[2].failure == NGX_RL_OK, "and none has failed");

    calls_answer(reader, "*6\r\n:5\r\n:0\r\n:0\r\n:-1\r\n:3\r\n:1\r\n", &eval);
    ok(scripts[0].passed == 5 && scripts[1].passed == 0
       && scripts[2].passed == 3, "as many as there were, and none of one");

    /* an error of a single key is in the place of what is left */

    is_number(calls_answer(reader, "*6\r\n:2\r\n:11\r\n:0\r\n-WRONGTYPE no\r\n"
                           ":1\r\n:13\r\n", &eval),
              NGX_RL_OK, "one may be an error");
    ok(scripts[1].failure == NGX_RL_WRONGTYPE, "which is its own");
    ok(scripts[0].failure == NGX_RL_OK && scripts[0].passed == 2
       && claims[0].state[0] == 11
       && scripts[2].failure == NGX_RL_OK && scripts[2].passed == 1
       && claims[2].state[0] == 13, "while the others are fine");

    is_number(calls_answer(reader, "*6\r\n:0\r\n-WRONGTYPE no\r\n:1\r\n:12\r\n"
                           ":0\r\n-ERR what\r\n", &eval),
              NGX_RL_OK, "two may be, the first and the last");
    ok(scripts[0].failure == NGX_RL_WRONGTYPE
       && scripts[1].failure == NGX_RL_OK && scripts[1].passed == 1
       && claims[1].state[0] == 12
       && scripts[2].failure == NGX_RL_ERROR, "each its own");

    /* and so is one in the place of how many passed */

    is_number(calls_answer(reader, "*6\r\n:2\r\n:11\r\n-CLOCK no\r\n:0\r\n"
                           ":1\r\n:13\r\n", &eval),
              NGX_RL_OK, "it may be the first of two");
    ok(scripts[0].failure == NGX_RL_OK && scripts[0].passed == 2
       && scripts[1].failure == NGX_RL_CLOCK
       && scripts[1].passed == 0 && claims[1].state[0] == 12
       && scripts[2].failure == NGX_RL_OK
       && scripts[2].passed == 1, "and its own, by which nothing is known");

    is_number(calls_answer(reader, "-OOM no\r\n", &eval),
              NGX_RL_OOM, "an error of all is an error of all");

    calls_answer(reader, "*6\r\n:1\r\n:1\r\n:1\r\n:2\r\n:1\r\n:3\r\n", &eval);
    ok(scripts[0].failure == NGX_RL_OK
       && scripts[1].failure == NGX_RL_OK
       && scripts[2].failure == NGX_RL_OK,
       "with the next reply all errors are over");

    /* those who are gone had two numbers as well */

    eval.scripts[0] = NULL;
    eval.scripts[1] = NULL;

    is_number(calls_answer(reader, "*6\r\n:4\r\n:21\r\n:0\r\n-ERR what\r\n"
                           ":2\r\n:23\r\n", &eval),
              NGX_RL_OK, "two of three are gone");
    ok(scripts[2].passed == 2 && claims[2].state[0] == 23
       && claims[0].state[0] == 1 && claims[1].state[0] == 2
       && scripts[0].passed == 1
       && scripts[1].failure == NGX_RL_OK,
       "the third one is told its own, they are told nothing");

    /* requests are no ticks */

    for (i = 0; i < 3; i++) {
        claims[i].bucket = gcra_of(10, "1r/s", 1);
    }

    bundle_sent(&eval, scripts, 3);

    calls_answer(reader, "*6\r\n:2\r\n:16000000\r\n:0\r\n:-24000001\r\n"
                 ":3\r\n:0\r\n", &eval);
    ok(scripts[0].passed == 2 && claims[0].state[0] == 1000000
       && scripts[1].passed == 0 && claims[1].state[0] == -1500001
       && scripts[2].passed == 3 && claims[2].state[0] == 0,
       "of gcra, only what is left is in ticks");

    ngx_rl_reader_free(reader);
}


/* whatever is wrong with one element, there is no answer */

static void
test_alike_wrong(void)
{
    char              wire[256];
    size_t            i, j, k, n;
    unsigned          wrong;
    ngx_rl_call_t     scripts[3];
    ngx_rl_eval_t     eval;
    ngx_rl_claim_t    claims[3];
    ngx_rl_reader_t  *reader;

    static const char  *counts[] = {
        ":5\r\n",
        "+OK\r\n",
        "*-1\r\n",
        "*0\r\n",
        "*2\r\n:1\r\n:1\r\n",
        "*3\r\n:1\r\n:1\r\n:1\r\n",
        "*5\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
        "*7\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
        "*3\r\n*2\r\n:1\r\n:1\r\n*2\r\n:1\r\n:1\r\n*2\r\n:1\r\n:1\r\n"
    };

    /* for the first number of a pair, or for any */

    static const struct {
        const char  *name;
        const char  *element;
        unsigned     any;
    } elements[] = {
        { "a status", "+OK\r\n", 1 },
        { "a string", "$1\r\n1\r\n", 1 },
        { "nil", "$-1\r\n", 1 },
        { "an empty array", "*0\r\n", 1 },
        { "an array", "*1\r\n:1\r\n", 1 },
        { "less than none", ":-1\r\n", 0 },
        { "the least number", ":-9223372036854775808\r\n", 0 },
        { "one more than there are", ":3\r\n", 0 },
        { "2^32 more than would pass", ":4294967297\r\n", 0 },
        { "the greatest number", ":9223372036854775807\r\n", 0 }
    };

    reader = ngx_rl_reader_create();

    for (i = 0; i < 3; i++) {
        claims[i] = claim_of(key_of(i), bucket_of(10, "1r/s", 1));
    }

    scripts_of(scripts, claims, 3);

    for (i = 0; i < 3; i++) {
        scripts[i].times = 2;
    }

    bundle_sent(&eval, scripts, 3);

    for (i = 0; i < nelts_of(counts); i++) {
        is_number(calls_answer(reader, counts[i], &eval), NGX_RL_PROTOCOL,
                  "another number of elements is no answer");
    }

    for (i = 0; i < nelts_of(elements); i++) {
        wrong = 0;

        for (j = 0; j < 6; j += elements[i].any ? 1 : 2) {
            n = snprintf(wire, sizeof(wire), "*6\r\n");

            for (k = 0; k < 6; k++) {
                n += snprintf(wire + n, sizeof(wire) - n, "%s",
                              k == j ? elements[i].element : ":2\r\n");
            }

            wrong += calls_answer(reader, wire, &eval)
                     != NGX_RL_PROTOCOL;
        }

        ok(wrong == 0, "%s in the place of a number%s is no answer",
           elements[i].name, elements[i].any ? "" : " of requests");
    }

    is_number(calls_answer(reader, "*6\r\n:2\r\n:2\r\n:2\r\n:2\r\n:2\r\n:2\r\n",
                           &eval),
              NGX_RL_OK, "where nothing is wrong there is one");

    /* each has its own number, by which too many are told */

    scripts[0].times = 5;
    scripts[1].times = 1;
    scripts[2].times = 3;

    bundle_sent(&eval, scripts, 3);

    is_number(calls_answer(reader, "*6\r\n:5\r\n:1\r\n:1\r\n:1\r\n:3\r\n:1\r\n",
                           &eval), NGX_RL_OK, "all of 5, of 1 and of 3");
    is_number(calls_answer(reader, "*6\r\n:6\r\n:1\r\n:1\r\n:1\r\n:3\r\n:1\r\n",
                           &eval), NGX_RL_PROTOCOL, "but not 6 of 5");
    is_number(calls_answer(reader, "*6\r\n:5\r\n:1\r\n:2\r\n:1\r\n:3\r\n:1\r\n",
                           &eval), NGX_RL_PROTOCOL, "nor 2 of 1");
    is_number(calls_answer(reader, "*6\r\n:5\r\n:1\r\n:1\r\n:1\r\n:4\r\n:1\r\n",
                           &eval), NGX_RL_PROTOCOL, "nor 4 of 3");

    ngx_rl_reader_free(reader);
}


/* the longest reply, of numbers and of errors, is not too long to be read */

static void
test_many_alike(void)
{
    char              wire[8192];
    size_t            i, n, wrong;
    ngx_rl_call_t     scripts[BUNDLE];
    ngx_rl_eval_t     eval;
    ngx_rl_claim_t    claims[BUNDLE];
    ngx_rl_reader_t  *reader;

    reader = ngx_rl_reader_create();

    for (i = 0; i < BUNDLE; i++) {
        claims[i] = claim_of(key_of(i), bucket_of(1000000000, "1000000r/s", 1));
    }

    scripts_of(scripts, claims, BUNDLE);

    n = snprintf(wire, sizeof(wire), "*%d\r\n", 2 * BUNDLE);

    for (i = 0; i < BUNDLE; i++) {
        scripts[i].times = UINT32_MAX;

        n += snprintf(wire + n, sizeof(wire) - n,
                      ":%" PRIu32 "\r\n:%" PRIu64 "\r\n",
                      (uint32_t) (UINT32_MAX - i),
                      (uint64_t) (999999999999900 + i));
    }

    bundle_sent(&eval, scripts, BUNDLE);

    is_number(calls_answer(reader, wire, &eval), NGX_RL_OK,
              "32 keys answer with 64 numbers");

    wrong = 0;

    for (i = 0; i < BUNDLE; i++) {
        wrong += scripts[i].passed != UINT32_MAX - i
                 || claims[i].state[0] != 999999999999900 + (int64_t) i;
    }

    is_number(wrong, 0, "each has its own");

    n = snprintf(wire, sizeof(wire), "*%d\r\n", 2 * BUNDLE);

    for (i = 0; i < BUNDLE; i++) {
        n += snprintf(wire + n, sizeof(wire) - n,
                      ":0\r\n-WRONGTYPE Operation against a key holding the "
                      "wrong kind of value script: "
                      "0123456789abcdef0123456789abcdef01234567, "
                      "on @user_script:52.\r\n");
    }

    is_number(calls_answer(reader, wire, &eval), NGX_RL_OK,
              "or all of them with errors");

    wrong = 0;

    for (i = 0; i < BUNDLE; i++) {
        wrong += scripts[i].failure != NGX_RL_WRONGTYPE;
    }

    is_number(wrong, 0, "each has its own");

    ngx_rl_reader_free(reader);
}


/* what comes back for calls with several limits each */

static void
test_bundle_replies(void)
{
    size_t            i, call, gaps, wrong;
    family_t          family;
    ngx_rl_eval_t     eval;
    ngx_rl_call_t     copy, single;
    ngx_rl_claim_t    claim;
    ngx_rl_reader_t  *reader;

    static const char  *any[] = {
        "-WRONGTYPE no\r\n", ":-1\r\n", ":4294967296\r\n"
    };

    reader = ngx_rl_reader_create();

    family_of(&family);
    bundle_sent(&eval, family.scripts, CALLS);
    family_forget(&family);

    is_number(calls_answer(reader, family_wire(0, NULL), &eval),
              NGX_RL_OK, "five calls in one reply");

    for (i = 0; i < CALLS; i++) {
        ok(family_told(&family, i), "call %zu has its numbers, and all of its "
           "limits have theirs", i);
    }

    /* whoever is gone is left out, and all others are told the same */

    wrong = 0;

    for (gaps = 0; gaps < 1 << CALLS; gaps++) {
        family_of(&family);
        bundle_sent(&eval, family.scripts, CALLS);
        family_forget(&family);

        for (i = 0; i < CALLS; i++) {
            if (gaps & 1 << i) {
                eval.scripts[i] = NULL;
            }
        }

        wrong += calls_answer(reader, family_wire(0, NULL), &eval)
                 != NGX_RL_OK;

        for (i = 0; i < CALLS; i++) {
            wrong += (gaps & 1 << i)
                     ? !family_untold(&family, i)
                       || family.scripts[i].passed != UNTOLD
                       || family.scripts[i].failure
                          != NGX_RL_TIMEOUT
                     : !family_told(&family, i);
        }
    }

    is_number(wrong, 0, "any of them may be gone, up to all of them");

    /* what it is that they do not hear makes no difference */

    wrong = 0;

    for (i = 0; i < ELEMENTS * nelts_of(any); i++) {
        family_of(&family);
        bundle_sent(&eval, family.scripts, CALLS);
        family_forget(&family);

        eval.scripts[family_call(i % ELEMENTS)] = NULL;

        wrong += calls_answer(reader, family_wire(i % ELEMENTS,
                                                  any[i / ELEMENTS]), &eval)
                 != NGX_RL_OK;

        for (call = 0; call < CALLS; call++) {
            wrong += (call == family_call(i % ELEMENTS))
                     ? !family_untold(&family, call)
                     : !family_told(&family, call);
        }
    }

    is_number(wrong, 0, "not even if it is an error");

    /* but they are counted */

    wrong = 0;

    for (i = 0; i < CALLS; i++) {
        family_of(&family);
        bundle_sent(&eval, family.scripts, CALLS);

        eval.scripts[i] = NULL;

        wrong += calls_answer(reader, "*15\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n"
                              ":1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n"
                              ":1\r\n:1\r\n:1\r\n", &eval)
                 != NGX_RL_PROTOCOL;
    }

    is_number(wrong, 0, "a reply without them is none");

    /* a call may have moved meanwhile */

    family_of(&family);
    bundle_sent(&eval, family.scripts, CALLS);
    family_forget(&family);

    copy = family.scripts[1];
    claim = family.claims[3];
    copy.claims[0] = &claim;
    eval.scripts[1] = &copy;

    is_number(calls_answer(reader, family_wire(0, NULL), &eval),
              NGX_RL_OK, "one of five has moved");
    ok(family_untold(&family, 1) && family.scripts[1].passed == UNTOLD
       && copy.passed == 3 && copy.failure == NGX_RL_OK
       && memcmp(claim.state, family_states[3], sizeof(claim.state)) == 0
       && family_told(&family, 0) && family_told(&family, 2)
       && family_told(&family, 3) && family_told(&family, 4),
       "and is told where it is now");

    /* a single one has no array if it has a single number, nor a gap */

    claim = claim_of("k", bucket_of(10, "1r/s", 1));
    single = script_of(&claim, 1);

    for (i = 0; i < 2; i++) {
        single.preview = i;
        bundle_sent(&eval, &single, 1);

        is_number(calls_answer(reader, ":5\r\n", &eval),
                  NGX_RL_OK, "one call, one number");
        ok(claim.state[0] == 5 && single.passed == 1, "which is its own");
        is_number(calls_answer(reader, "*1\r\n:5\r\n", &eval),
                  NGX_RL_PROTOCOL, "an array is none");

        claim.state[0] = UNTOLD;
        eval.scripts[0] = NULL;
        is_number(calls_answer(reader, ":5\r\n", &eval),
                  NGX_RL_OK, "one that is gone");
        ok(claim.state[0] == UNTOLD, "is not told");
    }

    ngx_rl_reader_free(reader);
}


/* what is wrong with one call is its own, unless there is no telling */

static void
test_bundle_errors(void)
{
    char              wire[1024];
    size_t            i, k, n, call, wrong;
    int64_t           times;
    family_t          family;
    ngx_rl_eval_t     eval;
    ngx_rl_reader_t  *reader;

    static const struct {
        const char                    *wire;
        ngx_rl_failure_e   failure;
    } replies[] = {
        { ":5\r\n", NGX_RL_PROTOCOL },
        { "+OK\r\n", NGX_RL_PROTOCOL },
        { "$2\r\n21\r\n", NGX_RL_PROTOCOL },
        { "$-1\r\n", NGX_RL_PROTOCOL },
        { "*-1\r\n", NGX_RL_PROTOCOL },
        { "-NOSCRIPT No matching script.\r\n", NGX_RL_NOSCRIPT },
        { "-CLOCK nginx is behind\r\n", NGX_RL_CLOCK },
        { "-WRONGTYPE Operation\r\n", NGX_RL_WRONGTYPE },
        { "-ERR what\r\n", NGX_RL_ERROR }
    };

    static const char  *kinds[] = {
        "+OK\r\n", "$1\r\n1\r\n", "$-1\r\n", "*-1\r\n", "*0\r\n",
        "*1\r\n:1\r\n"
    };

    static const struct {
        int64_t   passed;         /* more than there are */
        unsigned  fine;
    } passed[] = {
        { -4294967296LL, 0 }, { -1000000, 0 }, { 1, 0 }, { 2, 0 },
        { 4294967291LL, 0 }, { 4294967296LL, 0 }, { 0, 1 }, { -1, 1 }
    };

    reader = ngx_rl_reader_create();

    family_of(&family);
    bundle_sent(&eval, family.scripts, CALLS);

    /* an error in any place */

    wrong = 0;

    for (i = 0; i < ELEMENTS; i++) {
        family_forget(&family);

        wrong += calls_answer(reader, family_wire(i, "-WRONGTYPE no\r\n"),
                              &eval)
                 != NGX_RL_OK;

        for (call = 0; call < CALLS; call++) {
            wrong += (call == family_call(i))
                     ? !family_untold(&family, call)
                       || family.scripts[call].passed != 0
                       || family.scripts[call].failure
                          != NGX_RL_WRONGTYPE
                     : !family_told(&family, call);
        }
    }

    is_number(wrong, 0, "an error is that of its call, the others are fine");

    /* as the script has it: first, and the rest is 0; here of two calls */

    family_forget(&family);

    n = snprintf(wire, sizeof(wire), "*%d\r\n", ELEMENTS);

    for (i = 0; i < ELEMENTS; i++) {
        call = family_call(i);

        n += snprintf(wire + n, sizeof(wire) - n, "%s",
                      call != 1 && call != 2 ? family_elements[i]
                      : i != family_calls[call].element ? ":0\r\n"
                      : call == 1 ? "-CLOCK nginx is behind\r\n"
                      : "-WRONGTYPE Operation\r\n");
    }

    is_number(calls_answer(reader, wire, &eval), NGX_RL_OK,
              "two calls may fail");
    ok(family.scripts[1].failure == NGX_RL_CLOCK
       && family.scripts[1].passed == 0 && family_untold(&family, 1)
       && family.scripts[2].failure == NGX_RL_WRONGTYPE
       && family.scripts[2].passed == 0 && family_untold(&family, 2),
       "each in its way");
    ok(family_told(&family, 0) && family_told(&family, 3)
       && family_told(&family, 4), "while the others are fine");

    is_number(calls_answer(reader, family_wire(0, NULL), &eval),
              NGX_RL_OK, "the next reply is without errors");
    ok(family_told(&family, 1) && family_told(&family, 2), "and they are over");

    /* other kinds of elements, even beside an error */

    for (k = 0; k < nelts_of(kinds); k++) {
        wrong = 0;

        for (i = 0; i < ELEMENTS; i++) {
            wrong += calls_answer(reader, family_wire(i, kinds[k]), &eval)
                     != NGX_RL_PROTOCOL;
        }

        ok(wrong == 0, "\"%.*s\" in any place is no answer",
           (int) strcspn(kinds[k], "\r"), kinds[k]);
    }

    for (k = 0; k < 2; k++) {
        n = snprintf(wire, sizeof(wire), "*%d\r\n", ELEMENTS);

        for (i = 0; i < ELEMENTS; i++) {
            n += snprintf(wire + n, sizeof(wire) - n, "%s",
                          i == 10 + k ? "-ERR what\r\n"
                          : i == 11 - k ? "+OK\r\n" : family_elements[i]);
        }

        is_number(calls_answer(reader, wire, &eval), NGX_RL_PROTOCOL,
                  "and neither is it beside an error");
    }

    /* how many passed, of the two that were for several requests */

    for (k = 0; k < nelts_of(passed); k++) {
        wrong = 0;

        for (call = 1; call < CALLS; call += 3) {
            times = family_calls[call].times + passed[k].passed;

            snprintf(wire, sizeof(wire), ":%" PRId64 "\r\n", times);

            wrong += calls_answer(reader,
                                  family_wire(family_calls[call].element, wire),
                                  &eval)
                     != (passed[k].fine ? NGX_RL_OK : NGX_RL_PROTOCOL);

            wrong += passed[k].fine
                     && family.scripts[call].passed != (uint32_t) times;
        }

        ok(wrong == 0, "%" PRId64 " more than all passed: %s",
           passed[k].passed, passed[k].fine ? "an answer" : "no answer");
    }

    /* any other number of elements */

    wrong = 0;

    for (k = 0; k < 3 * ELEMENTS; k++) {
        n = snprintf(wire, sizeof(wire), "*%zu\r\n", k);

        for (i = 0; i < k; i++) {
            n += snprintf(wire + n, sizeof(wire) - n, ":1\r\n");
        }

        wrong += calls_answer(reader, wire, &eval)
                 != (k == ELEMENTS ? NGX_RL_OK : NGX_RL_PROTOCOL);
    }

    is_number(wrong, 0, "another number of elements is no answer");

    n = snprintf(wire, sizeof(wire), "*%d\r\n", CALLS);

    for (call = 0; call < CALLS; call++) {
        n += snprintf(wire + n, sizeof(wire) - n, "*%zu\r\n",
                      family_calls[call].elements);

        for (i = 0; i < family_calls[call].elements; i++) {
            n += snprintf(wire + n, sizeof(wire) - n, ":1\r\n");
        }
    }

    is_number(calls_answer(reader, wire, &eval),
              NGX_RL_PROTOCOL, "nor is an array for each call");

    for (i = 0; i < nelts_of(replies); i++) {
        family_forget(&family);

        wrong = calls_answer(reader, replies[i].wire, &eval)
                != replies[i].failure;

        for (call = 0; call < CALLS; call++) {
            wrong += !family_untold(&family, call);
        }

        ok(wrong == 0, "\"%.*s\" fails for all: %s",
           (int) strcspn(replies[i].wire, "\r"), replies[i].wire,
           ngx_rl_failure_name(replies[i].failure));
    }

    ngx_rl_reader_free(reader);
}


/* several that look at the same limit are told the same, each for itself */

static void
test_preview_replies(void)
{
    size_t            i;
    ngx_rl_eval_t     eval;
    ngx_rl_call_t     scripts[3];
    ngx_rl_claim_t    claims[4];
    ngx_rl_reader_t  *reader;

    reader = ngx_rl_reader_create();

    claims[0] = claim_of("a", gcra_of(10, "1r/s", 3));
    claims[1] = claim_of("b", window_of(20, SECOND, 1));
    claims[2] = claims[0];
    claims[3] = claims[1];

    scripts[0] = script_of(claims, 1);
    scripts[1] = script_of(&claims[1], 2);
    scripts[2] = script_of(&claims[3], 1);

    for (i = 0; i < 3; i++) {
        scripts[i].preview = 1;
    }

    bundle_sent(&eval, scripts, 3);

    ok(eval.nlimits == 2 && eval.elements[0] == 1
       && eval.elements[1] == 4 && eval.elements[2] == 3,
       "three previews of two limits");

    is_number(calls_answer(reader, "*8\r\n:16000000\r\n"
                           ":-1\r\n:2\r\n:3\r\n:16000000\r\n"
                           ":-1\r\n:2\r\n:3\r\n", &eval),
              NGX_RL_OK, "in one reply");
    ok(claims[0].state[0] == 1000000 && claims[2].state[0] == 1000000,
       "two are told the same of one");
    ok(claims[1].state[0] == -1 && claims[1].state[1] == 2
       && claims[1].state[2] == 3 && claims[3].state[0] == -1
       && claims[3].state[1] == 2 && claims[3].state[2] == 3,
       "and two of the other");
    ok(scripts[0].passed == 1 && scripts[2].passed == 0,
       "of each it is known whether it would pass");
    ok(!ngx_rl_call_taken(&scripts[0]), "and nothing was taken");

    ngx_rl_reader_free(reader);
}


/* windows have the most numbers: the reply is not too long to be read */

static void
test_many_windows(void)
{
    char              wire[16384], names[BUNDLE][8];
    size_t            i, k, n, wrong;
    ngx_rl_eval_t     eval;
    ngx_rl_call_t     scripts[BUNDLE];
    ngx_rl_claim_t    claims[NUMBERS];
    ngx_rl_reader_t  *reader;

    reader = ngx_rl_reader_create();

    n = snprintf(wire, sizeof(wire), "*%d\r\n", 3 * NUMBERS);

    for (i = 0; i < BUNDLE; i++) {
        snprintf(names[i], sizeof(names[i]), "k%zu", i);
    }

    for (i = 0; i < NUMBERS; i++) {
        claims[i] = claim_of(names[(i / 3 + i % 3) % BUNDLE],
                             window_of(1000000000, 31536000 * SECOND, 1));

        n += snprintf(wire + n, sizeof(wire) - n,
                      ":%zu\r\n:31535999999%03zu\r\n:-%zu\r\n",
                      999999000 + i, i, i + 1);
    }

    for (i = 0; i < BUNDLE; i++) {
        scripts[i] = script_of(&claims[3 * i], 3);
    }

    bundle_sent(&eval, scripts, BUNDLE);
    ok(eval.nlimits == BUNDLE && eval.nnumbers == NUMBERS,
       "32 calls for three of 32 windows each");

    is_number(calls_answer(reader, wire, &eval), NGX_RL_OK,
              "answer with 288 numbers");

    wrong = 0;

    for (i = 0; i < BUNDLE; i++) {
        for (k = 3 * i; k < 3 * i + 3; k++) {
            wrong += claims[k].state[0] != 999999000 + (int64_t) k
                     || claims[k].state[1] != 31535999999000 + (int64_t) k
                     || claims[k].state[2] != -1 - (int64_t) k;
        }
    }

    is_number(wrong, 0, "each has its own");

    /* texts of errors come on top: one a call, and its other numbers */

    n = snprintf(wire, sizeof(wire), "*%d\r\n", 3 * NUMBERS);

    for (i = 0; i < BUNDLE; i++) {
        n += snprintf(wire + n, sizeof(wire) - n,
                      "-WRONGTYPE Operation against a key holding the wrong "
                      "kind of value script: %s, on @user_script:203.\r\n"
                      ":0\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n",
                      TAKE_SHA1);
    }

    is_number(calls_answer(reader, wire, &eval), NGX_RL_OK,
              "32 calls may fail in one reply");

    wrong = 0;

    for (i = 0; i < BUNDLE; i++) {
        wrong += scripts[i].failure == NGX_RL_OK;
    }

    is_number(wrong, 0, "each by itself");

    ngx_rl_reader_free(reader);
}


static void
test_taken(void)
{
    size_t          i, j;
    ngx_rl_call_t   call;
    ngx_rl_claim_t  claims[3];

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

        call = script_of(claims, j);
        call.preview = cases[i].preview;

        ok(!ngx_rl_call_taken(&call) == !cases[i].taken,
           "%s%s: %s", cases[i].claims, cases[i].preview ? ", a preview" : "",
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
    test_alike();
    test_alike_times();
    test_bundle();
    test_bundle_previews();
    test_bundle_refusals();
    test_bundle_hashes();
    test_bundle_edges();
    test_refund_args();
    test_eval();
    test_probe();
    test_load();
    test_many();
    test_many_refunds();
    test_keys();
    test_ttl();
    test_embedded();
    test_replies();
    test_arrays();
    test_many_replies();
    test_times_replies();
    test_gcra_replies();
    test_gcra_edges();
    test_alike_replies();
    test_alike_pairs();
    test_alike_wrong();
    test_many_alike();
    test_bundle_replies();
    test_bundle_errors();
    test_preview_replies();
    test_many_windows();
    test_taken();

    return tap_done();
}
