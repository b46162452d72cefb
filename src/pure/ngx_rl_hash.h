
/*
 * Which shard a key belongs to, and its hash in memory.  Pure: no nginx, no
 * state.
 */


#ifndef _NGX_RL_HASH_H_INCLUDED_
#define _NGX_RL_HASH_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


/* FNV-1a, 64 bits */
uint64_t ngx_rl_hash(const void *data, size_t len);

/*
 * Rendezvous hashing: the shard with the highest score for this key wins.
 * "shards" are the hashes of the shards' names, so neither the order of the
 * list nor the addresses behind the names matter.  Adding the n-th shard takes
 * 1/n of the keys, in equal parts from all other shards.
 */
size_t ngx_rl_hash_consistent(uint64_t key, const uint64_t *shards, size_t n);

/* FNV-1a, 32 bits: modulo the number of shards, the rule of other clients */
uint32_t ngx_rl_hash32(const void *data, size_t len);

/*
 * SipHash-2-4 with 128 bits.  As long as the secret is not known, nobody can
 * find two keys with the same hash, so the hash can stand for the key.
 */
void ngx_rl_siphash(const uint64_t secret[2], const void *data,
    size_t len, uint64_t hash[2]);


#endif /* _NGX_RL_HASH_H_INCLUDED_ */
