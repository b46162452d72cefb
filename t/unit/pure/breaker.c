
/*
 * The circuit breaker: when it opens, who probes and when, what closes it.
 */

#include "tap.h"

#include "pure/ngx_rl_backoff.h"
#include "pure/ngx_rl_breaker.h"


#define DISTRIBUTED  NGX_RL_DISTRIBUTED
#define FALLBACK     NGX_RL_FALLBACK
#define OPEN         NGX_RL_CIRCUIT_OPEN

#define START        1000000ULL        /* ms */


static const ngx_rl_breaker_conf_t  defaults = { 5, 30000, 10000 };


static void
is_state(const ngx_rl_breaker_t *b, ngx_rl_breaker_e state, const char *name)
{
    if (!ok(b->state == state, "%s: %s", ngx_rl_breaker_names[state], name)) {
        diag("got %s", ngx_rl_breaker_names[b->state]);
    }
}


/* one that has just opened, at "now" */

static ngx_rl_breaker_t
opened_at(uint64_t now, const ngx_rl_breaker_conf_t *conf)
{
    uint32_t          i;
    ngx_rl_breaker_t  b;

    memset(&b, 0, sizeof(b));

    for (i = 0; i < conf->failures; i++) {
        (void) ngx_rl_breaker_failure(&b, conf, now, 0);
    }

    return b;
}


static void
test_transitions(void)
{
    int               i;
    ngx_rl_breaker_t  b;

    memset(&b, 0, sizeof(b));
    is_state(&b, DISTRIBUTED, "all zero is a new one");

    is_number(ngx_rl_breaker_success(&b), 0, "a success changes nothing");
    is_number(ngx_rl_breaker_close(&b, START), 0, "nor does a handshake");
    is_number(ngx_rl_breaker_probe(&b, START, 100, 7), 0,
              "anybody may connect");
    is_number(b.prober, 0, "and is no prober");

    is_number(ngx_rl_breaker_failure(&b, &defaults, START, 0), 1,
              "the first failure is a change");
    is_state(&b, FALLBACK, "after one failure");
    is_number(ngx_rl_breaker_probe(&b, START, 100, 7), 0,
              "anybody may still connect");
    ngx_rl_breaker_probed(&b, &defaults, START, 0, 7);
    ok(b.until == 0 && b.attempt == 0, "and there is nothing to be probed");

    is_number(ngx_rl_breaker_success(&b), 1, "a success is a change");
    is_state(&b, DISTRIBUTED, "after a success");

    (void) ngx_rl_breaker_failure(&b, &defaults, START + 1, 0);
    is_state(&b, FALLBACK, "after the second failure");
    is_number(ngx_rl_breaker_close(&b, START + 1), 1,
              "a handshake is a change, too");
    is_state(&b, DISTRIBUTED, "after a handshake");
    is_number(b.closed, 0, "which closed nothing");

    for (i = 2; i < 4; i++) {
        is_number(ngx_rl_breaker_failure(&b, &defaults, START + i, 0),
                  i == 2, "only the first of these failures is a change");
    }

    is_state(&b, FALLBACK, "after the fourth failure");

    is_number(ngx_rl_breaker_failure(&b, &defaults, START + 4, 0),
              1, "the fifth failure is a change");
    is_state(&b, OPEN,
             "after five failures, whatever successes were between them");

    is_number(ngx_rl_breaker_success(&b), 0, "a late answer changes nothing");
    is_state(&b, OPEN, "after a late answer");

    is_number(ngx_rl_breaker_close(&b, START + 5), 1, "a probe's success is");
    is_state(&b, DISTRIBUTED, "after a probe");
    is_number(b.closed, 1, "it was closed once");
    is_number(ngx_rl_breaker_close(&b, START + 6), 0,
              "the next one finds it closed");
    is_number(b.closed, 1, "and is not counted");

    b = opened_at(START, &defaults);
    (void) ngx_rl_breaker_close(&b, START);

    for (i = 0; i < 4; i++) {
        (void) ngx_rl_breaker_failure(&b, &defaults, START + 1, 0);
    }

    is_state(&b, FALLBACK, "failures before the outage count no more");

    (void) ngx_rl_breaker_failure(&b, &defaults, START + 1, 0);
    is_state(&b, OPEN, "new ones do");
    (void) ngx_rl_breaker_close(&b, START + 1);
    is_number(b.closed, 2, "it was closed twice");

    is_text(ngx_rl_breaker_names[DISTRIBUTED], "distributed", "distributed");
    is_text(ngx_rl_breaker_names[FALLBACK], "fallback", "fallback");
    is_text(ngx_rl_breaker_names[OPEN], "circuit_open", "circuit_open");
}


