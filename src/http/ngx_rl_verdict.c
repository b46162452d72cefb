
/*
 * A request gets its verdict when no more answers are expected.  The policy
 * says what the answers mean, and this file carries it out.  It asks this
 * machine's memory for claims without an answer, refunds tokens that were
 * taken for nothing, counts, logs, and returns a status.
 *
 * A request is counted once, by the location whose limits decide it.  As long
 * as an enforced limit may follow after an internal redirect, that location is
 * not known yet.  A request that meets no enforced limit is counted when it
 * ends.
 */


#include "http/ngx_rl_verdict.h"
#include "core/ngx_rl_digest.h"
#include "http/ngx_rl_body.h"
#include "memory/ngx_rl_known.h"
#include "memory/ngx_rl_local.h"
#include "pure/ngx_rl_hash.h"
#include "pure/ngx_rl_text.h"


#define NGX_RL_LOG_HASH  16     /* hex digits of its digest */

/* bytes of a digest, or of an address */
#define NGX_RL_SHOWN     ngx_max(NGX_RL_DIGEST_LEN, NGX_SOCKADDR_STRLEN)


static void ngx_rl_verdict_local(ngx_rl_ctx_t *ctx);
static void ngx_rl_verdict_jitter(ngx_rl_ctx_t *ctx);
static ngx_uint_t ngx_rl_verdict_counts(ngx_rl_ctx_t *ctx,
    ngx_rl_http_claim_t *hc);
static void ngx_rl_verdict_count(ngx_rl_ctx_t *ctx);
static void ngx_rl_verdict_count_limits(ngx_rl_ctx_t *ctx);
static ngx_uint_t ngx_rl_verdict_advises(ngx_rl_ctx_t *ctx,
    ngx_rl_decision_t *d);
static void ngx_rl_verdict_count_key(ngx_rl_ctx_t *ctx,
    ngx_rl_http_claim_t *hc, ngx_rl_location_limit_t *ll);
static void ngx_rl_verdict_log(ngx_rl_ctx_t *ctx, ngx_rl_http_claim_t *hc);
static void ngx_rl_verdict_show_key(ngx_str_t *text, u_char *buf,
    ngx_rl_location_limit_t *ll, ngx_str_t *key);


void
ngx_rl_verdict_reach(ngx_rl_ctx_t *ctx)
{
    ngx_uint_t            i;
    ngx_rl_take_call_t   *call;
    ngx_rl_http_claim_t  *hc;

    ctx->done = 1;
    ctx->time = ngx_time();
    ctx->latency = ctx->take.ended ? ctx->take.ended - ctx->start : 0;

    for (i = 0; i < ctx->conf->n; i++) {
        hc = &ctx->claims[i];

        call = ngx_rl_take_find(&ctx->take, &hc->claim);
        if (call == NULL) {
            continue;
        }

        hc->claim.decision.failure = call->failure;
        hc->unanswered = (call->failure != NGX_RL_OK);

        if (!hc->unanswered && ctx->conf->preview && ctx->conf->preview_cache) {
            ngx_rl_known_preview_save(ctx->main->zone, &hc->claim,
                                      ctx->conf->preview_cache);
        }
    }

    ngx_rl_verdict_local(ctx);
    ngx_rl_verdict_jitter(ctx);

    i = ngx_rl_policy_decide(&ctx->policy, ctx->list, ctx->conf->n,
                             &ctx->decision);

    if (ctx->decision.source == NGX_RL_SOURCE_CLOSED) {
        ngx_rl_take_refund(&ctx->take);
    }

    ctx->shown = &ctx->claims[i];

    call = ngx_rl_take_find(&ctx->take, ctx->list[i]);
    ctx->server = call ? call->server->conf : NULL;
}


/*
 * Decides the claims without an answer: all of them if there are no shards,
 * otherwise those whose shard did not answer.  A request that is already
 * denied takes nothing.  A request that is denied here gets its other tokens
 * refunded.
 */

