
/*
 * Decides whether a server can be asked.
 *
 * The breaker decides for all workers.  Its state is in shared memory; every
 * call reads it without a lock, and changes happen under the lock of the zone.
 * While the breaker is open, no call is sent.  The server is tried in one of
 * two ways:
 *
 *   - If there is no connection, a new one is made.  Its handshake ends with a
 *     script that writes, which fails if the server is loading, read-only or
 *     out of memory.
 *   - If there is a connection, the same script is sent as a probe.
 *
 * One worker at a time does this, in intervals that double from 50 ms up to
 * the probe interval.  If it succeeds, the breaker closes for all workers.
 * Other workers without a connection connect as soon as they have a call to
 * send.
 *
 * While the breaker is closed, each worker reconnects by itself, after pauses
 * of the same kind.  A failure only counts against the server if a command was
 * sent, or if no worker has a connection.
 *
 * The log has one line for each change of state, up to ten a minute; one line
 * a minute for each class of failure; and one line a minute while the breaker
 * is open.  All workers count together.  An outage lasts while the breaker is
 * open.  Its beginning and its end are logged as errors, the level that most
 * people run, and have ten lines a minute of their own.
 */


#include "topology/ngx_rl_server.h"
#include "core/ngx_rl_core.h"
#include "redis/ngx_rl_address.h"
#include "redis/ngx_rl_handshake.h"
#include "pure/ngx_rl_backoff.h"
#include "pure/ngx_rl_text.h"


#define NGX_RL_SERVER_TEXT     160        /* of an error, logged */
#define NGX_RL_SERVER_GRACE    1000       /* ms, for a prober */
#define NGX_RL_SERVER_LATER    200        /* ms, for others */

/* for what follows a line about a change */
#define NGX_RL_SERVER_MORE                                                    \
    (sizeof(", unlogged changes before this one: ") + NGX_ATOMIC_T_LEN)


static ngx_rl_connection_t *ngx_rl_server_connection(
    ngx_rl_server_t *server, ngx_rl_record_t *record);
static void ngx_rl_server_log(ngx_rl_server_t *server,
    ngx_rl_failure_e failure, ngx_rl_reply_t *reply);
static ngx_uint_t ngx_rl_server_others(ngx_rl_server_t *server);
static void ngx_rl_server_failure(ngx_rl_server_t *server,
    ngx_rl_failure_e failure, ngx_uint_t counts, ngx_uint_t probe);
static void ngx_rl_server_success(ngx_rl_server_t *server, ngx_uint_t probe);
static void ngx_rl_server_schedule(ngx_rl_server_t *server);
static void ngx_rl_server_probe_handler(ngx_event_t *ev);
static ngx_int_t ngx_rl_server_probed(void *data,
    const ngx_rl_answer_t *answer);
static void ngx_rl_server_changed(ngx_rl_server_t *server,
    ngx_rl_breaker_e was, ngx_rl_breaker_e state, ngx_rl_failure_e failure);
static void ngx_rl_server_settled(ngx_rl_server_t *server);


ngx_rl_server_t *
ngx_rl_server_create(ngx_pool_t *pool, ngx_log_t *log,
    ngx_rl_server_conf_t *conf, ngx_rl_zone_t *zone,
    ngx_rl_stats_t *stats, const ngx_rl_events_t *events, void *route)
{
    ngx_rl_server_t  *server;

    server = ngx_pcalloc(pool, sizeof(ngx_rl_server_t));
    if (server == NULL) {
        return NULL;
    }

    server->conf = conf;
    server->zone = zone;
    server->record = conf->record;
    server->stats = stats;
    server->events = events;
    server->route = route;
    server->who = (uint64_t) ngx_pid << 16 | conf->index;
    server->log = log;

    ngx_queue_init(&server->queue.entries);
    ngx_queue_init(&server->queue.refunds);

    ngx_rl_event_init(&server->queue.flush, ngx_rl_server_t, NULL, server, log);

    ngx_rl_event_init(&server->probe, ngx_rl_server_t,
                      ngx_rl_server_probe_handler, server, log);
    server->probe.cancelable = 1;

    server->connection = ngx_rl_server_connection(server, server->record);

    return server->connection ? server : NULL;
}


