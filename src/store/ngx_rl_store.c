
/*
 * When a process starts, it sets up the queues of calls and then its
 * connections.
 *
 * It exits in this order.  Leases return their unspent tokens as refunds.
 * Refunds are sent and their answers awaited, for some seconds at most.  Then
 * the connections are closed without calling any handler, and the memory of
 * calls under way is released.
 */


#include "store/ngx_rl_store.h"
#include "store/ngx_rl_combine.h"
#include "store/ngx_rl_command.h"
#include "store/ngx_rl_lease.h"
#include "store/ngx_rl_refund.h"
#include "store/ngx_rl_sync.h"
#include "store/ngx_rl_take.h"
#include "topology/ngx_rl_route.h"


static ngx_uint_t  ngx_rl_store_begun;


ngx_int_t
ngx_rl_store_init(ngx_cycle_t *cycle, ngx_array_t *confs,
    ngx_rl_zone_t *zone, ngx_rl_stats_t *stats)
{
    ngx_rl_store_begun = 1;

    ngx_rl_command_init(cycle);
    ngx_rl_refund_init();
    ngx_rl_lease_init(cycle, zone);
    ngx_rl_take_init();
    ngx_rl_combine_init(cycle);

    return ngx_rl_route_init(cycle, confs, zone, stats);
}


void
ngx_rl_store_exit(void)
{
    if (!ngx_rl_store_begun) {
        return;
    }

    ngx_rl_store_begun = 0;

    ngx_rl_sync_exit();
    ngx_rl_refund_end();
    ngx_rl_lease_exit();
    ngx_rl_refund_exit();
    ngx_rl_combine_exit();
    ngx_rl_route_exit();
    ngx_rl_take_exit();
    ngx_rl_command_exit();
}
