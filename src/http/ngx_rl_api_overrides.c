
#include "http/ngx_rl_api_overrides.h"


/* in one answer, unless "n" says something else */
#define NGX_RL_API_OVERRIDES_N    1000
#define NGX_RL_API_OVERRIDES_MAX  10000

/* of one head; with a good hash there are a few */
#define NGX_RL_API_OVERRIDES_HEAD 64


static ngx_rl_limit_t *ngx_rl_api_overrides_limit(ngx_rl_api_t *api,
    ngx_rl_table_t *table);


ngx_int_t
ngx_rl_api_overrides(ngx_rl_api_t *api)
{
    ngx_int_t             n;
    ngx_str_t             value;
    ngx_uint_t            i, k, found, all;
    ngx_rl_limit_t       *only, *limit;
    ngx_rl_overrides_t   *overrides;

    static ngx_rl_override_copy_t  copies[NGX_RL_API_OVERRIDES_HEAD];

    overrides = api->rmcf->overrides;

    if (overrides == NULL) {
        return ngx_rl_api_problem(api, NGX_HTTP_NOT_FOUND,
                                  "overrides are off on this machine: write "
                                  "\"ratelimit_overrides on;\"");
    }

    only = NULL;
    n = NGX_RL_API_OVERRIDES_N;

    switch (ngx_rl_api_arg(api, "limit", &value)) {

    case NGX_OK:
        only = ngx_rl_limit_find(&api->rmcf->limits, &value);

        if (only == NULL) {
            return ngx_rl_api_problem(api, NGX_HTTP_NOT_FOUND,
                                      "there is no limit of this name: "
                                      "\"limits\" lists all of them");
        }

        break;

    case NGX_ERROR:
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (ngx_rl_api_arg(api, "n", &value) == NGX_OK) {
        n = ngx_atoi(value.data, value.len);

        if (n <= 0 || n > NGX_RL_API_OVERRIDES_MAX) {
            return ngx_rl_api_problem(api, NGX_HTTP_BAD_REQUEST,
                                      "\"n\" must be a number from 1 to %d",
                                      NGX_RL_API_OVERRIDES_MAX);
        }
    }

    ngx_rl_json_open(&api->json, NULL, '{');
    ngx_rl_json_open(&api->json, "overrides", '[');

    all = 0;

    for (i = 0; i <= overrides->sh->mask; i++) {

        found = ngx_rl_overrides_read(overrides, i, copies,
                                      NGX_RL_API_OVERRIDES_HEAD);

        for (k = 0; k < found; k++) {

            limit = ngx_rl_api_overrides_limit(api, copies[k].table);

            if (limit == NULL || (only && limit != only)) {
                continue;
            }

            if (all++ < (ngx_uint_t) n) {
                ngx_rl_api_override(&api->json, NULL, &limit->name,
                                    &copies[k]);
            }
        }
    }

    ngx_rl_json_close(&api->json, '[');
    ngx_rl_json_number(&api->json, "total", all);
    ngx_rl_json_close(&api->json, '{');

    return ngx_rl_api_send(api, NGX_HTTP_OK, NULL);
}


/* NULL: a table of a former configuration */

static ngx_rl_limit_t *
ngx_rl_api_overrides_limit(ngx_rl_api_t *api, ngx_rl_table_t *table)
{
    ngx_uint_t        i;
    ngx_rl_limit_t  **limit;

    limit = api->rmcf->limits.elts;

    for (i = 0; i < api->rmcf->limits.nelts; i++) {
        if (limit[i]->table && limit[i]->table->table == table) {
            return limit[i];
        }
    }

    return NULL;
}


void
ngx_rl_api_override(ngx_rl_json_t *json, const char *name, ngx_str_t *limit,
    ngx_rl_override_copy_t *copy)
{
    uint32_t                  set;
    ngx_str_t                 text;
    ngx_rl_override_t         values;
    ngx_rl_override_words_t   words;

    if (copy == NULL) {
        ngx_rl_json_text(json, name, NULL);
        return;
    }

    ngx_memzero(&words, sizeof(ngx_rl_override_words_t));

    (void) ngx_rl_override_parse((char *) copy->text, copy->text_len, &values,
                                 &words);

    set = copy->values.set;

    ngx_rl_json_open(json, name, '{');
    ngx_rl_json_string(json, "limit", limit);

    text.data = copy->key;
    text.len = copy->key_len;
    ngx_rl_json_string(json, "key", &text);

    ngx_rl_json_number(json, "capacity",
                       set & NGX_RL_OVERRIDE_CAPACITY ? copy->values.capacity
                                                      : NGX_RL_NEVER);

    if (words.rate_len) {
        text.data = (u_char *) words.rate;
        text.len = words.rate_len;
        ngx_rl_json_string(json, "rate", &text);

    } else {
        ngx_rl_json_text(json, "rate", NULL);
    }

    ngx_rl_json_number(json, "cost",
                       set & NGX_RL_OVERRIDE_COST ? copy->values.cost
                                                  : NGX_RL_NEVER);
    ngx_rl_json_bool(json, "exempt", set & NGX_RL_OVERRIDE_EXEMPT);
    ngx_rl_json_bool(json, "ban", set & NGX_RL_OVERRIDE_BAN);
    ngx_rl_json_number(json, "until",
                       copy->values.until ? copy->values.until : NGX_RL_NEVER);

    if (words.reason_len) {
        text.data = (u_char *) words.reason;
        text.len = words.reason_len;
        ngx_rl_json_string(json, "reason", &text);

    } else {
        ngx_rl_json_text(json, "reason", NULL);
    }

    ngx_rl_json_close(json, '{');
}
