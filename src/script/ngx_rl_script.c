
/*
 * token_bucket.lua is the short way for the commonest call: one bucket without
 * steps, by Redis's clock; gcra.lua is the same for its kind.  All else goes to
 * take.lua, which keeps limits in the same form.
 */


#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "script/ngx_rl_script.h"
#include "ngx_rl_lua.h"
#include "pure/ngx_rl_text.h"


#define NGX_RL_HOUR        3600000               /* ms */
#define NGX_RL_PREFIX_LEN  (NGX_RL_NUMBER_LEN + 3)

/*
 * EVALSHA sha n, then of a bundle: five for all, a key and eight more a limit,
 * two more a call, and the numbers of all limits; refunds have less
 */
#define NGX_RL_RESP_WORDS        (8 + 11 * NGX_RL_EVAL_CALLS                  \
                                        + NGX_RL_NUMBERS)


typedef struct {
    const char  *text;
    const char  *sha1;
} ngx_rl_lua_t;


/* a command being put together */

typedef struct {
    int          n;
    const char  *argv[NGX_RL_RESP_WORDS];
    size_t       lens[NGX_RL_RESP_WORDS];
    char         numbers[NGX_RL_RESP_WORDS]
                        [NGX_RL_NUMBER_LEN];
} ngx_rl_resp_t;


static int ngx_rl_eval_number(ngx_rl_eval_t *eval, ngx_rl_call_t *call);
static long long ngx_rl_eval_short(char **command,
    ngx_rl_eval_t *eval, unsigned with_text);
static long long ngx_rl_eval_take(char **command,
    ngx_rl_eval_t *eval, unsigned with_text);
static int ngx_rl_eval_fits(const ngx_rl_eval_t *eval,
    const ngx_rl_call_t *call);
static int ngx_rl_eval_alike(const ngx_rl_call_t *a, const ngx_rl_call_t *b);
static int ngx_rl_eval_states(ngx_rl_call_t *call,
    ngx_rl_reply_t *const *element, size_t n);
static void ngx_rl_eval_script(ngx_rl_resp_t *args,
    unsigned with_text, const ngx_rl_lua_t *lua, size_t keys);
static void ngx_rl_resp_add(ngx_rl_resp_t *args, const char *data, size_t len);
static void ngx_rl_resp_word(ngx_rl_resp_t *args, const char *word);
static void ngx_rl_resp_number(ngx_rl_resp_t *args, uint64_t n);
static long long ngx_rl_resp_format(char **command, ngx_rl_resp_t *args);
static char *ngx_rl_prefix(char *p, char type, uint64_t n);
static void ngx_rl_eval_claim(ngx_rl_resp_t *args, const ngx_rl_claim_t *claim);
static void ngx_rl_eval_state(ngx_rl_claim_t *claim, size_t i, int64_t n);
static int ngx_rl_eval_slow(const ngx_rl_bucket_t *bucket);


/* as the scripts call them, in the order of their numbers */

static const char  *ngx_rl_algorithm_names[] = {
    "bucket",
    "window",
    "gcra"
};


static const ngx_rl_lua_t  ngx_rl_token_bucket = {
    NGX_RL_LUA_TOKEN_BUCKET,
    NGX_RL_LUA_TOKEN_BUCKET_SHA1
};

static const ngx_rl_lua_t  ngx_rl_gcra = {
    NGX_RL_LUA_GCRA,
    NGX_RL_LUA_GCRA_SHA1
};

static const ngx_rl_lua_t  ngx_rl_take = {
    NGX_RL_LUA_TAKE,
    NGX_RL_LUA_TAKE_SHA1
};

static const ngx_rl_lua_t  ngx_rl_refund = {
    NGX_RL_LUA_REFUND,
    NGX_RL_LUA_REFUND_SHA1
};

static const ngx_rl_lua_t  *ngx_rl_scripts[] = {
    &ngx_rl_token_bucket,
    &ngx_rl_gcra,
    &ngx_rl_take,
    &ngx_rl_refund
};


int
ngx_rl_eval_add(ngx_rl_eval_t *eval, ngx_rl_call_t *call)
{
    if (eval->n == 0) {
        eval->nlimits = 0;
        eval->nnumbers = 0;

    } else if (eval->n == NGX_RL_EVAL_CALLS) {
        return 0;
    }

    if (ngx_rl_call_short(call)) {

        if (!ngx_rl_eval_fits(eval, call)) {
            return 0;
        }

    } else if (!ngx_rl_eval_number(eval, call)) {
        return 0;
    }

    eval->scripts[eval->n++] = call;

    return 1;
}


