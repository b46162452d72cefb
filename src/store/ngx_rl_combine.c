
/*
 * The first request for a bucket calls Redis at once.  Requests that arrive
 * before the call has left join it.  Requests that arrive before the reply
 * wait, and when the reply is there, they go together in one call that takes
 * the cost "up to n times".  The reply says how many of them pass.  They are
 * served in the order of their arrival.
 *
 *     combiner       the requests of this worker for one bucket and cost:
 *                    those that wait, and the calls under way; it exists as
 *                    long as there are any
 *     combined call  one call, and the requests that it serves
 *     waiter         the place of a request in either
 *
 * No request waits for long.  If a reply is slow, the next call leaves without
 * waiting for it, so a slow call does not make others late.
 *
 * When a client leaves, its waiter is removed, and the next request gets what
 * the call takes for it.  Tokens that no request needs are refunded.  A call
 * that served only the departed request has charged it.
 *
 * If leases are configured, a call may take more tokens than it needs.  The
 * rest is stored in shared memory, where all workers spend it.
 */


#include "store/ngx_rl_combine.h"
#include "core/ngx_rl_clock.h"
#include "core/ngx_rl_core.h"
#include "store/ngx_rl_lease.h"
#include "store/ngx_rl_refund.h"


#define NGX_RL_COMBINERS     1024    /* hash chains */
#define NGX_RL_COMBINED_MAX  10000   /* requests in one call */


struct ngx_rl_combiner_s {
    ngx_queue_t              queue;    /* in its hash chain, or free */
    void                    *unused;
    ngx_socket_t             ident;    /* see ngx_rl_event_init() */

    ngx_rl_server_t         *server;
    uint64_t                 hash[2];
    ngx_rl_bucket_t          bucket;
    ngx_msec_t               timeout;
    unsigned                 clock:1;

    ngx_queue_t              waiting;  /* oldest first */
    ngx_event_t              timer;    /* ends their wait */
    ngx_uint_t               calls;    /* under way */
    ngx_rl_combined_call_t  *last;     /* the latest of them, or NULL */
};


struct ngx_rl_combined_call_s {
    ngx_queue_t         queue;    /* in use, or free */

    ngx_rl_combiner_t  *combiner;
    ngx_queue_t         waiters;  /* oldest first */

    ngx_rl_entry_t      entry;
    ngx_rl_claim_t      claim;
    u_char             *key;      /* the claim's, malloc()ed */
    size_t              size;

    ngx_rl_known_ttl_t  ttl;
};


static ngx_rl_combiner_t *ngx_rl_combiner_find(
    ngx_rl_waiter_t *waiter, ngx_rl_server_t *server);
static ngx_rl_combiner_t *ngx_rl_combiner_create(
    ngx_rl_waiter_t *waiter, ngx_rl_server_t *server);
static void ngx_rl_combiner_release(ngx_rl_combiner_t *combiner);
static void ngx_rl_combiner_go(ngx_event_t *ev);
static ngx_rl_failure_e ngx_rl_combined_start(
    ngx_rl_combined_call_t *combined, ngx_rl_waiter_t *waiter, ngx_uint_t n);
static void ngx_rl_combined_small(ngx_rl_combined_call_t *combined);
static void ngx_rl_combined_answered(ngx_rl_entry_t *entry,
    ngx_rl_failure_e failure);
static void ngx_rl_combined_serve(ngx_rl_combined_call_t *combined);
static void ngx_rl_combined_rest(ngx_rl_combined_call_t *combined,
    uint64_t rest, ngx_uint_t empty);
static void ngx_rl_combined_fail(ngx_rl_combined_call_t *combined,
    ngx_rl_failure_e failure);
static void ngx_rl_combined_end(ngx_rl_combined_call_t *combined,
    ngx_rl_waiter_t *waiter, ngx_rl_failure_e failure);
static ngx_rl_combined_call_t *ngx_rl_combined_create(
    ngx_rl_combiner_t *combiner, ngx_rl_claim_t *claim);
static void ngx_rl_combined_free(ngx_rl_combined_call_t *combined);


