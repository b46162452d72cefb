
/*
 * One connection per worker and server carries everything.
 *
 *     IDLE ----> CONNECTING ----> GREETING ----> READY
 *      ^             |               |             |
 *      |             +-------+-------+             | lost: at once, if it
 *      | nginx               v                     | had lived for a second
 *      | is exiting       WAITING <----------------+
 *      +---------------------+ as long as the owner says, then CONNECTING
 *
 * A command takes a slot.  While READY its bytes go to the output buffer, which
 * is written once per event-loop turn by a posted event; while CONNECTING or
 * GREETING they wait in the slot; while WAITING the command fails at once.
 *
 * Slots belong to the connection, never to their caller.  Replies come in the
 * order of the commands, so a slot stays in the queue until its reply has been
 * read or the connection is closed, even if its caller has timed out or gone:
 * it is then an orphan, whose reply is read and dropped.  Nothing is ever
 * resynchronised: a reply without a slot, one that its command can't have, or
 * bytes that are no reply, close the connection.  So does a server that still
 * owes a reply a while after the caller has given up, or TCP would keep a stuck
 * server's pipe open.
 *
 * All slots are failed in one place, redis_close(), after they were taken off
 * the connection.  A handler may send again from there, and may find itself on
 * another connection; the reading loop checks for that by the generation.
 *
 * Timers of slots hold up the exit of a worker, as clients wait for them; all
 * other timers are cancelable.
 */


#include <poll.h>

#include "ngx_http_ratelimit_redis.h"
#include "ngx_http_ratelimit_escape.h"


#define NGX_HTTP_RATELIMIT_REDIS_SLOTS      16384
#define NGX_HTTP_RATELIMIT_REDIS_OUT        16384       /* kept when empty */
#define NGX_HTTP_RATELIMIT_REDIS_OUT_MAX    8388608
#define NGX_HTTP_RATELIMIT_REDIS_IN         16384
#define NGX_HTTP_RATELIMIT_REDIS_STALL      500         /* ms */
#define NGX_HTTP_RATELIMIT_REDIS_STABLE     1000        /* ms */
#define NGX_HTTP_RATELIMIT_REDIS_TEXT       160         /* of an error */


typedef enum {
    NGX_HTTP_RATELIMIT_REDIS_IDLE = 0,
    NGX_HTTP_RATELIMIT_REDIS_CONNECTING,
    NGX_HTTP_RATELIMIT_REDIS_GREETING,
    NGX_HTTP_RATELIMIT_REDIS_READY,
    NGX_HTTP_RATELIMIT_REDIS_WAITING
} ngx_http_ratelimit_redis_state_e;


struct ngx_http_ratelimit_slot_s {
    ngx_queue_t                         queue;
    ngx_http_ratelimit_redis_t         *redis;

    /* -1, here as in ngx_connection_t: timers log it as a descriptor */
    ngx_socket_t                        ident;

    ngx_http_ratelimit_redis_pt         handler;  /* NULL: an orphan */
    void                               *data;
    ngx_event_t                         timer;
    ngx_msec_t                          expired;  /* when it was orphaned */
    ngx_str_t                           command;  /* not sent yet; malloc()ed */
};


struct ngx_http_ratelimit_redis_s {
    ngx_connection_t                   *connection;
    ngx_http_ratelimit_redis_conf_t    *conf;
    ngx_http_ratelimit_redis_owner_t   *owner;

    /* -1, here as in ngx_connection_t: timers log it as a descriptor */
    ngx_socket_t                        ident;

    ngx_http_ratelimit_gauges_t        *gauges;
    ngx_http_ratelimit_reader_t        *reader;
    ngx_http_ratelimit_redis_state_e    state;
    ngx_http_ratelimit_failure_e        failure;  /* of the last connection */
    ngx_uint_t                          generation;
    ngx_uint_t                          greeted;  /* replies to the greeting */
    ngx_uint_t                          address;  /* the next one to try */
    ngx_msec_t                          ready;    /* since when */

    ngx_queue_t                         waiting;  /* slots not sent */
    ngx_queue_t                         sent;     /* slots, oldest first */
    ngx_queue_t                         free;
    ngx_uint_t                          slots;    /* in waiting and sent */
    ngx_uint_t                          kept;     /* so often */

    u_char                             *out;
    u_char                             *out_pos;
    u_char                             *out_last;
    u_char                             *out_end;

    ngx_event_t                         flush;    /* posted */
    ngx_event_t                         timer;    /* connect, back-off, stall */

    ngx_pool_t                         *pool;
    ngx_log_t                           log;      /* of the connection */
    ngx_log_t                          *cycle_log;
    unsigned                            failing:1;
};


static ngx_uint_t ngx_http_ratelimit_redis_loud(
    ngx_http_ratelimit_redis_t *redis, ngx_http_ratelimit_failure_e failure);
