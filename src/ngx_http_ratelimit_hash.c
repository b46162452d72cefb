
#include "ngx_http_ratelimit_hash.h"


#define NGX_HTTP_RATELIMIT_FNV_BASIS  0xcbf29ce484222325ULL
#define NGX_HTTP_RATELIMIT_FNV_PRIME  0x00000100000001b3ULL


static uint64_t ngx_http_ratelimit_hash_mix(uint64_t h);


uint64_t
ngx_http_ratelimit_hash(const void *data, size_t len)
{
    size_t                i;
    uint64_t              h;
    const unsigned char  *p;

    p = data;
    h = NGX_HTTP_RATELIMIT_FNV_BASIS;

    for (i = 0; i < len; i++) {
        h ^= p[i];
        h *= NGX_HTTP_RATELIMIT_FNV_PRIME;
    }

    return h;
}


size_t
ngx_http_ratelimit_hash_consistent(uint64_t key, const uint64_t *shards,
    size_t n)
{
    size_t    i, best;
    uint64_t  score, highest;

    best = 0;
    highest = 0;

    for (i = 0; i < n; i++) {
        score = ngx_http_ratelimit_hash_mix(key ^ shards[i]);

        if (i == 0 || score > highest) {
            highest = score;
            best = i;
        }
    }

    return best;
}


size_t
ngx_http_ratelimit_hash_modulo(uint64_t key, size_t n)
{
    return (size_t) (key % n);
}


/*
 * FNV-1a alone leaves the high bits of short keys alike; scores are compared
 * from the top, so every input bit has to reach every output bit.
 */

static uint64_t
ngx_http_ratelimit_hash_mix(uint64_t h)
{
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdULL;
    h ^= h >> 33;
    h *= 0xc4ceb9fe1a85ec53ULL;
    h ^= h >> 33;

    return h;
}