static ngx_pool_t   *ngx_rl_combine_pool;
static ngx_queue_t   ngx_rl_combiners[NGX_RL_COMBINERS];
static ngx_queue_t   ngx_rl_combiners_free;

/* sent or about to be sent; and free ones */
static ngx_queue_t   ngx_rl_combined_calls;
static ngx_queue_t   ngx_rl_combined_calls_free;


void
ngx_rl_combine_init(ngx_cycle_t *cycle)
{
    ngx_uint_t  i;

    ngx_rl_combine_pool = cycle->pool;

    for (i = 0; i < NGX_RL_COMBINERS; i++) {
        ngx_queue_init(&ngx_rl_combiners[i]);
    }

    ngx_queue_init(&ngx_rl_combiners_free);
    ngx_queue_init(&ngx_rl_combined_calls);
    ngx_queue_init(&ngx_rl_combined_calls_free);
}


void
ngx_rl_combine_exit(void)
{
    ngx_queue_t             *q;
    ngx_rl_combined_call_t  *combined;

    ngx_queue_add(&ngx_rl_combined_calls_free, &ngx_rl_combined_calls);

    for (q = ngx_queue_head(&ngx_rl_combined_calls_free);
         q != ngx_queue_sentinel(&ngx_rl_combined_calls_free);
         q = ngx_queue_next(q))
    {
        combined = ngx_queue_data(q, ngx_rl_combined_call_t, queue);

        if (combined->key) {
            ngx_free(combined->key);
        }
    }
}


ngx_rl_failure_e
ngx_rl_combine_join(ngx_rl_waiter_t *waiter, ngx_rl_server_t *server)
{
    ngx_rl_failure_e         failure;
    ngx_rl_combiner_t       *combiner;
    ngx_rl_combined_call_t  *combined;

    combiner = ngx_rl_combiner_find(waiter, server);

    if (combiner) {
        combined = combiner->last;

        waiter->combiner = combiner;
        waiter->call = NULL;

        if (combined && combined->entry.command == NULL
            && combined->entry.call.times < NGX_RL_COMBINED_MAX)
        {
            waiter->call = combined;
            combined->entry.call.times++;
            ngx_queue_insert_tail(&combined->waiters, &waiter->queue);

            /* a call that has not been sent yet can serve one more request */

            server->queue.grew = 1;

        } else {
            ngx_queue_insert_tail(&combiner->waiting, &waiter->queue);

            if (!combiner->timer.timer_set) {
                ngx_add_timer(&combiner->timer, waiter->timeout / 4 + 1);
            }
        }

        return NGX_RL_OK;
    }

    failure = NGX_RL_OVERLOAD;

    combiner = ngx_rl_combiner_create(waiter, server);

    if (combiner) {
        combined = ngx_rl_combined_create(combiner, waiter->claim);

        if (combined) {
            ngx_queue_insert_tail(&combined->waiters, &waiter->queue);

            failure = ngx_rl_combined_start(combined, waiter, 1);

            if (failure == NGX_RL_OK) {
                waiter->combiner = combiner;
                waiter->call = combined;
                return NGX_RL_OK;
            }

            ngx_queue_remove(&waiter->queue);
            ngx_rl_combined_free(combined);
        }

        ngx_rl_combiner_release(combiner);
    }

    return failure;
}


void
ngx_rl_combine_leave(ngx_rl_waiter_t *waiter)
{
    ngx_rl_combiner_t  *combiner;

    combiner = waiter->combiner;

    ngx_queue_remove(&waiter->queue);

    if (waiter->call == NULL && ngx_queue_empty(&combiner->waiting)) {
        ngx_rl_timer_end(&combiner->timer);
        ngx_rl_combiner_release(combiner);
    }
}


