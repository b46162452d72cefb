
/*
 * Whether a peer can be asked.
 *
 * The breaker says so for all workers: its state is in shared memory, read
 * without a lock by every call and changed under the lock of the zone.  While
 * it is open no call is sent.  What tries the peer then is
 *
 *   - a new connection, if there is none: the greeting ends with a call of a
 *     script that writes, so a server that is still loading, read-only or out
 *     of memory fails it;
 *   - the same call as a probe, if there is one.
 *
 * One worker at a time does so, in intervals that double from 50 ms up to the
 * probe interval.  If it succeeds the breaker closes for all.  Other workers
 * without a connection make one as soon as they have a call to send.
 *
 * As long as the breaker is closed each worker connects again by itself, after
 * pauses of the same kind.  Only what was sent, or a connection that no worker
 * has, counts as a failure of the peer.
 *
 * The log: one line a change of state, up to ten a minute; of each class of
 * failure one line a minute; one line a minute that it is still open.  All
 * these count for all workers together.  An outage lasts while the breaker is
 * open: its beginning and its end are errors, as that is the level which people
 * read, and have their ten lines apart from what others see of it.
 */


#include "topology/ngx_rl_server.h"
#include "core/ngx_rl_core.h"
#include "redis/ngx_rl_address.h"
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
static void ngx_rl_server_tell(ngx_rl_server_t *server,
    ngx_rl_failure_e failure, ngx_rl_reply_t *reply);
static ngx_uint_t ngx_rl_server_moved_ok(ngx_rl_server_t *server);
static void ngx_rl_server_failure(ngx_rl_server_t *server,
    ngx_rl_failure_e failure, ngx_uint_t counts, ngx_uint_t probe);
static void ngx_rl_server_success(ngx_rl_server_t *server, ngx_uint_t probe);
static void ngx_rl_server_schedule(ngx_rl_server_t *server, ngx_msec_t delay);
static void ngx_rl_server_probe_handler(ngx_event_t *ev);
static ngx_int_t ngx_rl_server_probed(void *data,
    const ngx_rl_answer_t *answer);
static void ngx_rl_server_changed(ngx_rl_server_t *server,
    ngx_rl_breaker_e state, ngx_rl_failure_e failure);
static void ngx_rl_server_opened(ngx_rl_server_t *server,
    ngx_rl_failure_e failure);
static void ngx_rl_server_reclosed(ngx_rl_server_t *server);
static ngx_uint_t ngx_rl_server_news(ngx_rl_server_t *server,
    ngx_rl_breaker_e state, ngx_rl_throttle_t *throttle, u_char *more);
static void ngx_rl_server_forget(ngx_rl_server_t *server);
static void ngx_rl_server_settled(ngx_rl_server_t *server);
static void ngx_rl_server_still_open(ngx_rl_server_t *server);


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

    if (server->probe.timer_set) {
        ngx_del_timer(&server->probe);
    }

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

        /* one that was dropped has not told: it may be on its way again */

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

    /* which of the two an event is about, callbacks of the old one can't say */

    ngx_rl_connection_retire(server->connection, connection);

    server->connection = connection;
    server->attempt = 0;
    server->up = 0;

    return NGX_OK;
}


ngx_uint_t
ngx_rl_server_found(ngx_rl_server_t *server, ngx_str_t *address)
{
    return ngx_rl_record_found(server->zone, server->record, address);
}


ngx_uint_t
ngx_rl_server_renamed(void *data, ngx_addr_t *addrs, ngx_uint_t n)
{
    ngx_rl_server_t  *server = data;

    if (n == 0) {
        ngx_rl_server_event(server, NGX_RL_EVENT_RESOLVE_FAILED);

        return ngx_rl_server_may_log(server, NGX_RL_CONFIG);
    }

    ngx_rl_server_event(server, NGX_RL_EVENT_RESOLVED);

    /* calls under way are answered by where they went */

    (void) ngx_rl_server_move(server, addrs, n, 0);

    return ngx_rl_record_news(server->zone, server->record,
                             ngx_rl_address_hash(addrs, n));
}


