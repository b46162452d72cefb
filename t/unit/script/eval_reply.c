
/*
 * Replies of the scripts, and what they mean for the claims of calls.
 */

#include "family.h"

#include "pure/ngx_rl_decision.h"


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

    eval_sent(&eval, call, 1);

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
    call = call_of(&claim, 1);
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
           ngx_rl_failure_names[failure]);
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

    call = call_of(claims, 3);
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

    call = call_of(&claims[1], 1);
    is_number(answer(reader, "*2\r\n:17000000\r\n:0\r\n", &call),
              NGX_RL_OK, "one bucket with a step is an array");
    ok(decision_is(&claims[1], 1, 20, 17, 5, 0), "of two numbers");
    is_number(answer(reader, ":17000000\r\n", &call),
              NGX_RL_PROTOCOL, "and not an integer");

    call = call_of(&claims[2], 1);
    is_number(answer(reader, "*3\r\n:27\r\n:1\r\n:0\r\n", &call),
              NGX_RL_OK, "one window is an array");
    ok(decision_is(&claims[2], 1, 30, 27, 1, 0), "of three numbers");
    is_number(call.passed, 1, "one of one");

    ngx_rl_reader_free(reader);
}


/* the last of its numbers is what a refund has to say */

static void
test_fixed_replies(void)
{
    ngx_rl_call_t     call;
    ngx_rl_claim_t    claim;
    ngx_rl_reader_t  *reader;

    claim = claim_of("k", fixed_of(10, 60 * SECOND, 3));
    call = call_of(&claim, 1);
    reader = ngx_rl_reader_create();

    is_number(answer(reader, "*3\r\n:7\r\n:59000001\r\n:1800000000000\r\n",
                     &call), NGX_RL_OK, "three integers are a decision");
    ok(decision_is(&claim, 1, 10, 7, 60, 0), "passed, and when it ends");
    ok(claim.period == 1800000000000ULL, "and which period it was");

    is_number(answer(reader, "*3\r\n:-3\r\n:1000000\r\n:1800000060000\r\n",
                     &call), NGX_RL_OK, "a denial");
    ok(decision_is(&claim, 0, 10, 2, 1, 1), "lasts until the end");

    is_number(answer(reader, ":7\r\n", &call), NGX_RL_PROTOCOL,
              "one is not enough");
    is_number(answer(reader, "*2\r\n:7\r\n:1\r\n", &call), NGX_RL_PROTOCOL,
              "nor are two");

    claim.bucket = counter_of(10, 60 * SECOND, 3);

    is_number(answer(reader, "*4\r\n:-3\r\n:7000000\r\n:2000000\r\n:9\r\n",
                     &call), NGX_RL_OK, "four are that of a counter");
    ok(decision_is(&claim, 0, 10, 2, 7, 2), "when it is empty, when it fits");
    ok(claim.period == 9, "and the period");
    is_number(answer(reader, "*3\r\n:7\r\n:1\r\n:1\r\n", &call),
              NGX_RL_PROTOCOL, "three are not enough");

    claim.bucket = fixed_of(10, 60 * SECOND, 3);
    call.times = 4;

    is_number(answer(reader, "*4\r\n:2\r\n:1\r\n:5\r\n:18\r\n", &call),
              NGX_RL_OK, "four for several requests");
    ok(call.passed == 2 && claim.state[0] == 1 && claim.state[1] == 5
       && claim.state[2] == 5 && claim.period == 18, "in their order");

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

    call = call_of(claims, CLAIMS);

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
    call = call_of(&bucket, 1);
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
    call = call_of(&window, 1);
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
    call = call_of(claims, 1);

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

    call = call_of(claims, 2);

    is_number(answer(reader, "*2\r\n:15999999\r\n:2285715\r\n", &call),
              NGX_RL_OK, "two answer with a number each");
    ok(claims[0].state[0] == 999999 && claims[1].state[0] == 1000000,
       "rounded down, each by its rate");

    call = call_of(claims, 1);
    call.times = 9;

    answer(reader, "*2\r\n:2\r\n:16000000\r\n", &call);
    ok(call.passed == 2 && claims[0].state[0] == 1000000,
       "of several requests, only what is left is in ticks");

    /* the largest limit that there can be, a year's */

    claims[0] = claim_of("a", gcra_of(1000000000, "31.709792r/s", 1));
    call = call_of(claims, 1);
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
    call = call_of(&claim, 1);

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
            call = call_of(&claim, 1);

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
    ngx_rl_call_t     calls[3];
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

    claims_of(claims, 3, bucket_of(10, "1r/s", 1));

    calls_of(calls, claims, 3);
    eval_sent(&eval, calls, 3);

    for (i = 0; i < 3; i++) {
        calls[i].failure = NGX_RL_TIMEOUT;
    }

    is_number(calls_answer(reader, "*3\r\n:7000000\r\n:-1\r\n:0\r\n", &eval),
              NGX_RL_OK, "calls of one limit answer with a number each");
    ok(claims[0].state[0] == 7000000 && claims[1].state[0] == -1
       && claims[2].state[0] == 0, "in the order of the keys");
    ok(calls[0].failure == NGX_RL_OK
       && calls[1].failure == NGX_RL_OK
       && calls[2].failure == NGX_RL_OK, "and none has failed");
    ok(calls[0].passed == 1 && calls[1].passed == 0
       && calls[2].passed == 1, "of each it is known whether it passed");

    is_number(calls_answer(reader, "*3\r\n:1\r\n-WRONGTYPE no\r\n:2\r\n",
                           &eval), NGX_RL_OK, "one may be an error");
    ok(calls[0].failure == NGX_RL_OK && claims[0].state[0] == 1
       && calls[1].failure == NGX_RL_WRONGTYPE
       && calls[2].failure == NGX_RL_OK
       && claims[2].state[0] == 2, "which is that one's, the others are fine");

    for (i = 0; i < nelts_of(replies); i++) {
        ok(calls_answer(reader, replies[i].wire, &eval)
           == replies[i].failure,
           "\"%.*s\" fails for all: %s",
           (int) strcspn(replies[i].wire, "\r"), replies[i].wire,
           ngx_rl_failure_names[replies[i].failure]);
    }

    claims_of(claims, 3, gcra_of(10, "1r/s", 1));

    eval_sent(&eval, calls, 3);

    calls_answer(reader, "*3\r\n:16000000\r\n:-24000001\r\n:0\r\n", &eval);
    ok(claims[0].state[0] == 1000000 && claims[1].state[0] == -1500001
       && claims[2].state[0] == 0, "those of gcra answer with ticks");

    ngx_rl_reader_free(reader);
}


