//! `kintsugi completions SHELL`: what makes a shell complete this command line.

use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

use crate::observe::console::print_text;

/// Prints it: for bash into ~/.local/share/bash-completion/completions/kintsugi, for fish into
/// ~/.config/fish/completions/kintsugi.fish, for zsh as _kintsugi into a folder of $fpath.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// For which shell.
    pub shell: Shell,
}

/// `line`: the whole command line. Exit 0.
pub fn run(args: &Args, mut line: Command) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut line, "kintsugi", &mut text);
    print_text(&String::from_utf8_lossy(&text));
    ExitCode::SUCCESS
}
