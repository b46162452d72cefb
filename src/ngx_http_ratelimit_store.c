
#include "ngx_http_ratelimit_store.h"
#include "ngx_http_ratelimit_escape.h"
#include "ngx_http_ratelimit_script.h"


#define NGX_HTTP_RATELIMIT_STORE_TEXT  160      /* of an error, logged */


static ngx_http_ratelimit_failure_e ngx_http_ratelimit_store_call(
    ngx_http_ratelimit_take_t *take, ngx_msec_t timeout);
static ngx_int_t ngx_http_ratelimit_store_reply(void *data,
    ngx_http_ratelimit_reply_t *reply, ngx_http_ratelimit_failure_e failure);
static ngx_http_ratelimit_failure_e ngx_http_ratelimit_store_again(
    ngx_http_ratelimit_take_t *take);
static void ngx_http_ratelimit_store_log(ngx_http_ratelimit_take_t *take,
    ngx_http_ratelimit_reply_t *reply, ngx_http_ratelimit_failure_e failure);


/* this process's connections, by the index of the peer */
static ngx_http_ratelimit_redis_t  **ngx_http_ratelimit_store_redis;
static ngx_uint_t                    ngx_http_ratelimit_store_n;


ngx_int_t
ngx_http_ratelimit_store_init(ngx_cycle_t *cycle, ngx_array_t *peers)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_peer_t  **peer;

    ngx_http_ratelimit_store_redis = ngx_pcalloc(cycle->pool,
                        peers->nelts * sizeof(ngx_http_ratelimit_redis_t *));
    if (ngx_http_ratelimit_store_redis == NULL) {
        return NGX_ERROR;
    }

    peer = peers->elts;

    for (i = 0; i < peers->nelts; i++) {
        ngx_http_ratelimit_store_redis[i] =
            ngx_http_ratelimit_redis_create(cycle->pool, cycle->log,
                                            &peer[i]->redis);

        if (ngx_http_ratelimit_store_redis[i] == NULL) {
            return NGX_ERROR;
        }
    }

    ngx_http_ratelimit_store_n = peers->nelts;

    return NGX_OK;
}


void
ngx_http_ratelimit_store_exit(void)
{
    ngx_uint_t  i;

    for (i = 0; i < ngx_http_ratelimit_store_n; i++) {
        ngx_http_ratelimit_redis_exit(ngx_http_ratelimit_store_redis[i]);
    }

    ngx_http_ratelimit_store_n = 0;
}


ngx_int_t
ngx_http_ratelimit_store_take(ngx_http_ratelimit_take_t *take)
{
    take->start = ngx_current_msec;
    take->peer = ngx_http_ratelimit_shards_find(take->shards, &take->key);

    take->eval = 0;

    take->failure = ngx_http_ratelimit_store_call(take, take->timeout);

    if (take->failure != NGX_HTTP_RATELIMIT_OK) {
        ngx_http_ratelimit_store_log(take, NULL, take->failure);
        return NGX_ERROR;
    }

    return NGX_AGAIN;
}


void
ngx_http_ratelimit_store_cancel(ngx_http_ratelimit_take_t *take)
{
    if (take->slot) {
        ngx_http_ratelimit_redis_cancel(take->slot);
        take->slot = NULL;
    }
}


static ngx_http_ratelimit_failure_e
ngx_http_ratelimit_store_call(ngx_http_ratelimit_take_t *take,
    ngx_msec_t timeout)
{
    char                          *bytes;
    long long                      len;
    ngx_str_t                      command;
    ngx_http_ratelimit_redis_t    *redis;
    ngx_http_ratelimit_failure_e   failure;

    len = ngx_http_ratelimit_script_take(&bytes,
                                         (char *) take->redis_key.data,
                                         take->redis_key.len, &take->bucket,
                                         take->eval);
    if (len < 0) {
        return NGX_HTTP_RATELIMIT_OVERLOAD;
    }

    command.data = (u_char *) bytes;
    command.len = len;

    redis = ngx_http_ratelimit_store_redis[take->peer->index];

    failure = ngx_http_ratelimit_redis_send(redis, &command, timeout,
                                            ngx_http_ratelimit_store_reply,
                                            take, &take->slot);

    redisFreeCommand(bytes);

    return failure;
}


static ngx_int_t
ngx_http_ratelimit_store_reply(void *data, ngx_http_ratelimit_reply_t *reply,
    ngx_http_ratelimit_failure_e failure)
{
    ngx_http_ratelimit_take_t *take = data;

    take->slot = NULL;

    if (failure == NGX_HTTP_RATELIMIT_OK) {
        failure = ngx_http_ratelimit_script_reply(reply, &take->bucket,
                                                  &take->decision);
    }

    /* only a call that did not run is made again, once, with the text */

    if (failure == NGX_HTTP_RATELIMIT_NOSCRIPT && !take->eval) {
        failure = ngx_http_ratelimit_store_again(take);

        if (failure == NGX_HTTP_RATELIMIT_OK) {
            return NGX_OK;
        }
    }

    take->failure = failure;

    if (failure != NGX_HTTP_RATELIMIT_OK) {
        ngx_http_ratelimit_store_log(take, reply, failure);
    }

    take->handler(take);

    /* the take may be gone */

    return (failure == NGX_HTTP_RATELIMIT_PROTOCOL) ? NGX_ERROR : NGX_OK;
}


static ngx_http_ratelimit_failure_e
ngx_http_ratelimit_store_again(ngx_http_ratelimit_take_t *take)
{
    ngx_msec_t  spent;

    spent = ngx_current_msec - take->start;

    if (spent >= take->timeout) {
        return NGX_HTTP_RATELIMIT_TIMEOUT;
    }

    take->eval = 1;

    return ngx_http_ratelimit_store_call(take, take->timeout - spent);
}


/* lost connections have been logged by the client */

static void
ngx_http_ratelimit_store_log(ngx_http_ratelimit_take_t *take,
    ngx_http_ratelimit_reply_t *reply, ngx_http_ratelimit_failure_e failure)
{
    size_t                       len;
    u_char                       text[ngx_http_ratelimit_escape_size(
                                          NGX_HTTP_RATELIMIT_STORE_TEXT)];
    ngx_http_ratelimit_redis_t  *redis;

    switch (failure) {

    case NGX_HTTP_RATELIMIT_REFUSED:
    case NGX_HTTP_RATELIMIT_CLOSED:
        return;

    default:
        break;
    }

    redis = ngx_http_ratelimit_store_redis[take->peer->index];

    if (!ngx_http_ratelimit_redis_loud(redis, failure)) {
        return;
    }

    if (reply && reply->type == REDIS_REPLY_ERROR) {
        len = ngx_http_ratelimit_escape(text, reply->str,
                                        ngx_min(reply->len,
                                             NGX_HTTP_RATELIMIT_STORE_TEXT));

        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "redis %V answered \"%*s\"",
                      &take->peer->redis.name, len, text);
        return;
    }

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                  "no answer from redis %V: %s", &take->peer->redis.name,
                  ngx_http_ratelimit_failure_name(failure));
}
