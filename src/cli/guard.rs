//! `kintsugi guard PID` (hidden): the guardian of one rank, see `cluster::guard`.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::cluster::guard::judge::Limits;
use crate::cluster::guard::watch::{Orders, watch};
use crate::config::{Limit, Span};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The rank, which is this process's parent.
    pid: u32,
    /// Longest time without progress in a step: a duration, "auto" or "off".
    #[arg(long)]
    step: Limit,
    /// Longest time from its start to its first step.
    #[arg(long)]
    start: Span,
    /// Longest time without a committed step.
    #[arg(long)]
    time: Span,
    /// Where to leave word of the rank's end.
    #[arg(long)]
    last_words: PathBuf,
    /// The rank's number, where it starts with its world
    #[arg(long)]
    rank: Option<u32>,
}

/// Watches until the rank has ended.
pub fn run(args: &Args) -> ExitCode {
    let limits = Limits { step: args.step, start: args.start.0, time: args.time.0 };
    let last_words = args.last_words.clone();
    match watch(&Orders { pid: args.pid, limits, last_words, rank: args.rank }) {
        Ok(()) => ExitCode::SUCCESS,
        // Nobody reads a guardian's words: its rank sees that it ended, and says so.
        Err(_) => ExitCode::FAILURE,
    }
}
