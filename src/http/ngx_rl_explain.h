
/*
 * "explain" of the API: which limits a request would meet.
 */


#ifndef _NGX_RL_EXPLAIN_H_INCLUDED_
#define _NGX_RL_EXPLAIN_H_INCLUDED_


#include "http/ngx_rl_api_request.h"


ngx_int_t ngx_rl_explain(ngx_rl_api_t *api);

/* keeps the names of servers, which nginx forgets after loading */
ngx_int_t ngx_rl_explain_init(ngx_conf_t *cf);


#endif /* _NGX_RL_EXPLAIN_H_INCLUDED_ */
