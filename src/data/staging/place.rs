//! Where a node's copies lie.

use std::io;
use std::path::{Path, PathBuf};

use crate::config::Staging;

use super::folder::remove_unused;

/// Its name begins so.
pub const PREFIX: &str = "kintsugi-stage-";
/// Of a set's fingerprint, at the end of the name.
const FINGERPRINT_DIGITS: usize = 16;

/// The folder of a run's set on this node: the same for all ranks, and for all starts of the run.
/// Below `staging.folder`, else `$TMPDIR`, else `/tmp`.
pub fn folder(staging: &Staging, run_id: &str, fingerprint: u64) -> PathBuf {
    folder_below(&staging.place(), run_id, fingerprint)
}

/// What to do where copies cannot be kept for this reason.
pub fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "make the folder that staging.folder names, on every node",
        _ => "set staging.folder to a local folder that this user can write",
    }
}

/// The folders of a run's copies on any node, as a pattern.
pub fn pattern(staging: &Staging, run_id: &str) -> PathBuf {
    staging.place().join(format!("{PREFIX}{run_id}-*"))
}

/// Removes the copies of a run that no process uses any more.
pub fn sweep(staging: &Staging, run_id: &str) {
    for root in of_run(&staging.place(), PREFIX, run_id) {
        remove_unused(&root);
    }
}

/// Folders of a run below `base`, by the names that `folder` gives them: prefix, run, fingerprint.
pub fn of_run(base: &Path, prefix: &str, run_id: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(base).into_iter().flatten().flatten();
    let named = entries.filter(|entry| {
        let name = entry.file_name();
        let fingerprint = name.to_str().and_then(|name| {
            name.strip_prefix(prefix)?.strip_prefix(run_id)?.strip_prefix('-').map(str::to_owned)
        });
        // Another run's name may begin with this one's.
        fingerprint.is_some_and(|digits| {
            digits.len() == FINGERPRINT_DIGITS && digits.chars().all(|c| c.is_ascii_hexdigit())
        })
    });
    named.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

fn folder_below(base: &Path, run_id: &str, fingerprint: u64) -> PathBuf {
    base.join(format!("{PREFIX}{run_id}-{fingerprint:016x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_finds_its_copies_again_and_another_set_has_its_own() {
        let staging = Staging { folder: Some("/local".into()), ..Staging::default() };
        let one = folder(&staging, "ab12", 7);
        assert_eq!(one, folder(&staging, "ab12", 7));
        assert!(one.starts_with("/local"));
        assert_ne!(one, folder(&staging, "ab12", 8));
        assert_ne!(one, folder(&staging, "ab13", 7));
    }

    #[test]
    fn a_run_whose_name_begins_alike_has_other_folders() {
        let place = tempfile::tempdir().expect("temporary folder");
        for run in ["run", "run-2"] {
            std::fs::create_dir(folder_below(place.path(), run, 7)).expect("made");
        }
        let found = of_run(place.path(), PREFIX, "run");
        assert_eq!(found, [folder_below(place.path(), "run", 7)]);
    }
}
