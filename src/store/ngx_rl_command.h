
/*
 * Calls of a worker to one server go together.
 */


#ifndef _NGX_RL_COMMAND_H_INCLUDED_
#define _NGX_RL_COMMAND_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "topology/ngx_rl_server.h"
#include "script/ngx_rl_script.h"


/* bytes that the id of a call may have */
#define NGX_RL_CALL_ID  (2 * NGX_INT64_LEN)


typedef struct ngx_rl_entry_s  ngx_rl_entry_t;
typedef struct ngx_rl_command_s   ngx_rl_command_t;

typedef void (*ngx_rl_entry_pt)(
    ngx_rl_entry_t *entry, ngx_rl_failure_e failure);


/* a call; its memory is the caller's */

struct ngx_rl_entry_s {

    /* set by the caller */

    ngx_rl_call_t      script;   /* its id: room for one */
    ngx_rl_entry_pt    handler;
    ngx_msec_t         start;
    ngx_msec_t         timeout;  /* since then */

    /* valid when the handler is called */

    uint64_t           sent;     /* us */
    uint64_t           ended;

    /* the batch's own */

    ngx_queue_t        queue;    /* until it has gone */
    ngx_rl_server_t   *server;
    ngx_rl_command_t  *batch;
    ngx_uint_t         place;    /* in the batch */
    unsigned           gone:1;   /* the script is final */
};


void ngx_rl_command_init(ngx_cycle_t *cycle);

/*
 * NGX_RL_OK: the handler will be called, exactly once and within
 * the timeout, not before this function has returned; else it will not.  The
 * link has been told what came of it in either case.
 */
ngx_rl_failure_e ngx_rl_command_add(
    ngx_rl_server_t *server, ngx_rl_entry_t *entry);

/* an errand that has not gone yet is for one request more */
void ngx_rl_command_grew(ngx_rl_entry_t *entry);

/*
 * The handler will not be called, and nothing of the errand is used any more.
 * What it asks for is taken all the same, if it has gone.
 */
void ngx_rl_command_cancel(ngx_rl_entry_t *entry);

/* an errand under way goes on in a copy of it */
void ngx_rl_command_move(ngx_rl_entry_t *entry, ngx_rl_entry_t *copy);


#endif /* _NGX_RL_COMMAND_H_INCLUDED_ */
