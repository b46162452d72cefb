
/*
 * These checks concern configurations that are legal, so that nothing else
 * complains, but that limit less than their authors expect.  A warning must be
 * right.  If it depends on something that cannot be known, such as the value
 * of a variable or the regex of a "rewrite", there is none.
 *
 * What other modules' directives say is taken from the text of the
 * configuration, see ngx_rl_scan.h.  Without that text, the warnings that need
 * it are left out.
 */


#include "conf/ngx_rl_check.h"
#include "conf/ngx_rl_origin.h"
#include "core/ngx_rl_core.h"


#define NGX_RL_CHECK_AUTH      0x0001
#define NGX_RL_CHECK_RETURN    0x0002
#define NGX_RL_CHECK_UNUSED    0x0004
#define NGX_RL_CHECK_LEASE     0x0008
#define NGX_RL_CHECK_MAP       0x0010
#define NGX_RL_CHECK_SHARDS    0x0020
#define NGX_RL_CHECK_TIMEOUT   0x0040
#define NGX_RL_CHECK_PLAIN     0x0080
#define NGX_RL_CHECK_FILE      0x0100
#define NGX_RL_CHECK_RESERVE   0x0200
#define NGX_RL_CHECK_CLIENT    0x0400

/* marks a lease that has an effect somewhere */
#define NGX_RL_CHECK_LEASED    0x10000

/* a level below a warning */
#define NGX_RL_CHECK_NOTICE    0x20000

#define NGX_RL_CHECK_SLOW      1000        /* ms, of a timeout */


typedef struct {
    ngx_conf_t          *cf;
    ngx_rl_main_conf_t  *rmcf;
    ngx_rl_loc_conf_t   *conf;    /* the one that is checked */
    ngx_rl_statement_t  *block;   /* and where; NULL: not known */
    unsigned             auth:1;  /* auth_request is later */
} ngx_rl_check_t;


static void ngx_rl_check_named(ngx_rl_check_t *check, ngx_rl_statement_t *s);
static void ngx_rl_check_select(ngx_rl_check_t *check, ngx_uint_t i);
static void ngx_rl_check_conf(ngx_rl_check_t *check);
static void ngx_rl_check_values(ngx_rl_check_t *check, ngx_rl_limit_t *limit);
static void ngx_rl_check_value(ngx_rl_check_t *check, ngx_rl_statement_t *s,
    ngx_rl_param_e what, ngx_str_t *text);
static void ngx_rl_check_return(ngx_rl_check_t *check);
static ngx_uint_t ngx_rl_check_stays(ngx_rl_statement_t *statement);
static ngx_uint_t ngx_rl_check_ends(ngx_rl_statement_t *statement);
static void ngx_rl_check_leases(ngx_rl_check_t *check);
static const char *ngx_rl_check_lease(ngx_rl_loc_conf_t *conf);
static void ngx_rl_check_timeout(ngx_rl_check_t *check, ngx_rl_statement_t *s);
static void ngx_rl_check_file(ngx_rl_check_t *check, ngx_rl_statement_t *s);
static void ngx_rl_check_plain(ngx_rl_check_t *check);
static ngx_uint_t ngx_rl_check_loopback(ngx_array_t *addresses);
static void ngx_rl_check_unused(ngx_rl_check_t *check);
static void ngx_rl_check_shards(ngx_rl_check_t *check);
static void ngx_rl_check_reserve(ngx_rl_check_t *check);
static void ngx_cdecl ngx_rl_check_warn(ngx_rl_check_t *check,
    ngx_rl_statement_t *statement, ngx_uint_t what, const char *fmt, ...);


ngx_conf_enum_t  ngx_rl_silences[] = {
    { ngx_string("auth_variable"), NGX_RL_CHECK_AUTH },
    { ngx_string("early_return"), NGX_RL_CHECK_RETURN },
    { ngx_string("unused_limit"), NGX_RL_CHECK_UNUSED },
    { ngx_string("useless_lease"), NGX_RL_CHECK_LEASE },
    { ngx_string("map_default"), NGX_RL_CHECK_MAP },
    { ngx_string("no_shards"), NGX_RL_CHECK_SHARDS },
    { ngx_string("long_timeout"), NGX_RL_CHECK_TIMEOUT },
    { ngx_string("plain_password"), NGX_RL_CHECK_PLAIN },
    { ngx_string("password_file"), NGX_RL_CHECK_FILE },
    { ngx_string("small_reserve"), NGX_RL_CHECK_RESERVE },
    { ngx_string("client_value"), NGX_RL_CHECK_CLIENT },
    { ngx_null_string, 0 }
};


