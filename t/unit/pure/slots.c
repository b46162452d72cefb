
/*
 * Slots of keys, by published vectors and by what redis-server answers to
 * CLUSTER KEYSLOT; redirects; replies to CLUSTER SLOTS, sound and broken.
 */

#include "tap.h"

#include "pure/ngx_rl_slots.h"


#define bytes_of(text)  text, sizeof(text) - 1

#define NONE         NGX_RL_REDIRECT_NONE
#define MOVED        NGX_RL_REDIRECT_MOVED
#define ASK          NGX_RL_REDIRECT_ASK
#define TRYAGAIN     NGX_RL_REDIRECT_TRYAGAIN
#define CLUSTERDOWN  NGX_RL_REDIRECT_CLUSTERDOWN

/* parts of replies */
#define ID     "$40\r\nddfb0569051d708d7b0e2594fe34d0eb4d7aa29d\r\n"
#define RANGE  ":0\r\n:5460\r\n"
#define ADDR   "$8\r\n10.0.0.7\r\n:6379\r\n"
#define IP     "$2\r\nip\r\n$8\r\n10.0.0.7\r\n"
#define NAME   "$10\r\nnode7.test\r\n"
#define HNAME  "$8\r\nhostname\r\n" NAME


typedef struct {
    char    data[65536];
    size_t  len;
    size_t  calls;
} text_t;


static text_t  text;


/* the bytes of a copy that ends where its block of memory does */

static char *
exact(const char *data, size_t len)
{
    char  *copy;

    copy = malloc(len ? len : 1);
    memcpy(copy, data, len);

    return copy;
}


static void
test_crc(void)
{
    size_t         i, n;
    uint16_t       crc;
    uint32_t       reference;
    uint64_t       seed;
    unsigned char  data[64];

    is_number(ngx_rl_slot_crc16("", 0), 0, "nothing");
    is_number(ngx_rl_slot_crc16(bytes_of("A")), 0x58e5, "\"A\"");
    is_number(ngx_rl_slot_crc16(bytes_of("123456789")), 0x31c3,
              "the check value of CRC-16/XMODEM");
    is_number(ngx_rl_slot_crc16(bytes_of("\0\0\0\1")), 0x1021, "zero bytes");
    is_number(ngx_rl_slot_crc16(bytes_of("\377\377")), 0x1d0f,
              "bytes above 127");

    /* bit by bit, as the polynomial says */

    seed = 6;

    for (n = 0; n < 100000; n++) {
        reference = 0;

        for (i = 0; i < n % sizeof(data); i++) {
            data[i] = (unsigned char) tap_random(&seed);
        }

        for (i = 0; i < 8 * (n % sizeof(data)); i++) {
            reference ^= (uint32_t) (data[i / 8] >> (7 - i % 8) & 1) << 15;
            reference = reference & 0x8000 ? reference << 1 ^ 0x1021
                                           : reference << 1;
            reference &= 0xffff;
        }

        crc = ngx_rl_slot_crc16(data, n % sizeof(data));

        if (crc != reference) {
            break;
        }
    }

    is_number(n, 100000, "the table is that of the polynomial");
}


static void
test_slots(void)
{
    char   *copy;
    size_t  i;

    static const struct {
        const char  *key;
        uint16_t     slot;
    } keys[] = {
        { "", 0 },
        { "a", 15495 },
        { "foo", 12182 },
        { "bar", 5061 },
        { "hello", 866 },
        { "foobar", 12325 },
        { "somekey", 11058 },
        { "mykey", 14687 },
        { "123456789", 12739 },

        /* tags */
        { "user1000", 3443 },
        { "{user1000}.following", 3443 },
        { "{user1000}.followers", 3443 },
        { "x{a}", 15495 },
        { "}{a}", 15495 },
        { "{a}{b}", 15495 },
        { "foo{bar}{zap}", 5061 },
        { "foo{{bar}}zap", 4015 },
        { "{bar", 4015 },
        { "a}b{c}d", 7365 },

        /* none */
        { "foo{}{bar}", 8363 },
        { "foo{bar", 15278 },
        { "foo}bar{", 11073 },
        { "zap{}", 6111 },
        { "{}", 15257 },
        { "{}x", 10595 },
        { "{", 4092 },
        { "{{}}", 4092 },

        /* as this module writes them */
        { "ratelimit:ip:{192.0.2.1}", 15765 },
        { "ratelimit:(x):{2001:db8::1}", 3621 }
    };

    for (i = 0; i < nelts_of(keys); i++) {
        copy = exact(keys[i].key, strlen(keys[i].key));

        is_number(ngx_rl_slot(copy, strlen(keys[i].key)),
                  keys[i].slot, keys[i].key);

        free(copy);
    }

    is_number(ngx_rl_slot(NULL, 0), 0, "no key");
}


