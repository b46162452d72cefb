
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
#include "core/ngx_rl_core.h"
#include "redis/ngx_rl_handshake.h"
#include "redis/ngx_rl_connection_internal.h"

#include <poll.h>


#define NGX_RL_PIPELINE_PENDINGS      16384
#define NGX_RL_PIPELINE_OUT        16384       /* kept when empty */
#define NGX_RL_PIPELINE_OUT_MAX    8388608
#define NGX_RL_PIPELINE_IN         16384
#define NGX_RL_PIPELINE_ALERT      21          /* of TLS, a byte */
#define NGX_RL_PIPELINE_GRACE      50          /* ms, at most */

/* a map with a range for every slot */
#define NGX_RL_PIPELINE_LARGE      33554432


static ngx_rl_pending_t *ngx_rl_pipeline_pending(
    ngx_rl_connection_t *connection);
static ngx_int_t ngx_rl_pipeline_asking(ngx_rl_connection_t *connection);
static int ngx_rl_pipeline_expect(ngx_rl_connection_t *connection);
static void ngx_rl_pipeline_lost(ngx_rl_connection_t *connection,
    ngx_err_t err);
static void ngx_rl_pipeline_reply(ngx_rl_connection_t *connection,
    ngx_rl_reply_t *reply);
static void ngx_rl_pipeline_pending_handler(ngx_event_t *ev);
static ngx_int_t ngx_rl_pipeline_deliver(ngx_rl_pending_t *pending,
    ngx_rl_reply_t *reply, ngx_rl_failure_e failure, ngx_uint_t counted);


/* free ones */
static ngx_queue_t  ngx_rl_pipeline_pendings = {
    &ngx_rl_pipeline_pendings, &ngx_rl_pipeline_pendings
};


ngx_rl_failure_e
ngx_rl_connection_send(ngx_rl_connection_t *connection,
    ngx_str_t *command, ngx_msec_t timeout,
    ngx_rl_pending_pt handler, void *data, ngx_rl_pending_t **slotp)
{
    ngx_rl_pending_t  *pending;
    ngx_rl_failure_e   failure;

    failure = ngx_rl_connection_check(connection);

    if (failure != NGX_RL_OK) {
        return failure;
    }

    pending = ngx_rl_pipeline_pending(connection);
    if (pending == NULL) {
        return NGX_RL_OVERLOAD;
    }

    if (ngx_rl_pipeline_queue(connection, pending, command) != NGX_OK) {
        ngx_rl_pipeline_free(pending);
        return NGX_RL_OVERLOAD;
    }

    pending->handler = handler;
    pending->data = data;
    pending->timer.cancelable = 0;
    ngx_add_timer(&pending->timer, timeout);

    *slotp = pending;

    return NGX_RL_OK;
}


static ngx_rl_pending_t *
ngx_rl_pipeline_pending(ngx_rl_connection_t *connection)
{
    ngx_queue_t       *q;
    ngx_rl_pending_t  *pending;

    if (connection->pendings >= NGX_RL_PIPELINE_PENDINGS) {
        return NULL;
    }

    if (!ngx_queue_empty(&ngx_rl_pipeline_pendings)) {
        q = ngx_queue_head(&ngx_rl_pipeline_pendings);
        ngx_queue_remove(q);

        pending = ngx_queue_data(q, ngx_rl_pending_t, queue);

    } else {
        pending = ngx_calloc(sizeof(ngx_rl_pending_t), &connection->log);
        if (pending == NULL) {
            return NULL;
        }

        ngx_rl_event_init(&pending->timer, ngx_rl_pending_t,
                          ngx_rl_pipeline_pending_handler, pending,
                          ngx_cycle->log);
    }

    pending->connection = connection;
    pending->hops = 0;
    pending->sent = 0;
    pending->asking = 0;
    pending->parked = 0;
    pending->large = 0;
    pending->due = 0;
    pending->grace = 0;

    connection->pendings++;
    connection->gauges->calls++;

    return pending;
}


