/* The ULFM shim: see ulfm_shim.h for what each function promises. */
#define _GNU_SOURCE
#include "ulfm_shim.h"
#include "workarounds.h"

#include <mpi.h>
#include <mpi-ext.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if !defined(OMPI_HAVE_MPI_EXT_FTMPI) || !OMPI_HAVE_MPI_EXT_FTMPI
#error "this MPI has no ULFM: run cluster-scripts/setup.sh, or set MPICC to an Open MPI >= 5 with it"
#endif

enum { SHRINK_TRIES_MAX = 10 };

/* A wait looks without pause for SPIN_SECONDS, then sleeps between looks; longer once the wait is
 * clearly idle (a spare's). Measured: 1 ms costs 1 % of a core, 5 ms 0.2 %. */
static const double SPIN_SECONDS = 0.1;
static const double IDLE_SECONDS = 10.0;
enum { SLEEP_NS = 1000000, IDLE_SLEEP_NS = 5000000 };
/* Of a wait for somebody who needs the cores more. */
enum { GENTLE_SLEEP_NS = 100000 };

static int class_of(int code)
{
    int class = MPI_SUCCESS;
    if (code != MPI_SUCCESS) {
        MPI_Error_class(code, &class);
    }
    return class;
}

/* Hands a new communicator out, with MPI_ERRORS_RETURN. */
static int made(int code, MPI_Comm comm, shim_comm *handle)
{
    *handle = MPI_Comm_c2f(MPI_COMM_NULL);
    if (code == MPI_SUCCESS && comm != MPI_COMM_NULL) {
        code = MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
        *handle = MPI_Comm_c2f(comm);
    }
    return class_of(code);
}

/* ---- the library ---- */

int32_t shim_class_number(int32_t which)
{
    switch (which) {
    case SHIM_PROC_FAILED: return MPIX_ERR_PROC_FAILED;
    case SHIM_PROC_FAILED_PENDING: return MPIX_ERR_PROC_FAILED_PENDING;
    case SHIM_REVOKED: return MPIX_ERR_REVOKED;
    default: return MPI_ERR_UNKNOWN;
    }
}

/* 1 when mpirun was started with --with-ft ulfm (the control variable mpi_ft_enable), else 0. */
static int32_t fault_tolerance_enabled(int32_t *enabled)
{
    *enabled = 0;
    int provided = 0;
    int code = MPI_T_init_thread(MPI_THREAD_SINGLE, &provided);
    if (code != MPI_SUCCESS) {
        return class_of(code);
    }
    int index = 0;
    MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
    int count = 0;
    code = MPI_T_cvar_get_index("mpi_ft_enable", &index);
    if (code == MPI_SUCCESS) {
        code = MPI_T_cvar_handle_alloc(index, NULL, &handle, &count);
    }
    if (code == MPI_SUCCESS && count == 1) {
        /* Open MPI stores a bool; every representation of false is all zero bytes. */
        unsigned char value[16] = {0};
        code = MPI_T_cvar_read(handle, value);
        for (size_t i = 0; i < sizeof value; i++) {
            *enabled |= value[i] != 0;
        }
        MPI_T_cvar_handle_free(&handle);
    }
    MPI_T_finalize();
    /* An MPI that does not know the variable has no switch to be off. */
    return code == MPI_SUCCESS ? MPI_SUCCESS : MPI_ERR_UNSUPPORTED_OPERATION;
}

int32_t shim_start(void)
{
    int code = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS) {
        code = MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    }
    int32_t enabled = 0;
    if (code == MPI_SUCCESS && fault_tolerance_enabled(&enabled) == MPI_SUCCESS && enabled) {
        workarounds_verify();
    }
    return class_of(code);
}

shim_comm shim_world(void)
{
    return MPI_Comm_c2f(MPI_COMM_WORLD);
}

