
/*
 * A new connection is first secured by TLS, if configured.  Then it sends its
 * credentials and all commands that must come first.  When all of them are
 * answered, the connection is READY, and commands that have been waiting are
 * sent.
 *
 * During the TLS handshake nginx's own event handlers are set.  Nothing is
 * sent before the certificate of the server has been verified.
 */


#include "redis/ngx_rl_handshake.h"
#include "pure/ngx_rl_text.h"


#define NGX_RL_HANDSHAKE_TEXT  160              /* of an error */


static void ngx_rl_handshake_host(ngx_rl_handshake_t *handshake,
    ngx_str_t *host);
static ngx_int_t ngx_rl_handshake_send(ngx_rl_handshake_t *handshake,
    ngx_rl_failure_e *failure);
static ngx_int_t ngx_rl_handshake_error(ngx_rl_handshake_t *handshake,
    ngx_rl_handshake_step_t *step, ngx_rl_reply_t *reply,
    ngx_rl_failure_e *failure);


ngx_int_t
ngx_rl_handshake_start(ngx_rl_handshake_t *handshake,
    void (*handler)(ngx_connection_t *c), ngx_rl_failure_e *failure)
{
    ngx_str_t  host;

    handshake->steps = 0;

    if (handshake->conf->tls == NULL) {
        return ngx_rl_handshake_send(handshake, failure);
    }

    ngx_rl_handshake_host(handshake, &host);

    if (ngx_rl_tls_start(handshake->conf->tls, handshake->pipeline->c, &host,
                         &handshake->session, handler)
        == NGX_AGAIN)
    {
        return NGX_AGAIN;
    }

    return ngx_rl_handshake_secured(handshake, failure);
}


static void
ngx_rl_handshake_host(ngx_rl_handshake_t *handshake, ngx_str_t *host)
{
    if (handshake->conf->host.len) {
        *host = handshake->conf->host;
        return;
    }

    *host = ngx_rl_addresses_current(handshake->addresses)->name;

    while (host->len && host->data[--host->len] != ':') {
        /* void */
    }
}


ngx_int_t
ngx_rl_handshake_secured(ngx_rl_handshake_t *handshake,
    ngx_rl_failure_e *failure)
{
    ngx_str_t    host;
    const char  *why;

    ngx_rl_handshake_host(handshake, &host);

    if (ngx_rl_tls_verified(handshake->conf->tls, handshake->pipeline->c,
                            &host, &why)
        == NGX_OK)
    {
        return ngx_rl_handshake_send(handshake, failure);
    }

    ngx_rl_handshake_insecure(handshake, why);
    *failure = NGX_RL_TLS;

    return NGX_ERROR;
}


void
ngx_rl_handshake_insecure(ngx_rl_handshake_t *handshake, const char *why)
{
    ngx_rl_pipeline_t  *pipeline;

    pipeline = handshake->pipeline;

    if (pipeline->events->may_log(pipeline->owner, NGX_RL_TLS)) {
        ngx_log_error(NGX_LOG_ERR, pipeline->log, 0,
                      "redis TLS handshake with %V failed: %s",
                      &ngx_rl_addresses_current(handshake->addresses)->name,
                      why);
    }
}


/* sends all steps up to the next one that must be answered first */

static ngx_int_t
ngx_rl_handshake_send(ngx_rl_handshake_t *handshake, ngx_rl_failure_e *failure)
{
    ngx_uint_t                i;
    ngx_rl_handshake_step_t  *step;

    step = handshake->conf->handshake.elts;

    for (i = handshake->steps; i < handshake->conf->handshake.nelts; i++) {

        if (ngx_rl_pipeline_append(handshake->pipeline, &step[i].command)
            != NGX_OK)
        {
            *failure = NGX_RL_OVERLOAD;
            return NGX_ERROR;
        }

        if (step[i].wait) {
            break;
        }
    }

    return NGX_OK;
}


