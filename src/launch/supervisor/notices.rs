//! What ranks' logs say that a person must act on (`observe::notice`), each text once: ranks share
//! disks and machines, so many of them say the same.

use std::collections::{BTreeSet, HashMap};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::config::Shown;
use crate::observe::notice;

/// Texts that are shown; logs have the others.
const SHOWN_MAX: usize = 40;
/// Bytes of one log that are taken in at one look.
const LOOK_BYTES_MAX: u64 = 256 << 10;
/// With less room not even logs can say what is wrong.
const ROOM_MIN: u64 = 64 << 10;

/// What was read and shown.
#[derive(Debug, Default)]
pub(super) struct Notices {
    /// Bytes that were read of each log.
    read: HashMap<PathBuf, u64>,
    shown: BTreeSet<String>,
    full: bool,
}

impl Notices {
    /// What an attempt's logs say since the last look.
    pub(super) fn look(&mut self, logs: &Path, attempt: u32) -> Vec<String> {
        let prefix = format!("attempt-{attempt}-");
        let Ok(entries) = std::fs::read_dir(logs) else { return Vec::new() };
        let mut fresh = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if !name.starts_with(&prefix) || !name.ends_with(".log") {
                continue;
            }
            for text in self.read_on(&entry.path()) {
                fresh.extend(self.show(&text));
            }
        }
        fresh
    }

    /// Once: the disk of the run, with so many bytes free, is full, so that ranks cannot even say
    /// so in their logs.
    pub(super) fn full_disk(&mut self, run: &Path, free_bytes: Option<u64>) -> Option<String> {
        let full = free_bytes.is_some_and(|free| free < ROOM_MIN);
        (full && !std::mem::replace(&mut self.full, true)).then(|| {
            format!(
                "no room is left on the disk of {}: until there is, events, ledger, logs and \
                 checkpoints are not written; make room there",
                run.shown()
            )
        })
    }

    fn show(&mut self, text: &str) -> Option<String> {
        if self.shown.len() >= SHOWN_MAX || !self.shown.insert(text.to_owned()) {
            return None;
        }
        match self.shown.len() < SHOWN_MAX {
            true => Some(text.to_owned()),
            false => Some("further warnings are in RUN/logs only".into()),
        }
    }

    /// Marked warnings in the whole lines that were added to a log.
    fn read_on(&mut self, path: &Path) -> Vec<String> {
        let from = self.read.get(path).copied().unwrap_or_default();
        let mut added = Vec::new();
        let read = std::fs::File::open(path).and_then(|mut file| {
            if file.metadata()?.len() <= from {
                return Ok(());
            }
            file.seek(SeekFrom::Start(from))?;
            file.take(LOOK_BYTES_MAX).read_to_end(&mut added).map(drop)
        });
        if read.is_err() {
            return Vec::new();
        }
        let whole = match added.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => &added[..=end],
            None if added.len() as u64 == LOOK_BYTES_MAX => &added[..],
            None => return Vec::new(),
        };
        self.read.insert(path.to_owned(), from + whole.len() as u64);
        let text = String::from_utf8_lossy(whole);
        text.lines().filter_map(notice::in_line).map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_full_disk_is_said_once() {
        let (mut notices, run) = (Notices::default(), Path::new("runs/x"));
        assert_eq!(notices.full_disk(run, None), None);
        assert_eq!(notices.full_disk(run, Some(ROOM_MIN)), None);
        assert!(notices.full_disk(run, Some(0)).unwrap().contains("disk of runs/x"));
        assert_eq!(notices.full_disk(run, Some(0)), None);
    }

    #[test]
    fn each_warning_to_act_on_is_shown_once_whoever_says_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut notices = Notices::default();
        assert!(notices.look(&folder.path().join("absent"), 1).is_empty());
        let say = |log: &str, text: &str| {
            let path = folder.path().join(log);
            let file = std::fs::File::options().create(true).append(true).open(path);
            file.unwrap().write_all(text.as_bytes()).unwrap();
        };
        say("attempt-1-pid-7.log", "T WARN mere words\nT  WARN to act on: no room\n");
        say("attempt-1-pid-8.log", "T  WARN to act on: no room\n");
        say("attempt-12-pid-8.log", "T  WARN to act on: of another attempt\n");
        assert_eq!(notices.look(folder.path(), 1), ["no room"]);
        say("attempt-1-pid-7.log", "T  WARN to act on: a checkpoint ");
        assert!(notices.look(folder.path(), 1).is_empty(), "the line is not whole");
        say("attempt-1-pid-7.log", "is bad\n");
        assert_eq!(notices.look(folder.path(), 1), ["a checkpoint is bad"]);
        assert!(notices.look(folder.path(), 1).is_empty());
        let many: String = (0..99).map(|n| format!("T WARN to act on: {n}\n")).collect();
        say("attempt-1-pid-9.log", &many);
        let shown = notices.look(folder.path(), 1);
        assert_eq!(shown.len(), SHOWN_MAX - 2);
        assert!(shown.last().unwrap().contains("in RUN/logs"), "{shown:?}");
    }
}
