//! `kintsugi status RUN`: where a run stands, from its world, its events and its result.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use facts::{inspect, lines};

use super::arguments::{fail_of, print_json};
use crate::observe::console::print_text;
use crate::observe::event::Event;
use crate::observe::result::RunResult;

mod facts;
mod live;
mod reading;

/// Shows where a run stands.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run directory.
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// One JSON object instead of lines.
    #[arg(long)]
    pub json: bool,
    /// Shows it once a second until the run ends: a view on a terminal, lines elsewhere.
    #[arg(long, visible_alias = "watch", conflicts_with = "json")]
    pub live: bool,
}

/// How a run stands, in a word or two: running, silent, or the status of its result.
///
/// # Errors
/// It cannot be told now.
pub(super) fn state(
    folder: &Path,
    events: &[Event],
    result: Option<&RunResult>,
) -> io::Result<String> {
    facts::state(folder, events, result)
}

/// How often a run came back, and what that cost.
///
/// # Errors
/// It cannot be told now.
pub(super) fn repaired(folder: &Path) -> io::Result<String> {
    Ok(inspect(folder)?.repaired())
}

/// Prints it. Exit 0 when there is a run to speak of, 2 when there is none, else 1.
pub fn run(args: &Args) -> ExitCode {
    if args.live {
        return live::run(&args.run);
    }
    match inspect(&args.run) {
        Ok(report) if args.json => print_json(&report),
        Ok(report) => print_text(&lines(&report)),
        Err(error) => return fail_of(&error),
    }
    ExitCode::SUCCESS
}
