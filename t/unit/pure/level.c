
/*
 * Buckets and windows in the memory of one machine: what is there, what fits,
 * what is owed, and that a window with many requests is never too lenient.
 */

#include "tap.h"

#include "buckets.h"

#include "pure/ngx_rl_decision.h"
#include "pure/ngx_rl_level.h"


#define SECOND   1000000ULL
#define DAY      (86400 * SECOND)
#define START    (12345 * SECOND)        /* us */
#define ENTRIES  NGX_RL_ENTRIES

/* how late an entry of a full log may leave, as a part of the window */
#define LATE     31


typedef ngx_rl_bucket_t  bucket_t;
typedef ngx_rl_level_t   level_t;
typedef ngx_rl_log_t     log_t;


static void
is_state(const int64_t *state, int64_t first, int64_t second, int64_t third,
    const char *name)
{
    if (!ok(state[0] == first && state[1] == second && state[2] == third,
            "%s", name))
    {
        diag("got %" PRId64 ", %" PRId64 ", %" PRId64 ", expected %" PRId64
             ", %" PRId64 ", %" PRId64, state[0], state[1], state[2], first,
             second, third);
    }
}


/* a request as the limiter treats it; returns whether it passed */

static int
bucket_take(level_t *level, const bucket_t *bucket, uint64_t now,
    int64_t *state)
{
    memset(state, 0xaa, NGX_RL_STATES * sizeof(int64_t));

    if (!ngx_rl_level_look(level, bucket, now, state)) {
        return 0;
    }

    ngx_rl_level_take(level, bucket, state);

    return 1;
}


static int
window_take(log_t *log, const bucket_t *window, uint64_t now, int64_t *state)
{
    memset(state, 0xaa, NGX_RL_STATES * sizeof(int64_t));

    if (!ngx_rl_log_look(log, window, now, state)) {
        return 0;
    }

    ngx_rl_log_take(log, window, now, state);

    return 1;
}


/* ---- buckets */

static void
test_bucket(void)
{
    int       i;
    level_t   level, before;
    int64_t   state[NGX_RL_STATES];
    uint64_t  now;
    bucket_t  bucket;

    memset(&level, 0, sizeof(level));
    bucket = bucket_of(3, "1r/s", 1);
    now = START;

    ok(ngx_rl_level_look(&level, &bucket, now, state), "a new bucket is full");
    is_state(state, 3000000, 0, 0, "all of it is there");
    ok(ngx_rl_level_look(&level, &bucket, now, state)
       && state[0] == 3000000, "to look takes nothing");

    for (i = 2; i >= 0; i--) {
        ok(bucket_take(&level, &bucket, now, state), "a token is taken");
        is_state(state, i * 1000000, 0, 0, "the others are left");
    }

    ok(!bucket_take(&level, &bucket, now, state), "the fourth is denied");
    is_state(state, -1, 0, 0, "nothing is there");
    ok(!bucket_take(&level, &bucket, now + 999999, state),
       "a microsecond before a second has passed, too");
    is_state(state, -1 - 999999, 0, 0, "nearly a token is there");
    ok(bucket_take(&level, &bucket, now + SECOND, state), "then one passes");
    is_state(state, 0, 0, 0, "and has taken all of it");

    ok(bucket_take(&level, &bucket, now + 100 * SECOND, state),
       "after a long time");
    is_state(state, 2000000, 0, 0, "there was no more than the capacity");
    now += 100 * SECOND;

    /* a full bucket saves up no time */

    memset(&level, 0, sizeof(level));
    (void) ngx_rl_level_look(&level, &bucket, now, state);
    (void) ngx_rl_level_look(&level, &bucket, now + 900000, state);
    (void) bucket_take(&level, &bucket, now + 900000, state);
    (void) ngx_rl_level_look(&level, &bucket, now + SECOND, state);
    is_state(state, 2100000, 0, 0, "of a full bucket's time nothing is kept");

    /* the clock of another worker is a moment behind */

    before = level;
    (void) ngx_rl_level_look(&level, &bucket, now - SECOND, state);
    is_state(state, 2100000, 0, 0, "a moment earlier as much is there");
    ok(memcmp(&before, &level, sizeof(level)) == 0, "and nothing has changed");

    /* several limits: what fits may be looked at and not taken */

    bucket.cost = 3;
    ok(!ngx_rl_level_look(&level, &bucket, now + SECOND, state),
       "a cost above what is there is denied");
    is_state(state, -1 - 2100000, 0, 0, "and says what is there");
    bucket.cost = 2;
    ok(bucket_take(&level, &bucket, now + SECOND, state), "a lower one fits");
    is_state(state, 100000, 0, 0, "a tenth is left");
}


/* many looks add up to the same as one, or nearly so */

