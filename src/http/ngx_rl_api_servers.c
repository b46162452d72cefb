
#include "http/ngx_rl_api_servers.h"
#include "http/ngx_rl_subjects.h"


static void ngx_rl_api_server(ngx_rl_api_t *api, ngx_rl_subject_t *subject);
static void ngx_rl_api_latency(ngx_rl_api_t *api,
    ngx_rl_histogram_t *histogram);


ngx_int_t
ngx_rl_api_servers(ngx_rl_api_t *api)
{
    ngx_uint_t           i, of;
    ngx_rl_subject_t    *subject;
    ngx_rl_subjects_t    subjects;
    ngx_rl_zone_usage_t  usage;

    if (ngx_rl_subjects_find(subjects, api->request->pool, api->rmcf, &usage)
        != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_rl_json_open(&api->json, NULL, '{');
    ngx_rl_json_open(&api->json, "servers", '[');

    for (of = NGX_RL_OF_SERVERS; of <= NGX_RL_OF_SENTINELS; of++) {

        subject = subjects[of].elts;

        for (i = 0; i < subjects[of].nelts; i++) {
            ngx_rl_api_server(api, &subject[i]);
        }
    }

    ngx_rl_json_close(&api->json, '[');
    ngx_rl_json_close(&api->json, '{');

    return ngx_rl_api_send(api, NGX_HTTP_OK, NULL);
}


static void
ngx_rl_api_server(ngx_rl_api_t *api, ngx_rl_subject_t *subject)
{
    u_char            text[NGX_SOCKADDR_STRLEN];
    ngx_str_t         address;
    ngx_uint_t        i, role, failure;
    ngx_time_t       *tp;
    ngx_rl_gauges_t   sum;
    ngx_rl_record_t  *record;

    tp = ngx_timeofday();
    record = subject->figures;
    role = record->place.role;
    failure = record->failure;

    ngx_rl_zone_lock(api->rmcf->zone);

    address.data = text;
    address.len = record->place.len;
    ngx_memcpy(text, record->place.address, address.len);

    ngx_rl_zone_unlock(api->rmcf->zone);

    ngx_rl_json_open(&api->json, NULL, '{');
    ngx_rl_json_string(&api->json, "name", &subject->name);
    ngx_rl_json_text(&api->json, "role", ngx_rl_role_names[role]);

    if (address.len) {
        ngx_rl_json_string(&api->json, "address", &address);

    } else {
        ngx_rl_json_text(&api->json, "address", NULL);
    }

    if (role == NGX_RL_ROLE_SENTINEL) {
        ngx_rl_json_close(&api->json, '{');
        return;
    }

    ngx_rl_record_sum(api->rmcf->stats, record, &sum);

    ngx_rl_json_text(&api->json, "breaker",
                     ngx_rl_breaker_names[record->breaker.state]);
    ngx_rl_json_number(&api->json, "since",
                       record->breaker.state == NGX_RL_DISTRIBUTED
                       ? NGX_RL_NEVER
                       : ((uint64_t) tp->sec * 1000 + tp->msec
                          + record->changed * 1000 - ngx_current_msec)
                         / 1000);
    ngx_rl_json_text(&api->json, "last_failure",
                     failure ? ngx_rl_failure_names[failure] : NULL);
    ngx_rl_json_number(&api->json, "connections", sum.connections);
    ngx_rl_json_number(&api->json, "calls_in_flight", sum.calls);
    ngx_rl_json_number(&api->json, "calls", record->counters.commands);
    ngx_rl_api_latency(api, &record->counters.latency);

    ngx_rl_json_open(&api->json, "failures", '{');

    for (i = NGX_RL_OK + 1; i < NGX_RL_FAILURES; i++) {
        if (record->counters.failures[i]) {
            ngx_rl_json_number(&api->json, ngx_rl_failure_names[i],
                               record->counters.failures[i]);
        }
    }

    ngx_rl_json_close(&api->json, '{');
    ngx_rl_json_close(&api->json, '{');
}


/* the upper bounds of the histogram's bins that hold the quantiles */

static void
ngx_rl_api_latency(ngx_rl_api_t *api, ngx_rl_histogram_t *histogram)
{
    uint64_t    bins[NGX_RL_LATENCIES + 1], count, sum;
    ngx_uint_t  i, k;

    static const ngx_uint_t   percent[] = { 50, 95, 99 };
    static const char *const  names[] = { "p50", "p95", "p99" };

    count = 0;

    for (i = 0; i <= NGX_RL_LATENCIES; i++) {
        bins[i] = histogram->bins[i];
        count += bins[i];
    }

    ngx_rl_json_open(&api->json, "latency", '{');

    for (k = 0; k < 3; k++) {

        sum = 0;

        for (i = 0; i < NGX_RL_LATENCIES; i++) {
            sum += bins[i];

            if (sum * 100 >= count * percent[k]) {
                break;
            }
        }

        if (count == 0 || i == NGX_RL_LATENCIES) {
            ngx_rl_json_text(&api->json, names[k], NULL);

        } else {
            ngx_rl_json_seconds(&api->json, names[k],
                                ngx_rl_latency_bounds[i]);
        }
    }

    ngx_rl_json_close(&api->json, '{');
}
