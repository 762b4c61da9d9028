//! From a configuration to a job: what is decided, and what is refused, before anything is made.

use std::path::{Path, PathBuf};

use kintsugi_ffi::cgroup::{self, Cgroup};
use kintsugi_ffi::mpi;

use crate::config::{Config, Every, Recovery, Rung, Shown, check_measured, paths};
use crate::data::staging::apart;
use crate::engine;
use crate::launch::attempt::mpirun;
use crate::launch::attempt::runtime::{RUNTIME_VARIABLE, Runtime, SILENCE_MAX};
use crate::launch::limits::Limits;
use crate::launch::machine::ceilings::{self, Ceilings};
use crate::launch::machine::logout::{Chosen, Machine, suit_resident_dir};
use crate::launch::machine::network;
use crate::launch::nodes::allocation::{elsewhere, slurmd_timeout, stray};
use crate::launch::nodes::cluster_nodes::Nodes;
use crate::launch::nodes::{Allocation, SPARES_DEFAULT};
use crate::launch::{LaunchError, io_error};
use crate::observe::clock::{Clock, RealClock};
use crate::run_folder::lock::current_attempt;
use crate::run_folder::{self, variables};

use super::claim::Past;
use super::device;
use super::job::Job;
use super::opening;
use super::run_dir::RunDir;

/// Runs what the ranks' program stands in for, in tests of the supervisor.
const RANK_PROGRAM_VARIABLE: &str = "KINTSUGI_RANK_PROGRAM";

/// What was asked for beside the configuration.
#[derive(Debug)]
pub struct Wish {
    /// Where the run is to live; unset = by the configuration's name.
    pub run_dir: Option<PathBuf>,
    /// Who chose where resident state lies.
    pub resident_dir: Chosen,
    /// Nodes that wait until another one dies.
    pub spare_nodes: u32,
    /// With fewer the run ends.
    pub min_nodes: u32,
    /// Whether a run that is there goes on.
    pub past: Past,
}

/// A job, and what there is to say of it.
#[derive(Debug)]
pub struct Begun {
    /// It.
    pub job: Job,
    /// The time-outs in force.
    pub limits: Limits,
    /// The run's folder, as it was named.
    pub folder: PathBuf,
    /// What was chosen that is worth a word: where resident state lies, what computes.
    pub remarks: Vec<String>,
}

/// Finds what the run needs to be started, and fills in what nobody chose.
///
/// # Errors
/// Something is missing, or contradicts.
pub fn begin(mut config: Config, wish: Wish) -> Result<Begun, LaunchError> {
    check_measured(&config)?;
    let chosen = std::env::var_os(mpirun::MPIRUN_VARIABLE).map(PathBuf::from);
    let path = std::env::var_os("PATH");
    let mpirun = mpirun::find(chosen, Path::new(mpi::mpicc()), path.as_deref())?;
    let mpirun =
        std::path::absolute(&mpirun).map_err(io_error(format!("resolving {}", mpirun.shown())))?;
    let program = std::env::current_exe()
        .map_err(|source| LaunchError::Io { what: "finding this program".into(), source })?;
    let usual = || run_folder::usual(&config);
    let folder = wish.run_dir.map_or_else(usual, Ok);
    let folder = folder.map_err(|error| LaunchError::Refused { reason: error.to_string() })?;
    let run = RunDir::at(&folder)?;
    let begun = (wish.past == Past::GoesOn).then(|| run.join("config.toml"));
    let no_card = device::settle(&mut config, begun.as_deref());
    let rank_program = std::env::var_os(RANK_PROGRAM_VARIABLE).map(PathBuf::from);
    let runtime = std::env::var_os(RUNTIME_VARIABLE).map(PathBuf::from);
    let runtime = Runtime::find(&config.run.runtime, runtime, &mpirun, &program)?;
    // After the folder was named: where a command is given does not make it another run.
    paths::resolve(&mut config)?;
    refuse_if(apart::refusal(&config, run.path()))?;
    let pictures = place_of_pictures();
    let mut job =
        Job { config, run, mpirun, program, pictures, rank_program, nodes: None, runtime };
    let allocation = if stray().is_some() { None } else { Allocation::find()? };
    if let Some(allocation) = allocation {
        // After the folder was named: the same command finds its run again on one node.
        suit_several_nodes(&mut job.config.recovery);
        job.nodes = Some(Nodes {
            allocation,
            spare: wish.spare_nodes,
            least: wish.min_nodes,
            spares_per_node: job.config.recovery.spares.unwrap_or(0),
        });
    } else {
        refuse_if(one_node(wish.spare_nodes, wish.min_nodes))?;
    }
    let is_alone = job.nodes.is_none() && stray().is_none();
    let beside = is_alone.then(elsewhere).flatten();
    let (recovery, run_id) = (&mut job.config.recovery, job.run.id());
    let moved = suit_resident_dir(recovery, wish.resident_dir, &run_id, Machine::here())
        .map_err(io_error("looking for resident state of the run"))?;
    let limits = limits_of(&job);
    limits.check()?;
    // More processes than this machine can even start are a slip of the finger.
    let (ranks, spares) = job.processes_here();
    let all = ranks.saturating_add(spares);
    refuse_if(cgroup::total_memory_bytes().and_then(|memory| ceilings::too_many(all, memory)))?;
    let remarks = no_card.into_iter().chain(beside).chain(moved).collect();
    Ok(Begun { job, limits, folder, remarks })
}

