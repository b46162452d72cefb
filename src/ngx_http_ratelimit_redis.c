
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
 * A command takes a slot.  While READY its bytes go to the output buffer, which
 * is written once per event-loop turn by a posted event; while CONNECTING,
 * HANDSHAKE or GREETING they wait in the slot; while WAITING the command fails
 * at once.
 *
 * During a TLS handshake the handlers of the connection's events are nginx's.
 * Nothing is sent before the server's certificate was found to be right.
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
 * An owner that has a redirect() may send a slot on when its reply is an error
 * that says where else to ask: then the slot keeps its command until the end,
 * and moves to another connection with its handler and what is left of its
 * time.  Slots belong to all connections of the process for that reason.
 *
 * A server that gets other addresses gets another connection.  The old one
 * retires: it is read until its last reply is there.
 *
 * Timers of slots hold up the exit of a worker, as clients wait for them; all
 * other timers are cancelable.
 */


#include "ngx_http_ratelimit_redis.h"
#include "ngx_http_ratelimit_escape.h"

#include <poll.h>


#define NGX_HTTP_RATELIMIT_REDIS_SLOTS      16384
#define NGX_HTTP_RATELIMIT_REDIS_OUT        16384       /* kept when empty */
#define NGX_HTTP_RATELIMIT_REDIS_OUT_MAX    8388608
#define NGX_HTTP_RATELIMIT_REDIS_IN         16384
#define NGX_HTTP_RATELIMIT_REDIS_STALL      500         /* ms */
#define NGX_HTTP_RATELIMIT_REDIS_STABLE     1000        /* ms */
#define NGX_HTTP_RATELIMIT_REDIS_TEXT       160         /* of an error */
#define NGX_HTTP_RATELIMIT_REDIS_ALERT      21          /* of TLS, a byte */


typedef enum {
    NGX_HTTP_RATELIMIT_REDIS_IDLE = 0,
    NGX_HTTP_RATELIMIT_REDIS_CONNECTING,
    NGX_HTTP_RATELIMIT_REDIS_HANDSHAKE,
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
    ngx_str_t                           command;  /* malloc()ed; kept when sent
                                                     if it may be redirected */
    ngx_uint_t                          hops;     /* to other servers */
    void                               *place;    /* where it is parked */
    unsigned                            sent:1;
    unsigned                            asking:1; /* needs an ASKING */
    unsigned                            parked:1; /* refused, to be tried on */
};


struct ngx_http_ratelimit_redis_s {
    ngx_connection_t                   *connection;
    ngx_http_ratelimit_redis_conf_t    *conf;
    ngx_http_ratelimit_redis_owner_t   *owner;

    /* -1, here as in ngx_connection_t: timers log it as a descriptor */
    ngx_socket_t                        ident;

    ngx_queue_t                         queue;    /* of all, or retired ones */
    ngx_addr_t                         *addrs;
    ngx_uint_t                          naddrs;
    ngx_http_ratelimit_gauges_t        *gauges;
    ngx_http_ratelimit_reader_t        *reader;
    ngx_http_ratelimit_tls_session_t    session;
    ngx_http_ratelimit_redis_state_e    state;
    ngx_http_ratelimit_failure_e        failure;  /* of the last connection */
    ngx_uint_t                          generation;
    ngx_uint_t                          greeted;  /* replies to the greeting */
    ngx_uint_t                          address;  /* the next one to try */
    ngx_msec_t                          ready;    /* since when */
    ngx_msec_t                          created;

    ngx_queue_t                         waiting;  /* slots not sent */
    ngx_queue_t                         sent;     /* slots, oldest first */
    ngx_uint_t                          slots;    /* in waiting and sent */
    ngx_uint_t                          kept;     /* so often */

    u_char                             *out;
    u_char                             *out_pos;
    u_char                             *out_last;
    u_char                             *out_end;

    ngx_event_t                         flush;    /* posted */
    ngx_event_t                         timer;    /* connect, back-off, stall */

    ngx_log_t                           log;      /* of the connection */
    ngx_log_t                          *cycle_log;
    unsigned                            moved:1;  /* addrs are malloc()ed */
    unsigned                            retired:1;
    unsigned                            known:1;  /* was ready once */
};


static ngx_uint_t ngx_http_ratelimit_redis_loud(
    ngx_http_ratelimit_redis_t *redis, ngx_http_ratelimit_failure_e failure);
static ngx_addr_t *ngx_http_ratelimit_redis_copy(ngx_addr_t *addrs,
    ngx_uint_t n, ngx_log_t *log);
static void ngx_http_ratelimit_redis_end(ngx_http_ratelimit_redis_t *redis);
static void ngx_http_ratelimit_redis_destroy(ngx_event_t *ev);
static ngx_int_t ngx_http_ratelimit_redis_queue(
    ngx_http_ratelimit_redis_t *redis, ngx_http_ratelimit_slot_t *slot,
    ngx_str_t *command);
static ngx_int_t ngx_http_ratelimit_redis_asking(
    ngx_http_ratelimit_redis_t *redis);
static void ngx_http_ratelimit_redis_give(ngx_http_ratelimit_slot_t *slot,
    ngx_http_ratelimit_redis_t *redis);
static void ngx_http_ratelimit_redis_drain(ngx_http_ratelimit_redis_t *redis);
static ngx_int_t ngx_http_ratelimit_redis_discard(
    ngx_http_ratelimit_redis_t *redis);
static void ngx_http_ratelimit_redis_connect(
    ngx_http_ratelimit_redis_t *redis);
static ngx_int_t ngx_http_ratelimit_redis_connected(
    ngx_http_ratelimit_redis_t *redis);
