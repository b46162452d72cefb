
#include "memory/ngx_rl_local.h"
#include "pure/ngx_rl_hash.h"


/*
 * ms: by then, as a rule, a request that was denied has given back.  100 at
 * most, and whole portions, as these are rounded up
 */
#define NGX_RL_LOCAL_MOMENT  (3 * NGX_RL_LASTS)

/* ms after its end: tokens of a lease that are still there belong to nobody */
#define NGX_RL_LOCAL_STALE   1000


/* a claim while it is looked at */

typedef struct {
    ngx_rl_cell_key_t   key;
    ngx_rl_cell_kind_e  keep;
    ngx_rl_cell_t      *node;    /* NULL: nothing is known */
    ngx_rl_bucket_t     bucket;  /* this machine's share */
    ngx_rl_level_t      level;   /* where there is no node */
    ngx_rl_log_t        log;     /* of a window */
    unsigned            fits:1;
} ngx_rl_look_t;


static void ngx_rl_local_look(ngx_rl_zone_t *zone,
    ngx_rl_look_t *look, int64_t *state, uint64_t now);
static ngx_int_t ngx_rl_local_make(ngx_rl_zone_t *zone, ngx_rl_look_t *look,
    uint64_t limit, uint64_t now);
static void ngx_rl_local_taken(ngx_rl_zone_t *zone,
    ngx_rl_look_t *look, int64_t *state, uint64_t now);
static void ngx_rl_local_key(ngx_rl_claim_t *claim,
    ngx_rl_cell_kind_e keep, ngx_rl_cell_key_t *key);
static void ngx_rl_known_preview_cell(ngx_rl_claim_t *claim,
    ngx_msec_t age, ngx_rl_cell_key_t *key);
static void ngx_rl_known_cell(ngx_rl_claim_t *claim, ngx_rl_cell_key_t *key);
static ngx_int_t ngx_rl_known_bucket(ngx_rl_cell_t *cell, ngx_rl_claim_t *claim,
    ngx_rl_known_ttl_t *ttl, uint64_t now);
static ngx_int_t ngx_rl_known_window(ngx_rl_cell_t *cell, ngx_rl_claim_t *claim,
    ngx_rl_known_ttl_t *ttl, uint64_t now);
static ngx_uint_t ngx_rl_known_denies(
    ngx_rl_cell_t *cell, ngx_rl_claim_t *claim, uint64_t now);
static ngx_uint_t ngx_rl_known_stale(
    ngx_rl_cell_t *cell, ngx_rl_known_ttl_t *ttl, uint64_t now);


/* too large for the stack, and only one request at a time is looked at */
static ngx_rl_look_t
    ngx_rl_looks[NGX_RL_CLAIMS];


/* whether what a shard said is of no use any more */
#define ngx_rl_known_over(node, now)                                          \
    (ngx_rl_known_age(node, now)                                              \
     >= ngx_rl_known_lasts(node))


ngx_int_t
ngx_rl_local_take(ngx_rl_zone_t *zone, ngx_rl_claim_t **claims, ngx_uint_t n,
    const ngx_rl_share_t *share, ngx_uint_t preview, uint64_t now)
{
    ngx_int_t           rc;
    ngx_uint_t          i, denied;
    ngx_rl_look_t      *look;
    ngx_rl_decision_t  *d;

    look = ngx_rl_looks;

    for (i = 0; i < n; i++) {

        look[i].keep = (claims[i]->bucket.algorithm
                        == NGX_RL_SLIDING_WINDOW_LOG)
                       ? NGX_RL_CELL_LOG
                       : NGX_RL_CELL_LEVEL;

        ngx_rl_zone_key(zone, look[i].keep, claims[i]->key,
                        claims[i]->len, &look[i].key);

        look[i].bucket = claims[i]->bucket;

        if (share) {
            ngx_rl_bucket_share(&look[i].bucket, share);
        }
    }

    rc = NGX_OK;
    denied = 0;

    ngx_rl_cells_lock(zone);

    for (i = 0; i < n; i++) {

        look[i].node = ngx_rl_cells_find(zone->cells, &look[i].key);

        ngx_rl_local_look(zone, &look[i], claims[i]->state, now);

        if (!look[i].fits && !claims[i]->shadow) {
            denied = 1;
        }
    }

    if (denied || preview) {
        goto done;
    }

    /* only who takes something needs memory, and all of them or none */

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
            ngx_rl_local_taken(zone, &look[i], claims[i]->state, now);
        }
    }

