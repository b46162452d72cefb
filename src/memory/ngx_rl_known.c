
/*
 * Denials.  A bucket cannot hold more tokens than it held at some moment, plus
 * all refilled since, plus all that this machine has refunded.  A request that
 * this bound denies would also be denied by the shard, unless another machine
 * has refunded tokens.  The clock of the bound starts when the call was sent,
 * before the shard read its own clock.
 *
 * Leases.  Held tokens are spent or refunded in the order in which they were
 * taken, and "gone" counts them.  So a lease that knows the value of the count
 * after its last token, its mark, also knows how many of its tokens, and of
 * earlier ones, are left.  Until a lease has ended its tokens may be spent.
 * Tokens that are still held a while later belonged to a worker that has died.
 */


#include "memory/ngx_rl_known.h"
#include "core/ngx_rl_clock.h"
#include "pure/ngx_rl_hash.h"


/*
 * ms: by then, a denied request has usually got its refunds.  At most 100, and
 * a whole number of portions, because these are rounded up.
 */
#define NGX_RL_KNOWN_MOMENT  (3 * NGX_RL_LASTS)

/* ms after the end of a lease, after which its tokens belong to nobody */
#define NGX_RL_KNOWN_STALE   1000

/* an odd number without a pattern, to spread the parameters over all bits */
#define NGX_RL_KNOWN_SPREAD  0x9e3779b97f4a7c15ULL


/* whether the answer of a shard is too old */
#define ngx_rl_known_over(cell, now)                                          \
    (ngx_rl_known_age(cell, now) >= ngx_rl_known_lasts(cell))

#define ngx_rl_known_is_window(claim)                                         \
    ngx_rl_algorithm_window((claim)->bucket.algorithm)


static void ngx_rl_known_preview_key(ngx_rl_claim_t *claim,
    ngx_msec_t age, ngx_rl_cell_key_t *key);
static ngx_int_t ngx_rl_known_bucket(ngx_rl_cell_t *cell, ngx_rl_claim_t *claim,
    ngx_rl_known_ttl_t *ttl, uint64_t now);
static ngx_int_t ngx_rl_known_window(ngx_rl_cell_t *cell, ngx_rl_claim_t *claim,
    ngx_rl_known_ttl_t *ttl, uint64_t now);
static uint32_t ngx_rl_known_learn_bucket(ngx_rl_cell_t *cell,
    ngx_rl_claim_t *claim, ngx_rl_known_ttl_t *ttl,
    uint64_t sent, uint64_t until, uint64_t held);
static ngx_uint_t ngx_rl_known_stale(
    ngx_rl_cell_t *cell, ngx_rl_known_ttl_t *ttl, uint64_t now);
static ngx_uint_t ngx_rl_known_denies(
    ngx_rl_cell_t *cell, ngx_rl_claim_t *claim, uint64_t now);
static int64_t ngx_rl_known_left(ngx_rl_claim_t *claim);
static ngx_rl_cell_t *ngx_rl_known_lock(
    ngx_rl_zone_t *zone, ngx_rl_claim_t *claim);
static void ngx_rl_known_key(ngx_rl_claim_t *claim, ngx_rl_cell_key_t *key);


void
ngx_rl_known_hash(ngx_rl_zone_t *zone, ngx_rl_claim_t *claim, uint64_t shard)
{
    ngx_rl_siphash(zone->sh->secret, claim->key, claim->len, claim->hash);

    claim->hash[0] ^= shard ^ claim->stamp * NGX_RL_KNOWN_SPREAD;
}


