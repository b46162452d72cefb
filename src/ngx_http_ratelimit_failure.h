
/*
 * Why there is no answer from the store.  Pure.
 */


#ifndef _NGX_HTTP_RATELIMIT_FAILURE_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_FAILURE_H_INCLUDED_


#include <stddef.h>


typedef enum {
    NGX_HTTP_RATELIMIT_OK = 0,

    /* the way to the server */
    NGX_HTTP_RATELIMIT_TIMEOUT,        /* no reply in time */
    NGX_HTTP_RATELIMIT_REFUSED,        /* no connection */
    NGX_HTTP_RATELIMIT_TLS,            /* no handshake, or a wrong server */
    NGX_HTTP_RATELIMIT_CLOSED,         /* connection lost before the reply */
    NGX_HTTP_RATELIMIT_PROTOCOL,       /* not RESP, or not what was asked */
    NGX_HTTP_RATELIMIT_OVERLOAD,       /* too many calls under way here */

    /* error replies */
    NGX_HTTP_RATELIMIT_AUTH,           /* NOAUTH, WRONGPASS, NOPERM */
    NGX_HTTP_RATELIMIT_LOADING,
    NGX_HTTP_RATELIMIT_READONLY,
    NGX_HTTP_RATELIMIT_OOM,
    NGX_HTTP_RATELIMIT_BUSY,           /* BUSY, UNKILLABLE, TRYAGAIN */
    NGX_HTTP_RATELIMIT_NOSCRIPT,
    NGX_HTTP_RATELIMIT_MOVED,          /* MOVED, ASK, CROSSSLOT, CLUSTERDOWN */
    NGX_HTTP_RATELIMIT_MASTERDOWN,     /* MASTERDOWN, NOREPLICAS */
    NGX_HTTP_RATELIMIT_MISCONF,        /* can't persist */
    NGX_HTTP_RATELIMIT_CLIENTS,        /* max number of clients reached */
    NGX_HTTP_RATELIMIT_WRONGTYPE,      /* somebody else's data in our key */
    NGX_HTTP_RATELIMIT_CLOCK,          /* nginx's is too far behind */
    NGX_HTTP_RATELIMIT_ERROR,          /* any other error reply */

    /* nothing was sent */
    NGX_HTTP_RATELIMIT_CIRCUIT,        /* the breaker is open */
    NGX_HTTP_RATELIMIT_CONFIG,         /* a variable gave no legal value */

    NGX_HTTP_RATELIMIT_FAILURES
} ngx_http_ratelimit_failure_e;


/* what a client is told; names nothing of the inside */

typedef enum {
    NGX_HTTP_RATELIMIT_REASON_STORAGE = 0,
    NGX_HTTP_RATELIMIT_REASON_TIMEOUT,
    NGX_HTTP_RATELIMIT_REASON_CIRCUIT,
    NGX_HTTP_RATELIMIT_REASON_LIMIT,

    NGX_HTTP_RATELIMIT_REASONS
} ngx_http_ratelimit_reason_e;


/* the class of an error reply, by its first word, without the "-" */
ngx_http_ratelimit_failure_e ngx_http_ratelimit_failure(const char *text,
    size_t len);

/* one word, for logs and labels */
const char *ngx_http_ratelimit_failure_name(ngx_http_ratelimit_failure_e f);

/*
 * Whether it says that the server, and not only this call, is in trouble: such
 * failures open the circuit breaker
 */
int ngx_http_ratelimit_failure_breaks(ngx_http_ratelimit_failure_e f);

ngx_http_ratelimit_reason_e ngx_http_ratelimit_failure_reason(
    ngx_http_ratelimit_failure_e f);
const char *ngx_http_ratelimit_reason_name(ngx_http_ratelimit_reason_e r);


#endif /* _NGX_HTTP_RATELIMIT_FAILURE_H_INCLUDED_ */
