/* The ULFM shim: MPI calls that must return their code, behind a fixed ABI. */
#include <mpi.h>
