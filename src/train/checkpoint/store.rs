//! Writes, publishes, marks and retires checkpoint folders through `Storage`. A folder is made
//! beside, verified by reading it back, and renamed into place; only then may an older one go.
//! Names: `step-00001234`, `.tmp-ATTEMPT` while it is written, `.old` while it is replaced by a
//! second one of the same step, `.bad` when it is never to be tried again.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crate::config::Shown;
use crate::data::Normalization;
use crate::observe::clock::Clock;
use crate::observe::notice::act_on;
use crate::observe::refusal::if_there;
use crate::observe::storage::Storage;

use crate::train::checkpoint::best::Kept;
use crate::train::checkpoint::manifest::{FileEntry, MANIFEST, MODEL, Manifest, OPTIMIZER, STATE};
use crate::train::checkpoint::reading::{self, OLD, folder_name, io_error};
use crate::train::checkpoint::{CheckpointError, Expectation, Snapshot, best, tensors, wire};

pub use crate::train::checkpoint::reading::{
    BAD, FOLDER, LISTS_MAX, marked, name_of, newest, newest_step, published, read_manifest,
    read_snapshot, read_state, step_of, verify_files,
};

/// How one checkpoint went.
#[derive(Debug)]
pub struct WriterReport {
    /// Its folder.
    pub name: String,
    /// Committed steps in it.
    pub step: u64,
    /// Of all its files.
    pub bytes: u64,
    /// Writing and syncing.
    pub write_seconds: f64,
    /// Reading back.
    pub verify_seconds: f64,
    /// Published, or why not.
    pub result: Result<(), CheckpointError>,
    /// What was removed to make room for it.
    pub gave_way: Vec<String>,
}

impl WriterReport {
    /// Of one that has not been begun.
    pub fn of(step: u64, result: Result<(), CheckpointError>) -> Self {
        let (write_seconds, verify_seconds, gave_way) = (0.0, 0.0, Vec::new());
        Self {
            name: name_of(step),
            step,
            bytes: 0,
            write_seconds,
            verify_seconds,
            result,
            gave_way,
        }
    }

    /// What is to be said of it.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        let step = self.step;
        let way = self.gave_way.iter().map(move |name| {
            format!("no room for the checkpoint of step {step}: {name} was removed for it")
        });
        let failed = self.result.as_ref().err();
        way.chain(failed.map(move |error| format!("no checkpoint at step {step}: {error}")))
    }
}

const TEMPORARY: &str = ".tmp-";
/// Why a checkpoint was marked, for people.
const WHY: &str = "WHY.txt";
/// Marked ones that stay for inspection.
const BAD_KEPT_MAX: usize = 2;
/// How many give way to one that there is no room for: the marked ones, and one more.
const GIVE_WAY_MAX: usize = BAD_KEPT_MAX + 1;

/// What goes, now that `written` is published and verified: `(delete, mark as bad)`. Later steps
/// belong to a past that a rollback left behind. Those of steps `best` stay. Pure.
pub fn retention(
    names: &[String],
    written: u64,
    keep: u32,
    best: &[u64],
) -> (Vec<String>, Vec<String>) {
    let mut steps: Vec<u64> = names.iter().filter_map(|name| step_of(name)).collect();
    steps.sort_unstable_by(|a, b| b.cmp(a));
    let (later, mut kept): (Vec<u64>, Vec<u64>) = steps.into_iter().partition(|&s| s > written);
    let mut surplus = kept.split_off(kept.len().min(keep.max(1) as usize));
    surplus.retain(|step| !best.contains(step));
    let mut bad: Vec<&String> = names.iter().filter(|name| name.ends_with(BAD)).collect();
    bad.sort();
    bad.truncate(bad.len().saturating_sub(BAD_KEPT_MAX));
    let delete = surplus.into_iter().map(name_of).chain(bad.into_iter().cloned()).collect();
    (delete, later.into_iter().map(name_of).collect())
}