done:

    ngx_rl_cells_unlock(zone);

    if (rc != NGX_OK) {
        return rc;
    }

    for (i = 0; i < n; i++) {

        /* more than the share of a machine is not waited for */

        if (look[i].bucket.cost > look[i].bucket.capacity) {
            look[i].bucket.cost = look[i].bucket.capacity;
        }

        d = &claims[i]->decision;

        ngx_rl_decide(d, &look[i].bucket, claims[i]->state);
        d->source = NGX_RL_SOURCE_LOCAL;
    }

    return NGX_OK;
}


static void
ngx_rl_local_look(ngx_rl_zone_t *zone,
    ngx_rl_look_t *look, int64_t *state, uint64_t now)
{
    ngx_rl_level_t  *level;

    if (look->keep == NGX_RL_CELL_LOG) {

        if (look->node) {
            ngx_rl_cells_load(zone->cells, look->node, &look->log);

        } else {
            look->log.n = 0;
        }

        look->fits = ngx_rl_log_look(&look->log, &look->bucket, now, state);
        return;
    }

    if (look->node) {
        level = &look->node->u.state.level;

    } else {
        level = &look->level;
        ngx_memzero(level, sizeof(ngx_rl_level_t));
    }

    look->fits = ngx_rl_level_look(level, &look->bucket, now, state);
}


static ngx_int_t
ngx_rl_local_make(ngx_rl_zone_t *zone,
    ngx_rl_look_t *look, uint64_t limit, uint64_t now)
{
    if (look->node) {
        return NGX_OK;
    }

    look->node = ngx_rl_cells_make(zone->cells, &look->key, limit,
                                   look->keep, now);

    if (look->node == NULL) {
        return NGX_DECLINED;
    }

    if (look->keep == NGX_RL_CELL_LEVEL) {
        look->node->u.state.level = look->level;
    }

    return NGX_OK;
}


static void
ngx_rl_local_taken(ngx_rl_zone_t *zone,
    ngx_rl_look_t *look, int64_t *state, uint64_t now)
{
    uint64_t         until;
    ngx_rl_level_t  *level;

    if (look->keep == NGX_RL_CELL_LOG) {
        ngx_rl_log_take(&look->log, &look->bucket, now, state);
        ngx_rl_cells_save(zone->cells, look->node, &look->log, now);
        until = ngx_rl_log_until(&look->log, &look->bucket);

    } else {
        level = &look->node->u.state.level;
        ngx_rl_level_take(level, &look->bucket, state);
        until = ngx_rl_level_until(level, &look->bucket);
    }

    ngx_rl_cells_taken(zone->cells, look->node,
                       ngx_rl_level_much(&look->bucket, state), until);
}


void
ngx_rl_local_hash(ngx_rl_zone_t *zone, ngx_rl_claim_t *claim, uint64_t shard)
{
    ngx_rl_cell_key_t  key;

    ngx_rl_zone_key(zone, 0, claim->key, claim->len, &key);

    claim->hash[0] = key.hash[0] ^ shard;
    claim->hash[1] = key.hash[1];
}


static void
ngx_rl_local_key(ngx_rl_claim_t *claim,
    ngx_rl_cell_kind_e keep, ngx_rl_cell_key_t *key)
{
    key->hash[0] = claim->hash[0];
    key->hash[1] = claim->hash[1] ^ keep;
}


/* a place that believes it for longer keeps its own */

static void
ngx_rl_known_preview_cell(ngx_rl_claim_t *claim,
    ngx_msec_t age, ngx_rl_cell_key_t *key)
{
    ngx_rl_local_key(claim, NGX_RL_CELL_PREVIEW, key);

    /* the lowest byte tells what is kept */

    key->hash[1] ^= (uint64_t) age << 8;
}


ngx_int_t
ngx_rl_known_preview(ngx_rl_zone_t *zone, ngx_rl_claim_t *claim, ngx_msec_t age)
{
    uint64_t           now;
    ngx_int_t          rc;
    ngx_rl_cell_t     *cell;
    ngx_rl_cell_key_t  key;

    ngx_rl_known_preview_cell(claim, age, &key);

    rc = NGX_DECLINED;
    now = ngx_rl_clock_us() / 1000;

    ngx_rl_cells_lock(zone);

    cell = ngx_rl_cells_find(zone->cells, &key);

    if (cell && cell->u.preview.until > now) {
        ngx_memcpy(claim->state, cell->u.preview.state, sizeof(claim->state));
        rc = NGX_OK;
    }

    ngx_rl_cells_unlock(zone);

    return rc;
}


