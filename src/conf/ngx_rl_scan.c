
#include "conf/ngx_rl_scan.h"


#define NGX_RL_SCAN_DEPTH  128
#define NGX_RL_SCAN_FILE   (256 * 1024 * 1024)

/* what ended a directive */

#define NGX_RL_SCAN_LINE   0        /* ";" */
#define NGX_RL_SCAN_BLOCK  1        /* "{" */
#define NGX_RL_SCAN_DONE   2        /* "}", and no directive */
#define NGX_RL_SCAN_EOF    3        /* the same for the file */


typedef struct {
    ngx_conf_t  *cf;
    ngx_str_t    file;
    u_char      *pos;
    u_char      *last;
    ngx_uint_t   line;
    u_char       ended;  /* the last word, or '\0' */
    ngx_array_t  words;  /* of the directive */
} ngx_rl_source_t;


static ngx_int_t ngx_rl_scan_file(ngx_conf_t *cf, ngx_str_t *file,
    ngx_rl_statement_t *block, ngx_uint_t depth);
static ngx_int_t ngx_rl_scan_read(ngx_rl_source_t *source);
static ngx_int_t ngx_rl_scan_block(ngx_rl_source_t *source,
    ngx_rl_statement_t *block, ngx_uint_t depth);
static ngx_int_t ngx_rl_scan_include(ngx_conf_t *cf,
    ngx_str_t *word, ngx_rl_statement_t *block, ngx_uint_t depth);
static ngx_int_t ngx_rl_scan_words(ngx_rl_source_t *source);
static ngx_int_t ngx_rl_scan_word(ngx_rl_source_t *source);
static ngx_int_t ngx_rl_scan_lua(ngx_rl_source_t *source);
static ngx_uint_t ngx_rl_scan_kept(
    ngx_rl_statement_t *block, ngx_array_t *words, ngx_uint_t opens);
static ngx_rl_statement_t *ngx_rl_scan_add(ngx_rl_source_t *source,
    ngx_rl_statement_t *block);


/* these directives of "http" are kept; the blocks of others are skipped */

static const char  *ngx_rl_scan_blocks[] = {
    "server", "location", "if", "limit_except", "map", "geo", NULL
};

static const char  *ngx_rl_scan_lines[] = {
    "return", "rewrite", "break", "set", "auth_request", "auth_request_set",
    NULL
};


ngx_rl_statement_t *
ngx_rl_scan(ngx_conf_t *cf)
{
    ngx_rl_statement_t  *root;

    root = ngx_pcalloc(cf->temp_pool, sizeof(ngx_rl_statement_t));
    if (root == NULL) {
        return NULL;
    }

    root->last = &root->child;

    return ngx_rl_scan_file(cf, &cf->cycle->conf_file, root, 0) == NGX_OK
           ? root : NULL;
}


static ngx_int_t
ngx_rl_scan_file(ngx_conf_t *cf, ngx_str_t *file,
    ngx_rl_statement_t *block, ngx_uint_t depth)
{
    ngx_rl_source_t  source;

    ngx_memzero(&source, sizeof(ngx_rl_source_t));

    source.cf = cf;
    source.file = *file;
    source.line = 1;

    return ngx_array_init(&source.words, cf->temp_pool, 8, sizeof(ngx_str_t))
           == NGX_OK
           && ngx_rl_scan_read(&source) == NGX_OK
           && ngx_rl_scan_block(&source, block, depth) == NGX_RL_SCAN_EOF
           ? NGX_OK : NGX_ERROR;
}


/* reads the whole file; nginx has read it already and reported errors */

static ngx_int_t
ngx_rl_scan_read(ngx_rl_source_t *source)
{
    off_t            size;
    ssize_t          n;
    ngx_fd_t         fd;
    ngx_int_t        rc;
    ngx_file_info_t  fi;

    fd = ngx_open_file(source->file.data, NGX_FILE_RDONLY|NGX_FILE_NONBLOCK,
                       NGX_FILE_OPEN, 0);
    if (fd == NGX_INVALID_FILE) {
        return NGX_ERROR;
    }

    rc = NGX_ERROR;

    if (ngx_fd_info(fd, &fi) == NGX_FILE_ERROR || !ngx_is_file(&fi)
        || ngx_file_size(&fi) > NGX_RL_SCAN_FILE)
    {
        goto done;
    }

    size = ngx_file_size(&fi);

    source->pos = ngx_pnalloc(source->cf->temp_pool, (size_t) size + 1);
    if (source->pos == NULL) {
        goto done;
    }

    source->last = source->pos;

    while (source->last < source->pos + size) {
        n = ngx_read_fd(fd, source->last, source->pos + size - source->last);

        if (n == -1) {
            goto done;
        }

        if (n == 0) {
            break;
        }

        source->last += n;
    }

    rc = NGX_OK;

done:

    if (ngx_close_file(fd) == NGX_FILE_ERROR) {
        ngx_log_error(NGX_LOG_ALERT, source->cf->log, ngx_errno,
                      ngx_close_file_n " \"%V\" failed", &source->file);
    }

    return rc;
}


