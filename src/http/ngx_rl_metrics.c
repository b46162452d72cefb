
/*
 * One walk over all figures, and two ways to write a sample down:
 *
 *     nginx_ratelimit_zone_keys 42
 *     "nginx_ratelimit_zone_keys": [{"value": 42}]
 *
 * Figures are of all workers and of all that the present configuration has;
 * those of limits and shards that a reload has removed stay in memory, and
 * come back with them.  Labels are names from the configuration, never
 * anything that a client sent.
 */


#include "http/ngx_rl_metrics.h"
#include "conf/ngx_rl_conf.h"
#include "pure/ngx_rl_escape.h"
#include "core/ngx_rl_version.h"


#define NGX_RL_METRICS_BLOCK   16384
#define NGX_RL_METRICS_SAMPLE  256     /* without its labels */

#define ngx_rl_labels(labels)                                                 \
    labels, sizeof(labels) / sizeof(labels[0])

#define ngx_rl_family(name, help)                                             \
    { name, name "_bucket", name "_sum", name "_count", help }


typedef struct {
    const char  *name;
    ngx_str_t    value;
} ngx_rl_label_t;


/* the names of a histogram's samples */

typedef struct {
    const char  *name;
    const char  *bucket;
    const char  *sum;
    const char  *count;
    const char  *help;
} ngx_rl_family_t;


/* one of those that make a histogram; a label without a name: the only one */

typedef struct {
    ngx_rl_label_t       label;
    ngx_rl_histogram_t  *histogram;
} ngx_rl_series_t;


/* a server, whoever knows about it */

typedef struct {
    ngx_str_t         label;
    ngx_rl_record_t  *stats;
} ngx_rl_metrics_server_t;


typedef struct {
    ngx_http_request_t  *request;
    ngx_rl_main_conf_t  *rmcf;
    ngx_array_t          servers;   /* keep limits */
    ngx_array_t          guides;    /* know where those are */
    ngx_array_t          clusters;  /* that those are nodes of */
    ngx_chain_t         *out;
    ngx_chain_t        **last;
    ngx_buf_t           *buf;
    const char          *family;    /* of JSON, being written */
    off_t                length;
    unsigned             json:1;
    unsigned             failed:1;  /* no memory */
} ngx_rl_metrics_t;


static ngx_int_t ngx_rl_metrics_handler(ngx_http_request_t *r);
static ngx_int_t ngx_rl_metrics_send(ngx_http_request_t *r,
    ngx_rl_metrics_t *m);
static void ngx_rl_metrics_requests(ngx_rl_metrics_t *m);
static void ngx_rl_metrics_decisions(
    ngx_rl_metrics_t *m, const char *family, ngx_str_t *limit,
    ngx_rl_decisions_t counters);
static ngx_uint_t ngx_rl_metrics_expected(
    ngx_rl_metrics_t *m, ngx_uint_t decision, ngx_uint_t source);
static void ngx_rl_metrics_fallback(ngx_rl_metrics_t *m);
static void ngx_rl_metrics_shards(ngx_rl_metrics_t *m);
static void ngx_rl_metrics_latency(ngx_rl_metrics_t *m);
static void ngx_rl_metrics_histogram(
    ngx_rl_metrics_t *m, const ngx_rl_family_t *family,
    ngx_rl_series_t *series, ngx_uint_t n);
static void ngx_rl_metrics_bound(ngx_str_t *value, u_char *le, ngx_uint_t k);
static void ngx_rl_metrics_breakers(ngx_rl_metrics_t *m);
static void ngx_rl_metrics_zone(ngx_rl_metrics_t *m);
static void ngx_rl_metrics_topology(ngx_rl_metrics_t *m);
static void ngx_rl_metrics_find(ngx_rl_metrics_t *m);
static void ngx_rl_metrics_nodes(ngx_rl_metrics_t *m,
    ngx_rl_server_conf_t *cluster);
static void ngx_rl_metrics_add(ngx_rl_metrics_t *m,
    ngx_array_t *servers, ngx_str_t *label, ngx_rl_record_t *record);
static ngx_rl_metrics_server_t *ngx_rl_metrics_next(
    ngx_array_t *servers, ngx_uint_t *i);
static void ngx_rl_metrics_family(ngx_rl_metrics_t *m,
    const char *name, const char *type, const char *help);
static void ngx_rl_metrics_sample(ngx_rl_metrics_t *m,
    const char *name, ngx_rl_label_t *labels, ngx_uint_t n, uint64_t value);
