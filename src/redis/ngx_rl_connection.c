
/*
 * One connection per worker and server carries everything.
 *
 *                            HANDSHAKE
 *                            ^       |  with TLS
 *                            |       v
 *     IDLE ----> CONNECTING -+--> GREETING ----> READY
 *      ^             |               |             |
 *      |             +-------+-------+             | lost: at once, if it
 *      | nginx               v                     | had lived for a second
 *      | is exiting       WAITING <----------------+
 *      +---------------------+ as long as the owner says, then CONNECTING
 *
 * What it carries while READY is the business of its pipe, and how it gets from
 * CONNECTING to there that of its greeting: each has a file.
 *
 * A server that gets other addresses gets another connection.  The old one
 * retires: it is read until its last reply is there.
 */


#include "redis/ngx_rl_connection.h"
#include "redis/ngx_rl_pipeline.h"
#include "redis/ngx_rl_connection_internal.h"

#include <poll.h>


#define NGX_RL_REDIS_STABLE  1000           /* ms */


static void ngx_rl_redis_connect(ngx_rl_redis_t *redis);
static void ngx_rl_redis_timer_handler(ngx_event_t *ev);
static ngx_addr_t *ngx_rl_redis_copy(ngx_addr_t *addrs,
    ngx_uint_t n, ngx_log_t *log);
static void ngx_rl_redis_disconnect(
    ngx_rl_redis_t *redis);
static void ngx_rl_redis_destroy(ngx_event_t *ev);
static u_char *ngx_rl_redis_log_error(ngx_log_t *log, u_char *buf,
    size_t len);


static ngx_queue_t  ngx_rl_redis_all = {
    &ngx_rl_redis_all, &ngx_rl_redis_all
};


ngx_rl_redis_t *
ngx_rl_redis_create(ngx_log_t *log,
    ngx_rl_redis_conf_t *conf,
    ngx_rl_redis_owner_t *owner)
{
    ngx_rl_redis_t  *redis;

    redis = ngx_calloc(sizeof(ngx_rl_redis_t), log);
    if (redis == NULL) {
        return NULL;
    }

    redis->conf = conf;
    redis->owner = owner;
    redis->addrs = conf->addrs;
    redis->naddrs = conf->naddrs;
    redis->gauges = ngx_rl_stats_gauges(owner->stats);
    redis->ident = (ngx_socket_t) -1;
    redis->cycle_log = log;
    redis->failure = NGX_RL_REFUSED;
    redis->created = ngx_current_msec;

    /* a copy: its level goes down while repeated failures are kept quiet */

    redis->log = *log;
    redis->log.handler = ngx_rl_redis_log_error;
    redis->log.data = redis;

    ngx_queue_init(&redis->waiting);
    ngx_queue_init(&redis->sent);

    redis->flush.handler = ngx_rl_pipe_flush_handler;
    redis->flush.data = redis;
    redis->flush.log = &redis->log;

    redis->timer.handler = ngx_rl_redis_timer_handler;
    redis->timer.data = redis;
    redis->timer.log = &redis->log;
    redis->timer.cancelable = 1;

    ngx_queue_insert_tail(&ngx_rl_redis_all, &redis->queue);

    return redis;
}


ngx_rl_failure_e
ngx_rl_redis_check(ngx_rl_redis_t *redis)
{
    if (redis->state == NGX_RL_REDIS_IDLE && redis->naddrs) {
        ngx_rl_redis_connect(redis);
    }

    if (redis->connection) {
        return NGX_RL_OK;
    }

    /* nobody knows where it is yet, but soon somebody may */

    if (redis->naddrs == 0
        && ngx_current_msec - redis->created < redis->conf->connect_timeout)
    {
        return NGX_RL_OK;
    }

    return redis->failure;
}


