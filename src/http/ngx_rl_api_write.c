
/*
 * A change is made in Redis first.  Only when Redis has confirmed it, this
 * machine applies it at once, and the answer says that it was made.  The other
 * machines see the new version of the table (store/sync).  Limits without
 * Redis are changed in this machine's memory.
 *
 * A key is reset in two steps: its state is deleted, and then its override
 * gets the time of the reset, so that all machines forget what they know about
 * the key.
 */


#include "http/ngx_rl_api_write.h"
#include "http/ngx_rl_api_overrides.h"
#include "http/ngx_rl_evaluate.h"
#include "http/ngx_rl_lookup.h"
#include "http/ngx_rl_verdict.h"
#include "conf/ngx_rl_tables.h"
#include "core/ngx_rl_clock.h"
#include "core/ngx_rl_core.h"
#include "pure/ngx_rl_object.h"
#include "store/ngx_rl_query.h"
#include "store/ngx_rl_sync.h"


typedef struct {
    ngx_rl_use_t             *use;
    ngx_rl_table_conf_t      *table;
    ngx_rl_http_claim_t       hc;       /* its key */

    ngx_rl_override_t         values;
    ngx_rl_override_words_t   words;
    ngx_str_t                 text;

    ngx_rl_query_t            query;
    ngx_rl_query_t            touch;    /* after HDEL */
    ngx_str_t                 label;    /* of the server that is asked */
    ngx_rl_override_copy_t    copy;     /* as it was, or is */
    ngx_uint_t                removed;
    unsigned                  found:1;  /* there was an override */
    unsigned                  failed:1;
    ngx_rl_failure_e          failure;
} ngx_rl_api_write_t;


typedef const char *(*ngx_rl_api_field_pt)(ngx_rl_api_write_t *write,
    ngx_rl_member_t *member);

typedef struct {
    const char           *name;
    ngx_rl_api_field_pt   set;
} ngx_rl_api_field_t;


static ngx_int_t ngx_rl_api_write_begin(ngx_rl_api_t *api,
    ngx_rl_api_write_t **result);
static ngx_uint_t ngx_rl_api_key_was_reset(ngx_rl_api_write_t *write);
static ngx_int_t ngx_rl_api_body(ngx_rl_api_t *api, ngx_str_t *body);
static ngx_int_t ngx_rl_api_body_parse(ngx_rl_api_t *api, ngx_str_t *body);
static const char *ngx_rl_api_field_capacity(ngx_rl_api_write_t *write,
    ngx_rl_member_t *member);
static const char *ngx_rl_api_field_rate(ngx_rl_api_write_t *write,
    ngx_rl_member_t *member);
static const char *ngx_rl_api_field_cost(ngx_rl_api_write_t *write,
    ngx_rl_member_t *member);
static const char *ngx_rl_api_field_exempt(ngx_rl_api_write_t *write,
    ngx_rl_member_t *member);
static const char *ngx_rl_api_field_ban(ngx_rl_api_write_t *write,
    ngx_rl_member_t *member);
static const char *ngx_rl_api_field_until(ngx_rl_api_write_t *write,
    ngx_rl_member_t *member);
static const char *ngx_rl_api_field_reason(ngx_rl_api_write_t *write,
    ngx_rl_member_t *member);
static const char *ngx_rl_api_field_flag(ngx_rl_api_write_t *write,
    ngx_rl_member_t *member, uint32_t bit);
static ngx_int_t ngx_rl_api_override_check(ngx_rl_api_t *api);
static ngx_int_t ngx_rl_api_override_format(ngx_rl_api_t *api);
static ngx_int_t ngx_rl_api_override_store(ngx_rl_api_t *api,
    ngx_rl_api_pt next);
static ngx_int_t ngx_rl_api_override_stored(ngx_rl_api_t *api);
static ngx_int_t ngx_rl_api_override_apply(ngx_rl_api_t *api);
static ngx_int_t ngx_rl_api_override_unset(ngx_rl_api_t *api);
static ngx_int_t ngx_rl_api_override_cleared(ngx_rl_api_t *api);
static ngx_int_t ngx_rl_api_override_removed(ngx_rl_api_t *api);
static ngx_int_t ngx_rl_api_key_advice(ngx_rl_api_t *api, ngx_str_t *key);
static ngx_int_t ngx_rl_api_key_deleted(ngx_rl_api_t *api);
static ngx_int_t ngx_rl_api_key_known(ngx_rl_api_t *api);
static ngx_int_t ngx_rl_api_key_mark(ngx_rl_api_t *api);
static ngx_int_t ngx_rl_api_key_reset(ngx_rl_api_t *api);
static ngx_int_t ngx_rl_api_key_answer(ngx_rl_api_t *api, const char *done);
static ngx_int_t ngx_rl_api_query(ngx_rl_api_t *api, ngx_rl_query_t *query,
    ngx_rl_server_t *server, ngx_rl_resp_t *resp);
