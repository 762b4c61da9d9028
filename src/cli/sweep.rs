//! `kintsugi sweep JOB` (hidden): the janitor of one attempt, see `launch::traces::janitor`.

use std::process::ExitCode;

use crate::launch::traces::janitor;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The job's name.
    job: String,
}

/// Waits for the end of stdin, then sweeps.
pub fn run(args: &Args) -> ExitCode {
    match janitor::work(&args.job, std::io::stdin().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}: {error}", args.job);
            ExitCode::FAILURE
        }
    }
}
