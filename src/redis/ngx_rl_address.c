
#include "redis/ngx_rl_address.h"
#include "pure/ngx_rl_hash.h"


static void ngx_rl_address_set(ngx_rl_address_t *address,
    socklen_t socklen, in_port_t port);


ngx_int_t
ngx_rl_address(ngx_rl_address_t *address, const void *text,
    size_t len, in_port_t port)
{
    in_addr_t  ipv4;

    ngx_memzero(address, sizeof(ngx_rl_address_t));

    ipv4 = ngx_inet_addr((u_char *) text, len);

    if (ipv4 != INADDR_NONE) {
        address->sockaddr.sockaddr_in.sin_family = AF_INET;
        address->sockaddr.sockaddr_in.sin_addr.s_addr = ipv4;

        ngx_rl_address_set(address, sizeof(struct sockaddr_in), port);

        return NGX_OK;
    }

#if (NGX_HAVE_INET6)

    if (ngx_inet6_addr((u_char *) text, len,
                       address->sockaddr.sockaddr_in6.sin6_addr.s6_addr)
        == NGX_OK)
    {
        address->sockaddr.sockaddr_in6.sin6_family = AF_INET6;

        ngx_rl_address_set(address, sizeof(struct sockaddr_in6), port);

        return NGX_OK;
    }

#endif

    return NGX_DECLINED;
}


void
ngx_rl_address_port(ngx_rl_address_t *address, ngx_addr_t *host, in_port_t port)
{
    ngx_memzero(address, sizeof(ngx_rl_address_t));

    ngx_memcpy(&address->sockaddr, host->sockaddr, host->socklen);

    ngx_rl_address_set(address, host->socklen, port);
}


static void
ngx_rl_address_set(ngx_rl_address_t *address, socklen_t socklen, in_port_t port)
{
    ngx_inet_set_port(&address->sockaddr.sockaddr, port);

    address->addr.sockaddr = &address->sockaddr.sockaddr;
    address->addr.socklen = socklen;
    address->addr.name.data = address->text;
    address->addr.name.len = ngx_sock_ntop(&address->sockaddr.sockaddr, socklen,
                                        address->text, NGX_SOCKADDR_STRLEN, 1);
}


void
ngx_rl_address_copy(ngx_rl_address_t *to, ngx_rl_address_t *from)
{
    *to = *from;

    to->addr.sockaddr = &to->sockaddr.sockaddr;
    to->addr.name.data = to->text;
}


uint64_t
ngx_rl_address_hash(ngx_addr_t *addrs, ngx_uint_t n)
{
    uint64_t    hash;
    ngx_uint_t  i;

    hash = n;

    for (i = 0; i < n; i++) {
        hash += ngx_rl_hash(addrs[i].name.data, addrs[i].name.len);
    }

    return hash;
}


ngx_uint_t
ngx_rl_address_equal(ngx_addr_t *a, ngx_addr_t *b)
{
    return ngx_cmp_sockaddr(a->sockaddr, a->socklen, b->sockaddr, b->socklen, 1)
           == NGX_OK;
}


/* ngx_cidr_match() compares addresses of that kind with IPv4 networks alone */

void
ngx_rl_address_unmap(ngx_cidr_t *cidr)
{
#if (NGX_HAVE_INET6)
    u_char    *mask;
    in_addr_t  addr4, mask4;

    if (cidr->family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&cidr->u.in6.addr)) {
        return;
    }

    /* shorter prefixes cover more than IPv4 */

    mask = cidr->u.in6.mask.s6_addr;

    if (mask[10] != 0xff || mask[11] != 0xff) {
        return;
    }

    ngx_memcpy(&addr4, &cidr->u.in6.addr.s6_addr[12], 4);
    ngx_memcpy(&mask4, &mask[12], 4);

    cidr->family = AF_INET;
    cidr->u.in.addr = addr4;
    cidr->u.in.mask = mask4;
#endif
}


ngx_addr_t *
ngx_rl_addresses_current(ngx_rl_addresses_t *addresses)
{
    return addresses->n ? &addresses->addrs[addresses->next % addresses->n]
                        : NULL;
}


ngx_int_t
ngx_rl_addresses_replace(ngx_rl_addresses_t *addresses,
    ngx_addr_t *addrs, ngx_uint_t n, ngx_uint_t current, ngx_log_t *log)
{
    u_char      *p;
    size_t       size;
    ngx_uint_t   i;
    ngx_addr_t  *copy;

    /* in one piece of memory */

    size = n * sizeof(ngx_addr_t);

    for (i = 0; i < n; i++) {
        size += ngx_align(addrs[i].socklen, NGX_ALIGNMENT)
                + ngx_align(addrs[i].name.len, NGX_ALIGNMENT);
    }

    copy = n ? ngx_alloc(size, log) : NULL;

    if (n && copy == NULL) {
        return NGX_ERROR;
    }

    p = n ? (u_char *) &copy[n] : NULL;

    for (i = 0; i < n; i++) {
        copy[i].socklen = addrs[i].socklen;
        copy[i].sockaddr = (struct sockaddr *) p;
        ngx_memcpy(p, addrs[i].sockaddr, addrs[i].socklen);
        p += ngx_align(addrs[i].socklen, NGX_ALIGNMENT);

        copy[i].name.len = addrs[i].name.len;
        copy[i].name.data = p;
        ngx_memcpy(p, addrs[i].name.data, addrs[i].name.len);
        p += ngx_align(addrs[i].name.len, NGX_ALIGNMENT);
    }

    ngx_rl_addresses_free(addresses);

    addresses->addrs = copy;
    addresses->n = n;
    addresses->next = current;
    addresses->copied = (n != 0);

    return NGX_OK;
}


void
ngx_rl_addresses_free(ngx_rl_addresses_t *addresses)
{
    if (addresses->copied) {
        ngx_free(addresses->addrs);
    }
}
