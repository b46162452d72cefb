
#include <stdarg.h>
#include <string.h>

#include "ngx_http_ratelimit_script.h"
#include "ngx_http_ratelimit_lua.h"


#define NGX_HTTP_RATELIMIT_NUMBER_LEN  sizeof("18446744073709551615")

#define ngx_http_ratelimit_literal(text)                                      \
    (ngx_http_ratelimit_arg_t) { text, sizeof(text) - 1 }


typedef struct {
    const char  *data;
    size_t       len;
} ngx_http_ratelimit_arg_t;


static long long ngx_http_ratelimit_script_format(char **command, int argc,
    const ngx_http_ratelimit_arg_t *args);
static ngx_http_ratelimit_arg_t ngx_http_ratelimit_script_number(char *buf,
    uint64_t n);
static uint64_t ngx_http_ratelimit_script_ttl(
    const ngx_http_ratelimit_bucket_t *bucket);


long long
ngx_http_ratelimit_script_take(char **command, const char *key, size_t len,
    const ngx_http_ratelimit_bucket_t *bucket, int eval)
{
    char                      buf[5][NGX_HTTP_RATELIMIT_NUMBER_LEN];
    ngx_http_ratelimit_arg_t  args[9];

    if (eval) {
        args[0] = ngx_http_ratelimit_literal("EVAL");
        args[1] = ngx_http_ratelimit_literal(
                      NGX_HTTP_RATELIMIT_LUA_TOKEN_BUCKET);

    } else {
        args[0] = ngx_http_ratelimit_literal("EVALSHA");
        args[1] = ngx_http_ratelimit_literal(
                      NGX_HTTP_RATELIMIT_LUA_TOKEN_BUCKET_SHA1);
    }

    args[2] = ngx_http_ratelimit_literal("1");
    args[3].data = key;
    args[3].len = len;

    args[4] = ngx_http_ratelimit_script_number(buf[0], bucket->capacity);
    args[5] = ngx_http_ratelimit_script_number(buf[1], bucket->rate.num);
    args[6] = ngx_http_ratelimit_script_number(buf[2], bucket->rate.den);
    args[7] = ngx_http_ratelimit_script_number(buf[3], bucket->cost);
    args[8] = ngx_http_ratelimit_script_number(buf[4],
                                        ngx_http_ratelimit_script_ttl(bucket));

    return ngx_http_ratelimit_script_format(command, 9, args);
}


long long
ngx_http_ratelimit_script_load(char **command)
{
    return ngx_http_ratelimit_script_command(command, "SCRIPT", "LOAD",
                                           NGX_HTTP_RATELIMIT_LUA_TOKEN_BUCKET,
                                           NULL);
}


long long
ngx_http_ratelimit_script_command(char **command, ...)
{
    int                       argc;
    va_list                   words;
    const char               *word;
    ngx_http_ratelimit_arg_t  args[4];

    va_start(words, command);

    for (argc = 0; argc < 4; argc++) {

        word = va_arg(words, const char *);
        if (word == NULL) {
            break;
        }

        args[argc].data = word;
        args[argc].len = strlen(word);
    }

    va_end(words);

    return ngx_http_ratelimit_script_format(command, argc, args);
}


ngx_http_ratelimit_failure_e
ngx_http_ratelimit_script_reply(const ngx_http_ratelimit_reply_t *reply,
    const ngx_http_ratelimit_bucket_t *bucket,
    ngx_http_ratelimit_decision_t *decision)
{
    switch (reply->type) {

    case REDIS_REPLY_INTEGER:
        ngx_http_ratelimit_decide(decision, bucket, reply->integer);
        decision->source = NGX_HTTP_RATELIMIT_SOURCE_REDIS;
        return NGX_HTTP_RATELIMIT_OK;

    case REDIS_REPLY_ERROR:
        return ngx_http_ratelimit_failure(reply->str, reply->len);

    default:
        return NGX_HTTP_RATELIMIT_PROTOCOL;
    }
}


static long long
ngx_http_ratelimit_script_format(char **command, int argc,
    const ngx_http_ratelimit_arg_t *args)
{
    int          i;
    size_t       lens[16];
    const char  *argv[16];

    for (i = 0; i < argc; i++) {
        argv[i] = args[i].data;
        lens[i] = args[i].len;
    }

    return redisFormatCommandArgv(command, argc, argv, lens);
}


static ngx_http_ratelimit_arg_t
ngx_http_ratelimit_script_number(char *buf, uint64_t n)
{
    char                      *p;
    ngx_http_ratelimit_arg_t   arg;

    p = buf + NGX_HTTP_RATELIMIT_NUMBER_LEN;

    do {
        *--p = (char) ('0' + n % 10);
        n /= 10;
    } while (n);

    arg.data = p;
    arg.len = buf + NGX_HTTP_RATELIMIT_NUMBER_LEN - p;

    return arg;
}


/*
 * A bucket that is gone counts as full, so it may go when it would be full,
 * and a second later for the sake of rounding
 */

static uint64_t
ngx_http_ratelimit_script_ttl(const ngx_http_ratelimit_bucket_t *bucket)
{
    uint64_t  ms;

    ms = ngx_http_ratelimit_rate_wait(&bucket->rate,
                              bucket->capacity * NGX_HTTP_RATELIMIT_MICRO)
         / 1000;

    if (ms > NGX_HTTP_RATELIMIT_TTL_MAX - 1000) {
        return NGX_HTTP_RATELIMIT_TTL_MAX;
    }

    return ms + 1000;
}
