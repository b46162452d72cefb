
/*
 * The most frequent keys: SpaceSaving with decay, beside exact counts.
 */

#include "tap.h"

#include <math.h>

#include "pure/ngx_rl_hash.h"
#include "pure/ngx_rl_top.h"


#define KEYS    5000
#define SECOND  1000
#define MINUTE  NGX_RL_TOP_HALF_LIFE


/* exact: what a key has now, and when it was last brought up to date */

typedef struct {
    double    count;
    uint64_t  last;
} exact_t;


static exact_t             exact[KEYS];
static ngx_rl_top_entry_t  list[NGX_RL_TOP_MAX];
static ngx_rl_top_t        top;
static void               *memory;


static void
make(uint32_t n)
{
    free(memory);

    /* exactly as much, so that the sanitizer sees more */

    memory = malloc(ngx_rl_top_size(n));

    if (memory == NULL) {
        exit(1);
    }

    ngx_rl_top_init(&top, memory, n);

    memset(exact, 0, sizeof(exact));
}


static uint64_t
hash_of(uint32_t key)
{
    uint64_t  hash[2];

    static const uint64_t  secret[2] = { 1, 2 };

    ngx_rl_siphash(secret, &key, sizeof(key), hash);

    return hash[1];
}


static double
exact_count(uint32_t key, uint64_t now)
{
    return exact[key].count
           * exp2(-((double) (now - exact[key].last) / MINUTE));
}


static void
hit(uint32_t key, uint64_t now)
{
    char      text[32];
    uint64_t  hash;

    hash = hash_of(key);

    if (!ngx_rl_top_hit(&top, hash, now)) {
        snprintf(text, sizeof(text), "key %u", key);
        ngx_rl_top_add(&top, hash, text, strlen(text), now);
    }

    exact[key].count = exact_count(key, now) + 1;
    exact[key].last = now;
}


static const ngx_rl_top_entry_t *
find(uint32_t key, uint32_t n)
{
    uint32_t  i;
    uint64_t  hash;

    hash = hash_of(key);

    for (i = 0; i < n; i++) {
        if (list[i].hash == hash) {
            return &list[i];
        }
    }

    return NULL;
}


/* the order of the heap, places, and that each entry is found */

static int
sound(void)
{
    uint32_t             i, place;
    ngx_rl_top_entry_t  *entry;

    for (place = 0; place < top.used; place++) {
        entry = &top.entries[top.heap[place]];

        if (entry->place != place
            || (place && top.entries[top.heap[(place - 1) / 2]].count
                         > entry->count))
        {
            return 0;
        }

        for (i = top.heads[entry->hash & top.mask];
             i != top.heap[place];
             i = top.entries[i].next)
        {
            if (i >= top.used) {
                return 0;
            }
        }
    }

    return 1;
}


/* all that the head of ngx_rl_top.h promises */

static void
check(const char *name, uint64_t now)
{
    char                       text[32];
    double                     total, sum, count, missed, slack;
    uint32_t                   i, n, bounds, absent, unsorted, texts;
    const ngx_rl_top_entry_t  *entry;

    n = ngx_rl_top_copy(&top, list, NGX_RL_TOP_MAX, now);
    ngx_rl_top_sort(list, n);

    missed = ngx_rl_top_missed(&top, now);

    total = 0;
    sum = 0;
    bounds = 0;
    absent = 0;
    unsorted = 0;
    texts = 0;

    for (i = 0; i < KEYS; i++) {
        total += exact_count(i, now);
    }

    slack = 1e-7 * (total + 1);

    for (i = 0; i < n; i++) {
        sum += list[i].count;
        unsorted += i && list[i - 1].count < list[i].count;
    }

    for (i = 0; i < KEYS; i++) {
        count = exact_count(i, now);
        entry = find(i, n);

        if (entry == NULL) {
            absent += count > total / top.n + slack || count > missed + slack;
            continue;
        }

        bounds += count > entry->count + slack
                  || count < entry->count - entry->error - slack
                  || entry->error > total / top.n + slack;

        snprintf(text, sizeof(text), "key %u", i);
        texts += entry->len != strlen(text)
                 || memcmp(entry->text, text, entry->len) != 0;
    }

    is_number(bounds, 0, name);
    is_number(absent, 0, "  no heavy key is absent");
    is_number(unsorted + texts, 0, "  sorted, with their texts");
    ok(sum <= total + slack, "  counts are %.3f of %.3f", sum, total);
    ok(missed <= total / top.n + slack, "  %.3f for others at most", missed);
    ok(sound(), "  heap and lists are sound");
}


/* the lower of several random numbers: low keys are frequent */

static uint32_t
skewed(uint64_t *seed, uint32_t keys, uint32_t skew)
{
    uint32_t  key, other;

    key = (uint32_t) (tap_random(seed) % keys);

    while (skew--) {
        other = (uint32_t) (tap_random(seed) % (key + 1));
        key = other < key ? other : key;
    }

    return key;
}


