
/*
 * The circuit breaker of one shard.  Pure: time is an argument, and the memory
 * is shared by all workers, who call these one at a time.
 *
 *     DISTRIBUTED --a failure--> FALLBACK --enough of them--> CIRCUIT_OPEN
 *          ^                        |                              |
 *          +------- a success ------+                              |
 *          +------- a probe or a handshake that succeeds ----------+
 *
 * While it is open nobody waits for the shard.  One worker at a time probes;
 * the others look again later.  A prober that died is replaced when its time
 * is over.  Pauses between probes double; after one that succeeded, only a
 * window without another opening makes them as short again as at first.
 */


#ifndef _NGX_RL_BREAKER_H_INCLUDED_
#define _NGX_RL_BREAKER_H_INCLUDED_


#include <stdint.h>


/* failures that can be asked for */
#define NGX_RL_BREAKER_MAX  100


typedef enum {
    NGX_RL_DISTRIBUTED = 0,
    NGX_RL_FALLBACK,         /* the next call still tries */
    NGX_RL_CIRCUIT_OPEN,

    NGX_RL_BREAKER_STATES
} ngx_rl_breaker_e;


typedef struct {
    uint32_t  failures;  /* that open it, */
    uint32_t  window;    /* ms, within such a time */
    uint32_t  probe;     /* ms, longest time between two */
} ngx_rl_breaker_conf_t;


typedef struct {
    ngx_rl_breaker_e  state;
    uint32_t          attempt;  /* probes in vain */
    uint64_t          prober;   /* who, or 0: nobody */
    uint64_t          until;    /* ms: the next probe, or when
                                   this one counts as lost */
    uint64_t          closed;   /* how often it was, */
    uint64_t          since;    /* ms: and when last */
    uint32_t          last;     /* the latest failure of these */
    uint64_t          times[NGX_RL_BREAKER_MAX];
} ngx_rl_breaker_t;


/* times are in ms, above 0; these return 1 if the state has changed */

int ngx_rl_breaker_failure(ngx_rl_breaker_t *b,
    const ngx_rl_breaker_conf_t *conf, uint64_t now, uint32_t random);

/* a call was answered; that alone does not close an open one */
int ngx_rl_breaker_success(ngx_rl_breaker_t *b);

/* a probe or a handshake has succeeded */
int ngx_rl_breaker_close(ngx_rl_breaker_t *b, uint64_t now);

/*
 * 0: "who" may try now, and tells within "timeout" what came of it; else how
 * long to wait before asking again
 */
uint64_t ngx_rl_breaker_probe(ngx_rl_breaker_t *b,
    uint64_t now, uint64_t timeout, uint64_t who);

/* the probe of "who" was in vain */
void ngx_rl_breaker_probed(ngx_rl_breaker_t *b,
    const ngx_rl_breaker_conf_t *conf, uint64_t now,
    uint32_t random, uint64_t who);

const char *ngx_rl_breaker_name(ngx_rl_breaker_e s);


#endif /* _NGX_RL_BREAKER_H_INCLUDED_ */
