
/*
 * Calls wait in a queue for each server until the end of the event-loop turn.
 * As long as each further turn, which does not sleep, brings more calls, they
 * keep waiting.  Then all calls that one run of a script can serve leave as
 * one command.  The server has less work with it than with separate commands,
 * above all if calls share limits, and it wakes up once.  One reply has the
 * answers of all calls, in order.
 *
 * The caller owns an entry and may cancel or move it at any time.  A command
 * under way then has a gap in its place, and that part of the reply is
 * dropped.
 *
 * Commands are sent with the hash of their script.  A server that does not
 * know the script has not run it.  Only in this case is a command sent again,
 * with the text of the script.
 */


#include "store/ngx_rl_command.h"
#include "core/ngx_rl_clock.h"
#include "core/ngx_rl_core.h"


/* ms: turns of a busy worker are long */
#define NGX_RL_COMMAND_WAIT  5


/* a command of calls */

typedef struct {
    ngx_rl_command_t  command;
    ngx_queue_t       queue;  /* free ones */
    ngx_rl_entry_t   *entries[NGX_RL_EVAL_CALLS];
    ngx_rl_eval_t     eval;   /* in the same order */
    ngx_uint_t        live;   /* not cancelled */
} ngx_rl_calls_t;


static ngx_rl_failure_e ngx_rl_command_send(ngx_rl_command_t *command);
static ngx_int_t ngx_rl_command_reply(void *data,
    const ngx_rl_answer_t *answer);

static void ngx_rl_calls_flush(ngx_event_t *ev);
static ngx_rl_command_t *ngx_rl_calls_next(ngx_rl_server_t *server);
static void ngx_rl_calls_overload(ngx_rl_server_t *server);
static void ngx_rl_calls_stamp(ngx_rl_calls_t *calls);
static void ngx_rl_calls_format(ngx_rl_command_t *command, ngx_rl_resp_t *resp);
static void ngx_rl_calls_compact(ngx_rl_calls_t *calls);
static ngx_rl_failure_e ngx_rl_calls_reply(ngx_rl_command_t *command,
    ngx_rl_reply_t *reply);
static void ngx_rl_calls_unsent(ngx_rl_command_t *command,
    ngx_rl_failure_e failure);
static void ngx_rl_calls_done(ngx_rl_command_t *command,
    ngx_rl_failure_e failure);


static const ngx_rl_command_kind_t  ngx_rl_calls_kind = {
    ngx_rl_calls_next,
    ngx_rl_calls_format,
    NULL,
    ngx_rl_calls_reply,
    ngx_rl_calls_unsent,
    ngx_rl_calls_done
};


static ngx_pool_t     *ngx_rl_command_pool;
static ngx_queue_t     ngx_rl_calls_unused;

/* a command is written here, and copied by the connection */
static ngx_rl_resp_t   ngx_rl_command_resp;

/* ids of calls; each process has another prefix */
static uint64_t        ngx_rl_command_process;
static uint64_t        ngx_rl_command_ids;


void
ngx_rl_command_init(ngx_cycle_t *cycle)
{
    ngx_rl_command_pool = cycle->pool;
    ngx_queue_init(&ngx_rl_calls_unused);

    ngx_rl_command_process =
        ((uint64_t) ngx_random() << 40)
        ^ ((uint64_t) ngx_random() << 20)
        ^ ngx_murmur_hash2(cycle->hostname.data, cycle->hostname.len)
        ^ ((uint64_t) ngx_pid << 32);
}


void
ngx_rl_command_exit(void)
{
    ngx_rl_resp_close(&ngx_rl_command_resp);
}


void
ngx_rl_command_flush(ngx_rl_server_t *server, const ngx_rl_command_kind_t *kind)
{
    ngx_rl_command_t  *command;
    ngx_rl_failure_e   failure;

    for ( ;; ) {
        command = kind->next(server);

        if (command == NULL) {
            return;
        }

        command->kind = kind;
        command->server = server;
        command->pending = NULL;
        command->with_text = 0;

        failure = ngx_rl_command_send(command);

        if (failure != NGX_RL_OK) {
            kind->unsent(command, failure);
        }
    }
}


