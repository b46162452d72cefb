
/*
 * A request whose bucket nobody asks for at the moment asks at once; others
 * that come before the call has left go with it.  Those that come before the
 * reply wait, and when it is there they go together: one call that takes the
 * cost "up to n times".  The reply says how many pass, first come, first
 * served.
 *
 *     group   the requests of this worker for one bucket and cost: those that
 *             wait, and rides under way; exists as long as there are any
 *     ride    one call, and the requests that it is made for
 *
 * Who waits does not wait for long: if a reply takes its time, the next ride
 * leaves without it, so that nobody's own call is late because of another's.
 *
 * A request that goes leaves its place: what the call gets for it is the next
 * one's.  What nobody needs goes back to the bucket, unless the call was made
 * for the one request alone, which has been charged then.
 *
 * A ride may take more than it needs, if leases are wanted: the rest is kept
 * in shared memory, where all workers spend it.
 */


#include "store/ngx_rl_combine.h"
#include "store/ngx_rl_lease.h"
#include "store/ngx_rl_refund.h"


#define NGX_RL_GROUPS   1024            /* chains of them */
#define NGX_RL_RIDERS   10000           /* in one call */


struct ngx_rl_group_s {
    ngx_queue_t                      queue;      /* of its chain, or free */

    /* -1, as in ngx_connection_t, at the same place: timers log it */
    void                            *unused;
    ngx_socket_t                     ident;

    ngx_rl_link_t       *link;
    uint64_t                         hash[2];
    ngx_rl_bucket_t      bucket;
    ngx_msec_t                       timeout;
    unsigned                         clock:1;

    ngx_queue_t                      waiting;    /* takes, oldest first */
    ngx_uint_t                       rides;      /* under way */
    ngx_rl_ride_t       *last;       /* of them; may be NULL */
    ngx_event_t                      timer;      /* they don't wait longer */
};


struct ngx_rl_ride_s {
    ngx_queue_t                      queue;      /* of free ones */

    ngx_rl_group_t      *group;
    ngx_queue_t                      takes;      /* oldest first */

    ngx_rl_errand_t      errand;
    ngx_rl_claim_t       claim;
    u_char                           id[NGX_RL_BATCH_ID];
    u_char                          *key;        /* the claim's, malloc()ed */
    size_t                           size;

    ngx_rl_trust_t       trust;
};


static ngx_rl_group_t *ngx_rl_group_find(
    ngx_rl_take_t *take, ngx_rl_link_t *link);
static ngx_rl_group_t *ngx_rl_group_create(
    ngx_rl_take_t *take, ngx_rl_link_t *link);
static void ngx_rl_group_free(ngx_rl_group_t *group);
static void ngx_rl_group_timer(ngx_event_t *ev);
static void ngx_rl_group_go(ngx_rl_group_t *group);
static ngx_rl_failure_e ngx_rl_ride_start(
    ngx_rl_ride_t *ride, ngx_rl_take_t *take,
    ngx_uint_t n);
static void ngx_rl_ride_small(ngx_rl_ride_t *ride);
static void ngx_rl_ride_over(ngx_rl_errand_t *errand,
    ngx_rl_failure_e failure);
static void ngx_rl_ride_serve(ngx_rl_ride_t *ride);
static void ngx_rl_ride_serve_one(
    ngx_rl_ride_t *ride, ngx_queue_t *q, uint64_t left,
    ngx_uint_t passed);
static void ngx_rl_ride_rest(ngx_rl_ride_t *ride,
    uint64_t rest, ngx_uint_t empty);
static void ngx_rl_ride_fail(ngx_rl_ride_t *ride,
    ngx_rl_failure_e failure);
static ngx_rl_ride_t *ngx_rl_ride_create(
    ngx_rl_group_t *group, ngx_rl_claim_t *claim);
static void ngx_rl_ride_free(ngx_rl_ride_t *ride);


static ngx_queue_t                 *ngx_rl_groups;
static ngx_queue_t                  ngx_rl_groups_free;
static ngx_queue_t                  ngx_rl_rides_free;
static ngx_pool_t                  *ngx_rl_group_pool;
static ngx_rl_zone_t   *ngx_rl_group_zone;