static void
test_fractions(void)
{
    size_t    r;
    level_t   level;
    int64_t   state[NGX_RL_STATES];
    uint64_t  seed, now, looks, exact, end;
    bucket_t  bucket;

    static const char  *rates[] = {
        "1r/s", "0.5r/s", "7r/m", "1r/h", "1r/d", "11r/d", "0.3r/h",
        "1.5r/s", "999.999999r/s"
    };

    for (r = 0; r < nelts_of(rates); r++) {
        memset(&level, 0, sizeof(level));
        bucket = bucket_of(1000000, rates[r], 1);
        bucket.cost = bucket.capacity;

        now = START;
        (void) bucket_take(&level, &bucket, now, state);

        seed = r;
        looks = 0;
        end = START + 100 * SECOND;

        while (now < end) {
            now += 1 + tap_random(&seed) % 2000;
            now = now < end ? now : end;
            (void) ngx_rl_level_look(&level, &bucket, now, state);
            looks++;
        }

        exact = ngx_rl_rate_refill(&bucket.rate, now - START);

        /* where a microtoken takes whole microseconds */

        if (bucket.rate.den % bucket.rate.num == 0) {
            is_number(-1 - state[0], exact, rates[r]);

        } else {
            ok((uint64_t) (-1 - state[0]) <= exact
               && (uint64_t) (-1 - state[0]) + looks >= exact,
               "%s: less than a microtoken is lost by each look", rates[r]);
        }
    }
}


static void
test_steps(void)
{
    level_t   level;
    int64_t   state[NGX_RL_STATES];
    bucket_t  bucket;

    memset(&level, 0, sizeof(level));
    bucket = bucket_of(10, "1r/s", 10);
    bucket.step = 5 * SECOND;

    ok(bucket_take(&level, &bucket, START, state), "all of a bucket of steps");
    is_state(state, 0, 0, 0, "its step begins");

    bucket.cost = 1;
    ok(!bucket_take(&level, &bucket, START + 5 * SECOND - 1, state),
       "nothing comes before the end of a step");
    is_state(state, -1, 5 * SECOND - 1, 0, "nearly all of which is gone");

    ok(bucket_take(&level, &bucket, START + 7 * SECOND, state),
       "then all of its tokens");
    is_state(state, 4000000, 2 * SECOND, 0,
             "steps are counted from the first one");

    ok(bucket_take(&level, &bucket, START + 10 * SECOND, state), "at its end");
    is_state(state, 8000000, 0, 0, "comes the next one");

    ok(bucket_take(&level, &bucket, START + 16 * SECOND, state), "the third");
    is_state(state, 9000000, 0, 0,
             "a full bucket begins a step when it is taken from");

    /* steps of less than a microtoken */

    memset(&level, 0, sizeof(level));
    bucket = bucket_of(1, "1r/d", 1);
    bucket.step = 10000;

    (void) bucket_take(&level, &bucket, START, state);
    (void) ngx_rl_level_look(&level, &bucket, START + 80000, state);
    is_state(state, -1, 80000, 0, "eight steps without a microtoken");
    (void) ngx_rl_level_look(&level, &bucket, START + 90000, state);
    is_state(state, -2, 0, 0, "the ninth has one");
}


static void
test_changed(void)
{
    level_t   level;
    int64_t   state[NGX_RL_STATES];
    bucket_t  large, small;

    large = bucket_of(1000, "1r/s", 1);
    small = bucket_of(5, "1r/s", 1);

    memset(&level, 0, sizeof(level));
    (void) bucket_take(&level, &large, START, state);
    is_state(state, 999000000, 0, 0, "999 of 1000");

    ok(bucket_take(&level, &small, START, state), "the bucket got smaller");
    is_state(state, 4000000, 0, 0, "only its capacity is left of that");

    ok(bucket_take(&level, &large, START + SECOND, state), "it grew again");
    is_state(state, 4000000, 0, 0, "what is gone stays gone");

    /* a bucket that did not refill keeps what it has */

    large.rate = bucket_of(1, "0r/s", 1).rate;
    ok(bucket_take(&level, &large, START + 10 * DAY, state), "with rate 0");
    is_state(state, 3000000, 0, 0, "time brings nothing");
}


