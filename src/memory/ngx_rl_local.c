
#include "memory/ngx_rl_local.h"
#include "core/ngx_rl_clock.h"
#include "pure/ngx_rl_hash.h"


/* a claim that is being examined */

typedef struct {
    ngx_rl_cell_key_t   key;
    ngx_rl_cell_kind_e  kind;
    ngx_rl_cell_t      *cell;    /* NULL: nothing is known */
    ngx_rl_bucket_t     bucket;  /* this machine's share */
    ngx_rl_level_t      level;   /* where there is no cell */
    ngx_rl_count_t      count;   /* the same */
    ngx_rl_log_t        log;     /* of a window */
    unsigned            share:1; /* not the whole limit */
    unsigned            fits:1;
} ngx_rl_look_t;


/* both clocks: nothing here may be counted by the wrong one */

typedef struct {
    uint64_t            now;     /* us, never steps back */
    uint64_t            wall;    /* us since 1970 */
} ngx_rl_local_time_t;


static ngx_rl_cell_kind_e ngx_rl_local_kind(ngx_rl_claim_t *claim);
static void ngx_rl_local_look(ngx_rl_zone_t *zone,
    ngx_rl_look_t *look, int64_t *state, const ngx_rl_local_time_t *time);
static ngx_int_t ngx_rl_local_make(ngx_rl_zone_t *zone, ngx_rl_look_t *look,
    uint64_t limit, uint64_t now);
static void ngx_rl_local_taken(ngx_rl_zone_t *zone,
    ngx_rl_look_t *look, int64_t *state, const ngx_rl_local_time_t *time);


/* too large for the stack, and only one request is examined at a time */
static ngx_rl_look_t  ngx_rl_looks[NGX_RL_CLAIMS];


ngx_int_t
ngx_rl_local_take(ngx_rl_zone_t *zone, ngx_rl_claim_t **claims, ngx_uint_t n,
    const ngx_rl_share_t *share, ngx_uint_t preview, uint64_t now)
{
    ngx_int_t             rc;
    ngx_uint_t            i, denied;
    ngx_rl_look_t        *look;
    ngx_rl_local_time_t   time;

    look = ngx_rl_looks;

    time.now = now;
    time.wall = 0;

    for (i = 0; i < n; i++) {

        look[i].kind = ngx_rl_local_kind(claims[i]);

        if (look[i].kind == NGX_RL_CELL_COUNT && time.wall == 0) {
            time.wall = ngx_rl_clock_wall_us();
        }

        ngx_rl_siphash(zone->sh->secret, claims[i]->key, claims[i]->len,
                       look[i].key.hash);

        /* the same, if it is known already */
        claims[i]->hash[1] = look[i].key.hash[1];

        look[i].key.hash[1] ^= look[i].kind;
        look[i].bucket = claims[i]->bucket;
        look[i].share = (share != NULL);

        if (share) {
            ngx_rl_bucket_share(&look[i].bucket, share);
        }
    }

    rc = NGX_OK;
    denied = 0;

    ngx_rl_cells_lock(zone);

    for (i = 0; i < n; i++) {

        look[i].cell = ngx_rl_cells_find(zone->cells, &look[i].key);

        ngx_rl_local_look(zone, &look[i], claims[i]->state, &time);

        if (!look[i].fits && !claims[i]->shadow) {
            denied = 1;
        }
    }

    if (denied || preview) {
        goto done;
    }

    /*
     * Only a claim that takes something needs memory: all claims get it, or
     * none.
     */

    for (i = 0; i < n; i++) {
        if (look[i].fits
            && ngx_rl_local_make(zone, &look[i], claims[i]->limit, now)
            != NGX_OK)
        {
            rc = NGX_DECLINED;
            goto done;
        }
    }

    for (i = 0; i < n; i++) {
        if (look[i].fits) {
            ngx_rl_local_taken(zone, &look[i], claims[i]->state, &time);
        }
    }

done:

    ngx_rl_cells_unlock(zone);

    if (rc != NGX_OK) {
        return rc;
    }

    for (i = 0; i < n; i++) {

        /* a request never waits for more than this machine's share */

        if (share && look[i].bucket.cost > look[i].bucket.capacity) {
            look[i].bucket.cost = look[i].bucket.capacity;
        }

        ngx_rl_decide(&claims[i]->decision, &look[i].bucket, claims[i]->state);
        claims[i]->decision.source = NGX_RL_SOURCE_LOCAL;
    }

    return NGX_OK;
}


