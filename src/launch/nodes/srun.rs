//! What srun must find, and must not find, in the environment of whoever starts daemons with it.

/// What srun reads that would break the steps in which mpirun and launch start daemons: found in
/// jobs' environments, and meant for other steps.
pub const SRUN_UNSET: [&str; 2] = ["SLURM_NO_KILL", "SLURM_MPI_TYPE"];

/// What srun needs to start daemons beside the steps that are there, with our environment.
pub const SRUN_SET: [(&str, &str); 2] = [("SLURM_OVERLAP", "1"), ("SLURM_EXPORT_ENV", "ALL")];
