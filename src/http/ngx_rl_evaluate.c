
#include "http/ngx_rl_evaluate.h"
#include "core/ngx_rl_digest.h"
#include "pure/ngx_rl_text.h"


#define NGX_RL_KEY_MAX    256       /* a longer key becomes a digest */
#define NGX_RL_LOG_VALUE  64        /* bytes of a value in the log */

/* after the key of a bucket that may go into debt */
#define NGX_RL_KEY_ADVISE  ":advise:"


static ngx_int_t ngx_rl_evaluate_key(ngx_http_request_t *r,
    ngx_rl_location_limit_t *ll, ngx_rl_http_claim_t *hc);
static ngx_int_t ngx_rl_evaluate_bucket(ngx_http_request_t *r,
    ngx_rl_loc_conf_t *conf, ngx_rl_http_claim_t *hc);
static ngx_int_t ngx_rl_evaluate_check(ngx_http_request_t *r,
    ngx_rl_http_claim_t *hc);
static ngx_int_t ngx_rl_evaluate_param(ngx_http_request_t *r,
    ngx_rl_http_claim_t *hc, ngx_rl_param_e what, void *value);
static ngx_int_t ngx_rl_evaluate_cost(ngx_http_request_t *r,
    ngx_rl_loc_conf_t *conf, ngx_rl_http_claim_t *hc);
static void ngx_rl_evaluate_invalid(ngx_http_request_t *r,
    ngx_rl_http_claim_t *hc, ngx_rl_param_e what,
    ngx_str_t *value, const char *err);


ngx_int_t
ngx_rl_evaluate(ngx_http_request_t *r, ngx_rl_loc_conf_t *conf,
    ngx_rl_location_limit_t *ll, ngx_rl_http_claim_t *hc)
{
    ngx_int_t            rc;
    ngx_rl_claim_t      *claim;
    ngx_rl_bucket_t     *bucket;
    ngx_rl_main_conf_t  *rmcf;

    claim = &hc->claim;
    bucket = &claim->bucket;

    hc->limit = ll->limit;
    claim->limit = (uintptr_t) ll->limit->stats;
    claim->shadow = conf->dry_run || ll->limit->dry_run;

    rc = ngx_rl_evaluate_key(r, ll, hc);

    if (rc == NGX_OK) {
        rc = ngx_rl_evaluate_bucket(r, conf, hc);
    }

    if (rc == NGX_OK && ll->limit->table
        && ngx_rl_overrides_any(ll->limit->table->table))
    {
        rmcf = ngx_http_get_module_main_conf(r, ngx_http_ratelimit_module);

        rc = ngx_rl_evaluate_override(rmcf->overrides, hc, r->connection->log);
    }

    if (rc != NGX_OK) {
        return rc;
    }

    ngx_rl_evaluate_advise(ll, hc);

    if (bucket->cost <= ngx_rl_bucket_size(bucket) || conf->preview) {
        return NGX_OK;
    }

    if (ngx_rl_throttle(&ll->limit->stats->log_cost, 1, NULL)) {
        ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                      "cost %uL is above capacity %uL of limit \"%V\": "
                      "this request can never pass",
                      bucket->cost, bucket->capacity, &ll->limit->name);
    }

    /* nobody was asked, so the whole capacity counts as available */

    claim->state[0] = -1 - (int64_t) ngx_rl_bucket_size(bucket)
                      * (ngx_rl_algorithm_window(bucket->algorithm)
                         ? 1 : NGX_RL_MICRO);

    ngx_rl_decide(&claim->decision, bucket, claim->state);
    claim->decision.source = NGX_RL_SOURCE_LOCAL;

    return NGX_DECLINED;
}


