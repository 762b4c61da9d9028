/* Fails one call: of those that open to read, look at, list, map or read a path with HICCUP_MATCH in
 * it, the HICCUP_NTH fails once with HICCUP_ERRNO, and says so on stderr. Calls are counted over all
 * threads; at the end their number is written to HICCUP_COUNT. Preloaded by hiccups.rs. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES 4096
#define FOLDERS 256

static atomic_long calls;
static long nth;
static int code;
static const char *match;
static atomic_bool watched[FILES];
static _Atomic(DIR *) folders[FOLDERS];

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void begin(void) {
    const char *number = getenv("HICCUP_NTH"), *error = getenv("HICCUP_ERRNO");
    match = getenv("HICCUP_MATCH");
    nth = number ? atol(number) : 0;
    code = error ? atoi(error) : EIO;
}

__attribute__((destructor)) static void end(void) {
    const char *path = getenv("HICCUP_COUNT");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (file) {
        fprintf(file, "%ld\n", atomic_load(&calls));
        fclose(file);
    }
}

static int meant(const char *path) {
    return match && path && strstr(path, match);
}

/* Whether this call is the one. */
static int fails(const char *call, const char *path) {
    if (atomic_fetch_add(&calls, 1) + 1 != nth) return 0;
    char line[PATH_MAX + 80];
    int length = snprintf(line, sizeof line, "hiccup: call %ld, %s of %s\n", nth, call, path);
    if (write(2, line, length) < 0) { /* Nobody listens. */ }
    errno = code;
    return 1;
}

static int of_file(int fd) {
    return fd >= 0 && fd < FILES && atomic_load(&watched[fd]);
}

static int reads(int flags) {
    return (flags & O_ACCMODE) != O_WRONLY;
}

static int opened(int fd, const char *path) {
    if (fd >= 0 && fd < FILES) atomic_store(&watched[fd], meant(path));
    return fd;
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest); \
        REAL(name); \
        if (reads(flags) && meant(path) && fails("open", path)) return -1; \
        return opened(real(path, flags, mode), path); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest); \
        REAL(name); \
        if (reads(flags) && (meant(path) || of_file(at)) && fails("openat", path)) return -1; \
        return opened(real(at, path, flags, mode), path); \
    }
OPENAT(openat)
OPENAT(openat64)

int close(int fd) {
    REAL(close);
    if (fd >= 0 && fd < FILES) atomic_store(&watched[fd], 0);
    return real(fd);
}

#define STAT(name, form) \
    int name(const char *restrict path, struct form *restrict into) { \
        REAL(name); \
        return meant(path) && fails("stat", path) ? -1 : real(path, into); \
    }
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)

#define FSTAT(name, form) \
    int name(int fd, struct form *into) { \
        REAL(name); \
        return of_file(fd) && fails("fstat", "an open file") ? -1 : real(fd, into); \
    }
FSTAT(fstat, stat)
FSTAT(fstat64, stat64)

#define STATAT(name, form) \
    int name(int at, const char *restrict path, struct form *restrict into, int flags) { \
        REAL(name); \
        return (meant(path) || of_file(at)) && fails("fstatat", path) ? -1 : real(at, path, into, flags); \
    }
STATAT(fstatat, stat)
STATAT(fstatat64, stat64)

int statx(int at, const char *restrict path, int flags, unsigned mask, struct statx *restrict into) {
    REAL(statx);
    if ((meant(path) || of_file(at)) && fails("statx", path)) return -1;
    return real(at, path, flags, mask, into);
}

ssize_t read(int fd, void *into, size_t length) {
    REAL(read);
    return of_file(fd) && fails("read", "an open file") ? -1 : real(fd, into, length);
}

#define PREAD(name, offset_type) \
    ssize_t name(int fd, void *into, size_t length, offset_type offset) { \
        REAL(name); \
        return of_file(fd) && fails("pread", "an open file") ? -1 : real(fd, into, length, offset); \
    }
PREAD(pread, off_t)
PREAD(pread64, off64_t)

#define MAP(name, offset_type) \
    void *name(void *at, size_t length, int protection, int flags, int fd, offset_type offset) { \
        REAL(name); \
        if (of_file(fd) && fails("mmap", "an open file")) return MAP_FAILED; \
        return real(at, length, protection, flags, fd, offset); \
    }
MAP(mmap, off_t)
MAP(mmap64, off64_t)

static DIR *listed(DIR *folder, int of_interest) {
    for (int slot = 0; folder && of_interest && slot < FOLDERS; slot++) {
        DIR *none = NULL;
        if (atomic_compare_exchange_strong(&folders[slot], &none, folder)) break;
    }
    return folder;
}

static int of_folder(DIR *folder) {
    for (int slot = 0; slot < FOLDERS; slot++)
        if (atomic_load(&folders[slot]) == folder) return 1;
    return 0;
}

DIR *opendir(const char *path) {
    REAL(opendir);
    if (meant(path) && fails("opendir", path)) return NULL;
    return listed(real(path), meant(path));
}

DIR *fdopendir(int fd) {
    REAL(fdopendir);
    return listed(real(fd), of_file(fd));
}

int closedir(DIR *folder) {
    REAL(closedir);
    int fd = dirfd(folder);
    if (fd >= 0 && fd < FILES) atomic_store(&watched[fd], 0);
    for (int slot = 0; slot < FOLDERS; slot++) {
        DIR *same = folder;
        if (atomic_compare_exchange_strong(&folders[slot], &same, NULL)) break;
    }
    return real(folder);
}

#define READDIR(name, form) \
    struct form *name(DIR *folder) { \
        REAL(name); \
        return of_folder(folder) && fails("readdir", "an open folder") ? NULL : real(folder); \
    }
READDIR(readdir, dirent)
READDIR(readdir64, dirent64)

char *realpath(const char *restrict path, char *restrict into) {
    REAL(realpath);
    return meant(path) && fails("realpath", path) ? NULL : real(path, into);
}

ssize_t readlink(const char *restrict path, char *restrict into, size_t length) {
    REAL(readlink);
    return meant(path) && fails("readlink", path) ? -1 : real(path, into, length);
}
