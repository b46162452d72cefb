
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
#include "core/ngx_rl_core.h"
#include "redis/ngx_rl_pipeline.h"
#include "redis/ngx_rl_connection_internal.h"

#include <poll.h>


#define NGX_RL_CONNECTION_STABLE  1000           /* ms */


static void ngx_rl_connection_connect(ngx_rl_connection_t *connection);
static void ngx_rl_connection_timer_handler(ngx_event_t *ev);
static ngx_addr_t *ngx_rl_connection_copy(ngx_addr_t *addrs,
    ngx_uint_t n, ngx_log_t *log);
static void ngx_rl_connection_disconnect(ngx_rl_connection_t *connection);
static void ngx_rl_connection_destroy(ngx_event_t *ev);
static u_char *ngx_rl_connection_log_error(ngx_log_t *log, u_char *buf,
    size_t len);


static ngx_queue_t  ngx_rl_connection_all = {
    &ngx_rl_connection_all, &ngx_rl_connection_all
};


ngx_rl_connection_t *
ngx_rl_connection_create(ngx_log_t *log, ngx_rl_connection_conf_t *conf,
    const ngx_rl_events_t *events, void *owner,
    ngx_rl_traffic_t *traffic, ngx_rl_gauges_t *gauges)
{
    ngx_rl_connection_t  *connection;

    connection = ngx_calloc(sizeof(ngx_rl_connection_t), log);
    if (connection == NULL) {
        return NULL;
    }

    connection->conf = conf;
    connection->owner = owner;
    connection->events = events;
    connection->traffic = traffic;
    connection->gauges = gauges;
    connection->addrs = conf->addrs;
    connection->naddrs = conf->naddrs;
    connection->cycle_log = log;
    connection->failure = NGX_RL_REFUSED;
    connection->created = ngx_current_msec;

    /* a copy: its level goes down while repeated failures are kept quiet */

    connection->log = *log;
    connection->log.handler = ngx_rl_connection_log_error;
    connection->log.data = connection;

    ngx_queue_init(&connection->waiting);
    ngx_queue_init(&connection->sent);

    ngx_rl_event_init(&connection->flush, ngx_rl_connection_t,
                      ngx_rl_pipeline_flush_handler, connection,
                      &connection->log);

    ngx_rl_event_init(&connection->timer, ngx_rl_connection_t,
                      ngx_rl_connection_timer_handler, connection,
                      &connection->log);
    connection->timer.cancelable = 1;

    ngx_queue_insert_tail(&ngx_rl_connection_all, &connection->queue);

    return connection;
}


ngx_rl_failure_e
ngx_rl_connection_check(ngx_rl_connection_t *connection)
{
    if (connection->state == NGX_RL_CONNECTION_IDLE && connection->naddrs) {
        ngx_rl_connection_connect(connection);
    }

    if (connection->c) {
        return NGX_RL_OK;
    }

    /* nobody knows where it is yet, but soon somebody may */

    if (connection->naddrs == 0
        && ngx_current_msec - connection->created
           < connection->conf->connect_timeout)
    {
        return NGX_RL_OK;
    }

    return connection->failure;
}


void
ngx_rl_connection_wake(ngx_rl_connection_t *connection)
{
    if (connection->state != NGX_RL_CONNECTION_WAITING
        && connection->state != NGX_RL_CONNECTION_IDLE)
    {
        return;
    }

    if (connection->naddrs == 0) {
        return;
    }

    if (connection->timer.timer_set) {
        ngx_del_timer(&connection->timer);
    }

    ngx_rl_connection_connect(connection);
}


void
ngx_rl_connection_schedule(ngx_rl_connection_t *connection)
{
    if (connection->state == NGX_RL_CONNECTION_IDLE && connection->naddrs
        && !ngx_exiting)
    {
        connection->state = NGX_RL_CONNECTION_WAITING;
        ngx_add_timer(&connection->timer, 1);
    }
}


ngx_uint_t
ngx_rl_connection_ready(ngx_rl_connection_t *connection)
{
    return connection->state == NGX_RL_CONNECTION_READY;
}


