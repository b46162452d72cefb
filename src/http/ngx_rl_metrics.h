
/*
 * "ratelimit_metrics": all counters, for Prometheus or as JSON.
 */


#ifndef _NGX_RL_METRICS_H_INCLUDED_
#define _NGX_RL_METRICS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>


/* the handler of the directive */
char *ngx_rl_metrics(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);


#endif /* _NGX_RL_METRICS_H_INCLUDED_ */
