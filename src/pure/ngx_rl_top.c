
/*
 * Keys without an entry share counters, by their hash.  A key gets an entry
 * when its counter would exceed the lowest count of an entry, which it then
 * takes over; what was in the counter before is its error.  The key that loses
 * the entry leaves its count in its own counter.  So a counter is never below
 * the true count of a key without an entry, and never above the lowest count of
 * an entry, apart from rounding.  Most hits of rare keys only touch a counter,
 * and their texts are not needed.
 *
 * The sum of all counts grows by the hits at most, so the lowest of n counts is
 * at most total / n.
 *
 * Forward decay: instead of lowering all counts as time goes by, later hits add
 * more.  A hit adds 2^((now - origin) / half-life).  What a count is worth is
 * the same number, divided by what a hit adds now.  So the order of counts does
 * not depend on the time, and a hit only moves its own entry in the heap.
 *
 * Before these numbers get too large, the origin moves on by a number of
 * half-lives, and all counts are divided by the same power of two.  This is
 * exact and keeps the order.
 */


#include "pure/ngx_rl_top.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>


#define NGX_RL_TOP_NONE    UINT16_MAX

/* half-lives after which the origin moves */
#define NGX_RL_TOP_SPAN    64

/* half-lives after which nothing is left of a count */
#define NGX_RL_TOP_GONE    512

/* counters of keys without an entry, for each head */
#define NGX_RL_TOP_OTHERS  16

#define NGX_RL_TOP_LN2     0.69314718055994530942


#define ngx_rl_top_others(top)  (NGX_RL_TOP_OTHERS * ((top)->mask + 1))


static double ngx_rl_top_weight(const ngx_rl_top_t *top, uint64_t now);
static double ngx_rl_top_power(uint64_t n);
static void ngx_rl_top_time(ngx_rl_top_t *top, uint64_t now);
static uint16_t *ngx_rl_top_find(ngx_rl_top_t *top, uint64_t hash);
static float *ngx_rl_top_other(const ngx_rl_top_t *top, uint64_t hash);
static float ngx_rl_top_above(double count);
static uint32_t ngx_rl_top_heads(uint32_t n);
static void ngx_rl_top_up(ngx_rl_top_t *top, uint32_t place);
static void ngx_rl_top_down(ngx_rl_top_t *top, uint32_t place);
static void ngx_rl_top_put(ngx_rl_top_t *top, uint32_t place, uint16_t i);
static int ngx_rl_top_compare(const void *one, const void *two);


size_t
ngx_rl_top_size(uint32_t n)
{
    size_t    size;
    uint32_t  heads;

    heads = ngx_rl_top_heads(n);

    size = n * sizeof(ngx_rl_top_entry_t)
           + NGX_RL_TOP_OTHERS * heads * sizeof(float)
           + (n + heads) * sizeof(uint16_t);

    return (size + 7) / 8 * 8;
}


void
ngx_rl_top_init(ngx_rl_top_t *top, void *memory, uint32_t n)
{
    top->entries = memory;
    top->mask = ngx_rl_top_heads(n) - 1;
    top->others = (void *) &top->entries[n];
    top->heap = (void *) &top->others[ngx_rl_top_others(top)];
    top->heads = &top->heap[n];
    top->n = n;

    ngx_rl_top_empty(top);
}


void
ngx_rl_top_empty(ngx_rl_top_t *top)
{
    top->used = 0;
    top->origin = 0;
    top->last = 0;
    top->weight = 1;

    memset(top->entries, 0, top->n * sizeof(ngx_rl_top_entry_t));
    memset(top->others, 0, ngx_rl_top_others(top) * sizeof(float));
    memset(top->heads, 0xff, (top->mask + 1) * sizeof(uint16_t));
}