static ngx_rl_combiner_t *
ngx_rl_combiner_find(ngx_rl_waiter_t *waiter, ngx_rl_server_t *server)
{
    ngx_queue_t        *chain, *q;
    ngx_rl_claim_t     *claim;
    ngx_rl_combiner_t  *combiner;

    claim = waiter->claim;
    chain = &ngx_rl_combiners[claim->hash[0] % NGX_RL_COMBINERS];

    for (q = ngx_queue_head(chain);
         q != ngx_queue_sentinel(chain);
         q = ngx_queue_next(q))
    {
        combiner = ngx_queue_data(q, ngx_rl_combiner_t, queue);

        if (combiner->hash[0] == claim->hash[0]
            && combiner->hash[1] == claim->hash[1]
            && combiner->server == server
            && combiner->timeout == waiter->timeout
            && combiner->clock == waiter->clock
            && ngx_rl_bucket_same(&combiner->bucket, &claim->bucket))
        {
            return combiner;
        }
    }

    return NULL;
}


static ngx_rl_combiner_t *
ngx_rl_combiner_create(ngx_rl_waiter_t *waiter, ngx_rl_server_t *server)
{
    ngx_queue_t        *q;
    ngx_rl_claim_t     *claim;
    ngx_rl_combiner_t  *combiner;

    claim = waiter->claim;

    if (!ngx_queue_empty(&ngx_rl_combiners_free)) {
        q = ngx_queue_head(&ngx_rl_combiners_free);
        ngx_queue_remove(q);
        combiner = ngx_queue_data(q, ngx_rl_combiner_t, queue);

    } else {
        combiner = ngx_pcalloc(ngx_rl_combine_pool, sizeof(ngx_rl_combiner_t));
        if (combiner == NULL) {
            return NULL;
        }

        ngx_rl_event_init(&combiner->timer, ngx_rl_combiner_t,
                          ngx_rl_combiner_go, combiner, ngx_cycle->log);

        ngx_queue_init(&combiner->waiting);
    }

    combiner->server = server;
    combiner->hash[0] = claim->hash[0];
    combiner->hash[1] = claim->hash[1];
    combiner->bucket = claim->bucket;
    combiner->timeout = waiter->timeout;
    combiner->clock = waiter->clock;
    combiner->calls = 0;
    combiner->last = NULL;

    ngx_queue_insert_head(&ngx_rl_combiners[claim->hash[0] % NGX_RL_COMBINERS],
                          &combiner->queue);

    return combiner;
}


/* unless it is still used */

static void
ngx_rl_combiner_release(ngx_rl_combiner_t *combiner)
{
    if (combiner->calls == 0 && ngx_queue_empty(&combiner->waiting)) {
        ngx_queue_remove(&combiner->queue);
        ngx_queue_insert_head(&ngx_rl_combiners_free, &combiner->queue);
    }
}


/* sends all waiters in one call, when their timer fires or a reply arrives */

static void
ngx_rl_combiner_go(ngx_event_t *ev)
{
    ngx_uint_t               n;
    ngx_queue_t             *q;
    ngx_rl_waiter_t         *waiter, *first;
    ngx_rl_failure_e         failure;
    ngx_rl_combiner_t       *combiner;
    ngx_rl_combined_call_t  *combined;

    combiner = ev->data;

    ngx_rl_timer_end(ev);

    while (!ngx_queue_empty(&combiner->waiting)) {

        q = ngx_queue_head(&combiner->waiting);
        first = ngx_queue_data(q, ngx_rl_waiter_t, queue);

        combined = ngx_rl_combined_create(combiner, first->claim);
        if (combined == NULL) {
            /*
             * Each waiter keeps its own timeout, and a lack of memory is rare.
             */
            ngx_add_timer(ev, 1);
            return;
        }

        for (n = 0;
             n < NGX_RL_COMBINED_MAX && !ngx_queue_empty(&combiner->waiting);
             n++)
        {
            q = ngx_queue_head(&combiner->waiting);
            ngx_queue_remove(q);
            ngx_queue_insert_tail(&combined->waiters, q);

            waiter = ngx_queue_data(q, ngx_rl_waiter_t, queue);
            waiter->call = combined;
        }

        failure = ngx_rl_combined_start(combined, first, n);

        if (failure != NGX_RL_OK) {
            combined->entry.ended = ngx_rl_clock_us();
            ngx_rl_combined_fail(combined, failure);
            ngx_rl_combined_free(combined);
        }
    }

    ngx_rl_combiner_release(combiner);
}