/* keys whose limits are the same; no key twice, as all are read at once */

static int
ngx_rl_eval_fits(const ngx_rl_eval_t *eval, const ngx_rl_call_t *call)
{
    size_t  i;

    if (eval->n && !ngx_rl_eval_alike(eval->scripts[0], call)) {
        return 0;
    }

    for (i = 0; i < eval->n; i++) {
        if (ngx_rl_claim_same(eval->scripts[i]->claims[0], call->claims[0])) {
            return 0;
        }
    }

    return 1;
}


/*
 * Which of the limits are those of a call.  One that others have, too, has to
 * be the same limit in all respects, as the script looks at each but once.
 */

static int
ngx_rl_eval_number(ngx_rl_eval_t *eval, ngx_rl_call_t *call)
{
    size_t           i, k, limits, numbers;
    ngx_rl_claim_t  *claim;

    if (eval->n
        && (ngx_rl_call_short(eval->scripts[0])
            || eval->scripts[0]->preview != call->preview
            || eval->scripts[0]->clock != call->clock))
    {
        return 0;
    }

    limits = eval->nlimits;
    numbers = eval->nnumbers;

    if (numbers + call->n > NGX_RL_NUMBERS) {
        return 0;
    }

    for (i = 0; i < call->n; i++) {
        claim = call->claims[i];

        for (k = 0; k < eval->nlimits; k++) {
            if (ngx_rl_claim_same(eval->limits[k], claim)) {
                break;
            }
        }

        if (k == eval->nlimits) {
            k = limits;

            if (k == NGX_RL_EVAL_CALLS) {
                return 0;
            }

            eval->limits[limits++] = claim;

        } else if (eval->limits[k]->shadow != claim->shadow
                   || !ngx_rl_bucket_same(&eval->limits[k]->bucket,
                                          &claim->bucket))
        {
            return 0;
        }

        eval->numbers[numbers++] = (unsigned char) (k + 1);
    }

    eval->nlimits = limits;
    eval->nnumbers = numbers;

    return 1;
}


long long
ngx_rl_eval_format(char **command, ngx_rl_eval_t *eval, unsigned with_text)
{
    size_t          i, k;
    ngx_rl_call_t  *call;

    for (i = 0; i < eval->n; i++) {
        call = eval->scripts[i];

        eval->elements[i] = (call->times > 1) ? 1 : 0;

        for (k = 0; k < call->n; k++) {
            eval->elements[i] +=
                       ngx_rl_bucket_states(&call->claims[k]->bucket);
        }
    }

    if (ngx_rl_call_short(eval->scripts[0])) {
        return ngx_rl_eval_short(command, eval, with_text);
    }

    return ngx_rl_eval_take(command, eval, with_text);
}


static long long
ngx_rl_eval_short(char **command, ngx_rl_eval_t *eval, unsigned with_text)
{
    size_t                  i;
    uint64_t                tick, several, now;
    ngx_rl_resp_t           args;
    const ngx_rl_lua_t     *lua;
    const ngx_rl_bucket_t  *bucket;

    bucket = &eval->scripts[0]->claims[0]->bucket;

    lua = (bucket->algorithm == NGX_RL_GCRA)
          ? &ngx_rl_gcra : &ngx_rl_token_bucket;

    ngx_rl_eval_script(&args, with_text, lua, eval->n);

    several = 0;

    for (i = 0; i < eval->n; i++) {
        ngx_rl_resp_add(&args, eval->scripts[i]->claims[0]->key,
                        eval->scripts[i]->claims[0]->len);
        several |= (eval->scripts[i]->times > 1);
    }

    if (bucket->algorithm == NGX_RL_GCRA) {
        tick = ngx_rl_gcra_tick(&bucket->rate);

        ngx_rl_resp_number(&args, bucket->capacity * tick);
        ngx_rl_resp_number(&args, bucket->cost * tick);
        ngx_rl_resp_number(&args, bucket->varies);

    } else {
        ngx_rl_resp_number(&args, bucket->capacity);
        ngx_rl_resp_number(&args, bucket->rate.num);
        ngx_rl_resp_number(&args, bucket->rate.den);
        ngx_rl_resp_number(&args, bucket->cost);
        ngx_rl_resp_number(&args, ngx_rl_bucket_ttl(bucket));

        now = ngx_rl_eval_slow(bucket) ? eval->scripts[0]->now
                                                     : 0;

        if (now || several) {
            ngx_rl_resp_number(&args, now);
        }
    }

    for (i = 0; several && i < eval->n; i++) {
        ngx_rl_resp_number(&args, eval->scripts[i]->times);

        /* where one is told how many pass, all are */
        eval->elements[i] = 2;
    }

    return ngx_rl_resp_format(command, &args);
}


