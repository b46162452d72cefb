
/*
 * Refunds that are sent when the process ends may be more than a socket takes
 * at once, and their replies have to be read.  All servers are waited for
 * together: those that don't answer cost no more time than one of them.
 */


#include "redis/ngx_rl_drain.h"
#include "redis/ngx_rl_pipeline.h"

#include <poll.h>


static void ngx_rl_drain_events(ngx_rl_pipeline_t *pipeline,
    struct pollfd *pfd);


ngx_int_t
ngx_rl_drain_turn(ngx_msec_t timeout)
{
    int                  rc;
    ngx_uint_t           i, n;
    ngx_queue_t         *q;
    struct pollfd       *pfds;
    ngx_connection_t    *c;
    ngx_rl_pipeline_t   *pipeline, **all;

    n = 0;

    for (q = ngx_queue_head(&ngx_rl_pipelines);
         q != ngx_queue_sentinel(&ngx_rl_pipelines);
         q = ngx_queue_next(q))
    {
        n++;
    }

    all = ngx_alloc(n * (sizeof(ngx_rl_pipeline_t *) + sizeof(struct pollfd)),
                    ngx_cycle->log);
    if (all == NULL) {
        return NGX_DECLINED;
    }

    pfds = (struct pollfd *) &all[n];
    n = 0;

    for (q = ngx_queue_head(&ngx_rl_pipelines);
         q != ngx_queue_sentinel(&ngx_rl_pipelines);
         q = ngx_queue_next(q))
    {
        pipeline = ngx_queue_data(q, ngx_rl_pipeline_t, queue);
        c = pipeline->c;

        if (c == NULL || pipeline->n == 0) {
            continue;
        }

        /* one that is not connected yet tells of it as one to write to */

        pfds[n].fd = c->fd;
        pfds[n].events = (pipeline->pos < pipeline->last || !c->write->ready)
                         ? POLLIN|POLLOUT : POLLIN;
        all[n++] = pipeline;
    }

    rc = n ? poll(pfds, n, (int) timeout) : 0;

    if (rc == -1 && ngx_errno == NGX_EINTR) {
        ngx_free(all);
        return NGX_OK;
    }

    for (i = 0; rc > 0 && i < n; i++) {
        ngx_rl_drain_events(all[i], &pfds[i]);
    }

    ngx_free(all);

    return (rc > 0) ? NGX_OK : NGX_DECLINED;
}


/* a handler that is called for one of them may close another one */

static void
ngx_rl_drain_events(ngx_rl_pipeline_t *pipeline, struct pollfd *pfd)
{
    ngx_connection_t  *c;

    c = pipeline->c;

    if (c && c->fd == pfd->fd && (pfd->revents & POLLOUT)) {
        c->write->ready = 1;
        c->write->handler(c->write);

        c = pipeline->c;
    }

    if (c && c->fd == pfd->fd && (pfd->revents & ~POLLOUT)) {
        c->read->ready = 1;
        c->read->available = -1;
        c->read->handler(c->read);
    }
}
