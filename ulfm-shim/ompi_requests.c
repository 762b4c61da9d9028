/* A third defect of Open MPI 5.0.11's ULFM, worked around: a collective that fails while one of
 * its transfers is under way frees the transfer's request and its own buffers, and returns. The
 * transfer goes on: what a living peer still sends is written into memory that belongs to others
 * by now. Seen as SIGSEGV in malloc of survivors whose peer is connected by TCP (a replacement
 * is), 0.5 MB after ompi_coll_base_allreduce_intra_redscat_allgather() had freed its buffer.
 *
 * Cure: the functions that start the transfers of collectives are wrapped, so that freeing such a
 * request before it is complete cancels it, and waits where it cannot be cancelled: a living peer
 * completes it, a dead one fails it.
 *
 * Another defect (the fifth): a blocking send whose peer dies meanwhile ends with an error, and its
 * request serves the next send. It is still booked, though: in the list of sends that wait for
 * room, and as the owner of fragments that wait for the peer's socket. Seen as SIGSEGV of the
 * survivor in the shrink that follows (mca_btl_tcp_prepare_src() jumps to 0), where the dead peer
 * was connected by TCP and died within a reduction.
 *
 * Cure: a blocking send is a non-blocking one that is waited for. Where it fails, its request is
 * never used again (a few hundred bytes a death, and what it refers to), and no more fragments of
 * it are scheduled. One that has not even begun, for want of room in shared memory, stays booked.
 */
#define _GNU_SOURCE
#include "workarounds.h"
#include "ulfm_shim.h"

#include <dlfcn.h>
#include <mpi.h>
#include <mpi-ext.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

/* Byte offsets in ompi_request_t of 5.0.11, x86-64, no debug build. */
enum {
    REQUEST_ERROR = 0x48,
    REQUEST_COMPLETE = 0x58,
    REQUEST_FREE = 0x78,
    REQUEST_CANCEL = 0x80
};
/* Members of mca_pml, each a pointer. */
enum { PML_REVOKE_COMM = 6, PML_IRECV = 8, PML_ISEND = 11, PML_SEND = 12 };

/* A peer that completes nothing for so long is hung: then better a late write than a second one. */
static const double WAIT_SECONDS_MAX = 10.0;

typedef int (*free_function)(void **request);
typedef int (*cancel_function)(void *request, int flag);
typedef int (*irecv_function)(void *buffer, size_t count, void *datatype, int from, int tag,
                              void *comm, void **request);
typedef int (*isend_function)(const void *buffer, size_t count, void *datatype, int to, int tag,
                              int mode, void *comm, void **request);
typedef int (*schedule_function)(void *request);

/* libmpi's own; weak so that the program links against other MPIs too. */
extern void *mca_pml[] __attribute__((weak));
extern void mca_pml_ob1_revoke_comm(void) __attribute__((weak));
extern int mca_pml_ob1_send(const void *buffer, size_t count, void *datatype, int to, int tag,
                            int mode, void *comm) __attribute__((weak));
extern bool ompi_request_is_failed_fn(void *request) __attribute__((weak));
extern int ompi_request_default_wait(void **request, void *status) __attribute__((weak));
/* Ours, as libmpi sees it. */
int mca_pml_ob1_send_request_schedule_once(void *request);

static irecv_function own_irecv;
static isend_function own_isend;
static free_function own_free_receive, own_free_send;
static void (*progress)(void);

static void **member(void *request, int offset)
{
    return (void **)((char *)request + offset);
}

static bool is_complete(void *request)
{
    return *(void *volatile *)member(request, REQUEST_COMPLETE) == (void *)1;
}

/* Until nothing touches the request's buffer any more. */
static void settle(void *request)
{
    if (is_complete(request)) {
        return;
    }
    (*(cancel_function *)member(request, REQUEST_CANCEL))(request, 1);
    double start = monotonic_seconds();
    while (!is_complete(request) && monotonic_seconds() - start < WAIT_SECONDS_MAX) {
        progress();
        /* Completes it where its peer has died meanwhile. */
        (void)ompi_request_is_failed_fn(request);
    }
}

static int free_receive(void **request)
{
    settle(*request);
    return own_free_receive(request);
}

static int free_send(void **request)
{
    settle(*request);
    return own_free_send(request);
}

/* Requests are recycled with the function they had: set for every use. Tags of collectives are
 * negative; other transfers are the shim's, which knows what becomes of their buffers. */
