
/*
 * Twice a second one worker of the machine asks for the version and the size of
 * each table, all in one round trip.  Which worker it is does not matter: the
 * first one whose timer fires marks the time in shared memory.  So another one
 * goes on if it dies.  While a worker reads a table, it is also the one that
 * asks about the others.
 *
 * If a table has changed, it is read with HSCAN, page by page.  Each override
 * that is found is marked with the number of the scan.  After the last page,
 * those with another mark have been removed.  The version is the one from
 * before the scan, so a change in the meantime leads to another scan.
 *
 * While Redis does not answer, the copy stays as it is.
 */


#include "store/ngx_rl_sync.h"
#include "core/ngx_rl_clock.h"
#include "core/ngx_rl_core.h"
#include "memory/ngx_rl_local.h"
#include "pure/ngx_rl_hash.h"
#include "pure/ngx_rl_text.h"
#include "store/ngx_rl_query.h"


#define NGX_RL_SYNC_INTERVAL  500       /* ms */
#define NGX_RL_SYNC_SLACK     50        /* ms: timers are not that exact */
#define NGX_RL_SYNC_PAGE      "200"     /* overrides, about */
#define NGX_RL_SYNC_CURSOR    24        /* bytes */
#define NGX_RL_SYNC_EXPIRED   16        /* removed at a time */
#define NGX_RL_SYNC_ERROR     512       /* bytes of an error in the log */

/* ms: a clock that is so much behind was set back */
#define NGX_RL_SYNC_BEHIND    5000

/* more than Redis needs, even for a hash that was once much larger */
#define NGX_RL_SYNC_PAGES(n)  (10000 + ngx_min(n, 1000000))

/*
 * Removes overrides that are still what this machine knew, and whose time is
 * over, by the clock of Redis, too.  A machine that was cut off, or whose clock
 * is wrong, must not remove what others have renewed or still need.  Arguments
 * are key, text and end of each of them.
 */
#define NGX_RL_SYNC_EXPIRE                                                    \
    "local call, n = redis.call, 0 "                                          \
    "local now = tonumber(call('TIME')[1]) "                                  \
    "for i = 1, #ARGV, 3 do "                                                 \
        "if tonumber(ARGV[i + 2]) < now "                                     \
           "and call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] "               \
        "then "                                                               \
            "n = n + call('HDEL', KEYS[1], ARGV[i]) "                         \
        "end "                                                                \
    "end "                                                                    \
    "return n"


/* a table that is being compared with Redis */

typedef struct {
    ngx_rl_table_conf_t  *conf;

    ngx_rl_query_t        version;      /* HGET */
    ngx_rl_query_t        fields;       /* HLEN */
    ngx_rl_query_t        page;         /* HSCAN */
    ngx_rl_query_t        expired;      /* EVAL */

    uint64_t              n;            /* of fields */
    uint64_t              pages;        /* of this scan */
    ngx_uint_t            scan;         /* its number */
    ngx_uint_t            no_room;      /* overrides */
    ngx_uint_t            invalid;
    size_t                version_len;
    u_char                version_text[NGX_RL_OVERRIDE_VERSION];
    unsigned              failed:1;
} ngx_rl_sync_t;


/* of this process */

typedef struct {
    ngx_rl_overrides_t  *overrides;
    ngx_rl_zone_t       *zone;
    ngx_rl_sync_t       *tables;
    ngx_socket_t         ident;         /* see ngx_rl_event_init() */
    ngx_uint_t           n;
    ngx_log_t           *log;
    ngx_event_t          timer;
    ngx_rl_resp_t        resp;
} ngx_rl_syncs_t;


static void ngx_rl_sync_tick(ngx_event_t *ev);
static ngx_uint_t ngx_rl_sync_due(ngx_msec_t now);
static void ngx_rl_sync_sweep(void);
static void ngx_rl_sync_expire(ngx_rl_sync_t *sync,
    ngx_rl_override_copy_t *copies, ngx_uint_t n);
