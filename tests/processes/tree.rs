//! What lies below a folder, to be compared with what lay there before.

use std::path::{Path, PathBuf};

/// Every file below a folder with its bytes, and every folder, but for locks of runs, which count
/// attempts.
pub fn tree(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut all, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.path() {
                path if path.is_dir() => {
                    all.push((path.clone(), Vec::new()));
                    folders.push(path);
                }
                path if path.ends_with("run/lock") => {}
                path => all.push((path.clone(), std::fs::read(path).unwrap())),
            }
        }
    }
    all.sort();
    all
}