static void ngx_rl_metrics_micro(ngx_rl_metrics_t *m,
    const char *name, ngx_rl_label_t *labels, ngx_uint_t n, uint64_t value);
static u_char *ngx_rl_metrics_open(ngx_rl_metrics_t *m, const char *name,
    ngx_rl_label_t *labels, ngx_uint_t n);
static void ngx_rl_metrics_close(ngx_rl_metrics_t *m, u_char *p);
static u_char *ngx_rl_metrics_room(ngx_rl_metrics_t *m, size_t size);
static void ngx_rl_metrics_set(ngx_rl_label_t *label,
    const char *name, const char *value);


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
        return "stands beside another directive that makes the answer";
    }

    clcf->handler = ngx_rl_metrics_handler;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);
    rmcf->used = 1;

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_rl_metrics_handler(ngx_http_request_t *r)
{
    ngx_int_t         rc;
    ngx_str_t         format;
    ngx_rl_label_t    labels[2];
    ngx_rl_metrics_t  m;

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    rc = ngx_http_discard_request_body(r);
    if (rc != NGX_OK) {
        return rc;
    }

    ngx_memzero(&m, sizeof(ngx_rl_metrics_t));

    m.request = r;
    m.rmcf = ngx_http_get_module_main_conf(r, ngx_http_ratelimit_module);
    m.last = &m.out;
    m.json = ngx_http_arg(r, (u_char *) "format", 6, &format) == NGX_OK
             && format.len == 4 && ngx_strncmp(format.data, "json", 4) == 0;

    ngx_rl_metrics_set(&labels[0], "version", NGX_RL_VERSION);
    ngx_rl_metrics_set(&labels[1], "nginx", NGINX_VERSION);

    ngx_rl_metrics_family(&m, "nginx_ratelimit_build_info",
                          "gauge", "The module, and the nginx it is in.");
    ngx_rl_metrics_sample(&m, "nginx_ratelimit_build_info",
                          ngx_rl_labels(labels), 1);

    ngx_rl_metrics_find(&m);
    ngx_rl_metrics_requests(&m);
    ngx_rl_metrics_fallback(&m);
    ngx_rl_metrics_shards(&m);
    ngx_rl_metrics_latency(&m);
    ngx_rl_metrics_breakers(&m);
    ngx_rl_metrics_topology(&m);
    ngx_rl_metrics_zone(&m);

    return ngx_rl_metrics_send(r, &m);
}


static ngx_int_t
ngx_rl_metrics_send(ngx_http_request_t *r, ngx_rl_metrics_t *m)
{
    u_char       *p;
    ngx_int_t     rc;
    ngx_chain_t  *cl;

    if (m->json) {
        p = ngx_rl_metrics_room(m, sizeof("\n]\n}\n"));

        if (p) {
            ngx_rl_metrics_close(m, ngx_sprintf(p, "\n]\n}\n"));
        }
    }

    if (m->failed) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    for (cl = m->out; cl; cl = cl->next) {
        m->length += ngx_buf_size(cl->buf);
    }

    m->buf->last_buf = (r == r->main);
    m->buf->last_in_chain = 1;

    if (m->json) {
        ngx_str_set(&r->headers_out.content_type, "application/json");

    } else {
        ngx_str_set(&r->headers_out.content_type,
                    "text/plain; version=0.0.4; charset=utf-8");
    }

    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;
    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = m->length;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    return ngx_http_output_filter(r, m->out);
}