void
ngx_rl_check(ngx_conf_t *cf)
{
    ngx_uint_t      i;
    ngx_module_t  **module;
    ngx_rl_check_t  check;

    ngx_memzero(&check, sizeof(ngx_rl_check_t));

    check.cf = cf;
    check.rmcf = ngx_http_conf_get_module_main_conf(cf,
                                                    ngx_http_ratelimit_module);

    if (!check.rmcf->used && check.rmcf->limits.nelts == 0) {
        return;
    }

    ngx_rl_check_named(&check, ngx_rl_statement_root(cf, &check.rmcf->text));

    /* handlers of a phase run in the reverse order of their modules */

    for (module = cf->cycle->modules;
         *module && *module != &ngx_http_ratelimit_module;
         module++)
    {
        if (ngx_strcmp((*module)->name, "ngx_http_auth_request_module") == 0) {
            check.auth = 1;
        }
    }

    for (i = 0; i < check.rmcf->text.blocks.nelts; i++) {
        ngx_rl_check_select(&check, i);

        if (check.block) {
            ngx_rl_check_conf(&check);
        }
    }

    ngx_rl_check_leases(&check);
    ngx_rl_check_unused(&check);
    ngx_rl_check_shards(&check);
    ngx_rl_check_reserve(&check);
}


/* finds the statements of the named limits */

static void
ngx_rl_check_named(ngx_rl_check_t *check, ngx_rl_statement_t *s)
{
    ngx_rl_limit_t  *limit;

    for ( /* void */ ; s; s = ngx_rl_statement_next(s)) {

        if (s->n < 2 || !ngx_rl_statement_is(s, "ratelimit_limit")) {
            continue;
        }

        limit = ngx_rl_limit_find(&check->rmcf->limits, &s->words[1]);
        if (limit) {
            limit->statement = s;
        }
    }
}


/* the one that is checked; the first one is that of "http" */

static void
ngx_rl_check_select(ngx_rl_check_t *check, ngx_uint_t i)
{
    ngx_rl_block_t  **block;

    block = check->rmcf->text.blocks.elts;

    check->conf = ngx_rl_container(block[i], ngx_rl_loc_conf_t, block);
    check->block = block[i]->statement;
}


static void
ngx_rl_check_conf(ngx_rl_check_t *check)
{
    ngx_uint_t           i;
    ngx_rl_statement_t  *s;

    static const char  *files[] = {
        "ratelimit_redis_password_file", "ratelimit_redis_ssl_password_file",
        "ratelimit_sentinel_password_file", NULL
    };

    for (s = check->block->child; s; s = s->next) {

        if (ngx_rl_statement_is(s, "ratelimit_redis_timeout")) {
            ngx_rl_check_timeout(check, s);
        }

        if (ngx_rl_word_among(s->words[0].data, files)) {
            ngx_rl_check_file(check, s);
        }
    }

    for (i = 0; i < check->conf->n; i++) {
        ngx_rl_check_values(check, check->conf->limits[i].limit);
    }

    if (check->conf->n) {
        ngx_rl_check_return(check);
        ngx_rl_check_plain(check);
    }
}


/*
 * Keys and numbers; parameters that the algorithm does not use may be
 * inherited.
 */

static void
ngx_rl_check_values(ngx_rl_check_t *check, ngx_rl_limit_t *limit)
{
    ngx_uint_t           i, window, named;
    ngx_rl_param_t      *param;
    ngx_rl_statement_t  *s;

    window = ngx_rl_algorithm_window(limit->params.algorithm);

    for (i = 0; i < NGX_RL_PARAMS; i++) {

        if (window ? (i == NGX_RL_RATE || i == NGX_RL_INTERVAL)
            : (i >= NGX_RL_WINDOW && i <= NGX_RL_ANCHOR))
        {
            continue;
        }

        param = ngx_rl_param(&limit->params, i);
        named = limit->named;

        /* the cost belongs to the location, also if the limit has a name */

        if (i == NGX_RL_COST && param->value == NULL) {
            param = &check->conf->params.cost;
            named = 0;
        }

        if (!param->dynamic) {
            continue;
        }

        s = named ? limit->statement
                  : ngx_rl_statement_find(check->block, (char *)
                                          ngx_rl_param_defs[i].directive.data);
        if (s) {
            ngx_rl_check_value(check, s, i, &param->value->value);
        }
    }
}