static void
test_never(void)
{
    level_t   level;
    int64_t   state[NGX_RL_STATES];
    bucket_t  bucket;

    memset(&level, 0, sizeof(level));
    bucket = bucket_of(2, "0r/s", 1);

    ok(bucket_take(&level, &bucket, START, state)
       && bucket_take(&level, &bucket, START, state), "rate 0: its capacity");
    ok(!bucket_take(&level, &bucket, START + 1000 * DAY, state),
       "and nothing after that");
    is_state(state, -1, 0, 0, "however long one waits");

    /* the longest time and the greatest bucket */

    bucket = bucket_of(1000000000, "1000000000r/s", 100000);
    memset(&level, 0, sizeof(level));

    (void) bucket_take(&level, &bucket, 1, state);
    is_state(state, 999900000 * (int64_t) SECOND, 0, 0, "the greatest bucket");
    ok(bucket_take(&level, &bucket, UINT64_MAX, state),
       "after all the time that a number holds");
    is_state(state, 999900000 * (int64_t) SECOND, 0, 0, "is full");

    bucket = bucket_of(1000000000, "0.000001r/d", 100000);
    memset(&level, 0, sizeof(level));

    (void) bucket_take(&level, &bucket, 1, state);
    (void) ngx_rl_level_look(&level, &bucket, 1000 * DAY + 1, state);
    is_state(state, 999900000 * (int64_t) SECOND + 1000, 0, 0,
             "the slowest rate");
}


/* a cost above the capacity of a share */

static void
test_owed(void)
{
    level_t   level;
    int64_t   state[NGX_RL_STATES];
    bucket_t  bucket, one;

    memset(&level, 0, sizeof(level));
    bucket = bucket_of(5, "1r/s", 8);
    one = bucket_of(5, "1r/s", 1);

    ok(bucket_take(&level, &bucket, START, state),
       "eight of five: passes where all of it is there");
    is_state(state, 0, 0, 3000000, "three are owed");

    ok(!bucket_take(&level, &one, START + 2 * SECOND, state),
       "which come before all others");
    is_state(state, -1, 0, 1000000, "one is still owed");
    ok(!bucket_take(&level, &one, START + 4 * SECOND - 1, state),
       "until a microsecond before");
    is_state(state, -1 - 999999, 0, 0, "a token is there");
    ok(bucket_take(&level, &one, START + 4 * SECOND, state), "then it is");
    is_state(state, 0, 0, 0, "and taken");

    ok(!bucket_take(&level, &bucket, START + 9 * SECOND - 1, state),
       "the next eight wait until the bucket is full");
    is_state(state, -1 - 4999999, 0, 0, "which it nearly is");
    ok(bucket_take(&level, &bucket, START + 9 * SECOND, state),
       "and pass when it is");
    is_state(state, 0, 0, 3000000, "and owe again");

    /* over time no more than the rate */

    ok(!ngx_rl_level_look(&level, &bucket, START + 17 * SECOND - 1, state)
       && ngx_rl_level_look(&level, &bucket, START + 17 * SECOND, state),
       "eight every eight seconds");

    /* with steps */

    memset(&level, 0, sizeof(level));
    bucket.step = 2 * SECOND;
    (void) bucket_take(&level, &bucket, START, state);
    (void) ngx_rl_level_look(&level, &bucket, START + 3 * SECOND, state);
    is_state(state, -1, SECOND, 1000000, "steps pay it back, too");

    /* and where no token ever comes */

    memset(&level, 0, sizeof(level));
    bucket = bucket_of(1, "0r/s", 100000);
    (void) bucket_take(&level, &bucket, START, state);
    (void) ngx_rl_level_look(&level, &bucket, START + 1000 * DAY, state);
    is_state(state, -1, 0, 99999 * (int64_t) SECOND, "or it is owed for ever");
}


/*
 * Against the definition: never more than the capacity and what has come since
 * in any time, and a request that waits as long as it is told passes.
 */

static void
test_bucket_model(void)
{
    int                run, i, passed;
    level_t            level;
    int64_t            state[NGX_RL_STATES];
    uint64_t           seed, now, taken, first, wrong, late;
    bucket_t           bucket;
    ngx_rl_decision_t  d;

    static const char  *rates[] = {
        "1r/s", "3r/s", "0.5r/s", "7r/m", "100r/s", "13r/h", "1.5r/s"
    };

    static const uint64_t  steps[] = { 0, 0, 10000, 700000, 5 * SECOND };

    seed = 11;
    wrong = 0;
    late = 0;

    for (run = 0; run < 500; run++) {
        bucket = bucket_of(1 + tap_random(&seed) % 50,
                           rates[tap_random(&seed) % nelts_of(rates)], 1);
        bucket.step = steps[tap_random(&seed) % nelts_of(steps)];

        memset(&level, 0, sizeof(level));
        now = first = START + tap_random(&seed) % DAY;
        taken = 0;

        for (i = 0; i < 200; i++) {
            bucket.cost = 1 + tap_random(&seed) % bucket.capacity;
            passed = bucket_take(&level, &bucket, now, state);

            if (passed) {
                taken += bucket.cost * SECOND;

            } else {
                ngx_rl_decide(&d, &bucket, state);

                if (i % 2) {
                    now += d.retry_after * SECOND;
                    late += !bucket_take(&level, &bucket, now, state);
                    taken += bucket.cost * SECOND;
                }
            }

            wrong += taken > bucket.capacity * SECOND
                             + ngx_rl_rate_refill(&bucket.rate, now - first);

            now += tap_random(&seed) % (2 * SECOND);
        }
    }

    is_number(wrong, 0, "100000 requests: never more than came");
    is_number(late, 0, "who waits as long as told passes");
}