/* a key for each slot, without a search */

static void
test_tags(void)
{
    char      key[sizeof("x:{}") + NGX_RL_SLOT_TAG];
    size_t    i, odd;
    uint32_t  slot, wrong;

    memcpy(key, "x:{", 3);
    key[3 + NGX_RL_SLOT_TAG] = '}';

    wrong = 0;
    odd = 0;

    for (slot = 0; slot < NGX_RL_SLOTS; slot++) {
        ngx_rl_slot_tag((uint16_t) slot, key + 3);

        wrong += ngx_rl_slot(key, 4 + NGX_RL_SLOT_TAG)
                 != slot;

        for (i = 3; i < 3 + NGX_RL_SLOT_TAG; i++) {
            odd += (key[i] < '@' || key[i] > 'O') && strchr("probe", key[i])
                                                     == NULL;
        }
    }

    is_number(wrong, 0, "the tag of each slot lies in it");
    is_number(odd, 0, "and has letters alone");
}


static void
test_redirects(void)
{
    char              *copy, host[512];
    size_t             i, n;
    ngx_rl_redirect_t  r;

    static const struct {
        const char  *text;
        int          kind;
        uint16_t     slot;
        const char  *host;
        uint16_t     port;
    } cases[] = {
        { "MOVED 3999 127.0.0.1:6381", MOVED, 3999, "127.0.0.1", 6381 },
        { "ASK 3999 127.0.0.1:6381", ASK, 3999, "127.0.0.1", 6381 },
        { "MOVED 0 redis-1.example.com:1", MOVED, 0, "redis-1.example.com",
          1 },
        { "MOVED 16383 h:65535", MOVED, 16383, "h", 65535 },
        { "MOVED 1 ::1:6380", MOVED, 1, "::1", 6380 },
        { "MOVED 1 :::6380", MOVED, 1, "::", 6380 },
        { "MOVED 1 2001:db8::a:6380", MOVED, 1, "2001:db8::a", 6380 },
        { "MOVED 1 [::1]:6380", MOVED, 1, "::1", 6380 },
        { "ASK 1 [2001:db8::a]:6380", ASK, 1, "2001:db8::a", 6380 },
        { "ASK 1 [host]:6380", ASK, 1, "host", 6380 },
        { "MOVED 1 :6380", MOVED, 1, "", 6380 },
        { "ASK 1 :6380", ASK, 1, "", 6380 },
        { "MOVED 1 ?:6380", MOVED, 1, "", 6380 },

        { "TRYAGAIN Multiple keys request during rehashing of slot",
          TRYAGAIN, 0, "", 0 },
        { "TRYAGAIN", TRYAGAIN, 0, "", 0 },
        { "CLUSTERDOWN Hash slot not served", CLUSTERDOWN, 0, "", 0 },
        { "CLUSTERDOWN The cluster is down", CLUSTERDOWN, 0, "", 0 },

        { "", NONE, 0, "", 0 },
        { " ", NONE, 0, "", 0 },
        { "ERR MOVED 1 h:1", NONE, 0, "", 0 },
        { "MOVE", NONE, 0, "", 0 },
        { "MOVED", NONE, 0, "", 0 },
        { "MOVED ", NONE, 0, "", 0 },
        { "MOVED  ", NONE, 0, "", 0 },
        { "MOVED 1", NONE, 0, "", 0 },
        { "MOVED 1 ", NONE, 0, "", 0 },
        { "MOVED 1 h", NONE, 0, "", 0 },
        { "MOVED 1 h:", NONE, 0, "", 0 },
        { "MOVED 1 :", NONE, 0, "", 0 },
        { "MOVED h:1", NONE, 0, "", 0 },
        { "MOVED  1 h:1", NONE, 0, "", 0 },
        { "MOVED 1  h:1", NONE, 0, "", 0 },
        { " MOVED 1 h:1", NONE, 0, "", 0 },
        { "moved 1 h:1", NONE, 0, "", 0 },
        { "MOVEDX 1 h:1", NONE, 0, "", 0 },
        { "ASKING 1 h:1", NONE, 0, "", 0 },
        { "CLUSTERDOWNX", NONE, 0, "", 0 },
        { "CROSSSLOT Keys in request don't hash to the same slot", NONE, 0,
          "", 0 },
        { "MOVED 16384 h:1", NONE, 0, "", 0 },
        { "MOVED 99999 h:1", NONE, 0, "", 0 },
        { "MOVED 65537 h:1", NONE, 0, "", 0 },
        { "MOVED 4294967297 h:1", NONE, 0, "", 0 },
        { "MOVED 18446744073709551617 h:1", NONE, 0, "", 0 },
        { "MOVED -1 h:1", NONE, 0, "", 0 },
        { "MOVED +1 h:1", NONE, 0, "", 0 },
        { "MOVED 1x h:1", NONE, 0, "", 0 },
        { "MOVED 1 h:0", NONE, 0, "", 0 },
        { "MOVED 1 h:65536", NONE, 0, "", 0 },
        { "MOVED 1 h:4294967297", NONE, 0, "", 0 },
        { "MOVED 1 h:-1", NONE, 0, "", 0 },
        { "MOVED 1 h:1 ", NONE, 0, "", 0 },
        { "MOVED 1 h:1 x", NONE, 0, "", 0 },
        { "MOVED 1 h h:1", NONE, 0, "", 0 },
        { "MOVED 1 h\t:1", NONE, 0, "", 0 },
        { "MOVED 1 h\r\nx:1", NONE, 0, "", 0 },
        { "MOVED 1 h\177:1", NONE, 0, "", 0 },
        { "MOVED 1 h\303\251:1", NONE, 0, "", 0 },
        { "MOVED 1 []:1", NONE, 0, "", 0 },
        { "MOVED 1 [:1", NONE, 0, "", 0 },
        { "MOVED 1 ]:1", NONE, 0, "", 0 },
        { "MOVED 1 [::1:6380", NONE, 0, "", 0 },
        { "MOVED 1 ::1]:6380", NONE, 0, "", 0 },
        { "MOVED 1 [[::1]]:6380", NONE, 0, "", 0 },
        { "MOVED 1 [::1]", NONE, 0, "", 0 }
    };

    for (i = 0; i < nelts_of(cases); i++) {
        copy = exact(cases[i].text, strlen(cases[i].text));

        memset(&r, 0xaa, sizeof(r));

        is_number(ngx_rl_redirect_parse(copy, strlen(cases[i].text), &r),
                  cases[i].kind, cases[i].text);

        ok((int) r.kind == cases[i].kind && r.slot == cases[i].slot
           && r.port == cases[i].port && r.host_len == strlen(cases[i].host)
           && (r.host_len == 0
               || (r.host >= copy && r.host < copy + strlen(cases[i].text)
                   && memcmp(r.host, cases[i].host, r.host_len) == 0)),
           "slot %d, \"%s\", port %d", cases[i].slot, cases[i].host,
           cases[i].port);

        free(copy);
    }

    is_number(ngx_rl_redirect_parse(bytes_of("ASK 1 h\0h:1"), &r),
              NONE, "a zero byte in a host");

    /* as long as a host can be, and longer */

    for (i = 254; i <= 257; i++) {
        n = snprintf(host, sizeof(host), "MOVED 1 ");
        memset(host + n, 'h', i);
        n += i;
        n += snprintf(host + n, sizeof(host) - n, ":7");

        (void) ngx_rl_redirect_parse(host, n, &r);

        ok(i <= 255 ? r.kind == MOVED && r.host_len == i : r.kind == NONE,
           "a host of %zu bytes", i);
    }
}