void
ngx_rl_known_preview_save(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, ngx_msec_t age)
{
    uint64_t           now;
    ngx_rl_cell_t     *cell;
    ngx_rl_cell_key_t  key;

    ngx_rl_known_preview_cell(claim, age, &key);

    now = ngx_rl_clock_us();

    ngx_rl_cells_lock(zone);

    cell = ngx_rl_cells_make(zone->cells, &key, claim->limit,
                             NGX_RL_CELL_PREVIEW, now);

    if (cell) {
        cell->u.preview.until = now / 1000 + age;
        ngx_memcpy(cell->u.preview.state, claim->state, sizeof(claim->state));
    }

    ngx_rl_cells_unlock(zone);
}


/*
 * A bucket can't have more than it had at a moment, with all that came since
 * and all that this machine gave back.  So who is denied by that bound would be
 * denied by the shard, unless another machine gave back what it had taken.  The
 * clock of the bound began when the call was sent, before the shard looked at
 * its own.
 *
 * Tokens that are held are spent, or go back, in the order in which they were
 * taken.  "gone" counts them all, so a lease that knows what the count will be
 * after its last token knows what is left of it and of those before.  As long
 * as it has not ended its tokens may be spent; what is still held a while later
 * is that of a worker which has died.
 */

ngx_int_t
ngx_rl_known_decide(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, ngx_rl_known_ttl_t *ttl, uint64_t now)
{
    ngx_int_t          rc;
    ngx_rl_cell_t     *cell;
    ngx_rl_cell_key_t  key;

    if (!ngx_rl_zone_knows(zone, now)) {
        return NGX_DECLINED;
    }

    ngx_rl_known_cell(claim, &key);

    rc = NGX_DECLINED;

    ngx_rl_cells_lock(zone);

    cell = ngx_rl_cells_find(zone->cells, &key);

    if (cell == NULL) {
        /* void */

    } else if (claim->bucket.algorithm == NGX_RL_SLIDING_WINDOW_LOG) {
        rc = ngx_rl_known_window(cell, claim, ttl, now);

    } else {
        rc = ngx_rl_known_bucket(cell, claim, ttl, now);
    }

    ngx_rl_cells_unlock(zone);

    if (rc != NGX_OK) {
        return rc;
    }

    ngx_rl_decide(&claim->decision, &claim->bucket, claim->state);

    claim->decision.source = (claim->state[0] < 0)
                             ? NGX_RL_SOURCE_DENIED
                             : NGX_RL_SOURCE_LEASE;

    return NGX_OK;
}


static ngx_int_t
ngx_rl_known_bucket(ngx_rl_cell_t *cell,
    ngx_rl_claim_t *claim, ngx_rl_known_ttl_t *ttl, uint64_t now)
{
    int             fits;
    int64_t         full;
    uint32_t        cost;
    ngx_rl_level_t  level;

    level.tokens = cell->u.bound.tokens;
    level.last = cell->u.bound.last;
    cost = (uint32_t) claim->bucket.cost;

    fits = ngx_rl_level_look(&level, &claim->bucket, now, claim->state);

    if (ttl->lease && cell->u.bound.held >= cost
        && !ngx_rl_known_stale(cell, ttl, now))
    {
        cell->u.bound.held -= cost;
        cell->u.bound.gone += cost;

        full = claim->bucket.capacity * NGX_RL_MICRO;

        claim->state[0] = ngx_min(full, level.tokens
                                  + (int64_t) cell->u.bound.held
                                  * NGX_RL_MICRO);

        return NGX_OK;
    }

    /* another place may believe it for longer */

    return (fits
            || ngx_rl_known_age(cell, now) >= ttl->deny
            || ngx_rl_known_over(cell, now))
           ? NGX_DECLINED : NGX_OK;
}


static ngx_int_t
ngx_rl_known_window(ngx_rl_cell_t *cell,
    ngx_rl_claim_t *claim, ngx_rl_known_ttl_t *ttl, uint64_t now)
{
    uint64_t  oldest, fits;

    fits = cell->u.bound.last;
    oldest = (uint64_t) cell->u.bound.tokens;

    if (ngx_rl_known_age(cell, now) >= ttl->deny
        || ngx_rl_known_over(cell, now)
        || now >= fits || claim->bucket.cost < cell->u.bound.wanted)
    {
        return NGX_DECLINED;
    }

    claim->state[0] = -1 - (int64_t) cell->u.bound.held;
    claim->state[1] = (oldest > now) ? oldest - now : 0;
    claim->state[2] = fits - now;

    return NGX_OK;
}


/* whether leases have ended long ago, so whoever had them is no more */

