
/*
 * token_bucket.lua is the short way for the commonest call: one bucket that
 * refills within an hour, by Redis's clock; gcra.lua is the same for its kind.
 * All else goes to take.lua, which keeps limits in the same form.
 */


#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "ngx_http_ratelimit_script.h"
#include "ngx_http_ratelimit_lua.h"


#define NGX_HTTP_RATELIMIT_HOUR        3600000               /* ms */
#define NGX_HTTP_RATELIMIT_NUMBER_LEN  sizeof("18446744073709551615")
#define NGX_HTTP_RATELIMIT_PREFIX_LEN  (NGX_HTTP_RATELIMIT_NUMBER_LEN + 3)

/* EVALSHA sha n KEYS..., five for all, eight a claim */
#define NGX_HTTP_RATELIMIT_ARGS        (8 + 9 * NGX_HTTP_RATELIMIT_CLAIMS)


typedef struct {
    const char  *text;
    const char  *sha1;
} ngx_http_ratelimit_lua_t;


/* a command being put together */

typedef struct {
    int          n;
    const char  *argv[NGX_HTTP_RATELIMIT_ARGS];
    size_t       lens[NGX_HTTP_RATELIMIT_ARGS];
    char         numbers[NGX_HTTP_RATELIMIT_ARGS]
                        [NGX_HTTP_RATELIMIT_NUMBER_LEN];
} ngx_http_ratelimit_args_t;


static long long ngx_http_ratelimit_script_brief(char **command,
    ngx_http_ratelimit_claim_t *const *claims, size_t n, uint32_t times,
    unsigned eval);
static void ngx_http_ratelimit_args_script(ngx_http_ratelimit_args_t *args,
    ngx_http_ratelimit_claim_t *const *claims, size_t n, unsigned eval,
    const ngx_http_ratelimit_lua_t *lua);
static void ngx_http_ratelimit_args_add(ngx_http_ratelimit_args_t *args,
    const char *data, size_t len);
static void ngx_http_ratelimit_args_word(ngx_http_ratelimit_args_t *args,
    const char *word);
static void ngx_http_ratelimit_args_number(ngx_http_ratelimit_args_t *args,
    uint64_t n);
static char *ngx_http_ratelimit_digits(char *last, uint64_t n);
static long long ngx_http_ratelimit_args_format(char **command,
    ngx_http_ratelimit_args_t *args);
static char *ngx_http_ratelimit_prefix(char *p, char type, uint64_t n);
static void ngx_http_ratelimit_args_claim(ngx_http_ratelimit_args_t *args,
    const ngx_http_ratelimit_claim_t *claim);
static void ngx_http_ratelimit_script_state(ngx_http_ratelimit_claim_t *claim,
    size_t i, int64_t n);
static uint64_t ngx_http_ratelimit_script_ttl(
    const ngx_http_ratelimit_bucket_t *bucket);


/* as the scripts call them, in the order of their numbers */

static const char  *ngx_http_ratelimit_algorithm_names[] = {
    "bucket",
    "window",
    "gcra"
};


static const ngx_http_ratelimit_lua_t  ngx_http_ratelimit_token_bucket = {
    NGX_HTTP_RATELIMIT_LUA_TOKEN_BUCKET,
    NGX_HTTP_RATELIMIT_LUA_TOKEN_BUCKET_SHA1
};

static const ngx_http_ratelimit_lua_t  ngx_http_ratelimit_gcra = {
    NGX_HTTP_RATELIMIT_LUA_GCRA,
    NGX_HTTP_RATELIMIT_LUA_GCRA_SHA1
};

static const ngx_http_ratelimit_lua_t  ngx_http_ratelimit_take = {
    NGX_HTTP_RATELIMIT_LUA_TAKE,
    NGX_HTTP_RATELIMIT_LUA_TAKE_SHA1
};

static const ngx_http_ratelimit_lua_t  ngx_http_ratelimit_refund = {
    NGX_HTTP_RATELIMIT_LUA_REFUND,
    NGX_HTTP_RATELIMIT_LUA_REFUND_SHA1
};

static const ngx_http_ratelimit_lua_t  *ngx_http_ratelimit_scripts[] = {
    &ngx_http_ratelimit_token_bucket,
    &ngx_http_ratelimit_gcra,
    &ngx_http_ratelimit_take,
    &ngx_http_ratelimit_refund
};