/* touches every byte of what it is given */

static void
collect(void *data, const ngx_rl_slot_range_t *s)
{
    text_t  *t;

    t = data;
    t->calls++;

    if (sizeof(t->data) - t->len < 600) {
        t->len = 0;
    }

    t->len += snprintf(t->data + t->len, sizeof(t->data) - t->len,
                       "%d-%d %.*s|%d|%.*s\n", s->first, s->last,
                       (int) s->host_len, s->host ? s->host : "", s->port,
                       (int) s->ip_len, s->ip ? s->ip : "");
}


/* -2: no reply, -3: not a sound one; else what slots_parse() says */

static int
parse(const char *wire, size_t len)
{
    int               rc;
    char             *copy;
    ngx_rl_reply_t   *reply;
    ngx_rl_reader_t  *reader;

    memset(&text, 0, sizeof(text));

    reader = ngx_rl_reader_create();
    copy = exact(wire, len);

    if (ngx_rl_reader_feed(reader, copy, len) != 0) {
        rc = -3;

    } else {
        rc = ngx_rl_reader_next(reader, &reply) - 2;
    }

    if (rc == -1) {
        rc = ngx_rl_slots_parse(reply, collect, &text);
    }

    free(copy);
    ngx_rl_reader_free(reader);

    return rc;
}


