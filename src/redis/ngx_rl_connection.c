
/*
 * Each worker has one connection to each server, and it carries everything.
 *
 *                               TLS
 *                            ^       |  if it is configured
 *                            |       v
 *     IDLE ----> CONNECTING -+--> HANDSHAKE ---> READY
 *      ^             |               |             |
 *      |             +-------+-------+             | lost: at once, if it
 *      | nginx               v                     | had lived for a second
 *      | is exiting       WAITING <----------------+
 *      +---------------------+ as long as the owner says, then CONNECTING
 *
 * The pipeline holds the commands while the connection is READY.  The
 * handshake leads from CONNECTING to READY.  Each has a file of its own.  Both
 * report failures to the connection: only connection_close() closes.
 *
 * A command fails at once while the connection is WAITING.  In the states
 * before READY it waits.
 *
 * A server that gets other addresses gets another connection.  The old
 * connection retires: it is read until its last reply has arrived.
 */


#include "redis/ngx_rl_connection.h"
#include "core/ngx_rl_core.h"
#include "redis/ngx_rl_address.h"
#include "redis/ngx_rl_handshake.h"

#include <ngx_event_connect.h>


#define NGX_RL_CONNECTION_STABLE  1000           /* ms */


typedef enum {
    NGX_RL_CONNECTION_IDLE = 0,
    NGX_RL_CONNECTION_CONNECTING,
    NGX_RL_CONNECTION_TLS,
    NGX_RL_CONNECTION_HANDSHAKE,
    NGX_RL_CONNECTION_READY,
    NGX_RL_CONNECTION_WAITING
} ngx_rl_connection_state_e;


struct ngx_rl_connection_s {
    ngx_rl_connection_conf_t  *conf;
    const ngx_rl_events_t     *events;
    void                      *owner;
    ngx_socket_t               ident;    /* see ngx_rl_event_init() */

    ngx_rl_pipeline_t          pipeline;
    ngx_rl_handshake_t         handshake;
    ngx_rl_addresses_t         addresses;
    ngx_rl_connection_state_e  state;
    ngx_rl_failure_e           failure;  /* from the last connection */
    ngx_uint_t                 generation;
    ngx_msec_t                 ready;    /* start of the state */
    ngx_msec_t                 created;
    ngx_msec_t                 deadline; /* of this attempt */
    ngx_msec_t                 grace;    /* ms, of this attempt */
    ngx_uint_t                 holds;    /* so often */

    ngx_event_t                timer;    /* connect, back-off */
    ngx_event_t                end;      /* posted, when it has retired */

    ngx_log_t                  log;      /* of the connection */
    ngx_log_t                 *cycle_log;
    unsigned                   retired:1;
};


static void ngx_rl_connection_connect(ngx_rl_connection_t *connection);
static void ngx_rl_connection_timer_handler(ngx_event_t *ev);
static void ngx_rl_connection_stall_handler(ngx_event_t *ev);
static ngx_uint_t ngx_rl_connection_look(ngx_event_t *ev);
static void ngx_rl_connection_write_handler(ngx_event_t *wev);
static ngx_int_t ngx_rl_connection_connected(ngx_rl_connection_t *connection);
static void ngx_rl_connection_tls_handler(ngx_connection_t *c);
static void ngx_rl_connection_read_handler(ngx_event_t *rev);
static void ngx_rl_connection_reply(ngx_rl_connection_t *connection,
    ngx_rl_reply_t *reply);
static void ngx_rl_connection_lost(ngx_rl_connection_t *connection,
    ngx_err_t err);
static void ngx_rl_connection_fail(ngx_rl_connection_t *connection,
    ngx_rl_failure_e failure, ngx_err_t err, const char *fmt, ...);
static void ngx_rl_connection_close(ngx_rl_connection_t *connection,
    ngx_rl_failure_e failure);
static void ngx_rl_connection_disconnect(ngx_rl_connection_t *connection);
static void ngx_rl_connection_end_handler(ngx_event_t *ev);
static u_char *ngx_rl_connection_log_error(ngx_log_t *log, u_char *buf,
    size_t len);


