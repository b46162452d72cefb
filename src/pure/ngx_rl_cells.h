
/*
 * What this machine stores about keys, until it needs the room for others: an
 * array of cells of equal size.  Pure: the caller owns the memory, and all
 * workers share it and call these functions one at a time.  Time is an
 * argument, in us, by a clock that never steps back.
 */


#ifndef _NGX_RL_CELLS_H_INCLUDED_
#define _NGX_RL_CELLS_H_INCLUDED_


#include <stddef.h>

#include "pure/ngx_rl_level.h"


/* entries of a window in one cell */
#define NGX_RL_CHUNK   4

/* keys in use at the same time, at most */
#define NGX_RL_PINNED  32

/* ms: the time for which an answer is used is stored in these units */
#define NGX_RL_LASTS   32


/* what may be stored about a key, each in a cell of its own */

typedef enum {
    NGX_RL_CELL_LEVEL = 1,  /* a bucket of this machine's own limit */
    NGX_RL_CELL_LOG,        /* a window of it */
    NGX_RL_CELL_PREVIEW,    /* what Redis told a preview */
    NGX_RL_CELL_KNOWN,      /* what it said about a bucket or window */
    NGX_RL_CELL_COUNT       /* a window that counts by periods */
} ngx_rl_cell_kind_e;


/* what a key held when it was evicted */

typedef enum {
    NGX_RL_HELD_NOTHING = 0,
    NGX_RL_HELD_KNOWN,      /* what Redis said */
    NGX_RL_HELD_LITTLE,     /* less than half was taken */
    NGX_RL_HELD_MUCH,

    NGX_RL_HELDS
} ngx_rl_held_e;


/* identifies a key */

typedef struct {
    uint64_t  hash[2];
} ngx_rl_cell_key_t;


/* one key */

typedef struct {
    ngx_rl_cell_key_t  key;
    uint32_t           next;           /* of the same chain */
    uint32_t           newer;          /* in its queue */
    uint32_t           older;
    uint32_t           queue;          /* 0: not a key */

    union {

        /*
         * A limit of this machine: a bucket, a count, or the entries of a
         * window.
         */

        struct {
            union {
                ngx_rl_level_t  level;
                ngx_rl_count_t  count;
            } state;
            uint64_t        until;     /* us: holds nothing then */
            uint32_t        chunks;    /* the first one */
            uint32_t        n;         /* of chunks */
        } local;

        struct {
            uint64_t        until;     /* ms */
            int64_t         state[NGX_RL_STATES];
        } preview;

        /*
         * A bucket in Redis had at most so many tokens at "last".  If it is
         * refilled in intervals, "last" is the beginning of an interval, so it
         * does not say how old this is.  "held" more tokens were taken from it
         * in advance.
         */
        struct {
            uint64_t        last:52;   /* us */
            uint64_t        lasts:12;  /* as in "known" */
            uint32_t        learned;
            uint32_t        held;
            int64_t         tokens;    /* microtokens */
            uint32_t        gone;      /* of all held so far */
            uint32_t        wanted;    /* by the next lease */
        } known_bucket;

        /* a window in Redis is full */

        struct {
            uint64_t        fits:52;   /* us: when the cost will fit */
            uint64_t        lasts:12;  /* as in "known" */
            uint32_t        learned;
            uint32_t        left;
            uint64_t        oldest;    /* us: when that entry leaves */
            uint32_t        cost;      /* that does not fit */
        } known_window;

        /* the common beginning of both */

        struct {
            uint64_t        time:52;
            uint64_t        lasts:12;  /* is believed for so long, in
                                          portions of 32 ms */
            uint32_t        learned;   /* ms, cut to 32 bits: when the
                                          call was sent */
        } known;

        /* not a key: both ends of a queue; "newer" is the oldest key */

        struct {
            uint32_t        cells;     /* of all its keys */
            uint32_t        weight;
            uint32_t        kind;      /* of its keys */
            uint32_t        much;      /* was taken of each */
            uint32_t        pair;      /* the queue of those of which
                                          less, or more, was taken */
            uint32_t        before;    /* of all queues */
            uint32_t        after;
        } queue;
    } u;
} ngx_rl_cell_t;


/* entries of a window, in the place of a key */

