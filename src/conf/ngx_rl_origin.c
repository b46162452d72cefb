
#include "conf/ngx_rl_origin.h"


#define NGX_RL_ORIGIN_DEPTH  32            /* maps of maps */


/* whether a variable is one of those that are looked for */

typedef ngx_uint_t (*ngx_rl_origin_pt)(
    ngx_rl_statement_t *block, ngx_str_t *name);


typedef struct {
    ngx_rl_statement_t  *block;
    ngx_rl_origin_pt     handler;
    unsigned             sources:1;   /* the source of a map counts too */
    unsigned             captures:1;  /* or a capture of its regex */
    unsigned             set:1;       /* found: "set" was used */
} ngx_rl_search_t;


static ngx_uint_t ngx_rl_origin_uses(ngx_rl_search_t *search, ngx_str_t *text,
    ngx_uint_t depth, ngx_str_t *found);
static ngx_uint_t ngx_rl_origin_made(
    ngx_rl_search_t *search, ngx_str_t *name, ngx_uint_t depth);
static ngx_uint_t ngx_rl_origin_first(ngx_rl_statement_t *statement);
static ngx_uint_t ngx_rl_origin_located(
    ngx_rl_statement_t *block, ngx_str_t *text, ngx_str_t *found);
static ngx_uint_t ngx_rl_origin_captured(ngx_str_t *regex,
    ngx_str_t *text, ngx_str_t *found);
static ngx_uint_t ngx_rl_origin_authorized(
    ngx_rl_statement_t *block, ngx_str_t *name);
static ngx_uint_t ngx_rl_origin_partial(
    ngx_rl_statement_t *block, ngx_str_t *name);
static ngx_uint_t ngx_rl_origin_sent(
    ngx_rl_statement_t *block, ngx_str_t *name);
static ngx_uint_t ngx_rl_origin_is(ngx_str_t *word, ngx_str_t *name);


/* in the order of ngx_rl_origin_e */

static const ngx_rl_origin_pt  ngx_rl_origin_handlers[] = {
    ngx_rl_origin_authorized, ngx_rl_origin_partial, ngx_rl_origin_sent
};

static ngx_uint_t  ngx_rl_origin_searches;


ngx_uint_t
ngx_rl_origin(ngx_rl_statement_t *block, ngx_rl_origin_e what, ngx_str_t *text,
    ngx_str_t *name)
{
    ngx_rl_search_t  search = {
        block, ngx_rl_origin_handlers[what], what == NGX_RL_ORIGIN_AUTH,
        what == NGX_RL_ORIGIN_CLIENT, 0
    };

    /* no statement is visited twice in one search */

    ngx_rl_origin_searches++;

    if (ngx_rl_origin_uses(&search, text, 0, name)) {
        return search.set ? NGX_RL_ORIGIN_SET : 1;
    }

    return what == NGX_RL_ORIGIN_CLIENT
           && ngx_rl_origin_located(block, text, name);
}


/* variables that a client can choose freely; a trailing "_" is a prefix */

static ngx_uint_t
ngx_rl_origin_sent(ngx_rl_statement_t *block, ngx_str_t *name)
{
    ngx_str_t  *sent;

    static ngx_str_t  names[] = {
        ngx_string("arg_"),
        ngx_string("args"),
        ngx_string("content_length"),
        ngx_string("content_type"),
        ngx_string("cookie_"),
        ngx_string("document_uri"),
        ngx_string("http_"),
        ngx_string("query_string"),
        ngx_string("request"),
        ngx_string("request_body"),
        ngx_string("request_length"),
        ngx_string("request_method"),
        ngx_string("request_uri"),
        ngx_string("uri"),
        ngx_null_string
    };

    for (sent = names; sent->len; sent++) {

        if ((name->len == sent->len
             || (name->len > sent->len && sent->data[sent->len - 1] == '_'))
            && ngx_strncasecmp(name->data, sent->data, sent->len) == 0)
        {
            return 1;
        }
    }

    return 0;
}


/*
 * Whether a text has a variable that the handler accepts, or one that is made
 * from such a variable by "map", or by "set" in this block or an outer one.
 * "found" is the variable in the text.
 */

static ngx_uint_t
ngx_rl_origin_uses(ngx_rl_search_t *search,
    ngx_str_t *text, ngx_uint_t depth, ngx_str_t *found)
{
    u_char    *p;
    ngx_str_t  name;

    if (depth > NGX_RL_ORIGIN_DEPTH) {
        return 0;
    }

    p = text->data;

    while (ngx_rl_origin_next(&p, text->data + text->len, &name)) {

        if (search->handler(search->block, &name)
            || ngx_rl_origin_made(search, &name, depth + 1))
        {
            if (found) {
                *found = name;
            }

            return 1;
        }
    }

    return 0;
}


static ngx_uint_t
ngx_rl_origin_made(ngx_rl_search_t *search, ngx_str_t *name, ngx_uint_t depth)
{
    ngx_rl_statement_t  *b, *s, *entry;

    for (b = search->block; b->parent->parent; b = b->parent) {

        for (s = b->child; s; s = s->next) {

            if (s->n == 3 && ngx_rl_statement_is(s, "set")
                && ngx_rl_origin_is(&s->words[1], name)
                && ngx_rl_origin_first(s)
                && ngx_rl_origin_uses(search, &s->words[2], depth, NULL))
            {
                search->set = 1;
                return 1;
            }
        }
    }

    for (s = b->child; s && s->map; s = s->next) {

        if (s->n != 3
            || !ngx_rl_origin_is(&s->words[2], name)
            || !ngx_rl_origin_first(s))
        {
            continue;
        }

        if (search->sources
            && ngx_rl_origin_uses(search, &s->words[1], depth, NULL))
        {
            return 1;
        }

        for (entry = s->child; entry; entry = entry->next) {

            if (ngx_rl_origin_uses(search, &entry->words[1], depth, NULL)) {
                return 1;
            }

            if (search->captures
                && *entry->words[0].data == '~'
                && ngx_rl_origin_captured(&entry->words[0],
                                          &entry->words[1], NULL)
                && ngx_rl_origin_uses(search, &s->words[1], depth, NULL))
            {
                return 1;
            }
        }
    }

    return 0;
}


