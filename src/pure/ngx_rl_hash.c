
#include <string.h>

#include "pure/ngx_rl_hash.h"


#define NGX_RL_FNV_BASIS  0xcbf29ce484222325ULL
#define NGX_RL_FNV_PRIME  0x00000100000001b3ULL

#define NGX_RL_FNV32_BASIS  0x811c9dc5
#define NGX_RL_FNV32_PRIME  0x01000193


#define ngx_rl_rotate(x, n)  (((x) << (n)) | ((x) >> (64 - (n))))


static uint64_t ngx_rl_hash_mix(uint64_t h);
static void ngx_rl_sip_rounds(uint64_t v[4], int n);
static uint64_t ngx_rl_sip_word(const unsigned char *p, size_t len);


uint64_t
ngx_rl_hash(const void *data, size_t len)
{
    size_t                i;
    uint64_t              h;
    const unsigned char  *p;

    p = data;
    h = NGX_RL_FNV_BASIS;

    for (i = 0; i < len; i++) {
        h ^= p[i];
        h *= NGX_RL_FNV_PRIME;
    }

    return h;
}


size_t
ngx_rl_hash_consistent(uint64_t key, const uint64_t *shards, size_t n)
{
    size_t    i, best;
    uint64_t  score, highest;

    best = 0;
    highest = 0;

    for (i = 0; i < n; i++) {
        score = ngx_rl_hash_mix(key ^ shards[i]);

        if (i == 0 || score > highest) {
            highest = score;
            best = i;
        }
    }

    return best;
}


uint32_t
ngx_rl_hash32(const void *data, size_t len)
{
    size_t                i;
    uint32_t              h;
    const unsigned char  *p;

    p = data;
    h = NGX_RL_FNV32_BASIS;

    for (i = 0; i < len; i++) {
        h ^= p[i];
        h *= NGX_RL_FNV32_PRIME;
    }

    return h;
}


/*
 * FNV-1a leaves the high bits of short keys alike.  Scores are compared from
 * the top, so every input bit must reach every output bit.
 */

static uint64_t
ngx_rl_hash_mix(uint64_t h)
{
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdULL;
    h ^= h >> 33;
    h *= 0xc4ceb9fe1a85ec53ULL;
    h ^= h >> 33;

    return h;
}


void
ngx_rl_siphash(const uint64_t secret[2], const void *data,
    size_t len, uint64_t hash[2])
{
    size_t                left;
    uint64_t              m, v[4];
    const unsigned char  *p;

    v[0] = secret[0] ^ 0x736f6d6570736575ULL;
    v[1] = secret[1] ^ 0x646f72616e646f6dULL ^ 0xee;
    v[2] = secret[0] ^ 0x6c7967656e657261ULL;
    v[3] = secret[1] ^ 0x7465646279746573ULL;

    p = data;

    for (left = len; left >= 8; left -= 8) {
        m = ngx_rl_sip_word(p, 8);
        p += 8;

        v[3] ^= m;
        ngx_rl_sip_rounds(v, 2);
        v[0] ^= m;
    }

    m = ngx_rl_sip_word(p, left) | (uint64_t) len << 56;

    v[3] ^= m;
    ngx_rl_sip_rounds(v, 2);
    v[0] ^= m;

    v[2] ^= 0xee;
    ngx_rl_sip_rounds(v, 4);
    hash[0] = v[0] ^ v[1] ^ v[2] ^ v[3];

    v[1] ^= 0xdd;
    ngx_rl_sip_rounds(v, 4);
    hash[1] = v[0] ^ v[1] ^ v[2] ^ v[3];
}


static void
ngx_rl_sip_rounds(uint64_t v[4], int n)
{
    while (n--) {
        v[0] += v[1];
        v[1] = ngx_rl_rotate(v[1], 13) ^ v[0];
        v[0] = ngx_rl_rotate(v[0], 32);

        v[2] += v[3];
        v[3] = ngx_rl_rotate(v[3], 16) ^ v[2];

        v[0] += v[3];
        v[3] = ngx_rl_rotate(v[3], 21) ^ v[0];

        v[2] += v[1];
        v[1] = ngx_rl_rotate(v[1], 17) ^ v[2];
        v[2] = ngx_rl_rotate(v[2], 32);
    }
}


/* up to eight bytes, the first one lowest */

static uint64_t
ngx_rl_sip_word(const unsigned char *p, size_t len)
{
    uint64_t  m;

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (len == 8) {
        memcpy(&m, p, 8);
        return m;
    }
#endif

    for (m = 0; len; len--) {
        m = m << 8 | p[len - 1];
    }

    return m;
}
