
#include <string.h>

#include "pure/ngx_rl_level.h"


static uint64_t ngx_rl_count_state(const ngx_rl_count_t *count,
    const ngx_rl_bucket_t *bucket, uint64_t now, uint64_t end, int64_t *state);
static uint64_t ngx_rl_count_wait(const ngx_rl_count_t *count,
    const ngx_rl_bucket_t *bucket, uint64_t rest);
static void ngx_rl_count_turn(ngx_rl_count_t *count,
    const ngx_rl_bucket_t *bucket, int share, uint64_t start, uint64_t end);
static void ngx_rl_level_state(
    const ngx_rl_level_t *level, int fits, int64_t *state);


int
ngx_rl_level_look(ngx_rl_level_t *level,
    const ngx_rl_bucket_t *bucket, uint64_t now, int64_t *state)
{
    int       fits;
    int64_t   full, cost;
    uint64_t  elapsed, refill, time;

    full = ngx_rl_bucket_size(bucket) * NGX_RL_MICRO;
    cost = bucket->cost * NGX_RL_MICRO;

    if (level->last == 0) {
        level->tokens = full;
        level->last = now;
    }

    elapsed = (now > level->last) ? now - level->last : 0;

    if (bucket->step) {
        elapsed -= elapsed % bucket->step;
    }

    refill = ngx_rl_rate_refill(&bucket->rate, elapsed);

    /* time that made less than a microtoken is kept for the next look */

    if (refill) {

        if (level->tokens >= full
            || refill >= (uint64_t) (full - level->tokens))
        {
            level->tokens = full;

        } else {
            time = bucket->step ? elapsed
                                : ngx_rl_rate_wait(&bucket->rate, refill);
            level->tokens += refill;
            level->last += (time < elapsed) ? time : elapsed;
        }
    }

    /* a full bucket saves no time; the capacity may have been reduced */

    if (level->tokens >= full) {
        level->tokens = full;
        level->last = (now > level->last) ? now : level->last;
    }

    fits = level->tokens >= (cost < full ? cost : full);

    state[1] = (bucket->step && now > level->last) ? now - level->last : 0;
    ngx_rl_level_state(level, fits, state);

    return fits;
}


void
ngx_rl_level_take(ngx_rl_level_t *level,
    const ngx_rl_bucket_t *bucket, int64_t *state)
{
    level->tokens -= bucket->cost * NGX_RL_MICRO;

    ngx_rl_level_state(level, 1, state);
}


static void
ngx_rl_level_state(const ngx_rl_level_t *level, int fits, int64_t *state)
{
    int64_t  left;

    left = (level->tokens > 0) ? level->tokens : 0;

    state[0] = fits ? left : -1 - left;
    state[2] = left - level->tokens;
}


int
ngx_rl_log_look(ngx_rl_log_t *log,
    const ngx_rl_bucket_t *bucket, uint64_t now, int64_t *state)
{
    int       fits;
    int64_t   left;
    uint32_t  i, gone;
    uint64_t  used, needed, leaves;

    /* an entry leaves as soon as the length of the window has passed */

    for (gone = 0;
         gone < log->n && log->entries[gone].time + bucket->window <= now;
         gone++)
    {
        /* void */
    }

    if (gone) {
        log->n -= gone;
        memmove(log->entries, &log->entries[gone],
                log->n * sizeof(ngx_rl_log_entry_t));
    }

    used = 0;

    for (i = 0; i < log->n; i++) {
        used += log->entries[i].cost;
    }

    fits = used == 0 || used + bucket->cost <= bucket->capacity;
    left = (used < bucket->capacity) ? bucket->capacity - used : 0;

    state[0] = fits ? left : -1 - left;
    state[1] = log->n ? log->entries[0].time + bucket->window - now : 0;
    state[2] = 0;

    if (fits) {
        return 1;
    }

    /* the first entry after whose end the cost fits */

    needed = (bucket->cost < bucket->capacity)
             ? used + bucket->cost - bucket->capacity : used;
    leaves = 0;

    for (i = 0; i < log->n && needed > 0; i++) {
        leaves = log->entries[i].time + bucket->window - now;
        needed -= (log->entries[i].cost < needed) ? log->entries[i].cost
                                                  : needed;
    }

    state[2] = leaves;

    return 0;
}


