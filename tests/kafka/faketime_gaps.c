/* In front of libfaketime 0.9.10, what it gets wrong of waiting. A sleep until a moment of the
   monotonic clock (CPython's time.sleep) is EINVAL: the kernel is asked. A wait of C11 threads until
   a time of day (librdkafka's) is not put back to the machine's: that of POSIX threads is. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *when, struct timespec *left)
{
    int before = errno, failed = syscall(SYS_clock_nanosleep, clock, flags, when, left) ? errno : 0;
    errno = before;
    return failed;
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict lock, const struct timespec *restrict when)
{
    int found = pthread_cond_timedwait((pthread_cond_t *)condition, (pthread_mutex_t *)lock, when);
    return found == 0 ? thrd_success : found == ETIMEDOUT ? thrd_timedout : thrd_error;
}
