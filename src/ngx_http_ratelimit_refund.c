
#include "ngx_http_ratelimit_refund.h"


/* a refund under way, of which nobody but its reply knows; malloc()ed */

typedef struct {
    ngx_http_ratelimit_link_t   *link;
    ngx_msec_t                   timeout;
    ngx_str_t                    eval;       /* with the text; malloc()ed */
    unsigned                     again:1;    /* that has been sent */
} ngx_http_ratelimit_refund_t;


static ngx_int_t ngx_http_ratelimit_refund_reply(void *data,
    ngx_http_ratelimit_reply_t *reply, ngx_http_ratelimit_failure_e failure);


/*
 * The caller may be gone by the time of the reply.  So both forms are made
 * now: it has to be sent again if the script is not known.
 */

void
ngx_http_ratelimit_refund(ngx_http_ratelimit_link_t *link,
    const ngx_http_ratelimit_script_t *taken, uint64_t times,
    ngx_msec_t timeout)
{
    char                         *bytes, *eval;
    long long                     len, eval_len;
    ngx_str_t                     command;
    ngx_http_ratelimit_slot_t    *slot;
    ngx_http_ratelimit_refund_t  *refund;
    ngx_http_ratelimit_script_t   script;

    script = *taken;

    script.eval = 0;
    len = ngx_http_ratelimit_script_refund(&bytes, &script, times);

    if (len < 0) {
        return;
    }

    script.eval = 1;
    eval_len = ngx_http_ratelimit_script_refund(&eval, &script, times);

    if (eval_len < 0) {
        ngx_http_ratelimit_script_free(bytes);
        return;
    }

    refund = ngx_alloc(sizeof(ngx_http_ratelimit_refund_t), ngx_cycle->log);

    if (refund) {
        refund->link = link;
        refund->timeout = timeout;
        refund->again = 0;
        refund->eval.data = (u_char *) eval;
        refund->eval.len = eval_len;

        command.data = (u_char *) bytes;
        command.len = len;

        if (ngx_http_ratelimit_link_send(link, &command, timeout,
                                         ngx_http_ratelimit_refund_reply,
                                         refund, &slot)
            == NGX_HTTP_RATELIMIT_OK)
        {
            ngx_http_ratelimit_link_refund(link);
            ngx_http_ratelimit_redis_quiet(slot);

            /* the reply frees the rest */
            ngx_http_ratelimit_script_free(bytes);
            return;
        }

        ngx_free(refund);
    }

    ngx_http_ratelimit_script_free(eval);
    ngx_http_ratelimit_script_free(bytes);
}


static ngx_int_t
ngx_http_ratelimit_refund_reply(void *data,
    ngx_http_ratelimit_reply_t *reply, ngx_http_ratelimit_failure_e failure)
{
    ngx_http_ratelimit_refund_t *refund = data;

    ngx_http_ratelimit_slot_t  *slot;

    if (failure == NGX_HTTP_RATELIMIT_OK && reply->type == REDIS_REPLY_ERROR) {
        failure = ngx_http_ratelimit_failure(reply->str, reply->len);
    }

    if (failure == NGX_HTTP_RATELIMIT_NOSCRIPT && !refund->again) {
        ngx_http_ratelimit_link_reload(refund->link);

        refund->again = 1;
        failure = ngx_http_ratelimit_link_send(refund->link, &refund->eval,
                                               refund->timeout,
                                               ngx_http_ratelimit_refund_reply,
                                               refund, &slot);

        if (failure == NGX_HTTP_RATELIMIT_OK) {
            ngx_http_ratelimit_redis_quiet(slot);
            return NGX_OK;
        }
    }

    if (failure != NGX_HTTP_RATELIMIT_OK) {
        ngx_http_ratelimit_link_failed(refund->link, failure, reply);

        ngx_log_error(NGX_LOG_INFO, ngx_cycle->log, 0, "a refund failed: %s",
                      ngx_http_ratelimit_failure_name(failure));
    }

    ngx_http_ratelimit_script_free((char *) refund->eval.data);
    ngx_free(refund);

    return NGX_OK;
}


void
ngx_http_ratelimit_refund_last(ngx_http_ratelimit_link_t *link,
    const ngx_http_ratelimit_script_t *taken, uint64_t times)
{
    char                         *bytes;
    long long                     len;
    ngx_str_t                     command;
    ngx_http_ratelimit_slot_t    *slot;
    ngx_http_ratelimit_script_t   script;

    script = *taken;
    script.eval = 0;

    len = ngx_http_ratelimit_script_refund(&bytes, &script, times);

    if (len < 0) {
        return;
    }

    command.data = (u_char *) bytes;
    command.len = len;

    (void) ngx_http_ratelimit_link_send(link, &command, 1000, NULL, NULL,
                                        &slot);
    ngx_http_ratelimit_script_free(bytes);
}
