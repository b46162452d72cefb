
#include <string.h>

#include "pure/ngx_rl_slots.h"


typedef struct {
    const char  *data;
    size_t       len;
} ngx_rl_word_t;


static ngx_rl_word_t ngx_rl_redirect_word(ngx_rl_word_t *text);
static int ngx_rl_redirect_number(ngx_rl_word_t word,
    uint32_t min, uint32_t max, uint16_t *number);
static int ngx_rl_redirect_target(ngx_rl_word_t text, ngx_rl_redirect_t *r);
static int ngx_rl_slot_host(ngx_rl_word_t *host);
static int ngx_rl_slots_range(
    const ngx_rl_reply_t *entry, ngx_rl_slot_range_t *s);
static int ngx_rl_slot_range_node(
    const ngx_rl_reply_t *node, ngx_rl_slot_range_t *s);
static int ngx_rl_slots_ip(const ngx_rl_reply_t *pairs, ngx_rl_word_t *ip);
static int ngx_rl_slots_host(const ngx_rl_reply_t *reply, ngx_rl_word_t *host);
static int ngx_rl_slots_is(const ngx_rl_reply_t *reply, int type);
static int ngx_rl_slots_number(const ngx_rl_reply_t *reply, long long min,
    long long max, uint16_t *number);


/* the remainder of each byte by x^16 + x^12 + x^5 + 1 */

static const uint16_t  ngx_rl_slot_table[256] = {
    0x0000, 0x1021, 0x2042, 0x3063, 0x4084, 0x50a5, 0x60c6, 0x70e7,
    0x8108, 0x9129, 0xa14a, 0xb16b, 0xc18c, 0xd1ad, 0xe1ce, 0xf1ef,
    0x1231, 0x0210, 0x3273, 0x2252, 0x52b5, 0x4294, 0x72f7, 0x62d6,
    0x9339, 0x8318, 0xb37b, 0xa35a, 0xd3bd, 0xc39c, 0xf3ff, 0xe3de,
    0x2462, 0x3443, 0x0420, 0x1401, 0x64e6, 0x74c7, 0x44a4, 0x5485,
    0xa56a, 0xb54b, 0x8528, 0x9509, 0xe5ee, 0xf5cf, 0xc5ac, 0xd58d,
    0x3653, 0x2672, 0x1611, 0x0630, 0x76d7, 0x66f6, 0x5695, 0x46b4,
    0xb75b, 0xa77a, 0x9719, 0x8738, 0xf7df, 0xe7fe, 0xd79d, 0xc7bc,
    0x48c4, 0x58e5, 0x6886, 0x78a7, 0x0840, 0x1861, 0x2802, 0x3823,
    0xc9cc, 0xd9ed, 0xe98e, 0xf9af, 0x8948, 0x9969, 0xa90a, 0xb92b,
    0x5af5, 0x4ad4, 0x7ab7, 0x6a96, 0x1a71, 0x0a50, 0x3a33, 0x2a12,
    0xdbfd, 0xcbdc, 0xfbbf, 0xeb9e, 0x9b79, 0x8b58, 0xbb3b, 0xab1a,
    0x6ca6, 0x7c87, 0x4ce4, 0x5cc5, 0x2c22, 0x3c03, 0x0c60, 0x1c41,
    0xedae, 0xfd8f, 0xcdec, 0xddcd, 0xad2a, 0xbd0b, 0x8d68, 0x9d49,
    0x7e97, 0x6eb6, 0x5ed5, 0x4ef4, 0x3e13, 0x2e32, 0x1e51, 0x0e70,
    0xff9f, 0xefbe, 0xdfdd, 0xcffc, 0xbf1b, 0xaf3a, 0x9f59, 0x8f78,
    0x9188, 0x81a9, 0xb1ca, 0xa1eb, 0xd10c, 0xc12d, 0xf14e, 0xe16f,
    0x1080, 0x00a1, 0x30c2, 0x20e3, 0x5004, 0x4025, 0x7046, 0x6067,
    0x83b9, 0x9398, 0xa3fb, 0xb3da, 0xc33d, 0xd31c, 0xe37f, 0xf35e,
    0x02b1, 0x1290, 0x22f3, 0x32d2, 0x4235, 0x5214, 0x6277, 0x7256,
    0xb5ea, 0xa5cb, 0x95a8, 0x8589, 0xf56e, 0xe54f, 0xd52c, 0xc50d,
    0x34e2, 0x24c3, 0x14a0, 0x0481, 0x7466, 0x6447, 0x5424, 0x4405,
    0xa7db, 0xb7fa, 0x8799, 0x97b8, 0xe75f, 0xf77e, 0xc71d, 0xd73c,
    0x26d3, 0x36f2, 0x0691, 0x16b0, 0x6657, 0x7676, 0x4615, 0x5634,
    0xd94c, 0xc96d, 0xf90e, 0xe92f, 0x99c8, 0x89e9, 0xb98a, 0xa9ab,
    0x5844, 0x4865, 0x7806, 0x6827, 0x18c0, 0x08e1, 0x3882, 0x28a3,
    0xcb7d, 0xdb5c, 0xeb3f, 0xfb1e, 0x8bf9, 0x9bd8, 0xabbb, 0xbb9a,
    0x4a75, 0x5a54, 0x6a37, 0x7a16, 0x0af1, 0x1ad0, 0x2ab3, 0x3a92,
    0xfd2e, 0xed0f, 0xdd6c, 0xcd4d, 0xbdaa, 0xad8b, 0x9de8, 0x8dc9,
    0x7c26, 0x6c07, 0x5c64, 0x4c45, 0x3ca2, 0x2c83, 0x1ce0, 0x0cc1,
    0xef1f, 0xff3e, 0xcf5d, 0xdf7c, 0xaf9b, 0xbfba, 0x8fd9, 0x9ff8,
    0x6e17, 0x7e36, 0x4e55, 0x5e74, 0x2e93, 0x3eb2, 0x0ed1, 0x1ef0
};


