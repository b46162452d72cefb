
/*
 * Calls wait for the end of the event-loop turn in which they are made, in a
 * list for each server, and on for as long as each further turn, which does not
 * sleep, brings more of them.  Then those that can be made by one call of a
 * script go as one command: the server has less to do for it than for so many
 * commands, above all if some of their limits are the same, and it is woken up
 * once.  One reply has the answers of all of them, in order.
 *
 * A call belongs to who makes it, and may be cancelled or moved at any time: a
 * batch under way then has a gap in its place, and drops that part of the
 * reply.
 */


#include "store/ngx_rl_command.h"
#include "core/ngx_rl_clock.h"


/* ms: in a worker that has much to do, turns are long */
#define NGX_RL_COMMAND_WAIT  5


/* a command under way */

struct ngx_rl_command_s {
    ngx_queue_t        queue;   /* free ones */
    ngx_rl_server_t   *server;
    ngx_rl_pending_t  *pending;
    ngx_rl_entry_t    *entries[NGX_RL_EVAL_CALLS];
    ngx_rl_eval_t      bundle;  /* of the same order */
    ngx_uint_t         live;    /* not cancelled */
    uint64_t           sent;    /* us */
    unsigned           with_text:1;
};


static void ngx_rl_command_flush(ngx_event_t *ev);
static ngx_rl_command_t *ngx_rl_command_create(ngx_rl_server_t *server);
static void ngx_rl_command_stamp(ngx_rl_command_t *command);
static ngx_rl_failure_e ngx_rl_command_send(ngx_rl_command_t *command);
static ngx_int_t ngx_rl_command_reply(void *data,
    ngx_rl_reply_t *reply, ngx_rl_failure_e failure);
static ngx_rl_failure_e ngx_rl_command_again(ngx_rl_command_t *command);
static void ngx_rl_command_done(ngx_rl_command_t *command,
    ngx_rl_failure_e failure);
static void ngx_rl_command_free(ngx_rl_command_t *command);


static ngx_pool_t   *ngx_rl_command_pool;
static ngx_queue_t   ngx_rl_commands_free;

/* ids of calls: those of other processes begin with something else */
static uint64_t      ngx_rl_command_process;
static uint64_t      ngx_rl_command_calls;


void
ngx_rl_command_init(ngx_cycle_t *cycle)
{
    ngx_rl_command_pool = cycle->pool;
    ngx_queue_init(&ngx_rl_commands_free);

    ngx_rl_command_process =
        ((uint64_t) ngx_random() << 40)
        ^ ((uint64_t) ngx_random() << 20)
        ^ ngx_murmur_hash2(cycle->hostname.data, cycle->hostname.len)
        ^ ((uint64_t) ngx_pid << 32);
}


ngx_rl_failure_e
ngx_rl_command_add(ngx_rl_server_t *server, ngx_rl_entry_t *entry)
{
    ngx_rl_failure_e  failure;

    failure = ngx_rl_server_check(server);

    if (failure != NGX_RL_OK) {
        ngx_rl_server_unsent(server, failure);
        return failure;
    }

    entry->server = server;
    entry->gone = 0;

    server->queue.grew = 1;
    server->queue.flush.handler = ngx_rl_command_flush;

    ngx_queue_insert_tail(&server->queue.entries, &entry->queue);
    ngx_post_event(&server->queue.flush, &ngx_posted_events);

    return NGX_RL_OK;
}


void
ngx_rl_command_grew(ngx_rl_entry_t *entry)
{
    entry->server->queue.grew = 1;
}


void
ngx_rl_command_cancel(ngx_rl_entry_t *entry)
{
    ngx_rl_command_t  *command;

    if (!entry->gone) {
        ngx_queue_remove(&entry->queue);
        return;
    }

    command = entry->batch;

    command->entries[entry->place] = NULL;
    command->bundle.scripts[entry->place] = NULL;

    if (--command->live == 0) {

        /* nobody waits for the reply, and it may not have been sent yet */

        ngx_rl_pending_cancel(command->pending);
        ngx_rl_command_free(command);
    }
}


void
ngx_rl_command_move(ngx_rl_entry_t *entry, ngx_rl_entry_t *copy)
{
    if (!entry->gone) {
        ngx_queue_insert_after(&entry->queue, &copy->queue);
        ngx_queue_remove(&entry->queue);
        return;
    }

    entry->batch->entries[entry->place] = copy;
    entry->batch->bundle.scripts[entry->place] = &copy->script;
}


