
/*
 *     heads[]  the first cell of a chain, by the hash of a key
 *     lines[]  a key, a chunk of the entries of a window, or a queue of keys;
 *              line 0 is none of them: the ring of all queues begins and ends
 *              there
 *
 * A new cell comes from the list of free cells, or from the unused end of the
 * array.  Each time, a hand moves on around the array and evicts keys that
 * hold nothing, whatever limit they belong to: a bucket that is full again, an
 * empty window, an answer that is too old.  The hand examines a few cells and
 * frees all such keys that it finds, so free cells accumulate.  If none is
 * free, the hand examines some more.
 *
 * If this does not help, keys that hold something are evicted.  Each limit has
 * queues of its own, in the order of use: keys with at least half of the limit
 * taken, keys with less taken, and what is known about keys in Redis.  The
 * queue with the most cells loses its oldest key.  Cells of the second kind
 * count four times, and those of the third kind 16 times, because their loss
 * admits fewer requests, or none.  So a flood of keys uses up the memory of
 * its own queue, and every other queue keeps its part.
 *
 * The queue with the most cells is found by comparing each queue that grows,
 * and a few others in turn.  With many limits, the chosen queue may have a few
 * cells less than another one.
 *
 * Queues are made in pairs with their first key and freed with the last one,
 * so limits may come and go.
 */


#include <string.h>

#include "pure/ngx_rl_cells.h"


/*
 * How many cells the hand examines for each cell needed, how many more if none
 * is free, and how many queues are compared then.
 */
#define NGX_RL_CELLS_SWEEP   4
#define NGX_RL_CELLS_SEARCH  64
#define NGX_RL_CELLS_TURNS   8

/* ms, the longest time to live of a lease */
#define NGX_RL_CELLS_LINGER  60000

/* in portions of 32 ms: two minutes, as a reply takes one at most */
#define NGX_RL_LASTS_MAX     4095

/* ms */
#define NGX_RL_CELLS_DISORDER  1000000

#define NGX_RL_WEIGHT_MUCH   1
#define NGX_RL_WEIGHT_LITTLE 4
#define NGX_RL_WEIGHT_KNOWN  16


#define ngx_rl_weighed(c, q)                                                  \
    ((uint64_t) (c)->lines[q].cell.u.queue.cells                              \
     * (c)->lines[q].cell.u.queue.weight)


static uint32_t ngx_rl_cells_lookup(const ngx_rl_cells_t *c,
    const ngx_rl_cell_key_t *key);
static int ngx_rl_cells_pinned(const ngx_rl_cells_t *c, uint32_t i);
static uint32_t ngx_rl_cells_queue(ngx_rl_cells_t *c,
    uint64_t limit, ngx_rl_cell_kind_e kind, uint64_t now);
static uint32_t ngx_rl_cells_queue_add(
    ngx_rl_cells_t *c, ngx_rl_cell_kind_e kind, uint64_t now);
static void ngx_rl_cells_queue_free(ngx_rl_cells_t *c, uint32_t q);
static void ngx_rl_cells_count(ngx_rl_cells_t *c, uint32_t q, uint32_t n);
static uint32_t ngx_rl_cells_alloc(ngx_rl_cells_t *c, uint64_t now);
static void ngx_rl_cells_sweep(ngx_rl_cells_t *c, uint32_t n, uint64_t now);
static int ngx_rl_cells_expired(
    const ngx_rl_cells_t *c, const ngx_rl_cell_t *cell, uint64_t now);
static uint32_t ngx_rl_cells_victim(ngx_rl_cells_t *c);
static uint32_t ngx_rl_cells_oldest(const ngx_rl_cells_t *c, uint32_t q);
static void ngx_rl_cells_evict(ngx_rl_cells_t *c, uint32_t i, uint64_t now);
static void ngx_rl_cells_unchain(ngx_rl_cells_t *c, uint32_t i);
static uint32_t ngx_rl_cells_free_chunks(ngx_rl_cells_t *c, uint32_t i);
static void ngx_rl_cells_free(ngx_rl_cells_t *c, uint32_t i);
static void ngx_rl_cells_link(ngx_rl_cells_t *c, uint32_t q, uint32_t i);
static void ngx_rl_cells_unlink(ngx_rl_cells_t *c, uint32_t i);


const char  *const ngx_rl_held_names[] = {
    "nothing",
    "known",
    "little",
    "much"
};


