
/*
 * The handlers of the directives.  Each checks the words of a directive and
 * stores their meaning.  Checks that depend on other levels, or on limits that
 * may follow, wait until the configuration is merged.
 *
 * The message about an invalid value names the directive and what is allowed.
 */


#include "conf/ngx_rl_directives.h"
#include "core/ngx_rl_core.h"
#include "redis/ngx_rl_address.h"


#define NGX_RL_PASSWORD_MAX  4096
#define NGX_RL_ALLOWED_LEN   512        /* of an error message */


static char *ngx_cdecl ngx_rl_directive_invalid(ngx_conf_t *cf,
    ngx_str_t *word, const char *fmt, ...);
static char *ngx_rl_directive_twice(ngx_conf_t *cf, ngx_array_t *names);
static char *ngx_rl_directive_bits(ngx_conf_t *cf, ngx_conf_enum_t *e,
    ngx_uint_t *bits, ngx_uint_t once);
static char *ngx_rl_directive_choice(ngx_conf_t *cf,
    ngx_str_t *word, ngx_conf_enum_t *e, ngx_uint_t *np);


/* names are resolved when all limits are known */

char *
ngx_rl_directive_names(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_rl_loc_conf_t  *rlcf = conf;

    ngx_str_t   *value, *name;
    ngx_uint_t   i, j, n;

    value = cf->args->elts;
    n = cf->args->nelts - 1;

    if (rlcf->names || rlcf->off) {
        return ngx_rl_directive_twice(cf, rlcf->names);
    }

    if (n == 1 && ngx_strcmp(value[1].data, "off") == 0) {
        rlcf->off = 1;
        return NGX_CONF_OK;
    }

    rlcf->names = ngx_array_create(cf->pool, n, sizeof(ngx_str_t));

    name = rlcf->names ? ngx_array_push_n(rlcf->names, n) : NULL;
    if (name == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_memcpy(name, &value[1], n * sizeof(ngx_str_t));

    for (i = 1; i <= n; i++) {

        for (j = 1; j < i; j++) {
            if (ngx_rl_str_equal(&value[i], &value[j])) {
                return ngx_rl_conf_error(cf, "duplicate limit \"%V\" in \"%V\"",
                                         &value[i], &cmd->name);
            }
        }

        if (ngx_strcmp(value[i].data, "off") == 0) {
            return ngx_rl_conf_error(cf, "\"off\" can't be combined with "
                                     "limits in \"%V\"", &cmd->name);
        }
    }

    return NGX_CONF_OK;
}


/* the two lines are most likely meant as one: the message shows how */

static char *
ngx_rl_directive_twice(ngx_conf_t *cf, ngx_array_t *names)
{
    u_char     *p, *last;
    u_char      list[NGX_RL_ALLOWED_LEN];
    ngx_str_t  *value, *name;
    ngx_uint_t  i;

    value = cf->args->elts;

    if (names == NULL || ngx_strcmp(value[1].data, "off") == 0) {
        return ngx_rl_conf_error(cf, "duplicate \"%V\" with \"off\": write "
                                 "either a list of limits or \"off\"",
                                 &value[0]);
    }

    p = list;
    last = list + NGX_RL_ALLOWED_LEN;
    name = names->elts;

    for (i = 0; i < names->nelts; i++) {
        p = ngx_slprintf(p, last, " %V", &name[i]);
    }

    for (i = 1; i < cf->args->nelts; i++) {
        p = ngx_slprintf(p, last, " %V", &value[i]);
    }

    return ngx_rl_conf_error(cf, "duplicate \"%V\": list all limits in one "
                             "directive, write \"%V%*s;\"", &value[0],
                             &value[0], (size_t) (p - list), list);
}


/* cmd->post is an entry of ngx_rl_param_defs */

char *
ngx_rl_directive_param(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_str_t           *value;
    ngx_rl_param_t      *param;
    ngx_rl_param_def_t  *def;

    param = (ngx_rl_param_t *) ((u_char *) conf + cmd->offset);

    if (param->value) {
        return "is duplicate";
    }

    value = cf->args->elts;
    def = cmd->post;

    return ngx_rl_param_compile(cf, param, def - ngx_rl_param_defs,
                                &value[0], &value[1]);
}


/* logs that a word is invalid and what is allowed; returns NGX_CONF_ERROR */

static char *ngx_cdecl
ngx_rl_directive_invalid(ngx_conf_t *cf, ngx_str_t *word, const char *fmt, ...)
{
    u_char      text[NGX_MAX_CONF_ERRSTR], *last;
    va_list     args;
    ngx_str_t  *value;

    va_start(args, fmt);
    last = ngx_vslprintf(text, text + NGX_MAX_CONF_ERRSTR, fmt, args);
    va_end(args);

    value = cf->args->elts;

    return ngx_rl_conf_error(cf, "invalid value \"%V\" in \"%V\": %*s", word,
                             &value[0], (size_t) (last - text), text);
}


/* unlike nginx's own handler, names the directive and what is allowed */

char *
ngx_rl_directive_enum(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_str_t   *value;
    ngx_uint_t  *np;

    np = (ngx_uint_t *) ((u_char *) conf + cmd->offset);

    if (*np != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;

    return ngx_rl_directive_choice(cf, &value[1], cmd->post, np);
}


char *
ngx_rl_directive_bitmask(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_uint_t  *bits;

    bits = (ngx_uint_t *) ((u_char *) conf + cmd->offset);

    return *bits ? "is duplicate"
                 : ngx_rl_directive_bits(cf, cmd->post, bits, 1);
}


/* may be repeated: every named warning is silenced */

char *
ngx_rl_directive_silence(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_rl_loc_conf_t  *rlcf = conf;

    return ngx_rl_directive_bits(cf, cmd->post, &rlcf->silence, 0);
}


static char *
ngx_rl_directive_bits(ngx_conf_t *cf, ngx_conf_enum_t *e, ngx_uint_t *bits,
    ngx_uint_t once)
{
    ngx_str_t  *value;
    ngx_uint_t  i, bit;

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_rl_directive_choice(cf, &value[i], e, &bit) != NGX_CONF_OK) {
            return NGX_CONF_ERROR;
        }

        if (once && (*bits & bit)) {
            return ngx_rl_conf_error(cf, "duplicate value \"%V\" in \"%V\"",
                                     &value[i], &value[0]);
        }

        *bits |= bit;
    }

    return NGX_CONF_OK;
}


