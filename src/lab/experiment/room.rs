//! Room for the kernel's page cache: the processes of a run are in a memory group of their own,
//! whose limit is moved with what they hold, so that what is left for pages of files stays the
//! same. What the kernel has of the set is forgotten before.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use kintsugi_ffi::cgroup::group::{self, Group};
use kintsugi_ffi::{os, process};

use crate::config::{Shown, parse};
use crate::data::set::open::open;
use crate::data::{DataError, Split};
use crate::lab::report::PageRoom;

/// Names of groups begin so; their makers' pids follow.
const PREFIX: &str = "kintsugi-experiment-";
/// A limit that is off by less is left as it is.
const SLACK_BYTES: u64 = 1 << 16;

/// The group of one run.
pub struct Room {
    group: Group,
    bytes: u64,
    limit_bytes: u64,
    /// Bytes of files that were there, look by look.
    seen_bytes: Vec<u64>,
}

impl Room {
    /// Makes a group in which pages of files will have so many bytes.
    ///
    /// # Errors
    /// In words: what this user or machine cannot have, and what to do.
    pub fn make(bytes: u64) -> Result<Self, String> {
        group::sweep(PREFIX);
        let name = format!("{PREFIX}{}", std::process::id());
        let group = Group::make(&name).map_err(|error| {
            format!(
                "page_cache wants a memory control group, and none can be made: {error}; run it \
                 as root where the memory controller of cgroups (version 1 or 2) can be written, \
                 or leave page_cache out"
            )
        })?;
        Ok(Self { group, bytes, limit_bytes: 0, seen_bytes: Vec::new() })
    }

    /// The command, and all that it starts, will run in there.
    pub fn receive(&self, command: &mut Command) -> io::Result<()> {
        process::enter(command, self.group.entrance()?);
        Ok(())
    }

    /// Moves the limit with what the processes hold, from when files first fill their room: a run
    /// that is about to start looks how much memory there is. To be called often: what processes
    /// take between two calls they take from the files.
    pub fn tend(&mut self) {
        let Ok(usage) = self.group.usage() else { return };
        self.seen_bytes.push(usage.files_bytes);
        if self.limit_bytes == 0 && usage.files_bytes < self.bytes {
            return;
        }
        let wanted = usage.held_bytes + self.bytes;
        if wanted.abs_diff(self.limit_bytes) > SLACK_BYTES && self.group.limit(wanted).is_ok() {
            self.limit_bytes = wanted;
        }
    }

    /// Nobody was in there.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn give_up(self) -> Result<(), String> {
        self.group.remove().map_err(|error| format!("a memory group stays behind: {error}"))
    }

    /// The run has ended: its group goes. What was there of files in the second half of the run.
    pub fn close(mut self) -> io::Result<PageRoom> {
        self.group.remove()?;
        let mut later = self.seen_bytes.split_off(self.seen_bytes.len() / 2);
        later.sort_unstable();
        let files_bytes = later.get(later.len() / 2).copied().unwrap_or_default();
        Ok(PageRoom { bytes: self.bytes, files_bytes })
    }
}

/// What a configuration trains on is read from the device by whoever reads it next.
///
/// # Errors
/// The set or one of its files cannot be opened.
pub fn forget_set(config: &Path, overrides: &[String]) -> Result<(), DataError> {
    let failed = |text: String| DataError::Set(text);
    let config = parse::load(config, overrides).map_err(|error| failed(error.to_string()))?;
    let set = open(&config.data, Split::Train, config.run.seed)?;
    let located = (0..set.source.len()).filter_map(|id| set.source.location(id));
    let mut last = PathBuf::new();
    for location in located {
        if location.file == last {
            continue;
        }
        last = location.file.to_path_buf();
        let forgotten = File::open(&last).and_then(|file| {
            file.sync_data()?;
            os::forget_pages(&file)
        });
        forgotten.map_err(|error| failed(format!("{}: {error}", last.shown())))?;
    }
    Ok(())
}