ngx_int_t
ngx_rl_pipeline_queue(ngx_rl_connection_t *connection,
    ngx_rl_pending_t *pending, ngx_str_t *command)
{
    ngx_uint_t  ready;

    ready = (connection->state == NGX_RL_CONNECTION_READY);

    if (pending->command.data == NULL
        && (!ready || connection->events->redirect))
    {

        pending->command.data = ngx_alloc(command->len, &connection->log);
        if (pending->command.data == NULL) {
            return NGX_ERROR;
        }

        ngx_memcpy(pending->command.data, command->data, command->len);
        pending->command.len = command->len;
    }

    pending->sent = 0;
    pending->parked = 0;

    if (!ready) {
        ngx_queue_insert_tail(&connection->waiting, &pending->queue);
        return NGX_OK;
    }

    if (pending->asking && ngx_rl_pipeline_asking(connection) != NGX_OK) {
        return NGX_ERROR;
    }

    if (ngx_rl_pipeline_append(connection, command) != NGX_OK) {
        return NGX_ERROR;
    }

    if (pending->command.data && connection->events->redirect == NULL) {
        ngx_free(pending->command.data);
        ngx_str_null(&pending->command);
    }

    pending->sent = 1;
    ngx_queue_insert_tail(&connection->sent, &pending->queue);
    connection->c->idle = 0;
    ngx_post_event(&connection->flush, &ngx_posted_events);

    return NGX_OK;
}


/* for the next command; nobody waits for its reply */

static ngx_int_t
ngx_rl_pipeline_asking(ngx_rl_connection_t *connection)
{
    ngx_rl_pending_t  *pending;

    static ngx_str_t  command = ngx_string("*1\r\n$6\r\nASKING\r\n");

    pending = ngx_rl_pipeline_pending(connection);
    if (pending == NULL) {
        return NGX_ERROR;
    }

    if (ngx_rl_pipeline_append(connection, &command) != NGX_OK) {
        ngx_rl_pipeline_free(pending);
        return NGX_ERROR;
    }

    pending->sent = 1;
    pending->timer.cancelable = 1;

    ngx_add_timer(&pending->timer, NGX_RL_CONNECTION_STALL);
    ngx_queue_insert_tail(&connection->sent, &pending->queue);

    return NGX_OK;
}


void
ngx_rl_connection_ping(ngx_rl_connection_t *connection, ngx_str_t *command)
{
    if (connection->state == NGX_RL_CONNECTION_READY
        && ngx_rl_pipeline_append(connection, command) == NGX_OK)
    {
        ngx_post_event(&connection->flush, &ngx_posted_events);
    }
}


ngx_int_t
ngx_rl_pipeline_append(ngx_rl_connection_t *connection, ngx_str_t *command)
{
    u_char  *out;
    size_t   used, size;

    if ((size_t) (connection->out_end - connection->out_last) < command->len) {

        used = connection->out_last - connection->out_pos;
        size = ngx_max(connection->out_end - connection->out,
                       NGX_RL_PIPELINE_OUT);

        while (size - used < command->len) {
            size *= 2;
        }

        if (size > NGX_RL_PIPELINE_OUT_MAX) {
            return NGX_ERROR;
        }

        out = ngx_alloc(size, &connection->log);
        if (out == NULL) {
            return NGX_ERROR;
        }

        if (connection->out) {
            ngx_memcpy(out, connection->out_pos, used);
            ngx_free(connection->out);
        }

        connection->out = out;
        connection->out_pos = out;
        connection->out_last = out + used;
        connection->out_end = out + size;
    }

    connection->out_last = ngx_cpymem(connection->out_last, command->data,
                                      command->len);

    return NGX_OK;
}


void
ngx_rl_pending_background(ngx_rl_pending_t *pending)
{
    pending->timer.cancelable = 1;
}


void
ngx_rl_pending_large(ngx_rl_pending_t *pending)
{
    pending->large = 1;
}


void
ngx_rl_pending_no_redirect(ngx_rl_pending_t *pending)
{
    if (pending->sent && pending->command.data) {
        ngx_free(pending->command.data);
        ngx_str_null(&pending->command);
    }
}


