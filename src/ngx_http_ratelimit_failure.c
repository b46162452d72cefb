
#include <string.h>

#include "ngx_http_ratelimit_failure.h"


typedef struct {
    const char                    *word;
    ngx_http_ratelimit_failure_e   failure;
} ngx_http_ratelimit_failure_word_t;


static ngx_http_ratelimit_failure_e ngx_http_ratelimit_failure_match(
    const char *text, size_t len);


static const ngx_http_ratelimit_failure_word_t
    ngx_http_ratelimit_failure_words[] =
{
    { "NOSCRIPT", NGX_HTTP_RATELIMIT_NOSCRIPT },
    { "NOAUTH", NGX_HTTP_RATELIMIT_AUTH },
    { "WRONGPASS", NGX_HTTP_RATELIMIT_AUTH },
    { "NOPERM", NGX_HTTP_RATELIMIT_AUTH },
    { "DENIED", NGX_HTTP_RATELIMIT_AUTH },
    { "LOADING", NGX_HTTP_RATELIMIT_LOADING },
    { "READONLY", NGX_HTTP_RATELIMIT_READONLY },
    { "OOM", NGX_HTTP_RATELIMIT_OOM },
    { "BUSY", NGX_HTTP_RATELIMIT_BUSY },
    { "UNKILLABLE", NGX_HTTP_RATELIMIT_BUSY },
    { "TRYAGAIN", NGX_HTTP_RATELIMIT_BUSY },
    { "MOVED", NGX_HTTP_RATELIMIT_MOVED },
    { "ASK", NGX_HTTP_RATELIMIT_MOVED },
    { "CROSSSLOT", NGX_HTTP_RATELIMIT_MOVED },
    { "CLUSTERDOWN", NGX_HTTP_RATELIMIT_MOVED },
    { "MASTERDOWN", NGX_HTTP_RATELIMIT_MASTERDOWN },
    { "NOREPLICAS", NGX_HTTP_RATELIMIT_MASTERDOWN },
    { "MISCONF", NGX_HTTP_RATELIMIT_MISCONF },
    { "WRONGTYPE", NGX_HTTP_RATELIMIT_WRONGTYPE },
    { "CLOCK", NGX_HTTP_RATELIMIT_CLOCK }
};


/* error replies that only their text tells apart from other "ERR" ones */

static const ngx_http_ratelimit_failure_word_t
    ngx_http_ratelimit_failure_texts[] =
{
    { "ERR max number of clients", NGX_HTTP_RATELIMIT_CLIENTS },
    { "ERR invalid password", NGX_HTTP_RATELIMIT_AUTH },
    { "ERR Client sent AUTH", NGX_HTTP_RATELIMIT_AUTH },
    { "ERR AUTH ", NGX_HTTP_RATELIMIT_AUTH },
    { "ERR The user executing the script", NGX_HTTP_RATELIMIT_AUTH },
    { "ERR ACL failure in script", NGX_HTTP_RATELIMIT_AUTH },
    { "The user executing the script", NGX_HTTP_RATELIMIT_AUTH }
};


static const char  *ngx_http_ratelimit_failure_names[] = {
    "ok",
    "timeout",
    "refused",
    "tls",
    "closed",
    "protocol",
    "overload",
    "auth",
    "loading",
    "readonly",
    "oom",
    "busy",
    "noscript",
    "moved",
    "masterdown",
    "misconf",
    "clients",
    "wrongtype",
    "clock",
    "error",
    "circuit_open",
    "config"
};


static const char  *ngx_http_ratelimit_reason_names[] = {
    "storage_unavailable",
    "timeout",
    "circuit_open",
    "invalid_limit"
};


#define ngx_http_ratelimit_nelts(a)  (sizeof(a) / sizeof((a)[0]))


/*
 * Servers before Redis 7 wrap an error that a script met, with or without the
 * "-" of the reply, behind the place in the script, once or twice:
 * "ERR Error running script (call to f_...): @user_script:1: -OOM ..."
 */

