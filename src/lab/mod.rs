//! experiment runs, bench compares, doctor checks.

pub mod probe_mpi;
<<<<<<< HEAD
pub mod bench;
=======
pub mod experiment;
>>>>>>> report