/* as soon as one of them is for several requests, two numbers for each */

static void
test_alike_pairs(void)
{
    size_t            i;
    ngx_rl_call_t     calls[3];
    ngx_rl_eval_t     eval;
    ngx_rl_claim_t    claims[3];
    ngx_rl_reader_t  *reader;

    reader = ngx_rl_reader_create();

    claims_of(claims, 3, bucket_of(10, "1r/s", 1));

    calls_of(calls, claims, 3);

    calls[0].times = 5;
    calls[2].times = 3;

    eval_sent(&eval, calls, 3);

    for (i = 0; i < 3; i++) {
        calls[i].failure = NGX_RL_TIMEOUT;
    }

    is_number(calls_answer(reader, "*6\r\n:4\r\n:500000\r\n:1\r\n:7000000\r\n"
                           ":0\r\n:-300001\r\n", &eval),
              NGX_RL_OK, "for 5, 1 and 3 requests: two numbers "
              "each");
    ok(calls[0].passed == 4 && calls[1].passed == 1
       && calls[2].passed == 0, "how many of them passed");
    ok(claims[0].state[0] == 500000 && claims[1].state[0] == 7000000
       && claims[2].state[0] == -300001, "and what is left");
    ok(calls[0].failure == NGX_RL_OK
       && calls[1].failure == NGX_RL_OK
       && calls[2].failure == NGX_RL_OK, "and none has failed");

    calls_answer(reader, "*6\r\n:5\r\n:0\r\n:0\r\n:-1\r\n:3\r\n:1\r\n", &eval);
    ok(calls[0].passed == 5 && calls[1].passed == 0
       && calls[2].passed == 3, "as many as there were, and none of one");

    /* an error of a single key is in the place of what is left */

    is_number(calls_answer(reader, "*6\r\n:2\r\n:11\r\n:0\r\n-WRONGTYPE no\r\n"
                           ":1\r\n:13\r\n", &eval),
              NGX_RL_OK, "one may be an error");
    ok(calls[1].failure == NGX_RL_WRONGTYPE, "which is its own");
    ok(calls[0].failure == NGX_RL_OK && calls[0].passed == 2
       && claims[0].state[0] == 11
       && calls[2].failure == NGX_RL_OK && calls[2].passed == 1
       && claims[2].state[0] == 13, "while the others are fine");

    is_number(calls_answer(reader, "*6\r\n:0\r\n-WRONGTYPE no\r\n:1\r\n:12\r\n"
                           ":0\r\n-ERR what\r\n", &eval),
              NGX_RL_OK, "two may be, the first and the last");
    ok(calls[0].failure == NGX_RL_WRONGTYPE
       && calls[1].failure == NGX_RL_OK && calls[1].passed == 1
       && claims[1].state[0] == 12
       && calls[2].failure == NGX_RL_ERROR, "each its own");

    /* and so is one in the place of how many passed */

    is_number(calls_answer(reader, "*6\r\n:2\r\n:11\r\n-CLOCK no\r\n:0\r\n"
                           ":1\r\n:13\r\n", &eval),
              NGX_RL_OK, "it may be the first of two");
    ok(calls[0].failure == NGX_RL_OK && calls[0].passed == 2
       && calls[1].failure == NGX_RL_CLOCK
       && calls[1].passed == 0 && claims[1].state[0] == 12
       && calls[2].failure == NGX_RL_OK
       && calls[2].passed == 1, "and its own, by which nothing is known");

    is_number(calls_answer(reader, "-OOM no\r\n", &eval),
              NGX_RL_OOM, "an error of all is an error of all");

    calls_answer(reader, "*6\r\n:1\r\n:1\r\n:1\r\n:2\r\n:1\r\n:3\r\n", &eval);
    ok(calls[0].failure == NGX_RL_OK
       && calls[1].failure == NGX_RL_OK
       && calls[2].failure == NGX_RL_OK,
       "with the next reply all errors are over");

    /* those who are gone had two numbers as well */

    eval.calls[0] = NULL;
    eval.calls[1] = NULL;

    is_number(calls_answer(reader, "*6\r\n:4\r\n:21\r\n:0\r\n-ERR what\r\n"
                           ":2\r\n:23\r\n", &eval),
              NGX_RL_OK, "two of three are gone");
    ok(calls[2].passed == 2 && claims[2].state[0] == 23
       && claims[0].state[0] == 1 && claims[1].state[0] == 2
       && calls[0].passed == 1
       && calls[1].failure == NGX_RL_OK,
       "the third one is told its own, they are told nothing");

    /* requests are no ticks */

    claims_of(claims, 3, gcra_of(10, "1r/s", 1));

    eval_sent(&eval, calls, 3);

    calls_answer(reader, "*6\r\n:2\r\n:16000000\r\n:0\r\n:-24000001\r\n"
                 ":3\r\n:0\r\n", &eval);
    ok(calls[0].passed == 2 && claims[0].state[0] == 1000000
       && calls[1].passed == 0 && claims[1].state[0] == -1500001
       && calls[2].passed == 3 && claims[2].state[0] == 0,
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
    ngx_rl_call_t     calls[3];
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

    claims_of(claims, 3, bucket_of(10, "1r/s", 1));

    calls_of(calls, claims, 3);

    for (i = 0; i < 3; i++) {
        calls[i].times = 2;
    }

    eval_sent(&eval, calls, 3);

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

    calls[0].times = 5;
    calls[1].times = 1;
    calls[2].times = 3;

    eval_sent(&eval, calls, 3);

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
    ngx_rl_call_t     calls[CALLS_MAX];
    ngx_rl_eval_t     eval;
    ngx_rl_claim_t    claims[CALLS_MAX];
    ngx_rl_reader_t  *reader;

    reader = ngx_rl_reader_create();

    claims_of(claims, CALLS_MAX, bucket_of(1000000000, "1000000r/s", 1));

    calls_of(calls, claims, CALLS_MAX);

    n = snprintf(wire, sizeof(wire), "*%d\r\n", 2 * CALLS_MAX);

    for (i = 0; i < CALLS_MAX; i++) {
        calls[i].times = UINT32_MAX;

        n += snprintf(wire + n, sizeof(wire) - n,
                      ":%" PRIu32 "\r\n:%" PRIu64 "\r\n",
                      (uint32_t) (UINT32_MAX - i),
                      (uint64_t) (999999999999900 + i));
    }

    eval_sent(&eval, calls, CALLS_MAX);

    is_number(calls_answer(reader, wire, &eval), NGX_RL_OK,
              "32 keys answer with 64 numbers");

    wrong = 0;

    for (i = 0; i < CALLS_MAX; i++) {
        wrong += calls[i].passed != UINT32_MAX - i
                 || claims[i].state[0] != 999999999999900 + (int64_t) i;
    }

    is_number(wrong, 0, "each has its own");

    n = snprintf(wire, sizeof(wire), "*%d\r\n", 2 * CALLS_MAX);

    for (i = 0; i < CALLS_MAX; i++) {
        n += snprintf(wire + n, sizeof(wire) - n,
                      ":0\r\n-WRONGTYPE Operation against a key holding the "
                      "wrong kind of value script: "
                      "0123456789abcdef0123456789abcdef01234567, "
                      "on @user_script:52.\r\n");
    }

    is_number(calls_answer(reader, wire, &eval), NGX_RL_OK,
              "or all of them with errors");

    wrong = 0;

    for (i = 0; i < CALLS_MAX; i++) {
        wrong += calls[i].failure != NGX_RL_WRONGTYPE;
    }

    is_number(wrong, 0, "each has its own");

    ngx_rl_reader_free(reader);
}


/* what comes back for calls with several limits each */

static void
test_take_replies(void)
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
    eval_sent(&eval, family.calls, CALLS);
    family_forget(&family);

    is_number(calls_answer(reader, family_wire(0, NULL), &eval),
              NGX_RL_OK, "five calls in one reply");

    for (i = 0; i < CALLS; i++) {
        ok(family_answered(&family, i),
           "call %zu has its numbers, and all of its limits have theirs", i);
    }

    /* whoever is gone is left out, and all others are told the same */

    wrong = 0;

    for (gaps = 0; gaps < 1 << CALLS; gaps++) {
        family_of(&family);
        eval_sent(&eval, family.calls, CALLS);
        family_forget(&family);

        for (i = 0; i < CALLS; i++) {
            if (gaps & 1 << i) {
                eval.calls[i] = NULL;
            }
        }

        wrong += calls_answer(reader, family_wire(0, NULL), &eval)
                 != NGX_RL_OK;

        for (i = 0; i < CALLS; i++) {
            wrong += (gaps & 1 << i)
                     ? !family_unanswered(&family, i)
                       || family.calls[i].passed != UNKNOWN
                       || family.calls[i].failure
                          != NGX_RL_TIMEOUT
                     : !family_answered(&family, i);
        }
    }

    is_number(wrong, 0, "any of them may be gone, up to all of them");

    /* what it is that they do not hear makes no difference */

    wrong = 0;

    for (i = 0; i < ELEMENTS * nelts_of(any); i++) {
        family_of(&family);
        eval_sent(&eval, family.calls, CALLS);
        family_forget(&family);

        eval.calls[family_call(i % ELEMENTS)] = NULL;

        wrong += calls_answer(reader, family_wire(i % ELEMENTS,
                                                  any[i / ELEMENTS]), &eval)
                 != NGX_RL_OK;

        for (call = 0; call < CALLS; call++) {
            wrong += (call == family_call(i % ELEMENTS))
                     ? !family_unanswered(&family, call)
                     : !family_answered(&family, call);
        }
    }

    is_number(wrong, 0, "not even if it is an error");

    /* but they are counted */

    wrong = 0;

    for (i = 0; i < CALLS; i++) {
        family_of(&family);
        eval_sent(&eval, family.calls, CALLS);

        eval.calls[i] = NULL;

        wrong += calls_answer(reader, "*15\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n"
                              ":1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n"
                              ":1\r\n:1\r\n:1\r\n", &eval)
                 != NGX_RL_PROTOCOL;
    }

    is_number(wrong, 0, "a reply without them is none");

    /* a call may have moved meanwhile */

    family_of(&family);
    eval_sent(&eval, family.calls, CALLS);
    family_forget(&family);

    copy = family.calls[1];
    claim = family.claims[3];
    copy.claims[0] = &claim;
    eval.calls[1] = &copy;

    is_number(calls_answer(reader, family_wire(0, NULL), &eval),
              NGX_RL_OK, "one of five has moved");
    ok(family_unanswered(&family, 1) && family.calls[1].passed == UNKNOWN
       && copy.passed == 3 && copy.failure == NGX_RL_OK
       && memcmp(claim.state, family_states[3], sizeof(claim.state)) == 0
       && family_answered(&family, 0) && family_answered(&family, 2)
       && family_answered(&family, 3) && family_answered(&family, 4),
       "and is told where it is now");

    /* a single one has no array if it has a single number, nor a gap */

    claim = claim_of("k", bucket_of(10, "1r/s", 1));
    single = call_of(&claim, 1);

    for (i = 0; i < 2; i++) {
        single.preview = i;
        eval_sent(&eval, &single, 1);

        is_number(calls_answer(reader, ":5\r\n", &eval),
                  NGX_RL_OK, "one call, one number");
        ok(claim.state[0] == 5 && single.passed == 1, "which is its own");
        is_number(calls_answer(reader, "*1\r\n:5\r\n", &eval),
                  NGX_RL_PROTOCOL, "an array is none");

        claim.state[0] = UNKNOWN;
        eval.calls[0] = NULL;
        is_number(calls_answer(reader, ":5\r\n", &eval),
                  NGX_RL_OK, "one that is gone");
        ok(claim.state[0] == UNKNOWN, "is not told");
    }

    ngx_rl_reader_free(reader);
}


