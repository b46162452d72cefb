
/*
 * Periods of the calendar, and windows that follow each other without a gap:
 * which of them a moment belongs to.  Pure.  The scripts compute the same.
 */


#ifndef _NGX_RL_PERIOD_H_INCLUDED_
#define _NGX_RL_PERIOD_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


/* as in "period=" */

typedef enum {
    NGX_RL_MINUTE = 0,
    NGX_RL_HOURLY,
    NGX_RL_DAY,
    NGX_RL_WEEK,
    NGX_RL_MONTH
} ngx_rl_period_e;


typedef struct {
    uint64_t  length;  /* us; 0: months */

    /*
     * Seconds to add to the time since 1970, so that periods begin at
     * multiples of their length.  For months, the sum is the time since March
     * 1 of the year 0, less the days before the anchor.
     */
    uint64_t  shift;
} ngx_rl_period_t;


/* windows of any length, in us, counted from 1970 */
void ngx_rl_period_window(ngx_rl_period_t *period, uint64_t length);

/*
 * A period of the calendar.  "zone" is how many seconds its clocks are ahead
 * of UTC.  "anchor" is the first day: of a month 1 to 28, of a week 1 (Monday)
 * to 7; ignored for shorter periods.
 */
void ngx_rl_period_calendar(ngx_rl_period_t *period, ngx_rl_period_e unit,
    int64_t zone, uint64_t anchor);

/* the period that has this moment; all in us since 1970 */
void ngx_rl_period_at(const ngx_rl_period_t *period, uint64_t now,
    uint64_t *start, uint64_t *end);

/* these return NULL, or a sentence that says what is allowed */

const char *ngx_rl_period_parse(const void *data, size_t len, uint64_t *unit);

/* "UTC", "+HH:MM" or "-HH:MM"; the seconds may be negative: an int64_t */
const char *ngx_rl_timezone_parse(const void *data, size_t len, uint64_t *zone);

const char *ngx_rl_anchor_parse(const void *data, size_t len, uint64_t *anchor);


#endif /* _NGX_RL_PERIOD_H_INCLUDED_ */
