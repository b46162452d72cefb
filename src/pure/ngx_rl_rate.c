
#include <string.h>

#include "pure/ngx_rl_rate.h"


/* digits after the point; keeps num below 2^53, where Lua is exact */
#define NGX_RL_RATE_DIGITS  6

/* ticks in a year */
#define NGX_RL_GCRA_MAX     (31536000ULL * 16 * 1000000)


/* wide enough for the product of two 64-bit numbers, or nearly so */

#if defined(__SIZEOF_INT128__)
__extension__ typedef unsigned __int128  ngx_rl_wide_t;
#else
typedef long double                      ngx_rl_wide_t;
#endif


static const unsigned char *ngx_rl_number_parse(const unsigned char *p,
    const unsigned char *last, uint64_t max, uint64_t *number);
static int ngx_rl_whole_parse(const unsigned char *p, size_t len, uint64_t max,
    uint64_t *number);
static uint64_t ngx_rl_gcd(uint64_t a, uint64_t b);


static const char  ngx_rl_rate_allowed[] =
    "it must be a number followed by \"r/s\", \"r/m\", \"r/h\" or \"r/d\", "
    "for example \"10r/s\" or \"0.5r/m\", "
    "at most 1000000000 with at most 6 digits after the point";


const char *
ngx_rl_rate_parse(const void *data, size_t len, ngx_rl_rate_t *rate)
{
    uint64_t              num, den, gcd;
    unsigned              digits;
    const char           *unit;
    const unsigned char  *p, *last;

    static const char      units[] = "smhd";
    static const uint32_t  seconds[] = { 1, 60, 3600, 86400 };

    p = data;
    last = p + len;

    p = ngx_rl_number_parse(p, last, NGX_RL_MAX_RATE, &num);
    if (p == NULL) {
        return ngx_rl_rate_allowed;
    }

    den = 1;

    if (p < last && *p == '.') {
        p++;

        for (digits = 0; p < last && *p >= '0' && *p <= '9'; p++, digits++) {

            if (digits == NGX_RL_RATE_DIGITS) {
                return ngx_rl_rate_allowed;
            }

            num = num * 10 + (*p - '0');
            den *= 10;
        }

        if (digits == 0 || num > NGX_RL_MAX_RATE * den) {
            return ngx_rl_rate_allowed;
        }
    }

    if (last - p != 3 || p[0] != 'r' || p[1] != '/') {
        return ngx_rl_rate_allowed;
    }

    unit = memchr(units, p[2], sizeof(units) - 1);
    if (unit == NULL) {
        return ngx_rl_rate_allowed;
    }

    rate->count = (num + den - 1) / den;

    den *= seconds[unit - units];
    gcd = ngx_rl_gcd(num, den);

    rate->num = num / gcd;
    rate->den = den / gcd;

    return NULL;
}


const char *
ngx_rl_capacity_parse(const void *data, size_t len, uint64_t *capacity)
{
    return ngx_rl_whole_parse(data, len, NGX_RL_MAX_CAPACITY, capacity)
           ? NULL : "it must be a whole number from 1 to 1000000000";
}


const char *
ngx_rl_cost_parse(const void *data, size_t len, uint64_t *cost)
{
    return ngx_rl_whole_parse(data, len, NGX_RL_MAX_COST, cost)
           ? NULL : "it must be a whole number from 1 to 100000";
}


/* whether all of a text is a number from 1 to "max" */

static int
ngx_rl_whole_parse(const unsigned char *p, size_t len, uint64_t max,
    uint64_t *number)
{
    return ngx_rl_number_parse(p, p + len, max, number) == p + len
           && *number != 0;
}


const char *
ngx_rl_cost_bound(const void *data, size_t len, uint64_t *cost)
{
    const unsigned char  *p;

    p = data;

    if (len == 0) {
        *cost = 0;

    } else if (ngx_rl_number_parse(p, p + len, NGX_RL_MAX_COST, cost)
               != p + len)
    {
        *cost = NGX_RL_MAX_COST;
        return "it must be a whole number from 1 to 100000; the request is "
               "charged 100000";
    }

    if (*cost == 0) {
        *cost = 1;
    }

    return NULL;
}