static void
ngx_rl_check_value(ngx_rl_check_t *check, ngx_rl_statement_t *s,
    ngx_rl_param_e what, ngx_str_t *text)
{
    ngx_str_t   name;
    ngx_uint_t  auth;

    auth = ngx_rl_origin(check->block, NGX_RL_ORIGIN_AUTH, text, &name);

    if (auth == NGX_RL_ORIGIN_SET) {
        ngx_rl_check_warn(check, s, NGX_RL_CHECK_AUTH,
                          "\"$%V\" in \"%V\" is empty: \"set\" copies the "
                          "variable before \"auth_request_set\" sets it; use a "
                          "\"map\" instead, and write \"ratelimit_phase "
                          "precontent;\"", &name, &s->words[0]);

    } else if (auth && check->auth && check->conf->phase == NGX_RL_PHASE_ACCESS)
    {
        ngx_rl_check_warn(check, s, NGX_RL_CHECK_AUTH,
                          "\"$%V\" in \"%V\" comes from \"auth_request_set\", "
                          "which sets it after the limit is applied: %swrite "
                          "\"ratelimit_phase precontent;\"", &name,
                          &s->words[0], what == NGX_RL_KEY
                          ? "a request with an empty key is not limited; "
                          : "");
    }

    if (what == NGX_RL_KEY) {
        return;
    }

    if (ngx_rl_origin(check->block, NGX_RL_ORIGIN_MAP, text, &name)) {
        ngx_rl_check_warn(check, s, NGX_RL_CHECK_MAP,
                          "\"$%V\" in \"%V\" comes from a \"map\" or \"geo\" "
                          "without a \"default\", or with an empty one: it is "
                          "empty for everything that is not listed, and an "
                          "empty value %s; add a \"default\"", &name,
                          &s->words[0], what == NGX_RL_COST
                          ? "counts as 1" : "is not a number");
    }

    /* a key must distinguish clients, and no cost disables a limit */

    if (what != NGX_RL_COST
        && ngx_rl_origin(check->block, NGX_RL_ORIGIN_CLIENT, text, &name))
    {
        ngx_rl_check_warn(check, s, NGX_RL_CHECK_CLIENT,
                          "\"$%V\" in \"%V\" is sent by the client, so a "
                          "client can choose its own limit: list the allowed "
                          "values in a \"map\"", &name, &s->words[0]);
    }
}


/*
 * "return" and similar directives beside a limit.  An inherited limit is no
 * reason for a warning: the location may well be meant to answer without it.
 */

static void
ngx_rl_check_return(ngx_rl_check_t *check)
{
    ngx_rl_statement_t  *s;

    static const char  *own[] = {
        "ratelimit", "ratelimit_rate", "ratelimit_capacity", "ratelimit_key",
        NULL
    };

    for (s = check->block->child; s; s = s->next) {
        if (ngx_rl_word_among(s->words[0].data, own)) {
            break;
        }
    }

    if (s == NULL) {
        return;
    }

    for (s = check->block->child; s; s = s->next) {

        if (ngx_rl_check_stays(s)) {
            return;
        }

        if (ngx_rl_check_ends(s)) {
            ngx_rl_check_warn(check, s, NGX_RL_CHECK_RETURN,
                              "\"%V\" ends every request of this %V before its "
                              "limits are applied: set the limits elsewhere, "
                              "or move \"%V\" to a named location and write "
                              "\"try_files /none @name;\" here",
                          &s->words[0], &check->block->words[0], &s->words[0]);
            return;
        }
    }
}


/* whether "break", or the flag of that name, may skip what follows */

static ngx_uint_t
ngx_rl_check_stays(ngx_rl_statement_t *statement)
{
    ngx_rl_statement_t  *s;

    if (ngx_rl_statement_is(statement, "break")) {
        return 1;
    }

    if (ngx_rl_statement_is(statement, "rewrite")) {
        return statement->n == 4
               && ngx_strcmp(statement->words[3].data, "break") == 0;
    }

    if (ngx_rl_statement_is(statement, "if")) {

        for (s = statement->child; s; s = s->next) {
            if (ngx_rl_check_stays(s)) {
                return 1;
            }
        }
    }

    return 0;
}