/* so many failures, all within the window or one millisecond too far apart */

static void
test_window(void)
{
    uint32_t               i, n;
    ngx_rl_breaker_t       b;
    ngx_rl_breaker_conf_t  conf;

    static const uint32_t  numbers[] = { 1, 2, 5, 99, 100 };

    conf.window = 30000;
    conf.probe = 10000;

    for (n = 0; n < sizeof(numbers) / sizeof(numbers[0]); n++) {
        conf.failures = numbers[n];

        memset(&b, 0, sizeof(b));

        for (i = 1; i < conf.failures; i++) {
            (void) ngx_rl_breaker_failure(&b, &conf, START, 0);
        }

        ok(b.state != OPEN, "%u: one less does not open it", conf.failures);

        (void) ngx_rl_breaker_failure(&b, &conf, START + 30000, 0);
        is_state(&b, OPEN, "the last one at the end of the window");

        if (conf.failures == 1) {
            continue;
        }

        memset(&b, 0, sizeof(b));

        for (i = 1; i < conf.failures; i++) {
            (void) ngx_rl_breaker_failure(&b, &conf, START, 0);
        }

        (void) ngx_rl_breaker_failure(&b, &conf, START + 30001, 0);
        is_state(&b, FALLBACK, "a millisecond later the first ones have left");

        /* those are one, and as many more as it needs */

        for (i = 2; i < conf.failures; i++) {
            (void) ngx_rl_breaker_failure(&b, &conf, START + 60001, 0);
        }

        is_state(&b, FALLBACK, "and do not come back");

        (void) ngx_rl_breaker_failure(&b, &conf, START + 60001, 0);
        is_state(&b, OPEN, "but the one of then counts to its end");
    }

    /* workers' clocks may differ a little */

    memset(&b, 0, sizeof(b));

    for (i = 0; i < 5; i++) {
        (void) ngx_rl_breaker_failure(&b, &defaults, START - i, 0);
    }

    is_state(&b, OPEN, "failures told in the wrong order count");
}


/* the same as a list of all failures that ever were, for 1 to 100 of them */

static void
test_model(void)
{
    int                    changed;
    uint32_t               run, i, k, from, in, wrong, opened;
    uint64_t               seed, now, times[1000];
    ngx_rl_breaker_t       b;
    ngx_rl_breaker_e       before, expected;
    ngx_rl_breaker_conf_t  conf;

    seed = 3;
    wrong = 0;
    opened = 0;

    for (run = 0; run < 2000; run++) {

        memset(&b, 0, sizeof(b));

        conf.failures = run % 100 + 1;
        conf.window = 100 + tap_random(&seed) % 5000;
        conf.probe = 10000;

        now = START;
        from = 0;

        for (i = 0; i < 1000; i++) {

            /* about as often as would just open it */

            now += tap_random(&seed) % (2 * conf.window / conf.failures + 2);
            times[i] = now;

            in = 0;

            for (k = from; k <= i; k++) {
                in += now - times[k] <= conf.window;
            }

            before = b.state;
            expected = in >= conf.failures ? OPEN : FALLBACK;
            changed = ngx_rl_breaker_failure(&b, &conf, now, 0);

            wrong += b.state != expected || changed != (before != expected);

            if (b.state == OPEN) {
                opened++;
                (void) ngx_rl_breaker_close(&b, now);
                from = i + 1;

            } else if (tap_random(&seed) % 4 == 0) {
                (void) ngx_rl_breaker_success(&b);
            }
        }
    }

    is_number(wrong, 0, "two million failures: open exactly when so many of "
              "them are in the window");
    ok(opened > 10000, "which was the case %u times", opened);
}


