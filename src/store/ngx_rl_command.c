
/*
 * Calls wait for the end of the event-loop turn in which they are made, in a
 * list for each server, and on for as long as each further turn, which does not
 * sleep, brings more of them.  Then those that can be made by one call of a
 * script go as one command: the server has less to do for it than for so many
 * commands, above all if some of their limits are the same, and it is woken up
 * once.  One reply has the answers of all of them, in order.
 *
 * A call belongs to who makes it, and may be cancelled or moved at any time: a
 * batch under way then has a gap in its place, and drops that part of the
 * reply.
 */


#include "store/ngx_rl_command.h"
#include "memory/ngx_rl_local.h"


/* ms: in a worker that has much to do, turns are long */
#define NGX_RL_BATCH_WAIT  5


/* what waits for one server */

struct ngx_rl_lane_s {
    ngx_rl_link_t       *link;
    ngx_queue_t                      errands;

    /* -1, here as in ngx_connection_t: timers log it as a descriptor */
    ngx_socket_t                     ident;

    ngx_event_t                      flush;      /* posted, and a timer: a
                                                    process that leaves waits
                                                    for nothing else */
    unsigned                         grew:1;     /* in this turn */
};


/* a command under way */

struct ngx_rl_batch_s {
    ngx_queue_t                      queue;      /* free ones */
    ngx_rl_link_t       *link;
    ngx_rl_slot_t       *slot;
    ngx_rl_errand_t     *errands[NGX_RL_BUNDLE];
    ngx_rl_bundle_t      bundle;     /* of the same order */
    ngx_uint_t                       live;       /* not cancelled */
    uint64_t                         sent;       /* us */
    unsigned                         eval:1;
};


static ngx_rl_lane_t *ngx_rl_batch_lane(
    ngx_rl_link_t *link);
static void ngx_rl_batch_flush(ngx_event_t *ev);
static ngx_rl_batch_t *ngx_rl_batch_create(
    ngx_rl_lane_t *lane);
static void ngx_rl_batch_stamp(ngx_rl_batch_t *batch);
static ngx_rl_failure_e ngx_rl_batch_send(
    ngx_rl_batch_t *batch);
static ngx_int_t ngx_rl_batch_reply(void *data,
    ngx_rl_reply_t *reply, ngx_rl_failure_e failure);
static ngx_rl_failure_e ngx_rl_batch_again(
    ngx_rl_batch_t *batch);
static void ngx_rl_batch_done(ngx_rl_batch_t *batch,
    ngx_rl_failure_e failure);
static void ngx_rl_batch_free(ngx_rl_batch_t *batch);


static ngx_pool_t   *ngx_rl_batch_pool;
static ngx_queue_t   ngx_rl_batches;

/* ids of calls: those of other processes begin with something else */
static uint64_t      ngx_rl_batch_process;
static uint64_t      ngx_rl_batch_calls;


void
ngx_rl_batch_init(ngx_cycle_t *cycle)
{
    ngx_rl_batch_pool = cycle->pool;
    ngx_queue_init(&ngx_rl_batches);

    ngx_rl_batch_process =
        ((uint64_t) ngx_random() << 40)
        ^ ((uint64_t) ngx_random() << 20)
        ^ ngx_murmur_hash2(cycle->hostname.data, cycle->hostname.len)
        ^ ((uint64_t) ngx_pid << 32);
}


/* made with the first call to a server; NULL: no memory */

static ngx_rl_lane_t *
ngx_rl_batch_lane(ngx_rl_link_t *link)
{
    void                       **place;
    ngx_rl_lane_t   *lane;

    place = ngx_rl_link_lane(link);
    lane = *place;

    if (lane) {
        return lane;
    }

    lane = ngx_pcalloc(ngx_rl_batch_pool,
                       sizeof(ngx_rl_lane_t));
    if (lane == NULL) {
        return NULL;
    }

    lane->link = link;
    lane->ident = (ngx_socket_t) -1;
    lane->flush.handler = ngx_rl_batch_flush;
    lane->flush.data = lane;
    lane->flush.log = ngx_cycle->log;

    ngx_queue_init(&lane->errands);

    *place = lane;

    return lane;
}


ngx_rl_failure_e
ngx_rl_batch_add(ngx_rl_link_t *link,
    ngx_rl_errand_t *errand)
{
    ngx_rl_lane_t     *lane;
    ngx_rl_failure_e   failure;

    failure = ngx_rl_link_check(link);

    if (failure != NGX_RL_OK) {
        ngx_rl_link_unsent(link, failure);
        return failure;
    }

    lane = ngx_rl_batch_lane(link);
    if (lane == NULL) {
        ngx_rl_link_unsent(link, NGX_RL_OVERLOAD);
        return NGX_RL_OVERLOAD;
    }

    errand->lane = lane;
    errand->gone = 0;
    lane->grew = 1;

    ngx_queue_insert_tail(&lane->errands, &errand->queue);
    ngx_post_event(&lane->flush, &ngx_posted_events);

    return NGX_RL_OK;
}


