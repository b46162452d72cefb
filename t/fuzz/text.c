
/*
 * Escaping for the log and for JSON: any bytes become printable ASCII, of a
 * bounded length, and different strings stay different in JSON.
 */

#include "fuzz.h"

#include "pure/ngx_rl_text.h"


static size_t
unquoted(char *dst, const unsigned char *src, const unsigned char *end)
{
    size_t    n;
    unsigned  byte;

    for (n = 0; src < end; n++) {

        if (*src == '\\') {
            dst[n] = (char) src[1];
            src += 2;

        } else if (*src == '%') {
            check(sscanf((const char *) src + 1, "%2x", &byte) == 1);
            dst[n] = (char) byte;
            src += 3;

        } else {
            dst[n] = (char) *src++;
        }
    }

    return n;
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char           *text, *back;
    size_t          len, n, i;
    input_t         in;
    unsigned char  *out, *end;

    in.pos = data;
    in.end = data + size;

    text = rest(&in, &len);

    out = malloc(ngx_rl_escape_size(len) + 1);
    check(out != NULL);
    n = ngx_rl_escape(out, text, len);
    check(n <= ngx_rl_escape_size(len));

    for (i = 0; i < n; i++) {
        check(out[i] >= 0x20 && out[i] < 0x7f && out[i] != '"');
    }

    free(out);

    out = malloc(ngx_rl_quote_size(len) + 1);
    back = malloc(ngx_rl_quote_size(len) + 1);
    check(out != NULL && back != NULL);

    end = ngx_rl_quote(out, text, len);
    n = end - out;
    check(n >= 2 && n <= ngx_rl_quote_size(len));
    check(out[0] == '"' && end[-1] == '"');

    for (i = 0; i < n; i++) {
        check(out[i] >= 0x20 && out[i] < 0x7f);
    }

    *end = '\0';
    n = unquoted(back, out + 1, end - 1);
    check(n == len && memcmp(back, text, len) == 0);

    free(back);
    free(out);
    free(text);

    return 0;
}