/*
 * The tag is "probe" and four letters from "@" to "O", of four bits.  CRCs are
 * linear: each bit of the letters flips the same bits of the slot, whatever the
 * others are.  This is the inverse: the bits of the letters to be flipped for
 * one bit of the slot, beginning with "probe@@@@".
 */

static const uint16_t  ngx_rl_slot_flips[] = {
    0x1afa, 0x06ed, 0x277b, 0x110c, 0x2a91, 0x39c0, 0x1f63, 0x277f, 0x1104,
    0x2208, 0x1bea, 0x04cd, 0x233b, 0x198c
};

#define NGX_RL_SLOT_PROBE  0x3568          /* of "probe@@@@" */


uint16_t
ngx_rl_slot_crc16(const void *data, size_t len)
{
    size_t                i;
    uint16_t              crc;
    const unsigned char  *p;

    p = data;
    crc = 0;

    for (i = 0; i < len; i++) {
        crc = (uint16_t) (crc << 8) ^ ngx_rl_slot_table[(crc >> 8) ^ p[i]];
    }

    return crc;
}


uint16_t
ngx_rl_slot(const char *key, size_t len)
{
    const char  *open, *close;

    open = len ? memchr(key, '{', len) : NULL;

    if (open) {
        open++;
        close = memchr(open, '}', len - (open - key));

        if (close && close != open) {
            key = open;
            len = close - open;
        }
    }

    return ngx_rl_slot_crc16(key, len) & (NGX_RL_SLOTS - 1);
}


void
ngx_rl_slot_tag(uint16_t slot, char tag[NGX_RL_SLOT_TAG])
{
    size_t    i;
    uint16_t  letters;

    slot ^= NGX_RL_SLOT_PROBE;
    letters = 0;

    for (i = 0; slot >> i; i++) {
        if (slot >> i & 1) {
            letters ^= ngx_rl_slot_flips[i];
        }
    }

    memcpy(tag, "probe", 5);

    for (i = 0; i < 4; i++) {
        tag[5 + i] = (char) ('@' + (letters >> (12 - 4 * i) & 0xf));
    }
}