/// Writes one checkpoint, verifies it, publishes it if this is `still_current`ly the run's attempt,
/// and retires what `keep` no longer covers. On failure nothing is left behind and nothing older
/// is touched; but where there is no room for it an older one gives way, which is worth less.
pub fn write(
    storage: &dyn Storage,
    snapshot: &Snapshot,
    keep: u32,
    still_current: &dyn Fn() -> bool,
    clock: &dyn Clock,
) -> WriterReport {
    let step = snapshot.state.step;
    let mut report = WriterReport::of(step, Ok(()));
    // Its own may not be named yet.
    let best = snapshot.state.improvement.best.map(|best| best.step);
    report.result = make(storage, snapshot, still_current, clock, &mut report);
    for _ in 0..GIVE_WAY_MAX {
        let without_room = report.result.as_ref().is_err_and(CheckpointError::is_without_room);
        // One that went and did not help is enough.
        let in_vain = report.gave_way.last().is_some_and(|name| !name.ends_with(BAD));
        if in_vain || !(without_room && still_current()) {
            break;
        }
        let Some(gone) = give_way(storage, step, best) else { break };
        report.gave_way.push(gone);
        report.result = make(storage, snapshot, still_current, clock, &mut report);
    }
    if report.result.is_ok() {
        retire(storage, step, keep, best);
    }
    report
}

/// One try.
fn make(
    storage: &dyn Storage,
    snapshot: &Snapshot,
    still_current: &dyn Fn() -> bool,
    clock: &dyn Clock,
    report: &mut WriterReport,
) -> Result<(), CheckpointError> {
    let name = &report.name;
    let beside = Path::new(FOLDER).join(format!("{name}{TEMPORARY}{}", snapshot.state.attempt));
    let begun = clock.now();
    if let Some(what) = snapshot.poisoned() {
        return Err(CheckpointError::Poisoned { name: name.clone(), what });
    }
    let made = write_files(storage, &beside, snapshot).and_then(|bytes| {
        let synced = clock.now();
        (report.bytes, report.write_seconds) = (bytes, (synced - begun).as_secs_f64());
        verify_files(storage, &beside)?;
        report.verify_seconds = (clock.now() - synced).as_secs_f64();
        if !still_current() {
            return Err(CheckpointError::CutOff(name.clone()));
        }
        publish(storage, &beside, name)
    });
    if made.is_err() {
        // The storage is in trouble already; what stays is cleaned at the next start.
        let _ = storage.remove(&beside);
    }
    made
}

/// Removes what is worth less than the one that is to be of step `written`: a marked one, else the
/// oldest. The newest and the best never go. Its name; `None`: there is nothing.
fn give_way(storage: &dyn Storage, written: u64, best: Option<u64>) -> Option<String> {
    let folder = Path::new(FOLDER);
    let (names, kept) = (storage.list(folder).ok()?, best::read(storage).ok()?);
    let best: Vec<u64> = kept.into_iter().flat_map(Kept::steps).chain(best).collect();
    let mut steps: Vec<u64> = names.iter().filter_map(|name| step_of(name)).collect();
    steps.retain(|step| *step <= written);
    steps.sort_unstable();
    // Without one, what is marked is all that says that there were any.
    steps.pop()?;
    let marked = names.iter().filter(|name| name.ends_with(BAD)).min().cloned();
    let oldest = || steps.into_iter().find(|step| !best.contains(step)).map(name_of);
    let name = marked.or_else(oldest)?;
    discard(storage, &name);
    storage.list(folder).is_ok_and(|left| !left.contains(&name)).then_some(name)
}

