
/*
 * Finds the server and the location of a request by the rules of nginx, from
 * the configuration alone.  What happens later to a real request is not known
 * here: rewrites, "try_files", "error_page" and "if" are not followed, and the
 * answer says so.
 *
 * nginx chooses among the servers of the address that a client connects to.
 * This request has usually reached another one, so all servers are searched.
 */


#include "http/ngx_rl_explain.h"
#include "http/ngx_rl_api_limits.h"


typedef enum {
    NGX_RL_BY_DEFAULT = 0,
    NGX_RL_BY_REGEX,
    NGX_RL_BY_SUFFIX,                   /* mail.* */
    NGX_RL_BY_PREFIX,                   /* *.example.com */
    NGX_RL_BY_NAME
} ngx_rl_explain_by_e;


typedef struct {
    ngx_rl_api_t               *api;
    ngx_str_t                   host;
    ngx_str_t                   uri;
    ngx_uint_t                  method;    /* a bit */

    ngx_http_core_srv_conf_t   *server;
    ngx_rl_explain_by_e         server_by;
    ngx_http_core_loc_conf_t   *location;  /* or that of the server */
    const char                 *location_by;
} ngx_rl_explain_t;


static ngx_int_t ngx_rl_explain_args(ngx_rl_explain_t *e);
static ngx_uint_t ngx_rl_explain_method(ngx_str_t *name);
static void ngx_rl_explain_server(ngx_rl_explain_t *e);
static ngx_rl_explain_by_e ngx_rl_explain_name(ngx_rl_explain_t *e,
    ngx_http_server_name_t *name, size_t *len);
static ngx_int_t ngx_rl_explain_location(ngx_rl_explain_t *e,
    ngx_http_core_loc_conf_t *clcf);
static ngx_http_core_loc_conf_t *ngx_rl_explain_static(
    ngx_http_location_tree_node_t *node, ngx_str_t uri, const char **by);
static void ngx_rl_explain_limits(ngx_rl_explain_t *e,
    ngx_rl_loc_conf_t *rlcf);
static void ngx_rl_explain_notes(ngx_rl_explain_t *e, ngx_rl_loc_conf_t *rlcf);


static const char *const  ngx_rl_explain_names[] = {
    "default", "regex", "wildcard", "wildcard", "name"
};


ngx_int_t
ngx_rl_explain_init(ngx_conf_t *cf)
{
    ngx_uint_t                   i;
    ngx_rl_main_conf_t          *rmcf;
    ngx_http_server_name_t      *names;
    ngx_http_core_srv_conf_t   **cscf;
    ngx_http_core_main_conf_t   *cmcf;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);
    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    if (!rmcf->api) {
        return NGX_OK;
    }

    if (ngx_array_init(&rmcf->names, cf->pool, 8,
                       sizeof(ngx_http_server_name_t))
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    cscf = cmcf->servers.elts;

    for (i = 0; i < cmcf->servers.nelts; i++) {

        names = ngx_array_push_n(&rmcf->names, cscf[i]->server_names.nelts);
        if (names == NULL) {
            return NGX_ERROR;
        }

        ngx_memcpy(names, cscf[i]->server_names.elts,
                   cscf[i]->server_names.nelts
                   * sizeof(ngx_http_server_name_t));
    }

    return NGX_OK;
}


