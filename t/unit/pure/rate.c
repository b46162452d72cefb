
/*
 * The numbers that a user writes, how long tokens take to come, and how many
 * come in a time.
 */

#include "tap.h"

#include "pure/ngx_rl_rate.h"


#define DAY  86400000000ULL        /* us */


static ngx_rl_rate_t
rate_of(const char *text)
{
    ngx_rl_rate_t  rate;

    memset(&rate, 0xff, sizeof(rate));

    if (ngx_rl_rate_parse(text, strlen(text), &rate) != NULL) {
        ok(0, "%s is a rate", text);
    }

    return rate;
}


static void
test_rates(void)
{
    char           name[128];
    size_t         i;
    const char    *err;
    ngx_rl_rate_t  rate;

    static const struct {
        const char  *text;
        uint64_t     num, den, count;
    } rates[] = {
        { "10r/s", 10, 1, 10 },
        { "1r/s", 1, 1, 1 },
        { "10r/m", 1, 6, 10 },
        { "60r/m", 1, 1, 60 },
        { "7r/m", 7, 60, 7 },
        { "3600r/h", 1, 1, 3600 },
        { "1r/h", 1, 3600, 1 },
        { "1r/d", 1, 86400, 1 },
        { "86400r/d", 1, 1, 86400 },
        { "100000r/d", 125, 108, 100000 },
        { "100000r/s", 100000, 1, 100000 },

        { "0.5r/s", 1, 2, 1 },
        { "0.50r/s", 1, 2, 1 },
        { "1.5r/s", 3, 2, 2 },
        { "2.0r/s", 2, 1, 2 },
        { "2.000001r/s", 2000001, 1000000, 3 },
        { "0.1r/m", 1, 600, 1 },
        { "0.000001r/s", 1, 1000000, 1 },
        { "0.000001r/d", 1, 86400000000ULL, 1 },

        { "0r/s", 0, 1, 0 },
        { "0r/d", 0, 1, 0 },
        { "0.0r/s", 0, 1, 0 },
        { "0.000000r/m", 0, 1, 0 },
        { "007r/s", 7, 1, 7 },

        { "1000000000r/s", 1000000000, 1, 1000000000 },
        { "1000000000.000000r/s", 1000000000, 1, 1000000000 },
        { "999999999.999999r/s", 999999999999999ULL, 1000000, 1000000000 },
        { "1000000000r/d", 312500, 27, 1000000000 }
    };

    for (i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        memset(&rate, 0xff, sizeof(rate));
        err = ngx_rl_rate_parse(rates[i].text, strlen(rates[i].text), &rate);

        snprintf(name, sizeof(name), "%s is %" PRIu64 "/%" PRIu64
                 " tokens a second, capacity %" PRIu64 " by default",
                 rates[i].text, rates[i].num, rates[i].den, rates[i].count);

        if (!ok(err == NULL && rate.num == rates[i].num
                && rate.den == rates[i].den && rate.count == rates[i].count,
                "%s", name))
        {
            diag("%s, %" PRIu64 "/%" PRIu64 ", %" PRIu64,
                 err ? err : "no error", rate.num, rate.den, rate.count);
        }
    }
}