static ngx_uint_t
ngx_rl_check_ends(ngx_rl_statement_t *statement)
{
    ngx_str_t  *word;

    if (ngx_rl_statement_is(statement, "return")) {
        return 1;
    }

    word = statement->words;

    if (!ngx_rl_statement_is(statement, "rewrite")
        || statement->n < 3 || !ngx_rl_regex_any(&word[1]))
    {
        return 0;
    }

    return (statement->n == 4
            && (ngx_strcmp(word[3].data, "redirect") == 0
                || ngx_strcmp(word[3].data, "permanent") == 0))
           || ngx_strncmp(word[2].data, "http://", 7) == 0
           || ngx_strncmp(word[2].data, "https://", 8) == 0
           || ngx_strncmp(word[2].data, "$scheme", 7) == 0;
}


/* a lease that many locations inherit is useful if one of them can use it */

static void
ngx_rl_check_leases(ngx_rl_check_t *check)
{
    ngx_uint_t           i, k;
    const char          *why;
    ngx_rl_statement_t  *s;

    for (i = 0; i < check->rmcf->text.blocks.nelts; i++) {
        ngx_rl_check_select(check, i);

        s = ngx_rl_statement_find(check->block, "ratelimit_lease");

        if (s && check->conf->n && check->conf->lease.ttl
            && ngx_rl_check_lease(check->conf) == NULL)
        {
            s->marks |= NGX_RL_CHECK_LEASED;
        }
    }

    for (i = 0; i < check->rmcf->text.blocks.nelts; i++) {
        ngx_rl_check_select(check, i);

        s = ngx_rl_statement_find(check->block, "ratelimit_lease");

        if (s == NULL || s->parent != check->block
            || check->conf->lease.ttl == 0
            || (s->marks & NGX_RL_CHECK_LEASED))
        {
            continue;
        }

        /* the reason is that of the first location with this lease */

        why = "no limit is applied there";

        for (k = i; k < check->rmcf->text.blocks.nelts; k++) {
            ngx_rl_check_select(check, k);

            if (check->conf->n
                && ngx_rl_statement_find(check->block, "ratelimit_lease") == s)
            {
                why = ngx_rl_check_lease(check->conf);
                break;
            }
        }

        ngx_rl_check_select(check, i);
        ngx_rl_check_warn(check, s, NGX_RL_CHECK_LEASE,
                          "\"%V\" has no effect: %s", &s->words[0], why);
    }
}


/* NULL, or why no tokens are taken in advance here */

static const char *
ngx_rl_check_lease(ngx_rl_loc_conf_t *conf)
{
    uint64_t                capacity;
    ngx_rl_limit_params_t  *params;

    params = &conf->limits[0].limit->params;

    if (conf->shards == NULL) {
        return "without \"ratelimit_shards\" no tokens are taken from Redis";
    }

    if (conf->preview) {
        return "a preview takes no tokens";
    }

    if (conf->n > 1) {
        return "requests with several limits are not served from leases";
    }

    if (ngx_rl_algorithm_window(params->algorithm)) {
        return (params->algorithm == NGX_RL_SLIDING_WINDOW_LOG)
               ? "a sliding window log has no tokens to take in advance"
               : (params->algorithm == NGX_RL_FIXED_WINDOW)
               ? "a fixed window has no tokens to take in advance"
               : "a sliding window counter has no tokens to take in advance";
    }

    if (conf->lease.percent == 0 || params->capacity.dynamic
        || (params->capacity.value == NULL && params->rate.dynamic))
    {
        return NULL;
    }

    capacity = params->capacity.value ? params->capacity.u.number
                                     : params->rate.u.rate.count;

    return capacity * conf->lease.percent / 100
           ? NULL : "this percentage of the capacity is less than one token";
}