/* "block" is NULL in blocks that are not kept; returns what ended it */

static ngx_int_t
ngx_rl_scan_block(ngx_rl_source_t *source,
    ngx_rl_statement_t *block, ngx_uint_t depth)
{
    ngx_int_t            rc;
    ngx_str_t           *word;
    ngx_rl_statement_t  *statement;

    if (depth > NGX_RL_SCAN_DEPTH) {
        return NGX_ERROR;
    }

    for ( ;; ) {
        rc = ngx_rl_scan_words(source);

        if (rc != NGX_RL_SCAN_LINE && rc != NGX_RL_SCAN_BLOCK) {
            return rc;
        }

        word = source->words.elts;
        statement = NULL;

        if (block && ngx_rl_scan_kept(block, &source->words,
                                      rc == NGX_RL_SCAN_BLOCK))
        {
            statement = ngx_rl_scan_add(source, block);
            if (statement == NULL) {
                return NGX_ERROR;
            }
        }

        if (rc == NGX_RL_SCAN_BLOCK) {

            rc = (word->len > 13
                  && ngx_strcmp(word->data + word->len - 13, "_by_lua_block")
                  == 0)
                 ? ngx_rl_scan_lua(source)
                 : ngx_rl_scan_block(source, statement, depth + 1);

            if (rc != NGX_RL_SCAN_DONE) {
                return NGX_ERROR;
            }

        } else if (block && statement == NULL && source->words.nelts == 2
                   && ngx_strcmp(word->data, "include") == 0)
        {
            if (ngx_rl_scan_include(source->cf, &word[1], block, depth + 1)
                != NGX_OK)
            {
                return NGX_ERROR;
            }
        }
    }
}


/* as ngx_conf_include() */

static ngx_int_t
ngx_rl_scan_include(ngx_conf_t *cf, ngx_str_t *word,
    ngx_rl_statement_t *block, ngx_uint_t depth)
{
    ngx_int_t   rc;
    ngx_str_t   file, name;
    ngx_glob_t  gl;

    file = *word;

    if (ngx_conf_full_name(cf->cycle, &file, 1) != NGX_OK) {
        return NGX_ERROR;
    }

    if (strpbrk((char *) file.data, "*?[") == NULL) {
        return ngx_rl_scan_file(cf, &file, block, depth);
    }

    ngx_memzero(&gl, sizeof(ngx_glob_t));

    gl.pattern = file.data;
    gl.log = cf->log;
    gl.test = 1;

    if (ngx_open_glob(&gl) != NGX_OK) {
        return NGX_ERROR;
    }

    rc = NGX_OK;

    while (rc == NGX_OK && ngx_read_glob(&gl, &name) == NGX_OK) {

        file.len = name.len;
        file.data = ngx_pnalloc(cf->temp_pool, name.len + 1);
        if (file.data == NULL) {
            rc = NGX_ERROR;
            break;
        }

        *ngx_cpymem(file.data, name.data, name.len) = '\0';

        rc = ngx_rl_scan_file(cf, &file, block, depth);
    }

    ngx_close_glob(&gl);

    return rc;
}


/* all words up to what ends them */

static ngx_int_t
ngx_rl_scan_words(ngx_rl_source_t *source)
{
    u_char  ch;

    source->words.nelts = 0;

    while (source->ended || source->pos < source->last) {

        ch = source->ended ? source->ended : *source->pos++;
        source->ended = '\0';

        switch (ch) {

        case LF:
            source->line++;
            break;

        case CR:
        case ' ':
        case '\t':
            break;

        case '#':
            while (source->pos < source->last && *source->pos != LF) {
                source->pos++;
            }

            break;

        case ';':
        case '{':
            if (source->words.nelts == 0) {
                return NGX_ERROR;
            }

            return ch == ';' ? NGX_RL_SCAN_LINE : NGX_RL_SCAN_BLOCK;

        case '}':
            return source->words.nelts ? NGX_ERROR : NGX_RL_SCAN_DONE;

        default:
            source->pos--;

            if (ngx_rl_scan_word(source) != NGX_OK) {
                return NGX_ERROR;
            }
        }
    }

    return source->words.nelts ? NGX_ERROR : NGX_RL_SCAN_EOF;
}


/* words stay in place: a '\0' replaces the character that ended them */

