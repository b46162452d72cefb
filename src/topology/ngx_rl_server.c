
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
#include "redis/ngx_rl_address.h"
#include "pure/ngx_rl_backoff.h"
#include "pure/ngx_rl_escape.h"


#define NGX_RL_LINK_TEXT     160        /* of an error, logged */
#define NGX_RL_LINK_GRACE    1000       /* ms, for a prober */
#define NGX_RL_LINK_LATER    200        /* ms, for others */

/* for what follows a line about a change */
#define NGX_RL_LINK_MORE                                          \
    (sizeof(", unlogged changes before this one: ") + NGX_ATOMIC_T_LEN)


struct ngx_rl_link_s {
    ngx_rl_peer_t           *peer;
    ngx_rl_redis_t          *redis;
    ngx_rl_zone_t           *zone;

    /* -1, here as in ngx_connection_t: timers log it as a descriptor */
    ngx_socket_t                         ident;

    ngx_rl_redis_owner_t     owner;
    ngx_rl_guide_t           guide;
    void                                *lane;
    void                                *refunds;
    ngx_rl_shard_stats_t    *stats;
    ngx_rl_stats_t          *all;
    ngx_log_t                           *log;
    ngx_event_t                          probe;
    uint32_t                             attempt;   /* to connect */
    uint64_t                             closed;    /* the breaker was, when
                                                       last looked at */
    uint64_t                             who;       /* among all probers */
    unsigned                             connected:1;   /* once */
    unsigned                             up:1;          /* now */
};


static ngx_int_t ngx_rl_link_redirect(void *data,
    ngx_rl_slot_t *slot, ngx_rl_reply_t *reply,
    ngx_rl_failure_e *failure);
static ngx_msec_t ngx_rl_link_may_connect(void *data);
static void ngx_rl_link_ready(void *data);
static ngx_msec_t ngx_rl_link_closed(void *data,
    ngx_rl_failure_e failure, ngx_uint_t stable);
static void ngx_rl_link_tell(ngx_rl_link_t *link,
    ngx_rl_failure_e failure, ngx_rl_reply_t *reply);
static ngx_uint_t ngx_rl_link_elsewhere(
    ngx_rl_link_t *link);
static void ngx_rl_link_failure(ngx_rl_link_t *link,
    ngx_rl_failure_e failure, ngx_uint_t counts, ngx_uint_t probe);
static void ngx_rl_link_success(ngx_rl_link_t *link,
    ngx_uint_t probe);
static void ngx_rl_link_plan(ngx_rl_link_t *link,
    ngx_msec_t delay);
static void ngx_rl_link_probe_handler(ngx_event_t *ev);
static ngx_int_t ngx_rl_link_probed(void *data,
    ngx_rl_reply_t *reply, ngx_rl_failure_e failure);
static ngx_uint_t ngx_rl_link_is_loud(void *data,
    ngx_rl_failure_e failure);
static void ngx_rl_link_stray(void *data,
    ngx_rl_failure_e failure, ngx_rl_reply_t *reply);
static ngx_rl_failure_e ngx_rl_link_greeted(
    void *data, ngx_uint_t tell, ngx_rl_reply_t *reply);
static void ngx_rl_link_changed(ngx_rl_link_t *link,
    ngx_rl_breaker_e state, ngx_rl_failure_e failure);
static void ngx_rl_link_opened(ngx_rl_link_t *link,
    ngx_rl_failure_e failure);
static void ngx_rl_link_reclosed(ngx_rl_link_t *link);
static ngx_uint_t ngx_rl_link_news(ngx_rl_link_t *link,
    ngx_rl_breaker_e state, ngx_rl_lines_t *lines,
    u_char *more);
static void ngx_rl_link_forget(ngx_rl_link_t *link);
static void ngx_rl_link_settled(ngx_rl_link_t *link);
static void ngx_rl_link_still_open(
    ngx_rl_link_t *link);


