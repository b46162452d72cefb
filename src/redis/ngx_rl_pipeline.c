
/*
 * Commands go in at one end, and their replies come out in the same order.
 *
 * A command takes a slot.  While READY its bytes go to the output buffer, which
 * is written once per event-loop turn by a posted event; while CONNECTING,
 * HANDSHAKE or GREETING they wait in the slot; while WAITING the command fails
 * at once.
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
 * All slots are failed in one place, pipe_fail(), after they were taken off the
 * connection.  A handler may send again from there, and may find itself on
 * another connection; the reading loop checks for that by the generation.
 *
 * An owner that has a redirect() may send a slot on when its reply is an error
 * that says where else to ask: then the slot keeps its command until the end,
 * and moves to another connection with its handler and what is left of its
 * time.  Slots belong to all connections of the process for that reason.
 *
 * Timers of slots hold up the exit of a worker, as clients wait for them; all
 * other timers are cancelable.
 *
 * A worker may be held up itself: it was stopped, its CPU quota was used up,
 * the machine is busy.  Then it finds timers expired before it is told of what
 * has arrived, or has sent a command just now whose time began long ago.  So
 * nothing is late before the socket was looked at; and when the timer itself is
 * late, the server gets the time back that it was not given, once.
 */


#include "redis/ngx_rl_pipeline.h"
#include "redis/ngx_rl_handshake.h"
#include "redis/ngx_rl_connection_internal.h"

#include <poll.h>


#define NGX_RL_PIPE_SLOTS      16384
#define NGX_RL_PIPE_OUT        16384       /* kept when empty */
#define NGX_RL_PIPE_OUT_MAX    8388608
#define NGX_RL_PIPE_IN         16384
#define NGX_RL_PIPE_ALERT      21          /* of TLS, a byte */
#define NGX_RL_PIPE_GRACE      50          /* ms, at most */

/* a map with a range for every slot */
#define NGX_RL_PIPE_LARGE      33554432


static ngx_rl_slot_t *ngx_rl_pipe_slot(
    ngx_rl_redis_t *redis);
static ngx_int_t ngx_rl_pipe_asking(
    ngx_rl_redis_t *redis);
static int ngx_rl_pipe_expect(ngx_rl_redis_t *redis);
static void ngx_rl_pipe_lost(ngx_rl_redis_t *redis,
    ngx_err_t err);
static void ngx_rl_pipe_reply(ngx_rl_redis_t *redis,
    ngx_rl_reply_t *reply);
static void ngx_rl_pipe_slot_handler(ngx_event_t *ev);
static ngx_int_t ngx_rl_pipe_deliver(
    ngx_rl_slot_t *slot, ngx_rl_reply_t *reply,
    ngx_rl_failure_e failure);


/* free ones */
static ngx_queue_t  ngx_rl_pipe_slots = {
    &ngx_rl_pipe_slots, &ngx_rl_pipe_slots
};

/* whose calls are being failed, and knows why */
static ngx_rl_redis_owner_t  *ngx_rl_pipe_told;


ngx_rl_failure_e
ngx_rl_redis_send(ngx_rl_redis_t *redis,
    ngx_str_t *command, ngx_msec_t timeout,
    ngx_rl_redis_pt handler, void *data,
    ngx_rl_slot_t **slotp)
{
    ngx_rl_slot_t     *slot;
    ngx_rl_failure_e   failure;

    failure = ngx_rl_redis_check(redis);

    if (failure != NGX_RL_OK) {
        return failure;
    }

    slot = ngx_rl_pipe_slot(redis);
    if (slot == NULL) {
        return NGX_RL_OVERLOAD;
    }

    if (ngx_rl_pipe_queue(redis, slot, command) != NGX_OK) {
        ngx_rl_pipe_free_slot(slot);
        return NGX_RL_OVERLOAD;
    }

    slot->handler = handler;
    slot->data = data;
    slot->timer.cancelable = 0;
    ngx_add_timer(&slot->timer, timeout);

    *slotp = slot;

    return NGX_RL_OK;
}