long long
ngx_http_ratelimit_script_take(char **command,
    const ngx_http_ratelimit_script_t *script)
{
    size_t                      i;
    ngx_http_ratelimit_args_t   args;

    if (ngx_http_ratelimit_script_short(script)) {
        return ngx_http_ratelimit_script_brief(command, script->claims,
                                               script->n, script->times,
                                               script->eval);
    }

    ngx_http_ratelimit_args_script(&args, script->claims, script->n,
                                   script->eval, &ngx_http_ratelimit_take);

    ngx_http_ratelimit_args_word(&args, script->preview ? "peek" : "take");
    ngx_http_ratelimit_args_word(&args, script->clock ? "nginx" : "redis");
    ngx_http_ratelimit_args_number(&args, script->now);
    ngx_http_ratelimit_args_add(&args, script->id, script->id_len);
    ngx_http_ratelimit_args_number(&args, script->times);

    for (i = 0; i < script->n; i++) {
        ngx_http_ratelimit_args_claim(&args, script->claims[i]);
    }

    return ngx_http_ratelimit_args_format(command, &args);
}


long long
ngx_http_ratelimit_script_batch(char **command,
    ngx_http_ratelimit_claim_t **claims, size_t n, unsigned eval)
{
    return ngx_http_ratelimit_script_brief(command, claims, n, 1, eval);
}


/* one of the short scripts */

static long long
ngx_http_ratelimit_script_brief(char **command,
    ngx_http_ratelimit_claim_t *const *claims, size_t n, uint32_t times,
    unsigned eval)
{
    uint64_t                            tick;
    ngx_http_ratelimit_args_t           args;
    const ngx_http_ratelimit_bucket_t  *bucket;

    bucket = &claims[0]->bucket;

    if (bucket->algorithm == NGX_HTTP_RATELIMIT_GCRA) {
        tick = ngx_http_ratelimit_gcra_tick(&bucket->rate);

        ngx_http_ratelimit_args_script(&args, claims, n, eval,
                                       &ngx_http_ratelimit_gcra);

        ngx_http_ratelimit_args_number(&args, bucket->capacity * tick);
        ngx_http_ratelimit_args_number(&args, bucket->cost * tick);

    } else {
        ngx_http_ratelimit_args_script(&args, claims, n, eval,
                                       &ngx_http_ratelimit_token_bucket);

        ngx_http_ratelimit_args_number(&args, bucket->capacity);
        ngx_http_ratelimit_args_number(&args, bucket->rate.num);
        ngx_http_ratelimit_args_number(&args, bucket->rate.den);
        ngx_http_ratelimit_args_number(&args, bucket->cost);
        ngx_http_ratelimit_args_number(&args,
                                       ngx_http_ratelimit_script_ttl(bucket));
    }

    if (bucket->algorithm == NGX_HTTP_RATELIMIT_GCRA && bucket->varies) {
        ngx_http_ratelimit_args_number(&args, times);
        ngx_http_ratelimit_args_number(&args, 1);

    } else if (times > 1) {
        ngx_http_ratelimit_args_number(&args, times);
    }

    return ngx_http_ratelimit_args_format(command, &args);
}


int
ngx_http_ratelimit_script_alike(const ngx_http_ratelimit_script_t *a,
    const ngx_http_ratelimit_script_t *b)
{
    const ngx_http_ratelimit_bucket_t  *x, *y;

    if (a->times != 1 || b->times != 1
        || !ngx_http_ratelimit_script_short(a)
        || !ngx_http_ratelimit_script_short(b))
    {
        return 0;
    }

    x = &a->claims[0]->bucket;
    y = &b->claims[0]->bucket;

    return x->algorithm == y->algorithm && x->capacity == y->capacity
           && x->cost == y->cost && x->rate.num == y->rate.num
           && x->rate.den == y->rate.den && x->varies == y->varies;
}