ngx_rl_link_t *
ngx_rl_link_create(ngx_pool_t *pool, ngx_log_t *log,
    ngx_rl_peer_t *peer, ngx_rl_zone_t *zone,
    ngx_rl_stats_t *all, ngx_rl_guide_t *guide)
{
    ngx_rl_link_t  *link;

    link = ngx_pcalloc(pool, sizeof(ngx_rl_link_t));
    if (link == NULL) {
        return NULL;
    }

    link->peer = peer;
    link->zone = zone;
    link->stats = peer->stats;
    link->all = all;
    link->who = (uint64_t) ngx_pid << 16 | peer->index;
    link->log = log;
    link->ident = (ngx_socket_t) -1;

    link->probe.handler = ngx_rl_link_probe_handler;
    link->probe.data = link;
    link->probe.log = log;
    link->probe.cancelable = 1;

    link->owner.data = link;
    link->owner.may_connect = ngx_rl_link_may_connect;
    link->owner.ready = ngx_rl_link_ready;
    link->owner.closed = ngx_rl_link_closed;
    link->owner.loud = ngx_rl_link_is_loud;
    link->owner.greeted = ngx_rl_link_greeted;
    link->owner.failed = ngx_rl_link_stray;
    link->owner.stats = link->stats;

    if (guide) {
        link->guide = *guide;

        if (guide->redirect) {
            link->owner.redirect = ngx_rl_link_redirect;
        }
    }

    link->redis = ngx_rl_redis_create(log, &peer->redis,
                                                  &link->owner);

    return link->redis ? link : NULL;
}


void
ngx_rl_link_wake(ngx_rl_link_t *link)
{
    ngx_rl_redis_wake(link->redis);
}


void
ngx_rl_link_rest(ngx_rl_link_t *link)
{
    ngx_rl_redis_rest(link->redis);

    if (!ngx_rl_redis_ready(link->redis)) {
        link->up = 0;
    }
}


ngx_uint_t
ngx_rl_link_unused(ngx_rl_link_t *link)
{
    return ngx_rl_redis_unused(link->redis);
}


ngx_int_t
ngx_rl_link_reuse(ngx_rl_link_t *link)
{
    ngx_rl_redis_t  *redis;

    link->owner.stats = link->peer->stats;

    redis = ngx_rl_redis_create(link->log, &link->peer->redis,
                                            &link->owner);
    if (redis == NULL) {
        link->owner.stats = link->stats;
        return NGX_ERROR;
    }

    if (link->probe.timer_set) {
        ngx_del_timer(&link->probe);
    }

    ngx_rl_redis_retire(link->redis, redis);

    link->redis = redis;
    link->stats = link->peer->stats;
    link->attempt = 0;
    link->closed = link->stats->breaker.closed;
    link->connected = 0;
    link->up = 0;

    return NGX_OK;
}


ngx_int_t
ngx_rl_link_move(ngx_rl_link_t *link,
    ngx_addr_t *addrs, ngx_uint_t n, ngx_uint_t drop)
{
    ngx_int_t                    rc;
    ngx_rl_redis_t  *redis;

    rc = ngx_rl_redis_move(link->redis, addrs, n, drop);

    if (rc != NGX_DECLINED) {

        /* one that was dropped has not told: it may be on its way again */

        if (!ngx_rl_redis_ready(link->redis)) {
            link->up = 0;
        }

        if (rc == NGX_OK) {
            link->attempt = 0;
        }

        return rc;
    }

    redis = ngx_rl_redis_create(link->log, &link->peer->redis,
                                            &link->owner);
    if (redis == NULL) {
        return NGX_ERROR;
    }

    if (ngx_rl_redis_move(redis, addrs, n, 0) != NGX_OK) {
        ngx_rl_redis_exit(redis);
        return NGX_ERROR;
    }

    /* which of the two an event is about, callbacks of the old one can't say */

    ngx_rl_redis_retire(link->redis, redis);

    link->redis = redis;
    link->attempt = 0;
    link->up = 0;

    return NGX_OK;
}


ngx_rl_peer_t *
ngx_rl_link_peer(ngx_rl_link_t *link)
{
    return link->peer;
}


ngx_rl_redis_t *
ngx_rl_link_redis(ngx_rl_link_t *link)
{
    return link->redis;
}


void **
ngx_rl_link_lane(ngx_rl_link_t *link)
{
    return &link->lane;
}


void **
ngx_rl_link_refunds(ngx_rl_link_t *link)
{
    return &link->refunds;
}


ngx_rl_link_t *
ngx_rl_link_now(ngx_rl_link_t *link, const char *key,
    size_t len)
{
    return link->guide.find ? link->guide.find(link->guide.data, key, len)
                            : link;
}