static const char  ngx_http_ratelimit_failure_wrapped[] =
    "ERR Error running script";


ngx_http_ratelimit_failure_e
ngx_http_ratelimit_failure(const char *text, size_t len)
{
    size_t                        i, n;
    ngx_http_ratelimit_failure_e  failure;

    n = sizeof(ngx_http_ratelimit_failure_wrapped) - 1;

    if (len <= n || memcmp(text, ngx_http_ratelimit_failure_wrapped, n) != 0) {
        return ngx_http_ratelimit_failure_match(text, len);
    }

    for (i = n + 2; i < len; i++) {

        if (text[i - 2] != ':' || text[i - 1] != ' ') {
            continue;
        }

        if (text[i] == '-') {
            i++;
        }

        failure = ngx_http_ratelimit_failure_match(&text[i], len - i);

        if (failure != NGX_HTTP_RATELIMIT_ERROR) {
            return failure;
        }
    }

    return NGX_HTTP_RATELIMIT_ERROR;
}


static ngx_http_ratelimit_failure_e
ngx_http_ratelimit_failure_match(const char *text, size_t len)
{
    size_t                                    i, n, first;
    const ngx_http_ratelimit_failure_word_t  *w;

    for (first = 0; first < len && text[first] != ' '; first++) {
        /* void */
    }

    w = ngx_http_ratelimit_failure_words;

    for (i = 0; i < ngx_http_ratelimit_nelts(ngx_http_ratelimit_failure_words);
         i++)
    {
        n = strlen(w[i].word);

        if (n == first && memcmp(w[i].word, text, n) == 0) {
            return w[i].failure;
        }
    }

    w = ngx_http_ratelimit_failure_texts;

    for (i = 0; i < ngx_http_ratelimit_nelts(ngx_http_ratelimit_failure_texts);
         i++)
    {
        n = strlen(w[i].word);

        if (n <= len && memcmp(w[i].word, text, n) == 0) {
            return w[i].failure;
        }
    }

    return NGX_HTTP_RATELIMIT_ERROR;
}


const char *
ngx_http_ratelimit_failure_name(ngx_http_ratelimit_failure_e f)
{
    return ngx_http_ratelimit_failure_names[f];
}


int
ngx_http_ratelimit_failure_breaks(ngx_http_ratelimit_failure_e f)
{
    switch (f) {

    case NGX_HTTP_RATELIMIT_OK:
    case NGX_HTTP_RATELIMIT_CIRCUIT:
    case NGX_HTTP_RATELIMIT_CONFIG:
        return 0;

    case NGX_HTTP_RATELIMIT_OVERLOAD:
        /* of this worker, not of the server */
        return 0;

    case NGX_HTTP_RATELIMIT_WRONGTYPE:
    case NGX_HTTP_RATELIMIT_CLOCK:
    case NGX_HTTP_RATELIMIT_ERROR:
        /* of one key, as far as is known: others are well served */
        return 0;

    default:
        return 1;
    }
}


ngx_http_ratelimit_reason_e
ngx_http_ratelimit_failure_reason(ngx_http_ratelimit_failure_e f)
{
    switch (f) {

    case NGX_HTTP_RATELIMIT_TIMEOUT:
        return NGX_HTTP_RATELIMIT_REASON_TIMEOUT;

    case NGX_HTTP_RATELIMIT_CIRCUIT:
        return NGX_HTTP_RATELIMIT_REASON_CIRCUIT;

    case NGX_HTTP_RATELIMIT_CONFIG:
        return NGX_HTTP_RATELIMIT_REASON_LIMIT;

    default:
        return NGX_HTTP_RATELIMIT_REASON_STORAGE;
    }
}


const char *
ngx_http_ratelimit_reason_name(ngx_http_ratelimit_reason_e r)
{
    return ngx_http_ratelimit_reason_names[r];
}
