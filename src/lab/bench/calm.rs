//! What fault tolerance costs while nothing fails (promise 6): whole runs under `launch`, with
//! ULFM, guardians, resident state and comparisons of replicas, in pairs with the same program
//! under a plain mpirun that has none of them. The vote of every step is in both.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cluster::launch::mpirun::{TUNABLES_VARIABLE, tunables};
use crate::observe::event::{Event, Kind};
use crate::observe::log::read_events;

use super::runs::{Runs, launch, of_runs};
use super::{Case, Report, find_mpirun, machine, median};

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The configuration to run.
    pub config: PathBuf,
    /// Ranks.
    pub ranks: u32,
    /// Pairs of runs.
    pub pairs: u32,
    /// Steps of each run.
    pub steps: u64,
}

/// Steps before the first that counts: pages, caches and programs are new in them.
const WARM_UP_STEPS: u64 = 10;
/// Fewer show no time of a step.
pub(super) const STEPS_MIN: u64 = WARM_UP_STEPS + 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Arm {
    FaultTolerant,
    Plain,
}

const ARMS: [Arm; 2] = [Arm::FaultTolerant, Arm::Plain];

impl Arm {
    fn name(self) -> &'static str {
        match self {
            Self::FaultTolerant => "fault_tolerant",
            Self::Plain => "plain",
        }
    }
}

/// Runs the pairs, the order within a pair changing from one to the next.
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
    let mut times: BTreeMap<Arm, Vec<f64>> = BTreeMap::new();
    for pair in 0..options.pairs {
        let mut arms = ARMS;
        if pair % 2 == 1 {
            arms.reverse();
        }
        for arm in arms {
            let run_dir = runs.directory(&format!("{}-{pair}", arm.name()));
            let step_ms = one_run(runs, options, arm, &run_dir)?;
            eprintln!("pair {} of {}: {}: {step_ms:.3} ms", pair + 1, options.pairs, arm.name());
            times.entry(arm).or_default().push(step_ms);
        }
    }
    let none = BTreeMap::new();
    let cases: Vec<Case> =
        times.iter().map(|(arm, samples)| Case::of(arm.name(), samples, &none)).collect();
    let [tolerant, plain] = ARMS.map(|arm| &times[&arm]);
    let mut pairs: Vec<f64> = tolerant.iter().zip(plain).map(|(ft, plain)| ft / plain).collect();
    pairs.sort_by(f64::total_cmp);
    // Of the sorted ratios the k-th from either end: a distribution-free interval of the median.
    let (low, high) = interval(pairs.len());
    let ratios = BTreeMap::from([
        ("fault_tolerant/plain".to_string(), median(&pairs)),
        ("fault_tolerant/plain low".to_string(), pairs[low]),
        ("fault_tolerant/plain high".to_string(), pairs[high]),
    ]);
    Ok(Report { bench: "calm".into(), command, machine: machine(), cases, ratios })
}

/// Places, in `n` sorted samples, that enclose the median with at least 95 % where n allows it
/// (binomial; from n = 6 on), else the smallest and the largest.
pub(super) fn interval(n: usize) -> (usize, usize) {
    // The probability that at most `low` samples lie on one side of the median.
    let mut below = 0.5_f64.powi(n as i32);
    let mut term = below;
    let mut low = 0;
    while low + 1 < n / 2 {
        term *= (n - low) as f64 / (low + 1) as f64;
        below += term;
        if 2.0 * below > 0.05 {
            break;
        }
        low += 1;
    }
    (low, n - 1 - low)
}

/// Milliseconds per step, the warm-up left out.
fn one_run(runs: &Runs, options: &Options, arm: Arm, run_dir: &Path) -> Result<f64, String> {
    let mut command = match arm {
        Arm::FaultTolerant => launch(&options.config, options.ranks, run_dir)?,
        Arm::Plain => {
            let program =
                std::env::current_exe().map_err(|error| format!("no own program: {error}"))?;
            let ranks = options.ranks.to_string();
            let mut command = Command::new(find_mpirun()?);
            // What is no part of fault tolerance, and what `launch` gives ranks, those that
            // outnumber cores too.
            command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
            command.args(["--mca", "btl", "self,sm,tcp", "--mca", "coll", "^han"]);
            command.args(["--mca", "mpi_yield_when_idle", "1", "-n", &ranks]);
            command.env("OMP_WAIT_POLICY", "passive").env("GOMP_SPINCOUNT", "0");
            let users = std::env::var(TUNABLES_VARIABLE).ok();
            command.env(TUNABLES_VARIABLE, tunables(users.as_deref()));
            command.arg(&program).arg("train").arg(&options.config);
            command.args(["-s", &format!("run.ranks={ranks}"), "-s", "recovery.resident=off"]);
            command.args(["--unguarded", "-s", "recovery.integrity_every=off"]);
            command.args(["-s", "observe.tensorboard=false", "--run-dir"]).arg(run_dir);
            command
        }
    };
    command.args(["-s", &format!("train.steps={}", options.steps)]);
    command.args(["-s", "evaluation.every=never", "-s", "checkpoint.every=never"]);
    let output = runs.run(&mut command)?;
    let events = read_events(&run_dir.join("events.jsonl")).unwrap_or_default();
    step_ms(&events).ok_or_else(|| {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        format!("{}: the run wrote too few steps: {text}", arm.name())
    })
}

/// Milliseconds per step, by the first and the last event behind the warm-up.
pub(super) fn step_ms(events: &[Event]) -> Option<f64> {
    let steps = || {
        let is_step = |event: &&Event| matches!(event.kind, Kind::Step { .. });
        events.iter().filter(is_step).filter(|event| event.step >= WARM_UP_STEPS)
    };
    let (first, last) = (steps().next()?, steps().next_back()?);
    let count = last.step.checked_sub(first.step).filter(|count| *count > 0)?;
    Some((last.time - first.time) / count as f64 * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_the_binomial_one() {
        // Tables of the sign test: n = 6 takes all, n = 9 drops one, n = 12 two from either end.
        assert_eq!([6, 9, 12, 20].map(interval), [(0, 5), (1, 7), (2, 9), (5, 14)]);
        assert_eq!(interval(1), (0, 0));
    }
}
