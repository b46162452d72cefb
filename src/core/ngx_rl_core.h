
/*
 * Small helpers that nginx does not have.
 */


#ifndef _NGX_RL_CORE_H_INCLUDED_
#define _NGX_RL_CORE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>


/* the struct that this is a member of */
#define ngx_rl_container(ptr, type, member)                                   \
    ((type *) ((u_char *) (ptr) - offsetof(type, member)))


/*
 * An event whose data is a struct of ours.  For the debug log nginx takes the
 * data of an event for a connection and prints its descriptor.  So a struct
 * with events has an "ident" where ngx_connection_t has its "fd"; otherwise
 * this does not compile.  It is set to -1: no descriptor.
 */
#define ngx_rl_event_init(ev, type, handler, data, log)                       \
    do {                                                                      \
        (void) sizeof(char[offsetof(type, ident)                              \
                           == offsetof(ngx_connection_t, fd) ? 1 : -1]);      \
        (data)->ident = (ngx_socket_t) -1;                                    \
        ngx_rl_event_set(ev, handler, data, log);                             \
    } while (0)


static ngx_inline void
ngx_rl_event_set(ngx_event_t *ev, ngx_event_handler_pt handler, void *data,
    ngx_log_t *log)
{
    ev->handler = handler;
    ev->data = data;
    ev->log = log;
}


static ngx_inline void
ngx_rl_timer_end(ngx_event_t *ev)
{
    if (ev->timer_set) {
        ngx_del_timer(ev);
    }
}


/* ends an event that may be a timer, posted, or neither */

static ngx_inline void
ngx_rl_event_end(ngx_event_t *ev)
{
    ngx_rl_timer_end(ev);

    if (ev->posted) {
        ngx_delete_posted_event(ev);
    }
}


static ngx_inline ngx_uint_t
ngx_rl_str_equal(const ngx_str_t *a, const ngx_str_t *b)
{
    return a->len == b->len && ngx_memcmp(a->data, b->data, a->len) == 0;
}


#endif /* _NGX_RL_CORE_H_INCLUDED_ */