int32_t shim_library_version(char *text, int32_t size)
{
    char whole[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    int code = MPI_Get_library_version(whole, &length);
    snprintf(text, (size_t)size, "%s", code == MPI_SUCCESS ? whole : "");
    return class_of(code);
}

int32_t shim_error_text(int32_t error_class, char *text, int32_t size)
{
    char whole[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    int code = MPI_Error_string(error_class, whole, &length);
    snprintf(text, (size_t)size, "%s", code == MPI_SUCCESS ? whole : "unknown error class");
    return class_of(code);
}

int32_t shim_workarounds(void)
{
    return workarounds_state();
}

/* ---- communicators ---- */

int32_t shim_finalize(void)
{
    /* A dynamic communicator left behind makes MPI_Finalize wait for its (dead) peers. */
    parked_free();
    return class_of(MPI_Finalize());
}

int32_t shim_rank(shim_comm comm, int32_t *rank)
{
    int value = 0;
    int code = MPI_Comm_rank(MPI_Comm_f2c(comm), &value);
    *rank = value;
    return class_of(code);
}

int32_t shim_size(shim_comm comm, int32_t *size)
{
    int value = 0;
    int code = MPI_Comm_size(MPI_Comm_f2c(comm), &value);
    *size = value;
    return class_of(code);
}

int32_t shim_duplicate(shim_comm comm, shim_comm *handle)
{
    MPI_Comm copy = MPI_COMM_NULL;
    int code = MPI_Comm_dup(MPI_Comm_f2c(comm), &copy);
    return made(code, copy, handle);
}

int32_t shim_split(shim_comm comm, int32_t color, int32_t key, shim_comm *handle)
{
    MPI_Comm part = MPI_COMM_NULL;
    int code = MPI_Comm_split(MPI_Comm_f2c(comm), color < 0 ? MPI_UNDEFINED : color, key, &part);
    return made(code, part, handle);
}

/* ---- data ---- */

int32_t shim_all_reduce(const void *send, void *recv, int32_t count, shim_type type, shim_op op,
                        shim_comm comm)
{
    return class_of(MPI_Allreduce(send, recv, count, MPI_Type_f2c(type), MPI_Op_f2c(op),
                                  MPI_Comm_f2c(comm)));
}

int32_t shim_all_gather(const void *send, void *recv, int32_t count, shim_type type,
                        shim_comm comm)
{
    MPI_Datatype handle = MPI_Type_f2c(type);
    return class_of(MPI_Allgather(send, count, handle, recv, count, handle, MPI_Comm_f2c(comm)));
}

int32_t shim_broadcast(void *data, int32_t count, shim_type type, int32_t root, shim_comm comm)
{
    return class_of(MPI_Bcast(data, count, MPI_Type_f2c(type), root, MPI_Comm_f2c(comm)));
}

int32_t shim_barrier(shim_comm comm)
{
    return class_of(MPI_Barrier(MPI_Comm_f2c(comm)));
}

int32_t shim_send(const void *data, int32_t bytes, int32_t to, int32_t tag, shim_comm comm)
{
    return class_of(MPI_Send(data, bytes, MPI_BYTE, to, tag, MPI_Comm_f2c(comm)));
}

/* Looks until the request completes or `seconds` (negative: no limit) are over; without pause for
 * `spin_seconds`. */
static int await(MPI_Request *request, double seconds, double spin_seconds, long sleep_ns)
{
    double start = monotonic_seconds();
    for (;;) {
        int done = 0;
        int code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS || done) {
            return class_of(code);
        }
        double waited = monotonic_seconds() - start;
        if (seconds >= 0 && waited > seconds) {
            return SHIM_TIMED_OUT;
        }
        if (waited >= spin_seconds) {
            long pause_ns = waited > IDLE_SECONDS ? IDLE_SLEEP_NS : sleep_ns;
            nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
        }
    }
}

int32_t shim_recv(void *data, int32_t bytes, int32_t from, int32_t tag, shim_comm comm)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Irecv(data, bytes, MPI_BYTE, from, tag, MPI_Comm_f2c(comm), &request);
    return code == MPI_SUCCESS ? await(&request, -1.0, SPIN_SECONDS, SLEEP_NS) : class_of(code);
}

