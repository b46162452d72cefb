
/*
 * Below the location of "ratelimit_console":
 *
 *     /              the page
 *     /console.css
 *     /console.js
 *     /icon.svg
 *     /config.json   where the APIs are, from the words of the directive
 *
 * The page is built in, and all that it shows comes from APIs of the same
 * origin.  The headers let the browser load nothing else: no script that is not
 * console.js, no inline script or style, no other host, no frame around it.
 * Each response has them, so that none of them can be turned into a page.
 */


#include "http/ngx_rl_console.h"
#include "http/ngx_rl_files.h"
#include "http/ngx_rl_output.h"
#include "conf/ngx_rl_conf.h"
#include "core/ngx_rl_core.h"


#define NGX_RL_CONSOLE_NAME  64        /* bytes of a machine's name */

#define NGX_RL_CONSOLE_PATH                                                   \
    "it must begin and end with \"/\" and be a path on this server without "  \
    "variables, arguments or characters that a URL can't have"


struct ngx_rl_console_s {
    ngx_http_core_srv_conf_t  *server;    /* the one of its location */
    ngx_str_t                  api;       /* empty: not found yet */
    ngx_array_t                machines;  /* ngx_keyval_t, name and path */
    ngx_str_t                  config;    /* the text of config.json */
};


typedef struct {
    ngx_str_t  key;
    u_char    *lowcase_key;
    ngx_str_t  value;
} ngx_rl_console_header_t;


static char *ngx_rl_console_word(ngx_conf_t *cf, ngx_rl_console_t *console,
    ngx_str_t *word);
static ngx_uint_t ngx_rl_console_name(ngx_str_t *name);
static ngx_uint_t ngx_rl_console_path(ngx_str_t *path);
static ngx_int_t ngx_rl_console_api(ngx_conf_t *cf, ngx_rl_loc_conf_t *conf);
static ngx_int_t ngx_rl_console_config(ngx_conf_t *cf,
    ngx_rl_console_t *console);
static ngx_int_t ngx_rl_console_handler(ngx_http_request_t *r);
static ngx_int_t ngx_rl_console_send(ngx_http_request_t *r, ngx_str_t type,
    ngx_str_t text);


static ngx_rl_console_header_t  ngx_rl_console_headers[] = {

    { ngx_string("Content-Security-Policy"),
      (u_char *) "content-security-policy",
      ngx_string("default-src 'none'; script-src 'self'; style-src 'self'; "
                 "img-src 'self'; connect-src 'self'; base-uri 'none'; "
                 "form-action 'none'; frame-ancestors 'none'") },

    { ngx_string("X-Content-Type-Options"),
      (u_char *) "x-content-type-options",
      ngx_string("nosniff") },

    { ngx_string("Referrer-Policy"),
      (u_char *) "referrer-policy",
      ngx_string("no-referrer") },

    { ngx_string("Cache-Control"),
      (u_char *) "cache-control",
      ngx_string("no-store") },

    { ngx_null_string, NULL, ngx_null_string }
};


char *
ngx_rl_console(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_rl_loc_conf_t  *rlcf = conf;

    ngx_str_t                  *value;
    ngx_uint_t                  i;
    ngx_rl_console_t           *console;
    ngx_rl_loc_conf_t         **place;
    ngx_rl_main_conf_t         *rmcf;
    ngx_http_core_loc_conf_t   *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->handler == ngx_rl_console_handler) {
        return "is duplicate";
    }

    if (clcf->handler) {
        return "conflicts with another directive that generates the response";
    }

    /* the page names its files relative to its own address */

    if (clcf->exact_match || clcf->named || clcf->noname
#if (NGX_PCRE)
        || clcf->regex
#endif
        || clcf->name.len == 0 || clcf->name.data[clcf->name.len - 1] != '/')
    {
        return "needs a location that is a prefix and ends with \"/\", for "
               "example \"location /console/\"";
    }

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    console = ngx_pcalloc(cf->pool, sizeof(ngx_rl_console_t));
    place = ngx_array_push(&rmcf->consoles);

    if (console == NULL || place == NULL
        || ngx_array_init(&console->machines, cf->pool, 4, sizeof(ngx_keyval_t))
           != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    console->server = ngx_http_conf_get_module_srv_conf(cf,
                                                        ngx_http_core_module);

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {
        if (ngx_rl_console_word(cf, console, &value[i]) != NGX_CONF_OK) {
            return NGX_CONF_ERROR;
        }
    }

    *place = rlcf;
    rlcf->console = console;

    clcf->handler = ngx_rl_console_handler;

    /* nginx redirects a request without the last "/" */

    clcf->auto_redirect = 1;

    return NGX_CONF_OK;
}


