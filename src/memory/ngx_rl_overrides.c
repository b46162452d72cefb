
/*
 * The overrides have shared memory of their own: a flood of keys never evicts
 * them.  They are found by a SipHash of table and key, in chains of items from
 * the slab allocator.
 *
 * A worker may die at any moment while it holds the lock.  So a new item is
 * complete before it is linked, and linking and unlinking are one store each.
 * A changed override is a new item, which is linked before the old one.  If the
 * old one could not be unlinked any more, the next change does it.  Counters
 * may be too high then, and never too low.
 *
 * A worker that was held up may go on with a scan while another worker scans
 * the same table, or the API changes it.  Numbers of scans and changes come
 * from one sequence, so of two the later one counts.
 *
 * What this machine knows of a key in Redis depends on the numbers of its
 * bucket, and on nobody else resetting it.  So each change gives the key
 * another stamp, and whatever was learned under another stamp is not used.
 * For the same reason an override that has ended is kept for a while, with a
 * stamp and without any effect.
 */


#include "memory/ngx_rl_overrides.h"
#include "core/ngx_rl_core.h"
#include "memory/ngx_rl_zone.h"
#include "pure/ngx_rl_hash.h"


#define NGX_RL_OVERRIDES_FORMAT    1

#define NGX_RL_OVERRIDES_NAME      "ngx_http_ratelimit_overrides_"
#define NGX_RL_OVERRIDES_NAME_LEN  (sizeof(NGX_RL_OVERRIDES_NAME) - 1)

/* bytes of memory for each head */
#define NGX_RL_OVERRIDES_HEAD      512

/* heads that are looked at in one go */
#define NGX_RL_OVERRIDES_PORTION   256


struct ngx_rl_override_item_s {
    ngx_rl_override_item_t  *next;
    ngx_rl_table_t          *table;
    uint64_t                 hash;
    uint64_t                 stamp;
    ngx_uint_t               scan;     /* or change: its number */
    ngx_rl_override_t        values;
    uint16_t                 key_len;
    uint16_t                 text_len;
    uint32_t                 gone;     /* has ended, except for its stamp */
    u_char                   data[1];  /* key and text */
};


static ngx_int_t ngx_rl_overrides_init(ngx_shm_zone_t *shm_zone, void *data);
static ngx_int_t ngx_rl_overrides_create(ngx_rl_overrides_t *overrides);
static uint64_t ngx_rl_overrides_hash(ngx_rl_overrides_t *overrides,
    ngx_rl_table_t *table, ngx_str_t *key);
static ngx_rl_override_item_t *ngx_rl_overrides_item(
    ngx_rl_overrides_t *overrides, ngx_rl_table_t *table, ngx_str_t *key,
    uint64_t hash);
static ngx_rl_override_item_t *ngx_rl_overrides_next(
    ngx_rl_override_item_t *item, ngx_rl_table_t *table, ngx_str_t *key,
    uint64_t hash);
static ngx_uint_t ngx_rl_overrides_changed(ngx_rl_overrides_t *overrides,
    ngx_rl_table_t *table);
static ngx_uint_t ngx_rl_overrides_ended(ngx_rl_override_item_t *item,
    time_t now);
static void ngx_rl_overrides_unlink(ngx_rl_overrides_t *overrides,
    ngx_rl_override_item_t *item);
static void ngx_rl_overrides_end(ngx_rl_overrides_t *overrides,
    ngx_rl_override_item_t *item, ngx_uint_t scan);
static void ngx_rl_overrides_copy(ngx_rl_override_item_t *item,
    ngx_rl_override_copy_t *copy);


#define ngx_rl_overrides_lock(o)    ngx_shmtx_lock(&(o)->shpool->mutex)
#define ngx_rl_overrides_unlock(o)  ngx_shmtx_unlock(&(o)->shpool->mutex)


/* all that lives in this memory, field by field */