#define ngx_rl_take_claim(take)                                   \
    ((ngx_rl_call_t *) (take)->calls.elts)->errand.script.claims[0]


ngx_int_t
ngx_rl_group_init(ngx_cycle_t *cycle,
    ngx_rl_zone_t *zone)
{
    ngx_uint_t  i;

    ngx_rl_group_pool = cycle->pool;
    ngx_rl_group_zone = zone;

    ngx_rl_groups = ngx_palloc(cycle->pool,
                          NGX_RL_GROUPS * sizeof(ngx_queue_t));
    if (ngx_rl_groups == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < NGX_RL_GROUPS; i++) {
        ngx_queue_init(&ngx_rl_groups[i]);
    }

    ngx_queue_init(&ngx_rl_groups_free);
    ngx_queue_init(&ngx_rl_rides_free);

    return NGX_OK;
}


void
ngx_rl_group_exit(void)
{
    ngx_queue_t                *q;
    ngx_rl_ride_t  *ride;

    if (ngx_rl_groups == NULL) {
        return;
    }

    for (q = ngx_queue_head(&ngx_rl_rides_free);
         q != ngx_queue_sentinel(&ngx_rl_rides_free);
         q = ngx_queue_next(q))
    {
        ride = ngx_queue_data(q, ngx_rl_ride_t, queue);

        if (ride->key) {
            ngx_free(ride->key);
        }
    }

    ngx_rl_groups = NULL;
}


ngx_int_t
ngx_rl_group_join(ngx_rl_take_t *take,
    ngx_rl_link_t *link)
{
    ngx_rl_call_t     *call;
    ngx_rl_ride_t     *ride;
    ngx_rl_group_t    *group;
    ngx_rl_failure_e   failure;

    call = take->calls.elts;
    group = ngx_rl_group_find(take, link);

    if (group) {
        ride = group->last;

        take->group = group;
        take->ride = NULL;
        take->pending = 1;

        if (ride && !ride->errand.gone
            && ride->errand.script.times < NGX_RL_RIDERS)
        {
            take->ride = ride;
            ride->errand.script.times++;
            ngx_queue_insert_tail(&ride->takes, &take->queue);
            ngx_rl_batch_grew(&ride->errand);

            return NGX_AGAIN;
        }

        ngx_queue_insert_tail(&group->waiting, &take->queue);

        if (!group->timer.timer_set) {
            ngx_add_timer(&group->timer, take->timeout / 4 + 1);
        }

        return NGX_AGAIN;
    }

    failure = NGX_RL_OVERLOAD;

    group = ngx_rl_group_create(take, link);

    if (group) {
        ride = ngx_rl_ride_create(group,
                                       ngx_rl_take_claim(take));

        if (ride) {
            ngx_queue_insert_tail(&ride->takes, &take->queue);

            failure = ngx_rl_ride_start(ride, take, 1);

            if (failure == NGX_RL_OK) {
                take->group = group;
                take->ride = ride;
                take->pending = 1;
                return NGX_AGAIN;
            }

            ngx_queue_remove(&take->queue);
            ngx_rl_ride_free(ride);
        }

        ngx_rl_group_free(group);
    }

    call->failure = failure;

    return NGX_OK;
}


void
ngx_rl_group_leave(ngx_rl_take_t *take)
{
    ngx_rl_group_t  *group;

    group = take->group;

    ngx_queue_remove(&take->queue);
    take->pending = 0;

    if (take->ride == NULL && ngx_queue_empty(&group->waiting)) {

        if (group->timer.timer_set) {
            ngx_del_timer(&group->timer);
        }

        if (group->rides == 0) {
            ngx_rl_group_free(group);
        }
    }
}


static ngx_rl_group_t *
ngx_rl_group_find(ngx_rl_take_t *take,
    ngx_rl_link_t *link)
{
    ngx_queue_t                 *chain, *q;
    ngx_rl_claim_t  *claim;
    ngx_rl_group_t  *group;

    claim = ngx_rl_take_claim(take);
    chain = &ngx_rl_groups[claim->hash[0]
                                       % NGX_RL_GROUPS];

    for (q = ngx_queue_head(chain);
         q != ngx_queue_sentinel(chain);
         q = ngx_queue_next(q))
    {
        group = ngx_queue_data(q, ngx_rl_group_t, queue);

        if (group->hash[0] == claim->hash[0]
            && group->hash[1] == claim->hash[1]
            && group->link == link
            && group->timeout == take->timeout
            && group->clock == take->clock
            && ngx_memcmp(&group->bucket, &claim->bucket,
                          sizeof(ngx_rl_bucket_t))
               == 0)
        {
            return group;
        }
    }

    return NULL;
}


