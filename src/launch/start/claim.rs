//! Whose a run is: finds or makes its folder, and takes it from whoever holds it.

use std::io::ErrorKind;

use crate::cluster::resident::Folder;
use crate::config::{Config, DataFormat, Model, Shown, Staging, StagingMode, Validation, parse};
use crate::data::tiers::supply;
use crate::launch::LaunchError;
use crate::launch::nodes::ClusterNodes;
use crate::launch::stops::Stops;
use crate::observe::result::RunResult;
use crate::run_folder::before::Before;
use crate::run_folder::lock::RunLock;

use super::job::Job;
use super::run_dir::{Found, Owners, RunDir};

/// Whether a run that is there goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Past {
    /// It does.
    GoesOn,
    /// It is moved aside.
    MovesAside,
}

/// What became of it.
#[derive(Debug)]
pub enum Claimed {
    /// There is nothing left to do.
    Completed(Box<RunResult>),
    /// It is this launch's; the folder as it was before.
    Ours(RunLock, Before),
}

/// Takes the run's folder for this launch. `fix` names the model and the weights that a run begins
/// with; `say` tells what is waited for, and `stops` end the wait.
///
/// # Errors
/// The folder is somebody else's, another configuration's, or cannot be written.
pub fn claim(
    job: &mut Job,
    owners: Owners,
    past: Past,
    fix: &dyn Fn(&mut Model) -> Result<(), String>,
    stops: &mut Stops,
    mut say: &mut dyn FnMut(&str),
) -> Result<Claimed, LaunchError> {
    if let Found::Completed(result) = look(job, owners, past, fix)? {
        return Ok(Claimed::Completed(result));
    }
    let Job { config, run, .. } = job;
    let patience = config.recovery.time_limit.0;
    let mut before = None;
    if is_moved_aside(run, past) {
        // Moved only once nobody writes to it any more.
        let _old = RunLock::take(run.path(), patience, &mut || stops.look(), &mut say)?;
        // Its resident state is found by the folder's name only.
        let slots = Folder::new(&config.recovery.resident_dir, &run.id());
        sweep_left_copies(run, &config.staging);
        let aside = run.move_aside()?;
        say(&format!("the run that was there is now {}", aside.shown()));
        let moved = run.before(Some(aside))?;
        for older in moved.older() {
            say(&format!("{} goes when this run has ended with a step", older.shown()));
        }
        before = Some(moved);
        slots.clear();
    }
    let before = match before {
        Some(before) => before,
        None => run.before(None)?,
    };
    run.create()?;
    let lock = RunLock::take(run.path(), patience, &mut || stops.look(), &mut say)?;
    // The launch that held it may have completed the run meanwhile.
    if let Found::Completed(result) = run.inspect(config, owners)? {
        return Ok(Claimed::Completed(result));
    }
    sweep_left_copies(run, &config.staging);
    run.write_config(config)?;
    Ok(Claimed::Ours(lock, before))
}

/// Copies of the data set that the run made here and that nobody will look for, now that it stages
/// elsewhere or not at all: only its configuration so far knows where they lie.
fn sweep_left_copies(run: &RunDir, now: &Staging) {
    // What cannot be read names no place.
    let Ok(old) = parse::read(&run.join("config.toml"), &[]) else { return };
    let used = now.mode != StagingMode::None && now.place() == old.staging.place();
    if !used {
        supply::sweep_copies(&old.staging, &run.id());
    }
}

/// What lies where the run is to, as far as that shows before it is this launch's: what begins is
/// refused here if it can be.
///
/// # Errors
/// As `claim`'s.
pub fn look(
    job: &mut Job,
    owners: Owners,
    past: Past,
    fix: &dyn Fn(&mut Model) -> Result<(), String>,
) -> Result<Found, LaunchError> {
    let Job { config, run, nodes, .. } = job;
    run.refuse_planted()?;
    let found = match is_moved_aside(run, past) {
        true => Found::Nothing,
        false => run.inspect(config, owners)?,
    };
    if found == Found::Nothing {
        fix(&mut config.model).map_err(|reason| LaunchError::Refused { reason })?;
        // What other nodes have, this one need not.
        if nodes.is_none() {
            there_is_data(config)?;
        }
    }
    Ok(found)
}

fn is_moved_aside(run: &RunDir, past: Past) -> bool {
    past == Past::MovesAside && run.join("config.toml").exists()
}

/// Of a run that begins: a folder that nobody has made is no reason for a run's folder. What cannot
/// be looked at now is left to the ranks.
///
/// # Errors
/// The key, and what is not there.
pub fn there_is_data(config: &Config) -> Result<(), LaunchError> {
    let validation = match &config.data.validation {
        Some(Validation::Place(path)) => Some(path),
        _ => None,
    };
    let sets = [("data.train", config.data.train.as_ref()), ("data.validation", validation)];
    for (key, path) in sets {
        let Some(path) = path else { continue };
        // Of shards a pattern may stand for many.
        let is_pattern = config.data.format == DataFormat::Tar;
        let looked = std::fs::metadata(path);
        if !is_pattern && looked.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            let path = path.shown();
            let reason =
                format!("{key} = {path}: there is no such folder; name where the set lies");
            return Err(LaunchError::NoData { reason });
        }
    }
    Ok(())
}

/// What a complete run left in memory goes: here, and on nodes that were lost and are back; here
/// also its copies of the data set, which its launch may not have lived to remove. `stops` end the
/// wait for other nodes.
///
/// # Errors
/// Other nodes cannot be reached.
pub fn clear_up(job: &Job, stops: &mut Stops) -> std::io::Result<()> {
    job.slots().clear();
    supply::sweep_memory(&job.run.id());
    supply::sweep_copies(&job.config.staging, &job.run.id());
    if let Some(nodes) = job.nodes.clone() {
        let mut stop = || stops.has_asked();
        ClusterNodes::assemble(nodes, job.mission(), &mut stop)?.clear_slots(&mut stop);
    }
    Ok(())
}
