
/*
 * Commands enter at one end, and their replies come out in the same order.
 *
 * Each command has a pending.  When the pipeline is ready, the bytes of the
 * command go to the output buffer, which a posted event writes once per
 * event-loop turn.  Before that, they wait in the pending.
 *
 * Pendings belong to the connection, never to their callers.  Replies arrive
 * in the order of the commands.  So a pending stays in the queue until its
 * reply has been read or the connection is closed, even if its caller has
 * timed out or ended.  It is an orphan then, and its reply is read and
 * dropped.  A connection is never resynchronised: it is closed by a reply
 * without a pending, by a reply that its command cannot have, and by bytes
 * that are not a reply.  It is also closed if a reply is missing for a while
 * after its caller has given up.  Otherwise TCP would keep the connection to a
 * stuck server open.
 *
 * All pendings of a connection fail in one place, pipeline_fail(), after they
 * were detached.  A handler may send again from there, possibly on another
 * connection.  The connection detects this by its generation.
 *
 * An owner with a redirect() may forward a pending when the error reply names
 * another server.  The pending then keeps its command until the end, and moves
 * to another pipeline with its handler and its remaining time.  For that
 * reason all pipelines of a process share the list of free pendings.
 *
 * Timers of pendings delay the exit of a worker, because clients wait for
 * them.  All other timers are cancelable.
 *
 * The worker itself may be held up: stopped by a signal, out of its CPU quota,
 * or on a busy machine.  Then timers have expired before the worker has read
 * what arrived, or a command was sent only now whose time began long ago.  So
 * no reply counts as late before the socket has been read.  When the timer
 * itself is late, the server gets the missing time back, once.
 */


#include "redis/ngx_rl_pipeline.h"
#include "core/ngx_rl_core.h"


#define NGX_RL_PIPELINE_PENDINGS  16384
#define NGX_RL_PIPELINE_OUT       16384    /* kept when empty */
#define NGX_RL_PIPELINE_OUT_MAX   8388608
#define NGX_RL_PIPELINE_IN        16384
#define NGX_RL_PIPELINE_ALERT     21       /* of TLS, a byte */
#define NGX_RL_PIPELINE_GRACE     50       /* ms, at most */

/* a map with a range for every slot */
#define NGX_RL_PIPELINE_LARGE     33554432


static ngx_int_t ngx_rl_pipeline_queue(ngx_rl_pipeline_t *pipeline,
    ngx_rl_pending_t *pending, ngx_str_t *command);
static ngx_int_t ngx_rl_pipeline_room(ngx_rl_pipeline_t *pipeline, size_t len);
static void ngx_rl_pipeline_count(ngx_rl_pipeline_t *pipeline, ngx_int_t n);
static void ngx_rl_pending_forget(ngx_rl_pending_t *pending);
static void ngx_rl_pending_free(ngx_rl_pending_t *pending);
static void ngx_rl_pending_timer_handler(ngx_event_t *ev);
static ngx_int_t ngx_rl_pending_answer(ngx_rl_pending_t *pending,
    ngx_rl_reply_t *reply, ngx_rl_failure_e failure, ngx_uint_t counted,
    ngx_uint_t stays);


ngx_queue_t  ngx_rl_pipelines = { &ngx_rl_pipelines, &ngx_rl_pipelines };

/* free ones */
static ngx_queue_t  ngx_rl_pendings = { &ngx_rl_pendings, &ngx_rl_pendings };

static ngx_str_t  ngx_rl_pipeline_asking_command =
    ngx_string("*1\r\n$6\r\nASKING\r\n");