static ngx_rl_connection_t *
ngx_rl_server_connection(ngx_rl_server_t *server, ngx_rl_record_t *record)
{
    return ngx_rl_connection_create(server->log, &server->conf->redis,
                                    server->events, server, &record->traffic,
                                    ngx_rl_record_gauges(record));
}


void
ngx_rl_server_close_idle(ngx_rl_server_t *server)
{
    ngx_rl_connection_close_idle(server->connection);

    if (!ngx_rl_connection_ready(server->connection)) {
        server->up = 0;
    }
}


ngx_int_t
ngx_rl_server_reuse(ngx_rl_server_t *server)
{
    ngx_rl_connection_t  *connection;

    connection = ngx_rl_server_connection(server, server->conf->record);
    if (connection == NULL) {
        return NGX_ERROR;
    }

    ngx_rl_timer_end(&server->probe);

    ngx_rl_connection_retire(server->connection, connection);

    server->connection = connection;
    server->record = server->conf->record;
    server->attempt = 0;
    server->closed = server->record->breaker.closed;
    server->connected = 0;
    server->up = 0;

    return NGX_OK;
}


ngx_int_t
ngx_rl_server_move(ngx_rl_server_t *server,
    ngx_addr_t *addrs, ngx_uint_t n, ngx_uint_t drop)
{
    ngx_int_t             rc;
    ngx_rl_connection_t  *connection;

    rc = ngx_rl_connection_move(server->connection, addrs, n, drop);

    if (rc != NGX_DECLINED) {

        /*
         * A dropped connection calls no handler, and may be reconnecting
         * already.
         */

        if (!ngx_rl_connection_ready(server->connection)) {
            server->up = 0;
        }

        if (rc == NGX_OK) {
            server->attempt = 0;
        }

        return rc;
    }

    connection = ngx_rl_server_connection(server, server->record);
    if (connection == NULL) {
        return NGX_ERROR;
    }

    if (ngx_rl_connection_move(connection, addrs, n, 0) != NGX_OK) {
        ngx_rl_connection_exit(connection);
        return NGX_ERROR;
    }

    /*
     * Events of the old connection must not be taken for those of the new one.
     */

    ngx_rl_connection_retire(server->connection, connection);

    server->connection = connection;
    server->attempt = 0;
    server->up = 0;

    return NGX_OK;
}


ngx_uint_t
ngx_rl_server_renamed(void *data, ngx_addr_t *addrs, ngx_uint_t n)
{
    ngx_rl_server_t  *server = data;

    ngx_atomic_t  *events;

    events = server->record->counters.events;

    if (n == 0) {
        ngx_rl_count(events[NGX_RL_EVENT_RESOLVE_FAILED]);
        return ngx_rl_server_may_log(server, NGX_RL_CONFIG);
    }

    ngx_rl_count(events[NGX_RL_EVENT_RESOLVED]);

    /* calls under way are answered by the server that they were sent to */

    (void) ngx_rl_server_move(server, addrs, n, 0);

    return ngx_rl_record_news(server->zone, server->record,
                              ngx_rl_address_hash(addrs, n));
}


void
ngx_rl_server_exit(ngx_rl_server_t *server)
{
    ngx_rl_timer_end(&server->probe);

    ngx_rl_connection_exit(server->connection);
}


ngx_rl_failure_e
ngx_rl_server_check(ngx_rl_server_t *server)
{
    ngx_rl_record_t   *record;
    ngx_rl_breaker_t  *breaker;

    record = server->record;
    breaker = &record->breaker;

    if (breaker->state == NGX_RL_CIRCUIT_OPEN) {

        /* an outage is logged when it begins, and then once a minute */

        if (ngx_rl_throttle(&record->log.open, 1, NULL)) {
            ngx_log_error(NGX_LOG_ERR, server->log, 0,
                          "ratelimit: redis %V is still unavailable after %uA "
                          "s (%s)", &server->conf->label,
                          ngx_current_msec / 1000 - record->changed,
                          ngx_rl_failure_names[record->failure]);
        }

        ngx_rl_server_schedule(server);
        ngx_rl_connection_schedule(server->connection);

        return NGX_RL_CIRCUIT;
    }

    if (server->closed != breaker->closed) {
        server->closed = breaker->closed;
        server->attempt = 0;

        ngx_rl_connection_wake(server->connection);
    }

    return ngx_rl_connection_check(server->connection);
}


