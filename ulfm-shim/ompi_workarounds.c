/* Two defects of Open MPI 5.0.11's ULFM (others: ompi_requests.c, ompi_groups.c), worked around by
 * defining three of libmpi's internal functions in the program: libmpi calls them through its procedure
 * linkage table, so the program's definitions win where they are exported (-rdynamic). Found with
 * gdb when replacement processes died while they joined:
 *
 * 1. ompi_comm_request_progress() overwrites the error of a failed step of a communicator request
 *    with success. Allocating a context id (inside MPI_Intercomm_create, _merge, MPI_Comm_split,
 *    _spawn) then starts over for ever once a peer is dead, flooding stderr. Cure: what is
 *    scheduled next sees the error itself, and a last step reports it.
 * 2. ompi_comm_revoke_local() follows the collectives table of a communicator that is only half
 *    built when a failure notice arrives: SIGSEGV. Cure: such a communicator is only marked.
 *
 * They read and write structures of exactly one build family, so they act only for version
 * 5.0.11, and workarounds_verify() proves the offsets on live objects before any recovery.
 */
#define _GNU_SOURCE
#include "workarounds.h"
#include "ulfm_shim.h"

#include <dlfcn.h>
#include <mpi.h>
#include <mpi-ext.h>
#include <stdbool.h>
#include <string.h>

static const char MADE_FOR[] = "Open MPI v5.0.11,";

/* Byte offsets in ompi_request_t and ompi_communicator_t of 5.0.11, x86-64, no debug build. */
enum {
    REQUEST_SOURCE = 0x40,
    REQUEST_TAG = 0x44,
    REQUEST_ERROR = 0x48,
    COMM_COLLECTIVES = 0x158,
    COMM_REVOKED = 0x179,
    COMM_COLLECTIVES_REVOKED = 0x17a
};

/* What the internal functions are called with; only their addresses matter here. */
typedef int (*step_function)(void *request);

/* libmpi's own, not replaced; weak so that the program links against other MPIs too. */
extern int ompi_comm_request_schedule_append_w_flags(void *request, step_function step,
                                                     void **subrequests, int count,
                                                     unsigned int flags) __attribute__((weak));
/* Ours, as libmpi sees them. */
int ompi_comm_request_schedule_append(void *request, step_function step, void **subrequests,
                                      int count);
void *ompi_comm_request_get(void);
bool ompi_comm_revoke_local(void *comm, bool collectives_only);

static int state = -1;    /* enum shim_workarounds, -1: not asked yet */
static unsigned int seen; /* calls libmpi made to ours */

static int *request_error(void *request)
{
    return (int *)((char *)request + REQUEST_ERROR);
}

static volatile char *comm_byte(void *comm, int offset)
{
    return (volatile char *)comm + offset;
}

static bool is_failure(int error)
{
    return error == MPIX_ERR_PROC_FAILED || error == MPIX_ERR_PROC_FAILED_PENDING ||
           error == MPIX_ERR_REVOKED;
}

/* On by version alone until verified: joining calls them inside MPI_Init already. */
static bool active(void)
{
    if (state < 0) {
        char version[MPI_MAX_LIBRARY_VERSION_STRING];
        int length = 0;
        bool known = MPI_Get_library_version(version, &length) == MPI_SUCCESS &&
                     strncmp(version, MADE_FOR, sizeof MADE_FOR - 1) == 0 &&
                     sizeof(void *) == 8;
        state = known ? SHIM_WORKAROUNDS_ACTIVE : SHIM_WORKAROUNDS_NOT_NEEDED;
    }
    return state == SHIM_WORKAROUNDS_ACTIVE;
}

static void *libmpi_own(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

/* Takes the place of "no further step": the request ends with the error, not with success. */
static int report_error(void *request)
{
    int error = *request_error(request);
    return is_failure(error) ? error : MPI_SUCCESS;
}

int ompi_comm_request_schedule_append(void *request, step_function step, void **subrequests,
                                      int count)
{
    seen++;
    if (active()) {
        int error = *request_error(request);
        if (is_failure(error)) {
            return error;
        }
        if (step == NULL) {
            step = report_error;
        }
    }
    return ompi_comm_request_schedule_append_w_flags(request, step, subrequests, count, 0);
}

void *ompi_comm_request_get(void)
{
    static void *(*own)(void);
    if (own == NULL) {
        *(void **)&own = libmpi_own("ompi_comm_request_get");
    }
    seen++;
    void *request = own();
    if (request != NULL && active()) {
        *request_error(request) = MPI_SUCCESS; /* requests are recycled with their last error */
    }
    return request;
}

bool ompi_comm_revoke_local(void *comm, bool collectives_only)
{
    static bool (*own)(void *, bool);
    if (own == NULL) {
        *(void **)&own = libmpi_own("ompi_comm_revoke_local");
    }
    seen++;
    if (active() && *(void **)((char *)comm + COMM_COLLECTIVES) == NULL) {
        *comm_byte(comm, COMM_COLLECTIVES_REVOKED) = 1;
        if (!collectives_only) {
            *comm_byte(comm, COMM_REVOKED) = 1;
        }
        return true;
    }
    return own(comm, collectives_only);
}

/* The null request's status is (any source, any tag, success): found where we expect it? */
static bool request_layout_is_known(void)
{
    const char *request = (const char *)MPI_REQUEST_NULL;
    int source, tag, error;
    memcpy(&source, request + REQUEST_SOURCE, sizeof source);
    memcpy(&tag, request + REQUEST_TAG, sizeof tag);
    memcpy(&error, request + REQUEST_ERROR, sizeof error);
    return source == MPI_ANY_SOURCE && tag == MPI_ANY_TAG && error == MPI_SUCCESS;
}

/* A private communicator is revoked: do the two flags change where we expect them? */
static bool comm_layout_is_known(void)
{
    MPI_Comm trial = MPI_COMM_NULL;
    if (MPI_Comm_dup(MPI_COMM_SELF, &trial) != MPI_SUCCESS) {
        return false;
    }
    void *comm = (void *)trial;
    bool before = *comm_byte(comm, COMM_REVOKED) == 0 &&
                  *comm_byte(comm, COMM_COLLECTIVES_REVOKED) == 0 &&
                  *(void **)((char *)comm + COMM_COLLECTIVES) != NULL;
    MPIX_Comm_revoke(trial);
    bool after = *comm_byte(comm, COMM_REVOKED) == 1 &&
                 *comm_byte(comm, COMM_COLLECTIVES_REVOKED) == 1;
    shim_park(MPI_Comm_c2f(trial));
    return before && after;
}

void workarounds_verify(void)
{
    if (!active()) {
        return;
    }
    unsigned int before = seen;
    if (!request_layout_is_known() || !comm_layout_is_known() ||
        !workarounds_guard_requests() || !workarounds_free_groups()) {
        state = SHIM_WORKAROUNDS_LAYOUT;
    } else if (seen == before) { /* the trial allocated a context id, so libmpi must have called */
        state = SHIM_WORKAROUNDS_UNREACHED;
    }
}

int workarounds_state(void)
{
    (void)active();
    return state;
}
