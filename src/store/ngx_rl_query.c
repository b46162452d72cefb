
#include "store/ngx_rl_query.h"


static ngx_int_t ngx_rl_query_reply(void *data, const ngx_rl_answer_t *answer);


ngx_rl_failure_e
ngx_rl_query_send(ngx_rl_query_t *query, ngx_rl_server_t *server,
    ngx_rl_resp_t *resp, ngx_msec_t timeout)
{
    char              *bytes;
    ssize_t            len;
    ngx_str_t          command;
    ngx_rl_failure_e   failure;

    len = ngx_rl_resp_end(resp, &bytes);

    if (len < 0) {
        return NGX_RL_OVERLOAD;
    }

    failure = ngx_rl_server_check(server);

    if (failure != NGX_RL_OK) {
        return failure;
    }

    command.data = (u_char *) bytes;
    command.len = len;

    failure = ngx_rl_server_send(server, &command, timeout,
                                 ngx_rl_query_reply, query, &query->pending);

    if (failure != NGX_RL_OK) {
        query->pending = NULL;
        return failure;
    }

    query->pending->large = query->large;

    if (query->background) {
        ngx_rl_pending_background(query->pending);
    }

    return NGX_RL_OK;
}


static ngx_int_t
ngx_rl_query_reply(void *data, const ngx_rl_answer_t *answer)
{
    ngx_rl_query_t  *query = data;

    ngx_rl_reply_t  *reply;

    query->pending = NULL;
    query->failure = answer->failure;

    reply = (answer->failure == NGX_RL_OK) ? answer->reply : NULL;

    if (reply && reply->type == REDIS_REPLY_ERROR) {
        query->failure = ngx_rl_failure(reply->str, reply->len);
    }

    query->handler(query, reply);

    return NGX_OK;
}


void
ngx_rl_query_cancel(ngx_rl_query_t *query)
{
    if (query->pending) {
        ngx_rl_pending_cancel(query->pending);
        query->pending = NULL;
    }
}