void
ngx_rl_redis_wake(ngx_rl_redis_t *redis)
{
    if (redis->state != NGX_RL_REDIS_WAITING
        && redis->state != NGX_RL_REDIS_IDLE)
    {
        return;
    }

    if (redis->naddrs == 0) {
        return;
    }

    if (redis->timer.timer_set) {
        ngx_del_timer(&redis->timer);
    }

    ngx_rl_redis_connect(redis);
}


void
ngx_rl_redis_plan(ngx_rl_redis_t *redis)
{
    if (redis->state == NGX_RL_REDIS_IDLE && redis->naddrs
        && !ngx_exiting)
    {
        redis->state = NGX_RL_REDIS_WAITING;
        ngx_add_timer(&redis->timer, 1);
    }
}


ngx_uint_t
ngx_rl_redis_ready(ngx_rl_redis_t *redis)
{
    return redis->state == NGX_RL_REDIS_READY;
}


static void
ngx_rl_redis_connect(ngx_rl_redis_t *redis)
{
    ngx_err_t                      err;
    ngx_int_t                      rc;
    ngx_addr_t                    *addr;
    ngx_connection_t              *c;
    ngx_peer_connection_t          pc;
    ngx_rl_failure_e   failure;

    redis->state = NGX_RL_REDIS_CONNECTING;
    redis->generation++;
    redis->greeted = 0;
    redis->grace = redis->conf->connect_timeout;

    addr = &redis->addrs[redis->address % redis->naddrs];

    ngx_memzero(&pc, sizeof(ngx_peer_connection_t));

    pc.sockaddr = addr->sockaddr;
    pc.socklen = addr->socklen;
    pc.name = &addr->name;
    pc.get = ngx_event_get_peer;
    pc.log = &redis->log;
    pc.log_error = NGX_ERROR_INFO;
    pc.so_keepalive = (addr->sockaddr->sa_family != AF_UNIX);

    redis->reader = ngx_rl_reader_create();
    if (redis->reader == NULL) {
        ngx_rl_redis_close(redis, NGX_RL_OVERLOAD);
        return;
    }

    /* nginx logs a connect() that fails at once by itself: not each of them */

    redis->log.log_level = ngx_min(redis->cycle_log->log_level, NGX_LOG_ALERT);

    ngx_set_errno(0);
    rc = ngx_event_connect_peer(&pc);
    err = ngx_socket_errno;

    redis->log.log_level = redis->cycle_log->log_level;

    ngx_log_debug3(NGX_LOG_DEBUG_EVENT, &redis->log, 0,
                   "ratelimit redis connect to %V: %i, fd:%d", &addr->name, rc,
                   pc.connection ? pc.connection->fd : (ngx_socket_t) -1);

    if (rc != NGX_OK && rc != NGX_AGAIN) {

        /* no server, or no socket */

        failure = (rc == NGX_DECLINED) ? NGX_RL_REFUSED
                                       : NGX_RL_OVERLOAD;

        if (ngx_rl_redis_loud(redis, failure)) {
            ngx_log_error(NGX_LOG_ERR, &redis->log, err,
                          "connect() to %V failed", &addr->name);
        }

        ngx_rl_redis_close(redis, failure);
        return;
    }

    c = pc.connection;
    c->data = redis;
    c->read->handler = ngx_rl_pipe_read_handler;
    c->write->handler = ngx_rl_pipe_write_handler;

    redis->connection = c;

    ngx_add_timer(&redis->timer, redis->conf->connect_timeout);

    if (rc == NGX_OK) {
        ngx_rl_pipe_write_handler(c->write);
    }
}


ngx_addr_t *
ngx_rl_redis_addr(ngx_rl_redis_t *redis)
{
    return redis->naddrs ? &redis->addrs[redis->address % redis->naddrs]
                         : NULL;
}


ngx_uint_t
ngx_rl_redis_loud(ngx_rl_redis_t *redis,
    ngx_rl_failure_e failure)
{
    return redis->owner->loud(redis->owner->data, failure);
}