ngx_uint_t
ngx_rl_link_found(ngx_rl_link_t *link,
    ngx_str_t *address)
{
    return ngx_rl_stats_found(link->zone, link->stats, address);
}


ngx_uint_t
ngx_rl_link_renamed(ngx_rl_link_t *link,
    ngx_addr_t *addrs, ngx_uint_t n)
{
    if (n == 0) {
        ngx_rl_link_event(link,
                                  NGX_RL_EVENT_RESOLVE_FAILED);

        return ngx_rl_link_loud(link, NGX_RL_CONFIG);
    }

    ngx_rl_link_event(link, NGX_RL_EVENT_RESOLVED);

    /* calls under way are answered by where they went */

    (void) ngx_rl_link_move(link, addrs, n, 0);

    return ngx_rl_stats_news(link->zone, link->stats,
                                      ngx_rl_addr_hash(addrs, n));
}


void
ngx_rl_link_event(ngx_rl_link_t *link,
    ngx_rl_event_e event)
{
    ngx_rl_count(link->stats->events[event]);
}


static ngx_int_t
ngx_rl_link_redirect(void *data, ngx_rl_slot_t *slot,
    ngx_rl_reply_t *reply, ngx_rl_failure_e *failure)
{
    ngx_rl_link_t *link = data;

    return link->guide.redirect(link->guide.data, link, slot, reply, failure);
}


void
ngx_rl_link_exit(ngx_rl_link_t *link)
{
    if (link->probe.timer_set) {
        ngx_del_timer(&link->probe);
    }

    ngx_rl_redis_exit(link->redis);
}


ngx_rl_failure_e
ngx_rl_link_check(ngx_rl_link_t *link)
{
    ngx_rl_breaker_t  *breaker;

    breaker = &link->stats->breaker;

    if (breaker->state == NGX_RL_CIRCUIT_OPEN) {
        ngx_rl_link_still_open(link);
        ngx_rl_link_plan(link, NGX_RL_BACKOFF_MIN);
        ngx_rl_redis_plan(link->redis);

        return NGX_RL_CIRCUIT;
    }

    if (link->closed != breaker->closed) {
        link->closed = breaker->closed;
        link->attempt = 0;

        ngx_rl_redis_wake(link->redis);
    }

    return ngx_rl_redis_check(link->redis);
}


ngx_rl_failure_e
ngx_rl_link_send(ngx_rl_link_t *link,
    ngx_str_t *command, ngx_msec_t timeout,
    ngx_rl_redis_pt handler, void *data,
    ngx_rl_slot_t **slot)
{
    ngx_rl_failure_e  failure;

    failure = ngx_rl_link_check(link);

    if (failure == NGX_RL_OK) {
        failure = ngx_rl_redis_send(link->redis, command, timeout,
                                                handler, data, slot);
    }

    if (failure == NGX_RL_OK) {
        ngx_rl_count(link->stats->calls);
    }

    return failure;
}


ngx_uint_t
ngx_rl_link_usable(ngx_rl_link_t *link)
{
    return link->stats->breaker.state != NGX_RL_CIRCUIT_OPEN
           && ngx_rl_redis_ready(link->redis);
}


ngx_rl_failure_e
ngx_rl_link_forward(ngx_rl_link_t *link,
    ngx_rl_slot_t *slot, ngx_uint_t asking)
{
    ngx_rl_failure_e  failure;

    failure = ngx_rl_link_check(link);

    if (failure == NGX_RL_OK) {
        failure = ngx_rl_redis_forward(slot, link->redis, asking);
    }

    if (failure == NGX_RL_OK) {
        ngx_rl_count(link->stats->calls);
    }

    return failure;
}


void
ngx_rl_link_keep(ngx_rl_link_t *link)
{
    ngx_rl_redis_keep(link->redis);
}


void
ngx_rl_link_release(ngx_rl_link_t *link)
{
    ngx_rl_redis_release(link->redis);
}


void
ngx_rl_link_answered(ngx_rl_link_t *link, uint64_t us)
{
    ngx_rl_stats_latency(&link->stats->latency, us);

    if (link->stats->breaker.state == NGX_RL_FALLBACK) {
        ngx_rl_link_success(link, 0);

    } else if (link->stats->changes.untold || link->stats->outages.untold) {
        ngx_rl_link_settled(link);
    }
}


