//! Which shared memory segment of Open MPI is this rank's own: a rank that is killed leaves it
//! behind, and after an hour of failures a machine's memory would be full of them.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use kintsugi_ffi::private;

use crate::config::Shown;
use crate::run_folder::{launcher, variables};

const PREFIX: &str = "sm_segment.";
const DEFAULT_FOLDER: &str = "/dev/shm";

/// Where Open MPI keeps the segments.
fn folder() -> PathBuf {
    std::env::var_os(variables::SEGMENTS).map_or_else(|| DEFAULT_FOLDER.into(), PathBuf::from)
}

/// The name of this process's own segment, once MPI is initialised; `since` is a moment before.
pub fn own(since: SystemTime) -> Option<String> {
    // The last part of the name.
    let local_rank = launcher::place()?.local_rank?;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let entries = std::fs::read_dir(folder()).ok()?.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let facts = entry.metadata().ok()?;
        // Where a file system does not know when a file was made, it was last changed later.
        Some((name, facts.created().or_else(|_| facts.modified()).ok()?))
    });
    choose(entries.collect(), local_rank, since, &maps)
}

/// Peers of this job have other local ranks; those of earlier jobs are older. A segment that is
/// not mapped here is none of ours.
fn choose(
    files: Vec<(String, SystemTime)>,
    local_rank: u32,
    since: SystemTime,
    maps: &str,
) -> Option<String> {
    let suffix = format!(".{local_rank}");
    let mut ours: Vec<String> = files
        .into_iter()
        .filter(|(name, born)| {
            *born >= since && name.starts_with(PREFIX) && name.ends_with(&suffix)
        })
        .map(|(name, _)| name)
        .filter(|name| maps.contains(&format!("/{name}\n")))
        .collect();
    // Where two would fit, none is removed: the janitor knows no such doubts.
    if ours.len() == 1 { ours.pop() } else { None }
}

/// Removes it; that it is gone already is what was wanted.
pub fn remove(name: &str) {
    if !name.starts_with(PREFIX) || name.contains('/') {
        return;
    }
    let path = folder().join(Path::new(name));
    if std::fs::symlink_metadata(&path).is_ok_and(|facts| !private::is_ours(&facts)) {
        return;
    }
    if let Err(error) = std::fs::remove_file(&path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!("{}: {error}", path.shown());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_a_segment_that_is_surely_ours_is_named() {
        let old = SystemTime::UNIX_EPOCH;
        let (start, young) = (old + Duration::from_secs(10), old + Duration::from_secs(11));
        let file = |name: &str, born| (format!("sm_segment.host.0.{name}"), born);
        let files = vec![
            file("aa.1", young),
            file("aa.11", young),
            file("bb.1", old),
            ("kintsugi-run.slots.1".to_owned(), young),
        ];
        let maps = "7f00 rw-s 0 /dev/shm/sm_segment.host.0.aa.1\n\
                    7f01 rw-s /dev/shm/sm_segment.host.0.bb.1\n";
        let own = choose(files.clone(), 1, start, maps);
        assert_eq!(own.as_deref(), Some("sm_segment.host.0.aa.1"));
        assert_eq!(choose(files.clone(), 1, start, ""), None, "not mapped");
        assert_eq!(choose(files.clone(), 2, start, maps), None);
        assert_eq!(choose(files, 1, old, maps), None, "two would fit");
    }

    #[test]
    fn what_is_no_segment_is_never_removed() {
        let folder = tempfile::tempdir().unwrap();
        let slots = folder.path().join("kintsugi-run.slots");
        std::fs::write(&slots, "state").unwrap();
        remove(&slots.to_string_lossy());
        remove("kintsugi-run.slots");
        assert!(slots.exists());
    }
}