/* api=PATH or NAME=PATH */

static char *
ngx_rl_console_word(ngx_conf_t *cf, ngx_rl_console_t *console, ngx_str_t *word)
{
    u_char        *p;
    ngx_str_t      name, path;
    ngx_uint_t     i, api;
    ngx_keyval_t  *machine;

    p = ngx_strlchr(word->data, word->data + word->len, '=');

    if (p == NULL) {
        return ngx_rl_conf_error(cf, "invalid parameter \"%V\" in "
                                 "\"ratelimit_console\": it must be "
                                 "\"api=PATH\" or \"NAME=PATH\" with the name "
                                 "of another machine", word);
    }

    name.data = word->data;
    name.len = p - word->data;
    path.data = p + 1;
    path.len = word->data + word->len - path.data;

    if (!ngx_rl_console_path(&path)) {
        return ngx_rl_conf_error(cf, "invalid path in \"%V\" of "
                                 "\"ratelimit_console\": "
                                 NGX_RL_CONSOLE_PATH, word);
    }

    api = (name.len == 3 && ngx_strncmp(name.data, "api", 3) == 0);

    if (!api && !ngx_rl_console_name(&name)) {
        return ngx_rl_conf_error(cf, "invalid name in \"%V\" of "
                                 "\"ratelimit_console\": it must have 1 to %d "
                                 "letters, digits, \".\", \"_\", \":\" or "
                                 "\"-\"", word, NGX_RL_CONSOLE_NAME);
    }

    machine = console->machines.elts;

    for (i = 0; i < console->machines.nelts; i++) {
        if (ngx_rl_str_equal(&machine[i].key, &name)) {
            break;
        }
    }

    if (i < console->machines.nelts || (api && console->api.len)) {
        return ngx_rl_conf_error(cf, "duplicate name \"%V\" in "
                                 "\"ratelimit_console\"", &name);
    }

    if (api) {
        console->api = path;
        return NGX_CONF_OK;
    }

    machine = ngx_array_push(&console->machines);
    if (machine == NULL) {
        return NGX_CONF_ERROR;
    }

    machine->key = name;
    machine->value = path;

    return NGX_CONF_OK;
}


static ngx_uint_t
ngx_rl_console_name(ngx_str_t *name)
{
    size_t  i;
    u_char  c;

    for (i = 0; i < name->len; i++) {
        c = name->data[i];

        if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z')
            && !(c >= '0' && c <= ':') && c != '.' && c != '_' && c != '-')
        {
            return 0;
        }
    }

    return name->len > 0 && name->len <= NGX_RL_CONSOLE_NAME;
}


/*
 * Whether this is the path of a folder on the same host, for a browser too: it
 * takes "//host/" and "/\host/" for other hosts.  The text also goes into JSON
 * as it is.
 */

static ngx_uint_t
ngx_rl_console_path(ngx_str_t *path)
{
    size_t  i;
    u_char  c;

    if (path->len == 0 || path->data[0] != '/'
        || path->data[path->len - 1] != '/'
        || (path->len > 1 && path->data[1] == '/'))
    {
        return 0;
    }

    for (i = 0; i < path->len; i++) {
        c = path->data[i];

        if (c <= ' ' || c >= 0x7f || ngx_strchr("\"\\?#$<>^`{|}", c)) {
            return 0;
        }
    }

    return 1;
}