static const uint32_t  ngx_rl_overrides_layout[] = {
    NGX_RL_OVERRIDES_FORMAT,

    sizeof(ngx_rl_rate_t),
    ngx_rl_zone_field(rate, num),
    ngx_rl_zone_field(rate, den),
    ngx_rl_zone_field(rate, count),

    sizeof(ngx_rl_override_t),
    ngx_rl_zone_field(override, set),
    ngx_rl_zone_field(override, cost),
    ngx_rl_zone_field(override, capacity),
    ngx_rl_zone_field(override, rate),
    ngx_rl_zone_field(override, until),
    ngx_rl_zone_field(override, reset),

    sizeof(ngx_rl_override_item_t),
    ngx_rl_zone_field(override_item, next),
    ngx_rl_zone_field(override_item, table),
    ngx_rl_zone_field(override_item, hash),
    ngx_rl_zone_field(override_item, stamp),
    ngx_rl_zone_field(override_item, scan),
    ngx_rl_zone_field(override_item, values),
    ngx_rl_zone_field(override_item, key_len),
    ngx_rl_zone_field(override_item, text_len),
    ngx_rl_zone_field(override_item, gone),
    ngx_rl_zone_field(override_item, data),

    sizeof(ngx_rl_throttle_t),

    sizeof(ngx_rl_table_t),
    ngx_rl_zone_field(table, queue),
    ngx_rl_zone_field(table, items),
    ngx_rl_zone_field(table, live),
    ngx_rl_zone_field(table, invalid),
    ngx_rl_zone_field(table, log),
    ngx_rl_zone_field(table, synced),
    ngx_rl_zone_field(table, fields),
    ngx_rl_zone_field(table, changed),
    ngx_rl_zone_field(table, version_len),
    ngx_rl_zone_field(table, version),
    ngx_rl_zone_field(table, len),
    ngx_rl_zone_field(table, name),

    sizeof(ngx_rl_overrides_sh_t),
    ngx_rl_zone_field(overrides_sh, secret),
    ngx_rl_zone_field(overrides_sh, tables),
    ngx_rl_zone_field(overrides_sh, heads),
    ngx_rl_zone_field(overrides_sh, mask),
    ngx_rl_zone_field(overrides_sh, hand),
    ngx_rl_zone_field(overrides_sh, stamps),
    ngx_rl_zone_field(overrides_sh, polled)
};


ngx_rl_overrides_t *
ngx_rl_overrides_add(ngx_conf_t *cf, size_t size, void *tag,
    ngx_rl_overrides_pt attach, void *data)
{
    ngx_str_t            name;
    ngx_rl_overrides_t  *overrides;

    overrides = ngx_pcalloc(cf->pool, sizeof(ngx_rl_overrides_t));
    name.data = ngx_pnalloc(cf->pool, NGX_RL_OVERRIDES_NAME_LEN + 16);

    if (overrides == NULL || name.data == NULL) {
        return NULL;
    }

    overrides->attach = attach;
    overrides->data = data;

    name.len = ngx_sprintf(name.data, NGX_RL_OVERRIDES_NAME "%016xL",
                           ngx_rl_hash(ngx_rl_overrides_layout,
                                       sizeof(ngx_rl_overrides_layout)))
               - name.data;

    overrides->shm_zone = ngx_shared_memory_add(cf, &name, size, tag);
    if (overrides->shm_zone == NULL) {
        return NULL;
    }

    overrides->shm_zone->init = ngx_rl_overrides_init;
    overrides->shm_zone->data = overrides;

    return overrides;
}


static ngx_int_t
ngx_rl_overrides_init(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_rl_overrides_t  *overrides;

    overrides = shm_zone->data;
    overrides->shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    if (data || shm_zone->shm.exists) {
        overrides->sh = overrides->shpool->data;

    } else if (ngx_rl_overrides_create(overrides) != NGX_OK) {
        goto failed;
    }

    if (overrides->attach(overrides, overrides->data) == NGX_OK) {
        return NGX_OK;
    }

failed:

    ngx_log_error(NGX_LOG_EMERG, shm_zone->shm.log, 0,
                  "\"ratelimit_overrides\" of %uzk is too small for the limits "
                  "of this configuration: make it larger",
                  shm_zone->shm.size / 1024);

    return NGX_ERROR;
}


