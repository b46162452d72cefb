
/*
 * Advice: which capacity a request needed.  The bins of the histogram, and
 * buckets that may go into debt, compared with a simulation of random arrivals
 * and with buckets of many capacities.
 */

#include "tap.h"

#include "buckets.h"

#include "pure/ngx_rl_advice.h"
#include "pure/ngx_rl_decision.h"
#include "pure/ngx_rl_level.h"


#define SECOND    1000000ULL
#define START     (12345 * SECOND)
#define ARRIVALS  20000
#define BOUNDS    NGX_RL_ADVICE_BOUNDS


/* ---- bins */

static void
test_bins(void)
{
    size_t           i;
    unsigned         wrong;
    const uint32_t  *bound;

    bound = ngx_rl_advice_bounds;

    is_number(bound[0], 1, "the first bound");
    is_number(bound[BOUNDS - 1], NGX_RL_MAX_CAPACITY,
              "the last bound is the largest capacity");

    wrong = 0;

    for (i = 1; i < BOUNDS; i++) {
        wrong += bound[i] <= bound[i - 1]
                 || (bound[i] > 3 && 3 * (uint64_t) bound[i]
                                     > 4 * (uint64_t) bound[i - 1]);
    }

    is_number(wrong, 0, "bounds grow, above 3 by a third at most");

    wrong = 0;

    for (i = 0; i < BOUNDS; i++) {
        wrong += ngx_rl_advice_bin(bound[i]) != i
                 || ngx_rl_advice_bin((uint64_t) bound[i] + 1) != i + 1;
    }

    is_number(wrong, 0, "a bin includes its bound");

    is_number(ngx_rl_advice_bin(1), 0, "a capacity of 1");
    is_number(ngx_rl_advice_bin(NGX_RL_NEVER), BOUNDS, "too much to tell");
}


static void
test_shares(void)
{
    is_number(ngx_rl_advice_share(0, 0), 0, "a share of no requests");
    is_number(ngx_rl_advice_share(0, 7), 0, "none of seven");
    is_number(ngx_rl_advice_share(7, 7), 1000000, "all of seven");
    is_number(ngx_rl_advice_share(1, 3), 333333, "a third is rounded down");
    is_number(ngx_rl_advice_share(2, 3), 666667, "two thirds are rounded up");
    is_number(ngx_rl_advice_share(1, 5000000), 1, "one of many is not nothing");
    is_number(ngx_rl_advice_share(1ULL << 43, 1ULL << 44), 500000,
              "half of very many");
}


/* ---- how far a bucket may go into debt */

static void
test_debt(void)
{
    size_t           i;
    ngx_rl_share_t   half = { 1, 2 };
    ngx_rl_bucket_t  bucket;

    static const struct {
        const char  *name;
        int          gcra;
        uint64_t     capacity;
        const char  *rate;
        uint64_t     size;
    } cases[] = {
        { "a thousand times the capacity", 0, 10, "10r/s", 10000 },
        { "the same for gcra", 1, 10, "10r/s", 10000 },
        { "a bucket that never refills", 0, 3, "0r/s", 3000 },
        { "the largest capacity there is", 0, 20000000, "1r/s", 1000000000 },
        { "one more than the largest", 0, 1000000000, "1r/s", 1000000001 },
        { "gcra: what comes back in a year", 1, 10, "1r/d", 365 },
        { "gcra: one more than that", 1, 365, "1r/d", 366 },
    };

    for (i = 0; i < nelts_of(cases); i++) {
        bucket = cases[i].gcra ? gcra_of(cases[i].capacity, cases[i].rate, 1)
                               : bucket_of(cases[i].capacity, cases[i].rate, 1);
        ngx_rl_bucket_advise(&bucket);

        is_number(ngx_rl_bucket_size(&bucket), cases[i].size, cases[i].name);
        is_number(bucket.capacity, cases[i].capacity, "the capacity stays");
    }

    bucket = bucket_of(10, "10r/s", 1);
    ngx_rl_bucket_advise(&bucket);
    is_number(ngx_rl_bucket_ttl(&bucket), 2000,
              "the time to live is that of the capacity");

    ngx_rl_bucket_share(&bucket, &half);
    ok(bucket.capacity == 5 && ngx_rl_bucket_size(&bucket) == 5001,
       "half of it");
}


/* ---- decisions */