ngx_rl_failure_e
ngx_rl_server_send(ngx_rl_server_t *server,
    ngx_str_t *command, ngx_msec_t timeout,
    ngx_rl_pending_pt handler, void *data, ngx_rl_pending_t **pending)
{
    ngx_rl_failure_e  failure;

    failure = ngx_rl_connection_send(server->connection, command, timeout,
                                     handler, data, pending);

    if (failure == NGX_RL_OK) {
        ngx_rl_count(server->record->counters.commands);
    }

    return failure;
}


ngx_uint_t
ngx_rl_server_usable(ngx_rl_server_t *server)
{
    return server->record->breaker.state != NGX_RL_CIRCUIT_OPEN
           && ngx_rl_connection_ready(server->connection);
}


ngx_rl_failure_e
ngx_rl_server_forward(ngx_rl_server_t *server,
    ngx_rl_pending_t *pending, ngx_uint_t asking)
{
    ngx_rl_failure_e  failure;

    failure = ngx_rl_server_check(server);

    if (failure == NGX_RL_OK) {
        failure = ngx_rl_pending_forward(pending, server->connection, asking);
    }

    if (failure == NGX_RL_OK) {
        pending->hops++;
        ngx_rl_count(server->record->counters.commands);
    }

    return failure;
}


void
ngx_rl_server_answered(ngx_rl_server_t *server, uint64_t us)
{
    ngx_rl_stats_latency(&server->record->counters.latency, us);

    if (server->record->breaker.state == NGX_RL_FALLBACK) {
        ngx_rl_server_success(server, 0);

    } else if (server->record->breaker.state == NGX_RL_DISTRIBUTED
               && (server->record->log.changes.dropped
                   || server->record->log.outages.dropped))
    {
        ngx_rl_server_settled(server);
    }
}


void
ngx_rl_server_failed(void *owner, const ngx_rl_answer_t *answer)
{
    ngx_rl_server_t  *server = owner;

    ngx_uint_t  counts;

    ngx_rl_server_log(server, answer->failure, answer->reply);

    /*
     * An invalid reply ends the connection, and that is counted as the
     * failure.
     */

    counts = !answer->counted
             && !(answer->failure == NGX_RL_PROTOCOL && answer->reply);

    ngx_rl_server_failure(server, answer->failure, counts, 0);
}


void
ngx_rl_server_unsent(ngx_rl_server_t *server, ngx_rl_failure_e failure)
{
    if (failure == NGX_RL_CIRCUIT) {
        return;
    }

    ngx_rl_server_log(server, failure, NULL);
    ngx_rl_server_failure(server, failure, 0, 0);
}


/* the lost connection itself was logged already */

static void
ngx_rl_server_log(ngx_rl_server_t *server,
    ngx_rl_failure_e failure, ngx_rl_reply_t *reply)
{
    size_t  len;
    u_char  text[ngx_rl_escape_size(NGX_RL_SERVER_TEXT)];

    if (failure == NGX_RL_REFUSED
        || failure == NGX_RL_CLOSED
        || !ngx_rl_server_may_log(server, failure))
    {
        return;
    }

    if (failure == NGX_RL_MOVED && !server->conf->redis.node) {
        ngx_log_error(NGX_LOG_ERR, server->log, 0,
                      "redis %V is a node of a cluster: write "
                      "\"ratelimit_shards cluster ...\"", &server->conf->label);
        return;
    }

    if (reply && reply->type == REDIS_REPLY_ERROR) {
        len = ngx_rl_escape(text, reply->str, ngx_min(reply->len,
                                                      NGX_RL_SERVER_TEXT));

        ngx_log_error(NGX_LOG_ERR, server->log, 0, "redis %V answered \"%*s\"",
                      &server->conf->label, len, text);
        return;
    }

    ngx_log_error(NGX_LOG_ERR, server->log, 0, "no answer from redis %V: %s",
                  &server->conf->label, ngx_rl_failure_names[failure]);
}