static ngx_uint_t
ngx_rl_known_stale(ngx_rl_cell_t *cell, ngx_rl_known_ttl_t *ttl, uint64_t now)
{
    return ngx_rl_known_age(cell, now)
           > ngx_rl_known_lasts(cell)
             + NGX_RL_LOCAL_STALE + ttl->lease / 32;
}


ngx_int_t
ngx_rl_known_learn(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, ngx_rl_known_ttl_t *ttl,
    uint64_t sent, uint64_t held, uint32_t *mark)
{
    int32_t            lasts;
    int64_t            left;
    uint64_t           until;
    ngx_rl_cell_t     *cell;
    ngx_rl_cell_key_t  key;

    ngx_rl_known_cell(claim, &key);

    left = (claim->state[0] < 0) ? -1 - claim->state[0] : claim->state[0];

    /* a reply may have taken longer than a lease: that begins now */

    until = held ? ngx_rl_clock_us() / 1000 + ttl->lease
                 : sent / 1000 + ngx_max(ttl->deny, ttl->lease);

    ngx_rl_cells_lock(zone);

    cell = ngx_rl_cells_make(zone->cells, &key, claim->limit,
                             NGX_RL_CELL_KNOWN, sent);

    if (cell == NULL) {
        goto done;
    }

    ngx_rl_zone_learned(zone, (until + NGX_RL_LOCAL_STALE + ttl->lease) * 1000);

    if (claim->bucket.algorithm == NGX_RL_SLIDING_WINDOW_LOG) {
        ngx_rl_known_learned(cell, sent / 1000, until);
        cell->u.bound.tokens = sent + claim->state[1];
        cell->u.bound.last = sent + claim->state[2];
        cell->u.bound.held = (uint32_t) left;
        cell->u.bound.wanted = (uint32_t) claim->bucket.cost;

        goto done;
    }

    if (ngx_rl_known_stale(cell, ttl, sent)) {
        cell->u.bound.gone += cell->u.bound.held;
        cell->u.bound.held = 0;
    }

    /* not before the end of other leases */

    if (cell->u.bound.held) {
        lasts = (int32_t) (cell->u.bound.learned
                           + ngx_rl_known_lasts(cell)
                           - (uint32_t) (sent / 1000));

        until = ngx_max((int64_t) until, (int64_t) (sent / 1000) + lasts);
    }

    ngx_rl_known_learned(cell, sent / 1000, until);

    cell->u.bound.tokens = left;
    cell->u.bound.last = sent;

    if (claim->bucket.step) {
        cell->u.bound.last -= ngx_min(claim->state[1], (int64_t) sent - 1);
    }

    cell->u.bound.held += (uint32_t) held;

    if (mark) {
        *mark = cell->u.bound.gone + cell->u.bound.held;
    }

done:

    ngx_rl_cells_unlock(zone);

    return cell ? NGX_OK : NGX_DECLINED;
}


void
ngx_rl_known_suspect(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, ngx_rl_known_ttl_t *ttl, uint64_t sent)
{
    ngx_uint_t          known, believed;
    ngx_rl_cell_t      *cell;
    ngx_rl_cell_key_t   key;
    ngx_rl_known_ttl_t  brief;

    ngx_rl_known_cell(claim, &key);

    ngx_rl_cells_lock(zone);

    cell = ngx_rl_cells_find(zone->cells, &key);

    known = cell && ngx_rl_known_denies(cell, claim, sent);
    believed = known && !ngx_rl_known_over(cell, sent);

    ngx_rl_cells_unlock(zone);

    if (believed) {
        return;
    }

    brief = *ttl;

    if (!known) {
        brief.deny = ngx_min(brief.deny, NGX_RL_LOCAL_MOMENT);
    }

    (void) ngx_rl_known_learn(zone, claim, &brief, sent, 0, NULL);
}


/* by what was learned, however long ago that was */

static ngx_uint_t
ngx_rl_known_denies(ngx_rl_cell_t *cell, ngx_rl_claim_t *claim, uint64_t now)
{
    int64_t         state[NGX_RL_STATES];
    ngx_rl_level_t  level;

    if (claim->bucket.algorithm == NGX_RL_SLIDING_WINDOW_LOG) {
        return now < cell->u.bound.last
               && claim->bucket.cost >= cell->u.bound.wanted;
    }

    level.tokens = cell->u.bound.tokens;
    level.last = cell->u.bound.last;

    return !ngx_rl_level_look(&level, &claim->bucket, now, state);
}


