
/*
 * "overrides" of the API, and overrides in other answers.
 */


#ifndef _NGX_RL_API_OVERRIDES_H_INCLUDED_
#define _NGX_RL_API_OVERRIDES_H_INCLUDED_


#include "http/ngx_rl_api_request.h"


ngx_int_t ngx_rl_api_overrides(ngx_rl_api_t *api);

/* NULL for "copy": null */
void ngx_rl_api_override(ngx_rl_json_t *json, const char *name,
    ngx_str_t *limit, ngx_rl_override_copy_t *copy);


#endif /* _NGX_RL_API_OVERRIDES_H_INCLUDED_ */
