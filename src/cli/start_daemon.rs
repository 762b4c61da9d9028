//! `kintsugi start-daemon [OPTION]... NODE COMMAND...` (hidden): what prterun calls in ssh's place,
//! see `launch::attempt::runtime`.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::launch::attempt::runtime::{Daemon, RUNTIME_VARIABLE};
use crate::observe::console::say;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// As for ssh: options, the node, the command.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    words: Vec<String>,
}

/// Starts the daemon and stays until it ends.
pub fn run(args: &Args) -> ExitCode {
    let prefix = std::env::var_os(RUNTIME_VARIABLE).map(PathBuf::from);
    let (Some(daemon), Some(prefix)) = (Daemon::read(&args.words), prefix) else {
        say!("start-daemon: needs NODE COMMAND... and {RUNTIME_VARIABLE}: launch sets both");
        return ExitCode::from(2);
    };
    match daemon.start(&prefix) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            say!("start-daemon: {}: srun: {error}", daemon.node);
            ExitCode::FAILURE
        }
    }
}