static void ngx_rl_sync_ask(ngx_rl_sync_t *sync);
static void ngx_rl_sync_version(ngx_rl_query_t *query, ngx_rl_reply_t *reply);
static void ngx_rl_sync_fields(ngx_rl_query_t *query, ngx_rl_reply_t *reply);
static void ngx_rl_sync_compare(ngx_rl_sync_t *sync);
static void ngx_rl_sync_page(ngx_rl_sync_t *sync, const char *cursor,
    size_t len);
static void ngx_rl_sync_found(ngx_rl_query_t *query, ngx_rl_reply_t *reply);
static void ngx_rl_sync_scanned(ngx_rl_sync_t *sync);
static ngx_uint_t ngx_rl_sync_refused(ngx_rl_sync_t *sync,
    ngx_rl_query_t *query, ngx_rl_reply_t *reply, const char *name);
static void ngx_rl_sync_ignore(ngx_rl_query_t *query, ngx_rl_reply_t *reply);
static void ngx_rl_sync_reset(ngx_rl_table_conf_t *conf, ngx_str_t *key);
static void ngx_rl_sync_format_version(ngx_rl_resp_t *resp);


static ngx_rl_syncs_t  ngx_rl_syncs;


ngx_int_t
ngx_rl_sync_init(ngx_cycle_t *cycle, ngx_rl_overrides_t *overrides,
    ngx_rl_zone_t *zone, ngx_array_t *tables)
{
    ngx_uint_t             i;
    ngx_rl_sync_t         *sync;
    ngx_rl_table_conf_t  **conf;

    ngx_memzero(&ngx_rl_syncs, sizeof(ngx_rl_syncs_t));

    if (overrides == NULL) {
        return NGX_OK;
    }

    sync = ngx_pcalloc(cycle->pool, (tables->nelts + 1)
                                    * sizeof(ngx_rl_sync_t));
    if (sync == NULL) {
        return NGX_ERROR;
    }

    conf = tables->elts;

    for (i = 0; i < tables->nelts; i++) {
        sync[i].conf = conf[i];

        /* their age counts from now if Redis does not answer at all */

        if (conf[i]->home == NULL) {
            conf[i]->table->synced = 0;

        } else if (conf[i]->table->synced == 0) {
            conf[i]->table->synced = ngx_time();
        }

        sync[i].version.handler = ngx_rl_sync_version;
        sync[i].fields.handler = ngx_rl_sync_fields;
        sync[i].page.handler = ngx_rl_sync_found;
        sync[i].expired.handler = ngx_rl_sync_ignore;

        /* what others have written may have any size */

        sync[i].version.large = 1;
        sync[i].fields.large = 1;
        sync[i].page.large = 1;

        sync[i].version.data = &sync[i];
        sync[i].fields.data = &sync[i];
        sync[i].page.data = &sync[i];

        sync[i].version.background = 1;
        sync[i].fields.background = 1;
        sync[i].page.background = 1;
        sync[i].expired.background = 1;
    }

    ngx_rl_syncs.overrides = overrides;
    ngx_rl_syncs.zone = zone;
    ngx_rl_syncs.tables = sync;
    ngx_rl_syncs.n = tables->nelts;
    ngx_rl_syncs.log = cycle->log;

    ngx_rl_event_init(&ngx_rl_syncs.timer, ngx_rl_syncs_t, ngx_rl_sync_tick,
                      &ngx_rl_syncs, cycle->log);
    ngx_rl_syncs.timer.cancelable = 1;

    /* a new process has not connected yet */

    ngx_add_timer(&ngx_rl_syncs.timer, NGX_RL_SYNC_SLACK);

    return NGX_OK;
}


/* replies that come while the process ends are not waited for */

void
ngx_rl_sync_exit(void)
{
    ngx_uint_t      i;
    ngx_rl_sync_t  *sync;

    if (ngx_rl_syncs.overrides == NULL) {
        return;
    }

    for (i = 0; i < ngx_rl_syncs.n; i++) {
        sync = &ngx_rl_syncs.tables[i];

        ngx_rl_query_cancel(&sync->version);
        ngx_rl_query_cancel(&sync->fields);
        ngx_rl_query_cancel(&sync->page);
        ngx_rl_query_cancel(&sync->expired);
    }

    ngx_rl_timer_end(&ngx_rl_syncs.timer);
    ngx_rl_resp_close(&ngx_rl_syncs.resp);
}