static ngx_rl_group_t *
ngx_rl_group_create(ngx_rl_take_t *take,
    ngx_rl_link_t *link)
{
    ngx_queue_t                 *q;
    ngx_rl_claim_t  *claim;
    ngx_rl_group_t  *group;

    claim = ngx_rl_take_claim(take);

    if (!ngx_queue_empty(&ngx_rl_groups_free)) {
        q = ngx_queue_head(&ngx_rl_groups_free);
        ngx_queue_remove(q);
        group = ngx_queue_data(q, ngx_rl_group_t, queue);

    } else {
        group = ngx_pcalloc(ngx_rl_group_pool,
                            sizeof(ngx_rl_group_t));
        if (group == NULL) {
            return NULL;
        }

        group->ident = (ngx_socket_t) -1;
        group->timer.handler = ngx_rl_group_timer;
        group->timer.data = group;
        group->timer.log = ngx_cycle->log;

        ngx_queue_init(&group->waiting);
    }

    group->link = link;
    group->hash[0] = claim->hash[0];
    group->hash[1] = claim->hash[1];
    group->bucket = claim->bucket;
    group->timeout = take->timeout;
    group->clock = take->clock;
    group->rides = 0;
    group->last = NULL;

    ngx_queue_insert_head(&ngx_rl_groups[claim->hash[0]
                                                % NGX_RL_GROUPS],
                          &group->queue);

    return group;
}


static void
ngx_rl_group_free(ngx_rl_group_t *group)
{
    ngx_queue_remove(&group->queue);
    ngx_queue_insert_head(&ngx_rl_groups_free, &group->queue);
}


static void
ngx_rl_group_timer(ngx_event_t *ev)
{
    ngx_rl_group_t  *group;

    group = ev->data;

    ngx_rl_group_go(group);

    if (group->rides == 0 && ngx_queue_empty(&group->waiting)) {
        ngx_rl_group_free(group);
    }
}


/* all who wait go with one call */

static void
ngx_rl_group_go(ngx_rl_group_t *group)
{
    ngx_uint_t                     n;
    ngx_queue_t                   *q;
    ngx_rl_ride_t     *ride;
    ngx_rl_take_t     *take, *first;
    ngx_rl_failure_e   failure;

    if (group->timer.timer_set) {
        ngx_del_timer(&group->timer);
    }

    while (!ngx_queue_empty(&group->waiting)) {

        q = ngx_queue_head(&group->waiting);
        first = ngx_queue_data(q, ngx_rl_take_t, queue);

        ride = ngx_rl_ride_create(group,
                                     ngx_rl_take_claim(first));
        if (ride == NULL) {
            /* each of them has its time, and no memory is a rare thing */
            ngx_add_timer(&group->timer, 1);
            return;
        }

        for (n = 0;
             n < NGX_RL_RIDERS
             && !ngx_queue_empty(&group->waiting);
             n++)
        {
            q = ngx_queue_head(&group->waiting);
            ngx_queue_remove(q);
            ngx_queue_insert_tail(&ride->takes, q);

            take = ngx_queue_data(q, ngx_rl_take_t, queue);
            take->ride = ride;
        }

        failure = ngx_rl_ride_start(ride, first, n);

        if (failure != NGX_RL_OK) {
            ride->errand.ended = ngx_rl_local_clock();
            ngx_rl_ride_fail(ride, failure);
            ngx_rl_ride_free(ride);
        }
    }
}