static const struct {
    const char  *name;
    const char  *wire;
    const char  *expected;
} maps[] = {
    { "no slots", "*0\r\n", "" },

    { "host and port alone",
      "*1\r\n*3\r\n" RANGE "*2\r\n" ADDR,
      "0-5460 10.0.0.7|6379|\n" },

    { "an id as well",
      "*1\r\n*3\r\n" RANGE "*3\r\n" ADDR ID,
      "0-5460 10.0.0.7|6379|\n" },

    { "pairs, none",
      "*1\r\n*3\r\n" RANGE "*4\r\n" ADDR ID "*0\r\n",
      "0-5460 10.0.0.7|6379|\n" },

    { "pairs, no array",
      "*1\r\n*3\r\n" RANGE "*4\r\n" ADDR ID "*-1\r\n",
      "0-5460 10.0.0.7|6379|\n" },

    { "an address, and its name",
      "*1\r\n*3\r\n" RANGE "*4\r\n" ADDR ID "*2\r\n" HNAME,
      "0-5460 10.0.0.7|6379|\n" },

    { "a name, and its address",
      "*1\r\n*3\r\n" RANGE "*4\r\n" NAME ":6379\r\n" ID "*2\r\n" IP,
      "0-5460 node7.test|6379|10.0.0.7\n" },

    { "a name, and an empty address",
      "*1\r\n*3\r\n" RANGE "*4\r\n" NAME ":6379\r\n" ID
      "*2\r\n$2\r\nip\r\n$0\r\n\r\n",
      "0-5460 node7.test|6379|\n" },

    { "a node that should have a name: its address",
      "*1\r\n*3\r\n" RANGE "*4\r\n$1\r\n?\r\n:6379\r\n" ID "*2\r\n" IP,
      "0-5460 10.0.0.7|6379|\n" },

    { "or, without one, the node that answered",
      "*1\r\n*3\r\n" RANGE "*3\r\n$1\r\n?\r\n:6379\r\n" ID,
      "0-5460 |6379|\n" },

    { "a node with no host, whatever else is known",
      "*1\r\n*3\r\n" RANGE "*4\r\n$-1\r\n:6379\r\n" ID "*4\r\n" IP HNAME,
      "0-5460 |6379|\n" },

    { "a node with an empty host",
      "*1\r\n*3\r\n" RANGE "*4\r\n$0\r\n\r\n:6379\r\n" ID "*2\r\n" IP,
      "0-5460 |6379|\n" },

    { "IPv6",
      "*1\r\n*3\r\n" RANGE "*3\r\n$11\r\n2001:db8::a\r\n:6379\r\n" ID,
      "0-5460 2001:db8::a|6379|\n" },

    { "more pairs than are known, more elements than are known",
      "*1\r\n*3\r\n" RANGE "*6\r\n" NAME ":6379\r\n" ID
      "*8\r\n$5\r\nshard\r\n:1\r\n$1\r\nx\r\n*1\r\n:1\r\n" IP
      "$4\r\nip-x\r\n$-1\r\n" ":1\r\n*0\r\n",
      "0-5460 node7.test|6379|10.0.0.7\n" },

    { "replicas, whatever they look like",
      "*1\r\n*6\r\n" RANGE "*3\r\n" ADDR ID
      "*3\r\n$8\r\n10.0.0.8\r\n:6379\r\n" ID "*0\r\n:1\r\n",
      "0-5460 10.0.0.7|6379|\n" },

    { "ranges that overlap, in no order",
      "*4\r\n*3\r\n:16383\r\n:16383\r\n*2\r\n" ADDR
      "*3\r\n:5\r\n:5\r\n*2\r\n" NAME ":1\r\n"
      "*3\r\n:0\r\n:16383\r\n*2\r\n$-1\r\n:65535\r\n"
      "*3\r\n:5\r\n:9\r\n*2\r\n" ADDR,
      "16383-16383 10.0.0.7|6379|\n5-5 node7.test|1|\n"
      "0-16383 |65535|\n5-9 10.0.0.7|6379|\n" },

    { "a master that is nowhere is left out, the others not",
      "*3\r\n*3\r\n:0\r\n:1\r\n*2\r\n" ADDR
      "*3\r\n:2\r\n:3\r\n*4\r\n$0\r\n\r\n:0\r\n" ID "*0\r\n"
      "*3\r\n:4\r\n:5\r\n*2\r\n" ADDR,
      "0-1 10.0.0.7|6379|\n4-5 10.0.0.7|6379|\n" }
};


