
#include "http/ngx_rl_api_top.h"
#include "core/ngx_rl_clock.h"
#include "core/ngx_rl_core.h"


#define NGX_RL_API_TOP  20          /* keys, if the request does not say */


static ngx_int_t ngx_rl_api_top_of_limit(ngx_rl_api_t *api);
static ngx_int_t ngx_rl_api_top_list(ngx_rl_api_t *api,
    ngx_uint_t table, ngx_uint_t n);
static uint64_t ngx_rl_api_tenths(double count);


/* by table */

static ngx_conf_enum_t  ngx_rl_api_tops[] = {
    { ngx_string("rejected"), NGX_RL_TOP_REJECTED },
    { ngx_string("seen"), NGX_RL_TOP_SEEN },
    { ngx_null_string, 0 }
};


ngx_int_t
ngx_rl_api_top(ngx_rl_api_t *api)
{
    ngx_int_t  rc;
    ngx_str_t  name;

    rc = ngx_rl_api_arg(api, "limit", &name);

    if (rc == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (rc != NGX_OK || name.len == 0) {
        return ngx_rl_api_problem(api, NGX_HTTP_BAD_REQUEST,
                                  "argument \"limit\" is missing: for example "
                                  "\"top?limit=NAME\"");
    }

    api->limit = ngx_rl_limit_find(&api->rmcf->limits, &name);

    if (api->limit == NULL) {
        return ngx_rl_api_problem(api, NGX_HTTP_NOT_FOUND,
                                  "there is no limit of this name: \"limits\" "
                                  "lists all of them");
    }

    if (api->limit->tops == NULL) {
        return ngx_rl_api_problem(api, NGX_HTTP_NOT_FOUND,
                                  "the keys of limit \"%V\" are not counted: "
                                  "set \"ratelimit_top\" where it is used; "
                                  "keys are not counted in previews and with "
                                  "\"ratelimit_log_key off\"",
                                  &api->limit->name);
    }

    return ngx_rl_api_top_of_limit(api);
}


static ngx_int_t
ngx_rl_api_top_of_limit(ngx_rl_api_t *api)
{
    ngx_int_t         rc, n;
    ngx_str_t         text;
    ngx_conf_enum_t  *by;

    by = ngx_rl_api_tops;
    rc = ngx_rl_api_arg(api, "by", &text);

    while (rc == NGX_OK && by->name.len && !ngx_rl_str_equal(&by->name, &text))
    {
        by++;
    }

    if (rc == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (by->name.len == 0) {
        return ngx_rl_api_problem(api, NGX_HTTP_BAD_REQUEST,
                                  "argument \"by\": it must be \"rejected\" or "
                                  "\"seen\"");
    }

    n = NGX_RL_API_TOP;
    rc = ngx_rl_api_arg(api, "n", &text);

    if (rc == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (rc == NGX_OK) {
        n = ngx_atoi(text.data, text.len);
    }

    if (n < 1 || n > NGX_RL_TOP_MAX) {
        return ngx_rl_api_problem(api, NGX_HTTP_BAD_REQUEST,
                                  "argument \"n\": it must be a number from 1 "
                                  "to %d", NGX_RL_TOP_MAX);
    }

    ngx_rl_json_open(&api->json, NULL, '{');
    ngx_rl_json_string(&api->json, "limit", &api->limit->name);
    ngx_rl_json_string(&api->json, "by", &by->name);
    ngx_rl_json_number(&api->json, "half_life",
                       NGX_RL_TOP_HALF_LIFE / 1000);

    if (ngx_rl_api_top_list(api, by->value, n) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_rl_json_close(&api->json, '{');

    return ngx_rl_api_send(api, NGX_HTTP_OK, NULL);
}


/* the largest come first; what has decayed to nothing is left out */

static ngx_int_t
ngx_rl_api_top_list(ngx_rl_api_t *api, ngx_uint_t table, ngx_uint_t n)
{
    double               missed;
    uint64_t             count;
    ngx_str_t            text;
    ngx_uint_t           i, all;
    ngx_rl_top_entry_t  *entry;

    all = api->limit->top;

    entry = ngx_palloc(api->request->pool, all * sizeof(ngx_rl_top_entry_t));
    if (entry == NULL) {
        return NGX_ERROR;
    }

    all = ngx_rl_tops_copy(api->rmcf->zone, api->limit->tops, table, entry, all,
                           ngx_rl_clock_us() / 1000, &missed);
    ngx_rl_top_sort(entry, all);

    ngx_rl_json_tenths(&api->json, "error", ngx_rl_api_tenths(missed));
    ngx_rl_json_open(&api->json, "keys", '[');

    for (i = 0; i < ngx_min(all, n); i++) {

        count = ngx_rl_api_tenths(entry[i].count);

        if (count == 0) {
            break;
        }

        text.data = entry[i].text;
        text.len = entry[i].len;

        ngx_rl_json_open(&api->json, NULL, '{');
        ngx_rl_json_string(&api->json, "key", &text);
        ngx_rl_json_tenths(&api->json, "count", count);
        ngx_rl_json_tenths(&api->json, "error",
                           ngx_rl_api_tenths(entry[i].error));
        ngx_rl_json_close(&api->json, '{');
    }

    ngx_rl_json_close(&api->json, '[');

    return NGX_OK;
}


static uint64_t
ngx_rl_api_tenths(double count)
{
    return (uint64_t) (count * 10 + 0.5);
}
