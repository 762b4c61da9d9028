//! What a run's folder held before a start: one that is refused leaves it so. Only what a start
//! makes is removed, whatever else has come to lie there meanwhile.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::Shown;
use crate::observe::ledger::LEDGER_FILE;
use crate::observe::log::EVENTS_FILE;
use crate::observe::refusal::if_there;
use crate::observe::result::{RunResult, Status};
use crate::observe::storage::{FileSystem, Storage};

use super::{CACHE, FAILURE, RESULT};

/// Files that a start writes or moves: what was in them comes back.
const FILES: [&str; 3] = ["config.toml", RESULT, FAILURE];
/// What else a start makes in the folder.
const MADE: [&str; 6] = ["lock", "instance", "world.json", "metrics.csv", "tensorboard", CACHE];
/// And below `logs`, by how the names begin.
const LOGS: &str = "logs";
const LOGS_MADE: [&str; 4] = ["attempt-", "mpirun-", "agent-", "result-before-"];

/// Result, configuration and moved run of one start.
#[derive(Debug)]
pub struct Before {
    folder: PathBuf,
    /// Whether there was one.
    there: bool,
    files: Vec<(&'static str, Option<Vec<u8>>)>,
    /// Names in it and below `logs`.
    names: BTreeSet<PathBuf>,
    events_bytes: u64,
    /// Where the run that was there went (`--fresh`).
    aside: Option<PathBuf>,
    /// What earlier starts have moved aside.
    older: Vec<PathBuf>,
}

impl Before {
    /// Looks. There may be no such folder.
    ///
    /// # Errors
    /// What is there cannot be read.
    pub fn of(folder: &Path) -> io::Result<Self> {
        let read = |name: &'static str| -> io::Result<_> {
            Ok((name, if_there(std::fs::read(folder.join(name)))?))
        };
        let files = FILES.into_iter().map(read).collect::<io::Result<Vec<_>>>()?;
        let names = names(folder)?.into_iter().collect();
        let (there, events_bytes) = (folder.exists(), events_bytes(folder)?);
        let (folder, aside, older) = (folder.to_owned(), None, Vec::new());
        Ok(Self { folder, there, files, names, events_bytes, aside, older })
    }

    /// The run that was there lies in `aside`; the folder is another one.
    pub fn moved_to(folder: &Path, aside: PathBuf) -> io::Result<Self> {
        let mut older = super::copies(folder)?;
        older.retain(|copy| *copy != aside && super::find(copy).is_ok());
        Ok(Self { aside: Some(aside), older, ..Self::of(folder)? })
    }

    /// What goes once the run has begun.
    pub fn older(&self) -> &[PathBuf] {
        &self.older
    }

    /// Of the runs that were moved aside the newest stays, once both it and the one that has its
    /// place hold work: none goes for one that never began.
    ///
    /// # Errors
    /// The kernel's, with what it was about.
    pub fn keep_one_copy(&self) -> io::Result<()> {
        let Some(aside) = &self.aside else { return Ok(()) };
        if !holds_work(aside)? || !holds_work(&self.folder)? {
            return Ok(());
        }
        self.older.iter().try_for_each(|copy| {
            std::fs::remove_dir_all(copy).map_err(|error| {
                io::Error::new(error.kind(), format!("removing {}: {error}", copy.shown()))
            })
        })
    }

    /// Whether the run that is there has completed: a start that does not begin leaves it so.
    pub fn had_completed(&self) -> bool {
        let mut files = self.files.iter();
        let result = files.find(|(name, _)| *name == RESULT).and_then(|(_, body)| body.as_deref());
        result.is_some_and(completed)
    }

    /// A start that told of nothing leaves the configuration of those before it: it may have named
    /// what is not the run's.
    ///
    /// # Errors
    /// The kernel's, with what it was about.
    pub fn keep_configuration(&self) -> io::Result<()> {
        let (name, body) = &self.files[0];
        match body.is_some() && events_bytes(&self.folder)? == self.events_bytes {
            true => self.restore(name, body.as_deref()),
            false => Ok(()),
        }
    }