ngx_rl_connection_t *
ngx_rl_connection_create(ngx_log_t *log, ngx_rl_connection_conf_t *conf,
    const ngx_rl_events_t *events, void *owner,
    ngx_rl_traffic_t *traffic, ngx_rl_gauges_t *gauges)
{
    ngx_rl_pipeline_t    *pipeline;
    ngx_rl_connection_t  *connection;

    connection = ngx_calloc(sizeof(ngx_rl_connection_t), log);
    if (connection == NULL) {
        return NULL;
    }

    connection->conf = conf;
    connection->events = events;
    connection->owner = owner;
    connection->addresses.addrs = conf->addrs;
    connection->addresses.n = conf->naddrs;
    connection->cycle_log = log;
    connection->failure = NGX_RL_REFUSED;
    connection->created = ngx_current_msec;

    /* a copy: its level is lowered while repeated failures are not logged */

    connection->log = *log;
    connection->log.handler = ngx_rl_connection_log_error;
    connection->log.data = connection;

    pipeline = &connection->pipeline;

    pipeline->events = events;
    pipeline->owner = owner;
    pipeline->log = &connection->log;
    pipeline->traffic = traffic;
    pipeline->gauges = gauges;

    ngx_queue_init(&pipeline->waiting);
    ngx_queue_init(&pipeline->sent);
    ngx_queue_insert_tail(&ngx_rl_pipelines, &pipeline->queue);

    connection->handshake.conf = conf;
    connection->handshake.pipeline = pipeline;
    connection->handshake.addresses = &connection->addresses;

    ngx_rl_event_init(&pipeline->stall, ngx_rl_connection_t,
                      ngx_rl_connection_stall_handler, connection,
                      &connection->log);
    pipeline->stall.cancelable = 1;

    ngx_rl_event_init(&connection->timer, ngx_rl_connection_t,
                      ngx_rl_connection_timer_handler, connection,
                      &connection->log);
    connection->timer.cancelable = 1;

    ngx_rl_event_init(&connection->end, ngx_rl_connection_t,
                      ngx_rl_connection_end_handler, connection,
                      &connection->log);

    return connection;
}


ngx_rl_failure_e
ngx_rl_connection_check(ngx_rl_connection_t *connection)
{
    if (connection->state == NGX_RL_CONNECTION_IDLE && connection->addresses.n)
    {
        ngx_rl_connection_connect(connection);
    }

    if (connection->pipeline.c) {
        return NGX_RL_OK;
    }

    /* the address is not known yet, but may be known soon */

    if (connection->addresses.n == 0
        && ngx_current_msec - connection->created
           < connection->conf->connect_timeout)
    {
        return NGX_RL_OK;
    }

    return connection->failure;
}


ngx_rl_failure_e
ngx_rl_connection_send(ngx_rl_connection_t *connection,
    ngx_str_t *command, ngx_msec_t timeout, ngx_rl_pending_pt handler,
    void *data, ngx_rl_pending_t **pending)
{
    ngx_rl_failure_e  failure;

    failure = ngx_rl_connection_check(connection);

    if (failure != NGX_RL_OK) {
        return failure;
    }

    *pending = ngx_rl_pipeline_send(&connection->pipeline, command, timeout,
                                    handler, data);

    return *pending ? NGX_RL_OK : NGX_RL_OVERLOAD;
}


void
ngx_rl_connection_ping(ngx_rl_connection_t *connection, ngx_str_t *command)
{
    if (connection->state == NGX_RL_CONNECTION_READY) {
        (void) ngx_rl_pipeline_append(&connection->pipeline, command);
    }
}


void
ngx_rl_connection_wake(ngx_rl_connection_t *connection)
{
    if ((connection->state == NGX_RL_CONNECTION_WAITING
         || connection->state == NGX_RL_CONNECTION_IDLE)
        && connection->addresses.n)
    {
        ngx_rl_timer_end(&connection->timer);
        ngx_rl_connection_connect(connection);
    }
}


