
/*
 * Calls that share limits, and the reply to all of them.
 */


#ifndef _FAMILY_H_INCLUDED_
#define _FAMILY_H_INCLUDED_


#include "calls.h"


/*
 * Five calls whose limits are of all kinds, and some of them the same; what
 * they are answered, in the order of the limits
 */

#define CALLS     5
#define ELEMENTS  21
#define UNKNOWN    99


typedef struct {
    ngx_rl_claim_t  claims[10];
    ngx_rl_call_t   calls[CALLS];
} family_t;


static const char  *family_elements[ELEMENTS] = {
    ":7000000\r\n", ":-2000001\r\n", ":1000000\r\n",
    ":9\r\n", ":5000000\r\n", ":0\r\n",

    ":3\r\n", ":0\r\n", ":6000000\r\n", ":0\r\n",

    ":-10\r\n", ":5000001\r\n", ":8000001\r\n", ":32000000\r\n",
    ":6000000\r\n",

    ":-24000001\r\n", ":1500000\r\n", ":1000001\r\n",

    ":0\r\n", ":-500001\r\n", ":250000\r\n"
};


/* the states of the claims, as far as they have any */

static const int64_t  family_states[10][NGX_RL_STATES] = {
    { 7000000, UNKNOWN, UNKNOWN },
    { -2000001, 1000000, UNKNOWN },
    { 9, 5000000, 0 },

    { 0, 6000000, 0 },

    { -10, 5000001, 8000001 },
    { 2000000, UNKNOWN, UNKNOWN },
    { 6000000, UNKNOWN, UNKNOWN },

    { -1500001, UNKNOWN, UNKNOWN },
    { 1500000, 1000001, UNKNOWN },

    { -500001, 250000, UNKNOWN }
};


static const struct {
    size_t         claim;         /* the first one */
    size_t         n;
    uint32_t       times, passed;
    size_t         element;
    size_t         elements;
} family_calls[CALLS] = {
    { 0, 3, 1, 1, 0, 6 },
    { 3, 1, 5, 3, 6, 4 },
    { 4, 3, 1, 0, 10, 5 },
    { 7, 2, 1, 0, 15, 3 },
    { 9, 1, 3, 0, 18, 3 }
};


static inline void
family_of(family_t *f)
{
    size_t           i;
    ngx_rl_claim_t  *claims;

    claims = f->claims;

    claims[0] = claim_of("user:1", bucket_of(10, "1r/s", 3));
    claims[1] = claim_of("ip:1", bucket_of(20, "2r/s", 3));
    claims[1].bucket.step = 5 * SECOND;
    claims[2] = claim_of("all", window_of(30, 60 * SECOND, 3));

    claims[3] = claim_of("other", window_of(5, SECOND, 1));

    claims[4] = claims[2];
    claims[5] = claim_of("gcra", gcra_of(40, "1r/s", 2));
    claims[5].shadow = 1;
    claims[6] = claims[0];

    claims[7] = claims[5];
    claims[8] = claims[1];

    claims[9] = claim_of("step", bucket_of(7, "1r/m", 1));
    claims[9].bucket.step = SECOND;

    for (i = 0; i < CALLS; i++) {
        f->calls[i] = call_of(&claims[family_calls[i].claim],
                              family_calls[i].n);
        f->calls[i].times = family_calls[i].times;
    }
}


static inline void
family_forget(family_t *f)
{
    size_t  i, k;

    for (i = 0; i < nelts_of(f->claims); i++) {
        for (k = 0; k < NGX_RL_STATES; k++) {
            f->claims[i].state[k] = UNKNOWN;
        }
    }

    for (i = 0; i < CALLS; i++) {
        f->calls[i].passed = UNKNOWN;
        f->calls[i].failure = NGX_RL_TIMEOUT;
    }
}


/* whether a call has the answer that it should have */

static inline int
family_answered(const family_t *f, size_t call)
{
    size_t  i, first;

    first = family_calls[call].claim;

    for (i = 0; i < family_calls[call].n; i++) {

        if (memcmp(f->claims[first + i].state, family_states[first + i],
                   sizeof(family_states[0]))
            != 0)
        {
            return 0;
        }
    }

    return f->calls[call].passed == family_calls[call].passed
           && f->calls[call].failure == NGX_RL_OK;
}


/* or none of its limits has one */

static inline int
family_unanswered(const family_t *f, size_t call)
{
    size_t  i, k;

    for (i = 0; i < family_calls[call].n; i++) {
        for (k = 0; k < NGX_RL_STATES; k++) {

            if (f->claims[family_calls[call].claim + i].state[k] != UNKNOWN) {
                return 0;
            }
        }
    }

    return 1;
}


/* the reply to all of them, with something else in one place, or NULL */

static inline const char *
family_wire(size_t at, const char *instead)
{
    size_t       i, n;
    static char  wire[1024];

    n = snprintf(wire, sizeof(wire), "*%d\r\n", ELEMENTS);

    for (i = 0; i < ELEMENTS; i++) {
        n += snprintf(wire + n, sizeof(wire) - n, "%s",
                      instead && i == at ? instead : family_elements[i]);
    }

    return wire;
}


/* the call that an element belongs to */

static inline size_t
family_call(size_t element)
{
    size_t  call;

    for (call = CALLS - 1; element < family_calls[call].element; call--) {
        /* void */
    }

    return call;
}


#endif /* _FAMILY_H_INCLUDED_ */
