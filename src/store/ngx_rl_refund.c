
/*
 * Refunds wait in a queue for each server, and leave at the end of the
 * event-loop turn, up to 32 in one command; in a cluster, where the keys of a
 * command have to be of one slot, one.  So many commands are under way to a
 * server, and no more: when half of them are answered the next ones go, and
 * calls of requests always find room in the connection.
 *
 * A command that is under way, a parcel, keeps its refunds, to send them once
 * more if the server does not know the script.
 *
 * Nobody waits for a refund.  One that fails, waits for too long, or is one too
 * many, is lost: its tokens stay taken until they are refilled.  It is not made
 * again, as it may have run.  All that is lost is counted.
 *
 * When the process ends there are no events any more, and all that is left goes
 * the same way, as long as servers answer, for some seconds at most.
 */


#include "store/ngx_rl_refund.h"
#include "memory/ngx_rl_local.h"


#define NGX_RL_REFUND_COMMANDS  512     /* of a server, under way */
#define NGX_RL_REFUND_MAX       131072   /* kept, of all servers */
#define NGX_RL_REFUND_LATE      1000    /* ms that one may wait */
#define NGX_RL_REFUND_EXIT      3000    /* ms for all at the end, */
#define NGX_RL_REFUND_STALL     500     /* and without any answer */


/* one refund; its key and id follow */

typedef struct {
    ngx_queue_t      queue;    /* of a server, or a parcel */
    ngx_msec_t       made;
    ngx_msec_t       timeout;  /* of its command */
    ngx_rl_refund_t  refund;
} ngx_rl_due_t;


typedef struct {
    ngx_queue_t       queue;  /* of all under way */
    ngx_rl_server_t  *server;
    ngx_queue_t       dues;
    ngx_uint_t        n;
    unsigned          with_text:1;
} ngx_rl_refund_command_t;


static void ngx_rl_refund_flush(ngx_event_t *ev);
static void ngx_rl_refund_flush_server(ngx_rl_server_t *server);
static ngx_rl_refund_command_t *ngx_rl_refund_command_create(
    ngx_rl_server_t *server);
static ngx_rl_failure_e ngx_rl_refund_command_send(
    ngx_rl_refund_command_t *command);
static ngx_int_t ngx_rl_refund_command_reply(void *data,
    ngx_rl_reply_t *reply, ngx_rl_failure_e failure);
static void ngx_rl_refund_command_free(
    ngx_rl_refund_command_t *command, ngx_uint_t lost);
static void ngx_rl_refund_free(ngx_queue_t *dues,
    ngx_rl_server_t *server, ngx_uint_t lost);
static void ngx_rl_due_free(ngx_rl_due_t *due,
    ngx_rl_server_t *server, ngx_uint_t lost);
static void ngx_rl_refund_lost(ngx_rl_server_t *server, uint64_t tokens);
static void ngx_rl_refund_drain(void);


static ngx_queue_t  ngx_rl_refund_servers;
static ngx_queue_t  ngx_rl_refund_commands;
static ngx_event_t  ngx_rl_refund_event;
static ngx_uint_t   ngx_rl_refund_kept;

/* when the process ends */
static ngx_uint_t   ngx_rl_refund_last;
static ngx_uint_t   ngx_rl_refunds_lost;
static uint64_t     ngx_rl_tokens_lost;


void
ngx_rl_refund_init(void)
{
    ngx_queue_init(&ngx_rl_refund_servers);
    ngx_queue_init(&ngx_rl_refund_commands);

    ngx_memzero(&ngx_rl_refund_event, sizeof(ngx_event_t));

    ngx_rl_refund_event.handler = ngx_rl_refund_flush;
    ngx_rl_refund_event.log = ngx_cycle->log;

    ngx_rl_refund_kept = 0;
    ngx_rl_refund_last = 0;
    ngx_rl_refunds_lost = 0;
    ngx_rl_tokens_lost = 0;
}


void
ngx_rl_refund_end(void)
{
    ngx_rl_refund_last = 1;
}


void
ngx_rl_refund(ngx_rl_server_t *server,
    const ngx_rl_refund_t *refund, ngx_msec_t timeout)
{
    char          *p;
    ngx_rl_due_t  *due;

    /* the node that a lease came from may have left its cluster */

    server = ngx_rl_server_now(server, refund->key, refund->len);

    /* leases, which are given back at the end, have a bound of their own */

    if (ngx_rl_refund_kept >= NGX_RL_REFUND_MAX && !ngx_rl_refund_last) {
        ngx_rl_refund_lost(server, refund->tokens);
        return;
    }

    due = ngx_alloc(sizeof(ngx_rl_due_t) + refund->len
                    + refund->id_len, ngx_cycle->log);
    if (due == NULL) {
        ngx_rl_refund_lost(server, refund->tokens);
        return;
    }

    p = (char *) &due[1];

    due->made = ngx_current_msec;
    due->timeout = timeout;
    due->refund = *refund;
    due->refund.key = p;
    due->refund.id = p + refund->len;

    ngx_memcpy(p, refund->key, refund->len);
    ngx_memcpy(p + refund->len, refund->id, refund->id_len);

    if (server->queue.refunding.next == NULL) {
        ngx_queue_insert_tail(&ngx_rl_refund_servers, &server->queue.refunding);
    }

    ngx_queue_insert_tail(&server->queue.refunds, &due->queue);
    ngx_rl_refund_kept++;

    ngx_post_event(&ngx_rl_refund_event, &ngx_posted_events);
}


