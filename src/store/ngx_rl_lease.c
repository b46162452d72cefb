
/*
 * A lease is a number of tokens of one bucket that this worker has taken in
 * advance and put into shared memory, where all workers spend them.  The
 * worker that took them remembers where they came from and when the rest must
 * be refunded.  By then they may have been spent.
 *
 * Leases with the same time to live end in the order in which they were taken.
 * So there is one queue for each time to live, with one timer, however many
 * keys there are.  The timer fires slightly late, to end many leases at once.
 *
 * The number of leases is bounded by a part of what the zone can hold, because
 * the lease of an evicted key is lost.  At the bound no new lease is taken,
 * and Redis is asked for each request.  Whenever a lease is wanted, a few
 * existing leases are checked in turn and removed if their tokens have been
 * spent: a busy key takes many leases within the lifetime of one.
 *
 * A worker that dies forgets its leases.  Their tokens are spent, or refunded
 * together with later leases of the same key.  Without later leases they are
 * lost.
 */


#include "store/ngx_rl_lease.h"
#include "core/ngx_rl_core.h"
#include "store/ngx_rl_refund.h"


/* a timer is late by at most this part of the time to live */
#define NGX_RL_LEASE_LATE  64

/* leases ended in one turn of the event loop */
#define NGX_RL_LEASE_ENDS  512

/* leases of one worker; each takes about 200 bytes */
#define NGX_RL_LEASES_MAX  131072

/* leases checked whenever one is wanted */
#define NGX_RL_LEASE_LOOKS  2


typedef struct {
    ngx_queue_t       queue;
    ngx_rl_server_t  *server;
    ngx_rl_bucket_t   bucket;
    uint64_t          hash[2];  /* of the claim */
    uint32_t          mark;     /* of the lease */
    ngx_msec_t        end;
    ngx_msec_t        timeout;  /* of the refund */
    size_t            len;
    char              key[1];   /* as long as it is */
} ngx_rl_lease_t;


typedef struct {
    ngx_queue_t   queue;
    ngx_msec_t    ttl;
    ngx_socket_t  ident;   /* see ngx_rl_event_init() */

    ngx_queue_t   leases;  /* the first to end first */
    ngx_queue_t  *look;    /* the next to check, or the sentinel */
    ngx_event_t   timer;
} ngx_rl_lease_queue_t;


static ngx_rl_lease_queue_t *ngx_rl_lease_queue(ngx_msec_t ttl);
static void ngx_rl_lease_timer(ngx_event_t *ev);
static void ngx_rl_lease_end(ngx_rl_lease_queue_t *lq, ngx_rl_lease_t *lease);
static void ngx_rl_lease_claim(ngx_rl_lease_t *lease, ngx_rl_claim_t *claim);
static void ngx_rl_lease_free(ngx_rl_lease_queue_t *lq, ngx_rl_lease_t *lease);


static ngx_queue_t                  ngx_rl_lease_queues;
static ngx_uint_t                   ngx_rl_leases;
static ngx_uint_t                   ngx_rl_lease_max;


void
ngx_rl_lease_init(ngx_cycle_t *cycle, ngx_rl_zone_t *zone)
{
    ngx_core_conf_t  *ccf;

    ngx_rl_leases = 0;

    ngx_queue_init(&ngx_rl_lease_queues);

    /* three quarters of all keys, divided among the workers */

    ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);

    ngx_rl_lease_max = ngx_min((ngx_uint_t) zone->cells->n / 4 * 3
                               / ngx_max(ccf->worker_processes, 1),
                               NGX_RL_LEASES_MAX);
}


void
ngx_rl_lease_exit(void)
{
    ngx_queue_t           *q, *next, *lease;
    ngx_rl_lease_queue_t  *lq;

    for (q = ngx_queue_head(&ngx_rl_lease_queues);
         q != ngx_queue_sentinel(&ngx_rl_lease_queues);
         q = next)
    {
        next = ngx_queue_next(q);
        lq = ngx_queue_data(q, ngx_rl_lease_queue_t, queue);

        while (!ngx_queue_empty(&lq->leases)) {
            lease = ngx_queue_head(&lq->leases);

            ngx_rl_lease_end(lq, ngx_queue_data(lease, ngx_rl_lease_t, queue));
        }

        ngx_rl_event_end(&lq->timer);
        ngx_free(lq);
    }

    ngx_queue_init(&ngx_rl_lease_queues);

    /* calls that are answered during shutdown get no lease */

    ngx_rl_lease_max = 0;
}


ngx_uint_t
ngx_rl_lease_room(ngx_rl_server_t *server, ngx_msec_t ttl)
{
    ngx_uint_t             n;
    ngx_queue_t           *q;
    ngx_rl_lease_t        *lease;
    ngx_rl_claim_t         claim;
    ngx_rl_lease_queue_t  *lq;

    lq = ngx_rl_lease_queue(ttl);

    for (n = 0; lq && n < NGX_RL_LEASE_LOOKS; n++) {

        q = lq->look;
        lq->look = ngx_queue_next(q);

        if (q == ngx_queue_sentinel(&lq->leases)) {
            continue;
        }

        lease = ngx_queue_data(q, ngx_rl_lease_t, queue);

        ngx_rl_lease_claim(lease, &claim);

        if (ngx_rl_known_lease_spent(lease->server->zone, &claim, lease->mark))
        {
            ngx_rl_lease_free(lq, lease);
        }
    }

    if (ngx_rl_leases < ngx_rl_lease_max) {
        return 1;
    }

    ngx_rl_count(server->stats->leases_refused);

    return 0;
}