static void
test_maps(void)
{
    int     rc;
    size_t  i, n, len, wrong;

    for (i = 0; i < nelts_of(maps); i++) {
        len = strlen(maps[i].wire);
        rc = parse(maps[i].wire, len);

        is_number(rc, text.calls, "as many calls as it says");
        is_bytes(text.data, text.len, maps[i].expected,
                 strlen(maps[i].expected), maps[i].name);

        wrong = 0;

        for (n = 0; n < len; n++) {
            wrong += parse(maps[i].wire, n) != -2;
        }

        is_number(wrong, 0, "cut anywhere it is no reply yet");
    }
}


static void
test_broken(void)
{
    int     rc;
    size_t  i;

    static const char  *broken[] = {
        "-ERR This instance has cluster support disabled\r\n",
        "+OK\r\n",
        ":1\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "$2\r\n*0\r\n",

        /* not a range */
        "*1\r\n:1\r\n",
        "*1\r\n$-1\r\n",
        "*1\r\n*-1\r\n",
        "*1\r\n*0\r\n",
        "*1\r\n*1\r\n:0\r\n",
        "*1\r\n*2\r\n" RANGE,
        "*3\r\n" RANGE "*2\r\n" ADDR,

        /* numbers */
        "*1\r\n*3\r\n:-1\r\n:1\r\n*2\r\n" ADDR,
        "*1\r\n*3\r\n:0\r\n:-1\r\n*2\r\n" ADDR,
        "*1\r\n*3\r\n:2\r\n:1\r\n*2\r\n" ADDR,
        "*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n" ADDR,
        "*1\r\n*3\r\n:16384\r\n:16384\r\n*2\r\n" ADDR,
        "*1\r\n*3\r\n:65536\r\n:65537\r\n*2\r\n" ADDR,
        "*1\r\n*3\r\n:0\r\n:9223372036854775807\r\n*2\r\n" ADDR,
        "*1\r\n*3\r\n$1\r\n0\r\n:1\r\n*2\r\n" ADDR,
        "*1\r\n*3\r\n:0\r\n$1\r\n1\r\n*2\r\n" ADDR,
        "*1\r\n*3\r\n$-1\r\n:1\r\n*2\r\n" ADDR,

        /* the node */
        "*1\r\n*3\r\n" RANGE ":1\r\n",
        "*1\r\n*3\r\n" RANGE "$8\r\n10.0.0.7\r\n",
        "*1\r\n*3\r\n" RANGE "*-1\r\n",
        "*1\r\n*3\r\n" RANGE "*0\r\n",
        "*1\r\n*3\r\n" RANGE "*1\r\n$8\r\n10.0.0.7\r\n",
        "*1\r\n*3\r\n" RANGE "*2\r\n:1\r\n:6379\r\n",
        "*1\r\n*3\r\n" RANGE "*2\r\n*0\r\n:6379\r\n",
        "*1\r\n*3\r\n" RANGE "*2\r\n-ERR\r\n:6379\r\n",
        "*1\r\n*3\r\n" RANGE "*2\r\n$3\r\na b\r\n:6379\r\n",
        "*1\r\n*3\r\n" RANGE "*2\r\n$3\r\na\nb\r\n:6379\r\n",
        "*1\r\n*3\r\n" RANGE "*2\r\n$2\r\n\303\251\r\n:6379\r\n",
        "*1\r\n*3\r\n" RANGE "*2\r\n$1\r\n[\r\n:6379\r\n",
        "*1\r\n*3\r\n" RANGE "*2\r\n$8\r\n10.0.0.7\r\n:-1\r\n",
        "*1\r\n*3\r\n" RANGE "*2\r\n$8\r\n10.0.0.7\r\n:65536\r\n",
        "*1\r\n*3\r\n" RANGE "*2\r\n$8\r\n10.0.0.7\r\n$4\r\n6379\r\n",
        "*1\r\n*3\r\n" RANGE "*2\r\n$8\r\n10.0.0.7\r\n$-1\r\n",

        /* the pairs */
        "*1\r\n*3\r\n" RANGE "*4\r\n" ADDR ID ":1\r\n",
        "*1\r\n*3\r\n" RANGE "*4\r\n" ADDR ID "$2\r\nip\r\n",
        "*1\r\n*3\r\n" RANGE "*4\r\n" ADDR ID "*1\r\n$2\r\nip\r\n",
        "*1\r\n*3\r\n" RANGE "*4\r\n" ADDR ID "*2\r\n:1\r\n:2\r\n",
        "*1\r\n*3\r\n" RANGE "*4\r\n" ADDR ID "*2\r\n*0\r\n:2\r\n",
        "*1\r\n*3\r\n" RANGE "*4\r\n" NAME ":6379\r\n" ID
        "*2\r\n$2\r\nip\r\n:1\r\n",
        "*1\r\n*3\r\n" RANGE "*4\r\n" NAME ":6379\r\n" ID
        "*2\r\n$2\r\nip\r\n$-1\r\n",
        "*1\r\n*3\r\n" RANGE "*4\r\n" NAME ":6379\r\n" ID
        "*2\r\n$2\r\nip\r\n*1\r\n$8\r\n10.0.0.7\r\n",
        "*1\r\n*3\r\n" RANGE "*4\r\n" NAME ":6379\r\n" ID
        "*2\r\n$2\r\nip\r\n$3\r\n1 2\r\n",

        /* the last of many */
        "*3\r\n*3\r\n" RANGE "*2\r\n" ADDR "*3\r\n" RANGE "*2\r\n" ADDR
        "*3\r\n" RANGE "*1\r\n:1\r\n",

        /* nested too deep */
        "*1\r\n*1\r\n*3\r\n" RANGE "*2\r\n" ADDR,
        "*1\r\n*3\r\n" RANGE "*1\r\n*2\r\n" ADDR,
        "*1\r\n*3\r\n*1\r\n:0\r\n:1\r\n*2\r\n" ADDR
    };

    for (i = 0; i < nelts_of(broken); i++) {
        rc = parse(broken[i], strlen(broken[i]));

        if (!ok(rc == -1 && text.calls == 0, "broken map %zu", i)) {
            diag("%d, %zu calls: %s", rc, text.calls, broken[i]);
        }
    }

    memset(&text, 0, sizeof(text));

    ok(ngx_rl_slots_parse(NULL, collect, &text) == -1
       && text.calls == 0, "no reply");
}


