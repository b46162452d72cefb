
#include "conf/ngx_rl_limit.h"
#include "core/ngx_rl_core.h"


#define NGX_RL_LIMIT_NAME_MAX  64

/* characters that are safe in keys, headers, labels and logs */
#define NGX_RL_LIMIT_NAME                                                     \
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."

#define NGX_RL_WINDOW_MAX      31536000000ULL       /* ms: a year */
#define NGX_RL_INTERVAL_MAX    86400000             /* ms: a day */


static ngx_int_t ngx_rl_limit_name(ngx_conf_t *cf, ngx_array_t *limits,
    ngx_str_t *name);
static char *ngx_rl_limit_param(ngx_conf_t *cf,
    ngx_rl_limit_t *limit, ngx_str_t *word);
static char *ngx_rl_limit_period_check(ngx_conf_t *cf,
    ngx_rl_block_t *block, ngx_rl_limit_t *limit);
static char *ngx_rl_limit_words_check(ngx_conf_t *cf, ngx_rl_limit_t *limit);
static char *ngx_rl_limit_window_check(ngx_conf_t *cf,
    ngx_rl_limit_params_t *params);


/* in the order of ngx_rl_param_e */

ngx_rl_param_def_t  ngx_rl_param_defs[] = {

    { ngx_string("key"), ngx_string("ratelimit_key"),
      offsetof(ngx_rl_limit_params_t, key) },

    { ngx_string("capacity"), ngx_string("ratelimit_capacity"),
      offsetof(ngx_rl_limit_params_t, capacity) },

    { ngx_string("window"), ngx_string("ratelimit_window"),
      offsetof(ngx_rl_limit_params_t, window) },

    { ngx_string("period"), ngx_string("ratelimit_period"),
      offsetof(ngx_rl_limit_params_t, period) },

    { ngx_string("timezone"), ngx_string("ratelimit_timezone"),
      offsetof(ngx_rl_limit_params_t, timezone) },

    { ngx_string("anchor"), ngx_string("ratelimit_anchor"),
      offsetof(ngx_rl_limit_params_t, anchor) },

    { ngx_string("rate"), ngx_string("ratelimit_rate"),
      offsetof(ngx_rl_limit_params_t, rate) },

    { ngx_string("refill_interval"), ngx_string("ratelimit_refill_interval"),
      offsetof(ngx_rl_limit_params_t, interval) },

    { ngx_string("cost"), ngx_string("ratelimit_cost"),
      offsetof(ngx_rl_limit_params_t, cost) }
};


ngx_conf_enum_t  ngx_rl_algorithms[] = {
    { ngx_string("token_bucket"), NGX_RL_TOKEN_BUCKET },
    { ngx_string("sliding_window_log"), NGX_RL_SLIDING_WINDOW_LOG },
    { ngx_string("gcra"), NGX_RL_GCRA },
    { ngx_string("fixed_window"), NGX_RL_FIXED_WINDOW },
    { ngx_string("sliding_window_counter"), NGX_RL_SLIDING_WINDOW_COUNTER },
    { ngx_null_string, 0 }
};


const char  *const ngx_rl_algorithm_words[] = {
    "token bucket",
    "sliding window log",
    "token bucket",
    "fixed window",
    "sliding window counter"
};


static const ngx_rl_bounds_t  ngx_rl_windows = {
    NGX_RL_TIME, 1, NGX_RL_WINDOW_MAX, 0,
    "it must be a time from 1ms to 365d, for example \"60s\""
};

static const ngx_rl_bounds_t  ngx_rl_intervals = {
    NGX_RL_TIME, 0, NGX_RL_INTERVAL_MAX, 0,
    "it must be a time from 0 to 1d, for example \"100ms\""
};


const char *
ngx_rl_param_parse(ngx_rl_param_e what, ngx_str_t *text, void *value)
{
    uint64_t    *us;
    const char  *err;

    switch (what) {

    case NGX_RL_CAPACITY:
        return ngx_rl_capacity_parse(text->data, text->len, value);

    case NGX_RL_RATE:
        return ngx_rl_rate_parse(text->data, text->len, value);

    case NGX_RL_COST:
        return ngx_rl_cost_parse(text->data, text->len, value);

    case NGX_RL_PERIOD:
        return ngx_rl_period_parse(text->data, text->len, value);

    case NGX_RL_TIMEZONE:
        return ngx_rl_timezone_parse(text->data, text->len, value);

    case NGX_RL_ANCHOR:
        return ngx_rl_anchor_parse(text->data, text->len, value);

    case NGX_RL_WINDOW:
    case NGX_RL_INTERVAL:
        us = value;
        err = ngx_rl_bounds_parse(what == NGX_RL_WINDOW ? &ngx_rl_windows
                                  : &ngx_rl_intervals, text, us);
        if (err == NULL) {
            *us *= 1000;
        }

        return err;

    default: /* NGX_RL_KEY: any text is one */
        return NULL;
    }
}


