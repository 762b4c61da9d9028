//! report draws, experiment runs, bench compares, doctor checks, chaos kills.

pub mod bench;
pub mod caches;
pub mod chaos;
pub mod crowd;
pub mod doctor;
pub mod experiment;
pub mod fleet;
pub mod keys;
pub mod memory;
pub mod memory_plan;
pub mod probe_mpi;
pub mod report;
pub mod resident;
pub mod runs;
pub mod simulate;
pub mod storage;
pub mod trained;
pub mod unified_memory;
