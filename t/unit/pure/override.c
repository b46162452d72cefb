
/*
 * Overrides as text: what is accepted, what is refused and why, that writing
 * and reading agree, and what they make of a bucket.
 */

#include "tap.h"

#include "pure/ngx_rl_override.h"


static const char *
parse(const char *text, ngx_rl_override_t *o, ngx_rl_override_words_t *words)
{
    char        *copy;
    size_t       len;
    const char  *err;

    /* an exact copy on the heap: reading beyond it is found */

    len = strlen(text);
    copy = malloc(len ? len : 1);
    memcpy(copy, text, len);

    err = ngx_rl_override_parse(copy, len, o, NULL);
    free(copy);

    if (words) {
        (void) ngx_rl_override_parse(text, len, o, words);
    }

    return err;
}


static void
test_valid(void)
{
    char                      again[NGX_RL_OVERRIDE_TEXT];
    size_t                    i, len;
    const char               *err;
    ngx_rl_override_t         o;
    ngx_rl_override_words_t   words;

    static const struct {
        const char  *text;
        uint32_t     set;
        uint64_t     capacity, cost, until, reset;
        const char  *rate, *reason;
        const char  *written;
    } valid[] = {
        { "exempt", NGX_RL_OVERRIDE_EXEMPT, 0, 0, 0, 0, "", "", "exempt" },
        { "ban", NGX_RL_OVERRIDE_BAN, 0, 0, 0, 0, "", "", "ban" },
        { "  ban   until=7 ", NGX_RL_OVERRIDE_BAN, 0, 0, 7, 0, "", "",
          "ban until=7" },
        { "capacity=500", NGX_RL_OVERRIDE_CAPACITY, 500, 0, 0, 0, "", "",
          "capacity=500" },
        { "cost=3 capacity=500 rate=50r/s", NGX_RL_OVERRIDE_NUMBERS, 500, 3, 0,
          0, "50r/s", "", "rate=50r/s capacity=500 cost=3" },
        { "reset=1763400000123456 until=1763400065", 0, 0, 0, 1763400065,
          1763400000123456, "", "",
          "until=1763400065 reset=1763400000123456" },
        { "ban reason=a b  c=d ban", NGX_RL_OVERRIDE_BAN, 0, 0, 0, 0, "",
          "a b  c=d ban", "ban reason=a b  c=d ban" },
        { "ban reason=", NGX_RL_OVERRIDE_BAN, 0, 0, 0, 0, "", "", "ban" },
        { "rate=0r/s capacity=1", NGX_RL_OVERRIDE_CAPACITY|NGX_RL_OVERRIDE_RATE,
          1, 0, 0, 0, "0r/s", "", "rate=0r/s capacity=1" }
    };

    for (i = 0; i < nelts_of(valid); i++) {
        err = parse(valid[i].text, &o, &words);

        ok(err == NULL, "\"%s\" is an override%s%s", valid[i].text,
           err ? ": " : "", err ? err : "");
        ok(o.set == valid[i].set && o.capacity == valid[i].capacity
           && o.cost == valid[i].cost && o.until == valid[i].until
           && o.reset == valid[i].reset, "its numbers");
        ok(words.rate_len == strlen(valid[i].rate)
           && memcmp(words.rate_len ? words.rate : "", valid[i].rate,
                     words.rate_len) == 0, "its rate");
        ok(words.reason_len == strlen(valid[i].reason)
           && memcmp(words.reason_len ? words.reason : "", valid[i].reason,
                     words.reason_len) == 0, "its reason");

        len = ngx_rl_override_format(again, &o, &words);

        ok(len == strlen(valid[i].written)
           && memcmp(again, valid[i].written, len) == 0,
           "it is written as \"%.*s\"", (int) len, again);
    }
}


static void
test_invalid(void)
{
    char                long_text[NGX_RL_OVERRIDE_TEXT + 2];
    size_t              i;
    const char         *err;
    ngx_rl_override_t   o;

    static const struct {
        const char  *text;
        const char  *err;
    } invalid[] = {
        { "", "needs one of" },
        { "   ", "needs one of" },
        { "until=5", "needs one of" },
        { "reason=x", "needs one of" },
        { "exempt ban", "exclude each other" },
        { "exempt cost=1", "exclude each other" },
        { "ban capacity=1", "exclude each other" },
        { "ban ban", "repeated" },
        { "capacity=1 capacity=1", "repeated" },
        { "capacity=0", "" },
        { "capacity=1000000001", "" },
        { "capacity=", "" },
        { "capacity", "the words of an override" },
        { "exempted", "the words of an override" },
        { "bans", "the words of an override" },
        { "ban=1", "the words of an override" },
        { "Ban", "the words of an override" },
        { "rate=5", "" },
        { "cost=0", "" },
        { "cost=100001", "" },
        { "ban until=", "whole number" },
        { "ban until=0", "whole number" },
        { "ban until=-1", "whole number" },
        { "ban until=1e9", "whole number" },
        { "ban until=9999999999999999999", "whole number" },
        { "ban reset=x", "whole number" },
        { "ban\tuntil=5", "the words of an override" }
    };

    for (i = 0; i < nelts_of(invalid); i++) {
        err = parse(invalid[i].text, &o, NULL);

        ok(err && strstr(err, invalid[i].err), "\"%s\": %s", invalid[i].text,
           err ? err : "accepted");
    }

    memset(long_text, 'x', sizeof(long_text));
    memcpy(long_text, "ban reason=", 11);
    long_text[sizeof(long_text) - 1] = '\0';

    err = parse(long_text, &o, NULL);
    ok(err && strstr(err, "too long"), "a text that is too long");

    long_text[11 + NGX_RL_OVERRIDE_REASON + 1] = '\0';

    err = parse(long_text, &o, NULL);
    ok(err && strstr(err, "reason is too long"), "a reason that is too long");

    long_text[11 + NGX_RL_OVERRIDE_REASON] = '\0';
    ok(parse(long_text, &o, NULL) == NULL, "the longest reason");
}