static void
test_probers(void)
{
    uint64_t          wait, until;
    ngx_rl_breaker_t  b;

    b = opened_at(START, &defaults);

    is_number(b.prober, 0, "nobody probes as soon as it is open");
    is_number(ngx_rl_breaker_probe(&b, START, 1000, 7), 50,
              "the first probe is due after 50 ms");
    is_number(ngx_rl_breaker_probe(&b, START + 49, 1000, 7), 1,
              "and not sooner");
    is_number(b.prober, 0, "who has to wait is no prober");

    is_number(ngx_rl_breaker_probe(&b, START + 50, 1000, 7), 0,
              "then somebody may");
    is_number(b.prober, 7, "and is the prober");

    is_number(ngx_rl_breaker_probe(&b, START + 50, 1000, 8), 100,
              "the others look again, soon, as it may be over then");
    is_number(ngx_rl_breaker_probe(&b, START + 50, 1000, 7), 100,
              "one probe is enough for the prober, too");
    is_number(ngx_rl_breaker_probe(&b, START + 1049, 1000, 8), 1,
              "as long as its time is not over");
    is_number(b.prober, 7, "nobody takes its place");

    /* it was killed */

    is_number(ngx_rl_breaker_probe(&b, START + 1050, 1000, 8), 0,
              "who is silent for so long is replaced");
    is_number(b.prober, 8, "by who asks next");

    until = b.until;
    ngx_rl_breaker_probed(&b, &defaults, START + 1060, 0, 7);
    ok(b.prober == 8 && b.until == until && b.attempt == 1,
       "what the lost one says later is not listened to");

    ngx_rl_breaker_probed(&b, &defaults, START + 1060, 0, 8);
    is_number(b.prober, 0, "a probe in vain is over");
    is_number(ngx_rl_breaker_probe(&b, START + 1060, 1000, 9),
              100, "and the next one is due after twice the time");

    ngx_rl_breaker_probed(&b, &defaults, START + 1060, 0, 8);
    is_number(b.attempt, 2, "told twice, it counts once");

    is_number(ngx_rl_breaker_probe(&b, START + 1160, 1000, 9), 0,
              "then another one probes");
    (void) ngx_rl_breaker_close(&b, START + 1165);
    is_number(b.prober, 0, "its success ends that");
    ngx_rl_breaker_probed(&b, &defaults, START + 1170, 0, 9);
    is_state(&b, DISTRIBUTED, "for good");

    /* another one's handshake failed, or a call that was under way */

    b = opened_at(START, &defaults);
    (void) ngx_rl_breaker_probe(&b, START + 50, 1000, 7);
    until = b.until;

    is_number(ngx_rl_breaker_failure(&b, &defaults, START + 60, 0),
              0, "a failure of an open one is no change");
    ok(b.state == OPEN && b.prober == 7 && b.until == until && b.attempt == 1,
       "and moves no probe");

    /* failures while it was open are forgotten with it */

    for (wait = 0; wait < 200; wait++) {
        (void) ngx_rl_breaker_failure(&b, &defaults, START + 70, 0);
    }

    (void) ngx_rl_breaker_close(&b, START + 75);
    (void) ngx_rl_breaker_failure(&b, &defaults, START + 80, 0);
    is_state(&b, FALLBACK, "one failure after 200 while it was open");
}


static void
test_pauses(void)
{
    uint32_t               i, wrong, luck, attempt;
    uint64_t               seed, now, wait, full, sum;
    ngx_rl_breaker_t       b;
    ngx_rl_breaker_conf_t  conf;

    static const uint64_t  pauses[] = {
        50, 100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000, 10000
    };

    b = opened_at(START, &defaults);
    now = START;

    for (i = 0; i < sizeof(pauses) / sizeof(pauses[0]); i++) {
        wait = ngx_rl_breaker_probe(&b, now, 1000, 7);
        is_number(wait, pauses[i], "pauses double up to the probe interval");

        now += wait;
        (void) ngx_rl_breaker_probe(&b, now, 1000, 7);
        ngx_rl_breaker_probed(&b, &defaults, now, 0, 7);
    }

    /* with luck, and any interval */

    seed = 5;
    wrong = 0;
    sum = 0;

    for (i = 0; i < 1000; i++) {
        conf.failures = 1;
        conf.window = 1000;
        conf.probe = 100 + tap_random(&seed) % 3600000;

        now = START;
        memset(&b, 0, sizeof(b));

        luck = (uint32_t) tap_random(&seed);
        (void) ngx_rl_breaker_failure(&b, &conf, now, luck);

        full = NGX_RL_BACKOFF_MIN;

        for (attempt = 0; attempt < 30; attempt++) {
            wait = ngx_rl_breaker_probe(&b, now, 1000, 7);
            wrong += wait > full || wait < full / 2;
            sum += wait < full;

            now += wait;
            wrong += ngx_rl_breaker_probe(&b, now, 1000, 7) != 0;

            luck = (uint32_t) tap_random(&seed);
            ngx_rl_breaker_probed(&b, &conf, now, luck, 7);

            full = 2 * full < conf.probe ? 2 * full : conf.probe;
        }
    }

    is_number(wrong, 0, "30000 pauses: between one half and the whole of what "
              "it is without luck");
    ok(sum > 25000, "and seldom the whole");
}