void
ngx_rl_pending_cancel(ngx_rl_pending_t *pending)
{
    pending->handler = NULL;

    if (!pending->sent) {
        ngx_queue_remove(&pending->queue);
        ngx_rl_pipeline_free(pending);
        return;
    }

    /* the timer goes on: the reply is still due, but nobody waits for it */

    pending->timer.cancelable = 1;
}


void
ngx_rl_pipeline_flush_handler(ngx_event_t *ev)
{
    ngx_rl_connection_t  *connection;

    connection = ev->data;

    ngx_rl_pipeline_write_handler(connection->c->write);
}


void
ngx_rl_pipeline_write_handler(ngx_event_t *wev)
{
    ssize_t               n;
    ngx_connection_t     *c;
    ngx_rl_connection_t  *connection;

    c = wev->data;
    connection = c->data;

    if (connection->state == NGX_RL_CONNECTION_CONNECTING
        && ngx_rl_handshake_connected(connection) != NGX_OK)
    {
        return;
    }

    while (connection->out_pos < connection->out_last && wev->ready) {

        n = c->send(c, connection->out_pos,
                    connection->out_last - connection->out_pos);

        if (n == NGX_AGAIN) {
            break;
        }

        if (n == NGX_ERROR) {
            if (ngx_rl_connection_may_log(connection, NGX_RL_CLOSED)) {
                ngx_log_error(NGX_LOG_ERR, &connection->log, ngx_socket_errno,
                              "redis connection lost while sending");
            }

            ngx_rl_connection_close(connection, NGX_RL_CLOSED);
            return;
        }

        connection->out_pos += n;
        (void) ngx_atomic_fetch_add(&connection->traffic->sent, n);
    }

    if (connection->out_pos == connection->out_last) {
        connection->out_pos = connection->out;
        connection->out_last = connection->out;

        if (connection->out_end - connection->out > NGX_RL_PIPELINE_OUT) {
            ngx_free(connection->out);
            connection->out = NULL;
            connection->out_pos = NULL;
            connection->out_last = NULL;
            connection->out_end = NULL;
        }
    }

    if (ngx_handle_write_event(wev, 0) != NGX_OK) {
        ngx_rl_connection_close(connection, NGX_RL_CLOSED);
    }
}


void
ngx_rl_pipeline_read_handler(ngx_event_t *rev)
{
    int                   rc;
    u_char                buf[NGX_RL_PIPELINE_IN];
    ssize_t               n;
    ngx_uint_t            generation;
    ngx_rl_reply_t       *reply;
    ngx_connection_t     *c;
    ngx_rl_connection_t  *connection;

    c = rev->data;
    connection = c->data;
    generation = connection->generation;

    if (c->close) {
        ngx_rl_connection_close(connection, connection->pendings
                                ? NGX_RL_CLOSED
                                : NGX_RL_OK);
        return;
    }

    /* an error of connect() may be reported as a read event first */

    if (connection->state == NGX_RL_CONNECTION_CONNECTING) {
        ngx_rl_pipeline_write_handler(c->write);

        if (connection->generation != generation || connection->c != c
            || connection->state == NGX_RL_CONNECTION_TLS)
        {
            return;
        }
    }

    do {
        n = c->recv(c, buf, NGX_RL_PIPELINE_IN);

        if (n == NGX_AGAIN) {
            break;
        }

        if (n == NGX_ERROR || n == 0) {
            ngx_rl_pipeline_lost(connection, n == NGX_ERROR
                                 ? ngx_socket_errno : 0);
            return;
        }

        (void) ngx_atomic_fetch_add(&connection->traffic->received, n);

        rc = ngx_rl_pipeline_expect(connection);

        if (rc >= 0) {
            rc = ngx_rl_reader_feed(connection->reader, buf, n);
        }

        while (rc >= 0) {
            rc = ngx_rl_reader_next(connection->reader, &reply);

            if (rc <= 0) {
                break;
            }

            ngx_rl_pipeline_reply(connection, reply);

            if (connection->generation != generation || connection->c != c) {
                return;
            }

            rc = ngx_rl_pipeline_expect(connection);
        }

        if (rc < 0) {
            if (ngx_rl_connection_may_log(connection, NGX_RL_PROTOCOL)) {
                ngx_log_error(NGX_LOG_ERR, &connection->log, 0,
                              "redis sent what is no reply, or a reply "
                              "that is too large%s",
                              buf[0] == NGX_RL_PIPELINE_ALERT
                              ? ngx_rl_handshake_cure(connection) : "");
            }

            ngx_rl_connection_close(connection, NGX_RL_PROTOCOL);
            return;
        }

    } while (rev->ready);

    c->idle = ngx_queue_empty(&connection->sent)
              && connection->holds == 0
              && connection->state == NGX_RL_CONNECTION_READY;

    if (ngx_handle_read_event(rev, 0) != NGX_OK) {
        ngx_rl_connection_close(connection, NGX_RL_CLOSED);
    }
}