static void
ngx_rl_verdict_local(ngx_rl_ctx_t *ctx)
{
    ngx_uint_t          i, n;
    ngx_rl_claim_t     *claims[NGX_RL_CLAIMS];
    ngx_rl_loc_conf_t  *conf;

    conf = ctx->conf;

    if ((conf->shards && conf->on_error != NGX_RL_ON_ERROR_LOCAL)
        || ngx_rl_policy_ends(&ctx->policy, ctx->list, conf->n))
    {
        return;
    }

    n = 0;

    for (i = 0; i < conf->n; i++) {
        if (ctx->claims[i].unanswered) {
            claims[n++] = ctx->list[i];
        }
    }

    if (n == 0) {
        return;
    }

    if (ngx_rl_local_take(ctx->main->zone, claims, n,
                          conf->shards ? &conf->local_share : NULL,
                          conf->preview, ctx->start)
        != NGX_OK)
    {
        for (i = 0; i < n; i++) {
            if (claims[i]->decision.failure == NGX_RL_OK) {
                claims[i]->decision.failure = NGX_RL_OVERLOAD;
            }
        }

        return;
    }

    if (ngx_rl_policy_ends(&ctx->policy, ctx->list, conf->n)) {
        ngx_rl_take_refund(&ctx->take);
    }
}


/*
 * Clients that are rejected together should not return together.  All waits of
 * a request grow by the same share, so headers, bodies and variables agree.
 * An earlier location has done it for the limits that it asked.
 */

static void
ngx_rl_verdict_jitter(ngx_rl_ctx_t *ctx)
{
    uint32_t              number;
    ngx_uint_t            i;
    ngx_rl_http_claim_t  *hc;

    if (ctx->conf->jitter == 0) {
        return;
    }

    number = (uint32_t) ngx_random();

    for (i = 0; i < ctx->conf->n; i++) {
        hc = &ctx->claims[i];

        if (!hc->asked) {
            hc->claim.decision.retry_after =
                ngx_rl_jitter(hc->claim.decision.retry_after,
                              ctx->conf->jitter, number);
        }
    }

    ctx->policy.retry_after = ngx_rl_jitter(ctx->policy.retry_after,
                                            ctx->conf->jitter, number);
}


ngx_int_t
ngx_rl_verdict_return(ngx_http_request_t *r, ngx_rl_ctx_t *ctx)
{
    ngx_uint_t  i;

    ctx->returned = 1;
    ctx->final = ngx_rl_policy_final(&ctx->policy, ctx->list, ctx->conf->n);

    if (ctx->final) {
        ngx_rl_verdict_count(ctx);
    }

    if (ctx->decision.outcome != NGX_RL_SKIPPED) {
        ngx_rl_verdict_count_limits(ctx);
    }

    for (i = 0; i < ctx->conf->n; i++) {
        if (ngx_rl_verdict_counts(ctx, &ctx->claims[i])) {
            ngx_rl_verdict_log(ctx, &ctx->claims[i]);
        }
    }

    if (ctx->decision.outcome == NGX_RL_REJECTED
        || ctx->decision.source == NGX_RL_SOURCE_CLOSED)
    {
        return ngx_rl_body_send(r, ctx);
    }

    if (ctx->before && !ctx->final) {
        ngx_rl_ctx_step_back(ctx);
    }

    return NGX_DECLINED;
}


void
ngx_rl_verdict_end(ngx_rl_ctx_t *ctx)
{
    if (!ctx->returned || ctx->final) {
        return;
    }

    if (ctx->decision.outcome == NGX_RL_SKIPPED) {
        ngx_rl_verdict_count_limits(ctx);
    }

    while (ctx->conf->preview && ctx->before) {
        ctx = ctx->before;
    }

    ngx_rl_verdict_count(ctx);
}


/* an earlier location has asked this limit and counted it */

static ngx_uint_t
ngx_rl_verdict_counts(ngx_rl_ctx_t *ctx, ngx_rl_http_claim_t *hc)
{
    if (hc->asked && hc->claim.decision.outcome != NGX_RL_REJECTED) {
        return 0;
    }

    return ngx_rl_policy_counts(&ctx->decision, &hc->claim);
}


/* a preview does not count as a request to its limits */

