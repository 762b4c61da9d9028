//! Where a node's copies lie.

use std::path::{Path, PathBuf};

use crate::config::Staging;

/// Its name begins so.
pub const PREFIX: &str = "kintsugi-stage-";

/// The folder of a run's set on this node: the same for all ranks, and for all starts of the run.
/// Below `staging.folder`, else `$TMPDIR`, else `/tmp`.
pub fn folder(staging: &Staging, run_id: &str, fingerprint: u64) -> PathBuf {
    let base = staging.folder.clone().unwrap_or_else(|| {
        let temporary = std::env::var_os("TMPDIR").filter(|folder| !folder.is_empty());
        temporary.map_or_else(|| PathBuf::from("/tmp"), PathBuf::from)
    });
    folder_below(&base, run_id, fingerprint)
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
}
