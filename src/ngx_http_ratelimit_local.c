
#include "ngx_http_ratelimit_local.h"
#include "ngx_http_ratelimit_hash.h"


/* a claim while it is looked at */

typedef struct {
    ngx_http_ratelimit_zone_key_t   key;
    ngx_http_ratelimit_node_t      *node;      /* NULL: nothing is known */
    ngx_http_ratelimit_bucket_t     bucket;    /* this machine's share */
    ngx_http_ratelimit_level_t      level;     /* of a preview without node */
    ngx_http_ratelimit_log_t        log;       /* of a window */
    unsigned                        fits:1;
} ngx_http_ratelimit_look_t;


static void ngx_http_ratelimit_local_look(ngx_http_ratelimit_zone_t *zone,
    ngx_http_ratelimit_look_t *look, int64_t *state, uint64_t now);
static void ngx_http_ratelimit_local_taken(ngx_http_ratelimit_zone_t *zone,
    ngx_http_ratelimit_look_t *look, int64_t *state, uint64_t now);
static void ngx_http_ratelimit_local_preview_key(
    ngx_http_ratelimit_zone_t *zone, ngx_str_t *label,
    ngx_http_ratelimit_claim_t *claim, ngx_http_ratelimit_zone_key_t *key);


/* too large for the stack, and only one request at a time is looked at */
static ngx_http_ratelimit_look_t
    ngx_http_ratelimit_looks[NGX_HTTP_RATELIMIT_CLAIMS];


uint64_t
ngx_http_ratelimit_local_clock(void)
{
    struct timespec  ts;

    (void) clock_gettime(CLOCK_MONOTONIC, &ts);

    return (uint64_t) ts.tv_sec * NGX_HTTP_RATELIMIT_MICRO
           + ts.tv_nsec / 1000;
}


ngx_int_t
ngx_http_ratelimit_local_take(ngx_http_ratelimit_zone_t *zone,
    ngx_http_ratelimit_claim_t **claims, ngx_uint_t n,
    const ngx_http_ratelimit_share_t *share, ngx_uint_t preview, uint64_t now)
{
    ngx_int_t                       rc;
    ngx_uint_t                      i, denied;
    ngx_http_ratelimit_look_t      *look;
    ngx_http_ratelimit_decision_t  *d;

    look = ngx_http_ratelimit_looks;

    for (i = 0; i < n; i++) {

        ngx_http_ratelimit_zone_key(zone,
                               claims[i]->bucket.algorithm
                               == NGX_HTTP_RATELIMIT_SLIDING_WINDOW_LOG
                               ? NGX_HTTP_RATELIMIT_KEEP_LOG
                               : NGX_HTTP_RATELIMIT_KEEP_LEVEL,
                               claims[i]->key, claims[i]->len, &look[i].key);

        look[i].bucket = claims[i]->bucket;

        if (share) {
            ngx_http_ratelimit_level_share(&look[i].bucket, share);
        }
    }

    rc = NGX_OK;
    denied = 0;

    ngx_http_ratelimit_zone_lock(zone);

    for (i = 0; i < n; i++) {

        look[i].node = preview
                       ? ngx_http_ratelimit_zone_find(zone, &look[i].key)
                       : ngx_http_ratelimit_zone_make(zone, &look[i].key);

        if (look[i].node == NULL && !preview) {
            rc = NGX_DECLINED;
            goto done;
        }

        ngx_http_ratelimit_local_look(zone, &look[i], claims[i]->state, now);

        if (!look[i].fits && !claims[i]->shadow) {
            denied = 1;
        }
    }

    for (i = 0; i < n; i++) {
        if (look[i].fits && !denied && !preview) {
            ngx_http_ratelimit_local_taken(zone, &look[i], claims[i]->state,
                                           now);
        }
    }

done:

    ngx_http_ratelimit_zone_unlock(zone);

    if (rc != NGX_OK) {
        return rc;
    }

    for (i = 0; i < n; i++) {

        /* more than the share of a machine is not waited for */

        if (look[i].bucket.cost > look[i].bucket.capacity) {
            look[i].bucket.cost = look[i].bucket.capacity;
        }

        d = &claims[i]->decision;

        ngx_http_ratelimit_decide(d, &look[i].bucket, claims[i]->state);
        d->source = NGX_HTTP_RATELIMIT_SOURCE_LOCAL;
    }

    return NGX_OK;
}


