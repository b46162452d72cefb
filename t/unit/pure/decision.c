
/*
 * What the state of a bucket or a window after a call means for headers and
 * the client.
 */

#include "tap.h"

#include "buckets.h"

#include "pure/ngx_rl_decision.h"


#define NEVER   NGX_RL_NEVER
#define SECOND  1000000ULL
#define DAY     86400


/* a number of the state that this bucket does not have would show, too */

static ngx_rl_decision_t
decision_of(const ngx_rl_bucket_t *bucket, int64_t first,
    int64_t second, int64_t third)
{
    int64_t            state[NGX_RL_STATES];
    ngx_rl_decision_t  d;

    state[0] = first;
    state[1] = second;
    state[2] = third;

    memset(&d, 0xff, sizeof(d));
    ngx_rl_decide(&d, bucket, state);

    return d;
}


static void
is_decision(const ngx_rl_decision_t *d, int passed,
    uint64_t limit, uint64_t remaining, uint64_t reset, uint64_t retry_after,
    const char *name)
{
    if (!ok(d->outcome == (passed ? NGX_RL_PASSED
                           : NGX_RL_REJECTED)
            && d->limit == limit && d->remaining == remaining
            && d->reset == reset && d->retry_after == retry_after,
            "%s", name))
    {
        diag("%s, limit %" PRIu64 ", remaining %" PRIu64 ", reset %"
             PRIu64 ", retry after %" PRIu64,
             ngx_rl_outcome_names[d->outcome], d->limit,
             d->remaining, d->reset, d->retry_after);
    }
}


static void
test_buckets(void)
{
    size_t             i;
    ngx_rl_bucket_t    bucket;
    ngx_rl_decision_t  d;

    static const struct {
        const char  *name;
        uint64_t     capacity;
        const char  *rate;
        uint64_t     cost;
        int64_t      state;
        int          passed;
        uint64_t     remaining, reset, retry_after;
    } cases[] = {
        { "the first of ten", 10, "1r/s", 1, 9000000, 1, 9, 1, 0 },
        { "the last of ten", 10, "1r/s", 1, 0, 1, 0, 10, 0 },
        { "a full bucket", 10, "1r/s", 1, 10000000, 1, 10, 0, 0 },
        { "one microtoken short of full", 10, "1r/s", 1, 9999999, 1, 9, 1, 0 },
        { "remaining is rounded down", 10, "1r/s", 1, 1999999, 1, 1, 9, 0 },
        { "reset is rounded up", 10, "1r/s", 1, 7999999, 1, 7, 3, 0 },

        { "denied, nothing there", 10, "1r/s", 1, -1, 0, 0, 10, 1 },
        { "denied, half a token there", 10, "1r/s", 1, -500001, 0, 0, 10, 1 },
        { "denied, all but a microtoken", 10, "1r/s", 1, -1000000, 0, 0, 10,
          1 },
        { "a wait of one second sharp", 10, "1r/s", 1, -1, 0, 0, 10, 1 },
        { "a microsecond above a second is two", 10, "1r/s", 2, -1000000, 0, 0,
          10, 2 },
        { "a wait is at least a second", 100, "100r/s", 1, -1, 0, 0, 1, 1 },

        { "a cost of five, three there", 10, "1r/s", 5, -3000001, 0, 3, 7,
          2 },
        { "a cost of all", 10, "1r/s", 10, 0, 1, 0, 10, 0 },
        { "a cost of all, one missing", 10, "1r/s", 10, -9000001, 0, 9, 1,
          1 },
        { "a cost above capacity never passes", 10, "1r/s", 11, -10000001, 0,
          10, 0, NEVER },
        { "nor from an empty bucket", 10, "1r/s", 11, -1, 0, 0, 10, NEVER },

        { "rate 0, some left", 10, "0r/s", 1, 9000000, 1, 9, NEVER, 0 },
        { "rate 0, still full", 10, "0r/s", 1, 10000000, 1, 10, 0, 0 },
        { "rate 0, none left", 10, "0r/s", 1, -1, 0, 0, NEVER, NEVER },

        { "once a day, taken", 1, "1r/d", 1, 0, 1, 0, DAY, 0 },
        { "once a day, denied at once", 1, "1r/d", 1, -1, 0, 0, DAY, DAY },
        { "once a day, denied at the end", 1, "1r/d", 1, -1000000, 0, 0, 1,
          1 },
        { "100000 a second", 100000, "100000r/s", 1, 0, 1, 0, 1, 0 },
        { "0.5 a second", 1, "0.5r/s", 1, -1, 0, 0, 2, 2 },
        { "7 a minute", 7, "7r/m", 1, -1, 0, 0, 60, 9 },

        { "the greatest bucket", 1000000000, "1r/d", 1,
          999999999LL * 1000000, 1, 999999999, DAY, 0 },
        { "the greatest bucket, empty", 1000000000, "1r/d", 100000, -1, 0, 0,
          NEVER, 100000ULL * DAY },
        { "a wait beyond all numbers", 1000000000, "0.000001r/d", 1, 0, 1, 0,
          NEVER, 0 },

        /* what no script of ours says: it must do no harm */
        { "more tokens than capacity", 10, "1r/s", 1, 11000000, 1, 10, 0, 0 },
        { "the greatest number", 10, "1r/s", 1, INT64_MAX, 1, 10, 0, 0 },
        { "the least number", 10, "1r/s", 1, INT64_MIN, 0, 10, 0, 1 },
        { "denied with enough tokens", 10, "1r/s", 1, -5000001, 0, 5, 5, 1 }
    };

    for (i = 0; i < nelts_of(cases); i++) {
        bucket = bucket_of(cases[i].capacity, cases[i].rate, cases[i].cost);
        d = decision_of(&bucket, cases[i].state, 12345678, 0);

        is_decision(&d, cases[i].passed, cases[i].capacity,
                    cases[i].remaining, cases[i].reset, cases[i].retry_after,
                    cases[i].name);

        bucket.algorithm = NGX_RL_GCRA;
        d = decision_of(&bucket, cases[i].state, 12345678, 0);

        is_decision(&d, cases[i].passed, cases[i].capacity,
                    cases[i].remaining, cases[i].reset, cases[i].retry_after,
                    "the same for gcra");
    }
}


