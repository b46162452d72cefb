
/*
 * A new connection to a sentinel asks for the addresses of all masters,
 * subscribes to +switch-master, and then only listens.  If the sentinel cannot
 * be reached, does not know a master, or is silent, the next sentinel is
 * tried.  When a master fails, or reports another role, a new connection is
 * made to ask again, at most once a second.
 *
 * A switch takes effect at once.  The connection to the old master is closed,
 * its pending calls fail, and nothing is sent there any more, even if it is
 * alive.  For a while after a switch, a sentinel that still names the old
 * master is ignored.
 *
 * A sentinel may announce a name instead of an address. nginx's resolver looks
 * it up repeatedly.  Until the address of the master is known, its calls wait.
 *
 * The last address of each master is kept in shared memory, so that workers
 * that start while no sentinel answers can find it.  Every connection to a
 * master checks its ROLE.
 */


#include "topology/ngx_rl_sentinel.h"
#include "core/ngx_rl_core.h"
#include "redis/ngx_rl_address.h"
#include "pure/ngx_rl_backoff.h"
#include "pure/ngx_rl_text.h"
#include "pure/ngx_rl_hash.h"
#include "topology/ngx_rl_resolve.h"


#define NGX_RL_SENTINEL_ASK     1000    /* ms, between two */
#define NGX_RL_SENTINEL_PING    2000    /* ms */
#define NGX_RL_SENTINEL_STALE   10000   /* ms after a switch */
#define NGX_RL_SENTINEL_WAIT    2000    /* ms, the longest pause */
#define NGX_RL_SENTINEL_TEXT    64


/*
 * The address of a master as a sentinel reports it: host:port, in lower case.
 */

typedef struct {
    ngx_str_t  text;  /* len 0: not known */
    ngx_str_t  host;
    in_port_t  port;
    u_char     data[NGX_RL_SERVER_NAME];
} ngx_rl_master_address_t;


typedef struct {
    ngx_rl_sentinels_t      *sentinels;
    ngx_rl_server_conf_t     conf;     /* a copy: it has a host */
    ngx_rl_server_t         *server;
    ngx_rl_master_address_t  address;
    ngx_rl_master_address_t  old;      /* before the switch */
    ngx_rl_resolve_t        *resolve;  /* NULL: is an address */
    ngx_msec_t               switched;
} ngx_rl_master_t;


/* one of the sentinels; at most one of them is connected */

typedef struct {
    ngx_rl_sentinels_t       *sentinels;
    ngx_rl_connection_t      *connection;
    ngx_rl_connection_conf_t  conf;
    ngx_rl_resolve_t         *resolve;  /* NULL: is an address */
} ngx_rl_sentinel_t;


struct ngx_rl_sentinels_s {
    ngx_rl_sentinel_t     *current;  /* that is asked */
    ngx_rl_server_conf_t  *conf;     /* what they share */
    ngx_rl_zone_t         *zone;
    ngx_socket_t           ident;    /* see ngx_rl_event_init() */

    ngx_log_t             *log;
    ngx_rl_master_t       *masters;
    ngx_uint_t             nmasters;
    ngx_rl_sentinel_t     *list;
    ngx_uint_t             n;

    ngx_event_t            next;     /* the next sentinel is asked */
    ngx_event_t            ask;
    ngx_msec_t             asked;
    ngx_event_t            ping;
    uint32_t               attempt;
    unsigned               heard:1;  /* since the last PING */
};


static ngx_int_t ngx_rl_master_create(ngx_rl_master_t *master,
    ngx_cycle_t *cycle, ngx_rl_stats_t *stats);
static ngx_int_t ngx_rl_sentinel_create(ngx_rl_sentinel_t *sentinel,
    ngx_cycle_t *cycle, ngx_rl_url_t *url);
static ngx_uint_t ngx_rl_sentinel_renamed(void *data,
    ngx_addr_t *addrs, ngx_uint_t n);
static void ngx_rl_sentinels_turn(
    ngx_rl_sentinels_t *sentinels, ngx_msec_t delay);
