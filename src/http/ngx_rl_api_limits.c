
#include "http/ngx_rl_api_limits.h"
#include "http/ngx_rl_api_advice.h"


static void ngx_rl_api_limit(ngx_rl_api_t *api, ngx_rl_limit_t *limit);
static void ngx_rl_api_uses(ngx_rl_api_t *api, ngx_rl_limit_t *limit);
static void ngx_rl_api_counters(ngx_rl_api_t *api,
    ngx_rl_limit_stats_t *stats);
static void ngx_rl_api_rates(ngx_rl_api_t *api, ngx_rl_rates_t *rates);


static const char *const  ngx_rl_api_on_error[] = {
    "open",    /* NGX_RL_ON_ERROR_OPEN */
    "closed",  /* NGX_RL_ON_ERROR_CLOSED */
    "local"    /* NGX_RL_ON_ERROR_LOCAL */
};


ngx_int_t
ngx_rl_api_limits(ngx_rl_api_t *api)
{
    ngx_uint_t        i;
    ngx_rl_limit_t  **limit;

    if (api->limit) {
        ngx_rl_api_limit(api, api->limit);
        return ngx_rl_api_send(api, NGX_HTTP_OK, NULL);
    }

    ngx_rl_json_open(&api->json, NULL, '{');
    ngx_rl_json_open(&api->json, "limits", '[');

    limit = api->rmcf->limits.elts;

    for (i = 0; i < api->rmcf->limits.nelts; i++) {
        ngx_rl_api_limit(api, limit[i]);
    }

    ngx_rl_json_close(&api->json, '[');
    ngx_rl_json_close(&api->json, '{');

    return ngx_rl_api_send(api, NGX_HTTP_OK, NULL);
}


static void
ngx_rl_api_limit(ngx_rl_api_t *api, ngx_rl_limit_t *limit)
{
    ngx_uint_t       i;
    ngx_rl_param_t  *param;

    ngx_rl_json_open(&api->json, NULL, '{');
    ngx_rl_json_string(&api->json, "name", &limit->name);
    ngx_rl_json_string(&api->json, "algorithm",
                       &ngx_rl_algorithms[limit->params.algorithm].name);

    /* as they are written, with their variables */

    for (i = 0; i < NGX_RL_PARAMS; i++) {
        param = ngx_rl_param(&limit->params, i);

        if (param->value) {
            ngx_rl_json_string(&api->json,
                               (char *) ngx_rl_param_defs[i].name.data,
                               &param->value->value);

        } else {
            ngx_rl_json_text(&api->json,
                             (char *) ngx_rl_param_defs[i].name.data,
                             (i == NGX_RL_KEY) ? "$ratelimit_client_net"
                                               : NULL);
        }
    }

    ngx_rl_json_bool(&api->json, "dry_run", limit->dry_run);
    ngx_rl_api_uses(api, limit);
    ngx_rl_api_counters(api, limit->stats);
    ngx_rl_api_rates(api, limit->rates);
    ngx_rl_json_number(&api->json, "overrides",
                       limit->table ? limit->table->table->live
                                    : NGX_RL_NEVER);
    ngx_rl_json_number(&api->json, "top",
                       limit->top ? limit->top : NGX_RL_NEVER);
    ngx_rl_api_advice(&api->json, limit);
    ngx_rl_json_close(&api->json, '{');
}


static void
ngx_rl_api_uses(ngx_rl_api_t *api, ngx_rl_limit_t *limit)
{
    ngx_uint_t     i;
    ngx_rl_use_t  *use;

    ngx_rl_json_open(&api->json, "used", '[');

    use = api->rmcf->uses.elts;

    for (i = 0; i < api->rmcf->uses.nelts; i++) {

        if (use[i].limit->limit != limit) {
            continue;
        }

        ngx_rl_json_open(&api->json, NULL, '{');
        ngx_rl_json_string(&api->json, "server", &use[i].server);

        if (use[i].location.len) {
            ngx_rl_json_string(&api->json, "location", &use[i].location);

        } else {
            ngx_rl_json_text(&api->json, "location", NULL);
        }

        ngx_rl_api_use_json(&api->json, use[i].conf, limit);
        ngx_rl_json_close(&api->json, '{');
    }

    ngx_rl_json_close(&api->json, '[');
}


void
ngx_rl_api_use_json(ngx_rl_json_t *json, ngx_rl_loc_conf_t *conf,
    ngx_rl_limit_t *limit)
{
    ngx_rl_json_text(json, "phase", conf->phase == NGX_RL_PHASE_ACCESS
                                    ? "access" : "precontent");
    ngx_rl_json_text(json, "mode",
                     conf->preview ? "preview"
                     : conf->dry_run || limit->dry_run ? "dry_run"
                                                       : "enforced");
    ngx_rl_json_text(json, "state", conf->shards ? "redis" : "memory");
    ngx_rl_json_text(json, "on_error", ngx_rl_api_on_error[conf->on_error]);
}


static void
ngx_rl_api_counters(ngx_rl_api_t *api, ngx_rl_limit_stats_t *stats)
{
    uint64_t    sum;
    ngx_uint_t  i, k;

    ngx_rl_json_open(&api->json, "requests", '{');

    for (i = 0; i < NGX_RL_DECISIONS; i++) {

        for (sum = 0, k = 0; k < NGX_RL_SOURCES; k++) {
            sum += stats->requests[i][k];
        }

        ngx_rl_json_number(&api->json, ngx_rl_decision_names[i], sum);
    }

    ngx_rl_json_close(&api->json, '{');

    ngx_rl_json_open(&api->json, "sources", '{');

    for (k = NGX_RL_SOURCE_REDIS; k < NGX_RL_SOURCES; k++) {

        for (sum = 0, i = 0; i < NGX_RL_DECISIONS; i++) {
            sum += stats->requests[i][k];
        }

        if (sum) {
            ngx_rl_json_number(&api->json, ngx_rl_source_names[k], sum);
        }
    }

    ngx_rl_json_close(&api->json, '{');

    ngx_rl_json_number(&api->json, "tokens", stats->tokens);
    ngx_rl_json_number(&api->json, "near_limit", stats->near_limit);
    ngx_rl_json_number(&api->json, "invalid_values", stats->invalid);
}


/* requests per second */

static void
ngx_rl_api_rates(ngx_rl_api_t *api, ngx_rl_rates_t *rates)
{
    ngx_uint_t       i;
    ngx_rl_counts_t  counts;

    static const struct {
        const char  *name;
        ngx_uint_t   seconds;
    } spans[] = {
        { "1s", 1 }, { "10s", 10 }, { "60s", 60 }
    };

    ngx_rl_json_open(&api->json, "rates", '{');

    for (i = 0; i < 3; i++) {

        if (rates == NULL
            || ngx_rl_rates_count(rates, spans[i].seconds, &counts) != NGX_OK)
        {
            ngx_rl_json_text(&api->json, spans[i].name, NULL);
            continue;
        }

        ngx_rl_json_open(&api->json, spans[i].name, '{');
        ngx_rl_json_ratio(&api->json, "passed", counts.passed,
                          spans[i].seconds);
        ngx_rl_json_ratio(&api->json, "rejected", counts.rejected,
                          spans[i].seconds);
        ngx_rl_json_ratio(&api->json, "degraded", counts.degraded,
                          spans[i].seconds);
        ngx_rl_json_close(&api->json, '{');
    }

    ngx_rl_json_close(&api->json, '{');
}