/* tokens come at the ends of steps; "gone" is spent of the present one */

static void
test_steps(void)
{
    size_t             i;
    ngx_rl_bucket_t    bucket;
    ngx_rl_decision_t  d;

    static const struct {
        const char  *name;
        const char  *rate;
        uint64_t     cost;
        uint64_t     step;
        int64_t      state, gone;
        int          passed;
        uint64_t     remaining, reset, retry_after;
    } cases[] = {
        { "a step of 5 s: the whole of it", "1r/s", 1, 5 * SECOND, -1, 0, 0,
          0, 10, 5 },
        { "two seconds of it are gone", "1r/s", 1, 5 * SECOND, -1, 2 * SECOND,
          0, 0, 8, 3 },
        { "all but a microsecond", "1r/s", 1, 5 * SECOND, -1, 5 * SECOND - 1,
          0, 0, 6, 1 },
        { "all of it", "1r/s", 1, 5 * SECOND, -1, 5 * SECOND, 0, 0, 5, 1 },
        { "gone is more than what is missing", "1r/s", 1, 5 * SECOND, -1,
          60 * SECOND, 0, 0, 0, 1 },
        { "six tokens take two steps", "1r/s", 6, 5 * SECOND, -1, SECOND, 0,
          0, 9, 9 },
        { "five take one", "1r/s", 5, 5 * SECOND, -1, SECOND, 0, 0, 9, 4 },
        { "a microtoken more takes two", "1r/s", 6, 5 * SECOND, -1000000, 0,
          0, 0, 10, 10 },
        { "passed: the rest comes in two steps", "1r/s", 1, 5 * SECOND,
          4 * SECOND, SECOND, 1, 4, 9, 0 },
        { "passed: one missing is a step", "1r/s", 1, 5 * SECOND, 9000000, 0,
          1, 9, 5, 0 },
        { "full: nothing is missing", "1r/s", 1, 5 * SECOND, 10000000, 0, 1,
          10, 0, 0 },
        { "full, and the time since", "1r/s", 1, 5 * SECOND, 10000000,
          3 * SECOND, 1, 10, 0, 0 },
        { "a step longer than the time to refill", "10r/s", 1, 60 * SECOND,
          -1, 0, 0, 0, 60, 60 },
        { "a step of 10 ms", "1r/s", 1, 10000, -1, 0, 0, 0, 10, 1 },
        { "a step that divides nothing", "1r/s", 1, 700000, -1, 0, 0, 0, 11,
          2 },
        { "steps without a whole token", "1r/m", 1, 7 * SECOND, -1, 0, 0, 0,
          602, 63 },
        { "several steps gone, no token yet", "1r/m", 1, 7 * SECOND, -1,
          50 * SECOND, 0, 0, 552, 13 },
        { "a day's step", "1r/d", 1, DAY * SECOND, -1, 0, 0, 0,
          10 * DAY, DAY },
        { "rate 0: no step brings anything", "0r/s", 1, 5 * SECOND, -1,
          2 * SECOND, 0, 0, NEVER, NEVER },
        { "rate 0, still full", "0r/s", 1, 5 * SECOND, 10000000, 0, 1, 10, 0,
          0 },
        { "a cost above capacity", "1r/s", 11, 5 * SECOND, -10000001, 0, 0,
          10, 0, NEVER },

        /* a clock that is behind has begun no step */
        { "less than nothing is gone", "1r/s", 1, 5 * SECOND, -1,
          -30 * (int64_t) SECOND, 0, 0, 10, 5 },
        { "the least number", "1r/s", 1, 5 * SECOND, -1, INT64_MIN, 0, 0, 10,
          5 },
        { "the greatest number", "1r/s", 1, 5 * SECOND, -1, INT64_MAX, 0, 0,
          0, 1 }
    };

    for (i = 0; i < nelts_of(cases); i++) {
        bucket = bucket_of(10, cases[i].rate, cases[i].cost);
        bucket.step = cases[i].step;

        d = decision_of(&bucket, cases[i].state, cases[i].gone, 0);

        is_decision(&d, cases[i].passed, 10, cases[i].remaining,
                    cases[i].reset, cases[i].retry_after, cases[i].name);
    }

    /* the longest wait that a number can hold, and the longest step */

    bucket = bucket_of(1000000000, "0.000001r/d", 1);
    bucket.step = DAY * SECOND;
    d = decision_of(&bucket, 0, 0, 0);
    is_decision(&d, 1, 1000000000, 0, NEVER, 0, "a wait beyond all numbers");

    bucket.rate.num = 1;
    bucket.rate.den = (UINT64_MAX - 1) / SECOND;
    bucket.capacity = 1;
    d = decision_of(&bucket, -1, 0, 0);
    ok(d.retry_after >= UINT64_MAX / SECOND - 1, "no wait runs over");
}


