
/*
 * A record has the tables of one limit.  Its name contains the number of keys,
 * so a record with this name has the right size.
 *
 * A worker may die while it changes a table.  So "changing" is set meanwhile,
 * and a process that takes the lock and finds it set empties the tables.
 * Where they are in memory, and how large they are, never changes.
 */


#include "memory/ngx_rl_tops.h"
#include "pure/ngx_rl_hash.h"


static void ngx_rl_tops_lock(ngx_rl_zone_t *zone, ngx_rl_tops_t *tops);
static void ngx_rl_tops_unlock(ngx_rl_zone_t *zone, ngx_rl_tops_t *tops);


/* all that lives in shared memory, field by field */

static const uint32_t  ngx_rl_tops_fields[] = {
    NGX_RL_TOP_HALF_LIFE,

    sizeof(ngx_rl_tops_t),
    ngx_rl_zone_field(tops, changing),
    ngx_rl_zone_field(tops, tables),

    sizeof(ngx_rl_top_t),
    ngx_rl_zone_field(top, entries),
    ngx_rl_zone_field(top, heap),
    ngx_rl_zone_field(top, heads),
    ngx_rl_zone_field(top, others),
    ngx_rl_zone_field(top, mask),
    ngx_rl_zone_field(top, n),
    ngx_rl_zone_field(top, used),
    ngx_rl_zone_field(top, origin),
    ngx_rl_zone_field(top, last),
    ngx_rl_zone_field(top, weight),

    sizeof(ngx_rl_top_entry_t),
    ngx_rl_zone_field(top_entry, hash),
    ngx_rl_zone_field(top_entry, count),
    ngx_rl_zone_field(top_entry, error),
    ngx_rl_zone_field(top_entry, place),
    ngx_rl_zone_field(top_entry, next),
    ngx_rl_zone_field(top_entry, len),
    ngx_rl_zone_field(top_entry, text)
};


uint64_t
ngx_rl_tops_layout(void)
{
    return ngx_rl_hash(ngx_rl_tops_fields, sizeof(ngx_rl_tops_fields));
}


ngx_rl_tops_t *
ngx_rl_tops(ngx_rl_zone_t *zone, ngx_str_t *name, ngx_uint_t n)
{
    size_t             size;
    u_char            *memory;
    ngx_str_t          record;
    ngx_uint_t         i;
    ngx_rl_tops_t     *tops;
    ngx_rl_zone_ask_t  ask;

    record.data = ngx_alloc(name->len + NGX_INT_T_LEN + 1, ngx_cycle->log);
    if (record.data == NULL) {
        return NULL;
    }

    record.len = ngx_sprintf(record.data, "%ui:%V", n, name) - record.data;

    size = ngx_rl_top_size(n);

    ngx_memzero(&ask, sizeof(ngx_rl_zone_ask_t));

    ask.kind = NGX_RL_ZONE_TOP;
    ask.name = &record;
    ask.size = sizeof(ngx_rl_tops_t) + NGX_RL_TOPS * size;

    ngx_rl_zone_lock(zone);

    tops = ngx_rl_zone_record(zone, &ask);

    if (tops && tops->tables[0].n == 0) {
        memory = (u_char *) &tops[1];

        for (i = 0; i < NGX_RL_TOPS; i++) {
            ngx_rl_top_init(&tops->tables[i], memory + i * size, n);
        }
    }

    ngx_rl_zone_unlock(zone);

    ngx_free(record.data);

    return tops;
}


ngx_uint_t
ngx_rl_tops_hit(ngx_rl_zone_t *zone, ngx_rl_tops_t *tops,
    ngx_uint_t tables, uint64_t hash, uint64_t now)
{
    ngx_uint_t  i;

    ngx_rl_tops_lock(zone, tops);

    for (i = 0; i < NGX_RL_TOPS; i++) {
        if (tables >> i & 1 && ngx_rl_top_hit(&tops->tables[i], hash, now)) {
            tables &= ~((ngx_uint_t) 1 << i);
        }
    }

    ngx_rl_tops_unlock(zone, tops);

    return tables;
}


/* another worker may have added it just now */

void
ngx_rl_tops_add(ngx_rl_zone_t *zone, ngx_rl_tops_t *tops,
    ngx_uint_t tables, uint64_t hash, ngx_str_t *text, uint64_t now)
{
    ngx_uint_t     i;
    ngx_rl_top_t  *top;

    ngx_rl_tops_lock(zone, tops);

    for (i = 0; i < NGX_RL_TOPS; i++) {
        top = &tops->tables[i];

        if (tables >> i & 1 && !ngx_rl_top_hit(top, hash, now)) {
            ngx_rl_top_add(top, hash, text->data, text->len, now);
        }
    }

    ngx_rl_tops_unlock(zone, tops);
}


ngx_uint_t
ngx_rl_tops_copy(ngx_rl_zone_t *zone, ngx_rl_tops_t *tops,
    ngx_uint_t table, ngx_rl_top_entry_t *entries, ngx_uint_t n, uint64_t now,
    double *missed)
{
    ngx_rl_top_t  *top;

    top = &tops->tables[table == NGX_RL_TOP_SEEN ? 0 : 1];

    ngx_rl_tops_lock(zone, tops);

    n = ngx_rl_top_copy(top, entries, n, now);
    *missed = ngx_rl_top_missed(top, now);

    ngx_rl_tops_unlock(zone, tops);

    return n;
}


static void
ngx_rl_tops_lock(ngx_rl_zone_t *zone, ngx_rl_tops_t *tops)
{
    ngx_uint_t  i;

    ngx_rl_zone_lock(zone);

    if (tops->changing) {
        for (i = 0; i < NGX_RL_TOPS; i++) {
            ngx_rl_top_empty(&tops->tables[i]);
        }
    }

    tops->changing = 1;
    ngx_memory_barrier();
}


static void
ngx_rl_tops_unlock(ngx_rl_zone_t *zone, ngx_rl_tops_t *tops)
{
    ngx_memory_barrier();
    tops->changing = 0;

    ngx_rl_zone_unlock(zone);
}
