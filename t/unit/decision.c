
/*
 * What a bucket's state after a call means for headers and the client.
 */

#include "tap.h"

#include "ngx_http_ratelimit_decision.h"


#define NEVER  NGX_HTTP_RATELIMIT_NEVER
#define DAY    86400


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


static void
test_decisions(void)
{
    size_t                         i;
    ngx_http_ratelimit_bucket_t    bucket;
    ngx_http_ratelimit_decision_t  d;

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

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bucket = bucket_of(cases[i].capacity, cases[i].rate, cases[i].cost);

        memset(&d, 0xff, sizeof(d));
        ngx_http_ratelimit_decide(&d, &bucket, cases[i].state);

        if (!ok(d.outcome == (cases[i].passed ? NGX_HTTP_RATELIMIT_PASSED
                                              : NGX_HTTP_RATELIMIT_REJECTED)
                && d.limit == cases[i].capacity
                && d.remaining == cases[i].remaining
                && d.reset == cases[i].reset
                && d.retry_after == cases[i].retry_after,
                "%s", cases[i].name))
        {
            diag("%s, limit %" PRIu64 ", remaining %" PRIu64 ", reset %"
                 PRIu64 ", retry after %" PRIu64,
                 ngx_http_ratelimit_outcome_name(d.outcome), d.limit,
                 d.remaining, d.reset, d.retry_after);
        }
    }
}


/* a client that comes back after "retry_after" finds its tokens */

static void
test_retry(void)
{
    unsigned                       i, early, late;
    uint64_t                       seed, tokens, come;
    ngx_http_ratelimit_bucket_t    bucket;
    ngx_http_ratelimit_decision_t  d;

    static const char  *rates[] = {
        "1r/s", "3r/s", "0.5r/s", "7r/m", "100r/m", "13r/h", "1r/d", "11r/d",
        "0.3r/h", "100000r/s"
    };

    seed = 1;
    early = 0;
    late = 0;

    for (i = 0; i < 100000; i++) {
        bucket = bucket_of(1000, rates[i % 10],
                           tap_random(&seed) % 1000 + 1);
        tokens = tap_random(&seed) % (bucket.cost * 1000000);

        ngx_http_ratelimit_decide(&d, &bucket, -1 - (int64_t) tokens);

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


static void
test_names(void)
{
    is_text(ngx_http_ratelimit_outcome_name(NGX_HTTP_RATELIMIT_SKIPPED),
            "SKIPPED", "SKIPPED");
    is_text(ngx_http_ratelimit_outcome_name(NGX_HTTP_RATELIMIT_PASSED),
            "PASSED", "PASSED");
    is_text(ngx_http_ratelimit_outcome_name(NGX_HTTP_RATELIMIT_REJECTED),
            "REJECTED", "REJECTED");
    is_text(ngx_http_ratelimit_outcome_name(
                NGX_HTTP_RATELIMIT_REJECTED_DRY_RUN),
            "REJECTED_DRY_RUN", "REJECTED_DRY_RUN");
    is_text(ngx_http_ratelimit_outcome_name(NGX_HTTP_RATELIMIT_DEGRADED),
            "DEGRADED", "DEGRADED");

    is_text(ngx_http_ratelimit_source_name(NGX_HTTP_RATELIMIT_SOURCE_REDIS),
            "redis", "redis");
    is_text(ngx_http_ratelimit_source_name(NGX_HTTP_RATELIMIT_SOURCE_LOCAL),
            "local", "local");
    is_text(ngx_http_ratelimit_source_name(NGX_HTTP_RATELIMIT_SOURCE_OPEN),
            "open", "open");
    is_text(ngx_http_ratelimit_source_name(NGX_HTTP_RATELIMIT_SOURCE_CLOSED),
            "closed", "closed");
}


int
main(void)
{
    test_decisions();
    test_retry();
    test_names();

    return tap_done();
}