static void
ngx_rl_redis_timer_handler(ngx_event_t *ev)
{
    ngx_msec_t                   age, delay, late;
    ngx_uint_t                   generation;
    ngx_queue_t                 *q;
    ngx_rl_slot_t   *slot;
    ngx_rl_redis_t  *redis;

    redis = ev->data;
    late = ngx_rl_redis_late(ev);

    /* what has arrived meanwhile is in time, see the pipe */

    if (redis->connection) {
        generation = redis->generation;

        ngx_rl_pipe_look(redis);

        if (redis->generation != generation || redis->connection == NULL
            || ev->timer_set)
        {
            return;
        }
    }

    switch (redis->state) {

    case NGX_RL_REDIS_WAITING:

        if (ngx_exiting) {
            redis->state = NGX_RL_REDIS_IDLE;
            return;
        }

        delay = redis->owner->may_connect(redis->owner->data);

        if (delay) {
            ngx_add_timer(ev, delay);
            return;
        }

        ngx_rl_redis_connect(redis);
        return;

    case NGX_RL_REDIS_READY:

        if (ngx_queue_empty(&redis->sent)) {
            return;
        }

        q = ngx_queue_head(&redis->sent);
        slot = ngx_queue_data(q, ngx_rl_slot_t, queue);

        if (slot->timer.timer_set) {
            /* not even late; if it will be, this timer is set again */
            return;
        }

        age = ngx_current_msec - slot->expired;

        if (age < NGX_RL_REDIS_STALL) {
            ngx_add_timer(ev, NGX_RL_REDIS_STALL - age);
            return;
        }

        break;

    default: /* connecting, handshake, greeting */

        late = ngx_min(late, redis->grace);

        if (late > NGX_RL_REDIS_HELD) {
            redis->grace -= late;
            ngx_add_timer(ev, late);
            return;
        }

        break;
    }

    /* not by the class of the late calls, or this would never be told */

    if (ngx_rl_redis_loud(redis,
                              redis->state == NGX_RL_REDIS_READY
                              ? NGX_RL_CLOSED
                              : redis->state
                                == NGX_RL_REDIS_HANDSHAKE
                              ? NGX_RL_TLS
                              : NGX_RL_REFUSED))
    {
        ngx_log_error(NGX_LOG_ERR, &redis->log, NGX_ETIMEDOUT, "redis %s",
                      redis->state == NGX_RL_REDIS_READY
                      ? "does not answer any more, connection closed"
                      : redis->state == NGX_RL_REDIS_GREETING
                      ? "does not answer a new connection"
                      : redis->state == NGX_RL_REDIS_HANDSHAKE
                      ? "does not answer a TLS handshake: does it expect one?"
                      : "connect() timed out");
    }

    ngx_rl_redis_close(redis, NGX_RL_TIMEOUT);
}


void
ngx_rl_redis_keep(ngx_rl_redis_t *redis)
{
    redis->kept++;

    if (redis->connection) {
        redis->connection->idle = 0;
    }
}


void
ngx_rl_redis_release(ngx_rl_redis_t *redis)
{
    /* the next reply makes the connection idle */

    redis->kept--;
}


void
ngx_rl_redis_rest(ngx_rl_redis_t *redis)
{
    if (redis->slots) {
        return;
    }

    if (redis->timer.timer_set) {
        ngx_del_timer(&redis->timer);
    }

    ngx_rl_redis_disconnect(redis);

    redis->state = NGX_RL_REDIS_IDLE;
}


ngx_uint_t
ngx_rl_redis_unused(ngx_rl_redis_t *redis)
{
    ngx_queue_t                 *q;
    ngx_rl_redis_t  *other;

    if (redis->slots || redis->connection || redis->timer.timer_set) {
        return 0;
    }

    for (q = ngx_queue_head(&ngx_rl_redis_all);
         q != ngx_queue_sentinel(&ngx_rl_redis_all);
         q = ngx_queue_next(q))
    {
        other = ngx_queue_data(q, ngx_rl_redis_t, queue);

        if (other != redis && other->owner == redis->owner) {
            return 0;
        }
    }

    return 1;
}


