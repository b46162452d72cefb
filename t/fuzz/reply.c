
/*
 * Replies of Redis in portions of any size: the reader, and all that parses
 * what it has read, for scripts, cluster maps and redirects.
 */

#include "fuzz.h"

#include "pure/ngx_rl_decision.h"
#include "pure/ngx_rl_slots.h"
#include "script/ngx_rl_eval.h"


static void
walk(const ngx_rl_reply_t *reply, size_t depth, size_t *bytes)
{
    size_t  i;

    check(depth <= NGX_RL_REPLY_DEPTH);

    switch (reply->type) {

    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS:
    case REDIS_REPLY_ERROR:
        check(reply->str[reply->len] == '\0');
        *bytes += reply->len;
        break;

    case REDIS_REPLY_ARRAY:
        for (i = 0; i < reply->elements; i++) {
            walk(reply->element[i], depth + 1, bytes);
        }

        break;

    default:
        break;
    }
}


static void
range(void *data, const ngx_rl_slot_range_t *r)
{
    size_t  *n = data;

    check(r->first <= r->last && r->last < 16384);
    check(r->host_len <= NGX_RL_SLOT_HOST && r->ip_len <= NGX_RL_SLOT_HOST);
    check(r->port != 0);

    (*n)++;
}


/* three calls with limits of all kinds wait for this reply */

static void
calls(const ngx_rl_reply_t *reply, uint64_t kinds)
{
    char              *command;
    size_t             i, k;
    ngx_rl_eval_t      eval;
    ngx_rl_call_t      call[3];
    ngx_rl_claim_t     claim[3][2];
    ngx_rl_bucket_t   *bucket;
    ngx_rl_failure_e   failure;

    static ngx_rl_resp_t      resp;
    static const char *const  keys[] = { "a", "b", "c", "d", "e", "f" };

    memset(call, 0, sizeof(call));
    memset(claim, 0, sizeof(claim));
    memset(&eval, 0, sizeof(eval));

    for (i = 0; i < 3; i++) {
        call[i].n = 1 + (kinds >> i & 1);
        call[i].times = call[i].n == 1 ? 1 + (kinds >> (3 + i) & 3) : 1;

        for (k = 0; k < call[i].n; k++) {
            call[i].claims[k] = &claim[i][k];
            claim[i][k].key = keys[2 * i + k];
            claim[i][k].len = 1;
            claim[i][k].hash[0] = 2 * i + k;

            bucket = &claim[i][k].bucket;
            bucket->algorithm = (kinds >> (8 + 4 * i + 2 * k)) % 3;
            bucket->capacity = 10;
            bucket->cost = 1;
            bucket->window = 1000000;
            bucket->step = kinds >> (24 + i) & 1 ? 1000 : 0;
            (void) ngx_rl_rate_parse("10r/s", 5, &bucket->rate);
        }

        (void) ngx_rl_eval_add(&eval, &call[i]);
    }

    /* only a command that was written knows what its reply looks like */

    ngx_rl_eval_format(&eval, &resp, 0);
    check(ngx_rl_resp_end(&resp, &command) > 0);

    failure = ngx_rl_eval_reply(reply, &eval);

    if (failure != NGX_RL_OK) {
        return;
    }

    for (i = 0; i < eval.n; i++) {

        if (eval.calls[i]->failure != NGX_RL_OK) {
            continue;
        }

        check(eval.calls[i]->passed <= eval.calls[i]->times);

        for (k = 0; k < eval.calls[i]->n; k++) {
            ngx_rl_decide(&eval.calls[i]->claims[k]->decision,
                          &eval.calls[i]->claims[k]->bucket,
                          eval.calls[i]->claims[k]->state);
        }
    }
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int                 rc;
    size_t              part, bytes, n;
    input_t             in;
    uint64_t            kinds, splits;
    ngx_rl_reply_t     *reply;
    ngx_rl_reader_t    *reader;
    ngx_rl_redirect_t   redirect;

    in.pos = data;
    in.end = data + size;

    kinds = number(&in, 4);
    splits = number(&in, 2);

    reader = ngx_rl_reader_create();
    check(reader != NULL);

    rc = 0;

    while (rc >= 0 && in.pos < in.end) {
        part = 1 + splits % 97;
        splits = splits * 31 + 7;

        if (part > (size_t) (in.end - in.pos)) {
            part = in.end - in.pos;
        }

        if (ngx_rl_reader_feed(reader, in.pos, part) != 0) {
            break;
        }

        in.pos += part;

        for ( ;; ) {
            rc = ngx_rl_reader_next(reader, &reply);

            if (rc != 1) {
                break;
            }

            bytes = 0;
            walk(reply, 0, &bytes);
            check(bytes <= size);

            n = 0;
            rc = ngx_rl_slots_parse(reply, range, &n);
            check(rc == -1 ? n == 0 : (size_t) rc == n);

            if (reply->type == REDIS_REPLY_ERROR) {
                (void) ngx_rl_failure(reply->str, reply->len);
                (void) ngx_rl_redirect_parse(reply->str, reply->len, &redirect);
            }

            calls(reply, kinds);
        }
    }

    ngx_rl_reader_free(reader);

    return 0;
}
