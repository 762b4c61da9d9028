//! A memory group of our own, version 1 or 2, for measurements of the kernel's page cache: child
//! processes enter it, its limit is moved, and it goes when they have ended.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Version 2 has this file in each group but the root's.
const LIMIT_V2: &str = "memory.high";
const LIMIT_V1: &str = "memory.limit_in_bytes";
/// Looks at a group whose processes are just ending, and the time between two.
const REMOVALS_MAX: u32 = 100;
const REMOVAL_PAUSE: Duration = Duration::from_millis(50);

/// Where it is: the two versions name their files differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// What a group's memory is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of files that the kernel has read or will write: it gives them back when it must.
    pub files_bytes: u64,
    /// All else: memory of processes, files in /dev/shm, the kernel's own.
    pub held_bytes: u64,
}

/// See the module. Whoever makes it removes it.
#[derive(Debug)]
pub struct Group {
    folder: PathBuf,
    version: Version,
}

impl Group {
    /// Makes a group of this name below this process's own, or below the nearest one above it
    /// whose groups may have limits of memory.
    ///
    /// # Errors
    /// This user may make none, or no group here limits memory.
    pub fn make(name: &str) -> io::Result<Self> {
        let none = io::Error::new(io::ErrorKind::Unsupported, "no memory controller is mounted");
        let mut refusal = none;
        for parent in super::memory_folders() {
            match Self::below(&parent, name) {
                Ok(group) => return Ok(group),
                Err(error) => refusal = error,
            }
        }
        Err(refusal)
    }

    fn below(parent: &Path, name: &str) -> io::Result<Self> {
        let subtree = parent.join("cgroup.subtree_control");
        if subtree.exists() {
            // Refused where the parent has processes of its own; it may be on all the same.
            let _ = fs::write(&subtree, "+memory");
        }
        let folder = parent.join(name);
        fs::create_dir(&folder)?;
        let versions = [(LIMIT_V2, Version::Two), (LIMIT_V1, Version::One)];
        let found = versions.into_iter().find(|(limit, _)| folder.join(limit).exists());
        let Some((_, version)) = found else {
            let _ = fs::remove_dir(&folder);
            let text = format!("groups in {} have no limit of memory", parent.display());
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        };
        if version == Version::One {
            // Without swap only files give way; who finds no room waits for a higher limit and is
            // not killed. A kernel without these has them one way or the other.
            let _ = fs::write(folder.join("memory.swappiness"), "0");
            let _ = fs::write(folder.join("memory.oom_control"), "1");
        }
        Ok(Self { folder, version })
    }

    /// For [`crate::process::enter`].
    ///
    /// # Errors
    /// The kernel's.
    pub fn entrance(&self) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.folder.join("cgroup.procs"))
    }

    /// What it uses now.
    ///
    /// # Errors
    /// The kernel's.
    pub fn usage(&self) -> io::Result<Usage> {
        let all = match self.version {
            Version::One => "memory.usage_in_bytes",
            Version::Two => "memory.current",
        };
        let all = fs::read_to_string(self.folder.join(all))?;
        let statistics = fs::read_to_string(self.folder.join("memory.stat"))?;
        usage(&all, &statistics).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Its processes may use so much from now on. What the kernel cannot take back at once it
    /// takes as it can.
    ///
    /// # Errors
    /// The kernel's; "busy" where there is less to take back than asked for.
    pub fn limit(&self, bytes: u64) -> io::Result<()> {
        let file = match self.version {
            Version::One => LIMIT_V1,
            Version::Two => LIMIT_V2,
        };
        fs::write(self.folder.join(file), bytes.to_string())
    }

    /// Removes it as soon as its processes have ended.
    ///
    /// # Errors
    /// Some have not within a few seconds.
    pub fn remove(&self) -> io::Result<()> {
        let mut tries = 0;
        loop {
            match fs::remove_dir(&self.folder) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    tries += 1;
                    if tries == REMOVALS_MAX {
                        return Err(error);
                    }
                    std::thread::sleep(REMOVAL_PAUSE);
                }
                outcome => return outcome,
            }
        }
    }
}

/// Removes groups in which nobody is, whose names begin so and go on with the pid of their maker,
/// which was killed.
pub fn sweep(prefix: &str) {
    for parent in super::memory_folders() {
        for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(Ok(maker)) = name.strip_prefix(prefix).map(str::parse::<u32>) else {
                continue;
            };
            // One that lives may be about to use it. The kernel refuses while somebody is there.
            if !crate::os::process_is_alive(maker) {
                let _ = fs::remove_dir(entry.path());
            }
        }
    }
}

fn usage(all: &str, statistics: &str) -> Option<Usage> {
    let of = |key: &str| {
        let line = statistics.lines().find_map(|line| line.strip_prefix(key));
        line?.trim().parse::<u64>().ok()
    };
    // Version 1 has both; the first is with the groups below.
    let either = |total: &str, own: &str| of(total).or_else(|| of(own));
    let inactive = either("total_inactive_file ", "inactive_file ")?;
    let files_bytes = inactive + either("total_active_file ", "active_file ")?;
    let all: u64 = all.trim().parse().ok()?;
    Some(Usage { files_bytes, held_bytes: all.saturating_sub(files_bytes) })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn files_are_told_from_all_else_in_both_versions() {
        let one = "inactive_file 5\nactive_file 6\ntotal_inactive_file 30\ntotal_active_file 20\n";
        let expected = Usage { files_bytes: 50, held_bytes: 950 };
        assert_eq!(usage("1000\n", one), Some(expected));
        let two = "anon 900\nfile 90\ninactive_file 30\nactive_file 20\n";
        assert_eq!(usage("1000\n", two), Some(expected));
        assert_eq!(usage("40", two), Some(Usage { files_bytes: 50, held_bytes: 0 }));
        assert_eq!((usage("x", two), usage("1000", "anon 900")), (None, None));
    }

    /// A real group where this user may make one: elsewhere the refusal is an error in words.
    #[test]
    fn a_child_that_enters_is_counted_and_the_group_goes_with_it() {
        let name = format!("kintsugi-test-{}", std::process::id());
        let group = match Group::make(&name) {
            Ok(group) => group,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                println!("skipped: no memory group can be made: {error}");
                return;
            }
        };
        let mut command = Command::new("sleep");
        crate::process::enter(&mut command, group.entrance().expect("opened"));
        let mut child = command.arg("60").spawn().expect("started");
        let inside = fs::read_to_string(format!("/proc/{}/cgroup", child.id())).expect("read");
        assert!(inside.contains(&name), "{inside}");
        group.limit(64 << 20).expect("room enough");
        assert!(group.usage().expect("counted").held_bytes < 64 << 20);
        sweep("kintsugi-test-");
        assert!(group.folder.exists(), "its maker lives");
        child.kill().expect("killed");
        child.wait().expect("ended");
        group.remove().expect("empty");
        assert!(!group.folder.exists());
        // One whose maker has ended goes with the next maker's look.
        let left = Group::make(&format!("kintsugi-test-{}", child.id())).expect("made");
        sweep("kintsugi-test-");
        assert!(!left.folder.exists());
    }
}