void
ngx_rl_cells_init(ngx_rl_cells_t *c, void *memory, size_t size)
{
    uint32_t  heads;

    /* in the same memory, after the cells; one or two cells for each head */

    c->lines = memory;
    c->n = (uint32_t) (size / ngx_rl_cells_size(1));

    for (heads = 1; heads <= c->n / 2; heads *= 2) {
        /* void */
    }

    c->mask = heads - 1;
    c->heads = (uint32_t *) &c->lines[c->n];

    ngx_rl_cells_reset(c);
}


void
ngx_rl_cells_reset(ngx_rl_cells_t *c)
{
    memset(c->heads, 0, ((size_t) c->mask + 1) * sizeof(uint32_t));
    memset(&c->lines[0], 0, sizeof(ngx_rl_cell_line_t));

    c->fresh = 1;
    c->free = 0;
    c->used = 1;
    c->keys = 0;
    c->hand = 0;
    c->most = 0;
    c->turn = 0;
    c->npinned = 0;
}


ngx_rl_cell_t *
ngx_rl_cells_find(ngx_rl_cells_t *c, const ngx_rl_cell_key_t *key)
{
    uint32_t        i, q;
    ngx_rl_cell_t  *cell;

    i = ngx_rl_cells_lookup(c, key);

    if (i == 0 || c->npinned == NGX_RL_PINNED) {
        return NULL;
    }

    c->pinned[c->npinned++] = i;

    cell = &c->lines[i].cell;
    q = cell->queue;

    if (cell->newer != q) {
        ngx_rl_cells_unlink(c, i);
        ngx_rl_cells_link(c, q, i);
    }

    return cell;
}


ngx_rl_cell_t *
ngx_rl_cells_make(ngx_rl_cells_t *c, const ngx_rl_cell_key_t *key,
    uint64_t limit, ngx_rl_cell_kind_e kind, uint64_t now)
{
    uint32_t        i, q, *head;
    ngx_rl_cell_t  *cell;

    cell = ngx_rl_cells_find(c, key);

    if (cell || c->npinned == NGX_RL_PINNED) {
        return cell;
    }

    i = ngx_rl_cells_alloc(c, now);
    if (i == 0) {
        return NULL;
    }

    /* not earlier, because a queue is freed with its last key */

    q = ngx_rl_cells_queue(c, limit, kind, now);

    if (q == 0) {
        ngx_rl_cells_free(c, i);
        return NULL;
    }

    cell = &c->lines[i].cell;
    head = &c->heads[key->hash[0] & c->mask];

    memset(cell, 0, sizeof(ngx_rl_cell_t));

    cell->key = *key;
    cell->next = *head;
    *head = i;

    ngx_rl_cells_link(c, q, i);
    ngx_rl_cells_count(c, q, 1);

    c->keys++;
    c->pinned[c->npinned++] = i;

    return cell;
}


void
ngx_rl_cells_taken(ngx_rl_cells_t *c,
    ngx_rl_cell_t *cell, int much, uint64_t until)
{
    uint32_t        i, n, q;
    ngx_rl_cell_t  *queue;

    cell->u.local.until = until;

    queue = &c->lines[cell->queue].cell;

    if ((int) queue->u.queue.much == much) {
        return;
    }

    i = (uint32_t) ((ngx_rl_cell_line_t *) cell - c->lines);
    n = 1 + cell->u.local.n;
    q = queue->u.queue.pair;

    ngx_rl_cells_unlink(c, i);
    queue->u.queue.cells -= n;

    ngx_rl_cells_link(c, q, i);
    ngx_rl_cells_count(c, q, n);
}


void
ngx_rl_cells_load(ngx_rl_cells_t *c,
    const ngx_rl_cell_t *cell, ngx_rl_log_t *log)
{
    uint32_t         i, k;
    ngx_rl_chunk_t  *chunk;

    log->n = 0;

    for (i = cell->u.local.chunks; i; i = chunk->next) {
        chunk = &c->lines[i].chunk;

        for (k = 0; k < chunk->n && log->n < NGX_RL_ENTRIES; k++) {
            log->entries[log->n].time = chunk->time[k];
            log->entries[log->n].cost = chunk->cost[k];
            log->n++;
        }
    }
}


