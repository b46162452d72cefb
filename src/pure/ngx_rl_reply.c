
#include <stdlib.h>
#include <string.h>

#include "pure/ngx_rl_reply.h"


struct ngx_rl_reader_s {
    redisReader  *reader;
    size_t        max;    /* bytes not yet parsed */
    size_t        size;   /* of the arena */
    size_t        used;   /* of the arena */
    size_t        large;  /* what is expected; 0: usual */
    char         *arena;

    /* the usual arena, aligned for all that is there */
    long long     usual[NGX_RL_REPLY_ARENA / sizeof(long long)];
};


#if (HIREDIS_MAJOR >= 1)
#define NGX_RL_ELEMENTS  size_t
#else
#define NGX_RL_ELEMENTS  int
#endif


static void ngx_rl_reader_usual(ngx_rl_reader_t *r);
static void *ngx_rl_reply_string(const redisReadTask *task,
    char *str, size_t len);
static void *ngx_rl_reply_array(const redisReadTask *task,
    NGX_RL_ELEMENTS elements);
static void *ngx_rl_reply_integer(const redisReadTask *task, long long integer);
static void *ngx_rl_reply_nil(const redisReadTask *task);
#if (HIREDIS_MAJOR >= 1)
static void *ngx_rl_reply_double(const redisReadTask *task,
    double value, char *str, size_t len);
static void *ngx_rl_reply_bool(const redisReadTask *task, int value);
#endif
static void ngx_rl_reply_free(void *reply);
static ngx_rl_reply_t *ngx_rl_reply_create(const redisReadTask *task);
static void *ngx_rl_reply_alloc(ngx_rl_reader_t *r, size_t size);


static redisReplyObjectFunctions  ngx_rl_reply_functions = {
    .createString = ngx_rl_reply_string,
    .createArray = ngx_rl_reply_array,
    .createInteger = ngx_rl_reply_integer,
    .createNil = ngx_rl_reply_nil,
#if (HIREDIS_MAJOR >= 1)
    .createDouble = ngx_rl_reply_double,
    .createBool = ngx_rl_reply_bool,
#endif
    .freeObject = ngx_rl_reply_free
};


ngx_rl_reader_t *
ngx_rl_reader_create(void)
{
    ngx_rl_reader_t  *r;

    r = malloc(sizeof(ngx_rl_reader_t));
    if (r == NULL) {
        return NULL;
    }

    r->large = 0;
    ngx_rl_reader_usual(r);

    r->reader = redisReaderCreateWithFunctions(&ngx_rl_reply_functions);
    if (r->reader == NULL) {
        free(r);
        return NULL;
    }

    r->reader->privdata = r;

    return r;
}


void
ngx_rl_reader_free(ngx_rl_reader_t *r)
{
    redisReaderFree(r->reader);
    ngx_rl_reader_usual(r);
    free(r);
}


/* unused parts of a large arena cost no memory */

int
ngx_rl_reader_expect(ngx_rl_reader_t *r, size_t large)
{
    char  *arena;

    if (r->large == large) {
        return 0;
    }

    ngx_rl_reader_usual(r);

    if (large == 0) {
        return 0;
    }

    arena = malloc(large);
    if (arena == NULL) {
        return -1;
    }

    r->arena = arena;
    r->large = large;
    r->size = large;
    r->max = large;

    return 0;
}


static void
ngx_rl_reader_usual(ngx_rl_reader_t *r)
{
    if (r->large) {
        free(r->arena);
    }

    r->arena = (char *) r->usual;
    r->large = 0;
    r->size = NGX_RL_REPLY_ARENA;
    r->max = NGX_RL_REPLY_MAX;
    r->used = 0;
}


int
ngx_rl_reader_feed(ngx_rl_reader_t *r, const void *data, size_t len)
{
    if (r->reader->len - r->reader->pos > r->max) {
        return -1;
    }

    return redisReaderFeed(r->reader, data, len) == REDIS_OK ? 0 : -1;
}