ngx_rl_server_t *
ngx_rl_sync_home(ngx_rl_table_conf_t *conf)
{
    ngx_uint_t  part;

    return ngx_rl_route_find(conf->home, (char *) conf->key.data,
                             conf->key.len, &part);
}


static void
ngx_rl_sync_tick(ngx_event_t *ev)
{
    ngx_uint_t  i;

    if (ngx_exiting) {
        return;
    }

    ngx_add_timer(ev, NGX_RL_SYNC_INTERVAL);

    if (!ngx_rl_sync_due(ngx_current_msec)) {
        return;
    }

    ngx_rl_sync_sweep();

    for (i = 0; i < ngx_rl_syncs.n; i++) {
        ngx_rl_sync_ask(&ngx_rl_syncs.tables[i]);
    }
}


/* whether it is the turn of this process */

static ngx_uint_t
ngx_rl_sync_due(ngx_msec_t now)
{
    ngx_uint_t         i;
    ngx_msec_int_t     since;
    ngx_atomic_uint_t  last;

    for (i = 0; i < ngx_rl_syncs.n; i++) {
        if (ngx_rl_syncs.tables[i].page.pending) {
            ngx_rl_syncs.overrides->sh->polled = now;
            return 1;
        }
    }

    last = ngx_rl_syncs.overrides->sh->polled;

    /* the clock of the process that asked last may be slightly ahead */

    since = (ngx_msec_int_t) (now - last);

    return (since >= NGX_RL_SYNC_INTERVAL - NGX_RL_SYNC_SLACK
            || since < -NGX_RL_SYNC_BEHIND)
           && ngx_atomic_cmp_set(&ngx_rl_syncs.overrides->sh->polled,
                                 last, now);
}


/* overrides that have ended are also removed from Redis */

static void
ngx_rl_sync_sweep(void)
{
    ngx_uint_t  i, n;

    static ngx_rl_override_copy_t  copies[NGX_RL_SYNC_EXPIRED];

    n = ngx_rl_overrides_sweep(ngx_rl_syncs.overrides, copies,
                               NGX_RL_SYNC_EXPIRED);

    for (i = 0; n && i < ngx_rl_syncs.n; i++) {
        ngx_rl_sync_expire(&ngx_rl_syncs.tables[i], copies, n);
    }
}


static void
ngx_rl_sync_expire(ngx_rl_sync_t *sync, ngx_rl_override_copy_t *copies,
    ngx_uint_t n)
{
    ngx_uint_t      i, found;
    ngx_rl_resp_t  *resp;

    if (sync->conf->home == NULL || sync->expired.pending) {
        return;
    }

    resp = &ngx_rl_syncs.resp;
    found = 0;

    ngx_rl_resp_begin(resp);
    ngx_rl_resp_text(resp, "EVAL");
    ngx_rl_resp_text(resp, NGX_RL_SYNC_EXPIRE);
    ngx_rl_resp_number(resp, 1);
    ngx_rl_resp_word(resp, sync->conf->key.data, sync->conf->key.len);

    for (i = 0; i < n; i++) {
        if (copies[i].table == sync->conf->table) {
            ngx_rl_resp_word(resp, copies[i].key, copies[i].key_len);
            ngx_rl_resp_word(resp, copies[i].text, copies[i].text_len);
            ngx_rl_resp_number(resp, copies[i].values.until);
            found++;
        }
    }

    if (found) {
        (void) ngx_rl_query_send(&sync->expired, ngx_rl_sync_home(sync->conf),
                                 resp, sync->conf->timeout);
    }
}


