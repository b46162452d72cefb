
/*
 * Calls and refunds as they go over the wire.
 */

#include "family.h"


/* whether a call is not added, and nothing changes by it */

static int
eval_refuses(ngx_rl_eval_t *eval, ngx_rl_call_t *call)
{
    int            added, same;
    char          *before, *after;
    long long      before_len, after_len;
    ngx_rl_eval_t  was;

    before_len = eval_format(&before, eval, 0);
    was = *eval;

    added = ngx_rl_eval_add(eval, call);

    same = eval->n == was.n && eval->nlimits == was.nlimits
           && eval->nnumbers == was.nnumbers
           && memcmp(eval->calls, was.calls, was.n * sizeof(was.calls[0])) == 0
           && memcmp(eval->limits, was.limits,
                     was.nlimits * sizeof(was.limits[0])) == 0
           && memcmp(eval->numbers, was.numbers,
                     was.nnumbers * sizeof(was.numbers[0])) == 0;

    after_len = eval_format(&after, eval, 0);

    same = same && after_len == before_len
           && memcmp(after, before, before_len) == 0;

    ngx_rl_resp_free(before);
    ngx_rl_resp_free(after);

    return !added && same;
}


/* the command that was written last */

static void
is_written(const char *expected, size_t expected_len, const char *name)
{
    char    *command;
    ssize_t  len;

    len = ngx_rl_resp_end(&writer, &command);

    is_bytes(command, len, expected, expected_len, name);
}


