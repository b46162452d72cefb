
/*
 * Which shard a key belongs to: published vectors of FNV-1a, and how evenly a
 * million keys of three kinds spread, and how few of them move.  Where a key
 * is in memory: published vectors of SipHash.
 */

#include "tap.h"

#include "pure/ngx_rl_hash.h"


#define KEYS  1000000


typedef size_t (*key_pt)(char *key, size_t size, uint32_t n);


static const char  *shard_names[] = {
    "10.0.0.1:6379",
    "10.0.0.2:6379",
    "10.0.0.3:6379",
    "10.0.0.4:6379",
    "10.0.0.5:6379"
};


static size_t
key_ipv4(char *key, size_t size, uint32_t n)
{
    /* a bijection, so that no address comes twice */

    n = n * 2654435761U + 12345;

    return snprintf(key, size, "%u.%u.%u.%u", n >> 24, (n >> 16) & 0xff,
                    (n >> 8) & 0xff, n & 0xff);
}


static size_t
key_uuid(char *key, size_t size, uint32_t n)
{
    uint64_t  seed, a, b;

    seed = n;
    a = tap_random(&seed);
    b = tap_random(&seed);

    return snprintf(key, size, "%08x-%04x-4%03x-%04x-%012" PRIx64,
                    (unsigned) (a >> 32), (unsigned) (a >> 16) & 0xffff,
                    (unsigned) a & 0xfff, (unsigned) (b & 0x3fff) | 0x8000,
                    (uint64_t) (b >> 16));
}


static size_t
key_sequential(char *key, size_t size, uint32_t n)
{
    return snprintf(key, size, "%u", n + 1);
}


/* the same, as an address in network byte order: $binary_remote_addr */

static size_t
key_binary(char *key, size_t size, uint32_t n)
{
    (void) size;

    n += 0x0a000000;

    key[0] = (char) (n >> 24);
    key[1] = (char) (n >> 16);
    key[2] = (char) (n >> 8);
    key[3] = (char) n;

    return 4;
}


static const struct {
    const char  *name;
    key_pt       make;
} kinds[] = {
    { "IPv4 addresses", key_ipv4 },
    { "UUIDs", key_uuid },
    { "sequential ids", key_sequential },
    { "sequential binary addresses", key_binary }
};


#define NKINDS  (sizeof(kinds) / sizeof(kinds[0]))


static uint64_t  hashes[NKINDS][KEYS];
static uint32_t  hashes32[NKINDS][KEYS];


static void
test_vectors(void)
{
    char    name[64];
    size_t  i;

    /* from the test suite of FNV's authors and its Internet draft */

    static const struct {
        const char  *text;
        size_t       len;
        uint64_t     hash;
        uint32_t     hash32;
    } vectors[] = {
        { "", 0, 0xcbf29ce484222325ULL,
          0x811c9dc5 },
        { "a", 1, 0xaf63dc4c8601ec8cULL,
          0xe40c292c },
        { "b", 1, 0xaf63df4c8601f1a5ULL,
          0xe70c2de5 },
        { "c", 1, 0xaf63de4c8601eff2ULL,
          0xe60c2c52 },
        { "fo", 2, 0x08985907b541d342ULL,
          0x6222e842 },
        { "foo", 3, 0xdcb27518fed9d577ULL,
          0xa9f37ed7 },
        { "foob", 4, 0xdd120e790c2512afULL,
          0x3f5076ef },
        { "fooba", 5, 0xcac165afa2fef40aULL,
          0x39aaa18a },
        { "foobar", 6, 0x85944171f73967e8ULL,
          0xbf9cf968 },
        { "", 1, 0xaf63bd4c8601b7dfULL,
          0x050c5d1f },
        { "a\0", 2, 0x089be207b544f1e4ULL,
          0x2b24d044 },
        { "foobar\0", 7, 0x34531ca7168b8f38ULL,
          0x0c1c9eb8 },
        { "chongo was here!\n", 17, 0x46810940eff5f915ULL,
          0xd49930d5 },
        { "127.0.0.1", 9, 0xaabafe7104d914beULL,
          0x08a3d11e },
        { "\xff\x00\x00\x01", 4, 0x6961196491cc682dULL,
          0xc48fb86d }
    };

    for (i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        snprintf(name, sizeof(name), "FNV-1a vector %zu, \"%.*s\"", i + 1,
                 (int) strcspn(vectors[i].text, "\n\xff"), vectors[i].text);
        is_number(ngx_rl_hash(vectors[i].text, vectors[i].len),
                  vectors[i].hash, name);
        is_number(ngx_rl_hash32(vectors[i].text, vectors[i].len),
                  vectors[i].hash32, "the same with 32 bits");
    }
}


