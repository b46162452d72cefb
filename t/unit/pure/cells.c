
/*
 * What is kept about keys, and who goes when there is no room: first keys that
 * hold nothing, whatever limit they are of; then those of the limit that has
 * the most; of one limit those of which little was taken.
 */

#include "buckets.h"

#include "pure/ngx_rl_cells.h"


#define CELLS  1000
#define SEC    1000000ULL
#define NEVER  UINT64_MAX

#define LEVEL    NGX_RL_CELL_LEVEL
#define LOG      NGX_RL_CELL_LOG
#define KNOWN    NGX_RL_CELL_KNOWN
#define PREVIEW  NGX_RL_CELL_PREVIEW


typedef ngx_rl_cells_t     cells_t;
typedef ngx_rl_cell_t      cell_t;
typedef ngx_rl_cell_key_t  cell_key_t;


static cells_t  cells;


static cells_t *
new_cells(uint32_t n)
{
    static void  *memory;

    free(memory);

    /* as shared memory is: of whatever was there before */

    memory = malloc(ngx_rl_cells_size(n));

    if (memory == NULL) {
        exit(2);
    }

    memset(memory, 0xaa, ngx_rl_cells_size(n));
    memset(&cells, 0, sizeof(cells));

    ngx_rl_cells_init(&cells, memory, ngx_rl_cells_size(n));

    return &cells;
}


static cell_key_t
key_of(uint64_t limit, uint64_t number)
{
    uint64_t    seed;
    cell_key_t  key;

    seed = limit * 0x100000000ULL + number;

    key.hash[0] = tap_random(&seed);
    key.hash[1] = tap_random(&seed);

    return key;
}


static int
known(cells_t *c, uint64_t limit, uint64_t number)
{
    uint32_t    i;
    cell_key_t  key;

    /* a look that does not count as use */

    key = key_of(limit, number);

    for (i = c->heads[key.hash[0] & c->mask]; i; i = c->lines[i].cell.next) {
        if (memcmp(&c->lines[i].cell.key, &key, sizeof(key)) == 0) {
            return 1;
        }
    }

    return 0;
}


static uint32_t
count(cells_t *c, uint64_t limit, uint64_t from, uint64_t to)
{
    uint32_t  n;

    for (n = 0; from < to; from++) {
        n += known(c, limit, from);
    }

    return n;
}


/* a request of this key, alone */

static cell_t *
take(cells_t *c, uint64_t limit, uint64_t number, int much, uint64_t until,
    uint64_t now)
{
    cell_t     *cell;
    cell_key_t  key;

    key = key_of(limit, number);

    cell = ngx_rl_cells_make(c, &key, limit, LEVEL, now);

    if (cell) {
        ngx_rl_cells_taken(c, cell, much, until);
    }

    ngx_rl_cells_release(c);

    return cell;
}


static cell_t *
learn(cells_t *c, uint64_t limit, uint64_t number, uint32_t held,
    uint64_t until, uint64_t now)
{
    cell_t     *cell;
    cell_key_t  key;

    key = key_of(limit, number);

    cell = ngx_rl_cells_make(c, &key, limit, KNOWN, now);

    if (cell) {
        cell->u.known_bucket.held = held;
        ngx_rl_known_learned(cell, now / 1000, until / 1000);
    }

    ngx_rl_cells_release(c);

    return cell;
}


static cell_t *
preview(cells_t *c, uint64_t limit, uint64_t number, uint64_t until,
    uint64_t now)
{
    cell_t     *cell;
    cell_key_t  key;

    key = key_of(limit, number);

    cell = ngx_rl_cells_make(c, &key, limit, PREVIEW, now);

    if (cell) {
        cell->u.preview.until = until / 1000;
    }

    ngx_rl_cells_release(c);

    return cell;
}


/* a window with so many entries */

static uint32_t
window(cells_t *c, uint64_t limit, uint64_t number, uint32_t entries, int much,
    uint64_t now)
{
    cell_t       *cell;
    uint32_t      i;
    cell_key_t    key;
    ngx_rl_log_t  log;

    key = key_of(limit, number);

    cell = ngx_rl_cells_make(c, &key, limit, LOG, now);

    if (cell == NULL) {
        return 0;
    }

    log.n = entries;

    for (i = 0; i < entries; i++) {
        log.entries[i].time = now + i;
        log.entries[i].cost = number + i;
    }

    ngx_rl_cells_save(c, cell, &log, now);
    ngx_rl_cells_taken(c, cell, much, now + 3600 * SEC);

    memset(&log, 0, sizeof(log));
    ngx_rl_cells_load(c, cell, &log);

    for (i = 0; i < log.n; i++) {
        if (log.entries[i].time != now + i || log.entries[i].cost != number + i)
        {
            break;
        }
    }

    ngx_rl_cells_release(c);

    return i;
}


