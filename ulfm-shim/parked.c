/* The communicators that are retired: kept until the end, then freed at once. */
#include "ulfm_shim.h"
#include "workarounds.h"

#include <mpi.h>
#include <stdlib.h>

static shim_comm *parked;
static size_t parked_count, parked_room;
static int freed;

int32_t shim_park(shim_comm comm)
{
    if (freed) {
        return MPI_SUCCESS; /* nothing is left to free */
    }
    MPI_Comm handle = MPI_Comm_f2c(comm);
    if (handle == MPI_COMM_NULL || handle == MPI_COMM_WORLD || handle == MPI_COMM_SELF) {
        return MPI_SUCCESS;
    }
    if (parked_count == parked_room) {
        size_t room = parked_room == 0 ? 64 : 2 * parked_room;
        shim_comm *larger = realloc(parked, room * sizeof *larger);
        if (larger == NULL) {
            return SHIM_NO_ROOM; /* never freed then: a leak of one handle, nothing worse */
        }
        parked = larger;
        parked_room = room;
    }
    parked[parked_count++] = comm;
    return MPI_SUCCESS;
}

void parked_free(void)
{
    for (size_t i = 0; i < parked_count; i++) {
        MPI_Comm comm = MPI_Comm_f2c(parked[i]);
        if (comm != MPI_COMM_NULL) {
            MPI_Comm_free(&comm);
        }
    }
    free(parked);
    parked = NULL;
    parked_count = parked_room = 0;
    freed = 1;
}
