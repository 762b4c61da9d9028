//! `kintsugi daemon COMMAND...` (hidden): becomes a launcher's daemon on a node, with that node's
//! own folder for its files: what launch's environment says is the same for all nodes.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use crate::launch::folders;
use crate::observe::console::say;
use crate::run_folder::variables;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The daemon and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    words: Vec<String>,
}

/// Returns only where the command cannot be started.
pub fn run(args: &Args) -> ExitCode {
    let Some(temporary) = std::env::var_os(variables::TEMPORARY) else {
        say!("daemon: needs {}: launch sets it", variables::TEMPORARY);
        return ExitCode::from(2);
    };
    let [program, arguments @ ..] = args.words.as_slice() else { return ExitCode::from(2) };
    let own = folders::own(temporary.as_ref());
    let error = Command::new(program).args(arguments).env("TMPDIR", own).exec();
    say!("daemon: {program}: {error}");
    ExitCode::FAILURE
}
