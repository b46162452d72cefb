
/*
 * What stands for a key that is too long for Redis, or a secret in the log:
 * "sha1:" and the SHA-1 of the key in hex.  No key that is used as it is begins
 * like that, so a client can't send the digest of another one's key.
 */


#ifndef _NGX_RL_DIGEST_H_INCLUDED_
#define _NGX_RL_DIGEST_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#define NGX_RL_DIGEST      "sha1:"
#define NGX_RL_DIGEST_LEN  45


/* NGX_RL_DIGEST_LEN bytes */
void ngx_rl_digest(u_char *digest, ngx_str_t *key);

/* whether a key begins like a digest */
ngx_uint_t ngx_rl_digested(ngx_str_t *key);


#endif /* _NGX_RL_DIGEST_H_INCLUDED_ */