static void ngx_http_ratelimit_redis_host(ngx_http_ratelimit_redis_t *redis,
    ngx_str_t *host);
static void ngx_http_ratelimit_redis_handshake_handler(ngx_connection_t *c);
static ngx_int_t ngx_http_ratelimit_redis_secured(
    ngx_http_ratelimit_redis_t *redis);
static void ngx_http_ratelimit_redis_insecure(
    ngx_http_ratelimit_redis_t *redis, const char *why);
static ngx_int_t ngx_http_ratelimit_redis_greet(
    ngx_http_ratelimit_redis_t *redis);
static void ngx_http_ratelimit_redis_greeting(
    ngx_http_ratelimit_redis_t *redis, ngx_http_ratelimit_reply_t *reply);
static void ngx_http_ratelimit_redis_refused(
    ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_greeting_t *greeting, const char *reply, u_char *text,
    size_t len);
static void ngx_http_ratelimit_redis_is_ready(
    ngx_http_ratelimit_redis_t *redis);
static void ngx_http_ratelimit_redis_flush_handler(ngx_event_t *ev);
static void ngx_http_ratelimit_redis_write_handler(ngx_event_t *wev);
static void ngx_http_ratelimit_redis_read_handler(ngx_event_t *rev);
static void ngx_http_ratelimit_redis_lost(ngx_http_ratelimit_redis_t *redis,
    ngx_err_t err);
static const char *ngx_http_ratelimit_redis_cure(
    ngx_http_ratelimit_redis_t *redis);
static void ngx_http_ratelimit_redis_reply(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_reply_t *reply);
static ngx_int_t ngx_http_ratelimit_redis_deliver(
    ngx_http_ratelimit_slot_t *slot, ngx_http_ratelimit_reply_t *reply,
    ngx_http_ratelimit_failure_e failure);
static void ngx_http_ratelimit_redis_slot_handler(ngx_event_t *ev);
static void ngx_http_ratelimit_redis_timer_handler(ngx_event_t *ev);
static void ngx_http_ratelimit_redis_close(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_failure_e failure);
static void ngx_http_ratelimit_redis_fail(ngx_http_ratelimit_redis_t *redis,
    ngx_queue_t *failed, ngx_http_ratelimit_failure_e failure);
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


static ngx_queue_t  ngx_http_ratelimit_redis_all = {
    &ngx_http_ratelimit_redis_all, &ngx_http_ratelimit_redis_all
};

/* whose calls are being failed, and knows why */
static ngx_http_ratelimit_redis_owner_t  *ngx_http_ratelimit_redis_told;

/* free ones */
static ngx_queue_t  ngx_http_ratelimit_redis_slots = {
    &ngx_http_ratelimit_redis_slots, &ngx_http_ratelimit_redis_slots
};


ngx_http_ratelimit_redis_t *
ngx_http_ratelimit_redis_create(ngx_log_t *log,
    ngx_http_ratelimit_redis_conf_t *conf,
    ngx_http_ratelimit_redis_owner_t *owner)
{
    ngx_http_ratelimit_redis_t  *redis;

    redis = ngx_calloc(sizeof(ngx_http_ratelimit_redis_t), log);
    if (redis == NULL) {
        return NULL;
    }

    redis->conf = conf;
    redis->owner = owner;
    redis->addrs = conf->addrs;
    redis->naddrs = conf->naddrs;
    redis->gauges = ngx_http_ratelimit_stats_gauges(owner->stats);
    redis->ident = (ngx_socket_t) -1;
    redis->cycle_log = log;
    redis->failure = NGX_HTTP_RATELIMIT_REFUSED;
    redis->created = ngx_current_msec;

    /* a copy: its level goes down while repeated failures are kept quiet */

    redis->log = *log;
    redis->log.handler = ngx_http_ratelimit_redis_log_error;
    redis->log.data = redis;

    ngx_queue_init(&redis->waiting);
    ngx_queue_init(&redis->sent);

    redis->flush.handler = ngx_http_ratelimit_redis_flush_handler;
    redis->flush.data = redis;
    redis->flush.log = &redis->log;

    redis->timer.handler = ngx_http_ratelimit_redis_timer_handler;
    redis->timer.data = redis;
    redis->timer.log = &redis->log;
    redis->timer.cancelable = 1;

    ngx_queue_insert_tail(&ngx_http_ratelimit_redis_all, &redis->queue);

    return redis;
}


ngx_int_t
ngx_http_ratelimit_redis_move(ngx_http_ratelimit_redis_t *redis,
    ngx_addr_t *addrs, ngx_uint_t n, ngx_uint_t drop)
{
    ngx_uint_t   i, stays;
    ngx_addr_t  *copy, *addr;
    ngx_queue_t  failed;

    stays = 0;
    addr = redis->connection ? ngx_http_ratelimit_redis_addr(redis) : NULL;

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

    copy = ngx_http_ratelimit_redis_copy(addrs, n, redis->cycle_log);
    if (copy == NULL) {
        return NGX_ERROR;
    }

    if (redis->moved) {
        ngx_free(redis->addrs);
    }

    redis->addrs = copy;
    redis->naddrs = n;
    redis->moved = 1;
    redis->address = stays ? i : 0;

    if (stays) {
        return NGX_OK;
    }

    ngx_queue_init(&failed);

    if (addr) {
        ngx_http_ratelimit_redis_disconnect(redis);

        if (!ngx_queue_empty(&redis->sent)) {
            ngx_queue_add(&failed, &redis->sent);
            ngx_queue_init(&redis->sent);
        }

        redis->state = NGX_HTTP_RATELIMIT_REDIS_IDLE;
    }

    /* what waits for a connection has one in a moment */

    ngx_http_ratelimit_redis_wake(redis);
    ngx_http_ratelimit_redis_fail(redis, &failed, NGX_HTTP_RATELIMIT_CLOSED);

    return NGX_OK;
}


