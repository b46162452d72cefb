
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "pure/ngx_rl_resp.h"
#include "pure/ngx_rl_text.h"


#define NGX_RL_RESP_SIZE    1024
#define NGX_RL_RESP_PREFIX  (NGX_RL_NUMBER_LEN + 3)


static int ngx_rl_resp_reserve(ngx_rl_resp_t *resp, size_t size);


void
ngx_rl_resp_begin(ngx_rl_resp_t *resp)
{
    resp->pos = resp->start;
    resp->n = 0;
    resp->failed = 0;

    if (ngx_rl_resp_reserve(resp, NGX_RL_RESP_PREFIX)) {
        resp->pos += NGX_RL_RESP_PREFIX;
    }
}


void
ngx_rl_resp_word(ngx_rl_resp_t *resp, const void *data, size_t len)
{
    char   *p, *digits;
    char    buf[NGX_RL_NUMBER_LEN];
    size_t  n;

    if (!ngx_rl_resp_reserve(resp, NGX_RL_RESP_PREFIX + len + 2)) {
        return;
    }

    digits = ngx_rl_number(buf + sizeof(buf), len);
    n = buf + sizeof(buf) - digits;

    p = resp->pos;

    *p++ = '$';
    memcpy(p, digits, n);
    p += n;

    *p++ = '\r';
    *p++ = '\n';

    memcpy(p, data, len);
    p += len;

    *p++ = '\r';
    *p++ = '\n';

    resp->pos = p;
    resp->n++;
}


void
ngx_rl_resp_text(ngx_rl_resp_t *resp, const char *text)
{
    ngx_rl_resp_word(resp, text, strlen(text));
}


void
ngx_rl_resp_number(ngx_rl_resp_t *resp, uint64_t n)
{
    char  *digits;
    char   buf[NGX_RL_NUMBER_LEN];

    digits = ngx_rl_number(buf + sizeof(buf), n);

    ngx_rl_resp_word(resp, digits, buf + sizeof(buf) - digits);
}


ssize_t
ngx_rl_resp_end(ngx_rl_resp_t *resp, char **command)
{
    char  *p;

    if (resp->failed) {
        return -1;
    }

    p = resp->start + NGX_RL_RESP_PREFIX;

    *--p = '\n';
    *--p = '\r';
    p = ngx_rl_number(p, resp->n);
    *--p = '*';

    *command = p;

    return resp->pos - p;
}


ssize_t
ngx_rl_resp_detach(ngx_rl_resp_t *resp, char **command)
{
    char    *p;
    ssize_t  len;

    len = ngx_rl_resp_end(resp, &p);

    if (len < 0) {
        ngx_rl_resp_close(resp);
        return -1;
    }

    /* the command must start at the beginning of its memory */

    *command = memmove(resp->start, p, len);

    memset(resp, 0, sizeof(ngx_rl_resp_t));

    return len;
}


void
ngx_rl_resp_close(ngx_rl_resp_t *resp)
{
    free(resp->start);

    memset(resp, 0, sizeof(ngx_rl_resp_t));
}


ssize_t
ngx_rl_resp_command(char **command, ...)
{
    va_list        words;
    const char    *word;
    ngx_rl_resp_t  resp;

    memset(&resp, 0, sizeof(ngx_rl_resp_t));

    ngx_rl_resp_begin(&resp);

    va_start(words, command);

    for ( ;; ) {
        word = va_arg(words, const char *);

        if (word == NULL) {
            break;
        }

        ngx_rl_resp_text(&resp, word);
    }

    va_end(words);

    return ngx_rl_resp_detach(&resp, command);
}


void
ngx_rl_resp_free(char *command)
{
    free(command);
}


/* 0: no memory, and nothing more is written to this command */

static int
ngx_rl_resp_reserve(ngx_rl_resp_t *resp, size_t size)
{
    char   *start;
    size_t  used, room;

    if (resp->failed) {
        return 0;
    }

    if (size <= (size_t) (resp->end - resp->pos)) {
        return 1;
    }

    used = resp->pos - resp->start;
    room = resp->end - resp->start;
    room = room ? room : NGX_RL_RESP_SIZE;

    while (room < used + size) {
        room *= 2;
    }

    start = realloc(resp->start, room);

    if (start == NULL) {
        resp->failed = 1;
        return 0;
    }

    resp->start = start;
    resp->pos = start + used;
    resp->end = start + room;

    return 1;
}
