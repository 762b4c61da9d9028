/* A bad network: reads packets from a tunnel, loses some, holds the others back, lets through so
   many bytes a second, and gives them back to the same tunnel. Ends with its parent.
   relay TUNNEL DELAY_MS LOSS_PERMILLE BYTES_PER_SECOND */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

/* As a router's queue: what does not fit is lost. */
enum { PACKETS_MAX = 4096, PACKET_BYTES_MAX = 2048, READS_MAX = 64 };

struct packet {
    int64_t due_ns;
    ssize_t bytes;
    char body[PACKET_BYTES_MAX];
};

static struct packet queue[PACKETS_MAX];

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int open_tunnel(const char *name) {
    struct ifreq request;
    memset(&request, 0, sizeof request);
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    request.ifr_flags = IFF_TUN | IFF_NO_PI;
    int tunnel = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    if (tunnel < 0 || ioctl(tunnel, TUNSETIFF, &request) < 0) {
        perror("relay");
        exit(1);
    }
    return tunnel;
}

/* A fixed seed: which packets are lost depends on their order only. */
static int is_lost(unsigned loss_permille) {
    static uint64_t state = 88172645463325252ULL;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % 1000 < loss_permille;
}

int main(int count, char **words) {
    if (count != 5) {
        fprintf(stderr, "relay TUNNEL DELAY_MS LOSS_PERMILLE BYTES_PER_SECOND\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int tunnel = open_tunnel(words[1]);
    int64_t delay_ns = atoll(words[2]) * 1000000LL;
    unsigned loss_permille = (unsigned)atoi(words[3]);
    double ns_per_byte = 1e9 / atof(words[4]);
    size_t first = 0, length = 0;
    int64_t line_free_ns = 0;
    for (;;) {
        int64_t wait_ns = length ? queue[first].due_ns - now_ns() : 1000000000LL;
        wait_ns = wait_ns < 0 ? 0 : wait_ns;
        struct timespec wait = {wait_ns / 1000000000LL, wait_ns % 1000000000LL};
        struct pollfd watched = {tunnel, POLLIN, 0};
        if (ppoll(&watched, 1, &wait, NULL) < 0 && errno != EINTR)
            return 1;
        for (int reads = 0; reads < READS_MAX; reads++) {
            struct packet *last = &queue[(first + length) % PACKETS_MAX];
            static char spilled[PACKET_BYTES_MAX];
            int full = length == PACKETS_MAX;
            ssize_t bytes = read(tunnel, full ? spilled : last->body, PACKET_BYTES_MAX);
            if (bytes <= 0)
                break;
            if (full || is_lost(loss_permille))
                continue;
            int64_t now = now_ns();
            line_free_ns = line_free_ns > now ? line_free_ns : now;
            line_free_ns += (int64_t)(bytes * ns_per_byte);
            last->bytes = bytes;
            last->due_ns = line_free_ns + delay_ns;
            length++;
        }
        while (length && queue[first].due_ns <= now_ns()) {
            if (write(tunnel, queue[first].body, queue[first].bytes) < 0 && errno == EAGAIN)
                break;
            first = (first + 1) % PACKETS_MAX;
            length--;
        }
    }
}
