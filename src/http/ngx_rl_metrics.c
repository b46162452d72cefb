
/*
 * The metrics of "ratelimit_metrics", family by family.
 *
 * A family is an entry of a table: its name, the offset of its figures in a
 * struct of a limit, a server or the zone, and the labels that distinguish
 * them.  A figure that is not a plain counter has a function that reads it.
 * Addresses have a function of their own.
 *
 * Figures are sums over all workers, for everything that the current
 * configuration contains.  Figures of limits and servers that a reload removed
 * stay in memory and reappear if these are configured again.  Labels are names
 * from the configuration, never values that a client sent.
 */


#include "http/ngx_rl_metrics.h"
#include "http/ngx_rl_exposition.h"
#include "http/ngx_rl_subjects.h"
#include "conf/ngx_rl_conf.h"
#include "core/ngx_rl_version.h"


typedef struct {
    ngx_rl_exposition_t  x;
    ngx_rl_main_conf_t  *rmcf;
    ngx_rl_subjects_t    subjects;
} ngx_rl_metrics_t;


/* a label whose values are the names of an enum */

typedef struct {
    const char         *name;    /* NULL: no such label */
    const char *const  *values;
    ngx_uint_t          from;
    ngx_uint_t          to;
} ngx_rl_dimension_t;


/* of a histogram: n bins with an upper bound, one more for all others, a sum */

typedef struct {
    ngx_uint_t       n;
    const uint32_t  *bounds;
    unsigned         time:1;  /* microseconds, shown as seconds */
} ngx_rl_scale_t;


typedef struct ngx_rl_family_s  ngx_rl_family_t;

struct ngx_rl_family_s {
    ngx_rl_of_e         of;
    const char         *name;
    const char         *type;
    const char         *help;

    /*
     * Offset of an ngx_atomic_t, or of an array
     * [dimension[0].to][dimension[1].to].
     */
    size_t              offset;
    ngx_rl_dimension_t  dimension[2];

    /* NULL: read at the offset */
    uint64_t          (*read)(ngx_rl_metrics_t *m,
                              const ngx_rl_family_t *family, void *figures,
                              ngx_uint_t i);

    /* whether a sample is shown while it is 0; NULL: always */
    ngx_uint_t        (*expected)(ngx_rl_metrics_t *m, ngx_uint_t i,
                                  ngx_uint_t k);
};


static ngx_int_t ngx_rl_metrics_handler(ngx_http_request_t *r);
static void ngx_rl_metrics_family(ngx_rl_metrics_t *m,
    const ngx_rl_family_t *family);
static void ngx_rl_metrics_samples(ngx_rl_metrics_t *m,
    const ngx_rl_family_t *family, void *figures, ngx_rl_label_t *labels,
    ngx_uint_t n);
static uint64_t ngx_rl_metrics_gauge(ngx_rl_metrics_t *m,
    const ngx_rl_family_t *family, void *figures, ngx_uint_t i);
static uint64_t ngx_rl_metrics_state(ngx_rl_metrics_t *m,
    const ngx_rl_family_t *family, void *figures, ngx_uint_t i);
static uint64_t ngx_rl_metrics_evictions(ngx_rl_metrics_t *m,
    const ngx_rl_family_t *family, void *figures, ngx_uint_t i);
static uint64_t ngx_rl_metrics_age(ngx_rl_metrics_t *m,
    const ngx_rl_family_t *family, void *figures, ngx_uint_t i);
static ngx_uint_t ngx_rl_metrics_decision_expected(ngx_rl_metrics_t *m,
    ngx_uint_t decision, ngx_uint_t source);
static ngx_uint_t ngx_rl_metrics_preview_expected(ngx_rl_metrics_t *m,
    ngx_uint_t source, ngx_uint_t none);
static void ngx_rl_metrics_histogram(ngx_rl_metrics_t *m,
    const ngx_rl_family_t *family);
static void ngx_rl_metrics_bound(ngx_str_t *value, u_char *le,
    const ngx_rl_scale_t *scale, ngx_uint_t k);
static void ngx_rl_metrics_addresses(ngx_rl_metrics_t *m);


