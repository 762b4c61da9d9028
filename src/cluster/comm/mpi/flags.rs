//! What Open MPI must be told so that its ranks survive a failure: launch writes it all into
//! mpirun's line; of a plain mpirun's ranks each tells itself what a rank can, and names the rest.

/// What the ranks' library has to know, by its parameters.
pub const PARAMETERS: [(&str, &str); 3] = [
    // Only components that are tested with failures: han is not fault tolerant.
    ("btl", "self,sm,tcp"),
    ("coll", "^han"),
    // No barrier with the dead in MPI_Finalize.
    ("async_mpi_finalize", "1"),
];

/// The flags without which a failure is not survived, or not cleanly.
pub fn recovery_flags() -> Vec<String> {
    let parameters = PARAMETERS.iter().flat_map(|(name, value)| ["--mca", *name, *value]);
    launcher_flags().into_iter().chain(parameters.map(str::to_owned)).collect()
}

/// Those of them that only mpirun can be told.
pub fn launcher_flags() -> Vec<String> {
    [
        // Containers and test machines run as root; mpirun refuses that without a word from us.
        &["--allow-run-as-root"][..],
        // A dead rank's slot is never freed: every replacement needs a fresh one.
        &["--oversubscribe"],
        // Replacements outnumber what can be bound.
        &["--bind-to", "none"],
        // Failure notices and agreement.
        &["--with-ft", "ulfm"],
        // A rank that dies is not a failure of the job.
        &["--prtemca", "state_base_recoverable", "1"],
    ]
    .concat()
    .into_iter()
    .map(str::to_owned)
    .collect()
}