static void
ngx_rl_command_flush(ngx_event_t *ev)
{
    ngx_queue_t       *q;
    ngx_rl_entry_t    *entry;
    ngx_rl_server_t   *server;
    ngx_rl_command_t  *command;
    ngx_rl_failure_e   failure;

    server = ev->data;

    if (server->queue.grew && !ev->timedout) {
        server->queue.grew = 0;

        if (!ev->timer_set) {
            ngx_add_timer(ev, NGX_RL_COMMAND_WAIT);
        }

        ngx_post_event(ev, &ngx_posted_next_events);
        return;
    }

    if (ev->timer_set) {
        ngx_del_timer(ev);
    }

    if (ev->posted) {
        ngx_delete_posted_event(ev);
    }

    ev->timedout = 0;

    while (!ngx_queue_empty(&server->queue.entries)) {

        command = ngx_rl_command_create(server);

        if (command == NULL) {
            q = ngx_queue_head(&server->queue.entries);
            ngx_queue_remove(q);

            entry = ngx_queue_data(q, ngx_rl_entry_t, queue);

            ngx_rl_server_unsent(server, NGX_RL_OVERLOAD);

            entry->ended = ngx_rl_clock_us();
            entry->handler(entry, NGX_RL_OVERLOAD);
            continue;
        }

        ngx_rl_command_stamp(command);

        failure = ngx_rl_command_send(command);

        if (failure != NGX_RL_OK) {
            ngx_rl_server_unsent(server, failure);
            ngx_rl_command_done(command, failure);
        }
    }
}


/* the oldest errand, and all that can go with it */

static ngx_rl_command_t *
ngx_rl_command_create(ngx_rl_server_t *server)
{
    ngx_uint_t         most;
    ngx_msec_t         timeout;
    ngx_queue_t       *q, *next;
    ngx_rl_entry_t    *entry;
    ngx_rl_command_t  *command;

    if (!ngx_queue_empty(&ngx_rl_commands_free)) {
        q = ngx_queue_head(&ngx_rl_commands_free);
        ngx_queue_remove(q);
        command = ngx_queue_data(q, ngx_rl_command_t, queue);

    } else {
        command = ngx_palloc(ngx_rl_command_pool, sizeof(ngx_rl_command_t));
        if (command == NULL) {
            return NULL;
        }
    }

    command->server = server;
    command->with_text = 0;
    command->live = 0;
    command->bundle.n = 0;

    /* keys of one command to a cluster have to be of one slot */

    most = server->conf->node ? 1 : NGX_RL_EVAL_CALLS;

    timeout = 0;

    for (q = ngx_queue_head(&server->queue.entries);
         q != ngx_queue_sentinel(&server->queue.entries)
         && command->live < most;
         q = next)
    {
        next = ngx_queue_next(q);
        entry = ngx_queue_data(q, ngx_rl_entry_t, queue);

        if ((command->live && entry->timeout != timeout)
            || !ngx_rl_eval_add(&command->bundle, &entry->script))
        {
            continue;
        }

        ngx_queue_remove(q);

        timeout = entry->timeout;

        entry->gone = 1;
        entry->batch = command;
        entry->place = command->live;
        command->entries[command->live++] = entry;
    }

    return command;
}


/* the time, and an id that no other command has, if the script asks for one */

static void
ngx_rl_command_stamp(ngx_rl_command_t *command)
{
    size_t          len;
    u_char          id[NGX_RL_CALL_ID];
    uint64_t        now;
    ngx_uint_t      i;
    ngx_rl_call_t  *call;

    now = ngx_rl_clock_wall_us();
    len = 0;

    if (!ngx_rl_call_short(command->bundle.scripts[0])) {
        len = ngx_sprintf(id, "%xL-%xL", ngx_rl_command_process,
                          ngx_rl_command_calls++)
              - id;
    }

    for (i = 0; i < command->bundle.n; i++) {
        call = command->bundle.scripts[i];

        call->now = now;
        call->id_len = len;
        ngx_memcpy(call->id, id, len);
    }
}


/*
 * In the time that the one with the least has left.  Calls wait here for a few
 * milliseconds: if most of their time is over, the worker was held up, and the
 * server, which has not been asked yet, gets some all the same.
 */

