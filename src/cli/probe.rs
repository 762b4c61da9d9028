//! `kintsugi probe`: measures what this machine can do.

use std::process::ExitCode;
use std::time::Duration;

use super::arguments::print_json;
use crate::cluster::comm::mpi::{JoinArguments, under_mpirun};
use crate::lab::probe_mpi::{self, Kill, Outcome, RankPlan, Scenario};
use crate::observe::console::{print_line, say};

mod storage;
mod unified_memory;

/// Measures what this machine can do.
#[derive(Debug, clap::Subcommand)]
pub enum Args {
    /// Kills ranks and times how the survivors replace them.
    Mpi(MpiArgs),
    Storage(storage::Args),
    UnifiedMemory(unified_memory::Args),
}

/// Kills ranks and times how the survivors replace them.
#[derive(Debug, clap::Args)]
pub struct MpiArgs {
    /// Ranks to start.
    #[arg(short = 'n', long, default_value_t = 4, value_parser = super::arguments::crowd)]
    ranks: usize,
    /// Steps to commit.
    #[arg(long, default_value_t = 20)]
    steps: u64,
    /// POINT@NUMBER:RANK[:LIFE][+MICROSECONDS]; without any: one rank, then its replacement.
    #[arg(long)]
    kill: Vec<Kill>,
    /// Kills so many, one after another, instead.
    #[arg(long, conflicts_with = "kill")]
    sequence: Option<u32>,
    /// Seconds after which a run is stopped.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    limit_seconds: u64,
    /// Runs of the same.
    #[arg(long, default_value_t = 1)]
    repeat: u32,
    /// One JSON object per run.
    #[arg(long)]
    json: bool,
    /// Written by a recovering leader.
    #[arg(long, hide = true, value_parser = JoinArguments::parse)]
    join: Option<JoinArguments>,
}

/// Runs it; 1 when a run failed.
pub fn run(args: &Args) -> ExitCode {
    match args {
        Args::Mpi(mpi) if under_mpirun() => {
            let plan =
                RankPlan { steps: mpi.steps, kills: mpi.kill.clone(), join: mpi.join.clone() };
            ExitCode::from(u8::try_from(probe_mpi::run_rank(&plan)).unwrap_or(1))
        }
        Args::Mpi(mpi) => launch(mpi),
        Args::Storage(args) => storage::run(args),
        Args::UnifiedMemory(args) => unified_memory::run(args),
    }
}

fn scenario(args: &MpiArgs) -> Scenario {
    let default = || {
        let last = args.ranks.saturating_sub(1);
        let (first, second) = (args.steps / 3, 2 * args.steps / 3);
        [format!("step@{first}:{last}"), format!("step@{second}:{last}:1")]
            .iter()
            .filter_map(|text| text.parse().ok())
            .collect()
    };
    let kills = match args.sequence {
        Some(kills) => probe_mpi::sequence(kills, args.ranks),
        None if args.kill.is_empty() => default(),
        None => args.kill.clone(),
    };
    let last_step = kills.iter().map(|kill| kill.number + 2).max().unwrap_or(0);
    let steps = if args.sequence.is_some() { args.steps.max(last_step) } else { args.steps };
    let limit = Duration::from_secs(args.limit_seconds);
    Scenario { ranks: args.ranks, steps, kills, limit }
}

fn launch(args: &MpiArgs) -> ExitCode {
    let scenario = scenario(args);
    let mut good = 0;
    for _ in 0..args.repeat {
        let outcome = match probe_mpi::launch(&scenario) {
            Ok(outcome) => outcome,
            Err(error) => {
                say!("kintsugi probe mpi: {error}");
                return ExitCode::FAILURE;
            }
        };
        good += u32::from(outcome.ok);
        if args.json {
            print_json(&outcome);
        } else {
            print(&outcome);
        }
    }
    if good == args.repeat { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print(outcome: &Outcome) {
    for repair in &outcome.repairs {
        let (step, lost, attempts) = (repair.step, &repair.lost, repair.attempts);
        let (phases, total) = (repair.phases("restore"), repair.total * 1e3);
        print_line!(
            "step {step:>4}, lost {lost:?}, attempts {attempts}: {phases}, total {total:.1} ms"
        );
    }
    for retry in &outcome.retries {
        print_line!("tried again: {retry}");
    }
    for problem in &outcome.problems {
        print_line!("problem: {problem}");
    }
    let (verdict, kills) = (if outcome.ok { "ok" } else { "FAILED" }, outcome.kills);
    let (repairs, seconds) = (outcome.repairs.len(), outcome.seconds);
    print_line!("{verdict}: {kills} killed, {repairs} repairs, {seconds:.2} s");
}
