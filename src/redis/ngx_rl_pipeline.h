
/*
 * What a connection carries: commands in the order in which they are sent, and
 * what is to be read and written.  A pipeline reads and writes, and never
 * closes: its connection does.
 */


#ifndef _NGX_RL_PIPELINE_H_INCLUDED_
#define _NGX_RL_PIPELINE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <poll.h>

#include "redis/ngx_rl_redis.h"


/* ms: a timer that is later than that says that the worker was held up */
#define NGX_RL_PIPELINE_HELD   2

/* ms: a reply that is overdue for so long says that the server is stuck */
#define NGX_RL_PIPELINE_STALL  500

#define ngx_rl_pipeline_late(ev)                                              \
    ((ngx_msec_t) (ngx_current_msec - (ev)->timer.key))


typedef struct {
    ngx_connection_t       *c;        /* NULL: there is none */
    const ngx_rl_events_t  *events;
    void                   *owner;
    ngx_log_t              *log;
    ngx_rl_traffic_t       *traffic;
    ngx_rl_gauges_t        *gauges;

    ngx_queue_t             queue;    /* of all */
    ngx_queue_t             waiting;  /* pendings that are not sent */
    ngx_queue_t             sent;     /* pendings, oldest first */
    ngx_uint_t              n;        /* of both, and of those parked */

    ngx_rl_reader_t        *reader;   /* while there is a socket */
    u_char                 *out;
    u_char                 *pos;
    u_char                 *last;
    u_char                 *end;

    /* the handlers of these are the connection's */

    ngx_event_t             stall;    /* a timer: a reply is overdue */
    ngx_event_t            *drained;  /* posted when n becomes 0; NULL unless
                                         the connection has retired */

    unsigned                ready:1;  /* commands go out at once */
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
    ngx_msec_t          expired;   /* when it was orphaned */
    ngx_str_t           command;   /* malloc()ed; kept when sent if it may be
                                      redirected */
    ngx_uint_t          hops;      /* to other servers */
    unsigned            sent:1;
    unsigned            asking:1;  /* needs an ASKING */
    unsigned            parked:1;  /* refused, to be tried again */
    unsigned            large:1;   /* its reply may be as large as the map of a
                                      cluster */
    unsigned            due:1;     /* its time is over */
    unsigned            grace:1;   /* and it got some more */
};


#define ngx_rl_pending_first(q)                                               \
    (ngx_queue_data(ngx_queue_head(q), ngx_rl_pending_t, queue))


/* of all connections of this process */
extern ngx_queue_t  ngx_rl_pipelines;


/* for those who have sent a command */

/* nobody waits for the reply: it does not hold up the end of the process */
#define ngx_rl_pending_background(pending)                                    \
    (pending)->timer.cancelable = 1

/* the handler will not be called; a command that was sent may still run */
void ngx_rl_pending_cancel(ngx_rl_pending_t *pending);

/* its reply is for the handler, whatever it is: it is not redirected */
void ngx_rl_pending_no_redirect(ngx_rl_pending_t *pending);

/*
 * For the owner's redirect(): the command waits there, until it is sent again,
 * see ngx_rl_pending_again(), or its time is over
 */
void ngx_rl_pending_park(ngx_rl_pending_t *pending, ngx_queue_t *queue);


/* for the connection */

/* the pipeline is ready; NGX_ERROR: no memory, or too much to write */
ngx_int_t ngx_rl_pipeline_send_waiting(ngx_rl_pipeline_t *pipeline);

/*
 * Sends a command, or keeps it until the pipeline is ready.  NULL: no memory,
 * or too much to write
 */
ngx_rl_pending_t *ngx_rl_pipeline_send(ngx_rl_pipeline_t *pipeline,
    ngx_str_t *command, ngx_msec_t timeout, ngx_rl_pending_pt handler,
    void *data);

/* bytes for the output buffer, without a pending; NGX_ERROR as above */
ngx_int_t ngx_rl_pipeline_append(ngx_rl_pipeline_t *pipeline,
    ngx_str_t *command);

/* writes what the socket takes; NGX_ERROR: the connection is lost */
ngx_int_t ngx_rl_pipeline_write(ngx_rl_pipeline_t *pipeline);

/*
 * Without a pending for it, the next reply may be large if "large" is set.
 * NGX_OK: the next reply, valid until the next call; NGX_AGAIN: there is none
 * yet; NGX_DONE: the connection is lost, *err is set; NGX_ERROR: what was read
 * is no reply, or too large
 */
ngx_int_t ngx_rl_pipeline_read(ngx_rl_pipeline_t *pipeline,
    ngx_uint_t large, ngx_rl_reply_t **reply, ngx_err_t *err);

/*
 * A reply that belongs to the oldest pending.  NGX_DECLINED: there is none;
 * NGX_ERROR: the command can't have that reply
 */
ngx_int_t ngx_rl_pipeline_deliver(ngx_rl_pipeline_t *pipeline,
    ngx_rl_reply_t *reply);

/* what its socket is to be watched for */
void ngx_rl_pipeline_poll(ngx_rl_pipeline_t *pipeline, struct pollfd *pfd);

/*
 * Handles what has happened to the socket and is not known yet.  The
 * connection may be closed, or another one, then.
 */
void ngx_rl_pipeline_look(ngx_rl_pipeline_t *pipeline);

/* takes the pendings off that have been sent, or wait as well */
void ngx_rl_pipeline_detach(ngx_rl_pipeline_t *pipeline,
    ngx_queue_t *pendings, ngx_uint_t waiting);

/* fails what was detached; NGX_RL_OK: the process ends, no handler is called */
void ngx_rl_pipeline_fail(ngx_queue_t *pendings, ngx_rl_failure_e failure);

/*
 * The pending, which is in no queue, goes to another pipeline, after an ASKING
 * if "asking" is set.  NGX_ERROR: as in send, and the pending is as it was
 */
ngx_int_t ngx_rl_pipeline_take(ngx_rl_pipeline_t *pipeline,
    ngx_rl_pending_t *pending, ngx_uint_t asking);

/* the same for all that wait, which wait there until it is ready */
void ngx_rl_pipeline_take_waiting(ngx_rl_pipeline_t *pipeline,
    ngx_rl_pipeline_t *from);

/* the end of a pending that is in no queue; its handler hears of it */
void ngx_rl_pending_fail(ngx_rl_pending_t *pending, ngx_rl_failure_e failure);

/* for the end of the process: the memory of all pendings */
void ngx_rl_pipeline_done(void);


#endif /* _NGX_RL_PIPELINE_H_INCLUDED_ */
