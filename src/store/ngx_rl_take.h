
/*
 * A take carries the claims of a request to Redis and returns decisions, or
 * the reasons why there are none.
 */


#ifndef _NGX_RL_TAKE_H_INCLUDED_
#define _NGX_RL_TAKE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/ngx_rl_combine.h"
#include "topology/ngx_rl_shards.h"


typedef struct ngx_rl_take_s       ngx_rl_take_t;
typedef struct ngx_rl_take_call_s  ngx_rl_take_call_t;

typedef void (*ngx_rl_take_pt)(ngx_rl_take_t *take);


/*
 * All claims of one request; the caller owns the memory.  Claims on one shard
 * become one call.  The calls are sent in parallel, and the handler is called
 * when the last of them has ended.
 */

struct ngx_rl_take_s {

    /* set by the caller */

    ngx_pool_t         *pool;
    ngx_msec_t          timeout;
    ngx_rl_known_ttl_t  ttl;
    uint64_t            lease;      /* most tokens in advance, per limit */
    ngx_rl_take_pt      handler;
    void               *data;
    unsigned            preview:1;  /* takes nothing */
    unsigned            clock:1;    /* use nginx's clock */
    unsigned            closed:1;   /* a missing answer rejects the request */

    /* private to the take */

    ngx_msec_t          start;
    uint64_t            ended;      /* us; 0: without a wait */
    ngx_array_t         calls;      /* ngx_rl_take_call_t */
    ngx_uint_t          pending;    /* calls under way */

    ngx_rl_waiter_t     waiter;     /* of a single claim */
    ngx_queue_t         queue;      /* in the list of detached takes */
};


/* the claims on one shard, or on one slot of a cluster */

struct ngx_rl_take_call_s {
    ngx_rl_take_t    *take;
    ngx_rl_server_t  *server;
    ngx_uint_t        part;     /* of the server; in a cluster, the slot */
    ngx_rl_failure_e  failure;  /* OK: decisions are valid */
    ngx_rl_entry_t    entry;
    unsigned          under_way:1;
};


void ngx_rl_take_init(void);
void ngx_rl_take_exit(void);

/* NGX_OK, or NGX_ERROR: no memory */
ngx_int_t ngx_rl_take_begin(ngx_rl_take_t *take);

/* adds a claim on a limit that lives on this server */
ngx_int_t ngx_rl_take_add(ngx_rl_take_t *take,
    ngx_rl_claim_t *claim, ngx_rl_server_conf_t *conf);

/*
 * NGX_AGAIN: the handler will be called exactly once, within the timeout;
 * NGX_OK: it will not be called, as everything has ended already.
 */
ngx_int_t ngx_rl_take_send(ngx_rl_take_t *take);

/*
 * Refunds what was taken.  A take does so by itself when one of several calls
 * is denied.
 */
void ngx_rl_take_refund(ngx_rl_take_t *take);

/*
 * May be called at any time.  Afterwards the handler is not called and the
 * caller's memory is not used any more.  Calls that may have to be refunded
 * continue.
 */
void ngx_rl_take_cancel(ngx_rl_take_t *take);

/* the call that carried a claim */
ngx_rl_take_call_t *ngx_rl_take_find(
    ngx_rl_take_t *take, ngx_rl_claim_t *claim);


#endif /* _NGX_RL_TAKE_H_INCLUDED_ */