static void ngx_rl_sentinels_next(ngx_event_t *ev);
static ngx_msec_t ngx_rl_sentinel_may_connect(void *owner);
static void ngx_rl_sentinel_ready(void *owner);
static ngx_msec_t ngx_rl_sentinel_closed(void *owner,
    ngx_rl_failure_e failure, ngx_uint_t stable);
static ngx_uint_t ngx_rl_sentinel_may_log(void *owner,
    ngx_rl_failure_e failure);
static ngx_rl_failure_e ngx_rl_sentinel_step(
    void *owner, ngx_uint_t tag, ngx_rl_reply_t *reply);
static void ngx_rl_sentinel_push(void *owner, ngx_rl_reply_t *reply);
static ngx_int_t ngx_rl_master_learn(ngx_rl_master_t *master,
    ngx_str_t *host, ngx_str_t *port, ngx_uint_t switched);
static ngx_int_t ngx_rl_master_address(
    ngx_rl_master_t *master, ngx_rl_master_address_t *there,
    ngx_str_t *host, ngx_int_t port, ngx_rl_address_t *address);
static ngx_int_t ngx_rl_master_move(
    ngx_rl_master_t *master, ngx_rl_master_address_t *there, ngx_addr_t *addr);
static void ngx_rl_master_address_copy(ngx_rl_master_address_t *to,
    ngx_rl_master_address_t *from);
static ngx_uint_t ngx_rl_master_renamed(void *data,
    ngx_addr_t *addrs, ngx_uint_t n);
static void ngx_rl_sentinels_again(ngx_rl_sentinels_t *sentinels,
    ngx_msec_t delay);
static void ngx_rl_master_log(ngx_rl_master_t *master, ngx_uint_t switched,
    ngx_addr_t *from);
static ngx_rl_failure_e ngx_rl_master_role(
    void *owner, ngx_uint_t tag, ngx_rl_reply_t *reply);
static void ngx_rl_master_failed(void *owner, ngx_rl_failure_e failure);
static void ngx_rl_sentinels_ask(ngx_event_t *ev);
static void ngx_rl_sentinels_ping(ngx_event_t *ev);


static const ngx_rl_events_t  ngx_rl_sentinel_events = {
    ngx_rl_sentinel_may_connect,           /* may_connect */
    ngx_rl_sentinel_ready,                 /* ready */
    ngx_rl_sentinel_closed,                /* closed */
    ngx_rl_sentinel_may_log,               /* may_log */
    ngx_rl_sentinel_step,                  /* step */
    NULL,                                  /* redirect */
    NULL,                                  /* forward_failed */
    ngx_rl_sentinel_push,                  /* push */
    NULL                                   /* failed */
};

static const ngx_rl_events_t  ngx_rl_master_events = {
    ngx_rl_server_may_connect,             /* may_connect */
    ngx_rl_server_ready,                   /* ready */
    ngx_rl_server_closed,                  /* closed */
    ngx_rl_server_may_log,                 /* may_log */
    ngx_rl_master_role,                    /* step */
    NULL,                                  /* redirect */
    NULL,                                  /* forward_failed */
    NULL,                                  /* push */
    ngx_rl_master_failed                   /* failed */
};