static void
ngx_rl_refund_flush(ngx_event_t *ev)
{
    ngx_queue_t      *q;
    ngx_rl_server_t  *server;

    for (q = ngx_queue_head(&ngx_rl_refund_servers);
         q != ngx_queue_sentinel(&ngx_rl_refund_servers);
         q = ngx_queue_next(q))
    {
        server = ngx_queue_data(q, ngx_rl_server_t, queue.refunding);

        ngx_rl_refund_flush_server(server);
    }
}


static void
ngx_rl_refund_flush_server(ngx_rl_server_t *server)
{
    ngx_rl_failure_e          failure;
    ngx_rl_refund_command_t  *command;

    /* many at once: one by one would cost a system call each */

    if (server->queue.refund_commands > NGX_RL_REFUND_COMMANDS / 2) {
        return;
    }

    while (!ngx_queue_empty(&server->queue.refunds)
           && server->queue.refund_commands < NGX_RL_REFUND_COMMANDS)
    {
        command = ngx_rl_refund_command_create(server);

        if (command == NULL) {
            ngx_rl_refund_free(&server->queue.refunds, server, 1);
            return;
        }

        if (command->n == 0) {
            /* all that was there had waited for too long */
            ngx_rl_refund_command_free(command, 0);
            return;
        }

        failure = ngx_rl_refund_command_send(command);

        if (failure != NGX_RL_OK) {
            ngx_log_error(NGX_LOG_INFO, ngx_cycle->log, 0,
                          "a refund failed: %s", ngx_rl_failure_name(failure));

            /* nor would the others be sent */

            ngx_rl_refund_command_free(command, 1);
            ngx_rl_refund_free(&server->queue.refunds, server, 1);
            return;
        }

        ngx_rl_server_refund(server);
    }
}


/* of the oldest ones; NULL: no memory */

static ngx_rl_refund_command_t *
ngx_rl_refund_command_create(ngx_rl_server_t *server)
{
    ngx_msec_t                timeout;
    ngx_uint_t                most;
    ngx_queue_t              *q;
    ngx_rl_due_t             *due;
    ngx_rl_refund_command_t  *command;

    command = ngx_alloc(sizeof(ngx_rl_refund_command_t), ngx_cycle->log);
    if (command == NULL) {
        return NULL;
    }

    command->server = server;
    command->n = 0;
    command->with_text = 0;

    ngx_queue_init(&command->dues);
    ngx_queue_insert_tail(&ngx_rl_refund_commands, &command->queue);
    server->queue.refund_commands++;

    /* keys of one command to a cluster have to be of one slot */

    most = server->conf->node ? 1 : NGX_RL_REFUNDS;

    timeout = 0;

    while (!ngx_queue_empty(&server->queue.refunds) && command->n < most) {
        q = ngx_queue_head(&server->queue.refunds);
        due = ngx_queue_data(q, ngx_rl_due_t, queue);

        if (command->n && due->timeout != timeout) {
            break;
        }

        ngx_queue_remove(q);

        /* by now its bucket may be full without it */

        if (ngx_current_msec - due->made > NGX_RL_REFUND_LATE) {
            ngx_rl_due_free(due, server, 1);
            continue;
        }

        timeout = due->timeout;

        ngx_queue_insert_tail(&command->dues, q);
        command->n++;
    }

    return command;
}


static ngx_rl_failure_e
ngx_rl_refund_command_send(ngx_rl_refund_command_t *parcel)
{
    char              *bytes;
    long long          len;
    ngx_str_t          command;
    ngx_msec_t         timeout;
    ngx_uint_t         n;
    ngx_queue_t       *q;
    ngx_rl_due_t      *due;
    ngx_rl_refund_t    refunds[NGX_RL_REFUNDS];
    ngx_rl_pending_t  *pending;
    ngx_rl_failure_e   failure;

    failure = ngx_rl_server_check(parcel->server);

    if (failure != NGX_RL_OK) {
        return failure;
    }

    n = 0;
    timeout = 0;

    for (q = ngx_queue_head(&parcel->dues);
         q != ngx_queue_sentinel(&parcel->dues);
         q = ngx_queue_next(q))
    {
        due = ngx_queue_data(q, ngx_rl_due_t, queue);

        timeout = due->timeout;
        refunds[n++] = due->refund;
    }

    len = ngx_rl_eval_refund(&bytes, refunds, n, parcel->with_text);
    if (len < 0) {
        return NGX_RL_OVERLOAD;
    }

    command.data = (u_char *) bytes;
    command.len = len;

    failure = ngx_rl_server_send(parcel->server, &command, timeout,
                                 ngx_rl_refund_command_reply, parcel, &pending);

    if (failure == NGX_RL_OK) {
        ngx_rl_pending_background(pending);
    }

    ngx_rl_resp_free(bytes);

    return failure;
}