ngx_int_t
ngx_rl_console_init(ngx_conf_t *cf)
{
    ngx_uint_t            i;
    ngx_rl_loc_conf_t   **conf;
    ngx_rl_main_conf_t   *rmcf;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);
    conf = rmcf->consoles.elts;

    for (i = 0; i < rmcf->consoles.nelts; i++) {

        if (conf[i]->console->api.len == 0
            && ngx_rl_console_api(cf, conf[i]) != NGX_OK)
        {
            return NGX_ERROR;
        }

        if (ngx_rl_console_config(cf, conf[i]->console) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* the first location with an API in the server of the console */

static ngx_int_t
ngx_rl_console_api(ngx_conf_t *cf, ngx_rl_loc_conf_t *conf)
{
    size_t               len;
    u_char              *p;
    ngx_str_t           *name;
    ngx_uint_t           i;
    ngx_rl_api_place_t  *place;
    ngx_rl_main_conf_t  *rmcf;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);
    place = rmcf->apis.elts;

    for (i = 0; i < rmcf->apis.nelts; i++) {
        if (place[i].server == conf->console->server) {
            break;
        }
    }

    if (i == rmcf->apis.nelts) {
        (void) ngx_rl_statement_error(cf, &conf->block, "ratelimit_console",
                                      "\"ratelimit_console\" without an API: "
                                      "add a location with \"ratelimit_api\" "
                                      "to this server, or name the path of one "
                                      "with \"api=\", for example "
                                      "\"api=/ratelimit/\"");
        return NGX_ERROR;
    }

    /* the name of a location is not percent-encoded */

    name = &place[i].location;
    len = name->len + 2 * ngx_escape_uri(NULL, name->data, name->len,
                                         NGX_ESCAPE_URI);
    p = ngx_pnalloc(cf->pool, len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    (void) ngx_escape_uri(p, name->data, name->len, NGX_ESCAPE_URI);

    conf->console->api.data = p;
    conf->console->api.len = len;

    if (!ngx_rl_console_path(&conf->console->api)) {
        (void) ngx_rl_statement_error(cf, &conf->block, "ratelimit_console",
                                      "\"ratelimit_console\" can't use the "
                                      "location \"%V\" of \"ratelimit_api\": "
                                      NGX_RL_CONSOLE_PATH, name);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_rl_console_config(ngx_conf_t *cf, ngx_rl_console_t *console)
{
    size_t         len;
    u_char        *p;
    ngx_uint_t     i;
    ngx_keyval_t  *machine;

    machine = console->machines.elts;
    len = sizeof("{\"api\":\"\",\"machines\":[]}\n") - 1 + console->api.len;

    for (i = 0; i < console->machines.nelts; i++) {
        len += sizeof(",{\"name\":\"\",\"api\":\"\"}") - 1
               + machine[i].key.len + machine[i].value.len;
    }

    p = ngx_pnalloc(cf->pool, len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    console->config.data = p;

    p = ngx_sprintf(p, "{\"api\":\"%V\",\"machines\":[", &console->api);

    for (i = 0; i < console->machines.nelts; i++) {
        p = ngx_sprintf(p, "%s{\"name\":\"%V\",\"api\":\"%V\"}", i ? "," : "",
                        &machine[i].key, &machine[i].value);
    }

    p = ngx_cpymem(p, "]}\n", sizeof("]}\n") - 1);

    console->config.len = p - console->config.data;

    return NGX_OK;
}


static ngx_int_t
ngx_rl_console_handler(ngx_http_request_t *r)
{
    ngx_int_t                  rc;
    ngx_str_t                  name;
    ngx_rl_loc_conf_t         *rlcf;
    const ngx_rl_file_t       *file;
    ngx_rl_console_header_t   *header;
    ngx_http_core_loc_conf_t  *clcf;

    static ngx_str_t  allow = ngx_string("Allow");
    static ngx_str_t  methods = ngx_string("GET, HEAD");
    static ngx_str_t  config = ngx_string("config.json");
    static ngx_str_t  json = ngx_string("application/json");

    for (header = ngx_rl_console_headers; header->key.len; header++) {
        if (ngx_rl_output_header(r, &header->key, header->lowcase_key,
                                 &header->value)
            != NGX_OK)
        {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {

        if (ngx_rl_output_header(r, &allow, (u_char *) "allow", &methods)
            != NGX_OK)
        {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        return NGX_HTTP_NOT_ALLOWED;
    }

    rc = ngx_http_discard_request_body(r);
    if (rc != NGX_OK) {
        return rc;
    }

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);
    rlcf = ngx_http_get_module_loc_conf(r, ngx_http_ratelimit_module);

    if (r->uri.len < clcf->name.len) {
        return NGX_HTTP_NOT_FOUND;
    }

    name.data = r->uri.data + clcf->name.len;
    name.len = r->uri.len - clcf->name.len;

    if (ngx_rl_str_equal(&name, &config)) {
        return ngx_rl_console_send(r, json, rlcf->console->config);
    }

    file = ngx_rl_console_file(&name);

    return file ? ngx_rl_console_send(r, file->type, file->text)
                : NGX_HTTP_NOT_FOUND;
}


static ngx_int_t
ngx_rl_console_send(ngx_http_request_t *r, ngx_str_t type, ngx_str_t text)
{
    ngx_rl_output_t  output;

    ngx_rl_output_init(&output, r);
    ngx_rl_output_text(&output, &text);

    ngx_str_set(&r->headers_out.charset, "utf-8");

    return ngx_rl_output_send(&output, NGX_HTTP_OK, &type);
}