/* what is owed comes before all other tokens */

static void
test_owed(void)
{
    size_t             i;
    ngx_rl_bucket_t    bucket;
    ngx_rl_decision_t  d;

    static const struct {
        const char  *name;
        const char  *rate;
        uint64_t     cost;
        uint64_t     step;
        int64_t      state, gone, owed;
        int          passed;
        uint64_t     remaining, reset, retry_after;
    } cases[] = {
        { "passed, five owed: the bucket is full later", "1r/s", 1, 0, 0, 0,
          5 * SECOND, 1, 0, 15, 0 },
        { "denied, five owed: and the next token comes later", "1r/s", 1, 0,
          -1, 0, 5 * SECOND, 0, 0, 15, 6 },
        { "denied, a microtoken owed", "1r/s", 1, 0, -1, 0, 1, 0, 0, 11, 2 },
        { "denied, a cost of all", "1r/s", 10, 0, -1, 0, 5 * SECOND, 0, 0, 15,
          15 },
        { "a slow rate", "1r/m", 1, 0, -1, 0, 2 * SECOND, 0, 0, 720, 180 },
        { "rate 0: what is owed never comes", "0r/s", 1, 0, -1, 0, 1, 0, 0,
          NEVER, NEVER },
        { "steps: one token and five owed take two", "1r/s", 1, 5 * SECOND,
          -1, 0, 5 * SECOND, 0, 0, 15, 10 },
        { "steps: one token and four owed take one", "1r/s", 1, 5 * SECOND,
          -1, 0, 4 * SECOND, 0, 0, 15, 5 },
        { "steps: two seconds of this one are gone", "1r/s", 1, 5 * SECOND,
          -1, 2 * SECOND, 5 * SECOND, 0, 0, 13, 8 },
        { "the most that was ever taken too much", "1r/s", 1, 0, -1, 0,
          100000 * (int64_t) SECOND, 0, 0, 100010, 100001 },

        /* what nobody says: it must do no harm */
        { "less than nothing owed", "1r/s", 1, 0, -1, 0,
          -5 * (int64_t) SECOND, 0, 0, 10, 1 },
        { "the least number", "1r/s", 1, 0, -1, 0, INT64_MIN, 0, 0, 10, 1 },
        { "the greatest number", "1r/s", 1, 0, -1, 0, INT64_MAX, 0, 0,
          INT64_MAX / SECOND + 11, INT64_MAX / SECOND + 2 }
    };

    for (i = 0; i < nelts_of(cases); i++) {
        bucket = bucket_of(10, cases[i].rate, cases[i].cost);
        bucket.step = cases[i].step;

        d = decision_of(&bucket, cases[i].state, cases[i].gone, cases[i].owed);

        is_decision(&d, cases[i].passed, 10, cases[i].remaining,
                    cases[i].reset, cases[i].retry_after, cases[i].name);
    }
}


