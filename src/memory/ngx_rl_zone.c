
/*
 * The memory has two parts.  Records come from the slab allocator.  A record
 * that a configuration requests while it is loaded stays, unless memory is
 * short.  Workers may borrow further records from a part that is reserved for
 * records.  When this part is used up, a record that nobody uses any more is
 * given to the next borrower.  The rest of the memory consists of cells, which
 * hold what is known about keys.
 *
 * The only lock is that of the slab pool, which the master releases when a
 * worker dies holding it.  Such a worker may have left cells half linked.  So
 * "changing" is set while cells are changed.  A process that takes the lock
 * and finds it set discards all keys.  Then the array is empty: nothing has to
 * be repaired, and no cell can get lost.
 *
 * A reload keeps the memory if its layout is the same; old and new workers use
 * it together.  Nothing in it points to the memory of a process.
 */


#include "memory/ngx_rl_zone.h"
#include "core/ngx_rl_core.h"
#include "pure/ngx_rl_hash.h"


/*
 * Raise this number when something changes that the layout does not show: the
 * meaning of a field, the order of an enum that is stored or counted, the hash
 * of a key.  A reload with another layout gets new memory, while the old
 * workers keep theirs.
 */
#ifndef NGX_RL_ZONE_FORMAT
#define NGX_RL_ZONE_FORMAT   8
#endif

/* followed by the layout */
#define NGX_RL_ZONE_NAME      "ngx_http_ratelimit_"
#define NGX_RL_ZONE_NAME_LEN  (sizeof(NGX_RL_ZONE_NAME) - 1)

/* a part of the pages, and at least so many, is reserved for later records */
#define NGX_RL_ZONE_RESERVE  16
#define NGX_RL_ZONE_SPARE    4
#define NGX_RL_ZONE_LENT     75         /* percent of that */

/*
 * The most that one request may need: cell 0, and windows of 16 limits, each
 * with its two queues and all its chunks, or all but one: then its entries are
 * slightly coarser.
 */
#define NGX_RL_ZONE_CELLS                                                     \
    (1 + 16 * (2 + NGX_RL_ENTRIES / NGX_RL_CHUNK))

/* usually nobody uses a record after so many configurations */
#define NGX_RL_ZONE_UNUSED   2


typedef struct {
    ngx_queue_t         queue;
    ngx_rl_zone_kind_e  kind;
    ngx_uint_t          generation;  /* the last that asked */
    ngx_str_t           name;
    size_t              room;        /* for its name */
    size_t              size;        /* for its data */
    size_t              lent;        /* bytes; 0: asked for by a
                                        configuration */
    void               *data;
} ngx_rl_zone_record_t;


static ngx_int_t ngx_rl_zone_init(ngx_shm_zone_t *shm_zone, void *data);
static void ngx_rl_zone_empty(ngx_shm_zone_t *shm_zone);
static ngx_int_t ngx_rl_zone_create(ngx_rl_zone_t *zone);
static ngx_int_t ngx_rl_zone_create_cells(ngx_rl_zone_t *zone);
static ngx_rl_zone_record_t *ngx_rl_zone_named(
    ngx_rl_zone_t *zone, ngx_rl_zone_ask_t *ask, ngx_rl_zone_record_t **unused);
static ngx_rl_zone_record_t *ngx_rl_zone_new(
    ngx_rl_zone_t *zone, ngx_rl_zone_ask_t *ask);
static void ngx_rl_zone_rename(
    ngx_rl_zone_record_t *record, ngx_rl_zone_ask_t *ask);
static size_t ngx_rl_zone_size(size_t size);


/* all that lives in shared memory, field by field */

