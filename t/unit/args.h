
/*
 * Commands of RESP, taken apart to the last byte.
 */


#ifndef _ARGS_H_INCLUDED_
#define _ARGS_H_INCLUDED_


#include "tap.h"


/* the longest command that can be made, and some more */
#define ARGS  500

#define bytes_of(text)  text, sizeof(text) - 1


typedef struct {
    size_t       n;
    size_t       len[ARGS];
    const char  *data[ARGS];
} args_t;


/* the first byte after a number and its line end, NULL if there is none */

static inline const char *
number_of(const char *p, const char *last, char type, size_t *n)
{
    if (p == NULL || p == last || *p++ != type) {
        return NULL;
    }

    for (*n = 0; p < last && *p >= '0' && *p <= '9'; p++) {
        *n = *n * 10 + (*p - '0');
    }

    return (last - p >= 2 && memcmp(p, "\r\n", 2) == 0) ? p + 2 : NULL;
}


/* takes a command apart, to the last byte; 0 if it is none */

static inline int
args_of(const char *command, long long len, args_t *args)
{
    size_t       i;
    const char  *p, *last;

    last = command + len;
    p = number_of(command, last, '*', &args->n);

    if (p == NULL || args->n > ARGS) {
        return 0;
    }

    for (i = 0; i < args->n; i++) {
        p = number_of(p, last, '$', &args->len[i]);

        if (p == NULL || (size_t) (last - p) < args->len[i] + 2
            || memcmp(p + args->len[i], "\r\n", 2) != 0)
        {
            return 0;
        }

        args->data[i] = p;
        p += args->len[i] + 2;
    }

    return p == last;
}


static inline int
arg_is(const args_t *args, size_t i, const char *data, size_t len)
{
    return i < args->n && args->len[i] == len
           && memcmp(args->data[i], data, len) == 0;
}


static inline int
arg_text(const args_t *args, size_t i, const char *text)
{
    return arg_is(args, i, text, strlen(text));
}


static inline uint64_t
arg_number(const args_t *args, size_t i)
{
    char  text[32];

    if (i >= args->n || args->len[i] >= sizeof(text)) {
        return 0;
    }

    memcpy(text, args->data[i], args->len[i]);
    text[args->len[i]] = '\0';

    return strtoull(text, NULL, 10);
}


/* compares all arguments from number i on with words up to NULL */

static inline void
args_are(const args_t *args, size_t i, const char *name, ...)
{
    int          same;
    size_t       first;
    va_list      words;
    const char  *word;

    same = 1;
    first = i;

    va_start(words, name);

    for ( ;; ) {
        word = va_arg(words, const char *);

        if (word == NULL) {
            break;
        }

        if (!arg_text(args, i, word)) {
            same = 0;
        }

        i++;
    }

    va_end(words);

    if (!ok(same && i == args->n, "%s", name)) {
        for (i = first; i < args->n; i++) {
            diag("%zu: %.*s", i, (int) args->len[i], args->data[i]);
        }
    }
}


#endif /* _ARGS_H_INCLUDED_ */
