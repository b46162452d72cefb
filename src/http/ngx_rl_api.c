
/*
 * The table of paths below the location of "ratelimit_api".  The handler finds
 * the path of a request in it, and the function that answers.
 */


#include "http/ngx_rl_api.h"
#include "http/ngx_rl_api_keys.h"
#include "http/ngx_rl_api_limits.h"
#include "http/ngx_rl_api_overrides.h"
#include "http/ngx_rl_api_servers.h"
#include "http/ngx_rl_api_top.h"
#include "http/ngx_rl_api_write.h"
#include "http/ngx_rl_explain.h"
#include "http/ngx_rl_files.h"
#include "core/ngx_rl_core.h"
#include "core/ngx_rl_version.h"


typedef struct {
    const char     *path;    /* NAME is a limit, KEY is any text */
    ngx_rl_api_pt   get;
    ngx_rl_api_pt   put;     /* or NULL */
    ngx_rl_api_pt   delete;  /* or NULL */
} ngx_rl_api_route_t;


static ngx_int_t ngx_rl_api_handler(ngx_http_request_t *r);
static ngx_int_t ngx_rl_api_get(ngx_rl_api_t *api,
    const ngx_rl_api_route_t *route);
static ngx_int_t ngx_rl_api_change(ngx_rl_api_t *api,
    const ngx_rl_api_route_t *route);
static ngx_int_t ngx_rl_api_not_allowed(ngx_rl_api_t *api,
    const ngx_rl_api_route_t *route);
static ngx_uint_t ngx_rl_api_header_is(ngx_http_request_t *r,
    const char *name, const char *value);
static void ngx_rl_api_body_handler(ngx_http_request_t *r);
static const ngx_rl_api_route_t *ngx_rl_api_route(ngx_rl_api_t *api);
static ngx_uint_t ngx_rl_api_route_is(ngx_rl_api_t *api, const char *path);
static ngx_int_t ngx_rl_api_openapi(ngx_rl_api_t *api);
static ngx_int_t ngx_rl_api_index(ngx_rl_api_t *api);


static const ngx_rl_api_route_t  ngx_rl_api_routes[] = {
    { "limits", ngx_rl_api_limits, NULL, NULL },
    { "limits/NAME", ngx_rl_api_limits, NULL, NULL },
    { "limits/NAME/keys/KEY", ngx_rl_api_keys, NULL, ngx_rl_api_key_delete },
    { "limits/NAME/keys/KEY/override", ngx_rl_api_override_get,
      ngx_rl_api_override_put, ngx_rl_api_override_delete },
    { "keys/KEY", ngx_rl_api_keys, NULL, NULL },
    { "overrides", ngx_rl_api_overrides, NULL, NULL },
    { "servers", ngx_rl_api_servers, NULL, NULL },
    { "explain", ngx_rl_explain, NULL, NULL },
    { "top", ngx_rl_api_top, NULL, NULL },
    { "openapi.json", ngx_rl_api_openapi, NULL, NULL },
    { "", ngx_rl_api_index, NULL, NULL },
    { NULL, NULL, NULL, NULL }
};