static void
test_malformed_rates(void)
{
    size_t         i, len;
    ngx_rl_rate_t  rate;

    static const char  *rates[] = {
        "", "r/s", "10", "10r", "10r/", "10r/x", "10r/S", "10R/s", "10 r/s",
        " 10r/s", "10r/s ", "10r/ss", "10r/sec", "10/s", "10rs", "-1r/s",
        "+1r/s", "-0r/s", "1e3r/s", "0x10r/s", "1,5r/s", ".5r/s", "5.r/s",
        "1.2.3r/s", "1..2r/s", ".r/s", "1.0000001r/s", "0.0000000r/s",
        "nanr/s", "infr/s", "10r/s\n", "\t10r/s", "1000000001r/s",
        "1000000000.1r/s", "1000000000.000001r/s", "10000000000r/s",
        "18446744073709551615r/s", "18446744073709551616r/s",
        "99999999999999999999999999999999999999999999999999r/s",
        "1.99999999999999999999999999999999999999999999999999r/s"
    };

    for (i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        ok(ngx_rl_rate_parse(rates[i], strlen(rates[i]), &rate)
           != NULL, "\"%.*s\" is no rate", (int) strcspn(rates[i], "\n"),
           rates[i]);
    }

    ok(ngx_rl_rate_parse("10r/s\0", 6, &rate) != NULL,
       "a zero byte ends no rate");
    ok(ngx_rl_rate_parse("1\0r/s", 5, &rate) != NULL, "nor is it a digit");

    /* every length of a longer text, none of which ends in a zero byte */

    for (len = 0; len < sizeof("12.5r/m") - 1; len++) {
        ok(ngx_rl_rate_parse("12.5r/m", len, &rate) != NULL,
           "the first %zu bytes of 12.5r/m are no rate", len);
    }
}


static void
test_messages(void)
{
    uint64_t        n;
    const char     *err;
    ngx_rl_rate_t   rate;
    ngx_rl_share_t  share;

    err = ngx_rl_rate_parse("x", 1, &rate);
    ok(err && strstr(err, "r/s") && strstr(err, "r/m") && strstr(err, "r/h")
       && strstr(err, "r/d") && strstr(err, "1000000000"),
       "a rate's message says what is allowed");

    err = ngx_rl_capacity_parse("x", 1, &n);
    ok(err && strstr(err, "from 1 to 1000000000"),
       "a capacity's message says what is allowed");

    err = ngx_rl_cost_parse("x", 1, &n);
    ok(err && strstr(err, "from 1 to 100000"),
       "a cost's message says what is allowed");

    err = ngx_rl_share_parse("x", 1, &share);
    ok(err && strstr(err, "above 0 and at most 1") && strstr(err, "1/4")
       && strstr(err, "0.25"), "a share's message says what is allowed");
}


static void
test_shares(void)
{
    size_t          i;
    const char     *err;
    ngx_rl_share_t  share;

    static const struct {
        const char  *text;
        uint64_t     num, den;
    } shares[] = {
        { "1", 1, 1 },
        { "01", 1, 1 },
        { "1.0", 1, 1 },
        { "1.000", 1, 1 },
        { "0.5", 1, 2 },
        { "0.25", 1, 4 },
        { "0.250", 1, 4 },
        { "0.333", 333, 1000 },
        { "0.001", 1, 1000 },
        { "0.999", 999, 1000 },
        { "1/4", 1, 4 },
        { "2/8", 1, 4 },
        { "2/3", 2, 3 },
        { "1/1", 1, 1 },
        { "7/7", 1, 1 },
        { "1/1000", 1, 1000 },
        { "999/1000", 999, 1000 },
        { "1000/1000", 1, 1 }
    };

    static const char  *wrong[] = {
        "", "0", "0.0", "0.000", "0/1", "0/0", "1/0", "2", "1.5", "1.001",
        "4/3", "1000/999", "-1", "+1", "-0.5", "abc", "0.2555", "1.0000",
        "0.0005", "1/1001", "1001/1001", "1/99999999999999999999999", ".5",
        "1.", "0.", "1/", "/4", "1//4", "1/4/2", "1/2.5", "0.5/2", "1/-4",
        "50%", "1e0", " 1", "1 ", "1 /4", "1/ 4", "0,25", "0.2 5", "0x1"
    };

    for (i = 0; i < sizeof(shares) / sizeof(shares[0]); i++) {
        memset(&share, 0xff, sizeof(share));
        err = ngx_rl_share_parse(shares[i].text,
                                 strlen(shares[i].text), &share);

        if (!ok(err == NULL && share.num == shares[i].num
                && share.den == shares[i].den, "%s is %" PRIu64 " of %"
                PRIu64, shares[i].text, shares[i].num, shares[i].den))
        {
            diag("%s, %" PRIu64 "/%" PRIu64, err ? err : "no error",
                 share.num, share.den);
        }
    }

    for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        ok(ngx_rl_share_parse(wrong[i], strlen(wrong[i]), &share)
           != NULL, "\"%s\" is no share", wrong[i]);
    }

    ok(ngx_rl_share_parse("1/45", 3, &share) == NULL
       && share.den == 4, "the length of a share counts");
    ok(ngx_rl_share_parse("1/45", 2, &share) != NULL, "and no byte behind it");
    ok(ngx_rl_share_parse("0.25", 2, &share) != NULL, "nor behind a point");
    ok(ngx_rl_share_parse("1\0", 2, &share) != NULL,
       "a zero byte ends no share");
}


