
/*
 * Refunds that are sent at process exit may exceed what a socket accepts at
 * once, and their replies must be read.  All servers are waited for together,
 * so several that do not answer cost no more time than one.
 */


#include "redis/ngx_rl_drain.h"
#include "redis/ngx_rl_pipeline.h"


ngx_int_t
ngx_rl_drain_turn(ngx_msec_t timeout)
{
    int                 rc;
    ngx_uint_t          n;
    ngx_queue_t        *q;
    struct pollfd      *pfds;
    ngx_rl_pipeline_t  *pipeline;

    n = 0;

    for (q = ngx_queue_head(&ngx_rl_pipelines);
         q != ngx_queue_sentinel(&ngx_rl_pipelines);
         q = ngx_queue_next(q))
    {
        n++;
    }

    pfds = ngx_alloc(n * sizeof(struct pollfd), ngx_cycle->log);
    if (pfds == NULL) {
        return NGX_DECLINED;
    }

    n = 0;

    for (q = ngx_queue_head(&ngx_rl_pipelines);
         q != ngx_queue_sentinel(&ngx_rl_pipelines);
         q = ngx_queue_next(q))
    {
        pipeline = ngx_queue_data(q, ngx_rl_pipeline_t, queue);

        if (pipeline->c && pipeline->n) {
            ngx_rl_pipeline_poll(pipeline, &pfds[n++]);
        }
    }

    rc = n ? poll(pfds, n, (int) timeout) : 0;

    if (rc == -1 && ngx_errno == NGX_EINTR) {
        ngx_free(pfds);
        return NGX_OK;
    }

    ngx_free(pfds);

    if (rc <= 0) {
        return NGX_DECLINED;
    }

    /* a handler may close another connection */

    for (q = ngx_queue_head(&ngx_rl_pipelines);
         q != ngx_queue_sentinel(&ngx_rl_pipelines);
         q = ngx_queue_next(q))
    {
        pipeline = ngx_queue_data(q, ngx_rl_pipeline_t, queue);

        if (pipeline->n) {
            ngx_rl_pipeline_look(pipeline);
        }
    }

    return NGX_OK;
}