static ngx_rl_failure_e
ngx_rl_combined_start(ngx_rl_combined_call_t *combined,
    ngx_rl_waiter_t *waiter, ngx_uint_t n)
{
    uint64_t          extra;
    ngx_rl_call_t    *call;
    ngx_rl_server_t  *server;
    ngx_rl_failure_e  failure;

    server = combined->combiner->server;

    combined->ttl = waiter->ttl;

    combined->entry.start = waiter->start;
    combined->entry.timeout = waiter->timeout;

    extra = 0;

    if (waiter->lease) {
        extra = ngx_rl_known_lease_size(server->zone, &combined->claim,
                                        &waiter->ttl, waiter->lease,
                                        ngx_rl_clock_us())
                / combined->claim.bucket.cost;
    }

    if (extra && !ngx_rl_lease_room(server, waiter->ttl.lease)) {
        extra = 0;
        ngx_rl_combined_small(combined);
    }

    call = &combined->entry.call;

    call->times = (uint32_t) (n + extra);
    call->passed = 0;
    call->clock = waiter->clock;
    call->part = 0;

    failure = ngx_rl_entry_add(server, &combined->entry);

    if (failure == NGX_RL_OK) {
        combined->combiner->calls++;
        combined->combiner->last = combined;
    }

    return failure;
}


/* the next lease of this bucket starts small again */

static void
ngx_rl_combined_small(ngx_rl_combined_call_t *combined)
{
    (void) ngx_rl_known_lease_size(combined->combiner->server->zone,
                                   &combined->claim, &combined->ttl, 0,
                                   ngx_rl_clock_us());
}


static void
ngx_rl_combined_answered(ngx_rl_entry_t *entry, ngx_rl_failure_e failure)
{
    ngx_rl_combiner_t       *combiner;
    ngx_rl_combined_call_t  *combined;

    combined = ngx_rl_container(entry, ngx_rl_combined_call_t, entry);
    combiner = combined->combiner;
    combiner->calls--;

    if (combiner->last == combined) {
        combiner->last = NULL;
    }

    if (failure == NGX_RL_OK) {
        ngx_rl_combined_serve(combined);

    } else {

        /*
         * Tokens taken in advance may be lost, so the next lease starts small.
         */

        if (combined->ttl.lease) {
            ngx_rl_combined_small(combined);
        }

        ngx_rl_combined_fail(combined, failure);
    }

    ngx_rl_combined_free(combined);
    ngx_rl_combiner_go(&combiner->timer);
}


/* first the waiters of the call, then those in the queue, each in order */

static void
ngx_rl_combined_serve(ngx_rl_combined_call_t *combined)
{
    int64_t            *state;
    uint64_t            grants, left, unit;
    ngx_queue_t        *queue;
    ngx_rl_claim_t     *claim;
    ngx_rl_waiter_t    *waiter;
    ngx_rl_combiner_t  *combiner;

    combiner = combined->combiner;
    state = combined->claim.state;

    grants = combined->entry.call.passed;
    left = (state[0] < 0) ? -1 - state[0] : state[0];

    unit = combined->claim.bucket.cost;

    if (!ngx_rl_algorithm_window(combined->claim.bucket.algorithm)) {
        unit *= NGX_RL_MICRO;

    } else if (left < unit && state[2] == 0) {
        /*
         * Some passed and the window is full now: its oldest entry must leave
         * first.
         */
        state[2] = state[1];
    }

    for ( ;; ) {
        queue = (grants && ngx_queue_empty(&combined->waiters))
                ? &combiner->waiting : &combined->waiters;

        if (ngx_queue_empty(queue)) {
            break;
        }

        waiter = ngx_queue_data(ngx_queue_head(queue), ngx_rl_waiter_t, queue);
        claim = waiter->claim;

        claim->state[0] = grants ? (int64_t) (left + --grants * unit)
                                 : -1 - (int64_t) left;
        claim->state[1] = state[1];
        claim->state[2] = state[2];

        ngx_rl_decide(&claim->decision, &claim->bucket, claim->state);
        claim->decision.source = NGX_RL_SOURCE_REDIS;

        ngx_rl_combined_end(combined, waiter, NGX_RL_OK);
    }

    ngx_rl_combined_rest(combined, grants, left < unit);
}


