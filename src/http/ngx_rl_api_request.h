
/*
 * A request to "ratelimit_api": its path, its response, and how it waits.
 */


#ifndef _NGX_RL_API_REQUEST_H_INCLUDED_
#define _NGX_RL_API_REQUEST_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_rl_conf.h"
#include "http/ngx_rl_json.h"


#define NGX_RL_API_PATH  5          /* segments */


typedef struct ngx_rl_api_s  ngx_rl_api_t;

typedef ngx_int_t (*ngx_rl_api_pt)(ngx_rl_api_t *api);
typedef void (*ngx_rl_api_cancel_pt)(ngx_rl_api_t *api);


struct ngx_rl_api_s {
    ngx_rl_json_t               json;
    ngx_http_request_t         *request;
    ngx_rl_main_conf_t         *rmcf;

    ngx_str_t                   path[NGX_RL_API_PATH];
    ngx_uint_t                  n;        /* segments */
    ngx_rl_limit_t             *limit;    /* named in the path, or NULL */
    void                       *data;     /* of the function that answers */

    /* private */

    ngx_int_t                   rc;       /* of the response */
    ngx_rl_api_pt               next;
    ngx_rl_api_cancel_pt        cancel;
    ngx_http_posted_request_t   posted;   /* resumes a subrequest */
    unsigned                    parked:1;
    unsigned                    waiting:1;
};


/* NULL: no memory */
ngx_rl_api_t *ngx_rl_api_create(ngx_http_request_t *r);

/* the same one again; NULL: the request is about to end */
ngx_rl_api_t *ngx_rl_api_find(ngx_http_request_t *r);

/*
 * Reads the segments of the path behind the name of the location.
 * NGX_DECLINED: there are too many; NGX_ERROR: no memory
 */
ngx_int_t ngx_rl_api_path(ngx_rl_api_t *api);

/* the decoded value of an argument; NGX_DECLINED: there is none */
ngx_int_t ngx_rl_api_arg(ngx_rl_api_t *api, const char *name,
    ngx_str_t *value);

/*
 * Send the response, and return what a content handler must return.  A problem
 * replaces what was written before.  "type" is NULL for JSON.
 */
ngx_int_t ngx_rl_api_send(ngx_rl_api_t *api, ngx_uint_t status,
    ngx_str_t *type);
ngx_int_t ngx_rl_api_problem(ngx_rl_api_t *api, ngx_uint_t status,
    const char *fmt, ...);

/*
 * The same for functions that return NGX_OK if all is well.  Returns
 * NGX_DECLINED; ngx_rl_api_result() makes of it, or of NGX_ERROR, what a
 * content handler must return.  "field" is NULL, or names a part of a body.
 */
ngx_int_t ngx_rl_api_refuse(ngx_rl_api_t *api, ngx_uint_t status,
    const char *field, const char *fmt, ...);
ngx_int_t ngx_rl_api_result(ngx_rl_api_t *api, ngx_int_t rc);

/*
 * The request waits for something that ends with ngx_rl_api_wake().  Then
 * "next" is called, which returns as a content handler, or waits again.  If
 * the client leaves before, "cancel" is called instead.  Returns what the
 * content handler, or "next", must return.
 */
ngx_int_t ngx_rl_api_wait(ngx_rl_api_t *api, ngx_rl_api_pt next,
    ngx_rl_api_cancel_pt cancel);
void ngx_rl_api_wake(ngx_rl_api_t *api);


#endif /* _NGX_RL_API_REQUEST_H_INCLUDED_ */