ngx_msec_t
ngx_rl_server_may_connect(void *owner)
{
    ngx_rl_server_t  *server = owner;

    uint64_t  wait, now;

    if (server->record->breaker.state != NGX_RL_CIRCUIT_OPEN) {
        return 0;
    }

    now = ngx_current_msec;

    /* workers with a connection probe first */

    if (!server->up && ngx_rl_server_others(server)) {
        now -= NGX_RL_SERVER_LATER;
    }

    ngx_rl_zone_lock(server->zone);

    wait = ngx_rl_breaker_probe(&server->record->breaker, now,
                                server->conf->redis.connect_timeout
                                + NGX_RL_SERVER_GRACE, server->who);

    ngx_rl_zone_unlock(server->zone);

    return (ngx_msec_t) wait;
}


void
ngx_rl_server_ready(void *owner)
{
    ngx_rl_server_t  *server = owner;

    if (server->connected) {
        ngx_rl_count(server->record->counters.reconnects);
    }

    server->connected = 1;
    server->up = 1;

    /* sentinels report where a master is */

    if (server->conf->kind != NGX_RL_SENTINEL) {
        (void) ngx_rl_record_found(server->zone, server->record,
                         &ngx_rl_connection_addr(server->connection)->name);
    }

    if (server->record->breaker.state != NGX_RL_DISTRIBUTED) {
        ngx_rl_server_success(server, 1);
    }

    server->closed = server->record->breaker.closed;
}


ngx_msec_t
ngx_rl_server_closed(void *owner, ngx_rl_failure_e failure, ngx_uint_t stable)
{
    ngx_rl_server_t  *server = owner;

    ngx_rl_breaker_t  *breaker;

    breaker = &server->record->breaker;

    if (stable) {
        server->attempt = 0;
    }

    /*
     * A failed connection says nothing about the server while other workers
     * are connected, as with too many clients.
     */

    if (failure != NGX_RL_OK) {
        ngx_rl_server_failure(server, failure,
                              server->up || !ngx_rl_server_others(server), 1);
    }

    server->up = 0;

    if (breaker->state == NGX_RL_CIRCUIT_OPEN) {
        return (breaker->until > ngx_current_msec)
               ? (ngx_msec_t) (breaker->until - ngx_current_msec) : 1;
    }

    /*
     * No pause if the connection worked until now: the server may be back
     * already.
     */

    if (stable && (failure == NGX_RL_OK || failure == NGX_RL_CLOSED)) {
        return 0;
    }

    return ngx_rl_backoff(server->attempt++, server->conf->breaker.probe,
                          (uint32_t) ngx_random());
}


/*
 * "counts": the failure says something about the server; "probe": it may end a
 * probe.  A failed command counts once, however many calls it carried, and so
 * does a lost connection.
 */

static void
ngx_rl_server_failure(ngx_rl_server_t *server,
    ngx_rl_failure_e failure, ngx_uint_t counts, ngx_uint_t probe)
{
    uint32_t           luck;
    ngx_uint_t         breaks, changed;
    ngx_rl_breaker_e   was, state;
    ngx_rl_breaker_t  *breaker;

    ngx_rl_count(server->record->counters.failures[failure]);

    if (server->events->failed) {
        server->events->failed(server, failure);
    }

    /* any other error concerns a key, unless a probe gets it */

    breaks = counts
             && (ngx_rl_failure_breaks(failure)
                 || (probe && failure == NGX_RL_ERROR));

    /* a waiting call was not sent, see ngx_rl_server_closed() */

    if (failure == NGX_RL_TIMEOUT && !probe
        && !ngx_rl_connection_ready(server->connection)
        && ngx_rl_server_others(server))
    {
        breaks = 0;
    }

    /*
     * A node is healthy even if the slot belongs to another node, or to none.
     */

    if (failure == NGX_RL_MOVED && server->conf->redis.node && !probe) {
        breaks = 0;
    }

    if (!breaks && !probe) {
        return;
    }

    breaker = &server->record->breaker;
    luck = (uint32_t) ngx_random();
    changed = 0;

    ngx_rl_zone_lock(server->zone);

    was = breaker->state;

    if (breaks) {
        changed = ngx_rl_breaker_failure(breaker, &server->conf->breaker,
                                         ngx_current_msec, luck);
    }

    if (probe && !changed) {
        ngx_rl_breaker_probed(breaker, &server->conf->breaker,
                              ngx_current_msec, luck, server->who);
    }

    state = breaker->state;

    ngx_rl_zone_unlock(server->zone);

    if (breaks) {
        server->record->failure = failure;
    }

    if (changed) {
        ngx_rl_server_changed(server, was, state, failure);
    }

    if (state == NGX_RL_CIRCUIT_OPEN) {
        ngx_rl_server_schedule(server);
    }
}