static const uint32_t  ngx_rl_zone_layout[] = {
    NGX_RL_ZONE_FORMAT,
    NGX_RL_ENTRIES,

    sizeof(ngx_rl_level_t),
    ngx_rl_zone_field(level, tokens),
    ngx_rl_zone_field(level, last),

    sizeof(ngx_rl_count_t),
    ngx_rl_zone_field(count, start),
    ngx_rl_zone_field(count, current),
    ngx_rl_zone_field(count, previous),

    sizeof(ngx_rl_cell_key_t),
    ngx_rl_zone_field(cell_key, hash),

    sizeof(ngx_rl_cell_t),
    ngx_rl_zone_field(cell, key),
    ngx_rl_zone_field(cell, next),
    ngx_rl_zone_field(cell, newer),
    ngx_rl_zone_field(cell, older),
    ngx_rl_zone_field(cell, queue),
    ngx_rl_zone_field(cell, u.local.state.level),
    ngx_rl_zone_field(cell, u.local.state.count),
    ngx_rl_zone_field(cell, u.local.until),
    ngx_rl_zone_field(cell, u.local.chunks),
    ngx_rl_zone_field(cell, u.local.n),
    ngx_rl_zone_field(cell, u.preview.until),
    ngx_rl_zone_field(cell, u.preview.state),
    ngx_rl_zone_field(cell, u.known_bucket.learned),
    ngx_rl_zone_field(cell, u.known_bucket.held),
    ngx_rl_zone_field(cell, u.known_bucket.tokens),
    ngx_rl_zone_field(cell, u.known_bucket.gone),
    ngx_rl_zone_field(cell, u.known_bucket.wanted),
    ngx_rl_zone_field(cell, u.known_window.learned),
    ngx_rl_zone_field(cell, u.known_window.left),
    ngx_rl_zone_field(cell, u.known_window.oldest),
    ngx_rl_zone_field(cell, u.known_window.cost),
    ngx_rl_zone_field(cell, u.known.learned),
    ngx_rl_zone_field(cell, u.queue.cells),
    ngx_rl_zone_field(cell, u.queue.weight),
    ngx_rl_zone_field(cell, u.queue.kind),
    ngx_rl_zone_field(cell, u.queue.much),
    ngx_rl_zone_field(cell, u.queue.pair),
    ngx_rl_zone_field(cell, u.queue.before),
    ngx_rl_zone_field(cell, u.queue.after),

    sizeof(ngx_rl_chunk_t),
    ngx_rl_zone_field(chunk, cost),
    ngx_rl_zone_field(chunk, next),
    ngx_rl_zone_field(chunk, n),
    ngx_rl_zone_field(chunk, unused),
    ngx_rl_zone_field(chunk, queue),
    ngx_rl_zone_field(chunk, time),

    sizeof(ngx_rl_cell_line_t),
    ngx_rl_zone_field(cell_line, cell),
    ngx_rl_zone_field(cell_line, chunk),

    sizeof(ngx_rl_cells_t),
    ngx_rl_zone_field(cells, lines),
    ngx_rl_zone_field(cells, heads),
    ngx_rl_zone_field(cells, mask),
    ngx_rl_zone_field(cells, n),
    ngx_rl_zone_field(cells, fresh),
    ngx_rl_zone_field(cells, free),
    ngx_rl_zone_field(cells, used),
    ngx_rl_zone_field(cells, keys),
    ngx_rl_zone_field(cells, hand),
    ngx_rl_zone_field(cells, most),
    ngx_rl_zone_field(cells, turn),
    ngx_rl_zone_field(cells, npinned),
    ngx_rl_zone_field(cells, pinned),
    ngx_rl_zone_field(cells, evictions),

    sizeof(ngx_rl_zone_record_t),
    ngx_rl_zone_field(zone_record, queue),
    ngx_rl_zone_field(zone_record, kind),
    ngx_rl_zone_field(zone_record, generation),
    ngx_rl_zone_field(zone_record, name),
    ngx_rl_zone_field(zone_record, room),
    ngx_rl_zone_field(zone_record, size),
    ngx_rl_zone_field(zone_record, lent),
    ngx_rl_zone_field(zone_record, data),

    sizeof(ngx_rl_zone_sh_t),
    ngx_rl_zone_field(zone_sh, secret),
    ngx_rl_zone_field(zone_sh, records),
    ngx_rl_zone_field(zone_sh, generation),
    ngx_rl_zone_field(zone_sh, lent),
    ngx_rl_zone_field(zone_sh, lendable),
    ngx_rl_zone_field(zone_sh, knows),
    ngx_rl_zone_field(zone_sh, changing),
    ngx_rl_zone_field(zone_sh, cells),
    ngx_rl_zone_field(zone_sh, resets)
};


