
/*
 * The advice of a limit in a dry run, as JSON.
 */


#ifndef _NGX_RL_API_ADVICE_H_INCLUDED_
#define _NGX_RL_API_ADVICE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_rl_limit.h"
#include "http/ngx_rl_json.h"


/* the member "advise" of a limit: an object, or null if it gives no advice */
void ngx_rl_api_advice(ngx_rl_json_t *json, ngx_rl_limit_t *limit);


#endif /* _NGX_RL_API_ADVICE_H_INCLUDED_ */
