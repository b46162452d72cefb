
#include "redis/ngx_rl_forward.h"


static ngx_rl_failure_e ngx_rl_forward_send(ngx_rl_pending_t *pending,
    ngx_rl_connection_t *connection, ngx_uint_t asking);


ngx_rl_failure_e
ngx_rl_pending_forward(ngx_rl_pending_t *pending,
    ngx_rl_connection_t *connection, ngx_uint_t asking)
{
    ngx_rl_failure_e  failure;

    failure = ngx_rl_forward_send(pending, connection, asking);

    if (failure == NGX_RL_OK) {
        pending->hops++;
    }

    return failure;
}


static ngx_rl_failure_e
ngx_rl_forward_send(ngx_rl_pending_t *pending,
    ngx_rl_connection_t *connection, ngx_uint_t asking)
{
    ngx_rl_failure_e  failure;

    failure = ngx_rl_connection_check(connection);

    if (failure != NGX_RL_OK) {
        return failure;
    }

    return ngx_rl_pipeline_take(ngx_rl_connection_pipeline(connection),
                                pending, asking)
           == NGX_OK ? NGX_RL_OK : NGX_RL_OVERLOAD;
}


void
ngx_rl_pending_park(ngx_rl_pending_t *pending, ngx_queue_t *queue)
{
    pending->sent = 0;
    pending->parked = 1;
    ngx_queue_insert_tail(queue, &pending->queue);
}


ngx_rl_pending_t *
ngx_rl_pending_parked(ngx_queue_t *queue)
{
    return ngx_queue_data(ngx_queue_head(queue), ngx_rl_pending_t, queue);
}


void *
ngx_rl_pending_owner(ngx_rl_pending_t *pending)
{
    return pending->pipeline->owner;
}


void
ngx_rl_pending_again(ngx_rl_pending_t *pending, ngx_rl_connection_t *connection)
{
    ngx_rl_failure_e  failure;

    ngx_queue_remove(&pending->queue);

    failure = ngx_rl_forward_send(pending, connection, pending->asking);

    if (failure != NGX_RL_OK) {
        ngx_rl_pending_fail(pending, failure);
    }
}