static void
ngx_rl_metrics_requests(ngx_rl_metrics_t *m)
{
    ngx_uint_t        i, k;
    ngx_atomic_t     *counter;
    ngx_rl_label_t    labels[2];
    ngx_rl_limit_t  **limit;

    static const struct {
        const char  *name;
        size_t       offset;
        const char  *help;
    }  counters[] = {

        { "nginx_ratelimit_tokens_total",
          offsetof(ngx_rl_limit_stats_t, tokens),
          "Tokens that requests took." },

        { "nginx_ratelimit_near_limit_total",
          offsetof(ngx_rl_limit_stats_t, near_limit),
          "Requests that passed and left less than 20 percent." },

        { "nginx_ratelimit_invalid_values_total",
          offsetof(ngx_rl_limit_stats_t, invalid),
          "Values of variables that make no limit." }
    };

    limit = m->rmcf->limits.elts;

    ngx_rl_metrics_family(m, "nginx_ratelimit_decisions_total",
                          "counter",
                          "Requests to limited places, each counted once.");

    ngx_rl_metrics_decisions(m, "nginx_ratelimit_decisions_total",
                             NULL, m->rmcf->stats->decisions);

    if (m->rmcf->limits.nelts == 0) {
        return;
    }

    ngx_rl_metrics_family(m, "nginx_ratelimit_requests_total",
                          "counter",
                          "What each limit decided about requests.");

    for (i = 0; i < m->rmcf->limits.nelts; i++) {
        ngx_rl_metrics_decisions(m,
                                 "nginx_ratelimit_requests_total",
                                 &limit[i]->name, limit[i]->stats->requests);
    }

    labels[0].name = "limit";

    ngx_rl_metrics_family(m, "nginx_ratelimit_previews_total",
                          "counter", "Looks at each limit.");

    for (i = 0; i < m->rmcf->limits.nelts; i++) {
        labels[0].value = limit[i]->name;

        for (k = 0; k < NGX_RL_SOURCES; k++) {

            if (limit[i]->stats->previews[k] == 0
                && k != NGX_RL_SOURCE_LOCAL
                && (m->rmcf->peers.nelts == 0
                    || (k != NGX_RL_SOURCE_REDIS
                        && k != NGX_RL_SOURCE_CACHE)))
            {
                continue;
            }

            ngx_rl_metrics_set(&labels[1], "source", ngx_rl_source_name(k));
            ngx_rl_metrics_sample(m,
                                  "nginx_ratelimit_previews_total",
                                  ngx_rl_labels(labels),
                                  limit[i]->stats->previews[k]);
        }
    }

    for (k = 0; k < sizeof(counters) / sizeof(counters[0]); k++) {

        ngx_rl_metrics_family(m, counters[k].name, "counter", counters[k].help);

        for (i = 0; i < m->rmcf->limits.nelts; i++) {
            labels[0].value = limit[i]->name;
            counter = (ngx_atomic_t *) ((u_char *) limit[i]->stats
                                        + counters[k].offset);

            ngx_rl_metrics_sample(m, counters[k].name, labels, 1, *counter);
        }
    }
}


static void
ngx_rl_metrics_decisions(ngx_rl_metrics_t *m,
    const char *family, ngx_str_t *limit, ngx_rl_decisions_t counters)
{
    ngx_uint_t      i, k, n;
    ngx_rl_label_t  labels[3];

    n = 0;

    if (limit) {
        labels[n].name = "limit";
        labels[n++].value = *limit;
    }

    for (i = 0; i < NGX_RL_DECISIONS; i++) {
        for (k = 0; k < NGX_RL_SOURCES; k++) {

            if (counters[i][k] == 0 && !ngx_rl_metrics_expected(m, i, k)) {
                continue;
            }

            ngx_rl_metrics_set(&labels[n], "decision", ngx_rl_decision_name(i));
            ngx_rl_metrics_set(&labels[n + 1], "source", ngx_rl_source_name(k));

            ngx_rl_metrics_sample(m, family, labels, n + 2, counters[i][k]);
        }
    }
}


/* whether a counter is there from the beginning, so that its rise is seen */

static ngx_uint_t
ngx_rl_metrics_expected(ngx_rl_metrics_t *m,
    ngx_uint_t decision, ngx_uint_t source)
{
    ngx_uint_t  shards;

    if (decision != NGX_RL_DECISION_PASSED
        && decision != NGX_RL_DECISION_REJECTED)
    {
        return 0;
    }

    shards = m->rmcf->peers.nelts;

    switch (source) {

    case NGX_RL_SOURCE_REDIS:
        return shards > 0;

    case NGX_RL_SOURCE_LOCAL:
        return 1;

    case NGX_RL_SOURCE_LEASE:
    case NGX_RL_SOURCE_OPEN:
        return shards && decision == NGX_RL_DECISION_PASSED;

    case NGX_RL_SOURCE_DENIED:
    case NGX_RL_SOURCE_CLOSED:
        return shards && decision == NGX_RL_DECISION_REJECTED;

    default:
        return 0;
    }
}