/* how large the reply may be that is due next; -1: no memory */

static int
ngx_rl_pipeline_expect(ngx_rl_connection_t *connection)
{
    ngx_uint_t                large;
    ngx_queue_t              *q;
    ngx_rl_pending_t         *pending;
    ngx_rl_handshake_step_t  *step;

    large = 0;

    if (connection->state == NGX_RL_CONNECTION_HANDSHAKE) {
        step = connection->conf->greeting.elts;
        large = step[connection->steps].large;

    } else if (!ngx_queue_empty(&connection->sent)) {
        q = ngx_queue_head(&connection->sent);
        pending = ngx_queue_data(q, ngx_rl_pending_t, queue);
        large = pending->large;
    }

    return ngx_rl_reader_expect(connection->reader,
                                large ? NGX_RL_PIPELINE_LARGE : 0);
}


/* there is nothing more to read, or it can't be read */

static void
ngx_rl_pipeline_lost(ngx_rl_connection_t *connection, ngx_err_t err)
{
    const char  *why;

    /* a server may close an idle connection; that is no failure */

    if (connection->state == NGX_RL_CONNECTION_READY
        && connection->pendings == 0)
    {
        ngx_rl_connection_close(connection, NGX_RL_OK);
        return;
    }

    why = connection->conf->tls ? ngx_rl_tls_error(&connection->session)
                           : NULL;

    /* with TLS 1.3 a server may refuse a certificate as late as now */

    if (why && connection->state == NGX_RL_CONNECTION_HANDSHAKE) {
        ngx_rl_handshake_insecure(connection, why);
        return;
    }

    if (ngx_rl_connection_may_log(connection, NGX_RL_CLOSED)) {
        ngx_log_error(NGX_LOG_ERR, &connection->log, why ? 0 : err,
                      "redis closed the connection, calls lost: %ui%s%s",
                      connection->pendings, why ? ": " : "",
                      why ? why : ngx_rl_handshake_cure(connection));
    }

    ngx_rl_connection_close(connection, NGX_RL_CLOSED);
}


static void
ngx_rl_pipeline_reply(ngx_rl_connection_t *connection, ngx_rl_reply_t *reply)
{
    ngx_queue_t       *q;
    ngx_rl_pending_t  *pending;
    ngx_rl_failure_e   failure;

    if (connection->state == NGX_RL_CONNECTION_HANDSHAKE) {
        ngx_rl_handshake_reply(connection, reply);
        return;
    }

    if (connection->events->push) {
        connection->events->push(connection->owner, reply);
        return;
    }

    if (ngx_queue_empty(&connection->sent)) {

        if (ngx_rl_connection_may_log(connection, NGX_RL_PROTOCOL))
        {
            ngx_log_error(NGX_LOG_ERR, &connection->log, 0,
                          "redis sent a reply that nobody asked for");
        }

        ngx_rl_connection_close(connection, NGX_RL_PROTOCOL);
        return;
    }

    q = ngx_queue_head(&connection->sent);
    ngx_queue_remove(q);

    pending = ngx_queue_data(q, ngx_rl_pending_t, queue);
    failure = NGX_RL_OK;

    if (reply->type == REDIS_REPLY_ERROR && pending->handler
        && pending->command.data
        && connection->events->redirect(connection->owner, pending, reply,
                                        &failure)
        == NGX_OK)
    {
        return;
    }

    if (ngx_rl_pipeline_deliver(pending, failure ? NULL : reply, failure, 0)
        != NGX_OK)
    {
        ngx_rl_connection_close(connection, NGX_RL_PROTOCOL);
    }
}


