
/*
 * Below the location of "ratelimit_api":
 *
 *     /                        version, and what there is
 *     /limits                  all limits: definition, use, counters
 *     /limits/NAME             one of them
 *     /limits/NAME/keys/KEY    the state of one key
 *     /keys/KEY                the same in all limits
 *     /servers                 Redis servers: breaker, latency, failures
 *
 * NAME and KEY are percent-encoded, so they are taken from the URI as the
 * client sent it.  Only keys need Redis.  The limits of a key are asked one
 * after the other: the request waits with its own write event handler, as other
 * content handlers do, and a cleanup of the main request cancels the call under
 * way.  The request may be a subrequest (SSI, "auth_request", "mirror").
 *
 * Errors are problem+json and say what to do.
 */


#include "http/ngx_rl_api.h"
#include "http/ngx_rl_handler.h"
#include "http/ngx_rl_json.h"
#include "http/ngx_rl_lookup.h"
#include "http/ngx_rl_subjects.h"
#include "core/ngx_rl_core.h"
#include "core/ngx_rl_version.h"


#define NGX_RL_API_PATH  4          /* segments */


typedef struct {
    ngx_rl_json_t               json;
    ngx_http_request_t         *request;
    ngx_http_posted_request_t   posted;   /* resumes a subrequest */
    ngx_rl_main_conf_t         *rmcf;

    ngx_str_t                   path[NGX_RL_API_PATH];
    ngx_uint_t                  n;        /* segments */

    ngx_rl_lookup_t            *lookups;  /* of a key */
    ngx_uint_t                  asked;    /* of these, answered or failed */
    ngx_uint_t                  all;
    unsigned                    waiting:1;
} ngx_rl_api_t;


typedef struct {
    ngx_uint_t   status;
    const char  *title;
} ngx_rl_api_title_t;


static ngx_int_t ngx_rl_api_handler(ngx_http_request_t *r);
static ngx_int_t ngx_rl_api_path(ngx_rl_api_t *api);
static ngx_uint_t ngx_rl_api_segments(ngx_str_t *text);
static ngx_int_t ngx_rl_api_answer(ngx_rl_api_t *api);
static ngx_uint_t ngx_rl_api_is(ngx_rl_api_t *api, ngx_uint_t i,
    const char *word);
static ngx_int_t ngx_rl_api_send(ngx_rl_api_t *api, ngx_uint_t status,
    ngx_str_t *type);
static ngx_int_t ngx_rl_api_problem(ngx_rl_api_t *api, ngx_uint_t status,
    const char *fmt, ...);
static ngx_int_t ngx_rl_api_index(ngx_rl_api_t *api);
static ngx_int_t ngx_rl_api_limits(ngx_rl_api_t *api, ngx_rl_limit_t *only);
static void ngx_rl_api_limit(ngx_rl_api_t *api, ngx_rl_limit_t *limit);
static void ngx_rl_api_uses(ngx_rl_api_t *api, ngx_rl_limit_t *limit);
static void ngx_rl_api_counters(ngx_rl_api_t *api,
    ngx_rl_limit_stats_t *stats);
static ngx_int_t ngx_rl_api_servers(ngx_rl_api_t *api);
static void ngx_rl_api_server(ngx_rl_api_t *api, ngx_rl_subject_t *subject);
static void ngx_rl_api_latency(ngx_rl_api_t *api,
    ngx_rl_histogram_t *histogram);
static ngx_int_t ngx_rl_api_keys(ngx_rl_api_t *api, ngx_rl_limit_t *only,
    ngx_str_t *key);
static ngx_rl_use_t *ngx_rl_api_use(ngx_rl_api_t *api, ngx_rl_limit_t *limit);
static ngx_int_t ngx_rl_api_ask(ngx_rl_api_t *api);
static ngx_uint_t ngx_rl_api_failed(ngx_rl_api_t *api,
    ngx_rl_lookup_t *lookup);
static void ngx_rl_api_answered(ngx_rl_lookup_t *lookup);
static void ngx_rl_api_resume(ngx_http_request_t *r);
static ngx_rl_api_t *ngx_rl_api_find(ngx_http_request_t *r);
static void ngx_rl_api_cleanup(void *data);
static ngx_int_t ngx_rl_api_states(ngx_rl_api_t *api);
static void ngx_rl_api_state(ngx_rl_api_t *api, ngx_rl_lookup_t *lookup);