static ngx_rl_failure_e
ngx_rl_ride_start(ngx_rl_ride_t *ride,
    ngx_rl_take_t *take, ngx_uint_t n)
{
    uint64_t                       extra;
    ngx_rl_script_t   *script;
    ngx_rl_failure_e   failure;

    ride->trust = take->trust;

    ride->errand.start = take->start;
    ride->errand.timeout = take->timeout;

    extra = 0;

    if (take->lease) {
        extra = ngx_rl_local_wanted(ngx_rl_group_zone,
                                            &ride->claim, &take->trust,
                                            take->lease,
                                            ngx_rl_local_clock())
                / ride->claim.bucket.cost;
    }

    if (extra && !ngx_rl_lease_room(take->trust.lease)) {
        extra = 0;
        ngx_rl_ride_small(ride);
    }

    script = &ride->errand.script;

    script->times = (uint32_t) (n + extra);
    script->passed = 0;
    script->clock = take->clock;
    script->part = 0;

    failure = ngx_rl_batch_add(ride->group->link, &ride->errand);

    if (failure == NGX_RL_OK) {
        ride->group->rides++;
        ride->group->last = ride;
    }

    return failure;
}


/* the next lease of this bucket is as small as the first */

static void
ngx_rl_ride_small(ngx_rl_ride_t *ride)
{
    (void) ngx_rl_local_wanted(ngx_rl_group_zone,
                                           &ride->claim, &ride->trust, 0,
                                           ngx_rl_local_clock());
}


static void
ngx_rl_ride_over(ngx_rl_errand_t *errand,
    ngx_rl_failure_e failure)
{
    ngx_rl_ride_t   *ride;
    ngx_rl_group_t  *group;

    ride = (ngx_rl_ride_t *)
               ((u_char *) errand - offsetof(ngx_rl_ride_t,
                                             errand));
    group = ride->group;
    group->rides--;

    if (group->last == ride) {
        group->last = NULL;
    }

    if (failure == NGX_RL_OK) {
        ngx_rl_ride_serve(ride);

    } else {

        /* what it took in advance may be lost: the next one begins small */

        if (ride->trust.lease) {
            ngx_rl_ride_small(ride);
        }

        ngx_rl_ride_fail(ride, failure);
    }

    ngx_rl_ride_free(ride);

    if (!ngx_queue_empty(&group->waiting)) {
        ngx_rl_group_go(group);
    }

    if (group->rides == 0 && ngx_queue_empty(&group->waiting)) {
        ngx_rl_group_free(group);
    }
}


/* those who ride, then those who wait, in their order; then there is a rest */

static void
ngx_rl_ride_serve(ngx_rl_ride_t *ride)
{
    int64_t                       *state;
    uint64_t                       grants, left, unit;
    ngx_rl_group_t    *group;

    group = ride->group;
    state = ride->claim.state;

    grants = ride->errand.script.passed;
    left = (state[0] < 0) ? -1 - state[0] : state[0];

    unit = ride->claim.bucket.cost;

    if (ride->claim.bucket.algorithm != NGX_RL_SLIDING_WINDOW_LOG)
    {
        unit *= NGX_RL_MICRO;

    } else if (left < unit && state[2] == 0) {
        /* some passed and now it is full: its oldest entry has to leave */
        state[2] = state[1];
    }

    while (grants
           && (!ngx_queue_empty(&ride->takes)
               || !ngx_queue_empty(&group->waiting)))
    {
        grants--;

        ngx_rl_ride_serve_one(ride,
                                 ngx_queue_empty(&ride->takes)
                                 ? ngx_queue_head(&group->waiting)
                                 : ngx_queue_head(&ride->takes),
                                 left + grants * unit, 1);
    }

    while (!ngx_queue_empty(&ride->takes)) {
        ngx_rl_ride_serve_one(ride, ngx_queue_head(&ride->takes),
                                          left, 0);
    }

    if (ngx_queue_empty(&group->waiting) && group->timer.timer_set) {
        ngx_del_timer(&group->timer);
    }

    ngx_rl_ride_rest(ride, grants, left < unit);
}


static void
ngx_rl_ride_serve_one(ngx_rl_ride_t *ride,
    ngx_queue_t *q, uint64_t left, ngx_uint_t passed)
{
    ngx_rl_call_t   *call;
    ngx_rl_take_t   *take;
    ngx_rl_claim_t  *claim;

    ngx_queue_remove(q);

    take = ngx_queue_data(q, ngx_rl_take_t, queue);
    call = take->calls.elts;
    claim = call->errand.script.claims[0];

    claim->state[0] = passed ? (int64_t) left : -1 - (int64_t) left;
    claim->state[1] = ride->claim.state[1];
    claim->state[2] = ride->claim.state[2];

    ngx_rl_decide(&claim->decision, &claim->bucket, claim->state);
    claim->decision.source = NGX_RL_SOURCE_REDIS;

    call->failure = NGX_RL_OK;
    take->pending = 0;
    take->ended = ride->errand.ended;

    take->handler(take);
}