void
ngx_rl_connection_schedule(ngx_rl_connection_t *connection)
{
    if (connection->state == NGX_RL_CONNECTION_IDLE && connection->addresses.n
        && !ngx_exiting)
    {
        connection->state = NGX_RL_CONNECTION_WAITING;
        ngx_add_timer(&connection->timer, 1);
    }
}


ngx_uint_t
ngx_rl_connection_ready(ngx_rl_connection_t *connection)
{
    return connection->state == NGX_RL_CONNECTION_READY;
}


ngx_addr_t *
ngx_rl_connection_addr(ngx_rl_connection_t *connection)
{
    return ngx_rl_addresses_current(&connection->addresses);
}


ngx_rl_failure_e
ngx_rl_pending_forward(ngx_rl_pending_t *pending,
    ngx_rl_connection_t *connection, ngx_uint_t asking)
{
    ngx_rl_failure_e  failure;

    failure = ngx_rl_connection_check(connection);

    if (failure != NGX_RL_OK) {
        return failure;
    }

    return ngx_rl_pipeline_take(&connection->pipeline, pending, asking)
           == NGX_OK ? NGX_RL_OK : NGX_RL_OVERLOAD;
}


void
ngx_rl_pending_again(ngx_rl_pending_t *pending, ngx_rl_connection_t *connection)
{
    ngx_rl_failure_e  failure;

    ngx_queue_remove(&pending->queue);

    failure = ngx_rl_pending_forward(pending, connection, pending->asking);

    if (failure != NGX_RL_OK) {
        ngx_rl_pending_fail(pending, failure);
    }
}


static void
ngx_rl_connection_connect(ngx_rl_connection_t *connection)
{
    ngx_err_t              err;
    ngx_int_t              rc;
    ngx_addr_t            *addr;
    ngx_connection_t      *c;
    ngx_peer_connection_t  pc;

    connection->state = NGX_RL_CONNECTION_CONNECTING;
    connection->generation++;
    connection->grace = connection->conf->connect_timeout;

    addr = ngx_rl_addresses_current(&connection->addresses);

    ngx_memzero(&pc, sizeof(ngx_peer_connection_t));

    pc.sockaddr = addr->sockaddr;
    pc.socklen = addr->socklen;
    pc.name = &addr->name;
    pc.get = ngx_event_get_peer;
    pc.log = &connection->log;
    pc.log_error = NGX_ERROR_INFO;
    pc.so_keepalive = (addr->sockaddr->sa_family != AF_UNIX);

    connection->pipeline.reader = ngx_rl_reader_create();
    if (connection->pipeline.reader == NULL) {
        ngx_rl_connection_close(connection, NGX_RL_OVERLOAD);
        return;
    }

    /* nginx logs a connect() that fails at once: log only some of them */

    connection->log.log_level = ngx_min(connection->cycle_log->log_level,
                                        NGX_LOG_ALERT);

    ngx_set_errno(0);
    rc = ngx_event_connect_peer(&pc);
    err = ngx_socket_errno;

    connection->log.log_level = connection->cycle_log->log_level;

    ngx_log_debug3(NGX_LOG_DEBUG_EVENT, &connection->log, 0,
                   "ratelimit redis connect to %V: %i, fd:%d", &addr->name, rc,
                   pc.connection ? pc.connection->fd : (ngx_socket_t) -1);

    if (rc != NGX_OK && rc != NGX_AGAIN) {

        /* the server is unreachable, or there is no socket */

        ngx_rl_connection_fail(connection, rc == NGX_DECLINED
                               ? NGX_RL_REFUSED : NGX_RL_OVERLOAD, err,
                               "connect() to %V failed", &addr->name);
        return;
    }

    c = pc.connection;
    c->data = connection;
    c->read->handler = ngx_rl_connection_read_handler;
    c->write->handler = ngx_rl_connection_write_handler;

    connection->pipeline.c = c;

    connection->deadline = ngx_current_msec
                           + connection->conf->connect_timeout;
    ngx_add_timer(&connection->timer, connection->conf->connect_timeout);

    if (rc == NGX_OK) {
        ngx_rl_connection_write_handler(c->write);
    }
}