static ngx_int_t
ngx_rl_overrides_create(ngx_rl_overrides_t *overrides)
{
    size_t                  n;
    ngx_rl_overrides_sh_t  *sh;

    static ngx_str_t  context = ngx_string(" in ratelimit overrides");

    for (n = 64; n < overrides->shm_zone->shm.size / NGX_RL_OVERRIDES_HEAD;
         n *= 2)
    {
        /* void */
    }

    sh = ngx_slab_calloc(overrides->shpool, sizeof(ngx_rl_overrides_sh_t));
    overrides->shpool->log_ctx = ngx_slab_alloc(overrides->shpool,
                                                context.len + 1);

    if (sh == NULL || overrides->shpool->log_ctx == NULL) {
        return NGX_ERROR;
    }

    (void) ngx_cpystrn(overrides->shpool->log_ctx, context.data,
                       context.len + 1);

    overrides->shpool->log_nomem = 0;

    sh->heads = ngx_slab_calloc(overrides->shpool,
                                n * sizeof(ngx_rl_override_item_t *));
    if (sh->heads == NULL) {
        return NGX_ERROR;
    }

    sh->mask = n - 1;

    ngx_queue_init(&sh->tables);
    ngx_rl_zone_secret(sh->secret, overrides->shm_zone->shm.log);

    overrides->sh = sh;
    overrides->shpool->data = sh;

    return NGX_OK;
}


ngx_rl_table_t *
ngx_rl_overrides_table(ngx_rl_overrides_t *overrides, ngx_str_t *name)
{
    ngx_queue_t     *q;
    ngx_rl_table_t  *table;

    ngx_rl_overrides_lock(overrides);

    for (q = ngx_queue_head(&overrides->sh->tables);
         q != ngx_queue_sentinel(&overrides->sh->tables);
         q = ngx_queue_next(q))
    {
        table = ngx_queue_data(q, ngx_rl_table_t, queue);

        if (table->len == name->len
            && ngx_memcmp(table->name, name->data, name->len) == 0)
        {
            goto done;
        }
    }

    table = ngx_slab_calloc_locked(overrides->shpool,
                                   sizeof(ngx_rl_table_t) + name->len);

    if (table) {
        table->len = name->len;
        ngx_memcpy(table->name, name->data, name->len);
        ngx_queue_insert_tail(&overrides->sh->tables, &table->queue);
    }

done:

    ngx_rl_overrides_unlock(overrides);

    return table;
}


static uint64_t
ngx_rl_overrides_hash(ngx_rl_overrides_t *overrides, ngx_rl_table_t *table,
    ngx_str_t *key)
{
    uint64_t  hash[2];

    ngx_rl_siphash(overrides->sh->secret, key->data, key->len, hash);

    return hash[0] ^ (uintptr_t) table;
}


static ngx_rl_override_item_t *
ngx_rl_overrides_item(ngx_rl_overrides_t *overrides, ngx_rl_table_t *table,
    ngx_str_t *key, uint64_t hash)
{
    return ngx_rl_overrides_next(
               overrides->sh->heads[hash & overrides->sh->mask], table, key,
               hash);
}


/* the first one from "item" on */

static ngx_rl_override_item_t *
ngx_rl_overrides_next(ngx_rl_override_item_t *item, ngx_rl_table_t *table,
    ngx_str_t *key, uint64_t hash)
{
    for ( /* void */ ; item; item = item->next) {

        if (item->hash == hash && item->table == table
            && item->key_len == key->len
            && ngx_memcmp(item->data, key->data, key->len) == 0)
        {
            return item;
        }
    }

    return NULL;
}


ngx_int_t
ngx_rl_overrides_find(ngx_rl_overrides_t *overrides, ngx_rl_table_t *table,
    ngx_str_t *key, ngx_rl_override_t *override, uint64_t *stamp)
{
    uint64_t                 hash;
    ngx_int_t                rc;
    ngx_rl_override_item_t  *item;

    *stamp = 0;
    rc = NGX_DECLINED;

    hash = ngx_rl_overrides_hash(overrides, table, key);

    ngx_rl_overrides_lock(overrides);

    item = ngx_rl_overrides_item(overrides, table, key, hash);

    if (item) {
        *stamp = item->stamp;

        if (!ngx_rl_overrides_ended(item, ngx_time())) {
            *override = item->values;
            rc = NGX_OK;

        } else if (!item->gone) {

            /* what was learned while it held must not be used any more */

            *stamp = ~item->stamp;
        }
    }

    ngx_rl_overrides_unlock(overrides);

    return rc;
}


ngx_int_t
ngx_rl_overrides_get(ngx_rl_overrides_t *overrides, ngx_rl_table_t *table,
    ngx_str_t *key, ngx_rl_override_copy_t *copy)
{
    uint64_t                 hash;
    ngx_int_t                rc;
    ngx_rl_override_item_t  *item;

    rc = NGX_DECLINED;
    hash = ngx_rl_overrides_hash(overrides, table, key);

    ngx_rl_overrides_lock(overrides);

    item = ngx_rl_overrides_item(overrides, table, key, hash);

    if (item && !ngx_rl_overrides_ended(item, ngx_time())) {
        ngx_rl_overrides_copy(item, copy);
        rc = NGX_OK;
    }

    ngx_rl_overrides_unlock(overrides);

    return rc;
}


