
/*
 * A tree of nodes by the hash of the key, and a queue of the same nodes with
 * the least recently used one at its tail.  The only lock is that of the slab
 * pool, which the master releases when a worker dies with it; under it nothing
 * is logged or evaluated.  When memory runs out, old nodes go.
 *
 * A reload keeps the zone if its layout is the same; old and new workers use
 * it together.  Nothing in it points to the memory of a process.
 */


#include "ngx_http_ratelimit_zone.h"
#include "ngx_http_ratelimit_hash.h"


/* changes with anything below that lives in shared memory */
#define NGX_HTTP_RATELIMIT_ZONE_LAYOUT  1

/* nodes that go to make room for one */
#define NGX_HTTP_RATELIMIT_ZONE_EVICT   5


typedef struct {
    ngx_rbtree_node_t    rbtree;             /* key: hash, cut to its size */
    ngx_queue_t          queue;
    ngx_msec_t           time;               /* when it was like this */
    int64_t              state[NGX_HTTP_RATELIMIT_STATES];
    size_t               len;
    u_char               key[1];
} ngx_http_ratelimit_node_t;


typedef struct {
    ngx_uint_t           layout;
    ngx_rbtree_t         rbtree;
    ngx_rbtree_node_t    sentinel;
    ngx_queue_t          queue;              /* most recently used first */
} ngx_http_ratelimit_zone_t;


static ngx_int_t ngx_http_ratelimit_zone_init(ngx_shm_zone_t *shm_zone,
    void *data);
static ngx_http_ratelimit_node_t *ngx_http_ratelimit_zone_find(
    ngx_http_ratelimit_zone_t *zone, ngx_rbtree_key_t hash, ngx_str_t *key);
static ngx_http_ratelimit_node_t *ngx_http_ratelimit_zone_alloc(
    ngx_http_ratelimit_zone_t *zone, ngx_slab_pool_t *shpool, size_t size);
static void ngx_http_ratelimit_zone_insert(ngx_rbtree_node_t *temp,
    ngx_rbtree_node_t *node, ngx_rbtree_node_t *sentinel);
static ngx_int_t ngx_http_ratelimit_zone_compare(
    ngx_http_ratelimit_node_t *node, u_char *key, size_t len);


ngx_shm_zone_t *
ngx_http_ratelimit_zone_add(ngx_conf_t *cf, size_t size, void *tag)
{
    ngx_shm_zone_t    *shm_zone;

    static ngx_str_t   name = ngx_string("ngx_http_ratelimit");

    shm_zone = ngx_shared_memory_add(cf, &name, size, tag);
    if (shm_zone == NULL) {
        return NULL;
    }

    shm_zone->init = ngx_http_ratelimit_zone_init;

    return shm_zone;
}


static ngx_int_t
ngx_http_ratelimit_zone_init(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_slab_pool_t            *shpool;
    ngx_http_ratelimit_zone_t  *zone;

    static ngx_str_t  context = ngx_string(" in ratelimit zone");

    shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    /* nginx hands over the old memory only if size and tag are the same */

    zone = shpool->data;

    if ((data || shm_zone->shm.exists)
        && zone && zone->layout == NGX_HTTP_RATELIMIT_ZONE_LAYOUT)
    {
        shm_zone->data = zone;
        return NGX_OK;
    }

    zone = ngx_slab_calloc(shpool, sizeof(ngx_http_ratelimit_zone_t));
    if (zone == NULL) {
        return NGX_ERROR;
    }

    zone->layout = NGX_HTTP_RATELIMIT_ZONE_LAYOUT;

    ngx_rbtree_init(&zone->rbtree, &zone->sentinel,
                    ngx_http_ratelimit_zone_insert);
    ngx_queue_init(&zone->queue);

    shpool->log_ctx = ngx_slab_alloc(shpool, context.len + 1);
    if (shpool->log_ctx == NULL) {
        return NGX_ERROR;
    }

    (void) ngx_cpystrn(shpool->log_ctx, context.data, context.len + 1);

    /* running out of memory is what it is made for */

    shpool->log_nomem = 0;

    shpool->data = zone;
    shm_zone->data = zone;

    return NGX_OK;
}


ngx_int_t
ngx_http_ratelimit_zone_get(ngx_shm_zone_t *shm_zone, ngx_str_t *key,
    int64_t *state, ngx_msec_t age)
{
    ngx_int_t                   rc;
    ngx_slab_pool_t            *shpool;
    ngx_rbtree_key_t            hash;
    ngx_http_ratelimit_node_t  *node;
    ngx_http_ratelimit_zone_t  *zone;

    hash = (ngx_rbtree_key_t) ngx_http_ratelimit_hash(key->data, key->len);

    zone = shm_zone->data;
    shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    rc = NGX_DECLINED;

    ngx_shmtx_lock(&shpool->mutex);

    node = ngx_http_ratelimit_zone_find(zone, hash, key);

    /* the clock of another worker may be a moment ahead */

    if (node && (ngx_msec_int_t) (ngx_current_msec - node->time)
                < (ngx_msec_int_t) age)
    {
        ngx_memcpy(state, node->state, sizeof(node->state));

        ngx_queue_remove(&node->queue);
        ngx_queue_insert_head(&zone->queue, &node->queue);

        rc = NGX_OK;
    }

    ngx_shmtx_unlock(&shpool->mutex);

    return rc;
}


