/* A disk under spill files, preloaded: each write and read of a file in SPILL_FOLDER takes SPILL_MICROS
   longer; the SPILL_NTH of a process fails with EIO, if it is the first in all processes: it makes the
   file SPILL_FLAG. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_long calls;

static int fails(int fd) {
    const char *folder = getenv("SPILL_FOLDER"), *micros = getenv("SPILL_MICROS");
    const char *nth = getenv("SPILL_NTH"), *flag = getenv("SPILL_FLAG");
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = folder ? readlink(link, path, sizeof path - 1) : -1;
    if (length < 0) return 0;
    path[length] = 0;
    if (strncmp(path, folder, strlen(folder))) return 0;
    if (micros) usleep(atol(micros));
    if (!nth || !flag || atomic_fetch_add(&calls, 1) + 1 != atol(nth)) return 0;
    int made = open(flag, O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (made < 0) return 0;
    close(made);
    errno = EIO;
    return 1;
}

ssize_t pwrite64(int fd, const void *from, size_t length, off64_t offset) {
    static ssize_t (*next)(int, const void *, size_t, off64_t);
    if (!next) next = dlsym(RTLD_NEXT, "pwrite64");
    return fails(fd) ? -1 : next(fd, from, length, offset);
}

ssize_t pread64(int fd, void *into, size_t length, off64_t offset) {
    static ssize_t (*next)(int, void *, size_t, off64_t);
    if (!next) next = dlsym(RTLD_NEXT, "pread64");
    return fails(fd) ? -1 : next(fd, into, length, offset);
}