static void ngx_http_ratelimit_redis_drain(ngx_http_ratelimit_redis_t *redis);
static void ngx_http_ratelimit_redis_connect(
    ngx_http_ratelimit_redis_t *redis);
static ngx_int_t ngx_http_ratelimit_redis_connected(
    ngx_http_ratelimit_redis_t *redis);
static void ngx_http_ratelimit_redis_greeting(
    ngx_http_ratelimit_redis_t *redis, ngx_http_ratelimit_reply_t *reply);
static void ngx_http_ratelimit_redis_is_ready(
    ngx_http_ratelimit_redis_t *redis);
static void ngx_http_ratelimit_redis_flush_handler(ngx_event_t *ev);
static void ngx_http_ratelimit_redis_write_handler(ngx_event_t *wev);
static void ngx_http_ratelimit_redis_read_handler(ngx_event_t *rev);
static void ngx_http_ratelimit_redis_reply(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_reply_t *reply);
static void ngx_http_ratelimit_redis_slot_handler(ngx_event_t *ev);
static void ngx_http_ratelimit_redis_timer_handler(ngx_event_t *ev);
static void ngx_http_ratelimit_redis_close(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_failure_e failure);
static void ngx_http_ratelimit_redis_disconnect(
    ngx_http_ratelimit_redis_t *redis);
static ngx_int_t ngx_http_ratelimit_redis_append(
    ngx_http_ratelimit_redis_t *redis, ngx_str_t *command);
static ngx_http_ratelimit_slot_t *ngx_http_ratelimit_redis_slot(
    ngx_http_ratelimit_redis_t *redis);
static void ngx_http_ratelimit_redis_free_slot(
    ngx_http_ratelimit_slot_t *slot);
static u_char *ngx_http_ratelimit_redis_log_error(ngx_log_t *log, u_char *buf,
    size_t len);


ngx_http_ratelimit_redis_t *
ngx_http_ratelimit_redis_create(ngx_pool_t *pool, ngx_log_t *log,
    ngx_http_ratelimit_redis_conf_t *conf,
    ngx_http_ratelimit_redis_owner_t *owner)
{
    ngx_http_ratelimit_redis_t  *redis;

    redis = ngx_pcalloc(pool, sizeof(ngx_http_ratelimit_redis_t));
    if (redis == NULL) {
        return NULL;
    }

    redis->conf = conf;
    redis->owner = owner;
    redis->gauges = ngx_http_ratelimit_stats_gauges(owner->stats);
    redis->pool = pool;
    redis->ident = (ngx_socket_t) -1;
    redis->cycle_log = log;

    /* a copy: its level goes down while repeated failures are kept quiet */

    redis->log = *log;
    redis->log.handler = ngx_http_ratelimit_redis_log_error;
    redis->log.data = redis;

    ngx_queue_init(&redis->waiting);
    ngx_queue_init(&redis->sent);
    ngx_queue_init(&redis->free);

    redis->flush.handler = ngx_http_ratelimit_redis_flush_handler;
    redis->flush.data = redis;
    redis->flush.log = &redis->log;

    redis->timer.handler = ngx_http_ratelimit_redis_timer_handler;
    redis->timer.data = redis;
    redis->timer.log = &redis->log;
    redis->timer.cancelable = 1;

    return redis;
}


ngx_http_ratelimit_failure_e
ngx_http_ratelimit_redis_check(ngx_http_ratelimit_redis_t *redis)
{
    if (redis->state == NGX_HTTP_RATELIMIT_REDIS_IDLE) {
        ngx_http_ratelimit_redis_connect(redis);
    }

    return redis->connection ? NGX_HTTP_RATELIMIT_OK : redis->failure;
}


ngx_http_ratelimit_failure_e
ngx_http_ratelimit_redis_send(ngx_http_ratelimit_redis_t *redis,
    ngx_str_t *command, ngx_msec_t timeout,
    ngx_http_ratelimit_redis_pt handler, void *data,
    ngx_http_ratelimit_slot_t **slotp)
{
    ngx_http_ratelimit_slot_t     *slot;
    ngx_http_ratelimit_failure_e   failure;

    failure = ngx_http_ratelimit_redis_check(redis);

    if (failure != NGX_HTTP_RATELIMIT_OK) {
        return failure;
    }

    slot = ngx_http_ratelimit_redis_slot(redis);
    if (slot == NULL) {
        return NGX_HTTP_RATELIMIT_OVERLOAD;
    }

    if (redis->state == NGX_HTTP_RATELIMIT_REDIS_READY) {

        if (ngx_http_ratelimit_redis_append(redis, command) != NGX_OK) {
            ngx_http_ratelimit_redis_free_slot(slot);
            return NGX_HTTP_RATELIMIT_OVERLOAD;
        }

        ngx_queue_insert_tail(&redis->sent, &slot->queue);
        redis->connection->idle = 0;
        ngx_post_event(&redis->flush, &ngx_posted_events);

    } else {

        slot->command.data = ngx_alloc(command->len, &redis->log);
        if (slot->command.data == NULL) {
            ngx_http_ratelimit_redis_free_slot(slot);
            return NGX_HTTP_RATELIMIT_OVERLOAD;
        }

        ngx_memcpy(slot->command.data, command->data, command->len);
        slot->command.len = command->len;

        ngx_queue_insert_tail(&redis->waiting, &slot->queue);
    }

    slot->handler = handler;
    slot->data = data;
    slot->timer.cancelable = 0;
    ngx_add_timer(&slot->timer, timeout);

    *slotp = slot;

    return NGX_HTTP_RATELIMIT_OK;
}


