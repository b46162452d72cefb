
/*
 * A new connection is made safe, and then says who it is and what it needs.
 * Only when all of that is answered is it READY, and gets the commands that
 * have been waiting for it.
 *
 * During a TLS handshake the handlers of the connection's events are nginx's.
 * Nothing is sent before the server's certificate was found to be right.
 */


#include "redis/ngx_rl_handshake.h"
#include "pure/ngx_rl_escape.h"
#include "redis/ngx_rl_pipeline.h"
#include "redis/ngx_rl_connection_internal.h"


#define NGX_RL_GREET_TEXT  160              /* of an error */


static void ngx_rl_greet_host(ngx_rl_redis_t *redis,
    ngx_str_t *host);
static void ngx_rl_greet_handshake_handler(ngx_connection_t *c);
static ngx_int_t ngx_rl_greet_secured(
    ngx_rl_redis_t *redis);
static ngx_int_t ngx_rl_greet_send(
    ngx_rl_redis_t *redis);
static void ngx_rl_greet_refused(ngx_rl_redis_t *redis,
    ngx_rl_greeting_t *greeting, const char *reply, u_char *text,
    size_t len);
static void ngx_rl_greet_ready(ngx_rl_redis_t *redis);


ngx_int_t
ngx_rl_greet_connected(ngx_rl_redis_t *redis)
{
    int                err;
    socklen_t          len;
    ngx_int_t          rc;
    ngx_str_t          host;
    ngx_addr_t        *addr;
    ngx_connection_t  *c;

    c = redis->connection;
    addr = &redis->addrs[redis->address % redis->naddrs];

    err = 0;
    len = sizeof(int);

    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, (void *) &err, &len) == -1) {
        err = ngx_socket_errno;
    }

    if (err) {

        if (ngx_rl_redis_loud(redis, NGX_RL_REFUSED)) {
            ngx_log_error(NGX_LOG_ERR, &redis->log, err,
                          "connect() to %V failed", &addr->name);
        }

        ngx_rl_redis_close(redis, NGX_RL_REFUSED);
        return NGX_ERROR;
    }

    if (addr->sockaddr->sa_family != AF_UNIX && ngx_tcp_nodelay(c) != NGX_OK) {
        ngx_rl_redis_close(redis, NGX_RL_REFUSED);
        return NGX_ERROR;
    }

    if (redis->conf->tls == NULL) {
        return ngx_rl_greet_send(redis);
    }

    redis->state = NGX_RL_REDIS_HANDSHAKE;

    ngx_rl_greet_host(redis, &host);

    rc = ngx_rl_tls_start(redis->conf->tls, c, &host,
                                  &redis->session,
                                  ngx_rl_greet_handshake_handler);

    return (rc == NGX_AGAIN) ? NGX_AGAIN
                             : ngx_rl_greet_secured(redis);
}


static void
ngx_rl_greet_host(ngx_rl_redis_t *redis,
    ngx_str_t *host)
{
    if (redis->conf->host.len) {
        *host = redis->conf->host;
        return;
    }

    *host = redis->addrs[redis->address % redis->naddrs].name;

    while (host->len && host->data[--host->len] != ':') {
        /* void */
    }
}


static void
ngx_rl_greet_handshake_handler(ngx_connection_t *c)
{
    ngx_rl_redis_t  *redis;

    redis = c->data;

    c->read->handler = ngx_rl_pipe_read_handler;
    c->write->handler = ngx_rl_pipe_write_handler;

    if (ngx_rl_greet_secured(redis) == NGX_OK) {
        ngx_rl_pipe_write_handler(c->write);
    }
}


/* the handshake is over, one way or the other */

static ngx_int_t
ngx_rl_greet_secured(ngx_rl_redis_t *redis)
{
    ngx_str_t    host;
    const char  *why;

    ngx_rl_greet_host(redis, &host);

    if (ngx_rl_tls_verified(redis->conf->tls, redis->connection,
                                        &host, &why)
        == NGX_OK)
    {
        return ngx_rl_greet_send(redis);
    }

    ngx_rl_greet_insecure(redis, why);

    return NGX_ERROR;
}


void
ngx_rl_greet_insecure(ngx_rl_redis_t *redis,
    const char *why)
{
    ngx_addr_t  *addr;

    addr = &redis->addrs[redis->address % redis->naddrs];

    if (ngx_rl_redis_loud(redis, NGX_RL_TLS)) {
        ngx_log_error(NGX_LOG_ERR, &redis->log, 0,
                      "redis TLS handshake with %V failed: %s",
                      &addr->name, why);
    }

    ngx_rl_redis_close(redis, NGX_RL_TLS);
}


static ngx_int_t
ngx_rl_greet_send(ngx_rl_redis_t *redis)
{
    ngx_uint_t                      i;
    ngx_rl_greeting_t  *greeting;

    redis->state = NGX_RL_REDIS_GREETING;

    greeting = redis->conf->greeting.elts;

    for (i = redis->greeted; i < redis->conf->greeting.nelts; i++) {

        if (ngx_rl_pipe_append(redis, &greeting[i].command)
            != NGX_OK)
        {
            ngx_rl_redis_close(redis, NGX_RL_OVERLOAD);
            return NGX_ERROR;
        }

        if (greeting[i].gate) {
            break;
        }
    }

    return NGX_OK;
}