static void
ngx_rl_metrics_fallback(ngx_rl_metrics_t *m)
{
    ngx_uint_t      i, k;
    ngx_rl_label_t  labels[2];

    static ngx_rl_source_e  policies[] = {
        NGX_RL_SOURCE_LOCAL,
        NGX_RL_SOURCE_OPEN,
        NGX_RL_SOURCE_CLOSED
    };

    ngx_rl_metrics_family(m,
                          "nginx_ratelimit_fallback_decisions_total", "counter",
                          "Requests decided without an answer from Redis.");

    for (i = 0; i < sizeof(policies) / sizeof(policies[0]); i++) {
        for (k = 0; k < NGX_RL_REASONS; k++) {

            ngx_rl_metrics_set(&labels[0], "policy",
                               ngx_rl_source_name(policies[i]));
            ngx_rl_metrics_set(&labels[1], "reason", ngx_rl_reason_name(k));

            ngx_rl_metrics_sample(m,
                                  "nginx_ratelimit_fallback_decisions_total",
                                  ngx_rl_labels(labels),
                                  m->rmcf->stats->fallback[policies[i]][k]);
        }
    }
}


static void
ngx_rl_metrics_find(ngx_rl_metrics_t *m)
{
    ngx_uint_t                i;
    ngx_rl_server_conf_t    **conf;
    ngx_rl_sentinels_conf_t  *sentinels;

    conf = m->rmcf->peers.elts;

    if (ngx_array_init(&m->servers, m->request->pool, m->rmcf->peers.nelts + 1,
                       sizeof(ngx_rl_metrics_server_t))
        != NGX_OK
        || ngx_array_init(&m->guides, m->request->pool, 1,
                          sizeof(ngx_rl_metrics_server_t))
        != NGX_OK
        || ngx_array_init(&m->clusters, m->request->pool, 1,
                          sizeof(ngx_rl_metrics_server_t))
        != NGX_OK)
    {
        m->failed = 1;
        return;
    }

    for (i = 0; i < m->rmcf->peers.nelts; i++) {

        if (conf[i]->kind == NGX_RL_CLUSTER) {
            ngx_rl_metrics_nodes(m, conf[i]);
            ngx_rl_metrics_add(m, &m->clusters, &conf[i]->label,
                               conf[i]->stats);
            continue;
        }

        ngx_rl_metrics_add(m, &m->servers, &conf[i]->label, conf[i]->stats);

        sentinels = conf[i]->sentinels;

        if (sentinels) {
            ngx_rl_metrics_add(m, &m->guides, &sentinels->peer->label,
                               sentinels->peer->stats);
        }
    }
}


/* those that a worker has found in the map when it last looked */

static void
ngx_rl_metrics_nodes(ngx_rl_metrics_t *m, ngx_rl_server_conf_t *cluster)
{
    size_t            room;
    ngx_str_t         name;
    ngx_rl_record_t  *record;

    record = NULL;
    room = 0;

    for ( ;; ) {

        if (room == 0) {
            room = cluster->user.len + NGX_RL_SERVER_NAME;

            name.data = ngx_pnalloc(m->request->pool, room);
            if (name.data == NULL) {
                m->failed = 1;
                return;
            }
        }

        record = ngx_rl_stats_next(m->rmcf->zone, record, &name, room);
        if (record == NULL) {
            return;
        }

        /* a process that has ended since may have been the last to see it */

        if (record->role == NGX_RL_ROLE_NODE && record->mapped
            && record->set == cluster->hash
            && ngx_rl_stats_used(m->rmcf->stats, record))
        {
            ngx_rl_metrics_add(m, &m->servers, &name, record);
            room = 0;
        }
    }
}


/* peers may share their counters */

static void
ngx_rl_metrics_add(ngx_rl_metrics_t *m, ngx_array_t *servers, ngx_str_t *label,
    ngx_rl_record_t *record)
{
    ngx_uint_t                i;
    ngx_rl_metrics_server_t  *server;

    server = servers->elts;

    for (i = 0; i < servers->nelts; i++) {
        if (server[i].stats == record) {
            return;
        }
    }

    server = ngx_array_push(servers);
    if (server == NULL) {
        m->failed = 1;
        return;
    }

    server->label = *label;
    server->stats = record;
}


static ngx_rl_metrics_server_t *
ngx_rl_metrics_next(ngx_array_t *servers, ngx_uint_t *i)
{
    ngx_rl_metrics_server_t  *server;

    server = servers->elts;

    return (*i < servers->nelts) ? &server[(*i)++] : NULL;
}


