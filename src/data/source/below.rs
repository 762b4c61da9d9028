//! All pictures below a folder, whatever class they are of.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::Shown;

use super::leftovers::{Leftovers, is_picture};

/// Files below `folder` whose names say that they are pictures, sorted by name. Each folder is read
/// once, whatever links lead to it, and none that holds `folder` itself.
///
/// # Errors
/// A folder cannot be listed.
pub fn pictures(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut found, mut read) = (Vec::new(), BTreeSet::new());
    list(folder, None, &mut read, &mut found)?;
    found.sort();
    Ok(found)
}

fn list(
    folder: &Path,
    root: Option<&Path>,
    read: &mut BTreeSet<PathBuf>,
    found: &mut Vec<PathBuf>,
) -> io::Result<()> {
    let naming =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.shown()));
    let place = folder.canonicalize().map_err(naming)?;
    let root = root.unwrap_or(&place);
    let leads_back = place != root && root.starts_with(&place);
    if leads_back || !read.insert(place.clone()) {
        return Ok(());
    }
    let entries = fs::read_dir(folder).map_err(naming)?;
    let mut entries = entries.collect::<io::Result<Vec<_>>>().map_err(naming)?;
    // Of two ways to a folder the same one is taken everywhere.
    entries.sort_by_key(fs::DirEntry::file_name);
    for path in entries.iter().map(fs::DirEntry::path) {
        // As in a training set.
        if path.file_name().is_some_and(|name| Leftovers::default().takes(name)) {
            continue;
        }
        match fs::metadata(&path).map_err(naming)?.is_dir() {
            true => list(&path, Some(root), read, found)?,
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
        let link = |to: &Path, from| std::os::unix::fs::symlink(to, at(from)).unwrap();
        link(folder.path(), "cats/above");
        link(&at("cats"), "cats/young/around");
        assert_eq!(pictures(folder.path()).unwrap(), expected);
        let young = at("cats/young");
        assert_eq!(pictures(&young).unwrap(), [young.join("b.JPG")]);
    }
}