static void
test_spread(void)
{
    int       modulo;
    size_t    k, n, i, s, count[5];
    double    off, worst;
    uint64_t  shards[5];

    for (i = 0; i < 5; i++) {
        shards[i] = ngx_rl_hash(shard_names[i], strlen(shard_names[i]));
    }

    for (modulo = 0; modulo < 2; modulo++) {
        for (k = 0; k < NKINDS; k++) {
            for (n = 3; n <= 5; n++) {

                memset(count, 0, sizeof(count));

                for (i = 0; i < KEYS; i++) {
                    s = modulo
                        ? hashes32[k][i] % n
                        : ngx_rl_hash_consistent(hashes[k][i], shards, n);
                    count[s]++;
                }

                worst = 0;

                for (i = 0; i < n; i++) {
                    off = (double) count[i] * n / KEYS - 1;
                    off = off < 0 ? -off : off;
                    worst = off > worst ? off : worst;
                }

                if (!ok(worst <= 0.02, "%s: a million %s over %zu shards, "
                        "none more than 2 %% off its share",
                        modulo ? "modulo" : "consistent", kinds[k].name, n))
                {
                    diag("%zu %zu %zu %zu %zu", count[0], count[1], count[2],
                         count[3], count[4]);
                }
            }
        }
    }
}


static void
test_move(void)
{
    size_t    k, i, before, after, moved, astray;
    uint64_t  shards[5];

    for (i = 0; i < 5; i++) {
        shards[i] = ngx_rl_hash(shard_names[i], strlen(shard_names[i]));
    }

    for (k = 0; k < NKINDS; k++) {

        moved = 0;
        astray = 0;

        for (i = 0; i < KEYS; i++) {
            before = ngx_rl_hash_consistent(hashes[k][i], shards, 4);
            after = ngx_rl_hash_consistent(hashes[k][i], shards, 5);

            if (before != after) {
                moved++;
                astray += (after != 4);
            }
        }

        if (!ok(moved >= KEYS * 0.195 && moved <= KEYS * 0.205,
                "a fifth shard takes 20 %% +- 0.5 of a million %s",
                kinds[k].name))
        {
            diag("%zu moved", moved);
        }

        is_number(astray, 0, "and no key moves anywhere else");
    }
}


/* a shard keeps its keys whatever its place in the list */

static void
test_order(void)
{
    size_t    i, k, differ;
    uint64_t  shards[5], turned[5];

    static const size_t  order[5] = { 3, 0, 4, 2, 1 };

    for (i = 0; i < 5; i++) {
        shards[i] = ngx_rl_hash(shard_names[i], strlen(shard_names[i]));
    }

    for (i = 0; i < 5; i++) {
        turned[i] = shards[order[i]];
    }

    differ = 0;

    for (k = 0; k < NKINDS; k++) {
        for (i = 0; i < KEYS; i++) {
            differ += order[ngx_rl_hash_consistent(hashes[k][i], turned, 5)]
                      != ngx_rl_hash_consistent(hashes[k][i], shards, 5);
        }
    }

    is_number(differ, 0, "the order of the list does not matter");
}


/* when one of five goes, its keys alone move, and to all others alike */

static void
test_leave(void)
{
    size_t    i, before, after, astray, count[5];
    uint64_t  shards[5];

    for (i = 0; i < 5; i++) {
        shards[i] = ngx_rl_hash(shard_names[i], strlen(shard_names[i]));
        count[i] = 0;
    }

    astray = 0;

    /* shard 0 leaves: the remaining four are 1 to 4 */

    for (i = 0; i < KEYS; i++) {
        before = ngx_rl_hash_consistent(hashes[0][i], shards, 5);
        after = ngx_rl_hash_consistent(hashes[0][i], &shards[1], 4)
                + 1;

        if (before == 0) {
            count[after]++;

        } else {
            astray += before != after;
        }
    }

    is_number(astray, 0, "a shard that leaves moves no other shard's keys");

    for (i = 1; i < 5; i++) {
        ok(count[i] > KEYS / 20 * 0.95 && count[i] < KEYS / 20 * 1.05,
           "shard %zu takes a quarter of its keys", i);
    }
}


/* the hash as its authors write it */

static const char *
siphash_of(const uint64_t secret[2], const void *data, size_t len)
{
    int          i;
    uint64_t     hash[2];
    static char  hex[33];

    memset(hash, 0xff, sizeof(hash));
    ngx_rl_siphash(secret, data, len, hash);

    for (i = 0; i < 16; i++) {
        sprintf(&hex[2 * i], "%02x",
                (unsigned) (hash[i / 8] >> (8 * (i % 8))) & 0xff);
    }

    return hex;
}