int32_t shim_recv_gently(void *data, int32_t bytes, int32_t from, int32_t tag, shim_comm comm)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Irecv(data, bytes, MPI_BYTE, from, tag, MPI_Comm_f2c(comm), &request);
    return code == MPI_SUCCESS ? await(&request, -1.0, 0.0, GENTLE_SLEEP_NS) : class_of(code);
}

int32_t shim_recv_within(void *data, int32_t bytes, int32_t from, int32_t tag, shim_comm comm,
                         double seconds)
{
    /* A scratch of its own: a cancelled receive may still be matched, so on a time-out the memory
     * must outlive this call (it is left behind, a few bytes per given-up process). */
    void *scratch = malloc((size_t)bytes);
    if (scratch == NULL) {
        return SHIM_NO_ROOM;
    }
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Irecv(scratch, bytes, MPI_BYTE, from, tag, MPI_Comm_f2c(comm), &request);
    int class = code == MPI_SUCCESS ? await(&request, seconds, SPIN_SECONDS, SLEEP_NS) : class_of(code);
    if (class == SHIM_TIMED_OUT) {
        MPI_Cancel(&request);
        MPI_Request_free(&request);
        return class;
    }
    if (class == MPI_SUCCESS) {
        memcpy(data, scratch, (size_t)bytes);
    }
    free(scratch);
    return class;
}

int32_t shim_touch(int32_t to, int32_t from, int32_t tag, shim_comm comm)
{
    char out = 0, in = 0;
    return class_of(MPI_Sendrecv(&out, 1, MPI_CHAR, to, tag, &in, 1, MPI_CHAR, from, tag,
                                 MPI_Comm_f2c(comm), MPI_STATUS_IGNORE));
}

/* ---- waiting without a core ---- */

int32_t shim_progress(void)
{
    int found = 0;
    /* On a communicator that nobody can revoke and no death can touch. */
    return class_of(MPI_Iprobe(0, 0, MPI_COMM_SELF, &found, MPI_STATUS_IGNORE));
}

int32_t shim_notify(int32_t to, int32_t tag, shim_comm comm)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Isend(NULL, 0, MPI_BYTE, to, tag, MPI_Comm_f2c(comm), &request);
    if (code == MPI_SUCCESS) {
        /* Nobody waits for it: the receiver may die, and there is no buffer to keep. */
        code = MPI_Request_free(&request);
    }
    return class_of(code);
}

int32_t shim_noticed(int32_t from, int32_t tag, shim_comm comm, int32_t *noticed)
{
    int found = 0;
    MPI_Comm handle = MPI_Comm_f2c(comm);
    int code = MPI_Iprobe(from, tag, handle, &found, MPI_STATUS_IGNORE);
    if (code == MPI_SUCCESS && found) {
        code = MPI_Recv(NULL, 0, MPI_BYTE, from, tag, handle, MPI_STATUS_IGNORE);
    }
    *noticed = code == MPI_SUCCESS && found;
    return class_of(code);
}

/* ---- fault tolerance ---- */

int32_t shim_agree(shim_comm comm, int32_t *flags)
{
    int value = *flags;
    int code = MPIX_Comm_agree(MPI_Comm_f2c(comm), &value);
    *flags = value;
    return class_of(code);
}

int32_t shim_revoke(shim_comm comm)
{
    return class_of(MPIX_Comm_revoke(MPI_Comm_f2c(comm)));
}

int32_t shim_is_revoked(shim_comm comm, int32_t *revoked)
{
    int value = 0;
    int code = MPIX_Comm_is_revoked(MPI_Comm_f2c(comm), &value);
    *revoked = value;
    return class_of(code);
}

