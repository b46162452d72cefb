
/*
 * Refunds are a kind of command.  They wait in a queue for each server and
 * leave at the end of the event-loop turn, up to 32 in one command.  In a
 * cluster a command carries one refund, because all its keys must be in one
 * slot.  The number of commands under way to a server is bounded.  When half
 * of them are answered, the next ones leave.  So calls of requests always find
 * room in the connection.
 *
 * A command keeps its refunds until it is answered, to send them again if the
 * server does not know the script.
 *
 * Nobody waits for a refund.  A refund that fails, that waits too long or that
 * exceeds the bound is lost, and its tokens stay taken until they are
 * refilled.  It is not repeated, because it may have run.  Lost refunds are
 * counted.
 *
 * When the process exits, there are no events any more.  The remaining refunds
 * are sent in the same way, as long as servers answer, and for some seconds at
 * most.
 */


#include "store/ngx_rl_refund.h"
#include "store/ngx_rl_command.h"
#include "core/ngx_rl_clock.h"
#include "core/ngx_rl_core.h"
#include "redis/ngx_rl_drain.h"
#include "topology/ngx_rl_route.h"


#define NGX_RL_REFUND_COMMANDS  512      /* commands under way to a server */
#define NGX_RL_REFUND_MAX       131072   /* refunds kept for all servers */
#define NGX_RL_REFUND_LATE      1000     /* ms that a refund may wait */
#define NGX_RL_REFUND_EXIT      3000     /* ms for all of them at exit, */
#define NGX_RL_REFUND_STALL     500      /* and without any answer */


/* a refund in memory; its key and id follow the struct */

typedef struct {
    ngx_queue_t      queue;    /* of a server, or a command */
    ngx_msec_t       made;
    ngx_msec_t       timeout;  /* of its command */
    ngx_rl_refund_t  refund;
} ngx_rl_kept_refund_t;


/* a command of refunds */

typedef struct {
    ngx_rl_command_t  command;
    ngx_queue_t       queue;  /* in the list of all under way */
    ngx_queue_t       refunds;
    ngx_uint_t        n;
} ngx_rl_refunds_t;


static void ngx_rl_refund_flush(ngx_event_t *ev);
static ngx_rl_command_t *ngx_rl_refunds_next(ngx_rl_server_t *server);
static void ngx_rl_refunds_format(ngx_rl_command_t *command,
    ngx_rl_resp_t *resp);
static void ngx_rl_refunds_sent(ngx_rl_command_t *command);
static void ngx_rl_refunds_unsent(ngx_rl_command_t *command,
    ngx_rl_failure_e failure);
static void ngx_rl_refunds_done(ngx_rl_command_t *command,
    ngx_rl_failure_e failure);
static void ngx_rl_refunds_free(ngx_rl_refunds_t *refunds, ngx_uint_t lost);
static void ngx_rl_refund_failed(ngx_rl_failure_e failure);
static void ngx_rl_refund_free(ngx_queue_t *refunds, ngx_rl_server_t *server,
    ngx_uint_t lost);
static void ngx_rl_refund_lost(ngx_rl_server_t *server, uint64_t tokens);


static const ngx_rl_command_kind_t  ngx_rl_refunds_kind = {
    ngx_rl_refunds_next,
    ngx_rl_refunds_format,
    ngx_rl_refunds_sent,
    NULL,
    ngx_rl_refunds_unsent,
    ngx_rl_refunds_done
};


static ngx_queue_t  ngx_rl_refund_servers;
static ngx_queue_t  ngx_rl_refund_commands;
static ngx_event_t  ngx_rl_refund_event;
static ngx_uint_t   ngx_rl_refund_kept;