static void
test_windows(void)
{
    size_t             i;
    ngx_rl_bucket_t    window;
    ngx_rl_decision_t  d;

    static const struct {
        const char  *name;
        uint64_t     cost;
        int64_t      state, oldest, wait;
        int          passed;
        uint64_t     remaining, reset, retry_after;
    } cases[] = {
        { "the first of ten", 1, 9, 60 * SECOND, 0, 1, 9, 60, 0 },
        { "the last of ten", 1, 0, 31 * SECOND, 0, 1, 0, 31, 0 },
        { "reset is rounded up", 1, 3, 30 * SECOND + 1, 0, 1, 3, 31, 0 },
        { "nothing in it", 1, 10, 0, 0, 1, 10, 0, 0 },
        { "passed: no wait, whatever is said of one", 1, 3, 5 * SECOND,
          7 * SECOND, 1, 3, 5, 0 },

        { "denied, nothing left", 1, -1, 20 * SECOND, 20 * SECOND, 0, 0, 20,
          20 },
        { "denied, some left", 5, -4, 20 * SECOND, 40 * SECOND, 0, 3, 20,
          40 },
        { "a wait is rounded up", 1, -1, 20 * SECOND, 20 * SECOND + 1, 0, 0,
          20, 21 },
        { "a wait of a microsecond is a second", 1, -1, 1, 1, 0, 0, 1, 1 },
        { "a wait of nothing is a second, too", 1, -1, 0, 0, 0, 0, 0, 1 },
        { "a cost above the limit never passes", 11, -11, 5 * SECOND,
          60 * SECOND, 0, 10, 5, NEVER },
        { "nor where nothing is in it", 11, -11, 0, 0, 0, 10, 0, NEVER },

        /* what no script of ours says */
        { "more left than the limit", 1, 11, SECOND, 0, 1, 10, 1, 0 },
        { "the greatest numbers", 1, INT64_MAX, INT64_MAX, INT64_MAX, 1, 10,
          INT64_MAX / SECOND + 1, 0 },
        { "the least numbers", 1, INT64_MIN, INT64_MIN, INT64_MIN, 0, 10, 0,
          1 }
    };

    for (i = 0; i < nelts_of(cases); i++) {
        window = window_of(10, 60 * SECOND, cases[i].cost);

        d = decision_of(&window, cases[i].state, cases[i].oldest,
                        cases[i].wait);

        is_decision(&d, cases[i].passed, 10, cases[i].remaining,
                    cases[i].reset, cases[i].retry_after, cases[i].name);
    }
}


