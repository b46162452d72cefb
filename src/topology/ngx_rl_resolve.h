
/*
 * A host name that nginx's resolver looks up repeatedly, so that a server may
 * move to another address.
 */


#ifndef _NGX_RL_RESOLVE_H_INCLUDED_
#define _NGX_RL_RESOLVE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "topology/ngx_rl_server_conf.h"


/* addresses of one name; if there are more, the lowest are used */
#define NGX_RL_RESOLVE_ADDRS  64


typedef struct ngx_rl_resolve_s  ngx_rl_resolve_t;


/*
 * Called when the set of addresses has changed.  The handler may use the array
 * during the call only; its order is the same in all workers. n is 0 when a
 * lookup has failed and the last addresses stay.  The handler may end the
 * name.
 *
 * Returns whether to log the change, so that one worker can log it for all.  A
 * failure is logged once a minute at most in any case.
 */
typedef ngx_uint_t (*ngx_rl_resolve_pt)(void *data, ngx_addr_t *addrs,
    ngx_uint_t n);


/*
 * Whether the host is a name, there is a resolver, and DNS can contain such a
 * name: an announced name may be anything.
 */
ngx_uint_t ngx_rl_resolve_valid(ngx_resolver_t *resolver, ngx_str_t *host);

/*
 * Starts to look up "host" after a moment, and again from then on, if it is a
 * name and the configuration of the server has a resolver.  "addrs" are the
 * addresses known so far, "port" is the port of all addresses, and "label" is
 * the name of the shard in the log.  The log and the resolver must outlive the
 * name; everything else is copied.
 *
 * Sets *resolve, to NULL if there is nothing to look up.  NGX_ERROR: no
 * memory.
 */
ngx_int_t ngx_rl_resolve_watch(ngx_rl_resolve_t **resolve, ngx_log_t *log,
    ngx_rl_server_conf_t *conf, ngx_str_t *label, ngx_str_t *host,
    in_port_t port, ngx_addr_t *addrs, ngx_uint_t n,
    ngx_rl_resolve_pt handler, void *data);

/*
 * A connection has failed: looks the name up soon, but at most once a second.
 * Until the TTL is over, the resolver answers from its cache.  NULL: nothing
 * to look up.
 */
void ngx_rl_resolve_again(ngx_rl_resolve_t *resolve);

/* stops calling the handler; NULL: as above */
void ngx_rl_resolve_end(ngx_rl_resolve_t *resolve);


#endif /* _NGX_RL_RESOLVE_H_INCLUDED_ */
