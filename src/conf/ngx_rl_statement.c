
#include "conf/ngx_rl_statement.h"
#include "core/ngx_rl_core.h"


#define NGX_RL_STATEMENT_NAME  64

static void ngx_rl_statement_lookup(ngx_conf_t *cf, ngx_rl_main_conf_t *rmcf);
static ngx_uint_t ngx_rl_statement_block(ngx_rl_statement_t *statement);


ngx_rl_statement_t *
ngx_rl_statement_of(ngx_conf_t *cf, ngx_rl_loc_conf_t *conf)
{
    (void) ngx_rl_statement_root(cf);

    return conf->block;
}


ngx_rl_statement_t *
ngx_rl_statement_root(ngx_conf_t *cf)
{
    ngx_rl_main_conf_t  *rmcf;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    if (!rmcf->scanned) {
        rmcf->scanned = 1;
        ngx_rl_statement_lookup(cf, rmcf);
    }

    return rmcf->text;
}


/* both are in the order of the text; two blocks may begin in the same line */

static void
ngx_rl_statement_lookup(ngx_conf_t *cf, ngx_rl_main_conf_t *rmcf)
{
    ngx_uint_t           i;
    ngx_rl_loc_conf_t  **conf;
    ngx_rl_statement_t  *s, *next;

    rmcf->text = ngx_rl_scan(cf);

    if (rmcf->text == NULL) {
        ngx_log_error(NGX_LOG_INFO, cf->log, 0,
                      "the configuration could not be read once more: "
                      "there are fewer warnings about limits");
        return;
    }

    conf = rmcf->confs.elts;
    next = rmcf->text;

    for (i = 0; i < rmcf->confs.nelts; i++) {

        for (s = next; s; s = ngx_rl_statement_next(s)) {

            if (s->line == conf[i]->line
                && ngx_rl_str_equal(&s->file, &conf[i]->file)
                && ngx_rl_statement_block(s))
            {
                conf[i]->block = s;
                next = ngx_rl_statement_next(s);
                break;
            }
        }
    }
}


/* whether there is a conf of its own for it */

static ngx_uint_t
ngx_rl_statement_block(ngx_rl_statement_t *statement)
{
    return ngx_rl_statement_is(statement, "http")
           || ngx_rl_statement_is(statement, "server")
           || ngx_rl_statement_is(statement, "location")
           || ngx_rl_statement_is(statement, "if")
           || ngx_rl_statement_is(statement, "limit_except");
}


void
ngx_rl_statement_set(ngx_conf_t *cf,
    ngx_rl_loc_conf_t *conf, const char *directive, ngx_conf_file_t *file)
{
    u_char               name[NGX_RL_STATEMENT_NAME];
    ngx_rl_statement_t  *block, *s;

    block = ngx_rl_statement_of(cf, conf);

    s = block ? ngx_rl_statement_find(block, directive) : NULL;

    if (block && s == NULL) {

        /* what is written may also be the name of a file */

        *ngx_slprintf(name, name + sizeof(name) - 1, "%s_file", directive)
            = '\0';
        s = ngx_rl_statement_find(block, (const char *) name);
    }

    *file = *cf->conf_file;
    file->file.name = s ? s->file : conf->file;
    file->line = s ? s->line : conf->line;

    cf->conf_file = file;
}


void ngx_cdecl
ngx_rl_statement_error(ngx_conf_t *cf,
    ngx_rl_loc_conf_t *conf, const char *directive, const char *fmt, ...)
{
    u_char           text[NGX_MAX_CONF_ERRSTR], *last;
    va_list          args;
    ngx_conf_file_t  file, *saved;

    va_start(args, fmt);
    last = ngx_vslprintf(text, text + NGX_MAX_CONF_ERRSTR, fmt, args);
    va_end(args);

    saved = cf->conf_file;

    ngx_rl_statement_set(cf, conf, directive, &file);
    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "%*s",
                       (size_t) (last - text), text);

    cf->conf_file = saved;
}
