//! What the run's promises cost a step: reproducible sums (`train.reproducible`) and comparisons of
//! all replicas (`recovery.integrity_every`), each against the same run with neither. Worlds
//! under `launch` that take turns; every turn gives one ratio.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::runs::{Runs, launch, of_runs};
use super::turns::{Contender, Paired, Turns, of_all_turns, take_turns};
use super::{Case, Report, machine};

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The configuration to run.
    pub config: PathBuf,
    /// Ranks.
    pub ranks: u32,
    /// Turns of each world.
    pub turns: u32,
    /// Whole steps of a turn: a multiple of ten, so that comparisons fall into each alike.
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
    fn keys(&self) -> Vec<String> {
        let every = if self.compares { format!("{COMPARE_EVERY}steps") } else { "off".into() };
        vec![
            format!("train.reproducible={}", self.reproducible),
            format!("recovery.integrity_every={every}"),
        ]
    }
}

/// Lets all arms take turns, the order reversed from one turn to the next.
///
/// # Errors
/// What kept it from running, for a person.
pub fn run(options: &Options, command: String) -> Result<Report, String> {
    of_runs(|runs| measure(options, command, runs))
}

fn measure(options: &Options, command: String, runs: &Runs) -> Result<Report, String> {
    if !options.steps.is_multiple_of(COMPARE_EVERY) {
        return Err(format!("--steps {}: give a multiple of {COMPARE_EVERY}", options.steps));
    }
    let contender = |arm: &Arm| {
        let run_dir = runs.directory(arm.name);
        let mut command = launch(&options.config, options.ranks, &run_dir)?;
        command.args(arm.keys().iter().flat_map(|key| ["-s", key]));
        Ok(Contender { name: arm.name, command, run_dir })
    };
    let contenders = ARMS.iter().map(contender).collect::<Result<Vec<_>, String>>()?;
    let turns = Turns { count: options.turns, steps: options.steps };
    let times = take_turns(runs, contenders, turns)?;
    let none = BTreeMap::new();
    let case = |(arm, ms): (&Arm, &Vec<f64>)| Case::of(arm.name, ms, &none);
    let mut cases: Vec<Case> = ARMS.iter().zip(&times).map(case).collect();
    let mut ratios = BTreeMap::new();
    for (arm, ms) in ARMS.iter().zip(&times).skip(1) {
        let paired = Paired::of(arm.name, ms, ARMS[0].name, &times[0]);
        cases.push(paired.difference);
        if arm.compares {
            // The cost lies in the comparisons, of which there are fewer by default.
            let share = COMPARE_EVERY as f64 / COMPARE_EVERY_DEFAULT as f64;
            let median = paired.ratios["integrity_10steps/plain"];
            let default = 1.0 + (median - 1.0) * share;
            ratios.insert("integrity_100steps/plain (computed)".into(), default);
        }
        ratios.extend(paired.ratios);
        ratios.extend([of_all_turns(arm.name, ms, ARMS[0].name, &times[0])]);
    }
    Ok(Report {
        bench: "sums".into(),
        command,
        machine: machine(),
        cases,
        ratios,
        bounds: Vec::new(),
    })
}
