
/*
 * Which claims are for the same key.
 */

#include "tap.h"

#include "pure/ngx_rl_claim.h"


int
main(void)
{
    char            copy[] = "a\0b";
    ngx_rl_claim_t  a, b;

    memset(&a, 0, sizeof(a));

    a.key = "a\0b";
    a.len = 3;
    a.hash[0] = 1;
    a.hash[1] = 2;

    b = a;
    b.key = copy;
    ok(ngx_rl_claim_same(&a, &b), "a key is the same wherever it is");

    b.bucket.cost = 7;
    b.shadow = 1;
    b.limit = 9;
    ok(ngx_rl_claim_same(&a, &b), "whatever is wanted of it");

    copy[2] = 'c';
    ok(!ngx_rl_claim_same(&a, &b), "a byte after a zero byte counts");
    copy[2] = 'b';

    b.len = 2;
    ok(!ngx_rl_claim_same(&a, &b), "so does the length");
    b.len = 3;

    b.hash[0] = 3;
    ok(!ngx_rl_claim_same(&a, &b), "and the hash: the shard is in it");
    b.hash[0] = 1;

    b.hash[1] = 3;
    ok(!ngx_rl_claim_same(&a, &b), "all of it");
    b.hash[1] = 2;

    ok(ngx_rl_claim_same(&a, &b), "and nothing else");

    return tap_done();
}
