
/*
 * Linked into the nginx of "make asan": when leaks are looked for.
 *
 * A master or worker that ends frees its pools, and whatever is left then is
 * a leak.  "nginx -t", "nginx -s ..." and a start that fails return from
 * main() with all of it in place, by design, so there is nothing to see.
 *
 * The symbols are weak because configure links this file to its tests too.
 */

#include <stddef.h>
#include <stdint.h>


extern uintptr_t  ngx_process __attribute__((weak));
extern uintptr_t  ngx_event_flags __attribute__((weak));

int __lsan_is_turned_off(void);


int
__lsan_is_turned_off(void)
{
    if (&ngx_process == NULL || &ngx_event_flags == NULL) {
        return 1;
    }

    /* NGX_PROCESS_MASTER, or a process with an event loop */

    return !(ngx_process == 1 || ngx_event_flags != 0);
}
