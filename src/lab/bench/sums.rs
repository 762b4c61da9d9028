//! What the run's promises cost a step: reproducible sums (`train.reproducible`) and comparisons of
//! all replicas (`recovery.integrity_every`), each against the same run with neither. Whole runs
//! under `launch`, in turn; every turn gives one ratio.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::calm::{STEPS_MIN, interval, step_ms};
use super::runs::{Runs, of_runs};
use super::{Case, Report, machine, median};

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The configuration to run.
    pub config: PathBuf,
    /// Ranks.
    pub ranks: u32,
    /// Turns; each runs every arm once.
    pub turns: u32,
    /// Steps of each run.
    pub steps: u64,
}

/// Steps between two comparisons in the arm that has them: ten times as often as by default, so
/// that they show.
const COMPARE_EVERY: u64 = 10;
/// `recovery.integrity_every` by default.
const COMPARE_EVERY_DEFAULT: u64 = 100;

/// An arm and what makes it.
struct Arm {
    name: &'static str,
    reproducible: bool,
    compares: bool,
}

const ARMS: [Arm; 3] = [
    Arm { name: "plain", reproducible: false, compares: false },
    Arm { name: "reproducible", reproducible: true, compares: false },
    Arm { name: "integrity_10steps", reproducible: false, compares: true },
];

impl Arm {
    fn keys(&self, steps: u64) -> Vec<String> {
        let every = if self.compares { format!("{COMPARE_EVERY}steps") } else { "off".into() };
        vec![
            format!("train.steps={steps}"),
            format!("train.reproducible={}", self.reproducible),
            format!("recovery.integrity_every={every}"),
            "evaluation.every=never".into(),
            "checkpoint.every=never".into(),
        ]
    }
}

/// Runs all arms in turn, their order reversed from one turn to the next.
///
/// # Errors
/// What kept it from running, for a person.
pub fn run(options: &Options, command: String) -> Result<Report, String> {
    if options.steps < STEPS_MIN {
        return Err(format!("--steps must be {STEPS_MIN} or more"));
    }
    of_runs(|runs| measure(options, command, runs))
}

fn measure(options: &Options, command: String, runs: &Runs) -> Result<Report, String> {
    let mut times = [const { Vec::new() }; ARMS.len()];
    for turn in 0..options.turns {
        let mut order: Vec<usize> = (0..ARMS.len()).collect();
        if turn % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let arm = &ARMS[at];
            let run_dir = runs.directory(&format!("{}-{turn}", arm.name));
            let keys = arm.keys(options.steps);
            let events = runs.launched(&options.config, options.ranks, &run_dir, &keys)?;
            let step = step_ms(&events).ok_or(format!("{}: too few steps", arm.name))?;
            eprintln!("turn {} of {}: {}: {step:.3} ms", turn + 1, options.turns, arm.name);
            times[at].push(step);
        }
    }
    let none = BTreeMap::new();
    let cases = ARMS.iter().zip(&times).map(|(arm, ms)| Case::of(arm.name, ms, &none)).collect();
    let mut ratios = BTreeMap::new();
    for (arm, ms) in ARMS.iter().zip(&times).skip(1) {
        let mut pairs: Vec<f64> = ms.iter().zip(&times[0]).map(|(it, plain)| it / plain).collect();
        pairs.sort_by(f64::total_cmp);
        let (low, high) = interval(pairs.len());
        ratios.insert(format!("{}/plain", arm.name), median(&pairs));
        ratios.insert(format!("{}/plain low", arm.name), pairs[low]);
        ratios.insert(format!("{}/plain high", arm.name), pairs[high]);
        if arm.compares {
            // The cost lies in the comparisons, of which there are fewer by default.
            let share = COMPARE_EVERY as f64 / COMPARE_EVERY_DEFAULT as f64;
            let default = 1.0 + (median(&pairs) - 1.0) * share;
            ratios.insert("integrity_100steps/plain (computed)".into(), default);
        }
    }
    Ok(Report { bench: "sums".into(), command, machine: machine(), cases, ratios })
}
