//! experiment runs, bench compares, doctor checks.

pub mod doctor;
pub mod probe_mpi;
