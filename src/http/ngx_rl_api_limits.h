
/*
 * "limits" and "limits/NAME" of the API: definition, use, counters.
 */


#ifndef _NGX_RL_API_LIMITS_H_INCLUDED_
#define _NGX_RL_API_LIMITS_H_INCLUDED_


#include "http/ngx_rl_api_request.h"


/* api->limit, or all limits */
ngx_int_t ngx_rl_api_limits(ngx_rl_api_t *api);

/* how a location applies a limit: members of an object */
void ngx_rl_api_use_json(ngx_rl_json_t *json, ngx_rl_loc_conf_t *conf,
    ngx_rl_limit_t *limit);


#endif /* _NGX_RL_API_LIMITS_H_INCLUDED_ */
