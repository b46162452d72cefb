
#include <string.h>

#include "pure/ngx_rl_failure.h"


static ngx_rl_failure_e ngx_rl_failure_match(const char *text, size_t len);


/* error replies begin with one of these words or texts */

static const struct {
    const char       *text;
    ngx_rl_failure_e  failure;
} ngx_rl_failure_texts[] = {
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
    { "CLOCK", NGX_RL_CLOCK },

    /* only the text distinguishes these from other "ERR" replies */

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
 * Servers before Redis 7 wrap an error of a script in a message with the
 * position in the script, once or twice, with or without the "-" of the reply:
 * "ERR Error running script (call to f_...): @user_script:1: -OOM ...".
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
    size_t       i, n, first;
    const char  *s;

    for (first = 0; first < len && text[first] != ' '; first++) {
        /* void */
    }

    for (i = 0; i < ngx_rl_nelts(ngx_rl_failure_texts); i++) {
        s = ngx_rl_failure_texts[i].text;
        n = strlen(s);

        /* at least the whole first word */

        if (n >= first && n <= len && memcmp(s, text, n) == 0) {
            return ngx_rl_failure_texts[i].failure;
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
