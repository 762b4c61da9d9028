/* Launcher and ranks of one machine listen on its loopback alone. PRRTE 3.0 and the tcp transport of
 * Open MPI 5.0 offer parameters for the interfaces they name to each other; whatever these say, both
 * bind to all. So what they would bind to every interface is bound to the loopback's.
 *
 * In the program, where libraries find it by its name (-rdynamic), and in what is preloaded into
 * mpirun. Only where SWITCH is set, which `kintsugi launch` does on one machine, and a rank of a plain
 * mpirun for itself. */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SWITCH "KINTSUGI_LOOPBACK"

static bool is_stream(int fd)
{
    int type = 0;
    socklen_t length = sizeof type;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_STREAM;
}

/* The same port of the loopback, where the address is every interface's; else false. */
static bool narrow(const struct sockaddr *address, socklen_t length, struct sockaddr_storage *to)
{
    if (!address || length > sizeof *to) {
        return false;
    }
    memset(to, 0, sizeof *to);
    memcpy(to, address, length);
    struct sockaddr_in *four = (struct sockaddr_in *)to;
    if (address->sa_family == AF_INET && length >= sizeof *four &&
        four->sin_addr.s_addr == htonl(INADDR_ANY)) {
        four->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        return true;
    }
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)to;
    if (address->sa_family == AF_INET6 && length >= sizeof *six &&
        IN6_IS_ADDR_UNSPECIFIED(&six->sin6_addr)) {
        six->sin6_addr = in6addr_loopback;
        return true;
    }
    return false;
}

int bind(int fd, const struct sockaddr *address, socklen_t length)
{
    struct sockaddr_storage loopback;
    if (getenv(SWITCH) && is_stream(fd) && narrow(address, length, &loopback)) {
        /* A machine without such an address gets what was asked for. */
        if (syscall(SYS_bind, fd, &loopback, length) == 0) {
            return 0;
        }
    }
    return (int)syscall(SYS_bind, fd, address, length);
}