/* a pause has ended, or the time limit of a new connection */

static void
ngx_rl_connection_timer_handler(ngx_event_t *ev)
{
    ngx_msec_t                 delay, late;
    ngx_rl_connection_t       *connection;
    ngx_rl_connection_state_e  state;

    connection = ev->data;
    late = ngx_rl_pipeline_late(connection->deadline);

    if (ngx_rl_connection_look(ev)) {
        return;
    }

    state = connection->state;

    if (state == NGX_RL_CONNECTION_READY) {
        return;
    }

    if (state == NGX_RL_CONNECTION_WAITING) {

        if (ngx_exiting) {
            connection->state = NGX_RL_CONNECTION_IDLE;
            return;
        }

        delay = connection->events->may_connect(connection->owner);

        if (delay) {
            ngx_add_timer(ev, delay);
            return;
        }

        ngx_rl_connection_connect(connection);
        return;
    }

    late = ngx_min(late, connection->grace);

    if (late > NGX_RL_PIPELINE_HELD) {
        connection->grace -= late;
        connection->deadline = ngx_current_msec + late;
        ngx_add_timer(ev, late);
        return;
    }

    /* the class of late commands would suppress this line */

    if (connection->events->may_log(connection->owner,
                                    state == NGX_RL_CONNECTION_TLS
                                    ? NGX_RL_TLS : NGX_RL_REFUSED))
    {
        ngx_log_error(NGX_LOG_ERR, &connection->log, NGX_ETIMEDOUT, "redis %s",
                      state == NGX_RL_CONNECTION_HANDSHAKE
                      ? "does not answer on a new connection"
                      : state == NGX_RL_CONNECTION_TLS
                      ? "does not answer the TLS handshake: does it use TLS?"
                      : "connect() timed out");
    }

    ngx_rl_connection_close(connection, NGX_RL_TIMEOUT);
}


/* checks whether the oldest reply is so late that the server must be stuck */

static void
ngx_rl_connection_stall_handler(ngx_event_t *ev)
{
    ngx_msec_t            age;
    ngx_rl_pending_t     *pending;
    ngx_rl_connection_t  *connection;

    connection = ev->data;

    if (ngx_rl_connection_look(ev)
        || ngx_queue_empty(&connection->pipeline.sent))
    {
        return;
    }

    pending = ngx_rl_pending_first(&connection->pipeline.sent);

    if (pending->timer.timer_set) {
        /* not late yet; if it becomes late, this timer is set again */
        return;
    }

    age = ngx_current_msec - pending->expired;

    if (age < NGX_RL_PIPELINE_STALL) {
        ngx_add_timer(ev, NGX_RL_PIPELINE_STALL - age);
        return;
    }

    /*
     * Its commands have logged their timeouts already; this is a lost
     * connection.
     */

    if (connection->events->may_log(connection->owner, NGX_RL_CLOSED)) {
        ngx_log_error(NGX_LOG_ERR, &connection->log, NGX_ETIMEDOUT,
                      "redis stopped answering, connection closed");
    }

    ngx_rl_connection_close(connection, NGX_RL_TIMEOUT);
}


/*
 * Data that has arrived meanwhile is in time, see the pipeline.  Returns
 * whether the state that the timer looked at has changed.
 */

static ngx_uint_t
ngx_rl_connection_look(ngx_event_t *ev)
{
    ngx_uint_t            generation;
    ngx_connection_t     *c;
    ngx_rl_connection_t  *connection;

    connection = ev->data;
    generation = connection->generation;
    c = connection->pipeline.c;

    ngx_rl_pipeline_look(&connection->pipeline);

    return connection->generation != generation || connection->pipeline.c != c
           || ev->timer_set;
}