fn write_files(
    storage: &dyn Storage,
    beside: &Path,
    snapshot: &Snapshot,
) -> Result<u64, CheckpointError> {
    storage.remove(beside).map_err(io_error("clear", beside))?;
    storage.create_dir(beside).map_err(io_error("create", beside))?;
    let about = about(snapshot);
    let (layout, state) = (&snapshot.layout, wire::encode(&snapshot.state));
    let model =
        tensors::model_file(layout, &snapshot.parameters, &snapshot.statistics, None, &about);
    let optimizer = tensors::optimizer_file(layout, &snapshot.optimizer, &about);
    let bodies =
        [(MODEL, model.parts()), (OPTIMIZER, optimizer.parts()), (STATE, vec![&state[..]])];
    let mut entries = Vec::new();
    for (file, parts) in bodies {
        let path = beside.join(file);
        storage.write_whole(&path, &parts).map_err(io_error("write", &path))?;
        entries.push(FileEntry::of(file, &parts));
    }
    let manifest = Manifest::of(snapshot, entries);
    let text = manifest.to_text();
    let path = beside.join(MANIFEST);
    storage.write_whole(&path, &[text.as_bytes()]).map_err(io_error("write", &path))?;
    Ok(manifest.bytes() + text.len() as u64)
}

/// What the headers of the safetensors files say, for whoever opens them elsewhere.
pub fn about(snapshot: &Snapshot) -> BTreeMap<String, String> {
    let input = snapshot.input.map(|extent| extent.to_string()).join("x");
    let classes = serde_json::to_string(&snapshot.classes).expect("strings are always JSON");
    let step = snapshot.state.step.to_string();
    let texts = [
        ("format", "pt".to_string()),
        ("model", snapshot.model_name.clone()),
        ("input", input),
        ("classes", classes),
        ("step", step),
    ];
    let normalization = snapshot.normalization.iter().flat_map(Normalization::texts);
    texts.into_iter().chain(normalization).map(|(key, text)| (key.to_string(), text)).collect()
}

/// Moves a verified folder to its name. One of the same step (written by an earlier attempt) steps
/// aside first, and comes back if the move fails.
fn publish(storage: &dyn Storage, beside: &Path, name: &str) -> Result<(), CheckpointError> {
    let folder = Path::new(FOLDER);
    let (target, aside) = (folder.join(name), folder.join(format!("{name}{OLD}")));
    let names = storage.list(folder).map_err(io_error("list", folder))?;
    let replaces = names.iter().any(|present| present == name);
    if replaces {
        storage.remove(&aside).map_err(io_error("clear", &aside))?;
        storage.rename(&target, &aside).map_err(io_error("move aside", &target))?;
    }
    let moved = storage.rename(beside, &target).map_err(io_error("publish", &target));
    if replaces {
        let tidied = match moved {
            Ok(()) => storage.remove(&aside),
            Err(_) => storage.rename(&aside, &target),
        };
        warn_of("tidy", &aside, tidied);
    }
    moved
}

fn warn_of(action: &str, path: &Path, result: io::Result<()>) {
    if let Err(error) = result {
        act_on(&format!("checkpoint: cannot {action} {}: {error}", path.shown()));
    }
}

fn retire(storage: &dyn Storage, written: u64, keep: u32, best: Option<u64>) {
    let folder = Path::new(FOLDER);
    let (names, kept) = match (storage.list(folder), best::read(storage)) {
        (Ok(names), Ok(kept)) => (names, kept),
        // Which one is the best has to be known before another goes.
        (Err(error), _) | (_, Err(error)) => return warn_of("list", folder, Err(error)),
    };
    let best: Vec<u64> = kept.into_iter().flat_map(Kept::steps).chain(best).collect();
    let (delete, later) = retention(&names, written, keep, &best);
    for name in later {
        set_aside(storage, &name, &format!("the run went back and passed step {written} again"));
    }
    for name in delete {
        discard(storage, &name);
    }
}

/// Removes a published checkpoint. It loses its name first: one whose files are half gone would
/// be taken for a damaged one, and the run for one that lost its only checkpoint. Where a run goes
/// back, several ranks do so at once: one that is gone is gone.
fn discard(storage: &dyn Storage, name: &str) {
    let from = Path::new(FOLDER).join(name);
    let to = Path::new(FOLDER).join(format!("{name}{TEMPORARY}discarded"));
    let gone = storage.remove(&to).and_then(|()| storage.rename(&from, &to));
    warn_of("remove", &from, if_there(gone.and_then(|()| storage.remove(&to))).map(drop));
}