/* NULL, or what is wrong: all cells are where they belong, each once */

static const char *
broken(cells_t *c)
{
    uint32_t  i, k, q, n, keys, all, queues, chained;

    keys = 0;
    queues = 0;
    all = 1;

    for (q = c->lines[0].cell.u.queue.after;
         q;
         q = c->lines[q].cell.u.queue.after)
    {
        if (c->lines[q].cell.queue) {
            return "a queue is not marked as one";
        }

        if (c->lines[c->lines[q].cell.u.queue.pair].cell.u.queue.pair != q) {
            return "a pair is none";
        }

        n = 0;

        for (i = c->lines[q].cell.newer; i != q; i = c->lines[i].cell.newer) {

            if (c->lines[i].cell.queue != q) {
                return "a key is in another queue than its own";
            }

            if (c->lines[c->lines[i].cell.newer].cell.older != i) {
                return "a queue is not linked both ways";
            }

            n++;
            keys++;

            if (c->lines[q].cell.u.queue.kind == LOG) {
                for (k = c->lines[i].cell.u.local.chunks;
                     k;
                     k = c->lines[k].chunk.next)
                {
                    if (c->lines[k].chunk.queue) {
                        return "a chunk looks like a key";
                    }

                    n++;
                }
            }
        }

        if (n != c->lines[q].cell.u.queue.cells) {
            return "a queue has miscounted";
        }

        if (n == 0
            && c->lines[c->lines[q].cell.u.queue.pair].cell.u.queue.cells == 0)
        {
            return "a queue without keys is left";
        }

        queues++;
        all += n + 1;
    }

    chained = 0;

    for (k = 0; k <= c->mask; k++) {
        for (i = c->heads[k]; i; i = c->lines[i].cell.next) {
            if ((c->lines[i].cell.key.hash[0] & c->mask) != k) {
                return "a key is in a wrong chain";
            }

            chained++;
        }
    }

    if (chained != keys + queues / 2) {
        return "not each key is in a chain";
    }

    if (keys != c->keys) {
        return "the number of keys is wrong";
    }

    if (all != c->used) {
        return "the number of used cells is wrong";
    }

    for (i = c->free; i; i = c->lines[i].cell.next) {
        if (c->lines[i].cell.queue) {
            return "a free cell looks like a key";
        }

        all++;
    }

    return (all == c->fresh) ? NULL : "cells are lost";
}


static void
test_kept(void)
{
    cell_t     *cell;
    cells_t    *c;
    cell_key_t  key;

    c = new_cells(CELLS);

    is_number(sizeof(ngx_rl_cell_line_t), 64, "a cell is a line of the cache");

    key = key_of(1, 1);

    ok(ngx_rl_cells_find(c, &key) == NULL, "nothing is known");
    is_number(c->used, 1, "and nothing is made by looking");

    cell = take(c, 1, 1, 0, SEC, 1);

    ok(ngx_rl_cells_find(c, &key) == cell, "a key is found again");
    is_number(cell->u.local.until, SEC, "with what was kept");

    is_number(c->keys, 1, "it is the only one");
    is_number(c->used, 4, "with two queues and the cell that is none");

    take(c, 1, 1, 1, 2 * SEC, 1);
    is_number(c->lines[cell->queue].cell.u.queue.much, 1,
              "much was taken of it now");
    is_text(broken(c), NULL, "all is well");

    take(c, 1, 1, 0, 2 * SEC, 1);
    is_number(c->lines[cell->queue].cell.u.queue.much, 0, "and now little");
    is_text(broken(c), NULL, "all is still well");

    ngx_rl_cells_reset(c);

    ok(ngx_rl_cells_find(c, &key) == NULL, "all is forgotten");
    is_text(broken(c), NULL, "and in order");
}


static void
test_order(void)
{
    cells_t  *c;
    uint32_t  i;

    c = new_cells(CELLS);

    for (i = 0; i < CELLS - 3; i++) {
        take(c, 1, i, 0, NEVER, 1);
    }

    is_number(c->evictions[NGX_RL_HELD_LITTLE], 0, "all fit");

    take(c, 1, 0, 0, NEVER, 2);
    take(c, 1, CELLS, 0, NEVER, 2);

    ok(known(c, 1, 0), "the key that was used again stays");
    ok(!known(c, 1, 1), "the one that was not used for the longest goes");
    is_number(c->keys, CELLS - 3, "one for one");
    is_number(c->evictions[NGX_RL_HELD_LITTLE], 1, "which is counted");
    is_text(broken(c), NULL, "all is well");
}