static void
ngx_rl_connection_write_handler(ngx_event_t *wev)
{
    ngx_connection_t     *c;
    ngx_rl_connection_t  *connection;

    c = wev->data;
    connection = c->data;

    if (connection->state < NGX_RL_CONNECTION_HANDSHAKE
        && ngx_rl_connection_connected(connection) != NGX_OK)
    {
        return;
    }

    if (ngx_rl_pipeline_write(&connection->pipeline) != NGX_OK) {
        ngx_rl_connection_fail(connection, NGX_RL_CLOSED, ngx_socket_errno,
                               "redis connection lost while sending");
        return;
    }

    if (ngx_handle_write_event(wev, 0) != NGX_OK) {
        ngx_rl_connection_close(connection, NGX_RL_CLOSED);
    }
}


/*
 * Called when the socket is connected, and when the TLS handshake is over,
 * during which nginx's own event handlers are set.  NGX_OK: there is something
 * to write.  Otherwise not yet, or the connection was closed.
 */

static ngx_int_t
ngx_rl_connection_connected(ngx_rl_connection_t *connection)
{
    int                err;
    socklen_t          len;
    ngx_int_t          rc;
    ngx_addr_t        *addr;
    ngx_connection_t  *c;
    ngx_rl_failure_e   failure;

    c = connection->pipeline.c;

    if (connection->state == NGX_RL_CONNECTION_TLS) {
        rc = ngx_rl_handshake_secured(&connection->handshake, &failure);
        goto done;
    }

    addr = ngx_rl_addresses_current(&connection->addresses);

    err = 0;
    len = sizeof(int);

    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, (void *) &err, &len) == -1) {
        err = ngx_socket_errno;
    }

    if (err) {
        ngx_rl_connection_fail(connection, NGX_RL_REFUSED, err,
                               "connect() to %V failed", &addr->name);
        return NGX_ERROR;
    }

    if (addr->sockaddr->sa_family != AF_UNIX && ngx_tcp_nodelay(c) != NGX_OK) {
        ngx_rl_connection_close(connection, NGX_RL_REFUSED);
        return NGX_ERROR;
    }

    connection->state = NGX_RL_CONNECTION_TLS;

    rc = ngx_rl_handshake_start(&connection->handshake,
                                ngx_rl_connection_tls_handler, &failure);

done:

    if (rc == NGX_OK) {
        connection->state = NGX_RL_CONNECTION_HANDSHAKE;

    } else if (rc == NGX_ERROR) {
        ngx_rl_connection_close(connection, failure);
    }

    return rc;
}


static void
ngx_rl_connection_tls_handler(ngx_connection_t *c)
{
    c->read->handler = ngx_rl_connection_read_handler;
    c->write->handler = ngx_rl_connection_write_handler;

    ngx_rl_connection_write_handler(c->write);
}


static void
ngx_rl_connection_read_handler(ngx_event_t *rev)
{
    ngx_err_t                 err;
    ngx_int_t                 rc;
    ngx_uint_t                generation;
    ngx_rl_reply_t           *reply;
    ngx_connection_t         *c;
    ngx_rl_pipeline_t        *pipeline;
    ngx_rl_connection_t      *connection;
    ngx_rl_handshake_step_t  *step;

    c = rev->data;
    connection = c->data;
    pipeline = &connection->pipeline;
    generation = connection->generation;

    if (c->close) {
        ngx_rl_connection_close(connection,
                                pipeline->n ? NGX_RL_CLOSED : NGX_RL_OK);
        return;
    }

    /* an error of connect() may show up as a read event first */

    if (connection->state == NGX_RL_CONNECTION_CONNECTING) {
        ngx_rl_connection_write_handler(c->write);

        if (connection->generation != generation || pipeline->c != c
            || connection->state == NGX_RL_CONNECTION_TLS)
        {
            return;
        }
    }

    step = connection->conf->handshake.elts;

    for ( ;; ) {
        rc = ngx_rl_pipeline_read(pipeline,
                                  connection->state
                                  == NGX_RL_CONNECTION_HANDSHAKE
                                  && connection->handshake.steps
                                     < connection->conf->handshake.nelts
                                  && step[connection->handshake.steps].large,
                                  &reply, &err);

        if (rc != NGX_OK) {
            break;
        }

        ngx_rl_connection_reply(connection, reply);

        /* a handler may have closed the connection or opened another one */

        if (connection->generation != generation || pipeline->c != c) {
            return;
        }
    }

    if (rc == NGX_DONE) {
        ngx_rl_connection_lost(connection, err);
        return;
    }

    if (rc == NGX_ERROR) {
        ngx_rl_connection_fail(connection, NGX_RL_PROTOCOL, 0,
                               "invalid or too large reply from redis%s",
                               pipeline->alert
                               ? ngx_rl_handshake_cure(&connection->handshake)
                               : "");
        return;
    }

    c->idle = ngx_queue_empty(&pipeline->sent)
              && connection->holds == 0
              && connection->state == NGX_RL_CONNECTION_READY;

    if (ngx_handle_read_event(rev, 0) != NGX_OK) {
        ngx_rl_connection_close(connection, NGX_RL_CLOSED);
    }
}