/// What `keep` does not cover goes, as a best one that no longer is. Only for the run's writer,
/// while nothing is written.
pub fn tidy(storage: &dyn Storage, keep: u32) {
    if let Some(newest) = newest_step(storage) {
        retire(storage, newest, keep, None);
    }
}

/// Removes the checkpoints of steps after this one: the run has gone back and does not trust them.
pub fn remove_later(storage: &dyn Storage, step: u64) {
    let put_back = best::read(storage).and_then(|kept| match kept {
        Some(kept) if kept.best.step > step => match kept.back_to(step) {
            Some(before) => best::write(storage, before),
            None => best::forget(storage),
        },
        _ => Ok(()),
    });
    warn_of("put back the best of", Path::new(FOLDER), put_back);
    match published(storage) {
        Ok(found) => {
            for (_, path) in found.iter().filter(|(later, _)| *later > step) {
                discard(storage, &folder_name(path));
            }
        }
        Err(error) => tracing::warn!("{error}"),
    }
}

/// A checkpoint that does not verify, or from which training fails, is never tried again.
pub fn mark_bad(storage: &dyn Storage, name: &str, reason: &str) {
    act_on(&format!("checkpoint {name} is marked as bad and not used: {reason}"));
    set_aside(storage, name, reason);
}

fn set_aside(storage: &dyn Storage, name: &str, reason: &str) {
    let from = Path::new(FOLDER).join(name);
    let to = Path::new(FOLDER).join(format!("{name}{BAD}"));
    warn_of("remove", &to, storage.remove(&to));
    warn_of("mark", &from, storage.rename(&from, &to));
    warn_of("explain", &to, storage.write_whole(&to.join(WHY), &[reason.as_bytes(), b"\n"]));
}

/// Removes what a dead writer left half done. Only for the process that is the run's writer.
pub fn clean(storage: &dyn Storage) {
    let folder = Path::new(FOLDER);
    let names = match storage.list(folder) {
        Ok(names) => names,
        Err(error) => return warn_of("list", folder, Err(error)),
    };
    for name in &names {
        let path = folder.join(name);
        if let Some(published) = name.strip_suffix(OLD) {
            if names.iter().any(|present| present == published) {
                warn_of("remove", &path, storage.remove(&path));
            } else {
                warn_of("restore", &path, storage.rename(&path, &folder.join(published)));
            }
        } else if name.contains(TEMPORARY) {
            warn_of("remove", &path, storage.remove(&path));
        }
    }
}

/// The newest checkpoint that verifies. Damaged ones are marked and never tried again; one of
/// another model, configuration or run ends the search with an error that names both. `None`: the
/// run never wrote one. Call it in one process of the run.
pub fn newest_verified(
    storage: &dyn Storage,
    expect: &Expectation,
) -> Result<Option<Snapshot>, CheckpointError> {
    let mut refused = Vec::new();
    let found = reading::newest(storage, |step, folder| {
        let name = folder_name(folder);
        let (reason, said) = match read_snapshot(storage, folder, Some(expect)) {
            Ok(snapshot) if snapshot.state.step == step => return Ok(Some(snapshot)),
            Ok(snapshot) => {
                let reason = format!("it holds step {}", snapshot.state.step);
                (reason.clone(), format!("{name}: {reason}"))
            }
            Err(error @ CheckpointError::Damaged { .. }) => (error.to_string(), error.to_string()),
            Err(error) => return Err(error),
        };
        mark_bad(storage, &name, &reason);
        refused.push(said);
        Ok(None)
    })?;
    if found.is_some() {
        return Ok(found);
    }
    if refused.is_empty() {
        refused = marked(storage)?;
    }
    if refused.is_empty() { Ok(None) } else { Err(CheckpointError::AllBad(refused)) }
}
