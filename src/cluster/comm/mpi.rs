//! `mpi` communicator.