static void
streams(void)
{
    char      name[64];
    uint32_t  n, skew, i, round;
    uint64_t  seed, now;

    static const uint32_t  sizes[] = { NGX_RL_TOP_MIN, 100, NGX_RL_TOP_MAX };

    for (n = 0; n < nelts_of(sizes); n++) {

        for (skew = 0; skew < 5; skew += 2) {
            make(sizes[n]);

            seed = n * 10 + skew;
            now = 4 * 86400 * (uint64_t) SECOND;

            for (round = 0; round < 3; round++) {

                /* about 100 hits a second */

                for (i = 0; i < 20000; i++) {
                    now += tap_random(&seed) % 20;
                    hit(skewed(&seed, KEYS, skew), now);
                }

                snprintf(name, sizeof(name), "%u entries, skew %u, round %u",
                         sizes[n], skew, round);
                check(name, now + round * MINUTE);

                /* the origin has to move */

                now += (uint64_t) round * 70 * MINUTE;
            }
        }
    }
}


static void
decay(void)
{
    uint32_t  n;
    uint64_t  now;

    make(10);

    now = 1000;

    for (n = 0; n < 8; n++) {
        hit(1, now);
    }

    n = ngx_rl_top_copy(&top, list, 10, now);
    is_number(n, 1, "one key");
    ok(list[0].count == 8 && list[0].error == 0, "hit eight times");
    is_bytes(list[0].text, list[0].len, "key 1", 5, "with its text");

    (void) ngx_rl_top_copy(&top, list, 10, now + MINUTE);
    ok(fabs(list[0].count - 4) < 1e-8, "4 after a half-life");

    (void) ngx_rl_top_copy(&top, list, 10, now + MINUTE / 2);
    ok(fabs(list[0].count - 8 / sqrt(2)) < 1e-8, "5.657 after half of one");

    (void) ngx_rl_top_copy(&top, list, 10, now + 3 * MINUTE);
    ok(fabs(list[0].count - 1) < 1e-8, "1 after three");

    (void) ngx_rl_top_copy(&top, list, 10, UINT64_MAX);
    ok(list[0].count < 1e-9, "nothing at the end of time");

    hit(1, now + 3 * MINUTE);
    (void) ngx_rl_top_copy(&top, list, 10, now + 3 * MINUTE);
    ok(fabs(list[0].count - 2) < 1e-8, "a hit adds 1 then");

    hit(1, now + 2 * MINUTE);
    (void) ngx_rl_top_copy(&top, list, 10, now + 3 * MINUTE);
    ok(fabs(list[0].count - 2.5) < 1e-8,
       "a hit that comes late adds what it is worth");

    now += 1000000 * (uint64_t) MINUTE;
    hit(2, now);
    hit(2, now);

    n = ngx_rl_top_copy(&top, list, 10, now);
    ngx_rl_top_sort(list, n);
    ok(n == 2 && list[0].count == 2 && list[1].count < 1e-9,
       "after two years the old count is nothing");

    hit(3, now - MINUTE);
    n = ngx_rl_top_copy(&top, list, 10, now);
    ngx_rl_top_sort(list, n);
    ok(n == 3 && list[1].count <= 1 && list[1].count >= 0.5,
       "a hit before the origin counts as one at the origin at most");
    ok(sound(), "sound");
}


/* a key that takes the place of another one */

static void
replaced(void)
{
    uint32_t                   i, n, lost;
    const ngx_rl_top_entry_t  *entry;

    make(10);

    for (i = 0; i < 10; i++) {
        hit(i, 5);
        hit(i, 5);
    }

    ok(ngx_rl_top_missed(&top, 5) == 2, "full: others have 2 at most");

    hit(0, 5);
    hit(100, 5);
    hit(100, 5);

    n = ngx_rl_top_copy(&top, list, NGX_RL_TOP_MAX, 5);
    ok(n == 10 && find(100, n) == NULL, "a key with two hits gets no entry");

    hit(100, 5);

    n = ngx_rl_top_copy(&top, list, NGX_RL_TOP_MAX, 5);
    entry = find(100, n);

    ok(n == 10 && entry && entry->count == 3 && entry->error == 2,
       "with the third it does; what was before is its error");
    ok(find(0, n) && find(0, n)->count == 3, "not that of one with more");

    for (i = 1, lost = 0; i < 10; i++) {
        lost = find(i, n) ? lost : i;
    }

    hit(lost, 5);

    n = ngx_rl_top_copy(&top, list, NGX_RL_TOP_MAX, 5);
    entry = find(lost, n);

    ok(entry && entry->count == 3 && entry->error == 2,
       "a key that lost its entry has not lost its hits");

    n = ngx_rl_top_copy(&top, list, 4, 5);
    is_number(n, 4, "not more than there is room for");

    ngx_rl_top_empty(&top);

    is_number(ngx_rl_top_copy(&top, list, NGX_RL_TOP_MAX, 5), 0, "emptied");
    ok(ngx_rl_top_missed(&top, 5) == 0, "nothing is missed");

    hit(7, 5);
    is_number(ngx_rl_top_copy(&top, list, NGX_RL_TOP_MAX, 5), 1, "used again");
}


static void
texts(void)
{
    char  text[200];

    make(10);
    memset(text, 'x', sizeof(text));

    ngx_rl_top_add(&top, hash_of(1), text, sizeof(text), 1);
    ngx_rl_top_add(&top, hash_of(2), "", 0, 2);

    (void) ngx_rl_top_copy(&top, list, 10, 2);
    is_number(list[0].len, NGX_RL_TOP_TEXT, "a long text is cut off");
    is_number(list[1].len, 0, "a text may be empty");
}


int
main(void)
{
    decay();
    replaced();
    texts();
    streams();

    free(memory);

    return tap_done();
}