char *
ngx_rl_directive_headers(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_rl_loc_conf_t  *rlcf = conf;

    char  *rv;

    rv = ngx_rl_directive_bitmask(cf, cmd, conf);
    if (rv != NGX_CONF_OK) {
        return rv;
    }

    if (rlcf->headers & NGX_RL_HEADERS_OFF) {
        return rlcf->headers == NGX_RL_HEADERS_OFF ? NGX_CONF_OK
               : ngx_rl_conf_error(cf, "\"off\" can't be combined with other "
                                   "values in \"%V\"", &cmd->name);
    }

    if (!(rlcf->headers & (NGX_RL_HEADERS_LEGACY|NGX_RL_HEADERS_DRAFT))) {
        return ngx_rl_conf_error(cf, "no header family in \"%V\": add "
                                 "\"legacy\", \"draft-11\" or both",
                                 &cmd->name);
    }

    if ((rlcf->headers & NGX_RL_HEADERS_DRAFT) == NGX_RL_HEADERS_DRAFT) {
        return ngx_rl_conf_error(cf, "\"draft-8\" can't be combined with "
                                 "\"draft-11\" in \"%V\": both have the same "
                                 "headers", &cmd->name);
    }

    return NGX_CONF_OK;
}


static char *
ngx_rl_directive_choice(ngx_conf_t *cf, ngx_str_t *word,
    ngx_conf_enum_t *e, ngx_uint_t *np)
{
    char       *comma;
    u_char     *p, *last;
    u_char      allowed[NGX_RL_ALLOWED_LEN];
    ngx_uint_t  i;

    p = allowed;
    last = allowed + NGX_RL_ALLOWED_LEN;
    comma = "";

    for (i = 0; e[i].name.len; i++) {

        if (e[i].name.len == word->len
            && ngx_strncasecmp(e[i].name.data, word->data, word->len) == 0)
        {
            *np = e[i].value;
            return NGX_CONF_OK;
        }

        p = ngx_slprintf(p, last, "%s\"%V\"", comma, &e[i].name);
        comma = e[i + 1].name.len && e[i + 2].name.len ? ", " : " or ";
    }

    return ngx_rl_directive_invalid(cf, word, "it must be %*s",
                                    (size_t) (p - allowed), allowed);
}


