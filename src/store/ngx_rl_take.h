
/*
 * A take makes the claims of a request on limits that live on Redis shards, and
 * is answered with decisions or with the reasons why there are none.
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
 * All claims of one request; its memory is the caller's.  Claims on one shard
 * become one call, calls go out in parallel, and the handler is called when
 * the last of them has ended.
 */

struct ngx_rl_take_s {

    /* set by the caller */

    ngx_pool_t         *pool;
    ngx_msec_t          timeout;
    ngx_rl_known_ttl_t  ttl;
    uint64_t            lease;      /* tokens in advance, at most so many of
                                       a limit */
    ngx_rl_take_pt      handler;
    void               *data;
    unsigned            preview:1;  /* take nothing */
    unsigned            clock:1;    /* nginx's time counts */
    unsigned            closed:1;   /* without all enforced limits the
                                       request ends */

    /* the take's own */

    ngx_msec_t          start;
    uint64_t            ended;      /* us, 0: without a wait */
    ngx_array_t         calls;      /* ngx_rl_take_call_t */
    ngx_uint_t          pending;    /* calls under way */

    ngx_rl_waiter_t     waiter;     /* of a single claim */
    ngx_queue_t         queue;      /* of takes whose requests are gone */
};


/* the claims on one shard, or on one slot of a cluster */

struct ngx_rl_take_call_s {
    ngx_rl_take_t    *take;
    ngx_rl_server_t  *server;
    ngx_uint_t        part;     /* of the server: the slot in a cluster */
    ngx_rl_failure_e  failure;  /* OK: decisions are valid */
    ngx_rl_entry_t    entry;
    unsigned          under_way:1;
};


void ngx_rl_take_init(void);
void ngx_rl_take_exit(void);

/* NGX_OK, or NGX_ERROR: no memory */
ngx_int_t ngx_rl_take_begin(ngx_rl_take_t *take);

/* adds a claim on a limit that lives there */
ngx_int_t ngx_rl_take_add(ngx_rl_take_t *take,
    ngx_rl_claim_t *claim, ngx_rl_server_conf_t *conf);

/*
 * NGX_AGAIN: the handler will be called, exactly once and within the timeout;
 * NGX_OK: it will not, as everything has ended already
 */
ngx_int_t ngx_rl_take_send(ngx_rl_take_t *take);

/*
 * Gives back what was taken.  A take does so by itself when one of several
 * calls was denied.
 */
void ngx_rl_take_refund(ngx_rl_take_t *take);

/*
 * The handler will not be called any more, and the caller's memory is not used
 * any more; may be called at any time.  What is under way goes on where it may
 * have to be given back.
 */
void ngx_rl_take_cancel(ngx_rl_take_t *take);

/* the call that a claim went out with */
ngx_rl_take_call_t *ngx_rl_take_find(
    ngx_rl_take_t *take, ngx_rl_claim_t *claim);


#endif /* _NGX_RL_TAKE_H_INCLUDED_ */
