/* A wall clock that somebody sets over and over, preloaded into a process and its children.

It runs hours ahead, further each fifth of a second, and now and then goes back to the true time. The
monotonic clock is left alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

static const long JUMP_S = 3600;
static const long JUMPS = 50;
static const long EVERY_NS = 200000000;

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, now);
    if (status == 0 && clock == CLOCK_REALTIME) {
        struct timespec steady;
        real(CLOCK_MONOTONIC, &steady);
        long passed = steady.tv_sec * 5 + steady.tv_nsec / EVERY_NS;
        now->tv_sec += JUMP_S * (passed % JUMPS);
    }
    return status;
}