/* the success of a probe or a handshake, or of a call */

static void
ngx_rl_server_success(ngx_rl_server_t *server, ngx_uint_t probe)
{
    ngx_uint_t         changed;
    ngx_rl_breaker_e   was;
    ngx_rl_breaker_t  *breaker;

    breaker = &server->record->breaker;

    ngx_rl_zone_lock(server->zone);

    was = breaker->state;

    changed = probe
              ? ngx_rl_breaker_close(breaker, ngx_current_msec)
              : ngx_rl_breaker_success(breaker);

    ngx_rl_zone_unlock(server->zone);

    if (changed) {
        ngx_rl_server_changed(server, was, NGX_RL_DISTRIBUTED, NGX_RL_OK);
    }
}


/* probes an existing connection; a new connection is a probe by itself */

static void
ngx_rl_server_schedule(ngx_rl_server_t *server)
{
    if (!server->probe.timer_set && !ngx_exiting
        && ngx_rl_connection_ready(server->connection))
    {
        ngx_add_timer(&server->probe, NGX_RL_BACKOFF_MIN);
    }
}


static void
ngx_rl_server_probe_handler(ngx_event_t *ev)
{
    ngx_msec_t         wait;
    ngx_rl_server_t   *server;
    ngx_rl_pending_t  *pending;
    ngx_rl_failure_e   failure;

    server = ev->data;

    if (server->record->breaker.state != NGX_RL_CIRCUIT_OPEN
        || !ngx_rl_connection_ready(server->connection) || ngx_exiting)
    {
        return;
    }

    /* another server may use the same address by now */

    if (server->record->failure == NGX_RL_READONLY) {
        ngx_rl_connection_close_idle(server->connection);
        ngx_rl_connection_schedule(server->connection);

        if (!ngx_rl_connection_ready(server->connection)) {
            return;
        }
    }

    wait = ngx_rl_server_may_connect(server);

    if (wait) {
        ngx_add_timer(ev, wait);
        return;
    }

    /* as long as a call may take: a slower server cannot be used */

    failure = ngx_rl_connection_send(server->connection, &server->conf->probe,
                                     server->conf->timeout,
                                     ngx_rl_server_probed, server, &pending);

    if (failure == NGX_RL_OK) {
        ngx_rl_pending_background(pending);
        ngx_rl_pending_no_redirect(pending);

    } else {
        ngx_rl_server_log(server, failure, NULL);
        ngx_rl_server_failure(server, failure, 1, 1);
    }
}


static ngx_int_t
ngx_rl_server_probed(void *data, const ngx_rl_answer_t *answer)
{
    ngx_rl_server_t  *server = data;

    ngx_rl_failure_e  failure;

    failure = answer->failure;

    if (failure == NGX_RL_OK && answer->reply->type == REDIS_REPLY_ERROR
        && !(server->conf->redis.node
             && ngx_rl_handshake_moved_ok(answer->reply)))
    {
        failure = ngx_rl_failure(answer->reply->str, answer->reply->len);
    }

    if (failure == NGX_RL_OK) {
        ngx_rl_server_success(server, 1);
        server->closed = server->record->breaker.closed;

    } else {
        ngx_rl_server_log(server, failure, answer->reply);
        ngx_rl_server_failure(server, failure, !answer->counted,
                              !answer->counted);
    }

    return NGX_OK;
}


