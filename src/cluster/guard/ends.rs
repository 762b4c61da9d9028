//! How the processes of an attempt ended, as their last words tell (`last_words`): for a supervisor
//! that was not among them.

use std::path::Path;
use std::time::SystemTime;

use kintsugi_ffi::os;

use super::last_words::{self, Evidence};

/// How a rank ends that lost the others.
const GAVE_UP: &str = "exit code 75";

/// The end of a log that is looked at.
const LOG_TAIL_BYTES: usize = 64 << 10;

/// One process that did not end in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// When its words were last added to.
    written: SystemTime,
    /// Its files below `RUN/logs`, without what they end with.
    pub name: String,
    words: String,
}

impl End {
    /// Whether it ended because of others.
    fn gave_up(&self) -> bool {
        last_words::status(&self.words) == Some(GAVE_UP)
    }

    /// Its rank, where MPI had not started: the others wait for it there, and never hear of it.
    pub fn unmet(&self) -> Option<u32> {
        last_words::unmet(&self.words)
    }

    /// One line for a person: rank, process, host, cause. `folder`: `RUN/logs`.
    pub fn told(&self, folder: &Path) -> String {
        let log = std::fs::read(folder.join(format!("{}.log", self.name))).unwrap_or_default();
        let log = String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_TAIL_BYTES)..]);
        let (last_words, log) = (self.words.clone(), log.into_owned());
        let cause = last_words::cause(&Evidence { last_words, log, injected: None });
        let process = match process(&self.name) {
            Some((Some(host), pid)) => format!("process {pid} on {host}"),
            Some((None, pid)) => format!("process {pid} on {}", os::hostname()),
            None => self.name.clone(),
        };
        match self.unmet() {
            Some(rank) => format!("rank {rank}, {process}, ended before MPI had started: {cause}"),
            None => format!("{process}: {cause}"),
        }
    }
}

/// Host and pid of a process in the name of its files.
fn process(name: &str) -> Option<(Option<&str>, &str)> {
    let rest = name.strip_prefix("attempt-")?;
    let (_, process) = rest.split_once('-')?;
    match process.rsplit_once("-pid-") {
        Some((host, pid)) => Some((Some(host), pid)),
        None => Some((None, process.strip_prefix("pid-")?)),
    }
}

/// The processes of an attempt that did not end in order and have left word of it, the first one
/// first: those after it may have been ended because of it, and those that gave up certainly were.
/// `folder`: `RUN/logs`.
pub fn of_attempt(folder: &Path, attempt: u32) -> Vec<End> {
    let prefix = format!("attempt-{attempt}-");
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut ends: Vec<End> = entries
        .flatten()
        .filter_map(|entry| {
            let file = entry.file_name().into_string().ok()?;
            let name = file.strip_suffix(".end").filter(|name| name.starts_with(&prefix))?;
            let written = entry.metadata().ok()?.modified().ok()?;
            let words = std::fs::read_to_string(entry.path()).ok()?;
            Some(End { written, name: name.to_owned(), words })
        })
        .collect();
    ends.sort_by_key(|end| (end.gave_up(), end.written));
    ends
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::guard::last_words::{MEMORY, STATUS, UNMET, VERDICT, leave};

    fn first(folder: &Path, attempt: u32) -> Option<String> {
        Some(of_attempt(folder, attempt).first()?.told(folder))
    }

    #[test]
    fn the_first_of_an_attempt_is_named_with_its_host_and_the_end_of_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let (folder, host) = (folder.path(), os::hostname());
        leave(&folder.join("attempt-1-pid-42.end"), VERDICT, "two\nlines");
        leave(&folder.join("attempt-2-pid-7.end"), VERDICT, "of another attempt");
        leave(&folder.join("attempt-12-n-4-pid-8.end"), STATUS, "exit code 101");
        let log = "thread 'main' panicked at x\nno thread: Resource temporarily unavailable\n";
        std::fs::write(folder.join("attempt-12-n-4-pid-8.log"), log).unwrap();
        leave(&folder.join("attempt-3.end"), VERDICT, "the world was killed");
        assert_eq!(first(folder, 1), Some(format!("process 42 on {host}: two lines")));
        let told = first(folder, 12).unwrap();
        assert!(told.starts_with("process 8 on n-4: exit code 101; its log says:"), "{told}");
        assert!(told.ends_with("Resource temporarily unavailable"), "{told}");
        assert_eq!(first(folder, 3), None);
        leave(&folder.join("attempt-4-pid-1.end"), STATUS, "exit code 75");
        std::thread::sleep(std::time::Duration::from_millis(20));
        leave(&folder.join("attempt-4-pid-2.end"), STATUS, "signal 9 (SIGKILL)");
        assert_eq!(first(folder, 4), Some(format!("process 2 on {host}: signal 9 (SIGKILL)")));
        assert_eq!(first(&folder.join("absent"), 1), None);
    }

    #[test]
    fn only_who_ended_before_mpi_had_started_is_waited_for_in_vain() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("attempt-1-pid-42.end");
        let unmet = || of_attempt(folder.path(), 1)[0].unmet();
        leave(&path, UNMET, "3");
        assert_eq!(unmet(), None, "its end is not told yet");
        leave(&path, STATUS, "signal 9 (SIGKILL)");
        leave(&path, MEMORY, "out of memory");
        assert_eq!(unmet(), Some(3));
        let told = first(folder.path(), 1).unwrap();
        assert!(told.starts_with("rank 3, process 42 on "), "{told}");
        assert!(told.ends_with("before MPI had started: out of memory; signal 9 (SIGKILL)"));
        leave(&folder.path().join("attempt-2-pid-43.end"), STATUS, "exit code 75");
        assert_eq!(of_attempt(folder.path(), 2)[0].unmet(), None, "it had met the others");
    }
}
