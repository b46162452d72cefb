
#include "pure/ngx_rl_override.h"
#include "pure/ngx_rl_text.h"

#include <string.h>


/* digits of a number that is always below 2^63 */
#define NGX_RL_OVERRIDE_DIGITS  18


typedef enum {
    NGX_RL_OVERRIDE_WORD_CAPACITY = 0,
    NGX_RL_OVERRIDE_WORD_RATE,
    NGX_RL_OVERRIDE_WORD_COST,
    NGX_RL_OVERRIDE_WORD_EXEMPT,
    NGX_RL_OVERRIDE_WORD_BAN,
    NGX_RL_OVERRIDE_WORD_UNTIL,
    NGX_RL_OVERRIDE_WORD_RESET,
    NGX_RL_OVERRIDE_WORD_REASON,

    NGX_RL_OVERRIDE_WORDS
} ngx_rl_override_word_e;


static ngx_rl_override_word_e ngx_rl_override_word(const char **text,
    const char *end);
static const char *ngx_rl_override_number(const char *text, size_t len,
    uint64_t *number);
static size_t ngx_rl_override_add(char *text, size_t len, const char *word,
    const char *value, size_t n);


/* in the order of the enum */

static const char *const  ngx_rl_override_names[] = {
    "capacity=", "rate=", "cost=", "exempt", "ban", "until=", "reset=",
    "reason="
};


const char *
ngx_rl_override_parse(const char *text, size_t len, ngx_rl_override_t *o,
    ngx_rl_override_words_t *words)
{
    uint64_t                 cost;
    uint32_t                 seen;
    const char              *p, *end, *last, *err;
    ngx_rl_override_word_e   word;
    ngx_rl_override_words_t  found;

    memset(o, 0, sizeof(ngx_rl_override_t));
    memset(&found, 0, sizeof(ngx_rl_override_words_t));

    if (len > NGX_RL_OVERRIDE_TEXT) {
        return "the text of an override is too long";
    }

    p = text;
    end = text + len;
    seen = 0;

    for ( ;; ) {

        while (p < end && *p == ' ') {
            p++;
        }

        if (p == end) {
            break;
        }

        last = memchr(p, ' ', end - p);
        last = last ? last : end;

        word = ngx_rl_override_word(&p, last);

        if (word == NGX_RL_OVERRIDE_WORDS) {
            return "the words of an override are capacity=, rate=, cost=, "
                   "exempt, ban, until=, reset= and reason=";
        }

        if (seen >> word & 1) {
            return "a word of an override is repeated";
        }

        seen |= (uint32_t) 1 << word;

        if (word <= NGX_RL_OVERRIDE_WORD_BAN) {
            o->set |= (uint32_t) 1 << word;
        }

        err = NULL;

        switch (word) {

        case NGX_RL_OVERRIDE_WORD_CAPACITY:
            err = ngx_rl_capacity_parse(p, last - p, &o->capacity);
            break;

        case NGX_RL_OVERRIDE_WORD_RATE:
            err = ngx_rl_rate_parse(p, last - p, &o->rate);
            found.rate = p;
            found.rate_len = last - p;
            break;

        case NGX_RL_OVERRIDE_WORD_COST:
            err = ngx_rl_cost_parse(p, last - p, &cost);
            o->cost = err ? 0 : (uint32_t) cost;
            break;

        case NGX_RL_OVERRIDE_WORD_UNTIL:
            err = ngx_rl_override_number(p, last - p, &o->until);
            break;

        case NGX_RL_OVERRIDE_WORD_RESET:
            err = ngx_rl_override_number(p, last - p, &o->reset);
            break;

        case NGX_RL_OVERRIDE_WORD_REASON:
            last = end;
            found.reason = p;
            found.reason_len = last - p;

            if (found.reason_len > NGX_RL_OVERRIDE_REASON) {
                err = "the reason is too long";
            }

            break;

        default: /* exempt, ban */
            break;
        }

        if (err) {
            return err;
        }

        p = last;
    }

    if ((o->set & NGX_RL_OVERRIDE_EXEMPT && o->set != NGX_RL_OVERRIDE_EXEMPT)
        || (o->set & NGX_RL_OVERRIDE_BAN && o->set != NGX_RL_OVERRIDE_BAN))
    {
        return "exempt and ban exclude each other and all numbers";
    }

    if (o->set == 0 && o->reset == 0) {
        return "it needs one of capacity, rate, cost, exempt and ban";
    }

    if (words) {
        *words = found;
    }

    return NULL;
}


/* moves *text behind the name of a word */