/* grants that nobody needed, and what else is to be learned */

static void
ngx_rl_ride_rest(ngx_rl_ride_t *ride, uint64_t rest,
    ngx_uint_t empty)
{
    uint64_t                      tokens;
    ngx_rl_claim_t   *claim;
    ngx_rl_refund_t   refund;

    claim = &ride->claim;
    tokens = rest * claim->bucket.cost;

    if (tokens && ride->trust.lease
        && ngx_rl_lease(ride->group->link, claim, &ride->trust,
                                    ride->errand.sent, tokens,
                                    ride->group->timeout)
           == NGX_OK)
    {
        return;
    }

    /* an empty bucket need not be asked for a while */

    if (ride->trust.lease || (empty && ride->trust.deny)) {
        (void) ngx_rl_local_learn(ngx_rl_group_zone,
                                              claim, &ride->trust,
                                              ride->errand.sent, 0, NULL);
    }

    /* a call for one request has charged it, come what may */

    if (tokens && ride->errand.script.times > 1) {
        refund.key = claim->key;
        refund.len = claim->len;
        refund.bucket = claim->bucket;
        refund.tokens = tokens;
        refund.id = ride->errand.script.id;
        refund.id_len = ride->errand.script.id_len;

        ngx_rl_refund(ride->group->link, &refund,
                                  ride->group->timeout);
        ngx_rl_local_returned(ngx_rl_group_zone,
                                          claim, tokens);
    }
}


static void
ngx_rl_ride_fail(ngx_rl_ride_t *ride,
    ngx_rl_failure_e failure)
{
    ngx_queue_t                *q;
    ngx_rl_call_t  *call;
    ngx_rl_take_t  *take;

    while (!ngx_queue_empty(&ride->takes)) {
        q = ngx_queue_head(&ride->takes);
        ngx_queue_remove(q);

        take = ngx_queue_data(q, ngx_rl_take_t, queue);
        call = take->calls.elts;

        call->failure = failure;
        take->pending = 0;
        take->ended = ride->errand.ended;

        take->handler(take);
    }
}


static ngx_rl_ride_t *
ngx_rl_ride_create(ngx_rl_group_t *group,
    ngx_rl_claim_t *claim)
{
    u_char                     *key;
    ngx_queue_t                *q;
    ngx_rl_ride_t  *ride;

    if (!ngx_queue_empty(&ngx_rl_rides_free)) {
        q = ngx_queue_head(&ngx_rl_rides_free);
        ride = ngx_queue_data(q, ngx_rl_ride_t, queue);

    } else {
        ride = ngx_pcalloc(ngx_rl_group_pool,
                           sizeof(ngx_rl_ride_t));
        if (ride == NULL) {
            return NULL;
        }

        ride->errand.handler = ngx_rl_ride_over;
        ride->errand.script.claims[0] = &ride->claim;
        ride->errand.script.n = 1;
        ride->errand.script.id = (char *) ride->id;

        ngx_queue_init(&ride->takes);
        ngx_queue_insert_head(&ngx_rl_rides_free, &ride->queue);
    }

    /* the key outlives the requests */

    if (ride->size < claim->len) {
        key = ngx_alloc(2 * claim->len, ngx_cycle->log);
        if (key == NULL) {
            return NULL;
        }

        if (ride->key) {
            ngx_free(ride->key);
        }

        ride->key = key;
        ride->size = 2 * claim->len;
    }

    ngx_queue_remove(&ride->queue);

    ngx_memcpy(ride->key, claim->key, claim->len);

    ride->claim = *claim;
    ride->claim.key = (char *) ride->key;
    ride->group = group;

    return ride;
}


static void
ngx_rl_ride_free(ngx_rl_ride_t *ride)
{
    ngx_queue_insert_head(&ngx_rl_rides_free, &ride->queue);
}
