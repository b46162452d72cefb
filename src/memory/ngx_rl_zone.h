
/*
 * Shared memory of all workers: what is known about keys, until room is needed
 * for others, and records that stay.
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
     * us: nothing is known of Redis after this.  Looked at without a lock;
     * whoever learns something raises it while the cells are locked.
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


/* what records hold is up to those who ask for them */

typedef enum {
    NGX_RL_ZONE_STATS = 0,
    NGX_RL_ZONE_LIMIT,
    NGX_RL_ZONE_SERVER
} ngx_rl_zone_kind_e;


/* who asks for a record, and for which */

typedef struct {
    ngx_rl_zone_kind_e  kind;
    ngx_str_t          *name;
    size_t              size;  /* of its data */

    /* whether nobody uses a record of this kind; may be NULL: as a rule */
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
 * The layout of all that lives in shared memory is a number made of the offsets
 * and sizes of all fields: each struct that is in there lists its own, and
 * "make lint" finds those that were forgotten.
 */
#define ngx_rl_zone_field(name, field)                                        \
    offsetof(ngx_rl_##name##_t, field),                                       \
    sizeof(((ngx_rl_##name##_t *) NULL)->field)

/*
 * Adds the zone to the configuration; "records" is the layout of what they
 * hold.  A reload keeps the memory if the layout is the same.  NULL: an error
 * was logged.
 */
ngx_rl_zone_t *ngx_rl_zone_add(ngx_conf_t *cf,
    size_t size, void *tag, uint64_t records,
    ngx_rl_zone_pt attach, void *data);

/*
 * A record: the one of this kind and name that there is already, or a new one
 * of zeroes; if there is no memory, in the place of one that nobody uses and
 * that the last two configurations did not ask for.  NULL: there is none.  For
 * "attach" alone, while it has locked the zone.
 */
void *ngx_rl_zone_record(ngx_rl_zone_t *zone, ngx_rl_zone_ask_t *ask);

/*
 * The same for a worker that can do without, at any time, while it has locked
 * the zone.  The record is its own until "unused" says otherwise.  Memory that
 * configurations may ask for later is left alone.
 */
void *ngx_rl_zone_lend(ngx_rl_zone_t *zone, ngx_rl_zone_ask_t *ask);

/*
 * The record of this kind after another one, or after NULL the first one; its
 * name is copied to where there is room for so many bytes
 */
void *ngx_rl_zone_next(ngx_rl_zone_t *zone,
    ngx_rl_zone_kind_e kind, void *record, ngx_str_t *name, size_t room);

/*
 * Cells are used between these two only.  Between them nothing is logged,
 * evaluated or allocated.
 */
void ngx_rl_cells_lock(ngx_rl_zone_t *zone);
void ngx_rl_cells_unlock(ngx_rl_zone_t *zone);

/* the lock alone, for what is in records */
#define ngx_rl_zone_lock(zone)    ngx_shmtx_lock(&(zone)->shpool->mutex)
#define ngx_rl_zone_unlock(zone)  ngx_shmtx_unlock(&(zone)->shpool->mutex)

/* locks by itself */
void ngx_rl_zone_usage(ngx_rl_zone_t *zone, ngx_rl_zone_usage_t *usage);


#endif /* _NGX_RL_ZONE_H_INCLUDED_ */