void
ngx_rl_log_take(ngx_rl_log_t *log,
    const ngx_rl_bucket_t *bucket, uint64_t now, int64_t *state)
{
    uint64_t             later;
    ngx_rl_log_entry_t  *last;

    last = log->n ? &log->entries[log->n - 1] : NULL;

    if (last && now <= last->time) {
        last->cost += bucket->cost;

    } else {

        if (log->n == NGX_RL_ENTRIES) {
            ngx_rl_log_squeeze(log);
        }

        /* a cost above the capacity is repaid over several windows */

        later = (bucket->cost - 1) / bucket->capacity * bucket->window;

        log->entries[log->n].time = now + later;
        log->entries[log->n].cost = bucket->cost;
        log->n++;
    }

    state[0] -= (state[0] < (int64_t) bucket->cost) ? state[0]
                                                    : (int64_t) bucket->cost;

    if (state[1] == 0) {
        state[1] = log->entries[0].time + bucket->window - now;
    }
}


void
ngx_rl_log_squeeze(ngx_rl_log_t *log)
{
    uint32_t             i, best;
    ngx_rl_log_entry_t  *e;

    if (log->n < 2) {
        return;
    }

    e = log->entries;

    /*
     * An entry stands for everything that passed since the previous entry.  So
     * this is the whole time that the merged entry would stand for, however
     * often the two were merged before.  The time before the first entry is
     * not known, so the first entry is left alone.
     */

    best = (log->n > 2) ? 1 : 0;

    for (i = 2; i + 1 < log->n; i++) {
        if (e[i + 1].time - e[i - 1].time < e[best + 1].time - e[best - 1].time)
        {
            best = i;
        }
    }

    e[best + 1].cost += e[best].cost;

    memmove(&e[best], &e[best + 1],
            (log->n - best - 1) * sizeof(ngx_rl_log_entry_t));
    log->n--;
}


/*
 * A clock that is a little behind the period that has begun waits for it: if
 * the earlier period came back, its requests would not be known any more.  A
 * clock that is set back by more takes what was counted along, so nobody is
 * locked out for longer than a period.
 */

int
ngx_rl_count_look(ngx_rl_count_t *count, const ngx_rl_bucket_t *bucket,
    int share, uint64_t now, int64_t *state)
{
    int       fits;
    uint64_t  start, end, used, left;

    ngx_rl_period_at(&bucket->period,
                     (count->start > now
                      && count->start - now <= NGX_RL_COUNT_BEHIND)
                     ? count->start : now,
                     &start, &end);

    if (count->start < start) {
        ngx_rl_count_turn(count, bucket, share, start, end);
    }

    count->start = start;

    used = ngx_rl_count_state(count, bucket, now, end, state);
    left = (used < bucket->capacity) ? bucket->capacity - used : 0;

    fits = used == 0 || used + bucket->cost <= bucket->capacity;

    state[0] = fits ? (int64_t) left : -1 - (int64_t) left;

    return fits;
}


/* returns what counts now, and fills in the times */

static uint64_t
ngx_rl_count_state(const ngx_rl_count_t *count, const ngx_rl_bucket_t *bucket,
    uint64_t now, uint64_t end, int64_t *state)
{
    uint64_t       length, rest;
    ngx_rl_rate_t  rate;

    if (bucket->algorithm == NGX_RL_FIXED_WINDOW) {
        state[1] = (int64_t) (end - now);
        state[2] = state[1];

        return count->current;
    }

    length = bucket->period.length;
    rest = (end - now < length) ? end - now : length;

    state[1] = (count->current || count->previous) ? (int64_t) (end - now) : 0;
    state[1] += count->current ? (int64_t) length : 0;
    state[2] = (int64_t) (ngx_rl_count_wait(count, bucket, rest)
                          + (end - now - rest));

    /* the part of the previous period that the window still covers */

    rate.num = count->previous;
    rate.den = length;

    return count->current + count->previous
           - ngx_rl_rate_refill(&rate, length - rest);
}


/*
 * Microseconds until the cost fits, if nothing is taken meanwhile; 0 if it
 * does.  "rest" is the part of the current period that is left.
 */