const char *
ngx_rl_share_parse(const void *data, size_t len, ngx_rl_share_t *share)
{
    uint64_t              num, den, gcd;
    const unsigned char  *p, *last;

    p = data;
    last = p + len;
    den = 1;

    p = ngx_rl_number_parse(p, last, NGX_RL_MAX_SHARE, &num);

    if (p && p < last && *p == '/') {
        p = ngx_rl_number_parse(p + 1, last, NGX_RL_MAX_SHARE, &den);

    } else if (p && p < last - 1 && *p == '.') {

        for (p++;
             p < last && *p >= '0' && *p <= '9'
             && den < NGX_RL_MAX_SHARE;
             p++)
        {
            num = num * 10 + (*p - '0');
            den *= 10;
        }
    }

    if (p != last || num == 0 || num > den) {
        return "it must be above 0 and at most 1: a decimal with up to 3 "
               "digits after the point, for example \"0.25\", or a fraction of "
               "numbers up to 1000, for example \"1/4\"";
    }

    gcd = ngx_rl_gcd(num, den);

    share->num = num / gcd;
    share->den = den / gcd;

    return NULL;
}


const char *
ngx_rl_rate_check(const ngx_rl_rate_t *rate, uint64_t capacity)
{
    uint64_t  per_second;

    per_second = rate->num / rate->den + ((rate->num % rate->den) ? 1 : 0);

    return (per_second > capacity * 1000)
           ? "the rate per second must be at most 1000 times the capacity"
           : NULL;
}


/*
 * One tick more per token makes the limit slightly stricter: by less than
 * 1/160 at the highest rate.
 */

const char *
ngx_rl_gcra_check(const ngx_rl_rate_t *rate, uint64_t capacity)
{
    if (rate->num == 0 || rate->num > 100000 * rate->den
        || capacity > ngx_rl_gcra_capacity(rate))
    {
        return "\"gcra\" needs a rate above zero and at most 100000r/s that "
               "refills the capacity within a year";
    }

    return NULL;
}


uint64_t
ngx_rl_gcra_capacity(const ngx_rl_rate_t *rate)
{
    return NGX_RL_GCRA_MAX / ngx_rl_gcra_tick(rate);
}


uint64_t
ngx_rl_gcra_tick(const ngx_rl_rate_t *rate)
{
    return ngx_rl_rate_wait(rate, 16 * 1000000);
}


uint64_t
ngx_rl_rate_wait(const ngx_rl_rate_t *rate, uint64_t microtokens)
{
    uint64_t       product;
    ngx_rl_wide_t  us;

    if (microtokens == 0) {
        return 0;
    }

    if (rate->num == 0) {
        return NGX_RL_NEVER;
    }

    /* it usually fits, and a wide division takes ten times as long */

    if (!__builtin_mul_overflow(microtokens, rate->den, &product)
        && product <= UINT64_MAX - rate->num)
    {
        return (product + rate->num - 1) / rate->num;
    }

    us = microtokens;
    us = (us * rate->den + rate->num - 1) / rate->num;

    if (us >= NGX_RL_NEVER) {
        return NGX_RL_NEVER;
    }

    return (uint64_t) us;
}


uint64_t
ngx_rl_rate_refill(const ngx_rl_rate_t *rate, uint64_t us)
{
    uint64_t       product;
    ngx_rl_wide_t  microtokens;

    if (!__builtin_mul_overflow(us, rate->num, &product)) {
        return product / rate->den;
    }

    microtokens = us;
    microtokens = microtokens * rate->num / rate->den;

    if (microtokens >= UINT64_MAX) {
        return UINT64_MAX;
    }

    return (uint64_t) microtokens;
}


/* returns the first byte after the digits, NULL if there is no number */

static const unsigned char *
ngx_rl_number_parse(const unsigned char *p,
    const unsigned char *last, uint64_t max, uint64_t *number)
{
    uint64_t              n;
    const unsigned char  *start;

    start = p;

    for (n = 0; p < last && *p >= '0' && *p <= '9'; p++) {
        n = n * 10 + (*p - '0');

        if (n > max) {
            return NULL;
        }
    }

    *number = n;

    return p == start ? NULL : p;
}


static uint64_t
ngx_rl_gcd(uint64_t a, uint64_t b)
{
    uint64_t  t;

    while (b) {
        t = a % b;
        a = b;
        b = t;
    }

    return a;
}
