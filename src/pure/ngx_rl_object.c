
#include "pure/ngx_rl_object.h"

#include <stdint.h>
#include <string.h>


static int ngx_rl_object_fail(ngx_rl_object_t *object, const char *err);
static int ngx_rl_object_end(ngx_rl_object_t *object);
static int ngx_rl_object_char(ngx_rl_object_t *object, char c);
static void ngx_rl_object_space(ngx_rl_object_t *object);
static int ngx_rl_object_string(ngx_rl_object_t *object, char **text,
    size_t *len);
static char *ngx_rl_object_escape(ngx_rl_object_t *object, char *dst);
static int ngx_rl_object_hex(ngx_rl_object_t *object, uint32_t *code);
static char *ngx_rl_object_utf8(char *dst, uint32_t code);
static int ngx_rl_object_value(ngx_rl_object_t *object,
    ngx_rl_member_t *member);
static int ngx_rl_object_number(const char *text, size_t len);


void
ngx_rl_object_init(ngx_rl_object_t *object, char *text, size_t len)
{
    object->pos = text;
    object->end = text + len;
    object->err = NULL;
    object->begun = 0;
}


int
ngx_rl_object_next(ngx_rl_object_t *object, ngx_rl_member_t *member)
{
    if (object->err) {
        return 0;
    }

    ngx_rl_object_space(object);

    if (!object->begun) {
        object->begun = 1;

        if (!ngx_rl_object_char(object, '{')) {
            return ngx_rl_object_fail(object, "a JSON object is expected");
        }

        ngx_rl_object_space(object);

        if (ngx_rl_object_char(object, '}')) {
            return ngx_rl_object_end(object);
        }

    } else {

        if (ngx_rl_object_char(object, '}')) {
            return ngx_rl_object_end(object);
        }

        if (!ngx_rl_object_char(object, ',')) {
            return ngx_rl_object_fail(object, "a comma or a closing brace is "
                                              "missing in the JSON object");
        }

        ngx_rl_object_space(object);
    }

    if (!ngx_rl_object_string(object, &member->name, &member->name_len)) {
        return ngx_rl_object_fail(object, "a name in double quotes is "
                                          "expected in the JSON object");
    }

    ngx_rl_object_space(object);

    if (!ngx_rl_object_char(object, ':')) {
        return ngx_rl_object_fail(object, "a colon is missing in the JSON "
                                          "object");
    }

    ngx_rl_object_space(object);

    return ngx_rl_object_value(object, member);
}


static int
ngx_rl_object_fail(ngx_rl_object_t *object, const char *err)
{
    if (object->err == NULL) {
        object->err = err;
    }

    return 0;
}


static int
ngx_rl_object_end(ngx_rl_object_t *object)
{
    ngx_rl_object_space(object);

    if (object->pos != object->end) {
        object->err = "there is text after the JSON object";
    }

    return 0;
}


/* whether this character is next, which is then skipped */

static int
ngx_rl_object_char(ngx_rl_object_t *object, char c)
{
    if (object->pos == object->end || *object->pos != c) {
        return 0;
    }

    object->pos++;

    return 1;
}


static void
ngx_rl_object_space(ngx_rl_object_t *object)
{
    while (object->pos < object->end
           && (*object->pos == ' ' || *object->pos == '\t'
               || *object->pos == '\n' || *object->pos == '\r'))
    {
        object->pos++;
    }
}


/* an escape is never shorter than what it stands for */

static int
ngx_rl_object_string(ngx_rl_object_t *object, char **text, size_t *len)
{
    char  *dst;

    if (!ngx_rl_object_char(object, '"')) {
        return 0;
    }

    dst = object->pos;
    *text = dst;

    while (object->pos < object->end) {

        switch (*object->pos) {

        case '"':
            *len = dst - *text;
            object->pos++;
            return 1;

        case '\\':
            object->pos++;
            dst = ngx_rl_object_escape(object, dst);

            if (dst == NULL) {
                return ngx_rl_object_fail(object, "invalid escape in a JSON "
                                                  "string");
            }

            break;

        default:

            if ((unsigned char) *object->pos < 0x20) {
                return ngx_rl_object_fail(object, "control character in a "
                                                  "JSON string");
            }

            *dst++ = *object->pos++;
            break;
        }
    }

    return ngx_rl_object_fail(object, "a JSON string has no end");
}