/*
 * SipHash-2-4 with 128 bits; the key is 00 01 ... 0f, an input of n bytes is
 * 00 01 ...: up to 63 bytes those of its reference implementation, all of them
 * as "openssl mac" says
 */

static void
test_siphash(void)
{
    char           name[64];
    size_t         i, j, k, alike;
    uint64_t       secret[2], bit[2], a[2], b[2];
    unsigned char  input[257], *copy;

    static const struct {
        size_t       len;
        const char  *hash;
    } vectors[] = {
        { 0, "a3817f04ba25a8e66df67214c7550293" },
        { 1, "da87c1d86b99af44347659119b22fc45" },
        { 2, "8177228da4a45dc7fca38bdef60affe4" },
        { 3, "9c70b60c5267a94e5f33b6b02985ed51" },
        { 4, "f88164c12d9c8faf7d0f6e7c7bcd5579" },
        { 5, "1368875980776f8854527a07690e9627" },
        { 6, "14eeca338b208613485ea0308fd7a15e" },
        { 7, "a1f1ebbed8dbc153c0b84aa61ff08239" },
        { 8, "3b62a9ba6258f5610f83e264f31497b4" },
        { 9, "264499060ad9baabc47f8b02bb6d71ed" },
        { 10, "00110dc378146956c95447d3f3d0fbba" },
        { 11, "0151c568386b6677a2b4dc6f81e5dc18" },
        { 12, "d626b266905ef35882634df68532c125" },
        { 13, "9869e247e9c08b10d029934fc4b952f7" },
        { 14, "31fcefac66d7de9c7ec7485fe4494902" },
        { 15, "5493e99933b0a8117e08ec0f97cfc3d9" },
        { 16, "6ee2a4ca67b054bbfd3315bf85230577" },
        { 17, "473d06e8738db89854c066c47ae47740" },
        { 31, "2939b0183223fafc1723de4f52c43d35" },
        { 32, "7c3956ca5eeafc3e363e9d556546eb68" },
        { 33, "77c6077146f01c32b6b69d5f4ea9ffcf" },
        { 63, "5150d1772f50834a503e069a973fbd7c" },
        { 255, "1c9bb67528165f8e468248e3799b0eab" },
        { 256, "67a00304d3834c4612eaee7b5f579acb" },
        { 257, "1b25fee1ef6fbb23179c26056c2995fc" }
    };

    secret[0] = 0x0706050403020100ULL;
    secret[1] = 0x0f0e0d0c0b0a0908ULL;

    for (i = 0; i < sizeof(input); i++) {
        input[i] = (unsigned char) i;
    }

    for (i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {

        /* exactly its length, and on an odd address */

        copy = malloc(vectors[i].len + 1);
        memcpy(copy + 1, input, vectors[i].len);

        snprintf(name, sizeof(name), "SipHash of %zu bytes", vectors[i].len);
        is_text(siphash_of(secret, copy + 1, vectors[i].len),
                vectors[i].hash, name);
        free(copy);
    }

    /* every bit of the secret and of the data reaches both halves */

    alike = 0;
    ngx_rl_siphash(secret, input, 20, a);

    for (i = 0; i < 2; i++) {
        for (j = 0; j < 64; j++) {
            bit[0] = secret[0];
            bit[1] = secret[1];
            bit[i] ^= 1ULL << j;

            ngx_rl_siphash(bit, input, 20, b);
            alike += a[0] == b[0] || a[1] == b[1];
        }
    }

    for (k = 0; k < 160; k++) {
        input[k / 8] ^= 1 << k % 8;
        ngx_rl_siphash(secret, input, 20, b);
        alike += a[0] == b[0] || a[1] == b[1];
        input[k / 8] ^= 1 << k % 8;
    }

    is_number(alike, 0, "another bit is another hash");
}


int
main(void)
{
    char      key[64];
    size_t    k, len;
    uint32_t  i;
    uint64_t  one;

    for (k = 0; k < NKINDS; k++) {
        for (i = 0; i < KEYS; i++) {
            len = kinds[k].make(key, sizeof(key), i);
            hashes[k][i] = ngx_rl_hash(key, len);
            hashes32[k][i] = ngx_rl_hash32(key, len);
        }
    }

    test_vectors();
    test_siphash();
    test_spread();
    test_move();
    test_order();
    test_leave();

    one = 1;

    is_number(ngx_rl_hash_consistent(42, &one, 1), 0,
              "a single shard has every key");
    is_number(ngx_rl_hash_consistent(1, &one, 1), 0,
              "even one whose score is zero");
    is_number(ngx_rl_hash32("foobar", 6) % 1000, 720,
              "modulo is the remainder");

    return tap_done();
}