ngx_rl_sentinels_t *
ngx_rl_sentinels_create(ngx_cycle_t *cycle,
    ngx_rl_sentinels_conf_t *conf, ngx_rl_zone_t *zone, ngx_rl_stats_t *stats)
{
    ngx_uint_t              i;
    ngx_rl_url_t           *url;
    ngx_rl_sentinels_t     *sentinels;
    ngx_rl_server_conf_t  **master;

    sentinels = ngx_pcalloc(cycle->pool, sizeof(ngx_rl_sentinels_t));
    if (sentinels == NULL) {
        return NULL;
    }

    sentinels->conf = conf->conf;
    sentinels->zone = zone;
    sentinels->log = cycle->log;

    ngx_rl_event_init(&sentinels->next, ngx_rl_sentinels_t,
                      ngx_rl_sentinels_next, sentinels, cycle->log);
    sentinels->next.cancelable = 1;

    ngx_rl_event_init(&sentinels->ask, ngx_rl_sentinels_t,
                      ngx_rl_sentinels_ask, sentinels, cycle->log);
    sentinels->ask.cancelable = 1;

    ngx_rl_event_init(&sentinels->ping, ngx_rl_sentinels_t,
                      ngx_rl_sentinels_ping, sentinels, cycle->log);
    sentinels->ping.cancelable = 1;

    sentinels->nmasters = conf->masters.nelts;
    sentinels->masters = ngx_pcalloc(cycle->pool, sentinels->nmasters
                                     * sizeof(ngx_rl_master_t));
    sentinels->n = conf->addresses->nelts;
    sentinels->list = ngx_pcalloc(cycle->pool, sentinels->n
                                  * sizeof(ngx_rl_sentinel_t));

    if (sentinels->masters == NULL || sentinels->list == NULL) {
        return NULL;
    }

    master = conf->masters.elts;

    for (i = 0; i < sentinels->nmasters; i++) {
        sentinels->masters[i].sentinels = sentinels;
        sentinels->masters[i].conf = *master[i];

        if (ngx_rl_master_create(&sentinels->masters[i], cycle, stats)
            != NGX_OK)
        {
            return NULL;
        }
    }

    url = conf->addresses->elts;

    for (i = 0; i < sentinels->n; i++) {
        sentinels->list[i].sentinels = sentinels;

        if (ngx_rl_sentinel_create(&sentinels->list[i], cycle, &url[i])
            != NGX_OK)
        {
            return NULL;
        }
    }

    /* workers start with different sentinels */

    sentinels->current = &sentinels->list[ngx_random() % sentinels->n];

    ngx_rl_connection_wake(sentinels->current->connection);

    return sentinels;
}


static ngx_int_t
ngx_rl_sentinel_create(ngx_rl_sentinel_t *sentinel, ngx_cycle_t *cycle,
    ngx_rl_url_t *url)
{
    ngx_rl_server_conf_t  *conf;

    conf = sentinel->sentinels->conf;

    sentinel->conf = conf->redis;
    sentinel->conf.addrs = url->addrs;
    sentinel->conf.naddrs = url->naddrs;
    sentinel->conf.host = url->host;

    sentinel->connection
        = ngx_rl_connection_create(cycle->log, &sentinel->conf,
                                   &ngx_rl_sentinel_events, sentinel,
                                   &conf->record->traffic,
                                   ngx_rl_record_gauges(conf->record));
    if (sentinel->connection == NULL) {
        return NGX_ERROR;
    }

    return ngx_rl_resolve_watch(&sentinel->resolve, cycle->log, conf,
                                &url->name, &url->host, url->port, url->addrs,
                                url->naddrs, ngx_rl_sentinel_renamed, sentinel);
}


static ngx_uint_t
ngx_rl_sentinel_renamed(void *data, ngx_addr_t *addrs, ngx_uint_t n)
{
    ngx_rl_sentinel_t  *sentinel = data;

    if (n == 0) {
        return ngx_rl_sentinel_may_log(sentinel, NGX_RL_CONFIG);
    }

    /* no call waits for a reply: leaving the old address costs nothing */

    (void) ngx_rl_connection_move(sentinel->connection, addrs, n, 1);

    if (sentinel != sentinel->sentinels->current) {
        ngx_rl_connection_close_idle(sentinel->connection);
    }

    return ngx_rl_record_news(sentinel->sentinels->zone,
                              sentinel->sentinels->conf->record,
                              ngx_rl_address_hash(addrs, n));
}


/* the last known address may still be right */