static const ngx_rl_api_title_t  ngx_rl_api_titles[] = {
    { NGX_HTTP_BAD_REQUEST, "Bad Request" },
    { NGX_HTTP_NOT_FOUND, "Not Found" },
    { NGX_HTTP_NOT_ALLOWED, "Method Not Allowed" },
    { NGX_HTTP_SERVICE_UNAVAILABLE, "Service Unavailable" },
    { 0, NULL }
};


static const char *const  ngx_rl_api_on_error[] = {
    "open",    /* NGX_RL_ON_ERROR_OPEN */
    "closed",  /* NGX_RL_ON_ERROR_CLOSED */
    "local"    /* NGX_RL_ON_ERROR_LOCAL */
};


char *
ngx_rl_api(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_rl_main_conf_t        *rmcf;
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->handler == ngx_rl_api_handler) {
        return "is duplicate";
    }

    if (clcf->handler) {
        return "conflicts with another directive that generates the response";
    }

    /* what follows the name of the location is the path within the API */

    if (clcf->exact_match || clcf->named || clcf->noname
#if (NGX_PCRE)
        || clcf->regex
#endif
        || clcf->name.len == 0 || clcf->name.data[clcf->name.len - 1] != '/')
    {
        return "needs a location that is a prefix and ends with \"/\", for "
               "example \"location /ratelimit/\"";
    }

    clcf->handler = ngx_rl_api_handler;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);
    rmcf->used = 1;

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_rl_api_handler(ngx_http_request_t *r)
{
    ngx_int_t      rc;
    ngx_rl_api_t  *api;

    static ngx_str_t  allow = ngx_string("Allow");
    static ngx_str_t  methods = ngx_string("GET, HEAD");
    static ngx_str_t  cache = ngx_string("Cache-Control");
    static ngx_str_t  no_store = ngx_string("no-store");

    rc = ngx_http_discard_request_body(r);
    if (rc != NGX_OK) {
        return rc;
    }

    api = ngx_pcalloc(r->pool, sizeof(ngx_rl_api_t));
    if (api == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    api->request = r;
    api->rmcf = ngx_http_get_module_main_conf(r, ngx_http_ratelimit_module);
    ngx_rl_output_init(&api->json.output, r);

    if (ngx_rl_output_header(r, &cache, (u_char *) "cache-control", &no_store)
        != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {

        if (ngx_rl_output_header(r, &allow, (u_char *) "allow", &methods)
            != NGX_OK)
        {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        return ngx_rl_api_problem(api, NGX_HTTP_NOT_ALLOWED,
                                  "this API only reads: use GET");
    }

    rc = ngx_rl_api_path(api);

    if (rc != NGX_OK) {
        return (rc == NGX_DECLINED)
               ? ngx_rl_api_problem(api, NGX_HTTP_NOT_FOUND,
                                    "the path has too many parts: "
                                    "percent-encode the \"/\" of a name or "
                                    "a key")
               : NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_rl_api_answer(api);
}


/*
 * The segments of the path behind the name of the location.  An internal
 * redirect has only left the decoded URI.
 */

static ngx_int_t
ngx_rl_api_path(ngx_rl_api_t *api)
{
    u_char                    *p, *end, *start, *dst;
    ngx_str_t                  uri, *segment;
    ngx_uint_t                 skip;
    ngx_http_request_t        *r;
    ngx_http_core_loc_conf_t  *clcf;

    r = api->request;
    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    uri = r->internal ? r->uri : r->unparsed_uri;

    end = uri.data + uri.len;

    if (!r->internal) {
        p = ngx_strlchr(uri.data, end, '?');
        end = p ? p : end;
    }

    skip = ngx_rl_api_segments(&clcf->name);
    p = uri.data;

    for ( ;; ) {

        while (p < end && *p == '/') {
            p++;
        }

        if (p == end) {
            return NGX_OK;
        }

        start = p;

        while (p < end && *p != '/') {
            p++;
        }

        if (skip) {
            skip--;
            continue;
        }

        if (api->n == NGX_RL_API_PATH) {
            return NGX_DECLINED;
        }

        segment = &api->path[api->n++];

        dst = ngx_pnalloc(r->pool, p - start);
        if (dst == NULL) {
            return NGX_ERROR;
        }

        segment->data = dst;

        if (r->internal) {
            dst = ngx_cpymem(dst, start, p - start);

        } else {
            ngx_unescape_uri(&dst, &start, p - start, 0);
        }

        segment->len = dst - segment->data;
    }
}


static ngx_uint_t
ngx_rl_api_segments(ngx_str_t *text)
{
    size_t      i;
    ngx_uint_t  n;

    n = 0;

    for (i = 0; i < text->len; i++) {
        n += text->data[i] != '/' && (i == 0 || text->data[i - 1] == '/');
    }

    return n;
}


static ngx_int_t
ngx_rl_api_answer(ngx_rl_api_t *api)
{
    ngx_rl_limit_t  *limit;

    if (api->n == 0) {
        return ngx_rl_api_index(api);
    }

    if (api->n == 1 && ngx_rl_api_is(api, 0, "servers")) {
        return ngx_rl_api_servers(api);
    }

    if (api->n == 2 && ngx_rl_api_is(api, 0, "keys")) {
        return ngx_rl_api_keys(api, NULL, &api->path[1]);
    }

    if (!ngx_rl_api_is(api, 0, "limits") || api->n == 3
        || (api->n == 4 && !ngx_rl_api_is(api, 2, "keys")))
    {
        return ngx_rl_api_problem(api, NGX_HTTP_NOT_FOUND,
                                  "there are \"limits\", \"limits/NAME\", "
                                  "\"limits/NAME/keys/KEY\", \"keys/KEY\" and "
                                  "\"servers\"");
    }

    if (api->n == 1) {
        return ngx_rl_api_limits(api, NULL);
    }

    limit = ngx_rl_limit_find(&api->rmcf->limits, &api->path[1]);

    if (limit == NULL) {
        return ngx_rl_api_problem(api, NGX_HTTP_NOT_FOUND,
                                  "there is no limit of this name: \"limits\" "
                                  "lists all of them");
    }

    return (api->n == 2) ? ngx_rl_api_limits(api, limit)
                         : ngx_rl_api_keys(api, limit, &api->path[3]);
}


static ngx_uint_t
ngx_rl_api_is(ngx_rl_api_t *api, ngx_uint_t i, const char *word)
{
    return api->n > i && api->path[i].len == ngx_strlen(word)
           && ngx_strncmp(api->path[i].data, word, api->path[i].len) == 0;
}


static ngx_int_t
ngx_rl_api_send(ngx_rl_api_t *api, ngx_uint_t status, ngx_str_t *type)
{
    u_char  *p;

    static ngx_str_t  json = ngx_string("application/json");

    p = ngx_rl_output_room(&api->json.output, 1);

    if (p) {
        *p++ = LF;
        api->json.output.buf->last = p;
    }

    return ngx_rl_output_send(&api->json.output, status, type ? type : &json);
}


static ngx_int_t
ngx_rl_api_problem(ngx_rl_api_t *api, ngx_uint_t status, const char *fmt, ...)
{
    u_char                     text[NGX_MAX_ERROR_STR];
    va_list                    args;
    ngx_str_t                  detail;
    const ngx_rl_api_title_t  *title;

    static ngx_str_t  problem = ngx_string("application/problem+json");

    va_start(args, fmt);
    detail.data = text;
    detail.len = ngx_vslprintf(text, text + sizeof(text), fmt, args) - text;
    va_end(args);

    for (title = ngx_rl_api_titles; title->status != status; title++) {
        /* void */
    }

    ngx_rl_json_open(&api->json, NULL, '{');
    ngx_rl_json_text(&api->json, "type", "about:blank");
    ngx_rl_json_text(&api->json, "title", title->title);
    ngx_rl_json_number(&api->json, "status", status);
    ngx_rl_json_string(&api->json, "detail", &detail);
    ngx_rl_json_close(&api->json, '{');

    return ngx_rl_api_send(api, status, &problem);
}


static ngx_int_t
ngx_rl_api_index(ngx_rl_api_t *api)
{
    const char  **path;

    static const char  *paths[] = {
        "limits", "limits/NAME", "limits/NAME/keys/KEY", "keys/KEY", "servers",
        NULL
    };

    ngx_rl_json_open(&api->json, NULL, '{');
    ngx_rl_json_text(&api->json, "version", NGX_RL_VERSION);
    ngx_rl_json_text(&api->json, "nginx", NGINX_VERSION);
    ngx_rl_json_open(&api->json, "paths", '[');

    for (path = paths; *path; path++) {
        ngx_rl_json_text(&api->json, NULL, *path);
    }

    ngx_rl_json_close(&api->json, '[');
    ngx_rl_json_close(&api->json, '{');

    return ngx_rl_api_send(api, NGX_HTTP_OK, NULL);
}


/* one limit, or NULL: all of them */

static ngx_int_t
ngx_rl_api_limits(ngx_rl_api_t *api, ngx_rl_limit_t *only)
{
    ngx_uint_t        i;
    ngx_rl_limit_t  **limit;

    if (only) {
        ngx_rl_api_limit(api, only);
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

        ngx_rl_json_text(&api->json, "phase",
                         use[i].conf->phase == NGX_RL_PHASE_ACCESS
                         ? "access" : "precontent");
        ngx_rl_json_text(&api->json, "mode",
                         use[i].conf->preview ? "preview"
                         : use[i].conf->dry_run || limit->dry_run
                           ? "dry_run" : "enforced");
        ngx_rl_json_text(&api->json, "state",
                         use[i].conf->shards ? "redis" : "memory");
        ngx_rl_json_text(&api->json, "on_error",
                         ngx_rl_api_on_error[use[i].conf->on_error]);
        ngx_rl_json_close(&api->json, '{');
    }

    ngx_rl_json_close(&api->json, '[');
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


static ngx_int_t
ngx_rl_api_servers(ngx_rl_api_t *api)
{
    ngx_uint_t           i, of;
    ngx_rl_subject_t    *subject;
    ngx_rl_subjects_t    subjects;
    ngx_rl_zone_usage_t  usage;

    if (ngx_rl_subjects_find(subjects, api->request->pool, api->rmcf, &usage)
        != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_rl_json_open(&api->json, NULL, '{');
    ngx_rl_json_open(&api->json, "servers", '[');

    for (of = NGX_RL_OF_SERVERS; of <= NGX_RL_OF_SENTINELS; of++) {

        subject = subjects[of].elts;

        for (i = 0; i < subjects[of].nelts; i++) {
            ngx_rl_api_server(api, &subject[i]);
        }
    }

    ngx_rl_json_close(&api->json, '[');
    ngx_rl_json_close(&api->json, '{');

    return ngx_rl_api_send(api, NGX_HTTP_OK, NULL);
}


static void
ngx_rl_api_server(ngx_rl_api_t *api, ngx_rl_subject_t *subject)
{
    u_char            text[NGX_SOCKADDR_STRLEN];
    ngx_str_t         address;
    ngx_uint_t        i, role, failure;
    ngx_rl_gauges_t   sum;
    ngx_rl_record_t  *record;

    record = subject->figures;
    role = record->place.role;
    failure = record->failure;

    ngx_rl_zone_lock(api->rmcf->zone);

    address.data = text;
    address.len = record->place.len;
    ngx_memcpy(text, record->place.address, address.len);

    ngx_rl_zone_unlock(api->rmcf->zone);

    ngx_rl_json_open(&api->json, NULL, '{');
    ngx_rl_json_string(&api->json, "name", &subject->name);
    ngx_rl_json_text(&api->json, "role", ngx_rl_role_names[role]);

    if (address.len) {
        ngx_rl_json_string(&api->json, "address", &address);

    } else {
        ngx_rl_json_text(&api->json, "address", NULL);
    }

    if (role == NGX_RL_ROLE_SENTINEL) {
        ngx_rl_json_close(&api->json, '{');
        return;
    }

    ngx_rl_record_sum(api->rmcf->stats, record, &sum);

    ngx_rl_json_text(&api->json, "breaker",
                     ngx_rl_breaker_names[record->breaker.state]);
    ngx_rl_json_text(&api->json, "last_failure",
                     failure ? ngx_rl_failure_names[failure] : NULL);
    ngx_rl_json_number(&api->json, "connections", sum.connections);
    ngx_rl_json_number(&api->json, "calls_in_flight", sum.calls);
    ngx_rl_json_number(&api->json, "calls", record->counters.commands);
    ngx_rl_api_latency(api, &record->counters.latency);

    ngx_rl_json_open(&api->json, "failures", '{');

    for (i = NGX_RL_OK + 1; i < NGX_RL_FAILURES; i++) {
        if (record->counters.failures[i]) {
            ngx_rl_json_number(&api->json, ngx_rl_failure_names[i],
                               record->counters.failures[i]);
        }
    }

    ngx_rl_json_close(&api->json, '{');
    ngx_rl_json_close(&api->json, '{');
}


/* the upper bounds of the histogram's bins that hold the quantiles */

static void
ngx_rl_api_latency(ngx_rl_api_t *api, ngx_rl_histogram_t *histogram)
{
    uint64_t    bins[NGX_RL_LATENCIES + 1], count, sum;
    ngx_uint_t  i, k;

    static const ngx_uint_t   percent[] = { 50, 95, 99 };
    static const char *const  names[] = { "p50", "p95", "p99" };

    count = 0;

    for (i = 0; i <= NGX_RL_LATENCIES; i++) {
        bins[i] = histogram->bins[i];
        count += bins[i];
    }

    ngx_rl_json_open(&api->json, "latency", '{');

    for (k = 0; k < 3; k++) {

        sum = 0;

        for (i = 0; i < NGX_RL_LATENCIES; i++) {
            sum += bins[i];

            if (sum * 100 >= count * percent[k]) {
                break;
            }
        }

        if (count == 0 || i == NGX_RL_LATENCIES) {
            ngx_rl_json_text(&api->json, names[k], NULL);

        } else {
            ngx_rl_json_seconds(&api->json, names[k],
                                ngx_rl_latency_bounds[i]);
        }
    }

    ngx_rl_json_close(&api->json, '{');
}


/* the state of a key in one limit, or NULL: in all that are used */

static ngx_int_t
ngx_rl_api_keys(ngx_rl_api_t *api, ngx_rl_limit_t *only, ngx_str_t *key)
{
    ngx_int_t            rc;
    ngx_uint_t           i;
    ngx_rl_use_t        *use;
    ngx_rl_limit_t     **limit;
    ngx_rl_lookup_t     *lookup;
    ngx_http_cleanup_t  *cln;

    if (key->len == 0) {
        return ngx_rl_api_problem(api, NGX_HTTP_BAD_REQUEST,
                                  "the key is empty: such requests are not "
                                  "limited");
    }

    limit = only ? &only : api->rmcf->limits.elts;

    api->lookups = ngx_pcalloc(api->request->pool,
                               (only ? 1 : api->rmcf->limits.nelts)
                               * sizeof(ngx_rl_lookup_t));
    cln = ngx_http_cleanup_add(api->request, 0);

    if (api->lookups == NULL || cln == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    for (i = 0; i < (only ? 1 : api->rmcf->limits.nelts); i++) {

        use = ngx_rl_api_use(api, limit[i]);

        if (use == NULL) {
            continue;
        }

        lookup = &api->lookups[api->all];

        lookup->use = use;
        lookup->handler = ngx_rl_api_answered;
        lookup->data = api;

        rc = ngx_rl_lookup_prepare(lookup, api->request, key);

        if (rc == NGX_ERROR) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        if (rc == NGX_DECLINED && only) {
            return ngx_rl_api_problem(api, NGX_HTTP_BAD_REQUEST,
                                      "\"%V\" of limit \"%V\": %s",
                                      &ngx_rl_param_defs[lookup->param].name,
                                      &only->name, lookup->err);
        }

        api->all++;
    }

    if (only && api->all == 0) {
        return ngx_rl_api_problem(api, NGX_HTTP_NOT_FOUND,
                                  "no location uses limit \"%V\", so it has no "
                                  "keys", &only->name);
    }

    cln->handler = ngx_rl_api_cleanup;
    cln->data = api;

    rc = ngx_rl_api_ask(api);

    if (rc == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (rc == NGX_OK) {
        return ngx_rl_api_states(api);
    }

    rc = ngx_rl_handler_park(api->request);

    if (rc != NGX_AGAIN) {
        return rc;
    }

    api->request->write_event_handler = ngx_rl_api_resume;
    api->request->main->count++;

    return NGX_DONE;
}


/* where a limit is enforced, or else where it is used at all */

static ngx_rl_use_t *
ngx_rl_api_use(ngx_rl_api_t *api, ngx_rl_limit_t *limit)
{
    ngx_uint_t     i;
    ngx_rl_use_t  *use, *found;

    use = api->rmcf->uses.elts;
    found = NULL;

    for (i = 0; i < api->rmcf->uses.nelts; i++) {

        if (use[i].limit->limit != limit) {
            continue;
        }

        if (!use[i].conf->preview && !use[i].conf->dry_run) {
            return &use[i];
        }

        found = found ? found : &use[i];
    }

    return found;
}


/* NGX_OK: all have been asked; NGX_AGAIN: one is under way */

static ngx_int_t
ngx_rl_api_ask(ngx_rl_api_t *api)
{
    ngx_int_t         rc;
    ngx_rl_lookup_t  *lookup;

    for ( /* void */ ; api->asked < api->all; api->asked++) {

        lookup = &api->lookups[api->asked];

        if (lookup->err || ngx_rl_api_failed(api, lookup)) {
            continue;
        }

        rc = ngx_rl_lookup_ask(lookup, api->request);

        if (rc == NGX_AGAIN) {
            api->waiting = 1;
        }

        if (rc != NGX_OK) {
            return rc;
        }
    }

    return NGX_OK;
}


/*
 * A server that has failed once is not waited for again.  Failures of one key,
 * such as foreign data in it, say nothing about the others.
 */

static ngx_uint_t
ngx_rl_api_failed(ngx_rl_api_t *api, ngx_rl_lookup_t *lookup)
{
    ngx_uint_t        i;
    ngx_rl_lookup_t  *before;

    for (i = 0; lookup->server && i < api->asked; i++) {
        before = &api->lookups[i];

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
    ngx_rl_api_t  *api = lookup->data;

    ngx_http_request_t  *r;

    r = api->request;

    api->waiting = 0;
    api->asked++;

    /* a write event is for the request that may write now, perhaps another */

    if (r != r->main) {
        (void) ngx_http_post_request(r, &api->posted);
    }

    ngx_post_event(r->connection->write, &ngx_posted_events);
}


/* other write events may come while a call is under way */

static void
ngx_rl_api_resume(ngx_http_request_t *r)
{
    ngx_int_t      rc;
    ngx_rl_api_t  *api;

    api = ngx_rl_api_find(r);

    if (api == NULL || api->waiting) {
        return;
    }

    rc = ngx_rl_api_ask(api);

    if (rc == NGX_AGAIN) {
        return;
    }

    r->write_event_handler = ngx_http_request_empty_handler;

    ngx_http_finalize_request(r, (rc == NGX_OK)
                                 ? ngx_rl_api_states(api)
                                 : NGX_HTTP_INTERNAL_SERVER_ERROR);
}


/*
 * Subrequests share the cleanups of the main request.  NULL: these have run,
 * and the request is about to end.
 */

static ngx_rl_api_t *
ngx_rl_api_find(ngx_http_request_t *r)
{
    ngx_rl_api_t        *api;
    ngx_http_cleanup_t  *cln;

    for (cln = r->main->cleanup; cln; cln = cln->next) {

        if (cln->handler != ngx_rl_api_cleanup) {
            continue;
        }

        api = cln->data;

        if (api->request == r) {
            return api;
        }
    }

    return NULL;
}


static void
ngx_rl_api_cleanup(void *data)
{
    ngx_rl_api_t  *api = data;

    if (api->waiting) {
        ngx_rl_lookup_cancel(&api->lookups[api->asked]);
    }
}


static ngx_int_t
ngx_rl_api_states(ngx_rl_api_t *api)
{
    ngx_uint_t        i, answered;
    ngx_rl_lookup_t  *lookup, *failed;

    lookup = api->lookups;
    answered = 0;
    failed = NULL;

    for (i = 0; i < api->all; i++) {

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

    if (api->n == 4) {
        ngx_rl_api_state(api, lookup);
        return ngx_rl_api_send(api, NGX_HTTP_OK, NULL);
    }

    ngx_rl_json_open(&api->json, NULL, '{');
    ngx_rl_json_string(&api->json, "key", &api->path[1]);
    ngx_rl_json_open(&api->json, "limits", '[');

    for (i = 0; i < api->all; i++) {
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
    ngx_rl_json_bool(json, "passes", d->outcome == NGX_RL_PASSED);
    ngx_rl_json_number(json, "capacity", claim->bucket.capacity);
    ngx_rl_json_number(json, "cost", claim->bucket.cost);
    ngx_rl_json_number(json, "remaining", d->remaining);
    ngx_rl_json_number(json, "reset",
                       d->reset == NGX_RL_NEVER ? NGX_RL_NEVER
                       : (uint64_t) ngx_time() + d->reset);
    ngx_rl_json_number(json, "retry_after",
                       d->retry_after ? d->retry_after : NGX_RL_NEVER);

    if (lookup->server) {
        ngx_rl_json_open(json, "here", '{');
        ngx_rl_json_bool(json, "denied", lookup->denied);
        ngx_rl_json_number(json, "held", lookup->held);
        ngx_rl_json_close(json, '{');
    }

    ngx_rl_json_close(json, '{');
}