static void
ngx_rl_connection_reply(ngx_rl_connection_t *connection, ngx_rl_reply_t *reply)
{
    ngx_int_t         rc;
    ngx_rl_failure_e  failure;

    if (connection->state == NGX_RL_CONNECTION_HANDSHAKE) {

        rc = ngx_rl_handshake_reply(&connection->handshake, reply, &failure);

        if (rc == NGX_ERROR) {
            ngx_rl_connection_close(connection, failure);
        }

        if (rc != NGX_OK) {
            return;
        }

        /* the timer may have called this */

        ngx_rl_timer_end(&connection->timer);

        connection->state = NGX_RL_CONNECTION_READY;
        connection->ready = ngx_current_msec;
        connection->pipeline.ready = 1;
        connection->pipeline.gauges->connections++;

        /* the owner of a retired connection has another one by now */

        if (!connection->retired) {
            connection->events->ready(connection->owner);
        }

        if (ngx_rl_pipeline_send_waiting(&connection->pipeline) != NGX_OK) {
            ngx_rl_connection_close(connection, NGX_RL_OVERLOAD);
        }

        return;
    }

    if (connection->events->push) {
        connection->events->push(connection->owner, reply);
        return;
    }

    rc = ngx_rl_pipeline_deliver(&connection->pipeline, reply);

    if (rc == NGX_DECLINED) {
        ngx_rl_connection_fail(connection, NGX_RL_PROTOCOL, 0,
                               "unexpected reply from redis");

    } else if (rc == NGX_ERROR) {
        ngx_rl_connection_close(connection, NGX_RL_PROTOCOL);
    }
}


/* end of the stream, or a read error */

static void
ngx_rl_connection_lost(ngx_rl_connection_t *connection, ngx_err_t err)
{
    const char  *why;

    /* a server may close an idle connection; this is not a failure */

    if (connection->state == NGX_RL_CONNECTION_READY
        && connection->pipeline.n == 0)
    {
        ngx_rl_connection_close(connection, NGX_RL_OK);
        return;
    }

    why = connection->conf->tls
          ? ngx_rl_tls_error(&connection->handshake.session) : NULL;

    /* with TLS 1.3, a server may reject a certificate as late as now */

    if (why && connection->state == NGX_RL_CONNECTION_HANDSHAKE) {
        ngx_rl_handshake_insecure(&connection->handshake, why);
        ngx_rl_connection_close(connection, NGX_RL_TLS);
        return;
    }

    ngx_rl_connection_fail(connection, NGX_RL_CLOSED, why ? 0 : err,
                           "redis closed the connection, calls lost: %ui%s%s",
                           connection->pipeline.n, why ? ": " : "",
                           why ? why
                           : ngx_rl_handshake_cure(&connection->handshake));
}


