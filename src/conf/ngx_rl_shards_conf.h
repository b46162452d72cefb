
/*
 * The directive "ratelimit_shards": addresses and URLs of servers, the names
 * of masters, and the rule that picks a server.
 */


#ifndef _NGX_RL_SHARDS_CONF_H_INCLUDED_
#define _NGX_RL_SHARDS_CONF_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "topology/ngx_rl_shards.h"


#define NGX_RL_REDIS_DATABASES  65535       /* the last one */


/* the handler of the directive; sets a pointer in the conf */
char *ngx_rl_shards_conf_parse(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);


#endif /* _NGX_RL_SHARDS_CONF_H_INCLUDED_ */
