
/*
 * Which failure an error reply is, in the words of servers old and new.
 */

#include "tap.h"

#include "pure/ngx_rl_failure.h"


/* a script's error as servers before Redis 7 wrap it */
#define WRAPPED                                                               \
    "ERR Error running script (call to "                                      \
    "f_8c4b1e3a2f5d6c7b8a9e0f1d2c3b4a5968778695): "

/* what Redis 7 appends to it instead */
#define APPENDED                                                              \
    " script: 8c4b1e3a2f5d6c7b8a9e0f1d2c3b4a5968778695, on @user_script:65."


static const struct {
    ngx_rl_failure_e   failure;
    const char                    *text;
} errors[] = {

    { NGX_RL_NOSCRIPT,
      "NOSCRIPT No matching script. Please use EVAL." },
    { NGX_RL_NOSCRIPT, "NOSCRIPT No matching script." },
    { NGX_RL_NOSCRIPT, "NOSCRIPT" },

    { NGX_RL_AUTH, "NOAUTH Authentication required." },
    { NGX_RL_AUTH,
      "WRONGPASS invalid username-password pair or user is disabled." },
    { NGX_RL_AUTH,
      "NOPERM this user has no permissions to run the 'evalsha' command" },
    { NGX_RL_AUTH,
      "NOPERM ACL failure in script: User bob has no permissions to run the "
      "'hmget' command" APPENDED },
    { NGX_RL_AUTH, "ERR invalid password" },
    { NGX_RL_AUTH, "ERR Client sent AUTH, but no password is set" },
    { NGX_RL_AUTH,
      "ERR AUTH <password> called without any password configured for the "
      "default user. Are you sure your configuration is correct?" },
    { NGX_RL_AUTH,
      "ERR The user executing the script can't run this command or subcommand"
      APPENDED },
    { NGX_RL_AUTH,
      WRAPPED "@user_script:21: @user_script: 21: The user executing the "
      "script can't run this command or subcommand" },
    { NGX_RL_AUTH,
      WRAPPED "@user_script:21: @user_script: 21: -NOPERM The user executing "
      "the script can't run this command or subcommand" },
    { NGX_RL_AUTH,
      "DENIED Redis is running in protected mode because protected mode is "
      "enabled and no password is set for the default user." },
    { NGX_RL_AUTH,
      "DENIED Running in protected mode because protected mode is enabled and "
      "no password is set for the default user." },

    { NGX_RL_LOADING,
      "LOADING Redis is loading the dataset in memory" },
    { NGX_RL_LOADING,
      "LOADING Valkey is loading the dataset in memory" },

    { NGX_RL_READONLY,
      "READONLY You can't write against a read only replica." },
    { NGX_RL_READONLY,
      "READONLY You can't write against a read only replica." APPENDED },
    { NGX_RL_READONLY,
      "READONLY You can't write against a read only slave." },
    { NGX_RL_READONLY,
      WRAPPED "@user_script: 1: -READONLY You can't write against a read only "
      "replica." },
    { NGX_RL_READONLY,
      WRAPPED "@user_script:65: @user_script: 65: -READONLY You can't write "
      "against a read only replica." },
    { NGX_RL_READONLY,
      "ERR Error running script (call to d8f2fad9f8e86a53d2a6ebd960b33c4972cac"
      "c37): @user_script:2: -READONLY You can't write against a read only "
      "replica." },

    { NGX_RL_OOM,
      "OOM command not allowed when used memory > 'maxmemory'." },
    { NGX_RL_OOM,
      "OOM command not allowed when used memory > 'maxmemory'." APPENDED },
    { NGX_RL_OOM,
      WRAPPED "@user_script:65: @user_script: 65: -OOM command not allowed "
      "when used memory > 'maxmemory'." },

    { NGX_RL_BUSY,
      "BUSY Redis is busy running a script. You can only call SCRIPT KILL or "
      "SHUTDOWN NOSAVE." },
    { NGX_RL_BUSY,
      "BUSY Valkey is busy running a script. You can only call SCRIPT KILL or "
      "SHUTDOWN NOSAVE." },
    { NGX_RL_BUSY,
      "UNKILLABLE Sorry the script already executed write commands against the "
      "dataset." },
    { NGX_RL_BUSY,
      "TRYAGAIN Multiple keys request during rehashing of slot" },

    { NGX_RL_MOVED, "MOVED 3999 127.0.0.1:6381" },
    { NGX_RL_MOVED, "MOVED 3999 :6381" },
    { NGX_RL_MOVED, "ASK 3999 127.0.0.1:6381" },
    { NGX_RL_MOVED,
      "CROSSSLOT Keys in request don't hash to the same slot" },
    { NGX_RL_MOVED, "CLUSTERDOWN The cluster is down" },
    { NGX_RL_MOVED, "CLUSTERDOWN Hash slot not served" },

    { NGX_RL_MASTERDOWN,
      "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set "
      "to 'no'." },
    { NGX_RL_MASTERDOWN,
      "NOREPLICAS Not enough good replicas to write." },
    { NGX_RL_MASTERDOWN,
      WRAPPED "@user_script:65: @user_script: 65: -NOREPLICAS Not enough good "
      "replicas to write." },

    { NGX_RL_MISCONF,
      "MISCONF Redis is configured to save RDB snapshots, but it's currently "
      "unable to persist to disk." },
    { NGX_RL_MISCONF,
      "MISCONF Valkey is configured to save RDB snapshots, but it's currently "
      "unable to persist to disk." },
    { NGX_RL_MISCONF,
      "MISCONF Errors writing to the AOF file: No space left on device" },
    { NGX_RL_MISCONF,
      WRAPPED "@user_script:65: @user_script: 65: -MISCONF Errors writing to "
      "the AOF file: No space left on device" },

    { NGX_RL_CLIENTS, "ERR max number of clients reached" },
    { NGX_RL_CLIENTS,
      "ERR max number of clients + cluster connections reached" },

    { NGX_RL_WRONGTYPE,
      "WRONGTYPE Operation against a key holding the wrong kind of value" },
    { NGX_RL_WRONGTYPE,
      "WRONGTYPE Operation against a key holding the wrong kind of value"
      APPENDED },
    { NGX_RL_WRONGTYPE,
      WRAPPED "@user_script:21: WRONGTYPE Operation against a key holding the "
      "wrong kind of value" },

    { NGX_RL_ERROR, "" },
    { NGX_RL_ERROR, " " },
    { NGX_RL_ERROR, "E" },
    { NGX_RL_ERROR, "ERR" },
    { NGX_RL_ERROR, "ERR unknown command 'EVALSHA'" },
    { NGX_RL_ERROR, "ERR value is not an integer" },
    { NGX_RL_ERROR, WRAPPED },
    { NGX_RL_ERROR, "ERR Error running script" },
    { NGX_RL_ERROR, "ERR Error running script: -" },
    { NGX_RL_ERROR, "ERR Error running script: " },
    { NGX_RL_ERROR,
      WRAPPED "@user_script:1: user_script:1: attempt to perform arithmetic on "
      "a nil value" },

    /* the first word, not one like it, and not another one */
    { NGX_RL_ERROR, "OOMX command" },
    { NGX_RL_ERROR, "OO command" },
    { NGX_RL_ERROR, "BUSYKEY Target key name already exists." },
    { NGX_RL_ERROR, "BUSYGROUP Consumer Group name exists" },
    { NGX_RL_ERROR, "ASKING is not a word" },
    { NGX_RL_ERROR, "oom command" },
    { NGX_RL_ERROR, " OOM command" },
    { NGX_RL_ERROR, "ERR OOM" },
    { NGX_RL_ERROR, "ERR wrong: -OOM command" },
    { NGX_RL_ERROR, "XERR max number of clients reached" }
};


