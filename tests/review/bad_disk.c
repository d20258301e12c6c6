/* Writes to files under a folder fail at a chosen call; everything else goes to libc. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { EIO_ONCE, EIO_THRICE, SHORT_THEN_EIO, FULL_ONCE };

static char folder[4096];
static long at = -1, calls = 0, bitten = 0;
static int kind = EIO_ONCE;

/* Let call number `n` (from 0) on a file under `where` fail; -1: none, they are counted. */
void bad_disk_arm(const char *where, long n, int how)
{
    snprintf(folder, sizeof folder, "%s", where);
    at = n, kind = how, calls = bitten = 0;
}

long bad_disk_calls(void) { return calls; }
long bad_disk_bitten(void) { return bitten; }

static int is_ours(int fd)
{
    char link[64], path[4096];
    if (!folder[0])
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    return n > 0 && strncmp(path, folder, strlen(folder)) == 0;
}

/* 0: do it; 1: do half of it; -1: fail, errno is set. */
static int fate(int fd)
{
    int error = errno;
    if (!is_ours(fd)) {
        errno = error;
        return 0;
    }
    errno = error;
    long call = calls++, after = call - at;
    if (at < 0 || after < 0)
        return 0;
    if (kind == SHORT_THEN_EIO && after == 0)
        return bitten++, 1;
    long failures = kind == EIO_THRICE ? 3 : kind == SHORT_THEN_EIO ? 2 : 1;
    if (after >= failures)
        return 0;
    bitten++;
    errno = kind == FULL_ONCE ? ENOSPC : EIO;
    return -1;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *data, size_t n)
{
    REAL(write);
    int how = fate(fd);
    return how < 0 ? -1 : real(fd, data, how && n > 1 ? n / 2 : n);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t to)
{
    REAL(pwrite);
    int how = fate(fd);
    return how < 0 ? -1 : real(fd, data, how && n > 1 ? n / 2 : n, to);
}

ssize_t pwrite64(int fd, const void *data, size_t n, off64_t to)
{
    REAL(pwrite64);
    int how = fate(fd);
    return how < 0 ? -1 : real(fd, data, how && n > 1 ? n / 2 : n, to);
}

int fsync(int fd) { REAL(fsync); return fate(fd) < 0 ? -1 : real(fd); }
int fdatasync(int fd) { REAL(fdatasync); return fate(fd) < 0 ? -1 : real(fd); }
int ftruncate(int fd, off_t n) { REAL(ftruncate); return fate(fd) < 0 ? -1 : real(fd, n); }
int ftruncate64(int fd, off64_t n) { REAL(ftruncate64); return fate(fd) < 0 ? -1 : real(fd, n); }