/* a map of as many ranges as there can be */

static void
test_large(void)
{
    int               rc;
    char              wire[128];
    size_t            i, len;
    ngx_rl_reply_t   *reply;
    ngx_rl_reader_t  *reader;

    memset(&text, 0, sizeof(text));

    reader = ngx_rl_reader_create();
    rc = ngx_rl_reader_expect(reader, 8388608);

    if (rc == 0) {
        rc = ngx_rl_reader_feed(reader, bytes_of("*16384\r\n"));
    }

    for (i = 0; i < NGX_RL_SLOTS && rc == 0; i++) {
        rc = ngx_rl_reader_next(reader, &reply);

        len = snprintf(wire, sizeof(wire),
                       "*3\r\n:%zu\r\n:%zu\r\n*3\r\n" ADDR ID, i, i);

        if (rc == 0) {
            rc = ngx_rl_reader_feed(reader, wire, len);
        }
    }

    is_number(rc, 0, "each slot by itself");
    is_number(ngx_rl_reader_next(reader, &reply), 1, "is a reply");
    is_number(ngx_rl_slots_parse(reply, collect, &text),
              NGX_RL_SLOTS, "of as many ranges");
    is_number(text.calls, NGX_RL_SLOTS, "each is given out");

    ngx_rl_reader_free(reader);
}


