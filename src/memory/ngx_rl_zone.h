
/*
 * The shared memory of all workers: cells for keys, which may be evicted, and
 * records, which stay.
 */


#ifndef _NGX_RL_ZONE_H_INCLUDED_
#define _NGX_RL_ZONE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "pure/ngx_rl_cells.h"


#define NGX_RL_ZONE_SIZE   (10 * 1024 * 1024)
#define NGX_RL_ZONE_PAGES  16               /* at least */


typedef struct ngx_rl_zone_s  ngx_rl_zone_t;

typedef ngx_int_t (*ngx_rl_zone_pt)(ngx_rl_zone_t *zone, void *data);


/* in shared memory */

typedef struct {
    uint64_t             secret[2];   /* hashes of keys depend on it */
    ngx_queue_t          records;
    ngx_uint_t           generation;  /* of configurations */
    size_t               lent;        /* bytes of records */
    size_t               lendable;    /* so many at most */

    /*
     * us: no answer of Redis is used after this time.  It is read without a
     * lock.  Whoever learns something raises it while the cells are locked.
     */
    volatile uint64_t    knows;

    volatile ngx_uint_t  changing;
    ngx_rl_cells_t       cells;

    ngx_uint_t           resets;
} ngx_rl_zone_sh_t;


struct ngx_rl_zone_s {
    ngx_shm_zone_t    *shm_zone;
    ngx_slab_pool_t   *shpool;
    ngx_rl_zone_sh_t  *sh;
    ngx_rl_cells_t    *cells;   /* in it */

    /* makes or finds the records that the configuration needs */
    ngx_rl_zone_pt     attach;
    void              *data;

    ngx_str_t          advice;  /* of a warning, or none */
    unsigned           lost:1;  /* keys: still to be told */
};


/* the content of a record belongs to its users */

typedef enum {
    NGX_RL_ZONE_STATS = 0,
    NGX_RL_ZONE_LIMIT,
    NGX_RL_ZONE_SERVER,
    NGX_RL_ZONE_RATES,
    NGX_RL_ZONE_ADVICE,
    NGX_RL_ZONE_TOP
} ngx_rl_zone_kind_e;


/* a kind of records */

typedef struct {
    ngx_rl_zone_kind_e  kind;
    ngx_str_t          *name;
    size_t              size;  /* of its data */

    /* whether nobody uses a record of this kind; NULL: the default rule */
    ngx_uint_t         (*unused)(void *record, void *data);
    void               *data;
} ngx_rl_zone_ask_t;


typedef struct {
    size_t      size;
    size_t      used;
    ngx_uint_t  keys;
    uint64_t    evictions[NGX_RL_HELDS];
    ngx_uint_t  resets;
} ngx_rl_zone_usage_t;


/*
 * The layout of shared memory is a number made of the offsets and sizes of all
 * fields.  Each struct in shared memory lists its fields, and "make lint"
 * finds those that were forgotten.
 */
#define ngx_rl_zone_field(name, field)                                        \
    offsetof(ngx_rl_##name##_t, field),                                       \
    sizeof(((ngx_rl_##name##_t *) NULL)->field)

/*
 * Adds the zone to the configuration; "records" is the layout of the content
 * of records.  A reload keeps the memory if the layout is the same.  NULL: an
 * error was logged.
 */
ngx_rl_zone_t *ngx_rl_zone_add(ngx_conf_t *cf,
    size_t size, void *tag, uint64_t records,
    ngx_rl_zone_pt attach, void *data);

/*
 * Finds the record of this kind and name, or makes a zeroed one.  If there is
 * no memory, it replaces a record of this kind that is large enough, that
 * nobody uses, and that the last two configurations did not request.  Records
 * of one name have one size.  NULL: none is free.  Only "attach" may call
 * it, with the zone locked.
 */
void *ngx_rl_zone_record(ngx_rl_zone_t *zone, ngx_rl_zone_ask_t *ask);

/*
 * The same for a worker that can do without, at any time, with the zone
 * locked.  The record belongs to it until "unused" says otherwise.  Memory for
 * later configurations is left alone.
 */
void *ngx_rl_zone_lend(ngx_rl_zone_t *zone, ngx_rl_zone_ask_t *ask);

/*
 * Returns the record of this kind after another one, or the first one after
 * NULL.  Copies its name into the buffer, which has room for so many bytes.
 */
void *ngx_rl_zone_next(ngx_rl_zone_t *zone,
    ngx_rl_zone_kind_e kind, void *record, ngx_str_t *name, size_t room);

/*
 * Cells are used only between these two.  Nothing is logged, evaluated or
 * allocated in between.
 */
void ngx_rl_cells_lock(ngx_rl_zone_t *zone);
void ngx_rl_cells_unlock(ngx_rl_zone_t *zone);

/* only the lock, for the content of records */
#define ngx_rl_zone_lock(zone)    ngx_shmtx_lock(&(zone)->shpool->mutex)
#define ngx_rl_zone_unlock(zone)  ngx_shmtx_unlock(&(zone)->shpool->mutex)

/* a random number for hashes of keys, so that nobody can choose them */
void ngx_rl_zone_secret(uint64_t secret[2], ngx_log_t *log);

/* takes the lock itself */
void ngx_rl_zone_usage(ngx_rl_zone_t *zone, ngx_rl_zone_usage_t *usage);


#endif /* _NGX_RL_ZONE_H_INCLUDED_ */