/*
 * A server that can't be used at all says so to any command (LOADING, NOAUTH,
 * too many clients); one that merely lacks or forbids a command that is not
 * required will do.
 */

void
ngx_rl_greet_reply(ngx_rl_redis_t *redis,
    ngx_rl_reply_t *reply)
{
    size_t                          len;
    u_char                          text[ngx_rl_escape_size(
                                            NGX_RL_GREET_TEXT)];
    ngx_uint_t                      fatal;
    ngx_rl_failure_e    failure;
    ngx_rl_greeting_t  *greeting;

    greeting = redis->conf->greeting.elts;
    greeting += redis->greeted++;

    if (reply->type != REDIS_REPLY_ERROR && greeting->tell) {

        failure = redis->owner->greeted(redis->owner->data, greeting->tell,
                                        reply);

        if (failure != NGX_RL_OK) {
            ngx_rl_redis_close(redis, failure);
            return;
        }
    }

    if (reply->type == REDIS_REPLY_ERROR) {

        failure = ngx_rl_failure(reply->str, reply->len);

        if (greeting->elsewhere && ngx_rl_redis_elsewhere(reply)) {
            goto greeted;
        }

        fatal = greeting->required
                || (failure != NGX_RL_ERROR
                    && ngx_strncmp(reply->str, "NOPERM", 6) != 0);

        len = ngx_min(reply->len, NGX_RL_GREET_TEXT);

        /* a server that does not know a command may repeat what it was told */

        if (greeting->secret && failure == NGX_RL_ERROR) {
            len = ngx_min(len, strcspn(reply->str, " "));
        }

        len = ngx_rl_escape(text, reply->str, len);

        if (fatal) {

            if (ngx_rl_redis_loud(redis, failure)) {
                ngx_rl_greet_refused(redis, greeting, reply->str,
                                                 text, len);
            }

            ngx_rl_redis_close(redis, failure);
            return;
        }

        ngx_log_error(NGX_LOG_INFO, &redis->log, 0,
                      "redis refused %V, which is not needed: \"%*s\"",
                      &greeting->name, len, text);
    }

greeted:

    if (greeting->gate) {

        if (ngx_rl_greet_send(redis) == NGX_OK) {
            ngx_post_event(&redis->flush, &ngx_posted_events);
        }

        return;
    }

    if (redis->greeted == redis->conf->greeting.nelts) {
        ngx_rl_greet_ready(redis);
    }
}


ngx_uint_t
ngx_rl_redis_elsewhere(ngx_rl_reply_t *reply)
{
    return ngx_rl_failure(reply->str, reply->len)
           == NGX_RL_MOVED
           && ngx_strncmp(reply->str, "CLUSTERDOWN The", 15) != 0;
}


/* in words, where a configuration and a server don't fit together */

static void
ngx_rl_greet_refused(ngx_rl_redis_t *redis,
    ngx_rl_greeting_t *greeting, const char *reply, u_char *text,
    size_t len)
{
    if ((ngx_strncmp(reply, "MOVED ", 6) == 0
         || ngx_strncmp(reply, "CLUSTERDOWN ", 12) == 0)
        && redis->owner->redirect == NULL)
    {
        ngx_log_error(NGX_LOG_ERR, &redis->log, 0,
                      "redis %V is a node of a cluster: write "
                      "\"ratelimit_shards cluster ...\"", &redis->conf->name);
        return;
    }

    if (ngx_strstr(reply, "cluster support disabled")) {
        ngx_log_error(NGX_LOG_ERR, &redis->log, 0,
                      "redis %V is not in cluster mode: write "
                      "\"ratelimit_shards\" without \"cluster\"",
                      &redis->conf->name);
        return;
    }

    ngx_log_error(NGX_LOG_ERR, &redis->log, 0, "redis refused %V: \"%*s\"%s",
                  &greeting->name, len, text,
                  ngx_strncmp(reply, "NOPERM", 6) == 0
                  ? ": its ACL has to allow that to this user" : "");
}


static void
ngx_rl_greet_ready(ngx_rl_redis_t *redis)
{
    ngx_queue_t                *q;
    ngx_rl_slot_t  *slot;

    /* it may be the timer that has looked */

    if (redis->timer.timer_set) {
        ngx_del_timer(&redis->timer);
    }

    redis->state = NGX_RL_REDIS_READY;
    redis->ready = ngx_current_msec;
    redis->known = 1;
    redis->gauges->connections++;

    redis->owner->ready(redis->owner->data);

    while (redis->connection && !ngx_queue_empty(&redis->waiting)) {
        q = ngx_queue_head(&redis->waiting);
        ngx_queue_remove(q);

        slot = ngx_queue_data(q, ngx_rl_slot_t, queue);

        if (ngx_rl_pipe_queue(redis, slot, &slot->command)
            != NGX_OK)
        {
            ngx_queue_insert_head(&redis->waiting, q);
            ngx_rl_redis_close(redis, NGX_RL_OVERLOAD);
            return;
        }
    }
}


/* a server for TLS alone has no word for others */

const char *
ngx_rl_greet_cure(ngx_rl_redis_t *redis)
{
    return redis->state == NGX_RL_REDIS_GREETING
           && redis->greeted == 0 && redis->conf->tls == NULL
           && !redis->known
           ? ": does it expect TLS?" : "";
}
