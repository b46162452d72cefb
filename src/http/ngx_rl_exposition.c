
#include "http/ngx_rl_exposition.h"
#include "pure/ngx_rl_text.h"


#define NGX_RL_EXPOSITION_SAMPLE  256     /* without its labels */


static u_char *ngx_rl_exposition_open(ngx_rl_exposition_t *x, const char *name,
    const char *suffix, ngx_rl_label_t *labels, ngx_uint_t n);


void
ngx_rl_exposition_init(ngx_rl_exposition_t *x, ngx_http_request_t *r)
{
    ngx_str_t  format;

    ngx_memzero(x, sizeof(ngx_rl_exposition_t));

    ngx_rl_output_init(&x->output, r);
    x->json = ngx_http_arg(r, (u_char *) "format", 6, &format) == NGX_OK
              && format.len == 4 && ngx_strncmp(format.data, "json", 4) == 0;
}


void
ngx_rl_exposition_family(ngx_rl_exposition_t *x, const char *name,
    const char *type, const char *help)
{
    u_char  *p;

    if (x->json) {
        return;
    }

    p = ngx_rl_output_room(&x->output,
                           2 * ngx_strlen(name) + ngx_strlen(type)
                           + ngx_strlen(help)
                           + sizeof("# HELP  \n# TYPE  \n"));
    if (p) {
        x->output.buf->last = ngx_sprintf(p, "# HELP %s %s\n# TYPE %s %s\n",
                                          name, help, name, type);
    }
}


void
ngx_rl_exposition_sample(ngx_rl_exposition_t *x, const char *name,
    const char *suffix, ngx_rl_label_t *labels, ngx_uint_t n, uint64_t value)
{
    u_char  *p;

    p = ngx_rl_exposition_open(x, name, suffix, labels, n);

    if (p) {
        x->output.buf->last = ngx_sprintf(p, x->json ? "%uL}" : "%uL\n", value);
    }
}


void
ngx_rl_exposition_seconds(ngx_rl_exposition_t *x, const char *name,
    const char *suffix, ngx_rl_label_t *labels, ngx_uint_t n, uint64_t us)
{
    u_char  *p;

    p = ngx_rl_exposition_open(x, name, suffix, labels, n);

    if (p) {
        x->output.buf->last = ngx_sprintf(p, x->json ? "%uL.%06uL}"
                                                     : "%uL.%06uL\n",
                                          us / 1000000, us % 1000000);
    }
}


/* the part of a sample before its value */

static u_char *
ngx_rl_exposition_open(ngx_rl_exposition_t *x, const char *name,
    const char *suffix, ngx_rl_label_t *labels, ngx_uint_t n)
{
    u_char     *p;
    size_t      size;
    ngx_uint_t  i;

    size = NGX_RL_EXPOSITION_SAMPLE;

    for (i = 0; i < n; i++) {
        size += ngx_strlen(labels[i].name) + sizeof("\"\": , ")
                + ngx_rl_quote_size(labels[i].value.len);
    }

    p = ngx_rl_output_room(&x->output, size);
    if (p == NULL) {
        return NULL;
    }

    if (x->json) {

        if (x->name && ngx_strcmp(x->name, name) == 0
            && ngx_strcmp(x->suffix, suffix) == 0)
        {
            p = ngx_sprintf(p, ",\n{");

        } else {
            p = ngx_sprintf(p, "%s\n\"%s%s\": [\n{", x->name ? "\n]," : "{",
                            name, suffix);
        }

        x->name = name;
        x->suffix = suffix;

    } else {
        p = ngx_sprintf(p, n ? "%s%s{" : "%s%s ", name, suffix);
    }

    for (i = 0; i < n; i++) {
        p = ngx_sprintf(p, x->json ? "\"%s\": " : i ? ",%s=" : "%s=",
                        labels[i].name);
        p = ngx_rl_quote(p, labels[i].value.data, labels[i].value.len);

        if (x->json) {
            *p++ = ',';
            *p++ = ' ';
        }
    }

    if (x->json) {
        p = ngx_cpymem(p, "\"value\": ", sizeof("\"value\": ") - 1);

    } else if (n) {
        *p++ = '}';
        *p++ = ' ';
    }

    return p;
}


ngx_int_t
ngx_rl_exposition_send(ngx_rl_exposition_t *x)
{
    u_char  *p;

    static ngx_str_t  json = ngx_string("application/json");
    static ngx_str_t  text =
                        ngx_string("text/plain; version=0.0.4; charset=utf-8");

    if (!x->json) {
        return ngx_rl_output_send(&x->output, NGX_HTTP_OK, &text);
    }

    p = ngx_rl_output_room(&x->output, sizeof("\n]\n}\n"));

    if (p) {
        x->output.buf->last = ngx_sprintf(p, "\n]\n}\n");
    }

    return ngx_rl_output_send(&x->output, NGX_HTTP_OK, &json);
}


void
ngx_rl_label_set(ngx_rl_label_t *label, const char *name, const char *value)
{
    label->name = name;
    label->value.data = (u_char *) value;
    label->value.len = ngx_strlen(value);
}
