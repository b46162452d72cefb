
/*
 * For "make lint": since C23, and in glibc since 2.43, a search in a text that
 * is const finds a place that is const.  So it is here, whatever the library.
 */


#ifndef _CONST_STRINGS_H_INCLUDED_
#define _CONST_STRINGS_H_INCLUDED_


#define _GNU_SOURCE  1

#include <stdlib.h>
#include <string.h>

#undef memchr
#undef strchr
#undef strpbrk
#undef strrchr
#undef strstr


#define const_as(text, type, found)                                           \
    _Generic(1 ? (text) : (void *) 1,                                         \
             const void *: (const type *) (found), default: (found))

#define memchr(s, c, n)  const_as(s, void, memchr(s, c, n))
#define strchr(s, c)     const_as(s, char, strchr(s, c))
#define strpbrk(s, c)    const_as(s, char, strpbrk(s, c))
#define strrchr(s, c)    const_as(s, char, strrchr(s, c))
#define strstr(s, t)     const_as(s, char, strstr(s, t))


#endif /* _CONST_STRINGS_H_INCLUDED_ */