static ngx_int_t
ngx_rl_master_create(ngx_rl_master_t *master, ngx_cycle_t *cycle,
    ngx_rl_stats_t *stats)
{
    u_char                   text[NGX_SOCKADDR_STRLEN];
    uint64_t                 hash;
    ngx_int_t                rc;
    ngx_str_t                host, port;
    ngx_rl_record_t         *known;
    ngx_rl_address_t         address;
    ngx_rl_sentinels_t      *sentinels;
    ngx_rl_master_address_t  there;

    sentinels = master->sentinels;

    master->server = ngx_rl_server_create(cycle->pool, cycle->log,
                                          &master->conf, sentinels->zone, stats,
                                          &ngx_rl_master_events, sentinels);
    if (master->server == NULL) {
        return NGX_ERROR;
    }

    known = master->conf.record;

    hash = ngx_rl_hash(master->conf.sentinels->name.data,
                       master->conf.sentinels->name.len);

    ngx_rl_zone_lock(sentinels->zone);

    if (known->place.set != hash) {
        /* other sentinels used this name for another master */
        known->place.set = hash;
        known->place.len = 0;
    }

    host.len = ngx_min(known->place.len, NGX_SOCKADDR_STRLEN);
    ngx_memcpy(text, known->place.address, host.len);

    ngx_rl_zone_unlock(sentinels->zone);

    host.data = text;

    /* the port follows the last colon; an IPv6 address is in brackets */

    for (port.data = text + host.len;
         port.data > text && port.data[-1] != ':';
         port.data--)
    {
        /* void */
    }

    /* no address is known, or it was too long to store */

    if (port.data == text || host.len == NGX_SOCKADDR_STRLEN) {
        return NGX_OK;
    }

    port.len = text + host.len - port.data;
    host.len = port.data - 1 - text;

    if (host.len > 2 && host.data[0] == '[') {
        host.data++;
        host.len -= 2;
    }

    rc = ngx_rl_master_address(master, &there, &host,
                               ngx_atoi(port.data, port.len), &address);

    if (rc == NGX_DECLINED
        || (rc == NGX_OK
            && ngx_rl_server_conf_allows(&master->conf, &address.addr)))
    {
        (void) ngx_rl_master_move(master, &there, rc == NGX_OK ? &address.addr
                                  : NULL);
    }

    return NGX_OK;
}


ngx_rl_server_t *
ngx_rl_sentinels_server(ngx_rl_sentinels_t *sentinels, ngx_uint_t i)
{
    return sentinels->masters[i].server;
}


void
ngx_rl_sentinels_exit(ngx_rl_sentinels_t *sentinels)
{
    ngx_uint_t  i;

    ngx_rl_timer_end(&sentinels->next);
    ngx_rl_timer_end(&sentinels->ask);
    ngx_rl_timer_end(&sentinels->ping);

    for (i = 0; i < sentinels->nmasters; i++) {
        ngx_rl_resolve_end(sentinels->masters[i].resolve);
    }

    for (i = 0; i < sentinels->n; i++) {
        ngx_rl_resolve_end(sentinels->list[i].resolve);
        ngx_rl_connection_exit(sentinels->list[i].connection);
    }
}


static ngx_msec_t
ngx_rl_sentinel_may_connect(void *owner)
{
    return 0;
}


static void
ngx_rl_sentinel_ready(void *owner)
{
    ngx_rl_sentinel_t  *sentinel = owner;

    ngx_rl_sentinels_t  *sentinels;

    sentinels = sentinel->sentinels;

    sentinels->attempt = 0;
    sentinels->heard = 1;

    ngx_rl_record_found(sentinels->zone, sentinels->conf->record,
                        &ngx_rl_connection_addr(sentinel->connection)->name);

    if (!sentinels->ping.timer_set) {
        ngx_add_timer(&sentinels->ping, NGX_RL_SENTINEL_PING);
    }
}


/*
 * Tries the next sentinel at once, or after a pause when all have been tried.
 */

