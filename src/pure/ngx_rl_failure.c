
#include <string.h>

#include "pure/ngx_rl_failure.h"


typedef struct {
    const char       *word;
    ngx_rl_failure_e  failure;
} ngx_rl_failure_word_t;


static ngx_rl_failure_e ngx_rl_failure_match(const char *text, size_t len);


static const ngx_rl_failure_word_t
    ngx_rl_failure_words[] =
{
    { "NOSCRIPT", NGX_RL_NOSCRIPT },
    { "NOAUTH", NGX_RL_AUTH },
    { "WRONGPASS", NGX_RL_AUTH },
    { "NOPERM", NGX_RL_AUTH },
    { "DENIED", NGX_RL_AUTH },
    { "LOADING", NGX_RL_LOADING },
    { "READONLY", NGX_RL_READONLY },
    { "OOM", NGX_RL_OOM },
    { "BUSY", NGX_RL_BUSY },
    { "UNKILLABLE", NGX_RL_BUSY },
    { "TRYAGAIN", NGX_RL_BUSY },
    { "MOVED", NGX_RL_MOVED },
    { "ASK", NGX_RL_MOVED },
    { "CROSSSLOT", NGX_RL_MOVED },
    { "CLUSTERDOWN", NGX_RL_MOVED },
    { "MASTERDOWN", NGX_RL_MASTERDOWN },
    { "NOREPLICAS", NGX_RL_MASTERDOWN },
    { "MISCONF", NGX_RL_MISCONF },
    { "WRONGTYPE", NGX_RL_WRONGTYPE },
    { "CLOCK", NGX_RL_CLOCK }
};


/* error replies that only their text tells apart from other "ERR" ones */

static const ngx_rl_failure_word_t
    ngx_rl_failure_texts[] =
{
    { "ERR max number of clients", NGX_RL_CLIENTS },
    { "ERR invalid password", NGX_RL_AUTH },
    { "ERR Client sent AUTH", NGX_RL_AUTH },
    { "ERR AUTH ", NGX_RL_AUTH },
    { "ERR The user executing the script", NGX_RL_AUTH },
    { "ERR ACL failure in script", NGX_RL_AUTH },
    { "The user executing the script", NGX_RL_AUTH }
};


const char  *const ngx_rl_failure_names[] = {
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


const char  *const ngx_rl_reason_names[] = {
    "storage_unavailable",
    "timeout",
    "circuit_open",
    "invalid_limit"
};


#define ngx_rl_nelts(a)  (sizeof(a) / sizeof((a)[0]))


/*
 * Servers before Redis 7 wrap an error that a script met, with or without the
 * "-" of the reply, behind the place in the script, once or twice:
 * "ERR Error running script (call to f_...): @user_script:1: -OOM ..."
 */

static const char  ngx_rl_failure_wrapped[] =
    "ERR Error running script";


ngx_rl_failure_e
ngx_rl_failure(const char *text, size_t len)
{
    size_t            i, n;
    ngx_rl_failure_e  failure;

    n = sizeof(ngx_rl_failure_wrapped) - 1;

    if (len <= n || memcmp(text, ngx_rl_failure_wrapped, n) != 0) {
        return ngx_rl_failure_match(text, len);
    }

    for (i = n + 2; i < len; i++) {

        if (text[i - 2] != ':' || text[i - 1] != ' ') {
            continue;
        }

        if (text[i] == '-') {
            i++;
        }

        failure = ngx_rl_failure_match(&text[i], len - i);

        if (failure != NGX_RL_ERROR) {
            return failure;
        }
    }

    return NGX_RL_ERROR;
}


static ngx_rl_failure_e
ngx_rl_failure_match(const char *text, size_t len)
{
    size_t                        i, n, first;
    const ngx_rl_failure_word_t  *w;

    for (first = 0; first < len && text[first] != ' '; first++) {
        /* void */
    }

    w = ngx_rl_failure_words;

    for (i = 0; i < ngx_rl_nelts(ngx_rl_failure_words); i++) {
        n = strlen(w[i].word);

        if (n == first && memcmp(w[i].word, text, n) == 0) {
            return w[i].failure;
        }
    }

    w = ngx_rl_failure_texts;

    for (i = 0; i < ngx_rl_nelts(ngx_rl_failure_texts); i++) {
        n = strlen(w[i].word);

        if (n <= len && memcmp(w[i].word, text, n) == 0) {
            return w[i].failure;
        }
    }

    return NGX_RL_ERROR;
}


int
ngx_rl_failure_breaks(ngx_rl_failure_e f)
{
    switch (f) {

    case NGX_RL_OK:
    case NGX_RL_CIRCUIT:
    case NGX_RL_CONFIG:
        return 0;

    case NGX_RL_OVERLOAD:
        /* of this worker, not of the server */
        return 0;

    case NGX_RL_WRONGTYPE:
    case NGX_RL_CLOCK:
    case NGX_RL_ERROR:
        /* of one key: other keys may be fine */
        return 0;

    default:
        return 1;
    }
}


ngx_rl_reason_e
ngx_rl_failure_reason(ngx_rl_failure_e f)
{
    switch (f) {

    case NGX_RL_TIMEOUT:
        return NGX_RL_REASON_TIMEOUT;

    case NGX_RL_CIRCUIT:
        return NGX_RL_REASON_CIRCUIT;

    case NGX_RL_CONFIG:
        return NGX_RL_REASON_LIMIT;

    default:
        return NGX_RL_REASON_STORAGE;
    }
}