void
ngx_rl_link_failed(ngx_rl_link_t *link,
    ngx_rl_failure_e failure, ngx_rl_reply_t *reply,
    ngx_uint_t counts)
{
    ngx_rl_link_tell(link, failure, reply);

    /* a reply that is none ends the connection: that is the failure */

    if (failure == NGX_RL_PROTOCOL && reply) {
        counts = 0;
    }

    ngx_rl_link_failure(link, failure, counts, 0);
}


void
ngx_rl_link_unsent(ngx_rl_link_t *link,
    ngx_rl_failure_e failure)
{
    if (failure == NGX_RL_CIRCUIT) {
        return;
    }

    ngx_rl_link_tell(link, failure, NULL);
    ngx_rl_link_failure(link, failure, 0, 0);
}


/* lost connections have been logged by the client */

static void
ngx_rl_link_tell(ngx_rl_link_t *link,
    ngx_rl_failure_e failure, ngx_rl_reply_t *reply)
{
    size_t  len;
    u_char  text[ngx_rl_escape_size(NGX_RL_LINK_TEXT)];

    if (failure == NGX_RL_REFUSED
        || failure == NGX_RL_CLOSED
        || !ngx_rl_link_loud(link, failure))
    {
        return;
    }

    if (failure == NGX_RL_MOVED && link->guide.redirect == NULL) {
        ngx_log_error(NGX_LOG_ERR, link->log, 0,
                      "redis %V is a node of a cluster: write "
                      "\"ratelimit_shards cluster ...\"", &link->peer->label);
        return;
    }

    if (reply && reply->type == REDIS_REPLY_ERROR) {
        len = ngx_rl_escape(text, reply->str,
                                        ngx_min(reply->len,
                                              NGX_RL_LINK_TEXT));

        ngx_log_error(NGX_LOG_ERR, link->log, 0, "redis %V answered \"%*s\"",
                      &link->peer->label, len, text);
        return;
    }

    ngx_log_error(NGX_LOG_ERR, link->log, 0, "no answer from redis %V: %s",
                  &link->peer->label,
                  ngx_rl_failure_name(failure));
}


void
ngx_rl_link_refund(ngx_rl_link_t *link)
{
    ngx_rl_count(link->stats->refunds);
}


void
ngx_rl_link_refund_lost(ngx_rl_link_t *link)
{
    ngx_rl_count(link->stats->refunds_lost);
}


void
ngx_rl_link_reload(ngx_rl_link_t *link)
{
    ngx_rl_count(link->stats->script_reloads);
}


/* of a call that was sent to another server first */

static void
ngx_rl_link_stray(void *data, ngx_rl_failure_e failure,
    ngx_rl_reply_t *reply)
{
    ngx_rl_link_failed(data, failure, reply, 1);
}


static ngx_rl_failure_e
ngx_rl_link_greeted(void *data, ngx_uint_t tell,
    ngx_rl_reply_t *reply)
{
    ngx_rl_link_t *link = data;

    return link->guide.greeted(link->guide.data, link, tell, reply);
}


static ngx_msec_t
ngx_rl_link_may_connect(void *data)
{
    ngx_rl_link_t *link = data;

    uint64_t                       wait, now;
    ngx_rl_breaker_t  *breaker;

    breaker = &link->stats->breaker;

    if (breaker->state != NGX_RL_CIRCUIT_OPEN) {
        return 0;
    }

    now = ngx_current_msec;

    /* workers that have a connection come first */

    if (!link->up && ngx_rl_link_elsewhere(link)) {
        now -= NGX_RL_LINK_LATER;
    }

    ngx_rl_zone_hold(link->zone);

    wait = ngx_rl_breaker_probe(breaker, now,
                                            link->peer->redis.connect_timeout
                                            + NGX_RL_LINK_GRACE,
                                            link->who);

    ngx_rl_zone_release(link->zone);

    return (ngx_msec_t) wait;
}


static void
ngx_rl_link_ready(void *data)
{
    ngx_rl_link_t *link = data;

    if (link->connected) {
        ngx_rl_count(link->stats->reconnects);
    }

    link->connected = 1;
    link->up = 1;

    /* where a master is, sentinels say */

    if (link->peer->kind != NGX_RL_SENTINEL) {
        (void) ngx_rl_link_found(link,
                         &ngx_rl_redis_addr(link->redis)->name);
    }

    if (link->stats->breaker.state != NGX_RL_DISTRIBUTED) {
        ngx_rl_link_success(link, 1);
    }

    link->closed = link->stats->breaker.closed;
}


