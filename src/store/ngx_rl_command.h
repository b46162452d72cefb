
/*
 * A command is what goes over the wire to one server, with everything that
 * belongs to it.  There are two kinds: calls of requests, and refunds.
 */


#ifndef _NGX_RL_COMMAND_H_INCLUDED_
#define _NGX_RL_COMMAND_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "topology/ngx_rl_server.h"
#include "script/ngx_rl_eval.h"


typedef struct ngx_rl_entry_s    ngx_rl_entry_t;
typedef struct ngx_rl_command_s  ngx_rl_command_t;

typedef void (*ngx_rl_entry_pt)(ngx_rl_entry_t *entry,
    ngx_rl_failure_e failure);


/* a call's place in a command; embedded in the struct that makes the call */

struct ngx_rl_entry_s {

    /* set by the caller */

    ngx_rl_call_t      call;
    ngx_rl_entry_pt    handler;
    ngx_msec_t         start;
    ngx_msec_t         timeout;  /* after "start" */

    /* valid when the handler is called */

    uint64_t           sent;     /* us */
    uint64_t           ended;

    /* private to the command */

    ngx_rl_server_t   *server;
    ngx_queue_t        queue;    /* of the server */
    ngx_rl_command_t  *command;  /* NULL while it is in that queue, and the
                                    call may still change */
    ngx_uint_t         place;    /* in the command */
};


/* the differences between calls and refunds */

typedef struct {

    /* makes a command of what has waited longest; NULL: nothing to send */
    ngx_rl_command_t *(*next)(ngx_rl_server_t *server);

    /* as ngx_rl_eval_format(); a timeout of 0: too late to send it */
    void              (*format)(ngx_rl_command_t *command, ngx_rl_resp_t *resp);

    /* called when it is under way; may be NULL */
    void              (*sent)(ngx_rl_command_t *command);

    /* a reply other than an error; NULL: its content does not matter */
    ngx_rl_failure_e  (*reply)(ngx_rl_command_t *command,
                               ngx_rl_reply_t   *reply);

    /*
     * The command has ended: it could not be sent, or it was answered, or no
     * answer came, which the server knows already.  Both functions release the
     * command.
     */
    void              (*unsent)(ngx_rl_command_t *command,
                                ngx_rl_failure_e failure);
    void              (*done)(ngx_rl_command_t *command,
                              ngx_rl_failure_e failure);
} ngx_rl_command_kind_t;


/* embedded in the command struct of each kind */

struct ngx_rl_command_s {
    const ngx_rl_command_kind_t  *kind;
    ngx_rl_server_t              *server;
    ngx_rl_pending_t             *pending;      /* NULL: not under way */
    ngx_msec_t                    timeout;
    uint64_t                      sent;         /* us */
    unsigned                      with_text:1;  /* of the script */
};


void ngx_rl_command_init(ngx_cycle_t *cycle);
void ngx_rl_command_exit(void);

/* sends what waits for a server, as far as the kind allows it */
void ngx_rl_command_flush(ngx_rl_server_t *server,
    const ngx_rl_command_kind_t *kind);

/*
 * NGX_RL_OK: the handler will be called exactly once, within the timeout, and
 * not before this function has returned.  Otherwise it will not be called.  In
 * both cases the server has been told the result.
 */
ngx_rl_failure_e ngx_rl_entry_add(ngx_rl_server_t *server,
    ngx_rl_entry_t *entry);

/*
 * The handler will not be called, and the entry is not used any more.  If the
 * call has been sent, its tokens are taken nevertheless.
 */
void ngx_rl_entry_cancel(ngx_rl_entry_t *entry);

/* replaces an entry by its copy */
void ngx_rl_entry_move(ngx_rl_entry_t *entry, ngx_rl_entry_t *copy);


#endif /* _NGX_RL_COMMAND_H_INCLUDED_ */
