
/*
 * Calls wait for the end of the event-loop turn in which they are made, in a
 * list for each server, and on for as long as each further turn, which does not
 * sleep, brings more of them.  Then those whose limits are the same but for the
 * key go as one command with several keys: the server has less to do for it
 * than for so many commands, and it is woken up once.  One reply has the
 * answers of all of them, in order.
 *
 * That is for the short scripts and single requests.  Others go by themselves.
 */


#include "ngx_http_ratelimit_batch.h"
#include "ngx_http_ratelimit_local.h"


/* so that no command holds up a server for long */
#define NGX_HTTP_RATELIMIT_BATCH  32

/* ms: in a worker that has much to do, turns are long */
#define NGX_HTTP_RATELIMIT_BATCH_WAIT  5


/* what waits for one server */

typedef struct {
    ngx_http_ratelimit_link_t       *link;
    ngx_queue_t                      errands;

    /* -1, here as in ngx_connection_t: timers log it as a descriptor */
    ngx_socket_t                     ident;

    ngx_event_t                      flush;      /* posted, and a timer: a
                                                    process that leaves waits
                                                    for nothing else */
    unsigned                         grew:1;     /* in this turn */
} ngx_http_ratelimit_lane_t;


/* a command under way */

typedef struct {
    ngx_queue_t                      queue;      /* free ones */
    ngx_http_ratelimit_link_t       *link;
    ngx_http_ratelimit_errand_t     *errands[NGX_HTTP_RATELIMIT_BATCH];
    ngx_http_ratelimit_claim_t      *claims[NGX_HTTP_RATELIMIT_BATCH];
    ngx_uint_t                       n;
    uint64_t                         sent;       /* us */
    unsigned                         eval:1;
} ngx_http_ratelimit_batch_t;


static ngx_http_ratelimit_lane_t *ngx_http_ratelimit_batch_lane(
    ngx_http_ratelimit_link_t *link);
static void ngx_http_ratelimit_batch_flush(ngx_event_t *ev);
static ngx_http_ratelimit_batch_t *ngx_http_ratelimit_batch_create(
    ngx_http_ratelimit_lane_t *lane);
static ngx_http_ratelimit_failure_e ngx_http_ratelimit_batch_send(
    ngx_http_ratelimit_batch_t *batch);
static ngx_int_t ngx_http_ratelimit_batch_reply(void *data,
    ngx_http_ratelimit_reply_t *reply, ngx_http_ratelimit_failure_e failure);
static void ngx_http_ratelimit_batch_done(ngx_http_ratelimit_batch_t *batch,
    ngx_http_ratelimit_failure_e failure);


static ngx_pool_t   *ngx_http_ratelimit_batch_pool;
static ngx_queue_t   ngx_http_ratelimit_batches;


void
ngx_http_ratelimit_batch_init(ngx_cycle_t *cycle)
{
    ngx_http_ratelimit_batch_pool = cycle->pool;
    ngx_queue_init(&ngx_http_ratelimit_batches);
}


/* made with the first call to a server; NULL: no memory */

static ngx_http_ratelimit_lane_t *
ngx_http_ratelimit_batch_lane(ngx_http_ratelimit_link_t *link)
{
    void                       **place;
    ngx_http_ratelimit_lane_t   *lane;

    place = ngx_http_ratelimit_link_lane(link);
    lane = *place;

    if (lane) {
        return lane;
    }

    lane = ngx_pcalloc(ngx_http_ratelimit_batch_pool,
                       sizeof(ngx_http_ratelimit_lane_t));
    if (lane == NULL) {
        return NULL;
    }

    lane->link = link;
    lane->ident = (ngx_socket_t) -1;
    lane->flush.handler = ngx_http_ratelimit_batch_flush;
    lane->flush.data = lane;
    lane->flush.log = ngx_cycle->log;

    ngx_queue_init(&lane->errands);

    *place = lane;

    return lane;
}


