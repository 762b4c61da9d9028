//! MPI with ULFM over the shim.
