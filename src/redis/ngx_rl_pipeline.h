
/*
 * What travels on a connection: commands, in their slots, and their replies.
 * This is for the connection and its greeting.  What all others may do with
 * commands is declared in ngx_rl_redis.h.
 */


#ifndef _NGX_RL_PIPELINE_H_INCLUDED_
#define _NGX_RL_PIPELINE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "redis/ngx_rl_connection.h"


/*
 * Sends the slot's command, or keeps it until there is a connection.
 * NGX_ERROR: no memory, or too much to write; the slot is in no queue
 */
ngx_int_t ngx_rl_pipeline_queue(ngx_rl_connection_t *connection,
    ngx_rl_pending_t *pending, ngx_str_t *command);

/* bytes for the output buffer; they are written when "flush" is posted */
ngx_int_t ngx_rl_pipeline_append(ngx_rl_connection_t *connection,
    ngx_str_t *command);

/* for the "flush" of a connection, and for the events of its socket */
void ngx_rl_pipeline_flush_handler(ngx_event_t *ev);
void ngx_rl_pipeline_write_handler(ngx_event_t *wev);
void ngx_rl_pipeline_read_handler(ngx_event_t *rev);

/*
 * Handles what has happened to the socket and is not known yet.  The connection
 * may be closed, or another one, then.
 */
void ngx_rl_pipeline_look(ngx_rl_connection_t *connection);

/* the slot counts for another connection now */
void ngx_rl_pipeline_give(ngx_rl_pending_t *pending,
    ngx_rl_connection_t *connection);

/* calls of a connection that was lost; they are on no list of it any more */
void ngx_rl_pipeline_fail(ngx_queue_t *failed, ngx_rl_failure_e failure);

/* for one that is in no queue any more; its handler is not called */
void ngx_rl_pipeline_free(ngx_rl_pending_t *pending);

/* for the end of the process: the memory of all slots */
void ngx_rl_pipeline_done(void);


#endif /* _NGX_RL_PIPELINE_H_INCLUDED_ */