/* a server that comes and goes, or answers a probe and nothing else */

static void
open_again(ngx_rl_breaker_t *b, uint64_t now)
{
    uint32_t  i;

    for (i = 0; i < defaults.failures; i++) {
        (void) ngx_rl_breaker_failure(b, &defaults, now, 0);
    }
}


static void
test_again(void)
{
    uint32_t          i;
    uint64_t          now, wait;
    ngx_rl_breaker_t  b;

    static const uint64_t  pauses[] = { 50, 100, 200, 400, 400, 400 };

    b = opened_at(START, &defaults);
    now = START;

    for (i = 0; i < sizeof(pauses) / sizeof(pauses[0]); i++) {
        wait = ngx_rl_breaker_probe(&b, now, 1000, 7);
        is_number(wait, pauses[i],
                  "soon after a success the pauses go on where they were, up "
                  "to the fourth");

        now += wait;
        (void) ngx_rl_breaker_probe(&b, now, 1000, 7);
        (void) ngx_rl_breaker_close(&b, now);

        open_again(&b, now);
        is_state(&b, OPEN, "again");
    }

    /* a long outage */

    b = opened_at(START, &defaults);
    now = START;

    for (i = 0; i < 12; i++) {
        now += ngx_rl_breaker_probe(&b, now, 1000, 7);
        (void) ngx_rl_breaker_probe(&b, now, 1000, 7);
        ngx_rl_breaker_probed(&b, &defaults, now, 0, 7);
    }

    (void) ngx_rl_breaker_close(&b, now);
    open_again(&b, now + 30000);
    is_number(ngx_rl_breaker_probe(&b, now + 30000, 1000, 7), 400,
              "a long one leaves no longer pause than that, at the end of the "
              "window");

    wait = ngx_rl_breaker_probe(&b, now + 30400, 1000, 7);
    ngx_rl_breaker_probed(&b, &defaults, now + 30400, 0, 7);
    is_number(ngx_rl_breaker_probe(&b, now + 30400, 1000, 7), 800,
              "from which they double");

    now += 40000;
    (void) ngx_rl_breaker_close(&b, now);
    open_again(&b, now + 30001);
    is_number(ngx_rl_breaker_probe(&b, now + 30001, 1000, 7), 50,
              "a millisecond after it they begin anew");

    /* what was not open is not closed */

    b = opened_at(START, &defaults);
    (void) ngx_rl_breaker_close(&b, START + 50);
    (void) ngx_rl_breaker_failure(&b, &defaults, START + 60, 0);
    (void) ngx_rl_breaker_close(&b, START + 20000);
    open_again(&b, START + 30051);
    is_number(ngx_rl_breaker_probe(&b, START + 30051, 1000, 7), 50,
              "a handshake after one failure does not make the window longer");

    /* the clock of who closed it is a moment ahead */

    b = opened_at(START, &defaults);
    (void) ngx_rl_breaker_close(&b, START + 51);
    open_again(&b, START + 50);
    is_number(ngx_rl_breaker_probe(&b, START + 50, 1000, 7), 100,
              "an opening told before the success counts as one after it");
}


int
main(void)
{
    test_transitions();
    test_window();
    test_model();
    test_probers();
    test_pauses();
    test_again();

    return tap_done();
}