static void
ngx_rl_metrics_shards(ngx_rl_metrics_t *m)
{
    ngx_uint_t                i, k;
    ngx_atomic_t             *counter;
    ngx_rl_label_t            labels[2];
    ngx_rl_gauges_t           sum;
    ngx_rl_metrics_server_t  *server;

    static struct {
        const char  *name;
        size_t       offset;
        const char  *help;
    }  counters[] = {

        { "nginx_ratelimit_redis_calls_total",
          offsetof(ngx_rl_record_t, calls),
          "Script calls sent to Redis." },

        { "nginx_ratelimit_redis_reconnects_total",
          offsetof(ngx_rl_record_t, reconnects),
          "Connections to Redis made in place of lost ones." },

        { "nginx_ratelimit_redis_script_reloads_total",
          offsetof(ngx_rl_record_t, script_reloads),
          "Calls sent again with the text of a script that Redis had lost." },

        { "nginx_ratelimit_redis_refunds_total",
          offsetof(ngx_rl_record_t, refunds),
          "Calls that gave back what other limits' denials made useless." },

        { "nginx_ratelimit_redis_refunds_lost_total",
          offsetof(ngx_rl_record_t, refunds_lost),
          "Refunds that did not arrive, as far as nginx knows." },

        { "nginx_ratelimit_redis_sent_bytes_total",
          offsetof(ngx_rl_record_t, sent),
          "Bytes sent to Redis." },

        { "nginx_ratelimit_redis_received_bytes_total",
          offsetof(ngx_rl_record_t, received),
          "Bytes received from Redis." }
    };

    static const char  in_flight[] = "nginx_ratelimit_redis_calls_in_flight";
    static const char  connections[] = "nginx_ratelimit_redis_connections";
    static const char  failures[] = "nginx_ratelimit_redis_failures_total";

    if (m->rmcf->peers.nelts == 0) {
        return;
    }

    labels[0].name = "shard";

    for (k = 0; k < sizeof(counters) / sizeof(counters[0]); k++) {

        ngx_rl_metrics_family(m, counters[k].name, "counter", counters[k].help);

        i = 0;

        while ((server = ngx_rl_metrics_next(&m->servers, &i))) {
            labels[0].value = server->label;
            counter = (ngx_atomic_t *) ((u_char *) server->stats
                                        + counters[k].offset);

            ngx_rl_metrics_sample(m, counters[k].name, labels, 1, *counter);
        }
    }

    ngx_rl_metrics_family(m, in_flight, "gauge",
                          "Calls to Redis that wait for their replies.");

    i = 0;

    while ((server = ngx_rl_metrics_next(&m->servers, &i))) {
        labels[0].value = server->label;
        ngx_rl_stats_sum(m->rmcf->stats, server->stats, &sum);
        ngx_rl_metrics_sample(m, in_flight, labels, 1, sum.calls);
    }

    ngx_rl_metrics_family(m, connections, "gauge",
                          "Connections to Redis that are ready.");

    i = 0;

    while ((server = ngx_rl_metrics_next(&m->servers, &i))) {
        labels[0].value = server->label;
        ngx_rl_stats_sum(m->rmcf->stats, server->stats, &sum);
        ngx_rl_metrics_sample(m, connections, labels, 1, sum.connections);
    }

    ngx_rl_metrics_family(m, failures, "counter",
                          "Calls and connections that failed.");

    i = 0;

    while ((server = ngx_rl_metrics_next(&m->servers, &i))) {

        labels[0].value = server->label;

        for (k = NGX_RL_OK + 1; k < NGX_RL_CIRCUIT; k++) {
            ngx_rl_metrics_set(&labels[1], "class", ngx_rl_failure_name(k));
            ngx_rl_metrics_sample(m, failures, labels, 2,
                                  server->stats->failures[k]);
        }
    }
}


static void
ngx_rl_metrics_latency(ngx_rl_metrics_t *m)
{
    ngx_uint_t                i, n;
    ngx_rl_series_t          *series, all;
    ngx_rl_metrics_server_t  *server;

    static const ngx_rl_family_t  decision =
        ngx_rl_family("nginx_ratelimit_decision_seconds",
                      "Time that a decision took.");

    static const ngx_rl_family_t  redis =
        ngx_rl_family("nginx_ratelimit_redis_latency_seconds",
                      "Time from a call to its reply.");

    ngx_memzero(&all, sizeof(ngx_rl_series_t));
    all.histogram = &m->rmcf->stats->latency;

    ngx_rl_metrics_histogram(m, &decision, &all, 1);

    if (m->rmcf->peers.nelts == 0 || m->failed) {
        return;
    }

    series = ngx_pcalloc(m->request->pool, ngx_max(m->servers.nelts, 1)
                         * sizeof(ngx_rl_series_t));
    if (series == NULL) {
        m->failed = 1;
        return;
    }

    i = 0;
    n = 0;

    while ((server = ngx_rl_metrics_next(&m->servers, &i))) {
        series[n].label.name = "shard";
        series[n].label.value = server->label;
        series[n++].histogram = &server->stats->latency;
    }

    ngx_rl_metrics_histogram(m, &redis, series, n);
}


