
/*
 * The most frequent keys of a limit on this machine, by requests and by
 * rejections, for "ratelimit_top".  All workers count in the same tables.
 * Times are in milliseconds, and monotonic.
 */


#ifndef _NGX_RL_TOPS_H_INCLUDED_
#define _NGX_RL_TOPS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "memory/ngx_rl_zone.h"
#include "pure/ngx_rl_top.h"


/* tables, as bits */

#define NGX_RL_TOP_SEEN      0x1
#define NGX_RL_TOP_REJECTED  0x2

#define NGX_RL_TOPS          2


/* in shared memory, followed by the memory of the tables */

typedef struct {
    volatile ngx_uint_t  changing;
    ngx_rl_top_t         tables[NGX_RL_TOPS];
} ngx_rl_tops_t;


/* of these structs, for ngx_rl_zone_add() */
uint64_t ngx_rl_tops_layout(void);

/*
 * Finds or makes the tables of a limit, for n keys, while the zone is attached.
 * A reload that changes n starts with empty tables.  NULL: no memory
 */
ngx_rl_tops_t *ngx_rl_tops(ngx_rl_zone_t *zone, ngx_str_t *name, ngx_uint_t n);

/* counts a key; returns the tables in which it should get an entry first */
ngx_uint_t ngx_rl_tops_hit(ngx_rl_zone_t *zone, ngx_rl_tops_t *tops,
    ngx_uint_t tables, uint64_t hash, uint64_t now);

/* counts a key in these tables; "text" shows it where it gets an entry */
void ngx_rl_tops_add(ngx_rl_zone_t *zone, ngx_rl_tops_t *tops,
    ngx_uint_t tables, uint64_t hash, ngx_str_t *text, uint64_t now);

/*
 * Copies up to n entries of one table, in any order.  Returns how many there
 * are; "missed" is what a key that is not in the table has at most.
 */
ngx_uint_t ngx_rl_tops_copy(ngx_rl_zone_t *zone, ngx_rl_tops_t *tops,
    ngx_uint_t table, ngx_rl_top_entry_t *entries, ngx_uint_t n, uint64_t now,
    double *missed);


#endif /* _NGX_RL_TOPS_H_INCLUDED_ */