void
ngx_rl_server_event(ngx_rl_server_t *server, ngx_rl_event_e event)
{
    ngx_rl_count(server->record->counters.events[event]);
}


void
ngx_rl_server_exit(ngx_rl_server_t *server)
{
    if (server->probe.timer_set) {
        ngx_del_timer(&server->probe);
    }

    ngx_rl_connection_exit(server->connection);
}


ngx_rl_failure_e
ngx_rl_server_check(ngx_rl_server_t *server)
{
    ngx_rl_breaker_t  *breaker;

    breaker = &server->record->breaker;

    if (breaker->state == NGX_RL_CIRCUIT_OPEN) {
        ngx_rl_server_still_open(server);
        ngx_rl_server_schedule(server, NGX_RL_BACKOFF_MIN);
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

    } else if (server->record->log.changes.dropped
               || server->record->log.outages.dropped)
    {
        ngx_rl_server_settled(server);
    }
}


void
ngx_rl_server_failed(void *owner, const ngx_rl_answer_t *answer)
{
    ngx_rl_server_t  *server = owner;

    ngx_uint_t  counts;

    ngx_rl_server_tell(server, answer->failure, answer->reply);

    /* a reply that is none ends the connection: that is the failure */

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

    ngx_rl_server_tell(server, failure, NULL);
    ngx_rl_server_failure(server, failure, 0, 0);
}


/* lost connections have been logged by the client */

static void
ngx_rl_server_tell(ngx_rl_server_t *server,
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

    if (failure == NGX_RL_MOVED && !server->conf->node) {
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
                  &server->conf->label, ngx_rl_failure_name(failure));
}