/* as JSON has it, all samples of one name stand together */

static void
ngx_rl_metrics_histogram(ngx_rl_metrics_t *m, const ngx_rl_family_t *family,
    ngx_rl_series_t *series, ngx_uint_t n)
{
    u_char               le[NGX_INT64_LEN + sizeof(".000000")];
    uint64_t             count;
    ngx_uint_t           i, k, labelled;
    ngx_rl_label_t       labels[2];
    ngx_rl_histogram_t  *histogram;

    ngx_rl_metrics_family(m, family->name, "histogram", family->help);

    for (i = 0; i < n; i++) {

        histogram = series[i].histogram;
        labelled = (series[i].label.name != NULL);
        labels[0] = series[i].label;
        labels[labelled].name = "le";
        count = 0;

        for (k = 0; k <= NGX_RL_LATENCIES; k++) {
            count += histogram->bins[k];
            ngx_rl_metrics_bound(&labels[labelled].value, le, k);

            ngx_rl_metrics_sample(m, family->bucket, labels,
                                  labelled + 1, count);
        }
    }

    for (i = 0; i < n; i++) {
        ngx_rl_metrics_micro(m, family->sum, &series[i].label,
                             series[i].label.name != NULL,
                             series[i].histogram->sum);
    }

    for (i = 0; i < n; i++) {
        count = 0;

        for (k = 0; k <= NGX_RL_LATENCIES; k++) {
            count += series[i].histogram->bins[k];
        }

        ngx_rl_metrics_sample(m, family->count, &series[i].label,
                              series[i].label.name != NULL, count);
    }
}


/* an upper bound in seconds, without the zeroes at its end */

static void
ngx_rl_metrics_bound(ngx_str_t *value, u_char *le, ngx_uint_t k)
{
    u_char   *p;
    uint32_t  us;

    if (k == NGX_RL_LATENCIES) {
        ngx_str_set(value, "+Inf");
        return;
    }

    us = ngx_rl_latency_bounds[k];

    p = ngx_sprintf(le, "%uD.%06uD", us / NGX_RL_MICRO, us % NGX_RL_MICRO);

    while (p[-1] == '0') {
        p--;
    }

    if (p[-1] == '.') {
        p--;
    }

    value->data = le;
    value->len = p - le;
}


static void
ngx_rl_metrics_breakers(ngx_rl_metrics_t *m)
{
    ngx_uint_t                i, k;
    ngx_rl_label_t            labels[2];
    ngx_rl_metrics_server_t  *server;

    static const char  state[] = "nginx_ratelimit_breaker_state";
    static const char  changes[] = "nginx_ratelimit_breaker_transitions_total";

    if (m->rmcf->peers.nelts == 0) {
        return;
    }

    labels[0].name = "shard";

    ngx_rl_metrics_family(m, state, "gauge",
                          "The state that a shard is in has the value 1.");

    i = 0;

    while ((server = ngx_rl_metrics_next(&m->servers, &i))) {

        labels[0].value = server->label;

        for (k = 0; k < NGX_RL_BREAKER_STATES; k++) {
            ngx_rl_metrics_set(&labels[1], "state", ngx_rl_breaker_name(k));
            ngx_rl_metrics_sample(m, state, labels, 2,
                                  server->stats->breaker.state == k);
        }
    }

    ngx_rl_metrics_family(m, changes, "counter",
                          "Changes of a shard to a state.");

    i = 0;

    while ((server = ngx_rl_metrics_next(&m->servers, &i))) {

        labels[0].value = server->label;

        for (k = 0; k < NGX_RL_BREAKER_STATES; k++) {
            ngx_rl_metrics_set(&labels[1], "to", ngx_rl_breaker_name(k));
            ngx_rl_metrics_sample(m, changes, labels, 2,
                                  server->stats->transitions[k]);
        }
    }
}


/* where servers are, and what has become of that */