int
ngx_rl_top_hit(ngx_rl_top_t *top, uint64_t hash, uint64_t now)
{
    float                count, *other;
    uint16_t             i;
    ngx_rl_top_entry_t  *entry;

    i = *ngx_rl_top_find(top, hash);

    if (i == NGX_RL_TOP_NONE && top->used < top->n) {
        return 0;
    }

    ngx_rl_top_time(top, now);

    if (i == NGX_RL_TOP_NONE) {
        other = ngx_rl_top_other(top, hash);
        count = ngx_rl_top_above(*other + top->weight);

        if (count > top->entries[top->heap[0]].count) {
            return 0;
        }

        *other = count;

        return 1;
    }

    entry = &top->entries[i];
    entry->count += top->weight;

    ngx_rl_top_down(top, entry->place);

    return 1;
}


void
ngx_rl_top_add(ngx_rl_top_t *top, uint64_t hash,
    const void *text, size_t len, uint64_t now)
{
    float               *other;
    double               error;
    uint16_t             i, *link;
    uint32_t             place;
    ngx_rl_top_entry_t  *entry;

    if (top->used == 0) {
        top->origin = now;
        top->last = 0;
    }

    ngx_rl_top_time(top, now);

    error = *ngx_rl_top_other(top, hash);

    if (top->used < top->n) {
        place = top->used++;
        i = (uint16_t) place;
        entry = &top->entries[i];

    } else {
        place = 0;
        i = top->heap[0];
        entry = &top->entries[i];

        link = ngx_rl_top_find(top, entry->hash);
        *link = entry->next;

        other = ngx_rl_top_other(top, entry->hash);

        if (entry->count > *other) {
            *other = ngx_rl_top_above(entry->count);
        }
    }

    entry->hash = hash;
    entry->error = error;
    entry->count = error + top->weight;

    entry->len = (uint16_t) (len < NGX_RL_TOP_TEXT ? len : NGX_RL_TOP_TEXT);
    memcpy(entry->text, text, entry->len);

    link = &top->heads[hash & top->mask];
    entry->next = *link;
    *link = i;

    ngx_rl_top_put(top, place, i);
    ngx_rl_top_up(top, place);
    ngx_rl_top_down(top, entry->place);
}


double
ngx_rl_top_missed(const ngx_rl_top_t *top, uint64_t now)
{
    if (top->used < top->n) {
        return 0;
    }

    return top->entries[top->heap[0]].count / ngx_rl_top_weight(top, now);
}


uint32_t
ngx_rl_top_copy(const ngx_rl_top_t *top, ngx_rl_top_entry_t *entries,
    uint32_t n, uint64_t now)
{
    double    weight;
    uint32_t  i;

    if (n > top->used) {
        n = top->used;
    }

    weight = ngx_rl_top_weight(top, now);

    memcpy(entries, top->entries, n * sizeof(ngx_rl_top_entry_t));

    for (i = 0; i < n; i++) {
        entries[i].count /= weight;
        entries[i].error /= weight;
    }

    return n;
}


void
ngx_rl_top_sort(ngx_rl_top_entry_t *entries, uint32_t n)
{
    qsort(entries, n, sizeof(ngx_rl_top_entry_t), ngx_rl_top_compare);
}


/* keys with equal counts have the same order each time */

static int
ngx_rl_top_compare(const void *one, const void *two)
{
    const ngx_rl_top_entry_t  *a = one;
    const ngx_rl_top_entry_t  *b = two;

    if (a->count != b->count) {
        return a->count < b->count ? 1 : -1;
    }

    return a->hash < b->hash ? -1 : 1;
}


/*
 * What a hit adds now.  The series of e^x needs no library, and is right to 9
 * digits.
 */

static double
ngx_rl_top_weight(const ngx_rl_top_t *top, uint64_t now)
{
    double    x, sum;
    size_t    i;
    uint64_t  age;

    static const double  inverse[] = {
        1.0 / 10, 1.0 / 9, 1.0 / 8, 1.0 / 7, 1.0 / 6, 1.0 / 5, 1.0 / 4,
        1.0 / 3, 1.0 / 2, 1.0
    };

    /* the origin may have moved since a request began */

    age = now > top->origin ? now - top->origin : 0;

    x = (double) (age % NGX_RL_TOP_HALF_LIFE)
        * (NGX_RL_TOP_LN2 / NGX_RL_TOP_HALF_LIFE);

    for (sum = 1, i = 0; i < sizeof(inverse) / sizeof(inverse[0]); i++) {
        sum = 1 + sum * x * inverse[i];
    }

    return sum * ngx_rl_top_power(age / NGX_RL_TOP_HALF_LIFE);
}


