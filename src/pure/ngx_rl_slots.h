
/*
 * The rules of Redis Cluster: the slot of a key, redirects, the map of slots.
 * Pure: no nginx, no memory of its own; returned texts point into the
 * arguments.
 */


#ifndef _NGX_RL_SLOTS_H_INCLUDED_
#define _NGX_RL_SLOTS_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>

#include "pure/ngx_rl_reply.h"


#define NGX_RL_SLOTS      16384
#define NGX_RL_SLOT_HOST  255      /* bytes of a host */
#define NGX_RL_SLOT_TAG   9        /* bytes of a tag */


typedef enum {
    NGX_RL_REDIRECT_NONE = 0,      /* any other error */
    NGX_RL_REDIRECT_MOVED,
    NGX_RL_REDIRECT_ASK,
    NGX_RL_REDIRECT_TRYAGAIN,
    NGX_RL_REDIRECT_CLUSTERDOWN
} ngx_rl_redirect_e;


/* slot, host and port are set for MOVED and ASK */

typedef struct {
    ngx_rl_redirect_e  kind;
    uint16_t           slot;
    uint16_t           port;
    const char        *host;      /* IPv6 without brackets */
    size_t             host_len;  /* 0: the node that replied */
} ngx_rl_redirect_t;


/* slots "first" to "last", both included, and their master */

typedef struct {
    uint16_t     first;
    uint16_t     last;
    uint16_t     port;
    const char  *host;      /* an address or a name */
    size_t       host_len;  /* 0: the node that replied */
    const char  *ip;        /* of a host with a name */
    size_t       ip_len;    /* 0: unknown */
} ngx_rl_slot_range_t;


typedef void (*ngx_rl_slots_pt)(void *data, const ngx_rl_slot_range_t *range);


/* CRC-16/XMODEM */
uint16_t ngx_rl_slot_crc16(const void *data, size_t len);

/* the slot of a key; of its hash tag, if it has one in braces */
uint16_t ngx_rl_slot(const char *key, size_t len);

/* a hash tag of letters in this slot, always the same */
void ngx_rl_slot_tag(uint16_t slot, char tag[NGX_RL_SLOT_TAG]);

/* parses an error reply, without the "-"; returns its kind, as in *r */
int ngx_rl_redirect_parse(const char *text, size_t len, ngx_rl_redirect_t *r);

/*
 * Parses the reply to CLUSTER SLOTS and calls the handler for each range, in
 * order.  Ranges may overlap, as long as they have at most four times as many
 * slots as exist.  A range is left out if the node does not know the address
 * of its master (port 0).  Returns the number of calls, or -1 without any call
 * if the reply is malformed.
 */
int ngx_rl_slots_parse(const ngx_rl_reply_t *reply,
    ngx_rl_slots_pt handler, void *data);


#endif /* _NGX_RL_SLOTS_H_INCLUDED_ */
