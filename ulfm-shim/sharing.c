/* Waits inside MPI that leave the core to others. libmpi spins, which is fastest where every process
 * has a core of its own. Where processes outnumber cores, each message of a repair waits until the
 * one that has to answer gets its turn among those that only look, and sched_yield
 * (mpi_yield_when_idle) did not help between the jobs of several nodes. So between shim_share_core
 * and shim_keep_core a process that was interrupted for another one sleeps between its looks.
 */
#define _GNU_SOURCE
#include "workarounds.h"
#include "ulfm_shim.h"

#include <stdbool.h>
#include <sys/resource.h>
#include <time.h>

/* The kernel adds up to 50 us (timer slack, prctl(2)). */
enum { SLEEP_NS = 50 * 1000 };
/* A few are the kernel's own, on a machine with enough cores too. */
enum { SWITCHES_MAX = 3 };

static bool sharing, crowded;
static long switches_at_begin;

/* How often this thread had to give its core to somebody. */
static long switches(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nivcsw : 0;
}

/* A progress function: libmpi calls it at every look. */
static int rest(void)
{
    if (sharing) {
        crowded = crowded || switches() - switches_at_begin > SWITCHES_MAX;
        if (crowded) {
            nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
        }
    }
    return 0;
}

void shim_share_core(void)
{
    static bool enlisted;
    enlisted = enlisted || progress_enlist(rest);
    if (!sharing) {
        sharing = true;
        crowded = false;
        switches_at_begin = switches();
    }
}

void shim_keep_core(void)
{
    sharing = false;
}