ngx_msec_t
ngx_rl_server_may_connect(void *owner)
{
    ngx_rl_server_t  *server = owner;

    uint64_t                       wait, now;
    ngx_rl_breaker_t  *breaker;

    breaker = &server->record->breaker;

    if (breaker->state != NGX_RL_CIRCUIT_OPEN) {
        return 0;
    }

    now = ngx_current_msec;

    /* workers that have a connection come first */

    if (!server->up && ngx_rl_server_moved_ok(server)) {
        now -= NGX_RL_SERVER_LATER;
    }

    ngx_rl_zone_lock(server->zone);

    wait = ngx_rl_breaker_probe(breaker, now,
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

    /* where a master is, sentinels say */

    if (server->conf->kind != NGX_RL_SENTINEL) {
        (void) ngx_rl_server_found(server,
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

    ngx_msec_t                     wait;
    ngx_rl_breaker_t  *breaker;

    breaker = &server->record->breaker;

    if (stable) {
        server->attempt = 0;
    }

    /*
     * a connection that can't be made while other workers have theirs, as with
     * too many clients, is this worker's trouble
     */

    if (failure != NGX_RL_OK) {
        ngx_rl_server_failure(server, failure,
                              server->up || !ngx_rl_server_moved_ok(server), 1);
    }

    server->up = 0;

    if (breaker->state == NGX_RL_CIRCUIT_OPEN) {

        wait = (breaker->until > ngx_current_msec)
               ? (ngx_msec_t) (breaker->until - ngx_current_msec) : 0;

        return ngx_max(wait, 1);
    }

    /* not at all if it worked until now: the server may be back already */

    if (stable && (failure == NGX_RL_OK || failure == NGX_RL_CLOSED)) {
        return 0;
    }

    return ngx_rl_backoff(server->attempt++, server->conf->breaker.probe,
                          (uint32_t) ngx_random());
}


/*
 * "counts": it says something about the peer, as it was asked; "probe": it may
 * be the end of one.  A command is one failure, however many calls it carried,
 * and so is a lost connection.
 */

static void
ngx_rl_server_failure(ngx_rl_server_t *server,
    ngx_rl_failure_e failure, ngx_uint_t counts, ngx_uint_t probe)
{
    uint32_t           luck;
    ngx_uint_t         breaks, changed;
    ngx_rl_breaker_e   state;
    ngx_rl_breaker_t  *breaker;

    ngx_rl_count(server->record->counters.failures[failure]);

    if (server->events->failed) {
        server->events->failed(server, failure);
    }

    /* an error of any other kind is of one key, but not if a probe gets it */

    breaks = counts
             && (ngx_rl_failure_breaks(failure)
                 || (probe && failure == NGX_RL_ERROR));

    /* what waits for a connection has not been sent, see link_closed() */

    if (failure == NGX_RL_TIMEOUT && !probe
        && !ngx_rl_connection_ready(server->connection)
        && ngx_rl_server_moved_ok(server))
    {
        breaks = 0;
    }

    /* a node that has not got a slot, or nobody has, is well for all that */

    if (failure == NGX_RL_MOVED && server->conf->node && !probe) {
        breaks = 0;
    }

    if (!breaks && !probe) {
        return;
    }

    breaker = &server->record->breaker;
    luck = (uint32_t) ngx_random();
    changed = 0;

    ngx_rl_zone_lock(server->zone);

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

    if (changed && state == NGX_RL_CIRCUIT_OPEN) {
        ngx_rl_server_opened(server, failure);

    } else if (changed) {
        ngx_rl_server_changed(server, state, failure);
    }

    if (state == NGX_RL_CIRCUIT_OPEN) {
        ngx_rl_server_schedule(server, NGX_RL_BACKOFF_MIN);
    }
}


/* of a probe, or a handshake, or else of a call */

static void
ngx_rl_server_success(ngx_rl_server_t *server, ngx_uint_t probe)
{
    ngx_uint_t         changed, open;
    ngx_rl_breaker_t  *breaker;

    breaker = &server->record->breaker;

    ngx_rl_zone_lock(server->zone);

    open = (breaker->state == NGX_RL_CIRCUIT_OPEN);

    changed = probe
              ? ngx_rl_breaker_close(breaker, ngx_current_msec)
              : ngx_rl_breaker_success(breaker);

    ngx_rl_zone_unlock(server->zone);

    if (changed && open) {
        ngx_rl_server_reclosed(server);

    } else if (changed) {
        ngx_rl_server_changed(server, NGX_RL_DISTRIBUTED, NGX_RL_OK);
    }
}


/* a connection that is there is probed; the next one is a probe by itself */

static void
ngx_rl_server_schedule(ngx_rl_server_t *server, ngx_msec_t delay)
{
    if (!server->probe.timer_set && !ngx_exiting
        && ngx_rl_connection_ready(server->connection))
    {
        ngx_add_timer(&server->probe, delay);
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

    /* behind the same address there may be another server by now */

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

    /* as long as a call may take: who is slower is of no use */

    failure = ngx_rl_connection_send(server->connection, &server->conf->probe,
                                     server->conf->timeout,
                                     ngx_rl_server_probed, server, &pending);

    if (failure == NGX_RL_OK) {
        ngx_rl_pending_background(pending);
        ngx_rl_pending_no_redirect(pending);

    } else {
        ngx_rl_server_tell(server, failure, NULL);
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
        && !(server->conf->node
             && ngx_rl_connection_moved_ok(answer->reply)))
    {
        failure = ngx_rl_failure(answer->reply->str, answer->reply->len);
    }

    if (failure == NGX_RL_OK) {
        ngx_rl_server_success(server, 1);
        server->closed = server->record->breaker.closed;

    } else {
        ngx_rl_server_tell(server, failure, answer->reply);
        ngx_rl_server_failure(server, failure, !answer->counted,
                              !answer->counted);
    }

    return NGX_OK;
}


/* whether another worker has a connection, as this one has none */

static ngx_uint_t
ngx_rl_server_moved_ok(ngx_rl_server_t *server)
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


/* between distributed and fallback */

static void
ngx_rl_server_changed(ngx_rl_server_t *server,
    ngx_rl_breaker_e state, ngx_rl_failure_e failure)
{
    u_char  more[NGX_RL_SERVER_MORE];

    if (!ngx_rl_server_news(server, state, &server->record->log.changes, more))
    {
        return;
    }

    if (state == NGX_RL_DISTRIBUTED) {
        ngx_log_error(NGX_LOG_NOTICE, server->log, 0,
                      "ratelimit shard %V is distributed again%s",
                      &server->conf->label, more);

        ngx_rl_server_forget(server);
        return;
    }

    ngx_log_error(NGX_LOG_NOTICE, server->log, 0,
                  "ratelimit shard %V is in state %s, failure: %s%s",
                  &server->conf->label, ngx_rl_breaker_name(state),
                  ngx_rl_failure_name(failure), more);
}


static void
ngx_rl_server_opened(ngx_rl_server_t *server, ngx_rl_failure_e failure)
{
    u_char  more[NGX_RL_SERVER_MORE];

    if (!ngx_rl_server_news(server, NGX_RL_CIRCUIT_OPEN,
                            &server->record->log.outages, more))
    {
        return;
    }

    ngx_log_error(NGX_LOG_ERR, server->log, 0,
                  "ratelimit: redis %V is unavailable (%s), %s until it "
                  "answers%s", &server->conf->label,
                  ngx_rl_failure_name(failure), server->conf->outage, more);
}


static void
ngx_rl_server_reclosed(ngx_rl_server_t *server)
{
    u_char             more[NGX_RL_SERVER_MORE];
    ngx_atomic_uint_t  opened;

    opened = server->record->changed;

    if (!ngx_rl_server_news(server, NGX_RL_DISTRIBUTED,
                            &server->record->log.outages, more))
    {
        return;
    }

    ngx_log_error(NGX_LOG_ERR, server->log, 0,
                  "ratelimit: redis %V is available again after %uA s%s",
                  &server->conf->label,
                  ngx_max(server->record->changed - opened, 1), more);

    ngx_rl_server_forget(server);
}


/*
 * A change is counted.  Returns whether it is to be logged, and then what to
 * add about those before it that were not.
 */

static ngx_uint_t
ngx_rl_server_news(ngx_rl_server_t *server,
    ngx_rl_breaker_e state, ngx_rl_throttle_t *throttle, u_char *more)
{
    ngx_rl_record_t   *record;
    ngx_atomic_uint_t  dropped;

    record = server->record;

    ngx_rl_count(record->counters.transitions[state]);

    record->changed = ngx_current_msec / 1000;
    ngx_rl_throttle_start(&record->log.open);

    if (!ngx_rl_throttle(throttle, NGX_RL_RECORD_CHANGES, &dropped)) {
        return 0;
    }

    *more = '\0';

    if (dropped) {
        ngx_sprintf(more, ", unlogged changes before this one: %uA%Z", dropped);
    }

    return 1;
}


/* the server is well: what fails from now on is told anew */

static void
ngx_rl_server_forget(ngx_rl_server_t *server)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_RL_FAILURES; i++) {
        ngx_rl_throttle_reset(&server->record->log.failure[i]);
    }
}


/* changes were left out of the log, and now it is quiet: it shall say so */

static void
ngx_rl_server_settled(ngx_rl_server_t *server)
{
    ngx_rl_record_t   *record;
    ngx_atomic_uint_t  dropped;

    record = server->record;

    if (record->breaker.state != NGX_RL_DISTRIBUTED) {
        return;
    }

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


/* an outage is told at its beginning and then once a minute */

static void
ngx_rl_server_still_open(ngx_rl_server_t *server)
{
    ngx_rl_record_t  *record;

    record = server->record;

    if (!ngx_rl_throttle(&record->log.open, 1, NULL)) {
        return;
    }

    ngx_log_error(NGX_LOG_ERR, server->log, 0,
                  "ratelimit: redis %V is still unavailable after %uA s (%s)",
                  &server->conf->label,
                  ngx_current_msec / 1000 - record->changed,
                  ngx_rl_failure_name((ngx_rl_failure_e) record->failure));
}