static const char *
reason_of(ngx_rl_failure_e f)
{
    return ngx_rl_reason_names[ngx_rl_failure_reason(f)];
}


/* all that is not in this list says that the server is in trouble */

static void
test_breaks(void)
{
    int  f, g, harmless;

    static const ngx_rl_failure_e  others[] = {
        NGX_RL_OK,
        NGX_RL_OVERLOAD,
        NGX_RL_WRONGTYPE,
        NGX_RL_CLOCK,
        NGX_RL_ERROR,
        NGX_RL_CIRCUIT,
        NGX_RL_CONFIG
    };

    for (f = 0; f < NGX_RL_FAILURES; f++) {

        harmless = 0;

        for (g = 0; g < (int) (sizeof(others) / sizeof(others[0])); g++) {
            harmless |= others[g] == (ngx_rl_failure_e) f;
        }

        ok((ngx_rl_failure_breaks(f) == 0) == harmless,
           "%s %s the breaker", ngx_rl_failure_names[f],
           harmless ? "does not count for" : "counts for");
    }
}


int
main(void)
{
    int     f, g;
    char   *copy;
    size_t  i, len;

    ngx_rl_failure_e  got;

    for (i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {

        /* a copy of exactly its length: a byte more would be seen */

        len = strlen(errors[i].text);
        copy = malloc(len ? len : 1);
        memcpy(copy, errors[i].text, len);

        got = ngx_rl_failure(copy, len);

        if (!ok(got == errors[i].failure, "%s: \"%s\"",
                ngx_rl_failure_names[errors[i].failure], errors[i].text))
        {
            diag("got %s", ngx_rl_failure_names[got]);
        }

        free(copy);
    }

    /* no beginning of a text is read past its end */

    for (i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        for (len = 0; len < strlen(errors[i].text); len++) {
            copy = malloc(len ? len : 1);
            memcpy(copy, errors[i].text, len);
            (void) ngx_rl_failure(copy, len);
            free(copy);
        }
    }

    ok(1, "texts cut off anywhere do no harm");

    /* names are labels, reasons are headers */

    for (f = 0; f < NGX_RL_FAILURES; f++) {
        len = strlen(ngx_rl_failure_names[f]);
        ok(len > 0 && strspn(ngx_rl_failure_names[f],
                             "abcdefghijklmnopqrstuvwxyz_") == len,
           "%s is one word", ngx_rl_failure_names[f]);

        for (g = 0; g < f; g++) {
            if (strcmp(ngx_rl_failure_names[f], ngx_rl_failure_names[g]) == 0) {
                ok(0, "%s is the name of one failure", ngx_rl_failure_names[f]);
            }
        }
    }

    is_text(ngx_rl_failure_names[NGX_RL_CONFIG],
            "config", "the last name belongs to the last failure");
    is_text(ngx_rl_failure_names[NGX_RL_CIRCUIT],
            "circuit_open", "the last but one to its own");
    is_text(ngx_rl_failure_names[NGX_RL_ERROR],
            "error", "and the one before that, too");

    is_text(ngx_rl_failure_names[NGX_RL_TLS],
            "tls", "a failed handshake has one, too");

    is_text(reason_of(NGX_RL_TLS), "storage_unavailable",
            "of which a client learns nothing");
    is_text(reason_of(NGX_RL_TIMEOUT), "timeout",
            "a client learns of a timeout");
    is_text(reason_of(NGX_RL_CIRCUIT), "circuit_open", "of an open breaker");
    is_text(reason_of(NGX_RL_CONFIG), "invalid_limit",
            "and of an invalid limit");

    for (f = NGX_RL_REFUSED; f < NGX_RL_CIRCUIT; f++) {
        is_text(reason_of(f), "storage_unavailable",
                "of all else only that the storage is unavailable");
    }

    test_breaks();

    return tap_done();
}