/* while the process exits */
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
ngx_rl_refund(ngx_rl_server_t *server, const ngx_rl_claim_t *claim,
    uint64_t tokens, const ngx_rl_call_t *call, ngx_msec_t timeout)
{
    char                  *p;
    size_t                 id_len;
    ngx_rl_kept_refund_t  *kept;

    /* the node that a lease came from may have left its cluster */

    server = ngx_rl_route_now(server, claim->key, claim->len);
    id_len = call ? call->id_len : 0;
    kept = NULL;

    /* leases, which are refunded at exit, have a bound of their own */

    if (ngx_rl_refund_kept < NGX_RL_REFUND_MAX || ngx_rl_refund_last) {
        kept = ngx_alloc(sizeof(ngx_rl_kept_refund_t) + claim->len + id_len,
                         ngx_cycle->log);
    }

    if (kept == NULL) {
        ngx_rl_refund_lost(server, tokens);
        return;
    }

    p = (char *) &kept[1];

    kept->made = ngx_current_msec;
    kept->timeout = timeout;
    kept->refund.key = p;
    kept->refund.len = claim->len;
    kept->refund.bucket = claim->bucket;
    kept->refund.tokens = tokens;
    kept->refund.period = claim->period;
    kept->refund.id = p + claim->len;
    kept->refund.id_len = id_len;

    ngx_memcpy(p, claim->key, claim->len);

    if (call) {
        ngx_memcpy(p + claim->len, call->id, id_len);
    }

    if (server->queue.refunding.next == NULL) {
        ngx_queue_insert_tail(&ngx_rl_refund_servers, &server->queue.refunding);
    }

    ngx_queue_insert_tail(&server->queue.refunds, &kept->queue);
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

        /* sends many at once: one by one would cost a system call each */

        if (server->queue.refund_commands <= NGX_RL_REFUND_COMMANDS / 2) {
            ngx_rl_command_flush(server, &ngx_rl_refunds_kind);
        }
    }
}


/* the oldest ones */

static ngx_rl_command_t *
ngx_rl_refunds_next(ngx_rl_server_t *server)
{
    ngx_uint_t             most;
    ngx_queue_t           *q;
    ngx_rl_failure_e       failure;
    ngx_rl_refunds_t      *refunds;
    ngx_rl_kept_refund_t  *kept;

    if (ngx_queue_empty(&server->queue.refunds)
        || server->queue.refund_commands == NGX_RL_REFUND_COMMANDS)
    {
        return NULL;
    }

    failure = ngx_rl_server_check(server);
    refunds = NULL;

    if (failure != NGX_RL_OK) {
        ngx_rl_refund_failed(failure);

    } else {
        refunds = ngx_alloc(sizeof(ngx_rl_refunds_t), ngx_cycle->log);
    }

    if (refunds == NULL) {
        ngx_rl_refund_free(&server->queue.refunds, server, 1);
        return NULL;
    }

    refunds->command.server = server;
    refunds->n = 0;

    ngx_queue_init(&refunds->refunds);
    ngx_queue_insert_tail(&ngx_rl_refund_commands, &refunds->queue);
    server->queue.refund_commands++;

    /* in a cluster, all keys of a command must be in one slot */

    most = server->conf->redis.node ? 1 : NGX_RL_REFUNDS;

    while (!ngx_queue_empty(&server->queue.refunds) && refunds->n < most) {
        q = ngx_queue_head(&server->queue.refunds);
        kept = ngx_queue_data(q, ngx_rl_kept_refund_t, queue);

        if (refunds->n && kept->timeout != refunds->command.timeout) {
            break;
        }

        ngx_queue_remove(q);

        /* its bucket may have been refilled meanwhile */

        if (ngx_current_msec - kept->made > NGX_RL_REFUND_LATE) {
            ngx_rl_refund_lost(server, kept->refund.tokens);
            ngx_rl_refund_kept--;
            ngx_free(kept);
            continue;
        }

        refunds->command.timeout = kept->timeout;

        ngx_queue_insert_tail(&refunds->refunds, q);
        refunds->n++;
    }

    if (refunds->n == 0) {
        ngx_rl_refunds_free(refunds, 0);
        return NULL;
    }

    return &refunds->command;
}


static void
ngx_rl_refunds_format(ngx_rl_command_t *command, ngx_rl_resp_t *resp)
{
    ngx_uint_t             n;
    ngx_queue_t           *q;
    ngx_rl_refund_t       *list[NGX_RL_REFUNDS];
    ngx_rl_refunds_t      *refunds;
    ngx_rl_kept_refund_t  *kept;

    refunds = (ngx_rl_refunds_t *) command;
    n = 0;

    for (q = ngx_queue_head(&refunds->refunds);
         q != ngx_queue_sentinel(&refunds->refunds);
         q = ngx_queue_next(q))
    {
        kept = ngx_queue_data(q, ngx_rl_kept_refund_t, queue);

        list[n++] = &kept->refund;
    }

    ngx_rl_eval_refund(list, n, resp, command->with_text);
}


static void
ngx_rl_refunds_sent(ngx_rl_command_t *command)
{
    /* does not delay the exit of the process */

    ngx_rl_pending_background(command->pending);

    if (!command->with_text) {
        ngx_rl_count(command->server->record->counters.refunds);
    }
}