static ngx_rl_failure_e
ngx_rl_command_send(ngx_rl_command_t *command)
{
    char             *bytes;
    ssize_t           len;
    ngx_str_t         text;
    ngx_rl_failure_e  failure;

    command->sent = ngx_rl_clock_us();

    command->kind->format(command, &ngx_rl_command_resp);

    len = ngx_rl_resp_end(&ngx_rl_command_resp, &bytes);

    if (len < 0) {
        return NGX_RL_OVERLOAD;
    }

    if (command->timeout == 0) {
        return NGX_RL_TIMEOUT;
    }

    text.data = (u_char *) bytes;
    text.len = len;

    failure = ngx_rl_server_send(command->server, &text, command->timeout,
                                 ngx_rl_command_reply, command,
                                 &command->pending);

    if (failure == NGX_RL_OK && command->kind->sent) {
        command->kind->sent(command);
    }

    return failure;
}


static ngx_int_t
ngx_rl_command_reply(void *data, const ngx_rl_answer_t *answer)
{
    ngx_rl_command_t  *command = data;

    ngx_rl_reply_t   *reply;
    ngx_rl_answer_t   failed;
    ngx_rl_failure_e  failure;

    command->pending = NULL;
    failure = answer->failure;

    if (failure == NGX_RL_OK) {
        reply = answer->reply;

        if (reply->type == REDIS_REPLY_ERROR) {
            failure = ngx_rl_failure(reply->str, reply->len);

        } else if (command->kind->reply) {
            failure = command->kind->reply(command, reply);
        }
    }

    if (failure == NGX_RL_NOSCRIPT && !command->with_text) {
        ngx_rl_count(command->server->record->counters.script_reloads);

        failure = ngx_rl_server_check(command->server);

        if (failure == NGX_RL_OK) {
            command->with_text = 1;
            failure = ngx_rl_command_send(command);
        }

        if (failure != NGX_RL_OK) {
            command->kind->unsent(command, failure);
        }

        return NGX_OK;
    }

    if (failure != NGX_RL_OK) {
        failed = *answer;
        failed.failure = failure;

        ngx_rl_server_failed(command->server, &failed);
    }

    command->kind->done(command, failure);

    return (failure == NGX_RL_PROTOCOL) ? NGX_ERROR : NGX_OK;
}


ngx_rl_failure_e
ngx_rl_entry_add(ngx_rl_server_t *server, ngx_rl_entry_t *entry)
{
    ngx_rl_failure_e  failure;

    failure = ngx_rl_server_check(server);

    if (failure != NGX_RL_OK) {
        ngx_rl_server_unsent(server, failure);
        return failure;
    }

    entry->server = server;
    entry->command = NULL;

    server->queue.grew = 1;
    server->queue.flush.handler = ngx_rl_calls_flush;

    ngx_queue_insert_tail(&server->queue.entries, &entry->queue);
    ngx_post_event(&server->queue.flush, &ngx_posted_events);

    return NGX_RL_OK;
}


void
ngx_rl_entry_cancel(ngx_rl_entry_t *entry)
{
    ngx_rl_calls_t  *calls;

    if (entry->command == NULL) {
        ngx_queue_remove(&entry->queue);
        return;
    }

    calls = (ngx_rl_calls_t *) entry->command;

    calls->entries[entry->place] = NULL;
    calls->eval.calls[entry->place] = NULL;
    calls->live--;

    if (calls->live == 0 && calls->command.pending) {

        /*
         * Nobody waits for the reply, and the command may not have been sent
         * yet.
         */

        ngx_rl_pending_cancel(calls->command.pending);
        ngx_queue_insert_head(&ngx_rl_calls_unused, &calls->queue);
    }
}