static long long
ngx_rl_eval_take(char **command, ngx_rl_eval_t *eval, unsigned with_text)
{
    size_t                i, k;
    ngx_rl_resp_t         args;
    ngx_rl_call_t        *call;
    const unsigned char  *number;

    call = eval->scripts[0];

    ngx_rl_eval_script(&args, with_text, &ngx_rl_take, eval->nlimits);

    for (i = 0; i < eval->nlimits; i++) {
        ngx_rl_resp_add(&args, eval->limits[i]->key, eval->limits[i]->len);
    }

    ngx_rl_resp_word(&args, call->preview ? "peek" : "take");
    ngx_rl_resp_word(&args, call->clock ? "nginx" : "redis");
    ngx_rl_resp_number(&args, call->now);
    ngx_rl_resp_add(&args, call->id, call->id_len);
    ngx_rl_resp_number(&args, call->times);

    for (i = 0; i < eval->nlimits; i++) {
        ngx_rl_eval_claim(&args, eval->limits[i]);
    }

    /* a single one has all of them */

    number = eval->numbers;

    for (i = 0; eval->n > 1 && i < eval->n; i++) {
        call = eval->scripts[i];

        ngx_rl_resp_number(&args, call->times);
        ngx_rl_resp_number(&args, call->n);

        for (k = 0; k < call->n; k++) {
            ngx_rl_resp_number(&args, *number++);
        }
    }

    return ngx_rl_resp_format(command, &args);
}


/* whether two short calls are the same but for the key and the times */

static int
ngx_rl_eval_alike(const ngx_rl_call_t *a, const ngx_rl_call_t *b)
{
    const ngx_rl_bucket_t  *x, *y;

    x = &a->claims[0]->bucket;
    y = &b->claims[0]->bucket;

    return ngx_rl_call_short(a)
           && x->algorithm == y->algorithm && x->capacity == y->capacity
           && x->cost == y->cost && x->rate.num == y->rate.num
           && x->rate.den == y->rate.den && x->varies == y->varies;
}


long long
ngx_rl_eval_refund(char **command,
    const ngx_rl_refund_t *refunds, size_t n, unsigned with_text)
{
    size_t                  i;
    uint64_t                amount;
    ngx_rl_resp_t           args;
    const ngx_rl_bucket_t  *bucket;

    ngx_rl_eval_script(&args, with_text, &ngx_rl_refund, n);

    for (i = 0; i < n; i++) {
        ngx_rl_resp_add(&args, refunds[i].key, refunds[i].len);
    }

    for (i = 0; i < n; i++) {
        bucket = &refunds[i].bucket;
        amount = refunds[i].tokens;

        if (bucket->algorithm == NGX_RL_GCRA) {
            amount *= ngx_rl_gcra_tick(&bucket->rate);
        }

        ngx_rl_resp_word(&args, ngx_rl_algorithm_names[bucket->algorithm]);
        ngx_rl_resp_number(&args, bucket->capacity);
        ngx_rl_resp_number(&args, amount);
        ngx_rl_resp_add(&args, refunds[i].id, refunds[i].id_len);
    }

    return ngx_rl_resp_format(command, &args);
}


/* with its text, as it may be all that a new server has been told so far */

long long
ngx_rl_scripts_probe(char **command, const char *key, size_t len)
{
    ngx_rl_resp_t  args;

    args.n = 0;

    ngx_rl_resp_word(&args, "EVAL");
    ngx_rl_resp_word(&args, NGX_RL_LUA_PROBE);
    ngx_rl_resp_number(&args, 1);
    ngx_rl_resp_add(&args, key, len);

    return ngx_rl_resp_format(command, &args);
}


long long
ngx_rl_scripts_load(char **command, size_t i)
{
    if (i >= sizeof(ngx_rl_scripts) / sizeof(ngx_rl_scripts[0])) {
        return -2;
    }

    return ngx_rl_resp_command(command, "SCRIPT", "LOAD",
                               ngx_rl_scripts[i]->text, NULL);
}


long long
ngx_rl_resp_command(char **command, ...)
{
    va_list        words;
    const char    *word;
    ngx_rl_resp_t  args;

    args.n = 0;

    va_start(words, command);

    for ( ;; ) {
        word = va_arg(words, const char *);

        if (word == NULL) {
            break;
        }

        ngx_rl_resp_word(&args, word);
    }

    va_end(words);

    return ngx_rl_resp_format(command, &args);
}