static ngx_uint_t
ngx_rl_overrides_ended(ngx_rl_override_item_t *item, time_t now)
{
    return item->gone
           || (item->values.until && (uint64_t) now >= item->values.until);
}


ngx_int_t
ngx_rl_overrides_put(ngx_rl_overrides_t *overrides, ngx_rl_table_t *table,
    ngx_str_t *key, ngx_str_t *text, ngx_uint_t scan, ngx_uint_t *reset)
{
    uint64_t                  hash;
    ngx_int_t                 rc;
    ngx_rl_override_t         values;
    ngx_rl_override_item_t   *item, *old, **head;

    *reset = 0;

    if (key->len == 0 || key->len > NGX_RL_OVERRIDE_KEY
        || ngx_rl_override_parse((char *) text->data, text->len, &values, NULL))
    {
        return NGX_ERROR;
    }

    rc = NGX_OK;
    hash = ngx_rl_overrides_hash(overrides, table, key);

    ngx_rl_overrides_lock(overrides);

    old = ngx_rl_overrides_item(overrides, table, key, hash);

    if (scan == 0) {
        scan = ngx_rl_overrides_changed(overrides, table);

    } else if (old && old->scan > scan) {
        goto done;
    }

    if (old && !old->gone && old->text_len == text->len
        && ngx_memcmp(old->data + old->key_len, text->data, text->len) == 0)
    {
        old->scan = scan;
        goto done;
    }

    item = ngx_slab_alloc_locked(overrides->shpool,
                                 offsetof(ngx_rl_override_item_t, data)
                                 + key->len + text->len);
    if (item == NULL) {

        /* the old numbers may be wrong, but not worse than none */

        if (old) {
            old->scan = scan;
        }

        rc = NGX_DECLINED;
        goto done;
    }

    *reset = values.reset && (old == NULL || old->values.reset != values.reset);

    item->table = table;
    item->hash = hash;
    item->stamp = ++overrides->sh->stamps;
    item->scan = scan;
    item->values = values;
    item->key_len = (uint16_t) key->len;
    item->text_len = (uint16_t) text->len;
    item->gone = 0;

    ngx_memcpy(item->data, key->data, key->len);
    ngx_memcpy(item->data + key->len, text->data, text->len);

    head = &overrides->sh->heads[hash & overrides->sh->mask];

    table->items++;
    table->live += values.set != 0;

    item->next = *head;
    ngx_memory_barrier();
    *head = item;

    /* usually one */

    while ((old = ngx_rl_overrides_next(item->next, table, key, hash))
           != NULL)
    {
        ngx_rl_overrides_unlink(overrides, old);
    }

done:

    ngx_rl_overrides_unlock(overrides);

    return rc;
}


static void
ngx_rl_overrides_unlink(ngx_rl_overrides_t *overrides,
    ngx_rl_override_item_t *item)
{
    ngx_rl_override_item_t  **p;

    p = &overrides->sh->heads[item->hash & overrides->sh->mask];

    while (*p != item) {
        p = &(*p)->next;
    }

    *p = item->next;

    item->table->items--;
    item->table->live -= !item->gone && item->values.set != 0;

    ngx_slab_free_locked(overrides->shpool, item);
}


void
ngx_rl_overrides_remove(ngx_rl_overrides_t *overrides, ngx_rl_table_t *table,
    ngx_str_t *key)
{
    uint64_t                 hash;
    ngx_uint_t               change;
    ngx_rl_override_item_t  *item;

    hash = ngx_rl_overrides_hash(overrides, table, key);

    ngx_rl_overrides_lock(overrides);

    change = ngx_rl_overrides_changed(overrides, table);
    item = ngx_rl_overrides_item(overrides, table, key, hash);

    while (item) {
        ngx_rl_overrides_end(overrides, item, change);
        item = ngx_rl_overrides_next(item->next, table, key, hash);
    }

    ngx_rl_overrides_unlock(overrides);
}


/*
 * Another machine may have changed the same key, and who was first is not known
 * here.  So the table is read again, also if Redis has the version that it has
 * here.
 */