void
ngx_rl_entry_move(ngx_rl_entry_t *entry, ngx_rl_entry_t *copy)
{
    ngx_rl_calls_t  *calls;

    if (entry->command == NULL) {
        ngx_queue_insert_after(&entry->queue, &copy->queue);
        ngx_queue_remove(&entry->queue);
        return;
    }

    calls = (ngx_rl_calls_t *) entry->command;

    calls->entries[entry->place] = copy;
    calls->eval.calls[entry->place] = &copy->call;
}


static void
ngx_rl_calls_flush(ngx_event_t *ev)
{
    ngx_rl_server_t  *server;

    server = ev->data;

    if (server->queue.grew && !ev->timedout) {
        server->queue.grew = 0;

        if (!ev->timer_set) {
            ngx_add_timer(ev, NGX_RL_COMMAND_WAIT);
        }

        ngx_post_event(ev, &ngx_posted_next_events);
        return;
    }

    ngx_rl_event_end(ev);

    ev->timedout = 0;

    ngx_rl_command_flush(server, &ngx_rl_calls_kind);
}


/* takes the oldest entry, and all entries that fit into its command */

static ngx_rl_command_t *
ngx_rl_calls_next(ngx_rl_server_t *server)
{
    ngx_uint_t       most;
    ngx_msec_t       timeout;
    ngx_queue_t     *q, *next;
    ngx_rl_calls_t  *calls;
    ngx_rl_entry_t  *entry;

    if (ngx_queue_empty(&server->queue.entries)) {
        return NULL;
    }

    if (!ngx_queue_empty(&ngx_rl_calls_unused)) {
        q = ngx_queue_head(&ngx_rl_calls_unused);
        ngx_queue_remove(q);
        calls = ngx_queue_data(q, ngx_rl_calls_t, queue);

    } else {
        calls = ngx_palloc(ngx_rl_command_pool, sizeof(ngx_rl_calls_t));
    }

    if (calls == NULL) {
        ngx_rl_calls_overload(server);
        return NULL;
    }

    calls->live = 0;
    calls->eval.n = 0;

    /* in a cluster, all keys of a command must be in one slot */

    most = server->conf->redis.node ? 1 : NGX_RL_EVAL_CALLS;
    timeout = 0;

    for (q = ngx_queue_head(&server->queue.entries);
         q != ngx_queue_sentinel(&server->queue.entries) && calls->live < most;
         q = next)
    {
        next = ngx_queue_next(q);
        entry = ngx_queue_data(q, ngx_rl_entry_t, queue);

        if ((calls->live && entry->timeout != timeout)
            || !ngx_rl_eval_add(&calls->eval, &entry->call))
        {
            continue;
        }

        ngx_queue_remove(q);

        timeout = entry->timeout;

        entry->command = &calls->command;
        entry->place = calls->live;
        calls->entries[calls->live++] = entry;
    }

    ngx_rl_calls_stamp(calls);

    return &calls->command;
}


static void
ngx_rl_calls_overload(ngx_rl_server_t *server)
{
    ngx_queue_t     *q;
    ngx_rl_entry_t  *entry;

    while (!ngx_queue_empty(&server->queue.entries)) {
        q = ngx_queue_head(&server->queue.entries);
        ngx_queue_remove(q);

        entry = ngx_queue_data(q, ngx_rl_entry_t, queue);

        ngx_rl_server_unsent(server, NGX_RL_OVERLOAD);

        entry->ended = ngx_rl_clock_us();
        entry->handler(entry, NGX_RL_OVERLOAD);
    }
}


/* the time, and an id that no other command has, if the script needs them */

