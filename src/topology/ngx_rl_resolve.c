
/*
 * Each worker looks up names for itself, and nobody waits for it.  At any time
 * a lookup is under way (ctx), or the timer of the next one is set, or the
 * process is exiting.
 *
 *     lookup -> addresses -> when their TTL is over     -> lookup
 *            -> failure   -> after a pause that doubles -> lookup
 *
 * nginx's resolver caches an answer up to the last second of its TTL, so the
 * next lookup starts in the second after that.  A resolver may call back
 * before ngx_resolve_name() has returned, and it frees the context of a lookup
 * that it could not start.
 *
 * Resolvers rotate the order of addresses with each answer.  Addresses are
 * sorted here, so that another order is not a change, and so that all workers
 * start with the same address.
 */


#include "topology/ngx_rl_resolve.h"
#include "core/ngx_rl_core.h"
#include "core/ngx_rl_throttle.h"
#include "pure/ngx_rl_backoff.h"


/* all times in ms */
#define NGX_RL_RESOLVE_FIRST   500        /* at most */
#define NGX_RL_RESOLVE_MIN     1000       /* between lookups */
#define NGX_RL_RESOLVE_TTL     300000     /* of a TTL */
#define NGX_RL_RESOLVE_SPREAD  200        /* of workers, at most */
#define NGX_RL_RESOLVE_PAUSE   30000      /* after failures, at most */

#define NGX_RL_RESOLVE_TEXT    1024       /* of addresses, logged */
#define NGX_RL_RESOLVE_STRLEN  (NGX_INET6_ADDRSTRLEN + sizeof("[]:65535") - 1)

#define NGX_RL_RESOLVE_LEN     253
#define NGX_RL_RESOLVE_LABEL   63

/* the first attempt of ngx_rl_backoff() whose pause is 1 s */
#define NGX_RL_RESOLVE_ATTEMPT  5


/* of a family that a name can have: a quarter of an ngx_sockaddr_t */

typedef union {
    struct sockaddr      sockaddr;
    struct sockaddr_in   in;
#if (NGX_HAVE_INET6)
    struct sockaddr_in6  in6;
#endif
} ngx_rl_resolve_addr_t;


typedef struct {
    ngx_rl_resolve_addr_t  addrs[NGX_RL_RESOLVE_ADDRS];
    ngx_uint_t             n;
} ngx_rl_resolve_set_t;


struct ngx_rl_resolve_s {
    ngx_resolver_t       *resolver;
    ngx_resolver_ctx_t   *ctx;          /* of a lookup under way */
    ngx_log_t            *log;
    ngx_socket_t          ident;        /* see ngx_rl_event_init() */

    ngx_event_t           timer;
    ngx_msec_t            timeout;
    ngx_msec_t            looked;       /* when, the last time */
    ngx_rl_throttle_t     warnings;     /* of failures */
    uint32_t              failures;     /* since the last success */
    in_port_t             port;

    ngx_rl_resolve_pt     handler;
    void                 *data;

    ngx_rl_resolve_set_t  set;          /* the last addresses */
    ngx_rl_resolve_set_t  found;        /* by the lookup that ends */

    /* of the handler */
    ngx_addr_t            addrs[NGX_RL_RESOLVE_ADDRS];
    u_char                text[NGX_RL_RESOLVE_ADDRS][NGX_RL_RESOLVE_STRLEN];

    unsigned              reporting:1;  /* the handler runs */
    unsigned              ended:1;

    ngx_str_t             label;
    ngx_str_t             host;         /* the resolver's case */
};


static ngx_int_t ngx_rl_resolve_check(ngx_resolver_t *resolver,
    ngx_str_t *host);
static void ngx_rl_resolve_lookup(ngx_event_t *ev);
static void ngx_rl_resolve_resolved(ngx_resolver_ctx_t *ctx);
static void ngx_rl_resolve_schedule(ngx_rl_resolve_t *resolve,
    ngx_msec_t delay);
static ngx_msec_t ngx_rl_resolve_delay(time_t valid);
static void ngx_rl_resolve_failed(ngx_rl_resolve_t *resolve, ngx_int_t state);
static void ngx_rl_resolve_changed(ngx_rl_resolve_t *resolve);
static void ngx_rl_resolve_report(ngx_rl_resolve_t *resolve, ngx_uint_t n,
    ngx_int_t state);