/* in one piece of memory */

static ngx_addr_t *
ngx_http_ratelimit_redis_copy(ngx_addr_t *addrs, ngx_uint_t n, ngx_log_t *log)
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


ngx_addr_t *
ngx_http_ratelimit_redis_addr(ngx_http_ratelimit_redis_t *redis)
{
    return redis->naddrs ? &redis->addrs[redis->address % redis->naddrs]
                         : NULL;
}


void
ngx_http_ratelimit_redis_retire(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_redis_t *heir)
{
    ngx_queue_t                *q;
    ngx_http_ratelimit_slot_t  *slot;

    redis->retired = 1;

    while (!ngx_queue_empty(&redis->waiting)) {
        q = ngx_queue_head(&redis->waiting);
        ngx_queue_remove(q);

        slot = ngx_queue_data(q, ngx_http_ratelimit_slot_t, queue);

        if (ngx_http_ratelimit_redis_forward(slot, heir, slot->asking)
            == NGX_HTTP_RATELIMIT_OK)
        {
            slot->hops--;

        } else {
            /* until there is a connection, or its time is over */

            ngx_http_ratelimit_redis_give(slot, heir);
            ngx_queue_insert_tail(&heir->waiting, q);
        }
    }

    heir->kept += redis->kept;
    redis->kept = 0;

    ngx_http_ratelimit_redis_end(redis);
}


/*
 * Of one that has retired, when it has no calls any more, be they parked
 * elsewhere; and not before those who are using it have returned
 */

static void
ngx_http_ratelimit_redis_end(ngx_http_ratelimit_redis_t *redis)
{
    if (redis->retired && redis->slots == 0) {
        redis->flush.handler = ngx_http_ratelimit_redis_destroy;
        ngx_post_event(&redis->flush, &ngx_posted_events);
    }
}


static void
ngx_http_ratelimit_redis_destroy(ngx_event_t *ev)
{
    ngx_http_ratelimit_redis_t  *redis;

    redis = ev->data;

    if (ev->posted) {
        ngx_delete_posted_event(ev);
    }

    if (redis->timer.timer_set) {
        ngx_del_timer(&redis->timer);
    }

    ngx_http_ratelimit_redis_disconnect(redis);
    ngx_queue_remove(&redis->queue);

    if (redis->moved) {
        ngx_free(redis->addrs);
    }

    if (redis->out) {
        ngx_free(redis->out);
    }

    ngx_http_ratelimit_tls_forget(&redis->session);

    ngx_free(redis);
}


void
ngx_http_ratelimit_redis_rest(ngx_http_ratelimit_redis_t *redis)
{
    if (redis->slots) {
        return;
    }

    if (redis->timer.timer_set) {
        ngx_del_timer(&redis->timer);
    }

    ngx_http_ratelimit_redis_disconnect(redis);

    redis->state = NGX_HTTP_RATELIMIT_REDIS_IDLE;
}


void
ngx_http_ratelimit_redis_plan(ngx_http_ratelimit_redis_t *redis)
{
    if (redis->state == NGX_HTTP_RATELIMIT_REDIS_IDLE && redis->naddrs
        && !ngx_exiting)
    {
        redis->state = NGX_HTTP_RATELIMIT_REDIS_WAITING;
        ngx_add_timer(&redis->timer, 1);
    }
}


void
ngx_http_ratelimit_redis_say(ngx_http_ratelimit_redis_t *redis,
    ngx_str_t *command)
{
    if (redis->state == NGX_HTTP_RATELIMIT_REDIS_READY
        && ngx_http_ratelimit_redis_append(redis, command) == NGX_OK)
    {
        ngx_post_event(&redis->flush, &ngx_posted_events);
    }
}


ngx_http_ratelimit_failure_e
ngx_http_ratelimit_redis_check(ngx_http_ratelimit_redis_t *redis)
{
    if (redis->state == NGX_HTTP_RATELIMIT_REDIS_IDLE && redis->naddrs) {
        ngx_http_ratelimit_redis_connect(redis);
    }

    if (redis->connection) {
        return NGX_HTTP_RATELIMIT_OK;
    }

    /* nobody knows where it is yet, but soon somebody may */

    if (redis->naddrs == 0
        && ngx_current_msec - redis->created < redis->conf->connect_timeout)
    {
        return NGX_HTTP_RATELIMIT_OK;
    }

    return redis->failure;
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

    if (ngx_http_ratelimit_redis_queue(redis, slot, command) != NGX_OK) {
        ngx_http_ratelimit_redis_free_slot(slot);
        return NGX_HTTP_RATELIMIT_OVERLOAD;
    }

    slot->handler = handler;
    slot->data = data;
    slot->timer.cancelable = 0;
    ngx_add_timer(&slot->timer, timeout);

    *slotp = slot;

    return NGX_HTTP_RATELIMIT_OK;
}


/* sends the slot's command, or keeps it until there is a connection */