static void
test_wire(void)
{
    args_t           args;
    ngx_rl_call_t    calls[2], call;
    ngx_rl_claim_t   claims[3];
    ngx_rl_refund_t  refunds[2];

    /* 10 tokens at 7/60 tokens a second are full after 85.714 s */

    claims[0] = claim_of("ratelimit:a:{k}", bucket_of(10, "7r/m", 3));
    call = call_of(claims, 1);

    eval_args(&args, &call, 1, 0);
    is_written(bytes_of("*9\r\n$7\r\nEVALSHA\r\n"
             "$40\r\n" SHA1 "\r\n" "$1\r\n1\r\n" "$15\r\nratelimit:a:{k}\r\n"
             "$2\r\n10\r\n" "$1\r\n7\r\n" "$2\r\n60\r\n" "$1\r\n3\r\n"
                        "$5\r\n86714\r\n"), "one bucket, byte by byte");

    claims[1] = claim_of("b", window_of(5, 60 * SECOND, 2));
    call = call_of(claims, 2);

    eval_args(&args, &call, 1, 0);
    is_written(bytes_of("*26\r\n$7\r\nEVALSHA\r\n"
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

    claims[2] = claims[1];
    calls[0] = call;
    calls[1] = call_of(&claims[2], 1);
    calls[1].times = 12;

    eval_args(&args, calls, 2, 0);
    is_written(bytes_of("*33\r\n$7\r\nEVALSHA\r\n"
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

    refunds[0] = refund_of("ratelimit:a:{k}", claims[0].bucket, 3, "7f-1");
    refunds[1] = refund_of("b", claims[1].bucket, 2, "7f-2");

    refund_args(&args, refunds, 2, 0);
    is_written(bytes_of("*13\r\n$7\r\nEVALSHA\r\n"
                        "$40\r\n" REFUND_SHA1 "\r\n" "$1\r\n2\r\n"
                        "$15\r\nratelimit:a:{k}\r\n" "$1\r\nb\r\n"
                        "$6\r\nbucket\r\n" "$2\r\n10\r\n" "$1\r\n3\r\n"
                        "$4\r\n7f-1\r\n"
                        "$6\r\nwindow\r\n" "$1\r\n5\r\n" "$1\r\n2\r\n"
                        "$4\r\n7f-2\r\n"),
               "and what gives them back");

    claims[1] = claim_of("b", bucket_of(10, "7r/m", 3));
    calls_of(calls, claims, 2);
    calls[1].times = 12;

    eval_args(&args, calls, 2, 0);
    is_written(bytes_of("*13\r\n$7\r\nEVALSHA\r\n"
                        "$40\r\n" SHA1 "\r\n" "$1\r\n2\r\n"
                        "$15\r\nratelimit:a:{k}\r\n" "$1\r\nb\r\n"
             "$2\r\n10\r\n" "$1\r\n7\r\n" "$2\r\n60\r\n" "$1\r\n3\r\n"
             "$5\r\n86714\r\n" "$1\r\n0\r\n" "$1\r\n1\r\n" "$2\r\n12\r\n"),
               "two buckets in one command, one of them for 12 requests");

    claims[0] = claim_of("ratelimit:a:{k}", gcra_of(10, "7r/m", 3));
    call = call_of(claims, 1);

    /* a token is 60/7 s, of 16000000 ticks each */

    eval_args(&args, &call, 1, 0);
    is_written(bytes_of("*7\r\n$7\r\nEVALSHA\r\n"
                        "$40\r\n" GCRA_SHA1 "\r\n" "$1\r\n1\r\n"
                        "$15\r\nratelimit:a:{k}\r\n"
                        "$10\r\n1371428580\r\n" "$9\r\n411428574\r\n"
                        "$1\r\n0\r\n"),
               "the same limit by gcra, byte by byte");
}


/*
 * The short script knows no preview, no step, no window, no clock that counts
 * but Redis's, and one key
 */

static void
test_short(void)
{
    int             is_short;
    args_t          args;
    size_t          i, k;
    const char     *sha1;
    ngx_rl_call_t   calls[2], *call;
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
            calls[k] = call_of(&claims[2 * k], cases[i].n);
            calls[k].preview = cases[i].preview;
            calls[k].clock = cases[i].clock;
        }

        call = &calls[0];
        is_short = cases[i].is_short;
        sha1 = !is_short ? TAKE_SHA1 : cases[i].gcra ? GCRA_SHA1 : SHA1;

        ok(eval_args(&args, call, 1, 0) && arg_is(&args, 1, sha1, 40)
           && arg_number(&args, 2) == cases[i].n, "%s: %s", cases[i].name,
           is_short ? "the short script" : "the long one");

        is_number(ngx_rl_call_short(call), is_short,
                  is_short ? "which needs no id" : "which needs an id");

        ok(eval_args(&args, calls, 2, 0) && arg_is(&args, 1, sha1, 40)
           && arg_number(&args, 2) == 2 * cases[i].n,
           "the same one for two such calls");
    }
}


static void
test_take_args(void)
{
    args_t          args;
    ngx_rl_call_t   call;
    ngx_rl_claim_t  claims[3];

    claims[0] = claim_of("user", bucket_of(1000000000,
                                           "999999999.999999r/d", 100000));
    claims[0].bucket.step = 86400 * SECOND;
    claims[1] = claim_of("ip", window_of(1000000000, 31536000 * SECOND,
                                         100000));
    claims[1].shadow = 1;
    claims[2] = claim_of("global", bucket_of(7, "0r/s", 1));

    call = call_of(claims, 3);

    ok(eval_args(&args, &call, 1, 0), "three limits: a command");
    args_are(&args, 0, "word by word", "EVALSHA", TAKE_SHA1, "3",
             "user", "ip", "global", "take", "redis", "1800000000123456",
             "7f-1", "1",
             "bucket", "enforced", "1000000000", "100000",
             "37037037037037", "3200000000", "86400000000", "172801000",
             "window", "shadow", "1000000000", "100000",
             "31536000000000", "0", "0", "31536001000",
             "bucket", "enforced", "7", "1", "0", "1", "0",
             "31536000000", NULL);

    call.preview = 1;
    call.clock = 1;
    call.now = 0;
    call_id(&call, "x y");
    call.n = 1;

    ok(eval_args(&args, &call, 1, 0), "a preview by nginx's clock: a command");
    args_are(&args, 4, "word by word", "peek", "nginx", "0", "x y",
             "1",
             "bucket", "enforced", "1000000000", "100000",
             "37037037037037", "3200000000", "86400000000", "172801000", NULL);

    /* a window has no step, whatever is set beside it */

    claims[0] = claim_of("w", window_of(5, SECOND, 1));
    claims[0].bucket.step = 7;
    call = call_of(claims, 1);

    ok(eval_args(&args, &call, 1, 0) && arg_number(&args, 15) == 0,
       "a window is sent without a step");

    /* capacity and cost of gcra are ticks, a sixteenth of a microsecond */

    claims[0] = claim_of("a", gcra_of(100, "50r/s", 3));
    claims[1] = claim_of("b", gcra_of(5, "1r/m", 2));
    claims[1].shadow = 1;
    call = call_of(claims, 2);

    ok(eval_args(&args, &call, 1, 0), "two of gcra: a command");
    args_are(&args, 5, "in ticks", "take", "redis", "1800000000123456",
             "7f-1", "1",
             "gcra", "enforced", "32000000", "960000", "50", "1", "0", "0",
             "gcra", "shadow", "4800000000", "1920000000", "1", "60", "0",
             "0", NULL);
}


/* several requests for one limit in one call */

static void
test_times(void)
{
    args_t          args;
    ngx_rl_eval_t   eval;
    ngx_rl_call_t   call, bucket;
    ngx_rl_claim_t  claim, other;

    claim = claim_of("k", bucket_of(10, "7r/m", 3));
    call = call_of(&claim, 1);
    call.times = 12;

    ok(eval_args(&args, &call, 1, 0), "12 requests for a bucket: a command");
    args_are(&args, 0, "whose last word says how many", "EVALSHA", SHA1, "1",
             "k", "10", "7", "60", "3", "86714", "0", "12", NULL);

    claim = claim_of("k", gcra_of(10, "1r/s", 3));
    call = call_of(&claim, 1);
    call.times = UINT32_MAX;

    ok(eval_args(&args, &call, 1, 0), "for gcra: a command");
    args_are(&args, 0, "whose last word says how many", "EVALSHA", GCRA_SHA1,
             "1", "k", "160000000", "48000000", "0", "4294967295", NULL);

    /* where numbers come from variables, that is said before */

    claim.bucket.varies = 1;
    call.times = 2;

    ok(eval_args(&args, &call, 1, 0), "for gcra with variables: a command");
    args_are(&args, 4, "which says so", "160000000", "48000000", "1", "2",
             NULL);

    call.times = 1;

    ok(eval_args(&args, &call, 1, 0), "of one request: a command");
    args_are(&args, 4, "which says so, and no number of them", "160000000",
             "48000000", "1", NULL);

    call.preview = 1;

    ok(eval_args(&args, &call, 1, 0), "of the long script: a command");
    args_are(&args, 9, "in place of a step", "gcra", "enforced", "160000000",
             "48000000", "1", "1", "1", "0", NULL);

    claim = claim_of("k", window_of(10, SECOND, 3));
    call = call_of(&claim, 1);
    call.times = 2;

    ok(eval_args(&args, &call, 1, 0), "for a window: a command");
    args_are(&args, 0, "which says it before the limit", "EVALSHA", TAKE_SHA1,
             "1", "k", "take", "redis", "1800000000123456", "7f-1", "2",
             "window", "enforced", "10", "3", "1000000", "0", "0", "2000",
             NULL);

    other = claim_of("l", bucket_of(10, "7r/m", 3));
    bucket = call_of(&other, 1);
    eval_of(&eval, &bucket, 1);
    ok(eval_refuses(&eval, &call), "and does not go with a bucket");
}


static void
test_alike(void)
{
    args_t          args;
    size_t          i, wrong;
    ngx_rl_call_t   calls[CALLS_MAX], a, b;
    ngx_rl_eval_t   ab, ba;
    ngx_rl_claim_t  claims[CALLS_MAX], other;

    claims_of(claims, CALLS_MAX, bucket_of(10, "7r/m", 3));

    calls_of(calls, claims, CALLS_MAX);

    ok(eval_args(&args, calls, 3, 0), "three of one limit: a command");
    args_are(&args, 0, "with their keys, and the limit once", "EVALSHA", SHA1,
             "3", "k0", "k1", "k2", "10", "7", "60", "3", "86714", NULL);

    ok(eval_args(&args, calls, 2, 1), "two with the text: a command");
    args_are(&args, 0, "word by word", "EVAL", TEXT,
             "2", "k0", "k1", "10", "7", "60", "3", "86714", NULL);

    wrong = !eval_args(&args, calls, CALLS_MAX, 0) || args.n != 8 + CALLS_MAX;

    for (i = 0; i < CALLS_MAX; i++) {
        wrong += !arg_text(&args, 3 + i, key_of(i));
    }

    is_number(wrong, 0, "32 of one limit");

    claims_of(claims, CALLS_MAX, gcra_of(10, "7r/m", 3));

    ok(eval_args(&args, calls, 2, 0), "two of gcra: a command");
    args_are(&args, 0, "with their keys, and the limit once", "EVALSHA",
             GCRA_SHA1, "2", "k0", "k1", "1371428580", "411428574", "0", NULL);

    /* which calls may share one */

    claims[0] = claim_of("a", bucket_of(10, "7r/m", 3));
    a = call_of(claims, 1);

#define alike(what, name, expected)                                           \
    other = claim_of("b", bucket_of(10, "7r/m", 3));                          \
    b = call_of(&other, 1);                                                   \
    what;                                                                     \
    eval_of(&ab, &a, 1);                                                      \
    eval_of(&ba, &b, 1);                                                      \
    ok(expected                                                               \
       ? ngx_rl_eval_add(&ab, &b) == 1                                        \
         && ngx_rl_eval_add(&ba, &a) == 1                                     \
         && ab.n == 2 && ba.n == 2                                            \
       : eval_refuses(&ab, &b) && eval_refuses(&ba, &a), name)

    alike((void) 0, "two that differ by their keys are alike", 1);
    alike(other.shadow = 1, "and so if one is a shadow", 1);
    alike(call_id(&b, "x"), "or has another id", 1);
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

    claims_of(claims, CALLS_MAX, bucket_of(10, "7r/m", 3));

    calls_of(calls, claims, CALLS_MAX);

    other = claim_of("k", bucket_of(11, "7r/m", 3));
    b = call_of(&other, 1);

    eval_of(&ab, calls, 1);
    wrong = 0;

    for (i = 1; i < CALLS_MAX; i++) {
        wrong += !eval_refuses(&ab, &b)
                 || !ngx_rl_eval_add(&ab, &calls[i])
                 || ab.n != i + 1;
    }

    is_number(wrong, 0, "others are refused, and 32 find a place");

    other = claim_of("k", bucket_of(10, "7r/m", 3));
    ok(eval_refuses(&ab, &b), "but not one more");

    /* one that is emptied begins anew, and may become one of the other kind */

    b.preview = 1;
    ab.n = 0;
    ok(ngx_rl_eval_add(&ab, &b) == 1 && ab.n == 1
       && ab.nlimits == 1 && ab.nnumbers == 1, "the next one takes any call");

    b.preview = 0;
    ab.n = 0;
    ok(ngx_rl_eval_add(&ab, &b) == 1 && ab.n == 1
       && ngx_rl_eval_add(&ab, &calls[3]) == 1 && ab.n == 2,
       "and the next one");
}


/* each for a number of requests of its own */

static void
test_alike_times(void)
{
    args_t          args;
    size_t          i, wrong;
    ngx_rl_call_t   calls[CALLS_MAX];
    ngx_rl_claim_t  claims[CALLS_MAX];

    claims_of(claims, CALLS_MAX, bucket_of(10, "7r/m", 3));

    calls_of(calls, claims, CALLS_MAX);

    /* one that is for several is enough, wherever it is */

    for (i = 0; i < 3; i++) {
        calls[0].times = (i == 0) ? 7 : 1;
        calls[1].times = (i == 1) ? 7 : 1;
        calls[2].times = (i == 2) ? 7 : 1;

        ok(eval_args(&args, calls, 3, 0),
           "three, number %zu for 7 requests: a command", i);
        args_are(&args, 0, "which says of each how many", "EVALSHA", SHA1,
                 "3", "k0", "k1", "k2", "10", "7", "60", "3", "86714", "0",
                 i == 0 ? "7" : "1", i == 1 ? "7" : "1", i == 2 ? "7" : "1",
                 NULL);
    }

    /* those that are not part of it do not count */

    ok(eval_args(&args, calls, 2, 1), "without that one: a command");
    args_are(&args, 0, "which says nothing of it", "EVAL", TEXT, "2", "k0",
             "k1", "10", "7", "60", "3", "86714", NULL);

    for (i = 0; i < CALLS_MAX; i++) {
        calls[i].times = UINT32_MAX - i;
    }

    wrong = !eval_args(&args, calls, CALLS_MAX, 0)
            || args.n != 9 + 2 * CALLS_MAX;

    for (i = 0; i < CALLS_MAX; i++) {
        wrong += !arg_text(&args, 3 + i, key_of(i))
                 || arg_number(&args, 9 + CALLS_MAX + i) != UINT32_MAX - i;
    }

    is_number(wrong, 0, "32, all of them for many: each in its "
              "place");

    for (i = 0; i < CALLS_MAX; i++) {
        claims[i].bucket = gcra_of(10, "7r/m", 3);
        calls[i].times = i % 3 + 1;
    }

    ok(eval_args(&args, calls, 4, 0), "of gcra: a command");
    args_are(&args, 0, "which says how many at the end as well", "EVALSHA",
             GCRA_SHA1, "4", "k0", "k1", "k2", "k3", "1371428580",
             "411428574", "0", "1", "2", "3", "1", NULL);

    for (i = 0; i < CALLS_MAX; i++) {
        claims[i].bucket.varies = 1;
    }

    ok(eval_args(&args, calls, 3, 0), "of gcra with variables: a command");
    args_are(&args, 6, "which says so before", "1371428580", "411428574",
             "1", "1", "2", "3", NULL);

    calls[1].times = 1;

    ok(eval_args(&args, calls, 2, 0), "of one request each: a command");
    args_are(&args, 5, "which says so, and no number of them", "1371428580",
             "411428574", "1", NULL);

    /* of a bucket that can't be told */

    for (i = 0; i < 2; i++) {
        claims[i].bucket = bucket_of(10, "7r/m", 3);
        claims[i].bucket.varies = 1;
        calls[i].times = 2;
    }

    ok(eval_args(&args, calls, 2, 0), "of buckets with variables: a command");
    args_are(&args, 5, "which need not know", "10", "7", "60", "3", "86714",
             "0", "2", "2", NULL);
}


/* calls with several limits each, of which some are the same */

static void
test_take(void)
{
    char           *command, *single;
    args_t          args;
    size_t          i, wrong;
    family_t        family;
    long long       len, single_len;
    ngx_rl_eval_t   eval;
    ngx_rl_call_t   calls[3];
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
        calls[i] = call_of(&claims[3 * i], 3);
    }

    /* the time is that of the first one, as the id is */

    calls[1].now = 5;
    call_id(&calls[1], "7f-22");

    ok(eval_args(&args, calls, 3, 0), "three calls: a command");
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

    ok(eval_args(&args, &calls[1], 2, 1),
       "two of them with the text: a command");
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

    /* the same limits in the same order, and in another one */

    calls[1] = calls[0];
    calls[2].claims[0] = &claims[6];
    calls[2].claims[1] = &claims[4];
    calls[2].claims[2] = &claims[7];

    ok(eval_args(&args, calls, 3, 0) && arg_number(&args, 2) == 3,
       "three calls with the same limits: these once");
    args_are(&args, 35, "in the order that each call has them",
             "1", "3", "1", "2", "3",
             "1", "3", "1", "2", "3",
             "1", "3", "3", "2", "1", NULL);

    /* one call has no numbers, however it is made */

    for (i = 0; i < 4; i++) {
        calls[0].preview = i >> 1;

        ok(eval_args(&args, calls, 1, i & 1) && args.n == 35,
           "a single call: without the numbers of its limits");
    }

    /* of all kinds, some for several requests */

    family_of(&family);
    eval_of(&eval, family.calls, CALLS);

    ok(format_args(&args, &eval, 0), "five calls: a command");
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

    wrong = 0;

    for (i = 0; i < CALLS; i++) {
        wrong += eval.elements[i] != family_calls[i].elements;
    }

    is_number(wrong, 0, "and so many numbers are expected for each");

    /* its first call may be one for several requests */

    ok(eval_args(&args, &family.calls[1], 2, 0),
       "the first one for 5: a command");
    args_are(&args, 7, "which says so twice",
             "take", "redis", "1800000000123456", "7f-1", "5",
             "window", "enforced", "5", "1", "1000000", "0", "0", "2000",
             "window", "enforced", "30", "3", "60000000", "0", "0", "61000",
             "gcra", "shadow", "640000000", "32000000", "1", "1", "0",
             "0",
             "bucket", "enforced", "10", "3", "1", "1", "0", "11000",
             "5", "1", "1",
             "1", "3", "2", "3", "4", NULL);

    /* formatted again it is the same, and once emptied it begins anew */

    single_len = eval_command(&single, family.calls, CALLS, 1);
    len = eval_format(&command, &eval, 1);
    is_bytes(command, len, single, single_len, "a command can be sent again");
    ngx_rl_resp_free(command);
    ngx_rl_resp_free(single);

    single_len = eval_command(&single, &family.calls[2], 2, 0);

    eval.n = 0;

    ok(ngx_rl_eval_add(&eval, &family.calls[2])
       && ngx_rl_eval_add(&eval, &family.calls[3])
       && eval.n == 2 && eval.nlimits == 4 && eval.nnumbers == 5,
       "those of its calls that still wait can be put together again");
    len = eval_format(&command, &eval, 0);
    is_bytes(command, len, single, single_len, "and nothing is left of the "
             "others");
    ngx_rl_resp_free(command);
    ngx_rl_resp_free(single);
}


/* a preview, or a call by nginx's clock, has the long script for one limit */

static void
test_take_previews(void)
{
    args_t          args;
    size_t          i;
    ngx_rl_eval_t   eval;
    ngx_rl_call_t   calls[3];
    ngx_rl_claim_t  claims[3];

    claims[0] = claim_of("a", bucket_of(10, "7r/m", 3));
    claims[1] = claim_of("b", bucket_of(20, "1r/s", 1));
    claims[2] = claims[0];

    calls_of(calls, claims, 3);

    for (i = 0; i < 3; i++) {
        calls[i].preview = 1;
    }

    ok(eval_args(&args, calls, 3, 0), "three previews: a command");
    args_are(&args, 0, "of buckets that are not alike, one of them twice",
             "EVALSHA", TAKE_SHA1, "2", "a", "b",
             "peek", "redis", "1800000000123456", "7f-1", "1",
             "bucket", "enforced", "10", "3", "7", "60", "0", "86714",
             "bucket", "enforced", "20", "1", "1", "1", "0", "21000",
             "1", "1", "1", "1", "1", "2", "1", "1", "1", NULL);

    for (i = 0; i < 3; i++) {
        calls[i].preview = 0;
        calls[i].clock = 1;
        calls[i].times = i + 1;
    }

    eval_of(&eval, calls, 3);
    ok(format_args(&args, &eval, 0), "three by nginx's clock: a command");
    args_are(&args, 5, "each with its number of requests",
             "take", "nginx", "1800000000123456", "7f-1", "1",
             "bucket", "enforced", "10", "3", "7", "60", "0", "86714",
             "bucket", "enforced", "20", "1", "1", "1", "0", "21000",
             "1", "1", "1", "2", "1", "2", "3", "1", "1", NULL);

    ok(eval.elements[0] == 1 && eval.elements[1] == 2
       && eval.elements[2] == 2,
       "of which only those for several are told how many pass");

    for (i = 0; i < 3; i++) {
        calls[i].preview = 1;
        calls[i].times = 1;
    }

    ok(eval_args(&args, calls, 3, 0) && arg_is(&args, 5, bytes_of("peek"))
       && arg_is(&args, 6, bytes_of("nginx")), "or both");
}


/* which calls can't go together, after which all is as it was */

static void
test_take_refusals(void)
{
    args_t          args;
    size_t          i;
    unsigned        preview, clock;
    ngx_rl_eval_t   eval;
    ngx_rl_call_t   call, other, one;
    ngx_rl_claim_t  claims[2], others[3], last[2];

    claims[0] = claim_of("a", bucket_of(10, "7r/m", 3));
    claims[1] = claim_of("w", window_of(5, 60 * SECOND, 2));
    call = call_of(claims, 2);

    eval_of(&eval, &call, 1);

    /* the first limit of the other one is new, and so is its last */

#define refused(what, name)                                                   \
    others[0] = claim_of("b", bucket_of(10, "7r/m", 3));                      \
    others[1] = claims[0];                                                    \
    others[2] = claim_of("c", bucket_of(10, "7r/m", 3));                      \
    other = call_of(others, 3);                                               \
    what;                                                                     \
    ok(eval_refuses(&eval, &other), name)

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

    one = call_of(&others[1], 1);
    others[1] = claims[0];
    eval_of(&eval, &one, 1);
    ok(eval_refuses(&eval, &call), "nor a long one with a short one");

    others[1] = claims[1];
    eval_of(&eval, &one, 1);
    ok(ngx_rl_eval_add(&eval, &call) == 1, "but one with a window alone");

    /* all that a command can be, and all that a call can be */

    for (i = 0; i < 16; i++) {
        call.preview = i & 1;
        call.clock = i >> 1 & 1;
        preview = i >> 2 & 1;
        clock = i >> 3 & 1;

        eval_of(&eval, &call, 1);

        others[0] = claims[0];
        others[1] = claims[1];
        other = call_of(others, 2);
        other.preview = preview;
        other.clock = clock;

        if (call.preview == preview && call.clock == clock) {
            ok(ngx_rl_eval_add(&eval, &other) == 1
               && eval.n == 2 && eval.nlimits == 2
               && eval.nnumbers == 4, "two %ss by %s's clock go together",
               preview ? "preview" : "take", clock ? "nginx" : "redis");

        } else {
            ok(eval_refuses(&eval, &other),
               "a %s by %s's clock does not go with a %s by %s's",
               preview ? "preview" : "take", clock ? "nginx" : "redis",
               call.preview ? "preview" : "take",
               call.clock ? "nginx" : "redis");
        }
    }

    /* after all that was refused, the numbers are right */

    call = call_of(claims, 2);
    eval_of(&eval, &call, 1);

    refused(others[1].bucket.cost++, "refused with two new limits");

    last[0] = claim_of("d", gcra_of(1, "1r/s", 1));
    last[1] = claims[0];
    one = call_of(last, 2);

    ok(ngx_rl_eval_add(&eval, &one) == 1,
       "one with a new limit is added after it");

    refused(others[1].shadow = 1, "refused again");

    others[1].shadow = 0;
    ok(ngx_rl_eval_add(&eval, &other) == 1,
       "and added, now that it is all right");

#undef refused

    ok(format_args(&args, &eval, 0) && arg_number(&args, 2) == 5
       && arg_is(&args, 3, bytes_of("a")) && arg_is(&args, 4, bytes_of("w"))
       && arg_is(&args, 5, bytes_of("d")) && arg_is(&args, 6, bytes_of("b"))
       && arg_is(&args, 7, bytes_of("c")), "their limits are there");
    args_are(&args, 53, "and their numbers are right", "1", "2", "1", "2",
             "1", "2", "3", "1", "1", "3", "4", "1", "5", NULL);
}


/* limits are told apart by their hashes, and by the length of the key */

static void
test_take_hashes(void)
{
    args_t          args;
    ngx_rl_eval_t   eval;
    ngx_rl_call_t   calls[5];
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

    calls_of(calls, claims, 5);
    eval_of(&eval, calls, 5);

    ok(format_args(&args, &eval, 0) && arg_number(&args, 2) == 4
       && arg_is(&args, 3, bytes_of("aa")) && arg_is(&args, 4, bytes_of("bb"))
       && arg_is(&args, 5, bytes_of("cc"))
       && arg_is(&args, 6, bytes_of("aaa")), "four different limits of five");
    args_are(&args, 44, "which are not mixed up", "1", "1", "1", "1", "1",
             "2", "1", "1", "3", "1", "1", "4", "1", "1", "1", NULL);

    /* those that are different may differ */

    claims[1].bucket.cost = 1;
    claims[2].shadow = 1;
    claims[3].bucket = bucket_of(1, "1r/d", 1);
    claims[3].bucket.step = SECOND;

    eval_of(&eval, calls, 5);
    ok(eval.n == 5 && eval.nlimits == 4 && eval.nnumbers == 5
       && memcmp(eval.numbers, "\1\2\3\4\1", 5) == 0,
       "and may be any limits");
}


/* "n" limits for a call, in order from "first" on */

static ngx_rl_call_t
windows_of(ngx_rl_claim_t *claims, size_t first, size_t n)
{
    size_t  i;

    for (i = 0; i < n; i++) {
        claims[i] = claim_of(key_of(first + i), window_of(5, 60 * SECOND, 2));
    }

    return call_of(claims, n);
}


/* as much as there may be, and not one more */

static void
test_take_edges(void)
{
    args_t          args;
    size_t          i, k, arg, wrong;
    ngx_rl_eval_t   eval;
    ngx_rl_call_t   calls[CALLS_MAX + 1], call, last;
    ngx_rl_claim_t  claims[NUMBERS + CLAIMS];
    ngx_rl_claim_t  more[CLAIMS], all[CALLS_MAX + 1], own;

    /* 32 calls, with one limit and with 32 */

    for (i = 0; i <= CALLS_MAX; i++) {
        calls[i] = windows_of(&all[i], 0, 1);
    }

    eval_of(&eval, calls, CALLS_MAX);
    ok(eval.n == CALLS_MAX && eval.nlimits == 1 && eval.nnumbers == CALLS_MAX,
       "32 calls for one limit");
    ok(eval_refuses(&eval, &calls[CALLS_MAX]), "and not one more");

    for (i = 0; i <= CALLS_MAX; i++) {
        calls[i] = windows_of(&all[i], i, 1);
    }

    eval_of(&eval, calls, CALLS_MAX);
    ok(eval.n == CALLS_MAX && eval.nlimits == CALLS_MAX
       && eval.nnumbers == CALLS_MAX, "32 calls for 32 limits");
    ok(eval_refuses(&eval, &calls[CALLS_MAX]), "and not one more");

    /* 32 limits of two calls */

    calls[0] = windows_of(claims, 0, CLAIMS);
    calls[1] = windows_of(&claims[CLAIMS], CLAIMS, CLAIMS);

    eval_of(&eval, calls, 2);
    ok(eval.n == 2 && eval.nlimits == CALLS_MAX && eval.nnumbers == CALLS_MAX,
       "two calls for 32 limits");

    call = windows_of(more, CALLS_MAX, 1);
    ok(eval_refuses(&eval, &call), "a limit more is too much");

    call = windows_of(more, CALLS_MAX - CLAIMS + 1, CLAIMS);
    ok(eval_refuses(&eval, &call), "even if it is the last of a call");

    call = windows_of(more, CALLS_MAX, CLAIMS);
    ok(eval_refuses(&eval, &call), "and so are 16");

    call = windows_of(more, 8, CLAIMS);
    ok(ngx_rl_eval_add(&eval, &call) == 1
       && eval.n == 3 && eval.nlimits == CALLS_MAX
       && eval.nnumbers == 3 * CLAIMS, "another call for those is not");

    wrong = 0;

    for (i = 0; i < CLAIMS; i++) {
        wrong += eval.numbers[2 * CLAIMS + i] != 9 + i;
    }

    is_number(wrong, 0, "and has their numbers");

    /* up to the last one */

    calls[1].n = CLAIMS - 1;
    eval_of(&eval, calls, 2);

    call = windows_of(more, CALLS_MAX - 1, 2);
    ok(eval_refuses(&eval, &call), "of 31 limits: two are too many");

    last = windows_of(&own, CALLS_MAX, 1);
    ok(ngx_rl_eval_add(&eval, &last) == 1
       && eval.nlimits == CALLS_MAX && eval.numbers[CALLS_MAX - 1] == CALLS_MAX,
       "one is not");

    call = windows_of(more, 4 * CLAIMS - 1, 1);
    ok(eval_refuses(&eval, &call), "and then there are 32");

    /* 96 numbers of six calls, and of seven */

    for (i = 0; i < NUMBERS / CLAIMS; i++) {
        calls[i] = windows_of(&claims[i * CLAIMS], i % 3, CLAIMS);
    }

    eval_of(&eval, calls, NUMBERS / CLAIMS);
    ok(eval.nlimits == CLAIMS + 2 && eval.nnumbers == NUMBERS,
       "six calls with 16 limits each");

    call = windows_of(more, 0, 1);
    ok(eval_refuses(&eval, &call), "and not one limit more");

    calls[i - 1].n--;
    eval_of(&eval, calls, NUMBERS / CLAIMS);
    ok(eval.nnumbers == NUMBERS - 1, "one less");

    call = windows_of(more, 0, 2);
    ok(eval_refuses(&eval, &call), "two more are too many");

    last = windows_of(&own, CLAIMS + 2, 1);
    ok(ngx_rl_eval_add(&eval, &last) == 1
       && eval.nnumbers == NUMBERS && eval.numbers[NUMBERS - 1] == 19
       && eval.nlimits == 19, "one is not");

    call = windows_of(more, 0, 1);
    ok(eval_refuses(&eval, &call), "and then there are 96");

    /* all of that at once, with the longest numbers */

    for (i = 0; i < CALLS_MAX; i++) {

        for (k = 0; k < 3; k++) {
            claims[3 * i + k] = claim_of(key_of((i + k) % CALLS_MAX),
                                         bucket_of(1, "1r/s", 1));
            claims[3 * i + k].bucket.capacity =
                                          UINT64_MAX - (i + k) % CALLS_MAX;
            claims[3 * i + k].bucket.cost = UINT64_MAX;
            claims[3 * i + k].bucket.rate.num = UINT64_MAX;
            claims[3 * i + k].bucket.rate.den = UINT64_MAX;
            claims[3 * i + k].bucket.step = UINT64_MAX;
        }

        calls[i] = call_of(&claims[3 * i], 3);
        calls[i].now = UINT64_MAX;
        calls[i].times = UINT32_MAX - i;
    }

    eval_of(&eval, calls, CALLS_MAX);
    ok(eval.n == CALLS_MAX && eval.nlimits == CALLS_MAX
       && eval.nnumbers == NUMBERS, "32 calls, 32 limits, 96 numbers");

    ok(format_args(&args, &eval, 0) && args.n == 8 + 11 * CALLS_MAX + NUMBERS
       && arg_number(&args, 2) == CALLS_MAX, "a command of all");

    wrong = 0;

    for (i = 0; i < CALLS_MAX; i++) {
        arg = 8 + CALLS_MAX + 8 * i;

        wrong += !arg_text(&args, 3 + i, key_of(i))
                 || !arg_is(&args, arg, bytes_of("bucket"))
                 || arg_number(&args, arg + 2) != UINT64_MAX - i
                 || arg_number(&args, arg + 6) != UINT64_MAX
                 || arg_number(&args, arg + 7) != NGX_RL_TTL_MAX;

        arg = 8 + 9 * CALLS_MAX + 5 * i;

        wrong += arg_number(&args, arg) != UINT32_MAX - i
                 || arg_number(&args, arg + 1) != 3
                 || arg_number(&args, arg + 2) != i + 1
                 || arg_number(&args, arg + 3) != (i + 1) % CALLS_MAX + 1
                 || arg_number(&args, arg + 4) != (i + 2) % CALLS_MAX + 1
                 || eval.elements[i] != 7;
    }

    is_number(wrong, 0, "each in its place");
}


static void
test_fixed(void)
{
    args_t           args;
    ngx_rl_eval_t    eval;
    ngx_rl_call_t    calls[3];
    ngx_rl_claim_t   claims[3];
    ngx_rl_refund_t  refund;

    claims_of(claims, 3, fixed_of(10, 60 * SECOND, 3));
    calls_of(calls, claims, 3);

    ok(eval_args(&args, calls, 2, 0), "two fixed windows are a command");
    args_are(&args, 0, "of the short script", "EVALSHA", FIXED_SHA1, "2",
             "k0", "k1", "10", "3", "60000000", "0", NULL);

    calls[1].times = 5;

    ok(eval_args(&args, calls, 2, 1), "so are several requests");
    args_are(&args, 0, "with their numbers", "EVAL", FIXED_TEXT, "2", "k0",
             "k1", "10", "3", "60000000", "0", "1", "5", NULL);

    claims[2].bucket.period.shift = 1;
    eval_of(&eval, calls, 2);
    ok(eval_refuses(&eval, &calls[2]), "other periods have their own command");

    claims[2] = claim_of("m", fixed_of(10, 0, 3));
    ok(eval_refuses(&eval, &calls[2]), "and so have other lengths");

    calls[2].preview = 1;

    ok(eval_args(&args, &calls[2], 1, 0), "a preview of a month is a command");
    args_are(&args, 3, "of take.lua", "m", "peek", "redis", "1800000000123456",
             "7f-1", "1", "fixed", "enforced", "10", "3", "0", "62162035200",
             "0", "0", NULL);

    refund = refund_of("a", fixed_of(10, SECOND, 3), 6, "7f-1");
    refund.period = 1800000000000ULL;

    ok(refund_args(&args, &refund, 1, 0), "a refund is a command");
    args_are(&args, 3, "that says which period", "a", "fixed", "10", "6",
             "1800000000000", NULL);
}


static void
test_refund_args(void)
{
    args_t           args;
    ngx_rl_refund_t  refunds[4];

    /* the tokens count, and not what a request costs */

    refunds[0] = refund_of("a", bucket_of(10, "1r/s", 3), 1, "7f-1");
    refunds[1] = refund_of("b", window_of(20, SECOND, 3), 21, "7f-2");
    refunds[2] = refund_of("c", gcra_of(30, "1r/s", 3), 21, "7f-3");
    refunds[3] = refund_of("d", bucket_of(40, "1r/s", 3), 1000000000, "");

    ok(refund_args(&args, refunds, 4, 0), "a refund is a command");
    args_are(&args, 0, "of the keys, and four words for each; an empty id is "
             "an id", "EVALSHA", REFUND_SHA1, "4", "a", "b", "c", "d",
             "bucket", "10", "1", "7f-1", "window", "20", "21", "7f-2",
             "gcra", "30", "336000000", "7f-3", "bucket", "40", "1000000000",
             "", NULL);

    ok(refund_args(&args, &refunds[1], 2, 0), "a refund of some is a command");
    args_are(&args, 0, "of those alone", "EVALSHA", REFUND_SHA1, "2", "b",
             "c", "window", "20", "21", "7f-2", "gcra", "30", "336000000",
             "7f-3", NULL);

    ok(refund_args(&args, refunds, 1, 1), "a refund by EVAL is a command");
    args_are(&args, 0, "with the text", "EVAL", REFUND_TEXT, "1", "a",
             "bucket", "10", "1", "7f-1", NULL);

    /* an id by its length; the ticks of a token by the rate, rounded up */

    refunds[0] = refund_of("a", gcra_of(100, "7r/s", 3), 2, "x y\r\n");
    refunds[0].id_len = 3;

    ok(refund_args(&args, refunds, 1, 0), "a refund of gcra is a command");
    args_are(&args, 4, "in ticks", "gcra", "100", "4571430", "x y", NULL);

    /* the same key twice, taken by two calls */

    refunds[0] = refund_of("a", window_of(20, SECOND, 3), 3, "7f-1");
    refunds[1] = refund_of("a", window_of(20, SECOND, 3), 6, "7f-2");

    ok(refund_args(&args, refunds, 2, 0),
       "a refund for two calls is a command");
    args_are(&args, 2, "which has the key twice", "2", "a", "a",
             "window", "20", "3", "7f-1", "window", "20", "6", "7f-2", NULL);
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

        call = call_of(claims, n == 2 ? 2 : 1);

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


/* as many as there may be, with the longest numbers */

static void
test_many(void)
{
    args_t          args;
    size_t          i, wrong;
    ngx_rl_call_t   call;
    ngx_rl_claim_t  claims[CLAIMS];

    for (i = 0; i < CLAIMS; i++) {
        claims[i] = claim_of(key_of(i), i % 3 ? bucket_of(1, "1r/s", 1)
                             : window_of(1, SECOND, 1));

        claims[i].bucket.capacity = UINT64_MAX - i;
        claims[i].bucket.cost = UINT64_MAX;
        claims[i].bucket.rate.num = UINT64_MAX;
        claims[i].bucket.rate.den = UINT64_MAX;
        claims[i].bucket.window = UINT64_MAX;
        claims[i].bucket.step = UINT64_MAX;
    }

    call = call_of(claims, CLAIMS);
    call.now = UINT64_MAX;
    call.times = UINT32_MAX;

    ok(eval_args(&args, &call, 1, 0) && args.n == 8 + 9 * CLAIMS,
       "16 limits: a command of all");

    wrong = 0;

    for (i = 0; i < CLAIMS; i++) {
        wrong += !arg_text(&args, 3 + i, key_of(i))
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
}


static void
test_many_refunds(void)
{
    char             ids[REFUNDS][40];
    args_t           args;
    size_t           i, arg, wrong;
    uint64_t         amount;
    const char      *kind;
    ngx_rl_refund_t  refunds[REFUNDS];

    for (i = 0; i < REFUNDS; i++) {
        /* of any length, and none is the beginning of another */

        snprintf(ids[i], sizeof(ids[i]), "%zx-%0*d", i, (int) i, 1);

        refunds[i] = refund_of(key_of(i), i % 3 == 0 ? bucket_of(1, "1r/s", 1)
                               : i % 3 == 1 ? window_of(1, SECOND, 1)
                               : gcra_of(1, "1r/s", 1),
                               i % 3 == 2 ? i + 1 : UINT64_MAX - i, ids[i]);

        refunds[i].bucket.capacity = UINT64_MAX - 2 * i;
    }

    ok(refund_args(&args, refunds, REFUNDS, 0) && args.n == 3 + 5 * REFUNDS
       && arg_is(&args, 1, REFUND_SHA1, 40)
       && arg_number(&args, 2) == REFUNDS, "32 refunds: a command of all");

    wrong = 0;

    for (i = 0; i < REFUNDS; i++) {
        arg = 3 + REFUNDS + 4 * i;
        kind = (i % 3 == 0) ? "bucket" : (i % 3 == 1) ? "window" : "gcra";
        amount = (i % 3 == 2) ? (i + 1) * 16 * SECOND : UINT64_MAX - i;

        wrong += !arg_text(&args, 3 + i, key_of(i))
                 || !arg_is(&args, arg, kind, strlen(kind))
                 || arg_number(&args, arg + 1) != UINT64_MAX - 2 * i
                 || arg_number(&args, arg + 2) != amount
                 || !arg_is(&args, arg + 3, ids[i], strlen(ids[i]));
    }

    is_number(wrong, 0, "each in its place, and with its id");
}


static void
test_keys(void)
{
    char            *command, *copy, name[64];
    char             all[256], large[4096];
    args_t           args;
    size_t           i;
    long long        len;
    ngx_rl_call_t    calls[2], call;
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

        call = call_of(claims, 1);

        len = eval_command(&command, &call, 1, i % 2);

        snprintf(name, sizeof(name), "a key %s arrives as it is", keys[i].name);
        ok(args_of(command, len, &args) && args.n == 9
           && arg_is(&args, 3, keys[i].data, keys[i].len), "%s", name);
        ngx_rl_resp_free(command);

        call.n = 2;
        call.claims[1] = &claims[1];

        ok(eval_args(&args, &call, 1, 0) && args.n == 26
           && arg_is(&args, 4, keys[i].data, keys[i].len),
           "and as the second of two");

        other = claim_of("some other key", claims[0].bucket);
        calls[0] = call_of(&other, 1);
        calls[1] = call_of(claims, 1);

        ok(eval_args(&args, calls, 2, i % 2) && args.n == 10
           && arg_is(&args, 4, keys[i].data, keys[i].len),
           "and with another call");

        calls_of(calls, claims, 2);
        calls[0].preview = 1;
        calls[1].preview = 1;

        ok(eval_args(&args, calls, 2, i % 2) && args.n == 23
           && arg_is(&args, 3, keys[i].data, keys[i].len),
           "once, if it is one of the long script");

        refunds[0] = refund_of("", claims[0].bucket, 1, "");
        refunds[0].key = copy;
        refunds[0].len = keys[i].len;
        refunds[0].id = copy;
        refunds[0].id_len = keys[i].len;
        refunds[1] = refunds[0];

        ok(refund_args(&args, refunds, 2, i % 2) && args.n == 13
           && arg_is(&args, 4, keys[i].data, keys[i].len)
           && arg_is(&args, 12, keys[i].data, keys[i].len),
           "and in a refund, where it may be an id as well");

        free(copy);
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
    test_take();
    test_take_previews();
    test_take_refusals();
    test_take_hashes();
    test_take_edges();
    test_fixed();
    test_refund_args();
    test_eval();
    test_many();
    test_many_refunds();
    test_keys();

    return tap_done();
}
