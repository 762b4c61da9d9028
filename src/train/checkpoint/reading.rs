//! Finds, reads and verifies checkpoint folders through `Storage`. Readers may be other processes
//! than the run that writes, retires and marks these folders meanwhile: a folder that goes while it
//! is read is gone, not damaged.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::observe::refusal::{Meaning, insist};
use crate::observe::storage::Storage;

use crate::train::checkpoint::manifest::{FileEntry, MANIFEST, Manifest, STATE, hex};
use crate::train::checkpoint::{
    CONFIGURATION, CheckpointError, Expectation, Snapshot, TrainState, tensors, wire,
};

/// Where checkpoints lie in a run directory.
pub const FOLDER: &str = "checkpoints";
/// At the end of the name of a checkpoint that is never tried again.
pub const BAD: &str = ".bad";
pub(super) const OLD: &str = ".old";
/// Reads of one folder, where it is replaced by another one under the same name meanwhile.
const READS_MAX: u32 = 8;
/// Lists that are made anew because what they named was gone.
pub const LISTS_MAX: u32 = 8;

/// The folder of a step.
pub fn name_of(step: u64) -> String {
    format!("step-{step:08}")
}

/// The step of a published folder; `None` for every other name.
pub fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (name_of(step) == name).then_some(step)
}