static void
ngx_rl_sync_ask(ngx_rl_sync_t *sync)
{
    ngx_rl_resp_t    *resp;
    ngx_rl_server_t  *server;

    if (sync->conf->home == NULL || sync->version.pending
        || sync->fields.pending || sync->page.pending)
    {
        return;
    }

    resp = &ngx_rl_syncs.resp;
    server = ngx_rl_sync_home(sync->conf);

    sync->failed = 0;

    ngx_rl_resp_begin(resp);
    ngx_rl_resp_text(resp, "HGET");
    ngx_rl_resp_word(resp, sync->conf->key.data, sync->conf->key.len);
    ngx_rl_resp_word(resp, "", 0);

    if (ngx_rl_query_send(&sync->version, server, resp, sync->conf->timeout)
        != NGX_RL_OK)
    {
        return;
    }

    ngx_rl_resp_begin(resp);
    ngx_rl_resp_text(resp, "HLEN");
    ngx_rl_resp_word(resp, sync->conf->key.data, sync->conf->key.len);

    if (ngx_rl_query_send(&sync->fields, server, resp, sync->conf->timeout)
        != NGX_RL_OK)
    {
        sync->failed = 1;
    }
}


static void
ngx_rl_sync_version(ngx_rl_query_t *query, ngx_rl_reply_t *reply)
{
    ngx_rl_sync_t  *sync = query->data;

    sync->version_len = 0;

    if (ngx_rl_sync_refused(sync, query, reply, "HGET")) {
        sync->failed = 1;

    } else if (reply->type == REDIS_REPLY_STRING
               && reply->len <= NGX_RL_OVERRIDE_VERSION)
    {
        sync->version_len = reply->len;
        ngx_memcpy(sync->version_text, reply->str, reply->len);

    } else if (reply->type == REDIS_REPLY_STRING) {
        sync->version_len = ngx_sprintf(sync->version_text, "%016xL",
                                        ngx_rl_hash(reply->str, reply->len))
                            - sync->version_text;
    }

    ngx_rl_sync_compare(sync);
}


static void
ngx_rl_sync_fields(ngx_rl_query_t *query, ngx_rl_reply_t *reply)
{
    ngx_rl_sync_t  *sync = query->data;

    if (ngx_rl_sync_refused(sync, query, reply, "HLEN")
        || reply->type != REDIS_REPLY_INTEGER)
    {
        sync->failed = 1;

    } else {
        sync->n = reply->integer;
    }

    ngx_rl_sync_compare(sync);
}


static void
ngx_rl_sync_compare(ngx_rl_sync_t *sync)
{
    ngx_rl_table_t  *table;

    if (sync->version.pending || sync->fields.pending || sync->failed) {
        return;
    }

    table = sync->conf->table;

    if (sync->n == table->fields && sync->version_len == table->version_len
        && ngx_memcmp(sync->version_text, table->version, table->version_len)
           == 0)
    {
        table->synced = ngx_time();
        return;
    }

    sync->scan = ngx_rl_overrides_scan(ngx_rl_syncs.overrides);
    sync->pages = 0;
    sync->no_room = 0;
    sync->invalid = 0;

    ngx_rl_sync_page(sync, "0", 1);
}


static void
ngx_rl_sync_page(ngx_rl_sync_t *sync, const char *cursor, size_t len)
{
    ngx_rl_resp_t  *resp;

    resp = &ngx_rl_syncs.resp;

    ngx_rl_resp_begin(resp);
    ngx_rl_resp_text(resp, "HSCAN");
    ngx_rl_resp_word(resp, sync->conf->key.data, sync->conf->key.len);
    ngx_rl_resp_word(resp, cursor, len);
    ngx_rl_resp_text(resp, "COUNT");
    ngx_rl_resp_text(resp, NGX_RL_SYNC_PAGE);

    if (ngx_rl_query_send(&sync->page, ngx_rl_sync_home(sync->conf), resp,
                          sync->conf->timeout)
        == NGX_RL_OK)
    {
        /* no other worker begins before this one is done */

        ngx_rl_syncs.overrides->sh->polled = ngx_current_msec;
    }
}