/* 2^n, and not more than is needed to make any count vanish */

static double
ngx_rl_top_power(uint64_t n)
{
    double  power;

    n = n < NGX_RL_TOP_GONE ? n : NGX_RL_TOP_GONE;

    for (power = 1; n >= 32; n -= 32) {
        power *= (double) ((uint64_t) 1 << 32);
    }

    return power * (double) ((uint64_t) 1 << n);
}


/* sets what a hit adds at this time; many hits have the same */

static void
ngx_rl_top_time(ngx_rl_top_t *top, uint64_t now)
{
    double    power;
    uint32_t  i;
    uint64_t  n;

    if (now == top->last) {
        return;
    }

    n = now > top->origin ? (now - top->origin) / NGX_RL_TOP_HALF_LIFE : 0;

    if (n >= NGX_RL_TOP_SPAN) {
        power = ngx_rl_top_power(n);

        for (i = 0; i < top->used; i++) {
            top->entries[i].count /= power;
            top->entries[i].error /= power;
        }

        for (i = 0; i < ngx_rl_top_others(top); i++) {
            top->others[i] = ngx_rl_top_above(top->others[i] / power);
        }

        top->origin += n * NGX_RL_TOP_HALF_LIFE;
    }

    top->last = now;
    top->weight = ngx_rl_top_weight(top, now);
}


/* the link to the entry of a key, or the last link of its list */

static uint16_t *
ngx_rl_top_find(ngx_rl_top_t *top, uint64_t hash)
{
    uint16_t            *link;
    ngx_rl_top_entry_t  *entry;

    for (link = &top->heads[hash & top->mask];
         *link != NGX_RL_TOP_NONE;
         link = &entry->next)
    {
        entry = &top->entries[*link];

        if (entry->hash == hash) {
            break;
        }
    }

    return link;
}


static float *
ngx_rl_top_other(const ngx_rl_top_t *top, uint64_t hash)
{
    return &top->others[hash >> 32 & (ngx_rl_top_others(top) - 1)];
}


/* counters are small, and rounded up, so they are still upper bounds */

static float
ngx_rl_top_above(double count)
{
    float  above;

    above = (float) count;

    return above < count ? above * (1 + FLT_EPSILON) : above;
}


/* a power of two, so that there are one or two lists for each entry */

static uint32_t
ngx_rl_top_heads(uint32_t n)
{
    uint32_t  heads;

    for (heads = 1; heads < n; heads *= 2) {
        /* void */
    }

    return heads;
}


static void
ngx_rl_top_up(ngx_rl_top_t *top, uint32_t place)
{
    uint16_t  i;
    uint32_t  above;

    i = top->heap[place];

    for ( /* void */ ; place; place = above) {
        above = (place - 1) / 2;

        if (top->entries[top->heap[above]].count <= top->entries[i].count) {
            break;
        }

        ngx_rl_top_put(top, place, top->heap[above]);
    }

    ngx_rl_top_put(top, place, i);
}


static void
ngx_rl_top_down(ngx_rl_top_t *top, uint32_t place)
{
    uint16_t  i;
    uint32_t  below;

    i = top->heap[place];

    for ( ;; ) {
        below = 2 * place + 1;

        if (below >= top->used) {
            break;
        }

        if (below + 1 < top->used
            && top->entries[top->heap[below + 1]].count
               < top->entries[top->heap[below]].count)
        {
            below++;
        }

        if (top->entries[i].count <= top->entries[top->heap[below]].count) {
            break;
        }

        ngx_rl_top_put(top, place, top->heap[below]);
        place = below;
    }

    ngx_rl_top_put(top, place, i);
}


static void
ngx_rl_top_put(ngx_rl_top_t *top, uint32_t place, uint16_t i)
{
    top->heap[place] = i;
    top->entries[i].place = (uint16_t) place;
}