static void
test_nothing_first(void)
{
    cells_t  *c;
    uint32_t  i, n;

    c = new_cells(CELLS);

    /* the oldest hold something; of another limit the newest hold nothing */

    for (i = 0; i < 300; i++) {
        take(c, 1, i, i % 2, 100 * SEC, 1);
    }

    for (i = 0; c->fresh < CELLS; i++) {
        take(c, 2, i, i % 2, SEC, 1);
    }

    n = i;

    for (i = 0; i < n; i++) {
        take(c, 3, i, i % 2, 100 * SEC, 2 * SEC);
    }

    is_number(count(c, 1, 0, 300), 300,
              "keys that hold something stay, of an older limit");
    ok(count(c, 3, 0, n) >= n - 2, "and of a newer one");
    ok(count(c, 2, 0, n) <= 2, "those that hold nothing have gone");
    is_number(c->evictions[NGX_RL_HELD_NOTHING]
              + count(c, 2, 0, n), n, "and are counted as such");
    is_text(broken(c), NULL, "all is well");

    /* windows that are empty, and what has been known */

    c = new_cells(CELLS);

    for (i = 0; i < 100; i++) {
        take(c, 1, i, 0, NEVER, 1);
    }

    for (i = 0; i < 50; i++) {
        window(c, 2, i, 8, 1, 1);
        learn(c, 3, i, 0, 10 * SEC, 1);
        preview(c, 4, i, 10 * SEC, 1);
        learn(c, 5, i, 1, 120 * SEC, 1);
    }

    for (i = 0; c->fresh < CELLS; i++) {
        take(c, 6, i, 0, NEVER, 1);
    }

    for (i = 0; i < 200; i++) {
        take(c, 7, i, 0, NEVER, 130 * SEC);
    }

    is_number(count(c, 1, 0, 100) + count(c, 7, 0, 200), 300,
              "keys that hold something stay");
    is_number(count(c, 5, 0, 50), 50, "as long as there are others, leases do");
    ok(count(c, 2, 0, 50) + count(c, 3, 0, 50) + count(c, 4, 0, 50) <= 60,
       "windows, denials and previews that have ended go");
    is_number(c->evictions[NGX_RL_HELD_NOTHING],
              150 - count(c, 2, 0, 50) - count(c, 3, 0, 50)
              - count(c, 4, 0, 50), "they held nothing");
    is_text(broken(c), NULL, "all is well");
}


/* the age of an answer, and for how long it is believed */

static void
test_age(void)
{
    cell_t    cell;
    uint64_t  ms, day;

    memset(&cell, 0, sizeof(cell));

    day = 86400000;
    ms = 60 * day;

    cell.u.known_bucket.last = (ms - day) * 1000;
    ngx_rl_known_learned(&cell, ms, ms + 1000);

    is_number(ngx_rl_known_age(&cell, ms * 1000), 0,
              "new when it is learned, whenever its interval began");
    is_number(ngx_rl_known_age(&cell, ms * 1000 + 2999), 2,
              "then its age is in milliseconds");
    is_number(ngx_rl_known_age(&cell, (ms - 70000) * 1000), 0,
              "a call that was sent before finds it new");
    is_number(ngx_rl_known_age(&cell, (ms + 40 * day) * 1000),
              40 * day, "after 40 days it is old");
    is_number(cell.u.known_bucket.last, (ms - day) * 1000,
              "the interval is kept");

    is_number(ngx_rl_known_lasts(&cell), 1024,
              "of use for as long, or up to 32 ms longer");

    ngx_rl_known_learned(&cell, ms, ms + 120000);
    is_number(ngx_rl_known_lasts(&cell), 120000, "two minutes");

    ngx_rl_known_learned(&cell, ms, ms + day);
    is_number(ngx_rl_known_lasts(&cell), 131040, "at most so");

    ngx_rl_known_learned(&cell, ms, ms - 1);
    is_number(ngx_rl_known_lasts(&cell), 0, "or not at all");
    is_number(cell.u.known_bucket.last, (ms - day) * 1000,
              "the interval is kept");
}