ngx_int_t
ngx_rl_pipeline_send_waiting(ngx_rl_pipeline_t *pipeline)
{
    ngx_rl_pending_t  *pending;

    while (pipeline->ready && !ngx_queue_empty(&pipeline->waiting)) {
        pending = ngx_rl_pending_first(&pipeline->waiting);
        ngx_queue_remove(&pending->queue);

        if (ngx_rl_pipeline_queue(pipeline, pending, &pending->command)
            != NGX_OK)
        {
            ngx_queue_insert_head(&pipeline->waiting, &pending->queue);
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


ngx_rl_pending_t *
ngx_rl_pipeline_send(ngx_rl_pipeline_t *pipeline, ngx_str_t *command,
    ngx_msec_t timeout, ngx_rl_pending_pt handler, void *data)
{
    ngx_rl_pending_t  *pending;

    if (pipeline->n >= NGX_RL_PIPELINE_PENDINGS) {
        return NULL;
    }

    if (!ngx_queue_empty(&ngx_rl_pendings)) {
        pending = ngx_rl_pending_first(&ngx_rl_pendings);
        ngx_queue_remove(&pending->queue);

    } else {
        pending = ngx_calloc(sizeof(ngx_rl_pending_t), pipeline->log);
        if (pending == NULL) {
            return NULL;
        }

        ngx_rl_event_init(&pending->timer, ngx_rl_pending_t,
                          ngx_rl_pending_timer_handler, pending,
                          ngx_cycle->log);
    }

    pending->pipeline = pipeline;
    pending->hops = 0;
    pending->sent = 0;
    pending->asking = 0;
    pending->parked = 0;
    pending->large = 0;
    pending->due = 0;
    pending->grace = 0;

    ngx_rl_pipeline_count(pipeline, 1);

    if (ngx_rl_pipeline_queue(pipeline, pending, command) != NGX_OK) {
        ngx_rl_pending_free(pending);
        return NULL;
    }

    pending->handler = handler;
    pending->data = data;
    pending->timer.cancelable = 0;
    pending->deadline = ngx_current_msec + timeout;
    ngx_add_timer(&pending->timer, timeout);

    return pending;
}


/* NGX_ERROR: the pending is in no queue, and unchanged */

static ngx_int_t
ngx_rl_pipeline_queue(ngx_rl_pipeline_t *pipeline,
    ngx_rl_pending_t *pending, ngx_str_t *command)
{
    size_t             len;
    ngx_rl_pending_t  *asking;

    if (pending->command.data == NULL
        && (!pipeline->ready || pipeline->events->redirect))
    {
        pending->command.data = ngx_alloc(command->len, pipeline->log);
        if (pending->command.data == NULL) {
            return NGX_ERROR;
        }

        ngx_memcpy(pending->command.data, command->data, command->len);
        pending->command.len = command->len;
    }

    if (!pipeline->ready) {
        pending->sent = 0;
        pending->parked = 0;
        ngx_queue_insert_tail(&pipeline->waiting, &pending->queue);

        return NGX_OK;
    }

    /*
     * There must be room for both, or the ASKING would apply to another
     * command.
     */

    len = command->len;

    if (pending->asking) {
        len += ngx_rl_pipeline_asking_command.len;
    }

    if (ngx_rl_pipeline_room(pipeline, len) != NGX_OK) {
        return NGX_ERROR;
    }

    if (pending->asking) {
        asking = ngx_rl_pipeline_send(pipeline, &ngx_rl_pipeline_asking_command,
                                      NGX_RL_PIPELINE_STALL, NULL, NULL);
        if (asking == NULL) {
            return NGX_ERROR;
        }

        ngx_rl_pending_background(asking);
    }

    (void) ngx_rl_pipeline_append(pipeline, command);

    if (pipeline->events->redirect == NULL) {
        ngx_rl_pending_forget(pending);
    }

    pending->sent = 1;
    pending->parked = 0;
    ngx_queue_insert_tail(&pipeline->sent, &pending->queue);
    pipeline->c->idle = 0;

    return NGX_OK;
}


ngx_int_t
ngx_rl_pipeline_append(ngx_rl_pipeline_t *pipeline, ngx_str_t *command)
{
    if (ngx_rl_pipeline_room(pipeline, command->len) != NGX_OK) {
        return NGX_ERROR;
    }

    pipeline->last = ngx_cpymem(pipeline->last, command->data, command->len);

    ngx_post_event(pipeline->c->write, &ngx_posted_events);

    return NGX_OK;
}


static ngx_int_t
ngx_rl_pipeline_room(ngx_rl_pipeline_t *pipeline, size_t len)
{
    u_char  *out;
    size_t   used, size;

    if ((size_t) (pipeline->end - pipeline->last) >= len) {
        return NGX_OK;
    }

    used = pipeline->last - pipeline->pos;
    size = ngx_max(pipeline->end - pipeline->out, NGX_RL_PIPELINE_OUT);

    while (size - used < len) {
        size *= 2;
    }

    if (size > NGX_RL_PIPELINE_OUT_MAX) {
        return NGX_ERROR;
    }

    out = ngx_alloc(size, pipeline->log);
    if (out == NULL) {
        return NGX_ERROR;
    }

    if (pipeline->out) {
        ngx_memcpy(out, pipeline->pos, used);
        ngx_free(pipeline->out);
    }

    pipeline->out = out;
    pipeline->pos = out;
    pipeline->last = out + used;
    pipeline->end = out + size;

    return NGX_OK;
}


ngx_int_t
ngx_rl_pipeline_write(ngx_rl_pipeline_t *pipeline)
{
    ssize_t            n;
    ngx_connection_t  *c;

    c = pipeline->c;

    while (pipeline->pos < pipeline->last && c->write->ready) {

        n = c->send(c, pipeline->pos, pipeline->last - pipeline->pos);

        if (n == NGX_AGAIN) {
            break;
        }

        if (n == NGX_ERROR) {
            return NGX_ERROR;
        }

        pipeline->pos += n;
        (void) ngx_atomic_fetch_add(&pipeline->traffic->sent, n);
    }

    if (pipeline->pos == pipeline->last) {

        if (pipeline->end - pipeline->out > NGX_RL_PIPELINE_OUT) {
            ngx_free(pipeline->out);
            pipeline->out = NULL;
            pipeline->end = NULL;
        }

        pipeline->pos = pipeline->out;
        pipeline->last = pipeline->out;
    }

    return NGX_OK;
}


ngx_int_t
ngx_rl_pipeline_read(ngx_rl_pipeline_t *pipeline,
    ngx_uint_t large, ngx_rl_reply_t **reply, ngx_err_t *err)
{
    int                rc;
    u_char             buf[NGX_RL_PIPELINE_IN];
    ssize_t            n;
    ngx_connection_t  *c;

    c = pipeline->c;

    if (!ngx_queue_empty(&pipeline->sent)) {
        large = ngx_rl_pending_first(&pipeline->sent)->large;
    }

    for ( ;; ) {
        rc = ngx_rl_reader_expect(pipeline->reader,
                                  large ? NGX_RL_PIPELINE_LARGE : 0);

        if (rc == 0) {
            rc = ngx_rl_reader_next(pipeline->reader, reply);
        }

        if (rc < 0) {
            return NGX_ERROR;
        }

        if (rc > 0) {
            return NGX_OK;
        }

        if (!c->read->ready) {
            return NGX_AGAIN;
        }

        n = c->recv(c, buf, NGX_RL_PIPELINE_IN);

        if (n == NGX_AGAIN) {
            return NGX_AGAIN;
        }

        if (n == NGX_ERROR || n == 0) {
            *err = (n == NGX_ERROR) ? ngx_socket_errno : 0;
            return NGX_DONE;
        }

        (void) ngx_atomic_fetch_add(&pipeline->traffic->received, n);

        pipeline->alert = (buf[0] == NGX_RL_PIPELINE_ALERT);

        if (ngx_rl_reader_feed(pipeline->reader, buf, n) < 0) {
            return NGX_ERROR;
        }
    }
}


ngx_int_t
ngx_rl_pipeline_deliver(ngx_rl_pipeline_t *pipeline, ngx_rl_reply_t *reply)
{
    ngx_rl_pending_t  *pending;
    ngx_rl_failure_e   failure;

    if (ngx_queue_empty(&pipeline->sent)) {
        return NGX_DECLINED;
    }

    pending = ngx_rl_pending_first(&pipeline->sent);
    ngx_queue_remove(&pending->queue);

    failure = NGX_RL_OK;

    if (reply->type == REDIS_REPLY_ERROR && pending->handler
        && pending->command.data
        && pipeline->events->redirect(pipeline->owner, pending, reply, &failure)
           == NGX_OK)
    {
        return NGX_OK;
    }

    return ngx_rl_pending_answer(pending, failure ? NULL : reply, failure, 0,
                                 0);
}


void
ngx_rl_pipeline_poll(ngx_rl_pipeline_t *pipeline, struct pollfd *pfd)
{
    ngx_connection_t  *c;

    c = pipeline->c;

    /* a socket that is not connected yet becomes writable when it is */

    pfd->fd = c->fd;
    pfd->events = (pipeline->pos < pipeline->last || !c->write->ready)
                  ? POLLIN|POLLOUT : POLLIN;
}


void
ngx_rl_pipeline_look(ngx_rl_pipeline_t *pipeline)
{
    struct pollfd       pfd;
    ngx_connection_t   *c;
    ngx_atomic_uint_t   number;

    c = pipeline->c;

    if (c == NULL) {
        return;
    }

    number = c->number;

    ngx_rl_pipeline_poll(pipeline, &pfd);

    if (poll(&pfd, 1, 0) != 1) {
        return;
    }

    if (pfd.revents & POLLOUT) {
        c->write->ready = 1;
    }

    /* read what has arrived before a write can fail */

    if (pfd.revents & ~POLLOUT) {
        c->read->available = -1;
        c->read->ready = 1;
        c->read->handler(c->read);

        if (!(pfd.revents & POLLOUT) || pipeline->c != c
            || c->number != number || pipeline->pos == pipeline->last)
        {
            return;
        }
    }

    c->write->handler(c->write);
}


void
ngx_rl_pipeline_detach(ngx_rl_pipeline_t *pipeline,
    ngx_queue_t *pendings, ngx_uint_t waiting)
{
    ngx_queue_init(pendings);

    if (!ngx_queue_empty(&pipeline->sent)) {
        ngx_queue_add(pendings, &pipeline->sent);
        ngx_queue_init(&pipeline->sent);
    }

    if (waiting && !ngx_queue_empty(&pipeline->waiting)) {
        ngx_queue_add(pendings, &pipeline->waiting);
        ngx_queue_init(&pipeline->waiting);
    }
}


void
ngx_rl_pipeline_fail(ngx_queue_t *pendings, ngx_rl_failure_e failure)
{
    ngx_rl_pending_t  *pending;

    while (!ngx_queue_empty(pendings)) {
        pending = ngx_rl_pending_first(pendings);
        ngx_queue_remove(&pending->queue);

        if (failure == NGX_RL_OK) {
            pending->handler = NULL;
        }

        (void) ngx_rl_pending_answer(pending, NULL, failure, 1, 0);
    }
}


ngx_int_t
ngx_rl_pipeline_take(ngx_rl_pipeline_t *pipeline,
    ngx_rl_pending_t *pending, ngx_uint_t asking)
{
    ngx_uint_t          was_asking;
    ngx_rl_pipeline_t  *from;

    if (pipeline->n >= NGX_RL_PIPELINE_PENDINGS) {
        return NGX_ERROR;
    }

    was_asking = pending->asking;
    pending->asking = asking;

    if (ngx_rl_pipeline_queue(pipeline, pending, &pending->command) != NGX_OK) {
        pending->asking = was_asking;
        return NGX_ERROR;
    }

    from = pending->pipeline;
    pending->pipeline = pipeline;

    ngx_rl_pipeline_count(pipeline, 1);
    ngx_rl_pipeline_count(from, -1);

    return NGX_OK;
}


void
ngx_rl_pipeline_take_waiting(ngx_rl_pipeline_t *pipeline,
    ngx_rl_pipeline_t *from)
{
    ngx_rl_pending_t  *pending;

    while (!ngx_queue_empty(&from->waiting)) {
        pending = ngx_rl_pending_first(&from->waiting);
        ngx_queue_remove(&pending->queue);
        ngx_queue_insert_tail(&pipeline->waiting, &pending->queue);

        pending->pipeline = pipeline;

        ngx_rl_pipeline_count(pipeline, 1);
        ngx_rl_pipeline_count(from, -1);
    }
}


/* parked pendings count for their former pipeline */

static void
ngx_rl_pipeline_count(ngx_rl_pipeline_t *pipeline, ngx_int_t n)
{
    pipeline->n += n;
    pipeline->gauges->calls += n;

    if (pipeline->n == 0 && pipeline->drained) {
        ngx_post_event(pipeline->drained, &ngx_posted_events);
    }
}


void
ngx_rl_pending_park(ngx_rl_pending_t *pending, ngx_queue_t *queue)
{
    pending->sent = 0;
    pending->parked = 1;
    ngx_queue_insert_tail(queue, &pending->queue);
}


void
ngx_rl_pending_no_redirect(ngx_rl_pending_t *pending)
{
    if (pending->sent) {
        ngx_rl_pending_forget(pending);
    }
}


void
ngx_rl_pending_cancel(ngx_rl_pending_t *pending)
{
    pending->handler = NULL;

    if (!pending->sent) {
        ngx_queue_remove(&pending->queue);
        ngx_rl_pending_free(pending);
        return;
    }

    /*
     * The timer keeps running: the reply is still due, but nobody waits for
     * it.
     */

    pending->timer.cancelable = 1;
}


/* no reply in time, unless the worker itself was held up */

static void
ngx_rl_pending_timer_handler(ngx_event_t *ev)
{
    ngx_msec_t          late;
    ngx_rl_pending_t   *pending;
    ngx_rl_pipeline_t  *pipeline;

    pending = ev->data;
    late = ngx_rl_pipeline_late(pending->deadline);

    pending->due = 1;

    ngx_rl_pipeline_look(pending->pipeline);

    if (!pending->due) {
        return;
    }

    pending->due = 0;

    if (late > NGX_RL_PIPELINE_HELD && pending->handler && !pending->grace) {
        pending->grace = 1;
        ngx_add_timer(ev, ngx_min(late, NGX_RL_PIPELINE_GRACE));
        return;
    }

    if (!pending->sent) {
        ngx_queue_remove(&pending->queue);
        ngx_rl_pending_fail(pending,
                            pending->parked ? NGX_RL_MOVED : NGX_RL_TIMEOUT);
        return;
    }

    /* the pending outlives its caller: the reply is still due */

    pipeline = pending->pipeline;
    pending->expired = ngx_current_msec;

    if (!pipeline->stall.timer_set) {
        ngx_add_timer(&pipeline->stall, NGX_RL_PIPELINE_STALL);
    }

    /* the server is known to be slow after others have moved away */

    (void) ngx_rl_pending_answer(pending, NULL, NGX_RL_TIMEOUT,
                                 pipeline->drained && !pending->hops, 1);
}


void
ngx_rl_pending_fail(ngx_rl_pending_t *pending, ngx_rl_failure_e failure)
{
    (void) ngx_rl_pending_answer(pending, NULL, failure, 0, 0);
}


/*
 * Calls the handler with the result of the command, once.  The pending ends,
 * unless it stays for its reply.
 */

static ngx_int_t
ngx_rl_pending_answer(ngx_rl_pending_t *pending,
    ngx_rl_reply_t *reply, ngx_rl_failure_e failure, ngx_uint_t counted,
    ngx_uint_t stays)
{
    void               *data;
    ngx_uint_t          hops;
    ngx_rl_answer_t     answer;
    ngx_rl_failure_e    why;
    ngx_rl_pending_pt   handler;
    ngx_rl_pipeline_t  *pipeline;

    handler = pending->handler;
    data = pending->data;
    hops = pending->hops;
    pipeline = pending->pipeline;

    pending->handler = NULL;

    if (!stays) {
        ngx_rl_pending_free(pending);
    }

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

            pipeline->events->forward_failed(pipeline->owner, &answer);

            answer.reply = NULL;
            answer.failure = NGX_RL_MOVED;
        }

        answer.counted = 0;
    }

    return handler(data, &answer);
}


/* its command */

static void
ngx_rl_pending_forget(ngx_rl_pending_t *pending)
{
    if (pending->command.data) {
        ngx_free(pending->command.data);
        ngx_str_null(&pending->command);
    }
}


/* for a pending that is in no queue any more */

static void
ngx_rl_pending_free(ngx_rl_pending_t *pending)
{
    ngx_rl_timer_end(&pending->timer);

    ngx_rl_pending_forget(pending);

    pending->handler = NULL;
    pending->due = 0;

    ngx_rl_pipeline_count(pending->pipeline, -1);

    ngx_queue_insert_head(&ngx_rl_pendings, &pending->queue);
}


void
ngx_rl_pipeline_done(void)
{
    ngx_queue_t  *q, *next;

    for (q = ngx_queue_head(&ngx_rl_pendings);
         q != ngx_queue_sentinel(&ngx_rl_pendings);
         q = next)
    {
        next = ngx_queue_next(q);
        ngx_free(ngx_queue_data(q, ngx_rl_pending_t, queue));
    }

    ngx_queue_init(&ngx_rl_pendings);
}