void
ngx_rl_cells_save(ngx_rl_cells_t *c, ngx_rl_cell_t *cell, ngx_rl_log_t *log,
    uint64_t now)
{
    uint32_t         i, k, n, have, *next;
    ngx_rl_chunk_t  *chunk;

    have = 0;

    for (next = &cell->u.local.chunks; *next; next = &chunk->next) {
        chunk = &c->lines[*next].chunk;
        have += NGX_RL_CHUNK;

        if (have >= log->n) {
            next = &chunk->next;
            break;
        }
    }

    n = ngx_rl_cells_free_chunks(c, *next);
    *next = 0;

    cell->u.local.n -= n;
    c->lines[cell->queue].cell.u.queue.cells -= n;

    while (have < log->n) {
        i = ngx_rl_cells_alloc(c, now);

        if (i == 0) {

            /* without a chunk there is nothing to squeeze */

            if (have == 0) {
                log->n = 0;
                break;
            }

            ngx_rl_log_squeeze(log);
            continue;
        }

        *next = i;
        chunk = &c->lines[i].chunk;
        chunk->next = 0;
        next = &chunk->next;
        have += NGX_RL_CHUNK;

        cell->u.local.n++;
        ngx_rl_cells_count(c, cell->queue, 1);
    }

    k = 0;

    for (i = cell->u.local.chunks; i; i = chunk->next) {
        chunk = &c->lines[i].chunk;

        for (chunk->n = 0; chunk->n < NGX_RL_CHUNK && k < log->n; chunk->n++) {
            chunk->time[chunk->n] = log->entries[k].time;
            chunk->cost[chunk->n] = (uint32_t) log->entries[k].cost;
            k++;
        }
    }
}


void
ngx_rl_known_learned(ngx_rl_cell_t *cell, uint64_t learned, uint64_t until)
{
    uint64_t  lasts;

    lasts = (until > learned) ? until - learned : 0;
    lasts = (lasts + NGX_RL_LASTS - 1) / NGX_RL_LASTS;

    if (lasts > NGX_RL_LASTS_MAX) {
        lasts = NGX_RL_LASTS_MAX;
    }

    cell->u.known.learned = (uint32_t) learned;
    cell->u.known.lasts = lasts & NGX_RL_LASTS_MAX;
}


uint32_t
ngx_rl_known_age(const ngx_rl_cell_t *cell, uint64_t now)
{
    uint32_t  age;

    age = (uint32_t) (now / 1000) - cell->u.known.learned;

    /* calls may be answered in another order than they were sent */

    return (age > UINT32_MAX - NGX_RL_CELLS_DISORDER) ? 0 : age;
}


static uint32_t
ngx_rl_cells_lookup(const ngx_rl_cells_t *c, const ngx_rl_cell_key_t *key)
{
    uint32_t              i;
    const ngx_rl_cell_t  *cell;

    for (i = c->heads[key->hash[0] & c->mask]; i; i = cell->next) {

        cell = &c->lines[i].cell;

        if (cell->key.hash[0] == key->hash[0]
            && cell->key.hash[1] == key->hash[1])
        {
            break;
        }
    }

    return i;
}


static int
ngx_rl_cells_pinned(const ngx_rl_cells_t *c, uint32_t i)
{
    uint32_t  k;

    for (k = 0; k < c->npinned; k++) {
        if (c->pinned[k] == i) {
            return 1;
        }
    }

    return 0;
}


/* the queue of a limit for keys with little taken; 0: no memory */

static uint32_t
ngx_rl_cells_queue(ngx_rl_cells_t *c, uint64_t limit,
    ngx_rl_cell_kind_e kind, uint64_t now)
{
    uint32_t           q, much, *head;
    ngx_rl_cell_t     *queue;
    ngx_rl_cell_key_t  key;

    key.hash[0] = (limit * 8 + kind) * 0x9e3779b97f4a7c15ULL;
    key.hash[0] ^= key.hash[0] >> 32;
    key.hash[1] = ~limit;

    q = ngx_rl_cells_lookup(c, &key);

    if (q) {
        return q;
    }

    much = ngx_rl_cells_queue_add(c, kind, now);
    if (much == 0) {
        return 0;
    }

    q = ngx_rl_cells_queue_add(c, kind, now);

    if (q == 0) {
        ngx_rl_cells_queue_free(c, much);
        return 0;
    }

    queue = &c->lines[much].cell;
    queue->u.queue.pair = q;
    queue->u.queue.much = 1;
    queue->u.queue.weight = NGX_RL_WEIGHT_MUCH;

    queue = &c->lines[q].cell;
    queue->u.queue.pair = much;
    queue->u.queue.weight = (kind == NGX_RL_CELL_LEVEL
                             || kind == NGX_RL_CELL_LOG
                             || kind == NGX_RL_CELL_COUNT)
                            ? NGX_RL_WEIGHT_LITTLE
                            : NGX_RL_WEIGHT_KNOWN;

    /* this queue is found by its key, the other one through it */

    head = &c->heads[key.hash[0] & c->mask];

    queue->key = key;
    queue->next = *head;
    *head = q;

    return q;
}