ngx_http_ratelimit_failure_e
ngx_http_ratelimit_batch_add(ngx_http_ratelimit_link_t *link,
    ngx_http_ratelimit_errand_t *errand)
{
    ngx_http_ratelimit_lane_t     *lane;
    ngx_http_ratelimit_failure_e   failure;

    failure = ngx_http_ratelimit_link_check(link);

    if (failure != NGX_HTTP_RATELIMIT_OK) {
        ngx_http_ratelimit_link_unsent(link, failure);
        return failure;
    }

    lane = ngx_http_ratelimit_batch_lane(link);
    if (lane == NULL) {
        return NGX_HTTP_RATELIMIT_OVERLOAD;
    }

    errand->gone = 0;
    lane->grew = 1;

    ngx_queue_insert_tail(&lane->errands, &errand->queue);
    ngx_post_event(&lane->flush, &ngx_posted_events);

    return NGX_HTTP_RATELIMIT_OK;
}


void
ngx_http_ratelimit_batch_grew(ngx_http_ratelimit_link_t *link)
{
    ngx_http_ratelimit_lane_t  *lane;

    lane = *ngx_http_ratelimit_link_lane(link);
    lane->grew = 1;
}


static void
ngx_http_ratelimit_batch_flush(ngx_event_t *ev)
{
    ngx_queue_t                   *q;
    ngx_http_ratelimit_lane_t     *lane;
    ngx_http_ratelimit_batch_t    *batch;
    ngx_http_ratelimit_errand_t   *errand;
    ngx_http_ratelimit_failure_e   failure;

    lane = ev->data;

    if (lane->grew && !ev->timedout) {
        lane->grew = 0;

        if (!ev->timer_set) {
            ngx_add_timer(ev, NGX_HTTP_RATELIMIT_BATCH_WAIT);
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

        batch = ngx_http_ratelimit_batch_create(lane);

        if (batch == NULL) {
            q = ngx_queue_head(&lane->errands);
            ngx_queue_remove(q);

            errand = ngx_queue_data(q, ngx_http_ratelimit_errand_t, queue);
            errand->handler(errand, NGX_HTTP_RATELIMIT_OVERLOAD);
            continue;
        }

        failure = ngx_http_ratelimit_batch_send(batch);

        if (failure != NGX_HTTP_RATELIMIT_OK) {
            ngx_http_ratelimit_link_unsent(lane->link, failure);
            ngx_http_ratelimit_batch_done(batch, failure);
        }
    }
}


/* the oldest errand, and all that can go with it */

static ngx_http_ratelimit_batch_t *
ngx_http_ratelimit_batch_create(ngx_http_ratelimit_lane_t *lane)
{
    ngx_uint_t                    alone;
    ngx_queue_t                  *q, *next;
    ngx_http_ratelimit_batch_t   *batch;
    ngx_http_ratelimit_errand_t  *errand, *first;

    if (!ngx_queue_empty(&ngx_http_ratelimit_batches)) {
        q = ngx_queue_head(&ngx_http_ratelimit_batches);
        ngx_queue_remove(q);
        batch = ngx_queue_data(q, ngx_http_ratelimit_batch_t, queue);

    } else {
        batch = ngx_palloc(ngx_http_ratelimit_batch_pool,
                           sizeof(ngx_http_ratelimit_batch_t));
        if (batch == NULL) {
            return NULL;
        }
    }

    batch->link = lane->link;
    batch->eval = 0;
    batch->n = 0;

    /* keys of one command to a cluster have to be of one slot */

    alone = ngx_http_ratelimit_link_peer(lane->link)->node;
    first = NULL;

    for (q = ngx_queue_head(&lane->errands);
         q != ngx_queue_sentinel(&lane->errands)
         && batch->n < NGX_HTTP_RATELIMIT_BATCH;
         q = next)
    {
        next = ngx_queue_next(q);
        errand = ngx_queue_data(q, ngx_http_ratelimit_errand_t, queue);

        if (first == NULL) {
            first = errand;

        } else if (errand->timeout != first->timeout
                   || !ngx_http_ratelimit_script_alike(&first->script,
                                                       &errand->script))
        {
            continue;
        }

        ngx_queue_remove(q);

        batch->claims[batch->n] = errand->script.claims[0];
        batch->errands[batch->n++] = errand;
        errand->gone = 1;

        if (alone || !ngx_http_ratelimit_script_alike(&first->script,
                                                      &first->script))
        {
            break;
        }
    }

    return batch;
}


/* in the time that the one with the least has left */

static ngx_http_ratelimit_failure_e
ngx_http_ratelimit_batch_send(ngx_http_ratelimit_batch_t *batch)
{
    char                          *bytes;
    long long                      len;
    ngx_str_t                      command;
    ngx_uint_t                     i;
    ngx_msec_t                     spent, left;
    ngx_http_ratelimit_slot_t     *slot;
    ngx_http_ratelimit_errand_t   *errand;
    ngx_http_ratelimit_failure_e   failure;

    left = NGX_MAX_INT32_VALUE;
    batch->sent = ngx_http_ratelimit_local_clock();

    for (i = 0; i < batch->n; i++) {
        errand = batch->errands[i];
        errand->sent = batch->sent;

        spent = ngx_current_msec - errand->start;
        spent = ngx_min(spent, errand->timeout);
        left = ngx_min(left, errand->timeout - spent);
    }

    if (left == 0) {
        return NGX_HTTP_RATELIMIT_TIMEOUT;
    }

    if (batch->n > 1) {
        len = ngx_http_ratelimit_script_batch(&bytes, batch->claims, batch->n,
                                              batch->eval);

    } else {
        batch->errands[0]->script.eval = batch->eval;
        len = ngx_http_ratelimit_script_take(&bytes,
                                             &batch->errands[0]->script);
    }

    if (len < 0) {
        return NGX_HTTP_RATELIMIT_OVERLOAD;
    }

    command.data = (u_char *) bytes;
    command.len = len;

    failure = ngx_http_ratelimit_link_send(batch->link, &command, left,
                                           ngx_http_ratelimit_batch_reply,
                                           batch, &slot);
    ngx_http_ratelimit_script_free(bytes);

    return failure;
}


static ngx_int_t
ngx_http_ratelimit_batch_reply(void *data, ngx_http_ratelimit_reply_t *reply,
    ngx_http_ratelimit_failure_e failure)
{
    ngx_http_ratelimit_batch_t *batch = data;

    ngx_uint_t  i;

    if (failure == NGX_HTTP_RATELIMIT_OK) {

        if (batch->n > 1) {
            failure = ngx_http_ratelimit_script_batch_reply(reply,
                                                            batch->claims,
                                                            batch->n);

            for (i = 0; i < batch->n; i++) {
                batch->errands[i]->script.passed =
                                        (batch->claims[i]->state[0] >= 0);
            }

        } else {
            failure = ngx_http_ratelimit_script_reply(reply,
                                                 &batch->errands[0]->script);
        }
    }

    /* only a call that did not run is made again, once, with the text */

    if (failure == NGX_HTTP_RATELIMIT_NOSCRIPT && !batch->eval) {
        ngx_http_ratelimit_link_reload(batch->link);

        batch->eval = 1;
        failure = ngx_http_ratelimit_batch_send(batch);

        if (failure == NGX_HTTP_RATELIMIT_OK) {
            return NGX_OK;
        }
    }

    if (failure == NGX_HTTP_RATELIMIT_OK) {
        ngx_http_ratelimit_link_answered(batch->link,
                            ngx_http_ratelimit_local_clock() - batch->sent);

    } else {
        ngx_http_ratelimit_link_failed(batch->link, failure, reply);
    }

    ngx_http_ratelimit_batch_done(batch, failure);

    return (failure == NGX_HTTP_RATELIMIT_PROTOCOL) ? NGX_ERROR : NGX_OK;
}


static void
ngx_http_ratelimit_batch_done(ngx_http_ratelimit_batch_t *batch,
    ngx_http_ratelimit_failure_e failure)
{
    ngx_uint_t                    i;
    ngx_http_ratelimit_errand_t  *errand;

    for (i = 0; i < batch->n; i++) {
        errand = batch->errands[i];

        if (failure == NGX_HTTP_RATELIMIT_OK
            && batch->claims[i]->failure != NGX_HTTP_RATELIMIT_OK)
        {
            ngx_http_ratelimit_link_failed(batch->link,
                                           batch->claims[i]->failure, NULL);
            errand->handler(errand, batch->claims[i]->failure);
            continue;
        }

        errand->handler(errand, failure);
    }

    ngx_queue_insert_head(&ngx_http_ratelimit_batches, &batch->queue);
}