ngx_int_t
ngx_rl_redis_move(ngx_rl_redis_t *redis,
    ngx_addr_t *addrs, ngx_uint_t n, ngx_uint_t drop)
{
    ngx_uint_t   i, stays;
    ngx_addr_t  *copy, *addr;
    ngx_queue_t  failed;

    stays = 0;
    addr = redis->connection ? ngx_rl_redis_addr(redis) : NULL;

    for (i = 0; addr && i < n; i++) {
        if (ngx_cmp_sockaddr(addr->sockaddr, addr->socklen, addrs[i].sockaddr,
                             addrs[i].socklen, 1)
            == NGX_OK)
        {
            stays = 1;
            break;
        }
    }

    if (addr && !stays && !drop) {
        return NGX_DECLINED;
    }

    copy = n ? ngx_rl_redis_copy(addrs, n, redis->cycle_log) : NULL;
    if (copy == NULL && n) {
        return NGX_ERROR;
    }

    if (redis->moved) {
        ngx_free(redis->addrs);
    }

    redis->addrs = copy;
    redis->naddrs = n;
    redis->moved = (n != 0);
    redis->address = stays ? i : 0;

    if (stays) {
        return NGX_OK;
    }

    ngx_queue_init(&failed);

    if (addr) {
        ngx_rl_redis_disconnect(redis);

        if (!ngx_queue_empty(&redis->sent)) {
            ngx_queue_add(&failed, &redis->sent);
            ngx_queue_init(&redis->sent);
        }

        redis->state = NGX_RL_REDIS_IDLE;
    }

    if (n == 0) {

        if (redis->timer.timer_set) {
            ngx_del_timer(&redis->timer);
        }

        redis->state = NGX_RL_REDIS_IDLE;
        redis->created = ngx_current_msec;
    }

    /* what waits for a connection has one in a moment */

    ngx_rl_redis_wake(redis);
    ngx_rl_pipe_fail(redis, &failed, NGX_RL_CLOSED);

    return NGX_OK;
}


/* in one piece of memory */

static ngx_addr_t *
ngx_rl_redis_copy(ngx_addr_t *addrs, ngx_uint_t n, ngx_log_t *log)
{
    u_char      *p;
    size_t       size;
    ngx_uint_t   i;
    ngx_addr_t  *copy;

    size = n * sizeof(ngx_addr_t);

    for (i = 0; i < n; i++) {
        size += ngx_align(addrs[i].socklen, NGX_ALIGNMENT)
                + ngx_align(addrs[i].name.len, NGX_ALIGNMENT);
    }

    copy = ngx_alloc(size, log);
    if (copy == NULL) {
        return NULL;
    }

    p = (u_char *) &copy[n];

    for (i = 0; i < n; i++) {
        copy[i].socklen = addrs[i].socklen;
        copy[i].sockaddr = (struct sockaddr *) p;
        ngx_memcpy(p, addrs[i].sockaddr, addrs[i].socklen);
        p += ngx_align(addrs[i].socklen, NGX_ALIGNMENT);

        copy[i].name.len = addrs[i].name.len;
        copy[i].name.data = p;
        ngx_memcpy(p, addrs[i].name.data, addrs[i].name.len);
        p += ngx_align(addrs[i].name.len, NGX_ALIGNMENT);
    }

    return copy;
}