static void
ngx_rl_connection_fail(ngx_rl_connection_t *connection,
    ngx_rl_failure_e failure, ngx_err_t err, const char *fmt, ...)
{
    u_char   text[NGX_MAX_ERROR_STR], *last;
    va_list  args;

    if (connection->events->may_log(connection->owner, failure)) {

        va_start(args, fmt);
        last = ngx_vslprintf(text, text + NGX_MAX_ERROR_STR, fmt, args);
        va_end(args);

        ngx_log_error(NGX_LOG_ERR, &connection->log, err, "%*s",
                      last - text, text);
    }

    ngx_rl_connection_close(connection, failure);
}


/*
 * The only way to close: all pendings fail, and the next attempt is scheduled.
 */

static void
ngx_rl_connection_close(ngx_rl_connection_t *connection,
    ngx_rl_failure_e failure)
{
    ngx_msec_t   delay;
    ngx_uint_t   stable;
    ngx_queue_t  pendings;

    stable = connection->state == NGX_RL_CONNECTION_READY
             && ngx_current_msec - connection->ready
                >= NGX_RL_CONNECTION_STABLE;

    if (connection->state != NGX_RL_CONNECTION_READY) {
        connection->addresses.next++;
    }

    ngx_rl_connection_disconnect(connection);
    ngx_rl_pipeline_detach(&connection->pipeline, &pendings, 1);

    /* commands before the next connection fail with this reason */

    connection->failure = (failure == NGX_RL_OK) ? NGX_RL_CLOSED : failure;
    connection->state = NGX_RL_CONNECTION_WAITING;

    delay = NGX_TIMER_INFINITE;

    if (!connection->retired) {
        delay = connection->events->closed(connection->owner, failure, stable);
    }

    if (ngx_exiting || delay == NGX_TIMER_INFINITE) {
        /* from now on, connect only when a connection is needed */
        connection->state = NGX_RL_CONNECTION_IDLE;

    } else if (delay) {
        ngx_add_timer(&connection->timer, delay);

    } else {
        ngx_rl_connection_connect(connection);
    }

    ngx_rl_pipeline_fail(&pendings, failure);
}


/* releases the socket, both buffers and the timers */

static void
ngx_rl_connection_disconnect(ngx_rl_connection_t *connection)
{
    ngx_connection_t   *c;
    ngx_rl_pipeline_t  *pipeline;

    pipeline = &connection->pipeline;
    c = pipeline->c;

    ngx_rl_timer_end(&connection->timer);
    ngx_rl_timer_end(&pipeline->stall);

    if (pipeline->ready) {
        pipeline->ready = 0;
        pipeline->gauges->connections--;
    }

    if (pipeline->reader) {
        ngx_rl_reader_free(pipeline->reader);
        pipeline->reader = NULL;
    }

    pipeline->pos = pipeline->out;
    pipeline->last = pipeline->out;

    if (c) {
        ngx_rl_tls_close(c);
        ngx_close_connection(c);
        pipeline->c = NULL;
    }
}


void
ngx_rl_connection_hold(ngx_rl_connection_t *connection)
{
    connection->holds++;

    if (connection->pipeline.c) {
        connection->pipeline.c->idle = 0;
    }
}


void
ngx_rl_connection_release(ngx_rl_connection_t *connection)
{
    /* the next reply makes the connection idle */

    connection->holds--;
}


void
ngx_rl_connection_close_idle(ngx_rl_connection_t *connection)
{
    if (connection->pipeline.n) {
        return;
    }

    ngx_rl_connection_disconnect(connection);

    connection->state = NGX_RL_CONNECTION_IDLE;
}


ngx_uint_t
ngx_rl_connection_unused(ngx_rl_connection_t *connection)
{
    ngx_queue_t        *q;
    ngx_rl_pipeline_t  *other;

    if (connection->pipeline.n || connection->pipeline.c
        || connection->timer.timer_set)
    {
        return 0;
    }

    for (q = ngx_queue_head(&ngx_rl_pipelines);
         q != ngx_queue_sentinel(&ngx_rl_pipelines);
         q = ngx_queue_next(q))
    {
        other = ngx_queue_data(q, ngx_rl_pipeline_t, queue);

        if (other != &connection->pipeline && other->owner == connection->owner)
        {
            return 0;
        }
    }

    return 1;
}


