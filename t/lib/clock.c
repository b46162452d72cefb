
/*
 * A clock that is wrong: loaded before a program (LD_PRELOAD), it shifts the
 * time of day by as many microseconds as stand in the file that
 * RATELIMIT_CLOCK names, 8 bytes in the order of the machine.  The file is
 * mapped, so the clock of a running program can be set.  Monotonic clocks go
 * right.
 *
 * It asks the kernel alone, as it may be called before libraries are set up.
 */

#define _GNU_SOURCE

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>


static const volatile int64_t  *clock_offset;


__attribute__((constructor)) static void
clock_init(void)
{
    int          fd;
    void        *p;
    const char  *name;

    name = getenv("RATELIMIT_CLOCK");

    if (name == NULL) {
        return;
    }

    fd = open(name, O_RDONLY|O_CLOEXEC);

    if (fd == -1) {
        return;
    }

    p = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);

    if (p != MAP_FAILED) {
        clock_offset = p;
    }

    close(fd);
}


static int
clock_read(clockid_t id, struct timespec *ts)
{
    int64_t  us;

    if (syscall(SYS_clock_gettime, id, ts) != 0) {
        return -1;
    }

    if ((id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE)
        || clock_offset == NULL)
    {
        return 0;
    }

    us = (int64_t) ts->tv_sec * 1000000 + ts->tv_nsec / 1000 + *clock_offset;

    ts->tv_sec = us / 1000000;
    ts->tv_nsec = us % 1000000 * 1000;

    return 0;
}


int
clock_gettime(clockid_t id, struct timespec *ts)
{
    return clock_read(id, ts);
}


int
gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
    struct timespec  ts;

    (void) tz;

    if (clock_read(CLOCK_REALTIME, &ts) != 0) {
        return -1;
    }

    tv->tv_sec = ts.tv_sec;
    tv->tv_usec = ts.tv_nsec / 1000;

    return 0;
}


time_t
time(time_t *t)
{
    struct timespec  ts;

    if (clock_read(CLOCK_REALTIME, &ts) != 0) {
        return (time_t) -1;
    }

    if (t != NULL) {
        *t = ts.tv_sec;
    }

    return ts.tv_sec;
}
