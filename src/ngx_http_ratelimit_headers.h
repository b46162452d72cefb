
/*
 * The header filter: tells clients what was decided.
 */


#ifndef _NGX_HTTP_RATELIMIT_HEADERS_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_HEADERS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>


void ngx_http_ratelimit_headers_init(void);


#endif /* _NGX_HTTP_RATELIMIT_HEADERS_H_INCLUDED_ */