int32_t shim_shrink(shim_comm comm, shim_comm *handle)
{
    MPI_Comm old = MPI_Comm_f2c(comm);
    *handle = MPI_Comm_c2f(MPI_COMM_NULL);
    for (int i = 0; i < SHRINK_TRIES_MAX; i++) {
        MPI_Comm survivors = MPI_COMM_NULL;
        int code = MPIX_Comm_shrink(old, &survivors);
        int all_have_it = code == MPI_SUCCESS;
        /* Its own code only says that somebody is dead, which is why we are here. */
        MPIX_Comm_agree(old, &all_have_it);
        if (all_have_it) {
            return made(code, survivors, handle);
        }
        if (code == MPI_SUCCESS && survivors != MPI_COMM_NULL) {
            shim_park(MPI_Comm_c2f(survivors));
        }
    }
    return MPIX_ERR_PROC_FAILED;
}

int32_t shim_failed_ranks(shim_comm comm, int32_t *ranks, int32_t capacity, int32_t *known)
{
    MPI_Comm handle = MPI_Comm_f2c(comm);
    MPI_Group all = MPI_GROUP_NULL, failed = MPI_GROUP_NULL;
    int count = 0;
    int code = MPI_Comm_group(handle, &all);
    if (code == MPI_SUCCESS) {
        code = MPIX_Comm_get_failed(handle, &failed);
    }
    if (code == MPI_SUCCESS) {
        code = MPI_Group_size(failed, &count);
    }
    for (int i = 0; code == MPI_SUCCESS && i < count && i < capacity; i++) {
        int rank = MPI_UNDEFINED;
        code = MPI_Group_translate_ranks(failed, 1, &i, all, &rank);
        ranks[i] = rank;
    }
    if (failed != MPI_GROUP_NULL && failed != MPI_GROUP_EMPTY) {
        MPI_Group_free(&failed);
    }
    if (all != MPI_GROUP_NULL) {
        MPI_Group_free(&all);
    }
    *known = count;
    return class_of(code);
}

/* ---- new processes ---- */

int32_t shim_spawn(const char *program, const char *const *arguments, int32_t count,
                   const char *host, shim_comm *handle)
{
    *handle = MPI_Comm_c2f(MPI_COMM_NULL);
    int *codes = calloc((size_t)count, sizeof *codes);
    if (codes == NULL) {
        return SHIM_NO_ROOM;
    }
    MPI_Info info = MPI_INFO_NULL;
    if (host != NULL) {
        MPI_Info_create(&info);
        MPI_Info_set(info, "host", host);
    }
    MPI_Comm inter = MPI_COMM_NULL;
    /* MPI-3 left the arguments without const; MPI does not write them. */
    int code = MPI_Comm_spawn(program, (char **)(uintptr_t)arguments, count, info, 0,
                              MPI_COMM_SELF, &inter, codes);
    if (info != MPI_INFO_NULL) {
        MPI_Info_free(&info);
    }
    free(codes);
    return made(code, inter, handle);
}

int32_t shim_parent(shim_comm *handle)
{
    MPI_Comm parent = MPI_COMM_NULL;
    int code = MPI_Comm_get_parent(&parent);
    if (code == MPI_SUCCESS && parent == MPI_COMM_NULL) {
        *handle = MPI_Comm_c2f(MPI_COMM_NULL);
        return MPI_ERR_COMM;
    }
    return made(code, parent, handle);
}

int32_t shim_merge(shim_comm inter, int32_t high, shim_comm *handle)
{
    MPI_Comm merged = MPI_COMM_NULL;
    int code = MPI_Intercomm_merge(MPI_Comm_f2c(inter), high, &merged);
    return made(code, merged, handle);
}

int32_t shim_bridge(shim_comm local, int32_t local_leader, shim_comm bridge,
                    int32_t remote_leader, int32_t tag, shim_comm *handle)
{
    MPI_Comm inter = MPI_COMM_NULL;
    int code = MPI_Intercomm_create(MPI_Comm_f2c(local), local_leader, MPI_Comm_f2c(bridge),
                                    remote_leader, tag, &inter);
    return made(code, inter, handle);
}
