
#include "redis/ngx_rl_forward.h"


ngx_rl_failure_e
ngx_rl_pending_forward(ngx_rl_pending_t *pending,
    ngx_rl_connection_t *connection, ngx_uint_t asking)
{
    ngx_rl_failure_e  failure;

    failure = ngx_rl_connection_take(connection, pending, asking);

    if (failure == NGX_RL_OK) {
        pending->hops++;
    }

    return failure;
}


void
ngx_rl_pending_park(ngx_rl_pending_t *pending, ngx_queue_t *queue)
{
    pending->sent = 0;
    pending->parked = 1;
    ngx_queue_insert_tail(queue, &pending->queue);
}


void
ngx_rl_pending_again(ngx_rl_pending_t *pending, ngx_rl_connection_t *connection)
{
    ngx_rl_failure_e  failure;

    ngx_queue_remove(&pending->queue);

    failure = ngx_rl_connection_take(connection, pending, pending->asking);

    if (failure != NGX_RL_OK) {
        ngx_rl_pending_fail(pending, failure);
    }
}
