
#include "conf/ngx_rl_limit.h"
#include "core/ngx_rl_core.h"


#define NGX_RL_LIMIT_NAME_MAX    64
#define NGX_RL_WINDOW_MAX  31536000000ULL       /* ms: a year */
#define NGX_RL_INTERVAL_MAX    86400000             /* ms: a day */


static const char *ngx_rl_time_parse(ngx_str_t *text,
    uint64_t min, uint64_t max, uint64_t *us, const char *allowed);
static ngx_int_t ngx_rl_limit_param(ngx_conf_t *cf,
    ngx_rl_limit_t *limit, ngx_str_t *word);
static ngx_uint_t ngx_rl_resolve_valid(ngx_str_t *name);


/* parameters of "ratelimit_limit" */

static struct {
    ngx_str_t                   name;
    ngx_rl_param_e  what;
    size_t                      offset;
} ngx_rl_limit_params[] = {

    { ngx_string("capacity"), NGX_RL_CAPACITY,
      offsetof(ngx_rl_limit_t, params.capacity) },

    { ngx_string("rate"), NGX_RL_RATE,
      offsetof(ngx_rl_limit_t, params.rate) },

    { ngx_string("cost"), NGX_RL_COST,
      offsetof(ngx_rl_limit_t, cost) },

    { ngx_string("window"), NGX_RL_WINDOW,
      offsetof(ngx_rl_limit_t, params.window) },

    { ngx_string("refill_interval"), NGX_RL_INTERVAL,
      offsetof(ngx_rl_limit_t, params.interval) },

    { ngx_null_string, 0, 0 }
};


ngx_conf_enum_t  ngx_rl_algorithms[] = {
    { ngx_string("token_bucket"), NGX_RL_TOKEN_BUCKET },
    { ngx_string("sliding_window_log"),
      NGX_RL_SLIDING_WINDOW_LOG },
    { ngx_string("gcra"), NGX_RL_GCRA },
    { ngx_null_string, 0 }
};


const char *
ngx_rl_param_parse(ngx_rl_param_e what, ngx_str_t *text, void *value)
{
    switch (what) {

    case NGX_RL_CAPACITY:
        return ngx_rl_capacity_parse(text->data, text->len, value);

    case NGX_RL_RATE:
        return ngx_rl_rate_parse(text->data, text->len, value);

    case NGX_RL_COST:
        return ngx_rl_cost_parse(text->data, text->len, value);

    case NGX_RL_WINDOW:
        return ngx_rl_time_parse(text, 1, NGX_RL_WINDOW_MAX, value,
                                 "it must be a time from 1ms to 365d, "
                                 "for example \"60s\"");

    default: /* NGX_RL_INTERVAL */
        return ngx_rl_time_parse(text, 0, NGX_RL_INTERVAL_MAX, value,
                   "it must be a time from 0 to 1d, for example \"100ms\"");
    }
}


static const char *
ngx_rl_time_parse(ngx_str_t *text, uint64_t min, uint64_t max,
    uint64_t *us, const char *allowed)
{
    ngx_int_t  ms;

    ms = ngx_parse_time(text, 0);

    if (ms == NGX_ERROR || (uint64_t) ms < min || (uint64_t) ms > max) {
        return allowed;
    }

    *us = (uint64_t) ms * 1000;

    return NULL;
}


ngx_int_t
ngx_rl_param_compile(ngx_conf_t *cf, ngx_rl_param_t *param, ngx_rl_param_e what,
    ngx_str_t *directive, ngx_str_t *text)
{
    const char                       *err;
    ngx_http_compile_complex_value_t  ccv;

    param->value = ngx_pcalloc(cf->pool, sizeof(ngx_http_complex_value_t));
    if (param->value == NULL) {
        return NGX_ERROR;
    }

    ngx_memzero(&ccv, sizeof(ngx_http_compile_complex_value_t));

    ccv.cf = cf;
    ccv.value = text;
    ccv.complex_value = param->value;

    if (ngx_http_compile_complex_value(&ccv) != NGX_OK) {
        return NGX_ERROR;
    }

    if (param->value->lengths) {
        param->dynamic = 1;
        return NGX_OK;
    }

    err = ngx_rl_param_parse(what, text, &param->u);

    if (err) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\": %s", text,
                           directive, err);
        return NGX_ERROR;
    }

    return NGX_OK;
}