static ngx_int_t
ngx_http_ratelimit_redis_queue(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_slot_t *slot, ngx_str_t *command)
{
    ngx_uint_t  ready;

    ready = (redis->state == NGX_HTTP_RATELIMIT_REDIS_READY);

    if (slot->command.data == NULL && (!ready || redis->owner->redirect)) {

        slot->command.data = ngx_alloc(command->len, &redis->log);
        if (slot->command.data == NULL) {
            return NGX_ERROR;
        }

        ngx_memcpy(slot->command.data, command->data, command->len);
        slot->command.len = command->len;
    }

    slot->sent = ready;
    slot->parked = 0;

    if (!ready) {
        ngx_queue_insert_tail(&redis->waiting, &slot->queue);
        return NGX_OK;
    }

    if (slot->asking && ngx_http_ratelimit_redis_asking(redis) != NGX_OK) {
        return NGX_ERROR;
    }

    if (ngx_http_ratelimit_redis_append(redis, command) != NGX_OK) {
        return NGX_ERROR;
    }

    if (slot->command.data && redis->owner->redirect == NULL) {
        ngx_free(slot->command.data);
        ngx_str_null(&slot->command);
    }

    ngx_queue_insert_tail(&redis->sent, &slot->queue);
    redis->connection->idle = 0;
    ngx_post_event(&redis->flush, &ngx_posted_events);

    return NGX_OK;
}


/* for the next command; nobody waits for its reply */

static ngx_int_t
ngx_http_ratelimit_redis_asking(ngx_http_ratelimit_redis_t *redis)
{
    ngx_http_ratelimit_slot_t  *slot;

    static ngx_str_t  command = ngx_string("*1\r\n$6\r\nASKING\r\n");

    slot = ngx_http_ratelimit_redis_slot(redis);
    if (slot == NULL) {
        return NGX_ERROR;
    }

    if (ngx_http_ratelimit_redis_append(redis, &command) != NGX_OK) {
        ngx_http_ratelimit_redis_free_slot(slot);
        return NGX_ERROR;
    }

    slot->sent = 1;
    slot->timer.cancelable = 1;

    ngx_add_timer(&slot->timer, NGX_HTTP_RATELIMIT_REDIS_STALL);
    ngx_queue_insert_tail(&redis->sent, &slot->queue);

    return NGX_OK;
}


ngx_http_ratelimit_failure_e
ngx_http_ratelimit_redis_forward(ngx_http_ratelimit_slot_t *slot,
    ngx_http_ratelimit_redis_t *redis, ngx_uint_t asking)
{
    ngx_uint_t                     was_asking;
    ngx_http_ratelimit_failure_e   failure;

    failure = ngx_http_ratelimit_redis_check(redis);

    if (failure != NGX_HTTP_RATELIMIT_OK) {
        return failure;
    }

    if (redis->slots >= NGX_HTTP_RATELIMIT_REDIS_SLOTS) {
        return NGX_HTTP_RATELIMIT_OVERLOAD;
    }

    was_asking = slot->asking;
    slot->asking = asking;

    if (ngx_http_ratelimit_redis_queue(redis, slot, &slot->command)
        != NGX_OK)
    {
        slot->asking = was_asking;
        return NGX_HTTP_RATELIMIT_OVERLOAD;
    }

    slot->hops++;
    ngx_http_ratelimit_redis_give(slot, redis);

    return NGX_HTTP_RATELIMIT_OK;
}


static void
ngx_http_ratelimit_redis_give(ngx_http_ratelimit_slot_t *slot,
    ngx_http_ratelimit_redis_t *redis)
{
    ngx_http_ratelimit_redis_t  *old;

    old = slot->redis;

    old->slots--;
    old->gauges->calls--;

    slot->redis = redis;

    redis->slots++;
    redis->gauges->calls++;

    ngx_http_ratelimit_redis_end(old);
}


void
ngx_http_ratelimit_redis_park(ngx_http_ratelimit_slot_t *slot,
    ngx_queue_t *queue, void *place)
{
    slot->sent = 0;
    slot->parked = 1;
    slot->place = place;
    ngx_queue_insert_tail(queue, &slot->queue);
}


ngx_http_ratelimit_slot_t *
ngx_http_ratelimit_redis_parked(ngx_queue_t *queue, void **place)
{
    ngx_queue_t                *q;
    ngx_http_ratelimit_slot_t  *slot;

    q = ngx_queue_head(queue);
    slot = ngx_queue_data(q, ngx_http_ratelimit_slot_t, queue);

    *place = slot->place;

    return slot;
}


void
ngx_http_ratelimit_redis_again(ngx_http_ratelimit_slot_t *slot,
    ngx_http_ratelimit_redis_t *redis)
{
    ngx_http_ratelimit_failure_e  failure;

    ngx_queue_remove(&slot->queue);

    failure = ngx_http_ratelimit_redis_forward(slot, redis, slot->asking);

    if (failure == NGX_HTTP_RATELIMIT_OK) {
        slot->hops--;
        return;
    }

    (void) ngx_http_ratelimit_redis_deliver(slot, NULL, failure);
}


void
ngx_http_ratelimit_redis_direct(ngx_http_ratelimit_slot_t *slot)
{
    if (slot->sent && slot->command.data) {
        ngx_free(slot->command.data);
        ngx_str_null(&slot->command);
    }
}


ngx_uint_t
ngx_http_ratelimit_redis_hops(ngx_http_ratelimit_slot_t *slot)
{
    return slot->hops;
}