static void
test_other_limits(void)
{
    cells_t  *c;
    uint32_t  i;

    /* a flood of new keys of one limit, and what others keep */

    c = new_cells(CELLS);

    for (i = 0; i < 100; i++) {
        take(c, 1, i, 1, NEVER, 1);
        take(c, 2, i, 0, NEVER, 1);
        window(c, 3, i, 1, 1, 1);
    }

    for (i = 0; i < 100 * CELLS; i++) {
        take(c, 9, i, 1, NEVER, 1);
    }

    is_number(count(c, 1, 0, 100), 100, "a flood leaves others' used-up keys");
    is_number(count(c, 3, 0, 100), 100, "and windows");
    is_number(count(c, 2, 0, 100), 100, "and keys with little taken");
    is_text(broken(c), NULL, "all is well");

    /* a limit that comes late gets its share */

    for (i = 0; i < 100 * CELLS; i++) {
        take(c, 10, i, 1, NEVER, 1);
    }

    ok(count(c, 10, 99 * CELLS, 100 * CELLS) >= 200, "a later flood has room");
    ok(count(c, 9, 99 * CELLS, 100 * CELLS) >= 200, "as much as the first");
    is_number(count(c, 1, 0, 100) + count(c, 3, 0, 100), 200,
              "the others stay");
    is_text(broken(c), NULL, "all is well");

    /* keys with little taken don't displace those that are used up */

    c = new_cells(CELLS);

    for (i = 0; i < 700; i++) {
        take(c, 1, i, 1, NEVER, 1);
    }

    for (i = 0; i < 100 * CELLS; i++) {
        take(c, 2, i, 0, NEVER, 1);
    }

    is_number(count(c, 1, 0, 700), 700,
              "a limit keeps used-up keys, even with most of the memory");
    ok(count(c, 2, 99 * CELLS, 100 * CELLS) >= 290, "the rest is for others");
    is_text(broken(c), NULL, "all is well");
}


static void
test_same_limit(void)
{
    cells_t  *c;
    uint32_t  i;

    c = new_cells(CELLS);

    for (i = 0; i < 100; i++) {
        take(c, 1, i, 1, NEVER, 1);
    }

    for (i = 100; i < 100 * CELLS; i++) {
        take(c, 1, i, 0, NEVER, 1);
    }

    is_number(count(c, 1, 0, 100), 100,
              "keys of which little was taken go before the used-up ones");
    is_number(c->evictions[NGX_RL_HELD_MUCH], 0, "all of them");
    is_text(broken(c), NULL, "all is well");
}


static void
test_known(void)
{
    cells_t  *c;
    uint32_t  i;

    /* what is known of Redis goes first, but has some room */

    c = new_cells(CELLS);

    for (i = 0; i < 600; i++) {
        take(c, 1, i, 1, NEVER, 1);
    }

    for (i = 0; i < 100 * CELLS; i++) {
        learn(c, 2, i, 1, 100 * SEC, 1);
        preview(c, 3, i, 100 * SEC, 1);
    }

    is_number(count(c, 1, 0, 600), 600,
              "denials of random keys leave this machine's state alone");
    is_number(c->evictions[NGX_RL_HELD_MUCH], 0, "all of it");

    for (i = 600; i < 100 * CELLS; i++) {
        take(c, 1, i, 1, NEVER, 1);
    }

    i = count(c, 2, 0, 100 * CELLS) + count(c, 3, 0, 100 * CELLS);

    ok(i < CELLS / 8, "and make room for it");
    ok(i > CELLS / 16, "but not all");
    ok(c->evictions[NGX_RL_HELD_KNOWN] > CELLS, "it is counted");

    learn(c, 2, 200 * CELLS, 1, 100 * SEC, 1);
    ok(known(c, 2, 200 * CELLS), "what is learned last is known");
    is_text(broken(c), NULL, "all is well");
}


static void
test_in_use(void)
{
    cell_t     *cell;
    cells_t    *c;
    uint32_t    i, n;
    cell_key_t  key;

    /* a request with 16 limits in memory that is hardly enough */

    c = new_cells(1 + 16 * (3 + NGX_RL_ENTRIES / NGX_RL_CHUNK));

    for (i = 0; i < 1000; i++) {
        take(c, 100, i, 1, i % 2 ? NEVER : 1, 2);
    }

    for (i = 0, n = 0; i < 16; i++) {
        key = key_of(i, i);
        cell = ngx_rl_cells_make(c, &key, i, LOG, 3);
        n += (cell != NULL);
    }

    is_number(n, 16, "16 windows of as many limits");

    for (i = 0; i < 16; i++) {
        ngx_rl_log_t  log;

        key = key_of(i, i);
        cell = ngx_rl_cells_find(c, &key);

        log.n = NGX_RL_ENTRIES;
        memset(log.entries, 0, sizeof(log.entries));

        ngx_rl_cells_save(c, cell, &log, 3);
        n += (log.n == NGX_RL_ENTRIES);
    }

    is_number(n, 32, "all with all of their entries");
    is_number(c->keys, 16, "nobody else has room then");
    is_text(broken(c), NULL, "all is well");

    key = key_of(101, 1);
    ok(ngx_rl_cells_make(c, &key, 1, LEVEL, 3) == NULL, "nor has another one");

    ngx_rl_cells_release(c);
    ok(ngx_rl_cells_make(c, &key, 1, LEVEL, 3) != NULL,
       "until they are in use no more");
    is_text(broken(c), NULL, "all is well");
}


