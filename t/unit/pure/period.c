
/*
 * Periods of the calendar: against mktime's cousin timegm, day by day over
 * leap years, in all time zones and with all anchors.
 */

#define _DEFAULT_SOURCE

#include <time.h>

#include "tap.h"

#include "pure/ngx_rl_period.h"


#define US   1000000ULL
#define DAY  86400LL


static int64_t
utc(int year, int month, int day, int hour, int minute, int second)
{
    struct tm  tm;

    memset(&tm, 0, sizeof(tm));

    tm.tm_year = year - 1900;
    tm.tm_mon = month - 1;
    tm.tm_mday = day;
    tm.tm_hour = hour;
    tm.tm_min = minute;
    tm.tm_sec = second;

    return timegm(&tm);
}


/* the month that has this moment, by the C library */

static void
month_by_libc(int64_t now, int64_t zone, int anchor,
    int64_t *start, int64_t *end)
{
    time_t     t;
    struct tm  tm;

    t = (time_t) (now + zone);
    (void) gmtime_r(&t, &tm);

    if (tm.tm_mday < anchor) {
        tm.tm_mon--;
    }

    tm.tm_mday = anchor;
    tm.tm_hour = 0;
    tm.tm_min = 0;
    tm.tm_sec = 0;
    *start = timegm(&tm) - zone;

    tm.tm_mon++;
    *end = timegm(&tm) - zone;
}


static void
test_moments(void)
{
    size_t           i;
    uint64_t         start, end, now;
    ngx_rl_period_t  period;

    static const struct {
        const char       *name;
        ngx_rl_period_e   unit;
        int64_t           zone;
        uint64_t          anchor;
        int               now[6];
        int               start[6];
        int               end[6];
    } t[] = {
        { "a minute", NGX_RL_MINUTE, 0, 1,
          { 2026, 12, 31, 23, 59, 59 }, { 2026, 12, 31, 23, 59, 0 },
          { 2027, 1, 1, 0, 0, 0 } },
        { "an hour", NGX_RL_HOURLY, 0, 1,
          { 2024, 2, 29, 23, 0, 0 }, { 2024, 2, 29, 23, 0, 0 },
          { 2024, 3, 1, 0, 0, 0 } },
        { "an hour where clocks are 5:30 ahead", NGX_RL_HOURLY, 19800, 1,
          { 2026, 6, 1, 10, 31, 0 }, { 2026, 6, 1, 10, 30, 0 },
          { 2026, 6, 1, 11, 30, 0 } },
        { "a leap day", NGX_RL_DAY, 0, 1,
          { 2024, 2, 29, 12, 0, 0 }, { 2024, 2, 29, 0, 0, 0 },
          { 2024, 3, 1, 0, 0, 0 } },
        { "a day that ends in the next year", NGX_RL_DAY, -18000, 1,
          { 2026, 12, 31, 12, 0, 0 }, { 2026, 12, 31, 5, 0, 0 },
          { 2027, 1, 1, 5, 0, 0 } },
        { "a day that began in the last year", NGX_RL_DAY, 50400, 1,
          { 2026, 12, 31, 9, 59, 59 }, { 2026, 12, 30, 10, 0, 0 },
          { 2026, 12, 31, 10, 0, 0 } },
        { "a week begins on Monday", NGX_RL_WEEK, 0, 1,
          { 2026, 11, 18, 14, 0, 0 }, { 2026, 11, 16, 0, 0, 0 },
          { 2026, 11, 23, 0, 0, 0 } },
        { "a week that begins on Sunday", NGX_RL_WEEK, 3600, 7,
          { 2026, 11, 14, 23, 0, 0 }, { 2026, 11, 14, 23, 0, 0 },
          { 2026, 11, 21, 23, 0, 0 } },
        { "a week over the end of a year", NGX_RL_WEEK, 0, 1,
          { 2027, 1, 1, 0, 0, 0 }, { 2026, 12, 28, 0, 0, 0 },
          { 2027, 1, 4, 0, 0, 0 } },
        { "a month", NGX_RL_MONTH, 0, 1,
          { 2026, 4, 30, 23, 59, 59 }, { 2026, 4, 1, 0, 0, 0 },
          { 2026, 5, 1, 0, 0, 0 } },
        { "a February with a leap day", NGX_RL_MONTH, 0, 1,
          { 2024, 2, 29, 23, 59, 59 }, { 2024, 2, 1, 0, 0, 0 },
          { 2024, 3, 1, 0, 0, 0 } },
        { "a February without one, in a year of a century",
          NGX_RL_MONTH, 0, 1,
          { 2100, 2, 28, 23, 59, 59 }, { 2100, 2, 1, 0, 0, 0 },
          { 2100, 3, 1, 0, 0, 0 } },
        { "a February of a year that 400 divides", NGX_RL_MONTH, 0, 1,
          { 2000, 2, 29, 0, 0, 0 }, { 2000, 2, 1, 0, 0, 0 },
          { 2000, 3, 1, 0, 0, 0 } },
        { "a month from the 15th over the leap day", NGX_RL_MONTH, 0, 15,
          { 2024, 3, 14, 23, 59, 59 }, { 2024, 2, 15, 0, 0, 0 },
          { 2024, 3, 15, 0, 0, 0 } },
        { "a month from the 28th over the end of a year",
          NGX_RL_MONTH, 0, 28,
          { 2027, 1, 27, 0, 0, 0 }, { 2026, 12, 28, 0, 0, 0 },
          { 2027, 1, 28, 0, 0, 0 } },
        { "a month where clocks are behind", NGX_RL_MONTH, -28800, 1,
          { 2027, 1, 1, 7, 59, 59 }, { 2026, 12, 1, 8, 0, 0 },
          { 2027, 1, 1, 8, 0, 0 } }
    };

#define of(a)  ((uint64_t) utc(a[0], a[1], a[2], a[3], a[4], a[5]) * US)

    for (i = 0; i < nelts_of(t); i++) {
        ngx_rl_period_calendar(&period, t[i].unit, t[i].zone, t[i].anchor);

        now = of(t[i].now);
        ngx_rl_period_at(&period, now, &start, &end);

        ok(start == of(t[i].start) && end == of(t[i].end), "%s", t[i].name);

        ngx_rl_period_at(&period, end - 1, &start, &now);

        ok(start == of(t[i].start) && now == end,
           "%s has its last microsecond", t[i].name);
    }
}


