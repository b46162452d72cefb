
/*
 * The version of this build, and whether the file on disk is the same.
 */


#ifndef _NGX_RL_VERSION_H_INCLUDED_
#define _NGX_RL_VERSION_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


/*
 * Raised with every change of behaviour, together with CHANGELOG.md.  Whoever
 * builds it may add a word of his own: -DNGX_HTTP_RATELIMIT_BUILD=deb1 makes
 * it 0.6.0+deb1.
 */

#define NGX_RL_RELEASE  "0.6.0"

#ifdef NGX_HTTP_RATELIMIT_BUILD
#define NGX_RL_VERSION                                                        \
    NGX_RL_RELEASE "+" ngx_value(NGX_HTTP_RATELIMIT_BUILD)
#else
#define NGX_RL_VERSION  NGX_RL_RELEASE
#endif


/*
 * Called in the master for each configuration: warns if a reload did not
 * upgrade.
 */
ngx_int_t ngx_rl_version_check(ngx_cycle_t *cycle);


#endif /* _NGX_RL_VERSION_H_INCLUDED_ */
