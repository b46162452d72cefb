
/*
 * Flat JSON objects: what is read from them, and that everything else is
 * refused, whatever the bytes are.
 */

#include "tap.h"

#include "pure/ngx_rl_object.h"


/* all members as text, or the error */

static const char *
read_all(const char *text, size_t len, char *out, size_t room)
{
    char             *copy;
    size_t            used;
    ngx_rl_member_t   m;
    ngx_rl_object_t   object;

    static const char *const  types[] = { "s", "n", "t", "f", "0" };

    copy = malloc(len ? len : 1);
    memcpy(copy, text, len);

    used = 0;
    out[0] = '\0';

    ngx_rl_object_init(&object, copy, len);

    while (ngx_rl_object_next(&object, &m)) {
        used += snprintf(out + used, room - used, "%.*s:%s:%.*s;",
                         (int) m.name_len, m.name, types[m.type],
                         (int) m.value_len, m.value);

        if (used >= room) {
            break;
        }
    }

    free(copy);

    return object.err;
}


static void
test_valid(void)
{
    char         out[512];
    size_t       i;
    const char  *err;

    static const struct {
        const char  *text;
        const char  *read;
    } valid[] = {
        { "{}", "" },
        { " { } ", "" },
        { "{\"a\":1}", "a:n:1;" },
        { "\t{ \"a\" : \"b\" ,\r\n \"c\":true,\"d\":false,\"e\":null }\n",
          "a:s:b;c:t:true;d:f:false;e:0:null;" },
        { "{\"a\":-0.5e+7,\"b\":0,\"c\":10}", "a:n:-0.5e+7;b:n:0;c:n:10;" },
        { "{\"\":\"\"}", ":s:;" },
        { "{\"a\":\"\\\"\\\\\\/\\n\\t\"}", "a:s:\"\\/\n\t;" },
        { "{\"a\":\"\\u0041\\u00e9\\u20ac\\ud83d\\ude00\"}",
          "a:s:A\303\251\342\202\254\360\237\230\200;" },
        { "{\"\\u0061\":\"\303\251\"}", "a:s:\303\251;" },
        { "{\"a\":1,\"a\":2}", "a:n:1;a:n:2;" }
    };

    for (i = 0; i < nelts_of(valid); i++) {
        err = read_all(valid[i].text, strlen(valid[i].text), out, sizeof(out));

        ok(err == NULL && strcmp(out, valid[i].read) == 0, "%s%s%s",
           valid[i].text, err ? ": " : "", err ? err : "");
    }
}


static void
test_invalid(void)
{
    char         out[512];
    size_t       i;
    const char  *err;

    static const struct {
        const char  *text;
        const char  *err;
    } invalid[] = {
        { "", "JSON object is expected" },
        { "[]", "JSON object is expected" },
        { "null", "JSON object is expected" },
        { "{", "name in double quotes" },
        { "{a:1}", "name in double quotes" },
        { "{'a':1}", "name in double quotes" },
        { "{\"a\"}", "colon" },
        { "{\"a\" 1}", "colon" },
        { "{\"a\":}", "a value must be" },
        { "{\"a\":{}}", "a value must be" },
        { "{\"a\":[1]}", "a value must be" },
        { "{\"a\":01}", "a value must be" },
        { "{\"a\":1.}", "a value must be" },
        { "{\"a\":.5}", "a value must be" },
        { "{\"a\":+1}", "a value must be" },
        { "{\"a\":1e}", "a value must be" },
        { "{\"a\":-}", "a value must be" },
        { "{\"a\":tru}", "a value must be" },
        { "{\"a\":NaN}", "a value must be" },
        { "{\"a\":1", "comma or a closing brace" },
        { "{\"a\":1 \"b\":2}", "comma or a closing brace" },
        { "{\"a\":1,}", "name in double quotes" },
        { "{,\"a\":1}", "name in double quotes" },
        { "{\"a\":\"b}", "has no end" },
        { "{\"a", "has no end" },
        { "{\"a\":\"\\x\"}", "invalid escape" },
        { "{\"a\":\"\\u12\"}", "invalid escape" },
        { "{\"a\":\"\\u12g4\"}", "invalid escape" },
        { "{\"a\":\"\\ud83d\"}", "invalid escape" },
        { "{\"a\":\"\\ude00\"}", "invalid escape" },
        { "{\"a\":\"\\ud83d\\u0041\"}", "invalid escape" },
        { "{\"a\":\"\\", "invalid escape" },
        { "{\"a\":\"\n\"}", "control character" },
        { "{} x", "text after" },
        { "{\"a\":1}}", "text after" }
    };

    for (i = 0; i < nelts_of(invalid); i++) {
        err = read_all(invalid[i].text, strlen(invalid[i].text), out,
                       sizeof(out));

        ok(err && strstr(err, invalid[i].err), "%s: %s", invalid[i].text,
           err ? err : "accepted");
    }

    err = read_all("{\"a\":\"\0\"}", 9, out, sizeof(out));
    ok(err && strstr(err, "control character"), "a zero byte");

    err = read_all("{\"a\":\"\\\0\"}", 10, out, sizeof(out));
    ok(err && strstr(err, "invalid escape"), "an escaped zero byte");
}


/* every beginning of a text, and random bytes */

static void
test_any(void)
{
    char      out[4096], text[64];
    size_t    i, k, len;
    unsigned  refused;

    static const char  whole[] =
        "{\"a\\u20ac\":\"\\ud83d\\ude00\\n\",\"b\":-1.5e-3,\"c\":true}";
    static const char  bytes[] = "{}\":,\\u09dae.-+ tn\n";

    for (refused = 0, len = 0; len < sizeof(whole) - 1; len++) {
        refused += read_all(whole, len, out, sizeof(out)) != NULL;
    }

    ok(refused == sizeof(whole) - 1, "each beginning of an object is refused");

    srand(11);

    for (i = 0; i < 300000; i++) {
        len = rand() % sizeof(text);

        for (k = 0; k < len; k++) {
            text[k] = rand() % 8 ? bytes[rand() % (sizeof(bytes) - 1)]
                                 : (char) rand();
        }

        if (len) {
            text[0] = '{';
        }

        (void) read_all(text, len, out, sizeof(out));
    }

    ok(1, "random bytes are read without harm");
}


int
main(void)
{
    test_valid();
    test_invalid();
    test_any();

    return tap_done();
}