/* what a map may have its reader do is bounded, whatever it says */

static void
test_overlap(void)
{
    int     rc;
    char    wire[1024];
    size_t  i, n, len;

    for (n = 1; n < 7; n++) {
        len = snprintf(wire, sizeof(wire), "*%zu\r\n", n);

        for (i = 0; i < n; i++) {
            len += snprintf(wire + len, sizeof(wire) - len,
                            "*3\r\n:0\r\n:16383\r\n*2\r\n" ADDR);
        }

        rc = parse(wire, len);

        ok(rc == (n <= 4 ? (int) n : -1), "all slots %zu times: %d", n, rc);
        is_number(text.calls, n <= 4 ? n : 0, "all ranges of it, or none");
    }
}


/*
 * Sound maps and redirects with bytes changed: the sanitizers say whether
 * something went wrong
 */

static void
test_fuzz(void)
{
    int                rc;
    char               wire[1024], *copy;
    size_t             i, n, at, len, count, sound, refused;
    uint64_t           seed, dice;
    ngx_rl_redirect_t  r;

    static const char  alphabet[] = "+-:$*0123456789\r\n\r\n[]? \0x";
    static const char  redirect[] = "MOVED 3999 [2001:db8::1]:6381";

    seed = 20240301;
    sound = 0;
    refused = 0;

    for (n = 0; n < 100000; n++) {
        i = tap_random(&seed) % nelts_of(maps);
        len = strlen(maps[i].wire);
        memcpy(wire, maps[i].wire, len);

        count = tap_random(&seed) % 4 + 1;

        for (i = 0; i < count; i++) {
            dice = tap_random(&seed);
            at = (dice >> 8) % len;
            wire[at] = alphabet[(dice >> 40) % (sizeof(alphabet) - 1)];
        }

        rc = parse(wire, len);

        sound += rc >= 0;
        refused += rc == -1;

        if ((rc >= 0 && (size_t) rc != text.calls) || (rc < 0 && text.calls)) {
            break;
        }
    }

    is_number(n, 100000, "100000 maps with wrong bytes: all or nothing");
    ok(sound > 1000, "some are maps still (%zu)", sound);
    ok(refused > 1000, "some are replies and no maps (%zu)", refused);

    sound = 0;

    for (n = 0; n < 200000; n++) {
        len = sizeof(redirect) - 1;
        memcpy(wire, redirect, len);

        count = tap_random(&seed) % 3 + 1;

        for (i = 0; i < count; i++) {
            dice = tap_random(&seed);
            at = (dice >> 8) % len;
            wire[at] = alphabet[(dice >> 40) % (sizeof(alphabet) - 1)];
        }

        len = tap_random(&seed) % 4 ? len : tap_random(&seed) % len;

        copy = exact(wire, len);

        rc = ngx_rl_redirect_parse(copy, len, &r);

        if (rc != NONE) {
            sound++;

            if (r.slot >= NGX_RL_SLOTS || r.port == 0
                || r.host < copy || r.host + r.host_len > copy + len)
            {
                free(copy);
                break;
            }
        }

        free(copy);
    }

    is_number(n, 200000, "200000 redirects with wrong bytes: within bounds");
    ok(sound > 1000, "some are redirects still (%zu)", sound);
}


int
main(void)
{
    test_crc();
    test_slots();
    test_tags();
    test_redirects();
    test_maps();
    test_broken();
    test_large();
    test_overlap();
    test_fuzz();

    return tap_done();
}