void
ngx_http_ratelimit_redis_cancel(ngx_http_ratelimit_slot_t *slot)
{
    slot->handler = NULL;

    if (slot->command.data) {
        ngx_queue_remove(&slot->queue);
        ngx_http_ratelimit_redis_free_slot(slot);
        return;
    }

    /* the timer goes on: the reply is still due, but nobody waits for it */

    slot->timer.cancelable = 1;
}


void
ngx_http_ratelimit_redis_quiet(ngx_http_ratelimit_slot_t *slot)
{
    slot->timer.cancelable = 1;
}


void
ngx_http_ratelimit_redis_adopt(ngx_http_ratelimit_slot_t *slot, void *data)
{
    slot->data = data;
}


ngx_uint_t
ngx_http_ratelimit_redis_ready(ngx_http_ratelimit_redis_t *redis)
{
    return redis->state == NGX_HTTP_RATELIMIT_REDIS_READY;
}


ngx_uint_t
ngx_http_ratelimit_redis_failing(ngx_http_ratelimit_redis_t *redis)
{
    return redis->failing;
}


void
ngx_http_ratelimit_redis_wake(ngx_http_ratelimit_redis_t *redis)
{
    if (redis->state != NGX_HTTP_RATELIMIT_REDIS_WAITING
        && redis->state != NGX_HTTP_RATELIMIT_REDIS_IDLE)
    {
        return;
    }

    if (redis->timer.timer_set) {
        ngx_del_timer(&redis->timer);
    }

    ngx_http_ratelimit_redis_connect(redis);
}


static ngx_uint_t
ngx_http_ratelimit_redis_loud(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_failure_e failure)
{
    return redis->owner->loud(redis->owner->data, failure);
}


void
ngx_http_ratelimit_redis_keep(ngx_http_ratelimit_redis_t *redis)
{
    redis->kept++;

    if (redis->connection) {
        redis->connection->idle = 0;
    }
}


void
ngx_http_ratelimit_redis_release(ngx_http_ratelimit_redis_t *redis)
{
    /* the next reply makes the connection idle */

    redis->kept--;
}


void
ngx_http_ratelimit_redis_exit(ngx_http_ratelimit_redis_t *redis)
{
    ngx_connection_t  *c;

    if (redis->timer.timer_set) {
        ngx_del_timer(&redis->timer);
    }

    c = redis->connection;

    if (c) {

        if (redis->state == NGX_HTTP_RATELIMIT_REDIS_READY
            && redis->out_pos < redis->out_last)
        {
            ngx_http_ratelimit_redis_drain(redis);
        }

        ngx_http_ratelimit_redis_disconnect(redis);
    }

    if (redis->out) {
        ngx_free(redis->out);
        redis->out = NULL;
    }

    redis->state = NGX_HTTP_RATELIMIT_REDIS_IDLE;
}


/*
 * The process ends, and refunds are still to be sent: maybe more than the
 * socket takes at once.  Nobody waits for the replies, but the server has to
 * get rid of them, and a socket closed with unread ones would throw away what
 * it has not sent.
 */

