
#include "http/ngx_rl_json.h"
#include "pure/ngx_rl_rate.h"
#include "pure/ngx_rl_text.h"


static u_char *ngx_rl_json_member(ngx_rl_json_t *json, const char *name,
    size_t size);
static void ngx_rl_json_word(ngx_rl_json_t *json, const char *name,
    const char *word);


void
ngx_rl_json_open(ngx_rl_json_t *json, const char *name, u_char bracket)
{
    u_char  *p;

    p = ngx_rl_json_member(json, name, 1);

    if (p) {
        *p++ = bracket;
        json->output.buf->last = p;
        json->comma = 0;
    }
}


void
ngx_rl_json_close(ngx_rl_json_t *json, u_char bracket)
{
    u_char  *p;

    p = ngx_rl_output_room(&json->output, 1);

    if (p) {
        *p++ = (bracket == '{') ? '}' : ']';
        json->output.buf->last = p;
        json->comma = 1;
    }
}


void
ngx_rl_json_string(ngx_rl_json_t *json, const char *name, ngx_str_t *value)
{
    u_char  *p;

    p = ngx_rl_json_member(json, name, ngx_rl_quote_size(value->len));

    if (p) {
        json->output.buf->last = ngx_rl_quote(p, value->data, value->len);
    }
}


void
ngx_rl_json_text(ngx_rl_json_t *json, const char *name, const char *value)
{
    ngx_str_t  text;

    if (value == NULL) {
        ngx_rl_json_word(json, name, "null");
        return;
    }

    text.data = (u_char *) value;
    text.len = ngx_strlen(value);

    ngx_rl_json_string(json, name, &text);
}


void
ngx_rl_json_number(ngx_rl_json_t *json, const char *name, uint64_t value)
{
    u_char  *p;

    if (value == NGX_RL_NEVER) {
        ngx_rl_json_word(json, name, "null");
        return;
    }

    p = ngx_rl_json_member(json, name, NGX_INT64_LEN);

    if (p) {
        json->output.buf->last = ngx_sprintf(p, "%uL", value);
    }
}


void
ngx_rl_json_seconds(ngx_rl_json_t *json, const char *name, uint64_t us)
{
    u_char  *p;

    p = ngx_rl_json_member(json, name, NGX_INT64_LEN + sizeof(".000000"));

    if (p) {
        json->output.buf->last = ngx_sprintf(p, "%uL.%06uL", us / 1000000,
                                             us % 1000000);
    }
}


void
ngx_rl_json_ratio(ngx_rl_json_t *json, const char *name, uint64_t n,
    uint64_t of)
{
    u_char    *p;
    uint64_t   hundredths;

    p = ngx_rl_json_member(json, name, NGX_INT64_LEN + sizeof(".00"));

    if (p) {
        hundredths = (n * 100 + of / 2) / of;

        json->output.buf->last = ngx_sprintf(p, "%uL.%02uL", hundredths / 100,
                                             hundredths % 100);
    }
}


void
ngx_rl_json_tenths(ngx_rl_json_t *json, const char *name, uint64_t tenths)
{
    u_char  *p;

    p = ngx_rl_json_member(json, name, NGX_INT64_LEN + sizeof(".0"));

    if (p) {
        json->output.buf->last = ngx_sprintf(p, "%uL.%uL", tenths / 10,
                                             tenths % 10);
    }
}


void
ngx_rl_json_bool(ngx_rl_json_t *json, const char *name, ngx_uint_t value)
{
    ngx_rl_json_word(json, name, value ? "true" : "false");
}


static void
ngx_rl_json_word(ngx_rl_json_t *json, const char *name, const char *word)
{
    u_char  *p;

    p = ngx_rl_json_member(json, name, ngx_strlen(word));

    if (p) {
        json->output.buf->last = ngx_cpymem(p, word, ngx_strlen(word));
    }
}


/* writes the name, and returns where the value of up to "size" bytes goes */

static u_char *
ngx_rl_json_member(ngx_rl_json_t *json, const char *name, size_t size)
{
    u_char  *p;

    p = ngx_rl_output_room(&json->output,
                           size + sizeof(",\"\":")
                           + (name ? ngx_strlen(name) : 0));
    if (p == NULL) {
        return NULL;
    }

    if (json->comma) {
        *p++ = ',';
    }

    if (name) {
        p = ngx_sprintf(p, "\"%s\":", name);
    }

    json->comma = 1;

    return p;
}