void
ngx_http_ratelimit_zone_set(ngx_shm_zone_t *shm_zone, ngx_str_t *key,
    int64_t *state)
{
    ngx_slab_pool_t            *shpool;
    ngx_rbtree_key_t            hash;
    ngx_http_ratelimit_node_t  *node;
    ngx_http_ratelimit_zone_t  *zone;

    hash = (ngx_rbtree_key_t) ngx_http_ratelimit_hash(key->data, key->len);

    zone = shm_zone->data;
    shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    ngx_shmtx_lock(&shpool->mutex);

    node = ngx_http_ratelimit_zone_find(zone, hash, key);

    if (node == NULL) {
        node = ngx_http_ratelimit_zone_alloc(zone, shpool,
                        offsetof(ngx_http_ratelimit_node_t, key) + key->len);

        if (node == NULL) {
            ngx_shmtx_unlock(&shpool->mutex);
            return;
        }

        node->rbtree.key = hash;
        node->len = key->len;
        ngx_memcpy(node->key, key->data, key->len);

        ngx_rbtree_insert(&zone->rbtree, &node->rbtree);

    } else {
        ngx_queue_remove(&node->queue);
    }

    ngx_memcpy(node->state, state, sizeof(node->state));
    node->time = ngx_current_msec;

    ngx_queue_insert_head(&zone->queue, &node->queue);

    ngx_shmtx_unlock(&shpool->mutex);
}


static ngx_http_ratelimit_node_t *
ngx_http_ratelimit_zone_alloc(ngx_http_ratelimit_zone_t *zone,
    ngx_slab_pool_t *shpool, size_t size)
{
    ngx_uint_t                  i;
    ngx_queue_t                *q;
    ngx_http_ratelimit_node_t  *node;

    for (i = 0; /* void */ ; i++) {

        node = ngx_slab_alloc_locked(shpool, size);

        if (node || i == NGX_HTTP_RATELIMIT_ZONE_EVICT
            || ngx_queue_empty(&zone->queue))
        {
            return node;
        }

        q = ngx_queue_last(&zone->queue);
        node = ngx_queue_data(q, ngx_http_ratelimit_node_t, queue);

        ngx_queue_remove(q);
        ngx_rbtree_delete(&zone->rbtree, &node->rbtree);
        ngx_slab_free_locked(shpool, node);
    }
}


static ngx_http_ratelimit_node_t *
ngx_http_ratelimit_zone_find(ngx_http_ratelimit_zone_t *zone,
    ngx_rbtree_key_t hash, ngx_str_t *key)
{
    ngx_int_t                   rc;
    ngx_rbtree_node_t          *node, *sentinel;
    ngx_http_ratelimit_node_t  *n;

    node = zone->rbtree.root;
    sentinel = zone->rbtree.sentinel;

    while (node != sentinel) {

        if (hash != node->key) {
            node = (hash < node->key) ? node->left : node->right;
            continue;
        }

        n = (ngx_http_ratelimit_node_t *) node;
        rc = ngx_http_ratelimit_zone_compare(n, key->data, key->len);

        if (rc == 0) {
            return n;
        }

        node = (rc < 0) ? node->left : node->right;
    }

    return NULL;
}


static void
ngx_http_ratelimit_zone_insert(ngx_rbtree_node_t *temp,
    ngx_rbtree_node_t *node, ngx_rbtree_node_t *sentinel)
{
    ngx_rbtree_node_t          **p;
    ngx_http_ratelimit_node_t   *n;

    n = (ngx_http_ratelimit_node_t *) node;

    for ( ;; ) {

        if (node->key != temp->key) {
            p = (node->key < temp->key) ? &temp->left : &temp->right;

        } else {
            p = (ngx_http_ratelimit_zone_compare(
                     (ngx_http_ratelimit_node_t *) temp, n->key, n->len)
                 < 0)
                ? &temp->left : &temp->right;
        }

        if (*p == sentinel) {
            break;
        }

        temp = *p;
    }

    *p = node;
    node->parent = temp;
    node->left = sentinel;
    node->right = sentinel;
    ngx_rbt_red(node);
}


static ngx_int_t
ngx_http_ratelimit_zone_compare(ngx_http_ratelimit_node_t *node, u_char *key,
    size_t len)
{
    return ngx_memn2cmp(key, node->key, len, node->len);
}
