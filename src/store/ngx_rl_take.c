
/*
 * All or nothing.  Limits on one shard are taken by one atomic call.  Between
 * shards nothing is atomic: calls go out in parallel, and if one of them is
 * denied, the others are given back.  For a moment such a request holds tokens
 * that it will not use, so others may be denied that would have passed; none
 * can pass that should not.  A refund that gets lost has the same effect for
 * longer.
 *
 * A call whose reply is lost may have run.  It is neither made again nor given
 * back: it is a failure, and the failure policy decides.
 *
 * A request may go while several calls are under way.  They run on in a copy
 * of the take, which has memory of its own, until it is known what has to be
 * given back: else a client whom one limit denies could empty the others by
 * leaving early.
 */


#include "store/ngx_rl_take.h"
#include "store/ngx_rl_combine.h"
#include "store/ngx_rl_lease.h"
#include "store/ngx_rl_refund.h"
#include "topology/ngx_rl_route.h"


/* a take whose request is gone; lives in the pool of the take */

typedef struct {
    ngx_queue_t                 queue;
    ngx_rl_take_t   take;
} ngx_rl_detached_t;


static ngx_rl_call_t *ngx_rl_store_call(
    ngx_rl_take_t *take, ngx_rl_link_t *link,
    ngx_uint_t part);
static ngx_uint_t ngx_rl_store_away(
    ngx_rl_take_t *take);
static void ngx_rl_store_over(ngx_rl_errand_t *errand,
    ngx_rl_failure_e failure);
static void ngx_rl_store_decide(ngx_rl_call_t *call);
static void ngx_rl_store_settle(ngx_rl_take_t *take);
static ngx_uint_t ngx_rl_store_denied(
    ngx_rl_take_t *take);
static ngx_int_t ngx_rl_store_detach(
    ngx_rl_take_t *take);
static void ngx_rl_store_detached(
    ngx_rl_take_t *take);


static ngx_rl_zone_t  *ngx_rl_store_zone;

/* takes whose requests are gone */
static ngx_queue_t                 ngx_rl_store_orphans;


