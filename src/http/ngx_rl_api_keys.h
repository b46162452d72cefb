
/*
 * "limits/NAME/keys/KEY" and "keys/KEY" of the API: the state of a key.
 */


#ifndef _NGX_RL_API_KEYS_H_INCLUDED_
#define _NGX_RL_API_KEYS_H_INCLUDED_


#include "http/ngx_rl_api_request.h"


/* in api->limit, or in all limits that are used */
ngx_int_t ngx_rl_api_keys(ngx_rl_api_t *api);

/* where a limit is enforced, or else where it is used at all, or NULL */
ngx_rl_use_t *ngx_rl_api_use(ngx_rl_main_conf_t *rmcf, ngx_rl_limit_t *limit);


#endif /* _NGX_RL_API_KEYS_H_INCLUDED_ */