/* refunds grants that nobody needed, and remembers the rest of the reply */

static void
ngx_rl_combined_rest(ngx_rl_combined_call_t *combined, uint64_t rest,
    ngx_uint_t empty)
{
    uint64_t          tokens;
    ngx_rl_claim_t   *claim;
    ngx_rl_server_t  *server;

    claim = &combined->claim;
    server = combined->combiner->server;
    tokens = rest * claim->bucket.cost;

    if (tokens && combined->ttl.lease
        && ngx_rl_lease(server, claim, &combined->ttl, combined->entry.sent,
                        tokens, combined->entry.timeout)
        == NGX_OK)
    {
        return;
    }

    /*
     * An empty bucket need not be asked again for a while, unless its requests
     * are counted for advice.
     */

    if (combined->ttl.lease
        || (empty && combined->ttl.deny && claim->bucket.debt == 0))
    {
        (void) ngx_rl_known_learn(server->zone, claim, &combined->ttl,
                                  combined->entry.sent, 0, NULL);
    }

    /* a call for a single request charges it in any case */

    if (tokens && combined->entry.call.times > 1) {
        ngx_rl_refund(server, claim, tokens, &combined->entry.call,
                      combined->entry.timeout);
        ngx_rl_known_lease_returned(server->zone, claim, tokens);
    }
}


static void
ngx_rl_combined_fail(ngx_rl_combined_call_t *combined, ngx_rl_failure_e failure)
{
    ngx_queue_t  *q;

    while (!ngx_queue_empty(&combined->waiters)) {
        q = ngx_queue_head(&combined->waiters);

        ngx_rl_combined_end(combined, ngx_queue_data(q, ngx_rl_waiter_t, queue),
                            failure);
    }
}


static void
ngx_rl_combined_end(ngx_rl_combined_call_t *combined,
    ngx_rl_waiter_t *waiter, ngx_rl_failure_e failure)
{
    ngx_queue_remove(&waiter->queue);

    waiter->failure = failure;
    waiter->ended = combined->entry.ended;

    waiter->handler(waiter);
}


static ngx_rl_combined_call_t *
ngx_rl_combined_create(ngx_rl_combiner_t *combiner, ngx_rl_claim_t *claim)
{
    u_char                  *key;
    ngx_queue_t             *q;
    ngx_rl_combined_call_t  *combined;

    if (!ngx_queue_empty(&ngx_rl_combined_calls_free)) {
        q = ngx_queue_head(&ngx_rl_combined_calls_free);
        combined = ngx_queue_data(q, ngx_rl_combined_call_t, queue);

    } else {
        combined = ngx_pcalloc(ngx_rl_combine_pool,
                               sizeof(ngx_rl_combined_call_t));
        if (combined == NULL) {
            return NULL;
        }

        combined->entry.handler = ngx_rl_combined_answered;
        combined->entry.call.claims[0] = &combined->claim;
        combined->entry.call.n = 1;

        ngx_queue_init(&combined->waiters);
        ngx_queue_insert_head(&ngx_rl_combined_calls_free, &combined->queue);
    }

    /* the key must outlive the requests */

    if (combined->size < claim->len) {
        key = ngx_alloc(2 * claim->len, ngx_cycle->log);
        if (key == NULL) {
            return NULL;
        }

        if (combined->key) {
            ngx_free(combined->key);
        }

        combined->key = key;
        combined->size = 2 * claim->len;
    }

    ngx_queue_remove(&combined->queue);
    ngx_queue_insert_head(&ngx_rl_combined_calls, &combined->queue);

    ngx_memcpy(combined->key, claim->key, claim->len);

    combined->claim = *claim;
    combined->claim.key = (char *) combined->key;
    combined->combiner = combiner;

    return combined;
}


static void
ngx_rl_combined_free(ngx_rl_combined_call_t *combined)
{
    ngx_queue_remove(&combined->queue);
    ngx_queue_insert_head(&ngx_rl_combined_calls_free, &combined->queue);
}
