
/*
 * All or nothing.  Limits on one shard are taken by one atomic call.  Nothing
 * is atomic across shards: the calls are sent in parallel, and if one of them
 * is denied, the tokens of the others are refunded.  For a moment such a
 * request holds tokens that it will not use, so another request may be denied
 * that would have passed.  No request can pass that should not.  A lost refund
 * has the same effect for longer.
 *
 * A call whose reply is lost may have run.  It is neither repeated nor
 * refunded.  It counts as a failure, and the failure policy decides.
 *
 * A client may leave while several calls are under way.  They continue in a
 * copy of the take, which has a pool of its own, until it is known what must
 * be refunded.  Otherwise a client that one limit denies could empty the other
 * limits by leaving early.
 */


#include "store/ngx_rl_take.h"
#include "core/ngx_rl_core.h"
#include "store/ngx_rl_refund.h"
#include "topology/ngx_rl_route.h"


static ngx_rl_take_call_t *ngx_rl_take_call(
    ngx_rl_take_t *take, ngx_rl_server_t *server, ngx_uint_t part);
static void ngx_rl_take_combined(ngx_rl_waiter_t *waiter);
static ngx_uint_t ngx_rl_take_away(ngx_rl_take_t *take);
static void ngx_rl_take_answered(ngx_rl_entry_t *entry,
    ngx_rl_failure_e failure);
static void ngx_rl_take_decide(ngx_rl_take_call_t *call);
static ngx_uint_t ngx_rl_take_denied(ngx_rl_take_t *take);
static ngx_int_t ngx_rl_take_detach(ngx_rl_take_t *take);
static void ngx_rl_take_detached(ngx_rl_take_t *take);


/* takes whose requests have ended; each has a pool of its own */
static ngx_queue_t  ngx_rl_takes_detached;


void
ngx_rl_take_init(void)
{
    ngx_queue_init(&ngx_rl_takes_detached);
}


void
ngx_rl_take_exit(void)
{
    ngx_queue_t    *q;
    ngx_rl_take_t  *take;

    while (!ngx_queue_empty(&ngx_rl_takes_detached)) {
        q = ngx_queue_head(&ngx_rl_takes_detached);
        ngx_queue_remove(q);

        take = ngx_queue_data(q, ngx_rl_take_t, queue);
        ngx_destroy_pool(take->pool);
    }
}


ngx_int_t
ngx_rl_take_begin(ngx_rl_take_t *take)
{
    take->pending = 0;
    take->ended = 0;

    return ngx_array_init(&take->calls, take->pool, 1,
                          sizeof(ngx_rl_take_call_t));
}


ngx_int_t
ngx_rl_take_add(ngx_rl_take_t *take,
    ngx_rl_claim_t *claim, ngx_rl_server_conf_t *conf)
{
    ngx_uint_t           part;
    ngx_rl_server_t     *server;
    ngx_rl_take_call_t  *call;

    server = ngx_rl_route_find(conf, claim->key, claim->len, &part);

    call = ngx_rl_take_call(take, server, part);
    if (call == NULL) {
        return NGX_ERROR;
    }

    call->entry.call.claims[call->entry.call.n++] = claim;

    return NGX_OK;
}


/* finds the call for this server, or adds one */

static ngx_rl_take_call_t *
ngx_rl_take_call(ngx_rl_take_t *take, ngx_rl_server_t *server, ngx_uint_t part)
{
    ngx_uint_t           i;
    ngx_rl_take_call_t  *call;

    call = take->calls.elts;

    for (i = 0; i < take->calls.nelts; i++) {
        if (call[i].server == server && call[i].part == part) {
            return &call[i];
        }
    }

    call = ngx_array_push(&take->calls);
    if (call == NULL) {
        return NULL;
    }

    ngx_memzero(call, sizeof(ngx_rl_take_call_t));

    call->take = take;
    call->server = server;
    call->part = part;

    call->entry.call.times = 1;
    call->entry.call.preview = take->preview;
    call->entry.call.clock = take->clock;

    return call;
}