static ngx_msec_t
ngx_rl_link_closed(void *data,
    ngx_rl_failure_e failure, ngx_uint_t stable)
{
    ngx_rl_link_t *link = data;

    ngx_msec_t                     wait;
    ngx_rl_breaker_t  *breaker;

    breaker = &link->stats->breaker;

    if (stable) {
        link->attempt = 0;
    }

    /*
     * a connection that can't be made while other workers have theirs, as with
     * too many clients, is this worker's trouble
     */

    if (failure != NGX_RL_OK) {
        ngx_rl_link_failure(link, failure,
                           link->up || !ngx_rl_link_elsewhere(link),
                           1);
    }

    link->up = 0;

    if (breaker->state == NGX_RL_CIRCUIT_OPEN) {

        wait = (breaker->until > ngx_current_msec)
               ? (ngx_msec_t) (breaker->until - ngx_current_msec) : 0;

        return ngx_max(wait, 1);
    }

    /* not at all if it worked until now: the server may be back already */

    if (stable && (failure == NGX_RL_OK
                   || failure == NGX_RL_CLOSED))
    {
        return 0;
    }

    return ngx_rl_backoff(link->attempt++,
                                      link->peer->breaker.probe,
                                      (uint32_t) ngx_random());
}


/*
 * "counts": it says something about the peer, as it was asked; "probe": it may
 * be the end of one.  A command is one failure, however many calls it carried,
 * and so is a lost connection.
 */

static void
ngx_rl_link_failure(ngx_rl_link_t *link,
    ngx_rl_failure_e failure, ngx_uint_t counts, ngx_uint_t probe)
{
    uint32_t                       luck;
    ngx_uint_t                     breaks, changed;
    ngx_rl_breaker_e   state;
    ngx_rl_breaker_t  *breaker;

    ngx_rl_count(link->stats->failures[failure]);

    if (link->guide.trouble) {
        link->guide.trouble(link->guide.data, link, failure);
    }

    /* an error of any other kind is of one key, but not if a probe gets it */

    breaks = counts
             && (ngx_rl_failure_breaks(failure)
                 || (probe && failure == NGX_RL_ERROR));

    /* what waits for a connection has not been sent, see link_closed() */

    if (failure == NGX_RL_TIMEOUT && !probe
        && !ngx_rl_redis_ready(link->redis)
        && ngx_rl_link_elsewhere(link))
    {
        breaks = 0;
    }

    /* a node that has not got a slot, or nobody has, is well for all that */

    if (failure == NGX_RL_MOVED && link->guide.redirect && !probe) {
        breaks = 0;
    }

    if (ngx_rl_redis_failing(&link->owner)
        || (!breaks && !probe)) {
        return;
    }

    breaker = &link->stats->breaker;
    luck = (uint32_t) ngx_random();
    changed = 0;

    ngx_rl_zone_hold(link->zone);

    if (breaks) {
        changed = ngx_rl_breaker_failure(breaker,
                                                     &link->peer->breaker,
                                                     ngx_current_msec, luck);
    }

    if (probe && !changed) {
        ngx_rl_breaker_probed(breaker, &link->peer->breaker,
                                          ngx_current_msec, luck, link->who);
    }

    state = breaker->state;

    ngx_rl_zone_release(link->zone);

    if (breaks) {
        link->stats->failure = failure;
    }

    if (changed && state == NGX_RL_CIRCUIT_OPEN) {
        ngx_rl_link_opened(link, failure);

    } else if (changed) {
        ngx_rl_link_changed(link, state, failure);
    }

    if (state == NGX_RL_CIRCUIT_OPEN) {
        ngx_rl_link_plan(link, NGX_RL_BACKOFF_MIN);
    }
}


/* of a probe, or a handshake, or else of a call */