static uint32_t
ngx_rl_cells_queue_add(ngx_rl_cells_t *c, ngx_rl_cell_kind_e kind, uint64_t now)
{
    uint32_t        q, before;
    ngx_rl_cell_t  *queue;

    q = ngx_rl_cells_alloc(c, now);
    if (q == 0) {
        return 0;
    }

    queue = &c->lines[q].cell;
    before = c->lines[0].cell.u.queue.before;

    memset(queue, 0, sizeof(ngx_rl_cell_t));

    queue->newer = q;
    queue->older = q;
    queue->u.queue.kind = kind;
    queue->u.queue.before = before;

    c->lines[before].cell.u.queue.after = q;
    c->lines[0].cell.u.queue.before = q;

    return q;
}


static void
ngx_rl_cells_queue_free(ngx_rl_cells_t *c, uint32_t q)
{
    ngx_rl_cell_t  *queue;

    queue = &c->lines[q].cell;

    c->lines[queue->u.queue.before].cell.u.queue.after = queue->u.queue.after;
    c->lines[queue->u.queue.after].cell.u.queue.before = queue->u.queue.before;

    if (c->most == q) {
        c->most = 0;
    }

    if (c->turn == q) {
        c->turn = queue->u.queue.before;
    }

    ngx_rl_cells_free(c, q);
}


/* a queue has so many more cells */

static void
ngx_rl_cells_count(ngx_rl_cells_t *c, uint32_t q, uint32_t n)
{
    c->lines[q].cell.u.queue.cells += n;

    if (ngx_rl_weighed(c, q) > ngx_rl_weighed(c, c->most)) {
        c->most = q;
    }
}


static uint32_t
ngx_rl_cells_alloc(ngx_rl_cells_t *c, uint64_t now)
{
    uint32_t  i;

    ngx_rl_cells_sweep(c, NGX_RL_CELLS_SWEEP, now);

    if (c->free == 0 && c->fresh == c->n) {
        ngx_rl_cells_sweep(c, NGX_RL_CELLS_SEARCH, now);
    }

    if (c->free == 0 && c->fresh == c->n) {
        i = ngx_rl_cells_victim(c);
        if (i == 0) {
            return 0;
        }

        ngx_rl_cells_evict(c, i, now);
    }

    if (c->free) {
        i = c->free;
        c->free = c->lines[i].cell.next;

    } else {
        i = c->fresh++;
    }

    c->lines[i].cell.queue = 0;
    c->used++;

    return i;
}


/* evicts the keys that hold nothing among the next n cells */

static void
ngx_rl_cells_sweep(ngx_rl_cells_t *c, uint32_t n, uint64_t now)
{
    ngx_rl_cell_t  *cell;

    for ( /* void */ ; n; n--) {

        c->hand = (c->hand + 1 < c->fresh) ? c->hand + 1 : 0;

        cell = &c->lines[c->hand].cell;

        if (cell->queue
            && ngx_rl_cells_expired(c, cell, now)
            && !ngx_rl_cells_pinned(c, c->hand))
        {
            ngx_rl_cells_evict(c, c->hand, now);
        }
    }
}


static int
ngx_rl_cells_expired(const ngx_rl_cells_t *c,
    const ngx_rl_cell_t *cell, uint64_t now)
{
    switch (c->lines[cell->queue].cell.u.queue.kind) {

    case NGX_RL_CELL_PREVIEW:
        return cell->u.preview.until <= now / 1000;

    case NGX_RL_CELL_KNOWN:

        /*
         * By then, held tokens have been refunded and demand has been
         * forgotten.
         */

        return ngx_rl_known_age(cell, now)
               >= ngx_rl_known_lasts(cell) + NGX_RL_CELLS_LINGER;

    default:
        return cell->u.local.until <= now;
    }
}