#define ngx_rl_label(name, values, from, to)                                  \
    { name, ngx_rl_##values##_names, from, to }

#define ngx_rl_no_label   { NULL, NULL, 0, 1 }
#define ngx_rl_no_labels  { ngx_rl_no_label, ngx_rl_no_label }

/* of an array that has the names of an enum */
#define ngx_rl_array(of, name, struct, field, label, help)                    \
    { of, name, "counter", help, offsetof(struct, field),                     \
      { label, ngx_rl_no_label }, NULL, NULL }

/* as wide as an ngx_atomic_t */
#define ngx_rl_figure(of, name, type, struct, field, help)                    \
    { of, name, type, help, offsetof(struct, field), ngx_rl_no_labels,        \
      NULL, NULL }

#define ngx_rl_all(name, type, field, help)                                   \
    ngx_rl_figure(NGX_RL_OF_ALL, name, type, ngx_rl_stats_t, field, help)

#define ngx_rl_table(name, field, read, help)                                 \
    { NGX_RL_OF_TABLES, name, "gauge", help, offsetof(ngx_rl_table_t, field), \
      ngx_rl_no_labels, read, NULL }

#define ngx_rl_limit(name, field, help)                                       \
    ngx_rl_figure(NGX_RL_OF_LIMITS, name, "counter", ngx_rl_limit_stats_t,    \
                  field, help)

#define ngx_rl_server(name, field, help)                                      \
    ngx_rl_figure(NGX_RL_OF_SERVERS, name, "counter", ngx_rl_record_t, field, \
                  help)

/* sum over all living workers */
#define ngx_rl_gauge(name, field, help)                                       \
    { NGX_RL_OF_SERVERS, name, "gauge", help,                                 \
      offsetof(ngx_rl_gauges_t, field), ngx_rl_no_labels,                     \
      ngx_rl_metrics_gauge, NULL }

#define ngx_rl_zone(name, type, field, help)                                  \
    ngx_rl_figure(NGX_RL_OF_ZONE, name, type, ngx_rl_zone_usage_t, field, help)


static const ngx_rl_family_t  ngx_rl_families[] = {

    { NGX_RL_OF_ALL, "nginx_ratelimit_decisions_total", "counter",
      "Requests to locations with limits, each counted once.",
      offsetof(ngx_rl_stats_t, decisions),
      { ngx_rl_label("decision", decision, 0, NGX_RL_DECISIONS),
        ngx_rl_label("source", source, 0, NGX_RL_SOURCES) },
      NULL, ngx_rl_metrics_decision_expected },

    { NGX_RL_OF_LIMITS, "nginx_ratelimit_requests_total", "counter",
      "Decisions of each limit about requests.",
      offsetof(ngx_rl_limit_stats_t, requests),
      { ngx_rl_label("decision", decision, 0, NGX_RL_DECISIONS),
        ngx_rl_label("source", source, 0, NGX_RL_SOURCES) },
      NULL, ngx_rl_metrics_decision_expected },

    { NGX_RL_OF_LIMITS, "nginx_ratelimit_previews_total", "counter",
      "Previews of each limit.",
      offsetof(ngx_rl_limit_stats_t, previews),
      { ngx_rl_label("source", source, 0, NGX_RL_SOURCES), ngx_rl_no_label },
      NULL, ngx_rl_metrics_preview_expected },

    ngx_rl_limit("nginx_ratelimit_tokens_total", tokens,
                 "Tokens that requests took."),

    ngx_rl_limit("nginx_ratelimit_near_limit_total", near_limit,
                 "Requests that passed and left less than 20 percent of the "
                 "capacity."),

    ngx_rl_limit("nginx_ratelimit_invalid_values_total", invalid,
                 "Invalid values of variables in limits."),

    ngx_rl_figure(NGX_RL_OF_ADVICE, "nginx_ratelimit_needed_capacity",
                  "histogram", ngx_rl_advice_t, bins,
                  "Capacity that requests would have needed to pass, for "
                  "limits with advise."),

    ngx_rl_table("nginx_ratelimit_overrides", live, NULL,
                 "Overrides of each limit that hold on this machine."),

    ngx_rl_table("nginx_ratelimit_overrides_invalid", invalid, NULL,
                 "Overrides in Redis that have an invalid text."),

    ngx_rl_table("nginx_ratelimit_overrides_age_seconds", synced,
                 ngx_rl_metrics_age,
                 "Time since the overrides were last compared with Redis."),

    { NGX_RL_OF_ALL, "nginx_ratelimit_fallback_decisions_total", "counter",
      "Requests decided without an answer from Redis.",
      offsetof(ngx_rl_stats_t, fallback),
      { ngx_rl_label("policy", source, NGX_RL_SOURCE_LOCAL,
                     NGX_RL_SOURCE_CLOSED + 1),
        ngx_rl_label("reason", reason, 0, NGX_RL_REASONS) },
      NULL, NULL },

    ngx_rl_server("nginx_ratelimit_redis_calls_total", counters.commands,
                  "Script calls sent to Redis."),

    ngx_rl_server("nginx_ratelimit_redis_reconnects_total", counters.reconnects,
                  "Connections to Redis that replaced lost ones."),

    ngx_rl_server("nginx_ratelimit_redis_script_reloads_total",
                  counters.script_reloads,
                  "Calls sent again with the script text, because Redis had "
                  "lost the script."),

    ngx_rl_server("nginx_ratelimit_redis_refunds_total", counters.refunds,
                  "Calls that returned tokens to Redis."),

    ngx_rl_server("nginx_ratelimit_redis_refunds_lost_total",
                  counters.refunds_lost,
                  "Refunds that Redis did not confirm."),

    ngx_rl_server("nginx_ratelimit_redis_sent_bytes_total", traffic.sent,
                  "Bytes sent to Redis."),

    ngx_rl_server("nginx_ratelimit_redis_received_bytes_total",
                  traffic.received,
                  "Bytes received from Redis."),

    ngx_rl_gauge("nginx_ratelimit_redis_calls_in_flight", calls,
                 "Calls to Redis that are waiting for a reply."),

    ngx_rl_gauge("nginx_ratelimit_redis_connections", connections,
                 "Connections to Redis that are ready."),

    ngx_rl_array(NGX_RL_OF_SERVERS, "nginx_ratelimit_redis_failures_total",
                 ngx_rl_record_t, counters.failures,
                 ngx_rl_label("class", failure, NGX_RL_OK + 1, NGX_RL_CIRCUIT),
                 "Failed calls and connections to Redis."),

    ngx_rl_all("nginx_ratelimit_decision_seconds", "histogram", latency,
               "Time that each decision took."),

    ngx_rl_figure(NGX_RL_OF_SERVERS, "nginx_ratelimit_redis_latency_seconds",
                  "histogram", ngx_rl_record_t, counters.latency,
                  "Time from each call to its reply."),

    { NGX_RL_OF_SERVERS, "nginx_ratelimit_breaker_state", "gauge",
      "The current state of a shard has the value 1, other states 0.",
      0,
      { ngx_rl_label("state", breaker, 0, NGX_RL_BREAKER_STATES),
        ngx_rl_no_label },
      ngx_rl_metrics_state, NULL },

    ngx_rl_array(NGX_RL_OF_SERVERS,
                 "nginx_ratelimit_breaker_transitions_total",
                 ngx_rl_record_t, counters.transitions,
                 ngx_rl_label("to", breaker, 0, NGX_RL_BREAKER_STATES),
                 "Changes of a shard's state, by the new state."),

    ngx_rl_array(NGX_RL_OF_SERVERS, "nginx_ratelimit_topology_events_total",
                 ngx_rl_record_t, counters.events,
                 ngx_rl_label("event", event, 0, NGX_RL_EVENTS),
                 "Events of clusters, sentinels and name lookups."),

    /*
     * A refused address belongs to no server, and the node that announced it
     * may have left.  So it is counted for the cluster.
     */
    ngx_rl_array(NGX_RL_OF_CLUSTERS, "nginx_ratelimit_topology_events_total",
                 ngx_rl_record_t, counters.events,
                 ngx_rl_label("event", event, NGX_RL_EVENT_REFUSED,
                              NGX_RL_EVENT_REFUSED + 1),
                 NULL),

    ngx_rl_zone("nginx_ratelimit_zone_size_bytes", "gauge", size,
                "Size of the shared memory zone."),

    ngx_rl_zone("nginx_ratelimit_zone_used_bytes", "gauge", used,
                "Used part of the shared memory zone."),

    ngx_rl_zone("nginx_ratelimit_zone_keys", "gauge", keys,
                "Keys in the shared memory zone."),

    ngx_rl_zone("nginx_ratelimit_zone_resets_total", "counter", resets,
                "Times all keys were discarded because a worker had died."),

    ngx_rl_all("nginx_ratelimit_leases_refused_total", "counter",
               leases_refused,
               "Leases not taken because a worker had too many; Redis decided "
               "instead."),

    { NGX_RL_OF_ZONE, "nginx_ratelimit_zone_evictions_total", "counter",
      "Keys evicted to make room for others, by what they held.",
      0,
      { ngx_rl_label("held", held, 0, NGX_RL_HELDS), ngx_rl_no_label },
      ngx_rl_metrics_evictions, NULL },

    { 0, NULL, NULL, NULL, 0, ngx_rl_no_labels, NULL, NULL }
};


static const char *ngx_rl_subject_labels[NGX_RL_OF_N] = {
    NULL, "limit", "limit", "limit", "shard", "shard", "shard", NULL
};


static const ngx_rl_scale_t  ngx_rl_scale_latency = {
    NGX_RL_LATENCIES, ngx_rl_latency_bounds, 1
};

static const ngx_rl_scale_t  ngx_rl_scale_advice = {
    NGX_RL_ADVICE_BOUNDS, ngx_rl_advice_bounds, 0
};


char *
ngx_rl_metrics(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_rl_main_conf_t        *rmcf;
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->handler == ngx_rl_metrics_handler) {
        return "is duplicate";
    }

    if (clcf->handler) {
        return "conflicts with another directive that generates the response";
    }

    clcf->handler = ngx_rl_metrics_handler;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);
    rmcf->used = 1;

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_rl_metrics_handler(ngx_http_request_t *r)
{
    ngx_int_t               rc;
    ngx_rl_label_t          labels[2];
    ngx_rl_metrics_t        m;
    ngx_rl_zone_usage_t     usage;
    const ngx_rl_family_t  *family;

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    rc = ngx_http_discard_request_body(r);
    if (rc != NGX_OK) {
        return rc;
    }

    ngx_rl_exposition_init(&m.x, r);
    m.rmcf = ngx_http_get_module_main_conf(r, ngx_http_ratelimit_module);

    if (ngx_rl_subjects_find(m.subjects, r->pool, m.rmcf, &usage) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_rl_label_set(&labels[0], "version", NGX_RL_VERSION);
    ngx_rl_label_set(&labels[1], "nginx", NGINX_VERSION);

    ngx_rl_exposition_family(&m.x, "nginx_ratelimit_build_info", "gauge",
                             "Versions of the module and of nginx.");
    ngx_rl_exposition_sample(&m.x, "nginx_ratelimit_build_info", "", labels, 2,
                             1);

    for (family = ngx_rl_families;
         family->name && !m.x.output.failed;
         family++)
    {
        ngx_rl_metrics_family(&m, family);
    }

    ngx_rl_metrics_addresses(&m);

    return ngx_rl_exposition_send(&m.x);
}


/* writes the head of a family that may have samples; NULL: already written */

static void
ngx_rl_metrics_family(ngx_rl_metrics_t *m, const ngx_rl_family_t *family)
{
    ngx_uint_t         i;
    ngx_array_t       *subjects;
    ngx_rl_label_t     labels[3];
    ngx_rl_subject_t  *subject;

    if ((family->of == NGX_RL_OF_LIMITS && m->rmcf->limits.nelts == 0)
        || ((family->of == NGX_RL_OF_ADVICE || family->of == NGX_RL_OF_TABLES)
            && m->subjects[family->of].nelts == 0)
        || (family->of == NGX_RL_OF_SERVERS && m->rmcf->servers.nelts == 0))
    {
        return;
    }

    if (family->help) {
        ngx_rl_exposition_family(&m->x, family->name, family->type,
                                 family->help);
    }

    if (ngx_strcmp(family->type, "histogram") == 0) {
        ngx_rl_metrics_histogram(m, family);
        return;
    }

    subjects = &m->subjects[family->of];
    subject = subjects->elts;
    labels[0].name = ngx_rl_subject_labels[family->of];

    for (i = 0; i < subjects->nelts; i++) {
        labels[0].value = subject[i].name;
        ngx_rl_metrics_samples(m, family, subject[i].figures, labels,
                               labels[0].name != NULL);
    }
}


/* samples of one subject; "labels" has room for two more */

static void
ngx_rl_metrics_samples(ngx_rl_metrics_t *m, const ngx_rl_family_t *family,
    void *figures, ngx_rl_label_t *labels, ngx_uint_t n)
{
    uint64_t                   value;
    ngx_uint_t                 i, k, last;
    ngx_atomic_t              *counter;
    const ngx_rl_dimension_t  *row, *column;

    row = &family->dimension[0];
    column = &family->dimension[1];
    counter = (ngx_atomic_t *) ((u_char *) figures + family->offset);

    for (i = row->from; i < row->to; i++) {
        for (k = column->from; k < column->to; k++) {

            value = family->read ? family->read(m, family, figures, i)
                                 : counter[i * column->to + k];

            if (value == 0 && family->expected && !family->expected(m, i, k)) {
                continue;
            }

            last = n;

            if (row->name) {
                ngx_rl_label_set(&labels[last++], row->name, row->values[i]);
            }

            if (column->name) {
                ngx_rl_label_set(&labels[last++], column->name,
                                 column->values[k]);
            }

            ngx_rl_exposition_sample(&m->x, family->name, "", labels, last,
                                     value);
        }
    }
}


static uint64_t
ngx_rl_metrics_gauge(ngx_rl_metrics_t *m, const ngx_rl_family_t *family,
    void *figures, ngx_uint_t i)
{
    ngx_rl_gauges_t  sum;

    ngx_rl_record_sum(m->rmcf->stats, figures, &sum);

    return *(uint32_t *) ((u_char *) &sum + family->offset);
}


static uint64_t
ngx_rl_metrics_state(ngx_rl_metrics_t *m, const ngx_rl_family_t *family,
    void *figures, ngx_uint_t i)
{
    ngx_rl_record_t  *record = figures;

    return record->breaker.state == i;
}


static uint64_t
ngx_rl_metrics_evictions(ngx_rl_metrics_t *m, const ngx_rl_family_t *family,
    void *figures, ngx_uint_t i)
{
    ngx_rl_zone_usage_t  *usage = figures;

    return usage->evictions[i];
}


/* 0 if there is nothing in Redis to compare them with */

static uint64_t
ngx_rl_metrics_age(ngx_rl_metrics_t *m, const ngx_rl_family_t *family,
    void *figures, ngx_uint_t i)
{
    ngx_rl_table_t  *table = figures;

    return (table->synced && table->synced < (ngx_atomic_uint_t) ngx_time())
           ? (uint64_t) ngx_time() - table->synced : 0;
}


/*
 * Whether a counter is shown from the start, so that its first rise is
 * visible.
 */

static ngx_uint_t
ngx_rl_metrics_decision_expected(ngx_rl_metrics_t *m, ngx_uint_t decision,
    ngx_uint_t source)
{
    ngx_uint_t  passed, rejected;

    passed = (decision == NGX_RL_DECISION_PASSED);
    rejected = (decision == NGX_RL_DECISION_REJECTED);

    if (source != NGX_RL_SOURCE_LOCAL && m->rmcf->servers.nelts == 0) {
        return 0;
    }

    switch (source) {

    case NGX_RL_SOURCE_REDIS:
    case NGX_RL_SOURCE_LOCAL:
        return passed || rejected;

    case NGX_RL_SOURCE_LEASE:
    case NGX_RL_SOURCE_OPEN:
        return passed;

    case NGX_RL_SOURCE_DENIED:
    case NGX_RL_SOURCE_CLOSED:
        return rejected;

    default:
        return 0;
    }
}


static ngx_uint_t
ngx_rl_metrics_preview_expected(ngx_rl_metrics_t *m, ngx_uint_t source,
    ngx_uint_t none)
{
    return source == NGX_RL_SOURCE_LOCAL
           || (m->rmcf->servers.nelts
               && (source == NGX_RL_SOURCE_REDIS
                   || source == NGX_RL_SOURCE_CACHE));
}


/* JSON needs all samples of one name together */

static void
ngx_rl_metrics_histogram(ngx_rl_metrics_t *m, const ngx_rl_family_t *family)
{
    u_char                 le[NGX_INT64_LEN + sizeof(".000000")];
    uint64_t               count;
    ngx_uint_t             i, k, n, part;
    ngx_array_t           *subjects;
    ngx_atomic_t          *bins;
    ngx_rl_label_t         labels[2];
    ngx_rl_subject_t      *subject;
    const ngx_rl_scale_t  *scale;

    enum { BUCKETS = 0, SUM, COUNT };

    subjects = &m->subjects[family->of];
    subject = subjects->elts;

    labels[0].name = ngx_rl_subject_labels[family->of];
    n = (labels[0].name != NULL);

    scale = (family->of == NGX_RL_OF_ADVICE) ? &ngx_rl_scale_advice
                                             : &ngx_rl_scale_latency;

    for (part = BUCKETS; part <= COUNT; part++) {
        for (i = 0; i < subjects->nelts; i++) {

            labels[0].value = subject[i].name;
            bins = (ngx_atomic_t *)
                       ((u_char *) subject[i].figures + family->offset);

            if (part == SUM && scale->time) {
                ngx_rl_exposition_seconds(&m->x, family->name, "_sum", labels,
                                          n, bins[scale->n + 1]);
                continue;
            }

            if (part == SUM) {
                ngx_rl_exposition_sample(&m->x, family->name, "_sum", labels,
                                         n, bins[scale->n + 1]);
                continue;
            }

            count = 0;

            for (k = 0; k <= scale->n; k++) {
                count += bins[k];

                if (part == BUCKETS) {
                    labels[n].name = "le";
                    ngx_rl_metrics_bound(&labels[n].value, le, scale, k);
                    ngx_rl_exposition_sample(&m->x, family->name, "_bucket",
                                             labels, n + 1, count);
                }
            }

            if (part == COUNT) {
                ngx_rl_exposition_sample(&m->x, family->name, "_count", labels,
                                         n, count);
            }
        }
    }
}


/* an upper bound; seconds are written without trailing zeroes */

static void
ngx_rl_metrics_bound(ngx_str_t *value, u_char *le, const ngx_rl_scale_t *scale,
    ngx_uint_t k)
{
    u_char   *p;
    uint32_t  us;

    if (k == scale->n) {
        ngx_str_set(value, "+Inf");
        return;
    }

    value->data = le;

    if (!scale->time) {
        value->len = ngx_sprintf(le, "%uD", scale->bounds[k]) - le;
        return;
    }

    us = scale->bounds[k];

    p = ngx_sprintf(le, "%uD.%06uD", us / NGX_RL_MICRO, us % NGX_RL_MICRO);

    while (p[-1] == '0') {
        p--;
    }

    if (p[-1] == '.') {
        p--;
    }

    value->len = p - le;
}


/* the addresses of servers, and of the sentinels that report them */

static void
ngx_rl_metrics_addresses(ngx_rl_metrics_t *m)
{
    u_char             text[NGX_SOCKADDR_STRLEN];
    ngx_uint_t         i, of;
    ngx_rl_label_t     labels[3];
    ngx_rl_record_t   *record;
    ngx_rl_subject_t  *subject;

    static const char  name[] = "nginx_ratelimit_shard_node";

    if (m->rmcf->servers.nelts == 0 || m->x.output.failed) {
        return;
    }

    ngx_rl_exposition_family(&m->x, name, "gauge",
                             "The last known address of a shard.");

    for (of = NGX_RL_OF_SERVERS; of <= NGX_RL_OF_SENTINELS; of++) {

        subject = m->subjects[of].elts;

        for (i = 0; i < m->subjects[of].nelts; i++) {

            record = subject[i].figures;

            ngx_rl_zone_lock(m->rmcf->zone);

            labels[1].value.len = ngx_min(record->place.len,
                                          NGX_SOCKADDR_STRLEN);
            ngx_memcpy(text, record->place.address, labels[1].value.len);

            ngx_rl_zone_unlock(m->rmcf->zone);

            if (labels[1].value.len == 0) {
                continue;
            }

            labels[0].name = "shard";
            labels[0].value = subject[i].name;
            labels[1].name = "node";
            labels[1].value.data = text;
            ngx_rl_label_set(&labels[2], "role",
                             ngx_rl_role_names[record->place.role]);

            ngx_rl_exposition_sample(&m->x, name, "", labels, 3, 1);
        }
    }
}