static ngx_rl_slot_t *
ngx_rl_pipe_slot(ngx_rl_redis_t *redis)
{
    ngx_queue_t                *q;
    ngx_rl_slot_t  *slot;

    if (redis->slots >= NGX_RL_PIPE_SLOTS) {
        return NULL;
    }

    if (!ngx_queue_empty(&ngx_rl_pipe_slots)) {
        q = ngx_queue_head(&ngx_rl_pipe_slots);
        ngx_queue_remove(q);

        slot = ngx_queue_data(q, ngx_rl_slot_t, queue);

    } else {
        slot = ngx_calloc(sizeof(ngx_rl_slot_t), &redis->log);
        if (slot == NULL) {
            return NULL;
        }

        slot->ident = (ngx_socket_t) -1;
        slot->timer.handler = ngx_rl_pipe_slot_handler;
        slot->timer.data = slot;
        slot->timer.log = ngx_cycle->log;
    }

    slot->redis = redis;
    slot->hops = 0;
    slot->sent = 0;
    slot->asking = 0;
    slot->parked = 0;
    slot->large = 0;
    slot->due = 0;
    slot->grace = 0;

    redis->slots++;
    redis->gauges->calls++;

    return slot;
}


ngx_int_t
ngx_rl_pipe_queue(ngx_rl_redis_t *redis,
    ngx_rl_slot_t *slot, ngx_str_t *command)
{
    ngx_uint_t  ready;

    ready = (redis->state == NGX_RL_REDIS_READY);

    if (slot->command.data == NULL && (!ready || redis->owner->redirect)) {

        slot->command.data = ngx_alloc(command->len, &redis->log);
        if (slot->command.data == NULL) {
            return NGX_ERROR;
        }

        ngx_memcpy(slot->command.data, command->data, command->len);
        slot->command.len = command->len;
    }

    slot->sent = 0;
    slot->parked = 0;

    if (!ready) {
        ngx_queue_insert_tail(&redis->waiting, &slot->queue);
        return NGX_OK;
    }

    if (slot->asking && ngx_rl_pipe_asking(redis) != NGX_OK) {
        return NGX_ERROR;
    }

    if (ngx_rl_pipe_append(redis, command) != NGX_OK) {
        return NGX_ERROR;
    }

    if (slot->command.data && redis->owner->redirect == NULL) {
        ngx_free(slot->command.data);
        ngx_str_null(&slot->command);
    }

    slot->sent = 1;
    ngx_queue_insert_tail(&redis->sent, &slot->queue);
    redis->connection->idle = 0;
    ngx_post_event(&redis->flush, &ngx_posted_events);

    return NGX_OK;
}


/* for the next command; nobody waits for its reply */

static ngx_int_t
ngx_rl_pipe_asking(ngx_rl_redis_t *redis)
{
    ngx_rl_slot_t  *slot;

    static ngx_str_t  command = ngx_string("*1\r\n$6\r\nASKING\r\n");

    slot = ngx_rl_pipe_slot(redis);
    if (slot == NULL) {
        return NGX_ERROR;
    }

    if (ngx_rl_pipe_append(redis, &command) != NGX_OK) {
        ngx_rl_pipe_free_slot(slot);
        return NGX_ERROR;
    }

    slot->sent = 1;
    slot->timer.cancelable = 1;

    ngx_add_timer(&slot->timer, NGX_RL_REDIS_STALL);
    ngx_queue_insert_tail(&redis->sent, &slot->queue);

    return NGX_OK;
}


void
ngx_rl_redis_say(ngx_rl_redis_t *redis,
    ngx_str_t *command)
{
    if (redis->state == NGX_RL_REDIS_READY
        && ngx_rl_pipe_append(redis, command) == NGX_OK)
    {
        ngx_post_event(&redis->flush, &ngx_posted_events);
    }
}