ngx_rl_zone_t *
ngx_rl_zone_add(ngx_conf_t *cf, size_t size, void *tag,
    uint64_t records, ngx_rl_zone_pt attach, void *data)
{
    uint64_t        layout[2];
    ngx_str_t       name;
    ngx_rl_zone_t  *zone;

    zone = ngx_pcalloc(cf->pool, sizeof(ngx_rl_zone_t));
    name.data = ngx_pnalloc(cf->pool, NGX_RL_ZONE_NAME_LEN + 16);

    if (zone == NULL || name.data == NULL) {
        return NULL;
    }

    zone->attach = attach;
    zone->data = data;

    layout[0] = ngx_rl_hash(ngx_rl_zone_layout, sizeof(ngx_rl_zone_layout));
    layout[1] = records;

    name.len = ngx_sprintf(name.data, NGX_RL_ZONE_NAME "%016xL",
                           ngx_rl_hash(layout, sizeof(layout)))
               - name.data;

    zone->shm_zone = ngx_shared_memory_add(cf, &name, size, tag);
    if (zone->shm_zone == NULL) {
        return NULL;
    }

    zone->shm_zone->init = ngx_rl_zone_init;
    zone->shm_zone->data = zone;

    return zone;
}


/* nginx hands over the old memory only if size and tag are the same */

static ngx_int_t
ngx_rl_zone_init(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_uint_t      pages;
    ngx_rl_zone_t  *zone;

    zone = shm_zone->data;
    zone->shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    if (data || shm_zone->shm.exists) {
        zone->sh = zone->shpool->data;

    } else if (ngx_rl_zone_create(zone) != NGX_OK) {
        goto failed;

    } else {
        ngx_rl_zone_empty(shm_zone);
    }

    zone->cells = &zone->sh->cells;
    zone->sh->generation++;

    pages = zone->shpool->pfree;

    if (zone->attach(zone, zone->data) != NGX_OK) {
        /* the former configuration stays in use, so it does not age */
        zone->sh->generation--;
        goto failed;
    }

    if (zone->cells->lines) {
        return NGX_OK;
    }

    pages -= zone->shpool->pfree;

    if (ngx_rl_zone_create_cells(zone) != NGX_OK) {
        goto failed;
    }

    /*
     * The rest is for records that a reload brings while the old ones are
     * still in use.  "nginx -t" cannot see how much of it is in use elsewhere.
     */

    if (pages > zone->shpool->pfree && zone->advice.len) {
        ngx_log_error(NGX_LOG_WARN, shm_zone->shm.log, 0,
                      "\"ratelimit_zone\" of %uik has %uik left for the limits "
                      "and shards of a reload, but those of this configuration "
                      "use %uik: a reload that replaces them all would fail; "
                      "make the zone larger, or restart nginx instead of "
                      "reloading%V", (ngx_uint_t) (shm_zone->shm.size / 1024),
                      zone->shpool->pfree * ngx_pagesize / 1024,
                      pages * ngx_pagesize / 1024, &zone->advice);
    }

    return NGX_OK;

failed:

    ngx_log_error(NGX_LOG_EMERG, shm_zone->shm.log, 0,
                  "\"ratelimit_zone\" of %uzk is too small for the limits and "
                  "shards of this configuration, or those of earlier "
                  "configurations have filled it: make it larger",
                  shm_zone->shm.size / 1024);

    return NGX_ERROR;
}


/* new memory, although the former configuration had some */

