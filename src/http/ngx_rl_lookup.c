
#include "http/ngx_rl_lookup.h"
#include "core/ngx_rl_clock.h"
#include "memory/ngx_rl_known.h"
#include "memory/ngx_rl_local.h"
#include "topology/ngx_rl_route.h"


static ngx_int_t ngx_rl_lookup_override(ngx_rl_lookup_t *lookup,
    ngx_http_request_t *r);
static const char *ngx_rl_lookup_bucket(ngx_rl_lookup_t *lookup,
    ngx_http_request_t *r);
static const char *ngx_rl_lookup_param(ngx_rl_lookup_t *lookup,
    ngx_http_request_t *r, ngx_rl_param_t *param, ngx_rl_param_e what,
    void *value);
static const char *ngx_rl_lookup_arg(ngx_http_request_t *r,
    ngx_rl_param_e what, void *value);
static void ngx_rl_lookup_answer(ngx_rl_take_t *take);
static void ngx_rl_lookup_known(ngx_rl_lookup_t *lookup);


ngx_int_t
ngx_rl_lookup_prepare(ngx_rl_lookup_t *lookup, ngx_http_request_t *r,
    ngx_str_t *key)
{
    ngx_rl_limit_t       *limit;
    ngx_rl_loc_conf_t    *conf;
    ngx_rl_http_claim_t  *hc;

    conf = lookup->use->conf;
    limit = lookup->use->limit->limit;

    hc = &lookup->hc;
    hc->limit = limit;
    hc->key = *key;
    hc->claim.limit = (uintptr_t) limit->stats;
    hc->claim.shadow = conf->dry_run || limit->dry_run;

    if (ngx_rl_evaluate_claim_key(r->pool, lookup->use->limit, hc) != NGX_OK) {
        return NGX_ERROR;
    }

    lookup->err = ngx_rl_lookup_bucket(lookup, r);

    if (lookup->err) {
        return NGX_DECLINED;
    }

    if (conf->shards) {
        lookup->server = ngx_rl_shards_find(conf->shards, &hc->key);
    }

    if (ngx_rl_lookup_override(lookup, r) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_rl_evaluate_advise(lookup->use->limit, hc);

    return NGX_OK;
}


/* an argument of the request still has the last word about its cost */

static ngx_int_t
ngx_rl_lookup_override(ngx_rl_lookup_t *lookup, ngx_http_request_t *r)
{
    uint64_t              cost;
    ngx_rl_main_conf_t   *rmcf;
    ngx_rl_table_conf_t  *table;

    rmcf = ngx_http_get_module_main_conf(r, ngx_http_ratelimit_module);

    table = lookup->hc.limit->table;

    if (table == NULL) {
        return NGX_OK;
    }

    lookup->override = ngx_palloc(r->pool, sizeof(ngx_rl_override_copy_t));
    if (lookup->override == NULL) {
        return NGX_ERROR;
    }

    if (ngx_rl_overrides_get(rmcf->overrides, table->table, &lookup->hc.key,
                             lookup->override)
        != NGX_OK
        || lookup->override->values.set == 0)
    {
        lookup->override = NULL;
    }

    cost = lookup->hc.claim.bucket.cost;

    lookup->decided = ngx_rl_evaluate_override(rmcf->overrides, &lookup->hc,
                                               r->connection->log)
                      == NGX_DECLINED;

    if (lookup->cost) {
        lookup->hc.claim.bucket.cost = cost;
    }

    return NGX_OK;
}


/* NULL, or what is wrong with lookup->param */

static const char *
ngx_rl_lookup_bucket(ngx_rl_lookup_t *lookup, ngx_http_request_t *r)
{
    const char             *err;
    ngx_rl_param_t         *cost;
    ngx_rl_bucket_t        *bucket;
    ngx_rl_limit_params_t  *params;

    params = &lookup->hc.limit->params;
    bucket = &lookup->hc.claim.bucket;

    bucket->algorithm = params->algorithm;
    bucket->window = NGX_RL_WINDOW_DEFAULT;

    if (bucket->algorithm == NGX_RL_SLIDING_WINDOW_LOG) {
        err = ngx_rl_lookup_param(lookup, r, &params->window, NGX_RL_WINDOW,
                                  &bucket->window);

    } else if (ngx_rl_algorithm_period(bucket->algorithm)) {
        ngx_rl_limit_period(params, &bucket->period);
        err = NULL;

    } else {
        err = ngx_rl_lookup_param(lookup, r, &params->rate, NGX_RL_RATE,
                                  &bucket->rate);

        if (err == NULL && bucket->algorithm == NGX_RL_TOKEN_BUCKET) {
            err = ngx_rl_lookup_param(lookup, r, &params->interval,
                                      NGX_RL_INTERVAL, &bucket->step);
        }
    }

    if (err == NULL) {
        bucket->capacity = bucket->rate.count;
        err = ngx_rl_lookup_param(lookup, r, &params->capacity,
                                  NGX_RL_CAPACITY, &bucket->capacity);
    }

    if (err) {
        return err;
    }

    bucket->varies = params->rate.dynamic || params->capacity.dynamic;

    if (bucket->capacity == 0) {
        return "it never refills and needs a capacity";
    }

    if (!ngx_rl_algorithm_window(bucket->algorithm)) {
        err = ngx_rl_bucket_check(bucket->algorithm, &bucket->rate,
                                  bucket->capacity);
        if (err) {
            return err;
        }
    }

    /* a cost that depends on the request counts as 1 */

    cost = params->cost.value ? &params->cost : &lookup->use->conf->params.cost;
    bucket->cost = (cost->value && !cost->dynamic) ? cost->u.number : 1;

    lookup->param = NGX_RL_COST;

    err = ngx_rl_lookup_arg(r, NGX_RL_COST, &bucket->cost);

    lookup->cost = (err == NULL);

    return (err == NULL || err[0] == '\0') ? NULL : err;
}


static const char *
ngx_rl_lookup_param(ngx_rl_lookup_t *lookup, ngx_http_request_t *r,
    ngx_rl_param_t *param, ngx_rl_param_e what, void *value)
{
    const char  *err;

    if (param->value == NULL) {
        return NULL;
    }

    if (!param->dynamic) {

        if (what == NGX_RL_RATE) {
            *(ngx_rl_rate_t *) value = param->u.rate;

        } else {
            *(uint64_t *) value = param->u.number;
        }

        return NULL;
    }

    lookup->param = what;

    err = ngx_rl_lookup_arg(r, what, value);

    return (err && err[0] == '\0')
           ? "it comes from a variable, so it must be an argument of this "
             "request" : err;
}


/* NULL, or what is wrong; "": the request has no such argument */

static const char *
ngx_rl_lookup_arg(ngx_http_request_t *r, ngx_rl_param_e what, void *value)
{
    u_char     *src, *dst;
    ngx_str_t   text, *name;

    name = &ngx_rl_param_defs[what].name;

    if (ngx_http_arg(r, name->data, name->len, &text) != NGX_OK) {
        return "";
    }

    src = text.data;
    dst = ngx_pnalloc(r->pool, text.len + 1);
    if (dst == NULL) {
        return "there is no memory for it";
    }

    text.data = dst;
    ngx_unescape_uri(&dst, &src, text.len, 0);
    text.len = dst - text.data;

    return ngx_rl_param_parse(what, &text, value);
}


ngx_int_t
ngx_rl_lookup_ask(ngx_rl_lookup_t *lookup, ngx_http_request_t *r)
{
    ngx_int_t            rc;
    ngx_rl_take_t       *take;
    ngx_rl_claim_t      *claim;
    ngx_rl_loc_conf_t   *conf;
    ngx_rl_main_conf_t  *rmcf;

    rmcf = ngx_http_get_module_main_conf(r, ngx_http_ratelimit_module);

    conf = lookup->use->conf;
    claim = &lookup->hc.claim;

    if (lookup->decided) {

        if (lookup->server) {
            lookup->label = lookup->server->label;
        }

        return NGX_OK;
    }

    if (lookup->server == NULL) {
        lookup->failure = ngx_rl_local_take(rmcf->zone, &claim, 1, NULL, 1,
                                            ngx_rl_clock_us())
                          == NGX_OK ? NGX_RL_OK : NGX_RL_OVERLOAD;
        return NGX_OK;
    }

    ngx_rl_known_hash(rmcf->zone, claim, lookup->server->hash);

    take = &lookup->take;

    take->pool = r->pool;
    take->timeout = conf->timeout;
    take->preview = 1;
    take->clock = conf->clock;
    take->handler = ngx_rl_lookup_answer;
    take->data = lookup;

    if (ngx_rl_take_begin(take) != NGX_OK
        || ngx_rl_take_add(take, claim, lookup->server) != NGX_OK)
    {
        return NGX_ERROR;
    }

    rc = ngx_rl_take_send(take);

    if (rc == NGX_OK) {
        ngx_rl_lookup_known(lookup);
    }

    return rc;
}


static void
ngx_rl_lookup_answer(ngx_rl_take_t *take)
{
    ngx_rl_lookup_t  *lookup = take->data;

    ngx_rl_lookup_known(lookup);

    lookup->handler(lookup);
}


/* what came of the call, and what this machine knows beside it */

static void
ngx_rl_lookup_known(ngx_rl_lookup_t *lookup)
{
    ngx_str_t           *label;
    ngx_rl_zone_t       *zone;
    ngx_rl_claim_t       claim;
    ngx_rl_known_ttl_t   ttl;
    ngx_rl_take_call_t  *call;

    call = lookup->take.calls.elts;

    lookup->failure = call->failure;

    zone = call->server->zone;
    claim = lookup->hc.claim;

    /*
     * A cluster may have redirected the call to another node.  A copy, because
     * the text of a node that leaves is reused.
     */

    label = &ngx_rl_route_now(call->server, claim.key, claim.len)->conf->label;

    lookup->label.data = ngx_pstrdup(lookup->take.pool, label);
    lookup->label.len = lookup->label.data ? label->len : 0;

    ngx_memzero(&ttl, sizeof(ngx_rl_known_ttl_t));
    ttl.deny = lookup->use->conf->deny_cache;

    lookup->denied = ttl.deny && !claim.shadow
                     && ngx_rl_known_decide(zone, &claim, &ttl,
                                            ngx_rl_clock_us())
                        == NGX_OK;

    lookup->held = ngx_rl_known_held(zone, &claim);
}


void
ngx_rl_lookup_cancel(ngx_rl_lookup_t *lookup)
{
    ngx_rl_take_cancel(&lookup->take);
}
