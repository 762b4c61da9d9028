//! How long a checkpoint holds the training loop, beside how long it takes in all: written behind
//! the loop of a real run, and read back from its events.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::observe::console::say;
use crate::observe::event::{Event, Kind};

use super::runs::Runs;
use super::{Case, Report, median};

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The configuration to run
    #[arg(long, default_value = "configs/bench/95mb.toml", value_parser = super::configuration)]
    pub config: PathBuf,
    /// Ranks
    #[arg(short, long, default_value_t = 4, value_parser = crate::lab::crowd::ranks)]
    pub ranks: u32,
    /// Checkpoints
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
}

/// Steps between two checkpoints; one that is due while another is being written is skipped.
const STEPS_APART: u64 = 10;
/// Runs before it is given up: a slow disk skips checkpoints.
const RUNS_MAX: u32 = 5;

#[derive(Default)]
struct Measured {
    /// Time that the loop was held.
    stalls: Vec<f64>,
    phases: BTreeMap<String, Vec<f64>>,
    bytes: u64,
}

impl Measured {
    fn collect(&mut self, events: &[Event]) {
        for event in events {
            let Kind::Checkpoint {
                bytes,
                stall_seconds,
                snapshot_seconds,
                write_seconds,
                verify_seconds,
                ..
            } = &event.kind
            else {
                continue;
            };
            self.stalls.push(stall_seconds * 1e3);
            self.bytes = self.bytes.max(*bytes);
            for (name, seconds) in [
                ("snapshot", snapshot_seconds),
                ("write", write_seconds),
                ("verify", verify_seconds),
            ] {
                self.phases.entry(name.into()).or_default().push(seconds * 1e3);
            }
        }
    }
}

/// Runs until enough checkpoints were written.
///
/// # Errors
/// What kept it from running, for a person.
pub fn run(options: &Options, runs: &Runs) -> Result<Report, String> {
    let mut measured = Measured::default();
    for turn in 0..RUNS_MAX {
        let missing = u64::from(options.repeats).saturating_sub(measured.stalls.len() as u64);
        if missing == 0 {
            break;
        }
        let keys = [
            format!("train.steps={}", STEPS_APART * (missing + 1)),
            format!("checkpoint.every={STEPS_APART}steps"),
            "evaluation.every=never".into(),
        ];
        let run_dir = runs.directory(&format!("checkpoint-{turn}"));
        say!("{missing} checkpoints");
        measured.collect(&runs.launched(&options.config, options.ranks, &run_dir, &keys)?);
    }
    report(options, &measured)
}

fn report(options: &Options, measured: &Measured) -> Result<Report, String> {
    let Measured { stalls, phases, bytes } = measured;
    if stalls.len() < options.repeats as usize {
        let (got, wanted) = (stalls.len(), options.repeats);
        return Err(format!("{got} of {wanted} checkpoints were written in {RUNS_MAX} runs"));
    }
    let mut case = Case::of("loop_held", stalls, phases);
    case.state_bytes = Some(*bytes);
    let whole: f64 = phases.values().map(|part| median(part)).sum();
    let ratios = BTreeMap::from([("loop_held/whole_checkpoint".to_string(), case.median / whole)]);
    Ok(Report::of("checkpoint", vec![case], ratios))
}