static void ngx_rl_resolve_log(ngx_rl_resolve_t *resolve);
static void ngx_rl_resolve_add(ngx_rl_resolve_set_t *set,
    struct sockaddr *sockaddr, in_port_t port);


/*
 * NGX_OK: the host is a name that a resolver can look up; NGX_DECLINED: the
 * host is an address, or the configuration has no "resolver".
 */

static ngx_int_t
ngx_rl_resolve_check(ngx_resolver_t *resolver, ngx_str_t *host)
{
#if (NGX_HAVE_INET6)
    u_char  addr6[16];
#endif

    if (resolver == NULL || resolver->connections.nelts == 0
        || host->len == 0
        || ngx_inet_addr(host->data, host->len) != INADDR_NONE)
    {
        return NGX_DECLINED;
    }

#if (NGX_HAVE_INET6)
    if (host->data[0] == '['
        || ngx_inet6_addr(host->data, host->len, addr6) == NGX_OK)
    {
        return NGX_DECLINED;
    }
#endif

    return NGX_OK;
}


ngx_uint_t
ngx_rl_resolve_valid(ngx_resolver_t *resolver, ngx_str_t *host)
{
    u_char  c;
    size_t  i, label;

    if (ngx_rl_resolve_check(resolver, host) != NGX_OK
        || host->len > NGX_RL_RESOLVE_LEN)
    {
        return 0;
    }

    for (label = 0, i = 0; i < host->len; i++) {
        c = host->data[i];

        if (c == '.') {

            if (label == 0) {
                return 0;
            }

            label = 0;
            continue;
        }

        if (++label > NGX_RL_RESOLVE_LABEL
            || !((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
                 || (c >= '0' && c <= '9') || c == '-' || c == '_'))
        {
            return 0;
        }
    }

    return label > 0;
}


ngx_int_t
ngx_rl_resolve_watch(ngx_rl_resolve_t **watched, ngx_log_t *log,
    ngx_rl_server_conf_t *conf, ngx_str_t *label, ngx_str_t *host,
    in_port_t port, ngx_addr_t *addrs, ngx_uint_t n,
    ngx_rl_resolve_pt handler, void *data)
{
    u_char            *p;
    ngx_uint_t         i;
    ngx_rl_resolve_t  *resolve;

    *watched = NULL;

    if (ngx_rl_resolve_check(conf->resolver, host) != NGX_OK) {
        return NGX_OK;
    }

    resolve = ngx_calloc(sizeof(ngx_rl_resolve_t) + label->len + host->len,
                         log);
    if (resolve == NULL) {
        return NGX_ERROR;
    }

    p = (u_char *) resolve + sizeof(ngx_rl_resolve_t);

    resolve->label.data = p;
    resolve->label.len = label->len;
    p = ngx_cpymem(p, label->data, label->len);

    resolve->host.data = p;
    resolve->host.len = host->len;
    ngx_memcpy(p, host->data, host->len);

    resolve->resolver = conf->resolver;
    resolve->log = log;
    resolve->timeout = conf->resolver_timeout;
    resolve->port = port;
    resolve->handler = handler;
    resolve->data = data;

    ngx_rl_event_init(&resolve->timer, ngx_rl_resolve_t,
                      ngx_rl_resolve_lookup, resolve, log);
    resolve->timer.cancelable = 1;

    for (i = 0; i < n; i++) {
        ngx_rl_resolve_add(&resolve->set, addrs[i].sockaddr, port);
    }

    /* calls wait for a server without an address */

    ngx_rl_resolve_schedule(resolve,
                            n ? ngx_random() % NGX_RL_RESOLVE_FIRST + 1 : 1);

    *watched = resolve;

    return NGX_OK;
}


void
ngx_rl_resolve_again(ngx_rl_resolve_t *resolve)
{
    ngx_msec_t      since;
    ngx_msec_int_t  left;

    if (resolve == NULL || resolve->ctx || !resolve->timer.timer_set) {
        return;
    }

    since = ngx_current_msec - resolve->looked;
    left = (since < NGX_RL_RESOLVE_MIN)
           ? (ngx_msec_int_t) (NGX_RL_RESOLVE_MIN - since) : 1;

    if ((ngx_msec_int_t) (resolve->timer.timer.key - ngx_current_msec) > left) {
        ngx_rl_resolve_schedule(resolve, left);
    }
}


void
ngx_rl_resolve_end(ngx_rl_resolve_t *resolve)
{
    if (resolve == NULL) {
        return;
    }

    ngx_rl_timer_end(&resolve->timer);

    if (resolve->ctx) {
        ngx_resolve_name_done(resolve->ctx);
        resolve->ctx = NULL;
    }

    if (resolve->reporting) {
        resolve->ended = 1;
        return;
    }

    ngx_free(resolve);
}


static void
ngx_rl_resolve_lookup(ngx_event_t *ev)
{
    ngx_rl_resolve_t    *resolve;
    ngx_resolver_ctx_t  *ctx;

    if (ngx_exiting) {
        return;
    }

    resolve = ev->data;

    ngx_log_debug1(NGX_LOG_DEBUG_EVENT, resolve->log, 0,
                   "ratelimit name lookup: \"%V\"", &resolve->host);

    resolve->looked = ngx_current_msec;

    ctx = ngx_resolve_start(resolve->resolver, NULL);

    if (ctx == NULL || ctx == NGX_NO_RESOLVER) {
        ngx_rl_resolve_failed(resolve, NGX_ERROR);
        return;
    }

    ctx->name = resolve->host;
    ctx->handler = ngx_rl_resolve_resolved;
    ctx->data = resolve;
    ctx->timeout = resolve->timeout;
    ctx->cancelable = 1;

    resolve->ctx = ctx;

    if (ngx_resolve_name(ctx) != NGX_OK) {
        resolve->ctx = NULL;
        ngx_rl_resolve_failed(resolve, NGX_ERROR);
    }

    /* the handler may have ended the name */
}


static void
ngx_rl_resolve_resolved(ngx_resolver_ctx_t *ctx)
{
    ngx_rl_resolve_t  *resolve = ctx->data;

    time_t      valid;
    ngx_int_t   state;
    ngx_uint_t  i;

    state = ctx->state;
    valid = ctx->valid;
    resolve->found.n = 0;

    if (state == NGX_OK) {

        for (i = 0; i < ctx->naddrs; i++) {
            ngx_rl_resolve_add(&resolve->found, ctx->addrs[i].sockaddr,
                               resolve->port);
        }

        if (resolve->found.n == 0) {
            state = NGX_RESOLVE_NXDOMAIN;
        }
    }

    resolve->ctx = NULL;
    ngx_resolve_name_done(ctx);

    if (ngx_exiting) {
        return;
    }

    if (state != NGX_OK) {
        ngx_rl_resolve_failed(resolve, state);
        return;
    }

    resolve->failures = 0;

    ngx_rl_resolve_schedule(resolve, ngx_rl_resolve_delay(valid));

    if (resolve->set.n != resolve->found.n
        || ngx_memcmp(resolve->set.addrs, resolve->found.addrs,
                      resolve->set.n * sizeof(ngx_rl_resolve_addr_t))
        != 0)
    {
        resolve->set = resolve->found;
        ngx_rl_resolve_changed(resolve);
    }
}


static void
ngx_rl_resolve_schedule(ngx_rl_resolve_t *resolve, ngx_msec_t delay)
{
    ngx_rl_timer_end(&resolve->timer);

    if (!ngx_exiting) {
        ngx_add_timer(&resolve->timer, delay);
    }
}


/* ms until the second after "valid" begins */

static ngx_msec_t
ngx_rl_resolve_delay(time_t valid)
{
    time_t       seconds;
    ngx_msec_t   delay;
    ngx_time_t  *tp;

    tp = ngx_timeofday();
    seconds = valid - tp->sec + 1;

    if (seconds <= 0) {
        delay = NGX_RL_RESOLVE_MIN;

    } else if (seconds > NGX_RL_RESOLVE_TTL / 1000) {
        delay = NGX_RL_RESOLVE_TTL;

    } else {
        delay = (ngx_msec_t) seconds * 1000 - tp->msec;
    }

    return ngx_max(delay, NGX_RL_RESOLVE_MIN)
           + ngx_random() % NGX_RL_RESOLVE_SPREAD;
}


static void
ngx_rl_resolve_failed(ngx_rl_resolve_t *resolve, ngx_int_t state)
{
    uint32_t  delay;

    delay = ngx_rl_backoff(resolve->failures
                           + NGX_RL_RESOLVE_ATTEMPT, NGX_RL_RESOLVE_PAUSE,
                           (uint32_t) ngx_random());

    if (resolve->failures < NGX_RL_RESOLVE_PAUSE) {
        resolve->failures++;
    }

    ngx_rl_resolve_schedule(resolve, ngx_max(delay, NGX_RL_RESOLVE_MIN));

    ngx_rl_resolve_report(resolve, 0, state);
}


static void
ngx_rl_resolve_changed(ngx_rl_resolve_t *resolve)
{
    ngx_addr_t  *addr;
    ngx_uint_t   i;

    for (i = 0; i < resolve->set.n; i++) {
        addr = &resolve->addrs[i];

        addr->sockaddr = &resolve->set.addrs[i].sockaddr;
        addr->socklen = sizeof(struct sockaddr_in);

#if (NGX_HAVE_INET6)
        if (addr->sockaddr->sa_family == AF_INET6) {
            addr->socklen = sizeof(struct sockaddr_in6);
        }
#endif

        addr->name.data = resolve->text[i];
        addr->name.len = ngx_sock_ntop(addr->sockaddr, addr->socklen,
                                       addr->name.data, NGX_RL_RESOLVE_STRLEN,
                                       1);
    }

    ngx_rl_resolve_report(resolve, resolve->set.n, NGX_OK);
}


/* a name that its handler ends stays until this was logged */

static void
ngx_rl_resolve_report(ngx_rl_resolve_t *resolve, ngx_uint_t n, ngx_int_t state)
{
    ngx_uint_t  may_log;

    resolve->reporting = 1;

    may_log = resolve->handler(resolve->data, resolve->addrs, n);

    if (may_log && state == NGX_OK) {
        ngx_rl_resolve_log(resolve);

    } else if (may_log && ngx_rl_throttle(&resolve->warnings, 1, NULL)) {
        ngx_log_error(NGX_LOG_WARN, resolve->log, 0,
                      "ratelimit shard %V: name \"%V\" could not be resolved "
                      "(%i: %s), keeping the last known addresses",
                      &resolve->label, &resolve->host, state,
                      ngx_resolver_strerror(state));
    }

    resolve->reporting = 0;

    if (resolve->ended) {
        ngx_free(resolve);
    }
}


static void
ngx_rl_resolve_log(ngx_rl_resolve_t *resolve)
{
    u_char     *p, *last;
    u_char      text[NGX_RL_RESOLVE_STRLEN], line[NGX_RL_RESOLVE_TEXT];
    size_t      len;
    ngx_uint_t  i;

    p = line;
    last = line + sizeof(line);

    for (i = 0; i < resolve->set.n; i++) {
        len = ngx_sock_ntop(&resolve->set.addrs[i].sockaddr,
                            sizeof(ngx_rl_resolve_addr_t), text, sizeof(text),
                            0);

        p = ngx_slprintf(p, last, "%s%*s", i ? ", " : "", len, text);
    }

    ngx_log_error(NGX_LOG_NOTICE, resolve->log, 0,
                  "ratelimit shard %V: addresses are now %*s",
                  &resolve->label, (size_t) (p - line), line);
}


/* sorted, without duplicates; bytes outside of the address are zero */

static void
ngx_rl_resolve_add(ngx_rl_resolve_set_t *set, struct sockaddr *sockaddr,
    in_port_t port)
{
    ngx_int_t              rc;
    ngx_uint_t             i;
    ngx_rl_resolve_addr_t  addr;

    ngx_memzero(&addr, sizeof(ngx_rl_resolve_addr_t));

    addr.sockaddr.sa_family = sockaddr->sa_family;

    switch (sockaddr->sa_family) {

    case AF_INET:
        addr.in.sin_addr = ((struct sockaddr_in *) sockaddr)->sin_addr;
        break;

#if (NGX_HAVE_INET6)
    case AF_INET6:
        addr.in6.sin6_addr = ((struct sockaddr_in6 *) sockaddr)->sin6_addr;
        break;
#endif

    default:
        return;
    }

    ngx_inet_set_port(&addr.sockaddr, port);

    for (i = 0; i < set->n; i++) {
        rc = ngx_memcmp(&set->addrs[i], &addr, sizeof(ngx_rl_resolve_addr_t));

        if (rc == 0) {
            return;
        }

        if (rc > 0) {
            break;
        }
    }

    if (set->n < NGX_RL_RESOLVE_ADDRS) {
        set->n++;

    } else if (i == set->n) {
        return;
    }

    ngx_memmove(&set->addrs[i + 1], &set->addrs[i],
                (set->n - i - 1) * sizeof(ngx_rl_resolve_addr_t));

    set->addrs[i] = addr;
}