ngx_int_t
ngx_rl_lease(ngx_rl_server_t *server,
    ngx_rl_claim_t *claim, ngx_rl_known_ttl_t *ttl,
    uint64_t sent, uint64_t tokens, ngx_msec_t timeout)
{
    ngx_rl_lease_t        *lease;
    ngx_rl_lease_queue_t  *lq;

    if (ngx_rl_leases >= ngx_rl_lease_max) {
        return NGX_DECLINED;
    }

    lq = ngx_rl_lease_queue(ttl->lease);
    if (lq == NULL) {
        return NGX_DECLINED;
    }

    lease = ngx_alloc(offsetof(ngx_rl_lease_t, key) + claim->len,
                      ngx_cycle->log);
    if (lease == NULL) {
        return NGX_DECLINED;
    }

    if (ngx_rl_known_learn(server->zone, claim, ttl, sent, tokens, &lease->mark)
        != NGX_OK)
    {
        ngx_free(lease);
        return NGX_DECLINED;
    }

    lease->server = server;
    lease->bucket = claim->bucket;
    lease->hash[0] = claim->hash[0];
    lease->hash[1] = claim->hash[1];
    lease->end = ngx_current_msec + lq->ttl;
    lease->timeout = timeout;
    lease->len = claim->len;

    ngx_memcpy(lease->key, claim->key, claim->len);

    ngx_queue_insert_tail(&lq->leases, &lease->queue);
    ngx_rl_leases++;

    if (!lq->timer.timer_set && !lq->timer.posted) {
        ngx_add_timer(&lq->timer, lq->ttl + lq->ttl / NGX_RL_LEASE_LATE);
    }

    /* the connection must exist when the worker exits */

    ngx_rl_connection_hold(server->connection);

    return NGX_OK;
}


/* NULL: no memory */

static ngx_rl_lease_queue_t *
ngx_rl_lease_queue(ngx_msec_t ttl)
{
    ngx_queue_t           *q;
    ngx_rl_lease_queue_t  *lq;

    for (q = ngx_queue_head(&ngx_rl_lease_queues);
         q != ngx_queue_sentinel(&ngx_rl_lease_queues);
         q = ngx_queue_next(q))
    {
        lq = ngx_queue_data(q, ngx_rl_lease_queue_t, queue);

        if (lq->ttl == ttl) {
            return lq;
        }
    }

    lq = ngx_calloc(sizeof(ngx_rl_lease_queue_t), ngx_cycle->log);
    if (lq == NULL) {
        return NULL;
    }

    lq->ttl = ttl;
    ngx_rl_event_init(&lq->timer, ngx_rl_lease_queue_t,
                      ngx_rl_lease_timer, lq, ngx_cycle->log);
    lq->timer.cancelable = 1;

    ngx_queue_init(&lq->leases);
    lq->look = &lq->leases;

    ngx_queue_insert_tail(&ngx_rl_lease_queues, &lq->queue);

    return lq;
}


static void
ngx_rl_lease_timer(ngx_event_t *ev)
{
    ngx_uint_t             n;
    ngx_queue_t           *q;
    ngx_msec_int_t         left;
    ngx_rl_lease_t        *lease;
    ngx_rl_lease_queue_t  *lq;

    lq = ev->data;

    for (n = 0; !ngx_queue_empty(&lq->leases); n++) {
        q = ngx_queue_head(&lq->leases);
        lease = ngx_queue_data(q, ngx_rl_lease_t, queue);

        left = (ngx_msec_int_t) (lease->end - ngx_current_msec);

        if (left > 0) {
            ngx_add_timer(ev, left + lq->ttl / NGX_RL_LEASE_LATE);
            return;
        }

        if (n == NGX_RL_LEASE_ENDS) {
            ngx_post_event(ev, &ngx_posted_next_events);
            return;
        }

        ngx_rl_lease_end(lq, lease);
    }
}


static void
ngx_rl_lease_end(ngx_rl_lease_queue_t *lq, ngx_rl_lease_t *lease)
{
    uint64_t        tokens;
    ngx_rl_claim_t  claim;

    ngx_rl_lease_claim(lease, &claim);

    tokens = ngx_rl_known_lease_end(lease->server->zone, &claim, lease->mark);

    if (tokens) {
        ngx_rl_refund(lease->server, &claim, tokens, NULL, lease->timeout);
    }

    ngx_rl_lease_free(lq, lease);
}


/* copies what shared memory and a refund need of a claim */

static void
ngx_rl_lease_claim(ngx_rl_lease_t *lease, ngx_rl_claim_t *claim)
{
    claim->key = lease->key;
    claim->len = lease->len;
    claim->bucket = lease->bucket;
    claim->hash[0] = lease->hash[0];
    claim->hash[1] = lease->hash[1];
}


static void
ngx_rl_lease_free(ngx_rl_lease_queue_t *lq, ngx_rl_lease_t *lease)
{
    ngx_rl_connection_release(lease->server->connection);

    if (lq->look == &lease->queue) {
        lq->look = ngx_queue_next(&lease->queue);
    }

    ngx_queue_remove(&lease->queue);
    ngx_free(lease);

    ngx_rl_leases--;
}