static void
ngx_rl_connection_connect(ngx_rl_connection_t *connection)
{
    ngx_err_t              err;
    ngx_int_t              rc;
    ngx_addr_t            *addr;
    ngx_connection_t      *c;
    ngx_rl_failure_e       failure;
    ngx_peer_connection_t  pc;

    connection->state = NGX_RL_CONNECTION_CONNECTING;
    connection->generation++;
    connection->steps = 0;
    connection->grace = connection->conf->connect_timeout;

    addr = &connection->addrs[connection->address % connection->naddrs];

    ngx_memzero(&pc, sizeof(ngx_peer_connection_t));

    pc.sockaddr = addr->sockaddr;
    pc.socklen = addr->socklen;
    pc.name = &addr->name;
    pc.get = ngx_event_get_peer;
    pc.log = &connection->log;
    pc.log_error = NGX_ERROR_INFO;
    pc.so_keepalive = (addr->sockaddr->sa_family != AF_UNIX);

    connection->reader = ngx_rl_reader_create();
    if (connection->reader == NULL) {
        ngx_rl_connection_close(connection, NGX_RL_OVERLOAD);
        return;
    }

    /* nginx logs a connect() that fails at once by itself: not each of them */

    connection->log.log_level = ngx_min(connection->cycle_log->log_level,
                                        NGX_LOG_ALERT);

    ngx_set_errno(0);
    rc = ngx_event_connect_peer(&pc);
    err = ngx_socket_errno;

    connection->log.log_level = connection->cycle_log->log_level;

    ngx_log_debug3(NGX_LOG_DEBUG_EVENT, &connection->log, 0,
                   "ratelimit redis connect to %V: %i, fd:%d", &addr->name, rc,
                   pc.connection ? pc.connection->fd : (ngx_socket_t) -1);

    if (rc != NGX_OK && rc != NGX_AGAIN) {

        /* no server, or no socket */

        failure = (rc == NGX_DECLINED) ? NGX_RL_REFUSED
                                       : NGX_RL_OVERLOAD;

        if (ngx_rl_connection_may_log(connection, failure)) {
            ngx_log_error(NGX_LOG_ERR, &connection->log, err,
                          "connect() to %V failed", &addr->name);
        }

        ngx_rl_connection_close(connection, failure);
        return;
    }

    c = pc.connection;
    c->data = connection;
    c->read->handler = ngx_rl_pipeline_read_handler;
    c->write->handler = ngx_rl_pipeline_write_handler;

    connection->c = c;

    ngx_add_timer(&connection->timer, connection->conf->connect_timeout);

    if (rc == NGX_OK) {
        ngx_rl_pipeline_write_handler(c->write);
    }
}


ngx_addr_t *
ngx_rl_connection_addr(ngx_rl_connection_t *connection)
{
    if (connection->naddrs == 0) {
        return NULL;
    }

    return &connection->addrs[connection->address % connection->naddrs];
}


ngx_uint_t
ngx_rl_connection_may_log(ngx_rl_connection_t *connection,
    ngx_rl_failure_e failure)
{
    return connection->events->may_log(connection->owner, failure);
}


