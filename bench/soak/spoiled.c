/* Spoils the disk and the clock of a process that loads it (LD_PRELOAD), as a mapped file says at every call.
 *
 * The file holds four 32-bit numbers, little endian: whether the disk is full (0 or 1), milliseconds that a flush takes
 * longer, microseconds that a write takes longer, and seconds by which the wall clock is wrong. Only regular files are
 * spoiled: sockets, pipes and terminals are not. The monotonic clock stays right, as it does on a machine whose wall
 * clock is stepped.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { IS_FULL, FLUSH_MILLISECONDS, WRITE_MICROSECONDS, CLOCK_SECONDS, NUMBERS };

static const volatile int32_t *spoiled;

__attribute__((constructor)) static void map_control(void) {
    const char *path = getenv("GPUTIDE_SPOILED");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, NUMBERS * sizeof(int32_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED)
        spoiled = mapped;
}

static int32_t now(int what) { return spoiled ? spoiled[what] : 0; }

static int is_regular(int file) {
    struct stat found;
    return fstat(file, &found) == 0 && S_ISREG(found.st_mode);
}

/* 0 where the write may go on, -1 with errno where the disk is full. */
static int before_write(int file) {
    if (!spoiled || (!now(IS_FULL) && !now(WRITE_MICROSECONDS)) || !is_regular(file))
        return 0;
    if (now(WRITE_MICROSECONDS))
        usleep((useconds_t)now(WRITE_MICROSECONDS));
    if (now(IS_FULL)) {
        errno = ENOSPC;
        return -1;
    }
    return 0;
}

static void before_flush(int file) {
    if (now(FLUSH_MILLISECONDS) && is_regular(file))
        usleep((useconds_t)now(FLUSH_MILLISECONDS) * 1000);
}

#define REAL(type, name, ...)                                                                                          \
    static type (*real)(__VA_ARGS__);                                                                                  \
    if (!real)                                                                                                         \
    real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

ssize_t write(int file, const void *bytes, size_t length) {
    REAL(ssize_t, "write", int, const void *, size_t);
    return before_write(file) ? -1 : real(file, bytes, length);
}

ssize_t pwrite(int file, const void *bytes, size_t length, off_t at) {
    REAL(ssize_t, "pwrite", int, const void *, size_t, off_t);
    return before_write(file) ? -1 : real(file, bytes, length, at);
}

ssize_t pwrite64(int file, const void *bytes, size_t length, off64_t at) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    return before_write(file) ? -1 : real(file, bytes, length, at);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    return before_write(file) ? -1 : real(file, parts, count);
}

int fsync(int file) {
    REAL(int, "fsync", int);
    before_flush(file);
    return real(file);
}

int fdatasync(int file) {
    REAL(int, "fdatasync", int);
    before_flush(file);
    return real(file);
}

int clock_gettime(clockid_t clock, struct timespec *told) {
    REAL(int, "clock_gettime", clockid_t, struct timespec *);
    int status = real(clock, told);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        told->tv_sec += now(CLOCK_SECONDS);
    return status;
}

int gettimeofday(struct timeval *restrict told, void *restrict zone) {
    REAL(int, "gettimeofday", struct timeval *, void *);
    int status = real(told, zone);
    if (status == 0)
        told->tv_sec += now(CLOCK_SECONDS);
    return status;
}

time_t time(time_t *told) {
    REAL(time_t, "time", time_t *);
    time_t found = real(NULL) + now(CLOCK_SECONDS);
    if (told)
        *told = found;
    return found;
}