static void
ngx_rl_zone_empty(ngx_shm_zone_t *shm_zone)
{
    ngx_uint_t        i;
    ngx_shm_zone_t   *old;
    ngx_list_part_t  *part;

    part = (ngx_list_part_t *) &ngx_cycle->shared_memory.part;

    for ( /* void */ ; part; part = part->next) {
        old = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (old[i].shm.name.len < NGX_RL_ZONE_NAME_LEN
                || ngx_strncmp(old[i].shm.name.data, NGX_RL_ZONE_NAME,
                               NGX_RL_ZONE_NAME_LEN)
                != 0)
            {
                continue;
            }

            if (old[i].shm.size != shm_zone->shm.size) {
                ngx_log_error(NGX_LOG_NOTICE, shm_zone->shm.log, 0,
                              "the ratelimit zone starts empty: its size has "
                              "changed from %uik to %uik",
                              (ngx_uint_t) (old[i].shm.size / 1024),
                              (ngx_uint_t) (shm_zone->shm.size / 1024));

            } else {
                ngx_log_error(NGX_LOG_NOTICE, shm_zone->shm.log, 0,
                              "the ratelimit zone starts empty: the previous "
                              "one belongs to another build of the module");
            }

            return;
        }
    }
}


static ngx_int_t
ngx_rl_zone_create(ngx_rl_zone_t *zone)
{
    ngx_rl_zone_sh_t  *sh;

    static ngx_str_t  context = ngx_string(" in ratelimit zone");

    sh = ngx_slab_calloc(zone->shpool, sizeof(ngx_rl_zone_sh_t));
    zone->shpool->log_ctx = ngx_slab_alloc(zone->shpool, context.len + 1);

    if (sh == NULL || zone->shpool->log_ctx == NULL) {
        return NGX_ERROR;
    }

    ngx_queue_init(&sh->records);
    ngx_rl_zone_secret(sh->secret, zone->shm_zone->shm.log);

    (void) ngx_cpystrn(zone->shpool->log_ctx, context.data, context.len + 1);

    zone->shpool->log_nomem = 0;

    zone->sh = sh;
    zone->shpool->data = sh;

    return NGX_OK;
}


void
ngx_rl_zone_secret(uint64_t secret[2], ngx_log_t *log)
{
    ngx_fd_t        fd;
    struct timeval  tv;

    /* better than nothing, if the device does not exist */

    ngx_gettimeofday(&tv);

    secret[0] = (uint64_t) tv.tv_sec << 20 ^ tv.tv_usec ^ (uint64_t) ngx_pid
                                                          << 48;
    secret[1] = (uintptr_t) secret ^ (uintptr_t) log << 20;

    fd = ngx_open_file((u_char *) "/dev/urandom", NGX_FILE_RDONLY,
                       NGX_FILE_OPEN, 0);

    if (fd == NGX_INVALID_FILE) {
        return;
    }

    if (ngx_read_fd(fd, secret, 2 * sizeof(uint64_t)) == -1) {
        ngx_log_error(NGX_LOG_WARN, log, ngx_errno,
                      ngx_read_fd_n " \"/dev/urandom\" failed");
    }

    (void) ngx_close_file(fd);
}


/* as many cells as there is memory for */

static ngx_int_t
ngx_rl_zone_create_cells(ngx_rl_zone_t *zone)
{
    void   *memory;
    size_t  size, spare;

    spare = ngx_max(zone->shpool->pfree / NGX_RL_ZONE_RESERVE,
                    NGX_RL_ZONE_SPARE);

    if (zone->shpool->pfree <= spare) {
        return NGX_ERROR;
    }

    /* the rest is reserved for later configurations */

    zone->sh->lendable = spare * ngx_pagesize * NGX_RL_ZONE_LENT / 100;

    size = ngx_min((zone->shpool->pfree - spare) * ngx_pagesize,
                   ngx_rl_cells_size((size_t) NGX_MAX_INT32_VALUE));

    if (size < ngx_rl_cells_size(NGX_RL_ZONE_CELLS)) {
        return NGX_ERROR;
    }

    memory = ngx_slab_alloc(zone->shpool, size);
    if (memory == NULL) {
        return NGX_ERROR;
    }

    ngx_rl_cells_init(zone->cells, memory, size);

    return NGX_OK;
}


