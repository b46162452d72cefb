
/*
 * The level of a bucket or a window in the memory of one machine.  Pure.  The
 * arithmetic is that of the scripts, by a clock that never steps back; only
 * windows that count by periods go by the wall clock, which may be set.
 *
 * First look, which brings the state up to date and says whether the cost
 * fits.  Then take, or do not: a request takes from all its limits or from
 * none.
 *
 * A cost may exceed the capacity here, because a machine only has a share of a
 * limit.  Such a cost fits if the whole share is available.  What it takes
 * beyond the share is owed.
 */


#ifndef _NGX_RL_LEVEL_H_INCLUDED_
#define _NGX_RL_LEVEL_H_INCLUDED_


#include "pure/ngx_rl_bucket.h"


/* requests that a window keeps apart */
#define NGX_RL_ENTRIES       64

/*
 * us: a clock that is set back by so much at most, or is behind another one,
 * waits for the period that has begun already.
 */
#define NGX_RL_COUNT_BEHIND  60000000


/* a bucket; all zeroes: a new bucket, which is full */

typedef struct {
    int64_t   tokens;  /* microtokens; below 0: owed */
    uint64_t  last;    /* us: when they were */
} ngx_rl_level_t;


/* a window: what passed when, oldest first */

typedef struct {
    uint64_t  time;  /* us */
    uint64_t  cost;
} ngx_rl_log_entry_t;

typedef struct {
    uint32_t            n;
    ngx_rl_log_entry_t  entries[NGX_RL_ENTRIES];
} ngx_rl_log_t;


/* a window that counts by periods; all zeroes: a new one, which is empty */

typedef struct {
    uint64_t  start;     /* us since 1970: the beginning of its period */
    uint32_t  current;   /* taken in that period */
    uint32_t  previous;  /* in the one before; of a counter */
} ngx_rl_count_t;


/*
 * These return whether the cost fits, and fill in the state, which
 * ngx_rl_bucket.h explains.
 */
int ngx_rl_level_look(ngx_rl_level_t *level,
    const ngx_rl_bucket_t *bucket, uint64_t now, int64_t *state);
int ngx_rl_log_look(ngx_rl_log_t *log,
    const ngx_rl_bucket_t *bucket, uint64_t now, int64_t *state);

/*
 * The same, by the wall clock.  With "share", what was taken beyond the
 * capacity is owed in the next periods.
 */
int ngx_rl_count_look(ngx_rl_count_t *count, const ngx_rl_bucket_t *bucket,
    int share, uint64_t now, int64_t *state);

/* takes a cost that fits; the state becomes what is left */
void ngx_rl_level_take(ngx_rl_level_t *level,
    const ngx_rl_bucket_t *bucket, int64_t *state);
void ngx_rl_log_take(ngx_rl_log_t *log,
    const ngx_rl_bucket_t *bucket, uint64_t now, int64_t *state);
void ngx_rl_count_take(ngx_rl_count_t *count,
    const ngx_rl_bucket_t *bucket, uint64_t now, int64_t *state);

/*
 * Makes room for one more entry: merges two neighbours that are close in time,
 * with the time of the younger.  So a window of more than 64 requests may be
 * stricter than configured, as if it were longer by less than 1/31, but never
 * more lenient.
 */
void ngx_rl_log_squeeze(ngx_rl_log_t *log);

/*
 * The time (us) at which everything taken has come back, if nothing more is
 * taken.  From then on the state need not be stored.  NGX_RL_NEVER if no token
 * will come.
 */
uint64_t ngx_rl_level_until(const ngx_rl_level_t *level,
    const ngx_rl_bucket_t *bucket);
uint64_t ngx_rl_log_until(const ngx_rl_log_t *log,
    const ngx_rl_bucket_t *bucket);

/* the same from now on, in us, because the wall clock may be set */
uint64_t ngx_rl_count_lasts(const ngx_rl_count_t *count,
    const ngx_rl_bucket_t *bucket, uint64_t now);

/* whether at least half of the limit is taken, by the state after a take */
int ngx_rl_level_much(const ngx_rl_bucket_t *bucket, const int64_t *state);


#endif /* _NGX_RL_LEVEL_H_INCLUDED_ */
