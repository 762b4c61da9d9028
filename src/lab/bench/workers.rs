//! Workers of one thread each against one worker whose team has as many: one rank, the same batch,
//! the same processors. Worlds under `launch` that take turns; every turn gives one ratio.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::runs::{Runs, launch};
use super::turns::{Contender, Paired, Turns, take_turns};
use super::{Case, Report, machine};

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The configuration to run
    #[arg(long, default_value = "configs/bench/cnn11.toml")]
    pub config: PathBuf,
    /// Overrides one key of the configuration: section.key=value
    #[arg(short = 's', long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Computing threads in all
    #[arg(long, default_value_t = 2, value_parser = crate::lab::crowd::crowd)]
    pub threads: usize,
    /// Turns of each of the three
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..))]
    pub turns: u32,
    /// Whole steps of a turn, at least; it lasts a second or longer
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: u64,
}

/// An arm: its name, workers, threads of each, owners that the batch is cut into.
type Arm = (&'static str, usize, usize, usize);

/// The first against each other one: the same micro-batches on one team, and the whole batch there
/// at once.
fn arms(threads: usize) -> [Arm; 3] {
    [("workers", threads, 1, threads), ("team", 1, threads, threads), ("whole", 1, threads, 1)]
}

/// Lets all arms take turns, the order reversed from one turn to the next.
///
/// # Errors
/// What kept it from running, for a person.
pub fn run(options: &Options, runs: &Runs) -> Result<Report, String> {
    let cores = machine().cores;
    if !(2..=cores).contains(&options.threads) {
        return Err(format!(
            "--threads {}: give 2 to {cores}, the processors that there are",
            options.threads
        ));
    }
    let arms = arms(options.threads);
    let contender = |(name, workers, threads, owners): Arm| {
        let run_dir = runs.directory(name);
        let mut command = launch(&options.config, 1, &run_dir)?;
        let shape = [("workers", workers), ("threads", threads), ("owners", owners)];
        let shape = shape.map(|(key, number)| format!("train.{key}={number}"));
        command.args(options.set.iter().chain(&shape).flat_map(|key| ["-s", key]));
        Ok(Contender { name, command, run_dir })
    };
    let contenders = arms.map(contender).into_iter().collect::<Result<Vec<_>, String>>()?;
    let turns = Turns { count: options.turns, steps: options.steps };
    let times = take_turns(runs, contenders, turns)?;
    let (mut cases, mut ratios) = (Vec::new(), BTreeMap::new());
    for ((name, ..), ms) in arms.iter().zip(&times) {
        cases.push(Case::of(name, ms, &BTreeMap::new()));
    }
    for ((name, ..), ms) in arms.iter().zip(&times).skip(1) {
        ratios.extend(Paired::of(arms[0].0, &times[0], name, ms).ratios);
    }
    Ok(Report::of("workers", cases, ratios))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_arm_computes_with_as_many_threads() {
        for threads in 2..5 {
            let arms = arms(threads);
            assert!(arms.iter().all(|(_, workers, team, _)| workers * team == threads));
            assert!(arms.iter().all(|(_, workers, _, owners)| owners % workers == 0));
        }
    }
}