/* a number or a time; cmd->post has its bounds, "off" is a time of 0 */

char *
ngx_rl_directive_number(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    uint64_t          n;
    ngx_str_t        *value;
    ngx_uint_t       *number;
    ngx_rl_bounds_t  *bounds;

    number = (ngx_uint_t *) ((u_char *) conf + cmd->offset);
    bounds = cmd->post;

    if (*number != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if ((bounds->kind == NGX_RL_AMOUNT || bounds->kind == NGX_RL_PERCENT
         || (bounds->kind == NGX_RL_TIME && bounds->min == 0))
        && ngx_strcmp(value[1].data, "off") == 0)
    {
        n = 0;

    } else if (bounds->on && ngx_strcmp(value[1].data, "on") == 0) {
        n = bounds->on;

    } else if (ngx_rl_bounds_parse(bounds, &value[1], &n) != NULL) {
        return ngx_rl_directive_invalid(cf, &value[1], "%s", bounds->allowed);
    }

    *number = (ngx_uint_t) n;

    return NGX_CONF_OK;
}


/* N | P% [ttl=TIME] | off */

char *
ngx_rl_directive_lease(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_rl_loc_conf_t  *rlcf = conf;

    uint64_t              ms;
    ngx_int_t             n;
    ngx_str_t            *value, s;
    ngx_uint_t            percent;
    ngx_rl_lease_conf_t  *lease;

    static ngx_str_t        ttl = ngx_string("ttl");
    static ngx_rl_bounds_t  bounds = {
        NGX_RL_TIME, 10, NGX_RL_TIMEOUT_MAX, 0,
        "it must be \"ttl=\" with a time from 10ms to 60s, for example "
        "\"ttl=1s\""
    };

    lease = &rlcf->lease;

    if (lease->set) {
        return "is duplicate";
    }

    lease->set = 1;

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "off") == 0) {
        return NGX_CONF_OK;
    }

    s = value[1];
    percent = (s.len && s.data[s.len - 1] == '%');
    s.len -= percent;

    n = ngx_atoi(s.data, s.len);

    if (n == NGX_ERROR || n == 0 || n > (percent ? 100 : NGX_RL_MAX_CAPACITY)) {
        return ngx_rl_directive_invalid(cf, &value[1], "it must be a number of "
                                        "tokens from 1 to %d, a percentage of "
                                        "the capacity from \"1%%\" to "
                                        "\"100%%\", or \"off\"",
                                        NGX_RL_MAX_CAPACITY);
    }

    lease->tokens = percent ? 0 : n;
    lease->percent = percent ? n : 0;
    lease->ttl = NGX_RL_LEASE_TTL;

    if (cf->args->nelts == 2) {
        return NGX_CONF_OK;
    }

    if (ngx_rl_word_find(&value[2], &ttl, sizeof(ngx_str_t), 1, &s) != 0
        || ngx_rl_bounds_parse(&bounds, &s, &ms) != NULL)
    {
        return ngx_rl_conf_error(cf, "invalid parameter \"%V\" in \"%V\": %s",
                                 &value[2], &cmd->name, bounds.allowed);
    }

    lease->ttl = (ngx_msec_t) ms;

    return NGX_CONF_OK;
}


char *
ngx_rl_directive_share(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_rl_loc_conf_t  *rlcf = conf;

    ngx_str_t   *value;
    const char  *err;

    if (rlcf->local_share.den) {
        return "is duplicate";
    }

    value = cf->args->elts;
    err = ngx_rl_share_parse(value[1].data, value[1].len, &rlcf->local_share);

    return err ? ngx_rl_directive_invalid(cf, &value[1], "%s", err)
               : NGX_CONF_OK;
}


/* failures=N window=TIME probe=TIME; missing ones get their defaults */