static void ngx_rl_api_query_answer(ngx_rl_query_t *query,
    ngx_rl_reply_t *reply);
static void ngx_rl_api_query_cancel(ngx_rl_api_t *api);
static ngx_int_t ngx_rl_api_unwritten(ngx_rl_api_t *api, const char *state);
static void ngx_rl_api_log(ngx_rl_api_t *api, const char *what,
    ngx_str_t *text);


static const ngx_rl_api_field_t  ngx_rl_api_fields[] = {
    { "capacity", ngx_rl_api_field_capacity },
    { "rate", ngx_rl_api_field_rate },
    { "cost", ngx_rl_api_field_cost },
    { "exempt", ngx_rl_api_field_exempt },
    { "ban", ngx_rl_api_field_ban },
    { "until", ngx_rl_api_field_until },
    { "reason", ngx_rl_api_field_reason },
    { NULL, NULL }
};


/* the command of a query is copied by the connection */
static ngx_rl_resp_t  ngx_rl_api_resp;


/* NGX_OK, or as ngx_rl_api_refuse() */

static ngx_int_t
ngx_rl_api_write_begin(ngx_rl_api_t *api, ngx_rl_api_write_t **result)
{
    ngx_rl_use_t        *use;
    ngx_rl_api_write_t  *write;

    write = ngx_pcalloc(api->request->pool, sizeof(ngx_rl_api_write_t));
    if (write == NULL) {
        return NGX_ERROR;
    }

    api->data = write;

    use = ngx_rl_tables_use(api->rmcf, api->limit);

    if (use == NULL) {
        return ngx_rl_api_refuse(api, NGX_HTTP_NOT_FOUND, NULL, "no "
                                 "location uses limit \"%V\", so it has no "
                                 "keys", &api->limit->name);
    }

    if (api->limit->table == NULL) {
        return ngx_rl_api_refuse(api, NGX_HTTP_NOT_FOUND, NULL, "overrides "
                                 "are off on this machine: write "
                                 "\"ratelimit_overrides on;\"");
    }

    write->use = use;
    write->table = api->limit->table;
    write->hc.limit = api->limit;
    write->hc.key = api->path[3];

    write->query.handler = ngx_rl_api_query_answer;
    write->query.data = api;
    write->query.large = 1;
    write->touch.handler = ngx_rl_api_query_answer;
    write->touch.data = api;

    if (ngx_rl_evaluate_claim_key(api->request->pool, use->limit, &write->hc)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    write->found = ngx_rl_overrides_get(api->rmcf->overrides,
                                        write->table->table, &write->hc.key,
                                        &write->copy)
                   == NGX_OK;

    *result = write;

    return NGX_OK;
}


ngx_int_t
ngx_rl_api_override_get(ngx_rl_api_t *api)
{
    ngx_int_t            rc;
    ngx_rl_api_write_t  *write;

    rc = ngx_rl_api_write_begin(api, &write);

    if (rc != NGX_OK) {
        return ngx_rl_api_result(api, rc);
    }

    if (!write->found || write->copy.values.set == 0) {
        return ngx_rl_api_problem(api, NGX_HTTP_NOT_FOUND,
                                  "this key has no override");
    }

    ngx_rl_api_override(&api->json, NULL, &api->limit->name, &write->copy);

    return ngx_rl_api_send(api, NGX_HTTP_OK, NULL);
}


ngx_int_t
ngx_rl_api_override_put(ngx_rl_api_t *api)
{
    ngx_int_t            rc;
    ngx_str_t            body;
    ngx_rl_api_write_t  *write;

    ngx_str_null(&body);

    rc = ngx_rl_api_write_begin(api, &write);

    if (rc == NGX_OK) {
        rc = ngx_rl_api_body(api, &body);
    }

    if (rc == NGX_OK) {
        rc = ngx_rl_api_body_parse(api, &body);
    }

    if (rc == NGX_OK) {
        rc = ngx_rl_api_override_check(api);
    }

    if (rc != NGX_OK) {
        return ngx_rl_api_result(api, rc);
    }

    if (ngx_rl_api_key_was_reset(write)) {
        write->values.reset = write->copy.values.reset;
    }

    rc = ngx_rl_api_override_format(api);

    if (rc != NGX_OK) {
        return ngx_rl_api_result(api, rc);
    }

    return ngx_rl_api_override_store(api, ngx_rl_api_override_stored);
}


/* lately: machines that have not seen it yet still have to */

static ngx_uint_t
ngx_rl_api_key_was_reset(ngx_rl_api_write_t *write)
{
    return write->found
           && write->copy.values.reset / 1000000 + NGX_RL_OVERRIDE_FENCE
              >= (uint64_t) ngx_time();
}


/* NGX_OK, or as ngx_rl_api_refuse() */

static ngx_int_t
ngx_rl_api_body(ngx_rl_api_t *api, ngx_str_t *body)
{
    size_t                    len, size;
    u_char                   *p;
    ssize_t                   n;
    ngx_buf_t                *b;
    ngx_chain_t              *cl;
    ngx_http_request_body_t  *rb;

    rb = api->request->request_body;
    len = 0;

    for (cl = rb ? rb->bufs : NULL; cl; cl = cl->next) {
        len += ngx_buf_size(cl->buf);
    }

    if (len > NGX_RL_API_BODY) {
        return ngx_rl_api_refuse(api, NGX_HTTP_REQUEST_ENTITY_TOO_LARGE, NULL,
                                 "a body has at most %d bytes",
                                 NGX_RL_API_BODY);
    }

    p = ngx_pnalloc(api->request->pool, len + 1);
    if (p == NULL) {
        return NGX_ERROR;
    }

    body->data = p;
    body->len = len;

    for (cl = rb ? rb->bufs : NULL; cl; cl = cl->next) {
        b = cl->buf;
        size = ngx_buf_size(b);

        if (ngx_buf_in_memory(b)) {
            p = ngx_cpymem(p, b->pos, size);
            continue;
        }

        if (!b->in_file) {
            continue;
        }

        n = ngx_read_file(b->file, p, size, b->file_pos);

        if (n != (ssize_t) size) {
            return NGX_ERROR;
        }

        p += n;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_rl_api_body_parse(ngx_rl_api_t *api, ngx_str_t *body)
{
    ngx_rl_api_write_t  *write = api->data;

    const char                *err;
    ngx_uint_t                 seen;
    ngx_rl_object_t            object;
    ngx_rl_member_t            member;
    const ngx_rl_api_field_t  *field;

    seen = 0;

    ngx_rl_object_init(&object, (char *) body->data, body->len);

    while (ngx_rl_object_next(&object, &member)) {

        for (field = ngx_rl_api_fields; field->name; field++) {
            if (member.name_len == ngx_strlen(field->name)
                && ngx_memcmp(member.name, field->name, member.name_len) == 0)
            {
                break;
            }
        }

        if (field->name == NULL) {
            return ngx_rl_api_refuse(api, NGX_HTTP_BAD_REQUEST, NULL,
                                     "unknown field \"%*s\": an override has "
                                     "\"capacity\", \"rate\", \"cost\", "
                                     "\"exempt\", \"ban\", \"until\" and "
                                     "\"reason\"",
                                     ngx_min(member.name_len, 64), member.name);
        }

        if (seen >> (field - ngx_rl_api_fields) & 1) {
            return ngx_rl_api_refuse(api, NGX_HTTP_BAD_REQUEST, field->name,
                                     "\"%s\" is repeated", field->name);
        }

        seen |= (ngx_uint_t) 1 << (field - ngx_rl_api_fields);

        if (member.type == NGX_RL_OBJECT_NULL) {
            continue;
        }

        err = field->set(write, &member);

        if (err) {
            return ngx_rl_api_refuse(api, NGX_HTTP_BAD_REQUEST, field->name,
                                     "\"%s\": %s", field->name, err);
        }
    }

    if (object.err) {
        return ngx_rl_api_refuse(api, NGX_HTTP_BAD_REQUEST, NULL, "the body "
                                 "is not valid: %s", object.err);
    }

    return NGX_OK;
}


static const char *
ngx_rl_api_field_capacity(ngx_rl_api_write_t *write, ngx_rl_member_t *member)
{
    write->values.set |= NGX_RL_OVERRIDE_CAPACITY;

    return ngx_rl_capacity_parse(member->value,
                                 member->type == NGX_RL_OBJECT_NUMBER
                                 ? member->value_len : 0,
                                 &write->values.capacity);
}


static const char *
ngx_rl_api_field_rate(ngx_rl_api_write_t *write, ngx_rl_member_t *member)
{
    write->values.set |= NGX_RL_OVERRIDE_RATE;
    write->words.rate = member->value;
    write->words.rate_len = member->value_len;

    return ngx_rl_rate_parse(member->value,
                             member->type == NGX_RL_OBJECT_STRING
                             ? member->value_len : 0,
                             &write->values.rate);
}


static const char *
ngx_rl_api_field_cost(ngx_rl_api_write_t *write, ngx_rl_member_t *member)
{
    uint64_t     cost;
    const char  *err;

    write->values.set |= NGX_RL_OVERRIDE_COST;

    err = ngx_rl_cost_parse(member->value,
                            member->type == NGX_RL_OBJECT_NUMBER
                            ? member->value_len : 0,
                            &cost);

    if (err == NULL) {
        write->values.cost = (uint32_t) cost;
    }

    return err;
}


static const char *
ngx_rl_api_field_exempt(ngx_rl_api_write_t *write, ngx_rl_member_t *member)
{
    return ngx_rl_api_field_flag(write, member, NGX_RL_OVERRIDE_EXEMPT);
}


static const char *
ngx_rl_api_field_ban(ngx_rl_api_write_t *write, ngx_rl_member_t *member)
{
    return ngx_rl_api_field_flag(write, member, NGX_RL_OVERRIDE_BAN);
}


static const char *
ngx_rl_api_field_flag(ngx_rl_api_write_t *write, ngx_rl_member_t *member,
    uint32_t bit)
{
    if (member->type == NGX_RL_OBJECT_TRUE) {
        write->values.set |= bit;

    } else if (member->type != NGX_RL_OBJECT_FALSE) {
        return "it must be true or false";
    }

    return NULL;
}


/* a moment, or a time from now */

static const char *
ngx_rl_api_field_until(ngx_rl_api_write_t *write, ngx_rl_member_t *member)
{
    time_t     time;
    ngx_str_t  text;

    text.data = (u_char *) member->value;
    text.len = member->value_len;

    time = NGX_ERROR;

    if (member->type == NGX_RL_OBJECT_NUMBER) {
        time = ngx_atotm(text.data, text.len);

    } else if (member->type == NGX_RL_OBJECT_STRING) {
        time = ngx_parse_time(&text, 1);

        /* what is too large for a sum is also too large for an answer */

        if (time > 0 && time <= NGX_MAX_TIME_T_VALUE - ngx_time()) {
            time += ngx_time();
        }
    }

    if (time <= ngx_time()) {
        return "it must be a time in the future, in seconds since 1970, or a "
               "text like \"1h\" for a time from now";
    }

    /* the text of an override has up to 18 digits */

    if (time > 99999999999LL) {
        return "it is too far in the future";
    }

    write->values.until = time;

    return NULL;
}


static const char *
ngx_rl_api_field_reason(ngx_rl_api_write_t *write, ngx_rl_member_t *member)
{
    size_t  i;

    if (member->type != NGX_RL_OBJECT_STRING
        || member->value_len > NGX_RL_OVERRIDE_REASON)
    {
        return "it must be a text of up to 256 bytes";
    }

    for (i = 0; i < member->value_len; i++) {
        if ((u_char) member->value[i] < 0x20 || member->value[i] == 0x7f) {
            return "it must not have control characters";
        }
    }

    write->words.reason = member->value;
    write->words.reason_len = member->value_len;

    return NULL;
}


/* whether the limit can have such numbers, as far as they are known */

static ngx_int_t
ngx_rl_api_override_check(ngx_rl_api_t *api)
{
    ngx_rl_api_write_t  *write = api->data;

    uint32_t                set;
    const char             *err;
    ngx_rl_bucket_t         bucket;
    ngx_rl_limit_params_t  *params;

    set = write->values.set;
    params = &api->limit->params;

    if (set == 0) {
        return ngx_rl_api_refuse(api, NGX_HTTP_BAD_REQUEST, NULL, "an "
                                 "override needs one of \"capacity\", "
                                 "\"rate\", \"cost\", \"exempt\" and \"ban\"");
    }

    if ((set & NGX_RL_OVERRIDE_EXEMPT && set != NGX_RL_OVERRIDE_EXEMPT)
        || (set & NGX_RL_OVERRIDE_BAN && set != NGX_RL_OVERRIDE_BAN))
    {
        return ngx_rl_api_refuse(api, NGX_HTTP_BAD_REQUEST, NULL,
                                 "\"exempt\" and \"ban\" exclude each other "
                                 "and all numbers");
    }

    if (set & NGX_RL_OVERRIDE_RATE
        && ngx_rl_algorithm_window(params->algorithm))
    {
        return ngx_rl_api_refuse(api, NGX_HTTP_BAD_REQUEST, "rate", "limit "
                                 "\"%V\" has a window and no rate: change "
                                 "its \"capacity\"", &api->limit->name);
    }

    if ((params->rate.dynamic && !(set & NGX_RL_OVERRIDE_RATE))
        || (params->capacity.dynamic && !(set & NGX_RL_OVERRIDE_CAPACITY)))
    {
        return NGX_OK;
    }

    ngx_memzero(&bucket, sizeof(ngx_rl_bucket_t));

    bucket.algorithm = params->algorithm;
    bucket.cost = 1;

    if (params->rate.value && !params->rate.dynamic) {
        bucket.rate = params->rate.u.rate;
    }

    bucket.capacity = (params->capacity.value && !params->capacity.dynamic)
                      ? params->capacity.u.number : bucket.rate.count;

    err = ngx_rl_override_apply(&write->values, &bucket,
                                params->capacity.value == NULL);

    if (err) {
        return ngx_rl_api_refuse(api, NGX_HTTP_BAD_REQUEST,
                                 set & NGX_RL_OVERRIDE_CAPACITY ? "capacity"
                                                                : "rate",
                                 "limit \"%V\" cannot have these numbers: %s",
                                 &api->limit->name, err);
    }

    if (set & NGX_RL_OVERRIDE_COST && bucket.cost > bucket.capacity) {
        return ngx_rl_api_refuse(api, NGX_HTTP_BAD_REQUEST, "cost", "%uL is "
                                 "above capacity %uL: no request could "
                                 "pass; \"ban\" rejects all requests",
                                 bucket.cost, bucket.capacity);
    }

    return NGX_OK;
}


static ngx_int_t
ngx_rl_api_override_format(ngx_rl_api_t *api)
{
    ngx_rl_api_write_t  *write = api->data;

    write->text.data = ngx_pnalloc(api->request->pool, NGX_RL_OVERRIDE_TEXT);
    if (write->text.data == NULL) {
        return NGX_ERROR;
    }

    write->text.len = ngx_rl_override_format((char *) write->text.data,
                                             &write->values, &write->words);
    if (write->text.len == 0) {
        return ngx_rl_api_refuse(api, NGX_HTTP_BAD_REQUEST, "reason", "the "
                                 "override is too long: write a shorter "
                                 "\"reason\"");
    }

    return NGX_OK;
}


static ngx_int_t
ngx_rl_api_override_store(ngx_rl_api_t *api, ngx_rl_api_pt next)
{
    ngx_rl_api_write_t  *write = api->data;

    if (write->table->home == NULL) {
        return next(api);
    }

    ngx_rl_sync_format_set(&ngx_rl_api_resp, write->table, &write->hc.key,
                           &write->text);

    if (ngx_rl_api_query(api, &write->query, ngx_rl_sync_home(write->table),
                         &ngx_rl_api_resp)
        != NGX_OK)
    {
        return next(api);
    }

    return ngx_rl_api_wait(api, next, ngx_rl_api_query_cancel);
}


static ngx_int_t
ngx_rl_api_override_stored(ngx_rl_api_t *api)
{
    ngx_rl_api_write_t  *write = api->data;

    ngx_int_t  rc;

    if (write->failed) {
        return ngx_rl_api_unwritten(api, "the override is not set");
    }

    rc = ngx_rl_api_override_apply(api);

    if (rc != NGX_OK) {
        return ngx_rl_api_result(api, rc);
    }

    ngx_rl_api_log(api, "override set", &write->text);

    /* what this request has set; another one may have changed it already */

    write->copy.values = write->values;
    write->copy.key_len = write->hc.key.len;
    write->copy.text_len = write->text.len;

    ngx_memcpy(write->copy.key, write->hc.key.data, write->hc.key.len);
    ngx_memcpy(write->copy.text, write->text.data, write->text.len);

    ngx_rl_api_override(&api->json, NULL, &api->limit->name, &write->copy);

    return ngx_rl_api_send(api, NGX_HTTP_OK, NULL);
}


/* NGX_OK, or as ngx_rl_api_refuse() */

static ngx_int_t
ngx_rl_api_override_apply(ngx_rl_api_t *api)
{
    ngx_rl_api_write_t  *write = api->data;

    if (ngx_rl_sync_apply(write->table, &write->hc.key, &write->text, 0)
        == NGX_OK)
    {
        return NGX_OK;
    }

    return ngx_rl_api_refuse(api, NGX_HTTP_INSUFFICIENT_STORAGE, NULL,
                             "%s\"ratelimit_overrides\" of this machine is "
                             "full: make it larger", write->table->home ?
                             "the change is stored in redis, but not applied "
                             "on this machine: " : "");
}


ngx_int_t
ngx_rl_api_override_delete(ngx_rl_api_t *api)
{
    ngx_int_t            rc;
    ngx_rl_server_t     *server;
    ngx_rl_api_write_t  *write;

    rc = ngx_rl_api_write_begin(api, &write);

    if (rc != NGX_OK) {
        return ngx_rl_api_result(api, rc);
    }

    if (write->table->home == NULL) {
        write->removed = write->found && write->copy.values.set;
        return ngx_rl_api_override_removed(api);
    }

    if (ngx_rl_api_key_was_reset(write)) {
        return ngx_rl_api_override_unset(api);
    }

    /* both commands go to the server in this order */

    server = ngx_rl_sync_home(write->table);

    ngx_rl_sync_format_remove(&ngx_rl_api_resp, write->table, &write->hc.key);

    if (ngx_rl_api_query(api, &write->query, server, &ngx_rl_api_resp)
        != NGX_OK)
    {
        return ngx_rl_api_override_removed(api);
    }

    ngx_rl_sync_format_touch(&ngx_rl_api_resp, write->table);

    (void) ngx_rl_api_query(api, &write->touch, server, &ngx_rl_api_resp);

    return ngx_rl_api_wait(api, ngx_rl_api_override_removed,
                           ngx_rl_api_query_cancel);
}


/* all that is left of the override is the reset */

static ngx_int_t
ngx_rl_api_override_unset(ngx_rl_api_t *api)
{
    ngx_rl_api_write_t  *write = api->data;

    ngx_int_t  rc;

    if (write->copy.values.set == 0) {
        return ngx_rl_api_problem(api, NGX_HTTP_NOT_FOUND,
                                  "this key has no override");
    }

    write->values.reset = write->copy.values.reset;
    write->values.until = ngx_time() + NGX_RL_OVERRIDE_FENCE;

    rc = ngx_rl_api_override_format(api);

    if (rc != NGX_OK) {
        return ngx_rl_api_result(api, rc);
    }

    return ngx_rl_api_override_store(api, ngx_rl_api_override_cleared);
}


static ngx_int_t
ngx_rl_api_override_cleared(ngx_rl_api_t *api)
{
    ngx_rl_api_write_t  *write = api->data;

    ngx_int_t  rc;

    if (write->failed) {
        return ngx_rl_api_unwritten(api, "the override is not removed");
    }

    rc = ngx_rl_api_override_apply(api);

    if (rc != NGX_OK) {
        return ngx_rl_api_result(api, rc);
    }

    ngx_rl_api_log(api, "override removed", NULL);

    return ngx_rl_api_key_answer(api, "removed");
}


static ngx_int_t
ngx_rl_api_override_removed(ngx_rl_api_t *api)
{
    ngx_rl_api_write_t  *write = api->data;

    if (write->failed) {
        return ngx_rl_api_unwritten(api, "the override is not removed");
    }

    ngx_rl_overrides_remove(api->rmcf->overrides, write->table->table,
                            &write->hc.key);

    if (write->removed == 0) {
        return ngx_rl_api_problem(api, NGX_HTTP_NOT_FOUND,
                                  "this key has no override");
    }

    ngx_rl_api_log(api, "override removed", NULL);

    return ngx_rl_api_key_answer(api, "removed");
}


ngx_int_t
ngx_rl_api_key_delete(ngx_rl_api_t *api)
{
    ngx_int_t              rc;
    ngx_str_t              advice;
    ngx_uint_t             part;
    ngx_rl_server_t       *server;
    ngx_rl_api_write_t    *write;
    ngx_rl_server_conf_t  *conf;

    rc = ngx_rl_api_write_begin(api, &write);

    if (rc != NGX_OK) {
        return ngx_rl_api_result(api, rc);
    }

    if (write->table->home == NULL) {
        return ngx_rl_api_key_mark(api);
    }

    rc = ngx_rl_api_key_advice(api, &advice);

    if (rc != NGX_OK) {
        return ngx_rl_api_result(api, rc);
    }

    conf = ngx_rl_shards_find(write->use->conf->shards, &write->hc.key);
    server = ngx_rl_route_find(conf, write->hc.claim.key, write->hc.claim.len,
                               &part);

    ngx_rl_resp_begin(&ngx_rl_api_resp);
    ngx_rl_resp_text(&ngx_rl_api_resp, "DEL");
    ngx_rl_resp_word(&ngx_rl_api_resp, write->hc.claim.key,
                     write->hc.claim.len);

    if (advice.len) {
        ngx_rl_resp_word(&ngx_rl_api_resp, advice.data, advice.len);
    }

    if (ngx_rl_api_query(api, &write->query, server, &ngx_rl_api_resp)
        != NGX_OK)
    {
        return ngx_rl_api_key_deleted(api);
    }

    return ngx_rl_api_wait(api, ngx_rl_api_key_deleted,
                           ngx_rl_api_query_cancel);
}


/*
 * A limit that gives advice has a second bucket on the same server, whose key
 * contains its size; empty: it has none.  NGX_OK, or as ngx_rl_api_refuse()
 */

static ngx_int_t
ngx_rl_api_key_advice(ngx_rl_api_t *api, ngx_str_t *key)
{
    ngx_int_t            rc;
    ngx_rl_lookup_t     *lookup;
    ngx_rl_api_write_t  *write = api->data;

    ngx_str_null(key);

    if (!write->use->limit->advise) {
        return NGX_OK;
    }

    lookup = ngx_pcalloc(api->request->pool, sizeof(ngx_rl_lookup_t));
    if (lookup == NULL) {
        return NGX_ERROR;
    }

    lookup->use = write->use;

    rc = ngx_rl_lookup_prepare(lookup, api->request, &api->path[3]);

    if (rc == NGX_DECLINED) {
        return ngx_rl_api_refuse(api, NGX_HTTP_BAD_REQUEST, NULL,
                                 "\"%V\" of limit \"%V\": %s",
                                 &ngx_rl_param_defs[lookup->param].name,
                                 &api->limit->name, lookup->err);
    }

    key->data = (u_char *) lookup->hc.claim.key;
    key->len = lookup->hc.claim.len;

    return rc;
}


/* what is the override now?  another machine may have changed it */

static ngx_int_t
ngx_rl_api_key_deleted(ngx_rl_api_t *api)
{
    ngx_rl_api_write_t  *write = api->data;

    if (write->failed) {
        return ngx_rl_api_unwritten(api, "the key is not reset");
    }

    ngx_rl_resp_begin(&ngx_rl_api_resp);
    ngx_rl_resp_text(&ngx_rl_api_resp, "HGET");
    ngx_rl_resp_word(&ngx_rl_api_resp, write->table->key.data,
                     write->table->key.len);
    ngx_rl_resp_word(&ngx_rl_api_resp, write->hc.key.data, write->hc.key.len);

    write->found = 0;

    if (ngx_rl_api_query(api, &write->query, ngx_rl_sync_home(write->table),
                         &ngx_rl_api_resp)
        != NGX_OK)
    {
        return ngx_rl_api_key_known(api);
    }

    return ngx_rl_api_wait(api, ngx_rl_api_key_known, ngx_rl_api_query_cancel);
}


static ngx_int_t
ngx_rl_api_key_known(ngx_rl_api_t *api)
{
    ngx_rl_api_write_t  *write = api->data;

    if (write->failed) {
        return ngx_rl_api_unwritten(api, "the state of the key is deleted in "
                                         "redis, but machines may reject it "
                                         "for up to a minute");
    }

    return ngx_rl_api_key_mark(api);
}


/* an override that only resets the key ends by itself */

static ngx_int_t
ngx_rl_api_key_mark(ngx_rl_api_t *api)
{
    ngx_rl_api_write_t  *write = api->data;

    ngx_int_t  rc;

    if (!write->found
        || ngx_rl_override_parse((char *) write->copy.text,
                                 write->copy.text_len, &write->values,
                                 &write->words)
           != NULL)
    {
        ngx_memzero(&write->values, sizeof(ngx_rl_override_t));
    }

    write->values.reset = ngx_rl_clock_wall_us();

    if (write->values.set == 0) {
        write->values.until = ngx_time() + NGX_RL_OVERRIDE_FENCE;
    }

    rc = ngx_rl_api_override_format(api);

    if (rc != NGX_OK) {
        return ngx_rl_api_result(api, rc);
    }

    return ngx_rl_api_override_store(api, ngx_rl_api_key_reset);
}


static ngx_int_t
ngx_rl_api_key_reset(ngx_rl_api_t *api)
{
    ngx_rl_api_write_t  *write = api->data;

    ngx_int_t  rc;

    if (write->failed) {
        return ngx_rl_api_unwritten(api, "the state of the key is deleted in "
                                         "redis, but machines may reject it "
                                         "for up to a minute");
    }

    rc = ngx_rl_api_override_apply(api);

    if (rc != NGX_OK) {
        return ngx_rl_api_result(api, rc);
    }

    ngx_rl_api_log(api, "key reset", NULL);

    return ngx_rl_api_key_answer(api, "reset");
}


static ngx_int_t
ngx_rl_api_key_answer(ngx_rl_api_t *api, const char *done)
{
    ngx_rl_api_write_t  *write = api->data;

    ngx_rl_json_open(&api->json, NULL, '{');
    ngx_rl_json_string(&api->json, "limit", &api->limit->name);
    ngx_rl_json_string(&api->json, "key", &write->hc.key);
    ngx_rl_json_bool(&api->json, done, 1);
    ngx_rl_json_close(&api->json, '{');

    return ngx_rl_api_send(api, NGX_HTTP_OK, NULL);
}


/* NGX_OK: the answer will come; NGX_DECLINED: it was not sent */

static ngx_int_t
ngx_rl_api_query(ngx_rl_api_t *api, ngx_rl_query_t *query,
    ngx_rl_server_t *server, ngx_rl_resp_t *resp)
{
    ngx_rl_api_write_t  *write = api->data;

    ngx_str_t         *label;
    ngx_rl_failure_e   failure;

    /* a copy, because the text of a node that leaves its cluster is reused */

    label = &server->conf->label;

    write->label.data = ngx_pstrdup(api->request->pool, label);
    write->label.len = write->label.data ? label->len : 0;

    failure = ngx_rl_query_send(query, server, resp, write->table->timeout);

    if (failure == NGX_RL_OK) {
        return NGX_OK;
    }

    write->failed = 1;
    write->failure = failure;

    return NGX_DECLINED;
}


static void
ngx_rl_api_query_answer(ngx_rl_query_t *query, ngx_rl_reply_t *reply)
{
    ngx_rl_api_t        *api = query->data;
    ngx_rl_api_write_t  *write = api->data;

    if (query->failure != NGX_RL_OK) {
        write->failed = 1;
        write->failure = query->failure;

    } else if (reply->type == REDIS_REPLY_INTEGER && query == &write->query) {
        write->removed = (ngx_uint_t) reply->integer;

    } else if (reply->type == REDIS_REPLY_STRING
               && reply->len <= NGX_RL_OVERRIDE_TEXT)
    {
        ngx_memcpy(write->copy.text, reply->str, reply->len);
        write->copy.text_len = reply->len;
        write->found = 1;
    }

    if (write->query.pending == NULL && write->touch.pending == NULL) {
        ngx_rl_api_wake(api);
    }
}


static void
ngx_rl_api_query_cancel(ngx_rl_api_t *api)
{
    ngx_rl_api_write_t  *write = api->data;

    ngx_rl_query_cancel(&write->query);
    ngx_rl_query_cancel(&write->touch);
}


/* a command that was sent may have run, even if its answer did not come */

static ngx_int_t
ngx_rl_api_unwritten(ngx_rl_api_t *api, const char *state)
{
    ngx_rl_api_write_t  *write = api->data;

    return ngx_rl_api_problem(api, NGX_HTTP_SERVICE_UNAVAILABLE,
                              "no answer from redis %V: %s; %s, as far as this "
                              "machine knows: try again", &write->label,
                              ngx_rl_failure_names[write->failure], state);
}


/* without the request line, which nginx would add: it has the key */

static void
ngx_rl_api_log(ngx_rl_api_t *api, const char *what, ngx_str_t *text)
{
    ngx_rl_api_write_t  *write = api->data;

    size_t               len;
    ngx_log_t           *log;
    u_char               key[NGX_RL_VERDICT_LOG_KEY];
    u_char               shown[ngx_rl_escape_size(NGX_RL_OVERRIDE_TEXT)];
    u_char               user[ngx_rl_escape_size(NGX_RL_OVERRIDE_REASON)];
    size_t               shown_len, user_len;
    ngx_http_request_t  *r;
    ngx_log_handler_pt   handler;

    r = api->request;
    log = r->connection->log;

    len = ngx_rl_verdict_log_key(key, write->use->limit, &write->hc.key);
    shown_len = text ? ngx_rl_escape(shown, text->data, text->len) : 0;
    user_len = ngx_rl_escape(user, r->headers_in.user.data,
                             ngx_min(r->headers_in.user.len,
                                     NGX_RL_OVERRIDE_REASON));

    handler = log->handler;
    log->handler = NULL;

    ngx_log_error(NGX_LOG_NOTICE, log, 0,
                  "ratelimit: %s, limit: \"%V\"%*s%s%*s%s, user: \"%*s\", "
                  "client: %V",
                  what, &api->limit->name, len, key,
                  text ? ", override: \"" : "", shown_len, shown,
                  text ? "\"" : "", user_len, user,
                  &r->connection->addr_text);

    log->handler = handler;
}