/* ---- windows */

static void
test_window(void)
{
    int       i;
    log_t     log;
    int64_t   state[NGX_RL_STATES];
    bucket_t  window;

    memset(&log, 0, sizeof(log));
    window = window_of(3, 60 * SECOND, 1);

    ok(ngx_rl_log_look(&log, &window, START, state), "a new window is empty");
    is_state(state, 3, 0, 0, "all of it is there, and there is no oldest one");

    for (i = 0; i < 3; i++) {
        ok(window_take(&log, &window, START + i * SECOND, state), "passed");
        is_state(state, 2 - i, 60 * SECOND - i * SECOND, 0,
                 "the others are left, the first one leaves first");
    }

    ok(!window_take(&log, &window, START + 3 * SECOND, state), "denied");
    is_state(state, -1, 57 * SECOND, 57 * SECOND,
             "until the first one has left");
    is_number(log.n, 3, "who is denied is not in the log");

    window.cost = 2;
    ok(!window_take(&log, &window, START + 3 * SECOND, state),
       "a cost of two is denied");
    is_state(state, -1, 57 * SECOND, 58 * SECOND, "until two have left");

    window.cost = 1;
    ok(!window_take(&log, &window, START + 60 * SECOND - 1, state),
       "a microsecond before its end it is there");
    is_state(state, -1, 1, 1, "for that microsecond");
    ok(window_take(&log, &window, START + 60 * SECOND, state),
       "at its end it is not");
    is_state(state, 0, SECOND, 0, "the second one is the first to leave");
    is_number(log.n, 3, "in the place of the first");

    ok(ngx_rl_log_look(&log, &window, START + 1000 * DAY, state),
       "after a long time");
    is_state(state, 3, 0, 0, "all have left");
    is_number(log.n, 0, "the log is empty");

    /* at the same time, or by a clock that is a moment behind */

    (void) window_take(&log, &window, START, state);
    (void) window_take(&log, &window, START, state);
    ok(log.n == 1 && log.entries[0].cost == 2, "the same time is one entry");
    (void) window_take(&log, &window, START - 5, state);
    ok(log.n == 1 && log.entries[0].cost == 3
       && log.entries[0].time == START, "an earlier one leaves with it");
    ok(!ngx_rl_log_look(&log, &window, START - 5, state), "and counts at once");
    is_state(state, -1, 60 * SECOND + 5, 60 * SECOND + 5,
             "for as long as that is");
}


static void
test_window_changed(void)
{
    int       i;
    log_t     log;
    int64_t   state[NGX_RL_STATES];
    bucket_t  window;

    memset(&log, 0, sizeof(log));
    window = window_of(10, 60 * SECOND, 1);

    for (i = 0; i < 10; i++) {
        (void) window_take(&log, &window, START + i * SECOND, state);
    }

    window.capacity = 4;
    ok(!ngx_rl_log_look(&log, &window, START + 10 * SECOND, state),
       "a limit that became lower than what is in it");
    is_state(state, -1, 50 * SECOND, 56 * SECOND,
             "waits until enough has left");

    window.capacity = 11;
    ok(ngx_rl_log_look(&log, &window, START + 10 * SECOND, state)
       && state[0] == 1, "a higher one has room at once");

    window.window = 5 * SECOND;
    ok(ngx_rl_log_look(&log, &window, START + 10 * SECOND, state)
       && state[0] == 7 && log.n == 4, "a shorter window has fewer in it");
}


/* a cost above the share: paid for by as many windows as it takes */