static ngx_rl_failure_e
ngx_rl_command_send(ngx_rl_command_t *batch)
{
    char             *bytes;
    long long         len;
    ngx_str_t         command;
    ngx_uint_t        i;
    ngx_msec_t        spent, left;
    ngx_rl_entry_t   *entry;
    ngx_rl_failure_e  failure;

    left = NGX_MAX_INT32_VALUE;
    batch->sent = ngx_rl_clock_us();

    for (i = 0; i < batch->bundle.n; i++) {
        entry = batch->entries[i];
        entry->sent = batch->sent;

        spent = ngx_current_msec - entry->start;

        if (!batch->with_text) {
            spent = ngx_min(spent, entry->timeout * 3 / 4);
        }

        spent = ngx_min(spent, entry->timeout);
        left = ngx_min(left, entry->timeout - spent);
    }

    if (left == 0) {
        return NGX_RL_TIMEOUT;
    }

    len = ngx_rl_eval_format(&bytes, &batch->bundle, batch->with_text);
    if (len < 0) {
        return NGX_RL_OVERLOAD;
    }

    command.data = (u_char *) bytes;
    command.len = len;

    failure = ngx_rl_server_send(batch->server, &command, left,
                                 ngx_rl_command_reply, batch, &batch->pending);
    ngx_rl_resp_free(bytes);

    return failure;
}


static ngx_int_t
ngx_rl_command_reply(void *data, ngx_rl_reply_t *reply,
    ngx_rl_failure_e failure)
{
    ngx_rl_command_t  *command = data;

    if (failure == NGX_RL_OK) {
        failure = ngx_rl_eval_reply(reply, &command->bundle);
    }

    /* only a call that did not run is made again, once, with the text */

    if (failure == NGX_RL_NOSCRIPT && !command->with_text) {
        ngx_rl_server_reload(command->server);

        failure = ngx_rl_command_again(command);

        if (failure == NGX_RL_OK) {
            return NGX_OK;
        }
    }

    if (failure == NGX_RL_OK) {
        ngx_rl_server_answered(command->server,
                               ngx_rl_clock_us() - command->sent);

    } else {
        ngx_rl_server_failed(command->server, failure, reply, 1);
    }

    ngx_rl_command_done(command, failure);

    return (failure == NGX_RL_PROTOCOL) ? NGX_ERROR : NGX_OK;
}


/* for those who still wait for it */

static ngx_rl_failure_e
ngx_rl_command_again(ngx_rl_command_t *command)
{
    ngx_uint_t        i, n;
    ngx_rl_entry_t   *entry;
    ngx_rl_failure_e  failure;

    failure = ngx_rl_server_check(command->server);

    if (failure != NGX_RL_OK) {
        return failure;
    }

    n = command->bundle.n;

    command->with_text = 1;
    command->live = 0;
    command->bundle.n = 0;

    for (i = 0; i < n; i++) {
        entry = command->entries[i];

        if (entry == NULL) {
            continue;
        }

        /* what went together before does so again */

        (void) ngx_rl_eval_add(&command->bundle, &entry->script);

        entry->place = command->live;
        command->entries[command->live++] = entry;
    }

    return ngx_rl_command_send(command);
}


static void
ngx_rl_command_done(ngx_rl_command_t *command, ngx_rl_failure_e failure)
{
    uint64_t          now;
    ngx_uint_t        i, counts;
    ngx_rl_entry_t   *entry;
    ngx_rl_failure_e  own;

    now = ngx_rl_clock_us();
    counts = 1;

    /* whoever is cancelled from here on finds no slot to cancel */

    command->live = command->bundle.n + 1;

    for (i = 0; i < command->bundle.n; i++) {

        entry = command->entries[i];

        if (entry == NULL) {
            continue;
        }

        own = failure;

        if (failure == NGX_RL_OK && entry->script.failure != NGX_RL_OK) {
            own = entry->script.failure;
            ngx_rl_server_failed(command->server, own,
                                 entry->script.error, counts);
            counts = 0;
        }

        command->entries[i] = NULL;

        entry->ended = now;
        entry->handler(entry, own);
    }

    ngx_rl_command_free(command);
}


static void
ngx_rl_command_free(ngx_rl_command_t *command)
{
    ngx_queue_insert_head(&ngx_rl_commands_free, &command->queue);
}