static void
test_tighter(void)
{
    size_t             i;
    ngx_rl_decision_t  a, b;

    static const struct {
        const char  *name;
        uint64_t     a_remaining, a_limit, b_remaining, b_limit;
        int          a_tighter, b_tighter;
    } cases[] = {
        { "3 of 10 and 7 of 10", 3, 10, 7, 10, 1, 0 },
        { "the same part", 3, 10, 30, 100, 0, 0 },
        { "the part counts, not the number", 50, 1000, 5, 10, 1, 0 },
        { "nothing left of either", 0, 10, 0, 1000000000, 0, 0 },
        { "nothing left of one", 0, 1000000000, 1, 1000000000, 1, 0 },
        { "all of a small one, nearly all of a large", 1, 1, 999999999,
          1000000000, 0, 1 },
        { "one in a thousand million", 999999998, 1000000000, 999999999,
          1000000000, 1, 0 },
        { "the greatest ones, full", 1000000000, 1000000000, 1000000000,
          1000000000, 0, 0 }
    };

    memset(&a, 0xff, sizeof(a));
    memset(&b, 0xff, sizeof(b));

    for (i = 0; i < nelts_of(cases); i++) {
        a.remaining = cases[i].a_remaining;
        a.limit = cases[i].a_limit;
        b.remaining = cases[i].b_remaining;
        b.limit = cases[i].b_limit;

        ok(!ngx_rl_tighter(&a, &b) == !cases[i].a_tighter
           && !ngx_rl_tighter(&b, &a) == !cases[i].b_tighter,
           "%s", cases[i].name);
    }
}


/* a client that comes back after "retry_after" finds its tokens */

static void
test_retry(void)
{
    unsigned           i, early, late;
    uint64_t           seed, tokens, come;
    ngx_rl_bucket_t    bucket;
    ngx_rl_decision_t  d;

    static const char  *rates[] = {
        "1r/s", "3r/s", "0.5r/s", "7r/m", "100r/m", "13r/h", "1r/d", "11r/d",
        "0.3r/h", "100000r/s"
    };

    seed = 1;
    early = 0;
    late = 0;

    for (i = 0; i < 100000; i++) {
        bucket = bucket_of(1000, rates[i % 10], tap_random(&seed) % 1000 + 1);
        tokens = tap_random(&seed) % (bucket.cost * 1000000);

        d = decision_of(&bucket, -1 - (int64_t) tokens, 0, 0);

        come = d.retry_after * 1000000 * bucket.rate.num / bucket.rate.den;
        early += tokens + come < bucket.cost * 1000000;

        come = (d.retry_after - 1) * 1000000 * bucket.rate.num
               / bucket.rate.den;
        late += d.retry_after > 1
                && tokens + come >= bucket.cost * 1000000;
    }

    is_number(early, 0, "100000 times: after the wait the tokens are there");
    is_number(late, 0, "and a second before they are not");
}


/* the same with steps: only whole ones count, from the last refill on */

static void
test_retry_steps(void)
{
    unsigned           i, early, late;
    uint64_t           seed, tokens, missing, gone, spent, step;
    ngx_rl_bucket_t    bucket;
    ngx_rl_decision_t  d;

    static const char  *rates[] = {
        "1r/s", "3r/s", "0.5r/s", "7r/m", "100r/m", "13r/h", "1r/h", "9r/s",
        "0.3r/h", "1000r/s"
    };

    static const uint64_t  steps[] = {
        10000, 700000, SECOND, 5 * SECOND, 60 * SECOND, 3600 * SECOND
    };

    seed = 2;
    early = 0;
    late = 0;

    for (i = 0; i < 100000; i++) {
        bucket = bucket_of(1000, rates[i % 10], tap_random(&seed) % 1000 + 1);
        step = steps[tap_random(&seed) % nelts_of(steps)];
        bucket.step = step;

        tokens = tap_random(&seed) % (bucket.cost * SECOND);
        missing = bucket.cost * SECOND - tokens;
        gone = tap_random(&seed) % step;

        d = decision_of(&bucket, -1 - (int64_t) tokens, gone, 0);

        spent = (gone + d.retry_after * SECOND) / step * step;
        early += spent * bucket.rate.num / bucket.rate.den < missing;

        spent = (gone + (d.retry_after - 1) * SECOND) / step * step;
        late += d.retry_after > 1
                && spent * bucket.rate.num / bucket.rate.den >= missing;
    }

    is_number(early, 0, "100000 times with steps: there after the wait");
    is_number(late, 0, "and a second before they are not");
}