static void
ngx_rl_calls_stamp(ngx_rl_calls_t *calls)
{
    size_t          len;
    u_char          id[NGX_RL_CALL_ID];
    uint64_t        now;
    ngx_uint_t      i;
    ngx_rl_call_t  *call;

    now = ngx_rl_clock_wall_us();
    len = 0;

    if (!ngx_rl_call_short(calls->eval.calls[0])) {
        len = ngx_sprintf(id, "%xL-%xL", ngx_rl_command_process,
                          ngx_rl_command_ids++)
              - id;
    }

    for (i = 0; i < calls->eval.n; i++) {
        call = calls->eval.calls[i];

        call->now = now;
        call->id_len = len;
        ngx_memcpy(call->id, id, len);
    }
}


/*
 * The timeout is the shortest time that is left to any of the calls.  Calls
 * wait here for a few milliseconds only.  If most of their time is over, the
 * worker itself was held up.  The server has not been asked yet, so it gets
 * some time nevertheless.
 */

static void
ngx_rl_calls_format(ngx_rl_command_t *command, ngx_rl_resp_t *resp)
{
    ngx_uint_t       i;
    ngx_msec_t       spent;
    ngx_rl_calls_t  *calls;
    ngx_rl_entry_t  *entry;

    calls = (ngx_rl_calls_t *) command;

    if (command->with_text) {
        ngx_rl_calls_compact(calls);
    }

    command->timeout = NGX_MAX_INT32_VALUE;

    for (i = 0; i < calls->eval.n; i++) {
        entry = calls->entries[i];
        entry->sent = command->sent;

        spent = ngx_current_msec - entry->start;

        if (!command->with_text) {
            spent = ngx_min(spent, entry->timeout * 3 / 4);
        }

        spent = ngx_min(spent, entry->timeout);
        command->timeout = ngx_min(command->timeout, entry->timeout - spent);
    }

    ngx_rl_eval_format(&calls->eval, resp, command->with_text);
}


/* leaves out the cancelled ones */

static void
ngx_rl_calls_compact(ngx_rl_calls_t *calls)
{
    ngx_uint_t       i, n;
    ngx_rl_entry_t  *entry;

    n = calls->eval.n;

    calls->live = 0;
    calls->eval.n = 0;

    for (i = 0; i < n; i++) {
        entry = calls->entries[i];

        if (entry == NULL) {
            continue;
        }

        /* calls that shared a command share the next one, too */

        (void) ngx_rl_eval_add(&calls->eval, &entry->call);

        entry->place = calls->live;
        calls->entries[calls->live++] = entry;
    }
}


static ngx_rl_failure_e
ngx_rl_calls_reply(ngx_rl_command_t *command, ngx_rl_reply_t *reply)
{
    return ngx_rl_eval_reply(reply, &((ngx_rl_calls_t *) command)->eval);
}


static void
ngx_rl_calls_unsent(ngx_rl_command_t *command, ngx_rl_failure_e failure)
{
    ngx_rl_server_unsent(command->server, failure);
    ngx_rl_calls_done(command, failure);
}


static void
ngx_rl_calls_done(ngx_rl_command_t *command, ngx_rl_failure_e failure)
{
    uint64_t          now;
    ngx_uint_t        i;
    ngx_rl_calls_t   *calls;
    ngx_rl_entry_t   *entry;
    ngx_rl_answer_t   failed;
    ngx_rl_failure_e  own;

    calls = (ngx_rl_calls_t *) command;

    now = ngx_rl_clock_us();
    failed.counted = 0;

    if (failure == NGX_RL_OK) {
        ngx_rl_server_answered(command->server, now - command->sent);
    }

    for (i = 0; i < calls->eval.n; i++) {

        entry = calls->entries[i];

        if (entry == NULL) {
            continue;
        }

        own = failure;

        if (failure == NGX_RL_OK && entry->call.failure != NGX_RL_OK) {
            own = entry->call.failure;

            failed.reply = entry->call.error;
            failed.failure = own;

            ngx_rl_server_failed(command->server, &failed);

            failed.counted = 1;
        }

        calls->entries[i] = NULL;

        entry->ended = now;
        entry->handler(entry, own);
    }

    ngx_queue_insert_head(&ngx_rl_calls_unused, &calls->queue);
}