static void
ngx_rl_check_timeout(ngx_rl_check_t *check, ngx_rl_statement_t *s)
{
    ngx_str_t  *word;
    ngx_int_t   ms;

    word = s->words;
    ms = ngx_parse_time(&word[1], 0);

    if (ms < NGX_RL_CHECK_SLOW) {
        return;
    }

    if (ngx_atoi(word[1].data, word[1].len) != NGX_ERROR) {
        ngx_rl_check_warn(check, s, NGX_RL_CHECK_TIMEOUT,
                          "\"%V\" \"%V\" is %i seconds, and requests wait that "
                          "long when Redis does not answer: write \"%Vms\" for "
                          "milliseconds", &word[0], &word[1], ms / 1000,
                          &word[1]);
        return;
    }

    ngx_rl_check_warn(check, s, NGX_RL_CHECK_TIMEOUT,
                      "\"%V\" \"%V\" is long: requests wait that long when "
                      "Redis does not answer; write a shorter time, for "
                      "example \"50ms\"",
                      &word[0], &word[1]);
}


static void
ngx_rl_check_file(ngx_rl_check_t *check, ngx_rl_statement_t *s)
{
    ngx_str_t        name;
    ngx_file_info_t  fi;

    name = s->words[1];

    if (ngx_conf_full_name(check->cf->cycle, &name, 1) != NGX_OK
        || ngx_file_info(name.data, &fi) == NGX_FILE_ERROR
        || (fi.st_mode & S_IROTH) == 0)
    {
        return;
    }

    ngx_rl_check_warn(check, s, NGX_RL_CHECK_FILE,
                      "every user of this machine can read \"%V\", the file of "
                      "\"%V\": run \"chmod o-r %V\"", &name, &s->words[0],
                      &name);
}


/*
 * Announced servers get the password, too, and nobody has verified their
 * identity.
 */

static void
ngx_rl_check_plain(ngx_rl_check_t *check)
{
    ngx_uint_t             i;
    ngx_rl_shards_t       *shards;
    ngx_rl_statement_t    *s;
    ngx_rl_server_conf_t  *server;
    ngx_rl_shards_conf_t  *shards_conf;

    shards = check->conf->shards;
    shards_conf = check->conf->shards_conf;

    if (shards == NULL || shards_conf->kind == NGX_RL_SHARDS
        || ngx_rl_check_loopback(&shards_conf->addresses))
    {
        return;
    }

    s = ngx_rl_statement_find(check->block, "ratelimit_shards");

    for (i = 0; i < shards->n; i++) {
        server = shards->confs[i];

        if ((server->password.len && server->redis.tls == NULL)
            || (server->sentinels && server->sentinels->password.len
                && server->sentinels->conf->redis.tls == NULL))
        {
            ngx_rl_check_warn(check, s, NGX_RL_CHECK_PLAIN,
                              "a password is sent in plain text to every "
                              "server that %s of \"ratelimit_shards\" "
                              "announces: write \"ratelimit_redis_ssl on;\"",
                              shards_conf->kind == NGX_RL_CLUSTER
                              ? "the cluster" : "a sentinel");
            return;
        }
    }
}


static ngx_uint_t
ngx_rl_check_loopback(ngx_array_t *addresses)
{
    ngx_uint_t        i, k;
    ngx_rl_url_t     *url;
    struct sockaddr  *sa;

    url = addresses->elts;

    for (i = 0; i < addresses->nelts; i++) {

        if (url[i].naddrs == 0) {
            return 0;
        }

        for (k = 0; k < url[i].naddrs; k++) {
            sa = url[i].addrs[k].sockaddr;

            if (sa->sa_family == AF_INET
                && (ntohl(((struct sockaddr_in *) sa)->sin_addr.s_addr) >> 24)
                != 127)
            {
                return 0;
            }

#if (NGX_HAVE_INET6)
            if (sa->sa_family == AF_INET6
                && !IN6_IS_ADDR_LOOPBACK(
                                  &((struct sockaddr_in6 *) sa)->sin6_addr))
            {
                return 0;
            }
#endif
        }
    }

    return 1;
}


static void
ngx_rl_check_unused(ngx_rl_check_t *check)
{
    ngx_uint_t        i;
    ngx_rl_limit_t  **limit;

    ngx_rl_check_select(check, 0);

    limit = check->rmcf->limits.elts;

    for (i = 0; i < check->rmcf->limits.nelts; i++) {

        if (!limit[i]->named || limit[i]->used) {
            continue;
        }

        ngx_rl_check_warn(check, limit[i]->statement, NGX_RL_CHECK_UNUSED,
                          "limit \"%V\" of \"ratelimit_limit\" is not used: "
                          "write \"ratelimit %V;\" where it should be applied",
                          &limit[i]->name, &limit[i]->name);
    }
}