ngx_int_t
ngx_rl_take_send(ngx_rl_take_t *take)
{
    ngx_uint_t           i;
    ngx_rl_waiter_t     *waiter;
    ngx_rl_take_call_t  *call;

    take->start = ngx_current_msec;

    if (take->closed && take->calls.nelts > 1 && ngx_rl_take_away(take)) {
        return NGX_OK;
    }

    call = take->calls.elts;

    /* other requests may want the same tokens of the same bucket */

    if (take->calls.nelts == 1 && call->entry.call.n == 1 && !take->preview) {
        waiter = &take->waiter;

        waiter->claim = call->entry.call.claims[0];
        waiter->handler = ngx_rl_take_combined;
        waiter->start = take->start;
        waiter->timeout = take->timeout;
        waiter->ttl = take->ttl;
        waiter->lease = take->lease;
        waiter->clock = take->clock;

        call->failure = ngx_rl_combine_join(waiter, call->server);
        take->pending = (call->failure == NGX_RL_OK);

        return take->pending ? NGX_AGAIN : NGX_OK;
    }

    take->waiter.combiner = NULL;

    for (i = 0; i < take->calls.nelts; i++) {
        call[i].entry.call.part = (take->calls.nelts > 1);
        call[i].entry.handler = ngx_rl_take_answered;
        call[i].entry.start = take->start;
        call[i].entry.timeout = take->timeout;

        call[i].failure = ngx_rl_entry_add(call[i].server, &call[i].entry);

        if (call[i].failure == NGX_RL_OK) {
            call[i].under_way = 1;
            take->pending++;
        }
    }

    return take->pending ? NGX_AGAIN : NGX_OK;
}


static void
ngx_rl_take_combined(ngx_rl_waiter_t *waiter)
{
    ngx_rl_take_t       *take;
    ngx_rl_take_call_t  *call;

    take = ngx_rl_container(waiter, ngx_rl_take_t, waiter);
    call = take->calls.elts;

    call->failure = waiter->failure;
    take->pending = 0;
    take->ended = waiter->ended;

    take->handler(take);
}


/*
 * Whether a shard of an enforced limit is known to be unavailable.  Its calls
 * fail, and the other calls are not made: their tokens would have to be
 * refunded.
 */

static ngx_uint_t
ngx_rl_take_away(ngx_rl_take_t *take)
{
    ngx_uint_t           i, n;
    ngx_rl_failure_e     failure;
    ngx_rl_take_call_t  *call;

    call = take->calls.elts;
    n = 0;

    for (i = 0; i < take->calls.nelts; i++) {

        if (!ngx_rl_call_enforced(&call[i].entry.call)) {
            continue;
        }

        /* this also makes sure that the shard is tried again */

        failure = ngx_rl_server_check(call[i].server);

        if (failure != NGX_RL_OK) {
            ngx_rl_server_unsent(call[i].server, failure);

            call[n] = call[i];
            call[n++].failure = failure;
        }
    }

    if (n) {
        take->calls.nelts = n;
    }

    return n > 0;
}


void
ngx_rl_take_cancel(ngx_rl_take_t *take)
{
    ngx_uint_t           i;
    ngx_rl_take_call_t  *call;

    if (take->pending == 0) {
        return;
    }

    if (take->waiter.combiner) {
        ngx_rl_combine_leave(&take->waiter);
        take->pending = 0;
        return;
    }

    /* a single call takes all or nothing by itself */

    if (take->calls.nelts > 1 && !take->preview
        && ngx_rl_take_detach(take) == NGX_OK)
    {
        return;
    }

    call = take->calls.elts;

    for (i = 0; i < take->calls.nelts; i++) {

        if (call[i].under_way) {
            ngx_rl_entry_cancel(&call[i].entry);
            call[i].under_way = 0;
        }
    }
}


static ngx_int_t
ngx_rl_take_detach(ngx_rl_take_t *take)
{
    char                *key;
    ngx_uint_t           i, j;
    ngx_pool_t          *pool;
    ngx_rl_call_t       *asked;
    ngx_rl_take_t       *detached;
    ngx_rl_claim_t      *claim;
    ngx_rl_take_call_t  *call, *copy;

    pool = ngx_create_pool(2048, ngx_cycle->log);
    if (pool == NULL) {
        return NGX_ERROR;
    }

    detached = ngx_palloc(pool, sizeof(ngx_rl_take_t));
    copy = ngx_palloc(pool, take->calls.nelts * sizeof(ngx_rl_take_call_t));

    if (detached == NULL || copy == NULL) {
        goto failed;
    }

    *detached = *take;
    detached->pool = pool;
    detached->handler = ngx_rl_take_detached;
    detached->calls.elts = copy;
    detached->calls.pool = pool;

    call = take->calls.elts;

    for (i = 0; i < take->calls.nelts; i++) {

        copy[i] = call[i];
        copy[i].take = detached;
        asked = &copy[i].entry.call;

        for (j = 0; j < asked->n; j++) {

            claim = ngx_palloc(pool, sizeof(ngx_rl_claim_t));
            key = ngx_pnalloc(pool, asked->claims[j]->len);

            if (claim == NULL || key == NULL) {
                goto failed;
            }

            *claim = *asked->claims[j];
            ngx_memcpy(key, claim->key, claim->len);
            claim->key = key;

            asked->claims[j] = claim;
        }
    }

    for (i = 0; i < take->calls.nelts; i++) {

        if (call[i].under_way) {
            ngx_rl_entry_move(&call[i].entry, &copy[i].entry);
            call[i].under_way = 0;
        }
    }

    ngx_queue_insert_tail(&ngx_rl_takes_detached, &detached->queue);

    return NGX_OK;

failed:

    ngx_destroy_pool(pool);

    return NGX_ERROR;
}


