
/*
 * token_bucket.lua is the short way for the commonest call: one bucket that
 * refills within an hour, by Redis's clock.  All else goes to take.lua, which
 * keeps buckets in the same form.
 */


#include <stdarg.h>
#include <string.h>

#include "ngx_http_ratelimit_script.h"
#include "ngx_http_ratelimit_lua.h"


#define NGX_HTTP_RATELIMIT_HOUR        3600000               /* ms */
#define NGX_HTTP_RATELIMIT_NUMBER_LEN  sizeof("18446744073709551615")

/* EVALSHA sha n KEYS..., four for all, eight a claim */
#define NGX_HTTP_RATELIMIT_ARGS        (7 + 9 * NGX_HTTP_RATELIMIT_CLAIMS)


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


static void ngx_http_ratelimit_args_script(ngx_http_ratelimit_args_t *args,
    const ngx_http_ratelimit_script_t *script,
    const ngx_http_ratelimit_lua_t *lua);
static void ngx_http_ratelimit_args_add(ngx_http_ratelimit_args_t *args,
    const char *data, size_t len);
static void ngx_http_ratelimit_args_word(ngx_http_ratelimit_args_t *args,
    const char *word);
static void ngx_http_ratelimit_args_number(ngx_http_ratelimit_args_t *args,
    uint64_t n);
static long long ngx_http_ratelimit_args_format(char **command,
    ngx_http_ratelimit_args_t *args);
static void ngx_http_ratelimit_args_claim(ngx_http_ratelimit_args_t *args,
    const ngx_http_ratelimit_claim_t *claim);
static int ngx_http_ratelimit_script_short(
    const ngx_http_ratelimit_script_t *script);
static uint64_t ngx_http_ratelimit_script_ttl(
    const ngx_http_ratelimit_bucket_t *bucket);


static const ngx_http_ratelimit_lua_t  ngx_http_ratelimit_token_bucket = {
    NGX_HTTP_RATELIMIT_LUA_TOKEN_BUCKET,
    NGX_HTTP_RATELIMIT_LUA_TOKEN_BUCKET_SHA1
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
    &ngx_http_ratelimit_take,
    &ngx_http_ratelimit_refund
};


long long
ngx_http_ratelimit_script_take(char **command,
    const ngx_http_ratelimit_script_t *script)
{
    size_t                              i;
    ngx_http_ratelimit_args_t           args;
    const ngx_http_ratelimit_bucket_t  *bucket;

    if (ngx_http_ratelimit_script_short(script)) {
        bucket = &script->claims[0]->bucket;

        ngx_http_ratelimit_args_script(&args, script,
                                       &ngx_http_ratelimit_token_bucket);

        ngx_http_ratelimit_args_number(&args, bucket->capacity);
        ngx_http_ratelimit_args_number(&args, bucket->rate.num);
        ngx_http_ratelimit_args_number(&args, bucket->rate.den);
        ngx_http_ratelimit_args_number(&args, bucket->cost);
        ngx_http_ratelimit_args_number(&args,
                                       ngx_http_ratelimit_script_ttl(bucket));

        return ngx_http_ratelimit_args_format(command, &args);
    }

    ngx_http_ratelimit_args_script(&args, script, &ngx_http_ratelimit_take);

    ngx_http_ratelimit_args_word(&args, script->preview ? "peek" : "take");
    ngx_http_ratelimit_args_word(&args, script->clock ? "nginx" : "redis");
    ngx_http_ratelimit_args_number(&args, script->now);
    ngx_http_ratelimit_args_add(&args, script->id, script->id_len);

    for (i = 0; i < script->n; i++) {
        ngx_http_ratelimit_args_claim(&args, script->claims[i]);
    }

    return ngx_http_ratelimit_args_format(command, &args);
}


