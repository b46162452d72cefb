
/*
 * What a call is, and what it took.
 */

#include "calls.h"


/*
 * The short scripts know no preview, no step, no log, no clock but that of
 * Redis, and one key
 */

static void
test_short(void)
{
    ngx_rl_call_t   call;
    ngx_rl_claim_t  claims[2];

#define is_short(bucket, change, expected, name)                              \
    claims[0] = claim_of("a", bucket);                                        \
    claims[1] = claim_of("b", bucket);                                        \
    call = call_of(claims, 1);                                                \
    change;                                                                   \
    is_number(ngx_rl_call_short(&call), expected, name)

    is_short(bucket_of(10, "1r/s", 1), (void) 0, 1, "one bucket");
    is_short(bucket_of(10, "0r/s", 1), (void) 0, 1, "one that never refills");
    is_short(gcra_of(10, "1r/s", 1), (void) 0, 1, "one of gcra");
    is_short(gcra_of(10, "1r/s", 1), claims[0].shadow = 1, 1, "a shadow");
    is_short(bucket_of(10, "1r/s", 1), call.times = 9, 1, "several requests");
    is_short(bucket_of(10, "1r/s", 1), call.n = 2; call.claims[1] = &claims[1],
             0, "not two of them");
    is_short(window_of(10, SECOND, 1), (void) 0, 0, "not a window log");
    is_short(fixed_of(10, SECOND, 1), (void) 0, 1, "a fixed window");
    is_short(fixed_of(10, 0, 1), call.part = 1, 1, "a part of a request");
    is_short(fixed_of(10, 0, 1), call.preview = 1, 0, "not its preview");
    is_short(bucket_of(10, "1r/s", 1), claims[0].bucket.step = 1, 0,
             "not a step");
    is_short(bucket_of(10, "1r/s", 1), call.preview = 1, 0, "not a preview");
    is_short(bucket_of(10, "1r/s", 1), call.clock = 1, 0,
             "not by nginx's clock");

    is_short(bucket_of(3599, "1r/s", 1), call.part = 1, 1,
             "part of a request, full within an hour");
    is_short(bucket_of(3600, "1r/s", 1), call.part = 1, 0,
             "not if it takes longer");
    is_short(gcra_of(3600, "1r/s", 1), call.part = 1, 1, "but for gcra");

#undef is_short
}


static void
test_enforced(void)
{
    size_t          i, j;
    ngx_rl_call_t   call;
    ngx_rl_claim_t  claims[3];

    /* e: enforced, s: a shadow limit */

    static const struct {
        const char  *claims;
        int          enforced;
    } cases[] = {
        { "e", 1 }, { "s", 0 }, { "ss", 0 }, { "se", 1 }, { "es", 1 },
        { "sss", 0 }, { "sse", 1 }
    };

    for (i = 0; i < nelts_of(cases); i++) {

        for (j = 0; cases[i].claims[j]; j++) {
            claims[j] = claim_of("k", bucket_of(10, "1r/s", 1));
            claims[j].shadow = (cases[i].claims[j] == 's');
        }

        call = call_of(claims, j);

        ok(ngx_rl_call_enforced(&call) == cases[i].enforced, "%s: %s",
           cases[i].claims, cases[i].enforced ? "may end the request"
           : "ends none");
    }
}


static void
test_taken(void)
{
    size_t          i, j;
    ngx_rl_call_t   call;
    ngx_rl_claim_t  claims[3];

    /* p: passed, d: denied; in capitals for a shadow limit */

    static const struct {
        const char  *claims;
        unsigned     preview;
        int          taken;
    } cases[] = {
        { "p", 0, 1 }, { "d", 0, 0 }, { "p", 1, 0 }, { "P", 0, 1 },
        { "D", 0, 0 }, { "pp", 0, 1 }, { "pd", 0, 0 }, { "dp", 0, 0 },
        { "pD", 0, 1 }, { "Dp", 0, 1 }, { "dD", 0, 0 }, { "DD", 0, 0 },
        { "PD", 0, 1 }, { "Pd", 0, 0 }, { "pDd", 0, 0 }, { "pDp", 0, 1 },
        { "pDp", 1, 0 }
    };

    for (i = 0; i < nelts_of(cases); i++) {

        for (j = 0; cases[i].claims[j]; j++) {
            claims[j] = claim_of("k", bucket_of(10, "1r/s", 1));
            claims[j].shadow = strchr("PD", cases[i].claims[j]) != NULL;
            claims[j].state[0] = strchr("dD", cases[i].claims[j]) ? -1 : 0;
        }

        call = call_of(claims, j);
        call.preview = cases[i].preview;

        ok(!ngx_rl_call_taken(&call) == !cases[i].taken,
           "%s%s: %s", cases[i].claims, cases[i].preview ? ", a preview" : "",
           cases[i].taken ? "something was taken" : "nothing was taken");
    }
}


int
main(void)
{
    test_short();
    test_enforced();
    test_taken();

    return tap_done();
}