void
ngx_rl_batch_grew(ngx_rl_errand_t *errand)
{
    errand->lane->grew = 1;
}


void
ngx_rl_batch_cancel(ngx_rl_errand_t *errand)
{
    ngx_rl_batch_t  *batch;

    if (!errand->gone) {
        ngx_queue_remove(&errand->queue);
        return;
    }

    batch = errand->batch;

    batch->errands[errand->place] = NULL;
    batch->bundle.scripts[errand->place] = NULL;

    if (--batch->live == 0) {

        /* nobody waits for the reply, and it may not have been sent yet */

        ngx_rl_redis_cancel(batch->slot);
        ngx_rl_batch_free(batch);
    }
}


void
ngx_rl_batch_move(ngx_rl_errand_t *errand,
    ngx_rl_errand_t *copy)
{
    if (!errand->gone) {
        ngx_queue_insert_after(&errand->queue, &copy->queue);
        ngx_queue_remove(&errand->queue);
        return;
    }

    errand->batch->errands[errand->place] = copy;
    errand->batch->bundle.scripts[errand->place] = &copy->script;
}


static void
ngx_rl_batch_flush(ngx_event_t *ev)
{
    ngx_queue_t                   *q;
    ngx_rl_lane_t     *lane;
    ngx_rl_batch_t    *batch;
    ngx_rl_errand_t   *errand;
    ngx_rl_failure_e   failure;

    lane = ev->data;

    if (lane->grew && !ev->timedout) {
        lane->grew = 0;

        if (!ev->timer_set) {
            ngx_add_timer(ev, NGX_RL_BATCH_WAIT);
        }

        ngx_post_event(ev, &ngx_posted_next_events);
        return;
    }

    if (ev->timer_set) {
        ngx_del_timer(ev);
    }

    if (ev->posted) {
        ngx_delete_posted_event(ev);
    }

    ev->timedout = 0;

    while (!ngx_queue_empty(&lane->errands)) {

        batch = ngx_rl_batch_create(lane);

        if (batch == NULL) {
            q = ngx_queue_head(&lane->errands);
            ngx_queue_remove(q);

            errand = ngx_queue_data(q, ngx_rl_errand_t, queue);

            ngx_rl_link_unsent(lane->link,
                                           NGX_RL_OVERLOAD);

            errand->ended = ngx_rl_local_clock();
            errand->handler(errand, NGX_RL_OVERLOAD);
            continue;
        }

        ngx_rl_batch_stamp(batch);

        failure = ngx_rl_batch_send(batch);

        if (failure != NGX_RL_OK) {
            ngx_rl_link_unsent(lane->link, failure);
            ngx_rl_batch_done(batch, failure);
        }
    }
}


/* the oldest errand, and all that can go with it */

static ngx_rl_batch_t *
ngx_rl_batch_create(ngx_rl_lane_t *lane)
{
    ngx_uint_t                    most;
    ngx_msec_t                    timeout;
    ngx_queue_t                  *q, *next;
    ngx_rl_batch_t   *batch;
    ngx_rl_errand_t  *errand;

    if (!ngx_queue_empty(&ngx_rl_batches)) {
        q = ngx_queue_head(&ngx_rl_batches);
        ngx_queue_remove(q);
        batch = ngx_queue_data(q, ngx_rl_batch_t, queue);

    } else {
        batch = ngx_palloc(ngx_rl_batch_pool,
                           sizeof(ngx_rl_batch_t));
        if (batch == NULL) {
            return NULL;
        }
    }

    batch->link = lane->link;
    batch->eval = 0;
    batch->live = 0;
    batch->bundle.n = 0;

    /* keys of one command to a cluster have to be of one slot */

    most = ngx_rl_link_peer(lane->link)->node
           ? 1 : NGX_RL_BUNDLE;

    timeout = 0;

    for (q = ngx_queue_head(&lane->errands);
         q != ngx_queue_sentinel(&lane->errands) && batch->live < most;
         q = next)
    {
        next = ngx_queue_next(q);
        errand = ngx_queue_data(q, ngx_rl_errand_t, queue);

        if ((batch->live && errand->timeout != timeout)
            || !ngx_rl_bundle_add(&batch->bundle, &errand->script))
        {
            continue;
        }

        ngx_queue_remove(q);

        timeout = errand->timeout;

        errand->gone = 1;
        errand->batch = batch;
        errand->place = batch->live;
        batch->errands[batch->live++] = errand;
    }

    return batch;
}


/* the time, and an id that no other command has, if the script asks for one */