static void
ngx_rl_check_shards(ngx_rl_check_t *check)
{
    ngx_str_t           *name;
    ngx_uint_t           i;
    ngx_rl_statement_t  *s;

    static ngx_str_t  root = ngx_string("/");

    for (i = 0; i < check->rmcf->text.blocks.nelts; i++) {
        ngx_rl_check_select(check, i);
        s = check->block;

        if (check->conf->n == 0 || check->conf->shards) {
            continue;
        }

        if (check->rmcf->servers.nelts == 0) {
            ngx_rl_check_select(check, 0);
            ngx_rl_check_warn(check, NULL,
                              NGX_RL_CHECK_SHARDS|NGX_RL_CHECK_NOTICE,
                              "there is no \"ratelimit_shards\": each machine "
                              "limits on its own, in its own memory");
            return;
        }

        if (s == NULL || (check->conf->silence & NGX_RL_CHECK_SHARDS)) {
            continue;
        }

        name = ngx_rl_statement_is(s, "location") ? &s->words[s->n - 1] : &root;

        ngx_rl_check_warn(check, s, NGX_RL_CHECK_SHARDS,
                          "limits of location \"%V\" are kept in this "
                          "machine's memory, other limits in Redis: add "
                          "\"ratelimit_shards\" for this location", name);
        return;
    }
}


/* the memory for a reload is known when the zone is created */

static void
ngx_rl_check_reserve(ngx_rl_check_t *check)
{
    u_char              *p;
    ngx_str_t           *advice, *file;
    ngx_rl_block_t      *http;
    ngx_rl_statement_t  *s;

    ngx_rl_check_select(check, 0);

    if (check->rmcf->zone == NULL
        || (check->conf->silence & NGX_RL_CHECK_RESERVE))
    {
        return;
    }

    http = &check->conf->block;
    s = ngx_rl_statement_find(check->block, "ratelimit_zone");
    file = s ? &s->file : &http->file;

    p = ngx_pnalloc(check->cf->pool, file->len + 128);
    if (p == NULL) {
        return;
    }

    advice = &check->rmcf->zone->advice;
    advice->data = p;
    advice->len = ngx_sprintf(p, " (or write \"ratelimit_silence "
                              "small_reserve;\" if this is intended) in %V:%ui",
                              file, s ? s->line : http->line)
                  - p;
}


/* without a statement, the position is that of the conf */

static void ngx_cdecl
ngx_rl_check_warn(ngx_rl_check_t *check, ngx_rl_statement_t *statement,
    ngx_uint_t what, const char *fmt, ...)
{
    u_char            text[NGX_MAX_CONF_ERRSTR], *last;
    va_list           args;
    ngx_uint_t        level;
    ngx_rl_block_t   *block;
    ngx_conf_enum_t  *silence;

    level = (what & NGX_RL_CHECK_NOTICE) ? NGX_LOG_NOTICE : NGX_LOG_WARN;
    what &= ~NGX_RL_CHECK_NOTICE;

    if (check->conf->silence & what) {
        return;
    }

    if (statement) {

        if (statement->marks & what) {
            return;
        }

        statement->marks |= what;
    }

    va_start(args, fmt);
    last = ngx_vslprintf(text, text + NGX_MAX_CONF_ERRSTR, fmt, args);
    va_end(args);

    for (silence = ngx_rl_silences; silence->value != what; silence++) {
        /* void */
    }

    block = &check->conf->block;
    last = ngx_slprintf(last, text + NGX_MAX_CONF_ERRSTR,
                        " (or write \"ratelimit_silence %V;\" if this is "
                        "intended) in %V:%ui", &silence->name,
                        statement ? &statement->file : &block->file,
                        statement ? statement->line : block->line);

    ngx_log_error(level, check->cf->log, 0, "%*s", (size_t) (last - text),
                  text);

    /* "nginx -t" shows nothing below a warning, unless this is its log */

    if (level > NGX_LOG_WARN && ngx_test_config && !ngx_quiet_mode
        && check->cf->log->file->fd != ngx_stderr)
    {
        ngx_log_stderr(0, "%*s", (size_t) (last - text), text);
    }
}