static ngx_msec_t
ngx_rl_sentinel_closed(void *owner, ngx_rl_failure_e failure, ngx_uint_t stable)
{
    ngx_rl_sentinel_t  *sentinel = owner;

    ngx_msec_t           delay;
    ngx_rl_sentinels_t  *sentinels;

    sentinels = sentinel->sentinels;

    if (failure != NGX_RL_OK) {
        ngx_rl_count(sentinels->conf->record->counters.failures[failure]);
    }

    ngx_rl_resolve_again(sentinel->resolve);

    if (sentinel != sentinels->current || ngx_exiting) {
        return NGX_TIMER_INFINITE;
    }

    delay = 1;

    if (++sentinels->attempt % sentinels->n == 0) {
        delay = ngx_rl_backoff((uint32_t) (sentinels->attempt / sentinels->n),
                               NGX_RL_SENTINEL_WAIT, (uint32_t) ngx_random());
    }

    ngx_rl_sentinels_turn(sentinels, delay);

    return NGX_TIMER_INFINITE;
}


/* moves on to the next sentinel, after a while */

static void
ngx_rl_sentinels_turn(ngx_rl_sentinels_t *sentinels, ngx_msec_t delay)
{
    ngx_rl_timer_end(&sentinels->ping);

    if (++sentinels->current == sentinels->list + sentinels->n) {
        sentinels->current = sentinels->list;
    }

    if (!sentinels->next.timer_set) {
        ngx_add_timer(&sentinels->next, delay);
    }
}


static void
ngx_rl_sentinels_next(ngx_event_t *ev)
{
    ngx_rl_sentinels_t  *sentinels;

    sentinels = ev->data;

    if (!ngx_exiting) {
        ngx_rl_connection_wake(sentinels->current->connection);
    }
}


static ngx_uint_t
ngx_rl_sentinel_may_log(void *owner, ngx_rl_failure_e failure)
{
    ngx_rl_sentinel_t  *sentinel = owner;

    return ngx_rl_record_may_log(sentinel->sentinels->conf->record, failure);
}


/* the reply to SENTINEL GET-MASTER-ADDR-BY-NAME */

static ngx_rl_failure_e
ngx_rl_sentinel_step(void *owner, ngx_uint_t tag, ngx_rl_reply_t *reply)
{
    ngx_rl_sentinel_t  *sentinel = owner;

    ngx_str_t            host, port;
    ngx_addr_t          *addr;
    ngx_rl_master_t     *master;
    ngx_rl_sentinels_t  *sentinels;

    sentinels = sentinel->sentinels;
    master = &sentinels->masters[tag - 1];
    addr = ngx_rl_connection_addr(sentinel->connection);

    if (reply->type == REDIS_REPLY_NIL) {

        if (ngx_rl_sentinel_may_log(sentinel, NGX_RL_CONFIG)) {
            ngx_log_error(NGX_LOG_ERR, sentinels->log, 0,
                          "sentinel %V does not know master \"%V\": check the "
                          "name in \"ratelimit_shards sentinel=...\"",
                          &addr->name, &master->conf.redis.name);
        }

        return NGX_RL_CONFIG;
    }

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2
        || reply->element[0]->type != REDIS_REPLY_STRING
        || reply->element[1]->type != REDIS_REPLY_STRING)
    {
        if (ngx_rl_sentinel_may_log(sentinel, NGX_RL_PROTOCOL)) {
            ngx_log_error(NGX_LOG_ERR, sentinels->log, 0,
                          "invalid reply from sentinel %V: expected the "
                          "address of a master",
                          &addr->name);
        }

        return NGX_RL_PROTOCOL;
    }

    host.data = (u_char *) reply->element[0]->str;
    host.len = reply->element[0]->len;
    port.data = (u_char *) reply->element[1]->str;
    port.len = reply->element[1]->len;

    return (ngx_rl_master_learn(master, &host, &port, 0) == NGX_OK)
           ? NGX_RL_OK : NGX_RL_CONFIG;
}


/* message, +switch-master, "NAME oldip oldport newip newport"; or a pong */