static void
ngx_rl_batch_stamp(ngx_rl_batch_t *batch)
{
    size_t                        len;
    u_char                        id[NGX_RL_BATCH_ID];
    uint64_t                      now;
    ngx_uint_t                    i;
    struct timeval                tv;
    ngx_rl_script_t  *script;

    ngx_gettimeofday(&tv);

    now = (uint64_t) tv.tv_sec * NGX_RL_MICRO + tv.tv_usec;
    len = 0;

    if (!ngx_rl_script_short(batch->bundle.scripts[0])) {
        len = ngx_sprintf(id, "%xL-%xL", ngx_rl_batch_process,
                          ngx_rl_batch_calls++)
              - id;
    }

    for (i = 0; i < batch->bundle.n; i++) {
        script = batch->bundle.scripts[i];

        script->now = now;
        script->id_len = len;
        ngx_memcpy(script->id, id, len);
    }
}


/*
 * In the time that the one with the least has left.  Calls wait here for a few
 * milliseconds: if most of their time is over, the worker was held up, and the
 * server, which has not been asked yet, gets some all the same.
 */

static ngx_rl_failure_e
ngx_rl_batch_send(ngx_rl_batch_t *batch)
{
    char                          *bytes;
    long long                      len;
    ngx_str_t                      command;
    ngx_uint_t                     i;
    ngx_msec_t                     spent, left;
    ngx_rl_errand_t   *errand;
    ngx_rl_failure_e   failure;

    left = NGX_MAX_INT32_VALUE;
    batch->sent = ngx_rl_local_clock();

    for (i = 0; i < batch->bundle.n; i++) {
        errand = batch->errands[i];
        errand->sent = batch->sent;

        spent = ngx_current_msec - errand->start;

        if (!batch->eval) {
            spent = ngx_min(spent, errand->timeout * 3 / 4);
        }

        spent = ngx_min(spent, errand->timeout);
        left = ngx_min(left, errand->timeout - spent);
    }

    if (left == 0) {
        return NGX_RL_TIMEOUT;
    }

    len = ngx_rl_bundle_format(&bytes, &batch->bundle,
                                           batch->eval);
    if (len < 0) {
        return NGX_RL_OVERLOAD;
    }

    command.data = (u_char *) bytes;
    command.len = len;

    failure = ngx_rl_link_send(batch->link, &command, left,
                                           ngx_rl_batch_reply,
                                           batch, &batch->slot);
    ngx_rl_script_free(bytes);

    return failure;
}


static ngx_int_t
ngx_rl_batch_reply(void *data, ngx_rl_reply_t *reply,
    ngx_rl_failure_e failure)
{
    ngx_rl_batch_t *batch = data;

    if (failure == NGX_RL_OK) {
        failure = ngx_rl_bundle_reply(reply, &batch->bundle);
    }

    /* only a call that did not run is made again, once, with the text */

    if (failure == NGX_RL_NOSCRIPT && !batch->eval) {
        ngx_rl_link_reload(batch->link);

        failure = ngx_rl_batch_again(batch);

        if (failure == NGX_RL_OK) {
            return NGX_OK;
        }
    }

    if (failure == NGX_RL_OK) {
        ngx_rl_link_answered(batch->link,
                            ngx_rl_local_clock() - batch->sent);

    } else {
        ngx_rl_link_failed(batch->link, failure, reply, 1);
    }

    ngx_rl_batch_done(batch, failure);

    return (failure == NGX_RL_PROTOCOL) ? NGX_ERROR : NGX_OK;
}


/* for those who still wait for it */

static ngx_rl_failure_e
ngx_rl_batch_again(ngx_rl_batch_t *batch)
{
    ngx_uint_t                    i, n;
    ngx_rl_errand_t  *errand;

    n = batch->bundle.n;

    batch->eval = 1;
    batch->live = 0;
    batch->bundle.n = 0;

    for (i = 0; i < n; i++) {
        errand = batch->errands[i];

        if (errand == NULL) {
            continue;
        }

        /* what went together before does so again */

        (void) ngx_rl_bundle_add(&batch->bundle, &errand->script);

        errand->place = batch->live;
        batch->errands[batch->live++] = errand;
    }

    return ngx_rl_batch_send(batch);
}


static void
ngx_rl_batch_done(ngx_rl_batch_t *batch,
    ngx_rl_failure_e failure)
{
    uint64_t                       now;
    ngx_uint_t                     i, counts;
    ngx_rl_errand_t   *errand;
    ngx_rl_failure_e   own;

    now = ngx_rl_local_clock();
    counts = 1;

    /* whoever is cancelled from here on finds no slot to cancel */

    batch->live = batch->bundle.n + 1;

    for (i = 0; i < batch->bundle.n; i++) {

        errand = batch->errands[i];

        if (errand == NULL) {
            continue;
        }

        own = failure;

        if (failure == NGX_RL_OK
            && errand->script.failure != NGX_RL_OK)
        {
            own = errand->script.failure;
            ngx_rl_link_failed(batch->link, own,
                                           errand->script.error, counts);
            counts = 0;
        }

        batch->errands[i] = NULL;

        errand->ended = now;
        errand->handler(errand, own);
    }

    ngx_rl_batch_free(batch);
}


static void
ngx_rl_batch_free(ngx_rl_batch_t *batch)
{
    ngx_queue_insert_head(&ngx_rl_batches, &batch->queue);
}
