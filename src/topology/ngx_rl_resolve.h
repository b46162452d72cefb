
/*
 * A host name that is looked up again and again by nginx's resolver, so that
 * a server may move to another address.
 */


#ifndef _NGX_RL_RESOLVE_H_INCLUDED_
#define _NGX_RL_RESOLVE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "topology/ngx_rl_server_conf.h"


/* addresses of one name; of more than these the lowest are used */
#define NGX_RL_RESOLVE_ADDRS  64


typedef struct ngx_rl_resolve_s  ngx_rl_resolve_t;


/*
 * The set of addresses is another one now.  The array belongs to the handler,
 * during the call only; its order is the same in all workers.  n is 0 when a
 * lookup has failed, and the last addresses stay.  May end the name.
 *
 * Returns whether it is to be logged: one worker of many may do so for all.  A
 * failure is not logged more often than once a minute in any case.
 */
typedef ngx_uint_t (*ngx_rl_resolve_pt)(void *data, ngx_addr_t *addrs,
    ngx_uint_t n);


/*
 * Whether the host is a name, there is somebody to ask, and DNS can have such a
 * name: one that was announced may be anything
 */
ngx_uint_t ngx_rl_resolve_valid(ngx_resolver_t *resolver, ngx_str_t *host);

/*
 * Looks "host" up from now on, the first time after a moment, if it is a name
 * and the configuration of the server has a resolver.  "addrs" are those known
 * so far, "port" that of all addresses; "label" is what the log calls the
 * shard.  The log and the resolver must outlive the name, all else is copied.
 *
 * Sets *resolve, to NULL if there is nothing to look up.  NGX_ERROR: no memory.
 */
ngx_int_t ngx_rl_resolve_watch(ngx_rl_resolve_t **resolve, ngx_log_t *log,
    ngx_rl_server_conf_t *conf, ngx_str_t *label, ngx_str_t *host,
    in_port_t port, ngx_addr_t *addrs, ngx_uint_t n,
    ngx_rl_resolve_pt handler, void *data);

/*
 * A connection has failed: looks soon, though not more often than once a
 * second.  As long as the TTL lasts it is the resolver that answers, from its
 * memory.  NULL: nothing to look up.
 */
void ngx_rl_resolve_again(ngx_rl_resolve_t *resolve);

/* the handler is not called any more; NULL: as above */
void ngx_rl_resolve_end(ngx_rl_resolve_t *resolve);


#endif /* _NGX_RL_RESOLVE_H_INCLUDED_ */
