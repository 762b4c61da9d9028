/* Work-arounds for Open MPI 5.0.11. */
#include <mpi.h>