static void
test_numbers(void)
{
    size_t    i;
    uint64_t  n;

    static const char  *wrong[] = {
        "", "0", "00", "-1", "+1", " 1", "1 ", "1.0", "1.5", "1e3", "0x1",
        "ten", "1k", "18446744073709551615", "18446744073709551616",
        "18446744073709551617", "99999999999999999999999999999999"
    };

    for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        ok(ngx_rl_capacity_parse(wrong[i], strlen(wrong[i]), &n)
           != NULL, "\"%s\" is no capacity", wrong[i]);
        ok(ngx_rl_cost_parse(wrong[i], strlen(wrong[i]), &n)
           != NULL, "\"%s\" is no cost", wrong[i]);
    }

    ok(ngx_rl_capacity_parse("1", 1, &n) == NULL && n == 1,
       "the least capacity");
    ok(ngx_rl_capacity_parse("1000000000", 10, &n) == NULL
       && n == 1000000000, "the greatest capacity");
    ok(ngx_rl_capacity_parse("1000000001", 10, &n) != NULL,
       "no more than that");
    ok(ngx_rl_cost_parse("1", 1, &n) == NULL && n == 1, "the least cost");
    ok(ngx_rl_cost_parse("100000", 6, &n) == NULL && n == 100000,
       "the greatest cost");
    ok(ngx_rl_cost_parse("100001", 6, &n) != NULL, "no more than that");
    ok(ngx_rl_capacity_parse("123", 2, &n) == NULL && n == 12,
       "the length counts, not a zero byte");
    ok(ngx_rl_capacity_parse("1\0", 2, &n) != NULL,
       "a zero byte ends no number");
}


/* whatever a variable gives is a cost */

static void
test_cost_bound(void)
{
    size_t    i, len;
    uint64_t  n;

    static const struct {
        const char  *text;
        uint64_t     cost;
        int          as_written;
    } cases[] = {
        { "", 1, 1 }, { "0", 1, 1 }, { "000", 1, 1 }, { "1", 1, 1 },
        { "007", 7, 1 }, { "99999", 99999, 1 }, { "100000", 100000, 1 },
        { "000100000", 100000, 1 }, { "100001", 100000, 0 },
        { "18446744073709551615", 100000, 0 },
        { "18446744073709551617", 100000, 0 },
        { "99999999999999999999999999999999", 100000, 0 },
        { "-1", 100000, 0 }, { "+1", 100000, 0 }, { " 1", 100000, 0 },
        { "1 ", 100000, 0 }, { "1.5", 100000, 0 }, { "1e3", 100000, 0 },
        { "0x1", 100000, 0 }, { "ten", 100000, 0 }, { "-", 100000, 0 }
    };

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        n = 4711;
        len = strlen(cases[i].text);

        ok((ngx_rl_cost_bound(cases[i].text, len, &n) == NULL)
           == cases[i].as_written && n == cases[i].cost,
           "\"%s\" costs %lu", cases[i].text, (unsigned long) cases[i].cost);
    }

    ok(ngx_rl_cost_bound("1\0", 2, &n) != NULL && n == 100000,
       "a zero byte ends no cost");
    ok(ngx_rl_cost_bound(NULL, 0, &n) == NULL && n == 1,
       "nothing at all costs 1");
}


