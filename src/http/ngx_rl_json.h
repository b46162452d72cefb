
/*
 * JSON, written member by member.  A member of an object has a name; an element
 * of an array has none (NULL).  Commas are added as needed.
 */


#ifndef _NGX_RL_JSON_H_INCLUDED_
#define _NGX_RL_JSON_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "http/ngx_rl_output.h"


typedef struct {
    ngx_rl_output_t  output;
    unsigned         comma:1;  /* before the next member */
} ngx_rl_json_t;


/* "bracket" is the opening one, '{' or '[' */
void ngx_rl_json_open(ngx_rl_json_t *json, const char *name, u_char bracket);
void ngx_rl_json_close(ngx_rl_json_t *json, u_char bracket);

/*
 * Bytes other than printable ASCII, and "%" itself, become %HH, as
 * ngx_rl_quote() does it.
 */
void ngx_rl_json_string(ngx_rl_json_t *json, const char *name,
    ngx_str_t *value);

/* NULL: null */
void ngx_rl_json_text(ngx_rl_json_t *json, const char *name,
    const char *value);

/* NGX_RL_NEVER: null */
void ngx_rl_json_number(ngx_rl_json_t *json, const char *name,
    uint64_t value);

/* microseconds, written in seconds */
void ngx_rl_json_seconds(ngx_rl_json_t *json, const char *name, uint64_t us);

/* n / of, with two decimals */
void ngx_rl_json_ratio(ngx_rl_json_t *json, const char *name, uint64_t n,
    uint64_t of);

/* tenths, written as a decimal number */
void ngx_rl_json_tenths(ngx_rl_json_t *json, const char *name,
    uint64_t tenths);

void ngx_rl_json_bool(ngx_rl_json_t *json, const char *name, ngx_uint_t value);


#endif /* _NGX_RL_JSON_H_INCLUDED_ */