ngx_uint_t
ngx_rl_limit_params_complete(ngx_rl_limit_params_t *params)
{
    return params->algorithm == NGX_RL_SLIDING_WINDOW_LOG
           ? params->capacity.value != NULL : params->rate.value != NULL;
}


const char *
ngx_rl_limit_check(ngx_rl_limit_t *limit,
    ngx_rl_param_t *cost, ngx_str_t *error)
{
    u_char                 *last;
    uint64_t                capacity;
    const char             *err;
    ngx_rl_limit_params_t  *params;

    params = &limit->params;
    last = error->data + error->len;

    if (params->capacity.value) {

        if (params->capacity.dynamic) {
            return NULL;
        }

        capacity = params->capacity.u.number;

    } else {

        if (params->rate.dynamic) {
            return NULL;
        }

        capacity = params->rate.u.rate.count;

        if (capacity == 0) {
            last = ngx_slprintf(error->data, last,
                                "\"ratelimit_rate\" \"%V\" of limit \"%V\" "
                                "never refills and needs "
                                "\"ratelimit_capacity\"",
                                &params->rate.value->value, &limit->name);
            error->len = last - error->data;

            return "ratelimit_rate";
        }
    }

    if (params->algorithm != NGX_RL_SLIDING_WINDOW_LOG && !params->rate.dynamic)
    {
        err = ngx_rl_bucket_check(params->algorithm,
                                  &params->rate.u.rate, capacity);

        if (err) {
            last = ngx_slprintf(error->data, last,
                                "\"ratelimit_rate\" \"%V\" of limit \"%V\" "
                                "does not fit capacity %uL: %s",
                                &params->rate.value->value, &limit->name,
                                capacity, err);
            error->len = last - error->data;

            return "ratelimit_rate";
        }
    }

    if (cost->value && !cost->dynamic && cost->u.number > capacity) {
        last = ngx_slprintf(error->data, last,
                            "\"ratelimit_cost\" \"%V\" is above capacity "
                            "%uL of limit \"%V\": no request could ever "
                            "pass; raise the capacity or lower the cost",
                            &cost->value->value, capacity, &limit->name);
        error->len = last - error->data;

        return "ratelimit_cost";
    }

    return NULL;
}


const char *
ngx_rl_bucket_check(ngx_uint_t algorithm,
    const ngx_rl_rate_t *rate, uint64_t capacity)
{
    const char  *err;

    err = ngx_rl_rate_check(rate, capacity);

    if (err == NULL && algorithm == NGX_RL_GCRA) {
        err = ngx_rl_gcra_check(rate, capacity);
    }

    return err;
}


ngx_int_t
ngx_rl_limit_name(ngx_conf_t *cf, ngx_array_t *limits, ngx_str_t *name)
{
    char                      *kind;
    u_char                    *p, *last;
    ngx_str_t                 *server;
    ngx_uint_t                 n;
    ngx_http_core_srv_conf_t  *cscf;
    ngx_http_core_loc_conf_t  *clcf;

    static ngx_str_t  http = ngx_string("http");
    static ngx_str_t  unnamed = ngx_string("_");

    cscf = ngx_http_conf_get_module_srv_conf(cf, ngx_http_core_module);
    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    /* at the http level there is no server */

    if (cscf->ctx == NULL) {
        server = &http;

    } else {
        server = cscf->server_name.len ? &cscf->server_name : &unnamed;
    }

    kind = "";

    if (clcf->exact_match) {
        kind = "=";

#if (NGX_PCRE)
    } else if (clcf->regex) {
        kind = "~";
#endif
    }

    p = ngx_pnalloc(cf->pool, server->len + 1 + clcf->name.len
                    + sizeof("#18446744073709551615"));
    if (p == NULL) {
        return NGX_ERROR;
    }

    name->data = p;
    last = ngx_sprintf(p, "%V%s%V", server, kind, &clcf->name);
    name->len = last - name->data;

    /* the braces of a regex would move the hash tag of a cluster's keys */

    for ( /* void */ ; p < last; p++) {

        if (*p == '{') {
            *p = '(';

        } else if (*p == '}') {
            *p = ')';
        }
    }

    n = 1;

    while (ngx_rl_limit_find(limits, name)) {
        name->len = ngx_sprintf(last, "#%ui", ++n) - name->data;
    }

    return NGX_OK;
}


