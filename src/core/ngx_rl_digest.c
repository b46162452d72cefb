
#include "core/ngx_rl_digest.h"

#include <ngx_sha1.h>


#define NGX_RL_SHA1_LEN  20


void
ngx_rl_digest(u_char *digest, ngx_str_t *key)
{
    u_char     *p;
    u_char      bytes[NGX_RL_SHA1_LEN];
    ngx_sha1_t  sha1;

    ngx_sha1_init(&sha1);
    ngx_sha1_update(&sha1, key->data, key->len);
    ngx_sha1_final(bytes, &sha1);

    p = ngx_cpymem(digest, NGX_RL_DIGEST, sizeof(NGX_RL_DIGEST) - 1);

    (void) ngx_hex_dump(p, bytes, NGX_RL_SHA1_LEN);
}


ngx_uint_t
ngx_rl_digested(ngx_str_t *key)
{
    return key->len >= sizeof(NGX_RL_DIGEST) - 1
           && ngx_memcmp(key->data, NGX_RL_DIGEST, sizeof(NGX_RL_DIGEST) - 1)
              == 0;
}