/* a variable that this search has visited was not a match */

static ngx_uint_t
ngx_rl_origin_first(ngx_rl_statement_t *statement)
{
    if (statement->search == ngx_rl_origin_searches) {
        return 0;
    }

    statement->search = ngx_rl_origin_searches;

    return 1;
}


/* whether a text has a capture of the location's regex */

static ngx_uint_t
ngx_rl_origin_located(ngx_rl_statement_t *block,
    ngx_str_t *text, ngx_str_t *found)
{
    for ( /* void */ ; block->parent->parent; block = block->parent) {

        if (ngx_rl_statement_is(block, "location")
            && block->n > 1 && *block->words[1].data == '~'
            && ngx_rl_origin_captured(&block->words[block->n - 1], text, found))
        {
            return 1;
        }
    }

    return 0;
}


/* $1 to $9, or the name of a capture */

static ngx_uint_t
ngx_rl_origin_captured(ngx_str_t *regex, ngx_str_t *text, ngx_str_t *found)
{
    u_char    *p, *q;
    ngx_str_t  name;

    p = text->data;

    while (ngx_rl_origin_next(&p, text->data + text->len, &name)) {

        if (found) {
            *found = name;
        }

        if (name.len == 1 && *name.data >= '1' && *name.data <= '9') {
            return ngx_strchr(regex->data, '(') != NULL;
        }

        for (q = regex->data; *q; q++) {

            if (*q == '<' && q[1]
                && ngx_strncasecmp(q + 1, name.data, name.len) == 0
                && q[1 + name.len] == '>')
            {
                return 1;
            }
        }
    }

    return 0;
}


ngx_uint_t
ngx_rl_origin_next(u_char **pos, u_char *last, ngx_str_t *name)
{
    u_char  *p;

    for (p = *pos; p < last; /* void */ ) {

        if (*p++ != '$') {
            continue;
        }

        /* the number of a capture has one digit */

        if (p < last && *p >= '1' && *p <= '9') {
            name->data = p++;
            name->len = 1;
            *pos = p;

            return 1;
        }

        if (p < last && *p == '{') {
            p++;
        }

        name->data = p;

        while (p < last
               && ((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z')
                   || (*p >= '0' && *p <= '9') || *p == '_'))
        {
            p++;
        }

        name->len = p - name->data;

        if (name->len) {
            *pos = p;
            return 1;
        }
    }

    return 0;
}


/* variables that "auth_request" sets in this block */

static ngx_uint_t
ngx_rl_origin_authorized(ngx_rl_statement_t *block, ngx_str_t *name)
{
    ngx_rl_statement_t  *s;

    s = ngx_rl_statement_find(block, "auth_request");

    if (s == NULL || s->n != 2 || ngx_strcmp(s->words[1].data, "off") == 0) {
        return 0;
    }

    /* a block that sets any inherits none */

    s = ngx_rl_statement_find(block, "auth_request_set");

    for ( /* void */ ; s; s = s->next) {

        if (s->n == 3 && ngx_rl_statement_is(s, "auth_request_set")
            && ngx_rl_origin_is(&s->words[1], name))
        {
            return 1;
        }
    }

    return 0;
}


/* variables of a map or geo without a value for everything */

static ngx_uint_t
ngx_rl_origin_partial(ngx_rl_statement_t *block, ngx_str_t *name)
{
    ngx_str_t           *word;
    ngx_uint_t           geo, unknown;
    ngx_rl_statement_t  *s, *entry;

    while (block->parent->parent) {
        block = block->parent;
    }

    unknown = 0;

    for (s = block->child; s && s->map; s = s->next) {

        geo = ngx_rl_statement_is(s, "geo");

        if (s->n < 2 || !ngx_rl_origin_is(&s->words[s->n - 1], name)) {
            continue;
        }

        unknown = 1;

        for (entry = s->child; entry; entry = entry->next) {

            word = entry->words;

            if ((ngx_strcmp(word->data, "default") == 0 && word[1].len)
                || (geo ? ngx_strcmp(word->data, "include") == 0
                    : ngx_rl_regex_any(word)))
            {
                unknown = 0;
            }
        }
    }

    return unknown;
}


/* $NAME */

static ngx_uint_t
ngx_rl_origin_is(ngx_str_t *word, ngx_str_t *name)
{
    return word->len == name->len + 1
           && ngx_strncasecmp(word->data + 1, name->data, name->len) == 0;
}


ngx_uint_t
ngx_rl_regex_any(ngx_str_t *regex)
{
    u_char  *p;

    static const char  *all[] = {
        "^", "$", ".*", "^.*", ".*$", "^.*$", "(.*)", "^(.*)", "(.*)$",
        "^(.*)$", NULL
    };

    p = regex->data;

    if (*p == '~') {
        p++;
        p += (*p == '*');
    }

    return ngx_rl_word_among(p, all);
}