static void
ngx_rl_verdict_count(ngx_rl_ctx_t *ctx)
{
    ngx_rl_stats_t     *stats;
    ngx_rl_decision_t  *d;

    if (ctx->conf->preview) {
        return;
    }

    d = &ctx->decision;
    stats = ctx->main->stats;

    ngx_rl_stats_decision(stats->decisions, d);
    ngx_rl_stats_latency(&stats->latency, ctx->latency);

    if (d->failure != NGX_RL_OK) {
        ngx_rl_count(stats->fallback[d->source]
                     [ngx_rl_failure_reason(d->failure)]);
    }
}


static void
ngx_rl_verdict_count_limits(ngx_rl_ctx_t *ctx)
{
    ngx_uint_t             i;
    ngx_rl_decision_t     *d;
    ngx_rl_http_claim_t   *hc;
    ngx_rl_limit_stats_t  *stats;

    for (i = 0; i < ctx->conf->n; i++) {
        hc = &ctx->claims[i];
        d = &hc->claim.decision;
        stats = hc->limit->stats;

        if (ctx->conf->preview) {

            if (d->source != NGX_RL_SOURCE_NONE) {
                ngx_rl_count(stats->previews[d->source]);
            }

        } else if (ngx_rl_verdict_counts(ctx, hc)) {
            ngx_rl_stats_decision(stats->requests, d);
            ngx_rl_stats_taken(stats, d, hc->claim.bucket.cost);

            if (d->failure != NGX_RL_OK) {
                ngx_rl_count(stats->degraded);
            }

            if (ngx_rl_verdict_advises(ctx, d)) {
                ngx_rl_stats_needed(hc->limit->advice, d, &hc->claim.bucket);
            }

            /* an empty key is none */

            if (ctx->conf->limits[i].top && hc->claim.len) {
                ngx_rl_verdict_count_key(ctx, hc, &ctx->conf->limits[i]);
            }
        }
    }
}


/*
 * A request that another limit rejects takes nothing, and during an outage
 * this machine has only a share of the limit: neither says what is needed.
 */

static ngx_uint_t
ngx_rl_verdict_advises(ngx_rl_ctx_t *ctx, ngx_rl_decision_t *d)
{
    return d->needed && d->failure == NGX_RL_OK
           && ctx->decision.outcome != NGX_RL_REJECTED
           && ctx->decision.source != NGX_RL_SOURCE_CLOSED;
}


/* only a key that gets an entry in a table needs its text */

static void
ngx_rl_verdict_count_key(ngx_rl_ctx_t *ctx, ngx_rl_http_claim_t *hc,
    ngx_rl_location_limit_t *ll)
{
    u_char           buf[NGX_RL_SHOWN];
    uint64_t         now;
    ngx_str_t        text;
    ngx_uint_t       tables;
    ngx_rl_zone_t   *zone;
    ngx_rl_claim_t  *claim;

    zone = ctx->main->zone;
    claim = &hc->claim;
    now = ctx->start / 1000;

    tables = NGX_RL_TOP_SEEN;

    if (claim->decision.outcome == NGX_RL_REJECTED
        || claim->decision.outcome == NGX_RL_REJECTED_DRY_RUN)
    {
        tables |= NGX_RL_TOP_REJECTED;
    }

    /*
     * The hash stands for the key, as its text may be cut off.  Memory was not
     * asked if the claim could not be made.
     */

    if (claim->hash[1] == 0) {
        ngx_rl_siphash(zone->sh->secret, claim->key, claim->len, claim->hash);
    }

    tables = ngx_rl_tops_hit(zone, hc->limit->tops, tables, claim->hash[1],
                             now);

    if (tables) {
        ngx_rl_verdict_show_key(&text, buf, ll, &hc->key);
        ngx_rl_tops_add(zone, hc->limit->tops, tables, claim->hash[1], &text,
                        now);
    }
}


