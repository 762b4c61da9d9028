//! What several commands read, print and end with alike.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::ArgAction;
use clap::builder::{BoolValueParser, TypedValueParser};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

pub(super) use crate::lab::crowd::crowd;
use crate::launch::nodes::step;
use crate::observe::console::{print_line, say};
use crate::train::checkpoint::weights::{self, WeightsError};
use crate::train::compute::committed::Which;

/// What a command prints its findings as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// Reads the flag `--json`.
pub(super) fn form() -> impl TypedValueParser<Value = Form> {
    BoolValueParser::new().map(|json| if json { Form::Json } else { Form::Table })
}

/// Whose weights a command looks with.
#[derive(Debug, clap::Args)]
pub struct Chosen {
    /// A run directory (its newest checkpoint that verifies) or one checkpoint
    pub checkpoint: PathBuf,
    /// Takes the run's best evaluation instead of its newest checkpoint (checkpoint.keep_best)
    #[arg(long)]
    best: bool,
    /// Looks with the running average of the weights (`optimizer.ema_decay`); --best takes it by
    /// itself where it was the better one
    #[arg(long, action = ArgAction::SetTrue, value_parser = which(), conflicts_with = "best")]
    average: Which,
}

impl Chosen {
    /// A checkpoint or a run, and which of its weights.
    pub(super) fn weights(&self) -> Result<(PathBuf, Which), WeightsError> {
        match self.best {
            true => weights::best_of(&self.checkpoint),
            false => Ok((self.checkpoint.clone(), self.average)),
        }
    }
}

/// Reads the flag `--average`.
fn which() -> impl TypedValueParser<Value = Which> {
    BoolValueParser::new().map(|average| match average {
        true => Which::Averaged,
        false => Which::Trained,
    })
}

/// Says why a command failed, and gives the code to end with.
pub(super) fn fail(code: u8, reason: impl Display) -> ExitCode {
    say!("error: {reason}");
    ExitCode::from(code)
}

/// How this process ends where it is one of several that srun started by mistake. The first says
/// why.
pub(super) fn refuse_copies() -> Option<ExitCode> {
    let reason = step::refusal()?;
    let first = std::env::var("SLURM_PROCID").is_ok_and(|number| number == "0");
    Some(if first { fail(2, reason) } else { ExitCode::from(2) })
}

/// The code of a run that cannot be looked at: 2 where there is none in its folder.
pub(super) fn fail_of(error: &io::Error) -> ExitCode {
    fail(if error.kind() == io::ErrorKind::NotFound { 2 } else { 1 }, error)
}

/// One JSON object on a line of its own.
pub(super) fn print_json(value: &impl serde::Serialize) {
    print_line!("{}", serde_json::to_string(value).expect("what is printed is plain data"));
}

/// A flag that is set once somebody asks to stop.
pub(super) fn asked_to_stop() -> Result<Arc<AtomicBool>, String> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let registered = signal_hook::flag::register(signal, Arc::clone(&stop));
        registered.map_err(|error| format!("cannot catch signals: {error}"))?;
    }
    Ok(stop)
}
