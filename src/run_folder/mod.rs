//! What the programs of a run share of its folder `RUN`: how it is named, its files, who may write
//! (`lock`), the variables through which launch speaks to its ranks (`variables`), and what MPI's
//! launcher says of a process (`launcher`). The supervisor and the ranks both use it, and neither
//! knows the other.

use std::io;
use std::path::{Path, PathBuf};

use kintsugi_ffi::os;
use thiserror::Error;

use crate::config::{Config, Shown, identity};
use crate::observe::log::EVENTS_FILE;
use crate::observe::refusal::{Meaning, insist};
use crate::observe::result::{RunResult, Status};

pub mod before;
pub mod launcher;
pub mod lock;
pub mod variables;

/// Where `kintsugi scale` leaves the number of ranks it wants, as text; `RENEW` asks the ranks to
/// end at a step boundary.
pub const RANKS_REQUEST: &str = "scale";
/// See `RANKS_REQUEST`.
pub const RENEW: &str = "renew";
/// Folder of what was learned of the data set and is used again: may be removed between two starts.
pub const CACHE: &str = "cache";
/// How the run, or its last attempt, ended.
pub const RESULT: &str = "result.json";
/// What a rank that cannot begin leaves: the kind of failure on the first line, then the reason.
pub const FAILURE: &str = "failure.txt";
/// The kind of failure that is the configuration's.
pub const CONFIGURATION: &str = "configuration";

/// What a run's folder holds from its start on, or from its first step: one is enough.
const SIGNS: [&str; 5] = ["config.toml", EVENTS_FILE, "world.json", RESULT, "lock"];

/// There is no run where one was named.
#[derive(Debug, Error)]
#[error("{} {why}: name the run directory, which `kintsugi launch` prints first", path.shown())]
pub struct NoRun {
    path: PathBuf,
    why: String,
    /// That it could not be looked at, and why: there may be one.
    unknown: Option<Meaning>,
}

/// Whether there is a run in a folder, whatever has become of it.
///
/// # Errors
/// What is there instead.
pub fn find(run_dir: &Path) -> Result<(), NoRun> {
    let no_run = |why: String| NoRun { path: run_dir.to_path_buf(), why, unknown: None };
    let unknown = |error: io::Error| NoRun {
        unknown: Some(Meaning::of(&error)),
        ..no_run(format!("cannot be read ({error})"))
    };
    let holds_a_sign = || {
        let mut signs = SIGNS.iter().map(|sign| insist(|| run_dir.join(sign).try_exists()));
        signs.find(|there| !matches!(there, Ok(false))).unwrap_or(Ok(false))
    };
    match insist(|| std::fs::metadata(run_dir)) {
        Err(error) if Meaning::of(&error) == Meaning::Absent => {
            let usual = Path::new(identity::RUNS).join(run_dir);
            let meant = usual.is_dir().then(|| format!(" (is it {}?)", usual.shown()));
            Err(no_run(format!("does not exist{}", meant.unwrap_or_default())))
        }
        Err(error) => Err(unknown(error)),
        Ok(found) if !found.is_dir() => Err(no_run("is no folder".into())),
        Ok(_) if holds_a_sign().map_err(unknown)? => Ok(()),
        Ok(_) => Err(no_run(format!("holds no run ({} or others)", SIGNS[..3].join(", ")))),
    }
}

/// Where the run of a configuration lives that nobody placed: where an earlier release let it
/// begin, if it did, else by its name of today.
///
/// # Errors
/// Whether there is one cannot be told.
pub fn usual(config: &Config) -> Result<PathBuf, NoRun> {
    let (now, earlier) = (identity::run_directory(config), identity::earlier_run_directory(config));
    for folder in [&now, &earlier] {
        match find(folder) {
            Ok(()) => return Ok(folder.clone()),
            Err(error) if error.unknown.is_some() => return Err(error),
            Err(_) => {}
        }
    }
    Ok(now)
}

