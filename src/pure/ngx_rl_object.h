
/*
 * Reads a JSON object without objects or arrays in it, member by member.  Pure.
 */


#ifndef _NGX_RL_OBJECT_H_INCLUDED_
#define _NGX_RL_OBJECT_H_INCLUDED_


#include <stddef.h>


typedef enum {
    NGX_RL_OBJECT_STRING = 0,
    NGX_RL_OBJECT_NUMBER,
    NGX_RL_OBJECT_TRUE,
    NGX_RL_OBJECT_FALSE,
    NGX_RL_OBJECT_NULL
} ngx_rl_object_e;


typedef struct {
    char             *name;      /* decoded, in place of the text */
    size_t            name_len;
    char             *value;     /* that of a string likewise; of others as
                                    written */
    size_t            value_len;
    ngx_rl_object_e   type;
} ngx_rl_member_t;


typedef struct {
    char        *pos;
    char        *end;
    const char  *err;            /* a sentence, if the text is not such an
                                    object */
    unsigned     begun:1;
} ngx_rl_object_t;


/* the text is changed while it is read */
void ngx_rl_object_init(ngx_rl_object_t *object, char *text, size_t len);

/* 1: the next member; 0: there are no more, or object->err is set */
int ngx_rl_object_next(ngx_rl_object_t *object, ngx_rl_member_t *member);


#endif /* _NGX_RL_OBJECT_H_INCLUDED_ */
