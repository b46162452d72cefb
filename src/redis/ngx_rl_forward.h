
/*
 * A command that a server has refused goes on to another one, or waits.
 */


#ifndef _NGX_RL_FORWARD_H_INCLUDED_
#define _NGX_RL_FORWARD_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "redis/ngx_rl_connection.h"


/*
 * For the owner's redirect(): the command goes to that server, in the time that
 * is left, after an ASKING if "asking" is set.  Anything but NGX_RL_OK: it does
 * not, and the pending is as it was.
 */
ngx_rl_failure_e ngx_rl_pending_forward(ngx_rl_pending_t *pending,
    ngx_rl_connection_t *connection, ngx_uint_t asking);

/* or it waits there, until it is sent again or its time is over */
void ngx_rl_pending_park(ngx_rl_pending_t *pending, ngx_queue_t *queue);

/* it goes to that server, as it was; or it ends */
void ngx_rl_pending_again(ngx_rl_pending_t *pending,
    ngx_rl_connection_t *connection);


#endif /* _NGX_RL_FORWARD_H_INCLUDED_ */
