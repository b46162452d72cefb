
/*
 * Why there is no answer from Redis.  Pure.
 */


#ifndef _NGX_RL_FAILURE_H_INCLUDED_
#define _NGX_RL_FAILURE_H_INCLUDED_


#include <stddef.h>


typedef enum {
    NGX_RL_OK = 0,

    /* between nginx and the server */
    NGX_RL_TIMEOUT,        /* no reply in time */
    NGX_RL_REFUSED,        /* no connection */
    NGX_RL_TLS,            /* no handshake, or a wrong server */
    NGX_RL_CLOSED,         /* connection lost before the reply */
    NGX_RL_PROTOCOL,       /* not RESP, or not what was asked */
    NGX_RL_OVERLOAD,       /* too many calls under way here */

    /* error replies */
    NGX_RL_AUTH,           /* NOAUTH, WRONGPASS, NOPERM */
    NGX_RL_LOADING,
    NGX_RL_READONLY,
    NGX_RL_OOM,
    NGX_RL_BUSY,           /* BUSY, UNKILLABLE, TRYAGAIN */
    NGX_RL_NOSCRIPT,
    NGX_RL_MOVED,          /* MOVED, ASK, CROSSSLOT, CLUSTERDOWN */
    NGX_RL_MASTERDOWN,     /* MASTERDOWN, NOREPLICAS */
    NGX_RL_MISCONF,        /* can't persist */
    NGX_RL_CLIENTS,        /* max number of clients reached */
    NGX_RL_WRONGTYPE,      /* foreign data in our key */
    NGX_RL_CLOCK,          /* nginx's is too far behind */
    NGX_RL_ERROR,          /* any other error reply */

    /* nothing was sent */
    NGX_RL_CIRCUIT,        /* the breaker is open */
    NGX_RL_CONFIG,         /* a variable has an invalid value */

    NGX_RL_FAILURES
} ngx_rl_failure_e;


/* the reason that clients see; it reveals nothing internal */

typedef enum {
    NGX_RL_REASON_STORAGE = 0,
    NGX_RL_REASON_TIMEOUT,
    NGX_RL_REASON_CIRCUIT,
    NGX_RL_REASON_LIMIT,

    NGX_RL_REASONS
} ngx_rl_reason_e;


/* the class of an error reply, by its first word, without the "-" */
ngx_rl_failure_e ngx_rl_failure(const char *text, size_t len);

/* one word, for logs and labels */
extern const char  *const ngx_rl_failure_names[];

/*
 * Whether the failure says that the server is in trouble, and not only this
 * call.  Such failures open the circuit breaker.
 */
int ngx_rl_failure_breaks(ngx_rl_failure_e f);

ngx_rl_reason_e ngx_rl_failure_reason(ngx_rl_failure_e f);
extern const char  *const ngx_rl_reason_names[];


#endif /* _NGX_RL_FAILURE_H_INCLUDED_ */