static void
ngx_rl_link_success(ngx_rl_link_t *link,
    ngx_uint_t probe)
{
    ngx_uint_t                     changed, open;
    ngx_rl_breaker_t  *breaker;

    breaker = &link->stats->breaker;

    ngx_rl_zone_hold(link->zone);

    open = (breaker->state == NGX_RL_CIRCUIT_OPEN);

    changed = probe
              ? ngx_rl_breaker_close(breaker, ngx_current_msec)
              : ngx_rl_breaker_success(breaker);

    ngx_rl_zone_release(link->zone);

    if (changed && open) {
        ngx_rl_link_reclosed(link);

    } else if (changed) {
        ngx_rl_link_changed(link, NGX_RL_DISTRIBUTED,
                                        NGX_RL_OK);
    }
}


/* a connection that is there is probed; the next one is a probe by itself */

static void
ngx_rl_link_plan(ngx_rl_link_t *link,
    ngx_msec_t delay)
{
    if (!link->probe.timer_set && !ngx_exiting
        && ngx_rl_redis_ready(link->redis))
    {
        ngx_add_timer(&link->probe, delay);
    }
}


static void
ngx_rl_link_probe_handler(ngx_event_t *ev)
{
    ngx_msec_t                     wait;
    ngx_rl_link_t     *link;
    ngx_rl_slot_t     *slot;
    ngx_rl_failure_e   failure;

    link = ev->data;

    if (link->stats->breaker.state != NGX_RL_CIRCUIT_OPEN
        || !ngx_rl_redis_ready(link->redis) || ngx_exiting)
    {
        return;
    }

    /* behind the same address there may be another server by now */

    if (link->stats->failure == NGX_RL_READONLY) {
        ngx_rl_redis_rest(link->redis);
        ngx_rl_redis_plan(link->redis);

        if (!ngx_rl_redis_ready(link->redis)) {
            return;
        }
    }

    wait = ngx_rl_link_may_connect(link);

    if (wait) {
        ngx_add_timer(ev, wait);
        return;
    }

    /* as long as a call may take: who is slower is of no use */

    failure = ngx_rl_redis_send(link->redis, &link->peer->probe,
                                            link->peer->timeout,
                                            ngx_rl_link_probed,
                                            link, &slot);

    if (failure == NGX_RL_OK) {
        ngx_rl_redis_quiet(slot);
        ngx_rl_redis_direct(slot);

    } else {
        ngx_rl_link_tell(link, failure, NULL);
        ngx_rl_link_failure(link, failure, 1, 1);
    }
}


static ngx_int_t
ngx_rl_link_probed(void *data, ngx_rl_reply_t *reply,
    ngx_rl_failure_e failure)
{
    ngx_rl_link_t *link = data;

    if (failure == NGX_RL_OK && reply->type == REDIS_REPLY_ERROR
        && !(link->guide.redirect
             && ngx_rl_redis_elsewhere(reply)))
    {
        failure = ngx_rl_failure(reply->str, reply->len);
    }

    if (failure == NGX_RL_OK) {
        ngx_rl_link_success(link, 1);
        link->closed = link->stats->breaker.closed;

    } else {
        ngx_rl_link_tell(link, failure, reply);
        ngx_rl_link_failure(link, failure, 1, 1);
    }

    return NGX_OK;
}


/* whether another worker has a connection, as this one has none */

static ngx_uint_t
ngx_rl_link_elsewhere(ngx_rl_link_t *link)
{
    ngx_rl_gauges_t  sum;

    ngx_rl_stats_sum(link->all, link->stats, &sum);

    return sum.connections > 0;
}


static ngx_uint_t
ngx_rl_link_is_loud(void *data,
    ngx_rl_failure_e failure)
{
    return ngx_rl_link_loud(data, failure);
}


ngx_uint_t
ngx_rl_link_loud(ngx_rl_link_t *link,
    ngx_rl_failure_e failure)
{
    return ngx_rl_stats_loud(link->stats, failure);
}


/* between distributed and fallback */

static void
ngx_rl_link_changed(ngx_rl_link_t *link,
    ngx_rl_breaker_e state, ngx_rl_failure_e failure)
{
    u_char  more[NGX_RL_LINK_MORE];

    if (!ngx_rl_link_news(link, state, &link->stats->changes,
                                      more))
    {
        return;
    }

    if (state == NGX_RL_DISTRIBUTED) {
        ngx_log_error(NGX_LOG_NOTICE, link->log, 0,
                      "ratelimit shard %V is distributed again%s",
                      &link->peer->label, more);

        ngx_rl_link_forget(link);
        return;
    }

    ngx_log_error(NGX_LOG_NOTICE, link->log, 0,
                  "ratelimit shard %V is in state %s, failure: %s%s",
                  &link->peer->label, ngx_rl_breaker_name(state),
                  ngx_rl_failure_name(failure), more);
}