static ngx_int_t
ngx_rl_scan_word(ngx_rl_source_t *source)
{
    u_char     *p, *src, *dst, quote;
    ngx_str_t  *word;
    ngx_uint_t  variable;

    p = source->pos;

    quote = (*p == '"' || *p == '\'') ? *p++ : '\0';
    src = p;
    variable = 0;

    for ( /* void */ ; p < source->last; p++) {

        if (*p == '{' && variable) {
            continue;
        }

        variable = (*p == '$');

        if (*p == '\\' && p + 1 < source->last) {
            p++;

        } else if (quote ? *p == quote
                   : (*p == ' ' || *p == '\t' || *p == CR || *p == LF
                      || *p == ';' || *p == '{'))
        {
            break;
        }

        if (*p == LF) {
            source->line++;
        }
    }

    if (p == source->last) {
        return NGX_ERROR;
    }

    word = ngx_array_push(&source->words);
    if (word == NULL) {
        return NGX_ERROR;
    }

    source->ended = quote ? '\0' : *p;
    source->pos = p + 1;

    word->data = src;

    for (dst = src; src < p; *dst++ = *src++) {

        if (*src != '\\' || src + 1 == p) {
            continue;
        }

        switch (src[1]) {

        case '"':
        case '\'':
        case '\\':
            src++;
            break;

        case 't':
            *++src = '\t';
            break;

        case 'r':
            *++src = CR;
            break;

        case 'n':
            *++src = LF;
            break;
        }
    }

    *dst = '\0';
    word->len = dst - word->data;

    /* "if (...)" may end with a quote */

    if (quote && source->pos < source->last && *source->pos == ')') {
        source->pos++;
    }

    return NGX_OK;
}


/* the only module whose blocks do not follow nginx's rules for words */

static ngx_int_t
ngx_rl_scan_lua(ngx_rl_source_t *source)
{
    u_char     *p, *last, quote;
    ngx_uint_t  depth;

    depth = 1;
    last = source->last;

    for (p = source->pos; p < last; p++) {

        switch (*p) {

        case LF:
            source->line++;
            break;

        case '{':
            depth++;
            break;

        case '}':
            if (--depth == 0) {
                source->pos = p + 1;
                return NGX_RL_SCAN_DONE;
            }

            break;

        case '"':
        case '\'':
            quote = *p++;

            for ( /* void */ ; p < last && *p != quote; p++) {

                if (*p == '\\' && p + 1 < last) {
                    p++;
                }

                if (*p == LF) {
                    source->line++;
                }
            }

            break;

        case '-':
        case '[':
            if (p + 1 == last || p[1] != *p) {
                break;
            }

            /* a comment; a Lua comment in brackets may span lines */

            if (*p == '-' && (last - p < 4 || p[2] != '[' || p[3] != '[')) {

                while (p + 1 < last && p[1] != LF) {
                    p++;
                }

                break;
            }

            for (p += 2; p + 1 < last && (*p != ']' || p[1] != ']'); p++) {
                if (*p == LF) {
                    source->line++;
                }
            }

            p++;
            break;
        }
    }

    return NGX_ERROR;
}


static ngx_uint_t
ngx_rl_scan_kept(ngx_rl_statement_t *block,
    ngx_array_t *words, ngx_uint_t opens)
{
    ngx_str_t  *word;

    word = words->elts;

    if (block->parent == NULL) {
        return opens && ngx_strcmp(word->data, "http") == 0;
    }

    /*
     * Of a map: its default and its values.  Files of a geo may contain
     * anything and are not read.
     */

    if (block->map) {
        return words->nelts == 2
               && (ngx_strcmp(word->data, "default") == 0
                   || *word->data == '~'
                   || ngx_strchr(word[1].data, '$') != NULL
                   || (ngx_strcmp(word->data, "include") == 0
                       && ngx_strcmp(block->words[0].data, "geo") == 0));
    }

    return opens ? ngx_rl_word_among(word->data, ngx_rl_scan_blocks)
                 : ngx_strncmp(word->data, "ratelimit", 9) == 0
                   || ngx_rl_word_among(word->data, ngx_rl_scan_lines);
}


ngx_uint_t
ngx_rl_word_among(u_char *word, const char **names)
{
    for ( /* void */ ; *names; names++) {
        if (ngx_strcmp(word, *names) == 0) {
            return 1;
        }
    }

    return 0;
}


static ngx_rl_statement_t *
ngx_rl_scan_add(ngx_rl_source_t *source, ngx_rl_statement_t *block)
{
    size_t               size;
    ngx_rl_statement_t  *statement, **pos;

    size = source->words.nelts * sizeof(ngx_str_t);

    statement = ngx_pcalloc(source->cf->temp_pool,
                            sizeof(ngx_rl_statement_t) + size);
    if (statement == NULL) {
        return NULL;
    }

    statement->n = source->words.nelts;
    statement->words = (ngx_str_t *) (statement + 1);
    ngx_memcpy(statement->words, source->words.elts, size);

    statement->parent = block;
    statement->last = &statement->child;
    statement->file = source->file;
    statement->line = source->line;

    statement->map = (ngx_strcmp(statement->words[0].data, "map") == 0
                      || ngx_strcmp(statement->words[0].data, "geo") == 0);

    pos = statement->map ? &block->child : block->last;

    statement->next = *pos;
    *pos = statement;

    if (statement->next == NULL) {
        block->last = &statement->next;
    }

    return statement;
}
