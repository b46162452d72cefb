
/*
 * What follows from the parameters of a bucket or window alone.
 */

#include "buckets.h"


#define NEVER   NGX_RL_NEVER
#define SECOND  1000000ULL        /* us */
#define DAY     86400             /* s */


static void
test_states(void)
{
    ngx_rl_bucket_t  bucket;

    bucket = bucket_of(10, "1r/s", 1);
    is_number(ngx_rl_bucket_states(&bucket), 1, "a bucket: one number");

    bucket.step = 1;
    is_number(ngx_rl_bucket_states(&bucket), 2, "with a step: two");

    bucket = bucket_of(10, "1r/s", 1);
    bucket.algorithm = NGX_RL_GCRA;
    is_number(ngx_rl_bucket_states(&bucket), 1, "gcra: one number");

    bucket = window_of(10, SECOND, 1);
    bucket.step = 0;
    is_number(ngx_rl_bucket_states(&bucket), 3, "a window: three");

    bucket.step = 1;
    is_number(ngx_rl_bucket_states(&bucket), 3, "whatever its step is");
}


static void
test_same(void)
{
    size_t           i;
    ngx_rl_bucket_t  a, b;

    a = bucket_of(10, "5r/s", 1);
    b = a;
    ok(ngx_rl_bucket_same(&a, &b), "a copy is the same bucket");

    for (i = 0; i < 9; i++) {
        b = a;

        switch (i) {
        case 0: b.algorithm = NGX_RL_GCRA; break;
        case 1: b.capacity++; break;
        case 2: b.cost++; break;
        case 3: b.rate.num++; break;
        case 4: b.step++; break;
        case 5: b.window++; break;
        case 6: b.varies++; break;
        case 7: b.period.length++; break;
        case 8: b.period.shift++; break;
        }

        ok(!ngx_rl_bucket_same(&a, &b), "one that differs in field %zu is not",
           i);
    }
}


static void
test_span(void)
{
    ngx_rl_bucket_t  bucket;

    bucket = bucket_of(100, "5r/s", 1);
    is_number(ngx_rl_bucket_span(&bucket), 20, "100 at 5 a second: 20 s");

    bucket = bucket_of(100, "7r/s", 99);
    is_number(ngx_rl_bucket_span(&bucket), 15, "rounded up, whatever the cost");

    bucket = bucket_of(1, "1000r/s", 1);
    is_number(ngx_rl_bucket_span(&bucket), 1, "at least a second");

    bucket = bucket_of(1, "1r/d", 1);
    is_number(ngx_rl_bucket_span(&bucket), DAY, "a day");

    bucket = bucket_of(10, "1r/s", 1);
    bucket.step = 7 * SECOND;
    is_number(ngx_rl_bucket_span(&bucket), 14, "two steps of 7 s");

    bucket = bucket_of(10, "0r/s", 1);
    is_number(ngx_rl_bucket_span(&bucket), NEVER, "a rate of zero");

    bucket.step = 7 * SECOND;
    is_number(ngx_rl_bucket_span(&bucket), NEVER, "with a step");

    bucket = window_of(10, 60 * SECOND, 1);
    is_number(ngx_rl_bucket_span(&bucket), 60, "a window's length");

    bucket = fixed_of(10, 90 * SECOND, 1);
    is_number(ngx_rl_bucket_span(&bucket), 90, "a fixed window's length");
    is_number(ngx_rl_bucket_states(&bucket), 3, "it has three numbers");
    ok(!ngx_rl_bucket_slow(&bucket), "and the script knows how long it lives");

    bucket = counter_of(10, 90 * SECOND, 1);
    is_number(ngx_rl_bucket_span(&bucket), 90, "the same for a counter");
    is_number(ngx_rl_bucket_states(&bucket), 4, "which has four numbers");

    bucket = fixed_of(10, 0, 1);
    ok(ngx_rl_bucket_span(&bucket) == NGX_RL_NEVER, "months have no length");

    bucket = window_of(10, 1000, 1);
    is_number(ngx_rl_bucket_span(&bucket), 1, "rounded up");

    bucket = window_of(10, 365ULL * DAY * SECOND, 1);
    is_number(ngx_rl_bucket_span(&bucket), 365 * DAY, "a year");
}