ngx_rl_limit_t *
ngx_rl_limit_find(ngx_array_t *limits, ngx_str_t *name)
{
    ngx_uint_t        i;
    ngx_rl_limit_t  **limit;

    limit = limits->elts;

    for (i = 0; i < limits->nelts; i++) {
        if (ngx_rl_str_equal(&limit[i]->name, name)) {
            return limit[i];
        }
    }

    return NULL;
}


char *
ngx_rl_limit_parse(ngx_conf_t *cf, ngx_array_t *limits)
{
    u_char           text[NGX_MAX_CONF_ERRSTR];
    ngx_str_t       *value, error;
    ngx_uint_t       i, window;
    ngx_rl_limit_t  *limit, **limitp;

    value = cf->args->elts;

    if (!ngx_rl_resolve_valid(&value[1])) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid name \"%V\" in \"%V\": it must be "
                           "1 to %d letters, digits, \"_\", \"-\" or \".\" "
                           "and not \"off\"",
                           &value[1], &value[0], NGX_RL_LIMIT_NAME_MAX);
        return NGX_CONF_ERROR;
    }

    if (ngx_rl_limit_find(limits, &value[1])) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "duplicate name \"%V\" in \"%V\"",
                           &value[1], &value[0]);
        return NGX_CONF_ERROR;
    }

    limit = ngx_pcalloc(cf->pool, sizeof(ngx_rl_limit_t));
    if (limit == NULL) {
        return NGX_CONF_ERROR;
    }

    limit->name = value[1];
    limit->named = 1;
    limit->params.algorithm = NGX_CONF_UNSET_UINT;

    for (i = 2; i < cf->args->nelts; i++) {
        if (ngx_rl_limit_param(cf, limit, &value[i]) != NGX_OK) {
            return NGX_CONF_ERROR;
        }
    }

    ngx_conf_init_uint_value(limit->params.algorithm, NGX_RL_TOKEN_BUCKET);

    window = (limit->params.algorithm == NGX_RL_SLIDING_WINDOW_LOG);

    if (window ? (limit->params.rate.value || limit->params.interval.value)
        : limit->params.window.value != NULL)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "%s no meaning in \"%V\" \"%V\", which is a %s",
                           window ? "\"rate=\" and \"refill_interval=\" have"
                           : "\"window=\" has", &value[0], &value[1],
                           window ? "sliding window log"
                           : "token bucket: "
                           "add \"algorithm=sliding_window_log\"");
        return NGX_CONF_ERROR;
    }

    if (limit->params.algorithm == NGX_RL_GCRA && limit->params.interval.value)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"refill_interval=\" has no meaning in \"%V\" "
                           "\"%V\", which is \"algorithm=gcra\"",
                           &value[0], &value[1]);
        return NGX_CONF_ERROR;
    }

    if (!ngx_rl_limit_params_complete(&limit->params)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "no \"%s=\" in \"%V\" \"%V\"",
                           window ? "capacity" : "rate", &value[0], &value[1]);
        return NGX_CONF_ERROR;
    }

    error.data = text;
    error.len = NGX_MAX_CONF_ERRSTR;

    if (ngx_rl_limit_check(limit, &limit->cost, &error)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "%V", &error);
        return NGX_CONF_ERROR;
    }

    limitp = ngx_array_push(limits);
    if (limitp == NULL) {
        return NGX_CONF_ERROR;
    }

    *limitp = limit;

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_rl_limit_param(ngx_conf_t *cf, ngx_rl_limit_t *limit, ngx_str_t *word)
{
    ngx_str_t                         name, text, *value;
    ngx_uint_t                        i;
    ngx_rl_param_t                   *param;
    ngx_conf_enum_t                  *e;
    ngx_http_compile_complex_value_t  ccv;

    value = cf->args->elts;

    if (ngx_strcmp(word->data, "dry_run") == 0) {

        if (limit->dry_run) {
            goto duplicate;
        }

        limit->dry_run = 1;
        return NGX_OK;
    }

    text.data = ngx_strlchr(word->data, word->data + word->len, '=');

    if (text.data == NULL) {
        goto unknown;
    }

    name.data = word->data;
    name.len = text.data - word->data;

    text.data++;
    text.len = word->data + word->len - text.data;

    if (name.len == 3 && ngx_strncmp(name.data, "key", 3) == 0) {

        if (limit->params.key) {
            goto duplicate;
        }

        if (text.len == 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "no key in \"%V\" of \"%V\": a limit with an "
                               "empty key limits nothing", word, &value[0]);
            return NGX_ERROR;
        }

        limit->params.key = ngx_palloc(cf->pool,
                                       sizeof(ngx_http_complex_value_t));
        if (limit->params.key == NULL) {
            return NGX_ERROR;
        }

        ngx_memzero(&ccv, sizeof(ngx_http_compile_complex_value_t));

        ccv.cf = cf;
        ccv.value = &text;
        ccv.complex_value = limit->params.key;

        return ngx_http_compile_complex_value(&ccv);
    }

    if (name.len == 9 && ngx_strncmp(name.data, "algorithm", 9) == 0) {

        if (limit->params.algorithm != NGX_CONF_UNSET_UINT) {
            goto duplicate;
        }

        for (e = ngx_rl_algorithms; e->name.len; e++) {

            if (ngx_rl_str_equal(&e->name, &text)) {
                limit->params.algorithm = e->value;
                return NGX_OK;
            }
        }

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\": it must be "
                           "\"token_bucket\", \"sliding_window_log\" "
                           "or \"gcra\"", word, &value[0]);
        return NGX_ERROR;
    }

    for (i = 0; ngx_rl_limit_params[i].name.len; i++) {

        if (!ngx_rl_str_equal(&ngx_rl_limit_params[i].name, &name)) {
            continue;
        }

        param = (ngx_rl_param_t *)
                    ((u_char *) limit + ngx_rl_limit_params[i].offset);

        if (param->value) {
            goto duplicate;
        }

        name.data = ngx_pnalloc(cf->pool, value[0].len + 1 + name.len);
        if (name.data == NULL) {
            return NGX_ERROR;
        }

        name.len = ngx_sprintf(name.data, "%V %V", &value[0],
                               &ngx_rl_limit_params[i].name)
                   - name.data;

        return ngx_rl_param_compile(cf, param, ngx_rl_limit_params[i].what,
                                    &name, &text);
    }

unknown:

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid parameter \"%V\" in \"%V\": there are key=, "
                       "capacity=, rate=, cost=, algorithm=, window=, "
                       "refill_interval= and dry_run", word, &value[0]);
    return NGX_ERROR;

duplicate:

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "duplicate parameter \"%V\" in \"%V\"", word, &value[0]);
    return NGX_ERROR;
}


/* what can stand in keys, headers, labels and logs as it is */

static ngx_uint_t
ngx_rl_resolve_valid(ngx_str_t *name)
{
    u_char  c;
    size_t  i;

    if (name->len == 0 || name->len > NGX_RL_LIMIT_NAME_MAX
        || ngx_strcmp(name->data, "off") == 0)
    {
        return 0;
    }

    for (i = 0; i < name->len; i++) {
        c = name->data[i];

        if ((c < 'a' || c > 'z') && (c < 'A' || c > 'Z')
            && (c < '0' || c > '9') && c != '_' && c != '-' && c != '.')
        {
            return 0;
        }
    }

    return 1;
}
