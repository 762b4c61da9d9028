//! experiment runs, bench compares, doctor checks.

pub mod bench;
pub mod doctor;
pub mod experiment;
pub mod probe_mpi;
pub mod resident;