static ngx_uint_t
ngx_rl_overrides_changed(ngx_rl_overrides_t *overrides, ngx_rl_table_t *table)
{
    table->changed = (ngx_uint_t) ++overrides->sh->stamps;
    table->fields = (uint64_t) -1;

    return table->changed;
}


static void
ngx_rl_overrides_end(ngx_rl_overrides_t *overrides,
    ngx_rl_override_item_t *item, ngx_uint_t scan)
{
    item->scan = scan;

    if (item->gone) {
        return;
    }

    item->stamp = ++overrides->sh->stamps;
    item->values.until = ngx_time();
    item->gone = 1;

    item->table->live -= item->values.set != 0;
}


ngx_uint_t
ngx_rl_overrides_scan(ngx_rl_overrides_t *overrides)
{
    ngx_uint_t  scan;

    ngx_rl_overrides_lock(overrides);
    scan = (ngx_uint_t) ++overrides->sh->stamps;
    ngx_rl_overrides_unlock(overrides);

    return scan;
}


void
ngx_rl_overrides_scanned(ngx_rl_overrides_t *overrides, ngx_rl_table_t *table,
    ngx_uint_t scan, uint64_t fields, ngx_str_t *version)
{
    ngx_uint_t               i;
    ngx_rl_override_item_t  *item;

    ngx_rl_overrides_lock(overrides);

    for (i = 0; i <= overrides->sh->mask; i++) {

        for (item = overrides->sh->heads[i]; item; item = item->next) {
            if (item->table == table && item->scan < scan) {
                ngx_rl_overrides_end(overrides, item, scan);
            }
        }

        /* others need the lock, too */

        if (i % NGX_RL_OVERRIDES_PORTION == NGX_RL_OVERRIDES_PORTION - 1) {
            ngx_rl_overrides_unlock(overrides);
            ngx_rl_overrides_lock(overrides);
        }
    }

    if (table->changed < scan) {
        table->fields = fields;
        table->version_len = version->len;
        ngx_memcpy(table->version, version->data, version->len);
    }

    ngx_rl_overrides_unlock(overrides);
}


ngx_uint_t
ngx_rl_overrides_sweep(ngx_rl_overrides_t *overrides,
    ngx_rl_override_copy_t *copies, ngx_uint_t n)
{
    ngx_uint_t               i, found;
    ngx_rl_override_item_t  *item, *next;

    found = 0;

    ngx_rl_overrides_lock(overrides);

    for (i = 0; i < NGX_RL_OVERRIDES_PORTION * 16 && found < n; i++) {

        overrides->sh->hand = (overrides->sh->hand + 1) & overrides->sh->mask;

        for (item = overrides->sh->heads[overrides->sh->hand];
             item;
             item = next)
        {
            next = item->next;

            if (item->values.until == 0
                || (uint64_t) ngx_time() < item->values.until
                                           + NGX_RL_OVERRIDE_FENCE)
            {
                continue;
            }

            if (!item->gone) {

                if (found == n) {
                    break;
                }

                ngx_rl_overrides_copy(item, &copies[found++]);
            }

            ngx_rl_overrides_unlink(overrides, item);
        }
    }

    ngx_rl_overrides_unlock(overrides);

    return found;
}


ngx_uint_t
ngx_rl_overrides_read(ngx_rl_overrides_t *overrides, ngx_uint_t head,
    ngx_rl_override_copy_t *copies, ngx_uint_t n)
{
    ngx_uint_t               found;
    ngx_rl_override_item_t  *item;

    if (overrides->sh->heads[head] == NULL) {
        return 0;
    }

    found = 0;

    ngx_rl_overrides_lock(overrides);

    for (item = overrides->sh->heads[head];
         item && found < n;
         item = item->next)
    {
        if (item->values.set && !ngx_rl_overrides_ended(item, ngx_time())) {
            ngx_rl_overrides_copy(item, &copies[found++]);
        }
    }

    ngx_rl_overrides_unlock(overrides);

    return found;
}


static void
ngx_rl_overrides_copy(ngx_rl_override_item_t *item,
    ngx_rl_override_copy_t *copy)
{
    copy->table = item->table;
    copy->values = item->values;
    copy->key_len = item->key_len;
    copy->text_len = item->text_len;

    ngx_memcpy(copy->key, item->data, item->key_len);
    ngx_memcpy(copy->text, item->data + item->key_len, item->text_len);
}