long long
ngx_http_ratelimit_script_refund(char **command,
    const ngx_http_ratelimit_script_t *script, uint64_t times)
{
    size_t                              i;
    uint64_t                            amount;
    ngx_http_ratelimit_args_t           args;
    ngx_http_ratelimit_script_t         taken;
    const ngx_http_ratelimit_bucket_t  *bucket;

    /* a shadow limit that denied took nothing */

    taken = *script;
    taken.n = 0;

    for (i = 0; i < script->n; i++) {
        if (script->claims[i]->state[0] >= 0) {
            taken.claims[taken.n++] = script->claims[i];
        }
    }

    ngx_http_ratelimit_args_script(&args, taken.claims, taken.n, taken.eval,
                                   &ngx_http_ratelimit_refund);
    ngx_http_ratelimit_args_add(&args, taken.id, taken.id_len);

    for (i = 0; i < taken.n; i++) {
        bucket = &taken.claims[i]->bucket;
        amount = bucket->cost * times;

        if (bucket->algorithm == NGX_HTTP_RATELIMIT_GCRA) {
            amount *= ngx_http_ratelimit_gcra_tick(&bucket->rate);
        }

        ngx_http_ratelimit_args_word(&args,
                       ngx_http_ratelimit_algorithm_names[bucket->algorithm]);
        ngx_http_ratelimit_args_number(&args, bucket->capacity);
        ngx_http_ratelimit_args_number(&args, amount);
    }

    return ngx_http_ratelimit_args_format(command, &args);
}


/* with its text, as it may be all that a new server has been told so far */

long long
ngx_http_ratelimit_script_probe(char **command, const char *key, size_t len)
{
    ngx_http_ratelimit_args_t  args;

    args.n = 0;

    ngx_http_ratelimit_args_word(&args, "EVAL");
    ngx_http_ratelimit_args_word(&args, NGX_HTTP_RATELIMIT_LUA_PROBE);
    ngx_http_ratelimit_args_number(&args, 1);
    ngx_http_ratelimit_args_add(&args, key, len);

    return ngx_http_ratelimit_args_format(command, &args);
}


long long
ngx_http_ratelimit_script_load(char **command, size_t i)
{
    if (i >= sizeof(ngx_http_ratelimit_scripts)
             / sizeof(ngx_http_ratelimit_scripts[0]))
    {
        return -2;
    }

    return ngx_http_ratelimit_script_command(command, "SCRIPT", "LOAD",
                                   ngx_http_ratelimit_scripts[i]->text, NULL);
}


long long
ngx_http_ratelimit_script_command(char **command, ...)
{
    va_list                     words;
    const char                 *word;
    ngx_http_ratelimit_args_t   args;

    args.n = 0;

    va_start(words, command);

    for ( ;; ) {
        word = va_arg(words, const char *);

        if (word == NULL) {
            break;
        }

        ngx_http_ratelimit_args_word(&args, word);
    }

    va_end(words);

    return ngx_http_ratelimit_args_format(command, &args);
}


ngx_http_ratelimit_failure_e
ngx_http_ratelimit_script_reply(const ngx_http_ratelimit_reply_t *reply,
    ngx_http_ratelimit_script_t *script)
{
    size_t                       i, j, k, n;
    ngx_http_ratelimit_claim_t  *claim;

    if (reply->type == REDIS_REPLY_ERROR) {
        return ngx_http_ratelimit_failure(reply->str, reply->len);
    }

    n = (script->times > 1) ? 1 : 0;

    for (i = 0; i < script->n; i++) {
        n += ngx_http_ratelimit_states(&script->claims[i]->bucket);
    }

    if (n == 1) {

        if (reply->type != REDIS_REPLY_INTEGER) {
            return NGX_HTTP_RATELIMIT_PROTOCOL;
        }

        ngx_http_ratelimit_script_state(script->claims[0], 0, reply->integer);
        script->passed = (reply->integer >= 0);

        return NGX_HTTP_RATELIMIT_OK;
    }

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != n) {
        return NGX_HTTP_RATELIMIT_PROTOCOL;
    }

    for (k = 0; k < n; k++) {
        if (reply->element[k]->type != REDIS_REPLY_INTEGER) {
            return NGX_HTTP_RATELIMIT_PROTOCOL;
        }
    }

    k = 0;

    if (script->times > 1) {

        if (reply->element[0]->integer < 0
            || reply->element[0]->integer > script->times)
        {
            return NGX_HTTP_RATELIMIT_PROTOCOL;
        }

        script->passed = (uint32_t) reply->element[k++]->integer;
    }

    for (i = 0; i < script->n; i++) {
        claim = script->claims[i];
        n = ngx_http_ratelimit_states(&claim->bucket);

        for (j = 0; j < n; j++) {
            ngx_http_ratelimit_script_state(claim, j,
                                            reply->element[k++]->integer);
        }
    }

    if (script->times == 1) {
        script->passed = (script->claims[0]->state[0] >= 0);
    }

    return NGX_HTTP_RATELIMIT_OK;
}