const char *
ngx_rl_bounds_parse(const ngx_rl_bounds_t *bounds, ngx_str_t *text,
    uint64_t *value)
{
    ngx_int_t  n;

    if (bounds->kind == NGX_RL_PERCENT) {

        n = (text->len && text->data[text->len - 1] == '%')
            ? ngx_atoi(text->data, text->len - 1) : NGX_ERROR;

    } else {
        n = (bounds->kind == NGX_RL_TIME) ? ngx_parse_time(text, 0)
                                          : ngx_atoi(text->data, text->len);
    }

    /* 401, 403 and 407 would let a request in under "satisfy any" */

    if (n == NGX_ERROR || (uint64_t) n < bounds->min
        || (uint64_t) n > bounds->max
        || (bounds->kind == NGX_RL_STATUS
            && (n == NGX_HTTP_UNAUTHORIZED || n == NGX_HTTP_FORBIDDEN
                || n == 407)))
    {
        return bounds->allowed;
    }

    *value = n;

    return NULL;
}


char *
ngx_rl_param_compile(ngx_conf_t *cf, ngx_rl_param_t *param, ngx_rl_param_e what,
    ngx_str_t *directive, ngx_str_t *text)
{
    const char                       *err;
    ngx_http_compile_complex_value_t  ccv;

    param->value = ngx_pcalloc(cf->pool, sizeof(ngx_http_complex_value_t));
    if (param->value == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_memzero(&ccv, sizeof(ngx_http_compile_complex_value_t));

    ccv.cf = cf;
    ccv.value = text;
    ccv.complex_value = param->value;

    if (ngx_http_compile_complex_value(&ccv) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    param->dynamic = (param->value->lengths != NULL);

    /* a period is the same for all requests, so a variable is no value of it */

    err = (param->dynamic && (what < NGX_RL_PERIOD || what > NGX_RL_ANCHOR))
          ? NULL : ngx_rl_param_parse(what, text, &param->u);

    return err ? ngx_rl_conf_error(cf, "invalid value \"%V\" in \"%V\": %s",
                                   text, directive, err)
               : NGX_CONF_OK;
}


void
ngx_rl_limit_period(const ngx_rl_limit_params_t *params,
    ngx_rl_period_t *period)
{
    /* other windows may inherit a period, which they ignore */

    if (params->period.value == NULL
        || params->algorithm != NGX_RL_FIXED_WINDOW)
    {
        ngx_rl_period_window(period, params->window.value
                                     ? params->window.u.number
                                     : NGX_RL_WINDOW_DEFAULT);
        return;
    }

    ngx_rl_period_calendar(period, params->period.u.number,
                           params->timezone.value
                           ? (int64_t) params->timezone.u.number : 0,
                           params->anchor.value ? params->anchor.u.number : 1);
}


ngx_uint_t
ngx_rl_limit_params_complete(ngx_rl_limit_params_t *params)
{
    return ngx_rl_algorithm_window(params->algorithm)
           ? params->capacity.value != NULL : params->rate.value != NULL;
}


char *
ngx_rl_limit_check(ngx_conf_t *cf, ngx_rl_block_t *block,
    ngx_rl_limit_t *limit, ngx_rl_param_t *cost)
{
    uint64_t                capacity;
    const char             *err;
    ngx_rl_limit_params_t  *params;

    params = &limit->params;

    if (ngx_rl_algorithm_period(params->algorithm)
        && ngx_rl_limit_period_check(cf, block, limit) != NGX_CONF_OK)
    {
        return NGX_CONF_ERROR;
    }

    if (params->capacity.value ? params->capacity.dynamic
        : params->rate.dynamic)
    {
        return NGX_CONF_OK;
    }

    capacity = params->capacity.value ? params->capacity.u.number
                                      : params->rate.u.rate.count;

    if (capacity == 0) {
        return ngx_rl_statement_error(cf, block, "ratelimit_rate",
                                      "\"ratelimit_rate\" \"%V\" of limit "
                                      "\"%V\" never refills the bucket: add "
                                      "\"ratelimit_capacity\"",
                                      &params->rate.value->value, &limit->name);
    }

    err = NULL;

    if (!ngx_rl_algorithm_window(params->algorithm) && !params->rate.dynamic) {
        err = ngx_rl_bucket_check(params->algorithm, &params->rate.u.rate,
                                  capacity);
    }

    if (err) {
        return ngx_rl_statement_error(cf, block, "ratelimit_rate",
                                      "\"ratelimit_rate\" \"%V\" of limit "
                                      "\"%V\" is not possible with capacity "
                                      "%uL: %s",
                                      &params->rate.value->value, &limit->name,
                                      capacity, err);
    }

    if (cost->value && !cost->dynamic && cost->u.number > capacity) {
        return ngx_rl_statement_error(cf, block, "ratelimit_cost",
                                      "\"ratelimit_cost\" \"%V\" is above "
                                      "capacity %uL of limit \"%V\": no "
                                      "request could ever pass; raise the "
                                      "capacity or lower the cost",
                                      &cost->value->value, capacity,
                                      &limit->name);
    }

    return NGX_CONF_OK;
}


/*
 * Requests with different windows would start the window of one key anew all
 * the time, so its length cannot be a variable.
 */

static char *
ngx_rl_limit_period_check(ngx_conf_t *cf, ngx_rl_block_t *block,
    ngx_rl_limit_t *limit)
{
    ngx_rl_limit_params_t  *params;

    params = &limit->params;

    if (params->window.dynamic
        && (params->period.value == NULL
            || params->algorithm != NGX_RL_FIXED_WINDOW))
    {
        return ngx_rl_statement_error(cf, block, "ratelimit_window",
                                      "\"ratelimit_window\" \"%V\" of limit "
                                      "\"%V\" has a variable: a %s has the "
                                      "same length for all requests",
                                      &params->window.value->value,
                                      &limit->name,
                                      ngx_rl_algorithm_words[
                                                          params->algorithm]);
    }

    if (params->algorithm == NGX_RL_FIXED_WINDOW
        && params->period.value && params->anchor.value
        && params->period.u.number == NGX_RL_WEEK
        && params->anchor.u.number > 7)
    {
        return ngx_rl_statement_error(cf, block, "ratelimit_anchor",
                                      "\"ratelimit_anchor\" \"%V\" of limit "
                                      "\"%V\" is no day of a week: it must be "
                                      "from 1 (Monday) to 7",
                                      &params->anchor.value->value,
                                      &limit->name);
    }

    return NGX_CONF_OK;
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


ngx_rl_limit_t *
ngx_rl_limit_add(ngx_conf_t *cf, ngx_array_t *limits, ngx_str_t *name)
{
    ngx_rl_limit_t  *limit, **limitp;

    limit = ngx_pcalloc(cf->pool, sizeof(ngx_rl_limit_t));
    if (limit == NULL) {
        return NULL;
    }

    if (name) {
        limit->name = *name;
        limit->named = 1;

    } else if (ngx_rl_limit_name(cf, limits, &limit->name) != NGX_OK) {
        return NULL;
    }

    limitp = ngx_array_push(limits);
    if (limitp == NULL) {
        return NULL;
    }

    *limitp = limit;

    return limit;
}


static ngx_int_t
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

    server = cscf->ctx == NULL ? &http
             : cscf->server_name.len ? &cscf->server_name : &unnamed;

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

    /* braces of a regex would move the hash tag of keys in a cluster */

    for ( /* void */ ; p < last; p++) {
        *p = (*p == '{') ? '(' : (*p == '}') ? ')' : *p;
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
ngx_rl_limit_parse(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_str_t       *value;
    ngx_uint_t       i;
    ngx_array_t     *limits;
    ngx_rl_limit_t  *limit;

    value = cf->args->elts;
    limits = (ngx_array_t *) ((u_char *) conf + cmd->offset);

    if (value[1].len == 0 || value[1].len > NGX_RL_LIMIT_NAME_MAX
        || strspn((char *) value[1].data, NGX_RL_LIMIT_NAME) != value[1].len
        || ngx_strcmp(value[1].data, "off") == 0)
    {
        return ngx_rl_conf_error(cf, "invalid name \"%V\" in \"%V\": it must "
                                 "be 1 to %d letters, digits, \"_\", \"-\" or "
                                 "\".\" and not \"off\"", &value[1], &value[0],
                                 NGX_RL_LIMIT_NAME_MAX);
    }

    if (ngx_rl_limit_find(limits, &value[1])) {
        return ngx_rl_conf_error(cf, "duplicate name \"%V\" in \"%V\"",
                                 &value[1], &value[0]);
    }

    limit = ngx_rl_limit_add(cf, limits, &value[1]);
    if (limit == NULL) {
        return NGX_CONF_ERROR;
    }

    limit->params.algorithm = NGX_CONF_UNSET_UINT;

    for (i = 2; i < cf->args->nelts; i++) {
        if (ngx_rl_limit_param(cf, limit, &value[i]) != NGX_CONF_OK) {
            return NGX_CONF_ERROR;
        }
    }

    ngx_conf_init_uint_value(limit->params.algorithm, NGX_RL_TOKEN_BUCKET);

    return ngx_rl_limit_words_check(cf, limit);
}


/* a word of "ratelimit_limit" */

static char *
ngx_rl_limit_param(ngx_conf_t *cf, ngx_rl_limit_t *limit, ngx_str_t *word)
{
    ngx_str_t         text, name, *value;
    ngx_uint_t        i;
    ngx_rl_param_t   *param;
    ngx_conf_enum_t  *e;

    static ngx_str_t  algorithm = ngx_string("algorithm");

    value = cf->args->elts;

    if (ngx_strcmp(word->data, "dry_run") == 0) {

        if (limit->dry_run) {
            goto duplicate;
        }

        limit->dry_run = 1;
        return NGX_CONF_OK;
    }

    if (ngx_strcmp(word->data, "advise") == 0) {

        if (limit->advise) {
            goto duplicate;
        }

        limit->advise = 1;
        return NGX_CONF_OK;
    }

    if (ngx_rl_word_find(word, &algorithm, sizeof(ngx_str_t), 1, &text) == 0) {

        if (limit->params.algorithm != NGX_CONF_UNSET_UINT) {
            goto duplicate;
        }

        for (e = ngx_rl_algorithms; e->name.len; e++) {

            if (ngx_rl_str_equal(&e->name, &text)) {
                limit->params.algorithm = e->value;
                return NGX_CONF_OK;
            }
        }

        return ngx_rl_conf_error(cf, "invalid value \"%V\" in \"%V\": it must "
                                 "be \"token_bucket\", \"sliding_window_log\", "
                                 "\"gcra\", \"fixed_window\" or "
                                 "\"sliding_window_counter\"", word, &value[0]);
    }

    i = ngx_rl_word_find(word, ngx_rl_param_defs, sizeof(ngx_rl_param_def_t),
                         NGX_RL_PARAMS, &text);

    if (i == NGX_RL_PARAMS) {
        return ngx_rl_conf_error(cf, "invalid parameter \"%V\" in \"%V\": it "
                                 "must be key=, capacity=, rate=, cost=, "
                                 "algorithm=, window=, period=, timezone=, "
                                 "anchor=, refill_interval=, dry_run or "
                                 "advise",
                                 word, &value[0]);
    }

    param = ngx_rl_param(&limit->params, i);

    if (param->value) {
        goto duplicate;
    }

    if (i == NGX_RL_KEY && text.len == 0) {
        return ngx_rl_conf_error(cf, "no key in \"%V\" of \"%V\": a limit with "
                                 "an empty key limits nothing", word,
                                 &value[0]);
    }

    name.len = value[0].len + 1 + ngx_rl_param_defs[i].name.len;
    name.data = ngx_pnalloc(cf->pool, name.len);
    if (name.data == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_sprintf(name.data, "%V %V", &value[0], &ngx_rl_param_defs[i].name);

    return ngx_rl_param_compile(cf, param, i, &name, &text);

duplicate:

    return ngx_rl_conf_error(cf, "duplicate parameter \"%V\" in \"%V\"", word,
                             &value[0]);
}


ngx_uint_t
ngx_rl_word_find(ngx_str_t *word, const void *table, size_t size,
    ngx_uint_t n, ngx_str_t *text)
{
    ngx_uint_t        i;
    const ngx_str_t  *name;

    for (i = 0; i < n; i++) {
        name = (const ngx_str_t *) ((const u_char *) table + i * size);

        if (word->len > name->len && word->data[name->len] == '='
            && ngx_memcmp(word->data, name->data, name->len) == 0)
        {
            text->data = word->data + name->len + 1;
            text->len = word->len - name->len - 1;
            break;
        }
    }

    return i;
}


/* whether the parameters of a "ratelimit_limit" fit together */

static char *
ngx_rl_limit_words_check(ngx_conf_t *cf, ngx_rl_limit_t *limit)
{
    ngx_str_t              *value;
    ngx_uint_t              window;
    ngx_rl_limit_params_t  *params;

    value = cf->args->elts;
    params = &limit->params;
    window = ngx_rl_algorithm_window(params->algorithm);

    if (ngx_rl_limit_window_check(cf, params) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    if (limit->advise && window) {
        return ngx_rl_conf_error(cf, "\"advise\" has no meaning in \"%V\" "
                                 "\"%V\", which is a %s: use "
                                 "\"algorithm=token_bucket\" or "
                                 "\"algorithm=gcra\", or remove it",
                                 &value[0], &value[1],
                                 ngx_rl_algorithm_words[params->algorithm]);
    }

    if (limit->advise && !limit->dry_run) {
        return ngx_rl_conf_error(cf, "\"advise\" in \"%V\" \"%V\", which is "
                                 "enforced: only a dry run can give advice; "
                                 "add \"dry_run\", or remove it",
                                 &value[0], &value[1]);
    }

    if (params->algorithm == NGX_RL_GCRA && params->interval.value) {
        return ngx_rl_conf_error(cf, "\"refill_interval=\" has no meaning in "
                                 "\"%V\" \"%V\", which is \"algorithm=gcra\": "
                                 "remove it",
                                 &value[0], &value[1]);
    }

    if (!ngx_rl_limit_params_complete(params)) {
        return ngx_rl_conf_error(cf, "no \"%s=\" in \"%V\" \"%V\": add it",
                                 window ? "capacity" : "rate", &value[0],
                                 &value[1]);
    }

    return ngx_rl_limit_check(cf, NULL, limit, &params->cost);
}


/* whether the window, or the period, of a "ratelimit_limit" has a meaning */

static char *
ngx_rl_limit_window_check(ngx_conf_t *cf, ngx_rl_limit_params_t *params)
{
    ngx_str_t   *value, *word;
    ngx_uint_t   i;

    value = cf->args->elts;

    if (!ngx_rl_algorithm_window(params->algorithm)) {

        if (params->window.value) {
            return ngx_rl_conf_error(cf, "\"window=\" has no meaning in \"%V\" "
                                     "\"%V\", which is a token bucket: add "
                                     "\"algorithm=sliding_window_log\"",
                                     &value[0], &value[1]);
        }

    } else if (params->rate.value || params->interval.value) {
        return ngx_rl_conf_error(cf, "\"rate=\" and \"refill_interval=\" have "
                                 "no meaning in \"%V\" \"%V\", which is a %s: "
                                 "use \"capacity=\" and \"window=\"",
                                 &value[0], &value[1],
                                 ngx_rl_algorithm_words[params->algorithm]);
    }

    for (i = NGX_RL_PERIOD; i <= NGX_RL_ANCHOR; i++) {
        word = &ngx_rl_param_defs[i].name;

        if (ngx_rl_param(params, i)->value == NULL) {
            continue;
        }

        if (params->algorithm != NGX_RL_FIXED_WINDOW) {
            return ngx_rl_conf_error(cf, "\"%V=\" has no meaning in \"%V\" "
                                     "\"%V\": add "
                                     "\"algorithm=fixed_window\"",
                                     word, &value[0], &value[1]);
        }

        if (params->period.value == NULL) {
            return ngx_rl_conf_error(cf, "\"%V=\" without \"period=\" in "
                                     "\"%V\" \"%V\": a window of any length "
                                     "begins at a multiple of it since 1970, "
                                     "in UTC", word, &value[0], &value[1]);
        }
    }

    if (params->anchor.value && params->period.u.number < NGX_RL_WEEK) {
        return ngx_rl_conf_error(cf, "\"anchor=\" has no meaning in \"%V\" "
                                 "\"%V\": only a week or a month has a first "
                                 "day", &value[0], &value[1]);
    }

    if (params->period.value && params->window.value) {
        return ngx_rl_conf_error(cf, "\"window=\" and \"period=\" in \"%V\" "
                                 "\"%V\": remove one of them",
                                 &value[0], &value[1]);
    }

    return NGX_CONF_OK;
}