/* what is wrong with one call is its own, unless there is no telling */

static void
test_take_errors(void)
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
    eval_sent(&eval, family.calls, CALLS);

    /* an error in any place */

    wrong = 0;

    for (i = 0; i < ELEMENTS; i++) {
        family_forget(&family);

        wrong += calls_answer(reader, family_wire(i, "-WRONGTYPE no\r\n"),
                              &eval)
                 != NGX_RL_OK;

        for (call = 0; call < CALLS; call++) {
            wrong += (call == family_call(i))
                     ? !family_unanswered(&family, call)
                       || family.calls[call].passed != 0
                       || family.calls[call].failure
                          != NGX_RL_WRONGTYPE
                     : !family_answered(&family, call);
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
    ok(family.calls[1].failure == NGX_RL_CLOCK
       && family.calls[1].passed == 0 && family_unanswered(&family, 1)
       && family.calls[2].failure == NGX_RL_WRONGTYPE
       && family.calls[2].passed == 0 && family_unanswered(&family, 2),
       "each in its way");
    ok(family_answered(&family, 0) && family_answered(&family, 3)
       && family_answered(&family, 4), "while the others are fine");

    is_number(calls_answer(reader, family_wire(0, NULL), &eval),
              NGX_RL_OK, "the next reply is without errors");
    ok(family_answered(&family, 1) && family_answered(&family, 2),
       "and they are over");

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
                     && family.calls[call].passed != (uint32_t) times;
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
            wrong += !family_unanswered(&family, call);
        }

        ok(wrong == 0, "\"%.*s\" fails for all: %s",
           (int) strcspn(replies[i].wire, "\r"), replies[i].wire,
           ngx_rl_failure_names[replies[i].failure]);
    }

    ngx_rl_reader_free(reader);
}