static void
test_check(void)
{
    size_t         i;
    ngx_rl_rate_t  rate;

    static const struct {
        const char  *rate;
        uint64_t     capacity;
        int          fits;
    } pairs[] = {
        { "0r/s", 1, 1 },
        { "1r/d", 1000000000, 1 },
        { "1000r/s", 1, 1 },
        { "1000.000001r/s", 1, 0 },
        { "1001r/s", 1, 0 },
        { "60000r/m", 1, 1 },
        { "60001r/m", 1, 0 },
        { "86400000r/d", 1, 1 },
        { "86400001r/d", 1, 0 },
        { "100000r/s", 100, 1 },
        { "100001r/s", 100, 0 },
        { "1000000000r/s", 1000000, 1 },
        { "1000000000r/s", 999999, 0 },
        { "1000000000r/s", 1000000000, 1 }
    };

    for (i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        rate = rate_of(pairs[i].rate);

        ok((ngx_rl_rate_check(&rate, pairs[i].capacity) == NULL)
           == pairs[i].fits, "%s %s a capacity of %" PRIu64, pairs[i].rate,
           pairs[i].fits ? "fits" : "is too fast for", pairs[i].capacity);
    }
}


/* a token of GCRA is a whole number of ticks, and never too few of them */

static void
test_gcra(void)
{
    size_t         i;
    ngx_rl_rate_t  rate;

    static const struct {
        const char  *rate;
        uint64_t     tick;
    } ticks[] = {
        { "1r/s", 16000000 },
        { "10r/s", 1600000 },
        { "7r/s", 2285715 },
        { "3r/s", 5333334 },
        { "100000r/s", 160 },
        { "99999r/s", 161 },
        { "1r/m", 960000000 },
        { "1r/d", 1382400000000ULL },
        { "0.5r/s", 32000000 },
        { "0.000001r/s", 16000000000000ULL }
    };

    static const struct {
        const char  *rate;
        uint64_t     capacity;
        int          fits;
    } pairs[] = {
        { "0r/s", 1, 0 },
        { "1r/s", 1, 1 },
        { "1r/s", 31536000, 1 },
        { "1r/s", 31536001, 0 },
        { "1r/d", 365, 1 },
        { "1r/d", 366, 0 },
        { "1r/d", 1000000000, 0 },
        { "100000r/s", 1000000000, 1 },
        { "100000.000001r/s", 1000000000, 0 },
        { "100000.9r/s", 1000000000, 0 },
        { "100001r/s", 1000000000, 0 },
        { "1000000000r/s", 1000000000, 0 },
        { "31.8r/s", 1000000000, 1 },
        { "31.7r/s", 1000000000, 0 },
        { "0.000001r/s", 31, 1 },
        { "0.000001r/s", 32, 0 },
        { "0.000001r/d", 1, 0 }
    };

    for (i = 0; i < sizeof(ticks) / sizeof(ticks[0]); i++) {
        rate = rate_of(ticks[i].rate);

        ok(ngx_rl_gcra_tick(&rate) == ticks[i].tick,
           "%s: a token is %" PRIu64 " ticks", ticks[i].rate, ticks[i].tick);
    }

    for (i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        rate = rate_of(pairs[i].rate);

        ok((ngx_rl_gcra_check(&rate, pairs[i].capacity) == NULL)
           == pairs[i].fits, "%s %s for gcra with a capacity of %" PRIu64,
           pairs[i].rate, pairs[i].fits ? "will do" : "is too much",
           pairs[i].capacity);
    }

    rate = rate_of("0r/s");
    is_text(ngx_rl_gcra_check(&rate, 1),
            "\"gcra\" needs a rate above zero and at most 100000r/s that "
            "refills the capacity within a year",
            "and it is said what would do");
}