static void
ngx_rl_metrics_topology(ngx_rl_metrics_t *m)
{
    u_char                    text[NGX_SOCKADDR_STRLEN];
    ngx_uint_t                i, k, n;
    ngx_array_t              *all[2];
    ngx_rl_label_t            labels[3];
    ngx_rl_metrics_server_t  *server;

    static const char  node[] = "nginx_ratelimit_shard_node";
    static const char  events[] = "nginx_ratelimit_topology_events_total";

    if (m->rmcf->peers.nelts == 0) {
        return;
    }

    all[0] = &m->servers;
    all[1] = &m->guides;

    labels[0].name = "shard";

    ngx_rl_metrics_family(m, node, "gauge",
                          "The address that a shard was last found at.");

    for (n = 0; n < 2; n++) {

        i = 0;

        while ((server = ngx_rl_metrics_next(all[n], &i))) {

            ngx_rl_zone_lock(m->rmcf->zone);

            labels[1].value.len = ngx_min(server->stats->node_len,
                                          NGX_SOCKADDR_STRLEN);
            ngx_memcpy(text, server->stats->node, labels[1].value.len);

            ngx_rl_zone_unlock(m->rmcf->zone);

            if (labels[1].value.len == 0) {
                continue;
            }

            labels[0].value = server->label;
            labels[1].name = "node";
            labels[1].value.data = text;
            ngx_rl_metrics_set(&labels[2], "role",
                               ngx_rl_role_name(server->stats->role));

            ngx_rl_metrics_sample(m, node, labels, 3, 1);
        }
    }

    ngx_rl_metrics_family(m, events, "counter",
                          "What became of the places of shards.");

    i = 0;

    while ((server = ngx_rl_metrics_next(&m->servers, &i))) {

        labels[0].value = server->label;

        for (k = 0; k < NGX_RL_EVENTS; k++) {
            ngx_rl_metrics_set(&labels[1], "event", ngx_rl_event_name(k));
            ngx_rl_metrics_sample(m, events, labels, 2,
                                  server->stats->events[k]);
        }
    }

    /* a node that is refused is none, and so may be who has named it */

    i = 0;
    k = NGX_RL_EVENT_REFUSED;

    while ((server = ngx_rl_metrics_next(&m->clusters, &i))) {

        labels[0].value = server->label;
        ngx_rl_metrics_set(&labels[1], "event", ngx_rl_event_name(k));
        ngx_rl_metrics_sample(m, events, labels, 2, server->stats->events[k]);
    }
}


static void
ngx_rl_metrics_zone(ngx_rl_metrics_t *m)
{
    ngx_uint_t           i;
    ngx_rl_label_t       label;
    ngx_rl_zone_usage_t  usage;

    static const char  evictions[] = "nginx_ratelimit_zone_evictions_total";

    struct {
        const char  *name;
        const char  *type;
        const char  *help;
        uint64_t     value;
    }  samples[] = {

        { "nginx_ratelimit_zone_size_bytes", "gauge",
          "Shared memory of the zone.", 0 },

        { "nginx_ratelimit_zone_used_bytes", "gauge",
          "Shared memory of the zone that is in use.", 0 },

        { "nginx_ratelimit_zone_keys", "gauge",
          "Keys that this machine knows something about.", 0 },

        { "nginx_ratelimit_zone_resets_total", "counter",
          "Times all keys were forgotten, after a worker had died.", 0 },

        { "nginx_ratelimit_leases_refused_total", "counter",
          "Leases not taken as a worker had too many: Redis was asked.", 0 }
    };

    ngx_rl_zone_usage(m->rmcf->zone, &usage);

    samples[0].value = usage.size;
    samples[1].value = usage.used;
    samples[2].value = usage.keys;
    samples[3].value = usage.resets;
    samples[4].value = m->rmcf->stats->leases_refused;

    for (i = 0; i < sizeof(samples) / sizeof(samples[0]); i++) {
        ngx_rl_metrics_family(m, samples[i].name, samples[i].type,
                              samples[i].help);
        ngx_rl_metrics_sample(m, samples[i].name, NULL, 0, samples[i].value);
    }

    ngx_rl_metrics_family(m, evictions, "counter",
                          "Keys forgotten to make room for "
                          "others, by what they held.");

    for (i = 0; i < NGX_RL_HELDS; i++) {
        ngx_rl_metrics_set(&label, "held", ngx_rl_held_name(i));
        ngx_rl_metrics_sample(m, evictions, &label, 1, usage.evictions[i]);
    }
}


