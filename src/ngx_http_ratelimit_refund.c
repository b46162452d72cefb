
/*
 * Refunds to one server are collected in parcels, which leave at the end of the
 * event-loop turn, each as one command.  A parcel that is under way keeps all
 * that is needed to send it once more, should the server not know the script.
 */


#include "ngx_http_ratelimit_refund.h"


#define NGX_HTTP_RATELIMIT_PARCEL_POOL  2048
#define NGX_HTTP_RATELIMIT_PARCEL_LAST  1000        /* ms */


typedef struct {
    ngx_queue_t                   queue;     /* open, or under way */
    ngx_pool_t                   *pool;      /* its own memory */
    ngx_http_ratelimit_link_t    *link;
    ngx_msec_t                    timeout;
    ngx_uint_t                    n;
    ngx_http_ratelimit_refund_t   refunds[NGX_HTTP_RATELIMIT_REFUNDS];
    unsigned                      eval:1;
} ngx_http_ratelimit_parcel_t;


static ngx_http_ratelimit_parcel_t *ngx_http_ratelimit_parcel_open(
    ngx_http_ratelimit_link_t *link, ngx_msec_t timeout);
static void ngx_http_ratelimit_parcel_add(ngx_http_ratelimit_parcel_t *parcel,
    const ngx_http_ratelimit_refund_t *refund);
static void ngx_http_ratelimit_parcel_flush(ngx_event_t *ev);
static ngx_http_ratelimit_failure_e ngx_http_ratelimit_parcel_send(
    ngx_http_ratelimit_parcel_t *parcel, ngx_http_ratelimit_redis_pt handler);
static ngx_int_t ngx_http_ratelimit_parcel_reply(void *data,
    ngx_http_ratelimit_reply_t *reply, ngx_http_ratelimit_failure_e failure);


static ngx_queue_t  ngx_http_ratelimit_parcels;
static ngx_queue_t  ngx_http_ratelimit_parcels_sent;
static ngx_event_t  ngx_http_ratelimit_parcels_event;


void
ngx_http_ratelimit_refund_init(void)
{
    ngx_queue_init(&ngx_http_ratelimit_parcels);
    ngx_queue_init(&ngx_http_ratelimit_parcels_sent);

    ngx_memzero(&ngx_http_ratelimit_parcels_event, sizeof(ngx_event_t));

    ngx_http_ratelimit_parcels_event.handler = ngx_http_ratelimit_parcel_flush;
    ngx_http_ratelimit_parcels_event.log = ngx_cycle->log;
}


void
ngx_http_ratelimit_refund(ngx_http_ratelimit_link_t *link,
    const ngx_http_ratelimit_refund_t *refund, ngx_msec_t timeout)
{
    ngx_http_ratelimit_parcel_t  *parcel;

    parcel = ngx_http_ratelimit_parcel_open(link, timeout);

    if (parcel) {
        ngx_http_ratelimit_parcel_add(parcel, refund);
    }
}


/* one for this server that has room, or a new one; NULL: no memory */

static ngx_http_ratelimit_parcel_t *
ngx_http_ratelimit_parcel_open(ngx_http_ratelimit_link_t *link,
    ngx_msec_t timeout)
{
    ngx_pool_t                   *pool;
    ngx_uint_t                    room;
    ngx_queue_t                  *q;
    ngx_http_ratelimit_parcel_t  *parcel;

    /* keys of one command to a cluster have to be of one slot */

    room = ngx_http_ratelimit_link_peer(link)->node
           ? 1 : NGX_HTTP_RATELIMIT_REFUNDS;

    for (q = ngx_queue_last(&ngx_http_ratelimit_parcels);
         q != ngx_queue_sentinel(&ngx_http_ratelimit_parcels);
         q = ngx_queue_prev(q))
    {
        parcel = ngx_queue_data(q, ngx_http_ratelimit_parcel_t, queue);

        if (parcel->link == link && parcel->timeout == timeout) {

            if (parcel->n < room) {
                return parcel;
            }

            break;
        }
    }

    pool = ngx_create_pool(sizeof(ngx_http_ratelimit_parcel_t)
                           + NGX_HTTP_RATELIMIT_PARCEL_POOL, ngx_cycle->log);
    if (pool == NULL) {
        return NULL;
    }

    parcel = ngx_palloc(pool, sizeof(ngx_http_ratelimit_parcel_t));
    if (parcel == NULL) {
        ngx_destroy_pool(pool);
        return NULL;
    }

    parcel->pool = pool;
    parcel->link = link;
    parcel->timeout = timeout;
    parcel->n = 0;
    parcel->eval = 0;

    ngx_queue_insert_tail(&ngx_http_ratelimit_parcels, &parcel->queue);
    ngx_post_event(&ngx_http_ratelimit_parcels_event, &ngx_posted_events);

    return parcel;
}