static void
ngx_rl_sentinel_push(void *owner, ngx_rl_reply_t *reply)
{
    ngx_rl_sentinel_t  *sentinel = owner;

    u_char              *p, *last;
    ngx_str_t            word[5];
    ngx_uint_t           i, n;
    ngx_rl_master_t     *master;
    ngx_rl_sentinels_t  *sentinels;

    sentinels = sentinel->sentinels;
    sentinels->heard = 1;

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3
        || reply->element[0]->type != REDIS_REPLY_STRING
        || ngx_strcmp(reply->element[0]->str, "message") != 0
        || reply->element[1]->type != REDIS_REPLY_STRING
        || ngx_strcmp(reply->element[1]->str, "+switch-master") != 0
        || reply->element[2]->type != REDIS_REPLY_STRING)
    {
        return;
    }

    p = (u_char *) reply->element[2]->str;
    last = p + reply->element[2]->len;

    for (n = 0; n < 5 && p < last; n++) {
        word[n].data = p;

        while (p < last && *p != ' ') {
            p++;
        }

        word[n].len = p - word[n].data;

        if (p < last) {
            p++;
        }
    }

    for (i = 0; n == 5 && i < sentinels->nmasters; i++) {
        master = &sentinels->masters[i];

        if (ngx_rl_str_equal(&master->conf.redis.name, &word[0])) {
            (void) ngx_rl_master_learn(master, &word[3], &word[4], 1);
            return;
        }
    }
}


static ngx_int_t
ngx_rl_master_learn(ngx_rl_master_t *master, ngx_str_t *host, ngx_str_t *port,
    ngx_uint_t switched)
{
    size_t                   len;
    u_char                   text[ngx_rl_escape_size(NGX_RL_SENTINEL_TEXT)];
    ngx_int_t                rc;
    ngx_addr_t              *from;
    ngx_uint_t               known;
    ngx_rl_address_t         address;
    ngx_rl_sentinels_t      *sentinels;
    ngx_rl_master_address_t  there;

    sentinels = master->sentinels;
    from = ngx_rl_connection_addr(sentinels->current->connection);

    rc = ngx_rl_master_address(master, &there, host,
                               ngx_atoi(port->data, port->len), &address);
    if (rc == NGX_ERROR) {

        if (ngx_rl_sentinel_may_log(sentinels->current, NGX_RL_CONFIG)) {
            len = ngx_rl_escape(text, (char *) host->data, ngx_min(host->len,
                                          NGX_RL_SENTINEL_TEXT));

            ngx_log_error(NGX_LOG_ERR, sentinels->log, 0,
                          "sentinel %V announces master \"%V\" at \"%*s\", "
                          "which is not an address: set \"resolver\" in nginx, "
                          "or \"SENTINEL announce-hostnames no\" in the "
                          "sentinel",
                          &from->name, &master->conf.redis.name, len, text);
        }

        return NGX_ERROR;
    }

    known = (master->address.text.len != 0);

    if (known && ngx_rl_str_equal(&master->address.text, &there.text)) {

        /* other workers may know of a switch already: do not overwrite it */

        return NGX_OK;
    }

    /* this sentinel does not know of the switch yet: ask another one */

    if (!switched && master->old.text.len
        && ngx_current_msec - master->switched < NGX_RL_SENTINEL_STALE
        && ngx_rl_str_equal(&master->old.text, &there.text))
    {
        ngx_rl_sentinels_again(sentinels, NGX_RL_SENTINEL_ASK);
        return NGX_OK;
    }

    if (rc == NGX_OK
        && !ngx_rl_server_conf_filter(&master->conf, sentinels->log, "sentinel",
                                      &from->name, &address.addr, 1))
    {
        return NGX_ERROR;
    }

    if (ngx_rl_master_move(master, &there, rc == NGX_OK ? &address.addr : NULL)
        != NGX_OK)
    {
        /* no memory: nothing changes until a sentinel reports it again */

        ngx_log_error(NGX_LOG_ERR, sentinels->log, 0,
                      "ratelimit shard %V: not enough memory to switch to "
                      "master %V", &master->conf.label, &there.text);

        ngx_rl_sentinels_again(sentinels, NGX_RL_SENTINEL_ASK);
        return NGX_ERROR;
    }

    ngx_rl_master_log(master, known, from);

    return NGX_OK;
}