static void
test_months(void)
{
    int              anchor, bad;
    int64_t          zone, now, start, end, last;
    uint64_t         s, e;
    ngx_rl_period_t  period;

    for (zone = -43200; zone <= 50400; zone += 6300) {
        bad = 0;

        for (anchor = 1; anchor <= 28; anchor += 9) {

            ngx_rl_period_calendar(&period, NGX_RL_MONTH, zone, anchor);

            last = utc(1999, 12, 1, 0, 0, 0);
            now = last;

            for ( /* void */ ; now < utc(2104, 4, 1, 0, 0, 0); now += 43199) {
                month_by_libc(now, zone, anchor, &start, &end);
                ngx_rl_period_at(&period, (uint64_t) now * US + 999999, &s, &e);

                if (s != (uint64_t) start * US || e != (uint64_t) end * US) {
                    bad++;
                }
            }
        }

        ok(bad == 0, "months of a century, clocks %+d s", (int) zone);
    }
}


static void
test_windows(void)
{
    int              bad;
    size_t           i;
    uint64_t         now, start, end, next;
    ngx_rl_period_t  period;

    static const uint64_t  lengths[] = {
        1000, 7000, US, 60 * US, 7 * 3600 * US, 365 * 86400 * US
    };

    for (i = 0; i < nelts_of(lengths); i++) {
        ngx_rl_period_window(&period, lengths[i]);

        bad = 0;
        now = 1763475563123456ULL;

        while (now < 1763475563123456ULL + 1000 * lengths[i]) {
            ngx_rl_period_at(&period, now, &start, &end);
            ngx_rl_period_at(&period, end, &next, &end);

            bad += start > now || next <= now || next != start + lengths[i]
                   || start % lengths[i] != 0;
            now += lengths[i] / 3 + 1;
        }

        ok(bad == 0, "windows of %" PRIu64 " us follow each other", lengths[i]);
    }
}


static void
test_texts(void)
{
    size_t    i;
    uint64_t  n;

    static const struct {
        const char  *text;
        int64_t      seconds;
    } zones[] = {
        { "UTC", 0 }, { "+00:00", 0 }, { "-00:00", 0 }, { "+01:00", 3600 },
        { "-05:00", -18000 }, { "+05:45", 20700 }, { "+14:00", 50400 },
        { "-12:00", -43200 }, { "-03:30", -12600 }
    };

    static const char *const  wrong[] = {
        "", "utc", "UTC+1", "Z", "01:00", "+1:00", "+0100", "+01:60", "+14:01",
        "-12:01", "+15:00", "+aa:00", "+01-00", "Europe/Berlin", "+01:000"
    };

    static const char *const  units[] = {
        "minute", "hour", "day", "week", "month"
    };

    for (i = 0; i < nelts_of(zones); i++) {
        n = 1;
        ok(ngx_rl_timezone_parse(zones[i].text, strlen(zones[i].text), &n)
           == NULL && (int64_t) n == zones[i].seconds,
           "time zone %s", zones[i].text);
    }

    for (i = 0; i < nelts_of(wrong); i++) {
        ok(ngx_rl_timezone_parse(wrong[i], strlen(wrong[i]), &n) != NULL,
           "not a time zone: \"%s\"", wrong[i]);
    }

    for (i = 0; i < nelts_of(units); i++) {
        ok(ngx_rl_period_parse(units[i], strlen(units[i]), &n) == NULL
           && n == i, "period %s", units[i]);
    }

    ok(ngx_rl_period_parse("year", 4, &n) && ngx_rl_period_parse("", 0, &n)
       && ngx_rl_period_parse("days", 4, &n)
       && ngx_rl_period_parse("MONTH", 5, &n), "not periods");

    ok(ngx_rl_anchor_parse("1", 1, &n) == NULL && n == 1, "anchor 1");
    ok(ngx_rl_anchor_parse("28", 2, &n) == NULL && n == 28, "anchor 28");

    ok(ngx_rl_anchor_parse("0", 1, &n) && ngx_rl_anchor_parse("29", 2, &n)
       && ngx_rl_anchor_parse("", 0, &n) && ngx_rl_anchor_parse("01", 2, &n)
       && ngx_rl_anchor_parse("a", 1, &n) && ngx_rl_anchor_parse("1a", 2, &n)
       && ngx_rl_anchor_parse("100", 3, &n)
       && ngx_rl_anchor_parse("-1", 2, &n), "not anchors");
}


int
main(void)
{
    test_moments();
    test_months();
    test_windows();
    test_texts();

    return tap_done();
}