void
ngx_rl_known_lease_returned(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, uint64_t tokens)
{
    ngx_rl_cell_t     *cell;
    ngx_rl_cell_key_t  key;

    ngx_rl_known_cell(claim, &key);

    ngx_rl_cells_lock(zone);

    cell = ngx_rl_cells_find(zone->cells, &key);

    if (cell == NULL) {
        /* void */

    } else if (claim->bucket.algorithm == NGX_RL_SLIDING_WINDOW_LOG) {
        cell->u.bound.last = 0;

    } else {
        cell->u.bound.tokens += tokens * NGX_RL_MICRO;
    }

    ngx_rl_cells_unlock(zone);
}


/*
 * A key that is new, or was not used for as long as a lease is good, gets
 * nothing in advance.  Then a lease that was used up makes the next one larger,
 * as far as the demand would use that up, too: by the pace at which the last
 * one went, and a bit less, as what is left over has to be given back.  No more
 * than twice as large, as few requests tell little about those to come.
 */

uint64_t
ngx_rl_known_lease_size(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, ngx_rl_known_ttl_t *trust,
    uint64_t max, uint64_t now)
{
    int64_t            age, ttl;
    uint64_t           wanted, used, demand;
    ngx_rl_cell_t     *cell;
    ngx_rl_cell_key_t  key;

    ngx_rl_known_cell(claim, &key);

    wanted = 0;
    ttl = trust->lease;

    ngx_rl_cells_lock(zone);

    cell = ngx_rl_cells_find(zone->cells, &key);

    if (cell) {
        wanted = cell->u.bound.wanted;
        used = wanted - ngx_min(wanted, cell->u.bound.held)
               + claim->bucket.cost;

        /* ms since the last call */

        age = ngx_rl_known_age(cell, now);

        if (age <= ttl) {
            demand = used * ttl * 7 / (8 * ngx_max(age, 1));

            wanted = ngx_min(2 * wanted + claim->bucket.cost,
                             demand - ngx_min(demand, claim->bucket.cost));

        } else if (age > 2 * ttl) {
            wanted = 0;
        }

        wanted = ngx_min(wanted, max);
        cell->u.bound.wanted = (uint32_t) wanted;

        /* what is there for too large a cost is there */

        wanted -= ngx_min(wanted, cell->u.bound.held);
    }

    ngx_rl_cells_unlock(zone);

    return wanted;
}


ngx_uint_t
ngx_rl_known_lease_spent(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, uint32_t mark)
{
    ngx_uint_t         spent;
    ngx_rl_cell_t     *cell;
    ngx_rl_cell_key_t  key;

    ngx_rl_known_cell(claim, &key);

    ngx_rl_cells_lock(zone);

    cell = ngx_rl_cells_find(zone->cells, &key);

    spent = cell == NULL || (int32_t) (mark - cell->u.bound.gone) <= 0;

    ngx_rl_cells_unlock(zone);

    return spent;
}


uint64_t
ngx_rl_known_lease_end(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, uint32_t mark)
{
    int32_t            left;
    uint32_t           rest;
    ngx_rl_cell_t     *cell;
    ngx_rl_cell_key_t  key;

    ngx_rl_known_cell(claim, &key);

    rest = 0;

    ngx_rl_cells_lock(zone);

    cell = ngx_rl_cells_find(zone->cells, &key);

    left = cell ? (int32_t) (mark - cell->u.bound.gone) : 0;

    if (left > 0) {
        rest = ngx_min((uint32_t) left, cell->u.bound.held);

        cell->u.bound.held -= rest;
        cell->u.bound.gone += rest;

        /* the shard will have it again */

        cell->u.bound.tokens += (int64_t) rest * NGX_RL_MICRO;

        /* so much was of use, and no more */

        cell->u.bound.wanted -= ngx_min(rest, cell->u.bound.wanted);
    }

    ngx_rl_cells_unlock(zone);

    return rest;
}


/* where the bound is kept: with other parameters it is another one */

static void
ngx_rl_known_cell(ngx_rl_claim_t *claim, ngx_rl_cell_key_t *key)
{
    uint64_t          h;
    ngx_rl_bucket_t  *bucket;

    bucket = &claim->bucket;

    h = bucket->algorithm + 1;
    h = h * 0x9e3779b97f4a7c15ULL + bucket->capacity;
    h = h * 0x9e3779b97f4a7c15ULL + bucket->rate.num;
    h = h * 0x9e3779b97f4a7c15ULL + bucket->rate.den;
    h = h * 0x9e3779b97f4a7c15ULL + bucket->step;
    h = h * 0x9e3779b97f4a7c15ULL + bucket->window;
    h *= 0x9e3779b97f4a7c15ULL;

    ngx_rl_local_key(claim, NGX_RL_CELL_KNOWN, key);

    /* the lowest byte tells what is kept */

    key->hash[1] ^= h >> 32 << 8;
}