void
ngx_http_ratelimit_redis_cancel(ngx_http_ratelimit_slot_t *slot)
{
    slot->handler = NULL;

    if (!slot->sent) {
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


ngx_uint_t
ngx_http_ratelimit_redis_ready(ngx_http_ratelimit_redis_t *redis)
{
    return redis->state == NGX_HTTP_RATELIMIT_REDIS_READY;
}


ngx_uint_t
ngx_http_ratelimit_redis_failing(ngx_http_ratelimit_redis_owner_t *owner)
{
    return ngx_http_ratelimit_redis_told == owner;
}


void
ngx_http_ratelimit_redis_wake(ngx_http_ratelimit_redis_t *redis)
{
    if (redis->state != NGX_HTTP_RATELIMIT_REDIS_WAITING
        && redis->state != NGX_HTTP_RATELIMIT_REDIS_IDLE)
    {
        return;
    }

    if (redis->naddrs == 0) {
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
    ngx_queue_t                *q;
    ngx_http_ratelimit_slot_t  *slot;

    if (redis->timer.timer_set) {
        ngx_del_timer(&redis->timer);
    }

    if (redis->state == NGX_HTTP_RATELIMIT_REDIS_READY
        && redis->out_pos < redis->out_last)
    {
        ngx_http_ratelimit_redis_drain(redis);
    }

    ngx_http_ratelimit_redis_disconnect(redis);

    redis->state = NGX_HTTP_RATELIMIT_REDIS_IDLE;

    if (!ngx_queue_empty(&redis->waiting)) {
        ngx_queue_add(&redis->sent, &redis->waiting);
        ngx_queue_init(&redis->waiting);
    }

    while (!ngx_queue_empty(&redis->sent)) {
        q = ngx_queue_head(&redis->sent);
        ngx_queue_remove(q);

        slot = ngx_queue_data(q, ngx_http_ratelimit_slot_t, queue);
        ngx_http_ratelimit_redis_free_slot(slot);
    }

    ngx_http_ratelimit_redis_destroy(&redis->flush);
}


void
ngx_http_ratelimit_redis_done(void)
{
    ngx_queue_t                 *q;
    ngx_http_ratelimit_slot_t   *slot;
    ngx_http_ratelimit_redis_t  *redis;

    while (!ngx_queue_empty(&ngx_http_ratelimit_redis_all)) {
        q = ngx_queue_head(&ngx_http_ratelimit_redis_all);
        redis = ngx_queue_data(q, ngx_http_ratelimit_redis_t, queue);

        ngx_http_ratelimit_redis_exit(redis);
    }

    while (!ngx_queue_empty(&ngx_http_ratelimit_redis_slots)) {
        q = ngx_queue_head(&ngx_http_ratelimit_redis_slots);
        ngx_queue_remove(q);

        slot = ngx_queue_data(q, ngx_http_ratelimit_slot_t, queue);
        ngx_free(slot);
    }
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

        if ((pfd.revents & ~POLLOUT)
            && ngx_http_ratelimit_redis_discard(redis) != NGX_AGAIN)
        {
            return;
        }
    }
}


/* NGX_AGAIN: all that there is has been read; NGX_OK: there will be no more */

static ngx_int_t
ngx_http_ratelimit_redis_discard(ngx_http_ratelimit_redis_t *redis)
{
    u_char             buf[4096];
    ssize_t            n;
    ngx_connection_t  *c;

    c = redis->connection;

    for ( ;; ) {

        /* c->recv() of a plain one waits for events, which are over */

        n = redis->conf->tls ? c->recv(c, buf, sizeof(buf))
                             : recv(c->fd, buf, sizeof(buf), 0);

        if (n > 0) {
            continue;
        }

        if (n == NGX_AGAIN || (n == -1 && ngx_errno == NGX_EAGAIN)) {
            return NGX_AGAIN;
        }

        return NGX_OK;
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

    addr = &redis->addrs[redis->address % redis->naddrs];

    ngx_memzero(&pc, sizeof(ngx_peer_connection_t));

    pc.sockaddr = addr->sockaddr;
    pc.socklen = addr->socklen;
    pc.name = &addr->name;
    pc.get = ngx_event_get_peer;
    pc.log = &redis->log;
    pc.log_error = NGX_ERROR_INFO;
    pc.so_keepalive = (addr->sockaddr->sa_family != AF_UNIX);

    redis->reader = ngx_http_ratelimit_reader_create(redis->conf->arena,
                                                     redis->conf->max);
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


/*
 * NGX_OK: the greeting is in the output buffer; NGX_AGAIN: it follows the
 * handshake; NGX_ERROR: the connection is gone
 */

static ngx_int_t
ngx_http_ratelimit_redis_connected(ngx_http_ratelimit_redis_t *redis)
{
    int                err;
    socklen_t          len;
    ngx_int_t          rc;
    ngx_str_t          host;
    ngx_addr_t        *addr;
    ngx_connection_t  *c;

    c = redis->connection;
    addr = &redis->addrs[redis->address % redis->naddrs];

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

    if (redis->conf->tls == NULL) {
        return ngx_http_ratelimit_redis_greet(redis);
    }

    redis->state = NGX_HTTP_RATELIMIT_REDIS_HANDSHAKE;

    ngx_http_ratelimit_redis_host(redis, &host);

    rc = ngx_http_ratelimit_tls_start(redis->conf->tls, c, &host,
                                  &redis->session,
                                  ngx_http_ratelimit_redis_handshake_handler);

    return (rc == NGX_AGAIN) ? NGX_AGAIN
                             : ngx_http_ratelimit_redis_secured(redis);
}


static void
ngx_http_ratelimit_redis_host(ngx_http_ratelimit_redis_t *redis,
    ngx_str_t *host)
{
    if (redis->conf->host.len) {
        *host = redis->conf->host;
        return;
    }

    *host = redis->addrs[redis->address % redis->naddrs].name;

    while (host->len && host->data[--host->len] != ':') {
        /* void */
    }
}


static void
ngx_http_ratelimit_redis_handshake_handler(ngx_connection_t *c)
{
    ngx_http_ratelimit_redis_t  *redis;

    redis = c->data;

    c->read->handler = ngx_http_ratelimit_redis_read_handler;
    c->write->handler = ngx_http_ratelimit_redis_write_handler;

    if (ngx_http_ratelimit_redis_secured(redis) == NGX_OK) {
        ngx_http_ratelimit_redis_write_handler(c->write);
    }
}


/* the handshake is over, one way or the other */

static ngx_int_t
ngx_http_ratelimit_redis_secured(ngx_http_ratelimit_redis_t *redis)
{
    ngx_str_t    host;
    const char  *why;

    ngx_http_ratelimit_redis_host(redis, &host);

    if (ngx_http_ratelimit_tls_verified(redis->conf->tls, redis->connection,
                                        &host, &why)
        == NGX_OK)
    {
        return ngx_http_ratelimit_redis_greet(redis);
    }

    ngx_http_ratelimit_redis_insecure(redis, why);

    return NGX_ERROR;
}


static void
ngx_http_ratelimit_redis_insecure(ngx_http_ratelimit_redis_t *redis,
    const char *why)
{
    ngx_addr_t  *addr;

    addr = &redis->addrs[redis->address % redis->naddrs];

    if (ngx_http_ratelimit_redis_loud(redis, NGX_HTTP_RATELIMIT_TLS)) {
        ngx_log_error(NGX_LOG_ERR, &redis->log, 0,
                      "redis TLS handshake with %V failed: %s",
                      &addr->name, why);
    }

    ngx_http_ratelimit_redis_close(redis, NGX_HTTP_RATELIMIT_TLS);
}


static ngx_int_t
ngx_http_ratelimit_redis_greet(ngx_http_ratelimit_redis_t *redis)
{
    ngx_uint_t                      i;
    ngx_http_ratelimit_greeting_t  *greeting;

    redis->state = NGX_HTTP_RATELIMIT_REDIS_GREETING;

    greeting = redis->conf->greeting.elts;

    for (i = redis->greeted; i < redis->conf->greeting.nelts; i++) {

        if (ngx_http_ratelimit_redis_append(redis, &greeting[i].command)
            != NGX_OK)
        {
            ngx_http_ratelimit_redis_close(redis, NGX_HTTP_RATELIMIT_OVERLOAD);
            return NGX_ERROR;
        }

        if (greeting[i].gate) {
            break;
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

    if (reply->type != REDIS_REPLY_ERROR && greeting->tell) {

        failure = redis->owner->greeted(redis->owner->data, greeting->tell,
                                        reply);

        if (failure != NGX_HTTP_RATELIMIT_OK) {
            ngx_http_ratelimit_redis_close(redis, failure);
            return;
        }
    }

    if (reply->type == REDIS_REPLY_ERROR) {

        failure = ngx_http_ratelimit_failure(reply->str, reply->len);

        if (greeting->elsewhere && ngx_http_ratelimit_redis_elsewhere(reply)) {
            goto greeted;
        }

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
                ngx_http_ratelimit_redis_refused(redis, greeting, reply->str,
                                                 text, len);
            }

            ngx_http_ratelimit_redis_close(redis, failure);
            return;
        }

        ngx_log_error(NGX_LOG_INFO, &redis->log, 0,
                      "redis refused %V, which is not needed: \"%*s\"",
                      &greeting->name, len, text);
    }

greeted:

    if (greeting->gate) {

        if (ngx_http_ratelimit_redis_greet(redis) == NGX_OK) {
            ngx_post_event(&redis->flush, &ngx_posted_events);
        }

        return;
    }

    if (redis->greeted == redis->conf->greeting.nelts) {
        ngx_http_ratelimit_redis_is_ready(redis);
    }
}


ngx_uint_t
ngx_http_ratelimit_redis_elsewhere(ngx_http_ratelimit_reply_t *reply)
{
    return ngx_http_ratelimit_failure(reply->str, reply->len)
           == NGX_HTTP_RATELIMIT_MOVED
           && ngx_strncmp(reply->str, "CLUSTERDOWN The", 15) != 0;
}


/* in words, where a configuration and a server don't fit together */

static void
ngx_http_ratelimit_redis_refused(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_greeting_t *greeting, const char *reply, u_char *text,
    size_t len)
{
    if ((ngx_strncmp(reply, "MOVED ", 6) == 0
         || ngx_strncmp(reply, "CLUSTERDOWN ", 12) == 0)
        && redis->owner->redirect == NULL)
    {
        ngx_log_error(NGX_LOG_ERR, &redis->log, 0,
                      "redis %V is a node of a cluster: write "
                      "\"ratelimit_shards cluster ...\"", &redis->conf->name);
        return;
    }

    if (ngx_strstr(reply, "cluster support disabled")) {
        ngx_log_error(NGX_LOG_ERR, &redis->log, 0,
                      "redis %V is not in cluster mode: write "
                      "\"ratelimit_shards\" without \"cluster\"",
                      &redis->conf->name);
        return;
    }

    ngx_log_error(NGX_LOG_ERR, &redis->log, 0, "redis refused %V: \"%*s\"%s",
                  &greeting->name, len, text,
                  ngx_strncmp(reply, "NOPERM", 6) == 0
                  ? ": its ACL has to allow that to this user" : "");
}


static void
ngx_http_ratelimit_redis_is_ready(ngx_http_ratelimit_redis_t *redis)
{
    ngx_queue_t                *q;
    ngx_http_ratelimit_slot_t  *slot;

    ngx_del_timer(&redis->timer);

    redis->state = NGX_HTTP_RATELIMIT_REDIS_READY;
    redis->ready = ngx_current_msec;
    redis->known = 1;
    redis->gauges->connections++;

    redis->owner->ready(redis->owner->data);

    while (redis->connection && !ngx_queue_empty(&redis->waiting)) {
        q = ngx_queue_head(&redis->waiting);
        ngx_queue_remove(q);

        slot = ngx_queue_data(q, ngx_http_ratelimit_slot_t, queue);

        if (ngx_http_ratelimit_redis_queue(redis, slot, &slot->command)
            != NGX_OK)
        {
            ngx_queue_insert_head(&redis->waiting, q);
            ngx_http_ratelimit_redis_close(redis, NGX_HTTP_RATELIMIT_OVERLOAD);
            return;
        }
    }
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

        if (redis->generation != generation || redis->connection != c
            || redis->state == NGX_HTTP_RATELIMIT_REDIS_HANDSHAKE)
        {
            return;
        }
    }

    do {
        n = c->recv(c, buf, NGX_HTTP_RATELIMIT_REDIS_IN);

        if (n == NGX_AGAIN) {
            break;
        }

        if (n == NGX_ERROR || n == 0) {
            ngx_http_ratelimit_redis_lost(redis, n == NGX_ERROR
                                                 ? ngx_socket_errno : 0);
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
                              "that is too large%s",
                              buf[0] == NGX_HTTP_RATELIMIT_REDIS_ALERT
                              ? ngx_http_ratelimit_redis_cure(redis) : "");
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


/* there is nothing more to read, or it can't be read */

static void
ngx_http_ratelimit_redis_lost(ngx_http_ratelimit_redis_t *redis, ngx_err_t err)
{
    const char  *why;

    /* a server may close an idle connection; that is no failure */

    if (redis->state == NGX_HTTP_RATELIMIT_REDIS_READY && redis->slots == 0) {
        ngx_http_ratelimit_redis_close(redis, NGX_HTTP_RATELIMIT_OK);
        return;
    }

    why = redis->conf->tls ? ngx_http_ratelimit_tls_error(&redis->session)
                           : NULL;

    /* with TLS 1.3 a server may refuse a certificate as late as now */

    if (why && redis->state == NGX_HTTP_RATELIMIT_REDIS_GREETING) {
        ngx_http_ratelimit_redis_insecure(redis, why);
        return;
    }

    if (ngx_http_ratelimit_redis_loud(redis, NGX_HTTP_RATELIMIT_CLOSED)) {
        ngx_log_error(NGX_LOG_ERR, &redis->log, why ? 0 : err,
                      "redis closed the connection, calls lost: %ui%s%s",
                      redis->slots, why ? ": " : "",
                      why ? why : ngx_http_ratelimit_redis_cure(redis));
    }

    ngx_http_ratelimit_redis_close(redis, NGX_HTTP_RATELIMIT_CLOSED);
}


/* a server for TLS alone has no word for others */

static const char *
ngx_http_ratelimit_redis_cure(ngx_http_ratelimit_redis_t *redis)
{
    return redis->state == NGX_HTTP_RATELIMIT_REDIS_GREETING
           && redis->greeted == 0 && redis->conf->tls == NULL
           && !redis->known
           ? ": does it expect TLS?" : "";
}


static void
ngx_http_ratelimit_redis_reply(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_reply_t *reply)
{
    ngx_queue_t                   *q;
    ngx_http_ratelimit_slot_t     *slot;
    ngx_http_ratelimit_failure_e   failure;

    if (redis->state == NGX_HTTP_RATELIMIT_REDIS_GREETING) {
        ngx_http_ratelimit_redis_greeting(redis, reply);
        return;
    }

    if (redis->owner->push) {
        redis->owner->push(redis->owner->data, reply);
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
    failure = NGX_HTTP_RATELIMIT_OK;

    if (reply->type == REDIS_REPLY_ERROR && slot->handler
        && slot->command.data
        && redis->owner->redirect(redis->owner->data, slot, reply, &failure)
           == NGX_OK)
    {
        return;
    }

    if (ngx_http_ratelimit_redis_deliver(slot, failure ? NULL : reply, failure)
        != NGX_OK)
    {
        ngx_http_ratelimit_redis_close(redis, NGX_HTTP_RATELIMIT_PROTOCOL);
    }
}


/* the slot ends, and whoever has made the call hears what came of it */

static ngx_int_t
ngx_http_ratelimit_redis_deliver(ngx_http_ratelimit_slot_t *slot,
    ngx_http_ratelimit_reply_t *reply, ngx_http_ratelimit_failure_e failure)
{
    void                              *data;
    ngx_uint_t                         hops;
    ngx_http_ratelimit_redis_pt        handler;
    ngx_http_ratelimit_failure_e       why;
    ngx_http_ratelimit_redis_owner_t  *owner;

    handler = slot->handler;
    data = slot->data;
    hops = slot->hops;
    owner = slot->redis->owner;

    ngx_http_ratelimit_redis_free_slot(slot);

    if (handler == NULL) {
        return NGX_OK;
    }

    if (hops) {
        why = (reply && reply->type == REDIS_REPLY_ERROR)
              ? ngx_http_ratelimit_failure(reply->str, reply->len) : failure;

        if (why != NGX_HTTP_RATELIMIT_NOSCRIPT
            && why != NGX_HTTP_RATELIMIT_MOVED
            && ngx_http_ratelimit_failure_breaks(why))
        {
            owner->failed(owner->data, why, reply);

            reply = NULL;
            failure = NGX_HTTP_RATELIMIT_MOVED;
        }
    }

    return handler(data, reply, failure);
}


/* no reply in time */

static void
ngx_http_ratelimit_redis_slot_handler(ngx_event_t *ev)
{
    void                              *data;
    ngx_uint_t                         hops;
    ngx_http_ratelimit_slot_t         *slot;
    ngx_http_ratelimit_redis_t        *redis;
    ngx_http_ratelimit_redis_pt        handler;
    ngx_http_ratelimit_failure_e       failure;
    ngx_http_ratelimit_redis_owner_t  *owner;

    slot = ev->data;
    redis = slot->redis;

    failure = slot->parked ? NGX_HTTP_RATELIMIT_MOVED
                           : NGX_HTTP_RATELIMIT_TIMEOUT;

    if (!slot->sent) {
        ngx_queue_remove(&slot->queue);
        (void) ngx_http_ratelimit_redis_deliver(slot, NULL, failure);
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
        ngx_add_timer(&redis->timer, NGX_HTTP_RATELIMIT_REDIS_STALL);
    }

    if (handler == NULL) {
        return;
    }

    if (hops) {
        owner->failed(owner->data, failure, NULL);
        failure = NGX_HTTP_RATELIMIT_MOVED;
    }

    /* that a server is slow from which others have moved away is no news */

    ngx_http_ratelimit_redis_told = redis->retired ? owner : NULL;

    (void) handler(data, NULL, failure);

    ngx_http_ratelimit_redis_told = NULL;
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

    default: /* connecting, handshake, greeting */
        break;
    }

    /* not by the class of the late calls, or this would never be told */

    if (ngx_http_ratelimit_redis_loud(redis,
                              redis->state == NGX_HTTP_RATELIMIT_REDIS_READY
                              ? NGX_HTTP_RATELIMIT_CLOSED
                              : redis->state
                                == NGX_HTTP_RATELIMIT_REDIS_HANDSHAKE
                              ? NGX_HTTP_RATELIMIT_TLS
                              : NGX_HTTP_RATELIMIT_REFUSED))
    {
        ngx_log_error(NGX_LOG_ERR, &redis->log, NGX_ETIMEDOUT, "redis %s",
                      redis->state == NGX_HTTP_RATELIMIT_REDIS_READY
                      ? "does not answer any more, connection closed"
                      : redis->state == NGX_HTTP_RATELIMIT_REDIS_GREETING
                      ? "does not answer a new connection"
                      : redis->state == NGX_HTTP_RATELIMIT_REDIS_HANDSHAKE
                      ? "does not answer a TLS handshake: does it expect one?"
                      : "connect() timed out");
    }

    ngx_http_ratelimit_redis_close(redis, NGX_HTTP_RATELIMIT_TIMEOUT);
}


/* the way out of a connection: all slots fail, the next attempt is set */

static void
ngx_http_ratelimit_redis_close(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_failure_e failure)
{
    ngx_msec_t   delay;
    ngx_uint_t   stable;
    ngx_queue_t  failed;

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

    if (redis->retired) {
        ngx_http_ratelimit_redis_fail(redis, &failed, failure);
        return;
    }

    delay = redis->owner->closed(redis->owner->data, failure, stable);

    if (ngx_exiting || delay == NGX_TIMER_INFINITE) {
        /* from now on a connection is made only when one is needed */
        redis->state = NGX_HTTP_RATELIMIT_REDIS_IDLE;

    } else if (delay) {
        ngx_add_timer(&redis->timer, delay);

    } else {
        ngx_http_ratelimit_redis_connect(redis);
    }

    ngx_http_ratelimit_redis_fail(redis, &failed, failure);
}


/* calls of a connection that was lost; they are on no list of it any more */

static void
ngx_http_ratelimit_redis_fail(ngx_http_ratelimit_redis_t *redis,
    ngx_queue_t *failed, ngx_http_ratelimit_failure_e failure)
{
    ngx_queue_t                       *q;
    ngx_http_ratelimit_redis_owner_t  *told;

    told = ngx_http_ratelimit_redis_told;
    ngx_http_ratelimit_redis_told = redis->owner;

    while (!ngx_queue_empty(failed)) {
        q = ngx_queue_head(failed);
        ngx_queue_remove(q);

        (void) ngx_http_ratelimit_redis_deliver(
                    ngx_queue_data(q, ngx_http_ratelimit_slot_t, queue), NULL,
                    failure);
    }

    ngx_http_ratelimit_redis_told = told;
}


static void
ngx_http_ratelimit_redis_disconnect(ngx_http_ratelimit_redis_t *redis)
{
    if (redis->connection) {

        if (redis->flush.posted) {
            ngx_delete_posted_event(&redis->flush);
        }

        ngx_http_ratelimit_tls_close(redis->connection);
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

    if (redis->slots >= NGX_HTTP_RATELIMIT_REDIS_SLOTS) {
        return NULL;
    }

    if (!ngx_queue_empty(&ngx_http_ratelimit_redis_slots)) {
        q = ngx_queue_head(&ngx_http_ratelimit_redis_slots);
        ngx_queue_remove(q);

        slot = ngx_queue_data(q, ngx_http_ratelimit_slot_t, queue);

    } else {
        slot = ngx_calloc(sizeof(ngx_http_ratelimit_slot_t), &redis->log);
        if (slot == NULL) {
            return NULL;
        }

        slot->ident = (ngx_socket_t) -1;
        slot->timer.handler = ngx_http_ratelimit_redis_slot_handler;
        slot->timer.data = slot;
        slot->timer.log = ngx_cycle->log;
    }

    slot->redis = redis;
    slot->hops = 0;
    slot->sent = 0;
    slot->asking = 0;
    slot->parked = 0;

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

    ngx_http_ratelimit_redis_end(slot->redis);

    ngx_queue_insert_head(&ngx_http_ratelimit_redis_slots, &slot->queue);
}


static u_char *
ngx_http_ratelimit_redis_log_error(ngx_log_t *log, u_char *buf, size_t len)
{
    ngx_http_ratelimit_redis_t  *redis;

    redis = log->data;

    return ngx_snprintf(buf, len, ", redis: %V", &redis->conf->name);
}