int
ngx_rl_redirect_parse(const char *text, size_t len, ngx_rl_redirect_t *r)
{
    size_t         i;
    ngx_rl_word_t  rest, word;

    /* by ngx_rl_redirect_e */

    static const char  *kinds[] = {
        "", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"
    };

    memset(r, 0, sizeof(*r));

    rest.data = text;
    rest.len = len;

    word = ngx_rl_redirect_word(&rest);

    for (i = NGX_RL_REDIRECT_MOVED; i <= NGX_RL_REDIRECT_CLUSTERDOWN; i++) {
        if (word.len == strlen(kinds[i])
            && memcmp(word.data, kinds[i], word.len) == 0)
        {
            r->kind = (ngx_rl_redirect_e) i;
        }
    }

    if (r->kind != NGX_RL_REDIRECT_MOVED && r->kind != NGX_RL_REDIRECT_ASK) {
        return r->kind;
    }

    word = ngx_rl_redirect_word(&rest);

    if (ngx_rl_redirect_number(word, 0, NGX_RL_SLOTS - 1, &r->slot) != 0
        || ngx_rl_redirect_target(rest, r) != 0)
    {
        memset(r, 0, sizeof(*r));
    }

    return r->kind;
}


/* up to the first space, which is removed as well */

static ngx_rl_word_t
ngx_rl_redirect_word(ngx_rl_word_t *text)
{
    const char    *space;
    ngx_rl_word_t  word;

    word = *text;
    space = text->len ? memchr(text->data, ' ', text->len) : NULL;

    if (space == NULL) {
        text->len = 0;
        return word;
    }

    word.len = space - word.data;
    text->data += word.len + 1;
    text->len -= word.len + 1;

    return word;
}


static int
ngx_rl_redirect_number(ngx_rl_word_t word,
    uint32_t min, uint32_t max, uint16_t *number)
{
    size_t    i;
    uint32_t  n;

    if (word.len == 0 || word.len > sizeof("65535") - 1) {
        return -1;
    }

    for (n = 0, i = 0; i < word.len; i++) {

        if (word.data[i] < '0' || word.data[i] > '9') {
            return -1;
        }

        n = n * 10 + (word.data[i] - '0');
    }

    if (n < min || n > max) {
        return -1;
    }

    *number = (uint16_t) n;

    return 0;
}


/* HOST:PORT, where an IPv6 address may stand without brackets */

static int
ngx_rl_redirect_target(ngx_rl_word_t text, ngx_rl_redirect_t *r)
{
    size_t         n;
    ngx_rl_word_t  host, port;

    for (n = text.len; n && text.data[n - 1] != ':'; n--) {
        /* void */
    }

    if (n == 0) {
        return -1;
    }

    port.data = text.data + n;
    port.len = text.len - n;

    host.data = text.data;
    host.len = n - 1;

    if (ngx_rl_redirect_number(port, 1, 65535, &r->port) != 0
        || ngx_rl_slot_host(&host) != 0)
    {
        return -1;
    }

    r->host = host.data;
    r->host_len = host.len;

    return 0;
}


/*
 * Removes brackets.  A node that prefers a host name but has none sends "?".
 */

static int
ngx_rl_slot_host(ngx_rl_word_t *host)
{
    size_t  i;

    if (host->len && host->data[0] == '[') {

        if (host->len < 3 || host->data[host->len - 1] != ']') {
            return -1;
        }

        host->data++;
        host->len -= 2;
    }

    if (host->len > NGX_RL_SLOT_HOST) {
        return -1;
    }

    for (i = 0; i < host->len; i++) {

        if (host->data[i] <= ' ' || host->data[i] > '~'
            || host->data[i] == '[' || host->data[i] == ']')
        {
            return -1;
        }
    }

    if (host->len == 1 && host->data[0] == '?') {
        host->len = 0;
    }

    return 0;
}


int
ngx_rl_slots_parse(const ngx_rl_reply_t *reply,
    ngx_rl_slots_pt handler, void *data)
{
    int                  n;
    size_t               i, slots;
    ngx_rl_slot_range_t  s;

    if (!ngx_rl_slots_is(reply, REDIS_REPLY_ARRAY)) {
        return -1;
    }

    /* two passes: half of a map is worse than none */

    slots = 0;

    for (i = 0; i < reply->elements; i++) {

        if (ngx_rl_slots_range(reply->element[i], &s) != 0) {
            return -1;
        }

        slots += s.last - s.first + 1;

        /*
         * The work of the handler grows with the number of slots in the range.
         */

        if (slots > 4 * NGX_RL_SLOTS) {
            return -1;
        }
    }

    n = 0;

    for (i = 0; i < reply->elements; i++) {
        (void) ngx_rl_slots_range(reply->element[i], &s);

        if (s.port) {
            handler(data, &s);
            n++;
        }
    }

    return n;
}