static void
ngx_http_ratelimit_redis_drain(ngx_http_ratelimit_redis_t *redis)
{
    u_char             buf[4096];
    ssize_t            n;
    ngx_uint_t         shut;
    struct pollfd      pfd;
    struct timespec    begin, now;
    ngx_connection_t  *c;

    c = redis->connection;
    shut = 0;

    (void) clock_gettime(CLOCK_MONOTONIC, &begin);

    for ( ;; ) {

        if (redis->out_pos < redis->out_last) {
            n = c->send(c, redis->out_pos, redis->out_last - redis->out_pos);

            if (n == NGX_ERROR) {
                return;
            }

            redis->out_pos += (n > 0) ? n : 0;
        }

        if (redis->out_pos == redis->out_last && !shut) {
            shut = 1;

            if (shutdown(c->fd, SHUT_WR) == -1) {
                return;
            }
        }

        pfd.fd = c->fd;
        pfd.events = shut ? POLLIN : POLLIN|POLLOUT;

        (void) clock_gettime(CLOCK_MONOTONIC, &now);

        if (now.tv_sec - begin.tv_sec > 1
            || poll(&pfd, 1, NGX_HTTP_RATELIMIT_REDIS_STALL) <= 0)
        {
            return;
        }

        if (pfd.revents & ~POLLOUT) {
            n = recv(c->fd, buf, sizeof(buf), 0);

            if (n == 0 || (n == -1 && ngx_errno != NGX_EAGAIN)) {
                return;
            }
        }
    }
}


static void
ngx_http_ratelimit_redis_connect(ngx_http_ratelimit_redis_t *redis)
{
    ngx_err_t                      err;
    ngx_int_t                      rc;
    ngx_addr_t                    *addr;
    ngx_connection_t              *c;
    ngx_peer_connection_t          pc;
    ngx_http_ratelimit_failure_e   failure;

    redis->state = NGX_HTTP_RATELIMIT_REDIS_CONNECTING;
    redis->generation++;
    redis->greeted = 0;

    addr = &redis->conf->addrs[redis->address % redis->conf->naddrs];

    ngx_memzero(&pc, sizeof(ngx_peer_connection_t));

    pc.sockaddr = addr->sockaddr;
    pc.socklen = addr->socklen;
    pc.name = &addr->name;
    pc.get = ngx_event_get_peer;
    pc.log = &redis->log;
    pc.log_error = NGX_ERROR_INFO;
    pc.so_keepalive = (addr->sockaddr->sa_family != AF_UNIX);

    redis->reader = ngx_http_ratelimit_reader_create();
    if (redis->reader == NULL) {
        ngx_http_ratelimit_redis_close(redis, NGX_HTTP_RATELIMIT_OVERLOAD);
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

        failure = (rc == NGX_DECLINED) ? NGX_HTTP_RATELIMIT_REFUSED
                                       : NGX_HTTP_RATELIMIT_OVERLOAD;

        if (ngx_http_ratelimit_redis_loud(redis, failure)) {
            ngx_log_error(NGX_LOG_ERR, &redis->log, err,
                          "connect() to %V failed", &addr->name);
        }

        ngx_http_ratelimit_redis_close(redis, failure);
        return;
    }

    c = pc.connection;
    c->data = redis;
    c->read->handler = ngx_http_ratelimit_redis_read_handler;
    c->write->handler = ngx_http_ratelimit_redis_write_handler;

    redis->connection = c;

    ngx_add_timer(&redis->timer, redis->conf->connect_timeout);

    if (rc == NGX_OK) {
        ngx_http_ratelimit_redis_write_handler(c->write);
    }
}


/* NGX_OK: the greeting is in the output buffer; else the connection is gone */