static void
ngx_rl_connection_timer_handler(ngx_event_t *ev)
{
    ngx_msec_t            age, delay, late;
    ngx_uint_t            generation;
    ngx_queue_t          *q;
    ngx_rl_pending_t     *pending;
    ngx_rl_connection_t  *connection;

    connection = ev->data;
    late = ngx_rl_connection_late(ev);

    /* what has arrived meanwhile is in time, see the pipe */

    if (connection->c) {
        generation = connection->generation;

        ngx_rl_pipeline_look(connection);

        if (connection->generation != generation || connection->c == NULL
            || ev->timer_set)
        {
            return;
        }
    }

    switch (connection->state) {

    case NGX_RL_CONNECTION_WAITING:

        if (ngx_exiting) {
            connection->state = NGX_RL_CONNECTION_IDLE;
            return;
        }

        delay = connection->events->may_connect(connection->owner);

        if (delay) {
            ngx_add_timer(ev, delay);
            return;
        }

        ngx_rl_connection_connect(connection);
        return;

    case NGX_RL_CONNECTION_READY:

        if (ngx_queue_empty(&connection->sent)) {
            return;
        }

        q = ngx_queue_head(&connection->sent);
        pending = ngx_queue_data(q, ngx_rl_pending_t, queue);

        if (pending->timer.timer_set) {
            /* not even late; if it will be, this timer is set again */
            return;
        }

        age = ngx_current_msec - pending->expired;

        if (age < NGX_RL_CONNECTION_STALL) {
            ngx_add_timer(ev, NGX_RL_CONNECTION_STALL - age);
            return;
        }

        break;

    default: /* connecting, handshake, greeting */

        late = ngx_min(late, connection->grace);

        if (late > NGX_RL_CONNECTION_HELD) {
            connection->grace -= late;
            ngx_add_timer(ev, late);
            return;
        }

        break;
    }

    /* not by the class of the late calls, or this would never be told */

    if (ngx_rl_connection_may_log(connection,
                                  connection->state == NGX_RL_CONNECTION_READY
                                  ? NGX_RL_CLOSED
                                  : connection->state
                                  == NGX_RL_CONNECTION_TLS
                                  ? NGX_RL_TLS
                                  : NGX_RL_REFUSED))
    {
        ngx_log_error(NGX_LOG_ERR, &connection->log, NGX_ETIMEDOUT, "redis %s",
                      connection->state == NGX_RL_CONNECTION_READY
                      ? "does not answer any more, connection closed"
                      : connection->state == NGX_RL_CONNECTION_HANDSHAKE
                      ? "does not answer a new connection"
                      : connection->state == NGX_RL_CONNECTION_TLS
                      ? "does not answer a TLS handshake: does it expect one?"
                      : "connect() timed out");
    }

    ngx_rl_connection_close(connection, NGX_RL_TIMEOUT);
}


void
ngx_rl_connection_hold(ngx_rl_connection_t *connection)
{
    connection->holds++;

    if (connection->c) {
        connection->c->idle = 0;
    }
}


void
ngx_rl_connection_release(ngx_rl_connection_t *connection)
{
    /* the next reply makes the connection idle */

    connection->holds--;
}


void
ngx_rl_connection_close_idle(ngx_rl_connection_t *connection)
{
    if (connection->pendings) {
        return;
    }

    if (connection->timer.timer_set) {
        ngx_del_timer(&connection->timer);
    }

    ngx_rl_connection_disconnect(connection);

    connection->state = NGX_RL_CONNECTION_IDLE;
}


ngx_uint_t
ngx_rl_connection_unused(ngx_rl_connection_t *connection)
{
    ngx_queue_t          *q;
    ngx_rl_connection_t  *other;

    if (connection->pendings || connection->c || connection->timer.timer_set) {
        return 0;
    }

    for (q = ngx_queue_head(&ngx_rl_connection_all);
         q != ngx_queue_sentinel(&ngx_rl_connection_all);
         q = ngx_queue_next(q))
    {
        other = ngx_queue_data(q, ngx_rl_connection_t, queue);

        if (other != connection && other->owner == connection->owner) {
            return 0;
        }
    }

    return 1;
}


ngx_int_t
ngx_rl_connection_move(ngx_rl_connection_t *connection,
    ngx_addr_t *addrs, ngx_uint_t n, ngx_uint_t drop)
{
    ngx_uint_t   i, stays;
    ngx_addr_t  *copy, *addr;
    ngx_queue_t  failed;

    stays = 0;
    addr = connection->c ? ngx_rl_connection_addr(connection) : NULL;

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

    copy = n ? ngx_rl_connection_copy(addrs, n, connection->cycle_log) : NULL;
    if (copy == NULL && n) {
        return NGX_ERROR;
    }

    if (connection->moved) {
        ngx_free(connection->addrs);
    }

    connection->addrs = copy;
    connection->naddrs = n;
    connection->moved = (n != 0);
    connection->address = stays ? i : 0;

    if (stays) {
        return NGX_OK;
    }

    ngx_queue_init(&failed);

    if (addr) {
        ngx_rl_connection_disconnect(connection);

        if (!ngx_queue_empty(&connection->sent)) {
            ngx_queue_add(&failed, &connection->sent);
            ngx_queue_init(&connection->sent);
        }

        connection->state = NGX_RL_CONNECTION_IDLE;
    }

    if (n == 0) {

        if (connection->timer.timer_set) {
            ngx_del_timer(&connection->timer);
        }

        connection->state = NGX_RL_CONNECTION_IDLE;
        connection->created = ngx_current_msec;
    }

    /* what waits for a connection has one in a moment */

    ngx_rl_connection_wake(connection);
    ngx_rl_pipeline_fail(&failed, NGX_RL_CLOSED);

    return NGX_OK;
}