ngx_http_ratelimit_failure_e
ngx_http_ratelimit_script_batch_reply(const ngx_http_ratelimit_reply_t *reply,
    ngx_http_ratelimit_claim_t **claims, size_t n)
{
    size_t                        i;
    ngx_http_ratelimit_failure_e  failure;

    if (reply->type == REDIS_REPLY_ERROR) {
        return ngx_http_ratelimit_failure(reply->str, reply->len);
    }

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != n) {
        return NGX_HTTP_RATELIMIT_PROTOCOL;
    }

    for (i = 0; i < n; i++) {

        claims[i]->failure = NGX_HTTP_RATELIMIT_OK;

        if (reply->element[i]->type == REDIS_REPLY_ERROR) {
            /* of one key alone: somebody else's data in it */

            failure = ngx_http_ratelimit_failure(reply->element[i]->str,
                                                 reply->element[i]->len);
            claims[i]->failure = failure;
            continue;
        }

        if (reply->element[i]->type != REDIS_REPLY_INTEGER) {
            return NGX_HTTP_RATELIMIT_PROTOCOL;
        }

        ngx_http_ratelimit_script_state(claims[i], 0,
                                        reply->element[i]->integer);
    }

    return NGX_HTTP_RATELIMIT_OK;
}


/* of GCRA, ticks are told, and microtokens are what we count */

static void
ngx_http_ratelimit_script_state(ngx_http_ratelimit_claim_t *claim, size_t i,
    int64_t n)
{
    uint64_t  left, tick;

    if (claim->bucket.algorithm == NGX_HTTP_RATELIMIT_GCRA) {
        left = (n < 0) ? (uint64_t) (-1 - n) : (uint64_t) n;
        tick = ngx_http_ratelimit_gcra_tick(&claim->bucket.rate);

        left = left / tick * NGX_HTTP_RATELIMIT_MICRO
               + left % tick * NGX_HTTP_RATELIMIT_MICRO / tick;

        n = (n < 0) ? -1 - (int64_t) left : (int64_t) left;
    }

    claim->state[i] = n;
}


int
ngx_http_ratelimit_script_taken(const ngx_http_ratelimit_script_t *script)
{
    int     taken;
    size_t  i;

    if (script->preview) {
        return 0;
    }

    taken = 0;

    for (i = 0; i < script->n; i++) {

        if (script->claims[i]->state[0] >= 0) {
            taken = 1;

        } else if (!script->claims[i]->shadow) {
            return 0;
        }
    }

    return taken;
}


int
ngx_http_ratelimit_script_short(const ngx_http_ratelimit_script_t *script)
{
    const ngx_http_ratelimit_bucket_t  *bucket;

    bucket = &script->claims[0]->bucket;

    return script->n == 1
           && !script->preview
           && !script->clock
           && bucket->step == 0
           && (bucket->algorithm == NGX_HTTP_RATELIMIT_GCRA
               || (bucket->algorithm == NGX_HTTP_RATELIMIT_TOKEN_BUCKET
                   && ngx_http_ratelimit_script_ttl(bucket)
                      <= NGX_HTTP_RATELIMIT_HOUR));
}


static void
ngx_http_ratelimit_args_claim(ngx_http_ratelimit_args_t *args,
    const ngx_http_ratelimit_claim_t *claim)
{
    uint64_t                            tick;
    const ngx_http_ratelimit_bucket_t  *bucket;

    bucket = &claim->bucket;
    tick = (bucket->algorithm == NGX_HTTP_RATELIMIT_GCRA)
           ? ngx_http_ratelimit_gcra_tick(&bucket->rate) : 1;

    ngx_http_ratelimit_args_word(args,
                       ngx_http_ratelimit_algorithm_names[bucket->algorithm]);
    ngx_http_ratelimit_args_word(args, claim->shadow ? "shadow" : "enforced");
    ngx_http_ratelimit_args_number(args, bucket->capacity * tick);
    ngx_http_ratelimit_args_number(args, bucket->cost * tick);

    if (bucket->algorithm == NGX_HTTP_RATELIMIT_SLIDING_WINDOW_LOG) {
        ngx_http_ratelimit_args_number(args, bucket->window);
        ngx_http_ratelimit_args_number(args, 0);
        ngx_http_ratelimit_args_number(args, 0);

    } else {
        ngx_http_ratelimit_args_number(args, bucket->rate.num);
        ngx_http_ratelimit_args_number(args, bucket->rate.den);
        ngx_http_ratelimit_args_number(args,
                      bucket->algorithm == NGX_HTTP_RATELIMIT_GCRA
                      ? bucket->varies : bucket->step);
    }

    ngx_http_ratelimit_args_number(args,
                                   ngx_http_ratelimit_script_ttl(bucket));
}