static void
test_window_owed(void)
{
    log_t     log;
    size_t    i;
    int64_t   state[NGX_RL_STATES];
    uint64_t  seed, now, total;
    bucket_t  window;

    static const struct {
        uint64_t  cost;
        uint64_t  windows;
    } cases[] = {
        { 4, 1 }, { 5, 1 }, { 6, 2 }, { 10, 2 }, { 11, 3 }, { 100000, 20000 }
    };

    memset(&log, 0, sizeof(log));
    window = window_of(5, 60 * SECOND, 8);
    ok(window_take(&log, &window, START, state),
       "eight of five: passes where nothing is in it");
    is_state(state, 0, 120 * SECOND, 0,
             "nothing is left, for two windows instead of one");
    ok(!window_take(&log, &window, START + SECOND, state), "not a second time");
    is_state(state, -1, 119 * SECOND, 119 * SECOND, "until all of it has left");

    window.cost = 1;
    ok(!window_take(&log, &window, START + 2 * SECOND, state), "nor a one");
    is_state(state, -1, 118 * SECOND, 118 * SECOND, "until there is room");
    ok(!window_take(&log, &window, START + 60 * SECOND, state),
       "which is not after the first window");
    ok(!window_take(&log, &window, START + 120 * SECOND - 1, state),
       "nor a microsecond before the end of the second");
    is_state(state, -1, 1, 1, "but then");
    ok(window_take(&log, &window, START + 120 * SECOND, state), "it fits");
    is_state(state, 4, 60 * SECOND, 0, "and is all that is in it");

    window.cost = 8;
    ok(!window_take(&log, &window, START + 121 * SECOND, state),
       "eight do not where one is in it");
    is_state(state, -1 - 4, 59 * SECOND, 59 * SECOND, "but when it has left");

    for (i = 0; i < nelts_of(cases); i++) {
        memset(&log, 0, sizeof(log));
        window.cost = cases[i].cost;
        (void) window_take(&log, &window, START, state);
        ok(state[1] == (int64_t) (cases[i].windows * 60 * SECOND),
           "%" PRIu64 " of five: %" PRIu64 " windows", cases[i].cost,
           cases[i].windows);

        window.cost = 5;
        ok(!window_take(&log, &window,
                        START + cases[i].windows * 60 * SECOND - 1, state),
           "nothing more passes before they are over");
        ok(window_take(&log, &window,
                       START + cases[i].windows * 60 * SECOND, state),
           "and all of the share after them");
    }

    /* a limit that became higher meanwhile */

    memset(&log, 0, sizeof(log));
    window.cost = 8;
    (void) window_take(&log, &window, START, state);
    window.capacity = 10;
    window.cost = 2;
    ok(window_take(&log, &window, START + SECOND, state), "has room for two");
    ok(log.n == 1 && log.entries[0].cost == 10, "which are owed with the rest");

    /* over a long time it is the share, whatever the costs are */

    memset(&log, 0, sizeof(log));
    window.capacity = 5;
    seed = 11;
    total = 0;

    for (now = START; now < START + 10000 * 60 * SECOND;
         now += 1 + tap_random(&seed) % (20 * SECOND))
    {
        window.cost = 1 + tap_random(&seed) % 30;
        total += window_take(&log, &window, now, state) ? window.cost : 0;
    }

    ok(total > 10000 && total <= 10000 * 5 + 30,
       "%" PRIu64 " passed in 10000 windows of five", total);
}


static void
test_squeeze(void)
{
    int       i;
    log_t     log;
    int64_t   state[NGX_RL_STATES];
    uint64_t  sum, last;
    bucket_t  window;

    memset(&log, 0, sizeof(log));
    ngx_rl_log_squeeze(&log);
    is_number(log.n, 0, "of nothing nothing is squeezed");

    log.n = 1;
    log.entries[0].time = START;
    log.entries[0].cost = 3;
    ngx_rl_log_squeeze(&log);
    ok(log.n == 1 && log.entries[0].cost == 3, "nor of one");

    log.n = 2;
    log.entries[1].time = START + 5;
    log.entries[1].cost = 4;
    ngx_rl_log_squeeze(&log);
    ok(log.n == 1 && log.entries[0].cost == 7
       && log.entries[0].time == START + 5,
       "two become one, and the older stays as long as the younger");

    /* a full log */

    memset(&log, 0, sizeof(log));
    window = window_of(10000, 64 * SECOND, 1);

    for (i = 0; i < ENTRIES; i++) {
        window.cost = i + 1;
        (void) window_take(&log, &window, START + i * 1000, state);
    }

    is_number(log.n, ENTRIES, "64 entries");

    (void) window_take(&log, &window, START + ENTRIES * 1000, state);
    is_number(log.n, ENTRIES, "one more: still 64");
    is_number(log.entries[ENTRIES - 1].time, START + ENTRIES * 1000,
              "the last one is the new one");
    is_number(log.entries[0].time, START, "the first one is still the first");

    sum = 0;
    last = 0;

    for (i = 0; i < ENTRIES; i++) {
        sum += log.entries[i].cost;
        ok(log.entries[i].time > last, "in the order of time");
        last = log.entries[i].time;
    }

    is_number(sum, ENTRIES * (ENTRIES + 1) / 2 + ENTRIES,
              "nothing of their cost is lost");

    for (i = ENTRIES; i > 1; i--) {
        ngx_rl_log_squeeze(&log);
    }

    ok(log.n == 1 && log.entries[0].cost == sum
       && log.entries[0].time == START + ENTRIES * 1000,
       "in the end one entry has all");
}


/* all that passed, with nothing forgotten */

static uint64_t     model_times[100000];
static uint64_t     model_costs[100000];
static size_t       model_n;


/* the cost of what passed after this time */

static uint64_t
model_used(uint64_t after)
{
    size_t    i;
    uint64_t  used;

    used = 0;

    for (i = model_n; i && model_times[i - 1] > after; i--) {
        used += model_costs[i - 1];
    }

    return used;
}


