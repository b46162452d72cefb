
/*
 * The memory has two parts.  Records are allocated by the slab allocator.  A
 * record that a configuration asks for while it is loaded stays, unless memory
 * is short.  Workers may borrow further ones, from a part of the memory that is
 * left for records: when that is used up, a record that nobody uses any more is
 * given to the next.  All the rest of the memory is cells, for what is kept
 * about keys.
 *
 * The only lock is that of the slab pool, which the master releases when a
 * worker dies with it.  Such a worker may have left cells half linked.  So
 * "changing" is set while cells are worked on, and a process that takes the
 * lock and finds it set throws all keys away.  Then the array is empty again:
 * nothing has to be repaired, and no cell can get lost.
 *
 * A reload keeps the memory if its layout is the same; old and new workers use
 * it together.  Nothing in it points to the memory of a process.
 */


#include "memory/ngx_rl_zone.h"
#include "core/ngx_rl_core.h"
#include "pure/ngx_rl_hash.h"


/*
 * Changes by hand with what the layout does not tell: the meaning of a field,
 * the order of an enum that is stored or counts, how a key is hashed.  A reload
 * with a module of another layout gets new memory, beside the old workers with
 * theirs.
 */
#ifndef NGX_RL_ZONE_FORMAT
#define NGX_RL_ZONE_FORMAT   8
#endif

/* followed by the layout */
#define NGX_RL_ZONE_NAME      "ngx_http_ratelimit_"
#define NGX_RL_ZONE_NAME_LEN  (sizeof(NGX_RL_ZONE_NAME) - 1)

/* a part of the pages, and at least so many, is left for later records */
#define NGX_RL_ZONE_RESERVE  16
#define NGX_RL_ZONE_SPARE    4
#define NGX_RL_ZONE_LENT     75         /* percent of that */

/*
 * What one request may need: cell 0, and 16 windows of as many limits, each
 * with its two queues and all the chunks that it may have, or all but one: then
 * its entries are a little coarser
 */
#define NGX_RL_ZONE_CELLS                                                     \
    (1 + 16 * (2 + NGX_RL_ENTRIES / NGX_RL_CHUNK))

/* after so many configurations, as a rule, nobody uses a record any more */
#define NGX_RL_ZONE_UNUSED   2


typedef struct {
    ngx_queue_t         queue;
    ngx_rl_zone_kind_e  kind;
    ngx_uint_t          generation;  /* the last that asked */
    ngx_str_t           name;
    size_t              room;        /* for its name */
    size_t              lent;        /* bytes; 0: asked for by a
                                        configuration */
    void               *data;
} ngx_rl_zone_record_t;


static ngx_int_t ngx_rl_zone_init(ngx_shm_zone_t *shm_zone, void *data);
static void ngx_rl_zone_empty(ngx_shm_zone_t *shm_zone);
static ngx_int_t ngx_rl_zone_create(ngx_rl_zone_t *zone);
static void ngx_rl_zone_secret(ngx_rl_zone_t *zone, uint64_t secret[2]);
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

    sizeof(ngx_rl_cell_key_t),
    ngx_rl_zone_field(cell_key, hash),

    sizeof(ngx_rl_cell_t),
    ngx_rl_zone_field(cell, key),
    ngx_rl_zone_field(cell, next),
    ngx_rl_zone_field(cell, newer),
    ngx_rl_zone_field(cell, older),
    ngx_rl_zone_field(cell, queue),
    ngx_rl_zone_field(cell, u.local.level),
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
        /* the one before goes on, so it does not become older by this */
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
     * what is left is for those that a reload brings, while the old ones are
     * still in use; "nginx -t" can't see how much of it is taken elsewhere
     */

    if (pages > zone->shpool->pfree && zone->advice.len) {
        ngx_log_error(NGX_LOG_WARN, shm_zone->shm.log, 0,
                      "\"ratelimit_zone\" of %uik keeps %uik for limits and "
                      "shards that a reload brings, and those of this "
                      "configuration take %uik: a reload that replaces them "
                      "by others would fail; make it larger, or restart "
                      "nginx then%V", (ngx_uint_t) (shm_zone->shm.size / 1024),
                      zone->shpool->pfree * ngx_pagesize / 1024,
                      pages * ngx_pagesize / 1024, &zone->advice);
    }

    return NGX_OK;

failed:

    ngx_log_error(NGX_LOG_EMERG, shm_zone->shm.log, 0,
                  "\"ratelimit_zone\" of %uzk is too small for the limits and "
                  "shards of this configuration, or has been filled by those "
                  "of earlier ones: make it larger", shm_zone->shm.size / 1024);

    return NGX_ERROR;
}


/* new memory, where the configuration before had some already */

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
                              "the ratelimit zone starts empty: its size was "
                              "%uik and is %uik",
                              (ngx_uint_t) (old[i].shm.size / 1024),
                              (ngx_uint_t) (shm_zone->shm.size / 1024));

            } else {
                ngx_log_error(NGX_LOG_NOTICE, shm_zone->shm.log, 0,
                              "the ratelimit zone starts empty: the one "
                              "before belongs to another build of the module");
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
    ngx_rl_zone_secret(zone, sh->secret);

    (void) ngx_cpystrn(zone->shpool->log_ctx, context.data, context.len + 1);

    zone->shpool->log_nomem = 0;

    zone->sh = sh;
    zone->shpool->data = sh;

    return NGX_OK;
}


static void
ngx_rl_zone_secret(ngx_rl_zone_t *zone, uint64_t secret[2])
{
    ngx_fd_t        fd;
    struct timeval  tv;

    /* better than nothing, where there is no such device */

    ngx_gettimeofday(&tv);

    secret[0] = (uint64_t) tv.tv_sec << 20 ^ tv.tv_usec ^ (uint64_t) ngx_pid
                                                          << 48;
    secret[1] = (uintptr_t) zone ^ (uintptr_t) zone->shpool << 20;

    fd = ngx_open_file((u_char *) "/dev/urandom", NGX_FILE_RDONLY,
                       NGX_FILE_OPEN, 0);

    if (fd == NGX_INVALID_FILE) {
        return;
    }

    if (ngx_read_fd(fd, secret, 2 * sizeof(uint64_t)) == -1) {
        ngx_log_error(NGX_LOG_WARN, zone->shm_zone->shm.log, ngx_errno,
                      ngx_read_fd_n " \"/dev/urandom\" failed");
    }

    (void) ngx_close_file(fd);
}


/* as many as there is memory for */

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

    /* the rest is for what later configurations ask for */

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

    /* one that was lent until now stays for good, and is not counted there */

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

    /* nobody misses it, but it may have belonged to a configuration */

    if (unused && unused->lent) {
        ngx_rl_zone_rename(unused, ask);
        return unused->data;
    }

    return NULL;
}


/*
 * The record of this name; or NULL, and the one that is to go if there is no
 * memory for another one: a lent one rather than one of old configurations
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

        if (record->room < ask->name->len
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

    /* what the allocator takes anyway: a later name may be longer */

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
    record->name.data = (u_char *) &record[1];

    ngx_rl_zone_rename(record, ask);

    /*
     * Those who walk along the records go by "next": whenever a worker dies
     * here, that leads from one to the next, and back to the head
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
                      "a worker died while it changed the ratelimit zone: "
                      "what this machine knew about keys is forgotten");
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