static void
test_jitter(void)
{
    uint32_t  random;
    uint64_t  i, seed, wait, more, low, high, early, wrong;
    unsigned  percent;

    random = 0x7fffffff;

    is_number(ngx_rl_jitter(0, 50, random), 0, "no wait: nothing is added");
    ok(ngx_rl_jitter(NGX_RL_NEVER, 50, random) == NGX_RL_NEVER,
       "a wait without end stays so");
    is_number(ngx_rl_jitter(60, 0, random), 60, "0%%: nothing is added");
    is_number(ngx_rl_jitter(60, 50, 0), 60, "50%% of a minute: from 60");
    is_number(ngx_rl_jitter(60, 50, random), 90, "to 90");
    is_number(ngx_rl_jitter(1, 20, 0x3fffffff), 1, "20%% of a second: none");
    is_number(ngx_rl_jitter(1, 20, 0x40000000), 2, "or a whole one");
    is_number(ngx_rl_jitter(3600, 100, random), 7200, "100%% of an hour");

    seed = 42;
    low = high = early = wrong = 0;

    for (i = 0; i < 100000; i++) {
        wait = 1 + tap_random(&seed) % 100000;
        percent = (unsigned) (1 + tap_random(&seed) % 100);
        random = (uint32_t) (tap_random(&seed) & 0x7fffffff);

        more = ngx_rl_jitter(wait, percent, random);

        early += more < wait;
        wrong += more - wait > (wait * percent + 99) / 100;
        wrong += ngx_rl_jitter(wait + 1, percent, random) < more;
        low += ngx_rl_jitter(100, 20, random) < 110;
        high += ngx_rl_jitter(100, 20, random) > 110;
    }

    is_number(early, 0, "100000 times: never earlier");
    is_number(wrong, 0, "never beyond, and in the order of the waits");
    ok(low > 45000 && high > 45000, "evenly");

    wait = (uint64_t) 1 << 62;
    more = ngx_rl_jitter(wait, 100, random);
    ok(more >= wait && more - wait <= UINT32_MAX, "a wait of ages");
}


static void
test_names(void)
{
    is_text(ngx_rl_outcome_names[NGX_RL_SKIPPED], "SKIPPED", "SKIPPED");
    is_text(ngx_rl_outcome_names[NGX_RL_PASSED], "PASSED", "PASSED");
    is_text(ngx_rl_outcome_names[NGX_RL_REJECTED], "REJECTED", "REJECTED");
    is_text(ngx_rl_outcome_names[NGX_RL_REJECTED_DRY_RUN],
            "REJECTED_DRY_RUN", "REJECTED_DRY_RUN");
    is_text(ngx_rl_outcome_names[NGX_RL_REJECTED_PREVIEW],
            "REJECTED_PREVIEW", "REJECTED_PREVIEW");
    is_text(ngx_rl_outcome_names[NGX_RL_DEGRADED], "DEGRADED", "DEGRADED");

    is_text(ngx_rl_source_names[NGX_RL_SOURCE_NONE], "none", "none");
    is_text(ngx_rl_source_names[NGX_RL_SOURCE_CACHE], "cache", "cache");
    is_text(ngx_rl_source_names[NGX_RL_SOURCE_REDIS], "redis", "redis");
    is_text(ngx_rl_source_names[NGX_RL_SOURCE_LOCAL], "local", "local");
    is_text(ngx_rl_source_names[NGX_RL_SOURCE_OPEN], "open", "open");
    is_text(ngx_rl_source_names[NGX_RL_SOURCE_CLOSED], "closed", "closed");
}


int
main(void)
{
    test_buckets();
    test_steps();
    test_owed();
    test_windows();
    test_retry();
    test_retry_steps();
    test_tighter();
    test_jitter();
    test_names();

    return tap_done();
}
