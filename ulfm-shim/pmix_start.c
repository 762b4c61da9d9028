/* How far this process's start with its launcher is.
 *
 * A defect of PMIx 5.0 (Open MPI 5.0.11's and PRRTE 3.0's): when several processes die at once, the
 * server may close the socket of one of them before it has read that it is closed, without taking it
 * from its event loop. The loop's book-keeping then still has that descriptor, and when a new process's
 * connection gets the same number, the loop never looks at it: the request of PMIx_Init stays unread.
 *
 * It answers for libpmix's function of the same name, found in the program (-rdynamic), and only
 * looks; guard/forgotten.rs decides. */
#include <stdatomic.h>

#include "ulfm_shim.h"
#include "workarounds.h"

static atomic_int stage = SHIM_LAUNCHER_NOT_ASKED;

/* pmix_proc_t *, pmix_info_t *, size_t; returns a pmix_status_t. */
int PMIx_Init(void *process, void *infos, size_t infos_count);

int PMIx_Init(void *process, void *infos, size_t infos_count)
{
    int (*init)(void *, void *, size_t);
    *(void **)&init = pmix_own("PMIx_Init");
    int first = SHIM_LAUNCHER_NOT_ASKED;
    atomic_compare_exchange_strong(&stage, &first, SHIM_LAUNCHER_ASKED);
    int status = init(process, infos, infos_count);
    atomic_store(&stage, SHIM_LAUNCHER_ANSWERED);
    return status;
}

int32_t shim_launcher(void)
{
    return atomic_load(&stage);
}