char *
ngx_rl_api(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_rl_loc_conf_t  *rlcf = conf;

    ngx_str_t                 *value;
    ngx_rl_api_place_t        *place;
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
    rmcf->api = 1;

    rlcf->write = 0;

    if (cf->args->nelts == 2) {
        value = cf->args->elts;

        if (ngx_strcmp(value[1].data, "write") != 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid value \"%V\" of \"ratelimit_api\": "
                               "it must be \"write\" or nothing", &value[1]);
            return NGX_CONF_ERROR;
        }

        rlcf->write = 1;
        rmcf->writes = 1;
    }

    /* for consoles of the same server */

    place = ngx_array_push(&rmcf->apis);
    if (place == NULL) {
        return NGX_CONF_ERROR;
    }

    place->server = ngx_http_conf_get_module_srv_conf(cf,
                                                      ngx_http_core_module);
    place->location = clcf->name;

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_rl_api_handler(ngx_http_request_t *r)
{
    ngx_int_t                  rc;
    ngx_rl_api_t              *api;
    const ngx_rl_api_route_t  *route;

    static ngx_str_t  cache = ngx_string("Cache-Control");
    static ngx_str_t  no_store = ngx_string("no-store");

    api = ngx_rl_api_create(r);
    if (api == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (ngx_rl_output_header(r, &cache, (u_char *) "cache-control", &no_store)
        != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_rl_api_path(api);

    if (rc == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    route = (rc == NGX_OK) ? ngx_rl_api_route(api) : NULL;

    if (route == NULL) {
        return ngx_rl_api_problem(api, NGX_HTTP_NOT_FOUND,
                                  "there is no such path: the location itself "
                                  "lists all paths; percent-encode the \"/\" "
                                  "of a name or a key");
    }

    if (ngx_strncmp(route->path, "limits/NAME", sizeof("limits/NAME") - 1)
        == 0)
    {
        api->limit = ngx_rl_limit_find(&api->rmcf->limits, &api->path[1]);

        if (api->limit == NULL) {
            return ngx_rl_api_problem(api, NGX_HTTP_NOT_FOUND,
                                      "there is no limit of this name: "
                                      "\"limits\" lists all of them");
        }
    }

    return (r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))
           ? ngx_rl_api_get(api, route) : ngx_rl_api_change(api, route);
}


static ngx_int_t
ngx_rl_api_get(ngx_rl_api_t *api, const ngx_rl_api_route_t *route)
{
    ngx_int_t  rc;

    rc = ngx_http_discard_request_body(api->request);

    return (rc == NGX_OK) ? route->get(api) : rc;
}


/*
 * A page of another origin cannot set the header without asking first, and
 * this API never allows it.
 */

static ngx_int_t
ngx_rl_api_change(ngx_rl_api_t *api, const ngx_rl_api_route_t *route)
{
    ngx_int_t            rc;
    ngx_rl_loc_conf_t   *rlcf;
    ngx_http_request_t  *r;

    r = api->request;
    rlcf = ngx_http_get_module_loc_conf(r, ngx_http_ratelimit_module);

    if (!((r->method & NGX_HTTP_PUT) && route->put)
        && !((r->method & NGX_HTTP_DELETE) && route->delete))
    {
        return ngx_rl_api_not_allowed(api, route);
    }

    if (!rlcf->write) {
        return ngx_rl_api_problem(api, NGX_HTTP_FORBIDDEN,
                                  "this API only reads: write \"ratelimit_api "
                                  "write;\" in the configuration of nginx");
    }

    if (!ngx_rl_api_header_is(r, "x-ratelimit-write", "1")) {
        return ngx_rl_api_problem(api, NGX_HTTP_FORBIDDEN,
                                  "a request that changes something needs the "
                                  "header \"X-RateLimit-Write: 1\"");
    }

    if (r->method & NGX_HTTP_DELETE) {
        rc = ngx_http_discard_request_body(r);

        return (rc == NGX_OK) ? route->delete(api) : rc;
    }

    if (r->headers_in.content_type == NULL
        || ngx_strncasecmp(r->headers_in.content_type->value.data,
                           (u_char *) "application/json",
                           sizeof("application/json") - 1)
           != 0)
    {
        return ngx_rl_api_problem(api, NGX_HTTP_UNSUPPORTED_MEDIA_TYPE,
                                  "the body must have the content type "
                                  "application/json");
    }

    if (r->headers_in.content_length_n > NGX_RL_API_BODY) {
        return ngx_rl_api_problem(api, NGX_HTTP_REQUEST_ENTITY_TOO_LARGE,
                                  "a body has at most %d bytes",
                                  NGX_RL_API_BODY);
    }

    api->next = route->put;

    rc = ngx_http_read_client_request_body(r, ngx_rl_api_body_handler);

    return (rc >= NGX_HTTP_SPECIAL_RESPONSE) ? rc : NGX_DONE;
}


static ngx_int_t
ngx_rl_api_not_allowed(ngx_rl_api_t *api, const ngx_rl_api_route_t *route)
{
    ngx_rl_loc_conf_t   *rlcf;
    ngx_http_request_t  *r;

    static ngx_str_t  allow = ngx_string("Allow");
    static ngx_str_t  methods[] = {
        ngx_string("GET, HEAD"),
        ngx_string("GET, HEAD, DELETE"),
        ngx_string("GET, HEAD, PUT, DELETE")
    };

    r = api->request;
    rlcf = ngx_http_get_module_loc_conf(r, ngx_http_ratelimit_module);

    if (ngx_rl_output_header(r, &allow, (u_char *) "allow",
                             &methods[!rlcf->write ? 0
                                      : route->put ? 2
                                      : route->delete ? 1 : 0])
        != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_rl_api_problem(api, NGX_HTTP_NOT_ALLOWED,
                              "this path does not have this method: see the "
                              "header \"Allow\"");
}


static ngx_uint_t
ngx_rl_api_header_is(ngx_http_request_t *r, const char *name,
    const char *value)
{
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *header;

    for (part = &r->headers_in.headers.part; part; part = part->next) {
        header = part->elts;

        for (i = 0; i < part->nelts; i++) {
            if (header[i].key.len == ngx_strlen(name)
                && ngx_strncasecmp(header[i].key.data, (u_char *) name,
                                   header[i].key.len)
                   == 0
                && header[i].value.len == ngx_strlen(value)
                && ngx_strncmp(header[i].value.data, value,
                               header[i].value.len)
                   == 0)
            {
                return 1;
            }
        }
    }

    return 0;
}


static void
ngx_rl_api_body_handler(ngx_http_request_t *r)
{
    ngx_rl_api_t  *api;

    api = ngx_rl_api_find(r);

    if (api == NULL) {
        return;
    }

    ngx_http_finalize_request(r, api->next(api));
}


static const ngx_rl_api_route_t *
ngx_rl_api_route(ngx_rl_api_t *api)
{
    const ngx_rl_api_route_t  *route;

    for (route = ngx_rl_api_routes; route->path; route++) {
        if (ngx_rl_api_route_is(api, route->path)) {
            return route;
        }
    }

    return NULL;
}


static ngx_uint_t
ngx_rl_api_route_is(ngx_rl_api_t *api, const char *path)
{
    size_t      len;
    ngx_uint_t  i;

    for (i = 0; *path; i++) {

        len = strcspn(path, "/");

        if (i == api->n) {
            return 0;
        }

        /* a word in capitals stands for any text */

        if ((*path < 'A' || *path > 'Z')
            && (api->path[i].len != len
                || ngx_strncmp(api->path[i].data, path, len) != 0))
        {
            return 0;
        }

        path += len;
        path += (*path == '/');
    }

    return i == api->n;
}


static ngx_int_t
ngx_rl_api_openapi(ngx_rl_api_t *api)
{
    ngx_str_t  type;

    type = ngx_rl_openapi.type;

    ngx_rl_output_text(&api->json.output, &ngx_rl_openapi.text);

    return ngx_rl_output_send(&api->json.output, NGX_HTTP_OK, &type);
}


static ngx_int_t
ngx_rl_api_index(ngx_rl_api_t *api)
{
    ngx_rl_loc_conf_t         *rlcf;
    const ngx_rl_api_route_t  *route;

    rlcf = ngx_http_get_module_loc_conf(api->request,
                                        ngx_http_ratelimit_module);

    ngx_rl_json_open(&api->json, NULL, '{');
    ngx_rl_json_text(&api->json, "version", NGX_RL_VERSION);
    ngx_rl_json_text(&api->json, "nginx", NGINX_VERSION);
    ngx_rl_json_bool(&api->json, "write", rlcf->write);
    ngx_rl_json_text(&api->json, "overrides",
                     api->rmcf->overrides ? "on" : "off");
    ngx_rl_json_open(&api->json, "paths", '[');

    for (route = ngx_rl_api_routes; *route->path; route++) {
        ngx_rl_json_text(&api->json, NULL, route->path);
    }

    ngx_rl_json_close(&api->json, '[');
    ngx_rl_json_close(&api->json, '{');

    return ngx_rl_api_send(api, NGX_HTTP_OK, NULL);
}
