
/*
 * "limits/NAME/keys/KEY" and "keys/KEY" of the API: the state of a key.
 */


#ifndef _NGX_RL_API_KEYS_H_INCLUDED_
#define _NGX_RL_API_KEYS_H_INCLUDED_


#include "http/ngx_rl_api_request.h"


/* in api->limit, or in all limits that are used */
ngx_int_t ngx_rl_api_keys(ngx_rl_api_t *api);


#endif /* _NGX_RL_API_KEYS_H_INCLUDED_ */
