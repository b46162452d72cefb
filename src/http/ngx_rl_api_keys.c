
/*
 * The limits of a key are asked one after the other.
 */


#include "http/ngx_rl_api_keys.h"
#include "http/ngx_rl_api_overrides.h"
#include "conf/ngx_rl_tables.h"
#include "http/ngx_rl_lookup.h"


typedef struct {
    ngx_rl_lookup_t  *lookups;
    ngx_uint_t        asked;  /* of these, answered or failed */
    ngx_uint_t        all;
} ngx_rl_api_keys_t;


static ngx_int_t ngx_rl_api_ask(ngx_rl_api_t *api);
static ngx_uint_t ngx_rl_api_failed(ngx_rl_api_keys_t *keys,
    ngx_rl_lookup_t *lookup);
static void ngx_rl_api_answered(ngx_rl_lookup_t *lookup);
static void ngx_rl_api_keys_cancel(ngx_rl_api_t *api);
static ngx_int_t ngx_rl_api_states(ngx_rl_api_t *api);
static void ngx_rl_api_state(ngx_rl_api_t *api, ngx_rl_lookup_t *lookup);


ngx_int_t
ngx_rl_api_keys(ngx_rl_api_t *api)
{
    ngx_int_t            rc;
    ngx_str_t           *key;
    ngx_uint_t           i, n;
    ngx_rl_use_t        *use;
    ngx_rl_limit_t     **limit;
    ngx_rl_lookup_t     *lookup;
    ngx_rl_api_keys_t   *keys;

    key = &api->path[api->limit ? 3 : 1];

    limit = api->limit ? &api->limit : api->rmcf->limits.elts;
    n = api->limit ? 1 : api->rmcf->limits.nelts;

    keys = ngx_pcalloc(api->request->pool, sizeof(ngx_rl_api_keys_t));
    if (keys == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    keys->lookups = ngx_pcalloc(api->request->pool,
                                n * sizeof(ngx_rl_lookup_t));
    if (keys->lookups == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    api->data = keys;

    for (i = 0; i < n; i++) {

        use = ngx_rl_tables_use(api->rmcf, limit[i]);

        if (use == NULL) {
            continue;
        }

        lookup = &keys->lookups[keys->all];

        lookup->use = use;
        lookup->handler = ngx_rl_api_answered;
        lookup->data = api;

        rc = ngx_rl_lookup_prepare(lookup, api->request, key);

        if (rc == NGX_ERROR) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        if (rc == NGX_DECLINED && api->limit) {
            return ngx_rl_api_problem(api, NGX_HTTP_BAD_REQUEST,
                                      "\"%V\" of limit \"%V\": %s",
                                      &ngx_rl_param_defs[lookup->param].name,
                                      &api->limit->name, lookup->err);
        }

        keys->all++;
    }

    if (api->limit && keys->all == 0) {
        return ngx_rl_api_problem(api, NGX_HTTP_NOT_FOUND,
                                  "no location uses limit \"%V\", so it has no "
                                  "keys", &api->limit->name);
    }

    return ngx_rl_api_ask(api);
}


/* asks for what is missing, and then answers */

static ngx_int_t
ngx_rl_api_ask(ngx_rl_api_t *api)
{
    ngx_rl_api_keys_t  *keys = api->data;

    ngx_int_t         rc;
    ngx_rl_lookup_t  *lookup;

    for ( /* void */ ; keys->asked < keys->all; keys->asked++) {

        lookup = &keys->lookups[keys->asked];

        if (lookup->err || ngx_rl_api_failed(keys, lookup)) {
            continue;
        }

        rc = ngx_rl_lookup_ask(lookup, api->request);

        if (rc == NGX_AGAIN) {
            return ngx_rl_api_wait(api, ngx_rl_api_ask,
                                   ngx_rl_api_keys_cancel);
        }

        if (rc != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    return ngx_rl_api_states(api);
}


/*
 * A server that has failed once is not waited for again.  Failures of one key,
 * such as foreign data in it, say nothing about the others.
 */

static ngx_uint_t
ngx_rl_api_failed(ngx_rl_api_keys_t *keys, ngx_rl_lookup_t *lookup)
{
    ngx_uint_t        i;
    ngx_rl_lookup_t  *before;

    for (i = 0; lookup->server && i < keys->asked; i++) {
        before = &keys->lookups[i];

        if (before->server == lookup->server
            && ngx_rl_failure_breaks(before->failure))
        {
            lookup->failure = before->failure;
            lookup->label = before->label;
            return 1;
        }
    }

    return 0;
}


static void
ngx_rl_api_answered(ngx_rl_lookup_t *lookup)
{
    ngx_rl_api_t       *api = lookup->data;
    ngx_rl_api_keys_t  *keys = api->data;

    keys->asked++;

    ngx_rl_api_wake(api);
}


static void
ngx_rl_api_keys_cancel(ngx_rl_api_t *api)
{
    ngx_rl_api_keys_t  *keys = api->data;

    ngx_rl_lookup_cancel(&keys->lookups[keys->asked]);
}


static ngx_int_t
ngx_rl_api_states(ngx_rl_api_t *api)
{
    ngx_rl_api_keys_t  *keys = api->data;

    ngx_uint_t        i, answered;
    ngx_rl_lookup_t  *lookup, *failed;

    lookup = keys->lookups;
    answered = 0;
    failed = NULL;

    for (i = 0; i < keys->all; i++) {

        if (lookup[i].failure != NGX_RL_OK) {
            failed = &lookup[i];

        } else if (lookup[i].err == NULL) {
            answered++;
        }
    }

    if (failed && answered == 0) {
        return ngx_rl_api_problem(api, NGX_HTTP_SERVICE_UNAVAILABLE,
                                  "no answer from redis %V: %s; \"servers\" "
                                  "shows its breaker",
                                  &failed->label,
                                  ngx_rl_failure_names[failed->failure]);
    }

    if (api->limit) {
        ngx_rl_api_state(api, lookup);
        return ngx_rl_api_send(api, NGX_HTTP_OK, NULL);
    }

    ngx_rl_json_open(&api->json, NULL, '{');
    ngx_rl_json_string(&api->json, "key", &api->path[1]);
    ngx_rl_json_open(&api->json, "limits", '[');

    for (i = 0; i < keys->all; i++) {
        ngx_rl_api_state(api, &lookup[i]);
    }

    ngx_rl_json_close(&api->json, '[');
    ngx_rl_json_close(&api->json, '{');

    return ngx_rl_api_send(api, NGX_HTTP_OK, NULL);
}


static void
ngx_rl_api_state(ngx_rl_api_t *api, ngx_rl_lookup_t *lookup)
{
    ngx_str_t           name;
    ngx_rl_json_t      *json;
    ngx_rl_claim_t     *claim;
    ngx_rl_decision_t  *d;

    json = &api->json;
    claim = &lookup->hc.claim;
    d = &claim->decision;

    ngx_rl_json_open(json, NULL, '{');
    ngx_rl_json_string(json, "limit", &lookup->hc.limit->name);
    ngx_rl_json_string(json, "key", &lookup->hc.key);

    if (lookup->err) {
        ngx_rl_json_string(json, "parameter",
                           &ngx_rl_param_defs[lookup->param].name);
        ngx_rl_json_text(json, "error", lookup->err);
        ngx_rl_json_close(json, '{');
        return;
    }

    if (lookup->server) {
        name.data = (u_char *) claim->key;
        name.len = claim->len;

        ngx_rl_json_string(json, "redis_key", &name);
        ngx_rl_json_string(json, "server", &lookup->label);
    }

    if (lookup->failure != NGX_RL_OK) {
        ngx_rl_json_text(json, "error", "no answer from redis");
        ngx_rl_json_text(json, "failure",
                         ngx_rl_failure_names[lookup->failure]);
        ngx_rl_json_close(json, '{');
        return;
    }

    ngx_rl_json_text(json, "state", lookup->server ? "redis" : "memory");
    ngx_rl_json_bool(json, "passes", d->outcome == NGX_RL_PASSED
                                     || d->outcome == NGX_RL_SKIPPED);
    ngx_rl_json_number(json, "capacity", claim->bucket.capacity);
    ngx_rl_json_number(json, "cost", claim->bucket.cost);
    ngx_rl_json_number(json, "remaining", d->remaining);
    ngx_rl_json_number(json, "reset",
                       d->reset == NGX_RL_NEVER ? NGX_RL_NEVER
                       : (uint64_t) ngx_time() + d->reset);
    ngx_rl_json_number(json, "retry_after",
                       d->retry_after ? d->retry_after : NGX_RL_NEVER);

    ngx_rl_api_override(json, "override", &lookup->hc.limit->name,
                        lookup->override);

    if (lookup->server) {
        ngx_rl_json_open(json, "here", '{');
        ngx_rl_json_bool(json, "denied", lookup->denied);
        ngx_rl_json_number(json, "held", lookup->held);
        ngx_rl_json_close(json, '{');
    }

    ngx_rl_json_close(json, '{');
}