/* in one piece of memory */

static ngx_addr_t *
ngx_rl_connection_copy(ngx_addr_t *addrs, ngx_uint_t n, ngx_log_t *log)
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
ngx_rl_connection_close(ngx_rl_connection_t *connection,
    ngx_rl_failure_e failure)
{
    ngx_msec_t   delay;
    ngx_uint_t   stable;
    ngx_queue_t  failed;

    stable = connection->state == NGX_RL_CONNECTION_READY
             && ngx_current_msec - connection->ready
                >= NGX_RL_CONNECTION_STABLE;

    if (connection->state != NGX_RL_CONNECTION_READY) {
        connection->address++;
    }

    if (connection->timer.timer_set) {
        ngx_del_timer(&connection->timer);
    }

    ngx_rl_connection_disconnect(connection);

    ngx_queue_init(&failed);

    if (!ngx_queue_empty(&connection->sent)) {
        ngx_queue_add(&failed, &connection->sent);
        ngx_queue_init(&connection->sent);
    }

    if (!ngx_queue_empty(&connection->waiting)) {
        ngx_queue_add(&failed, &connection->waiting);
        ngx_queue_init(&connection->waiting);
    }

    /* who asks before there is a connection again is told why there is none */

    connection->failure = (failure == NGX_RL_OK)
                     ? NGX_RL_CLOSED : failure;
    connection->state = NGX_RL_CONNECTION_WAITING;

    if (connection->retired) {
        ngx_rl_pipeline_fail(&failed, failure);

        /* its end may have been posted before, and was forgotten above */

        ngx_rl_connection_end(connection);
        return;
    }

    delay = connection->events->closed(connection->owner, failure, stable);

    if (ngx_exiting || delay == NGX_TIMER_INFINITE) {
        /* from now on a connection is made only when one is needed */
        connection->state = NGX_RL_CONNECTION_IDLE;

    } else if (delay) {
        ngx_add_timer(&connection->timer, delay);

    } else {
        ngx_rl_connection_connect(connection);
    }

    ngx_rl_pipeline_fail(&failed, failure);
}


static void
ngx_rl_connection_disconnect(ngx_rl_connection_t *connection)
{
    if (connection->c) {

        if (connection->flush.posted) {
            ngx_delete_posted_event(&connection->flush);
        }

        ngx_rl_tls_close(connection->c);
        ngx_close_connection(connection->c);
        connection->c = NULL;
    }

    if (connection->state == NGX_RL_CONNECTION_READY) {
        connection->gauges->connections--;
    }

    if (connection->reader) {
        ngx_rl_reader_free(connection->reader);
        connection->reader = NULL;
    }

    connection->out_pos = connection->out;
    connection->out_last = connection->out;
}


void
ngx_rl_connection_retire(ngx_rl_connection_t *connection,
    ngx_rl_connection_t *heir)
{
    ngx_queue_t       *q;
    ngx_rl_pending_t  *pending;

    connection->retired = 1;

    while (!ngx_queue_empty(&connection->waiting)) {
        q = ngx_queue_head(&connection->waiting);
        ngx_queue_remove(q);

        pending = ngx_queue_data(q, ngx_rl_pending_t, queue);

        if (ngx_rl_pending_forward(pending, heir, pending->asking) == NGX_RL_OK)
        {
            pending->hops--;

        } else {
            /* until there is a connection, or its time is over */

            ngx_rl_pipeline_give(pending, heir);
            ngx_queue_insert_tail(&heir->waiting, q);
        }
    }

    heir->holds += connection->holds;
    connection->holds = 0;

    ngx_rl_connection_end(connection);
}


void
ngx_rl_connection_end(ngx_rl_connection_t *connection)
{
    if (connection->retired && connection->pendings == 0) {
        ngx_post_event(&connection->flush, &ngx_posted_events);
        connection->flush.handler = ngx_rl_connection_destroy;
    }
}


