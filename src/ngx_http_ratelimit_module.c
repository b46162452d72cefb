
/*
 * Directives and registration.
 */


#include "conf/ngx_rl_check.h"
#include "conf/ngx_rl_conf.h"
#include "conf/ngx_rl_directives.h"
#include "conf/ngx_rl_tables.h"
#include "http/ngx_rl_api.h"
#include "http/ngx_rl_console.h"
#include "http/ngx_rl_explain.h"
#include "http/ngx_rl_handler.h"
#include "http/ngx_rl_headers.h"
#include "http/ngx_rl_metrics.h"
#include "store/ngx_rl_store.h"
#include "store/ngx_rl_sync.h"
#include "http/ngx_rl_variables.h"
#include "core/ngx_rl_version.h"


#define NGX_RL_ANYWHERE                                                       \
    (NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF)

/* a directive that is allowed at every level, and the field that it sets */
#define ngx_rl_command(name, args, handler, field, post)                      \
    { ngx_string(name), NGX_RL_ANYWHERE|args, handler,                        \
      NGX_HTTP_LOC_CONF_OFFSET, offsetof(ngx_rl_loc_conf_t, field), post }


static ngx_int_t ngx_rl_init(ngx_conf_t *cf);
static ngx_int_t ngx_rl_init_process(ngx_cycle_t *cycle);
static void ngx_rl_exit_process(ngx_cycle_t *cycle);