static void
ngx_rl_metrics_family(ngx_rl_metrics_t *m,
    const char *name, const char *type, const char *help)
{
    u_char  *p;

    if (m->json) {
        return;
    }

    p = ngx_rl_metrics_room(m, 2 * ngx_strlen(name)
                            + ngx_strlen(type)
                            + ngx_strlen(help)
                            + sizeof("# HELP  \n# TYPE  \n"));

    if (p) {
        ngx_rl_metrics_close(m,
            ngx_sprintf(p, "# HELP %s %s\n# TYPE %s %s\n", name, help, name,
                        type));
    }
}


static void
ngx_rl_metrics_sample(ngx_rl_metrics_t *m,
    const char *name, ngx_rl_label_t *labels, ngx_uint_t n, uint64_t value)
{
    u_char  *p;

    p = ngx_rl_metrics_open(m, name, labels, n);

    if (p) {
        p = ngx_sprintf(p, m->json ? "%uL}" : "%uL\n", value);
        ngx_rl_metrics_close(m, p);
    }
}


/* a value in microseconds, written in seconds */

static void
ngx_rl_metrics_micro(ngx_rl_metrics_t *m,
    const char *name, ngx_rl_label_t *labels, ngx_uint_t n, uint64_t value)
{
    u_char  *p;

    p = ngx_rl_metrics_open(m, name, labels, n);

    if (p) {
        p = ngx_sprintf(p, m->json ? "%uL.%06uL}" : "%uL.%06uL\n",
                        value / NGX_RL_MICRO, value % NGX_RL_MICRO);
        ngx_rl_metrics_close(m, p);
    }
}


/* all of a sample before its value */

static u_char *
ngx_rl_metrics_open(ngx_rl_metrics_t *m,
    const char *name, ngx_rl_label_t *labels, ngx_uint_t n)
{
    u_char     *p;
    size_t      size;
    ngx_uint_t  i;

    size = NGX_RL_METRICS_SAMPLE;

    for (i = 0; i < n; i++) {
        size += ngx_strlen(labels[i].name) + sizeof("\"\": , ")
                + ngx_rl_quote_size(labels[i].value.len);
    }

    p = ngx_rl_metrics_room(m, size);
    if (p == NULL) {
        return NULL;
    }

    if (m->json) {

        if (m->family == NULL) {
            p = ngx_sprintf(p, "{\n\"%s\": [\n{", name);

        } else if (ngx_strcmp(m->family, name) != 0) {
            p = ngx_sprintf(p, "\n],\n\"%s\": [\n{", name);

        } else {
            p = ngx_sprintf(p, ",\n{");
        }

        m->family = name;

    } else {
        p = ngx_sprintf(p, n ? "%s{" : "%s ", name);
    }

    for (i = 0; i < n; i++) {
        p = ngx_sprintf(p, m->json ? "\"%s\": " : i ? ",%s=" : "%s=",
                        labels[i].name);
        p = ngx_rl_quote(p, labels[i].value.data, labels[i].value.len);

        if (m->json) {
            *p++ = ',';
            *p++ = ' ';
        }
    }

    if (m->json) {
        p = ngx_cpymem(p, "\"value\": ", sizeof("\"value\": ") - 1);

    } else if (n) {
        *p++ = '}';
        *p++ = ' ';
    }

    return p;
}


static void
ngx_rl_metrics_close(ngx_rl_metrics_t *m, u_char *p)
{
    m->buf->last = p;
}


static u_char *
ngx_rl_metrics_room(ngx_rl_metrics_t *m, size_t size)
{
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    if (m->failed) {
        return NULL;
    }

    if (m->buf && (size_t) (m->buf->end - m->buf->last) >= size) {
        return m->buf->last;
    }

    b = ngx_create_temp_buf(m->request->pool,
                            ngx_max(size, NGX_RL_METRICS_BLOCK));
    cl = ngx_alloc_chain_link(m->request->pool);

    if (b == NULL || cl == NULL) {
        m->failed = 1;
        return NULL;
    }

    cl->buf = b;
    cl->next = NULL;

    *m->last = cl;
    m->last = &cl->next;
    m->buf = b;

    return b->last;
}


static void
ngx_rl_metrics_set(ngx_rl_label_t *label, const char *name, const char *value)
{
    label->name = name;
    label->value.data = (u_char *) value;
    label->value.len = ngx_strlen(value);
}
