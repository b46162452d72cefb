
/*
 * A request comes here once to ask and once to hear.
 *
 * The first visit evaluates key, capacity, rate and cost and hands them to the
 * store; the request is parked by NGX_AGAIN.  The answer is kept in the context
 * and the request's own write event is posted, which runs the phases again: the
 * second visit only turns the decision into a verdict.  Any other event may run
 * the phases in between: not done means NGX_AGAIN, never a second take.
 *
 * While parked, the client's connection is watched, so that one who leaves is
 * noticed; the cleanup of the request's pool cancels what is under way.
 *
 * A request is charged once.  Internal redirects wipe the contexts of modules
 * and run the phases again; the context is then found through the cleanup, and
 * the limits of the new location are not applied to a request that has been
 * decided before, as with limit_req.  A limit that was skipped for its empty
 * key has decided nothing.
 *
 * To pass is NGX_DECLINED: NGX_OK would grant access under "satisfy any".
 */


#include "ngx_http_ratelimit_handler.h"
#include "ngx_http_ratelimit_escape.h"

#include <ngx_sha1.h>


#define NGX_HTTP_RATELIMIT_KEY_MAX       256     /* longer: SHA-1 of it */
#define NGX_HTTP_RATELIMIT_SHA1_LEN      20
#define NGX_HTTP_RATELIMIT_LOG_KEY       64      /* bytes of a key, logged */
#define NGX_HTTP_RATELIMIT_LOG_INTERVAL  60      /* s, for invalid values */


static ngx_http_ratelimit_ctx_t *ngx_http_ratelimit_create_ctx(
    ngx_http_request_t *r);
static ngx_int_t ngx_http_ratelimit_prepare(ngx_http_request_t *r,
    ngx_http_ratelimit_ctx_t *ctx);
static ngx_int_t ngx_http_ratelimit_prepare_key(ngx_http_request_t *r,
    ngx_http_ratelimit_ctx_t *ctx);
static ngx_int_t ngx_http_ratelimit_prepare_bucket(ngx_http_request_t *r,
    ngx_http_ratelimit_ctx_t *ctx);
static ngx_int_t ngx_http_ratelimit_invalid(ngx_http_request_t *r,
    ngx_http_ratelimit_ctx_t *ctx, char *directive, ngx_str_t *value,
    const char *err);
static ngx_int_t ngx_http_ratelimit_park(ngx_http_request_t *r);
static void ngx_http_ratelimit_answer(ngx_http_ratelimit_take_t *take);
static void ngx_http_ratelimit_decided(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_failure_e failure);
static void ngx_http_ratelimit_failed(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_failure_e failure);
static ngx_int_t ngx_http_ratelimit_verdict(ngx_http_request_t *r,
    ngx_http_ratelimit_ctx_t *ctx);
static void ngx_http_ratelimit_log(ngx_http_request_t *r,
    ngx_http_ratelimit_ctx_t *ctx);
static void ngx_http_ratelimit_cleanup(void *data);
static uint64_t ngx_http_ratelimit_clock(void);


