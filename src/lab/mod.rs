//! experiment runs, bench compares, doctor checks.

pub mod probe_mpi;
pub mod bench;