int
ngx_rl_reader_next(ngx_rl_reader_t *r, ngx_rl_reply_t **reply)
{
    void  *obj;

    obj = NULL;

    if (redisReaderGetReply(r->reader, &obj) != REDIS_OK) {
        return -1;
    }

    *reply = obj;

    return obj != NULL;
}


static void *
ngx_rl_reply_string(const redisReadTask *task, char *str, size_t len)
{
    ngx_rl_reply_t  *reply;

    reply = ngx_rl_reply_create(task);
    if (reply == NULL) {
        return NULL;
    }

    reply->str = ngx_rl_reply_alloc(task->privdata, len + 1);
    if (reply->str == NULL) {
        return NULL;
    }

    memcpy(reply->str, str, len);
    reply->str[len] = '\0';
    reply->len = len;

    return reply;
}


static void *
ngx_rl_reply_array(const redisReadTask *task, NGX_RL_ELEMENTS elements)
{
    ngx_rl_reply_t   *reply;
    ngx_rl_reader_t  *r;

    r = task->privdata;

    /* checked first: the size in bytes must not overflow */

    if ((size_t) elements > r->size / sizeof(void *)) {
        return NULL;
    }

    reply = ngx_rl_reply_create(task);
    if (reply == NULL) {
        return NULL;
    }

    reply->element = ngx_rl_reply_alloc(r, elements * sizeof(void *));
    if (reply->element == NULL) {
        return NULL;
    }

    reply->elements = elements;

    return reply;
}


static void *
ngx_rl_reply_integer(const redisReadTask *task, long long integer)
{
    ngx_rl_reply_t  *reply;

    reply = ngx_rl_reply_create(task);

    if (reply) {
        reply->integer = integer;
    }

    return reply;
}


static void *
ngx_rl_reply_nil(const redisReadTask *task)
{
    ngx_rl_reply_t  *reply;

    reply = ngx_rl_reply_create(task);

    if (reply) {
        /* the type is that of the string or array that is null */
        reply->type = REDIS_REPLY_NIL;
    }

    return reply;
}


#if (HIREDIS_MAJOR >= 1)

/* types of RESP3, which is never requested */

static void *
ngx_rl_reply_double(const redisReadTask *task, double value,
    char *str, size_t len)
{
    (void) value;

    return ngx_rl_reply_string(task, str, len);
}


static void *
ngx_rl_reply_bool(const redisReadTask *task, int value)
{
    return ngx_rl_reply_integer(task, value);
}

#endif


static void
ngx_rl_reply_free(void *reply)
{
    /* replies live in the arena */

    (void) reply;
}


static ngx_rl_reply_t *
ngx_rl_reply_create(const redisReadTask *task)
{
    int                   depth;
    ngx_rl_reply_t       *reply, *parent;
    ngx_rl_reader_t      *r;
    const redisReadTask  *t;

    r = task->privdata;

    if (task->parent == NULL) {
        r->used = 0;
    }

    for (t = task, depth = 0; t->parent; t = t->parent) {

        if (depth++ == NGX_RL_REPLY_DEPTH) {
            return NULL;
        }
    }

    reply = ngx_rl_reply_alloc(r, sizeof(*reply));
    if (reply == NULL) {
        return NULL;
    }

    reply->type = task->type;

    if (task->parent) {
        parent = task->parent->obj;
        parent->element[task->idx] = reply;
    }

    return reply;
}


/* zeroed, aligned */

static void *
ngx_rl_reply_alloc(ngx_rl_reader_t *r, size_t size)
{
    char  *p;

    if (size > r->size - r->used) {
        return NULL;
    }

    p = r->arena + r->used;

    r->used += (size + sizeof(r->usual[0]) - 1) & ~(sizeof(r->usual[0]) - 1);

    if (r->used > r->size) {
        r->used = r->size;
    }

    memset(p, 0, size);

    return p;
}