ngx_int_t
ngx_rl_evaluate_override(ngx_rl_overrides_t *overrides,
    ngx_rl_http_claim_t *hc, ngx_log_t *log)
{
    const char         *err;
    ngx_rl_claim_t     *claim;
    ngx_rl_table_t     *table;
    ngx_rl_decision_t  *d;
    ngx_rl_override_t   override;

    claim = &hc->claim;
    d = &claim->decision;
    table = hc->limit->table->table;

    if (ngx_rl_overrides_find(overrides, table, &hc->key, &override,
                              &claim->stamp)
        != NGX_OK)
    {
        return NGX_OK;
    }

    if (override.set & NGX_RL_OVERRIDE_EXEMPT) {
        d->outcome = NGX_RL_SKIPPED;
        d->source = NGX_RL_SOURCE_OVERRIDE;

        return NGX_DECLINED;
    }

    if (override.set & NGX_RL_OVERRIDE_BAN) {
        d->outcome = NGX_RL_REJECTED;
        d->source = NGX_RL_SOURCE_OVERRIDE;
        d->limit = claim->bucket.capacity;
        d->remaining = 0;
        d->reset = override.until ? override.until - ngx_time() : NGX_RL_NEVER;
        d->retry_after = d->reset;

        return NGX_DECLINED;
    }

    /*
     * Numbers that the limit cannot have are refused by the API.  They come
     * from somebody else, or the limit has changed since.
     */

    err = ngx_rl_override_apply(&override, &claim->bucket,
                                hc->limit->params.capacity.value == NULL);

    if (err && ngx_rl_throttle(&table->log, 1, NULL)) {
        ngx_log_error(NGX_LOG_ERR, log, 0,
                      "an override of limit \"%V\" is not applied: %s",
                      &hc->limit->name, err);
    }

    return NGX_OK;
}


