
#include "conf/ngx_rl_statement.h"
#include "core/ngx_rl_core.h"


#define NGX_RL_STATEMENT_NAME  64


static void ngx_rl_statement_lookup(ngx_rl_text_t *text);


ngx_int_t
ngx_rl_statement_block(ngx_conf_t *cf, ngx_rl_text_t *text,
    ngx_rl_block_t *block)
{
    ngx_rl_block_t  **blockp;

    block->text = text;
    block->file = cf->conf_file->file.name;
    block->line = cf->conf_file->line;

    blockp = ngx_array_push(&text->blocks);
    if (blockp == NULL) {
        return NGX_ERROR;
    }

    *blockp = block;

    return NGX_OK;
}


ngx_rl_statement_t *
ngx_rl_statement_root(ngx_conf_t *cf, ngx_rl_text_t *text)
{
    if (text->scanned) {
        return text->root;
    }

    text->scanned = 1;
    text->root = ngx_rl_scan(cf);

    if (text->root) {
        ngx_rl_statement_lookup(text);

    } else {
        ngx_log_error(NGX_LOG_INFO, cf->log, 0,
                      "the configuration could not be read a second time: some "
                      "warnings about limits are missing");
    }

    return text->root;
}


/* both are in the order of the text; two blocks may start on the same line */

static void
ngx_rl_statement_lookup(ngx_rl_text_t *text)
{
    ngx_uint_t           i;
    ngx_rl_block_t     **block;
    ngx_rl_statement_t  *s, *next;

    static const char  *names[] = {
        "http", "server", "location", "if", "limit_except", NULL
    };

    block = text->blocks.elts;
    next = text->root;

    for (i = 0; i < text->blocks.nelts; i++) {

        for (s = next; s; s = ngx_rl_statement_next(s)) {

            if (s->n && s->line == block[i]->line
                && ngx_rl_str_equal(&s->file, &block[i]->file)
                && ngx_rl_word_among(s->words[0].data, names))
            {
                block[i]->statement = s;
                next = ngx_rl_statement_next(s);
                break;
            }
        }
    }
}


ngx_uint_t
ngx_rl_statement_is(ngx_rl_statement_t *statement, const char *name)
{
    return statement->n && ngx_strcmp(statement->words[0].data, name) == 0;
}


ngx_rl_statement_t *
ngx_rl_statement_next(ngx_rl_statement_t *statement)
{
    if (statement->child) {
        return statement->child;
    }

    while (statement && statement->next == NULL) {
        statement = statement->parent;
    }

    return statement ? statement->next : NULL;
}


ngx_rl_statement_t *
ngx_rl_statement_find(ngx_rl_statement_t *block, const char *name)
{
    ngx_rl_statement_t  *s;

    for ( /* void */ ; block; block = block->parent) {

        for (s = block->child; s; s = s->next) {
            if (ngx_rl_statement_is(s, name)) {
                return s;
            }
        }
    }

    return NULL;
}


void
ngx_rl_statement_set(ngx_conf_t *cf, ngx_rl_block_t *block,
    const char *directive, ngx_conf_file_t *file)
{
    u_char               name[NGX_RL_STATEMENT_NAME];
    ngx_rl_statement_t  *s;

    (void) ngx_rl_statement_root(cf, block->text);

    s = ngx_rl_statement_find(block->statement, directive);

    if (s == NULL) {

        /* the text may also be the name of a file */

        *ngx_slprintf(name, name + sizeof(name) - 1, "%s_file", directive)
            = '\0';
        s = ngx_rl_statement_find(block->statement, (const char *) name);
    }

    *file = *cf->conf_file;
    file->file.name = s ? s->file : block->file;
    file->line = s ? s->line : block->line;

    cf->conf_file = file;
}


char *ngx_cdecl
ngx_rl_statement_error(ngx_conf_t *cf, ngx_rl_block_t *block,
    const char *directive, const char *fmt, ...)
{
    u_char           text[NGX_MAX_CONF_ERRSTR], *last;
    va_list          args;
    ngx_conf_file_t  file, *saved;

    va_start(args, fmt);
    last = ngx_vslprintf(text, text + NGX_MAX_CONF_ERRSTR, fmt, args);
    va_end(args);

    saved = cf->conf_file;

    if (block) {
        ngx_rl_statement_set(cf, block, directive, &file);
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "%*s",
                       (size_t) (last - text), text);

    cf->conf_file = saved;

    return NGX_CONF_ERROR;
}


char *ngx_cdecl
ngx_rl_conf_error(ngx_conf_t *cf, const char *fmt, ...)
{
    u_char   text[NGX_MAX_CONF_ERRSTR], *last;
    va_list  args;

    va_start(args, fmt);
    last = ngx_vslprintf(text, text + NGX_MAX_CONF_ERRSTR, fmt, args);
    va_end(args);

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "%*s",
                       (size_t) (last - text), text);

    return NGX_CONF_ERROR;
}