ngx_rl_failure_e
ngx_rl_pending_forward(ngx_rl_pending_t *pending,
    ngx_rl_connection_t *connection, ngx_uint_t asking)
{
    ngx_uint_t        was_asking;
    ngx_rl_failure_e  failure;

    failure = ngx_rl_connection_check(connection);

    if (failure != NGX_RL_OK) {
        return failure;
    }

    if (connection->pendings >= NGX_RL_PIPELINE_PENDINGS) {
        return NGX_RL_OVERLOAD;
    }

    was_asking = pending->asking;
    pending->asking = asking;

    if (ngx_rl_pipeline_queue(connection, pending, &pending->command) != NGX_OK)
    {
        pending->asking = was_asking;
        return NGX_RL_OVERLOAD;
    }

    pending->hops++;
    ngx_rl_pipeline_give(pending, connection);

    return NGX_RL_OK;
}


void
ngx_rl_pipeline_give(ngx_rl_pending_t *pending, ngx_rl_connection_t *connection)
{
    ngx_rl_connection_t  *old;

    old = pending->connection;

    old->pendings--;
    old->gauges->calls--;

    pending->connection = connection;

    connection->pendings++;
    connection->gauges->calls++;

    ngx_rl_connection_end(old);
}


void
ngx_rl_pending_park(ngx_rl_pending_t *pending, ngx_queue_t *queue, void *place)
{
    pending->sent = 0;
    pending->parked = 1;
    pending->place = place;
    ngx_queue_insert_tail(queue, &pending->queue);
}


ngx_rl_pending_t *
ngx_rl_pending_parked(ngx_queue_t *queue, void **place)
{
    ngx_queue_t       *q;
    ngx_rl_pending_t  *pending;

    q = ngx_queue_head(queue);
    pending = ngx_queue_data(q, ngx_rl_pending_t, queue);

    *place = pending->place;

    return pending;
}


void
ngx_rl_pending_again(ngx_rl_pending_t *pending, ngx_rl_connection_t *connection)
{
    ngx_rl_failure_e  failure;

    ngx_queue_remove(&pending->queue);

    failure = ngx_rl_pending_forward(pending, connection, pending->asking);

    if (failure == NGX_RL_OK) {
        pending->hops--;
        return;
    }

    (void) ngx_rl_pipeline_deliver(pending, NULL, failure, 0);
}


ngx_uint_t
ngx_rl_pending_hops(ngx_rl_pending_t *pending)
{
    return pending->hops;
}