static ngx_int_t
ngx_rl_evaluate_key(ngx_http_request_t *r,
    ngx_rl_location_limit_t *ll, ngx_rl_http_claim_t *hc)
{
    ngx_str_t  *key;

    key = &hc->key;

    if (ll->limit->params.key.value == NULL) {

        if (ngx_rl_client_net(r, key) != NGX_OK) {
            return NGX_ERROR;
        }

    } else if (ngx_http_complex_value(r, ll->limit->params.key.value, key)
               != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (key->len == 0) {
        hc->claim.decision.outcome = NGX_RL_SKIPPED;
        return NGX_DECLINED;
    }

    return ngx_rl_evaluate_claim_key(r->pool, ll, hc);
}


ngx_int_t
ngx_rl_evaluate_claim_key(ngx_pool_t *pool, ngx_rl_location_limit_t *ll,
    ngx_rl_http_claim_t *hc)
{
    size_t      len;
    u_char     *p;
    ngx_str_t  *key, *prefix;
    ngx_uint_t  hashed;

    key = &hc->key;
    prefix = &ll->key_prefix;

    /*
     * A key that looks like a digest is digested itself, so that no client can
     * send the digest of another client's key.
     */

    hashed = key->len > NGX_RL_KEY_MAX || ngx_rl_digested(key);

    /* a client that could choose the slot of its key could overload a node */

    if (ll->braces) {
        p = key->data + key->len;
        hashed |= ngx_strlchr(key->data, p, '{')
                  || ngx_strlchr(key->data, p, '}');
    }

    len = hashed ? NGX_RL_DIGEST_LEN : key->len;

    p = ngx_pnalloc(pool, prefix->len + len + 1
                    + sizeof(NGX_RL_KEY_ADVISE) + NGX_INT64_LEN);
    if (p == NULL) {
        return NGX_ERROR;
    }

    hc->claim.key = (char *) p;

    p = ngx_cpymem(p, prefix->data, prefix->len);

    if (hashed) {
        ngx_rl_digest(p, key);

        key->data = p;
        key->len = len;

    } else {
        ngx_memcpy(p, key->data, len);
    }

    p += len;
    *p++ = '}';

    hc->claim.len = (char *) p - hc->claim.key;

    return NGX_OK;
}


/*
 * Other keys end with a brace, so no other limit can have such a key.  Buckets
 * of different sizes have different keys: what is missing in one says nothing
 * about the other.
 */

void
ngx_rl_evaluate_advise(ngx_rl_location_limit_t *ll, ngx_rl_http_claim_t *hc)
{
    u_char           *p;
    ngx_rl_bucket_t  *bucket;

    if (!ll->advise) {
        return;
    }

    bucket = &hc->claim.bucket;

    ngx_rl_bucket_advise(bucket);

    p = (u_char *) hc->claim.key + hc->claim.len;
    p = ngx_sprintf(p, NGX_RL_KEY_ADVISE "%uL", ngx_rl_bucket_size(bucket));

    hc->claim.len = (char *) p - hc->claim.key;
}


ngx_int_t
ngx_rl_client_net(ngx_http_request_t *r, ngx_str_t *net)
{
#if (NGX_HAVE_INET6)
    u_char               *p;
    ngx_uint_t            i, bits;
    ngx_rl_loc_conf_t    *rlcf;
    struct sockaddr_in6  *sin6, masked;

    if (r->connection->sockaddr->sa_family == AF_INET6) {

        sin6 = (struct sockaddr_in6 *) r->connection->sockaddr;

        p = ngx_pnalloc(r->pool, NGX_SOCKADDR_STRLEN);
        if (p == NULL) {
            return NGX_ERROR;
        }

        net->data = p;

        if (IN6_IS_ADDR_V4MAPPED(&sin6->sin6_addr)) {
            net->len = ngx_inet_ntop(AF_INET, &sin6->sin6_addr.s6_addr[12], p,
                                     NGX_SOCKADDR_STRLEN);
            return NGX_OK;
        }

        rlcf = ngx_http_get_module_loc_conf(r, ngx_http_ratelimit_module);

        masked = *sin6;

        for (i = 0, bits = rlcf->ipv6_prefix; i < 16; i++) {

            if (bits >= 8) {
                bits -= 8;
                continue;
            }

            masked.sin6_addr.s6_addr[i] &= 0xff00 >> bits;
            bits = 0;
        }

        net->len = ngx_inet_ntop(AF_INET6, &masked.sin6_addr, p,
                                 NGX_SOCKADDR_STRLEN);
        return NGX_OK;
    }

#endif

    *net = r->connection->addr_text;

    return NGX_OK;
}


static ngx_int_t
ngx_rl_evaluate_bucket(ngx_http_request_t *r, ngx_rl_loc_conf_t *conf,
    ngx_rl_http_claim_t *hc)
{
    ngx_int_t         rc;
    ngx_rl_bucket_t  *bucket;

    bucket = &hc->claim.bucket;

    bucket->algorithm = hc->limit->params.algorithm;
    bucket->window = NGX_RL_WINDOW_DEFAULT;

    /* inherited parameters of other algorithms are ignored */

    if (bucket->algorithm == NGX_RL_SLIDING_WINDOW_LOG) {
        rc = ngx_rl_evaluate_param(r, hc, NGX_RL_WINDOW, &bucket->window);

    } else if (ngx_rl_algorithm_period(bucket->algorithm)) {
        ngx_rl_limit_period(&hc->limit->params, &bucket->period);
        rc = NGX_OK;

    } else {
        rc = NGX_OK;

        if (bucket->algorithm == NGX_RL_TOKEN_BUCKET) {
            rc = ngx_rl_evaluate_param(r, hc, NGX_RL_INTERVAL, &bucket->step);
        }

        if (rc == NGX_OK) {
            rc = ngx_rl_evaluate_param(r, hc, NGX_RL_RATE, &bucket->rate);
        }
    }

    /* the capacity defaults to the number in the rate */

    if (rc == NGX_OK) {
        bucket->capacity = bucket->rate.count;
        rc = ngx_rl_evaluate_param(r, hc, NGX_RL_CAPACITY, &bucket->capacity);
    }

    if (rc == NGX_OK) {
        rc = ngx_rl_evaluate_cost(r, conf, hc);
    }

    if (rc != NGX_OK) {
        return rc;
    }

    return ngx_rl_evaluate_check(r, hc);
}


/*
 * Checks capacity against rate; static values were checked when they were
 * parsed.
 */

static ngx_int_t
ngx_rl_evaluate_check(ngx_http_request_t *r, ngx_rl_http_claim_t *hc)
{
    ngx_str_t               text;
    const char             *err;
    ngx_rl_param_e          what;
    ngx_rl_bucket_t        *bucket;
    ngx_rl_limit_params_t  *params;

    params = &hc->limit->params;
    bucket = &hc->claim.bucket;

    if (!params->rate.dynamic && !params->capacity.dynamic) {
        return NGX_OK;
    }

    bucket->varies = 1;

    err = NULL;

    if (bucket->capacity == 0) {
        err = "a bucket that never refills needs a capacity";

    } else if (!ngx_rl_algorithm_window(bucket->algorithm)) {
        err = ngx_rl_bucket_check(bucket->algorithm, &bucket->rate,
                                  bucket->capacity);
    }

    if (err == NULL) {
        return NGX_OK;
    }

    what = params->capacity.dynamic ? NGX_RL_CAPACITY : NGX_RL_RATE;

    if (ngx_http_complex_value(r, ngx_rl_param(params, what)->value, &text)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    hc->claim.decision.failure = NGX_RL_CONFIG;
    ngx_rl_evaluate_invalid(r, hc, what, &text, err);

    return NGX_DECLINED;
}


/*
 * A client may influence the cost, so the limit applies whatever the value is.
 * A value that is not a number, or that is too large, counts as the highest
 * cost.
 */

static ngx_int_t
ngx_rl_evaluate_cost(ngx_http_request_t *r, ngx_rl_loc_conf_t *conf,
    ngx_rl_http_claim_t *hc)
{
    ngx_str_t         text;
    const char       *err;
    ngx_rl_param_t   *cost;
    ngx_rl_bucket_t  *bucket;

    bucket = &hc->claim.bucket;
    cost = hc->limit->params.cost.value ? &hc->limit->params.cost
                                        : &conf->params.cost;

    if (!cost->dynamic) {
        bucket->cost = cost->value ? cost->u.number : 1;
        return NGX_OK;
    }

    if (ngx_http_complex_value(r, cost->value, &text) != NGX_OK) {
        return NGX_ERROR;
    }

    err = ngx_rl_cost_bound(text.data, text.len, &bucket->cost);

    if (err) {
        ngx_rl_evaluate_invalid(r, hc, NGX_RL_COST, &text, err);
    }

    return NGX_OK;
}


/* leaves the value unchanged if the parameter is not set */

static ngx_int_t
ngx_rl_evaluate_param(ngx_http_request_t *r, ngx_rl_http_claim_t *hc,
    ngx_rl_param_e what, void *value)
{
    ngx_str_t        text;
    const char      *err;
    ngx_rl_param_t  *param;

    param = ngx_rl_param(&hc->limit->params, what);

    if (param->value == NULL) {
        return NGX_OK;
    }

    if (!param->dynamic) {

        if (what == NGX_RL_RATE) {
            *(ngx_rl_rate_t *) value = param->u.rate;

        } else {
            *(uint64_t *) value = param->u.number;
        }

        return NGX_OK;
    }

    if (ngx_http_complex_value(r, param->value, &text) != NGX_OK) {
        return NGX_ERROR;
    }

    err = ngx_rl_param_parse(what, &text, value);

    if (err == NULL) {
        return NGX_OK;
    }

    /* the failure policy decides */

    hc->claim.decision.failure = NGX_RL_CONFIG;
    ngx_rl_evaluate_invalid(r, hc, what, &text, err);

    return NGX_DECLINED;
}


/* the variable has an invalid value */

static void
ngx_rl_evaluate_invalid(ngx_http_request_t *r, ngx_rl_http_claim_t *hc,
    ngx_rl_param_e what, ngx_str_t *value, const char *err)
{
    size_t                 len;
    u_char                 text[ngx_rl_escape_size(NGX_RL_LOG_VALUE)];
    ngx_rl_limit_stats_t  *stats;

    stats = hc->limit->stats;

    if (ngx_rl_throttle(&stats->log_invalid, 1, NULL)) {
        len = ngx_rl_escape(text, value->data,
                            ngx_min(value->len, NGX_RL_LOG_VALUE));

        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "invalid value \"%*s\" of \"%V\" for limit \"%V\": %s",
                      len, text, &ngx_rl_param_defs[what].directive,
                      &hc->limit->name, err);
    }

    ngx_rl_count(stats->invalid);
}
