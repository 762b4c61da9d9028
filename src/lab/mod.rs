//! experiment runs, bench compares, doctor checks.

<<<<<<< HEAD
pub mod bench;
pub mod experiment;
=======
pub mod doctor;
>>>>>>> mpi
pub mod probe_mpi;