void
ngx_rl_pipeline_look(ngx_rl_connection_t *connection)
{
    ngx_event_t       *ev;
    struct pollfd      pfd;
    ngx_connection_t  *c;

    c = connection->c;

    if (c == NULL) {
        return;
    }

    pfd.fd = c->fd;
    pfd.events = (connection->state == NGX_RL_CONNECTION_CONNECTING)
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
ngx_rl_pipeline_pending_handler(ngx_event_t *ev)
{
    void                 *data;
    ngx_msec_t            late;
    ngx_uint_t            hops;
    ngx_rl_answer_t       answer;
    ngx_rl_pending_t     *pending;
    ngx_rl_failure_e      failure;
    ngx_rl_pending_pt     handler;
    ngx_rl_connection_t  *connection;

    pending = ev->data;
    late = ngx_rl_connection_late(ev);

    pending->due = 1;

    ngx_rl_pipeline_look(pending->connection);

    if (!pending->due) {
        return;
    }

    pending->due = 0;

    if (late > NGX_RL_CONNECTION_HELD && pending->handler && !pending->grace) {
        pending->grace = 1;
        ngx_add_timer(ev, ngx_min(late, NGX_RL_PIPELINE_GRACE));
        return;
    }

    connection = pending->connection;

    failure = pending->parked ? NGX_RL_MOVED
                           : NGX_RL_TIMEOUT;

    if (!pending->sent) {
        ngx_queue_remove(&pending->queue);
        (void) ngx_rl_pipeline_deliver(pending, NULL, failure, 0);
        return;
    }

    /* the slot outlives its caller: the reply is still due */

    handler = pending->handler;
    data = pending->data;
    hops = pending->hops;

    pending->handler = NULL;
    pending->expired = ngx_current_msec;

    if (!connection->timer.timer_set) {
        ngx_add_timer(&connection->timer, NGX_RL_CONNECTION_STALL);
    }

    if (handler == NULL) {
        return;
    }

    answer.reply = NULL;
    answer.failure = failure;
    answer.counted = 0;

    if (hops) {
        connection->events->forward_failed(connection->owner, &answer);
        answer.failure = NGX_RL_MOVED;

    } else if (connection->retired) {

        /* a server that others have moved away from is slow: that is no news */

        answer.counted = 1;
    }

    (void) handler(data, &answer);
}


/* the pending ends, and its handler hears what came of the command */

static ngx_int_t
ngx_rl_pipeline_deliver(ngx_rl_pending_t *pending,
    ngx_rl_reply_t *reply, ngx_rl_failure_e failure, ngx_uint_t counted)
{
    void                 *data;
    ngx_uint_t            hops;
    ngx_rl_answer_t       answer;
    ngx_rl_failure_e      why;
    ngx_rl_pending_pt     handler;
    ngx_rl_connection_t  *connection;

    handler = pending->handler;
    data = pending->data;
    hops = pending->hops;
    connection = pending->connection;

    ngx_rl_pipeline_free(pending);

    if (handler == NULL) {
        return NGX_OK;
    }

    answer.reply = reply;
    answer.failure = failure;
    answer.counted = counted;

    if (hops) {
        why = (reply && reply->type == REDIS_REPLY_ERROR)
              ? ngx_rl_failure(reply->str, reply->len) : failure;

        if (why != NGX_RL_NOSCRIPT
            && why != NGX_RL_MOVED
            && ngx_rl_failure_breaks(why))
        {
            answer.failure = why;

            connection->events->forward_failed(connection->owner, &answer);

            answer.reply = NULL;
            answer.failure = NGX_RL_MOVED;
        }

        answer.counted = 0;
    }

    return handler(data, &answer);
}


void
ngx_rl_pipeline_fail(ngx_queue_t *failed, ngx_rl_failure_e failure)
{
    ngx_queue_t       *q;
    ngx_rl_pending_t  *pending;

    while (!ngx_queue_empty(failed)) {
        q = ngx_queue_head(failed);
        ngx_queue_remove(q);

        pending = ngx_queue_data(q, ngx_rl_pending_t, queue);
        (void) ngx_rl_pipeline_deliver(pending, NULL, failure, 1);
    }
}


void
ngx_rl_pipeline_free(ngx_rl_pending_t *pending)
{
    if (pending->timer.timer_set) {
        ngx_del_timer(&pending->timer);
    }

    if (pending->command.data) {
        ngx_free(pending->command.data);
        ngx_str_null(&pending->command);
    }

    pending->handler = NULL;
    pending->due = 0;
    pending->connection->pendings--;
    pending->connection->gauges->calls--;

    ngx_rl_connection_end(pending->connection);

    ngx_queue_insert_head(&ngx_rl_pipeline_pendings, &pending->queue);
}


void
ngx_rl_pipeline_done(void)
{
    ngx_queue_t       *q, *next;
    ngx_rl_pending_t  *pending;

    for (q = ngx_queue_head(&ngx_rl_pipeline_pendings);
         q != ngx_queue_sentinel(&ngx_rl_pipeline_pendings);
         q = next)
    {
        next = ngx_queue_next(q);

        pending = ngx_queue_data(q, ngx_rl_pending_t, queue);
        ngx_free(pending);
    }

    ngx_queue_init(&ngx_rl_pipeline_pendings);
}
