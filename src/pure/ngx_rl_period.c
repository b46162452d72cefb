
/*
 * Years are counted from March, so that the leap day is the last of its year,
 * and the lengths of months repeat: 31, 30, 31, 30, 31.  400 years have the
 * same number of days, whichever they are.
 */


#include <string.h>

#include "pure/ngx_rl_period.h"


#define NGX_RL_PERIOD_US        1000000ULL
#define NGX_RL_PERIOD_DAY       86400ULL        /* s */

/* days of 400 years */
#define NGX_RL_PERIOD_ERA       146097

/* days from March 1 of the year 0 to the first of January 1970 */
#define NGX_RL_PERIOD_EPOCH     719468

/* days from the first of January 1970, a Thursday, to the next Monday */
#define NGX_RL_PERIOD_MONDAY    4

/* s: how far clocks can be behind and ahead of UTC */
#define NGX_RL_PERIOD_BEHIND    (12 * 3600)
#define NGX_RL_PERIOD_AHEAD     (14 * 3600)


static uint64_t ngx_rl_period_year(uint64_t year);
static uint64_t ngx_rl_period_month(uint64_t month);
static int ngx_rl_period_digits(const unsigned char *p);


void
ngx_rl_period_window(ngx_rl_period_t *period, uint64_t length)
{
    period->length = length;
    period->shift = 0;
}


void
ngx_rl_period_calendar(ngx_rl_period_t *period, ngx_rl_period_e unit,
    int64_t zone, uint64_t anchor)
{
    int64_t  length, shift;

    static const int64_t  lengths[] = { 60, 3600, 86400, 7 * 86400 };

    if (unit == NGX_RL_MONTH) {
        period->length = 0;
        period->shift = (NGX_RL_PERIOD_EPOCH - (anchor - 1))
                        * NGX_RL_PERIOD_DAY + zone;
        return;
    }

    length = lengths[unit];
    shift = zone;

    if (unit == NGX_RL_WEEK) {
        shift -= (NGX_RL_PERIOD_MONDAY + (int64_t) anchor - 1)
                 * (int64_t) NGX_RL_PERIOD_DAY;
    }

    period->length = (uint64_t) length * NGX_RL_PERIOD_US;
    period->shift = (uint64_t) ((shift % length + length) % length);
}


void
ngx_rl_period_at(const ngx_rl_period_t *period, uint64_t now,
    uint64_t *start, uint64_t *end)
{
    uint64_t  day, first, year, month;

    if (period->length) {
        *start = now - (now + period->shift * NGX_RL_PERIOD_US)
                       % period->length;
        *end = *start + period->length;
        return;
    }

    day = (now / NGX_RL_PERIOD_US + period->shift) / NGX_RL_PERIOD_DAY;
    first = day / NGX_RL_PERIOD_ERA * NGX_RL_PERIOD_ERA;
    day -= first;

    /* the days of leap years before it do not count */

    year = (day - day / 1460 + day / 36524 - day / 146096) / 365;
    first += ngx_rl_period_year(year);
    day -= ngx_rl_period_year(year);

    month = (5 * day + 2) / 153;

    *start = first + ngx_rl_period_month(month);
    *end = (month < 11)
           ? first + ngx_rl_period_month(month + 1)
           : first - ngx_rl_period_year(year) + ngx_rl_period_year(year + 1);

    *start = (*start * NGX_RL_PERIOD_DAY - period->shift) * NGX_RL_PERIOD_US;
    *end = (*end * NGX_RL_PERIOD_DAY - period->shift) * NGX_RL_PERIOD_US;
}


/* days before the first of March of this year of the 400 */

static uint64_t
ngx_rl_period_year(uint64_t year)
{
    return 365 * year + year / 4 - year / 100 + year / 400;
}


/* days of a year before this month; March is month 0 */

static uint64_t
ngx_rl_period_month(uint64_t month)
{
    return (153 * month + 2) / 5;
}


const char *
ngx_rl_period_parse(const void *data, size_t len, uint64_t *unit)
{
    size_t  i;

    static const char *const  names[] = {
        "minute",  /* NGX_RL_MINUTE */
        "hour",    /* NGX_RL_HOURLY */
        "day",     /* NGX_RL_DAY */
        "week",    /* NGX_RL_WEEK */
        "month"    /* NGX_RL_MONTH */
    };

    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {

        if (strlen(names[i]) == len && memcmp(names[i], data, len) == 0) {
            *unit = i;
            return NULL;
        }
    }

    return "it must be \"minute\", \"hour\", \"day\", \"week\" or \"month\"";
}


const char *
ngx_rl_timezone_parse(const void *data, size_t len, uint64_t *zone)
{
    int                   hours, minutes;
    int64_t               seconds;
    const unsigned char  *p = data;

    if (len == 3 && memcmp(p, "UTC", 3) == 0) {
        *zone = 0;
        return NULL;
    }

    if (len == 6 && (p[0] == '+' || p[0] == '-') && p[3] == ':') {
        hours = ngx_rl_period_digits(&p[1]);
        minutes = ngx_rl_period_digits(&p[4]);
        seconds = (int64_t) hours * 3600 + minutes * 60;

        if (hours >= 0 && minutes >= 0 && minutes < 60
            && seconds <= (p[0] == '+' ? NGX_RL_PERIOD_AHEAD
                                       : NGX_RL_PERIOD_BEHIND))
        {
            *zone = (uint64_t) (p[0] == '+' ? seconds : -seconds);
            return NULL;
        }
    }

    return "it must be \"UTC\" or from \"-12:00\" to \"+14:00\"";
}


/* a number of two digits, or -1 */

static int
ngx_rl_period_digits(const unsigned char *p)
{
    if (p[0] < '0' || p[0] > '9' || p[1] < '0' || p[1] > '9') {
        return -1;
    }

    return (p[0] - '0') * 10 + p[1] - '0';
}


const char *
ngx_rl_anchor_parse(const void *data, size_t len, uint64_t *anchor)
{
    uint64_t              n;
    const unsigned char  *p = data;

    n = 0;

    if (len == 1 && p[0] >= '0' && p[0] <= '9') {
        n = p[0] - '0';

    } else if (len == 2 && p[0] != '0' && ngx_rl_period_digits(p) > 0) {
        n = (uint64_t) ngx_rl_period_digits(p);
    }

    if (n < 1 || n > 28) {
        return "it must be a day of the month from 1 to 28, or of the week "
               "from 1 (Monday) to 7";
    }

    *anchor = n;

    return NULL;
}