/*
 * What cannot be sent now is lost, with everything that waits behind it.  A
 * repeat carries the text of the script and is longer, so it may find no room
 * while shorter commands would.
 */

static void
ngx_rl_refunds_unsent(ngx_rl_command_t *command, ngx_rl_failure_e failure)
{
    if (command->with_text) {
        ngx_rl_server_unsent(command->server, failure);

    } else {
        ngx_rl_refund_free(&command->server->queue.refunds, command->server, 1);
    }

    ngx_rl_refunds_done(command, failure);
}


static void
ngx_rl_refunds_done(ngx_rl_command_t *command, ngx_rl_failure_e failure)
{
    if (failure != NGX_RL_OK) {
        ngx_rl_refund_failed(failure);
    }

    /* the next commands may leave */

    if (!ngx_queue_empty(&command->server->queue.refunds)) {
        ngx_post_event(&ngx_rl_refund_event, &ngx_posted_events);
    }

    ngx_rl_refunds_free((ngx_rl_refunds_t *) command, failure != NGX_RL_OK);
}


static void
ngx_rl_refunds_free(ngx_rl_refunds_t *refunds, ngx_uint_t lost)
{
    refunds->command.server->queue.refund_commands--;

    ngx_rl_refund_free(&refunds->refunds, refunds->command.server, lost);

    ngx_queue_remove(&refunds->queue);
    ngx_free(refunds);
}


static void
ngx_rl_refund_failed(ngx_rl_failure_e failure)
{
    ngx_log_error(NGX_LOG_INFO, ngx_cycle->log, 0, "a refund failed: %s",
                  ngx_rl_failure_names[failure]);
}


static void
ngx_rl_refund_free(ngx_queue_t *refunds, ngx_rl_server_t *server,
    ngx_uint_t lost)
{
    ngx_queue_t           *q, *next;
    ngx_rl_kept_refund_t  *kept;

    for (q = ngx_queue_head(refunds);
         q != ngx_queue_sentinel(refunds);
         q = next)
    {
        next = ngx_queue_next(q);
        kept = ngx_queue_data(q, ngx_rl_kept_refund_t, queue);

        if (lost) {
            ngx_rl_refund_lost(server, kept->refund.tokens);
        }

        ngx_rl_refund_kept--;
        ngx_free(kept);
    }

    ngx_queue_init(refunds);
}


static void
ngx_rl_refund_lost(ngx_rl_server_t *server, uint64_t tokens)
{
    ngx_rl_count(server->record->counters.refunds_lost);

    if (ngx_rl_refund_last) {
        ngx_rl_refunds_lost++;
        ngx_rl_tokens_lost += tokens;
    }
}


/* sends and reads as much as the time allows */

void
ngx_rl_refund_exit(void)
{
    uint64_t           end;
    ngx_queue_t       *q, *next;
    ngx_rl_server_t   *server;
    ngx_rl_refunds_t  *refunds;

    end = ngx_rl_clock_us() + NGX_RL_REFUND_EXIT * 1000;

    while (ngx_rl_refund_kept) {
        ngx_rl_refund_flush(&ngx_rl_refund_event);

        if (ngx_queue_empty(&ngx_rl_refund_commands)
            || ngx_rl_clock_us() >= end
            || ngx_rl_drain_turn(NGX_RL_REFUND_STALL) != NGX_OK)
        {
            break;
        }
    }

    for (q = ngx_queue_head(&ngx_rl_refund_commands);
         q != ngx_queue_sentinel(&ngx_rl_refund_commands);
         q = next)
    {
        next = ngx_queue_next(q);
        refunds = ngx_queue_data(q, ngx_rl_refunds_t, queue);

        ngx_rl_refunds_free(refunds, 1);
    }

    while (!ngx_queue_empty(&ngx_rl_refund_servers)) {
        q = ngx_queue_head(&ngx_rl_refund_servers);
        ngx_queue_remove(q);

        server = ngx_queue_data(q, ngx_rl_server_t, queue.refunding);
        server->queue.refunding.next = NULL;

        ngx_rl_refund_free(&server->queue.refunds, server, 1);
    }

    ngx_rl_event_end(&ngx_rl_refund_event);

    if (ngx_rl_refunds_lost) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "%ui refunds of %uL tokens were lost when this worker "
                      "exited", ngx_rl_refunds_lost, ngx_rl_tokens_lost);
    }
}
