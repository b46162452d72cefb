
/*
 * What this build is, and whether it is what the disk has.
 */


#ifndef _NGX_RL_VERSION_H_INCLUDED_
#define _NGX_RL_VERSION_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


/*
 * Raised with every change of behaviour, together with CHANGELOG.md.  Whoever
 * builds it may add a word of his own: -DNGX_HTTP_RATELIMIT_BUILD=deb1 makes
 * it 0.5.1+deb1.
 */

#define NGX_RL_RELEASE  "0.5.1"

#ifdef NGX_HTTP_RATELIMIT_BUILD
#define NGX_RL_VERSION                                                        \
    NGX_RL_RELEASE "+" ngx_value(NGX_HTTP_RATELIMIT_BUILD)
#else
#define NGX_RL_VERSION  NGX_RL_RELEASE
#endif


/* with each configuration, in the master: warns if a reload did not upgrade */
ngx_int_t ngx_rl_version_check(ngx_cycle_t *cycle);


#endif /* _NGX_RL_VERSION_H_INCLUDED_ */
