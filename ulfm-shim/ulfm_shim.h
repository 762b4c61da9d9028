/* The ULFM shim: the MPI and MPIX calls whose return code matters, behind a fixed ABI.
 *
 * Why it exists: rsmpi drops return codes, and ULFM (MPI 5.0 draft, chapter "Process Fault
 * Tolerance"; Open MPI's MPIX_ functions) speaks through them alone. mpi.h's handles are pointers
 * in one MPI and integers in another; here they are always the 32-bit Fortran handles, which can
 * be held, copied and sent between threads in Rust. rsmpi starts MPI and names types and
 * operations; MPI_Comm_c2f and friends turn its handles into ours.
 *
 * Rules of the ABI:
 *   - every function returns an MPI error *class* (0 = MPI_SUCCESS), never a raw code;
 *   - every communicator made here has MPI_ERRORS_RETURN;
 *   - communicators are retired with shim_park and freed only in shim_finalize: ob1 addresses
 *     messages by the receiver's communicator index, and a stale message of a failed operation
 *     must not meet a re-used index;
 *   - one thread at a time calls (MPI_THREAD_SERIALIZED).
 */
#ifndef ULFM_SHIM_H
#define ULFM_SHIM_H

#include <stddef.h>
#include <stdint.h>

typedef int32_t shim_comm; /* MPI_Comm_c2f */
typedef int32_t shim_type; /* MPI_Type_c2f */
typedef int32_t shim_op;   /* MPI_Op_c2f */

/* Classes that start recovery, as this MPI numbers them. */
enum shim_class { SHIM_PROC_FAILED = 0, SHIM_PROC_FAILED_PENDING = 1, SHIM_REVOKED = 2 };
int32_t shim_class_number(int32_t which);

/* shim_recv_within: nothing came in time. Not an MPI class. */
#define SHIM_TIMED_OUT (-1)
/* shim_spawn, shim_failed_ranks: out of memory or room. Not an MPI class. */
#define SHIM_NO_ROOM (-2)

/* ---- the library ---- */

/* Right after MPI_Init: MPI_ERRORS_RETURN on WORLD and SELF, arms the work-arounds. */
int32_t shim_start(void);
/* WORLD's handle. */
shim_comm shim_world(void);
/* "Open MPI v5.0.11, ...", cut at size - 1 bytes; may be called before MPI_Init. */
int32_t shim_library_version(char *text, int32_t size);
/* MPI_Error_string of a class. */
int32_t shim_error_text(int32_t error_class, char *text, int32_t size);
/* Frees what was parked, then MPI_Finalize. Not fault tolerant: guard it with an alarm. */
int32_t shim_finalize(void);

/* Whether libmpi's own calls reach ompi_workarounds.c (see there). */
enum shim_workarounds {
    SHIM_WORKAROUNDS_NOT_NEEDED = 0,  /* another version than the one they were made for */
    SHIM_WORKAROUNDS_ACTIVE = 1,      /* libmpi was seen to call them, structures as expected */
    SHIM_WORKAROUNDS_UNREACHED = 2,   /* the version needs them but libmpi calls its own symbols */
    SHIM_WORKAROUNDS_LAYOUT = 3       /* structures differ from the known build: switched off */
};
int32_t shim_workarounds(void);

/* Whether the launcher's server has answered PMIx_Init, the first thing that MPI's start asks it. May be
 * called at any time, from any thread. NOT_ASKED for ever where libmpi does not reach pmix_start.c. */
enum shim_launcher {
    SHIM_LAUNCHER_NOT_ASKED = 0,
    SHIM_LAUNCHER_ASKED = 1,
    SHIM_LAUNCHER_ANSWERED = 2
};
int32_t shim_launcher(void);

/* ---- communicators ---- */

int32_t shim_rank(shim_comm comm, int32_t *rank);
int32_t shim_size(shim_comm comm, int32_t *size);
int32_t shim_duplicate(shim_comm comm, shim_comm *made);
/* MPI_Comm_split; a negative color stays outside and gets the null handle. */
int32_t shim_split(shim_comm comm, int32_t color, int32_t key, shim_comm *made);
/* Retires a communicator; WORLD, SELF and the null handle are left alone. */
int32_t shim_park(shim_comm comm);

/* ---- data; never in place, so a failed step can be repeated ---- */

int32_t shim_all_reduce(const void *send, void *recv, int32_t count, shim_type type, shim_op op,
                        shim_comm comm);
