
/*
 * Combined calls: requests of a worker for one bucket go to Redis together.
 */


#ifndef _NGX_RL_COMBINE_H_INCLUDED_
#define _NGX_RL_COMBINE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "pure/ngx_rl_claim.h"
#include "memory/ngx_rl_known.h"
#include "store/ngx_rl_command.h"


typedef struct ngx_rl_waiter_s         ngx_rl_waiter_t;
typedef struct ngx_rl_combiner_s       ngx_rl_combiner_t;
typedef struct ngx_rl_combined_call_s  ngx_rl_combined_call_t;

typedef void (*ngx_rl_waiter_pt)(ngx_rl_waiter_t *waiter);


/* a request with a single claim; its memory is the caller's */

struct ngx_rl_waiter_s {

    /* set by the caller */

    ngx_rl_claim_t          *claim;
    ngx_rl_waiter_pt         handler;
    ngx_msec_t               start;
    ngx_msec_t               timeout;  /* since then */
    ngx_rl_known_ttl_t       ttl;
    uint64_t                 lease;    /* tokens in advance, at most */
    unsigned                 clock:1;  /* nginx's time counts */

    /* valid when the handler is called */

    ngx_rl_failure_e         failure;  /* OK: the claim is decided */
    uint64_t                 ended;    /* us */

    /* the combiner's own */

    ngx_queue_t              queue;
    ngx_rl_combiner_t       *combiner;
    ngx_rl_combined_call_t  *call;     /* NULL: it waits for one */
};


void ngx_rl_combine_init(ngx_cycle_t *cycle);
void ngx_rl_combine_exit(void);

/*
 * Asks the server, now or together with others.  NGX_RL_OK: the handler will be
 * called, exactly once and within the timeout; else it will not, as the call
 * has failed already
 */
ngx_rl_failure_e ngx_rl_combine_join(ngx_rl_waiter_t *waiter,
    ngx_rl_server_t *server);

/* the handler will not be called */
void ngx_rl_combine_leave(ngx_rl_waiter_t *waiter);


#endif /* _NGX_RL_COMBINE_H_INCLUDED_ */