static void
ngx_rl_link_opened(ngx_rl_link_t *link,
    ngx_rl_failure_e failure)
{
    u_char  more[NGX_RL_LINK_MORE];

    if (!ngx_rl_link_news(link, NGX_RL_CIRCUIT_OPEN,
                                      &link->stats->outages, more))
    {
        return;
    }

    ngx_log_error(NGX_LOG_ERR, link->log, 0,
                  "ratelimit: redis %V is unavailable (%s), %s until it "
                  "answers%s", &link->peer->label,
                  ngx_rl_failure_name(failure),
                  link->peer->outage, more);
}


static void
ngx_rl_link_reclosed(ngx_rl_link_t *link)
{
    u_char             more[NGX_RL_LINK_MORE];
    ngx_atomic_uint_t  opened;

    opened = link->stats->opened;

    if (!ngx_rl_link_news(link, NGX_RL_DISTRIBUTED,
                                      &link->stats->outages, more))
    {
        return;
    }

    ngx_log_error(NGX_LOG_ERR, link->log, 0,
                  "ratelimit: redis %V is available again after %uA s%s",
                  &link->peer->label,
                  ngx_max(link->stats->opened - opened, 1), more);

    ngx_rl_link_forget(link);
}


/*
 * A change is counted.  Returns whether it is to be logged, and then what to
 * add about those before it that were not.
 */

static ngx_uint_t
ngx_rl_link_news(ngx_rl_link_t *link,
    ngx_rl_breaker_e state, ngx_rl_lines_t *lines,
    u_char *more)
{
    ngx_atomic_uint_t                  untold;
    ngx_rl_shard_stats_t  *stats;

    stats = link->stats;

    ngx_rl_count(stats->transitions[state]);

    stats->opened = ngx_rl_stats_seconds();

    if (!ngx_rl_stats_may_tell(lines)) {
        ngx_rl_count(lines->untold);
        return 0;
    }

    untold = lines->untold;
    lines->untold = 0;

    *more = '\0';

    if (untold) {
        ngx_sprintf(more, ", unlogged changes before this one: %uA%Z", untold);
    }

    return 1;
}


/* the server is well: what fails from now on is told anew */

static void
ngx_rl_link_forget(ngx_rl_link_t *link)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_RL_FAILURES; i++) {
        link->stats->logged[i] = 0;
    }
}


/* changes were left out of the log, and now it is quiet: it shall say so */

static void
ngx_rl_link_settled(ngx_rl_link_t *link)
{
    ngx_atomic_uint_t                  untold;
    ngx_rl_shard_stats_t  *stats;

    stats = link->stats;

    if (stats->breaker.state != NGX_RL_DISTRIBUTED) {
        return;
    }

    untold = ngx_rl_stats_untold(&stats->outages);

    if (untold) {
        ngx_log_error(NGX_LOG_ERR, link->log, 0,
                      "ratelimit: redis %V is available again, unlogged "
                      "changes before this one: %uA",
                      &link->peer->label, untold);
    }

    untold = ngx_rl_stats_untold(&stats->changes);

    if (untold) {
        ngx_log_error(NGX_LOG_NOTICE, link->log, 0,
                      "ratelimit shard %V is distributed again, unlogged "
                      "changes before this one: %uA",
                      &link->peer->label, untold);
    }
}


/* an outage is told at its beginning and then once a minute */

static void
ngx_rl_link_still_open(ngx_rl_link_t *link)
{
    ngx_atomic_uint_t                  now, opened, still;
    ngx_rl_shard_stats_t  *stats;

    stats = link->stats;

    now = ngx_rl_stats_seconds();
    opened = stats->opened;
    still = stats->still;

    if (!ngx_rl_stats_minute(now, ngx_max(opened, still))
        || !ngx_atomic_cmp_set(&stats->still, still, now))
    {
        return;
    }

    ngx_log_error(NGX_LOG_ERR, link->log, 0,
                  "ratelimit: redis %V is still unavailable after %uA s (%s)",
                  &link->peer->label, now - opened,
                  ngx_rl_failure_name(
                      (ngx_rl_failure_e) stats->failure));
}
