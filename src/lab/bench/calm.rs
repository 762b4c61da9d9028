//! What fault tolerance costs while nothing fails (promise 6): a world under `launch`, with ULFM,
//! guardians, resident state and comparisons of replicas, takes turns with the same program under a
//! plain mpirun that has none of them. The vote of every step is in both.

use std::path::PathBuf;
use std::process::Command;

use crate::launch::attempt::mpirun::{TUNABLES_VARIABLE, tunables};
use crate::observe::console::say;

use super::runs::{Runs, launch};
use super::turns::{Contender, Paired, Turns, of_all_turns, take_turns};
use super::{Case, Report, find_mpirun, median};

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The configuration to run
    #[arg(long, default_value = "configs/bench/cnn11.toml", value_parser = super::configuration)]
    pub config: PathBuf,
    /// Ranks
    #[arg(short, long, default_value_t = 4, value_parser = crate::lab::crowd::ranks)]
    pub ranks: u32,
    /// Starts of the two; with several, each start is one sample, and six make an interval
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub starts: u32,
    /// Turns of each of the two, in each start
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub turns: u32,
    // With the step that stands still before them the turn should not divide the steps between two
    // comparisons, which would fall into no turn, or always into its start.
    /// Whole steps of a turn, at least; it lasts a second or longer
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: u64,
}

const TOLERANT: &str = "fault_tolerant";
const PLAIN: &str = "plain";

/// Lets the two take turns, the order changing from one turn to the next.
///
/// # Errors
/// What kept it from running, for a person.
pub fn run(options: &Options, runs: &Runs) -> Result<Report, String> {
    let mut samples = [Vec::new(), Vec::new()];
    let mut turns = [Vec::new(), Vec::new()];
    for start in 1..=options.starts {
        if options.starts > 1 {
            say!("start {start} of {}", options.starts);
        }
        for (world, times) in one_start(options, runs, start)?.into_iter().enumerate() {
            // Starts differ by more than the turns of one do: each is one sample.
            samples[world].push(median(&times));
            turns[world].extend(times);
        }
    }
    let [with, without] = if options.starts == 1 { &turns } else { &samples };
    let Paired { difference, mut ratios } = Paired::of(TOLERANT, with, PLAIN, without);
    ratios.extend([of_all_turns(TOLERANT, &turns[0], PLAIN, &turns[1])]);
    let case = |name, times: &[f64]| Case::of(name, times, &Default::default());
    let cases = vec![case(TOLERANT, with), case(PLAIN, without), difference];
    Ok(Report::of("calm", cases, ratios))
}

/// Milliseconds per step, one figure a turn: with, without. Which of them is started first changes
/// from one start to the next.
fn one_start(options: &Options, runs: &Runs, start: u32) -> Result<[Vec<f64>; 2], String> {
    let turns = Turns { count: options.turns, steps: options.steps };
    let mut contenders = vec![tolerant(options, runs, start)?, plain(options, runs, start)?];
    let reversed = start.is_multiple_of(2);
    if reversed {
        contenders.reverse();
    }
    let mut times = take_turns(runs, contenders, turns)?;
    if reversed {
        times.reverse();
    }
    times.try_into().map_err(|_| "two worlds have two series".into())
}

fn tolerant(options: &Options, runs: &Runs, start: u32) -> Result<Contender, String> {
    let run_dir = runs.directory(&format!("{TOLERANT}-{start}"));
    let command = launch(&options.config, options.ranks, &run_dir)?;
    Ok(Contender { name: TOLERANT, command, run_dir })
}

fn plain(options: &Options, runs: &Runs, start: u32) -> Result<Contender, String> {
    let run_dir = runs.directory(&format!("{PLAIN}-{start}"));
    let program = std::env::current_exe().map_err(|error| format!("no own program: {error}"))?;
    let ranks = options.ranks.to_string();
    let mut command = Command::new(find_mpirun()?);
    // What is no part of fault tolerance, and what `launch` gives ranks, those that outnumber
    // cores too.
    command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
    command.args(["--mca", "btl", "self,sm,tcp", "--mca", "coll", "^han"]);
    command.args(["--mca", "mpi_yield_when_idle", "1", "-n", &ranks]);
    command.env("OMP_WAIT_POLICY", "passive").env("GOMP_SPINCOUNT", "0");
    let users = std::env::var(TUNABLES_VARIABLE).ok();
    command.env(TUNABLES_VARIABLE, tunables(users.as_deref()));
    command.arg(&program).arg("train").arg(&options.config);
    command.args(["-s", &format!("run.ranks={ranks}"), "-s", "recovery.resident=off"]);
    command.args(["--unguarded", "-s", "recovery.integrity_every=off"]);
    command.args(["-s", "observe.tensorboard=false", "--run-dir"]).arg(&run_dir);
    Ok(Contender { name: PLAIN, command, run_dir })
}