/* whatever the bytes are, nothing beyond them is read */

static void
test_any(void)
{
    char                      again[NGX_RL_OVERRIDE_TEXT], *text;
    size_t                    len, n;
    unsigned                  i, k, words, valid;
    ngx_rl_override_t         o, o2;
    ngx_rl_override_words_t   w;

    static const char *const  part[] = {
        "capacity=", "rate=", "cost=", "exempt", "ban", "until=", "reset=",
        "reason=", " ", " ", " ", " ", "1", "0", "5r/s", "1r/d", "\0", "\377"
    };

    srand(7);

    valid = 0;

    for (i = 0; i < 200000; i++) {
        words = rand() % 9;
        text = malloc(128);
        len = 0;

        for (k = 0; k < words; k++) {
            const char  *p = part[rand() % nelts_of(part)];

            n = strlen(p) ? strlen(p) : 1;
            memcpy(text + len, p, n);
            len += n;
        }

        text = realloc(text, len ? len : 1);

        if (ngx_rl_override_parse(text, len, &o, &w) == NULL) {
            valid++;
            n = ngx_rl_override_format(again, &o, &w);

            if (n == 0
                || ngx_rl_override_parse(again, n, &o2, NULL) != NULL
                || memcmp(&o, &o2, sizeof(o)) != 0)
            {
                ok(0, "\"%.*s\" is read as it is written", (int) len, text);
            }
        }

        free(text);
    }

    ok(valid > 1000, "%u random overrides are read as they are written", valid);
}


static void
test_apply(void)
{
    ngx_rl_bucket_t    bucket, before;
    ngx_rl_override_t  o;

    memset(&bucket, 0, sizeof(bucket));
    bucket.algorithm = NGX_RL_TOKEN_BUCKET;
    bucket.capacity = 10;
    bucket.cost = 1;
    (void) ngx_rl_rate_parse("10r/s", 5, &bucket.rate);

    before = bucket;

    (void) parse("exempt", &o, NULL);
    ok(ngx_rl_override_apply(&o, &bucket, 1) == NULL
       && ngx_rl_bucket_same(&bucket, &before), "exempt has no numbers");

    (void) parse("capacity=500 cost=2", &o, NULL);
    ok(ngx_rl_override_apply(&o, &bucket, 0) == NULL
       && bucket.capacity == 500 && bucket.cost == 2 && bucket.varies == 1
       && bucket.rate.num == 10, "capacity and cost");

    bucket = before;
    (void) parse("rate=50r/s", &o, NULL);
    ok(ngx_rl_override_apply(&o, &bucket, 0) == NULL
       && bucket.capacity == 10 && bucket.rate.num == 50,
       "a rate leaves the capacity");

    bucket = before;
    ok(ngx_rl_override_apply(&o, &bucket, 1) == NULL && bucket.capacity == 50,
       "unless that is the number of the rate");

    bucket = before;
    (void) parse("rate=0r/s", &o, NULL);
    ok(ngx_rl_override_apply(&o, &bucket, 1) != NULL
       && ngx_rl_bucket_same(&bucket, &before),
       "a bucket without tokens is refused and unchanged");

    bucket.algorithm = NGX_RL_SLIDING_WINDOW_LOG;
    before = bucket;
    (void) parse("rate=5r/s", &o, NULL);
    ok(ngx_rl_override_apply(&o, &bucket, 0) != NULL
       && ngx_rl_bucket_same(&bucket, &before), "a window has no rate");

    (void) parse("capacity=7", &o, NULL);
    ok(ngx_rl_override_apply(&o, &bucket, 0) == NULL && bucket.capacity == 7,
       "but a capacity");

    bucket = before;
    bucket.algorithm = NGX_RL_GCRA;
    before = bucket;
    (void) parse("rate=0.000001r/s capacity=1000000000", &o, NULL);
    ok(ngx_rl_override_apply(&o, &bucket, 0) != NULL
       && ngx_rl_bucket_same(&bucket, &before),
       "what gcra cannot store is refused");
}


int
main(void)
{
    test_valid();
    test_invalid();
    test_any();
    test_apply();

    return tap_done();
}
