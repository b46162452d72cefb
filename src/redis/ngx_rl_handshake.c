
/*
 * A new connection is made safe, and then says who it is and what it needs.
 * Only when all of that is answered is it READY, and gets the commands that
 * have been waiting for it.
 *
 * During a TLS handshake the handlers of the connection's events are nginx's.
 * Nothing is sent before the server's certificate was found to be right.
 */


#include "redis/ngx_rl_handshake.h"
#include "pure/ngx_rl_text.h"
#include "redis/ngx_rl_pipeline.h"
#include "redis/ngx_rl_connection_internal.h"


#define NGX_RL_HANDSHAKE_TEXT  160              /* of an error */


static void ngx_rl_handshake_host(ngx_rl_connection_t *connection,
    ngx_str_t *host);
static void ngx_rl_handshake_tls_handler(ngx_connection_t *c);
static ngx_int_t ngx_rl_handshake_secured(ngx_rl_connection_t *connection);
static ngx_int_t ngx_rl_handshake_send(ngx_rl_connection_t *connection);
static void ngx_rl_handshake_refused(ngx_rl_connection_t *connection,
    ngx_rl_handshake_step_t *step, const char *reply, u_char *text, size_t len);
static void ngx_rl_handshake_ready(ngx_rl_connection_t *connection);


ngx_int_t
ngx_rl_handshake_connected(ngx_rl_connection_t *connection)
{
    int                err;
    socklen_t          len;
    ngx_int_t          rc;
    ngx_str_t          host;
    ngx_addr_t        *addr;
    ngx_connection_t  *c;

    c = connection->c;
    addr = &connection->addrs[connection->address % connection->naddrs];

    err = 0;
    len = sizeof(int);

    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, (void *) &err, &len) == -1) {
        err = ngx_socket_errno;
    }

    if (err) {

        if (ngx_rl_connection_may_log(connection, NGX_RL_REFUSED)) {
            ngx_log_error(NGX_LOG_ERR, &connection->log, err,
                          "connect() to %V failed", &addr->name);
        }

        ngx_rl_connection_close(connection, NGX_RL_REFUSED);
        return NGX_ERROR;
    }

    if (addr->sockaddr->sa_family != AF_UNIX && ngx_tcp_nodelay(c) != NGX_OK) {
        ngx_rl_connection_close(connection, NGX_RL_REFUSED);
        return NGX_ERROR;
    }

    if (connection->conf->tls == NULL) {
        return ngx_rl_handshake_send(connection);
    }

    connection->state = NGX_RL_CONNECTION_TLS;

    ngx_rl_handshake_host(connection, &host);

    rc = ngx_rl_tls_start(connection->conf->tls, c, &host, &connection->session,
                          ngx_rl_handshake_tls_handler);

    return (rc == NGX_AGAIN) ? NGX_AGAIN
                             : ngx_rl_handshake_secured(connection);
}


static void
ngx_rl_handshake_host(ngx_rl_connection_t *connection, ngx_str_t *host)
{
    if (connection->conf->host.len) {
        *host = connection->conf->host;
        return;
    }

    *host = connection->addrs[connection->address % connection->naddrs].name;

    while (host->len && host->data[--host->len] != ':') {
        /* void */
    }
}


static void
ngx_rl_handshake_tls_handler(ngx_connection_t *c)
{
    ngx_rl_connection_t  *connection;

    connection = c->data;

    c->read->handler = ngx_rl_pipeline_read_handler;
    c->write->handler = ngx_rl_pipeline_write_handler;

    if (ngx_rl_handshake_secured(connection) == NGX_OK) {
        ngx_rl_pipeline_write_handler(c->write);
    }
}


/* the handshake is over, one way or the other */

static ngx_int_t
ngx_rl_handshake_secured(ngx_rl_connection_t *connection)
{
    ngx_str_t    host;
    const char  *why;

    ngx_rl_handshake_host(connection, &host);

    if (ngx_rl_tls_verified(connection->conf->tls, connection->c, &host, &why)
        == NGX_OK)
    {
        return ngx_rl_handshake_send(connection);
    }

    ngx_rl_handshake_insecure(connection, why);

    return NGX_ERROR;
}


void
ngx_rl_handshake_insecure(ngx_rl_connection_t *connection, const char *why)
{
    ngx_addr_t  *addr;

    addr = &connection->addrs[connection->address % connection->naddrs];

    if (ngx_rl_connection_may_log(connection, NGX_RL_TLS)) {
        ngx_log_error(NGX_LOG_ERR, &connection->log, 0,
                      "redis TLS handshake with %V failed: %s",
                      &addr->name, why);
    }

    ngx_rl_connection_close(connection, NGX_RL_TLS);
}


