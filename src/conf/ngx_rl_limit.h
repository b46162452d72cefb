
/*
 * Limits as configured.
 */


#ifndef _NGX_RL_LIMIT_H_INCLUDED_
#define _NGX_RL_LIMIT_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "pure/ngx_rl_decision.h"
#include "conf/ngx_rl_statement.h"
#include "memory/ngx_rl_rates.h"
#include "memory/ngx_rl_stats.h"
#include "memory/ngx_rl_tops.h"
#include "topology/ngx_rl_table.h"


#define NGX_RL_WINDOW_DEFAULT  60000000         /* us */


/* a parameter: a value parsed with the configuration, or a variable */

typedef struct {
    ngx_http_complex_value_t  *value;  /* NULL: not set */
    unsigned                   dynamic:1;
    union {
        uint64_t       number;         /* capacity, cost, us; of a period
                                          as ngx_rl_period.h has it */
        ngx_rl_rate_t  rate;
    } u;
} ngx_rl_param_t;


/* which parameter */

typedef enum {
    NGX_RL_KEY = 0,
    NGX_RL_CAPACITY,
    NGX_RL_WINDOW,
    NGX_RL_PERIOD,
    NGX_RL_TIMEZONE,
    NGX_RL_ANCHOR,
    NGX_RL_RATE,
    NGX_RL_INTERVAL,
    NGX_RL_COST,
    NGX_RL_PARAMS
} ngx_rl_param_e;


/* the parameters of a limit, set by directives or by "ratelimit_limit" */

typedef struct {
    ngx_rl_param_t  key;       /* not set: the client and its network */
    ngx_rl_param_t  capacity;  /* not set: the rate's count */
    ngx_rl_param_t  rate;
    ngx_rl_param_t  window;
    ngx_rl_param_t  period;    /* instead of a window */
    ngx_rl_param_t  timezone;
    ngx_rl_param_t  anchor;
    ngx_rl_param_t  interval;
    ngx_rl_param_t  cost;      /* not set: the location's */
    ngx_uint_t      algorithm;
} ngx_rl_limit_params_t;


typedef struct {
    ngx_str_t  name;    /* in "ratelimit_limit" */
    ngx_str_t  directive;
    size_t     offset;  /* in ngx_rl_limit_params_t */
} ngx_rl_param_def_t;


typedef struct {
    ngx_str_t              name;
    ngx_rl_limit_params_t  params;
    ngx_rl_limit_stats_t  *stats;      /* shared memory */
    ngx_rl_rates_t        *rates;      /* shared memory, or NULL */
    ngx_rl_advice_t       *advice;     /* the same; NULL: none */
    ngx_rl_tops_t         *tops;       /* the same; NULL: none */
    ngx_uint_t             top;        /* keys in them */
    ngx_rl_table_conf_t   *table;      /* of overrides, or NULL */
    ngx_rl_statement_t    *statement;  /* while it is loaded */
    unsigned               named:1;    /* by "ratelimit_limit" */
    unsigned               used:1;     /* somewhere */
    unsigned               dry_run:1;
    unsigned               advise:1;   /* everywhere */
    unsigned               advised:1;  /* somewhere */
} ngx_rl_limit_t;


/* a number, a time in ms or a status, and the message for any other value */

#define NGX_RL_NUMBER   0
#define NGX_RL_TIME     1
#define NGX_RL_STATUS   2
#define NGX_RL_AMOUNT   3       /* a number, or "off": 0 */
#define NGX_RL_PERCENT  4       /* the same with "%" */

typedef struct {
    ngx_uint_t   kind;
    uint64_t     min;
    uint64_t     max;
    uint64_t     on;       /* what this word means; 0: nothing */
    const char  *allowed;  /* a sentence */
} ngx_rl_bounds_t;


extern ngx_rl_param_def_t  ngx_rl_param_defs[];
extern ngx_conf_enum_t     ngx_rl_algorithms[];

/* what messages call an algorithm, by its number */
extern const char  *const  ngx_rl_algorithm_words[];


#define ngx_rl_param(params, i)                                               \
    ((ngx_rl_param_t *) ((u_char *) (params) + ngx_rl_param_defs[i].offset))


/*
 * Parses a parameter; "directive" is its name in an error.  NGX_CONF_OK, or
 * NGX_CONF_ERROR with the error logged.
 */
char *ngx_rl_param_compile(ngx_conf_t *cf, ngx_rl_param_t *param,
    ngx_rl_param_e what, ngx_str_t *directive, ngx_str_t *text);

/* these return NULL, or a sentence that says what is allowed */
const char *ngx_rl_param_parse(ngx_rl_param_e what, ngx_str_t *text,
    void *value);
const char *ngx_rl_bounds_parse(const ngx_rl_bounds_t *bounds,
    ngx_str_t *text, uint64_t *value);

/*
 * Finds the entry for a word NAME=TEXT among the n entries of a table, each of
 * which starts with a name; n: none.
 */
ngx_uint_t ngx_rl_word_find(ngx_str_t *word, const void *table, size_t size,
    ngx_uint_t n, ngx_str_t *text);

/* for an algorithm that counts by periods: which periods these are */
void ngx_rl_limit_period(const ngx_rl_limit_params_t *params,
    ngx_rl_period_t *period);

/* whether these parameters suffice for a limit */
ngx_uint_t ngx_rl_limit_params_complete(ngx_rl_limit_params_t *params);

/*
 * Whether the parameters of a limit and a cost fit each other, as far as they
 * are known.  If not, an error is logged as by ngx_rl_statement_error().
 */
char *ngx_rl_limit_check(ngx_conf_t *cf, ngx_rl_block_t *block,
    ngx_rl_limit_t *limit, ngx_rl_param_t *cost);

/* NULL if such a bucket can be stored, or a sentence that says what can */
const char *ngx_rl_bucket_check(ngx_uint_t algorithm,
    const ngx_rl_rate_t *rate, uint64_t capacity);

/*
 * Adds a limit to "limits" (pointers).  A limit without a name is named after
 * its server and location, and the name is unique.  NULL: no memory.
 */
ngx_rl_limit_t *ngx_rl_limit_add(ngx_conf_t *cf, ngx_array_t *limits,
    ngx_str_t *name);

ngx_rl_limit_t *ngx_rl_limit_find(ngx_array_t *limits, ngx_str_t *name);

/* the directive "ratelimit_limit"; adds to an array of pointers in the conf */
char *ngx_rl_limit_parse(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);


#endif /* _NGX_RL_LIMIT_H_INCLUDED_ */
