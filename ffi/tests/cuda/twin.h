/* A kernel's twin: the same source, compiled for the host. A launch of the fake driver looks it up by
 * the kernel's name and runs it block by block. */
#ifndef KINTSUGI_TWIN_H
#define KINTSUGI_TWIN_H

#include <stddef.h>

#define PARAMETERS_MAX 32

struct twin {
    void (*run)(void **arguments);
    int parameters;
    size_t bytes[PARAMETERS_MAX]; /* of each parameter */
};

/* Which block runs, and how the launch is made. */
extern __thread unsigned twin_block[3], twin_blocks[3], twin_threads[3];
/* Whether the threads of a phase run from the last to the first. */
extern int twin_backwards;

/* What a stream begins with, for libraries that put work into it: it is done in the stream's order,
 * then `owned` is freed. */
struct queue {
    int (*later)(void *stream, int (*call)(void *owned), void *owned);
};

#define TWIN(name, ...)                                                                            \
    __attribute__((visibility("default"))) const struct twin twin_##name = { __VA_ARGS__ }

#endif
