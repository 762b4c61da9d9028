//! Files and folders in places where every user of a machine makes names (`/tmp`, `/dev/shm`): new
//! ones belong to this user alone, and what is found is used only if it does.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::process;

/// The owner reads and writes, nobody else does anything.
const FILE_MODE: u32 = 0o600;
/// The same for a folder.
const FOLDER_MODE: u32 = 0o700;
/// What the group and all others may do.
const OTHERS: u32 = 0o077;
/// What everybody may write.
const ALL_WRITE: u32 = 0o002;
/// In such a folder only its owner renames or removes a name.
const STICKY: u32 = 0o1000;
/// Links to a name are not followed, and a pipe does not hold up who opens it.
const PLAIN: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK;

/// Whether a file or folder belongs to this process's user.
pub fn is_ours(facts: &Metadata) -> bool {
    facts.uid() == process::user_id()
}

/// A word for a name that nobody can foresee: eight hexadecimal digits.
pub fn word() -> String {
    // Its keys are the kernel's random numbers.
    format!("{:08x}", RandomState::new().hash_one(0_u8) >> 32)
}

/// Makes a folder that nobody else enters. One that is there is never taken.
///
/// # Errors
/// The kernel's: `AlreadyExists` whatever has the name.
pub fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(FOLDER_MODE).create(path)
}

/// Makes a folder that nobody else enters, or takes one that is there, if it is this user's.
///
/// # Errors
/// The kernel's; `PermissionDenied`: what has the name is no folder of ours.
pub fn enter_folder(path: &Path) -> io::Result<()> {
    match make_folder(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let facts = std::fs::symlink_metadata(path)?;
            match facts.is_dir() && is_ours(&facts) {
                true => Ok(()),
                false => Err(refused("what is there is no folder of this user's".into())),
            }
        }
        made => made,
    }
}

/// Makes an empty file that nobody else opens, to read and write.
///
/// # Errors
/// The kernel's: `AlreadyExists` whatever has the name.
pub fn make_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(FILE_MODE).custom_flags(PLAIN);
    options.open(path)
}

/// Opens a plain file to write, or makes it, with these rights; what is in it stays. Not through a
/// link: whoever may make names there would choose which of our files is written.
///
/// # Errors
/// The kernel's; `PermissionDenied` where the name is a link or no plain file.
pub fn open_to_write(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(mode).custom_flags(PLAIN);
    let file = options.open(path).map_err(of_a_link)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(refused("it is no plain file".into())),
    }
}

/// Whether anybody at all may make names in the folder of `path`. A folder that cannot be asked
/// counts as such.
pub fn lies_open(path: &Path) -> bool {
    std::fs::metadata(folder_of(path)).map_or(true, |facts| facts.mode() & ALL_WRITE != 0)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn of_a_link(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ELOOP) => refused("it is a link".into()),
        _ => error,
    }
}

/// What is done with a file that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Looked at.
    Read,
    /// Changed too.
    ReadWrite,
}

/// Opens a file that is there if it is ours: a plain file of this user, by this name only, that not
/// everybody could write. What others could read of it they cannot any more.
///
/// # Errors
/// The kernel's; `PermissionDenied` says why it is none of ours.
pub fn open_file(path: &Path, access: Access) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(access == Access::ReadWrite).custom_flags(PLAIN);
    let file = options.open(path).map_err(of_a_link)?;
    let facts = file.metadata()?;
    if !facts.is_file() {
        return Err(refused("it is no plain file".into()));
    }
    if !is_ours(&facts) {
        return Err(refused(format!("it belongs to user {}", facts.uid())));
    }
    if facts.nlink() > 1 {
        return Err(refused(format!("it has {} names", facts.nlink())));
    }
    if facts.mode() & ALL_WRITE != 0 {
        return Err(refused("everybody may write it".into()));
    }
    if facts.mode() & OTHERS != 0 {
        file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    }
    Ok(file)
}

fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// How often a folder is removed into which others still put what they have begun.
const REMOVALS_MAX: usize = 64;