/* first, last, master; replicas do not matter here */

static int
ngx_rl_slots_range(const ngx_rl_reply_t *entry, ngx_rl_slot_range_t *s)
{
    memset(s, 0, sizeof(*s));

    if (!ngx_rl_slots_is(entry, REDIS_REPLY_ARRAY) || entry->elements < 3) {
        return -1;
    }

    if (ngx_rl_slots_number(entry->element[0], 0, NGX_RL_SLOTS - 1, &s->first)
        != 0
        || ngx_rl_slots_number(entry->element[1], s->first, NGX_RL_SLOTS - 1,
                               &s->last)
        != 0)
    {
        return -1;
    }

    return ngx_rl_slot_range_node(entry->element[2], s);
}


/* host, port, since Redis 4 the node's id, since Redis 7 pairs of more */

static int
ngx_rl_slot_range_node(const ngx_rl_reply_t *node, ngx_rl_slot_range_t *s)
{
    int            unnamed;
    ngx_rl_word_t  host, ip;

    if (!ngx_rl_slots_is(node, REDIS_REPLY_ARRAY) || node->elements < 2) {
        return -1;
    }

    memset(&host, 0, sizeof(host));
    memset(&ip, 0, sizeof(ip));

    if (!ngx_rl_slots_is(node->element[0], REDIS_REPLY_NIL)
        && ngx_rl_slots_host(node->element[0], &host) != 0)
    {
        return -1;
    }

    unnamed = node->element[0]->len && host.len == 0;

    if (ngx_rl_slots_number(node->element[1], 0, 65535, &s->port) != 0
        || (node->elements > 3
            && ngx_rl_slots_ip(node->element[3], &ip) != 0))
    {
        return -1;
    }

    if (unnamed) {
        host = ip;
        ip.len = 0;
    }

    s->host = host.data;
    s->host_len = host.len;

    if (host.len) {
        s->ip = ip.data;
        s->ip_len = ip.len;
    }

    return 0;
}


/* pairs that later versions may add are ignored */

static int
ngx_rl_slots_ip(const ngx_rl_reply_t *pairs, ngx_rl_word_t *ip)
{
    size_t                 i;
    const ngx_rl_reply_t  *name, *value;

    if (ngx_rl_slots_is(pairs, REDIS_REPLY_NIL)) {
        return 0;
    }

    if (!ngx_rl_slots_is(pairs, REDIS_REPLY_ARRAY) || pairs->elements % 2) {
        return -1;
    }

    for (i = 0; i < pairs->elements; i += 2) {
        name = pairs->element[i];
        value = pairs->element[i + 1];

        if (!ngx_rl_slots_is(name, REDIS_REPLY_STRING)) {
            return -1;
        }

        if (name->len == 2 && memcmp(name->str, "ip", 2) == 0
            && ngx_rl_slots_host(value, ip) != 0)
        {
            return -1;
        }
    }

    return 0;
}


static int
ngx_rl_slots_host(const ngx_rl_reply_t *reply, ngx_rl_word_t *host)
{
    if (!ngx_rl_slots_is(reply, REDIS_REPLY_STRING)) {
        return -1;
    }

    host->data = reply->str;
    host->len = reply->len;

    return ngx_rl_slot_host(host);
}


static int
ngx_rl_slots_is(const ngx_rl_reply_t *reply, int type)
{
    return reply && reply->type == type;
}


static int
ngx_rl_slots_number(const ngx_rl_reply_t *reply,
    long long min, long long max, uint16_t *number)
{
    if (!ngx_rl_slots_is(reply, REDIS_REPLY_INTEGER)
        || reply->integer < min || reply->integer > max)
    {
        return -1;
    }

    *number = (uint16_t) reply->integer;

    return 0;
}