char *
ngx_rl_directive_breaker(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_rl_loc_conf_t  *rlcf = conf;

    uint64_t                n;
    ngx_str_t              *value, s;
    ngx_uint_t              i, k, given;
    ngx_rl_breaker_conf_t  *breaker;

    static struct {
        ngx_str_t        name;
        size_t           offset;
        ngx_rl_bounds_t  bounds;
    } words[] = {
        { ngx_string("failures"), offsetof(ngx_rl_breaker_conf_t, failures),
          { NGX_RL_NUMBER, 1, NGX_RL_BREAKER_MAX, 0,
            "it must be a number from 1 to 100" } },

        { ngx_string("window"), offsetof(ngx_rl_breaker_conf_t, window),
          { NGX_RL_TIME, 100, 3600000, 0,
            "it must be a time from 100ms to 1h, for example \"30s\"" } },

        { ngx_string("probe"), offsetof(ngx_rl_breaker_conf_t, probe),
          { NGX_RL_TIME, 100, 3600000, 0,
            "it must be a time from 100ms to 1h, for example \"10s\"" } }
    };

    breaker = &rlcf->defaults.breaker;

    if (breaker->failures) {
        return "is duplicate";
    }

    *breaker = ngx_rl_breaker_default;
    given = 0;

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        k = ngx_rl_word_find(&value[i], words, sizeof(words[0]), 3, &s);

        if (k == 3) {
            return ngx_rl_conf_error(cf, "invalid parameter \"%V\" in \"%V\": "
                                     "it must be \"failures=\", \"window=\" or "
                                     "\"probe=\"", &value[i], &cmd->name);
        }

        if (given & (1 << k)) {
            return ngx_rl_conf_error(cf, "duplicate parameter \"%V\" in \"%V\"",
                                     &value[i], &cmd->name);
        }

        given |= 1 << k;

        if (ngx_rl_bounds_parse(&words[k].bounds, &s, &n) != NULL) {
            return ngx_rl_directive_invalid(cf, &value[i], "%s",
                                            words[k].bounds.allowed);
        }

        *(uint32_t *) ((u_char *) breaker + words[k].offset) = (uint32_t) n;
    }

    return NGX_CONF_OK;
}


char *
ngx_rl_directive_zone(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_rl_main_conf_t  *rmcf = conf;

    size_t      min;
    ssize_t     size;
    ngx_str_t  *value;

    if (rmcf->zone_size != NGX_CONF_UNSET_SIZE) {
        return "is duplicate";
    }

    value = cf->args->elts;
    size = ngx_parse_size(&value[1]);

    min = NGX_RL_ZONE_PAGES * ngx_pagesize;

    if (size == NGX_ERROR || size < (ssize_t) min) {
        return ngx_rl_directive_invalid(cf, &value[1], "it must be a size of "
                                        "at least %uzk, for example \"10m\"",
                                        min / 1024);
    }

    rmcf->zone_size = size;

    return NGX_CONF_OK;
}


char *
ngx_rl_directive_overrides(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_rl_main_conf_t  *rmcf = conf;

    ssize_t     size;
    ngx_str_t  *value;

    if (rmcf->overrides_size != NGX_CONF_UNSET_SIZE) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_strcmp(value[1].data, "off") == 0) {
        rmcf->overrides_size = 0;
        return NGX_CONF_OK;
    }

    size = (ngx_strcmp(value[1].data, "on") == 0) ? NGX_RL_OVERRIDES_SIZE
                                                  : ngx_parse_size(&value[1]);

    if (size == NGX_ERROR || size < NGX_RL_OVERRIDES_MIN) {
        return ngx_rl_directive_invalid(cf, &value[1], "it must be \"on\", "
                                        "\"off\" or a size of at least %uik, "
                                        "for example \"32m\"",
                                        (ngx_uint_t) NGX_RL_OVERRIDES_MIN
                                        / 1024);
    }

    rmcf->overrides_size = size;

    return NGX_CONF_OK;
}


char *
ngx_rl_directive_prefix(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_rl_loc_conf_t  *rlcf = conf;

    size_t      i;
    ngx_str_t  *value;

    if (rlcf->prefix.data) {
        return "is duplicate";
    }

    value = cf->args->elts;

    /* braces would move the hash tag of keys in a cluster */

    for (i = 0; i < value[1].len; i++) {
        if (value[1].data[i] <= ' ' || value[1].data[i] > '~'
            || value[1].data[i] == '{' || value[1].data[i] == '}')
        {
            break;
        }
    }

    if (i != value[1].len || i == 0) {
        return ngx_rl_directive_invalid(cf, &value[1], "it must be printable "
                                        "ASCII without spaces or braces");
    }

    rlcf->prefix = value[1];

    return NGX_CONF_OK;
}


/* cmd->post lists the other allowed words */