/// Why what was asked of several nodes is not to be had of this machine alone.
fn one_node(spare: u32, least: u32) -> Option<String> {
    let asked = [("--spare-nodes", spare, 0), ("--min-nodes", least, 1)];
    let (option, nodes, _) = asked.into_iter().find(|(_, nodes, usual)| nodes > usual)?;
    Some(format!(
        "{option} {nodes}: nodes come from an allocation of SLURM of several nodes, and this is \
         one machine: leave it out"
    ))
}

/// What no run can be started with, whatever it is.
///
/// # Errors
/// It.
pub fn check_machine(job: &Job) -> Result<(), LaunchError> {
    let have = Ceilings::granted(Cgroup::default());
    let (ranks, spares) = job.processes_here();
    let too_small = || {
        opening::least_of_job(job).and_then(|need| ceilings::refusal(have, &need, ranks + spares))
    };
    let no_engine = || engine::refusal(&job.config.device);
    refuse_if(network::isolation().or_else(no_engine).or_else(too_small))
}

/// The mpirun line that would start the job's next attempt.
///
/// # Errors
/// Which attempt that is cannot be read.
pub fn command_line(job: &Job) -> Result<String, LaunchError> {
    let newest = current_attempt(job.run.path()).map_err(io_error("reading the run's lock"))?;
    let plan = job.plan(newest.unwrap_or(0) + 1, RealClock::default().unix_seconds());
    Ok(mpirun::pasteable(&plan))
}

/// As ranks would find it where launch was started; `None` where that folder is gone.
fn place_of_pictures() -> Option<PathBuf> {
    let asked = std::env::var_os(variables::DATA).filter(|folder| !folder.is_empty());
    std::path::absolute(asked.unwrap_or_else(|| "data".into())).ok()
}

fn refuse_if(reason: Option<String>) -> Result<(), LaunchError> {
    reason.map_or(Ok(()), |reason| Err(LaunchError::Refused { reason }))
}

fn limits_of(job: &Job) -> Limits {
    let limits = Limits::of(&job.config.recovery);
    if job.nodes.is_none() {
        return limits;
    }
    let limits = limits.over_nodes(&job.config.recovery, slurmd_timeout());
    match &job.runtime {
        Some(_) => limits.with_keepalive(SILENCE_MAX),
        None => limits,
    }
}

/// What is not configured, as several nodes need it: processes that wait are promoted
/// dependably there, and new ones are not started dependably, so none are unless asked for.
fn suit_several_nodes(recovery: &mut Recovery) {
    if recovery.ladder.is_none() {
        recovery.ladder = Some(vec![Rung::Spare, Rung::Shrink, Rung::Restart]);
        if recovery.regrow == Recovery::default().regrow {
            recovery.regrow = Every::Never;
        }
    }
    if recovery.rungs().contains(&Rung::Spare) {
        recovery.spares.get_or_insert(SPARES_DEFAULT);
    }
}