static char *
ngx_rl_object_escape(ngx_rl_object_t *object, char *dst)
{
    char         c;
    uint32_t     code, low;
    const char  *found;

    static const char  escapes[] = "\"\\/bfnrt";
    static const char  meant[] = "\"\\/\b\f\n\r\t";

    if (object->pos == object->end) {
        return NULL;
    }

    c = *object->pos++;

    if (c != 'u') {
        found = (c != '\0') ? strchr(escapes, c) : NULL;

        if (found == NULL) {
            return NULL;
        }

        *dst++ = meant[found - escapes];

        return dst;
    }

    if (!ngx_rl_object_hex(object, &code)) {
        return NULL;
    }

    if (code >= 0xd800 && code < 0xdc00) {

        if (!ngx_rl_object_char(object, '\\')
            || !ngx_rl_object_char(object, 'u')
            || !ngx_rl_object_hex(object, &low)
            || low < 0xdc00 || low > 0xdfff)
        {
            return NULL;
        }

        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);

    } else if (code >= 0xdc00 && code < 0xe000) {
        return NULL;
    }

    return ngx_rl_object_utf8(dst, code);
}


static int
ngx_rl_object_hex(ngx_rl_object_t *object, uint32_t *code)
{
    int   i;
    char  c;

    if (object->end - object->pos < 4) {
        return 0;
    }

    *code = 0;

    for (i = 0; i < 4; i++) {
        c = *object->pos++;

        if (c >= '0' && c <= '9') {
            c -= '0';

        } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
            c = (char) ((c | 0x20) - 'a' + 10);

        } else {
            return 0;
        }

        *code = *code << 4 | (uint32_t) c;
    }

    return 1;
}


static char *
ngx_rl_object_utf8(char *dst, uint32_t code)
{
    if (code < 0x80) {
        *dst++ = (char) code;

    } else if (code < 0x800) {
        *dst++ = (char) (0xc0 | code >> 6);
        *dst++ = (char) (0x80 | (code & 0x3f));

    } else if (code < 0x10000) {
        *dst++ = (char) (0xe0 | code >> 12);
        *dst++ = (char) (0x80 | (code >> 6 & 0x3f));
        *dst++ = (char) (0x80 | (code & 0x3f));

    } else {
        *dst++ = (char) (0xf0 | code >> 18);
        *dst++ = (char) (0x80 | (code >> 12 & 0x3f));
        *dst++ = (char) (0x80 | (code >> 6 & 0x3f));
        *dst++ = (char) (0x80 | (code & 0x3f));
    }

    return dst;
}


static int
ngx_rl_object_value(ngx_rl_object_t *object, ngx_rl_member_t *member)
{
    char    *start;
    size_t   i, len;

    static const struct {
        const char       *word;
        ngx_rl_object_e   type;
    } words[] = {
        { "true", NGX_RL_OBJECT_TRUE },
        { "false", NGX_RL_OBJECT_FALSE },
        { "null", NGX_RL_OBJECT_NULL }
    };

    if (object->pos < object->end && *object->pos == '"') {
        member->type = NGX_RL_OBJECT_STRING;

        return ngx_rl_object_string(object, &member->value,
                                    &member->value_len);
    }

    start = object->pos;

    while (object->pos < object->end
           && memchr(",} \t\r\n", *object->pos, 6) == NULL)
    {
        object->pos++;
    }

    len = object->pos - start;

    member->value = start;
    member->value_len = len;

    for (i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (len == strlen(words[i].word)
            && memcmp(start, words[i].word, len) == 0)
        {
            member->type = words[i].type;
            return 1;
        }
    }

    if (ngx_rl_object_number(start, len)) {
        member->type = NGX_RL_OBJECT_NUMBER;
        return 1;
    }

    return ngx_rl_object_fail(object, "a value must be a string, a number, "
                                      "true, false or null");
}


/* -?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)? */

static int
ngx_rl_object_number(const char *text, size_t len)
{
    size_t       digits;
    const char  *p, *end;

#define ngx_rl_object_digits()                                                \
    for (digits = 0; p < end && *p >= '0' && *p <= '9'; p++) {                \
        digits++;                                                             \
    }

    p = text;
    end = text + len;

    if (p < end && *p == '-') {
        p++;
    }

    if (p < end && *p == '0') {
        p++;

    } else {
        ngx_rl_object_digits();

        if (digits == 0) {
            return 0;
        }
    }

    if (p < end && *p == '.') {
        p++;
        ngx_rl_object_digits();

        if (digits == 0) {
            return 0;
        }
    }

    if (p < end && (*p | 0x20) == 'e') {
        p++;

        if (p < end && (*p == '+' || *p == '-')) {
            p++;
        }

        ngx_rl_object_digits();

        if (digits == 0) {
            return 0;
        }
    }

    return p == end && len > 0;
}