static void
test_wait(void)
{
    size_t         i;
    uint64_t       us;
    ngx_rl_rate_t  rate;

    static const struct {
        const char  *rate;
        uint64_t     microtokens, us;
    } waits[] = {
        { "1r/s", 0, 0 },
        { "1r/s", 1, 1 },
        { "1r/s", 1000000, 1000000 },

        /* rounded up: never too early */
        { "3r/s", 1000000, 333334 },
        { "3r/s", 1, 1 },
        { "3r/s", 3, 1 },
        { "3r/s", 4, 2 },
        { "7r/m", 1000000, 8571429 },
        { "7r/m", 7000000, 60000000 },

        { "1r/d", 1, 86400 },
        { "1r/d", 1000000, DAY },
        { "1r/d", 999999, DAY - 86400 },
        { "1r/d", 200000000ULL * 1000000, 200000000 * DAY },

        { "100000r/s", 1, 1 },
        { "100000r/s", 100000, 1 },
        { "100000r/s", 100001, 2 },
        { "100000r/s", 1000000, 10 },

        { "1000000000r/s", 1000000000ULL * 1000000, 1000000 },
        { "999999999.999999r/s", 1000000000ULL * 1000000, 1000001 },

        { "0.000001r/d", 1, DAY },
        { "0.000001r/d", 1000000, 1000000 * DAY },

        /* 2^64 microseconds are 584542 years */
        { "1r/d", 1000000000ULL * 1000000, NGX_RL_NEVER },
        { "0.000001r/d", 1000000000ULL * 1000000, NGX_RL_NEVER },

        { "0r/s", 0, 0 },
        { "0r/s", 1, NGX_RL_NEVER },
        { "0r/s", UINT64_MAX, NGX_RL_NEVER }
    };

    for (i = 0; i < sizeof(waits) / sizeof(waits[0]); i++) {
        rate = rate_of(waits[i].rate);
        us = ngx_rl_rate_wait(&rate, waits[i].microtokens);

        if (!ok(us == waits[i].us, "at %s %" PRIu64 " microtokens come in %"
                PRIu64 " us", waits[i].rate, waits[i].microtokens, waits[i].us))
        {
            diag("got %" PRIu64, us);
        }
    }

    rate.num = UINT64_MAX;
    rate.den = 1;
    is_number(ngx_rl_rate_wait(&rate, UINT64_MAX), 1, "no product overflows");

    rate.num = 1;
    is_number(ngx_rl_rate_wait(&rate, UINT64_MAX - 1),
              UINT64_MAX - 1, "the longest wait there is");
    is_number(ngx_rl_rate_wait(&rate, UINT64_MAX),
              NGX_RL_NEVER, "one more is never");
}


static void
test_refill(void)
{
    size_t         i;
    uint64_t       tokens;
    ngx_rl_rate_t  rate;

    static const struct {
        const char  *rate;
        uint64_t     us, microtokens;
    } refills[] = {
        { "1r/s", 0, 0 },
        { "1r/s", 1, 1 },
        { "1r/s", 1000000, 1000000 },

        /* rounded down: never a token that is not there yet */
        { "0.5r/s", 1, 0 },
        { "0.5r/s", 3, 1 },
        { "1.5r/s", 1, 1 },
        { "1.5r/s", 2, 3 },
        { "7r/m", 8, 0 },
        { "7r/m", 9, 1 },
        { "1r/d", 86399, 0 },
        { "1r/d", 86400, 1 },
        { "1r/d", DAY, 1000000 },
        { "1r/d", DAY - 1, 999999 },
        { "1000000000r/s", 1, 1000000000 },

        { "0r/s", 0, 0 },
        { "0r/s", 1000000, 0 },
        { "0r/s", UINT64_MAX, 0 },

        /* more than a number holds is as much as it holds */
        { "1r/s", UINT64_MAX, UINT64_MAX },
        { "1r/s", UINT64_MAX - 1, UINT64_MAX - 1 },
        { "1.000001r/s", UINT64_MAX, UINT64_MAX },
        { "2r/s", UINT64_MAX / 2, UINT64_MAX - 1 },
        { "2r/s", UINT64_MAX / 2 + 1, UINT64_MAX },
        { "999999999.999999r/s", UINT64_MAX, UINT64_MAX },
        { "0.5r/s", UINT64_MAX, UINT64_MAX / 2 },
        { "0.000001r/d", UINT64_MAX, UINT64_MAX / DAY }
    };

    for (i = 0; i < sizeof(refills) / sizeof(refills[0]); i++) {
        rate = rate_of(refills[i].rate);
        tokens = ngx_rl_rate_refill(&rate, refills[i].us);

        if (!ok(tokens == refills[i].microtokens, "at %s %" PRIu64
                " microtokens come in %" PRIu64 " us", refills[i].rate,
                refills[i].microtokens, refills[i].us))
        {
            diag("got %" PRIu64, tokens);
        }
    }

    rate.num = UINT64_MAX;
    rate.den = 1;
    is_number(ngx_rl_rate_refill(&rate, UINT64_MAX), UINT64_MAX,
              "no product overflows");

    rate.den = UINT64_MAX;
    is_number(ngx_rl_rate_refill(&rate, UINT64_MAX - 1),
              UINT64_MAX - 1, "whatever comes of it");
}