void
ngx_rl_redis_close(ngx_rl_redis_t *redis,
    ngx_rl_failure_e failure)
{
    ngx_msec_t   delay;
    ngx_uint_t   stable;
    ngx_queue_t  failed;

    stable = redis->state == NGX_RL_REDIS_READY
             && ngx_current_msec - redis->ready
                >= NGX_RL_REDIS_STABLE;

    if (redis->state != NGX_RL_REDIS_READY) {
        redis->address++;
    }

    if (redis->timer.timer_set) {
        ngx_del_timer(&redis->timer);
    }

    ngx_rl_redis_disconnect(redis);

    ngx_queue_init(&failed);

    if (!ngx_queue_empty(&redis->sent)) {
        ngx_queue_add(&failed, &redis->sent);
        ngx_queue_init(&redis->sent);
    }

    if (!ngx_queue_empty(&redis->waiting)) {
        ngx_queue_add(&failed, &redis->waiting);
        ngx_queue_init(&redis->waiting);
    }

    /* who asks before there is a connection again is told why there is none */

    redis->failure = (failure == NGX_RL_OK)
                     ? NGX_RL_CLOSED : failure;
    redis->state = NGX_RL_REDIS_WAITING;

    if (redis->retired) {
        ngx_rl_pipe_fail(redis, &failed, failure);

        /* its end may have been posted before, and was forgotten above */

        ngx_rl_redis_end(redis);
        return;
    }

    delay = redis->owner->closed(redis->owner->data, failure, stable);

    if (ngx_exiting || delay == NGX_TIMER_INFINITE) {
        /* from now on a connection is made only when one is needed */
        redis->state = NGX_RL_REDIS_IDLE;

    } else if (delay) {
        ngx_add_timer(&redis->timer, delay);

    } else {
        ngx_rl_redis_connect(redis);
    }

    ngx_rl_pipe_fail(redis, &failed, failure);
}


static void
ngx_rl_redis_disconnect(ngx_rl_redis_t *redis)
{
    if (redis->connection) {

        if (redis->flush.posted) {
            ngx_delete_posted_event(&redis->flush);
        }

        ngx_rl_tls_close(redis->connection);
        ngx_close_connection(redis->connection);
        redis->connection = NULL;
    }

    if (redis->state == NGX_RL_REDIS_READY) {
        redis->gauges->connections--;
    }

    if (redis->reader) {
        ngx_rl_reader_free(redis->reader);
        redis->reader = NULL;
    }

    redis->out_pos = redis->out;
    redis->out_last = redis->out;
}


void
ngx_rl_redis_retire(ngx_rl_redis_t *redis,
    ngx_rl_redis_t *heir)
{
    ngx_queue_t                *q;
    ngx_rl_slot_t  *slot;

    redis->retired = 1;

    while (!ngx_queue_empty(&redis->waiting)) {
        q = ngx_queue_head(&redis->waiting);
        ngx_queue_remove(q);

        slot = ngx_queue_data(q, ngx_rl_slot_t, queue);

        if (ngx_rl_redis_forward(slot, heir, slot->asking)
            == NGX_RL_OK)
        {
            slot->hops--;

        } else {
            /* until there is a connection, or its time is over */

            ngx_rl_pipe_give(slot, heir);
            ngx_queue_insert_tail(&heir->waiting, q);
        }
    }

    heir->kept += redis->kept;
    redis->kept = 0;

    ngx_rl_redis_end(redis);
}


void
ngx_rl_redis_end(ngx_rl_redis_t *redis)
{
    if (redis->retired && redis->slots == 0) {
        ngx_post_event(&redis->flush, &ngx_posted_events);
        redis->flush.handler = ngx_rl_redis_destroy;
    }
}


static void
ngx_rl_redis_destroy(ngx_event_t *ev)
{
    ngx_rl_redis_t  *redis;

    redis = ev->data;

    if (ev->posted) {
        ngx_delete_posted_event(ev);
    }

    if (redis->timer.timer_set) {
        ngx_del_timer(&redis->timer);
    }

    ngx_rl_redis_disconnect(redis);
    ngx_queue_remove(&redis->queue);

    if (redis->moved) {
        ngx_free(redis->addrs);
    }

    if (redis->out) {
        ngx_free(redis->out);
    }

    ngx_rl_tls_forget(&redis->session);

    ngx_free(redis);
}


