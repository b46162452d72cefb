
/*
 * "servers" of the API: breakers, latency, failures.
 */


#ifndef _NGX_RL_API_SERVERS_H_INCLUDED_
#define _NGX_RL_API_SERVERS_H_INCLUDED_


#include "http/ngx_rl_api_request.h"


ngx_int_t ngx_rl_api_servers(ngx_rl_api_t *api);


#endif /* _NGX_RL_API_SERVERS_H_INCLUDED_ */
