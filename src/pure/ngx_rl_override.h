
/*
 * An override: an exception for one key of a limit, as text.  Pure.
 *
 *     capacity=500 rate=50r/s cost=2 until=1763400000 reason=a large customer
 *     exempt
 *     ban until=1763400000 reason=scraper
 *     reset=1763400000123456 until=1763400065
 *
 * Words are separated by spaces, and the reason is the rest of the text.
 */


#ifndef _NGX_RL_OVERRIDE_H_INCLUDED_
#define _NGX_RL_OVERRIDE_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>

#include "pure/ngx_rl_bucket.h"


/* what an override sets */

#define NGX_RL_OVERRIDE_CAPACITY  0x01
#define NGX_RL_OVERRIDE_RATE      0x02
#define NGX_RL_OVERRIDE_COST      0x04
#define NGX_RL_OVERRIDE_EXEMPT    0x08
#define NGX_RL_OVERRIDE_BAN       0x10

#define NGX_RL_OVERRIDE_NUMBERS                                               \
    (NGX_RL_OVERRIDE_CAPACITY|NGX_RL_OVERRIDE_RATE|NGX_RL_OVERRIDE_COST)

/* the longest text, and the longest reason in it */
#define NGX_RL_OVERRIDE_TEXT      512
#define NGX_RL_OVERRIDE_REASON    256


typedef struct {
    uint32_t       set;       /* bits; 0: it only resets the key */
    uint32_t       cost;
    uint64_t       capacity;
    ngx_rl_rate_t  rate;
    uint64_t       until;     /* epoch, seconds; 0: for ever */
    uint64_t       reset;     /* epoch, us, of the last reset; or 0 */
} ngx_rl_override_t;


/* the texts of an override, which are part of its own */

typedef struct {
    const char  *rate;
    size_t       rate_len;    /* 0: not set */
    const char  *reason;
    size_t       reason_len;  /* 0: none */
} ngx_rl_override_words_t;


/*
 * NULL, or a sentence that says what is wrong.  "words" may be NULL; they are
 * set only if nothing is wrong.
 */
const char *ngx_rl_override_parse(const char *text, size_t len,
    ngx_rl_override_t *override, ngx_rl_override_words_t *words);

/*
 * Writes the text of an override, at most NGX_RL_OVERRIDE_TEXT bytes, and
 * returns its length; 0: it would be longer.
 */
size_t ngx_rl_override_format(char *text, const ngx_rl_override_t *override,
    const ngx_rl_override_words_t *words);

/*
 * Replaces the numbers of a bucket.  "derived" says that its capacity is the
 * number in its rate.  NULL, or a sentence that says why this bucket cannot
 * have these numbers; then it is unchanged.
 */
const char *ngx_rl_override_apply(const ngx_rl_override_t *override,
    ngx_rl_bucket_t *bucket, int derived);


#endif /* _NGX_RL_OVERRIDE_H_INCLUDED_ */