/* how much later the next request comes */

static uint64_t
gap_of(int kind, uint64_t window, uint64_t capacity, uint64_t *seed)
{
    uint64_t  mean;

    mean = window / capacity + 1;

    switch (kind) {

    case 0:
        /* as fast as the limit allows, like a clock */
        return mean;

    case 1:
        /* twice as fast */
        return mean / 2 + 1;

    case 2:
        return 1 + tap_random(seed) % (2 * mean);

    case 3:
        /* bursts */
        return tap_random(seed) % 50 ? 1 + tap_random(seed) % 10
                                     : tap_random(seed) % window;

    case 4:
        /* ever shorter, then a pause */
        return 1 + (window >> (1 + tap_random(seed) % 40));

    default:
        /* pauses of about the window's length, where it empties */
        return tap_random(seed) % 20 ? 1 + tap_random(seed) % mean
                                     : window - window / 64
                                       + tap_random(seed) % (window / 32);
    }
}


static void
test_window_model(void)
{
    int       kind, run, passed, squeezed;
    log_t     log, later;
    size_t    i;
    int64_t   state[NGX_RL_STATES];
    int64_t   then[NGX_RL_STATES];
    uint64_t  seed, now, used, last;
    uint64_t  lenient, strict, inexact, early, total, denied;
    bucket_t  window;

    static const char  *kinds[] = {
        "at the rate of the limit", "at twice the rate", "at random",
        "in bursts", "at all scales", "with long pauses"
    };

    for (kind = 0; kind < (int) nelts_of(kinds); kind++) {

        seed = 100 + kind;
        lenient = strict = inexact = early = total = denied = 0;

        for (run = 0; run < 60; run++) {
            memset(&log, 0, sizeof(log));
            window = window_of(2 + tap_random(&seed) % (run % 3 ? 2000 : 60),
                               10000 + tap_random(&seed) % (60 * SECOND), 1);

            model_n = 0;
            squeezed = 0;
            now = START;

            for (i = 0; i < 3000; i++) {
                window.cost = 1;

                if (run % 2) {
                    window.cost += tap_random(&seed) % 3 % window.capacity;
                }

                passed = window_take(&log, &window, now, state);
                used = model_used(now - window.window);
                total++;

                if (passed) {
                    lenient += used && used + window.cost > window.capacity;

                    squeezed |= log.n == ENTRIES;
                    model_times[model_n] = now;
                    model_costs[model_n++] = window.cost;

                } else {
                    denied++;

                    /* a window longer by so much would have denied it */

                    used = model_used(now - window.window
                                      - window.window / LATE);
                    strict += used + window.cost <= window.capacity;

                    /* and it fits after the wait, not before */

                    later = log;
                    early += !ngx_rl_log_look(&later, &window, now + state[2],
                                              then);
                    later = log;
                    early += ngx_rl_log_look(&later, &window,
                                             now + state[2] - 1, then);
                }

                /* as long as the log was never full it is exact */

                if (!squeezed) {
                    used = model_used(now - window.window);
                    last = passed ? state[0] : -1 - state[0];
                    inexact += last != (used < window.capacity
                                        ? window.capacity - used : 0)
                               || (!passed && used + window.cost
                                   <= window.capacity);
                }

                now += gap_of(kind, window.window, window.capacity, &seed);
            }
        }

        is_number(lenient, 0, kinds[kind]);
        is_number(strict, 0,
                  "never as if the window were longer by a 31st part");
        is_number(inexact, 0, "up to 64 entries to the microsecond");
        is_number(early, 0, "the wait is neither too short nor too long");
        ok(denied > 0, "%" PRIu64 " of %" PRIu64 " were denied", denied, total);
    }
}


/* 2024-02-29 12:00:00 */
#define LEAP_DAY   1709208000000000ULL
#define COUNT_END  (LEAP_DAY + 43200 * SECOND)


static int
count_take(ngx_rl_count_t *count, bucket_t *window, uint64_t now,
    int64_t *state)
{
    if (!ngx_rl_count_look(count, window, 0, now, state)) {
        return 0;
    }

    ngx_rl_count_take(count, window, now, state);

    return 1;
}


