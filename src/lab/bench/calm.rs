//! What fault tolerance costs while nothing fails (promise 6): a world under `launch`, with ULFM,
//! guardians, resident state and comparisons of replicas, takes turns with the same program under a
//! plain mpirun that has none of them. The vote of every step is in both.

use std::path::PathBuf;
use std::process::Command;

use crate::cluster::launch::mpirun::{TUNABLES_VARIABLE, tunables};

use super::runs::{Runs, launch, of_runs};
use super::turns::{Contender, Paired, Turns, take_turns};
use super::{Case, Report, find_mpirun, machine};

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The configuration to run.
    pub config: PathBuf,
    /// Ranks.
    pub ranks: u32,
    /// Turns of each world.
    pub turns: u32,
    /// Whole steps of a turn.
    pub steps: u64,
}

const TOLERANT: &str = "fault_tolerant";
const PLAIN: &str = "plain";

/// Lets the two take turns, the order changing from one turn to the next.
///
/// # Errors
/// What kept it from running, for a person.
pub fn run(options: &Options, command: String) -> Result<Report, String> {
    of_runs(|runs| measure(options, command, runs))
}

fn measure(options: &Options, command: String, runs: &Runs) -> Result<Report, String> {
    let contenders = vec![tolerant(options, runs)?, plain(options, runs)?];
    let turns = Turns { count: options.turns, steps: options.steps };
    let times = take_turns(runs, contenders, turns)?;
    let Paired { difference, ratios } = Paired::of(TOLERANT, &times[0], PLAIN, &times[1]);
    let case = |name, times: &[f64]| Case::of(name, times, &Default::default());
    let cases = vec![case(TOLERANT, &times[0]), case(PLAIN, &times[1]), difference];
    Ok(Report { bench: "calm".into(), command, machine: machine(), cases, ratios })
}

fn tolerant(options: &Options, runs: &Runs) -> Result<Contender, String> {
    let run_dir = runs.directory(TOLERANT);
    let command = launch(&options.config, options.ranks, &run_dir)?;
    Ok(Contender { name: TOLERANT, command, run_dir })
}

fn plain(options: &Options, runs: &Runs) -> Result<Contender, String> {
    let run_dir = runs.directory(PLAIN);
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
