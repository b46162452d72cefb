
/*
 * Memory that is short: loaded before a program (LD_PRELOAD), it lets malloc()
 * of the size that RATELIMIT_NOMEM_SIZE says fail as long as there is a file of
 * the name RATELIMIT_NOMEM, if nginx's ngx_alloc() asks for it.
 */

#define _GNU_SOURCE

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>


extern void *__libc_malloc(size_t size);


static char    nomem_name[1024];
static size_t  nomem_size;


/* nginx gives its workers another environment */

__attribute__((constructor)) static void
nomem_init(void)
{
    const char  *name, *size;

    name = getenv("RATELIMIT_NOMEM");
    size = getenv("RATELIMIT_NOMEM_SIZE");

    if (name && size && strlen(name) < sizeof(nomem_name)) {
        strcpy(nomem_name, name);
        nomem_size = (size_t) atol(size);
    }
}


void *
malloc(size_t size)
{
    Dl_info  info;

    if (size == nomem_size && size && access(nomem_name, F_OK) == 0
        && dladdr(__builtin_return_address(0), &info) && info.dli_sname
        && strcmp(info.dli_sname, "ngx_alloc") == 0)
    {
        errno = ENOMEM;
        return NULL;
    }

    return __libc_malloc(size);
}