static void
test_wait(void)
{
    ngx_rl_bucket_t  bucket;

    bucket = bucket_of(10, "2r/s", 1);
    is_number(ngx_rl_bucket_wait(&bucket, 0, 0), 0, "nothing is there at once");
    is_number(ngx_rl_bucket_wait(&bucket, 1, 0), 1, "rounded up to a second");
    is_number(ngx_rl_bucket_wait(&bucket, 4000000, 0), 2, "4 tokens: 2 s");
    is_number(ngx_rl_bucket_wait(&bucket, 4000001, 0), 3, "a bit more: 3 s");

    bucket.step = 5 * SECOND;
    is_number(ngx_rl_bucket_wait(&bucket, 1, 0), 5, "at the end of a step");
    is_number(ngx_rl_bucket_wait(&bucket, 1, 3 * SECOND), 2,
              "of which a part is over");
    is_number(ngx_rl_bucket_wait(&bucket, 10000001, 3 * SECOND), 7,
              "and of a second one");
    is_number(ngx_rl_bucket_wait(&bucket, 1, 9 * SECOND), 0,
              "never less than nothing");

    is_number(ngx_rl_seconds(0), 0, "no time");
    is_number(ngx_rl_seconds(1), 1, "a microsecond is a second");
    is_number(ngx_rl_seconds(SECOND), 1, "a second as well");
    is_number(ngx_rl_seconds(SECOND + 1), 2, "rounded up");
    is_number(ngx_rl_seconds(NEVER), NEVER, "never is never");
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
    is_number(ngx_rl_bucket_ttl(&bucket), 86401000,
              "once a day: a day and a second");

    bucket = bucket_of(100000, "100000r/s", 1);
    is_number(ngx_rl_bucket_ttl(&bucket), 2000, "100000 a second: two seconds");

    bucket = bucket_of(1, "1000r/s", 1);
    is_number(ngx_rl_bucket_ttl(&bucket), 1001, "never less than a second");

    bucket = bucket_of(10, "0r/s", 1);
    is_number(ngx_rl_bucket_ttl(&bucket), 31536000000ULL,
              "a rate of zero: a year");

    bucket = bucket_of(1000000000, "0.000001r/d", 1);
    is_number(ngx_rl_bucket_ttl(&bucket), NGX_RL_TTL_MAX,
              "a rate that is nearly zero: as long as there is");

    /* 36525 days are the limit: at it, and half a second below it */

    bucket = bucket_of(36525, "1r/d", 1);
    is_number(ngx_rl_bucket_ttl(&bucket), NGX_RL_TTL_MAX,
              "a hundred years, not a second more");

    bucket.rate.num = 2;
    bucket.rate.den = 6311519999;
    bucket.capacity = 1;
    is_number(ngx_rl_bucket_ttl(&bucket), NGX_RL_TTL_MAX,
              "rounding does not pass the limit");

    bucket = bucket_of(10, "1r/s", 1);
    bucket.step = 60 * SECOND;
    is_number(ngx_rl_bucket_ttl(&bucket), 71000, "a step longer");

    bucket = bucket_of(10, "0r/s", 1);
    bucket.step = 60 * SECOND;
    is_number(ngx_rl_bucket_ttl(&bucket), 31536000000ULL,
              "a step of nothing: a year");

    bucket = window_of(10, 60 * SECOND, 1);
    is_number(ngx_rl_bucket_ttl(&bucket), 61000,
              "a window: its length and a second");

    bucket = window_of(10, 1000, 1);
    is_number(ngx_rl_bucket_ttl(&bucket), 1001, "the shortest window");

    bucket = window_of(10, 31536000 * SECOND, 1);
    is_number(ngx_rl_bucket_ttl(&bucket), 31536001000ULL, "the longest window");

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
        ttl = ngx_rl_bucket_ttl(&bucket);

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
        ttl = ngx_rl_bucket_ttl(&bucket);

        wrong += ttl * 1000 < us
                 || ttl * 1000 > us + bucket.step + 1000000;
    }

    is_number(wrong, 0, "20000 with steps: never shorter than the steps that "
              "refill all of it");
}


