
/*
 * The circuit breaker of one server.  Pure: time is an argument.  All workers
 * share the memory and call these functions one at a time.
 *
 *     DISTRIBUTED --a failure--> FALLBACK --enough of them--> CIRCUIT_OPEN
 *          ^                        |                              |
 *          +------- a success ------+                              |
 *          +------- a probe or a handshake that succeeds ----------+
 *
 * While the breaker is open, no request waits for the server.  One worker at a
 * time probes it, and the others check again later.  A prober that dies is
 * replaced when its time is over.  The pauses between probes double.  After an
 * outage they start short again only if the breaker stayed closed for a whole
 * window.
 */


#ifndef _NGX_RL_BREAKER_H_INCLUDED_
#define _NGX_RL_BREAKER_H_INCLUDED_


#include <stdint.h>


/* the highest number of failures that a configuration may set */
#define NGX_RL_BREAKER_MAX  100


typedef enum {
    NGX_RL_DISTRIBUTED = 0,
    NGX_RL_FALLBACK,         /* the next call still tries */
    NGX_RL_CIRCUIT_OPEN,

    NGX_RL_BREAKER_STATES
} ngx_rl_breaker_e;


typedef struct {
    uint32_t  failures;  /* so many open it */
    uint32_t  window;    /* if they come within this time, ms */
    uint32_t  probe;     /* the longest time between two, ms */
} ngx_rl_breaker_conf_t;


typedef struct {
    ngx_rl_breaker_e  state;
    uint32_t          attempt;  /* probes that failed */
    uint64_t          prober;   /* its id, or 0: none */
    uint64_t          until;    /* ms: the next probe, or when
                                   this one counts as lost */
    uint64_t          closed;   /* how often it was closed */
    uint64_t          since;    /* ms: when it was last */
    uint32_t          last;     /* the latest one in times[] */
    uint64_t          times[NGX_RL_BREAKER_MAX];
} ngx_rl_breaker_t;


/* times are in ms, above 0; the first three return 1 if the state changed */

int ngx_rl_breaker_failure(ngx_rl_breaker_t *b,
    const ngx_rl_breaker_conf_t *conf, uint64_t now, uint32_t random);

/* a call was answered; this alone does not close an open breaker */
int ngx_rl_breaker_success(ngx_rl_breaker_t *b);

/* a probe or a handshake has succeeded */
int ngx_rl_breaker_close(ngx_rl_breaker_t *b, uint64_t now);

/*
 * 0: this prober may probe now, and must report the result within "timeout";
 * otherwise the time to wait before asking again.
 */
uint64_t ngx_rl_breaker_probe(ngx_rl_breaker_t *b,
    uint64_t now, uint64_t timeout, uint64_t prober);

/* the probe of this prober failed */
void ngx_rl_breaker_probed(ngx_rl_breaker_t *b,
    const ngx_rl_breaker_conf_t *conf, uint64_t now,
    uint32_t random, uint64_t prober);

extern const char  *const ngx_rl_breaker_names[];


#endif /* _NGX_RL_BREAKER_H_INCLUDED_ */
