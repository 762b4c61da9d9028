/* Early news of deaths on this machine. The runtime reports a process when its launcher has reaped
 * it, and that is when the kernel has freed its memory: 60 to 100 ms for a rank of 940 MB whose
 * peers keep the cores busy, most of a repair. That it *ends*, from which on it computes and sends
 * nothing any more, stands in /proc at once. So whoever waits inside MPI looks there every
 * LOOK_SECONDS, and tells libmpi by the function that the runtime's report would call, as
 * that report would: on this process alone, from within the progress engine. The report comes
 * later and changes nothing.
 *
 * For the build that the work-arounds know, as they are.
 */
#define _GNU_SOURCE
#include "workarounds.h"
#include "ulfm_shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <mpi-ext.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Byte offsets in ompi_group_t of 5.0.11, x86-64, no debug build. */
enum { GROUP_SIZE = 0x10, GROUP_RANK = 0x14, GROUP_PROCS = 0x20 };
/* Ranks of one machine that are watched; the runtime reports the others. */
enum { WATCHED_MAX = 64 };
/* A flag of the kernel's, in field 9 of /proc/PID/stat (proc(5), include/linux/sched.h). */
enum { PF_EXITING = 0x4 };
/* Three reads cost 15 us. */
static const double LOOK_SECONDS = 0.002;

/* libmpi's own; weak so that the program links against other MPIs too. */
extern int ompi_errhandler_proc_failed_internal(void *proc, int status, bool forward)
    __attribute__((weak));
extern void *ompi_proc_local_proc __attribute__((weak));

static struct {
    int file;
    void *proc;
} watched[WATCHED_MAX];
static int watched_count;
/* Keeps the processes' objects alive. */
static MPI_Group watched_group = MPI_GROUP_NULL;
static double looked;

/* Whether its first thread is gone or on its way out: then so are, at the next instruction, all. */
static bool ends(int file)
{
    char text[512];
    ssize_t length = pread(file, text, sizeof text - 1, 0);
    if (length <= 0) {
        return length < 0 && errno == ESRCH; /* reaped */
    }
    text[length] = '\0';
    char *name_end = strrchr(text, ')');
    char state;
    unsigned int flags;
    if (name_end == NULL ||
        sscanf(name_end + 1, " %c %*d %*d %*d %*d %*d %u", &state, &flags) != 2) {
        return false;
    }
    return state == 'Z' || state == 'X' || (flags & PF_EXITING) != 0;
}

/* A progress function: libmpi calls it wherever it waits. */
static int look(void)
{
    double now = monotonic_seconds();
    if (watched_count == 0 || now - looked < LOOK_SECONDS) {
        return 0;
    }
    looked = now;
    int news = 0;
    for (int i = watched_count - 1; i >= 0; i--) {
        if (!ends(watched[i].file)) {
            continue;
        }
        void *proc = watched[i].proc;
        close(watched[i].file);
        watched[i] = watched[--watched_count];
        ompi_errhandler_proc_failed_internal(proc, MPIX_ERR_PROC_FAILED, false);
        news++;
    }
    return news;
}

bool progress_enlist(int (*function)(void))
{
    int (*enlist)(int (*)(void));
    *(void **)&enlist = dlsym(RTLD_DEFAULT, "opal_progress_register");
    return enlist != NULL && enlist(function) == 0;
}

static bool begin_to_look(void)
{
    static bool begun;
    begun = begun || progress_enlist(look);
    return begun;
}

static void forget(void)
{
    while (watched_count > 0) {
        close(watched[--watched_count].file);
    }
    if (watched_group != MPI_GROUP_NULL) {
        MPI_Group_free(&watched_group);
    }
}

/* The objects of a group's processes, where it is laid out as expected. */
static void **processes(MPI_Group group, int size, int rank)
{
    const char *object = (const char *)group;
    int stored_size, stored_rank;
    memcpy(&stored_size, object + GROUP_SIZE, sizeof stored_size);
    memcpy(&stored_rank, object + GROUP_RANK, sizeof stored_rank);
    if (stored_size != size || stored_rank != rank) {
        return NULL;
    }
    void **procs = *(void ***)(object + GROUP_PROCS);
    return procs[rank] == ompi_proc_local_proc ? procs : NULL;
}

int32_t shim_watch(shim_comm comm, const int32_t *pids, int32_t count)
{
    int size = 0, rank = 0;
    MPI_Comm handle = MPI_Comm_f2c(comm);
    forget();
    if (count == 0 || workarounds_state() != SHIM_WORKAROUNDS_ACTIVE ||
        ompi_errhandler_proc_failed_internal == NULL || &ompi_proc_local_proc == NULL ||
        MPI_Comm_size(handle, &size) != MPI_SUCCESS || count != size ||
        MPI_Comm_rank(handle, &rank) != MPI_SUCCESS || !begin_to_look() ||
        MPI_Comm_group(handle, &watched_group) != MPI_SUCCESS) {
        return 0;
    }
    void **procs = processes(watched_group, size, rank);
    for (int peer = 0; procs != NULL && peer < size && watched_count < WATCHED_MAX; peer++) {
        /* An odd address stands for a process that nobody here has talked to yet. */
        if (peer == rank || pids[peer] <= 0 || ((size_t)procs[peer] & 1) != 0) {
            continue;
        }
        char path[64];
        /* The first thread's alone: the kernel need not sum up all of them. */
        snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pids[peer], pids[peer]);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file >= 0) {
            watched[watched_count].file = file;
            watched[watched_count++].proc = procs[peer];
        }
    }
    looked = 0;
    return watched_count;
}