/* several that look at the same limit are told the same, each for itself */

static void
test_preview_replies(void)
{
    size_t            i;
    ngx_rl_eval_t     eval;
    ngx_rl_call_t     calls[3];
    ngx_rl_claim_t    claims[4];
    ngx_rl_reader_t  *reader;

    reader = ngx_rl_reader_create();

    claims[0] = claim_of("a", gcra_of(10, "1r/s", 3));
    claims[1] = claim_of("b", window_of(20, SECOND, 1));
    claims[2] = claims[0];
    claims[3] = claims[1];

    calls[0] = call_of(claims, 1);
    calls[1] = call_of(&claims[1], 2);
    calls[2] = call_of(&claims[3], 1);

    for (i = 0; i < 3; i++) {
        calls[i].preview = 1;
    }

    eval_sent(&eval, calls, 3);

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
    ok(calls[0].passed == 1 && calls[2].passed == 0,
       "of each it is known whether it would pass");
    ok(!ngx_rl_call_taken(&calls[0]), "and nothing was taken");

    ngx_rl_reader_free(reader);
}


/* windows have the most numbers: the reply is not too long to be read */

static void
test_many_windows(void)
{
    char              wire[16384];
    size_t            i, k, n, wrong;
    ngx_rl_eval_t     eval;
    ngx_rl_call_t     calls[CALLS_MAX];
    ngx_rl_claim_t    claims[NUMBERS];
    ngx_rl_reader_t  *reader;

    reader = ngx_rl_reader_create();

    n = snprintf(wire, sizeof(wire), "*%d\r\n", 3 * NUMBERS);

    for (i = 0; i < NUMBERS; i++) {
        claims[i] = claim_of(key_of((i / 3 + i % 3) % CALLS_MAX),
                             window_of(1000000000, 31536000 * SECOND, 1));

        n += snprintf(wire + n, sizeof(wire) - n,
                      ":%zu\r\n:31535999999%03zu\r\n:-%zu\r\n",
                      999999000 + i, i, i + 1);
    }

    for (i = 0; i < CALLS_MAX; i++) {
        calls[i] = call_of(&claims[3 * i], 3);
    }

    eval_sent(&eval, calls, CALLS_MAX);
    ok(eval.nlimits == CALLS_MAX && eval.nnumbers == NUMBERS,
       "32 calls for three of 32 windows each");

    is_number(calls_answer(reader, wire, &eval), NGX_RL_OK,
              "answer with 288 numbers");

    wrong = 0;

    for (i = 0; i < CALLS_MAX; i++) {
        for (k = 3 * i; k < 3 * i + 3; k++) {
            wrong += claims[k].state[0] != 999999000 + (int64_t) k
                     || claims[k].state[1] != 31535999999000 + (int64_t) k
                     || claims[k].state[2] != -1 - (int64_t) k;
        }
    }

    is_number(wrong, 0, "each has its own");

    /* texts of errors come on top: one a call, and its other numbers */

    n = snprintf(wire, sizeof(wire), "*%d\r\n", 3 * NUMBERS);

    for (i = 0; i < CALLS_MAX; i++) {
        n += snprintf(wire + n, sizeof(wire) - n,
                      "-WRONGTYPE Operation against a key holding the wrong "
                      "kind of value script: %s, on @user_script:203.\r\n"
                      ":0\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n",
                      TAKE_SHA1);
    }

    is_number(calls_answer(reader, wire, &eval), NGX_RL_OK,
              "32 calls may fail in one reply");

    wrong = 0;

    for (i = 0; i < CALLS_MAX; i++) {
        wrong += calls[i].failure == NGX_RL_OK;
    }

    is_number(wrong, 0, "each by itself");

    ngx_rl_reader_free(reader);
}


int
main(void)
{
    test_replies();
    test_arrays();
    test_fixed_replies();
    test_many_replies();
    test_times_replies();
    test_gcra_replies();
    test_gcra_edges();
    test_alike_replies();
    test_alike_pairs();
    test_alike_wrong();
    test_many_alike();
    test_take_replies();
    test_take_errors();
    test_preview_replies();
    test_many_windows();

    return tap_done();
}
