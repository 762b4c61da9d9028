/* Waits inside MPI that leave the core to others. libmpi spins, which is fastest where every process
 * has a core of its own. Where processes outnumber cores, each message of a repair waits until the
 * one that has to answer gets its turn among those that only look, and sched_yield
 * (mpi_yield_when_idle) did not help between the jobs of several nodes. So between shim_share_core
 * and shim_keep_core a process sleeps between its looks: for a moment, which costs a chain of messages
 * little where there are cores enough, and longer once it was interrupted for another one. (Until the
 * first time slice has run out nobody would be interrupted: that alone took a repair 8 ms.)
 */
#define _GNU_SOURCE
#include "workarounds.h"
#include "ulfm_shim.h"

#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

enum { SLEEP_NS = 20 * 1000, CROWDED_SLEEP_NS = 100 * 1000 };
/* By how much the kernel may be late (prctl(2)); 0 is the default of 50 us again. */
enum { SLACK_NS = 1000, SLACK_DEFAULT = 0 };
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
        long nanoseconds = crowded ? CROWDED_SLEEP_NS : SLEEP_NS;
        nanosleep(&(struct timespec){.tv_nsec = nanoseconds}, NULL);
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
        prctl(PR_SET_TIMERSLACK, SLACK_NS);
    }
}

void shim_keep_core(void)
{
    sharing = false;
    prctl(PR_SET_TIMERSLACK, SLACK_DEFAULT);
}