int32_t shim_all_gather(const void *send, void *recv, int32_t count, shim_type type,
                        shim_comm comm);
int32_t shim_broadcast(void *data, int32_t count, shim_type type, int32_t root, shim_comm comm);
int32_t shim_barrier(shim_comm comm);
/* From now on the deaths of these processes of this machine are news as soon as they begin to end:
 * `pids` by rank of `comm`, 0 for those elsewhere. Whom it watched before it forgets. How many. */
int32_t shim_watch(shim_comm comm, const int32_t *pids, int32_t count);
int32_t shim_send(const void *data, int32_t bytes, int32_t to, int32_t tag, shim_comm comm);
/* Blocks; after a while without a message it sleeps between looks (a waiting spare costs 1 % of a
 * core at most, a blocking MPI_Recv a whole one). */
int32_t shim_recv(void *data, int32_t bytes, int32_t from, int32_t tag, shim_comm comm);
/* The same for a short message from somebody who may need this core: sleeps between looks. */
int32_t shim_recv_gently(void *data, int32_t bytes, int32_t from, int32_t tag, shim_comm comm);
/* The same with a limit: SHIM_TIMED_OUT. */
int32_t shim_recv_within(void *data, int32_t bytes, int32_t from, int32_t tag, shim_comm comm,
                         double seconds);
/* One byte to `to`, one from `from`: opens the connections. */
int32_t shim_touch(int32_t to, int32_t from, int32_t tag, shim_comm comm);

/* ---- waiting without a core ---- */

/* From here to shim_keep_core a process that was interrupted for another one sleeps between its
 * looks, in whatever call of MPI it waits: for chains of short messages where processes outnumber
 * cores. */
void shim_share_core(void);
void shim_keep_core(void);
/* Lets MPI look at its connections once; never blocks, knows no failure. */
int32_t shim_progress(void);
/* Sends an empty message that nobody waits for. */
int32_t shim_notify(int32_t to, int32_t tag, shim_comm comm);
/* Whether such a message has come; takes it. Never blocks. */
int32_t shim_noticed(int32_t from, int32_t tag, shim_comm comm, int32_t *noticed);

/* ---- fault tolerance (ULFM: section of the same name) ---- */

/* MPIX_Comm_agree: bitwise AND of the flags of all who took part; uniform in flags and class, also
 * on a revoked communicator. PROC_FAILED while a failure is known. */
int32_t shim_agree(shim_comm comm, int32_t *flags);
/* MPIX_Comm_revoke: pending and later calls of all members end with REVOKED (agree and shrink
 * excepted). Local, reliable. Never on an intercommunicator made by spawn (it hangs). */
int32_t shim_revoke(shim_comm comm);
int32_t shim_is_revoked(shim_comm comm, int32_t *revoked);
/* MPIX_Comm_shrink: the survivors, in old order; works on a revoked communicator. It may succeed on
 * some and fail on others when somebody dies meanwhile, so they agree on it here, and try again up
 * to SHRINK_TRIES_MAX times: the answer is uniform. */
int32_t shim_shrink(shim_comm comm, shim_comm *made);
/* MPIX_Comm_get_failed: ranks of comm known here to be dead, in any order; `known` may exceed what
 * fits into capacity. Local knowledge only. */
int32_t shim_failed_ranks(shim_comm comm, int32_t *ranks, int32_t capacity, int32_t *known);

/* ---- new processes ---- */

/* MPI_Comm_spawn over MPI_COMM_SELF of `count` processes; arguments end with NULL. `host` (or
 * NULL: the runtime chooses) names where. On several daemons only a node with a live rank of this
 * job can take one. */
int32_t shim_spawn(const char *program, const char *const *arguments, int32_t count,
                   const char *host, shim_comm *inter);
/* The intercommunicator to the spawning leader; MPI_ERR_COMM when there is none. */
int32_t shim_parent(shim_comm *parent);
/* MPI_Intercomm_merge; high = 1 for those who take the higher ranks. */
int32_t shim_merge(shim_comm inter, int32_t high, shim_comm *made);
/* MPI_Intercomm_create between the groups of `local`, whose leaders meet in `bridge`; only the
 * local leader needs a bridge, others pass the handle of `local`. */
int32_t shim_bridge(shim_comm local, int32_t local_leader, shim_comm bridge, int32_t remote_leader,
                    int32_t tag, shim_comm *made);

#endif