ngx_int_t
ngx_rl_connection_move(ngx_rl_connection_t *connection,
    ngx_addr_t *addrs, ngx_uint_t n, ngx_uint_t drop)
{
    ngx_uint_t   i, stays;
    ngx_addr_t  *addr;
    ngx_queue_t  pendings;

    addr = connection->pipeline.c
           ? ngx_rl_addresses_current(&connection->addresses) : NULL;

    for (i = 0; addr && i < n; i++) {
        if (ngx_rl_address_equal(addr, &addrs[i])) {
            break;
        }
    }

    stays = addr && i < n;

    if (addr && !stays && !drop) {
        return NGX_DECLINED;
    }

    if (ngx_rl_addresses_replace(&connection->addresses, addrs, n,
                                 stays ? i : 0, connection->cycle_log)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (stays) {
        return NGX_OK;
    }

    ngx_queue_init(&pendings);

    if (addr || n == 0) {
        ngx_rl_connection_disconnect(connection);
        ngx_rl_pipeline_detach(&connection->pipeline, &pendings, 0);

        connection->state = NGX_RL_CONNECTION_IDLE;
    }

    if (n == 0) {
        connection->created = ngx_current_msec;
    }

    /* waiting commands get a connection in a moment */

    ngx_rl_connection_wake(connection);
    ngx_rl_pipeline_fail(&pendings, NGX_RL_CLOSED);

    return NGX_OK;
}


void
ngx_rl_connection_retire(ngx_rl_connection_t *connection,
    ngx_rl_connection_t *successor)
{
    connection->retired = 1;
    connection->pipeline.drained = &connection->end;

    /* waiting commands wait until the new connection is ready, or time out */

    if (!ngx_queue_empty(&connection->pipeline.waiting)) {
        (void) ngx_rl_connection_check(successor);

        ngx_rl_pipeline_take_waiting(&successor->pipeline,
                                     &connection->pipeline);
    }

    successor->holds += connection->holds;
    connection->holds = 0;

    if (connection->pipeline.n == 0) {
        ngx_post_event(&connection->end, &ngx_posted_events);
    }
}


/* all callers have returned, and no pending is parked elsewhere */

static void
ngx_rl_connection_end_handler(ngx_event_t *ev)
{
    ngx_rl_connection_t  *connection;

    connection = ev->data;

    if (ev->posted) {
        ngx_delete_posted_event(ev);
    }

    ngx_rl_connection_disconnect(connection);

    ngx_queue_remove(&connection->pipeline.queue);

    if (connection->pipeline.out) {
        ngx_free(connection->pipeline.out);
    }

    ngx_rl_addresses_free(&connection->addresses);
    ngx_rl_tls_forget(&connection->handshake.session);

    ngx_free(connection);
}


void
ngx_rl_connection_exit(ngx_rl_connection_t *connection)
{
    ngx_queue_t  pendings;

    ngx_rl_pipeline_detach(&connection->pipeline, &pendings, 1);
    ngx_rl_pipeline_fail(&pendings, NGX_RL_OK);

    ngx_rl_connection_end_handler(&connection->end);
}


void
ngx_rl_connection_done(void)
{
    ngx_queue_t        *q;
    ngx_rl_pipeline_t  *pipeline;

    while (!ngx_queue_empty(&ngx_rl_pipelines)) {
        q = ngx_queue_head(&ngx_rl_pipelines);
        pipeline = ngx_queue_data(q, ngx_rl_pipeline_t, queue);

        ngx_rl_connection_exit(ngx_rl_container(pipeline, ngx_rl_connection_t,
                                                pipeline));
    }

    ngx_rl_pipeline_done();
}


static u_char *
ngx_rl_connection_log_error(ngx_log_t *log, u_char *buf, size_t len)
{
    ngx_rl_connection_t  *connection;

    connection = log->data;

    return ngx_snprintf(buf, len, ", redis: %V", &connection->conf->name);
}