static ngx_int_t
ngx_http_ratelimit_redis_connected(ngx_http_ratelimit_redis_t *redis)
{
    int                             err;
    socklen_t                       len;
    ngx_uint_t                      i;
    ngx_addr_t                     *addr;
    ngx_connection_t               *c;
    ngx_http_ratelimit_greeting_t  *greeting;

    c = redis->connection;
    addr = &redis->conf->addrs[redis->address % redis->conf->naddrs];

    err = 0;
    len = sizeof(int);

    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, (void *) &err, &len) == -1) {
        err = ngx_socket_errno;
    }

    if (err) {

        if (ngx_http_ratelimit_redis_loud(redis, NGX_HTTP_RATELIMIT_REFUSED)) {
            ngx_log_error(NGX_LOG_ERR, &redis->log, err,
                          "connect() to %V failed", &addr->name);
        }

        ngx_http_ratelimit_redis_close(redis, NGX_HTTP_RATELIMIT_REFUSED);
        return NGX_ERROR;
    }

    if (addr->sockaddr->sa_family != AF_UNIX && ngx_tcp_nodelay(c) != NGX_OK) {
        ngx_http_ratelimit_redis_close(redis, NGX_HTTP_RATELIMIT_REFUSED);
        return NGX_ERROR;
    }

    redis->state = NGX_HTTP_RATELIMIT_REDIS_GREETING;

    greeting = redis->conf->greeting.elts;

    for (i = 0; i < redis->conf->greeting.nelts; i++) {

        if (ngx_http_ratelimit_redis_append(redis, &greeting[i].command)
            != NGX_OK)
        {
            ngx_http_ratelimit_redis_close(redis, NGX_HTTP_RATELIMIT_OVERLOAD);
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/*
 * A server that can't be used at all says so to any command (LOADING, NOAUTH,
 * too many clients); one that merely lacks or forbids a command that is not
 * required will do.
 */

static void
ngx_http_ratelimit_redis_greeting(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_reply_t *reply)
{
    size_t                          len;
    u_char                          text[ngx_http_ratelimit_escape_size(
                                            NGX_HTTP_RATELIMIT_REDIS_TEXT)];
    ngx_uint_t                      fatal;
    ngx_http_ratelimit_failure_e    failure;
    ngx_http_ratelimit_greeting_t  *greeting;

    greeting = redis->conf->greeting.elts;
    greeting += redis->greeted++;

    if (reply->type == REDIS_REPLY_ERROR) {

        failure = ngx_http_ratelimit_failure(reply->str, reply->len);

        fatal = greeting->required
                || (failure != NGX_HTTP_RATELIMIT_ERROR
                    && ngx_strncmp(reply->str, "NOPERM", 6) != 0);

        len = ngx_min(reply->len, NGX_HTTP_RATELIMIT_REDIS_TEXT);

        /* a server that does not know a command may repeat what it was told */

        if (greeting->secret && failure == NGX_HTTP_RATELIMIT_ERROR) {
            len = ngx_min(len, strcspn(reply->str, " "));
        }

        len = ngx_http_ratelimit_escape(text, reply->str, len);

        if (fatal) {

            if (ngx_http_ratelimit_redis_loud(redis, failure)) {
                ngx_log_error(NGX_LOG_ERR, &redis->log, 0,
                              "redis refused %V: \"%*s\"",
                              &greeting->name, len, text);
            }

            ngx_http_ratelimit_redis_close(redis, failure);
            return;
        }

        ngx_log_error(NGX_LOG_INFO, &redis->log, 0,
                      "redis refused %V, which is not needed: \"%*s\"",
                      &greeting->name, len, text);
    }

    if (redis->greeted == redis->conf->greeting.nelts) {
        ngx_http_ratelimit_redis_is_ready(redis);
    }
}


static void
ngx_http_ratelimit_redis_is_ready(ngx_http_ratelimit_redis_t *redis)
{
    ngx_queue_t                *q;
    ngx_http_ratelimit_slot_t  *slot;

    ngx_del_timer(&redis->timer);

    redis->state = NGX_HTTP_RATELIMIT_REDIS_READY;
    redis->ready = ngx_current_msec;
    redis->gauges->connections++;

    redis->owner->ready(redis->owner->data);

    while (!ngx_queue_empty(&redis->waiting)) {
        q = ngx_queue_head(&redis->waiting);
        slot = ngx_queue_data(q, ngx_http_ratelimit_slot_t, queue);

        if (ngx_http_ratelimit_redis_append(redis, &slot->command) != NGX_OK) {
            ngx_http_ratelimit_redis_close(redis, NGX_HTTP_RATELIMIT_OVERLOAD);
            return;
        }

        ngx_free(slot->command.data);
        ngx_str_null(&slot->command);

        ngx_queue_remove(q);
        ngx_queue_insert_tail(&redis->sent, q);
    }

    ngx_post_event(&redis->flush, &ngx_posted_events);
}


static void
ngx_http_ratelimit_redis_flush_handler(ngx_event_t *ev)
{
    ngx_http_ratelimit_redis_t  *redis;

    redis = ev->data;

    ngx_http_ratelimit_redis_write_handler(redis->connection->write);
}


static void
ngx_http_ratelimit_redis_write_handler(ngx_event_t *wev)
{
    ssize_t                      n;
    ngx_connection_t            *c;
    ngx_http_ratelimit_redis_t  *redis;

    c = wev->data;
    redis = c->data;

    if (redis->state == NGX_HTTP_RATELIMIT_REDIS_CONNECTING
        && ngx_http_ratelimit_redis_connected(redis) != NGX_OK)
    {
        return;
    }

    while (redis->out_pos < redis->out_last && wev->ready) {

        n = c->send(c, redis->out_pos, redis->out_last - redis->out_pos);

        if (n == NGX_AGAIN) {
            break;
        }

        if (n == NGX_ERROR) {
            if (ngx_http_ratelimit_redis_loud(redis,
                                              NGX_HTTP_RATELIMIT_CLOSED))
            {
                ngx_log_error(NGX_LOG_ERR, &redis->log, ngx_socket_errno,
                              "redis connection lost while sending");
            }

            ngx_http_ratelimit_redis_close(redis, NGX_HTTP_RATELIMIT_CLOSED);
            return;
        }

        redis->out_pos += n;
        (void) ngx_atomic_fetch_add(&redis->owner->stats->sent, n);
    }

    if (redis->out_pos == redis->out_last) {
        redis->out_pos = redis->out;
        redis->out_last = redis->out;

        if (redis->out_end - redis->out > NGX_HTTP_RATELIMIT_REDIS_OUT) {
            ngx_free(redis->out);
            redis->out = NULL;
            redis->out_pos = NULL;
            redis->out_last = NULL;
            redis->out_end = NULL;
        }
    }

    if (ngx_handle_write_event(wev, 0) != NGX_OK) {
        ngx_http_ratelimit_redis_close(redis, NGX_HTTP_RATELIMIT_CLOSED);
    }
}


static void
ngx_http_ratelimit_redis_read_handler(ngx_event_t *rev)
{
    int                          rc;
    u_char                       buf[NGX_HTTP_RATELIMIT_REDIS_IN];
    ssize_t                      n;
    ngx_uint_t                   generation;
    ngx_connection_t            *c;
    ngx_http_ratelimit_reply_t  *reply;
    ngx_http_ratelimit_redis_t  *redis;

    c = rev->data;
    redis = c->data;
    generation = redis->generation;

    if (c->close) {
        ngx_http_ratelimit_redis_close(redis, redis->slots
                                              ? NGX_HTTP_RATELIMIT_CLOSED
                                              : NGX_HTTP_RATELIMIT_OK);
        return;
    }

    /* an error of connect() may be reported as a read event first */

    if (redis->state == NGX_HTTP_RATELIMIT_REDIS_CONNECTING) {
        ngx_http_ratelimit_redis_write_handler(c->write);

        if (redis->generation != generation || redis->connection != c) {
            return;
        }
    }

    do {
        n = c->recv(c, buf, NGX_HTTP_RATELIMIT_REDIS_IN);

        if (n == NGX_AGAIN) {
            break;
        }

        if (n == NGX_ERROR || n == 0) {

            /* a server may close an idle connection; that is no failure */

            if (redis->state == NGX_HTTP_RATELIMIT_REDIS_READY
                && redis->slots == 0)
            {
                ngx_http_ratelimit_redis_close(redis, NGX_HTTP_RATELIMIT_OK);
                return;
            }

            if (ngx_http_ratelimit_redis_loud(redis,
                                              NGX_HTTP_RATELIMIT_CLOSED))
            {
                ngx_log_error(NGX_LOG_ERR, &redis->log,
                              n == NGX_ERROR ? ngx_socket_errno : 0,
                              "redis closed the connection, calls lost: %ui",
                              redis->slots);
            }

            ngx_http_ratelimit_redis_close(redis, NGX_HTTP_RATELIMIT_CLOSED);
            return;
        }

        (void) ngx_atomic_fetch_add(&redis->owner->stats->received, n);

        rc = ngx_http_ratelimit_reader_feed(redis->reader, buf, n);

        while (rc >= 0) {
            rc = ngx_http_ratelimit_reader_next(redis->reader, &reply);

            if (rc <= 0) {
                break;
            }

            ngx_http_ratelimit_redis_reply(redis, reply);

            if (redis->generation != generation || redis->connection != c) {
                return;
            }
        }

        if (rc < 0) {
            if (ngx_http_ratelimit_redis_loud(redis,
                                              NGX_HTTP_RATELIMIT_PROTOCOL))
            {
                ngx_log_error(NGX_LOG_ERR, &redis->log, 0,
                              "redis sent what is no reply, or a reply "
                              "that is too large");
            }

            ngx_http_ratelimit_redis_close(redis, NGX_HTTP_RATELIMIT_PROTOCOL);
            return;
        }

    } while (rev->ready);

    c->idle = ngx_queue_empty(&redis->sent)
              && redis->kept == 0
              && redis->state == NGX_HTTP_RATELIMIT_REDIS_READY;

    if (ngx_handle_read_event(rev, 0) != NGX_OK) {
        ngx_http_ratelimit_redis_close(redis, NGX_HTTP_RATELIMIT_CLOSED);
    }
}


static void
ngx_http_ratelimit_redis_reply(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_reply_t *reply)
{
    void                         *data;
    ngx_queue_t                  *q;
    ngx_http_ratelimit_slot_t    *slot;
    ngx_http_ratelimit_redis_pt   handler;

    if (redis->state == NGX_HTTP_RATELIMIT_REDIS_GREETING) {
        ngx_http_ratelimit_redis_greeting(redis, reply);
        return;
    }

    if (ngx_queue_empty(&redis->sent)) {

        if (ngx_http_ratelimit_redis_loud(redis, NGX_HTTP_RATELIMIT_PROTOCOL))
        {
            ngx_log_error(NGX_LOG_ERR, &redis->log, 0,
                          "redis sent a reply that nobody asked for");
        }

        ngx_http_ratelimit_redis_close(redis, NGX_HTTP_RATELIMIT_PROTOCOL);
        return;
    }

    q = ngx_queue_head(&redis->sent);
    ngx_queue_remove(q);

    slot = ngx_queue_data(q, ngx_http_ratelimit_slot_t, queue);
    handler = slot->handler;
    data = slot->data;

    ngx_http_ratelimit_redis_free_slot(slot);

    if (handler
        && handler(data, reply, NGX_HTTP_RATELIMIT_OK) != NGX_OK)
    {
        ngx_http_ratelimit_redis_close(redis, NGX_HTTP_RATELIMIT_PROTOCOL);
    }
}


/* no reply in time */

static void
ngx_http_ratelimit_redis_slot_handler(ngx_event_t *ev)
{
    void                         *data;
    ngx_http_ratelimit_slot_t    *slot;
    ngx_http_ratelimit_redis_t   *redis;
    ngx_http_ratelimit_redis_pt   handler;

    slot = ev->data;
    redis = slot->redis;
    handler = slot->handler;
    data = slot->data;

    if (slot->command.data) {
        ngx_queue_remove(&slot->queue);
        ngx_http_ratelimit_redis_free_slot(slot);

    } else {

        /* the slot outlives its caller: the reply is still due */

        slot->handler = NULL;
        slot->expired = ngx_current_msec;

        if (!redis->timer.timer_set) {
            ngx_add_timer(&redis->timer, NGX_HTTP_RATELIMIT_REDIS_STALL);
        }
    }

    if (handler) {
        (void) handler(data, NULL, NGX_HTTP_RATELIMIT_TIMEOUT);
    }
}


static void
ngx_http_ratelimit_redis_timer_handler(ngx_event_t *ev)
{
    ngx_msec_t                   age, delay;
    ngx_queue_t                 *q;
    ngx_http_ratelimit_slot_t   *slot;
    ngx_http_ratelimit_redis_t  *redis;

    redis = ev->data;

    switch (redis->state) {

    case NGX_HTTP_RATELIMIT_REDIS_WAITING:

        if (ngx_exiting) {
            redis->state = NGX_HTTP_RATELIMIT_REDIS_IDLE;
            return;
        }

        delay = redis->owner->may_connect(redis->owner->data);

        if (delay) {
            ngx_add_timer(ev, delay);
            return;
        }

        ngx_http_ratelimit_redis_connect(redis);
        return;

    case NGX_HTTP_RATELIMIT_REDIS_READY:

        if (ngx_queue_empty(&redis->sent)) {
            return;
        }

        q = ngx_queue_head(&redis->sent);
        slot = ngx_queue_data(q, ngx_http_ratelimit_slot_t, queue);

        if (slot->timer.timer_set) {
            /* not even late; if it will be, this timer is set again */
            return;
        }

        age = ngx_current_msec - slot->expired;

        if (age < NGX_HTTP_RATELIMIT_REDIS_STALL) {
            ngx_add_timer(ev, NGX_HTTP_RATELIMIT_REDIS_STALL - age);
            return;
        }

        break;

    default: /* connecting, greeting */
        break;
    }

    /* not by the class of the late calls, or this would never be told */

    if (ngx_http_ratelimit_redis_loud(redis,
                              redis->state == NGX_HTTP_RATELIMIT_REDIS_READY
                              ? NGX_HTTP_RATELIMIT_CLOSED
                              : NGX_HTTP_RATELIMIT_REFUSED))
    {
        ngx_log_error(NGX_LOG_ERR, &redis->log, NGX_ETIMEDOUT, "redis %s",
                      redis->state == NGX_HTTP_RATELIMIT_REDIS_READY
                      ? "does not answer any more, connection closed"
                      : redis->state == NGX_HTTP_RATELIMIT_REDIS_GREETING
                      ? "does not answer a new connection"
                      : "connect() timed out");
    }

    ngx_http_ratelimit_redis_close(redis, NGX_HTTP_RATELIMIT_TIMEOUT);
}


/* the only way out of a connection: all slots fail, the next attempt is set */

static void
ngx_http_ratelimit_redis_close(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_failure_e failure)
{
    void                         *data;
    ngx_msec_t                    delay;
    ngx_uint_t                    stable;
    ngx_queue_t                   failed, *q;
    ngx_http_ratelimit_slot_t    *slot;
    ngx_http_ratelimit_redis_pt   handler;

    stable = redis->state == NGX_HTTP_RATELIMIT_REDIS_READY
             && ngx_current_msec - redis->ready
                >= NGX_HTTP_RATELIMIT_REDIS_STABLE;

    if (redis->state != NGX_HTTP_RATELIMIT_REDIS_READY) {
        redis->address++;
    }

    if (redis->timer.timer_set) {
        ngx_del_timer(&redis->timer);
    }

    ngx_http_ratelimit_redis_disconnect(redis);

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

    redis->failure = (failure == NGX_HTTP_RATELIMIT_OK)
                     ? NGX_HTTP_RATELIMIT_CLOSED : failure;
    redis->state = NGX_HTTP_RATELIMIT_REDIS_WAITING;

    delay = redis->owner->closed(redis->owner->data, failure, stable);

    if (ngx_exiting) {
        /* from now on a connection is made only when one is needed */
        redis->state = NGX_HTTP_RATELIMIT_REDIS_IDLE;

    } else if (delay) {
        ngx_add_timer(&redis->timer, delay);

    } else {
        ngx_http_ratelimit_redis_connect(redis);
    }

    redis->failing = 1;

    while (!ngx_queue_empty(&failed)) {
        q = ngx_queue_head(&failed);
        ngx_queue_remove(q);

        slot = ngx_queue_data(q, ngx_http_ratelimit_slot_t, queue);
        handler = slot->handler;
        data = slot->data;

        ngx_http_ratelimit_redis_free_slot(slot);

        if (handler) {
            (void) handler(data, NULL, failure);
        }
    }

    redis->failing = 0;
}


static void
ngx_http_ratelimit_redis_disconnect(ngx_http_ratelimit_redis_t *redis)
{
    if (redis->flush.posted) {
        ngx_delete_posted_event(&redis->flush);
    }

    if (redis->connection) {
        ngx_close_connection(redis->connection);
        redis->connection = NULL;
    }

    if (redis->state == NGX_HTTP_RATELIMIT_REDIS_READY) {
        redis->gauges->connections--;
    }

    if (redis->reader) {
        ngx_http_ratelimit_reader_free(redis->reader);
        redis->reader = NULL;
    }

    redis->out_pos = redis->out;
    redis->out_last = redis->out;
}


static ngx_int_t
ngx_http_ratelimit_redis_append(ngx_http_ratelimit_redis_t *redis,
    ngx_str_t *command)
{
    u_char  *out;
    size_t   used, size;

    if ((size_t) (redis->out_end - redis->out_last) < command->len) {

        used = redis->out_last - redis->out_pos;
        size = ngx_max(redis->out_end - redis->out,
                       NGX_HTTP_RATELIMIT_REDIS_OUT);

        while (size - used < command->len) {
            size *= 2;
        }

        if (size > NGX_HTTP_RATELIMIT_REDIS_OUT_MAX) {
            return NGX_ERROR;
        }

        out = ngx_alloc(size, &redis->log);
        if (out == NULL) {
            return NGX_ERROR;
        }

        if (redis->out) {
            ngx_memcpy(out, redis->out_pos, used);
            ngx_free(redis->out);
        }

        redis->out = out;
        redis->out_pos = out;
        redis->out_last = out + used;
        redis->out_end = out + size;
    }

    redis->out_last = ngx_cpymem(redis->out_last, command->data, command->len);

    return NGX_OK;
}


static ngx_http_ratelimit_slot_t *
ngx_http_ratelimit_redis_slot(ngx_http_ratelimit_redis_t *redis)
{
    ngx_queue_t                *q;
    ngx_http_ratelimit_slot_t  *slot;

    if (redis->slots == NGX_HTTP_RATELIMIT_REDIS_SLOTS) {
        return NULL;
    }

    if (!ngx_queue_empty(&redis->free)) {
        q = ngx_queue_head(&redis->free);
        ngx_queue_remove(q);

        slot = ngx_queue_data(q, ngx_http_ratelimit_slot_t, queue);

    } else {
        slot = ngx_pcalloc(redis->pool, sizeof(ngx_http_ratelimit_slot_t));
        if (slot == NULL) {
            return NULL;
        }

        slot->redis = redis;
        slot->ident = (ngx_socket_t) -1;
        slot->timer.handler = ngx_http_ratelimit_redis_slot_handler;
        slot->timer.data = slot;
        slot->timer.log = &redis->log;
    }

    redis->slots++;
    redis->gauges->calls++;

    return slot;
}


static void
ngx_http_ratelimit_redis_free_slot(ngx_http_ratelimit_slot_t *slot)
{
    if (slot->timer.timer_set) {
        ngx_del_timer(&slot->timer);
    }

    if (slot->command.data) {
        ngx_free(slot->command.data);
        ngx_str_null(&slot->command);
    }

    slot->handler = NULL;
    slot->redis->slots--;
    slot->redis->gauges->calls--;

    ngx_queue_insert_head(&slot->redis->free, &slot->queue);
}


static u_char *
ngx_http_ratelimit_redis_log_error(ngx_log_t *log, u_char *buf, size_t len)
{
    ngx_http_ratelimit_redis_t  *redis;

    redis = log->data;

    return ngx_snprintf(buf, len, ", redis: %V", &redis->conf->name);
}