void *
ngx_rl_zone_record(ngx_rl_zone_t *zone, ngx_rl_zone_ask_t *ask)
{
    ngx_rl_zone_record_t  *record, *unused;

    record = ngx_rl_zone_named(zone, ask, &unused);

    if (record == NULL) {
        record = ngx_rl_zone_new(zone, ask);
    }

    if (record == NULL && unused) {
        record = unused;
        ngx_rl_zone_rename(record, ask);
    }

    if (record == NULL) {
        return NULL;
    }

    /* a record that was lent until now stays, and no longer counts as lent */

    zone->sh->lent -= record->lent;
    record->lent = 0;
    record->generation = zone->sh->generation;

    return record->data;
}


void *
ngx_rl_zone_lend(ngx_rl_zone_t *zone, ngx_rl_zone_ask_t *ask)
{
    size_t                 size;
    ngx_rl_zone_record_t  *record, *unused;

    record = ngx_rl_zone_named(zone, ask, &unused);

    if (record) {
        return record->data;
    }

    size = ngx_rl_zone_size(sizeof(ngx_rl_zone_record_t) + ask->name->len)
           + ngx_rl_zone_size(ask->size);

    if (zone->sh->lendable >= size
        && zone->sh->lent <= zone->sh->lendable - size)
    {
        record = ngx_rl_zone_new(zone, ask);

        if (record) {
            record->lent = size;
            zone->sh->lent += size;
            return record->data;
        }
    }

    /* nobody uses it, but it may have belonged to a configuration */

    if (unused && unused->lent) {
        ngx_rl_zone_rename(unused, ask);
        return unused->data;
    }

    return NULL;
}


/*
 * Finds the record of this name.  Otherwise returns NULL, and the record to
 * replace if there is no memory: a lent one rather than one of old
 * configurations.
 */

static ngx_rl_zone_record_t *
ngx_rl_zone_named(ngx_rl_zone_t *zone,
    ngx_rl_zone_ask_t *ask, ngx_rl_zone_record_t **unused)
{
    ngx_queue_t           *q;
    ngx_rl_zone_record_t  *record;

    *unused = NULL;

    for (q = ngx_queue_head(&zone->sh->records);
         q != ngx_queue_sentinel(&zone->sh->records);
         q = ngx_queue_next(q))
    {
        record = ngx_queue_data(q, ngx_rl_zone_record_t, queue);

        if (record->kind != ask->kind) {
            continue;
        }

        if (ngx_rl_str_equal(&record->name, ask->name)) {
            return record;
        }

        if (record->room < ask->name->len || record->size < ask->size
            || (record->lent == 0
                && zone->sh->generation - record->generation
                <= NGX_RL_ZONE_UNUSED)
            || (ask->unused && !ask->unused(record->data, ask->data)))
        {
            continue;
        }

        if (*unused == NULL
            || (record->lent && (*unused)->lent == 0)
            || (record->lent == 0 && (*unused)->lent == 0
                && record->generation < (*unused)->generation))
        {
            *unused = record;
        }
    }

    return NULL;
}