ngx_int_t
ngx_rl_pipe_append(ngx_rl_redis_t *redis,
    ngx_str_t *command)
{
    u_char  *out;
    size_t   used, size;

    if ((size_t) (redis->out_end - redis->out_last) < command->len) {

        used = redis->out_last - redis->out_pos;
        size = ngx_max(redis->out_end - redis->out,
                       NGX_RL_PIPE_OUT);

        while (size - used < command->len) {
            size *= 2;
        }

        if (size > NGX_RL_PIPE_OUT_MAX) {
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


void
ngx_rl_redis_quiet(ngx_rl_slot_t *slot)
{
    slot->timer.cancelable = 1;
}


void
ngx_rl_redis_large(ngx_rl_slot_t *slot)
{
    slot->large = 1;
}


void
ngx_rl_redis_direct(ngx_rl_slot_t *slot)
{
    if (slot->sent && slot->command.data) {
        ngx_free(slot->command.data);
        ngx_str_null(&slot->command);
    }
}


void
ngx_rl_redis_cancel(ngx_rl_slot_t *slot)
{
    slot->handler = NULL;

    if (!slot->sent) {
        ngx_queue_remove(&slot->queue);
        ngx_rl_pipe_free_slot(slot);
        return;
    }

    /* the timer goes on: the reply is still due, but nobody waits for it */

    slot->timer.cancelable = 1;
}


void
ngx_rl_pipe_flush_handler(ngx_event_t *ev)
{
    ngx_rl_redis_t  *redis;

    redis = ev->data;

    ngx_rl_pipe_write_handler(redis->connection->write);
}


void
ngx_rl_pipe_write_handler(ngx_event_t *wev)
{
    ssize_t                      n;
    ngx_connection_t            *c;
    ngx_rl_redis_t  *redis;

    c = wev->data;
    redis = c->data;

    if (redis->state == NGX_RL_REDIS_CONNECTING
        && ngx_rl_greet_connected(redis) != NGX_OK)
    {
        return;
    }

    while (redis->out_pos < redis->out_last && wev->ready) {

        n = c->send(c, redis->out_pos, redis->out_last - redis->out_pos);

        if (n == NGX_AGAIN) {
            break;
        }

        if (n == NGX_ERROR) {
            if (ngx_rl_redis_loud(redis,
                                              NGX_RL_CLOSED))
            {
                ngx_log_error(NGX_LOG_ERR, &redis->log, ngx_socket_errno,
                              "redis connection lost while sending");
            }

            ngx_rl_redis_close(redis, NGX_RL_CLOSED);
            return;
        }

        redis->out_pos += n;
        (void) ngx_atomic_fetch_add(&redis->owner->stats->sent, n);
    }

    if (redis->out_pos == redis->out_last) {
        redis->out_pos = redis->out;
        redis->out_last = redis->out;

        if (redis->out_end - redis->out > NGX_RL_PIPE_OUT) {
            ngx_free(redis->out);
            redis->out = NULL;
            redis->out_pos = NULL;
            redis->out_last = NULL;
            redis->out_end = NULL;
        }
    }

    if (ngx_handle_write_event(wev, 0) != NGX_OK) {
        ngx_rl_redis_close(redis, NGX_RL_CLOSED);
    }
}


void
ngx_rl_pipe_read_handler(ngx_event_t *rev)
{
    int                          rc;
    u_char                       buf[NGX_RL_PIPE_IN];
    ssize_t                      n;
    ngx_uint_t                   generation;
    ngx_connection_t            *c;
    ngx_rl_reply_t  *reply;
    ngx_rl_redis_t  *redis;

    c = rev->data;
    redis = c->data;
    generation = redis->generation;

    if (c->close) {
        ngx_rl_redis_close(redis, redis->slots
                                              ? NGX_RL_CLOSED
                                              : NGX_RL_OK);
        return;
    }

    /* an error of connect() may be reported as a read event first */

    if (redis->state == NGX_RL_REDIS_CONNECTING) {
        ngx_rl_pipe_write_handler(c->write);

        if (redis->generation != generation || redis->connection != c
            || redis->state == NGX_RL_REDIS_HANDSHAKE)
        {
            return;
        }
    }

    do {
        n = c->recv(c, buf, NGX_RL_PIPE_IN);

        if (n == NGX_AGAIN) {
            break;
        }

        if (n == NGX_ERROR || n == 0) {
            ngx_rl_pipe_lost(redis, n == NGX_ERROR
                                                 ? ngx_socket_errno : 0);
            return;
        }

        (void) ngx_atomic_fetch_add(&redis->owner->stats->received, n);

        rc = ngx_rl_pipe_expect(redis);

        if (rc >= 0) {
            rc = ngx_rl_reader_feed(redis->reader, buf, n);
        }

        while (rc >= 0) {
            rc = ngx_rl_reader_next(redis->reader, &reply);

            if (rc <= 0) {
                break;
            }

            ngx_rl_pipe_reply(redis, reply);

            if (redis->generation != generation || redis->connection != c) {
                return;
            }

            rc = ngx_rl_pipe_expect(redis);
        }

        if (rc < 0) {
            if (ngx_rl_redis_loud(redis,
                                              NGX_RL_PROTOCOL))
            {
                ngx_log_error(NGX_LOG_ERR, &redis->log, 0,
                              "redis sent what is no reply, or a reply "
                              "that is too large%s",
                              buf[0] == NGX_RL_PIPE_ALERT
                              ? ngx_rl_greet_cure(redis) : "");
            }

            ngx_rl_redis_close(redis, NGX_RL_PROTOCOL);
            return;
        }

    } while (rev->ready);

    c->idle = ngx_queue_empty(&redis->sent)
              && redis->kept == 0
              && redis->state == NGX_RL_REDIS_READY;

    if (ngx_handle_read_event(rev, 0) != NGX_OK) {
        ngx_rl_redis_close(redis, NGX_RL_CLOSED);
    }
}


/* how large the reply may be that is due next; -1: no memory */

static int
ngx_rl_pipe_expect(ngx_rl_redis_t *redis)
{
    ngx_uint_t                      large;
    ngx_queue_t                    *q;
    ngx_rl_slot_t      *slot;
    ngx_rl_greeting_t  *greeting;

    large = 0;

    if (redis->state == NGX_RL_REDIS_GREETING) {
        greeting = redis->conf->greeting.elts;
        large = greeting[redis->greeted].large;

    } else if (!ngx_queue_empty(&redis->sent)) {
        q = ngx_queue_head(&redis->sent);
        slot = ngx_queue_data(q, ngx_rl_slot_t, queue);
        large = slot->large;
    }

    return ngx_rl_reader_expect(redis->reader,
                              large ? NGX_RL_PIPE_LARGE : 0);
}


/* there is nothing more to read, or it can't be read */

static void
ngx_rl_pipe_lost(ngx_rl_redis_t *redis, ngx_err_t err)
{
    const char  *why;

    /* a server may close an idle connection; that is no failure */

    if (redis->state == NGX_RL_REDIS_READY && redis->slots == 0) {
        ngx_rl_redis_close(redis, NGX_RL_OK);
        return;
    }

    why = redis->conf->tls ? ngx_rl_tls_error(&redis->session)
                           : NULL;

    /* with TLS 1.3 a server may refuse a certificate as late as now */

    if (why && redis->state == NGX_RL_REDIS_GREETING) {
        ngx_rl_greet_insecure(redis, why);
        return;
    }

    if (ngx_rl_redis_loud(redis, NGX_RL_CLOSED)) {
        ngx_log_error(NGX_LOG_ERR, &redis->log, why ? 0 : err,
                      "redis closed the connection, calls lost: %ui%s%s",
                      redis->slots, why ? ": " : "",
                      why ? why : ngx_rl_greet_cure(redis));
    }

    ngx_rl_redis_close(redis, NGX_RL_CLOSED);
}


static void
ngx_rl_pipe_reply(ngx_rl_redis_t *redis,
    ngx_rl_reply_t *reply)
{
    ngx_queue_t                   *q;
    ngx_rl_slot_t     *slot;
    ngx_rl_failure_e   failure;

    if (redis->state == NGX_RL_REDIS_GREETING) {
        ngx_rl_greet_reply(redis, reply);
        return;
    }

    if (redis->owner->push) {
        redis->owner->push(redis->owner->data, reply);
        return;
    }

    if (ngx_queue_empty(&redis->sent)) {

        if (ngx_rl_redis_loud(redis, NGX_RL_PROTOCOL))
        {
            ngx_log_error(NGX_LOG_ERR, &redis->log, 0,
                          "redis sent a reply that nobody asked for");
        }

        ngx_rl_redis_close(redis, NGX_RL_PROTOCOL);
        return;
    }

    q = ngx_queue_head(&redis->sent);
    ngx_queue_remove(q);

    slot = ngx_queue_data(q, ngx_rl_slot_t, queue);
    failure = NGX_RL_OK;

    if (reply->type == REDIS_REPLY_ERROR && slot->handler
        && slot->command.data
        && redis->owner->redirect(redis->owner->data, slot, reply, &failure)
           == NGX_OK)
    {
        return;
    }

    if (ngx_rl_pipe_deliver(slot, failure ? NULL : reply, failure)
        != NGX_OK)
    {
        ngx_rl_redis_close(redis, NGX_RL_PROTOCOL);
    }
}


ngx_rl_failure_e
ngx_rl_redis_forward(ngx_rl_slot_t *slot,
    ngx_rl_redis_t *redis, ngx_uint_t asking)
{
    ngx_uint_t                     was_asking;
    ngx_rl_failure_e   failure;

    failure = ngx_rl_redis_check(redis);

    if (failure != NGX_RL_OK) {
        return failure;
    }

    if (redis->slots >= NGX_RL_PIPE_SLOTS) {
        return NGX_RL_OVERLOAD;
    }

    was_asking = slot->asking;
    slot->asking = asking;

    if (ngx_rl_pipe_queue(redis, slot, &slot->command) != NGX_OK) {
        slot->asking = was_asking;
        return NGX_RL_OVERLOAD;
    }

    slot->hops++;
    ngx_rl_pipe_give(slot, redis);

    return NGX_RL_OK;
}


void
ngx_rl_pipe_give(ngx_rl_slot_t *slot,
    ngx_rl_redis_t *redis)
{
    ngx_rl_redis_t  *old;

    old = slot->redis;

    old->slots--;
    old->gauges->calls--;

    slot->redis = redis;

    redis->slots++;
    redis->gauges->calls++;

    ngx_rl_redis_end(old);
}


void
ngx_rl_redis_park(ngx_rl_slot_t *slot,
    ngx_queue_t *queue, void *place)
{
    slot->sent = 0;
    slot->parked = 1;
    slot->place = place;
    ngx_queue_insert_tail(queue, &slot->queue);
}


ngx_rl_slot_t *
ngx_rl_redis_parked(ngx_queue_t *queue, void **place)
{
    ngx_queue_t                *q;
    ngx_rl_slot_t  *slot;

    q = ngx_queue_head(queue);
    slot = ngx_queue_data(q, ngx_rl_slot_t, queue);

    *place = slot->place;

    return slot;
}


void
ngx_rl_redis_again(ngx_rl_slot_t *slot,
    ngx_rl_redis_t *redis)
{
    ngx_rl_failure_e  failure;

    ngx_queue_remove(&slot->queue);

    failure = ngx_rl_redis_forward(slot, redis, slot->asking);

    if (failure == NGX_RL_OK) {
        slot->hops--;
        return;
    }

    (void) ngx_rl_pipe_deliver(slot, NULL, failure);
}


ngx_uint_t
ngx_rl_redis_hops(ngx_rl_slot_t *slot)
{
    return slot->hops;
}


void
ngx_rl_pipe_look(ngx_rl_redis_t *redis)
{
    ngx_event_t       *ev;
    struct pollfd      pfd;
    ngx_connection_t  *c;

    c = redis->connection;

    if (c == NULL) {
        return;
    }

    pfd.fd = c->fd;
    pfd.events = (redis->state == NGX_RL_REDIS_CONNECTING)
                 ? POLLIN|POLLOUT : POLLIN;

    if (poll(&pfd, 1, 0) != 1) {
        return;
    }

    ev = c->write;

    if (pfd.revents & POLLOUT) {
        ev->ready = 1;
    }

    if (pfd.revents & ~POLLOUT) {
        ev = c->read;
        ev->available = -1;
        ev->ready = 1;
    }

    ev->handler(ev);
}


/* no reply in time, unless it was the worker that had none */

static void
ngx_rl_pipe_slot_handler(ngx_event_t *ev)
{
    void                              *data;
    ngx_msec_t                         late;
    ngx_uint_t                         hops;
    ngx_rl_slot_t         *slot;
    ngx_rl_redis_t        *redis;
    ngx_rl_redis_pt        handler;
    ngx_rl_failure_e       failure;
    ngx_rl_redis_owner_t  *owner;

    slot = ev->data;
    late = ngx_rl_redis_late(ev);

    slot->due = 1;

    ngx_rl_pipe_look(slot->redis);

    if (!slot->due) {
        return;
    }

    slot->due = 0;

    if (late > NGX_RL_REDIS_HELD && slot->handler && !slot->grace) {
        slot->grace = 1;
        ngx_add_timer(ev, ngx_min(late, NGX_RL_PIPE_GRACE));
        return;
    }

    redis = slot->redis;

    failure = slot->parked ? NGX_RL_MOVED
                           : NGX_RL_TIMEOUT;

    if (!slot->sent) {
        ngx_queue_remove(&slot->queue);
        (void) ngx_rl_pipe_deliver(slot, NULL, failure);
        return;
    }

    /* the slot outlives its caller: the reply is still due */

    handler = slot->handler;
    data = slot->data;
    hops = slot->hops;
    owner = redis->owner;

    slot->handler = NULL;
    slot->expired = ngx_current_msec;

    if (!redis->timer.timer_set) {
        ngx_add_timer(&redis->timer, NGX_RL_REDIS_STALL);
    }

    if (handler == NULL) {
        return;
    }

    if (hops) {
        owner->failed(owner->data, failure, NULL);
        failure = NGX_RL_MOVED;
    }

    /* that a server is slow from which others have moved away is no news */

    ngx_rl_pipe_told = redis->retired ? owner : NULL;

    (void) handler(data, NULL, failure);

    ngx_rl_pipe_told = NULL;
}


/* the slot ends, and whoever has made the call hears what came of it */

static ngx_int_t
ngx_rl_pipe_deliver(ngx_rl_slot_t *slot,
    ngx_rl_reply_t *reply, ngx_rl_failure_e failure)
{
    void                              *data;
    ngx_uint_t                         hops;
    ngx_rl_redis_pt        handler;
    ngx_rl_failure_e       why;
    ngx_rl_redis_owner_t  *owner;

    handler = slot->handler;
    data = slot->data;
    hops = slot->hops;
    owner = slot->redis->owner;

    ngx_rl_pipe_free_slot(slot);

    if (handler == NULL) {
        return NGX_OK;
    }

    if (hops) {
        why = (reply && reply->type == REDIS_REPLY_ERROR)
              ? ngx_rl_failure(reply->str, reply->len) : failure;

        if (why != NGX_RL_NOSCRIPT
            && why != NGX_RL_MOVED
            && ngx_rl_failure_breaks(why))
        {
            owner->failed(owner->data, why, reply);

            reply = NULL;
            failure = NGX_RL_MOVED;
        }
    }

    return handler(data, reply, failure);
}


void
ngx_rl_pipe_fail(ngx_rl_redis_t *redis,
    ngx_queue_t *failed, ngx_rl_failure_e failure)
{
    ngx_queue_t                       *q;
    ngx_rl_redis_owner_t  *told;

    told = ngx_rl_pipe_told;
    ngx_rl_pipe_told = redis->owner;

    while (!ngx_queue_empty(failed)) {
        q = ngx_queue_head(failed);
        ngx_queue_remove(q);

        (void) ngx_rl_pipe_deliver(
                    ngx_queue_data(q, ngx_rl_slot_t, queue), NULL,
                    failure);
    }

    ngx_rl_pipe_told = told;
}


ngx_uint_t
ngx_rl_redis_failing(ngx_rl_redis_owner_t *owner)
{
    return ngx_rl_pipe_told == owner;
}


void
ngx_rl_pipe_free_slot(ngx_rl_slot_t *slot)
{
    if (slot->timer.timer_set) {
        ngx_del_timer(&slot->timer);
    }

    if (slot->command.data) {
        ngx_free(slot->command.data);
        ngx_str_null(&slot->command);
    }

    slot->handler = NULL;
    slot->due = 0;
    slot->redis->slots--;
    slot->redis->gauges->calls--;

    ngx_rl_redis_end(slot->redis);

    ngx_queue_insert_head(&ngx_rl_pipe_slots, &slot->queue);
}


void
ngx_rl_pipe_done(void)
{
    ngx_queue_t                *q, *next;
    ngx_rl_slot_t  *slot;

    for (q = ngx_queue_head(&ngx_rl_pipe_slots);
         q != ngx_queue_sentinel(&ngx_rl_pipe_slots);
         q = next)
    {
        next = ngx_queue_next(q);

        slot = ngx_queue_data(q, ngx_rl_slot_t, queue);
        ngx_free(slot);
    }

    ngx_queue_init(&ngx_rl_pipe_slots);
}