void
ngx_rl_redis_exit(ngx_rl_redis_t *redis)
{
    ngx_queue_t                *q;
    ngx_rl_slot_t  *slot;

    if (redis->timer.timer_set) {
        ngx_del_timer(&redis->timer);
    }

    ngx_rl_redis_disconnect(redis);

    redis->state = NGX_RL_REDIS_IDLE;

    if (!ngx_queue_empty(&redis->waiting)) {
        ngx_queue_add(&redis->sent, &redis->waiting);
        ngx_queue_init(&redis->waiting);
    }

    while (!ngx_queue_empty(&redis->sent)) {
        q = ngx_queue_head(&redis->sent);
        ngx_queue_remove(q);

        slot = ngx_queue_data(q, ngx_rl_slot_t, queue);
        ngx_rl_pipe_free_slot(slot);
    }

    ngx_rl_redis_destroy(&redis->flush);
}


/*
 * Refunds that are sent when the process ends may be more than a socket takes
 * at once, and their replies have to be read.  All servers are waited for
 * together: those that don't answer cost no more time than one of them.
 */

ngx_int_t
ngx_rl_redis_turn(ngx_msec_t timeout)
{
    int                           rc;
    ngx_uint_t                    i, n;
    ngx_queue_t                  *q;
    struct pollfd                *pfds;
    ngx_connection_t             *c;
    ngx_rl_redis_t   *redis, **all;

    n = 0;

    for (q = ngx_queue_head(&ngx_rl_redis_all);
         q != ngx_queue_sentinel(&ngx_rl_redis_all);
         q = ngx_queue_next(q))
    {
        n++;
    }

    all = ngx_alloc(n * (sizeof(ngx_rl_redis_t *)
                         + sizeof(struct pollfd)),
                    ngx_cycle->log);
    if (all == NULL) {
        return NGX_DECLINED;
    }

    pfds = (struct pollfd *) &all[n];
    n = 0;

    for (q = ngx_queue_head(&ngx_rl_redis_all);
         q != ngx_queue_sentinel(&ngx_rl_redis_all);
         q = ngx_queue_next(q))
    {
        redis = ngx_queue_data(q, ngx_rl_redis_t, queue);

        if (redis->connection == NULL || redis->slots == 0) {
            continue;
        }

        pfds[n].fd = redis->connection->fd;
        pfds[n].events = (redis->out_pos < redis->out_last
                          || redis->state
                             == NGX_RL_REDIS_CONNECTING)
                         ? POLLIN|POLLOUT : POLLIN;
        all[n++] = redis;
    }

    rc = n ? poll(pfds, n, (int) timeout) : 0;

    if (rc == -1 && ngx_errno == NGX_EINTR) {
        ngx_free(all);
        return NGX_OK;
    }

    for (i = 0; rc > 0 && i < n; i++) {

        /* what one of them is told may end the connection of another */

        c = all[i]->connection;

        if (c && c->fd == pfds[i].fd && (pfds[i].revents & POLLOUT)) {
            c->write->ready = 1;
            c->write->handler(c->write);

            c = all[i]->connection;
        }

        if (c && c->fd == pfds[i].fd && (pfds[i].revents & ~POLLOUT)) {
            c->read->ready = 1;
            c->read->available = -1;
            c->read->handler(c->read);
        }
    }

    ngx_free(all);

    return (rc > 0) ? NGX_OK : NGX_DECLINED;
}


void
ngx_rl_redis_done(void)
{
    ngx_queue_t                 *q;
    ngx_rl_redis_t  *redis;

    while (!ngx_queue_empty(&ngx_rl_redis_all)) {
        q = ngx_queue_head(&ngx_rl_redis_all);
        redis = ngx_queue_data(q, ngx_rl_redis_t, queue);

        ngx_rl_redis_exit(redis);
    }

    ngx_rl_pipe_done();
}


static u_char *
ngx_rl_redis_log_error(ngx_log_t *log, u_char *buf, size_t len)
{
    ngx_rl_redis_t  *redis;

    redis = log->data;

    return ngx_snprintf(buf, len, ", redis: %V", &redis->conf->name);
}