    fn restore(&self, name: &str, body: Option<&[u8]>) -> io::Result<()> {
        let storage = FileSystem::new(&self.folder);
        let (path, now) = (Path::new(name), if_there(std::fs::read(self.folder.join(name)))?);
        match body {
            Some(body) if now.as_deref() != Some(body) => storage.write_whole(path, &[body]),
            None if now.is_some() => storage.remove(path),
            _ => Ok(()),
        }
    }

    /// The start was refused: makes the folder what it was, unless the run has begun or gone on
    /// meanwhile. Whether it did.
    ///
    /// # Errors
    /// The kernel's, with what it was about.
    pub fn put_back(&self) -> io::Result<bool> {
        if events_bytes(&self.folder)? != self.events_bytes {
            return Ok(false);
        }
        for (name, body) in &self.files {
            self.restore(name, body.as_deref())?;
        }
        let storage = FileSystem::new(&self.folder);
        let mut made = names(&self.folder)?.into_iter().filter(|name| self.is_made(name));
        made.try_for_each(|name| storage.remove(&name))?;
        // Who has put something there keeps it.
        if !self.names.contains(Path::new(LOGS)) {
            let _ = std::fs::remove_dir(self.folder.join(LOGS));
        }
        if !self.there {
            let _ = std::fs::remove_dir(&self.folder);
        }
        match &self.aside {
            Some(aside) => std::fs::rename(aside, &self.folder).map(|()| true).map_err(|error| {
                io::Error::new(error.kind(), format!("moving {} back: {error}", aside.shown()))
            }),
            None => Ok(true),
        }
    }

    fn is_made(&self, name: &Path) -> bool {
        if self.names.contains(name) {
            return false;
        }
        let text = name.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match name.parent() {
            Some(parent) if parent == Path::new(LOGS) => {
                LOGS_MADE.iter().any(|begin| text.starts_with(begin))
            }
            _ => MADE.contains(&text),
        }
    }
}

/// Relative to the folder; none where it does not exist.
fn names(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for below in ["", LOGS] {
        let entries = if_there(std::fs::read_dir(folder.join(below)))?;
        for entry in entries.into_iter().flatten() {
            all.push(Path::new(below).join(entry?.file_name()));
        }
    }
    Ok(all)
}

/// Whether a run has committed a step, or completed.
fn holds_work(folder: &Path) -> io::Result<bool> {
    let ledger = if_there(std::fs::metadata(folder.join(LEDGER_FILE)))?;
    let result = if_there(std::fs::read(folder.join(RESULT)))?;
    Ok(ledger.is_some_and(|ledger| ledger.len() > 0) || result.as_deref().is_some_and(completed))
}

/// Whether a result says so.
fn completed(body: &[u8]) -> bool {
    let result = serde_json::from_slice::<RunResult>(body).ok();
    result.is_some_and(|result| result.status == Status::Completed)
}