ngx_int_t
ngx_rl_known_preview(ngx_rl_zone_t *zone, ngx_rl_claim_t *claim, ngx_msec_t age)
{
    uint64_t           now;
    ngx_int_t          rc;
    ngx_rl_cell_t     *cell;
    ngx_rl_cell_key_t  key;

    ngx_rl_known_preview_key(claim, age, &key);

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

    ngx_rl_known_preview_key(claim, age, &key);

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


/* a location with a longer time uses a cell of its own */

static void
ngx_rl_known_preview_key(ngx_rl_claim_t *claim,
    ngx_msec_t age, ngx_rl_cell_key_t *key)
{
    key->hash[0] = claim->hash[0];

    /* the lowest byte is the kind */

    key->hash[1] = claim->hash[1] ^ NGX_RL_CELL_PREVIEW ^ (uint64_t) age << 8;
}


ngx_int_t
ngx_rl_known_decide(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, ngx_rl_known_ttl_t *ttl, uint64_t now)
{
    ngx_int_t       rc;
    ngx_rl_cell_t  *cell;

    if (now >= zone->sh->knows) {
        return NGX_DECLINED;
    }

    rc = NGX_DECLINED;

    cell = ngx_rl_known_lock(zone, claim);

    if (cell) {
        rc = ngx_rl_known_is_window(claim)
             ? ngx_rl_known_window(cell, claim, ttl, now)
             : ngx_rl_known_bucket(cell, claim, ttl, now);
    }

    ngx_rl_cells_unlock(zone);

    if (rc == NGX_OK) {
        ngx_rl_decide(&claim->decision, &claim->bucket, claim->state);

        claim->decision.source = (claim->state[0] < 0) ? NGX_RL_SOURCE_DENIED
                                                       : NGX_RL_SOURCE_LEASE;
    }

    return rc;
}


static ngx_int_t
ngx_rl_known_bucket(ngx_rl_cell_t *cell,
    ngx_rl_claim_t *claim, ngx_rl_known_ttl_t *ttl, uint64_t now)
{
    int             fits;
    int64_t         full;
    uint32_t        cost;
    ngx_rl_level_t  level;

    level.tokens = cell->u.known_bucket.tokens;
    level.last = cell->u.known_bucket.last;
    cost = (uint32_t) claim->bucket.cost;

    fits = ngx_rl_level_look(&level, &claim->bucket, now, claim->state);

    if (ttl->lease && cell->u.known_bucket.held >= cost
        && !ngx_rl_known_stale(cell, ttl, now))
    {
        cell->u.known_bucket.held -= cost;
        cell->u.known_bucket.gone += cost;

        full = claim->bucket.capacity * NGX_RL_MICRO;

        claim->state[0] = ngx_min(full, level.tokens
                                  + (int64_t) cell->u.known_bucket.held
                                  * NGX_RL_MICRO);

        return NGX_OK;
    }

    /* another location may use it for longer */

    return (fits
            || ngx_rl_known_age(cell, now) >= ttl->deny
            || ngx_rl_known_over(cell, now))
           ? NGX_DECLINED : NGX_OK;
}


static ngx_int_t
ngx_rl_known_window(ngx_rl_cell_t *cell,
    ngx_rl_claim_t *claim, ngx_rl_known_ttl_t *ttl, uint64_t now)
{
    uint64_t  oldest;

    if (ngx_rl_known_age(cell, now) >= ttl->deny
        || ngx_rl_known_over(cell, now)
        || !ngx_rl_known_denies(cell, claim, now))
    {
        return NGX_DECLINED;
    }

    oldest = cell->u.known_window.oldest;

    claim->state[0] = -1 - (int64_t) cell->u.known_window.left;
    claim->state[1] = (oldest > now) ? oldest - now : 0;
    claim->state[2] = cell->u.known_window.fits - now;

    return NGX_OK;
}


ngx_int_t
ngx_rl_known_learn(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, ngx_rl_known_ttl_t *ttl,
    uint64_t sent, uint64_t held, uint32_t *mark)
{
    uint32_t           end;
    uint64_t           until, knows;
    ngx_rl_cell_t     *cell;
    ngx_rl_cell_key_t  key;

    ngx_rl_known_key(claim, &key);

    /* a reply may take longer than a lease lasts: the lease starts now */

    until = held ? ngx_rl_clock_us() / 1000 + ttl->lease
                 : sent / 1000 + ngx_max(ttl->deny, ttl->lease);

    knows = (until + NGX_RL_KNOWN_STALE + ttl->lease) * 1000;

    ngx_rl_cells_lock(zone);

    cell = ngx_rl_cells_make(zone->cells, &key, claim->limit,
                             NGX_RL_CELL_KNOWN, sent);

    if (cell == NULL) {
        goto done;
    }

    zone->sh->knows = ngx_max(zone->sh->knows, knows);

    if (ngx_rl_known_is_window(claim)) {
        ngx_rl_known_learned(cell, sent / 1000, until);

        cell->u.known_window.left = (uint32_t) ngx_rl_known_left(claim);
        cell->u.known_window.oldest = sent + claim->state[1];
        cell->u.known_window.fits = sent + claim->state[2];
        cell->u.known_window.cost = (uint32_t) claim->bucket.cost;

        goto done;
    }

    end = ngx_rl_known_learn_bucket(cell, claim, ttl, sent, until, held);

    if (mark) {
        *mark = end;
    }

done:

    ngx_rl_cells_unlock(zone);

    return cell ? NGX_OK : NGX_DECLINED;
}


/* returns the mark of a lease that was taken with the call */

static uint32_t
ngx_rl_known_learn_bucket(ngx_rl_cell_t *cell,
    ngx_rl_claim_t *claim, ngx_rl_known_ttl_t *ttl,
    uint64_t sent, uint64_t until, uint64_t held)
{
    int32_t  lasts;

    if (ngx_rl_known_stale(cell, ttl, sent)) {
        cell->u.known_bucket.gone += cell->u.known_bucket.held;
        cell->u.known_bucket.held = 0;
    }

    /* not before other leases end */

    if (cell->u.known_bucket.held) {
        lasts = (int32_t) (cell->u.known_bucket.learned
                           + ngx_rl_known_lasts(cell)
                           - (uint32_t) (sent / 1000));

        until = ngx_max((int64_t) until, (int64_t) (sent / 1000) + lasts);
    }

    ngx_rl_known_learned(cell, sent / 1000, until);

    cell->u.known_bucket.tokens = ngx_rl_known_left(claim);
    cell->u.known_bucket.last = sent;

    if (claim->bucket.step) {
        cell->u.known_bucket.last -= ngx_min(claim->state[1],
                                             (int64_t) sent - 1);
    }

    cell->u.known_bucket.held += (uint32_t) held;

    return cell->u.known_bucket.gone + cell->u.known_bucket.held;
}


/*
 * Whether leases ended so long ago that the worker that took them must be
 * dead.
 */

static ngx_uint_t
ngx_rl_known_stale(ngx_rl_cell_t *cell, ngx_rl_known_ttl_t *ttl, uint64_t now)
{
    return ngx_rl_known_age(cell, now)
           > ngx_rl_known_lasts(cell) + NGX_RL_KNOWN_STALE + ttl->lease / 32;
}


void
ngx_rl_known_suspect(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, ngx_rl_known_ttl_t *ttl, uint64_t sent)
{
    ngx_uint_t          known, believed;
    ngx_rl_cell_t      *cell;
    ngx_rl_known_ttl_t  brief;

    cell = ngx_rl_known_lock(zone, claim);

    known = cell && ngx_rl_known_denies(cell, claim, sent);
    believed = known && !ngx_rl_known_over(cell, sent);

    ngx_rl_cells_unlock(zone);

    if (believed) {
        return;
    }

    brief = *ttl;

    if (!known) {
        brief.deny = ngx_min(brief.deny, NGX_RL_KNOWN_MOMENT);
    }

    (void) ngx_rl_known_learn(zone, claim, &brief, sent, 0, NULL);
}


/* uses what was learned, however long ago */

static ngx_uint_t
ngx_rl_known_denies(ngx_rl_cell_t *cell, ngx_rl_claim_t *claim, uint64_t now)
{
    int64_t         state[NGX_RL_STATES];
    ngx_rl_level_t  level;

    if (ngx_rl_known_is_window(claim)) {
        return now < cell->u.known_window.fits
               && claim->bucket.cost >= cell->u.known_window.cost;
    }

    level.tokens = cell->u.known_bucket.tokens;
    level.last = cell->u.known_bucket.last;

    return !ngx_rl_level_look(&level, &claim->bucket, now, state);
}


void
ngx_rl_known_lease_returned(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, uint64_t tokens)
{
    ngx_rl_cell_t  *cell;

    cell = ngx_rl_known_lock(zone, claim);

    if (cell == NULL) {
        /* void */

    } else if (ngx_rl_known_is_window(claim)) {
        cell->u.known_window.fits = 0;

    } else {
        cell->u.known_bucket.tokens += tokens * NGX_RL_MICRO;
    }

    ngx_rl_cells_unlock(zone);
}


/*
 * A key that is new, or was unused for as long as a lease lasts, gets nothing
 * in advance.  After that, each lease that was used up makes the next one
 * larger, as far as the demand will use it up, too.  The pace of the last
 * lease gives the estimate, reduced a little, because tokens that are left
 * over must be refunded.  A lease at most doubles, because a few requests say
 * little about later ones.
 */

uint64_t
ngx_rl_known_lease_size(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, ngx_rl_known_ttl_t *ttl, uint64_t max, uint64_t now)
{
    int64_t         age, lease;
    uint64_t        wanted, held, used, demand;
    ngx_rl_cell_t  *cell;

    wanted = 0;
    lease = ttl->lease;

    cell = ngx_rl_known_lock(zone, claim);

    if (cell) {
        wanted = cell->u.known_bucket.wanted;
        held = cell->u.known_bucket.held;
        used = wanted - ngx_min(wanted, held) + claim->bucket.cost;

        /* ms since the last call */

        age = ngx_rl_known_age(cell, now);

        if (age <= lease) {
            demand = used * lease * 7 / (8 * ngx_max(age, 1));

            wanted = ngx_min(2 * wanted + claim->bucket.cost,
                             demand - ngx_min(demand, claim->bucket.cost));

        } else if (age > 2 * lease) {
            wanted = 0;
        }

        wanted = ngx_min(wanted, max);
        cell->u.known_bucket.wanted = (uint32_t) wanted;

        /* held tokens that are too few for this cost count as well */

        wanted -= ngx_min(wanted, held);
    }

    ngx_rl_cells_unlock(zone);

    return wanted;
}


ngx_uint_t
ngx_rl_known_lease_spent(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, uint32_t mark)
{
    ngx_uint_t      spent;
    ngx_rl_cell_t  *cell;

    cell = ngx_rl_known_lock(zone, claim);

    spent = cell == NULL || (int32_t) (mark - cell->u.known_bucket.gone) <= 0;

    ngx_rl_cells_unlock(zone);

    return spent;
}


uint64_t
ngx_rl_known_lease_end(ngx_rl_zone_t *zone,
    ngx_rl_claim_t *claim, uint32_t mark)
{
    int32_t         left;
    uint32_t        rest;
    ngx_rl_cell_t  *cell;

    rest = 0;

    cell = ngx_rl_known_lock(zone, claim);

    left = cell ? (int32_t) (mark - cell->u.known_bucket.gone) : 0;

    if (left > 0) {
        rest = ngx_min((uint32_t) left, cell->u.known_bucket.held);

        cell->u.known_bucket.held -= rest;
        cell->u.known_bucket.gone += rest;

        /* they go back to the shard */

        cell->u.known_bucket.tokens += (int64_t) rest * NGX_RL_MICRO;

        /* only so many were useful */

        cell->u.known_bucket.wanted -= ngx_min(rest,
                                               cell->u.known_bucket.wanted);
    }

    ngx_rl_cells_unlock(zone);

    return rest;
}


uint64_t
ngx_rl_known_held(ngx_rl_zone_t *zone, ngx_rl_claim_t *claim)
{
    uint64_t        held;
    ngx_rl_cell_t  *cell;

    cell = ngx_rl_known_lock(zone, claim);

    held = (cell && !ngx_rl_known_is_window(claim))
           ? cell->u.known_bucket.held : 0;

    ngx_rl_cells_unlock(zone);

    return held;
}


/* how much was left, by the state of a claim that passed or was denied */

static int64_t
ngx_rl_known_left(ngx_rl_claim_t *claim)
{
    return (claim->state[0] < 0) ? -1 - claim->state[0] : claim->state[0];
}


/* locks the cells; NULL: nothing is known about the claim */

static ngx_rl_cell_t *
ngx_rl_known_lock(ngx_rl_zone_t *zone, ngx_rl_claim_t *claim)
{
    ngx_rl_cell_key_t  key;

    ngx_rl_known_key(claim, &key);

    ngx_rl_cells_lock(zone);

    return ngx_rl_cells_find(zone->cells, &key);
}


/* a bucket with other parameters is a different bucket */

static void
ngx_rl_known_key(ngx_rl_claim_t *claim, ngx_rl_cell_key_t *key)
{
    uint64_t          h;
    ngx_rl_bucket_t  *bucket;

    bucket = &claim->bucket;

    h = bucket->algorithm + 1;
    h = h * NGX_RL_KNOWN_SPREAD + bucket->capacity;
    h = h * NGX_RL_KNOWN_SPREAD + bucket->rate.num;
    h = h * NGX_RL_KNOWN_SPREAD + bucket->rate.den;
    h = h * NGX_RL_KNOWN_SPREAD + bucket->step;
    h = h * NGX_RL_KNOWN_SPREAD + bucket->window;
    h = h * NGX_RL_KNOWN_SPREAD + bucket->period.length;
    h = h * NGX_RL_KNOWN_SPREAD + bucket->period.shift;
    h *= NGX_RL_KNOWN_SPREAD;

    key->hash[0] = claim->hash[0];

    /* the lowest byte is the kind */

    key->hash[1] = claim->hash[1] ^ NGX_RL_CELL_KNOWN ^ h >> 32 << 8;
}
