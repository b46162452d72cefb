
/*
 * The table of paths below the location of "ratelimit_api".  The handler finds
 * the path of a request in it, and the function that answers.
 */


#include "http/ngx_rl_api.h"
#include "http/ngx_rl_api_keys.h"
#include "http/ngx_rl_api_limits.h"
#include "http/ngx_rl_api_servers.h"
#include "core/ngx_rl_core.h"
#include "core/ngx_rl_version.h"


typedef struct {
    const char     *path;  /* NAME is a limit, KEY is any text */
    ngx_rl_api_pt   get;
} ngx_rl_api_route_t;


static ngx_int_t ngx_rl_api_handler(ngx_http_request_t *r);
static const ngx_rl_api_route_t *ngx_rl_api_route(ngx_rl_api_t *api);
static ngx_uint_t ngx_rl_api_route_is(ngx_rl_api_t *api, const char *path);
static ngx_int_t ngx_rl_api_index(ngx_rl_api_t *api);


static const ngx_rl_api_route_t  ngx_rl_api_routes[] = {
    { "limits", ngx_rl_api_limits },
    { "limits/NAME", ngx_rl_api_limits },
    { "limits/NAME/keys/KEY", ngx_rl_api_keys },
    { "keys/KEY", ngx_rl_api_keys },
    { "servers", ngx_rl_api_servers },
    { "", ngx_rl_api_index },
    { NULL, NULL }
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
    ngx_int_t                  rc;
    ngx_rl_api_t              *api;
    const ngx_rl_api_route_t  *route;

    static ngx_str_t  allow = ngx_string("Allow");
    static ngx_str_t  methods = ngx_string("GET, HEAD");
    static ngx_str_t  cache = ngx_string("Cache-Control");
    static ngx_str_t  no_store = ngx_string("no-store");

    rc = ngx_http_discard_request_body(r);
    if (rc != NGX_OK) {
        return rc;
    }

    api = ngx_rl_api_create(r);
    if (api == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

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

    return route->get(api);
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
ngx_rl_api_index(ngx_rl_api_t *api)
{
    const ngx_rl_api_route_t  *route;

    ngx_rl_json_open(&api->json, NULL, '{');
    ngx_rl_json_text(&api->json, "version", NGX_RL_VERSION);
    ngx_rl_json_text(&api->json, "nginx", NGINX_VERSION);
    ngx_rl_json_open(&api->json, "paths", '[');

    for (route = ngx_rl_api_routes; *route->path; route++) {
        ngx_rl_json_text(&api->json, NULL, route->path);
    }

    ngx_rl_json_close(&api->json, '[');
    ngx_rl_json_close(&api->json, '{');

    return ngx_rl_api_send(api, NGX_HTTP_OK, NULL);
}