static void
ngx_http_ratelimit_local_look(ngx_http_ratelimit_zone_t *zone,
    ngx_http_ratelimit_look_t *look, int64_t *state, uint64_t now)
{
    ngx_http_ratelimit_level_t  *level;

    if (look->bucket.algorithm == NGX_HTTP_RATELIMIT_SLIDING_WINDOW_LOG) {

        if (look->node) {
            ngx_http_ratelimit_zone_load(zone, look->node, &look->log);

        } else {
            look->log.n = 0;
        }

        look->fits = ngx_http_ratelimit_log_look(&look->log, &look->bucket,
                                                 now, state);
        return;
    }

    if (look->node) {
        level = &look->node->u.level;

    } else {
        level = &look->level;
        ngx_memzero(level, sizeof(ngx_http_ratelimit_level_t));
    }

    look->fits = ngx_http_ratelimit_level_look(level, &look->bucket, now,
                                               state);
}


static void
ngx_http_ratelimit_local_taken(ngx_http_ratelimit_zone_t *zone,
    ngx_http_ratelimit_look_t *look, int64_t *state, uint64_t now)
{
    if (look->bucket.algorithm == NGX_HTTP_RATELIMIT_SLIDING_WINDOW_LOG) {
        ngx_http_ratelimit_log_take(&look->log, &look->bucket, now, state);
        ngx_http_ratelimit_zone_save(zone, look->node, &look->log);

    } else {
        ngx_http_ratelimit_level_take(&look->node->u.level, &look->bucket,
                                      state);
    }
}


ngx_int_t
ngx_http_ratelimit_local_recall(ngx_http_ratelimit_zone_t *zone,
    ngx_str_t *label, ngx_http_ratelimit_claim_t *claim, ngx_msec_t age)
{
    ngx_int_t                       rc;
    ngx_http_ratelimit_node_t      *node;
    ngx_http_ratelimit_zone_key_t   key;

    ngx_http_ratelimit_local_preview_key(zone, label, claim, &key);

    rc = NGX_DECLINED;

    ngx_http_ratelimit_zone_lock(zone);

    node = ngx_http_ratelimit_zone_find(zone, &key);

    /* the clock of another worker may be a moment ahead */

    if (node
        && (ngx_msec_int_t) (ngx_current_msec - node->u.preview.time)
           < (ngx_msec_int_t) age)
    {
        ngx_memcpy(claim->state, node->u.preview.state, sizeof(claim->state));
        rc = NGX_OK;
    }

    ngx_http_ratelimit_zone_unlock(zone);

    return rc;
}


void
ngx_http_ratelimit_local_remember(ngx_http_ratelimit_zone_t *zone,
    ngx_str_t *label, ngx_http_ratelimit_claim_t *claim)
{
    ngx_http_ratelimit_node_t      *node;
    ngx_http_ratelimit_zone_key_t   key;

    ngx_http_ratelimit_local_preview_key(zone, label, claim, &key);

    ngx_http_ratelimit_zone_lock(zone);

    node = ngx_http_ratelimit_zone_make(zone, &key);

    if (node) {
        node->u.preview.time = ngx_current_msec;
        ngx_memcpy(node->u.preview.state, claim->state, sizeof(claim->state));
    }

    ngx_http_ratelimit_zone_unlock(zone);
}


/* places with different shards may use one limit */

static void
ngx_http_ratelimit_local_preview_key(ngx_http_ratelimit_zone_t *zone,
    ngx_str_t *label, ngx_http_ratelimit_claim_t *claim,
    ngx_http_ratelimit_zone_key_t *key)
{
    ngx_http_ratelimit_zone_key(zone, NGX_HTTP_RATELIMIT_KEEP_PREVIEW,
                                claim->key, claim->len, key);

    key->hash[0] ^= ngx_http_ratelimit_hash(label->data, label->len);
}