static void
test_decisions(void)
{
    size_t             i;
    int64_t            state[NGX_RL_STATES];
    ngx_rl_bucket_t    bucket;
    ngx_rl_decision_t  d;

    /* capacity 10, size 10000: 9990 tokens of debt */

    static const struct {
        const char  *name;
        uint64_t     cost;
        int64_t      state;
        int          passed;
        uint64_t     remaining, reset, retry_after, needed;
    } cases[] = {
        { "the first", 1, 9999000000, 1, 9, 1, 0, 1 },
        { "the last that fits", 1, 9990000000, 1, 0, 10, 0, 10 },
        { "a microtoken too much", 1, 9989999999, 0, 0, 11, 1, 11 },
        { "a fraction counts as a token", 1, 9998999999, 1, 8, 2, 0, 2 },
        { "deep in debt", 1, 9000000000, 0, 0, 1000, 990, 1000 },
        { "as deep as can be", 1, 0, 0, 0, 10000, 9990, 10000 },
        { "denied", 1, -1, 0, 0, 10000, 9991, NGX_RL_NEVER },
        { "a cost above the capacity", 20, 9980000000, 0, 0, 20, NGX_RL_NEVER,
          20 },
    };

    for (i = 0; i < nelts_of(cases); i++) {
        bucket = bucket_of(10, "1r/s", cases[i].cost);
        ngx_rl_bucket_advise(&bucket);

        memset(state, 0, sizeof(state));
        state[0] = cases[i].state;

        memset(&d, 0xff, sizeof(d));
        ngx_rl_decide(&d, &bucket, state);

        if (!ok(d.outcome == (cases[i].passed ? NGX_RL_PASSED
                              : NGX_RL_REJECTED)
                && d.limit == 10 && d.remaining == cases[i].remaining
                && d.reset == cases[i].reset
                && d.retry_after == cases[i].retry_after
                && d.needed == cases[i].needed, "%s", cases[i].name))
        {
            diag("%s, limit %" PRIu64 ", remaining %" PRIu64 ", reset %"
                 PRIu64 ", retry after %" PRIu64 ", needed %" PRIu64,
                 ngx_rl_outcome_names[d.outcome], d.limit, d.remaining,
                 d.reset, d.retry_after, d.needed);
        }
    }

    bucket = bucket_of(10, "1r/s", 1);
    state[0] = 9000000;
    ngx_rl_decide(&d, &bucket, state);
    is_number(d.needed, 0, "a bucket without debt does not tell");
}


/* ---- random arrivals */

typedef struct {
    uint64_t  at;
    uint64_t  cost;
} arrival_t;


static arrival_t  arrivals[ARRIVALS];
static uint64_t   needs[ARRIVALS];


/* bursts with pauses between them; the mean rate is about 50 tokens a second */

static void
arrive(uint64_t seed, uint64_t costs)
{
    size_t    i;
    uint64_t  now;

    now = START;

    for (i = 0; i < ARRIVALS; i++) {
        now += tap_random(&seed) % 20
               ? tap_random(&seed) % 4000
               : tap_random(&seed) % (700000 * costs);

        arrivals[i].at = now;
        arrivals[i].cost = 1 + tap_random(&seed) % costs;
    }
}


static int
take(ngx_rl_level_t *level, ngx_rl_bucket_t *bucket, const arrival_t *arrival,
    ngx_rl_decision_t *d)
{
    int64_t  state[NGX_RL_STATES];

    bucket->cost = arrival->cost;

    if (ngx_rl_level_look(level, bucket, arrival->at, state)) {
        ngx_rl_level_take(level, bucket, state);
    }

    memset(d, 0, sizeof(ngx_rl_decision_t));
    ngx_rl_decide(d, bucket, state);

    return d->outcome == NGX_RL_PASSED;
}


static void
test_arrivals(const char *rate, uint64_t per_second, uint64_t seed,
    uint64_t costs)
{
    double             lacks, last;
    size_t             i, k;
    unsigned           wrong, rejected, over, low, enough;
    uint64_t           capacity, most;
    ngx_rl_level_t     level;
    ngx_rl_bucket_t    bucket;
    ngx_rl_decision_t  d;

    arrive(seed, costs);

    memset(&level, 0, sizeof(level));
    bucket = bucket_of(40, rate, 1);
    ngx_rl_bucket_advise(&bucket);

    wrong = 0;
    over = 0;
    rejected = 0;
    most = 0;
    lacks = 0;
    last = START;

    for (i = 0; i < ARRIVALS; i++) {
        rejected += !take(&level, &bucket, &arrivals[i], &d);
        needs[i] = d.needed;
        over += needs[i] > 40;
        most = (needs[i] > most) ? needs[i] : most;

        /* the same in other words: what all before took, less the refill */

        lacks -= (arrivals[i].at - last) * (double) per_second / SECOND;
        lacks = (lacks > 0 ? lacks : 0) + arrivals[i].cost;
        last = arrivals[i].at;

        wrong += needs[i] + 0.001 < lacks || needs[i] > lacks + 1.001;
    }

    ok(wrong == 0, "%s, costs up to %d: what each request needed", rate,
       (int) costs);
    ok(rejected == over && over > 0 && over < ARRIVALS,
       "those that needed more than the capacity are rejected");

    /* the largest need is enough for all; less is not, and rejects no more */

    low = 0;
    enough = 0;

    for (k = 0; k < BOUNDS && ngx_rl_advice_bounds[k] <= 2 * most; k++) {

        capacity = ngx_rl_advice_bounds[k];

        if (capacity < costs) {
            continue;
        }

        memset(&level, 0, sizeof(level));
        bucket = bucket_of(capacity, rate, 1);
        rejected = 0;
        over = 0;

        for (i = 0; i < ARRIVALS; i++) {
            rejected += !take(&level, &bucket, &arrivals[i], &d);
            over += needs[i] > capacity;
        }

        low += rejected > over;
        enough += (rejected == 0) != (capacity >= most);
    }

    is_number(low, 0, "no capacity rejects more than the curve says");
    is_number(enough, 0, "those that reject nobody are the same");
}


int
main(void)
{
    test_bins();
    test_shares();
    test_debt();
    test_decisions();
    test_arrivals("50r/s", 50, 1, 1);
    test_arrivals("60r/s", 60, 2, 1);
    test_arrivals("300r/s", 300, 3, 10);

    return tap_done();
}