/* ---- shares */

static void
test_share(void)
{
    size_t           i;
    ngx_rl_rate_t    rate;
    ngx_rl_share_t   share;
    ngx_rl_bucket_t  bucket;

    static const struct {
        uint64_t     capacity;
        const char  *share;
        uint64_t     expected;
    } cases[] = {
        { 100, "1", 100 },
        { 100, "0.25", 25 },
        { 100, "1/4", 25 },
        { 100, "1/3", 33 },
        { 100, "2/3", 66 },
        { 10, "0.25", 2 },
        { 3, "0.25", 1 },
        { 1, "1/1000", 1 },
        { 1000000000, "0.001", 1000000 },
        { 1000000000, "999/1000", 999000000 }
    };

    for (i = 0; i < nelts_of(cases); i++) {
        bucket = bucket_of(cases[i].capacity, "7r/m", 2);
        rate = bucket.rate;

        (void) ngx_rl_share_parse(cases[i].share,
                                  strlen(cases[i].share), &share);
        ngx_rl_bucket_share(&bucket, &share);

        ok(bucket.capacity == cases[i].expected, "%s of %" PRIu64 " is %"
           PRIu64 ", rounded down, at least one", cases[i].share,
           cases[i].capacity, cases[i].expected);
        ok(bucket.rate.num * rate.den * share.den
           == bucket.rate.den * rate.num * share.num,
           "and that part of the rate, exactly");
        ok(bucket.cost == 2, "and all of the cost");
    }

    /* four machines of a quarter each give what one would */

    bucket = bucket_of(1000000000, "999999999.999999r/s", 1);
    share.num = 999;
    share.den = 1000;
    ngx_rl_bucket_share(&bucket, &share);
    is_number(ngx_rl_rate_refill(&bucket.rate, SECOND),
              998999999999999ULL, "no rate is too great for a share");

    bucket = bucket_of(1, "0.000001r/d", 1);
    share.num = 1;
    ngx_rl_bucket_share(&bucket, &share);
    is_number(ngx_rl_rate_wait(&bucket.rate, 1), 1000 * DAY * SECOND,
              "none too small");

    bucket = bucket_of(5, "0r/s", 1);
    ngx_rl_bucket_share(&bucket, &share);
    is_number(ngx_rl_rate_refill(&bucket.rate, DAY * SECOND), 0,
              "and of nothing it is nothing");

    bucket = window_of(100, 60 * SECOND, 1);
    memset(&bucket.rate, 0, sizeof(bucket.rate));
    share.den = 4;
    ngx_rl_bucket_share(&bucket, &share);
    ok(bucket.capacity == 25 && bucket.window == 60 * SECOND,
       "a window grants less in the same time");
}


static void
test_slow(void)
{
    ngx_rl_bucket_t  bucket;

    bucket = bucket_of(3599, "1r/s", 1);
    ok(!ngx_rl_bucket_slow(&bucket), "full within an hour is not slow");

    bucket = bucket_of(3600, "1r/s", 1);
    ok(ngx_rl_bucket_slow(&bucket), "more than an hour is");

    bucket = bucket_of(1, "0r/s", 1);
    ok(ngx_rl_bucket_slow(&bucket), "and so is never");
}


int
main(void)
{
    test_states();
    test_same();
    test_span();
    test_wait();
    test_ttl();
    test_slow();
    test_share();

    return tap_done();
}