static ngx_int_t
ngx_rl_refund_command_reply(void *data,
    ngx_rl_reply_t *reply, ngx_rl_failure_e failure)
{
    ngx_rl_refund_command_t  *command = data;

    ngx_rl_server_t  *server;

    server = command->server;

    if (failure == NGX_RL_OK && reply->type == REDIS_REPLY_ERROR) {
        failure = ngx_rl_failure(reply->str, reply->len);
    }

    if (failure == NGX_RL_NOSCRIPT && !command->with_text) {
        ngx_rl_server_reload(server);

        command->with_text = 1;
        failure = ngx_rl_refund_command_send(command);

        if (failure == NGX_RL_OK) {
            return NGX_OK;
        }
    }

    if (failure != NGX_RL_OK) {
        ngx_rl_server_failed(server, failure, reply, 1);

        ngx_log_error(NGX_LOG_INFO, ngx_cycle->log, 0, "a refund failed: %s",
                      ngx_rl_failure_name(failure));
    }

    /* the next ones may go */

    if (!ngx_queue_empty(&command->server->queue.refunds)) {
        ngx_post_event(&ngx_rl_refund_event, &ngx_posted_events);
    }

    ngx_rl_refund_command_free(command, failure != NGX_RL_OK);

    return NGX_OK;
}


static void
ngx_rl_refund_command_free(ngx_rl_refund_command_t *command, ngx_uint_t lost)
{
    command->server->queue.refund_commands--;

    ngx_rl_refund_free(&command->dues, command->server, lost);

    ngx_queue_remove(&command->queue);
    ngx_free(command);
}


static void
ngx_rl_refund_free(ngx_queue_t *dues, ngx_rl_server_t *server, ngx_uint_t lost)
{
    ngx_queue_t  *q, *next;

    for (q = ngx_queue_head(dues); q != ngx_queue_sentinel(dues); q = next) {
        next = ngx_queue_next(q);

        ngx_rl_due_free(ngx_queue_data(q, ngx_rl_due_t, queue), server, lost);
    }

    ngx_queue_init(dues);
}


static void
ngx_rl_due_free(ngx_rl_due_t *due, ngx_rl_server_t *server, ngx_uint_t lost)
{
    if (lost) {
        ngx_rl_refund_lost(server, due->refund.tokens);
    }

    ngx_rl_refund_kept--;
    ngx_free(due);
}


static void
ngx_rl_refund_lost(ngx_rl_server_t *server, uint64_t tokens)
{
    ngx_rl_server_refund_lost(server);

    if (ngx_rl_refund_last) {
        ngx_rl_refunds_lost++;
        ngx_rl_tokens_lost += tokens;
    }
}


/* as much as can be answered in time, then there is an end of it */

void
ngx_rl_refund_exit(void)
{
    ngx_queue_t              *q;
    ngx_rl_server_t          *server;
    ngx_rl_refund_command_t  *command;

    ngx_rl_refund_drain();

    while (!ngx_queue_empty(&ngx_rl_refund_commands)) {
        q = ngx_queue_head(&ngx_rl_refund_commands);
        command = ngx_queue_data(q, ngx_rl_refund_command_t, queue);

        ngx_rl_refund_command_free(command, 1);
    }

    while (!ngx_queue_empty(&ngx_rl_refund_servers)) {
        q = ngx_queue_head(&ngx_rl_refund_servers);
        ngx_queue_remove(q);

        server = ngx_queue_data(q, ngx_rl_server_t, queue.refunding);

        ngx_rl_refund_free(&server->queue.refunds, server, 1);
        server->queue.refunding.next = NULL;
    }

    if (ngx_rl_refund_event.posted) {
        ngx_delete_posted_event(&ngx_rl_refund_event);
    }

    if (ngx_rl_refunds_lost) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "%ui refunds of %uL tokens were lost when this worker "
                      "left", ngx_rl_refunds_lost, ngx_rl_tokens_lost);
    }
}


static void
ngx_rl_refund_drain(void)
{
    uint64_t  end, now;

    end = ngx_rl_clock_us()
          + NGX_RL_REFUND_EXIT * 1000;

    while (ngx_rl_refund_kept) {

        ngx_rl_refund_flush(&ngx_rl_refund_event);

        now = ngx_rl_clock_us();

        if (ngx_queue_empty(&ngx_rl_refund_commands) || now >= end
            || ngx_rl_connection_turn(NGX_RL_REFUND_STALL)
            != NGX_OK)
        {
            return;
        }
    }
}
