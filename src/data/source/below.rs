//! All pictures below a folder, whatever class they are of.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::Shown;

use super::leftovers::{Leftovers, is_picture};

/// Folders within folders, at most: more is a loop of links.
const DEPTH_MAX: usize = 32;

/// Files below `folder` whose names say that they are pictures, sorted by name.
///
/// # Errors
/// A folder cannot be listed.
pub fn pictures(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    list(folder, DEPTH_MAX, &mut found)?;
    found.sort();
    Ok(found)
}

fn list(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> io::Result<()> {
    let naming =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.shown()));
    for entry in fs::read_dir(folder).map_err(naming)? {
        let path = entry.map_err(naming)?.path();
        // As in a training set.
        if path.file_name().is_some_and(|name| Leftovers::default().takes(name)) {
            continue;
        }
        match fs::metadata(&path).map_err(naming)?.is_dir() {
            true if depth == 0 => {
                return Err(naming(io::Error::other("folders within folders without end")));
            }
            true => list(&path, depth - 1, found)?,
            false if is_picture(&path) => found.push(path),
            false => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_of_all_folders_are_found_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("cats/young")).unwrap();
        for name in ["cats/young/b.JPG", "cats/a.png", "notes.txt", "c.webp", "._c.webp"] {
            fs::write(at(name), b"").unwrap();
        }
        let expected = ["c.webp", "cats/a.png", "cats/young/b.JPG"].map(at);
        assert_eq!(pictures(folder.path()).unwrap(), expected);
        std::os::unix::fs::symlink(folder.path(), at("cats/above")).unwrap();
        assert!(pictures(folder.path()).unwrap_err().to_string().contains("without end"));
    }
}