typedef struct {
    uint32_t  cost[NGX_RL_CHUNK];
    uint32_t  next;
    uint32_t  n;
    uint32_t  unused;
    uint32_t  queue;  /* 0, where a key has its queue */
    uint64_t  time[NGX_RL_CHUNK];
} ngx_rl_chunk_t;


/* each fits into a line of the processor's cache */

typedef union {
    ngx_rl_cell_t   cell;
    ngx_rl_chunk_t  chunk;
} ngx_rl_cell_line_t;


/*
 * Does not compile otherwise, or if "known" differs from their common
 * beginning.
 */

#define ngx_rl_cell_same(a, b)                                                \
    (offsetof(ngx_rl_cell_t, u.a) == offsetof(ngx_rl_cell_t, u.b))

typedef char  ngx_rl_cell_check_t
    [sizeof(ngx_rl_cell_line_t) == 64
     && ngx_rl_cell_same(known.learned, known_bucket.learned)
     && ngx_rl_cell_same(known.learned, known_window.learned)
     && offsetof(ngx_rl_cell_t, queue) == offsetof(ngx_rl_chunk_t, queue)
     ? 1 : -1];


typedef struct {
    ngx_rl_cell_line_t  *lines;
    uint32_t            *heads;
    uint32_t             mask;   /* of the number of heads */
    uint32_t             n;      /* cells */

    uint32_t             fresh;  /* cells never used, from here */
    uint32_t             free;
    uint32_t             used;
    uint32_t             keys;

    uint32_t             hand;   /* looks for cells that hold nothing */
    uint32_t             most;   /* the queue that has it, as far as is known */
    uint32_t             turn;   /* the next to be compared */

    uint32_t             npinned;
    uint32_t             pinned[NGX_RL_PINNED];

    uint64_t             evictions[NGX_RL_HELDS];
} ngx_rl_cells_t;


/* the memory for so many cells, including cell 0 */
#define ngx_rl_cells_size(n)                                                  \
    ((n) * (sizeof(ngx_rl_cell_line_t) + sizeof(uint32_t)))

/* divides this memory into as many cells as possible */
void ngx_rl_cells_init(ngx_rl_cells_t *c, void *memory, size_t size);

/* forgets all keys, in whatever state they are */
void ngx_rl_cells_reset(ngx_rl_cells_t *c);

/* releases the keys in use: they may be evicted again */
#define ngx_rl_cells_release(c)  ((c)->npinned = 0)

/* NULL: nothing is known; a cell is valid until all are released */
ngx_rl_cell_t *ngx_rl_cells_find(
    ngx_rl_cells_t *c, const ngx_rl_cell_key_t *key);

/*
 * The same, or a new, zeroed cell; "limit" is any number that identifies the
 * limit.  NULL: all other cells are in use right now.
 */
ngx_rl_cell_t *ngx_rl_cells_make(
    ngx_rl_cells_t *c, const ngx_rl_cell_key_t *key,
    uint64_t limit, ngx_rl_cell_kind_e kind, uint64_t now);

/*
 * Tokens were taken; "much" if at least half of the limit is taken.  By
 * "until" (us) they will have been refilled.
 */
void ngx_rl_cells_taken(ngx_rl_cells_t *c,
    ngx_rl_cell_t *cell, int much, uint64_t until);

/* stores the entries of a window; without memory, fewer and coarser ones */
void ngx_rl_cells_load(ngx_rl_cells_t *c,
    const ngx_rl_cell_t *cell, ngx_rl_log_t *log);
void ngx_rl_cells_save(ngx_rl_cells_t *c,
    ngx_rl_cell_t *cell, ngx_rl_log_t *log, uint64_t now);

/* an answer of Redis is used until so many ms after it was learned */
#define ngx_rl_known_lasts(cell)                                              \
    ((uint32_t) (cell)->u.known.lasts * NGX_RL_LASTS)

/* sets when it was learned and until when it is used, in ms */
void ngx_rl_known_learned(ngx_rl_cell_t *cell,
    uint64_t learned, uint64_t until);

/* ms since it was learned; 0 for a time (us) slightly before that */
uint32_t ngx_rl_known_age(const ngx_rl_cell_t *cell, uint64_t now);

extern const char  *const ngx_rl_held_names[];


#endif /* _NGX_RL_CELLS_H_INCLUDED_ */