ngx_int_t
ngx_rl_handshake_reply(ngx_rl_handshake_t *handshake,
    ngx_rl_reply_t *reply, ngx_rl_failure_e *failure)
{
    ngx_rl_pipeline_t        *pipeline;
    ngx_rl_handshake_step_t  *step;

    pipeline = handshake->pipeline;

    step = handshake->conf->handshake.elts;
    step += handshake->steps++;

    if (reply->type == REDIS_REPLY_ERROR) {

        if (ngx_rl_handshake_error(handshake, step, reply, failure) != NGX_OK) {
            return NGX_ERROR;
        }

    } else if (step->tag) {

        *failure = pipeline->events->step(pipeline->owner, step->tag, reply);

        if (*failure != NGX_RL_OK) {
            return NGX_ERROR;
        }
    }

    if (step->wait) {
        return ngx_rl_handshake_send(handshake, failure) == NGX_OK
               ? NGX_AGAIN : NGX_ERROR;
    }

    if (handshake->steps < handshake->conf->handshake.nelts) {
        return NGX_AGAIN;
    }

    handshake->known = 1;

    return NGX_OK;
}


/*
 * A server that cannot be used at all answers every command with an error
 * (LOADING, NOAUTH, too many clients).  A server that only lacks or forbids an
 * optional command can be used.
 */

static ngx_int_t
ngx_rl_handshake_error(ngx_rl_handshake_t *handshake,
    ngx_rl_handshake_step_t *step, ngx_rl_reply_t *reply,
    ngx_rl_failure_e *failure)
{
    size_t              len;
    u_char              text[ngx_rl_escape_size(NGX_RL_HANDSHAKE_TEXT)];
    ngx_uint_t          noperm;
    ngx_rl_pipeline_t  *pipeline;

    pipeline = handshake->pipeline;

    if (step->moved_ok && ngx_rl_handshake_moved_ok(reply)) {
        return NGX_OK;
    }

    *failure = ngx_rl_failure(reply->str, reply->len);

    len = ngx_min(reply->len, NGX_RL_HANDSHAKE_TEXT);

    /* an error about an unknown command may repeat its arguments */

    if (step->secret && *failure == NGX_RL_ERROR) {
        len = ngx_min(len, strcspn(reply->str, " "));
    }

    len = ngx_rl_escape(text, reply->str, len);

    noperm = ngx_strncmp(reply->str, "NOPERM", 6) == 0;

    if (!step->required && (*failure == NGX_RL_ERROR || noperm)) {
        ngx_log_error(NGX_LOG_INFO, pipeline->log, 0,
                      "redis refused %V, which is optional: \"%*s\"",
                      &step->name, len, text);
        return NGX_OK;
    }

    if (!pipeline->events->may_log(pipeline->owner, *failure)) {
        return NGX_ERROR;
    }

    /* explains mismatches between the configuration and the server */

    if ((ngx_strncmp(reply->str, "MOVED ", 6) == 0
         || ngx_strncmp(reply->str, "CLUSTERDOWN ", 12) == 0)
        && !handshake->conf->node)
    {
        ngx_log_error(NGX_LOG_ERR, pipeline->log, 0,
                      "redis %V is a node of a cluster: write "
                      "\"ratelimit_shards cluster ...\"",
                      &handshake->conf->name);

    } else if (ngx_strstr(reply->str, "cluster support disabled")) {
        ngx_log_error(NGX_LOG_ERR, pipeline->log, 0,
                      "redis %V is not in cluster mode: write "
                      "\"ratelimit_shards\" without \"cluster\"",
                      &handshake->conf->name);

    } else {
        ngx_log_error(NGX_LOG_ERR, pipeline->log, 0,
                      "redis refused %V: \"%*s\"%s", &step->name, len, text,
                      noperm ? ": allow it in the ACL of this user" : "");
    }

    return NGX_ERROR;
}


ngx_uint_t
ngx_rl_handshake_moved_ok(ngx_rl_reply_t *reply)
{
    return ngx_rl_failure(reply->str, reply->len) == NGX_RL_MOVED
           && ngx_strncmp(reply->str, "CLUSTERDOWN The", 15) != 0;
}


/* a server that only accepts TLS closes plain connections silently */

const char *
ngx_rl_handshake_cure(ngx_rl_handshake_t *handshake)
{
    return handshake->steps == 0 && handshake->conf->tls == NULL
           && !handshake->known
           ? ": does it expect TLS?" : "";
}
