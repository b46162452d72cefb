
/*
 * An address that was learned at run time, in memory of its own.  Also the
 * list of addresses of a server, which are tried in turn.
 */


#ifndef _NGX_RL_ADDRESS_H_INCLUDED_
#define _NGX_RL_ADDRESS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


typedef struct {
    ngx_addr_t      addr;  /* points to the others */
    ngx_sockaddr_t  sockaddr;
    u_char          text[NGX_SOCKADDR_STRLEN];
} ngx_rl_address_t;


typedef struct {
    ngx_addr_t  *addrs;
    ngx_uint_t   n;         /* 0: not known yet */
    ngx_uint_t   next;      /* modulo n */
    unsigned     copied:1;  /* addrs are malloc()ed */
} ngx_rl_addresses_t;


/* NGX_DECLINED: the text, which has no port, is not an IP address */
ngx_int_t ngx_rl_address(ngx_rl_address_t *address,
    const void *text, size_t len, in_port_t port);

/* the same host, another port */
void ngx_rl_address_port(ngx_rl_address_t *address,
    ngx_addr_t *host, in_port_t port);

void ngx_rl_address_copy(ngx_rl_address_t *to, ngx_rl_address_t *from);

/* compares two sets of addresses in any order */
uint64_t ngx_rl_address_hash(ngx_addr_t *addrs, ngx_uint_t n);

/* IPv4 addresses in IPv6 notation match IPv4 networks */
void ngx_rl_address_unmap(ngx_cidr_t *cidr);

ngx_uint_t ngx_rl_address_equal(ngx_addr_t *a, ngx_addr_t *b);

/* the address to try, or in use; NULL: not known */
ngx_addr_t *ngx_rl_addresses_current(ngx_rl_addresses_t *addresses);

/*
 * Replaces the addresses by copies of others; the current one is
 * addrs[current].
 */
ngx_int_t ngx_rl_addresses_replace(ngx_rl_addresses_t *addresses,
    ngx_addr_t *addrs, ngx_uint_t n, ngx_uint_t current, ngx_log_t *log);

void ngx_rl_addresses_free(ngx_rl_addresses_t *addresses);


#endif /* _NGX_RL_ADDRESS_H_INCLUDED_ */
