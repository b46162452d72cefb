
/*
 * Combined calls: concurrent requests of a worker for one bucket go to Redis
 * together.
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


/* a request with a single claim; the caller owns its memory */

struct ngx_rl_waiter_s {

    /* set by the caller */

    ngx_rl_claim_t          *claim;
    ngx_rl_waiter_pt         handler;
    ngx_msec_t               start;
    ngx_msec_t               timeout;  /* after "start" */
    ngx_rl_known_ttl_t       ttl;
    uint64_t                 lease;    /* most tokens in advance */
    unsigned                 clock:1;  /* use nginx's clock */

    /* valid when the handler is called */

    ngx_rl_failure_e         failure;  /* OK: decided */
    uint64_t                 ended;    /* us */

    /* private to the combiner */

    ngx_queue_t              queue;
    ngx_rl_combiner_t       *combiner;
    ngx_rl_combined_call_t  *call;     /* NULL: in the queue */
};


void ngx_rl_combine_init(ngx_cycle_t *cycle);
void ngx_rl_combine_exit(void);

/*
 * Asks the server, at once or together with other requests.  NGX_RL_OK: the
 * handler will be called exactly once, within the timeout.  Otherwise the call
 * has failed already, and the handler is not called.
 */
ngx_rl_failure_e ngx_rl_combine_join(ngx_rl_waiter_t *waiter,
    ngx_rl_server_t *server);

/* the handler will not be called */
void ngx_rl_combine_leave(ngx_rl_waiter_t *waiter);


#endif /* _NGX_RL_COMBINE_H_INCLUDED_ */
