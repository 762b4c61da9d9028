/* Loaded into mpirun before its own libraries (LD_PRELOAD): a descriptor that is closed leaves the
 * event loop.
 *
 * PMIx's server (5.0.11: remove_client) closes a dead client's socket while its read event is still
 * registered with libevent, if its launcher learned of the death first. Where something still holds
 * the client's object, the event stays; libevent then takes the number for one that epoll has
 * already, and a new process's connection with the same number is never looked at: its PMIx_Init
 * waits for ever. An event of a closed descriptor can never be right, so it is deleted before the
 * close.
 *
 * Acts in prterun only. Elsewhere it takes itself out of LD_PRELOAD, but for the wrappers that
 * become prterun. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

enum {
    DESCRIPTORS_MAX = 4096, /* a higher number is closed as ever */
    EVENTS_MAX = 4,         /* of one descriptor; PMIx has one to read and one to write */
    EV_READ = 0x02,         /* libevent's event.h */
    EV_WRITE = 0x04,
    EV_PERSIST = 0x10,
    PRELOAD_BYTES_MAX = 4096
};

struct event;
int event_add(struct event *event, const struct timeval *timeout);
int event_del(struct event *event);

static struct {
    int (*add)(struct event *, const struct timeval *);
    int (*del)(struct event *);
    int (*del_noblock)(struct event *);
    int (*get_fd)(const struct event *);
    short (*get_events)(const struct event *);
} libevent;

/* Events that were added and not deleted. Only persistent ones: others libevent deletes itself. */
static struct event *registered[DESCRIPTORS_MAX][EVENTS_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* The process that the events belong to: a child's closing of all files is none of its business.
 * 0: this program is not prterun. */
static pid_t owner;

static void find_libevent(void)
{
    *(void **)&libevent.add = dlsym(RTLD_NEXT, "event_add");
    *(void **)&libevent.del = dlsym(RTLD_NEXT, "event_del");
    *(void **)&libevent.del_noblock = dlsym(RTLD_NEXT, "event_del_noblock");
    *(void **)&libevent.get_fd = dlsym(RTLD_NEXT, "event_get_fd");
    *(void **)&libevent.get_events = dlsym(RTLD_NEXT, "event_get_events");
}

static bool complete(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_libevent);
    return libevent.add && libevent.del && libevent.del_noblock && libevent.get_fd &&
           libevent.get_events;
}

/* What else is preloaded is the user's, and stays. */
static void leave_environment(void)
{
    const char *all = getenv("LD_PRELOAD");
    Dl_info own;
    if (!all || !dladdr((void *)leave_environment, &own) || strlen(all) >= PRELOAD_BYTES_MAX) {
        return;
    }
    char copy[PRELOAD_BYTES_MAX], rest[PRELOAD_BYTES_MAX] = "", *place;
    strcpy(copy, all);
    for (char *word = strtok_r(copy, ": ", &place); word; word = strtok_r(NULL, ": ", &place)) {
        if (strcmp(word, own.dli_fname) != 0) {
            strcat(strcat(rest, *rest ? ":" : ""), word);
        }
    }
    if (*rest) {
        setenv("LD_PRELOAD", rest, 1);
    } else {
        unsetenv("LD_PRELOAD");
    }
}

__attribute__((constructor)) static void begin(void)
{
    const char *name = program_invocation_short_name;
    if (strcmp(name, "mpirun") == 0 || strcmp(name, "mpiexec") == 0) {
        return;
    }
    leave_environment();
    if (strncmp(name, "prte", 4) == 0 && complete()) {
        owner = getpid();
    }
}

static bool is_watched(int fd)
{
    return owner != 0 && fd >= 0 && fd < DESCRIPTORS_MAX && getpid() == owner;
}

static void replace(int fd, struct event *old, struct event *new)
{
    pthread_mutex_lock(&lock);
    for (int at = 0; at < EVENTS_MAX; at++) {
        if (registered[fd][at] == old) {
            registered[fd][at] = new;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
}

int event_add(struct event *event, const struct timeval *timeout)
{
    if (!complete()) {
        errno = ENOSYS;
        return -1;
    }
    int fd = libevent.get_fd(event);
    short events = libevent.get_events(event);
    if (is_watched(fd) && (events & EV_PERSIST) && (events & (EV_READ | EV_WRITE))) {
        replace(fd, event, NULL);
        replace(fd, NULL, event);
    }
    return libevent.add(event, timeout);
}

int event_del(struct event *event)
{
    if (!complete()) {
        errno = ENOSYS;
        return -1;
    }
    int fd = libevent.get_fd(event);
    if (is_watched(fd)) {
        replace(fd, event, NULL);
    }
    return libevent.del(event);
}

int close(int fd)
{
    if (is_watched(fd)) {
        struct event *left[EVENTS_MAX];
        pthread_mutex_lock(&lock);
        memcpy(left, registered[fd], sizeof left);
        memset(registered[fd], 0, sizeof left);
        pthread_mutex_unlock(&lock);
        for (int at = 0; at < EVENTS_MAX; at++) {
            if (left[at]) {
                libevent.del_noblock(left[at]);
            }
        }
    }
    return (int)syscall(SYS_close, fd);
}