ngx_int_t
ngx_rl_explain(ngx_rl_api_t *api)
{
    ngx_int_t                  rc;
    ngx_rl_json_t             *json;
    ngx_rl_explain_t           e;
    ngx_rl_loc_conf_t         *rlcf;
    ngx_http_core_loc_conf_t  *clcf;

    ngx_memzero(&e, sizeof(ngx_rl_explain_t));

    e.api = api;
    json = &api->json;

    rc = ngx_rl_explain_args(&e);

    if (rc != NGX_OK) {
        return ngx_rl_api_result(api, rc);
    }

    ngx_rl_explain_server(&e);

    clcf = e.server->ctx->loc_conf[ngx_http_core_module.ctx_index];

    e.location = clcf;
    e.location_by = "none";

    if (ngx_rl_explain_location(&e, clcf) == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    clcf = e.location;

    if (e.method & clcf->limit_except) {
        rlcf = clcf->limit_except_loc_conf[ngx_http_ratelimit_module.ctx_index];

    } else {
        rlcf = (clcf->loc_conf ? clcf->loc_conf : e.server->ctx->loc_conf)
               [ngx_http_ratelimit_module.ctx_index];
    }

    ngx_rl_json_open(json, NULL, '{');
    ngx_rl_json_string(json, "server", &e.server->server_name);
    ngx_rl_json_text(json, "server_by", ngx_rl_explain_names[e.server_by]);

    if (clcf->name.len) {
        ngx_rl_json_string(json, "location", &clcf->name);

    } else {
        ngx_rl_json_text(json, "location", NULL);
    }

    ngx_rl_json_text(json, "location_by", e.location_by);
    ngx_rl_json_bool(json, "limited", rlcf->n != 0);
    ngx_rl_explain_limits(&e, rlcf);
    ngx_rl_explain_notes(&e, rlcf);
    ngx_rl_json_close(json, '{');

    return ngx_rl_api_send(api, NGX_HTTP_OK, NULL);
}


/* NGX_OK, or as ngx_rl_api_refuse() */

static ngx_int_t
ngx_rl_explain_args(ngx_rl_explain_t *e)
{
    u_char     *p;
    ngx_int_t   rc;
    ngx_str_t   method;

    rc = ngx_rl_api_arg(e->api, "uri", &e->uri);

    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    if (rc != NGX_OK || e->uri.len == 0 || e->uri.data[0] != '/') {
        return ngx_rl_api_refuse(e->api, NGX_HTTP_BAD_REQUEST, "uri",
                                 "\"uri\" must be a path that begins with "
                                 "\"/\", for example \"uri=/api/users\"");
    }

    p = ngx_strlchr(e->uri.data, e->uri.data + e->uri.len, '?');

    if (p) {
        e->uri.len = p - e->uri.data;
    }

    if (ngx_rl_api_arg(e->api, "host", &e->host) == NGX_ERROR) {
        return NGX_ERROR;
    }

    /* without a port, and in lower case, as nginx compares it */

    p = ngx_strlchr(e->host.data, e->host.data + e->host.len, ':');

    if (p && e->host.data[0] != '[') {
        e->host.len = p - e->host.data;
    }

    ngx_strlow(e->host.data, e->host.data, e->host.len);

    rc = ngx_rl_api_arg(e->api, "method", &method);

    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    e->method = (rc == NGX_OK) ? ngx_rl_explain_method(&method)
                               : NGX_HTTP_GET;

    if (e->method == 0) {
        return ngx_rl_api_refuse(e->api, NGX_HTTP_BAD_REQUEST, "method",
                                 "\"method\" must be a method such as GET, "
                                 "POST, PUT or DELETE, in capitals");
    }

    return NGX_OK;
}


static ngx_uint_t
ngx_rl_explain_method(ngx_str_t *name)
{
    ngx_uint_t  i;

    static const struct {
        const char  *name;
        ngx_uint_t   method;
    } methods[] = {
        { "GET", NGX_HTTP_GET }, { "HEAD", NGX_HTTP_HEAD },
        { "POST", NGX_HTTP_POST }, { "PUT", NGX_HTTP_PUT },
        { "DELETE", NGX_HTTP_DELETE }, { "PATCH", NGX_HTTP_PATCH },
        { "OPTIONS", NGX_HTTP_OPTIONS }, { "TRACE", NGX_HTTP_TRACE },
        { "MKCOL", NGX_HTTP_MKCOL }, { "COPY", NGX_HTTP_COPY },
        { "MOVE", NGX_HTTP_MOVE }, { "PROPFIND", NGX_HTTP_PROPFIND },
        { "PROPPATCH", NGX_HTTP_PROPPATCH }, { "LOCK", NGX_HTTP_LOCK },
        { "UNLOCK", NGX_HTTP_UNLOCK }
    };

    for (i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
        if (name->len == ngx_strlen(methods[i].name)
            && ngx_memcmp(name->data, methods[i].name, name->len) == 0)
        {
            return methods[i].method;
        }
    }

    return 0;
}


/* the best match of all names; of equal ones the longest, then the first */

static void
ngx_rl_explain_server(ngx_rl_explain_t *e)
{
    size_t                       len, longest;
    ngx_uint_t                   i;
    ngx_rl_explain_by_e          by;
    ngx_http_server_name_t      *name;
    ngx_http_core_srv_conf_t   **cscf;
    ngx_http_core_main_conf_t   *cmcf;

    cmcf = ngx_http_get_module_main_conf(e->api->request,
                                         ngx_http_core_module);

    cscf = cmcf->servers.elts;
    e->server = cscf[0];
    longest = 0;

    name = e->api->rmcf->names.elts;

    for (i = 0; i < e->api->rmcf->names.nelts; i++) {

        by = ngx_rl_explain_name(e, &name[i], &len);

        if (by > e->server_by
            || (by == e->server_by && by != NGX_RL_BY_DEFAULT && len > longest))
        {
            e->server = name[i].server;
            e->server_by = by;
            longest = len;
        }
    }
}


static ngx_rl_explain_by_e
ngx_rl_explain_name(ngx_rl_explain_t *e, ngx_http_server_name_t *name,
    size_t *len)
{
    ngx_str_t  *host, *text;

    host = &e->host;
    text = &name->name;

    *len = text->len;

#if (NGX_PCRE)

    if (name->regex) {
        *len = 0;

        return ngx_http_regex_exec(e->api->request, name->regex, host)
               == NGX_OK ? NGX_RL_BY_REGEX : NGX_RL_BY_DEFAULT;
    }

#endif

    if (text->len == 0 || host->len == 0) {
        return NGX_RL_BY_DEFAULT;
    }

    if (text->len == host->len
        && ngx_strncasecmp(text->data, host->data, host->len) == 0)
    {
        return NGX_RL_BY_NAME;
    }

    /* ".example.com" is the domain and everything below it */

    if (text->data[0] == '.' && text->len == host->len + 1
        && ngx_strncasecmp(text->data + 1, host->data, host->len) == 0)
    {
        return NGX_RL_BY_NAME;
    }

    if (text->data[0] == '*' || text->data[0] == '.') {
        *len -= (text->data[0] == '*');

        return (host->len > *len
                && ngx_strncasecmp(host->data + host->len - *len,
                                   text->data + text->len - *len, *len)
                   == 0)
               ? NGX_RL_BY_PREFIX : NGX_RL_BY_DEFAULT;
    }

    if (text->data[text->len - 1] == '*') {
        (*len)--;

        return (host->len > *len
                && ngx_strncasecmp(host->data, text->data, *len) == 0)
               ? NGX_RL_BY_SUFFIX : NGX_RL_BY_DEFAULT;
    }

    return NGX_RL_BY_DEFAULT;
}


/*
 * The longest prefix, and then in its nested locations; a regular expression
 * has precedence, unless the prefix or an exact match rules that out.
 * NGX_DECLINED: nothing matches better than what was found before.
 */

static ngx_int_t
ngx_rl_explain_location(ngx_rl_explain_t *e, ngx_http_core_loc_conf_t *clcf)
{
    ngx_int_t                   rc;
    const char                 *by;
    ngx_http_core_loc_conf_t   *found;
#if (NGX_PCRE)
    ngx_http_core_loc_conf_t  **regex;
#endif

    found = ngx_rl_explain_static(clcf->static_locations, e->uri, &by);

    if (found) {
        e->location = found;
        e->location_by = by;

        if (by[0] == 'e' || by[0] == 'r') {
            return NGX_OK;
        }

        rc = ngx_rl_explain_location(e, found);

        if (rc != NGX_DECLINED) {
            return rc;
        }
    }

#if (NGX_PCRE)

    if (found && found->noregex) {
        return NGX_DECLINED;
    }

    for (regex = clcf->regex_locations; regex && *regex; regex++) {

        rc = ngx_http_regex_exec(e->api->request, (*regex)->regex, &e->uri);

        if (rc == NGX_DECLINED) {
            continue;
        }

        if (rc != NGX_OK) {
            return NGX_ERROR;
        }

        e->location = *regex;
        e->location_by = "regex";

        rc = ngx_rl_explain_location(e, *regex);

        return (rc == NGX_ERROR) ? NGX_ERROR : NGX_OK;
    }

#endif

    return NGX_DECLINED;
}


/*
 * Nodes are sorted by name; "tree" has the names that go on where the name of
 * a node ends.
 */

static ngx_http_core_loc_conf_t *
ngx_rl_explain_static(ngx_http_location_tree_node_t *node, ngx_str_t uri,
    const char **by)
{
    ngx_int_t                  order;
    ngx_http_core_loc_conf_t  *found, *longer;

    found = NULL;

    while (node) {

        order = ngx_filename_cmp(uri.data, node->name,
                                 ngx_min(uri.len, (size_t) node->len));

        if (order < 0) {
            node = node->left;
            continue;
        }

        if (order > 0) {
            node = node->right;
            continue;
        }

        if (uri.len < (size_t) node->len) {

            /* "/path" is redirected to "/path/" */

            if (node->auto_redirect && uri.len + 1 == (size_t) node->len) {
                found = node->exact ? node->exact : node->inclusive;
                *by = "redirect";
            }

            node = node->left;
            continue;
        }

        if (uri.len == (size_t) node->len && node->exact) {
            *by = "exact";
            return node->exact;
        }

        if (node->inclusive == NULL) {
            node = node->right;
            continue;
        }

        found = node->inclusive;
        *by = "prefix";

        uri.data += node->len;
        uri.len -= node->len;

        longer = uri.len ? ngx_rl_explain_static(node->tree, uri, by) : NULL;

        return longer ? longer : found;
    }

    return found;
}


static void
ngx_rl_explain_limits(ngx_rl_explain_t *e, ngx_rl_loc_conf_t *rlcf)
{
    ngx_uint_t       i;
    ngx_rl_json_t   *json;
    ngx_rl_limit_t  *limit;

    json = &e->api->json;

    ngx_rl_json_open(json, "limits", '[');

    for (i = 0; i < rlcf->n; i++) {
        limit = rlcf->limits[i].limit;

        ngx_rl_json_open(json, NULL, '{');
        ngx_rl_json_string(json, "name", &limit->name);

        if (limit->params.key.value) {
            ngx_rl_json_string(json, "key", &limit->params.key.value->value);

        } else {
            ngx_rl_json_text(json, "key", "$ratelimit_client_net");
        }

        ngx_rl_api_use_json(json, rlcf, limit);
        ngx_rl_json_close(json, '{');
    }

    ngx_rl_json_close(json, '[');
}


static void
ngx_rl_explain_notes(ngx_rl_explain_t *e, ngx_rl_loc_conf_t *rlcf)
{
    ngx_rl_json_t  *json;

    json = &e->api->json;

    ngx_rl_json_open(json, "notes", '[');

    if (e->server_by == NGX_RL_BY_DEFAULT) {
        ngx_rl_json_text(json, NULL, "no server has this name: this is the "
                         "first server of the configuration, while nginx takes "
                         "the default server of the address that the client "
                         "connects to");
    }

    if (rlcf->n == 0) {
        ngx_rl_json_text(json, NULL, rlcf->off
                         ? "\"ratelimit off\" applies here"
                         : "no limit is set here or around it");
    }

    if (e->location->internal) {
        ngx_rl_json_text(json, NULL, "this location is internal: a client gets "
                         "404");
    }

    if (e->location_by[0] == 'r' && e->location_by[2] == 'd') {
        ngx_rl_json_text(json, NULL, "nginx redirects to the same path with "
                         "\"/\" at the end");
    }

    if (rlcf->n && rlcf->phase == NGX_RL_PHASE_PRECONTENT) {
        ngx_rl_json_text(json, NULL, "the limits are applied after "
                         "authentication: a request that is refused there does "
                         "not meet them");
    }

    ngx_rl_json_text(json, NULL, "\"return\", \"rewrite\", \"if\", "
                     "\"try_files\" and \"error_page\" are not followed; a "
                     "request whose key is empty is not limited");

    ngx_rl_json_close(json, '[');
}