static uint64_t
ngx_rl_count_wait(const ngx_rl_count_t *count, const ngx_rl_bucket_t *bucket,
    uint64_t rest)
{
    uint64_t       room, fits;
    ngx_rl_rate_t  rate;

    room = (bucket->cost < bucket->capacity) ? bucket->capacity - bucket->cost
                                             : 0;
    rate.num = bucket->period.length;

    if (count->current <= room) {

        if (count->previous == 0) {
            return 0;
        }

        /* it fits as soon as so little of the period is left */

        rate.den = count->previous;
        fits = ngx_rl_rate_refill(&rate, room - count->current);

        return (fits < rest) ? rest - fits : 0;
    }

    /* not before the next one, when the current period is the previous one */

    rate.den = count->current;

    return rest + bucket->period.length - ngx_rl_rate_refill(&rate, room);
}


/* another period has begun */

static void
ngx_rl_count_turn(ngx_rl_count_t *count, const ngx_rl_bucket_t *bucket,
    int share, uint64_t start, uint64_t end)
{
    uint32_t  owed;
    uint64_t  periods, repaid;

    /* months differ in length, but not by so much that it matters */

    periods = (start - count->start) / (end - start);
    periods = periods ? periods : 1;

    if (bucket->algorithm == NGX_RL_SLIDING_WINDOW_COUNTER) {

        /* what is owed counts as taken again in each period until then */

        repaid = (periods - 1 < UINT32_MAX / bucket->capacity)
                 ? (periods - 1) * bucket->capacity : UINT32_MAX;

        owed = (count->current > repaid) ? count->current - (uint32_t) repaid
                                         : 0;
        owed = (share || periods == 1) ? owed : 0;

        count->previous = (share && owed > bucket->capacity)
                          ? (uint32_t) bucket->capacity : owed;
        count->current = owed - count->previous;

        return;
    }

    repaid = (periods < UINT32_MAX / bucket->capacity)
             ? periods * bucket->capacity : UINT32_MAX;

    count->current = (share && count->current > repaid)
                     ? count->current - (uint32_t) repaid : 0;
}


void
ngx_rl_count_take(ngx_rl_count_t *count,
    const ngx_rl_bucket_t *bucket, uint64_t now, int64_t *state)
{
    uint64_t  start, end;

    count->current += (uint32_t) bucket->cost;

    state[0] -= (state[0] < (int64_t) bucket->cost) ? state[0]
                                                    : (int64_t) bucket->cost;

    ngx_rl_period_at(&bucket->period, count->start, &start, &end);
    (void) ngx_rl_count_state(count, bucket, now, end, state);
}


uint64_t
ngx_rl_count_lasts(const ngx_rl_count_t *count,
    const ngx_rl_bucket_t *bucket, uint64_t now)
{
    uint64_t  start, end, lasts;

    ngx_rl_period_at(&bucket->period, count->start, &start, &end);

    lasts = (end > now) ? end - now : 0;

    if (bucket->algorithm == NGX_RL_SLIDING_WINDOW_COUNTER) {
        lasts += end - start;
    }

    /* the rest is owed */

    if (count->current > bucket->capacity) {
        lasts += (count->current - 1) / bucket->capacity * (end - start);
    }

    return lasts;
}


uint64_t
ngx_rl_level_until(const ngx_rl_level_t *level, const ngx_rl_bucket_t *bucket)
{
    int64_t   full;
    uint64_t  wait;

    full = ngx_rl_bucket_size(bucket) * NGX_RL_MICRO;

    if (level->tokens >= full) {
        return level->last;
    }

    wait = ngx_rl_rate_wait(&bucket->rate, full - level->tokens);

    if (wait >= NGX_RL_NEVER - level->last - bucket->step) {
        return NGX_RL_NEVER;
    }

    if (bucket->step && wait % bucket->step) {
        wait += bucket->step - wait % bucket->step;
    }

    return level->last + wait;
}


uint64_t
ngx_rl_log_until(const ngx_rl_log_t *log, const ngx_rl_bucket_t *bucket)
{
    return log->n ? log->entries[log->n - 1].time + bucket->window : 0;
}


int
ngx_rl_level_much(const ngx_rl_bucket_t *bucket, const int64_t *state)
{
    int64_t  full, left;

    full = bucket->capacity;
    left = state[0];

    if (!ngx_rl_algorithm_window(bucket->algorithm)) {
        full *= NGX_RL_MICRO;
        left -= (int64_t) (bucket->debt * NGX_RL_MICRO);
    }

    return 2 * left <= full;
}