char *
ngx_rl_directive_password(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_str_t  *value, *password;

    password = (ngx_str_t *) ((u_char *) conf + cmd->offset);

    if (password->data) {
        return cmd->post;
    }

    value = cf->args->elts;
    *password = value[1];

    return NGX_CONF_OK;
}


/* the first line of the file, read once, with the rights of the master */

char *
ngx_rl_directive_password_file(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    u_char     *p;
    ssize_t     n;
    ngx_fd_t    fd;
    ngx_str_t  *value, *password;

    password = (ngx_str_t *) ((u_char *) conf + cmd->offset);

    if (password->data) {
        return cmd->post;
    }

    value = cf->args->elts;

    if (ngx_conf_full_name(cf->cycle, &value[1], 1) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    fd = ngx_open_file(value[1].data, NGX_FILE_RDONLY, NGX_FILE_OPEN, 0);

    if (fd == NGX_INVALID_FILE) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           ngx_open_file_n " \"%V\" of \"%V\" failed",
                           &value[1], &cmd->name);
        return NGX_CONF_ERROR;
    }

    p = ngx_pcalloc(cf->pool, NGX_RL_PASSWORD_MAX + 1);

    n = p ? ngx_read_fd(fd, p, NGX_RL_PASSWORD_MAX) : 0;

    if (n == -1) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           ngx_read_fd_n " \"%V\" of \"%V\" failed",
                           &value[1], &cmd->name);
    }

    if (ngx_close_file(fd) == NGX_FILE_ERROR) {
        ngx_log_error(NGX_LOG_ALERT, cf->log, ngx_errno,
                      ngx_close_file_n " \"%V\" failed", &value[1]);
    }

    if (p == NULL || n == -1) {
        return NGX_CONF_ERROR;
    }

    password->data = p;

    while (*p && *p != CR && *p != LF) {
        p++;
    }

    *p = '\0';
    password->len = p - password->data;

    if (password->len == 0) {
        return ngx_rl_conf_error(cf, "the first line of \"%V\" in \"%V\" is "
                                 "empty: write the password there", &value[1],
                                 &cmd->name);
    }

    return NGX_CONF_OK;
}


/* "off" allows all networks, where an outer block restricts them */

char *
ngx_rl_directive_networks(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_rl_loc_conf_t  *rlcf = conf;

    ngx_int_t     rc;
    ngx_str_t    *value;
    ngx_uint_t    i, n;
    ngx_cidr_t   *cidr;
    ngx_array_t  *networks;

    if (rlcf->defaults.networks != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "off") == 0) {
        rlcf->defaults.networks = NULL;
        return NGX_CONF_OK;
    }

    n = cf->args->nelts - 1;
    networks = ngx_array_create(cf->pool, n, sizeof(ngx_cidr_t));

    cidr = networks ? ngx_array_push_n(networks, n) : NULL;
    if (cidr == NULL) {
        return NGX_CONF_ERROR;
    }

    rlcf->defaults.networks = networks;

    for (i = 1; i <= n; i++, cidr++) {

        rc = ngx_ptocidr(&value[i], cidr);

        if (rc == NGX_ERROR) {
            return ngx_rl_conf_error(cf, "invalid network \"%V\" in "
                                     "\"ratelimit_redis_networks\": it must be "
                                     "an address, a network such as 10.0.0.0/8 "
                                     "or fd00::/8, or \"off\" alone",
                                     &value[i]);
        }

        if (rc == NGX_DONE) {
            ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                               "low address bits of \"%V\" in "
                               "\"ratelimit_redis_networks\" are meaningless",
                               &value[i]);
        }

        ngx_rl_address_unmap(cidr);
    }

    return NGX_CONF_OK;
}


char *
ngx_rl_directive_ssl_passwords(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_rl_loc_conf_t  *rlcf = conf;

    ngx_str_t  *value;

    if (rlcf->defaults.tls.passwords) {
        return "is duplicate";
    }

    value = cf->args->elts;

    rlcf->defaults.tls.passwords = ngx_rl_tls_passwords(cf, &value[1]);

    /* the error was logged without the directive */

    return rlcf->defaults.tls.passwords ? NGX_CONF_OK
           : ngx_rl_conf_error(cf, "invalid value \"%V\" in \"%V\"",
                               &value[1], &cmd->name);
}