ngx_int_t
ngx_rl_store_init(ngx_cycle_t *cycle, ngx_array_t *peers,
    ngx_rl_zone_t *zone, ngx_rl_stats_t *stats)
{
    ngx_rl_store_zone = zone;

    ngx_queue_init(&ngx_rl_store_orphans);

    ngx_rl_batch_init(cycle);
    ngx_rl_lease_init(cycle, zone, stats);
    ngx_rl_refund_init();

    if (ngx_rl_group_init(cycle, zone) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_rl_topology_init(cycle, peers, zone, stats);
}


void
ngx_rl_store_exit(void)
{
    ngx_queue_t                    *q;
    ngx_rl_detached_t  *detached;

    if (ngx_rl_store_zone == NULL) {
        return;
    }

    ngx_rl_refund_end();
    ngx_rl_lease_exit();
    ngx_rl_refund_exit();
    ngx_rl_group_exit();
    ngx_rl_topology_exit();

    ngx_rl_store_zone = NULL;

    while (!ngx_queue_empty(&ngx_rl_store_orphans)) {
        q = ngx_queue_head(&ngx_rl_store_orphans);
        ngx_queue_remove(q);

        detached = ngx_queue_data(q, ngx_rl_detached_t, queue);
        ngx_destroy_pool(detached->take.pool);
    }
}


ngx_int_t
ngx_rl_store_begin(ngx_rl_take_t *take)
{
    take->pending = 0;
    take->ended = 0;

    return ngx_array_init(&take->calls, take->pool, 1,
                          sizeof(ngx_rl_call_t));
}


ngx_int_t
ngx_rl_store_add(ngx_rl_take_t *take,
    ngx_rl_claim_t *claim, ngx_rl_peer_t *peer)
{
    ngx_uint_t                  part;
    ngx_rl_call_t  *call;
    ngx_rl_link_t  *link;

    link = ngx_rl_topology_find(peer, claim->key, claim->len,
                                            &part);

    call = ngx_rl_store_call(take, link, part);
    if (call == NULL) {
        return NGX_ERROR;
    }

    call->errand.script.claims[call->errand.script.n++] = claim;

    return NGX_OK;
}


/* finds or makes the call that goes there */

static ngx_rl_call_t *
ngx_rl_store_call(ngx_rl_take_t *take,
    ngx_rl_link_t *link, ngx_uint_t part)
{
    ngx_uint_t                  i;
    ngx_rl_call_t  *call;

    call = take->calls.elts;

    for (i = 0; i < take->calls.nelts; i++) {
        if (call[i].link == link && call[i].part == part) {
            return &call[i];
        }
    }

    call = ngx_array_push(&take->calls);
    if (call == NULL) {
        return NULL;
    }

    call->take = take;
    call->link = link;
    call->part = part;
    call->failure = NGX_RL_OK;
    call->under_way = 0;

    call->errand.script.n = 0;
    call->errand.script.times = 1;
    call->errand.script.preview = take->preview;
    call->errand.script.clock = take->clock;
    call->errand.script.part = 0;

    return call;
}


ngx_int_t
ngx_rl_store_send(ngx_rl_take_t *take)
{
    ngx_uint_t                  i;
    ngx_rl_call_t  *call;

    take->start = ngx_current_msec;

    if (take->closed && take->calls.nelts > 1
        && ngx_rl_store_away(take))
    {
        return NGX_OK;
    }

    call = take->calls.elts;

    /* others may want the same of the same bucket */

    if (take->calls.nelts == 1 && call->errand.script.n == 1 && !take->preview)
    {
        return ngx_rl_group_join(take, call->link);
    }

    take->group = NULL;

    for (i = 0; i < take->calls.nelts; i++) {

        /* elements don't move any more: the id may be pointed to */

        call[i].errand.script.id = (char *) call[i].id;
        call[i].errand.script.part = (take->calls.nelts > 1);
        call[i].errand.handler = ngx_rl_store_over;
        call[i].errand.start = take->start;
        call[i].errand.timeout = take->timeout;

        call[i].failure = ngx_rl_batch_add(call[i].link,
                                                       &call[i].errand);

        if (call[i].failure == NGX_RL_OK) {
            call[i].under_way = 1;
            take->pending++;
        }
    }

    return take->pending ? NGX_AGAIN : NGX_OK;
}


/*
 * Whether a shard of an enforced limit is known to be away.  Then those calls
 * have failed, and the others are as if they had never been: what they would
 * take had to be given back.
 */

static ngx_uint_t
ngx_rl_store_away(ngx_rl_take_t *take)
{
    ngx_uint_t                     i, n;
    ngx_rl_call_t     *call;
    ngx_rl_failure_e   failure;

    call = take->calls.elts;
    n = 0;

    for (i = 0; i < take->calls.nelts; i++) {

        if (!ngx_rl_script_enforced(&call[i].errand.script)) {
            continue;
        }

        /* this also sees to it that the shard is tried again */

        failure = ngx_rl_link_check(call[i].link);

        if (failure != NGX_RL_OK) {
            ngx_rl_link_unsent(call[i].link, failure);

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
ngx_rl_store_cancel(ngx_rl_take_t *take)
{
    ngx_uint_t                  i;
    ngx_rl_call_t  *call;

    if (take->pending == 0) {
        return;
    }

    if (take->group) {
        ngx_rl_group_leave(take);
        return;
    }

    /* a single call takes all or nothing by itself */

    if (take->calls.nelts > 1 && !take->preview
        && ngx_rl_store_detach(take) == NGX_OK)
    {
        return;
    }

    call = take->calls.elts;

    for (i = 0; i < take->calls.nelts; i++) {

        if (call[i].under_way) {
            ngx_rl_batch_cancel(&call[i].errand);
            call[i].under_way = 0;
        }
    }
}


static ngx_int_t
ngx_rl_store_detach(ngx_rl_take_t *take)
{
    char                           *key;
    ngx_uint_t                      i, j;
    ngx_pool_t                     *pool;
    ngx_rl_call_t      *call, *copy;
    ngx_rl_claim_t     *claim;
    ngx_rl_script_t    *script;
    ngx_rl_detached_t  *detached;

    pool = ngx_create_pool(2048, ngx_cycle->log);
    if (pool == NULL) {
        return NGX_ERROR;
    }

    detached = ngx_palloc(pool, sizeof(ngx_rl_detached_t));
    if (detached == NULL) {
        goto failed;
    }

    detached->take = *take;
    detached->take.pool = pool;
    detached->take.handler = ngx_rl_store_detached;
    detached->take.data = detached;

    copy = ngx_palloc(pool, take->calls.nelts
                            * sizeof(ngx_rl_call_t));
    if (copy == NULL) {
        goto failed;
    }

    detached->take.calls.elts = copy;
    detached->take.calls.pool = pool;

    call = take->calls.elts;

    for (i = 0; i < take->calls.nelts; i++) {

        copy[i] = call[i];
        copy[i].take = &detached->take;
        script = &copy[i].errand.script;
        script->id = (char *) copy[i].id;

        for (j = 0; j < script->n; j++) {

            claim = ngx_palloc(pool, sizeof(ngx_rl_claim_t));
            key = ngx_pnalloc(pool, script->claims[j]->len);

            if (claim == NULL || key == NULL) {
                goto failed;
            }

            *claim = *script->claims[j];
            ngx_memcpy(key, claim->key, claim->len);
            claim->key = key;

            script->claims[j] = claim;
        }
    }

    for (i = 0; i < take->calls.nelts; i++) {

        if (call[i].under_way) {
            ngx_rl_batch_move(&call[i].errand, &copy[i].errand);
            call[i].under_way = 0;
        }
    }

    ngx_queue_insert_tail(&ngx_rl_store_orphans,
                          &detached->queue);

    return NGX_OK;

failed:

    ngx_destroy_pool(pool);

    return NGX_ERROR;
}


/* who was not served keeps nothing unless all limits have let him pass */

static void
ngx_rl_store_detached(ngx_rl_take_t *take)
{
    ngx_uint_t                      i;
    ngx_rl_call_t      *call;
    ngx_rl_detached_t  *detached;

    detached = take->data;
    call = take->calls.elts;

    for (i = 0; i < take->calls.nelts; i++) {

        if (call[i].failure != NGX_RL_OK
            && !ngx_rl_store_denied(take))
        {
            ngx_rl_store_refund(take);
            break;
        }
    }

    ngx_queue_remove(&detached->queue);
    ngx_destroy_pool(take->pool);
}


ngx_rl_call_t *
ngx_rl_store_find(ngx_rl_take_t *take,
    ngx_rl_claim_t *claim)
{
    ngx_uint_t                  i, j;
    ngx_rl_call_t  *call;

    call = take->calls.elts;

    for (i = 0; i < take->calls.nelts; i++) {
        for (j = 0; j < call[i].errand.script.n; j++) {
            if (call[i].errand.script.claims[j] == claim) {
                return &call[i];
            }
        }
    }

    return NULL;
}


static void
ngx_rl_store_over(ngx_rl_errand_t *errand,
    ngx_rl_failure_e failure)
{
    ngx_rl_call_t  *call;
    ngx_rl_take_t  *take;

    call = (ngx_rl_call_t *)
               ((u_char *) errand - offsetof(ngx_rl_call_t,
                                             errand));
    take = call->take;

    call->under_way = 0;
    call->failure = failure;

    if (failure == NGX_RL_OK) {
        ngx_rl_store_decide(call);
    }

    if (--take->pending == 0) {
        take->ended = errand->ended;
        ngx_rl_store_settle(take);
        take->handler(take);
    }

    /* the take may be gone */
}


/*
 * Which of the limits deny is remembered.  Of several calls each is remembered
 * by itself: what the others took goes back, and so may what other requests
 * have taken here.
 */

static void
ngx_rl_store_decide(ngx_rl_call_t *call)
{
    ngx_uint_t                   i;
    ngx_rl_take_t   *take;
    ngx_rl_claim_t  *claim;

    take = call->take;

    for (i = 0; i < call->errand.script.n; i++) {
        claim = call->errand.script.claims[i];

        ngx_rl_decide(&claim->decision, &claim->bucket,
                                  claim->state);
        claim->decision.source = NGX_RL_SOURCE_REDIS;

        if (claim->state[0] >= 0 || take->trust.deny == 0 || claim->shadow
            || take->preview)
        {
            continue;
        }

        if (take->calls.nelts == 1) {
            (void) ngx_rl_local_learn(
                                                ngx_rl_store_zone,
                                                claim, &take->trust,
                                                call->errand.sent, 0, NULL);

        } else {
            ngx_rl_local_suspect(ngx_rl_store_zone,
                                             claim, &take->trust,
                                             call->errand.sent);
        }
    }
}


/* all calls have ended: all of them took, or none keeps anything */

static void
ngx_rl_store_settle(ngx_rl_take_t *take)
{
    if (take->calls.nelts > 1 && ngx_rl_store_denied(take)) {
        ngx_rl_store_refund(take);
    }
}


static ngx_uint_t
ngx_rl_store_denied(ngx_rl_take_t *take)
{
    ngx_uint_t                  i, j;
    ngx_rl_call_t  *call;

    call = take->calls.elts;

    for (i = 0; i < take->calls.nelts; i++) {

        if (call[i].failure != NGX_RL_OK) {
            continue;
        }

        for (j = 0; j < call[i].errand.script.n; j++) {

            if (call[i].errand.script.claims[j]->state[0] < 0
                && !call[i].errand.script.claims[j]->shadow)
            {
                return 1;
            }
        }
    }

    return 0;
}


void
ngx_rl_store_refund(ngx_rl_take_t *take)
{
    ngx_uint_t                    i, j;
    ngx_rl_call_t    *call;
    ngx_rl_claim_t   *claim;
    ngx_rl_refund_t   refund;

    call = take->calls.elts;

    for (i = 0; i < take->calls.nelts; i++) {

        if (call[i].failure != NGX_RL_OK
            || !ngx_rl_script_taken(&call[i].errand.script))
        {
            continue;
        }

        for (j = 0; j < call[i].errand.script.n; j++) {
            claim = call[i].errand.script.claims[j];

            /* a shadow limit that denied took nothing */

            if (claim->state[0] < 0) {
                continue;
            }

            refund.key = claim->key;
            refund.len = claim->len;
            refund.bucket = claim->bucket;
            refund.tokens = claim->bucket.cost;
            refund.id = call[i].errand.script.id;
            refund.id_len = call[i].errand.script.id_len;

            ngx_rl_refund(call[i].link, &refund, take->timeout);
            ngx_rl_local_returned(ngx_rl_store_zone,
                                              claim, claim->bucket.cost);
        }
    }
}
