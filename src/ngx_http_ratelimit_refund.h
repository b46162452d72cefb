
/*
 * Tokens go back to where they were taken.
 */


#ifndef _NGX_HTTP_RATELIMIT_REFUND_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_REFUND_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_ratelimit_link.h"
#include "ngx_http_ratelimit_script.h"


/*
 * Gives back what a call has taken for so many requests.  Nobody waits for
 * that: if it fails, tokens stay taken that come back with time.
 */
void ngx_http_ratelimit_refund(ngx_http_ratelimit_link_t *link,
    const ngx_http_ratelimit_script_t *script, uint64_t times,
    ngx_msec_t timeout);

/* the same at the end of a process: nothing is done about a reply */
void ngx_http_ratelimit_refund_last(ngx_http_ratelimit_link_t *link,
    const ngx_http_ratelimit_script_t *script, uint64_t times);


#endif /* _NGX_HTTP_RATELIMIT_REFUND_H_INCLUDED_ */