static ngx_rl_zone_record_t *
ngx_rl_zone_new(ngx_rl_zone_t *zone, ngx_rl_zone_ask_t *ask)
{
    size_t                 len;
    ngx_queue_t           *q;
    ngx_rl_zone_record_t  *record;

    /* uses all that the allocator reserves: a later record may be larger */

    len = ngx_rl_zone_size(sizeof(ngx_rl_zone_record_t) + ask->name->len);

    record = ngx_slab_calloc_locked(zone->shpool, len);
    if (record == NULL) {
        return NULL;
    }

    record->data = ngx_slab_alloc_locked(zone->shpool, ask->size);

    if (record->data == NULL) {
        ngx_slab_free_locked(zone->shpool, record);
        return NULL;
    }

    record->kind = ask->kind;
    record->room = len - sizeof(ngx_rl_zone_record_t);
    record->size = ngx_rl_zone_size(ask->size);
    record->name.data = (u_char *) &record[1];

    ngx_rl_zone_rename(record, ask);

    /*
     * Readers follow "next".  Wherever a worker dies here, it still leads from
     * one record to the next, and back to the head.
     */

    q = &record->queue;
    q->prev = ngx_queue_last(&zone->sh->records);
    q->next = &zone->sh->records;

    ngx_memory_barrier();

    q->prev->next = q;

    ngx_memory_barrier();

    zone->sh->records.prev = q;

    return record;
}


static void
ngx_rl_zone_rename(ngx_rl_zone_record_t *record, ngx_rl_zone_ask_t *ask)
{
    ngx_memzero(record->data, ask->size);

    record->name.len = ask->name->len;
    ngx_memcpy(record->name.data, ask->name->data, ask->name->len);
}


/* of a piece of memory, as the allocator cuts it */

static size_t
ngx_rl_zone_size(size_t size)
{
    size_t  n;

    if (size > ngx_pagesize / 2) {
        return ngx_align(size, ngx_pagesize);
    }

    for (n = 8; n < size; n *= 2) {
        /* void */
    }

    return n;
}


void *
ngx_rl_zone_next(ngx_rl_zone_t *zone, ngx_rl_zone_kind_e kind,
    void *after, ngx_str_t *name, size_t room)
{
    void                  *data;
    ngx_uint_t             found;
    ngx_queue_t           *q;
    ngx_rl_zone_record_t  *record;

    data = NULL;
    found = (after == NULL);

    ngx_rl_zone_lock(zone);

    for (q = ngx_queue_head(&zone->sh->records);
         q != ngx_queue_sentinel(&zone->sh->records);
         q = ngx_queue_next(q))
    {
        record = ngx_queue_data(q, ngx_rl_zone_record_t, queue);

        if (found && record->kind == kind) {
            data = record->data;

            name->len = ngx_min(record->name.len, room);
            ngx_memcpy(name->data, record->name.data, name->len);

            break;
        }

        if (record->data == after) {
            found = 1;
        }
    }

    ngx_rl_zone_unlock(zone);

    return data;
}


void
ngx_rl_cells_lock(ngx_rl_zone_t *zone)
{
    ngx_rl_zone_lock(zone);

    if (zone->sh->changing) {
        ngx_rl_cells_reset(zone->cells);
        zone->sh->resets++;
        zone->lost = 1;
    }

    zone->sh->changing = 1;
    ngx_memory_barrier();
}


void
ngx_rl_cells_unlock(ngx_rl_zone_t *zone)
{
    ngx_rl_cells_release(zone->cells);

    ngx_memory_barrier();
    zone->sh->changing = 0;

    ngx_rl_zone_unlock(zone);

    if (zone->lost) {
        zone->lost = 0;

        ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                      "a worker died while it was changing the ratelimit zone: "
                      "this machine's local state of all keys is discarded");
    }
}


void
ngx_rl_zone_usage(ngx_rl_zone_t *zone, ngx_rl_zone_usage_t *usage)
{
    ngx_rl_cells_t  *cells;

    cells = zone->cells;

    ngx_rl_zone_lock(zone);

    usage->size = zone->shm_zone->shm.size;
    usage->used = usage->size - (cells->n - cells->used)
                                * sizeof(ngx_rl_cell_line_t);
    usage->keys = cells->keys;
    ngx_memcpy(usage->evictions, cells->evictions, sizeof(usage->evictions));
    usage->resets = zone->sh->resets;

    ngx_rl_zone_unlock(zone);
}