/// Removes a folder and all that is in it, if it is a folder of ours; whether it did. Links in it
/// are removed, not followed.
///
/// # Errors
/// The kernel's.
pub fn remove_folder(path: &Path) -> io::Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(facts) if facts.is_dir() && is_ours(&facts) => {}
        Ok(_) => return Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    }
    let mut removed = std::fs::remove_dir_all(path);
    for _ in 1..REMOVALS_MAX {
        match &removed {
            // Somebody has put something there meanwhile.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                removed = std::fs::remove_dir_all(path);
            }
            _ => break,
        }
    }
    match removed {
        Ok(()) => Ok(true),
        // Another process that clears up was faster.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Another user's number, where `path` is a name that this user put where everybody makes names:
/// what lies there can be exchanged at any moment. Root's names are nobody's trap, and on a mount
/// that gives all files to one user (a network's, a guest's) his number says nothing.
pub fn planted_by(path: &Path) -> Option<u32> {
    let facts = std::fs::symlink_metadata(path).ok()?;
    let parent = folder_of(path);
    let place = std::fs::metadata(parent).ok()?;
    let open = place.mode() & (ALL_WRITE | STICKY) == ALL_WRITE | STICKY;
    let owner = facts.uid();
    let strange = open && is_strange(owner, process::user_id(), || owner_of_new(parent));
    strange.then_some(owner)
}

/// Whether an owner is neither this user nor root, nor whom the mount gives this user's new files
/// to.
fn is_strange(owner: u32, user: u32, owner_of_new: impl FnOnce() -> Option<u32>) -> bool {
    owner != user && owner != 0 && owner_of_new() != Some(owner)
}

/// Who owns what this process makes in a folder, as a file shows that is gone again.
fn owner_of_new(folder: &Path) -> Option<u32> {
    let path = folder.join(format!(".kintsugi-{}", word()));
    let owner = make_file(&path).and_then(|file| file.metadata()).map(|facts| facts.uid());
    // It was just made, under a name that nobody knew.
    let _ = std::fs::remove_file(&path);
    owner.ok()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A folder of this test's own; it goes with the value.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("kintsugi-{name}-{}", word()));
            make_folder(&path).expect("a new folder");
            Self(path)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).expect("there").mode() & 0o7777
    }

    #[test]
    fn what_is_opened_to_be_written_is_a_plain_file_and_not_what_a_link_names() {
        let place = Place::new("private-write");
        let (file, link) = (place.0.join("file"), place.0.join("link"));
        std::fs::write(&file, "kept").expect("written");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        let refused = open_to_write(&link, FILE_MODE).expect_err("a link");
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(open_to_write(&place.0, FILE_MODE).is_err(), "a folder");
        open_to_write(&file, FILE_MODE).expect("there already");
        assert_eq!(std::fs::read_to_string(&file).expect("there"), "kept");
        open_to_write(&place.0.join("new"), FILE_MODE).expect("made");
        assert_eq!(mode(&place.0.join("new")), FILE_MODE);
        assert!(!lies_open(&file), "a folder of ours");
        std::fs::set_permissions(&place.0, Permissions::from_mode(0o1777)).expect("ours");
        assert!(lies_open(&file) && lies_open(&place.0.join("none/file")));
    }

    #[test]
    fn what_is_made_is_for_nobody_else_and_what_is_there_is_never_taken() {
        let place = Place::new("private-made");
        assert_eq!(mode(&place.0), 0o700);
        let file = place.0.join("file");
        drop(make_file(&file).expect("a new file"));
        assert_eq!(mode(&file), 0o600);
        let link = place.0.join("link");
        std::os::unix::fs::symlink(place.0.join("nowhere"), &link).expect("a link");
        for taken in [&file, &link] {
            let again = make_file(taken).map(drop).expect_err("it is there");
            assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
            let again = make_folder(taken).expect_err("it is there");
            assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        }
        assert!(!place.0.join("nowhere").exists());
    }

    #[test]
    fn a_file_is_opened_if_it_is_plain_has_one_name_and_was_not_for_all_to_write() {
        let place = Place::new("private-open");
        let (file, link, other) = (place.0.join("f"), place.0.join("l"), place.0.join("o"));
        std::fs::write(&file, "state").expect("written");
        let set = |mode| std::fs::set_permissions(&file, Permissions::from_mode(mode));
        set(0o664).expect("ours");
        assert!(open_file(&file, Access::ReadWrite).is_ok());
        assert_eq!(mode(&file), 0o600, "nobody else opens it from here on");
        let why = |path: &Path| open_file(path, Access::Read).map(drop).expect_err("refused");
        set(0o666).expect("ours");
        assert_eq!(why(&file).to_string(), "everybody may write it");
        set(0o600).expect("ours");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        assert_eq!(why(&link).to_string(), "it is a link");
        std::fs::hard_link(&file, &other).expect("a second name");
        assert_eq!(why(&file).to_string(), "it has 2 names");
        assert_eq!(why(&place.0).to_string(), "it is no plain file");
        assert_eq!(why(&place.0.join("absent")).kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_removal_follows_no_link() {
        let place = Place::new("private-remove");
        let (kept, gone, link) = (place.0.join("kept"), place.0.join("gone"), place.0.join("l"));
        make_folder(&kept).expect("new");
        make_folder(&gone).expect("new");
        std::fs::write(kept.join("file"), "").expect("written");
        std::os::unix::fs::symlink(&kept, gone.join("inside")).expect("a link");
        std::os::unix::fs::symlink(&kept, &link).expect("a link");
        assert!(!remove_folder(&link).expect("looked at"), "a link is no folder of ours");
        assert!(remove_folder(&gone).expect("removed"));
        assert!(!remove_folder(&gone).expect("looked at"));
        assert!(kept.join("file").exists());
        assert_eq!(planted_by(&kept), None);
    }

    #[test]
    fn a_mount_that_gives_all_files_to_one_user_makes_no_stranger_of_him() {
        let (user, squashed, other) = (1000, 65534, 1001);
        let (own, mapped, unknown) = (|| Some(1000), || Some(65534), || None);
        assert!(!is_strange(user, user, unknown) && !is_strange(0, user, own));
        assert!(is_strange(other, user, own) && is_strange(other, user, unknown));
        assert!(is_strange(other, user, mapped), "it maps this user, and another made the name");
        assert!(!is_strange(squashed, user, mapped));
    }

    #[test]
    fn the_owner_of_new_files_is_asked_without_a_trace() {
        let place = Place::new("private-owner");
        assert_eq!(owner_of_new(&place.0), Some(process::user_id()));
        assert_eq!(std::fs::read_dir(&place.0).expect("there").count(), 0);
        assert_eq!(owner_of_new(&place.0.join("absent")), None);
    }

    #[test]
    fn words_differ() {
        let (one, other) = (word(), word());
        assert!(one != other && one.len() == 8, "{one} {other}");
    }
}