/* the key to evict if all keys hold something; 0: all are in use right now */

static uint32_t
ngx_rl_cells_victim(ngx_rl_cells_t *c)
{
    uint32_t  i, k, q;

    for (k = 0; k < NGX_RL_CELLS_TURNS; k++) {

        c->turn = c->lines[c->turn].cell.u.queue.after;

        if (ngx_rl_weighed(c, c->turn) > ngx_rl_weighed(c, c->most)) {
            c->most = c->turn;
        }
    }

    i = ngx_rl_cells_oldest(c, c->most);

    for (q = c->lines[0].cell.u.queue.after;
         i == 0 && q;
         q = c->lines[q].cell.u.queue.after)
    {
        i = ngx_rl_cells_oldest(c, q);
    }

    return i;
}


static uint32_t
ngx_rl_cells_oldest(const ngx_rl_cells_t *c, uint32_t q)
{
    uint32_t  i;

    for (i = c->lines[q].cell.newer; i != q; i = c->lines[i].cell.newer) {
        if (!ngx_rl_cells_pinned(c, i)) {
            return i;
        }
    }

    return 0;
}


static void
ngx_rl_cells_evict(ngx_rl_cells_t *c, uint32_t i, uint64_t now)
{
    uint32_t        n, q, pair;
    ngx_rl_cell_t  *cell, *queue;
    ngx_rl_held_e   held;

    cell = &c->lines[i].cell;
    q = cell->queue;
    queue = &c->lines[q].cell;
    pair = queue->u.queue.pair;
    n = 1;

    if (ngx_rl_cells_expired(c, cell, now)) {
        held = NGX_RL_HELD_NOTHING;

    } else if (queue->u.queue.weight == NGX_RL_WEIGHT_KNOWN) {
        held = NGX_RL_HELD_KNOWN;

    } else {
        held = queue->u.queue.much ? NGX_RL_HELD_MUCH : NGX_RL_HELD_LITTLE;
    }

    c->evictions[held]++;

    if (queue->u.queue.weight != NGX_RL_WEIGHT_KNOWN) {
        n += ngx_rl_cells_free_chunks(c, cell->u.local.chunks);
    }

    ngx_rl_cells_unchain(c, i);
    ngx_rl_cells_unlink(c, i);
    ngx_rl_cells_free(c, i);

    queue->u.queue.cells -= n;
    c->keys--;

    if (queue->u.queue.cells || c->lines[pair].cell.u.queue.cells) {
        return;
    }

    ngx_rl_cells_unchain(c, queue->u.queue.much ? pair : q);
    ngx_rl_cells_queue_free(c, q);
    ngx_rl_cells_queue_free(c, pair);
}


static void
ngx_rl_cells_unchain(ngx_rl_cells_t *c, uint32_t i)
{
    uint32_t       *next;
    ngx_rl_cell_t  *cell;

    cell = &c->lines[i].cell;

    for (next = &c->heads[cell->key.hash[0] & c->mask];
         *next != i;
         next = &c->lines[*next].cell.next)
    {
        /* void */
    }

    *next = cell->next;
}


static uint32_t
ngx_rl_cells_free_chunks(ngx_rl_cells_t *c, uint32_t i)
{
    uint32_t  n, next;

    for (n = 0; i; n++) {
        next = c->lines[i].chunk.next;
        ngx_rl_cells_free(c, i);
        i = next;
    }

    return n;
}


static void
ngx_rl_cells_free(ngx_rl_cells_t *c, uint32_t i)
{
    c->lines[i].cell.queue = 0;
    c->lines[i].cell.next = c->free;
    c->free = i;
    c->used--;
}


/* it is the newest one now */

static void
ngx_rl_cells_link(ngx_rl_cells_t *c, uint32_t q, uint32_t i)
{
    ngx_rl_cell_t  *cell, *queue;

    cell = &c->lines[i].cell;
    queue = &c->lines[q].cell;

    cell->queue = q;
    cell->newer = q;
    cell->older = queue->older;

    c->lines[queue->older].cell.newer = i;
    queue->older = i;
}


static void
ngx_rl_cells_unlink(ngx_rl_cells_t *c, uint32_t i)
{
    ngx_rl_cell_t  *cell;

    cell = &c->lines[i].cell;

    c->lines[cell->newer].cell.older = cell->older;
    c->lines[cell->older].cell.newer = cell->newer;
}
