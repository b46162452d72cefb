
/*
 * Warnings about a configuration that loads, but most likely does not do what
 * its author wants.
 */


#ifndef _NGX_RL_CHECK_H_INCLUDED_
#define _NGX_RL_CHECK_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_rl_conf.h"


/* the names of the warnings and their bits, for "ratelimit_silence" */
extern ngx_conf_enum_t  ngx_rl_silences[];


/* runs when everything is merged; logs each warning once per location */
void ngx_rl_check(ngx_conf_t *cf);


#endif /* _NGX_RL_CHECK_H_INCLUDED_ */