static ngx_rl_override_word_e
ngx_rl_override_word(const char **text, const char *end)
{
    size_t       len, n;
    unsigned     i;
    const char  *name;

    len = end - *text;

    for (i = 0; i < NGX_RL_OVERRIDE_WORDS; i++) {
        name = ngx_rl_override_names[i];
        n = strlen(name);

        if (len >= n && memcmp(*text, name, n) == 0
            && (len == n || name[n - 1] == '='))
        {
            *text += n;
            break;
        }
    }

    return i;
}


static const char *
ngx_rl_override_number(const char *text, size_t len, uint64_t *number)
{
    size_t    i;
    uint64_t  n;

    n = 0;

    for (i = 0; i < len; i++) {

        if (text[i] < '0' || text[i] > '9' || i == NGX_RL_OVERRIDE_DIGITS) {
            i = 0;
            break;
        }

        n = n * 10 + (text[i] - '0');
    }

    if (i == 0 || n == 0) {
        return "a time must be a whole number of seconds (until) or "
               "microseconds (reset) since 1970";
    }

    *number = n;

    return NULL;
}


size_t
ngx_rl_override_format(char *text, const ngx_rl_override_t *o,
    const ngx_rl_override_words_t *words)
{
    char      number[NGX_RL_NUMBER_LEN], *last, *p;
    size_t    len;
    unsigned  i;

    const struct {
        uint64_t     value;
        const char  *name;
    } numbers[] = {
        { o->set & NGX_RL_OVERRIDE_CAPACITY ? o->capacity : 0, "capacity=" },
        { o->set & NGX_RL_OVERRIDE_COST ? o->cost : 0, "cost=" },
        { o->until, "until=" },
        { o->reset, "reset=" }
    };

    len = 0;
    last = number + sizeof(number);

    if (o->set & NGX_RL_OVERRIDE_EXEMPT) {
        len = ngx_rl_override_add(text, len, "exempt", NULL, 0);
    }

    if (o->set & NGX_RL_OVERRIDE_BAN) {
        len = ngx_rl_override_add(text, len, "ban", NULL, 0);
    }

    if (o->set & NGX_RL_OVERRIDE_RATE) {
        len = ngx_rl_override_add(text, len, "rate=", words->rate,
                                  words->rate_len);
    }

    for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (numbers[i].value) {
            p = ngx_rl_number(last, numbers[i].value);
            len = ngx_rl_override_add(text, len, numbers[i].name, p, last - p);
        }
    }

    if (words->reason_len) {
        len = ngx_rl_override_add(text, len, "reason=", words->reason,
                                  words->reason_len);
    }

    return len > NGX_RL_OVERRIDE_TEXT ? 0 : len;
}


/* the new length; above the maximum, nothing is written any more */

static size_t
ngx_rl_override_add(char *text, size_t len, const char *word,
    const char *value, size_t n)
{
    size_t  name, sum;

    name = strlen(word);
    sum = len + (len > 0) + name + n;

    if (sum > NGX_RL_OVERRIDE_TEXT) {
        return NGX_RL_OVERRIDE_TEXT + 1;
    }

    if (len) {
        text[len++] = ' ';
    }

    memcpy(text + len, word, name);

    if (n) {
        memcpy(text + len + name, value, n);
    }

    return sum;
}


const char *
ngx_rl_override_apply(const ngx_rl_override_t *o, ngx_rl_bucket_t *bucket,
    int derived)
{
    const char       *err;
    ngx_rl_bucket_t   changed;

    if (!(o->set & NGX_RL_OVERRIDE_NUMBERS)) {
        return NULL;
    }

    changed = *bucket;
    changed.varies = 1;

    if (o->set & NGX_RL_OVERRIDE_RATE) {

        if (ngx_rl_algorithm_window(bucket->algorithm)) {
            return "this limit has a window and no rate";
        }

        changed.rate = o->rate;

        if (derived) {
            changed.capacity = o->rate.count;
        }
    }

    if (o->set & NGX_RL_OVERRIDE_CAPACITY) {
        changed.capacity = o->capacity;
    }

    if (o->set & NGX_RL_OVERRIDE_COST) {
        changed.cost = o->cost;
    }

    if (changed.capacity == 0) {
        return "a bucket that never refills needs a capacity";
    }

    if (!ngx_rl_algorithm_window(bucket->algorithm)) {

        err = ngx_rl_rate_check(&changed.rate, changed.capacity);

        if (err == NULL && bucket->algorithm == NGX_RL_GCRA) {
            err = ngx_rl_gcra_check(&changed.rate, changed.capacity);
        }

        if (err) {
            return err;
        }
    }

    *bucket = changed;

    return NULL;
}