ngx_rl_failure_e
ngx_rl_eval_reply(const ngx_rl_reply_t *reply, ngx_rl_eval_t *eval)
{
    size_t          i, n;
    ngx_rl_reply_t  single, *first, **element;

    if (reply->type == REDIS_REPLY_ERROR) {
        return ngx_rl_failure(reply->str, reply->len);
    }

    n = 0;

    for (i = 0; i < eval->n; i++) {
        n += eval->elements[i];
    }

    if (n == 1) {

        /* no array */

        single = *reply;
        first = &single;
        element = &first;

    } else if (reply->type == REDIS_REPLY_ARRAY && reply->elements == n) {
        element = reply->element;

    } else {
        return NGX_RL_PROTOCOL;
    }

    for (i = 0; i < eval->n; i++) {

        if (eval->scripts[i]
            && !ngx_rl_eval_states(eval->scripts[i], element,
                                   eval->elements[i]))
        {
            return NGX_RL_PROTOCOL;
        }

        element += eval->elements[i];
    }

    return NGX_RL_OK;
}


/* of one call; 0: these can't be its numbers */

static int
ngx_rl_eval_states(ngx_rl_call_t *call,
    ngx_rl_reply_t *const *element, size_t n)
{
    size_t           i, k, told, states;
    ngx_rl_reply_t  *error;

    call->failure = NGX_RL_OK;
    call->passed = 0;

    error = NULL;
    states = 0;

    for (i = 0; i < n; i++) {

        if (element[i]->type == REDIS_REPLY_ERROR) {
            error = element[i];

        } else if (element[i]->type != REDIS_REPLY_INTEGER) {
            return 0;
        }
    }

    if (error) {
        /* somebody else's data is in one of its keys */

        call->failure = ngx_rl_failure(error->str, error->len);
        call->error = error;
        return 1;
    }

    for (i = 0; i < call->n; i++) {
        states += ngx_rl_bucket_states(&call->claims[i]->bucket);
    }

    told = n - states;

    if (told && (element[0]->integer < 0 || element[0]->integer > call->times))
    {
        return 0;
    }

    k = told;

    for (i = 0; i < call->n; i++) {
        states = ngx_rl_bucket_states(&call->claims[i]->bucket);

        for (n = 0; n < states; n++) {
            ngx_rl_eval_state(call->claims[i], n, element[k++]->integer);
        }
    }

    call->passed = told ? (uint32_t) element[0]->integer
                          : (call->claims[0]->state[0] >= 0);

    return 1;
}


/* of GCRA, ticks are told, and microtokens are what we count */

static void
ngx_rl_eval_state(ngx_rl_claim_t *claim, size_t i, int64_t n)
{
    uint64_t       left;
    ngx_rl_rate_t  rate;

    if (claim->bucket.algorithm == NGX_RL_GCRA) {
        left = (n < 0) ? (uint64_t) (-1 - n) : (uint64_t) n;

        /* a year of ticks times a million needs more than 64 bits */

        rate.num = NGX_RL_MICRO;
        rate.den = ngx_rl_gcra_tick(&claim->bucket.rate);

        left = ngx_rl_rate_refill(&rate, left);
        left = (left < INT64_MAX) ? left : INT64_MAX;

        n = (n < 0) ? -1 - (int64_t) left : (int64_t) left;
    }

    claim->state[i] = n;
}


int
ngx_rl_call_enforced(const ngx_rl_call_t *call)
{
    size_t  i;

    for (i = 0; i < call->n; i++) {
        if (!call->claims[i]->shadow) {
            return 1;
        }
    }

    return 0;
}


int
ngx_rl_call_taken(const ngx_rl_call_t *call)
{
    int     taken;
    size_t  i;

    if (call->preview) {
        return 0;
    }

    taken = 0;

    for (i = 0; i < call->n; i++) {

        if (call->claims[i]->state[0] >= 0) {
            taken = 1;

        } else if (!call->claims[i]->shadow) {
            return 0;
        }
    }

    return taken;
}


/*
 * Calls that are a part of a request are not combined, so many of them may be
 * for one key: of slow buckets, they share commands of take.lua
 */

