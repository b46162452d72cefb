
/*
 * "top" of the API: the keys of a limit that are rejected or seen most often.
 */


#ifndef _NGX_RL_API_TOP_H_INCLUDED_
#define _NGX_RL_API_TOP_H_INCLUDED_


#include "http/ngx_rl_api_request.h"


ngx_int_t ngx_rl_api_top(ngx_rl_api_t *api);


#endif /* _NGX_RL_API_TOP_H_INCLUDED_ */