long long
ngx_http_ratelimit_script_refund(char **command,
    const ngx_http_ratelimit_script_t *script)
{
    size_t                              i;
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

    ngx_http_ratelimit_args_script(&args, &taken, &ngx_http_ratelimit_refund);
    ngx_http_ratelimit_args_add(&args, taken.id, taken.id_len);

    for (i = 0; i < taken.n; i++) {
        bucket = &taken.claims[i]->bucket;

        ngx_http_ratelimit_args_word(&args,
            bucket->algorithm == NGX_HTTP_RATELIMIT_SLIDING_WINDOW_LOG
            ? "window" : "bucket");
        ngx_http_ratelimit_args_number(&args, bucket->capacity);
        ngx_http_ratelimit_args_number(&args, bucket->cost);
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

    n = 0;

    for (i = 0; i < script->n; i++) {
        n += ngx_http_ratelimit_states(&script->claims[i]->bucket);
    }

    if (reply->type == REDIS_REPLY_INTEGER && n == 1) {
        script->claims[0]->state[0] = reply->integer;

    } else if (reply->type == REDIS_REPLY_ARRAY && reply->elements == n
               && n != 1)
    {
        for (i = 0, k = 0; i < script->n; i++) {
            claim = script->claims[i];
            n = ngx_http_ratelimit_states(&claim->bucket);

            for (j = 0; j < n; j++, k++) {

                if (reply->element[k]->type != REDIS_REPLY_INTEGER) {
                    return NGX_HTTP_RATELIMIT_PROTOCOL;
                }

                claim->state[j] = reply->element[k]->integer;
            }
        }

    } else {
        return NGX_HTTP_RATELIMIT_PROTOCOL;
    }

    for (i = 0; i < script->n; i++) {
        claim = script->claims[i];

        ngx_http_ratelimit_decide(&claim->decision, &claim->bucket,
                                  claim->state);
        claim->decision.source = NGX_HTTP_RATELIMIT_SOURCE_REDIS;
    }

    return NGX_HTTP_RATELIMIT_OK;
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


static int
ngx_http_ratelimit_script_short(const ngx_http_ratelimit_script_t *script)
{
    const ngx_http_ratelimit_bucket_t  *bucket;

    bucket = &script->claims[0]->bucket;

    return script->n == 1
           && !script->preview
           && !script->clock
           && bucket->algorithm == NGX_HTTP_RATELIMIT_TOKEN_BUCKET
           && bucket->step == 0
           && ngx_http_ratelimit_script_ttl(bucket) <= NGX_HTTP_RATELIMIT_HOUR;
}


static void
ngx_http_ratelimit_args_claim(ngx_http_ratelimit_args_t *args,
    const ngx_http_ratelimit_claim_t *claim)
{
    const ngx_http_ratelimit_bucket_t  *bucket;

    bucket = &claim->bucket;

    if (bucket->algorithm == NGX_HTTP_RATELIMIT_SLIDING_WINDOW_LOG) {
        ngx_http_ratelimit_args_word(args, "window");

    } else {
        ngx_http_ratelimit_args_word(args, "bucket");
    }

    ngx_http_ratelimit_args_word(args, claim->shadow ? "shadow" : "enforced");
    ngx_http_ratelimit_args_number(args, bucket->capacity);
    ngx_http_ratelimit_args_number(args, bucket->cost);

    if (bucket->algorithm == NGX_HTTP_RATELIMIT_SLIDING_WINDOW_LOG) {
        ngx_http_ratelimit_args_number(args, bucket->window);
        ngx_http_ratelimit_args_number(args, 0);
        ngx_http_ratelimit_args_number(args, 0);

    } else {
        ngx_http_ratelimit_args_number(args, bucket->rate.num);
        ngx_http_ratelimit_args_number(args, bucket->rate.den);
        ngx_http_ratelimit_args_number(args, bucket->step);
    }

    ngx_http_ratelimit_args_number(args,
                                   ngx_http_ratelimit_script_ttl(bucket));
}


/* what every call begins with */

static void
ngx_http_ratelimit_args_script(ngx_http_ratelimit_args_t *args,
    const ngx_http_ratelimit_script_t *script,
    const ngx_http_ratelimit_lua_t *lua)
{
    size_t  i;

    args->n = 0;

    ngx_http_ratelimit_args_word(args, script->eval ? "EVAL" : "EVALSHA");
    ngx_http_ratelimit_args_word(args, script->eval ? lua->text : lua->sha1);
    ngx_http_ratelimit_args_number(args, script->n);

    for (i = 0; i < script->n; i++) {
        ngx_http_ratelimit_args_add(args, script->claims[i]->key,
                                    script->claims[i]->len);
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
    p = last;

    do {
        *--p = (char) ('0' + n % 10);
        n /= 10;
    } while (n);

    ngx_http_ratelimit_args_add(args, p, last - p);
}


static long long
ngx_http_ratelimit_args_format(char **command,
    ngx_http_ratelimit_args_t *args)
{
    return redisFormatCommandArgv(command, args->n, args->argv, args->lens);
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