int
ngx_rl_call_short(const ngx_rl_call_t *call)
{
    const ngx_rl_bucket_t  *bucket;

    bucket = &call->claims[0]->bucket;

    return call->n == 1
           && !call->preview
           && !call->clock
           && bucket->step == 0
           && bucket->algorithm != NGX_RL_SLIDING_WINDOW_LOG
           && (!call->part
               || bucket->algorithm == NGX_RL_GCRA
               || !ngx_rl_eval_slow(bucket));
}


/* whether so much comes in a leap of a clock that another one has to witness */

static int
ngx_rl_eval_slow(const ngx_rl_bucket_t *bucket)
{
    return ngx_rl_bucket_ttl(bucket) > NGX_RL_HOUR;
}


static void
ngx_rl_eval_claim(ngx_rl_resp_t *args, const ngx_rl_claim_t *claim)
{
    uint64_t                tick;
    const ngx_rl_bucket_t  *bucket;

    bucket = &claim->bucket;
    tick = (bucket->algorithm == NGX_RL_GCRA)
           ? ngx_rl_gcra_tick(&bucket->rate) : 1;

    ngx_rl_resp_word(args, ngx_rl_algorithm_names[bucket->algorithm]);
    ngx_rl_resp_word(args, claim->shadow ? "shadow" : "enforced");
    ngx_rl_resp_number(args, bucket->capacity * tick);
    ngx_rl_resp_number(args, bucket->cost * tick);

    if (bucket->algorithm == NGX_RL_SLIDING_WINDOW_LOG) {
        ngx_rl_resp_number(args, bucket->window);
        ngx_rl_resp_number(args, 0);
        ngx_rl_resp_number(args, 0);

    } else {
        ngx_rl_resp_number(args, bucket->rate.num);
        ngx_rl_resp_number(args, bucket->rate.den);
        ngx_rl_resp_number(args, bucket->algorithm == NGX_RL_GCRA
                           ? bucket->varies : bucket->step);
    }

    /* how long the state of gcra is kept, it says itself */

    ngx_rl_resp_number(args, bucket->algorithm == NGX_RL_GCRA
                       ? 0 : ngx_rl_bucket_ttl(bucket));
}


/* what every call begins with */

static void
ngx_rl_eval_script(ngx_rl_resp_t *args,
    unsigned with_text, const ngx_rl_lua_t *lua, size_t keys)
{
    args->n = 0;

    ngx_rl_resp_word(args, with_text ? "EVAL" : "EVALSHA");
    ngx_rl_resp_word(args, with_text ? lua->text : lua->sha1);
    ngx_rl_resp_number(args, keys);
}


static void
ngx_rl_resp_add(ngx_rl_resp_t *args, const char *data, size_t len)
{
    args->argv[args->n] = data;
    args->lens[args->n] = len;
    args->n++;
}


static void
ngx_rl_resp_word(ngx_rl_resp_t *args, const char *word)
{
    ngx_rl_resp_add(args, word, strlen(word));
}


static void
ngx_rl_resp_number(ngx_rl_resp_t *args, uint64_t n)
{
    char  *p, *last;

    last = args->numbers[args->n] + NGX_RL_NUMBER_LEN;
    p = ngx_rl_number(last, n);

    ngx_rl_resp_add(args, p, last - p);
}


/*
 * An array of bulk strings.  hiredis has a function for that, which takes a
 * microsecond, most of it in sprintf(): too much for every request.
 */

static long long
ngx_rl_resp_format(char **command, ngx_rl_resp_t *args)
{
    int     i;
    char   *p;
    size_t  size;

    size = NGX_RL_PREFIX_LEN;

    for (i = 0; i < args->n; i++) {
        size += NGX_RL_PREFIX_LEN + args->lens[i] + 2;
    }

    *command = malloc(size);

    if (*command == NULL) {
        return -1;
    }

    p = ngx_rl_prefix(*command, '*', args->n);

    for (i = 0; i < args->n; i++) {
        p = ngx_rl_prefix(p, '$', args->lens[i]);

        memcpy(p, args->argv[i], args->lens[i]);
        p += args->lens[i];

        *p++ = '\r';
        *p++ = '\n';
    }

    return p - *command;
}


static char *
ngx_rl_prefix(char *p, char type, uint64_t n)
{
    char   *digits;
    char    buf[NGX_RL_NUMBER_LEN];
    size_t  len;

    digits = ngx_rl_number(buf + sizeof(buf), n);
    len = buf + sizeof(buf) - digits;

    *p++ = type;
    memcpy(p, digits, len);
    p += len;

    *p++ = '\r';
    *p++ = '\n';

    return p;
}


void
ngx_rl_resp_free(char *command)
{
    free(command);
}