#if defined(__SIZEOF_INT128__)

/*
 * For rates of every kind: after the wait the tokens are there, and one
 * microsecond before they are not.
 */

static void
test_wait_is_least(void)
{
    char           text[64];
    unsigned       i, wrong;
    uint64_t       seed, tokens, us;
    ngx_rl_rate_t  rate;
    __extension__ unsigned __int128  after, before, due;

    static const char  units[] = "smhd";

    seed = 7;
    wrong = 0;

    for (i = 0; i < 100000; i++) {
        snprintf(text, sizeof(text), "%u.%06ur/%c",
                 (unsigned) (tap_random(&seed) % 1000000000)
                 >> tap_random(&seed) % 30,
                 (unsigned) (tap_random(&seed) % 1000000),
                 units[tap_random(&seed) % 4]);

        tokens = (tap_random(&seed) % 1000000000000000ULL
                  >> tap_random(&seed) % 50) + 1;

        rate = rate_of(text);

        if (rate.num == 0) {
            continue;
        }

        us = ngx_rl_rate_wait(&rate, tokens);

        if (us == NGX_RL_NEVER) {
            continue;
        }

        due = tokens;
        due *= rate.den;
        after = us;
        after *= rate.num;
        before = after - rate.num;

        wrong += after < due || before >= due;
    }

    is_number(wrong, 0, "100000 random waits: neither too short nor too long");
}


/* the other way round: no more than has come, and no microtoken less */

static void
test_refill_is_greatest(void)
{
    char           text[64];
    unsigned       i, wrong;
    uint64_t       seed, tokens, us;
    ngx_rl_rate_t  rate;
    __extension__ unsigned __int128  come, got;

    seed = 8;
    wrong = 0;

    for (i = 0; i < 100000; i++) {
        snprintf(text, sizeof(text), "%u.%06ur/%c",
                 (unsigned) (tap_random(&seed) % 1000000000)
                 >> tap_random(&seed) % 30,
                 (unsigned) (tap_random(&seed) % 1000000),
                 "smhd"[tap_random(&seed) % 4]);

        us = tap_random(&seed) >> tap_random(&seed) % 64;
        rate = rate_of(text);

        /* a machine's share of it */

        rate.num *= tap_random(&seed) % 1000 + 1;
        rate.den *= 1000;

        tokens = ngx_rl_rate_refill(&rate, us);

        if (tokens == UINT64_MAX) {
            continue;
        }

        come = us;
        come *= rate.num;
        got = tokens;
        got *= rate.den;

        wrong += got > come || come - got >= rate.den;
    }

    is_number(wrong, 0, "100000 random refills: neither too much nor too "
              "little");
}