static ngx_int_t
ngx_rl_handshake_send(ngx_rl_connection_t *connection)
{
    ngx_uint_t                i;
    ngx_rl_handshake_step_t  *step;

    connection->state = NGX_RL_CONNECTION_HANDSHAKE;

    step = connection->conf->greeting.elts;

    for (i = connection->steps; i < connection->conf->greeting.nelts; i++) {

        if (ngx_rl_pipeline_append(connection, &step[i].command) != NGX_OK) {
            ngx_rl_connection_close(connection, NGX_RL_OVERLOAD);
            return NGX_ERROR;
        }

        if (step[i].gate) {
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
ngx_rl_handshake_reply(ngx_rl_connection_t *connection, ngx_rl_reply_t *reply)
{
    size_t                          len;
    u_char                          text[ngx_rl_escape_size(
                                            NGX_RL_HANDSHAKE_TEXT)];
    ngx_uint_t                      fatal;
    ngx_rl_failure_e    failure;
    ngx_rl_handshake_step_t  *step;

    step = connection->conf->greeting.elts;
    step += connection->steps++;

    if (reply->type != REDIS_REPLY_ERROR && step->tag) {

        failure = connection->events->step(connection->owner,
                                             step->tag, reply);

        if (failure != NGX_RL_OK) {
            ngx_rl_connection_close(connection, failure);
            return;
        }
    }

    if (reply->type == REDIS_REPLY_ERROR) {

        failure = ngx_rl_failure(reply->str, reply->len);

        if (step->elsewhere && ngx_rl_connection_moved_ok(reply)) {
            goto greeted;
        }

        fatal = step->required
                || (failure != NGX_RL_ERROR
                    && ngx_strncmp(reply->str, "NOPERM", 6) != 0);

        len = ngx_min(reply->len, NGX_RL_HANDSHAKE_TEXT);

        /* a server that does not know a command may repeat what it was told */

        if (step->secret && failure == NGX_RL_ERROR) {
            len = ngx_min(len, strcspn(reply->str, " "));
        }

        len = ngx_rl_escape(text, reply->str, len);

        if (fatal) {

            if (ngx_rl_connection_may_log(connection, failure)) {
                ngx_rl_handshake_refused(connection, step, reply->str,
                                         text, len);
            }

            ngx_rl_connection_close(connection, failure);
            return;
        }

        ngx_log_error(NGX_LOG_INFO, &connection->log, 0,
                      "redis refused %V, which is not needed: \"%*s\"",
                      &step->name, len, text);
    }

greeted:

    if (step->gate) {

        if (ngx_rl_handshake_send(connection) == NGX_OK) {
            ngx_post_event(&connection->flush, &ngx_posted_events);
        }

        return;
    }

    if (connection->steps == connection->conf->greeting.nelts) {
        ngx_rl_handshake_ready(connection);
    }
}


ngx_uint_t
ngx_rl_connection_moved_ok(ngx_rl_reply_t *reply)
{
    return ngx_rl_failure(reply->str, reply->len)
           == NGX_RL_MOVED
           && ngx_strncmp(reply->str, "CLUSTERDOWN The", 15) != 0;
}


/* in words, where a configuration and a server don't fit together */

static void
ngx_rl_handshake_refused(ngx_rl_connection_t *connection,
    ngx_rl_handshake_step_t *step, const char *reply, u_char *text, size_t len)
{
    if ((ngx_strncmp(reply, "MOVED ", 6) == 0
         || ngx_strncmp(reply, "CLUSTERDOWN ", 12) == 0)
        && !connection->conf->node)
    {
        ngx_log_error(NGX_LOG_ERR, &connection->log, 0,
                      "redis %V is a node of a cluster: write "
                      "\"ratelimit_shards cluster ...\"",
                      &connection->conf->name);
        return;
    }

    if (ngx_strstr(reply, "cluster support disabled")) {
        ngx_log_error(NGX_LOG_ERR, &connection->log, 0,
                      "redis %V is not in cluster mode: write "
                      "\"ratelimit_shards\" without \"cluster\"",
                      &connection->conf->name);
        return;
    }

    ngx_log_error(NGX_LOG_ERR, &connection->log, 0,
                  "redis refused %V: \"%*s\"%s",
                  &step->name, len, text,
                  ngx_strncmp(reply, "NOPERM", 6) == 0
                  ? ": its ACL has to allow that to this user" : "");
}


static void
ngx_rl_handshake_ready(ngx_rl_connection_t *connection)
{
    ngx_queue_t       *q;
    ngx_rl_pending_t  *pending;

    /* it may be the timer that has looked */

    if (connection->timer.timer_set) {
        ngx_del_timer(&connection->timer);
    }

    connection->state = NGX_RL_CONNECTION_READY;
    connection->ready = ngx_current_msec;
    connection->known = 1;
    connection->gauges->connections++;

    connection->events->ready(connection->owner);

    while (connection->c && !ngx_queue_empty(&connection->waiting)) {
        q = ngx_queue_head(&connection->waiting);
        ngx_queue_remove(q);

        pending = ngx_queue_data(q, ngx_rl_pending_t, queue);

        if (ngx_rl_pipeline_queue(connection, pending, &pending->command)
            != NGX_OK)
        {
            ngx_queue_insert_head(&connection->waiting, q);
            ngx_rl_connection_close(connection, NGX_RL_OVERLOAD);
            return;
        }
    }
}


/* a server for TLS alone has no word for others */

const char *
ngx_rl_handshake_cure(ngx_rl_connection_t *connection)
{
    return connection->state == NGX_RL_CONNECTION_HANDSHAKE
           && connection->steps == 0 && connection->conf->tls == NULL
           && !connection->known
           ? ": does it expect TLS?" : "";
}
