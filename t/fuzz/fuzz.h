
/*
 * What the fuzz targets share: bytes of the input as numbers, and a check that
 * ends the process, so that libFuzzer keeps the input.
 */


#ifndef _FUZZ_H_INCLUDED_
#define _FUZZ_H_INCLUDED_


#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>


typedef struct {
    const uint8_t  *pos;
    const uint8_t  *end;
} input_t;


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);


#define check(what)                                                           \
    do {                                                                      \
        if (!(what)) {                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);        \
            abort();                                                          \
        }                                                                     \
    } while (0)


/* a number of so many bytes; 0 when there are no more */

static inline uint64_t
number(input_t *in, size_t bytes)
{
    uint64_t  n;

    for (n = 0; bytes && in->pos < in->end; bytes--) {
        n = n << 8 | *in->pos++;
    }

    return n;
}


/* the rest, in memory of exactly its size, so that reading beyond is found */

static inline char *
rest(input_t *in, size_t *len)
{
    char  *text;

    *len = in->end - in->pos;

    text = malloc(*len ? *len : 1);
    check(text != NULL);
    memcpy(text, in->pos, *len);

    return text;
}


#endif /* _FUZZ_H_INCLUDED_ */