pub(super) fn io_error(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> CheckpointError {
    let path = path.to_path_buf();
    move |source| CheckpointError::Io { action, path, source }
}

pub(super) fn folder_name(folder: &Path) -> String {
    folder.file_name().map_or(String::new(), |name| name.to_string_lossy().into())
}

fn damaged(folder: &Path, reason: impl Into<String>) -> CheckpointError {
    CheckpointError::Damaged { name: folder_name(folder), reason: reason.into() }
}

/// Only contents that were read are damaged, and only a file is missing without which its folder
/// was listed: the next older checkpoint may be whole. What a person can put right (permissions) or
/// time (a disk that fails, a busy server) says nothing of this one.
fn read(storage: &dyn Storage, folder: &Path, file: &str) -> Result<Vec<u8>, CheckpointError> {
    let path = folder.join(file);
    insist(|| storage.read(&path)).or_else(|error| {
        let lost = match Meaning::of(&error) {
            Meaning::Damaged => true,
            Meaning::Absent => !list(storage, folder)?.iter().any(|name| name == file),
            Meaning::NotNow | Meaning::NotAllowed => false,
        };
        match lost {
            true => Err(damaged(folder, format!("{file} cannot be read: {error}"))),
            false => Err(io_error("read", &path)(error)),
        }
    })
}

fn list(storage: &dyn Storage, folder: &Path) -> Result<Vec<String>, CheckpointError> {
    insist(|| storage.list(folder)).map_err(io_error("list", folder))
}

/// What `read` makes of a folder that may be replaced, retired or marked meanwhile. Only damage
/// that is met twice alike, in a folder that still is there, is damage.
fn settled<T>(
    storage: &dyn Storage,
    folder: &Path,
    read: impl Fn() -> Result<T, CheckpointError>,
) -> Result<T, CheckpointError> {
    let mut found = read();
    for _ in 1..READS_MAX {
        let Err(CheckpointError::Damaged { reason, .. }) = &found else { return found };
        if is_gone(storage, folder)? {
            return Err(CheckpointError::Gone { name: folder_name(folder) });
        }
        let again = read();
        match &again {
            Err(CheckpointError::Damaged { reason: same, .. }) if same == reason => return again,
            _ => found = again,
        }
    }
    found
}

/// Whether its name is no more.
fn is_gone(storage: &dyn Storage, folder: &Path) -> Result<bool, CheckpointError> {
    let above = folder.parent().unwrap_or(Path::new(""));
    let name = folder_name(folder);
    list(storage, above).map(|names| !names.contains(&name))
}

/// Reads and checks the manifest of a folder.
pub fn read_manifest(storage: &dyn Storage, folder: &Path) -> Result<Manifest, CheckpointError> {
    settled(storage, folder, || manifest_of(storage, folder))
}

fn manifest_of(storage: &dyn Storage, folder: &Path) -> Result<Manifest, CheckpointError> {
    Manifest::from_text(&folder_name(folder), &read(storage, folder, MANIFEST)?)
}

fn read_file(
    storage: &dyn Storage,
    folder: &Path,
    entry: &FileEntry,
) -> Result<Vec<u8>, CheckpointError> {
    let body = read(storage, folder, &entry.name)?;
    entry.verify(&body).map_err(|reason| damaged(folder, reason))?;
    Ok(body)
}

/// Reads every file of a folder and compares it with the manifest.
pub fn verify_files(storage: &dyn Storage, folder: &Path) -> Result<Manifest, CheckpointError> {
    settled(storage, folder, || {
        let manifest = manifest_of(storage, folder)?;
        for entry in &manifest.files {
            read_file(storage, folder, entry)?;
        }
        Ok(manifest)
    })
}

/// Reads and verifies a folder. Without an expectation the layout is the one the files imply.
pub fn read_snapshot(
    storage: &dyn Storage,
    folder: &Path,
    expect: Option<&Expectation>,
) -> Result<Snapshot, CheckpointError> {
    settled(storage, folder, || snapshot_of(storage, folder, expect))
}

fn snapshot_of(
    storage: &dyn Storage,
    folder: &Path,
    expect: Option<&Expectation>,
) -> Result<Snapshot, CheckpointError> {
    let manifest = manifest_of(storage, folder)?;
    let mut bodies = Vec::new();
    for entry in &manifest.files {
        bodies.push(read_file(storage, folder, entry)?);
    }
    // Only whole files are compared with the run: a damaged one says nothing about anything.
    if let Some(expect) = expect {
        compare(folder, &manifest, expect)?;
    }
    let [model, optimizer, state] = bodies.as_slice() else {
        return Err(damaged(folder, "the manifest does not list three files"));
    };
    let state = state_of(folder, state, &manifest)?;
    let layout = match expect {
        Some(expect) => Arc::clone(&expect.layout),
        None => {
            Arc::new(tensors::layout_of(model).map_err(|error| damaged(folder, error.to_string()))?)
        }
    };
    let other = |error| other_model(folder, &manifest, expect, &error);
    let (parameters, statistics) = tensors::read_model(model, &layout).map_err(other)?;
    let of_optimizer = tensors::read_optimizer(optimizer, &layout, &statistics).map_err(other)?;
    let Manifest { model: model_name, classes, input, normalization, .. } = manifest;
    let snapshot = Snapshot {
        layout,
        model_name,
        classes,
        input,
        normalization,
        parameters,
        statistics,
        optimizer: of_optimizer,
        state,
    };
    match snapshot.poisoned() {
        Some(what) => Err(damaged(folder, what)),
        None => Ok(snapshot),
    }
}

/// Reads and checks what a folder says of the run besides its tensors, which are not read.
pub fn read_state(storage: &dyn Storage, folder: &Path) -> Result<TrainState, CheckpointError> {
    settled(storage, folder, || {
        let manifest = manifest_of(storage, folder)?;
        let entry = manifest.files.iter().find(|file| file.name == STATE);
        let entry = entry.ok_or_else(|| damaged(folder, "the manifest does not list its state"))?;
        state_of(folder, &read_file(storage, folder, entry)?, &manifest)
    })
}

fn state_of(
    folder: &Path,
    bytes: &[u8],
    manifest: &Manifest,
) -> Result<TrainState, CheckpointError> {
    let mut state = wire::decode(bytes).map_err(|error| match error {
        wire::WireError::Newer(format) => {
            let name = folder_name(folder);
            CheckpointError::Newer { name, format, known: wire::VERSION }
        }
        wire::WireError::Malformed(reason) => damaged(folder, reason),
    })?;
    // One manifest binds weights and data cursor; see that it binds these two.
    if (state.step, state.cursor) != (manifest.step, manifest.cursor) {
        return Err(damaged(folder, "state.bin and the manifest name different steps"));
    }
    state.arithmetic.clone_from(&manifest.arithmetic);
    state.grid.clone_from(&manifest.grid);
    (state.improvement, state.contents) = (manifest.improvement, manifest.contents);
    for line in &mut state.ledger_tail {
        line.zero_update = manifest.zero_updates.contains(&line.step);
    }
    Ok(state)
}

fn compare(
    folder: &Path,
    manifest: &Manifest,
    expect: &Expectation,
) -> Result<(), CheckpointError> {
    let pairs = [
        ("model", &manifest.model, Some(expect.model_name.clone())),
        (CONFIGURATION, &manifest.config_fingerprint, expect.config_fingerprint.map(hex)),
        ("training set", &manifest.data_fingerprint, expect.data_fingerprint.map(hex)),
        ("run", &manifest.run_id, expect.run_id.clone()),
    ];
    for (what, found, expected) in pairs {
        if let Some(expected) = expected.filter(|expected| expected != found) {
            let (name, found) = (folder_name(folder), found.clone());
            return Err(CheckpointError::Other { name, what, found, expected });
        }
    }
    Ok(())
}

/// Files that verify but do not fit: another model under the same name.
fn other_model(
    folder: &Path,
    manifest: &Manifest,
    expect: Option<&Expectation>,
    error: &tensors::TensorError,
) -> CheckpointError {
    match expect {
        Some(expect) => CheckpointError::Other {
            name: folder_name(folder),
            what: "model",
            found: format!("{} ({error})", manifest.model),
            expected: expect.model_name.clone(),
        },
        None => damaged(folder, error.to_string()),
    }
}

/// Published folders, newest first, with their steps. A folder that was caught between the two
/// renames of `publish` counts under its `.old` name.
pub fn published(storage: &dyn Storage) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let folder = Path::new(FOLDER);
    let names = list(storage, folder)?;
    let whole = names.iter().filter(|name| step_of(name).is_some());
    let mut found: BTreeMap<u64, PathBuf> = BTreeMap::new();
    for name in names.iter().filter(|name| name.ends_with(OLD)).chain(whole) {
        // The published name comes last and replaces the other.
        if let Some(step) = step_of(name.strip_suffix(OLD).unwrap_or(name)) {
            found.insert(step, folder.join(name));
        }
    }
    Ok(found.into_iter().rev().collect())
}

/// The newest published step, verified or not; `None` where there is none or the storage says no.
pub fn newest_step(storage: &dyn Storage) -> Option<u64> {
    published(storage).ok()?.first().map(|(step, _)| *step)
}

/// Names of the checkpoints that are never tried again.
pub fn marked(storage: &dyn Storage) -> Result<Vec<String>, CheckpointError> {
    let folder = Path::new(FOLDER);
    let names = list(storage, folder)?;
    Ok(names.into_iter().filter(|name| name.ends_with(BAD)).collect())
}

/// The first published checkpoint, newest first, that `take` takes; `None` from it passes on to the
/// next older one. Where one is gone by the time it is read, the list is old and made anew: the run
/// has written a newer one.
pub fn newest<T>(
    storage: &dyn Storage,
    mut take: impl FnMut(u64, &Path) -> Result<Option<T>, CheckpointError>,
) -> Result<Option<T>, CheckpointError> {
    let mut lists = 1;
    loop {
        let found = published(storage)?.into_iter();
        let mut taken = found.map(|(step, folder)| take(step, &folder));
        match taken.find_map(Result::transpose).transpose() {
            Err(CheckpointError::Gone { .. }) if lists < LISTS_MAX => lists += 1,
            result => return result,
        }
    }
}