static void set_free(void *request, int tag, free_function *own, free_function guarded)
{
    free_function *now = (free_function *)member(request, REQUEST_FREE);
    if (*now != guarded) {
        *own = *now;
    }
    *now = tag < 0 ? guarded : *own;
}

static int guarded_irecv(void *buffer, size_t count, void *datatype, int from, int tag, void *comm,
                         void **request)
{
    int code = own_irecv(buffer, count, datatype, from, tag, comm, request);
    if (code == MPI_SUCCESS && *request != (void *)MPI_REQUEST_NULL) {
        set_free(*request, tag, &own_free_receive, free_receive);
    }
    return code;
}

static int guarded_isend(const void *buffer, size_t count, void *datatype, int to, int tag,
                         int mode, void *comm, void **request)
{
    int code = own_isend(buffer, count, datatype, to, tag, mode, comm, request);
    /* A short message is on its way at once: then the request is a shared one, complete. */
    if (code == MPI_SUCCESS && *request != (void *)MPI_REQUEST_NULL && !is_complete(*request)) {
        set_free(*request, tag, &own_free_send, free_send);
    }
    return code;
}

/* Frees the request where the send succeeds, and leaves it alone where it fails. */
static int guarded_send(const void *buffer, size_t count, void *datatype, int to, int tag, int mode,
                        void *comm)
{
    void *request = (void *)MPI_REQUEST_NULL;
    int code = own_isend(buffer, count, datatype, to, tag, mode, comm, &request);
    return code == MPI_SUCCESS ? ompi_request_default_wait(&request, NULL) : code;
}

/* libmpi asks for the next fragments of a send. One that has failed has none: so it leaves the list
 * of those that wait. */
int mca_pml_ob1_send_request_schedule_once(void *request)
{
    static schedule_function own;
    if (own == NULL) {
        *(void **)&own = dlsym(RTLD_NEXT, "mca_pml_ob1_send_request_schedule_once");
    }
    if (own == NULL) {
        fprintf(stderr, "kintsugi: libmpi calls a schedule_once that it does not show\n");
        abort();
    }
    /* The layout is known where sends are wrapped. */
    bool failed = own_isend != NULL && is_complete(request) &&
                  *(int *)member(request, REQUEST_ERROR) != MPI_SUCCESS;
    return failed ? MPI_SUCCESS : own(request);
}

/* A receive that nobody answers: pending, then cancelled, by libmpi's functions? */
static bool layout_is_known(void)
{
    char nothing;
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Irecv(&nothing, 1, MPI_BYTE, 0, 0, MPI_COMM_SELF, &request) != MPI_SUCCESS) {
        return false;
    }
    void *object = (void *)request;
    Dl_info of_free, of_cancel, of_libmpi;
    bool known = *member(object, REQUEST_COMPLETE) == NULL &&
                 dladdr(*member(object, REQUEST_FREE), &of_free) != 0 &&
                 dladdr(*member(object, REQUEST_CANCEL), &of_cancel) != 0 &&
                 dladdr((void *)&ompi_request_is_failed_fn, &of_libmpi) != 0 &&
                 of_free.dli_fbase == of_libmpi.dli_fbase &&
                 of_cancel.dli_fbase == of_libmpi.dli_fbase;
    MPI_Cancel(&request);
    known = known && is_complete(object);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    return known;
}

bool workarounds_guard_requests(void)
{
    *(void **)&progress = dlsym(RTLD_DEFAULT, "opal_progress");
    if (mca_pml == NULL || mca_pml_ob1_revoke_comm == NULL || ompi_request_is_failed_fn == NULL ||
        mca_pml_ob1_send == NULL || ompi_request_default_wait == NULL || progress == NULL ||
        mca_pml[PML_REVOKE_COMM] != (void *)&mca_pml_ob1_revoke_comm || !layout_is_known()) {
        return false;
    }
    if (own_irecv == NULL) {
        if (mca_pml[PML_SEND] != (void *)&mca_pml_ob1_send) {
            return false;
        }
        *(void **)&own_irecv = mca_pml[PML_IRECV];
        *(void **)&own_isend = mca_pml[PML_ISEND];
        mca_pml[PML_IRECV] = (void *)&guarded_irecv;
        mca_pml[PML_ISEND] = (void *)&guarded_isend;
        mca_pml[PML_SEND] = (void *)&guarded_send;
    }
    return true;
}
