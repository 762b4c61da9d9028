//! What mpirun must be told so that its ranks survive a failure: launch writes these flags, and a
//! rank that was started without them names them.

/// The flags without which a failure is not survived, or not cleanly.
pub fn recovery_flags() -> Vec<String> {
    [
        // Containers and test machines run as root; mpirun refuses that without a word from us.
        &["--allow-run-as-root"][..],
        // A dead rank's slot is never freed: every replacement needs a fresh one.
        &["--oversubscribe"],
        // Replacements outnumber what can be bound.
        &["--bind-to", "none"],
        // Failure notices and agreement.
        &["--with-ft", "ulfm"],
        // Only components that are tested with failures.
        &["--mca", "btl", "self,sm,tcp"],
        &["--mca", "coll", "^han"],
        // A rank that dies is not a failure of the job.
        &["--prtemca", "state_base_recoverable", "1"],
        // No barrier with the dead in MPI_Finalize.
        &["--mca", "async_mpi_finalize", "1"],
    ]
    .concat()
    .into_iter()
    .map(str::to_owned)
    .collect()
}