/* what every call begins with */

static void
ngx_http_ratelimit_args_script(ngx_http_ratelimit_args_t *args,
    ngx_http_ratelimit_claim_t *const *claims, size_t n, unsigned eval,
    const ngx_http_ratelimit_lua_t *lua)
{
    size_t  i;

    args->n = 0;

    ngx_http_ratelimit_args_word(args, eval ? "EVAL" : "EVALSHA");
    ngx_http_ratelimit_args_word(args, eval ? lua->text : lua->sha1);
    ngx_http_ratelimit_args_number(args, n);

    for (i = 0; i < n; i++) {
        ngx_http_ratelimit_args_add(args, claims[i]->key, claims[i]->len);
    }
}


static void
ngx_http_ratelimit_args_add(ngx_http_ratelimit_args_t *args, const char *data,
    size_t len)
{
    args->argv[args->n] = data;
    args->lens[args->n] = len;
    args->n++;
}


static void
ngx_http_ratelimit_args_word(ngx_http_ratelimit_args_t *args,
    const char *word)
{
    ngx_http_ratelimit_args_add(args, word, strlen(word));
}


static void
ngx_http_ratelimit_args_number(ngx_http_ratelimit_args_t *args, uint64_t n)
{
    char  *p, *last;

    last = args->numbers[args->n] + NGX_HTTP_RATELIMIT_NUMBER_LEN;
    p = ngx_http_ratelimit_digits(last, n);

    ngx_http_ratelimit_args_add(args, p, last - p);
}


/* writes a number that ends before "last"; returns where it begins */

static char *
ngx_http_ratelimit_digits(char *last, uint64_t n)
{
    do {
        *--last = (char) ('0' + n % 10);
        n /= 10;
    } while (n);

    return last;
}


/*
 * An array of bulk strings.  hiredis has a function for that, which takes a
 * microsecond, most of it in sprintf(): too much for every request.
 */

static long long
ngx_http_ratelimit_args_format(char **command,
    ngx_http_ratelimit_args_t *args)
{
    int     i;
    char   *p;
    size_t  size;

    size = NGX_HTTP_RATELIMIT_PREFIX_LEN;

    for (i = 0; i < args->n; i++) {
        size += NGX_HTTP_RATELIMIT_PREFIX_LEN + args->lens[i] + 2;
    }

    *command = malloc(size);

    if (*command == NULL) {
        return -1;
    }

    p = ngx_http_ratelimit_prefix(*command, '*', args->n);

    for (i = 0; i < args->n; i++) {
        p = ngx_http_ratelimit_prefix(p, '$', args->lens[i]);

        memcpy(p, args->argv[i], args->lens[i]);
        p += args->lens[i];

        *p++ = '\r';
        *p++ = '\n';
    }

    return p - *command;
}


static char *
ngx_http_ratelimit_prefix(char *p, char type, uint64_t n)
{
    char   *digits;
    char    buf[NGX_HTTP_RATELIMIT_NUMBER_LEN];
    size_t  len;

    digits = ngx_http_ratelimit_digits(buf + sizeof(buf), n);
    len = buf + sizeof(buf) - digits;

    *p++ = type;
    memcpy(p, digits, len);
    p += len;

    *p++ = '\r';
    *p++ = '\n';

    return p;
}


void
ngx_http_ratelimit_script_free(char *command)
{
    free(command);
}


/*
 * A bucket that is gone counts as full and a window as empty, so they may go
 * when they would be, and a second later for the sake of rounding
 */

static uint64_t
ngx_http_ratelimit_script_ttl(const ngx_http_ratelimit_bucket_t *bucket)
{
    uint64_t  us;

    if (bucket->algorithm == NGX_HTTP_RATELIMIT_SLIDING_WINDOW_LOG) {
        us = bucket->window;

    } else {
        us = ngx_http_ratelimit_rate_wait(&bucket->rate,
                               bucket->capacity * NGX_HTTP_RATELIMIT_MICRO);
    }

    us = (us > UINT64_MAX - bucket->step) ? us : us + bucket->step;

    if (us / 1000 > NGX_HTTP_RATELIMIT_TTL_MAX - 1000) {
        return NGX_HTTP_RATELIMIT_TTL_MAX;
    }

    return us / 1000 + 1000;
}