static ngx_conf_enum_t  ngx_rl_log_levels[] = {
    { ngx_string("debug"), NGX_LOG_DEBUG },
    { ngx_string("info"), NGX_LOG_INFO },
    { ngx_string("notice"), NGX_LOG_NOTICE },
    { ngx_string("warn"), NGX_LOG_WARN },
    { ngx_string("error"), NGX_LOG_ERR },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_rl_log_keys[] = {
    { ngx_string("plain"), NGX_RL_KEY_PLAIN },
    { ngx_string("hash"), NGX_RL_KEY_HASH },
    { ngx_string("off"), NGX_RL_KEY_OFF },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_rl_on_error[] = {
    { ngx_string("open"), NGX_RL_ON_ERROR_OPEN },
    { ngx_string("closed"), NGX_RL_ON_ERROR_CLOSED },
    { ngx_string("local"), NGX_RL_ON_ERROR_LOCAL },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_rl_headers[] = {
    { ngx_string("legacy"), NGX_RL_HEADERS_LEGACY },
    { ngx_string("draft-8"), NGX_RL_HEADERS_DRAFT_8 },
    { ngx_string("draft-11"), NGX_RL_HEADERS_DRAFT_11 },
    { ngx_string("off"), NGX_RL_HEADERS_OFF },
    { ngx_string("dry_run"), NGX_RL_HEADERS_DRY_RUN },
    { ngx_string("no_degraded"), NGX_RL_HEADERS_HEALTHY },
    { ngx_string("expose"), NGX_RL_HEADERS_EXPOSE },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_rl_bodies[] = {
    { ngx_string("default"), NGX_RL_BODY_DEFAULT },
    { ngx_string("json"), NGX_RL_BODY_JSON },
    { ngx_string("problem"), NGX_RL_BODY_PROBLEM },
    { ngx_string("grpc"), NGX_RL_BODY_GRPC },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_rl_phases[] = {
    { ngx_string("access"), NGX_RL_PHASE_ACCESS },
    { ngx_string("precontent"), NGX_RL_PHASE_PRECONTENT },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_rl_clocks[] = {
    { ngx_string("redis"), NGX_RL_CLOCK_REDIS },
    { ngx_string("nginx"), NGX_RL_CLOCK_NGINX },
    { ngx_null_string, 0 }
};


static ngx_rl_bounds_t  ngx_rl_timeouts = {
    NGX_RL_TIME, 1, NGX_RL_TIMEOUT_MAX, 0,
    "it must be a time from 1ms to 60s, for example \"50ms\""
};


static ngx_rl_bounds_t  ngx_rl_preview_cache = {
    NGX_RL_TIME, 0, NGX_RL_TIMEOUT_MAX, 0,
    "it must be \"off\" or a time up to 60s, for example \"50ms\""
};


static ngx_rl_bounds_t  ngx_rl_deny_cache = {
    NGX_RL_TIME, 0, NGX_RL_TIMEOUT_MAX, NGX_RL_DENY_CACHE,
    "it must be \"on\", \"off\" or a time up to 60s, for example \"50ms\""
};


static ngx_rl_bounds_t  ngx_rl_databases = {
    NGX_RL_NUMBER, 0, NGX_RL_REDIS_DATABASES, 0,
    "it must be a number from 0 to 65535"
};


static ngx_rl_bounds_t  ngx_rl_ipv6_bits = {
    NGX_RL_NUMBER, 1, 128, 0,
    "it must be a number from 1 to 128"
};


static ngx_rl_bounds_t  ngx_rl_top_keys = {
    NGX_RL_AMOUNT, NGX_RL_TOP_MIN, NGX_RL_TOP_MAX, 0,
    "it must be \"off\" or a number of keys from 10 to 1000"
};


static ngx_rl_bounds_t  ngx_rl_error_waits = {
    NGX_RL_TIME, 1000, 86400000, 0,
    "it must be a time from 1s to 1d, for example \"5s\""
};


static ngx_rl_bounds_t  ngx_rl_percents = {
    NGX_RL_PERCENT, 0, 100, 0,
    "it must be \"off\" or a percentage from \"0%\" to \"100%\""
};


static ngx_rl_bounds_t  ngx_rl_statuses = {
    NGX_RL_STATUS, 400, 599, 0,
    "it must be a status from 400 to 599, except 401, 403 and 407, which "
    "\"satisfy any\" may override"
};


static ngx_rl_bounds_t  ngx_rl_depths = {
    NGX_RL_NUMBER, 0, 100, 0,
    "it must be a number from 0 to 100"
};


static ngx_conf_enum_t  ngx_rl_protocols[] = {
    { ngx_string("TLSv1"), NGX_RL_TLS_V1 },
    { ngx_string("TLSv1.1"), NGX_RL_TLS_V1_1 },
    { ngx_string("TLSv1.2"), NGX_RL_TLS_V1_2 },
    { ngx_string("TLSv1.3"), NGX_RL_TLS_V1_3 },
    { ngx_null_string, 0 }
};


static char  ngx_rl_beside_redis[] =
    "is duplicate, or conflicts with \"ratelimit_redis_password\"";
static char  ngx_rl_beside_redis_file[] =
    "is duplicate, or conflicts with \"ratelimit_redis_password_file\"";
static char  ngx_rl_beside_sentinel[] =
    "is duplicate, or conflicts with \"ratelimit_sentinel_password\"";
static char  ngx_rl_beside_sentinel_file[] =
    "is duplicate, or conflicts with \"ratelimit_sentinel_password_file\"";


static ngx_command_t  ngx_rl_commands[] = {

    ngx_rl_command("ratelimit_shards", NGX_CONF_1MORE,
                   ngx_rl_shards_conf_parse, shards_conf, NULL),

    { ngx_string("ratelimit_overrides"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE1,
      ngx_rl_directive_overrides,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("ratelimit_zone"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE1,
      ngx_rl_directive_zone,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("ratelimit_limit"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_2MORE,
      ngx_rl_limit_parse,
      NGX_HTTP_MAIN_CONF_OFFSET,
      offsetof(ngx_rl_main_conf_t, limits),
      NULL },

    ngx_rl_command("ratelimit", NGX_CONF_1MORE,
                   ngx_rl_directive_names, names, NULL),
    ngx_rl_command("ratelimit_key", NGX_CONF_TAKE1,
                   ngx_rl_directive_param, params.key,
                   &ngx_rl_param_defs[NGX_RL_KEY]),
    ngx_rl_command("ratelimit_capacity", NGX_CONF_TAKE1,
                   ngx_rl_directive_param, params.capacity,
                   &ngx_rl_param_defs[NGX_RL_CAPACITY]),
    ngx_rl_command("ratelimit_rate", NGX_CONF_TAKE1,
                   ngx_rl_directive_param, params.rate,
                   &ngx_rl_param_defs[NGX_RL_RATE]),
    ngx_rl_command("ratelimit_cost", NGX_CONF_TAKE1,
                   ngx_rl_directive_param, params.cost,
                   &ngx_rl_param_defs[NGX_RL_COST]),
    ngx_rl_command("ratelimit_window", NGX_CONF_TAKE1,
                   ngx_rl_directive_param, params.window,
                   &ngx_rl_param_defs[NGX_RL_WINDOW]),
    ngx_rl_command("ratelimit_period", NGX_CONF_TAKE1,
                   ngx_rl_directive_param, params.period,
                   &ngx_rl_param_defs[NGX_RL_PERIOD]),
    ngx_rl_command("ratelimit_timezone", NGX_CONF_TAKE1,
                   ngx_rl_directive_param, params.timezone,
                   &ngx_rl_param_defs[NGX_RL_TIMEZONE]),
    ngx_rl_command("ratelimit_anchor", NGX_CONF_TAKE1,
                   ngx_rl_directive_param, params.anchor,
                   &ngx_rl_param_defs[NGX_RL_ANCHOR]),
    ngx_rl_command("ratelimit_refill_interval", NGX_CONF_TAKE1,
                   ngx_rl_directive_param, params.interval,
                   &ngx_rl_param_defs[NGX_RL_INTERVAL]),
    ngx_rl_command("ratelimit_algorithm", NGX_CONF_TAKE1,
                   ngx_rl_directive_enum, params.algorithm,
                   &ngx_rl_algorithms),

    ngx_rl_command("ratelimit_dry_run", NGX_CONF_FLAG,
                   ngx_conf_set_flag_slot, dry_run, NULL),
    ngx_rl_command("ratelimit_advise", NGX_CONF_FLAG,
                   ngx_conf_set_flag_slot, advise, NULL),
    ngx_rl_command("ratelimit_preview", NGX_CONF_FLAG,
                   ngx_conf_set_flag_slot, preview, NULL),
    ngx_rl_command("ratelimit_preview_cache", NGX_CONF_TAKE1,
                   ngx_rl_directive_number, preview_cache,
                   &ngx_rl_preview_cache),
    ngx_rl_command("ratelimit_deny_cache", NGX_CONF_TAKE1,
                   ngx_rl_directive_number, deny_cache, &ngx_rl_deny_cache),
    ngx_rl_command("ratelimit_lease", NGX_CONF_TAKE12,
                   ngx_rl_directive_lease, lease, NULL),
    ngx_rl_command("ratelimit_phase", NGX_CONF_TAKE1,
                   ngx_rl_directive_enum, phase, &ngx_rl_phases),
    ngx_rl_command("ratelimit_clock", NGX_CONF_TAKE1,
                   ngx_rl_directive_enum, clock, &ngx_rl_clocks),

    ngx_rl_command("ratelimit_status", NGX_CONF_TAKE1,
                   ngx_rl_directive_number, status, &ngx_rl_statuses),
    ngx_rl_command("ratelimit_headers", NGX_CONF_1MORE,
                   ngx_rl_directive_headers, headers, &ngx_rl_headers),
    ngx_rl_command("ratelimit_body", NGX_CONF_TAKE1,
                   ngx_rl_directive_enum, body, &ngx_rl_bodies),
    ngx_rl_command("ratelimit_retry_jitter", NGX_CONF_TAKE1,
                   ngx_rl_directive_number, jitter, &ngx_rl_percents),

    ngx_rl_command("ratelimit_log_level", NGX_CONF_TAKE1,
                   ngx_rl_directive_enum, log_level, &ngx_rl_log_levels),
    ngx_rl_command("ratelimit_log_key", NGX_CONF_TAKE1,
                   ngx_rl_directive_enum, log_key, &ngx_rl_log_keys),
    ngx_rl_command("ratelimit_top", NGX_CONF_TAKE1,
                   ngx_rl_directive_number, top, &ngx_rl_top_keys),

    ngx_rl_command("ratelimit_prefix", NGX_CONF_TAKE1,
                   ngx_rl_directive_prefix, prefix, NULL),
    ngx_rl_command("ratelimit_ipv6_prefix", NGX_CONF_TAKE1,
                   ngx_rl_directive_number, ipv6_prefix, &ngx_rl_ipv6_bits),

    ngx_rl_command("ratelimit_on_error", NGX_CONF_TAKE1,
                   ngx_rl_directive_enum, on_error, &ngx_rl_on_error),
    ngx_rl_command("ratelimit_local_share", NGX_CONF_TAKE1,
                   ngx_rl_directive_share, local_share, NULL),
    ngx_rl_command("ratelimit_breaker", NGX_CONF_TAKE123,
                   ngx_rl_directive_breaker, defaults.breaker, NULL),

    { ngx_string("ratelimit_metrics"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS,
      ngx_rl_metrics,
      0,
      0,
      NULL },

    { ngx_string("ratelimit_api"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS|NGX_CONF_TAKE1,
      ngx_rl_api,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("ratelimit_console"),
      NGX_HTTP_LOC_CONF|NGX_CONF_ANY,
      ngx_rl_console,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    ngx_rl_command("ratelimit_silence", NGX_CONF_1MORE,
                   ngx_rl_directive_silence, silence, &ngx_rl_silences),
    ngx_rl_command("ratelimit_error_status", NGX_CONF_TAKE1,
                   ngx_rl_directive_number, error_status, &ngx_rl_statuses),
    ngx_rl_command("ratelimit_error_retry_after", NGX_CONF_TAKE1,
                   ngx_rl_directive_number, error_retry_after,
                   &ngx_rl_error_waits),

    ngx_rl_command("ratelimit_redis_timeout", NGX_CONF_TAKE1,
                   ngx_rl_directive_number, timeout, &ngx_rl_timeouts),
    ngx_rl_command("ratelimit_redis_connect_timeout", NGX_CONF_TAKE1,
                   ngx_rl_directive_number, defaults.connect_timeout,
                   &ngx_rl_timeouts),
    ngx_rl_command("ratelimit_redis_user", NGX_CONF_TAKE1,
                   ngx_conf_set_str_slot, defaults.user, NULL),
    ngx_rl_command("ratelimit_redis_password", NGX_CONF_TAKE1,
                   ngx_rl_directive_password, defaults.password,
                   &ngx_rl_beside_redis_file),
    ngx_rl_command("ratelimit_redis_password_file", NGX_CONF_TAKE1,
                   ngx_rl_directive_password_file, defaults.password,
                   &ngx_rl_beside_redis),
    ngx_rl_command("ratelimit_redis_database", NGX_CONF_TAKE1,
                   ngx_rl_directive_number, defaults.database,
                   &ngx_rl_databases),

    ngx_rl_command("ratelimit_redis_ssl", NGX_CONF_FLAG,
                   ngx_conf_set_flag_slot, defaults.tls.enable, NULL),
    ngx_rl_command("ratelimit_redis_ssl_verify", NGX_CONF_FLAG,
                   ngx_conf_set_flag_slot, defaults.tls.verify, NULL),
    ngx_rl_command("ratelimit_redis_ssl_verify_depth", NGX_CONF_TAKE1,
                   ngx_rl_directive_number, defaults.tls.verify_depth,
                   &ngx_rl_depths),
    ngx_rl_command("ratelimit_redis_ssl_trusted_certificate", NGX_CONF_TAKE1,
                   ngx_conf_set_str_slot, defaults.tls.trusted_certificate,
                   NULL),
    ngx_rl_command("ratelimit_redis_ssl_crl", NGX_CONF_TAKE1,
                   ngx_conf_set_str_slot, defaults.tls.crl, NULL),
    ngx_rl_command("ratelimit_redis_ssl_name", NGX_CONF_TAKE1,
                   ngx_conf_set_str_slot, defaults.tls.name, NULL),
    ngx_rl_command("ratelimit_redis_ssl_server_name", NGX_CONF_FLAG,
                   ngx_conf_set_flag_slot, defaults.tls.server_name, NULL),
    ngx_rl_command("ratelimit_redis_ssl_certificate", NGX_CONF_TAKE1,
                   ngx_conf_set_str_slot, defaults.tls.certificate, NULL),
    ngx_rl_command("ratelimit_redis_ssl_certificate_key", NGX_CONF_TAKE1,
                   ngx_conf_set_str_slot, defaults.tls.certificate_key, NULL),
    ngx_rl_command("ratelimit_redis_ssl_password_file", NGX_CONF_TAKE1,
                   ngx_rl_directive_ssl_passwords, defaults.tls.passwords,
                   NULL),
    ngx_rl_command("ratelimit_redis_ssl_protocols", NGX_CONF_1MORE,
                   ngx_rl_directive_bitmask, defaults.tls.protocols,
                   &ngx_rl_protocols),
    ngx_rl_command("ratelimit_redis_ssl_ciphers", NGX_CONF_TAKE1,
                   ngx_conf_set_str_slot, defaults.tls.ciphers, NULL),
    ngx_rl_command("ratelimit_redis_ssl_session_reuse", NGX_CONF_FLAG,
                   ngx_conf_set_flag_slot, defaults.tls.session_reuse, NULL),

    ngx_rl_command("ratelimit_redis_networks", NGX_CONF_1MORE,
                   ngx_rl_directive_networks, defaults.networks, NULL),
    ngx_rl_command("ratelimit_sentinel_user", NGX_CONF_TAKE1,
                   ngx_conf_set_str_slot, defaults.sentinel_user, NULL),
    ngx_rl_command("ratelimit_sentinel_password", NGX_CONF_TAKE1,
                   ngx_rl_directive_password, defaults.sentinel_password,
                   &ngx_rl_beside_sentinel_file),
    ngx_rl_command("ratelimit_sentinel_password_file", NGX_CONF_TAKE1,
                   ngx_rl_directive_password_file, defaults.sentinel_password,
                   &ngx_rl_beside_sentinel),

      ngx_null_command
};


static ngx_http_module_t  ngx_rl_module_ctx = {
    ngx_rl_add_variables,                  /* preconfiguration */
    ngx_rl_init,                           /* postconfiguration */

    ngx_rl_create_main_conf,               /* create main configuration */
    ngx_rl_init_main_conf,                 /* init main configuration */

    NULL,                                  /* create server configuration */
    NULL,                                  /* merge server configuration */

    ngx_rl_create_loc_conf,                /* create location configuration */
    ngx_rl_merge_loc_conf                  /* merge location configuration */
};


ngx_module_t  ngx_http_ratelimit_module = {
    NGX_MODULE_V1,
    &ngx_rl_module_ctx,                    /* module context */
    ngx_rl_commands,                       /* module directives */
    NGX_HTTP_MODULE,                       /* module type */
    NULL,                                  /* init master */
    ngx_rl_version_check,                  /* init module */
    ngx_rl_init_process,                   /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    ngx_rl_exit_process,                   /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


static ngx_int_t
ngx_rl_init(ngx_conf_t *cf)
{
    ngx_http_handler_pt        *h;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    h = ngx_array_push(&cmcf->phases[NGX_HTTP_ACCESS_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_rl_access_handler;

    h = ngx_array_push(&cmcf->phases[NGX_HTTP_PRECONTENT_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_rl_precontent_handler;

    ngx_rl_headers_init();

    /* no limit, no metrics: no zone */

    if (ngx_rl_conf_zone(cf) != NGX_OK || ngx_rl_tables(cf) != NGX_OK
        || ngx_rl_explain_init(cf) != NGX_OK
        || ngx_rl_console_init(cf) != NGX_OK
        || ngx_rl_variables_check(cf) != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_rl_check(cf);

    return NGX_OK;
}


static ngx_int_t
ngx_rl_init_process(ngx_cycle_t *cycle)
{
    ngx_rl_main_conf_t  *rmcf;

    /* cache managers and loaders handle no requests */

    if (ngx_process != NGX_PROCESS_WORKER && ngx_process != NGX_PROCESS_SINGLE)
    {
        return NGX_OK;
    }

    rmcf = ngx_http_cycle_get_module_main_conf(cycle,
                                               ngx_http_ratelimit_module);

    if (rmcf == NULL || rmcf->zone == NULL) {
        return NGX_OK;
    }

    /*
     * ngx_current_msec is from the moment when the master began to load the
     * configuration.  If loading took long, timers set now would already have
     * expired.
     */

    ngx_time_update();

    ngx_rl_process_begin(rmcf->stats);
    ngx_rl_record_begin(rmcf->zone);
    ngx_rl_rates_begin(cycle, &rmcf->watches);

    if (ngx_rl_store_init(cycle, &rmcf->servers, rmcf->zone, rmcf->stats)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_rl_sync_init(cycle, rmcf->overrides, rmcf->zone, &rmcf->tables);
}


static void
ngx_rl_exit_process(ngx_cycle_t *cycle)
{
    ngx_rl_main_conf_t  *rmcf;

    ngx_rl_store_exit();

    rmcf = ngx_http_cycle_get_module_main_conf(cycle,
                                               ngx_http_ratelimit_module);

    if (rmcf && rmcf->zone) {
        ngx_rl_rates_end();
        ngx_rl_process_end(rmcf->stats);
    }
}
