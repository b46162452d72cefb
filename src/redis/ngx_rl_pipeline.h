
/*
 * What a connection carries: commands in the order in which they are sent, and
 * the bytes to read and write.  A pipeline reads and writes, but never closes:
 * its connection does.
 */


#ifndef _NGX_RL_PIPELINE_H_INCLUDED_
#define _NGX_RL_PIPELINE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <poll.h>

#include "redis/ngx_rl_redis.h"


/* ms: a timer that fires later than this shows that the worker was held up */
#define NGX_RL_PIPELINE_HELD   2

/* ms: a reply that is overdue for so long shows that the server is stuck */
#define NGX_RL_PIPELINE_STALL  500

/*
 * How late a timer fires, in ms.  The key of the timer does not say it: nginx
 * sets the key to 0 if no other timer was set.
 */
#define ngx_rl_pipeline_late(deadline)                                        \
    ((ngx_msec_t) (ngx_current_msec - (deadline)))


typedef struct {
    ngx_connection_t       *c;        /* NULL: there is none */
    const ngx_rl_events_t  *events;
    void                   *owner;
    ngx_log_t              *log;
    ngx_rl_traffic_t       *traffic;
    ngx_rl_gauges_t        *gauges;

    ngx_queue_t             queue;    /* of all */
    ngx_queue_t             waiting;  /* pendings not sent yet */
    ngx_queue_t             sent;     /* pendings, oldest first */
    ngx_uint_t              n;        /* of both, and of those parked */

    ngx_rl_reader_t        *reader;   /* while there is a socket */
    u_char                 *out;
    u_char                 *pos;
    u_char                 *last;
    u_char                 *end;

    /* the connection sets their handlers */

    ngx_event_t             stall;    /* a timer: a reply is overdue */
    ngx_event_t            *drained;  /* posted when n becomes 0; NULL unless
                                         the connection has retired */

    unsigned                ready:1;  /* commands are sent at once */
    unsigned                alert:1;  /* what was read last begins like an alert
                                         of TLS */
} ngx_rl_pipeline_t;


struct ngx_rl_pending_s {
    ngx_queue_t         queue;
    ngx_rl_pipeline_t  *pipeline;
    ngx_socket_t        ident;     /* see ngx_rl_event_init() */

    ngx_rl_pending_pt   handler;   /* NULL: an orphan */
    void               *data;
    ngx_event_t         timer;
    ngx_msec_t          deadline;  /* of the timer, unless it got more time */
    ngx_msec_t          expired;   /* when it was orphaned */
    ngx_str_t           command;   /* malloc()ed; kept when sent if it may be
                                      redirected */
    ngx_uint_t          hops;      /* to other servers */
    unsigned            sent:1;
    unsigned            asking:1;  /* needs an ASKING */
    unsigned            parked:1;  /* refused; tried again */
    unsigned            large:1;   /* its reply may be as large as the map of a
                                      cluster */
    unsigned            due:1;     /* its time is over */
    unsigned            grace:1;   /* and it got some more */
};


#define ngx_rl_pending_first(q)                                               \
    (ngx_queue_data(ngx_queue_head(q), ngx_rl_pending_t, queue))


/* of all connections of this process */
extern ngx_queue_t  ngx_rl_pipelines;


/* for callers that have sent a command */

/* nobody waits for the reply: it does not delay the exit of the process */
#define ngx_rl_pending_background(pending)                                    \
    (pending)->timer.cancelable = 1

/* the handler will not be called; a command that was sent may still run */
void ngx_rl_pending_cancel(ngx_rl_pending_t *pending);

/* the handler gets every reply, even a redirect */
void ngx_rl_pending_no_redirect(ngx_rl_pending_t *pending);

/*
 * For the owner's redirect(): parks the command until it is sent again, see
 * ngx_rl_pending_again(), or until its time is over.
 */
void ngx_rl_pending_park(ngx_rl_pending_t *pending, ngx_queue_t *queue);


/* for the connection */

/* the pipeline is ready; NGX_ERROR: no memory, or too much output */
ngx_int_t ngx_rl_pipeline_send_waiting(ngx_rl_pipeline_t *pipeline);

/*
 * Sends a command, or keeps it until the pipeline is ready.  Returns NULL if
 * there is no memory or too much output.
 */
ngx_rl_pending_t *ngx_rl_pipeline_send(ngx_rl_pipeline_t *pipeline,
    ngx_str_t *command, ngx_msec_t timeout, ngx_rl_pending_pt handler,
    void *data);

/* adds bytes to the output buffer, without a pending; NGX_ERROR as above */
ngx_int_t ngx_rl_pipeline_append(ngx_rl_pipeline_t *pipeline,
    ngx_str_t *command);

/* writes what the socket accepts; NGX_ERROR: the connection is lost */
ngx_int_t ngx_rl_pipeline_write(ngx_rl_pipeline_t *pipeline);

/*
 * Reads a reply.  "large" allows a large one if no pending expects it.
 * NGX_OK: the next reply, valid until the next call; NGX_AGAIN: none yet;
 * NGX_DONE: the connection is lost, *err is set; NGX_ERROR: the bytes are not
 * a reply, or it is too large.
 */
ngx_int_t ngx_rl_pipeline_read(ngx_rl_pipeline_t *pipeline,
    ngx_uint_t large, ngx_rl_reply_t **reply, ngx_err_t *err);

/*
 * Delivers a reply to the oldest pending.  NGX_DECLINED: there is none;
 * NGX_ERROR: the command cannot have this reply.
 */
ngx_int_t ngx_rl_pipeline_deliver(ngx_rl_pipeline_t *pipeline,
    ngx_rl_reply_t *reply);

/* sets the events to watch the socket for */
void ngx_rl_pipeline_poll(ngx_rl_pipeline_t *pipeline, struct pollfd *pfd);

/*
 * Handles events of the socket that nginx has not reported yet.  This
 * connection, or another one, may be closed afterwards.
 */
void ngx_rl_pipeline_look(ngx_rl_pipeline_t *pipeline);

/* detaches the pendings that have been sent, or also those that wait */
void ngx_rl_pipeline_detach(ngx_rl_pipeline_t *pipeline,
    ngx_queue_t *pendings, ngx_uint_t waiting);

/*
 * Fails detached pendings; NGX_RL_OK: the process exits, no handler is called.
 */
void ngx_rl_pipeline_fail(ngx_queue_t *pendings, ngx_rl_failure_e failure);

/*
 * Moves a pending that is in no queue to another pipeline, after an ASKING if
 * "asking" is set.  NGX_ERROR: as in send, and the pending is unchanged.
 */
ngx_int_t ngx_rl_pipeline_take(ngx_rl_pipeline_t *pipeline,
    ngx_rl_pending_t *pending, ngx_uint_t asking);

/* moves all waiting pendings, which wait there until it is ready */
void ngx_rl_pipeline_take_waiting(ngx_rl_pipeline_t *pipeline,
    ngx_rl_pipeline_t *from);

/* ends a pending that is in no queue, and calls its handler */
void ngx_rl_pending_fail(ngx_rl_pending_t *pending, ngx_rl_failure_e failure);

/* at process exit: frees all pendings */
void ngx_rl_pipeline_done(void);


#endif /* _NGX_RL_PIPELINE_H_INCLUDED_ */