static void
test_until(void)
{
    int64_t          state[NGX_RL_STATES];
    uint64_t         until;
    ngx_rl_log_t     log;
    ngx_rl_level_t   level;
    ngx_rl_bucket_t  bucket;

    memset(&level, 0, sizeof(level));
    bucket = bucket_of(10, "2r/s", 3);

    ngx_rl_level_look(&level, &bucket, 100 * SEC, state);
    is_number(ngx_rl_level_until(&level, &bucket), 100 * SEC,
              "a full bucket holds nothing");

    ngx_rl_level_take(&level, &bucket, state);
    until = ngx_rl_level_until(&level, &bucket);
    is_number(until, 101500000, "3 tokens of 2r/s come back in 1.5 s");
    ok(!ngx_rl_level_much(&bucket, state), "3 of 10 are little");

    ngx_rl_level_look(&level, &bucket, until - 1, state);
    ok(level.tokens < 10 * (int64_t) SEC, "it is not full before");
    ngx_rl_level_look(&level, &bucket, until, state);
    is_number(level.tokens, 10 * SEC, "and it is then");

    bucket.cost = 5;
    ngx_rl_level_take(&level, &bucket, state);
    ok(ngx_rl_level_much(&bucket, state), "half of it is much");

    bucket.step = 2 * SEC;
    is_number(ngx_rl_level_until(&level, &bucket), until + 4 * SEC,
              "in steps it takes longer");

    bucket.rate.num = 0;
    is_number(ngx_rl_level_until(&level, &bucket), NEVER,
              "without a rate it takes for ever");

    log.n = 0;
    bucket = window_of(10, 60 * SEC, 5);

    is_number(ngx_rl_log_until(&log, &bucket), 0,
              "an empty window holds nothing");

    ngx_rl_log_look(&log, &bucket, 100 * SEC, state);
    ngx_rl_log_take(&log, &bucket, 100 * SEC, state);
    is_number(ngx_rl_log_until(&log, &bucket), 160 * SEC,
              "another one is empty when its last entry has left");
    ok(ngx_rl_level_much(&bucket, state), "5 of 10 are much");

    bucket.capacity = 20;
    ngx_rl_log_look(&log, &bucket, 110 * SEC, state);
    ngx_rl_log_take(&log, &bucket, 110 * SEC, state);
    is_number(ngx_rl_log_until(&log, &bucket), 170 * SEC,
              "which may be a later one");
}


static void
test_random(void)
{
    int          good;
    cells_t     *c;
    uint32_t     i, k;
    uint64_t     seed, r, now;
    const char  *err;

    seed = 42;
    good = 1;
    err = NULL;

    for (k = 0; k < 20 && err == NULL && good; k++) {

        c = new_cells(400 + 37 * k);
        now = 1;

        for (i = 0; i < 20000 && err == NULL && good; i++) {
            r = tap_random(&seed);
            now += r % 1000;

            switch (r >> 20 & 3) {

            case 0:
                good = window(c, r >> 40 & 7, r >> 30 & 255, r >> 24 & 63,
                              r >> 16 & 1, now)
                       == (r >> 24 & 63);
                break;

            case 1:
                good = learn(c, r >> 40 & 3, 1000 + (r >> 30 & 511),
                             r >> 24 & 1, now + (r >> 50), now)
                       != NULL;
                break;

            case 2:
                good = preview(c, r >> 40 & 3, 2000 + (r >> 30 & 511),
                               now + (r >> 50), now)
                       != NULL;
                break;

            default:
                good = take(c, r >> 40 & 15, 3000 + (r >> 30 & 1023),
                            r >> 16 & 1, now + (r >> 44), now)
                       != NULL;
            }

            if (i % 16 == 0) {
                err = broken(c);
            }
        }
    }

    is_text(err, NULL, "400000 steps leave no cell where it does not belong");
    ok(good, "and keep what they were told");
}


int
main(void)
{
    test_kept();
    test_order();
    test_nothing_first();
    test_age();
    test_other_limits();
    test_same_limit();
    test_known();
    test_in_use();
    test_until();
    test_random();

    return tap_done();
}