/* NGX_OK: an address; NGX_DECLINED: a name; NGX_ERROR: unusable */

static ngx_int_t
ngx_rl_master_address(ngx_rl_master_t *master, ngx_rl_master_address_t *there,
    ngx_str_t *host, ngx_int_t port, ngx_rl_address_t *address)
{
    u_char  *p;

    if (port < 1 || port > 65535) {
        return NGX_ERROR;
    }

    there->port = (in_port_t) port;
    there->text.data = there->data;
    there->host.data = there->data;
    there->host.len = 0;

    if (ngx_rl_address(address, host->data, host->len, there->port) == NGX_OK) {
        there->text.len = address->addr.name.len;
        ngx_memcpy(there->data, address->addr.name.data,
                   address->addr.name.len);

        return NGX_OK;
    }

    if (!ngx_rl_resolve_valid(master->conf.resolver, host)) {
        return NGX_ERROR;
    }

    ngx_strlow(there->data, host->data, host->len);
    p = ngx_sprintf(there->data + host->len, ":%i", port);

    there->host.len = host->len;
    there->text.len = p - there->data;

    return NGX_DECLINED;
}


/* stops calls to the old address; NGX_ERROR: nothing has changed */

static ngx_int_t
ngx_rl_master_move(ngx_rl_master_t *master,
    ngx_rl_master_address_t *there, ngx_addr_t *addr)
{
    ngx_str_t          host;
    ngx_rl_resolve_t  *resolve;

    /* an address needs no lookup */

    if (ngx_rl_resolve_watch(&resolve, master->sentinels->log, &master->conf,
                             &master->conf.label, &there->host, there->port,
                             NULL, 0, ngx_rl_master_renamed, master)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    /* a certificate is issued for the name, or otherwise for the address */

    host = master->conf.redis.host;
    master->conf.redis.host = there->host;

    if (ngx_rl_server_move(master->server, addr, addr ? 1 : 0, 1) != NGX_OK) {
        master->conf.redis.host = host;
        ngx_rl_resolve_end(resolve);

        return NGX_ERROR;
    }

    ngx_rl_resolve_end(master->resolve);
    master->resolve = resolve;

    if (master->address.text.len) {
        ngx_rl_master_address_copy(&master->old, &master->address);
        master->switched = ngx_current_msec;
    }

    ngx_rl_master_address_copy(&master->address, there);
    master->conf.redis.host = master->address.host;

    return NGX_OK;
}


static void
ngx_rl_master_address_copy(ngx_rl_master_address_t *to,
    ngx_rl_master_address_t *from)
{
    *to = *from;

    to->text.data = to->data;
    to->host.data = to->data;
}


/* the current address of a master that has a name */

static ngx_uint_t
ngx_rl_master_renamed(void *data, ngx_addr_t *addrs, ngx_uint_t n)
{
    ngx_rl_master_t  *master = data;

    if (n) {
        n = ngx_rl_server_conf_filter(&master->conf, master->sentinels->log,
                                      "master", &master->address.text, addrs,
                                      n);
        if (n == 0) {
            return 0;
        }
    }

    return ngx_rl_server_renamed(master->server, addrs, n);
}


/* asks another sentinel in a moment */

static void
ngx_rl_sentinels_again(ngx_rl_sentinels_t *sentinels, ngx_msec_t delay)
{
    if (!sentinels->ask.timer_set) {
        ngx_add_timer(&sentinels->ask, delay);
    }
}


/* the first worker that finds a change logs it for all */

static void
ngx_rl_master_log(ngx_rl_master_t *master, ngx_uint_t switched,
    ngx_addr_t *from)
{
    ngx_str_t           *name;
    ngx_rl_sentinels_t  *sentinels;

    sentinels = master->sentinels;
    name = &master->address.text;

    if (!ngx_rl_record_found(sentinels->zone, master->conf.record, name)) {
        return;
    }

    if (switched) {
        ngx_rl_count(master->conf.record
                     ->counters.events[NGX_RL_EVENT_FAILOVER]);

        ngx_log_error(NGX_LOG_NOTICE, sentinels->log, 0,
                      "ratelimit shard %V: the master is now %V (was %V), "
                      "reported by sentinel %V", &master->conf.label, name,
                      &master->old.text, &from->name);
        return;
    }

    ngx_log_error(NGX_LOG_NOTICE, sentinels->log, 0,
                  "ratelimit shard %V: the master is %V, reported by sentinel "
                  "%V",
                  &master->conf.label, name, &from->name);
}


/* handles the ROLE reply of a new connection to a master */

static ngx_rl_failure_e
ngx_rl_master_role(void *owner, ngx_uint_t tag, ngx_rl_reply_t *reply)
{
    ngx_rl_server_t  *server = owner;

    if (reply->type == REDIS_REPLY_ARRAY && reply->elements
        && reply->element[0]->type == REDIS_REPLY_STRING
        && ngx_strcmp(reply->element[0]->str, "master") == 0)
    {
        return NGX_RL_OK;
    }

    if (ngx_rl_server_may_log(server, NGX_RL_READONLY)) {
        ngx_log_error(NGX_LOG_ERR, server->log, 0,
                      "redis %V, the master of \"%V\", reports a ROLE other "
                      "than master",
                      &ngx_rl_connection_addr(server->connection)->name,
                      &server->conf->label);
    }

    return NGX_RL_READONLY;
}


static void
ngx_rl_master_failed(void *owner, ngx_rl_failure_e failure)
{
    ngx_rl_server_t  *server = owner;

    ngx_msec_t           age;
    ngx_rl_master_t     *master;
    ngx_rl_sentinels_t  *sentinels;

    sentinels = server->route;

    if (!ngx_rl_failure_breaks(failure) || ngx_exiting) {
        return;
    }

    master = ngx_rl_container(server->conf, ngx_rl_master_t, conf);
    ngx_rl_resolve_again(master->resolve);

    age = ngx_current_msec - sentinels->asked;
    ngx_rl_sentinels_again(sentinels, (age < NGX_RL_SENTINEL_ASK)
                           ? NGX_RL_SENTINEL_ASK - age : 1);
}


/*
 * Asks another sentinel each time: one of them may be cut off from the others.
 */

static void
ngx_rl_sentinels_ask(ngx_event_t *ev)
{
    ngx_rl_sentinels_t  *sentinels;

    sentinels = ev->data;

    if (ngx_exiting) {
        return;
    }

    sentinels->asked = ngx_current_msec;

    if (ngx_rl_connection_ready(sentinels->current->connection)) {
        ngx_rl_connection_close_idle(sentinels->current->connection);
        ngx_rl_sentinels_turn(sentinels, 1);
    }
}


static void
ngx_rl_sentinels_ping(ngx_event_t *ev)
{
    ngx_rl_sentinels_t   *sentinels;
    ngx_rl_connection_t  *connection;

    static ngx_str_t  command = ngx_string("*1\r\n$4\r\nPING\r\n");

    sentinels = ev->data;
    connection = sentinels->current->connection;

    if (ngx_exiting || !ngx_rl_connection_ready(connection)) {
        return;
    }

    if (sentinels->heard) {
        sentinels->heard = 0;

        ngx_rl_connection_ping(connection, &command);
        ngx_add_timer(ev, NGX_RL_SENTINEL_PING);

        return;
    }

    if (ngx_rl_sentinel_may_log(sentinels->current, NGX_RL_TIMEOUT)) {
        ngx_log_error(NGX_LOG_ERR, sentinels->log, 0,
                      "sentinel %V stopped answering, trying the next one",
                      &ngx_rl_connection_addr(connection)->name);
    }

    ngx_rl_connection_close_idle(connection);
    ngx_rl_sentinels_turn(sentinels, 1);
}