fn events_bytes(folder: &Path) -> io::Result<u64> {
    let facts = if_there(std::fs::metadata(folder.join(EVENTS_FILE)))?;
    Ok(facts.map_or(0, |facts| facts.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every file below a folder with its bytes.
    fn tree(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let mut all = Vec::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(at) = folders.pop() {
            for entry in std::fs::read_dir(&at).into_iter().flatten().flatten() {
                match entry.path() {
                    path if path.is_dir() => folders.push(path),
                    path => all.push((path.clone(), std::fs::read(path).unwrap())),
                }
            }
        }
        all.sort();
        all
    }

    /// What a start does to a folder before its ranks refuse it.
    fn start(run: &Path) {
        std::fs::create_dir_all(run.join("logs")).unwrap();
        std::fs::create_dir_all(run.join(CACHE)).unwrap();
        if run.join(RESULT).exists() {
            std::fs::rename(run.join(RESULT), run.join("logs/result-before-2.json")).unwrap();
        }
        for name in ["config.toml", FAILURE, "lock", "logs/mpirun-2.log", "cache/train.index"] {
            std::fs::write(run.join(name), "of the start").unwrap();
        }
    }

    #[test]
    fn the_table_has_every_name_that_a_start_makes() {
        let table = include_str!("README.md");
        for name in FILES.iter().chain(&MADE) {
            let is_there = [format!("`{name}`"), format!("`{name}/`")];
            assert!(is_there.iter().any(|word| table.contains(word)), "{name}");
        }
    }

    #[test]
    fn a_run_that_was_there_is_what_it_was_and_what_others_put_there_stays() {
        let above = tempfile::tempdir().unwrap();
        let run = above.path().join("run");
        std::fs::create_dir_all(run.join("logs")).unwrap();
        for name in ["config.toml", RESULT, "lock", EVENTS_FILE, "logs/mpirun-1.log"] {
            std::fs::write(run.join(name), "of the run").unwrap();
        }
        let (before, mut held) = (Before::of(&run).unwrap(), tree(&run));
        start(&run);
        before.keep_configuration().unwrap();
        assert_eq!(std::fs::read(run.join("config.toml")).unwrap(), b"of the run");
        std::fs::write(run.join("config.toml"), "of the start").unwrap();
        std::fs::write(run.join("logs/notes.txt"), "mine").unwrap();
        assert!(before.put_back().unwrap());
        held.push((run.join("logs/notes.txt"), b"mine".to_vec()));
        held.sort();
        // Attempts are counted on.
        held.iter_mut().find(|(path, _)| path.ends_with("lock")).unwrap().1 =
            b"of the start".to_vec();
        assert_eq!(tree(&run), held);
        start(&run);
        std::fs::write(run.join(EVENTS_FILE), "of the run, and more").unwrap();
        let went_on = tree(&run);
        before.keep_configuration().unwrap();
        assert!(!before.put_back().unwrap(), "it went on");
        assert_eq!(tree(&run), went_on);
    }

    #[test]
    fn a_folder_that_was_not_there_is_gone_again_and_one_that_was_moved_is_back() {
        let above = tempfile::tempdir().unwrap();
        let run = above.path().join("run");
        let before = Before::of(&run).unwrap();
        start(&run);
        assert!(before.put_back().unwrap());
        assert!(!run.exists());
        let aside = above.path().join("run.old-1");
        std::fs::create_dir(&aside).unwrap();
        std::fs::write(aside.join("config.toml"), "of the run").unwrap();
        let before = Before::moved_to(&run, aside.clone()).unwrap();
        start(&run);
        assert!(before.put_back().unwrap());
        assert_eq!(tree(&run), [(run.join("config.toml"), b"of the run".to_vec())]);
        assert!(!aside.exists());
    }

    #[test]
    fn of_copies_the_newest_stays_and_only_once_both_hold_work() {
        let above = tempfile::tempdir().unwrap();
        let run = above.path().join("run");
        let names = ["run.old-1", "run.old-2", "run.old-x", "other.old-1", "run.old-3"];
        let copies = names.map(|name| above.path().join(name));
        for copy in copies.iter().chain([&run]) {
            std::fs::create_dir(copy).unwrap();
        }
        // The last one is no run.
        copies[..4].iter().for_each(|copy| std::fs::write(copy.join("config.toml"), "").unwrap());
        let before = Before::moved_to(&run, copies[1].clone()).unwrap();
        assert_eq!(before.older(), [copies[0].clone()]);
        let commit = |run: &Path| std::fs::write(run.join(LEDGER_FILE), "{}\n").unwrap();
        let there = || copies.each_ref().map(|copy| copy.exists());
        before.keep_one_copy().unwrap();
        commit(&run);
        // What stays would hold nothing.
        before.keep_one_copy().unwrap();
        assert_eq!(there(), [true; 5]);
        commit(&copies[1]);
        before.keep_one_copy().unwrap();
        assert_eq!(there(), [false, true, true, true, true]);
    }
}