static void
ngx_rl_sync_found(ngx_rl_query_t *query, ngx_rl_reply_t *reply)
{
    ngx_rl_sync_t  *sync = query->data;

    size_t            i, len;
    u_char            cursor[NGX_RL_SYNC_CURSOR];
    ngx_str_t         key, text;
    ngx_rl_reply_t  **element;

    if (ngx_rl_sync_refused(sync, query, reply, "HSCAN")
        || reply->type != REDIS_REPLY_ARRAY || reply->elements != 2
        || reply->element[0]->type != REDIS_REPLY_STRING
        || reply->element[0]->len > NGX_RL_SYNC_CURSOR
        || reply->element[1]->type != REDIS_REPLY_ARRAY
        || reply->element[1]->elements % 2)
    {
        return;
    }

    element = reply->element[1]->element;

    for (i = 0; i < reply->element[1]->elements; i += 2) {

        if (element[i]->type != REDIS_REPLY_STRING
            || element[i + 1]->type != REDIS_REPLY_STRING)
        {
            return;
        }

        key.data = (u_char *) element[i]->str;
        key.len = element[i]->len;
        text.data = (u_char *) element[i + 1]->str;
        text.len = element[i + 1]->len;

        if (key.len == 0) {
            continue;
        }

        switch (ngx_rl_sync_apply(sync->conf, &key, &text, sync->scan)) {

        case NGX_DECLINED:
            sync->no_room++;
            break;

        case NGX_ERROR:
            sync->invalid++;
            break;

        default: /* NGX_OK */
            break;
        }
    }

    len = reply->element[0]->len;
    ngx_memcpy(cursor, reply->element[0]->str, len);

    if (len == 1 && cursor[0] == '0') {
        ngx_rl_sync_scanned(sync);
        return;
    }

    if (++sync->pages < NGX_RL_SYNC_PAGES(sync->n)) {
        ngx_rl_sync_page(sync, (char *) cursor, len);
        return;
    }

    if (ngx_rl_throttle(&sync->conf->table->log, 1, NULL)) {
        ngx_log_error(NGX_LOG_ERR, ngx_rl_syncs.log, 0,
                      "ratelimit: overrides of limit \"%V\" cannot be read: "
                      "HSCAN of \"%V\" has not ended after %uL pages",
                      sync->conf->limit, &sync->conf->key, sync->pages);
    }
}


static void
ngx_rl_sync_scanned(ngx_rl_sync_t *sync)
{
    ngx_str_t        version;
    ngx_rl_table_t  *table;

    table = sync->conf->table;

    version.data = sync->version_text;
    version.len = sync->version_len;

    ngx_rl_overrides_scanned(ngx_rl_syncs.overrides, table, sync->scan,
                             sync->n, &version);

    table->invalid = sync->invalid;
    table->synced = ngx_time();

    if (sync->no_room && ngx_rl_throttle(&table->log, 1, NULL)) {
        ngx_log_error(NGX_LOG_ERR, ngx_rl_syncs.log, 0,
                      "ratelimit: %ui overrides of limit \"%V\" are not "
                      "applied: \"ratelimit_overrides\" of %uik is full, make "
                      "it larger", sync->no_room, sync->conf->limit,
                      (ngx_uint_t) (ngx_rl_syncs.overrides->shm_zone->shm.size
                                    / 1024));
    }

    if (sync->invalid && ngx_rl_throttle(&table->log, 1, NULL)) {
        ngx_log_error(NGX_LOG_ERR, ngx_rl_syncs.log, 0,
                      "ratelimit: %ui overrides of limit \"%V\" are not "
                      "applied: invalid text in \"%V\" in redis",
                      sync->invalid, sync->conf->limit, &sync->conf->key);
    }
}


/* whether there is nothing to read; an error reply is logged */

