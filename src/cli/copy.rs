//! `kintsugi copy RUN` (hidden): a copy worker of one rank, see `data::staging::porter`.

use std::io::BufReader;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::data::staging::porter;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run, for whoever lists processes.
    run: PathBuf,
}

/// Copies what the rank says until it says no more.
pub fn run(_: &Args) -> ExitCode {
    let stream = std::io::stdin().as_fd().try_clone_to_owned();
    let served = stream.and_then(|socket| {
        let socket = std::os::unix::net::UnixStream::from(socket);
        porter::serve(&mut BufReader::new(&socket), &mut &socket)
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Stderr is the rank's log.
            tracing::warn!("a copy worker ends: {error}");
            ExitCode::FAILURE
        }
    }
}
