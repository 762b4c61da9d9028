/* Self-test of closed_descriptors.c with the launcher's own libevent: says what becomes of a
 * connection whose descriptor has the number of one that was closed while it was watched. Its file
 * must be called prte..., for nothing else is looked after.
 *
 *   LD_PRELOAD=libclosed_descriptors.so prte-selftest */
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EV_READ = 0x02, EV_PERSIST = 0x10, EVLOOP_NONBLOCK = 0x02, LOOKS = 5 };

struct event_base;
struct event;
struct event_base *event_base_new(void);
int event_base_loop(struct event_base *base, int flags);
struct event *event_new(struct event_base *base, int fd, short what, void (*call)(int, short, void *),
                        void *own);
int event_add(struct event *event, const void *timeout);

static int heard;

static void hear(int fd, short what, void *unused)
{
    char byte;
    (void)what;
    (void)unused;
    heard += read(fd, &byte, 1) == 1;
}

static void watch(struct event_base *base, int fd)
{
    if (event_add(event_new(base, fd, EV_READ | EV_PERSIST, hear, NULL), NULL) != 0) {
        exit(2);
    }
}

static const char *speak(struct event_base *base, int fd)
{
    heard = 0;
    if (write(fd, "x", 1) != 1) {
        exit(2);
    }
    for (int look = 0; look < LOOKS; look++) {
        event_base_loop(base, EVLOOP_NONBLOCK);
    }
    return heard ? "heard" : "forgotten";
}

int main(void)
{
    struct event_base *base = event_base_new();
    int first[2], second[2];
    if (!base || socketpair(AF_UNIX, SOCK_STREAM, 0, first) != 0) {
        return 2;
    }
    watch(base, first[0]);
    printf("first: %s\n", speak(base, first[1]));
    close(first[0]);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, second) != 0 || second[0] != first[0]) {
        return 2;
    }
    watch(base, second[0]);
    printf("same number: %s\n", speak(base, second[1]));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        close(second[0]);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    printf("after a child closed it: %s\n", speak(base, second[1]));
    const char *preloaded = getenv("LD_PRELOAD");
    printf("preloaded for children: %s\n", preloaded ? preloaded : "nothing");
    return 0;
}