static void
ngx_rl_verdict_log(ngx_rl_ctx_t *ctx, ngx_rl_http_claim_t *hc)
{
    size_t              len;
    u_char              key[NGX_RL_VERDICT_LOG_KEY];
    ngx_log_t          *log;
    ngx_uint_t          level;
    ngx_rl_decision_t  *d;

    d = &hc->claim.decision;
    log = ctx->request->connection->log;

    level = (d->outcome == NGX_RL_REJECTED
             || d->outcome == NGX_RL_REJECTED_DRY_RUN)
            ? ctx->conf->log_level : NGX_LOG_INFO;

    if (log->log_level < level) {
        return;
    }

    len = ngx_rl_verdict_log_key(key, &ctx->conf->limits[hc - ctx->claims],
                                 &hc->key);

    switch (d->outcome) {

    case NGX_RL_SKIPPED:
        if (d->source == NGX_RL_SOURCE_OVERRIDE) {
            ngx_log_error(level, log, 0,
                          "ratelimit SKIPPED, limit: \"%V\"%*s, "
                          "source: override", &hc->limit->name, len, key);
            break;
        }

        ngx_log_error(level, log, 0,
                      "ratelimit SKIPPED, limit: \"%V\", the key is empty",
                      &hc->limit->name);
        break;

    case NGX_RL_DEGRADED:
        ngx_log_error(level, log, 0,
                      "ratelimit DEGRADED, limit: \"%V\"%*s, "
                      "source: %s, failure: %s", &hc->limit->name, len, key,
                      ngx_rl_source_names[d->source],
                      ngx_rl_failure_names[d->failure]);
        break;

    default:
        ngx_log_error(level, log, 0,
                      "ratelimit %s, limit: \"%V\"%*s, cost: %uL, "
                      "remaining: %uL of %uL, retry after: %L, source: %s%s%s",
                      ngx_rl_outcome_names[d->outcome],
                      &hc->limit->name, len, key,
                      hc->claim.bucket.cost, d->remaining, d->limit,
                      /* -1: never */
                      (int64_t) d->retry_after,
                      ngx_rl_source_names[d->source],
                      d->failure ? ", failure: " : "",
                      d->failure ? ngx_rl_failure_names[d->failure] : "");
        break;
    }
}


/* the key as a part of a log line, or nothing */

size_t
ngx_rl_verdict_log_key(u_char *buf, ngx_rl_location_limit_t *ll, ngx_str_t *key)
{
    u_char    *p;
    u_char     shown[NGX_RL_SHOWN];
    ngx_str_t  text;

    if (ll->log_key == NGX_RL_KEY_OFF) {
        return 0;
    }

    ngx_rl_verdict_show_key(&text, shown, ll, key);

    p = ngx_cpymem(buf, ", key: \"", sizeof(", key: \"") - 1);
    p += ngx_rl_escape(p, text.data, text.len);
    *p++ = '"';

    return p - buf;
}


/*
 * The key in the form that may be shown, cut off if it is long.  The text is
 * in "buf", or part of the key.
 */

static void
ngx_rl_verdict_show_key(ngx_str_t *text, u_char *buf,
    ngx_rl_location_limit_t *ll, ngx_str_t *key)
{
    *text = *key;

    switch (ll->log_key) {

    case NGX_RL_KEY_OFF:
        text->len = 0;
        break;

    case NGX_RL_KEY_HASH:

        /* the first digits of the digest; the key may be a digest already */

        if (!ngx_rl_digested(key)) {
            ngx_rl_digest(buf, key);
            text->data = buf;
        }

        text->len = sizeof(NGX_RL_DIGEST) - 1 + NGX_RL_LOG_HASH;
        break;

    case NGX_RL_KEY_ADDRESS:

        if (key->len == 4) {
            text->data = buf;
            text->len = ngx_inet_ntop(AF_INET, key->data, buf,
                                      NGX_SOCKADDR_STRLEN);

#if (NGX_HAVE_INET6)
        } else if (key->len == 16) {
            text->data = buf;
            text->len = ngx_inet_ntop(AF_INET6, key->data, buf,
                                      NGX_SOCKADDR_STRLEN);
#endif
        }

        break;

    default: /* NGX_RL_KEY_PLAIN */
        break;
    }

    text->len = ngx_min(text->len, NGX_RL_LOG_KEY);
}
