
/*
 * The most frequent keys of a stream, in fixed memory (SpaceSaving with a
 * filter).  Counts decay: a hit is worth half as much after
 * NGX_RL_TOP_HALF_LIFE.  Pure.
 *
 * With n entries and hits that are worth "total" now, for each key:
 *
 *     count - error <= true count <= count
 *     a key with more than total / n is in the table
 *
 * Times are in milliseconds.  A time may be slightly before an earlier one.
 */


#ifndef _NGX_RL_TOP_H_INCLUDED_
#define _NGX_RL_TOP_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


#define NGX_RL_TOP_HALF_LIFE  60000     /* ms */
#define NGX_RL_TOP_MIN        10        /* entries */
#define NGX_RL_TOP_MAX        1000
#define NGX_RL_TOP_TEXT       64        /* bytes of a text; more is cut off */


typedef struct {
    uint64_t  hash;   /* stands for the key */
    double    count;
    double    error;  /* of this, so much may be of other keys */
    uint16_t  place;  /* in the heap */
    uint16_t  next;   /* entry with the same head */
    uint16_t  len;
    uint8_t   text[NGX_RL_TOP_TEXT];  /* that shows the key */
} ngx_rl_top_entry_t;


typedef struct {
    ngx_rl_top_entry_t  *entries;
    uint16_t            *heap;    /* entries; the lowest count is first */
    uint16_t            *heads;   /* of lists of entries, by hash */
    float               *others;  /* what keys without an entry have at most,
                                     by hash */
    uint32_t             mask;    /* of a hash, for heads */
    uint32_t             n;       /* entries at most */
    uint32_t             used;
    uint64_t             origin;  /* a hit at this time adds 1, */
    uint64_t             last;    /* and at this one */
    double               weight;  /* so much */
} ngx_rl_top_t;


/* bytes for n entries; a multiple of 8 */
size_t ngx_rl_top_size(uint32_t n);

/* "memory" is aligned for a uint64_t and has ngx_rl_top_size(n) bytes */
void ngx_rl_top_init(ngx_rl_top_t *top, void *memory, uint32_t n);

/* forgets all keys */
void ngx_rl_top_empty(ngx_rl_top_t *top);

/* counts a key; 0: not yet, because it should get an entry */
int ngx_rl_top_hit(ngx_rl_top_t *top, uint64_t hash, uint64_t now);

/*
 * Counts a key for which ngx_rl_top_hit() has returned 0.  If the table is
 * full, the key takes the entry with the lowest count.
 */
void ngx_rl_top_add(ngx_rl_top_t *top, uint64_t hash,
    const void *text, size_t len, uint64_t now);

/* a key that is not in the table has this count at most */
double ngx_rl_top_missed(const ngx_rl_top_t *top, uint64_t now);

/*
 * Copies up to n entries, in any order, with counts as of now.  Returns how
 * many there are.
 */
uint32_t ngx_rl_top_copy(const ngx_rl_top_t *top, ngx_rl_top_entry_t *entries,
    uint32_t n, uint64_t now);

/* sorts copied entries, the highest count first */
void ngx_rl_top_sort(ngx_rl_top_entry_t *entries, uint32_t n);


#endif /* _NGX_RL_TOP_H_INCLUDED_ */