static ngx_uint_t
ngx_rl_sync_refused(ngx_rl_sync_t *sync, ngx_rl_query_t *query,
    ngx_rl_reply_t *reply, const char *name)
{
    u_char  text[NGX_RL_SYNC_ERROR];
    size_t  len;

    if (query->failure == NGX_RL_OK) {
        return 0;
    }

    if (reply && ngx_rl_throttle(&sync->conf->table->log, 1, NULL)) {
        len = ngx_rl_escape(text, reply->str,
                            ngx_min(reply->len,
                                    NGX_RL_SYNC_ERROR
                                    / ngx_rl_escape_size(1)));

        ngx_log_error(NGX_LOG_ERR, ngx_rl_syncs.log, 0,
                      "ratelimit: overrides of limit \"%V\" cannot be read: "
                      "redis %V refused %s of \"%V\": \"%*s\"",
                      sync->conf->limit,
                      &ngx_rl_sync_home(sync->conf)->conf->label, name,
                      &sync->conf->key, len, text);
    }

    return 1;
}


static void
ngx_rl_sync_ignore(ngx_rl_query_t *query, ngx_rl_reply_t *reply)
{
    /* what was not removed is found by the next scan */
}


ngx_int_t
ngx_rl_sync_apply(ngx_rl_table_conf_t *conf, ngx_str_t *key, ngx_str_t *text,
    ngx_uint_t scan)
{
    ngx_int_t   rc;
    ngx_uint_t  reset;

    rc = ngx_rl_overrides_put(ngx_rl_syncs.overrides, conf->table, key, text,
                              scan, &reset);

    if (reset) {
        ngx_rl_sync_reset(conf, key);
    }

    return rc;
}


/* whatever this machine has granted itself of the key */

static void
ngx_rl_sync_reset(ngx_rl_table_conf_t *conf, ngx_str_t *key)
{
    u_char      *name, *p;
    ngx_str_t   *prefix;
    ngx_uint_t   i;

    prefix = conf->prefixes.elts;

    for (i = 0; i < conf->prefixes.nelts; i++) {

        name = ngx_alloc(prefix[i].len + key->len + 1, ngx_rl_syncs.log);
        if (name == NULL) {
            return;
        }

        p = ngx_cpymem(name, prefix[i].data, prefix[i].len);
        p = ngx_cpymem(p, key->data, key->len);
        *p++ = '}';

        ngx_rl_local_reset(ngx_rl_syncs.zone, (char *) name, p - name);

        ngx_free(name);
    }
}


void
ngx_rl_sync_format_set(ngx_rl_resp_t *resp, ngx_rl_table_conf_t *conf,
    ngx_str_t *key, ngx_str_t *text)
{
    ngx_rl_resp_begin(resp);
    ngx_rl_resp_text(resp, "HSET");
    ngx_rl_resp_word(resp, conf->key.data, conf->key.len);
    ngx_rl_resp_word(resp, key->data, key->len);
    ngx_rl_resp_word(resp, text->data, text->len);
    ngx_rl_sync_format_version(resp);
}


void
ngx_rl_sync_format_remove(ngx_rl_resp_t *resp, ngx_rl_table_conf_t *conf,
    ngx_str_t *key)
{
    ngx_rl_resp_begin(resp);
    ngx_rl_resp_text(resp, "HDEL");
    ngx_rl_resp_word(resp, conf->key.data, conf->key.len);
    ngx_rl_resp_word(resp, key->data, key->len);
}


void
ngx_rl_sync_format_touch(ngx_rl_resp_t *resp, ngx_rl_table_conf_t *conf)
{
    ngx_rl_resp_begin(resp);
    ngx_rl_resp_text(resp, "HSET");
    ngx_rl_resp_word(resp, conf->key.data, conf->key.len);
    ngx_rl_sync_format_version(resp);
}


/* different on each machine and each time */

static void
ngx_rl_sync_format_version(ngx_rl_resp_t *resp)
{
    u_char   text[NGX_RL_OVERRIDE_VERSION], *p;

    p = ngx_sprintf(text, "%uL-%xD", ngx_rl_clock_wall_us(),
                    (uint32_t) ngx_random() ^ (uint32_t) ngx_pid);

    ngx_rl_resp_word(resp, "", 0);
    ngx_rl_resp_word(resp, text, p - text);
}