/* a client that was not served is charged only if all limits let it pass */

static void
ngx_rl_take_detached(ngx_rl_take_t *take)
{
    ngx_uint_t           i;
    ngx_rl_take_call_t  *call;

    call = take->calls.elts;

    for (i = 0; i < take->calls.nelts; i++) {

        if (call[i].failure != NGX_RL_OK && !ngx_rl_take_denied(take)) {
            ngx_rl_take_refund(take);
            break;
        }
    }

    ngx_queue_remove(&take->queue);
    ngx_destroy_pool(take->pool);
}


ngx_rl_take_call_t *
ngx_rl_take_find(ngx_rl_take_t *take, ngx_rl_claim_t *claim)
{
    ngx_uint_t           i, j;
    ngx_rl_take_call_t  *call;

    call = take->calls.elts;

    for (i = 0; i < take->calls.nelts; i++) {
        for (j = 0; j < call[i].entry.call.n; j++) {
            if (call[i].entry.call.claims[j] == claim) {
                return &call[i];
            }
        }
    }

    return NULL;
}


static void
ngx_rl_take_answered(ngx_rl_entry_t *entry, ngx_rl_failure_e failure)
{
    ngx_rl_take_t       *take;
    ngx_rl_take_call_t  *call;

    call = ngx_rl_container(entry, ngx_rl_take_call_t, entry);
    take = call->take;

    call->under_way = 0;
    call->failure = failure;

    if (failure == NGX_RL_OK) {
        ngx_rl_take_decide(call);
    }

    if (--take->pending == 0) {
        take->ended = entry->ended;

        /* either all of them took, or none keeps anything */

        if (take->calls.nelts > 1 && ngx_rl_take_denied(take)) {
            ngx_rl_take_refund(take);
        }

        take->handler(take);
    }

    /* the take may have been freed */
}


/*
 * Remembers denials.  With several calls, each denial is remembered
 * separately: tokens that other calls and other requests have taken may be
 * refunded soon.
 */

static void
ngx_rl_take_decide(ngx_rl_take_call_t *call)
{
    ngx_uint_t       i;
    ngx_rl_take_t   *take;
    ngx_rl_claim_t  *claim;

    take = call->take;

    for (i = 0; i < call->entry.call.n; i++) {
        claim = call->entry.call.claims[i];

        ngx_rl_decide(&claim->decision, &claim->bucket, claim->state);
        claim->decision.source = NGX_RL_SOURCE_REDIS;

        if (claim->state[0] >= 0 || take->ttl.deny == 0 || claim->shadow
            || take->preview)
        {
            continue;
        }

        if (take->calls.nelts == 1) {
            (void) ngx_rl_known_learn(call->server->zone, claim, &take->ttl,
                                      call->entry.sent, 0, NULL);

        } else {
            ngx_rl_known_suspect(call->server->zone, claim, &take->ttl,
                                 call->entry.sent);
        }
    }
}


static ngx_uint_t
ngx_rl_take_denied(ngx_rl_take_t *take)
{
    ngx_uint_t           i, j;
    ngx_rl_take_call_t  *call;

    call = take->calls.elts;

    for (i = 0; i < take->calls.nelts; i++) {

        if (call[i].failure != NGX_RL_OK) {
            continue;
        }

        for (j = 0; j < call[i].entry.call.n; j++) {

            if (call[i].entry.call.claims[j]->state[0] < 0
                && !call[i].entry.call.claims[j]->shadow)
            {
                return 1;
            }
        }
    }

    return 0;
}


void
ngx_rl_take_refund(ngx_rl_take_t *take)
{
    ngx_uint_t           i, j;
    ngx_rl_claim_t      *claim;
    ngx_rl_take_call_t  *call;

    call = take->calls.elts;

    for (i = 0; i < take->calls.nelts; i++) {

        if (call[i].failure != NGX_RL_OK
            || !ngx_rl_call_taken(&call[i].entry.call))
        {
            continue;
        }

        for (j = 0; j < call[i].entry.call.n; j++) {
            claim = call[i].entry.call.claims[j];

            /* a dry-run limit that denied took nothing */

            if (claim->state[0] < 0) {
                continue;
            }

            ngx_rl_refund(call[i].server, claim, claim->bucket.cost,
                          &call[i].entry.call, take->timeout);
            ngx_rl_known_lease_returned(call[i].server->zone,
                                        claim, claim->bucket.cost);
        }
    }
}
