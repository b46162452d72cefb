
/*
 * What the API changes: overrides are set and removed, keys are reset.
 */


#ifndef _NGX_RL_API_WRITE_H_INCLUDED_
#define _NGX_RL_API_WRITE_H_INCLUDED_


#include "http/ngx_rl_api_request.h"


#define NGX_RL_API_BODY  65536      /* bytes */


/* GET, PUT and DELETE of "limits/NAME/keys/KEY/override" */
ngx_int_t ngx_rl_api_override_get(ngx_rl_api_t *api);
ngx_int_t ngx_rl_api_override_put(ngx_rl_api_t *api);
ngx_int_t ngx_rl_api_override_delete(ngx_rl_api_t *api);

/* DELETE of "limits/NAME/keys/KEY" */
ngx_int_t ngx_rl_api_key_delete(ngx_rl_api_t *api);


#endif /* _NGX_RL_API_WRITE_H_INCLUDED_ */