/*
 * Products that fit into 64 bits are divided in a shorter way.  On both sides
 * of that edge, and between the two where the product fits but not the sum
 * that rounds it up, all is as with numbers that are wide enough.
 */

static void
test_wait_at_edge(void)
{
    int            i, j;
    unsigned       narrow, between, wide, wrong;
    uint64_t       seed, most, rest, tokens, us;
    ngx_rl_rate_t  rate;
    __extension__ unsigned __int128  due;

    seed = 9;
    narrow = 0;
    between = 0;
    wide = 0;
    wrong = 0;
    rate.count = 1;

    for (i = 0; i < 100000; i++) {
        rate.den = (tap_random(&seed) >> tap_random(&seed) % 63 >> 1) + 1;

        most = UINT64_MAX / rate.den;
        rest = UINT64_MAX % rate.den;

        for (j = -2; j <= 2; j++) {

            if (i % 2) {
                /* the product fits or not */

                tokens = most + j;
                rate.num = (tap_random(&seed) >> tap_random(&seed) % 63 >> 1)
                           + 1;

                if (tokens == 0 || (tokens > most) != (j > 0)) {
                    continue;
                }

            } else {
                /* it does, and the sum fits or not */

                tokens = most;
                rate.num = rest + j;

                if (rate.num == 0 || (rate.num > rest) != (j > 0)) {
                    continue;
                }
            }

            us = ngx_rl_rate_wait(&rate, tokens);

            due = tokens;
            due *= rate.den;

            narrow += due + rate.num <= UINT64_MAX;
            between += due <= UINT64_MAX && due + rate.num > UINT64_MAX;
            wide += due > UINT64_MAX;

            due = (due + rate.num - 1) / rate.num;

            wrong += us != (due < NGX_RL_NEVER ? (uint64_t) due : NGX_RL_NEVER);
        }
    }

    is_number(wrong, 0, "waits at the edge of 64 bits: right to the "
              "microsecond");

    if (!ok(narrow > 10000 && between > 10000 && wide > 10000,
            "below, between and above"))
    {
        diag("%u, %u and %u", narrow, between, wide);
    }
}


static void
test_refill_at_edge(void)
{
    int            i, j;
    unsigned       narrow, wide, wrong;
    uint64_t       seed, most, tokens, us;
    ngx_rl_rate_t  rate;
    __extension__ unsigned __int128  come;

    seed = 10;
    narrow = 0;
    wide = 0;
    wrong = 0;
    rate.count = 1;

    for (i = 0; i < 100000; i++) {
        rate.num = (tap_random(&seed) >> tap_random(&seed) % 63 >> 1) + 1;
        most = UINT64_MAX / rate.num;

        for (j = -2; j <= 2; j++) {
            us = most + j;
            rate.den = (tap_random(&seed) >> tap_random(&seed) % 63 >> 1) + 1;

            if ((us > most) != (j > 0)) {
                continue;
            }

            tokens = ngx_rl_rate_refill(&rate, us);

            come = us;
            come *= rate.num;

            narrow += come <= UINT64_MAX;
            wide += come > UINT64_MAX;

            come /= rate.den;

            wrong += tokens != (come < UINT64_MAX ? (uint64_t) come
                                : UINT64_MAX);
        }
    }

    is_number(wrong, 0, "refills at the edge of 64 bits: right to the "
              "microtoken");

    if (!ok(narrow > 10000 && wide > 10000, "below and above")) {
        diag("%u and %u", narrow, wide);
    }
}

#endif


int
main(void)
{
    test_rates();
    test_malformed_rates();
    test_messages();
    test_shares();
    test_numbers();
    test_cost_bound();
    test_check();
    test_gcra();
    test_wait();
    test_refill();
#if defined(__SIZEOF_INT128__)
    test_wait_is_least();
    test_refill_is_greatest();
    test_wait_at_edge();
    test_refill_at_edge();
#endif

    return tap_done();
}