static ngx_rl_cell_kind_e
ngx_rl_local_kind(ngx_rl_claim_t *claim)
{
    if (ngx_rl_algorithm_period(claim->bucket.algorithm)) {
        return NGX_RL_CELL_COUNT;
    }

    return ngx_rl_algorithm_window(claim->bucket.algorithm)
           ? NGX_RL_CELL_LOG : NGX_RL_CELL_LEVEL;
}


static void
ngx_rl_local_look(ngx_rl_zone_t *zone, ngx_rl_look_t *look, int64_t *state,
    const ngx_rl_local_time_t *time)
{
    ngx_rl_count_t  *count;
    ngx_rl_level_t  *level;

    if (look->kind == NGX_RL_CELL_LOG) {
        look->log.n = 0;

        if (look->cell) {
            ngx_rl_cells_load(zone->cells, look->cell, &look->log);
        }

        look->fits = ngx_rl_log_look(&look->log, &look->bucket, time->now,
                                     state);
        return;
    }

    if (look->kind == NGX_RL_CELL_COUNT) {
        ngx_memzero(&look->count, sizeof(ngx_rl_count_t));
        count = look->cell ? &look->cell->u.local.state.count : &look->count;

        look->fits = ngx_rl_count_look(count, &look->bucket, look->share,
                                       time->wall, state);
        return;
    }

    ngx_memzero(&look->level, sizeof(ngx_rl_level_t));
    level = look->cell ? &look->cell->u.local.state.level : &look->level;

    look->fits = ngx_rl_level_look(level, &look->bucket, time->now, state);
}


static ngx_int_t
ngx_rl_local_make(ngx_rl_zone_t *zone,
    ngx_rl_look_t *look, uint64_t limit, uint64_t now)
{
    if (look->cell) {
        return NGX_OK;
    }

    look->cell = ngx_rl_cells_make(zone->cells, &look->key, limit,
                                   look->kind, now);

    if (look->cell == NULL) {
        return NGX_DECLINED;
    }

    if (look->kind == NGX_RL_CELL_LEVEL) {
        look->cell->u.local.state.level = look->level;

    } else if (look->kind == NGX_RL_CELL_COUNT) {
        look->cell->u.local.state.count = look->count;
    }

    return NGX_OK;
}


static void
ngx_rl_local_taken(ngx_rl_zone_t *zone, ngx_rl_look_t *look, int64_t *state,
    const ngx_rl_local_time_t *time)
{
    uint64_t         until;
    ngx_rl_count_t  *count;
    ngx_rl_level_t  *level;

    if (look->kind == NGX_RL_CELL_LOG) {
        ngx_rl_log_take(&look->log, &look->bucket, time->now, state);
        ngx_rl_cells_save(zone->cells, look->cell, &look->log, time->now);
        until = ngx_rl_log_until(&look->log, &look->bucket);

    } else if (look->kind == NGX_RL_CELL_COUNT) {
        count = &look->cell->u.local.state.count;
        ngx_rl_count_take(count, &look->bucket, time->wall, state);
        until = time->now + ngx_rl_count_lasts(count, &look->bucket,
                                               time->wall);

    } else {
        level = &look->cell->u.local.state.level;
        ngx_rl_level_take(level, &look->bucket, state);
        until = ngx_rl_level_until(level, &look->bucket);
    }

    ngx_rl_cells_taken(zone->cells, look->cell,
                       ngx_rl_level_much(&look->bucket, state), until);
}


void
ngx_rl_local_reset(ngx_rl_zone_t *zone, const char *key, size_t len)
{
    ngx_uint_t      i;
    ngx_rl_look_t  *look;

    static const ngx_rl_cell_kind_e  kinds[] = {
        NGX_RL_CELL_LEVEL, NGX_RL_CELL_LOG, NGX_RL_CELL_COUNT
    };

    look = ngx_rl_looks;

    ngx_rl_cells_lock(zone);

    for (i = 0; i < 3; i++) {

        ngx_rl_siphash(zone->sh->secret, key, len, look->key.hash);
        look->key.hash[1] ^= kinds[i];

        look->cell = ngx_rl_cells_find(zone->cells, &look->key);

        if (look->cell == NULL) {
            continue;
        }

        if (kinds[i] == NGX_RL_CELL_LOG) {
            look->log.n = 0;
            ngx_rl_cells_save(zone->cells, look->cell, &look->log, 0);

        } else {
            ngx_memzero(&look->cell->u.local.state,
                        sizeof(look->cell->u.local.state));
        }

        ngx_rl_cells_taken(zone->cells, look->cell, 0, 0);
    }

    ngx_rl_cells_unlock(zone);
}