/* whether another worker is connected while this one is not */

static ngx_uint_t
ngx_rl_server_others(ngx_rl_server_t *server)
{
    ngx_rl_gauges_t  sum;

    ngx_rl_record_sum(server->stats, server->record, &sum);

    return sum.connections > 0;
}


ngx_uint_t
ngx_rl_server_may_log(void *owner, ngx_rl_failure_e failure)
{
    ngx_rl_server_t  *server = owner;

    return ngx_rl_record_may_log(server->record, failure);
}


/*
 * Logs a change of the breaker.  An outage (an open breaker) has lines of its
 * own.  A line says how many lines were left out before it.
 */

static void
ngx_rl_server_changed(ngx_rl_server_t *server, ngx_rl_breaker_e was,
    ngx_rl_breaker_e state, ngx_rl_failure_e failure)
{
    u_char             more[NGX_RL_SERVER_MORE];
    ngx_str_t         *label;
    ngx_uint_t         i, outage;
    ngx_rl_record_t   *record;
    ngx_atomic_uint_t  dropped, before;

    record = server->record;
    label = &server->conf->label;
    before = record->changed;
    outage = (was == NGX_RL_CIRCUIT_OPEN || state == NGX_RL_CIRCUIT_OPEN);

    ngx_rl_count(record->counters.transitions[state]);

    record->changed = ngx_current_msec / 1000;
    ngx_rl_throttle_start(&record->log.open);

    if (!ngx_rl_throttle(outage ? &record->log.outages : &record->log.changes,
                         NGX_RL_RECORD_CHANGES, &dropped))
    {
        return;
    }

    *more = '\0';

    if (dropped) {
        ngx_sprintf(more, ", unlogged changes before this one: %uA%Z", dropped);
    }

    if (state == NGX_RL_CIRCUIT_OPEN) {
        ngx_log_error(NGX_LOG_ERR, server->log, 0,
                      "ratelimit: redis %V is unavailable (%s), %s until it "
                      "answers%s", label, ngx_rl_failure_names[failure],
                      server->conf->outage, more);

    } else if (state != NGX_RL_DISTRIBUTED) {
        ngx_log_error(NGX_LOG_NOTICE, server->log, 0,
                      "ratelimit shard %V is in state %s, failure: %s%s",
                      label, ngx_rl_breaker_names[state],
                      ngx_rl_failure_names[failure], more);

    } else if (outage) {
        ngx_log_error(NGX_LOG_ERR, server->log, 0,
                      "ratelimit: redis %V is available again after %uA s%s",
                      label, ngx_max(record->changed - before, 1), more);

    } else {
        ngx_log_error(NGX_LOG_NOTICE, server->log, 0,
                      "ratelimit shard %V is distributed again%s", label, more);
    }

    /* the server works: each class of failure is logged again */

    for (i = 0; state == NGX_RL_DISTRIBUTED && i < NGX_RL_FAILURES; i++) {
        ngx_rl_throttle_reset(&record->log.failure[i]);
    }
}


/* the last changes were not logged: log the final state */

static void
ngx_rl_server_settled(ngx_rl_server_t *server)
{
    ngx_rl_record_t   *record;
    ngx_atomic_uint_t  dropped;

    record = server->record;

    dropped = ngx_rl_throttle_dropped(&record->log.outages);

    if (dropped) {
        ngx_log_error(NGX_LOG_ERR, server->log, 0,
                      "ratelimit: redis %V is available again, unlogged "
                      "changes before this one: %uA",
                      &server->conf->label, dropped);
    }

    dropped = ngx_rl_throttle_dropped(&record->log.changes);

    if (dropped) {
        ngx_log_error(NGX_LOG_NOTICE, server->log, 0,
                      "ratelimit shard %V is distributed again, unlogged "
                      "changes before this one: %uA",
                      &server->conf->label, dropped);
    }
}