static void
ngx_rl_connection_destroy(ngx_event_t *ev)
{
    ngx_rl_connection_t  *connection;

    connection = ev->data;

    if (ev->posted) {
        ngx_delete_posted_event(ev);
    }

    if (connection->timer.timer_set) {
        ngx_del_timer(&connection->timer);
    }

    ngx_rl_connection_disconnect(connection);
    ngx_queue_remove(&connection->queue);

    if (connection->moved) {
        ngx_free(connection->addrs);
    }

    if (connection->out) {
        ngx_free(connection->out);
    }

    ngx_rl_tls_forget(&connection->session);

    ngx_free(connection);
}


void
ngx_rl_connection_exit(ngx_rl_connection_t *connection)
{
    ngx_queue_t       *q;
    ngx_rl_pending_t  *pending;

    if (connection->timer.timer_set) {
        ngx_del_timer(&connection->timer);
    }

    ngx_rl_connection_disconnect(connection);

    connection->state = NGX_RL_CONNECTION_IDLE;

    if (!ngx_queue_empty(&connection->waiting)) {
        ngx_queue_add(&connection->sent, &connection->waiting);
        ngx_queue_init(&connection->waiting);
    }

    while (!ngx_queue_empty(&connection->sent)) {
        q = ngx_queue_head(&connection->sent);
        ngx_queue_remove(q);

        pending = ngx_queue_data(q, ngx_rl_pending_t, queue);
        ngx_rl_pipeline_free(pending);
    }

    ngx_rl_connection_destroy(&connection->flush);
}


/*
 * Refunds that are sent when the process ends may be more than a socket takes
 * at once, and their replies have to be read.  All servers are waited for
 * together: those that don't answer cost no more time than one of them.
 */

ngx_int_t
ngx_rl_connection_turn(ngx_msec_t timeout)
{
    int                   rc;
    ngx_uint_t            i, n;
    ngx_queue_t          *q;
    struct pollfd        *pfds;
    ngx_connection_t     *c;
    ngx_rl_connection_t  *connection, **all;

    n = 0;

    for (q = ngx_queue_head(&ngx_rl_connection_all);
         q != ngx_queue_sentinel(&ngx_rl_connection_all);
         q = ngx_queue_next(q))
    {
        n++;
    }

    all = ngx_alloc(n * (sizeof(ngx_rl_connection_t *)
                         + sizeof(struct pollfd)), ngx_cycle->log);
    if (all == NULL) {
        return NGX_DECLINED;
    }

    pfds = (struct pollfd *) &all[n];
    n = 0;

    for (q = ngx_queue_head(&ngx_rl_connection_all);
         q != ngx_queue_sentinel(&ngx_rl_connection_all);
         q = ngx_queue_next(q))
    {
        connection = ngx_queue_data(q, ngx_rl_connection_t, queue);

        if (connection->c == NULL || connection->pendings == 0) {
            continue;
        }

        pfds[n].fd = connection->c->fd;
        pfds[n].events = (connection->out_pos < connection->out_last
                          || connection->state
                          == NGX_RL_CONNECTION_CONNECTING)
                         ? POLLIN|POLLOUT : POLLIN;
        all[n++] = connection;
    }

    rc = n ? poll(pfds, n, (int) timeout) : 0;

    if (rc == -1 && ngx_errno == NGX_EINTR) {
        ngx_free(all);
        return NGX_OK;
    }

    for (i = 0; rc > 0 && i < n; i++) {

        /* what one of them is told may end the connection of another */

        c = all[i]->c;

        if (c && c->fd == pfds[i].fd && (pfds[i].revents & POLLOUT)) {
            c->write->ready = 1;
            c->write->handler(c->write);

            c = all[i]->c;
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
ngx_rl_connection_done(void)
{
    ngx_queue_t          *q;
    ngx_rl_connection_t  *connection;

    while (!ngx_queue_empty(&ngx_rl_connection_all)) {
        q = ngx_queue_head(&ngx_rl_connection_all);
        connection = ngx_queue_data(q, ngx_rl_connection_t, queue);

        ngx_rl_connection_exit(connection);
    }

    ngx_rl_pipeline_done();
}


static u_char *
ngx_rl_connection_log_error(ngx_log_t *log, u_char *buf, size_t len)
{
    ngx_rl_connection_t  *connection;

    connection = log->data;

    return ngx_snprintf(buf, len, ", redis: %V", &connection->conf->name);
}
