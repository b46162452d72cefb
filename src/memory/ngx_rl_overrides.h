
/*
 * Overrides in shared memory: exceptions for single keys of a limit, which
 * hold on this machine.  Those of a limit are a table.  If the limit has its
 * state in Redis, its table is a copy of the one there.
 */


#ifndef _NGX_RL_OVERRIDES_H_INCLUDED_
#define _NGX_RL_OVERRIDES_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "core/ngx_rl_throttle.h"
#include "pure/ngx_rl_override.h"


#define NGX_RL_OVERRIDES_SIZE    (32 * 1024 * 1024)
#define NGX_RL_OVERRIDES_MIN     (16 * 4096)

/* longest key, and longest version of a table */
#define NGX_RL_OVERRIDE_KEY      256
#define NGX_RL_OVERRIDE_VERSION  64

/*
 * Seconds for which a key is marked after its override has ended.  Nothing
 * that was learned about it before may be used: denials, previews and leases
 * last for a minute at most.
 */
#define NGX_RL_OVERRIDE_FENCE    65


typedef struct ngx_rl_overrides_s      ngx_rl_overrides_t;
typedef struct ngx_rl_override_item_s  ngx_rl_override_item_t;

typedef ngx_int_t (*ngx_rl_overrides_pt)(ngx_rl_overrides_t *overrides,
    void *data);


/* the overrides of one limit; in shared memory */

typedef struct {
    ngx_queue_t         queue;
    ngx_atomic_t        items;      /* with those that have ended */
    ngx_atomic_t        live;       /* overrides */
    ngx_atomic_t        invalid;    /* texts that were refused */
    ngx_rl_throttle_t   log;        /* of lines about the table */
    ngx_atomic_t        synced;     /* s: when Redis last answered, or the
                                       first worker began; 0: no Redis */

    /* what Redis said when the copy was made */

    uint64_t            fields;
    ngx_uint_t          changed;    /* its stamp, when the API changed it */
    ngx_uint_t          version_len;
    u_char              version[NGX_RL_OVERRIDE_VERSION];

    size_t              len;        /* of its name */
    u_char              name[1];
} ngx_rl_table_t;


typedef struct {
    uint64_t                  secret[2];
    ngx_queue_t               tables;
    ngx_rl_override_item_t  **heads;
    ngx_uint_t                mask;    /* of the number of heads */
    ngx_uint_t                hand;    /* looks for what has ended */
    uint64_t                  stamps;
    ngx_atomic_t              polled;  /* ms: when Redis was last asked */
} ngx_rl_overrides_sh_t;


struct ngx_rl_overrides_s {
    ngx_shm_zone_t         *shm_zone;
    ngx_slab_pool_t        *shpool;
    ngx_rl_overrides_sh_t  *sh;
    ngx_rl_overrides_pt     attach;
    void                   *data;
};


/* an override with its texts, copied from shared memory */

typedef struct {
    ngx_rl_table_t     *table;
    ngx_rl_override_t   values;
    size_t              key_len;
    size_t              text_len;
    u_char              key[NGX_RL_OVERRIDE_KEY];
    u_char              text[NGX_RL_OVERRIDE_TEXT];
} ngx_rl_override_copy_t;


/*
 * Adds the memory to the configuration.  "attach" finds the tables.  A reload
 * keeps the memory if its size and layout are the same.  NULL: an error was
 * logged.
 */
ngx_rl_overrides_t *ngx_rl_overrides_add(ngx_conf_t *cf, size_t size,
    void *tag, ngx_rl_overrides_pt attach, void *data);

/* finds or makes a table; NULL: no memory */
ngx_rl_table_t *ngx_rl_overrides_table(ngx_rl_overrides_t *overrides,
    ngx_str_t *name);

/* whether it is worth looking for a key */
#define ngx_rl_overrides_any(table)  ((table)->items != 0)

/*
 * NGX_OK: there is an override; NGX_DECLINED: there is none.  In both cases
 * *stamp is a number that changes whenever the override of this key does; 0:
 * it had none for a while.
 */
ngx_int_t ngx_rl_overrides_find(ngx_rl_overrides_t *overrides,
    ngx_rl_table_t *table, ngx_str_t *key, ngx_rl_override_t *override,
    uint64_t *stamp);

/* the same, with the texts; "copy" is valid after NGX_OK */
ngx_int_t ngx_rl_overrides_get(ngx_rl_overrides_t *overrides,
    ngx_rl_table_t *table, ngx_str_t *key, ngx_rl_override_copy_t *copy);

/*
 * Stores an override; "scan" is the number of the scan that found it, or 0 for
 * a change by the API.  A scan does not replace what a later scan has found, or
 * what was changed since it began.  *reset tells whether the key was reset
 * since the last time.  NGX_OK; NGX_DECLINED: no memory; NGX_ERROR: the text is
 * invalid.
 */
ngx_int_t ngx_rl_overrides_put(ngx_rl_overrides_t *overrides,
    ngx_rl_table_t *table, ngx_str_t *key, ngx_str_t *text, ngx_uint_t scan,
    ngx_uint_t *reset);

void ngx_rl_overrides_remove(ngx_rl_overrides_t *overrides,
    ngx_rl_table_t *table, ngx_str_t *key);

/* a number for a scan: a later one has a larger number */
ngx_uint_t ngx_rl_overrides_scan(ngx_rl_overrides_t *overrides);

/*
 * All overrides have ended that were there before this scan of a table, and
 * that neither it nor a later one has found.  The table is now what Redis had
 * with this number of fields and this version.
 */
void ngx_rl_overrides_scanned(ngx_rl_overrides_t *overrides,
    ngx_rl_table_t *table, ngx_uint_t scan, uint64_t fields,
    ngx_str_t *version);

/*
 * Releases memory of overrides that have ended; each call looks at a part.
 * Returns up to "n" copies of those that reached their time.
 */
ngx_uint_t ngx_rl_overrides_sweep(ngx_rl_overrides_t *overrides,
    ngx_rl_override_copy_t *copies, ngx_uint_t n);

/*
 * For lists: copies the overrides of one head, of mask + 1, at most n.  Returns
 * their number.
 */
ngx_uint_t ngx_rl_overrides_read(ngx_rl_overrides_t *overrides,
    ngx_uint_t head, ngx_rl_override_copy_t *copies, ngx_uint_t n);


#endif /* _NGX_RL_OVERRIDES_H_INCLUDED_ */
