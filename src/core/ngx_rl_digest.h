
/*
 * Replaces a key that is too long for Redis, and hides a secret in the log:
 * "sha1:" and the SHA-1 of the key in hex.  A key that begins with "sha1:" is
 * digested itself, so a client cannot send the digest of another client's key.
 */


#ifndef _NGX_RL_DIGEST_H_INCLUDED_
#define _NGX_RL_DIGEST_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#define NGX_RL_DIGEST      "sha1:"
#define NGX_RL_DIGEST_LEN  45


/* NGX_RL_DIGEST_LEN bytes */
void ngx_rl_digest(u_char *digest, ngx_str_t *key);

/* whether a key looks like a digest */
ngx_uint_t ngx_rl_digested(ngx_str_t *key);


#endif /* _NGX_RL_DIGEST_H_INCLUDED_ */