static void
ngx_http_ratelimit_parcel_add(ngx_http_ratelimit_parcel_t *parcel,
    const ngx_http_ratelimit_refund_t *refund)
{
    char  *p;

    p = ngx_pnalloc(parcel->pool, refund->len + refund->id_len);
    if (p == NULL) {
        return;
    }

    parcel->refunds[parcel->n] = *refund;
    parcel->refunds[parcel->n].key = p;
    parcel->refunds[parcel->n].id = p + refund->len;
    parcel->n++;

    ngx_memcpy(p, refund->key, refund->len);
    ngx_memcpy(p + refund->len, refund->id, refund->id_len);
}


static void
ngx_http_ratelimit_parcel_flush(ngx_event_t *ev)
{
    ngx_queue_t                  *q;
    ngx_http_ratelimit_parcel_t  *parcel;

    while (!ngx_queue_empty(&ngx_http_ratelimit_parcels)) {
        q = ngx_queue_head(&ngx_http_ratelimit_parcels);
        ngx_queue_remove(q);

        parcel = ngx_queue_data(q, ngx_http_ratelimit_parcel_t, queue);

        if (ngx_http_ratelimit_parcel_send(parcel,
                                           ngx_http_ratelimit_parcel_reply)
            != NGX_HTTP_RATELIMIT_OK)
        {
            ngx_destroy_pool(parcel->pool);
            continue;
        }

        ngx_queue_insert_tail(&ngx_http_ratelimit_parcels_sent, q);
        ngx_http_ratelimit_link_refund(parcel->link);
    }
}


static ngx_http_ratelimit_failure_e
ngx_http_ratelimit_parcel_send(ngx_http_ratelimit_parcel_t *parcel,
    ngx_http_ratelimit_redis_pt handler)
{
    char                          *bytes;
    long long                      len;
    ngx_str_t                      command;
    ngx_http_ratelimit_slot_t     *slot;
    ngx_http_ratelimit_failure_e   failure;

    len = ngx_http_ratelimit_script_refund(&bytes, parcel->refunds, parcel->n,
                                           parcel->eval);
    if (len < 0) {
        return NGX_HTTP_RATELIMIT_OVERLOAD;
    }

    command.data = (u_char *) bytes;
    command.len = len;

    failure = ngx_http_ratelimit_link_send(parcel->link, &command,
                                           parcel->timeout, handler, parcel,
                                           &slot);

    if (failure == NGX_HTTP_RATELIMIT_OK) {
        ngx_http_ratelimit_redis_quiet(slot);
    }

    ngx_http_ratelimit_script_free(bytes);

    return failure;
}


static ngx_int_t
ngx_http_ratelimit_parcel_reply(void *data,
    ngx_http_ratelimit_reply_t *reply, ngx_http_ratelimit_failure_e failure)
{
    ngx_http_ratelimit_parcel_t *parcel = data;

    if (failure == NGX_HTTP_RATELIMIT_OK && reply->type == REDIS_REPLY_ERROR) {
        failure = ngx_http_ratelimit_failure(reply->str, reply->len);
    }

    if (failure == NGX_HTTP_RATELIMIT_NOSCRIPT && !parcel->eval) {
        ngx_http_ratelimit_link_reload(parcel->link);

        parcel->eval = 1;
        failure = ngx_http_ratelimit_parcel_send(parcel,
                                             ngx_http_ratelimit_parcel_reply);

        if (failure == NGX_HTTP_RATELIMIT_OK) {
            return NGX_OK;
        }
    }

    if (failure != NGX_HTTP_RATELIMIT_OK) {
        ngx_http_ratelimit_link_failed(parcel->link, failure, reply, 1);

        ngx_log_error(NGX_LOG_INFO, ngx_cycle->log, 0, "a refund failed: %s",
                      ngx_http_ratelimit_failure_name(failure));
    }

    ngx_queue_remove(&parcel->queue);
    ngx_destroy_pool(parcel->pool);

    return NGX_OK;
}


/* replies to those that are under way will not be read any more */

void
ngx_http_ratelimit_refund_exit(void)
{
    ngx_queue_t                  *q;
    ngx_http_ratelimit_parcel_t  *parcel;

    for (q = ngx_queue_head(&ngx_http_ratelimit_parcels);
         q != ngx_queue_sentinel(&ngx_http_ratelimit_parcels);
         q = ngx_queue_next(q))
    {
        parcel = ngx_queue_data(q, ngx_http_ratelimit_parcel_t, queue);
        parcel->timeout = NGX_HTTP_RATELIMIT_PARCEL_LAST;

        (void) ngx_http_ratelimit_parcel_send(parcel, NULL);
    }

    if (!ngx_queue_empty(&ngx_http_ratelimit_parcels)) {
        ngx_queue_add(&ngx_http_ratelimit_parcels_sent,
                      &ngx_http_ratelimit_parcels);
        ngx_queue_init(&ngx_http_ratelimit_parcels);
    }

    while (!ngx_queue_empty(&ngx_http_ratelimit_parcels_sent)) {
        q = ngx_queue_head(&ngx_http_ratelimit_parcels_sent);
        ngx_queue_remove(q);

        parcel = ngx_queue_data(q, ngx_http_ratelimit_parcel_t, queue);
        ngx_destroy_pool(parcel->pool);
    }

    if (ngx_http_ratelimit_parcels_event.posted) {
        ngx_delete_posted_event(&ngx_http_ratelimit_parcels_event);
    }
}
