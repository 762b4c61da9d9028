//! `kintsugi man [COMMAND...]`: manual pages, in roff.

use std::process::ExitCode;

use clap::Command;
use clap_mangen::Man;

use super::arguments::fail;
use crate::observe::console::print_text;
use crate::observe::machine::VERSION;

/// Prints a manual page: `kintsugi man launch | man -l -` shows it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Of which command, such as `launch` or `data synth`; unset: of all.
    pub command: Vec<String>,
}

/// `line`: the whole command line. Exit 0; 2 where there is no such command.
pub fn run(args: &Args, mut line: Command) -> ExitCode {
    line.build();
    for name in &args.command {
        let Some(found) = line.find_subcommand(name) else {
            return fail(2, format!("there is no command `{}`", args.command.join(" ")));
        };
        line = found.clone();
    }
    let mut text = Vec::new();
    let page = Man::new(line).source(format!("Kintsugi {VERSION}")).manual("Kintsugi");
    match page.render(&mut text) {
        Ok(()) => print_text(&String::from_utf8_lossy(&text)),
        Err(error) => return fail(1, error),
    }
    ExitCode::SUCCESS
}
