
/*
 * Tokens go back to where they were taken.
 */


#ifndef _NGX_HTTP_RATELIMIT_REFUND_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_REFUND_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_ratelimit_link.h"
#include "ngx_http_ratelimit_script.h"


void ngx_http_ratelimit_refund_init(void);

/* sends what has not been sent; nothing is done about the replies */
void ngx_http_ratelimit_refund_exit(void);

/*
 * Gives back tokens, with others of the same event-loop turn.  What it points
 * to is copied.  Nobody waits for that: if it fails, tokens stay taken that
 * come back with time.
 */
void ngx_http_ratelimit_refund(ngx_http_ratelimit_link_t *link,
    const ngx_http_ratelimit_refund_t *refund, ngx_msec_t timeout);


#endif /* _NGX_HTTP_RATELIMIT_REFUND_H_INCLUDED_ */