ngx_int_t
ngx_http_ratelimit_handler(ngx_http_request_t *r)
{
    ngx_int_t                       rc;
    ngx_http_ratelimit_ctx_t       *ctx;
    ngx_http_ratelimit_loc_conf_t  *rlcf;

    if (r != r->main) {
        return NGX_DECLINED;
    }

    ctx = ngx_http_ratelimit_get_ctx(r);

    if (ctx) {

        if (!ctx->done) {
            return NGX_AGAIN;
        }

        if (!ctx->told) {

            /* the same two lines that end a delay of limit_req */

            if (ngx_handle_read_event(r->connection->read, 0) != NGX_OK) {
                return NGX_HTTP_INTERNAL_SERVER_ERROR;
            }

            r->read_event_handler = ngx_http_block_reading;

            return ngx_http_ratelimit_verdict(r, ctx);
        }

        if (ctx->decision.outcome != NGX_HTTP_RATELIMIT_SKIPPED) {
            return NGX_DECLINED;
        }
    }

    rlcf = ngx_http_get_module_loc_conf(r, ngx_http_ratelimit_module);

    if (rlcf->limit == NULL) {
        return NGX_DECLINED;
    }

    if (ctx == NULL) {
        ctx = ngx_http_ratelimit_create_ctx(r);
        if (ctx == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

    } else {
        ngx_memzero(ctx, sizeof(ngx_http_ratelimit_ctx_t));
    }

    ctx->request = r;
    ctx->conf = rlcf;
    ctx->start = ngx_http_ratelimit_clock();

    rc = ngx_http_ratelimit_prepare(r, ctx);

    if (rc == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (rc == NGX_DECLINED) {
        /* decided already */
        return ngx_http_ratelimit_verdict(r, ctx);
    }

    if (ngx_http_ratelimit_store_take(&ctx->take) == NGX_AGAIN) {
        return ngx_http_ratelimit_park(r);
    }

    ngx_http_ratelimit_decided(ctx, ctx->take.failure);

    return ngx_http_ratelimit_verdict(r, ctx);
}


ngx_http_ratelimit_ctx_t *
ngx_http_ratelimit_get_ctx(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t        *cln;
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_ratelimit_module);

    if (ctx == NULL && (r->internal || r->filter_finalize)) {

        /* module contexts were wiped, but the cleanup still has the address */

        for (cln = r->pool->cleanup; cln; cln = cln->next) {
            if (cln->handler == ngx_http_ratelimit_cleanup) {
                ctx = cln->data;
                break;
            }
        }
    }

    return ctx;
}


static ngx_http_ratelimit_ctx_t *
ngx_http_ratelimit_create_ctx(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t        *cln;
    ngx_http_ratelimit_ctx_t  *ctx;

    cln = ngx_pool_cleanup_add(r->pool, sizeof(ngx_http_ratelimit_ctx_t));
    if (cln == NULL) {
        return NULL;
    }

    ctx = cln->data;
    ngx_memzero(ctx, sizeof(ngx_http_ratelimit_ctx_t));

    cln->handler = ngx_http_ratelimit_cleanup;

    ngx_http_set_ctx(r, ctx, ngx_http_ratelimit_module);

    return ctx;
}


/* NGX_OK: ask the store; NGX_DECLINED: decided without it */

static ngx_int_t
ngx_http_ratelimit_prepare(ngx_http_request_t *r,
    ngx_http_ratelimit_ctx_t *ctx)
{
    ngx_int_t                     rc;
    ngx_http_ratelimit_bucket_t  *bucket;

    rc = ngx_http_ratelimit_prepare_key(r, ctx);
    if (rc != NGX_OK) {
        return rc;
    }

    rc = ngx_http_ratelimit_prepare_bucket(r, ctx);
    if (rc != NGX_OK) {
        return rc;
    }

    bucket = &ctx->take.bucket;

    if (bucket->cost > bucket->capacity) {
        ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                      "cost %uL is above capacity %uL of limit \"%V\": "
                      "this request can never pass",
                      bucket->cost, bucket->capacity, &ctx->conf->limit->name);

        ngx_http_ratelimit_decide(&ctx->take.decision, bucket,
                       -1 - (int64_t) bucket->capacity
                            * NGX_HTTP_RATELIMIT_MICRO);

        ctx->take.decision.source = NGX_HTTP_RATELIMIT_SOURCE_LOCAL;
        ngx_http_ratelimit_decided(ctx, NGX_HTTP_RATELIMIT_OK);

        return NGX_DECLINED;
    }

    ctx->take.shards = ctx->conf->shards;
    ctx->take.timeout = ctx->conf->timeout;
    ctx->take.handler = ngx_http_ratelimit_answer;
    ctx->take.data = ctx;

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_prepare_key(ngx_http_request_t *r,
    ngx_http_ratelimit_ctx_t *ctx)
{
    u_char                     *p;
    u_char                      digest[NGX_HTTP_RATELIMIT_SHA1_LEN];
    ngx_str_t                  *key, *prefix, *redis_key;
    ngx_sha1_t                  sha1;
    ngx_http_ratelimit_take_t  *take;

    take = &ctx->take;
    key = &take->key;

    if (ctx->conf->limit->key == NULL) {
        *key = r->connection->addr_text;

    } else if (ngx_http_complex_value(r, ctx->conf->limit->key, key)
               != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (key->len == 0) {
        ctx->decision.outcome = NGX_HTTP_RATELIMIT_SKIPPED;
        ctx->done = 1;
        return NGX_DECLINED;
    }

    prefix = &ctx->conf->key_prefix;
    redis_key = &take->redis_key;

    p = ngx_pnalloc(r->pool, prefix->len
                             + ngx_min(key->len, NGX_HTTP_RATELIMIT_KEY_MAX)
                             + 1);
    if (p == NULL) {
        return NGX_ERROR;
    }

    redis_key->data = p;

    p = ngx_cpymem(p, prefix->data, prefix->len);

    if (key->len > NGX_HTTP_RATELIMIT_KEY_MAX) {
        ngx_sha1_init(&sha1);
        ngx_sha1_update(&sha1, key->data, key->len);
        ngx_sha1_final(digest, &sha1);

        key->data = p;
        p = ngx_hex_dump(p, digest, NGX_HTTP_RATELIMIT_SHA1_LEN);
        key->len = p - key->data;

    } else {
        p = ngx_cpymem(p, key->data, key->len);
    }

    *p++ = '}';

    redis_key->len = p - redis_key->data;

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_prepare_bucket(ngx_http_request_t *r,
    ngx_http_ratelimit_ctx_t *ctx)
{
    ngx_str_t                     value;
    const char                   *err;
    ngx_http_ratelimit_limit_t   *limit;
    ngx_http_ratelimit_param_t   *cost;
    ngx_http_ratelimit_bucket_t  *bucket;

    limit = ctx->conf->limit;
    cost = &ctx->conf->cost;
    bucket = &ctx->take.bucket;

    ngx_str_null(&value);

    bucket->rate = limit->rate.u.rate;

    if (limit->rate.dynamic) {

        if (ngx_http_complex_value(r, limit->rate.value, &value) != NGX_OK) {
            return NGX_ERROR;
        }

        err = ngx_http_ratelimit_rate_parse(value.data, value.len,
                                            &bucket->rate);
        if (err) {
            return ngx_http_ratelimit_invalid(r, ctx, "ratelimit_rate",
                                              &value, err);
        }
    }

    if (limit->capacity.value == NULL) {
        bucket->capacity = bucket->rate.count;

        if (bucket->capacity == 0) {
            return ngx_http_ratelimit_invalid(r, ctx, "ratelimit_rate",
                       &value, "it never refills and needs "
                               "\"ratelimit_capacity\"");
        }

    } else {
        bucket->capacity = limit->capacity.u.number;
    }

    if (limit->capacity.dynamic) {

        if (ngx_http_complex_value(r, limit->capacity.value, &value)
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        err = ngx_http_ratelimit_capacity_parse(value.data, value.len,
                                                &bucket->capacity);
        if (err) {
            return ngx_http_ratelimit_invalid(r, ctx, "ratelimit_capacity",
                                              &value, err);
        }
    }

    if (limit->rate.dynamic || limit->capacity.dynamic) {

        err = ngx_http_ratelimit_rate_check(&bucket->rate, bucket->capacity);
        if (err) {
            return ngx_http_ratelimit_invalid(r, ctx,
                       limit->capacity.dynamic ? "ratelimit_capacity"
                                               : "ratelimit_rate",
                       &value, err);
        }
    }

    bucket->cost = cost->value ? cost->u.number : 1;

    if (cost->dynamic) {

        if (ngx_http_complex_value(r, cost->value, &value) != NGX_OK) {
            return NGX_ERROR;
        }

        err = ngx_http_ratelimit_cost_parse(value.data, value.len,
                                            &bucket->cost);
        if (err) {
            return ngx_http_ratelimit_invalid(r, ctx, "ratelimit_cost",
                                              &value, err);
        }
    }

    return NGX_OK;
}


/* a variable gave no legal value: the failure policy decides */

static ngx_int_t
ngx_http_ratelimit_invalid(ngx_http_request_t *r,
    ngx_http_ratelimit_ctx_t *ctx, char *directive, ngx_str_t *value,
    const char *err)
{
    size_t         len;
    time_t         now;
    u_char         text[ngx_http_ratelimit_escape_size(
                            NGX_HTTP_RATELIMIT_LOG_KEY)];

    static time_t  logged;

    now = ngx_time();

    if (now - logged >= NGX_HTTP_RATELIMIT_LOG_INTERVAL) {
        logged = now;

        len = ngx_http_ratelimit_escape(text, value->data,
                                        ngx_min(value->len,
                                                NGX_HTTP_RATELIMIT_LOG_KEY));

        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "invalid value \"%*s\" of \"%s\" for limit \"%V\": %s",
                      len, text, directive, &ctx->conf->limit->name, err);
    }

    ngx_http_ratelimit_decided(ctx, NGX_HTTP_RATELIMIT_CONFIG);

    return NGX_DECLINED;
}


static ngx_int_t
ngx_http_ratelimit_park(ngx_http_request_t *r)
{
    ngx_event_t  *rev;

    rev = r->connection->read;

    if (rev->ready) {
        ngx_post_event(rev, &ngx_posted_events);

    } else if (ngx_handle_read_event(rev, 0) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->read_event_handler = ngx_http_test_reading;

    return NGX_AGAIN;
}


static void
ngx_http_ratelimit_answer(ngx_http_ratelimit_take_t *take)
{
    ngx_connection_t          *c;
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = take->data;

    ngx_http_ratelimit_decided(ctx, take->failure);

    c = ctx->request->connection;

    ngx_post_event(c->write, &ngx_posted_events);
}


static void
ngx_http_ratelimit_decided(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_failure_e failure)
{
    ctx->done = 1;
    ctx->time = ngx_time();
    ctx->latency = ngx_http_ratelimit_clock() - ctx->start;

    if (failure != NGX_HTTP_RATELIMIT_OK) {
        ngx_http_ratelimit_failed(ctx, failure);
        return;
    }

    ctx->decision = ctx->take.decision;

    if (ctx->decision.outcome == NGX_HTTP_RATELIMIT_REJECTED
        && ctx->conf->dry_run)
    {
        ctx->decision.outcome = NGX_HTTP_RATELIMIT_REJECTED_DRY_RUN;
    }
}


/* the failure policy */

static void
ngx_http_ratelimit_failed(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_failure_e failure)
{
    ngx_http_ratelimit_decision_t  *d;

    d = &ctx->decision;

    ngx_memzero(d, sizeof(ngx_http_ratelimit_decision_t));

    d->outcome = NGX_HTTP_RATELIMIT_DEGRADED;
    d->failure = failure;
    d->source = NGX_HTTP_RATELIMIT_SOURCE_OPEN;

    if (ctx->conf->on_error == NGX_HTTP_RATELIMIT_ON_ERROR_CLOSED
        && !ctx->conf->dry_run)
    {
        d->source = NGX_HTTP_RATELIMIT_SOURCE_CLOSED;
        d->retry_after = 1;
    }
}


static ngx_int_t
ngx_http_ratelimit_verdict(ngx_http_request_t *r,
    ngx_http_ratelimit_ctx_t *ctx)
{
    ctx->told = 1;

    ngx_http_ratelimit_log(r, ctx);

    if (ctx->decision.outcome == NGX_HTTP_RATELIMIT_REJECTED) {
        return ctx->conf->status;
    }

    if (ctx->decision.source == NGX_HTTP_RATELIMIT_SOURCE_CLOSED) {
        return ctx->conf->error_status;
    }

    return NGX_DECLINED;
}


static void
ngx_http_ratelimit_log(ngx_http_request_t *r, ngx_http_ratelimit_ctx_t *ctx)
{
    size_t                          len;
    u_char                          key[ngx_http_ratelimit_escape_size(
                                            NGX_HTTP_RATELIMIT_LOG_KEY)];
    ngx_uint_t                      level;
    ngx_http_ratelimit_decision_t  *d;

    d = &ctx->decision;

    level = (d->outcome == NGX_HTTP_RATELIMIT_REJECTED
             || d->outcome == NGX_HTTP_RATELIMIT_REJECTED_DRY_RUN)
            ? ctx->conf->log_level : NGX_LOG_INFO;

    if (r->connection->log->log_level < level) {
        return;
    }

    len = ngx_http_ratelimit_escape(key, ctx->take.key.data,
                                    ngx_min(ctx->take.key.len,
                                            NGX_HTTP_RATELIMIT_LOG_KEY));

    switch (d->outcome) {

    case NGX_HTTP_RATELIMIT_SKIPPED:
        ngx_log_error(level, r->connection->log, 0,
                      "ratelimit SKIPPED, limit: \"%V\", the key is empty",
                      &ctx->conf->limit->name);
        break;

    case NGX_HTTP_RATELIMIT_DEGRADED:
        ngx_log_error(level, r->connection->log, 0,
                      "ratelimit DEGRADED, limit: \"%V\", key: \"%*s\", "
                      "source: %s, failure: %s",
                      &ctx->conf->limit->name, len, key,
                      ngx_http_ratelimit_source_name(d->source),
                      ngx_http_ratelimit_failure_name(d->failure));
        break;

    default:
        ngx_log_error(level, r->connection->log, 0,
                      "ratelimit %s, limit: \"%V\", key: \"%*s\", cost: %uL, "
                      "remaining: %uL of %uL, retry after: %L, source: %s",
                      ngx_http_ratelimit_outcome_name(d->outcome),
                      &ctx->conf->limit->name, len, key,
                      ctx->take.bucket.cost, d->remaining, d->limit,
                      /* -1: never */
                      (int64_t) d->retry_after,
                      ngx_http_ratelimit_source_name(d->source));
        break;
    }
}


static void
ngx_http_ratelimit_cleanup(void *data)
{
    ngx_http_ratelimit_ctx_t *ctx = data;

    ngx_http_ratelimit_store_cancel(&ctx->take);
}


static uint64_t
ngx_http_ratelimit_clock(void)
{
    struct timespec  ts;

    (void) clock_gettime(CLOCK_MONOTONIC, &ts);

    return (uint64_t) ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}
