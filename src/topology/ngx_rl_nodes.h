
/*
 * The nodes of a Redis Cluster as a worker knows them: by the address or the
 * name that the cluster announces, in the map of slots or not.
 */


#ifndef _NGX_RL_NODES_H_INCLUDED_
#define _NGX_RL_NODES_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "redis/ngx_rl_address.h"
#include "pure/ngx_rl_slots.h"
#include "topology/ngx_rl_resolve.h"
#include "topology/ngx_rl_server.h"


#define NGX_RL_NODES_MAX     1024    /* at a time */
#define NGX_RL_NODES_CHAINS  1024
#define NGX_RL_NODES_NONE    0xffff  /* no index */


typedef struct ngx_rl_nodes_s  ngx_rl_nodes_t;


typedef struct {
    ngx_rl_nodes_t       *nodes;
    ngx_rl_server_conf_t  conf;
    ngx_rl_server_t      *server;
    ngx_rl_address_t      addr;      /* unless it is a seed's */
    ngx_rl_resolve_t     *resolve;   /* NULL: found by its address */
    ngx_str_t             host;      /* what the cluster calls it; len 0: by
                                        its address */
    u_char               *label;     /* room for the label */
    in_port_t             port;
    uint16_t              index;     /* in the list */
    uint16_t              next;      /* of the same chain */
    uint16_t              chain;
    uint16_t              probe_slot;
    char                 *probe;     /* a command; malloc()ed */
    ngx_rl_record_t      *own;       /* if the zone has no room; NULL */
    ngx_msec_t            asked;     /* when an ASK named it */
    unsigned              lent:1;    /* its record is the zone's */
    unsigned              left:1;    /* may become another node */
    unsigned              seed:1;
    unsigned              mapped:1;  /* serves slots */
    unsigned              seen:1;    /* in the map that is being read */
    u_char                text[NGX_RL_SLOT_HOST];  /* of the host */
} ngx_rl_node_t;


struct ngx_rl_nodes_s {
    ngx_rl_server_conf_t   *conf;      /* what all nodes of a cluster share */
    ngx_rl_zone_t          *zone;
    ngx_pool_t             *pool;
    ngx_socket_t            ident;     /* see ngx_rl_event_init() */

    ngx_rl_stats_t         *stats;
    ngx_log_t              *log;
    const ngx_rl_events_t  *events;    /* of the nodes' servers */
    void                   *cluster;

    ngx_rl_node_t         **list;
    ngx_uint_t              n;
    uint16_t                chains[NGX_RL_NODES_CHAINS];
    ngx_uint_t              scans;     /* left: searches of the whole list */

    ngx_rl_record_t         gone;      /* of nodes that have left */
    ngx_str_t               probe;     /* the key, with room for a tag */
    ngx_event_t             tidy;      /* posted, or a timer */

    unsigned                full:1;    /* while a map is read */
    unsigned                mapped:1;  /* some of them are */
};


/* makes the seeds; NGX_ERROR: no memory */
ngx_int_t ngx_rl_nodes_init(ngx_rl_nodes_t *nodes, ngx_cycle_t *cycle,
    ngx_rl_server_conf_t *conf, ngx_rl_zone_t *zone, ngx_rl_stats_t *stats,
    const ngx_rl_events_t *events, void *cluster);

/* call before a map or a redirect is read: bounds the work for it */
void ngx_rl_nodes_begin(ngx_rl_nodes_t *nodes, ngx_uint_t scans);

/*
 * Finds the node that "from" has announced, or adds it.  NULL: there is no
 * room, or nginx must not connect to it.
 */
ngx_rl_node_t *ngx_rl_nodes_find(ngx_rl_nodes_t *nodes, ngx_rl_server_t *from,
    const ngx_rl_slot_range_t *there);

/* stores the cluster's name of a node that is found by its address */
void ngx_rl_node_name(ngx_rl_node_t *node, const ngx_rl_slot_range_t *range);

/*
 * Marks whether a node serves slots; a node that does not is left alone and
 * removed in the end.
 */
void ngx_rl_node_map(ngx_rl_node_t *node, ngx_uint_t mapped);

/* each node is probed with a key of its own, in a slot that it serves */
void ngx_rl_node_probe(ngx_rl_node_t *node, uint16_t slot);

/* at process exit */
void ngx_rl_nodes_exit(ngx_rl_nodes_t *nodes);


#endif /* _NGX_RL_NODES_H_INCLUDED_ */