/// The runs right below a folder, by name; without what `--fresh` moved aside.
///
/// # Errors
/// The folder cannot be listed, or whether one of its folders is a run cannot be told now. Those
/// that this user may not enter are nobody's that he could ask about.
pub fn below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut runs = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if original(&path).is_some() {
            continue;
        }
        match find(&path) {
            Ok(()) => runs.push(path),
            Err(error) if error.unknown == Some(Meaning::NotNow) => {
                return Err(io::Error::other(error.to_string()));
            }
            Err(_) => {}
        }
    }
    runs.sort();
    Ok(runs)
}

/// Of a folder that `--fresh` moved a run to (`NAME.old-N`), the run's own.
pub fn original(folder: &Path) -> Option<PathBuf> {
    let text = folder.to_str()?.trim_end_matches('/');
    let (run, number) = text.rsplit_once(".old-")?;
    number.parse::<u32>().ok().map(|_| PathBuf::from(run))
}

/// What `--fresh` has moved aside of a run.
///
/// # Errors
/// The folder that it lies in cannot be listed.
pub fn copies(run: &Path) -> io::Result<Vec<PathBuf>> {
    let above = run.parent().unwrap_or(run);
    let entries = std::fs::read_dir(above)?.map(|entry| Ok(entry?.path()));
    let all = entries.collect::<io::Result<Vec<PathBuf>>>()?;
    Ok(all.into_iter().filter(|path| original(path).is_some_and(|of| of == run)).collect())
}

/// Whether a launch holds the run: between two attempts no rank has its files open.
pub fn is_supervised(run: &Path) -> bool {
    let lock = std::fs::File::open(run.join("lock"));
    lock.is_ok_and(|lock| os::lock_file(&lock).is_ok_and(|lock| lock == os::Lock::Busy))
}

/// Whether a run with this result has ended: one that lost its ranks is started again by whoever
/// launched it.
pub fn has_ended(run: &Path, result: &RunResult) -> bool {
    result.status != Status::JobLost || !is_supervised(run)
}

/// The ranks that `RANKS_REQUEST` asks for, where a run of so many owners can have them.
pub fn ranks_asked(text: &[u8], owners: usize) -> Option<u32> {
    let asked = String::from_utf8_lossy(text).trim().parse::<u32>().ok();
    asked.filter(|asked| (1..=owners as u32).contains(asked))
}

/// Why a run cannot live there, if so: its name goes through command lines and JSON. `run_dir` is
/// absolute.
pub fn refusal_of_name(run_dir: &Path) -> Option<String> {
    run_dir.to_str().is_none().then(|| {
        format!("{run_dir:?}: the name of a run directory must be UTF-8; name another --run-dir")
    })
}

/// Without links, as far as it leads somewhere: before a folder is made it is called as afterwards.
pub fn canonical(path: &Path) -> PathBuf {
    let real = path.ancestors().find_map(|above| {
        let below = path.strip_prefix(above).ok()?;
        let real = above.canonicalize().ok()?;
        // Joined to nothing, a path would end with a slash.
        Some(if below.as_os_str().is_empty() { real } else { real.join(below) })
    });
    real.unwrap_or_else(|| path.to_path_buf())
}

/// What is there of a path: itself, or the nearest above it. A link that leads nowhere is there.
pub fn nearest(path: &Path) -> &Path {
    path.ancestors().find(|above| above.symlink_metadata().is_ok()).unwrap_or(path)
}

/// Short, the same for every attempt in this folder, different for every other folder. `run_dir` is
/// absolute.
pub fn id(run_dir: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let path = canonical(run_dir);
    format!("{:08x}", xxhash_rust::xxh3::xxh3_64(path.as_os_str().as_bytes()) >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_nowhere_is_no_run_and_hides_none() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        std::fs::create_dir(&run).unwrap();
        std::fs::write(run.join("lock"), "").unwrap();
        for (name, target) in [("loop", "loop"), ("gone", "nowhere")] {
            std::os::unix::fs::symlink(target, folder.path().join(name)).unwrap();
        }
        assert_eq!(below(folder.path()).unwrap(), [run]);
        assert!(find(&folder.path().join("loop")).unwrap_err().unknown.is_none());
        // Longer than any name: it may be there under another.
        let unnamed = find(&folder.path().join("x".repeat(300))).unwrap_err();
        assert_eq!(unnamed.unknown, Some(Meaning::NotAllowed));
    }
}