static void
test_count(void)
{
    int64_t         state[NGX_RL_STATES];
    bucket_t        month;
    ngx_rl_count_t  count;

    memset(&count, 0, sizeof(count));
    month = fixed_of(3, 0, 1);

    ok(count_take(&count, &month, LEAP_DAY, state) && state[0] == 2,
       "the first of a month");
    ok(state[1] == 43200 * (int64_t) SECOND && state[2] == state[1],
       "which ends tomorrow, after the leap day");
    is_number(ngx_rl_count_lasts(&count, &month, LEAP_DAY) / SECOND, 43200,
              "the count is kept for as long");
    ok(!ngx_rl_level_much(&month, state), "this is not much");

    month.cost = 2;
    ok(count_take(&count, &month, COUNT_END - 1, state) && state[0] == 0,
       "the last");
    ok(ngx_rl_level_much(&month, state), "this is");
    ok(!count_take(&count, &month, COUNT_END - 1, state) && state[0] == -1
       && state[1] == 1, "one too many, a microsecond before the end");
    ok(count_take(&count, &month, COUNT_END, state) && state[0] == 1
       && state[1] == 31 * 86400 * (int64_t) SECOND, "the next month");
    ok(!count_take(&count, &month, COUNT_END - 60 * SECOND, state)
       && state[0] == -2, "a clock set back by a minute stays in it");
    ok(state[1] == (31 * 86400 + 60) * (int64_t) SECOND, "to its end");

    ok(!count_take(&count, &month, COUNT_END - 61 * SECOND, state)
       && state[1] == 61 * (int64_t) SECOND,
       "one that is set back further takes the count along");
    ok(count_take(&count, &month, COUNT_END, state) && state[0] == 1,
       "and nobody is locked out");

    month.capacity = 1;
    ok(!ngx_rl_count_look(&count, &month, 0, COUNT_END, state)
       && state[0] == -1, "the capacity was reduced");
    ok(ngx_rl_count_look(&count, &month, 0, COUNT_END + 32 * 86400 * SECOND,
                         state) && state[0] == 1, "nothing is owed for it");
}


static void
test_count_owed(void)
{
    int64_t         state[NGX_RL_STATES];
    bucket_t        window;
    ngx_rl_count_t  count;

    memset(&count, 0, sizeof(count));
    window = fixed_of(10, SECOND, 25);

    ok(ngx_rl_count_look(&count, &window, 1, LEAP_DAY, state),
       "a share that is smaller than the cost");
    ngx_rl_count_take(&count, &window, LEAP_DAY, state);
    ok(state[0] == 0, "is all taken");
    is_number(ngx_rl_count_lasts(&count, &window, LEAP_DAY), 3 * SECOND,
              "and owes for two more periods");

    window.cost = 1;
    ok(!ngx_rl_count_look(&count, &window, 1, LEAP_DAY + SECOND, state),
       "nothing in the next");
    ok(ngx_rl_count_look(&count, &window, 1, LEAP_DAY + 2 * SECOND, state)
       && state[0] == 5, "a half in the one after");
    ok(ngx_rl_count_look(&count, &window, 1, LEAP_DAY + 3 * SECOND, state)
       && state[0] == 10, "and then all");

    window.cost = 95;
    memset(&count, 0, sizeof(count));
    ok(ngx_rl_count_look(&count, &window, 1, LEAP_DAY, state), "a large one");
    ngx_rl_count_take(&count, &window, LEAP_DAY, state);

    window.cost = 1;
    ok(ngx_rl_count_look(&count, &window, 1, LEAP_DAY + 9 * SECOND, state)
       && state[0] == 5, "is repaid while nobody looks");
}


/* against a plain count, over months and windows of all lengths */

static void
test_count_model(void)
{
    int             fits;
    size_t          i, run;
    int64_t         state[NGX_RL_STATES];
    bucket_t        window;
    uint64_t        seed, now, start, end, since, used, wrong, passed, span;
    ngx_rl_count_t  count;

    seed = 7;
    wrong = passed = 0;

    for (run = 0; run < 200; run++) {
        memset(&count, 0, sizeof(count));
        window = fixed_of(1 + tap_random(&seed) % 50,
                          run % 4 ? 1000 * (1 + tap_random(&seed) % 100000) : 0,
                          1);

        if (run % 8 == 0) {
            ngx_rl_period_calendar(&window.period, tap_random(&seed) % 5,
                                   (int64_t) (tap_random(&seed) % 100) * 900
                                   - 43200,
                                   1 + tap_random(&seed) % 7);
        }

        now = LEAP_DAY + tap_random(&seed) % (1000 * 86400 * SECOND);
        since = used = 0;

        for (i = 0; i < 500; i++) {
            ngx_rl_period_at(&window.period, now, &start, &end);
            span = (end - start) / window.capacity;
            window.cost = 1 + tap_random(&seed) % 3 % window.capacity;

            used = (start == since) ? used : 0;
            since = start;
            fits = used + window.cost <= window.capacity;
            used += fits ? window.cost : 0;

            wrong += count_take(&count, &window, now, state) != fits
                     || (uint64_t) (fits ? state[0] : -1 - state[0])
                        != window.capacity - used
                     || state[1] != (int64_t) (end - now);
            passed += fits;

            now = tap_random(&seed) % 10
                  ? now + tap_random(&seed) % (2 * span + 2)
                  : end - tap_random(&seed) % 2;
        }
    }

    is_number(wrong, 0, "a count for each period says the same");
    ok(passed > 10000, "%" PRIu64 " passed", passed);
}


/*
 * A counter against the log: it never admits twice the capacity, and in no
 * window more than by the part of the current period that has passed.
 */

static void
test_counter(void)
{
    int64_t         state[NGX_RL_STATES];
    bucket_t        window;
    uint64_t        start;
    ngx_rl_count_t  count;

    memset(&count, 0, sizeof(count));
    window = counter_of(10, 60 * SECOND, 10);
    start = LEAP_DAY;

    ok(count_take(&count, &window, start, state) && state[0] == 0,
       "all of a window");
    ok(state[1] == 120 * (int64_t) SECOND, "counts to the end of the next");

    window.cost = 1;
    ok(!count_take(&count, &window, start + 59 * SECOND, state)
       && state[0] == -1, "denied in the same period");
    ok(state[2] == 7 * (int64_t) SECOND,
       "until a tenth of the next one has passed");
    ok(!count_take(&count, &window, start + 66 * SECOND - 1, state),
       "denied to the last microsecond");
    ok(count_take(&count, &window, start + 66 * SECOND, state)
       && state[0] == 0, "then it fits");
    ok(state[2] == 6 * (int64_t) SECOND, "and the next one a tenth later");
    ok(count_take(&count, &window, start + 90 * SECOND, state)
       && state[0] == 3, "half of the period before counts");
    ok(count_take(&count, &window, start + 240 * SECOND, state)
       && state[0] == 9, "and nothing after two");

    memset(&count, 0, sizeof(count));
    window.cost = 25;
    ok(ngx_rl_count_look(&count, &window, 1, start, state),
       "a share that is smaller than the cost");
    ngx_rl_count_take(&count, &window, start, state);
    window.cost = 1;
    ok(!ngx_rl_count_look(&count, &window, 1, start + 119 * SECOND, state),
       "is repaid over several periods");
    ok(ngx_rl_count_look(&count, &window, 1, start + 179 * SECOND, state)
       && state[0] == 4, "by and by");
    ok(ngx_rl_count_look(&count, &window, 1, start + 240 * SECOND, state)
       && state[0] == 10, "and then all is there");
}


static void
test_counter_model(void)
{
    int             fits;
    size_t          i, k, run;
    int64_t         state[NGX_RL_STATES], then[NGX_RL_STATES];
    bucket_t        window;
    uint64_t        seed, now, used, gone, most, lenient, early, passed;
    ngx_rl_count_t  count, later;

    seed = 11;
    lenient = early = passed = most = 0;

    for (run = 0; run < 200; run++) {
        memset(&count, 0, sizeof(count));
        window = counter_of(2 + tap_random(&seed) % 100,
                            1000 * (10 + tap_random(&seed) % 60000), 1);
        model_n = 0;
        now = LEAP_DAY + tap_random(&seed) % (1000 * SECOND);

        for (i = 0; i < 1000; i++) {
            window.cost = 1 + tap_random(&seed) % 3 % window.capacity;
            fits = count_take(&count, &window, now, state);
            used = model_used(now - window.period.length);
            passed += fits;

            if (fits) {
                gone = now - count.start;
                model_times[model_n] = now;
                model_costs[model_n++] = window.cost;

                /* used + cost <= capacity * (1 + gone / length) */

                lenient += (used + window.cost - (used + window.cost
                                                  < window.capacity
                                                  ? used + window.cost
                                                  : window.capacity))
                           * window.period.length > window.capacity * gone;
                used = 100 * (used + window.cost) / window.capacity;
                most = (used > most) ? used : most;

            } else {
                later = count;
                early += !ngx_rl_count_look(&later, &window, 0,
                                            now + state[2], then);
                later = count;
                early += ngx_rl_count_look(&later, &window, 0,
                                           now + state[2] - 1, then);
            }

            k = tap_random(&seed) % 20;
            now += k ? tap_random(&seed) % (2 * window.period.length
                                            / window.capacity)
                     : tap_random(&seed) % window.period.length;
        }
    }

    is_number(lenient, 0, "never more than the bound");
    is_number(early, 0, "the wait is neither too short nor too long");
    ok(most > 100 && most < 200, "at most %" PRIu64 " %% of the capacity",
       most);
    ok(passed > 10000, "%" PRIu64 " passed", passed);
}


int
main(void)
{
    test_bucket();
    test_fractions();
    test_steps();
    test_changed();
    test_never();
    test_owed();
    test_bucket_model();
    test_window();
    test_window_changed();
    test_window_owed();
    test_squeeze();
    test_window_model();
    test_count();
    test_count_owed();
    test_count_model();
    test_counter();
    test_counter_model();

    return tap_done();
}
