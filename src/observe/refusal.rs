//! What an error of the file system means: to the program, which may take only a listed absence for
//! an absence, and to a person, for whom some errors go by themselves and others stay.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::config::Shown;

/// A link that leads to itself: the standard library has no stable name for it.
const ELOOP: i32 = 40;

/// What an error says of the thing that was asked for. The one place that decides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// There is no such name, or it is a link that leads nowhere.
    Absent,
    /// It was read, and is not what it should be: too short, or not valid.
    Damaged,
    /// Nothing is known of it: the storage is away, busy or ill, or this process has no room left.
    /// A later try may find anything.
    NotNow,
    /// It is there and stays out of reach until somebody changes something.
    NotAllowed,
}

impl Meaning {
    /// That of an error, whether the kernel's own or one with a name added.
    pub fn of(error: &io::Error) -> Self {
        use io::ErrorKind::{
            FileTooLarge, InvalidData, InvalidFilename, InvalidInput, IsADirectory, NotADirectory,
            NotFound, PermissionDenied, ReadOnlyFilesystem, UnexpectedEof, Unsupported,
        };
        match error.kind() {
            _ if error.raw_os_error() == Some(ELOOP) => Self::Absent,
            NotFound | NotADirectory => Self::Absent,
            InvalidData | UnexpectedEof => Self::Damaged,
            PermissionDenied | ReadOnlyFilesystem | IsADirectory | InvalidFilename
            | InvalidInput | FileTooLarge | Unsupported => Self::NotAllowed,
            _ => Self::NotNow,
        }
    }
}

/// Tries at one thing that does not answer.
const TRIES_MAX: u32 = 3;
/// The pause between the later of them.
const TRY_EVERY: Duration = Duration::from_millis(100);

/// Asks again where the answer is that nothing is known now: a hiccup is no outage, and no end.
///
/// # Errors
/// That of the last try.
pub fn insist<T>(mut ask: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for tried in 1..TRIES_MAX {
        match ask() {
            Err(error) if Meaning::of(&error) == Meaning::NotNow => {}
            other => return other,
        }
        if tried > 1 {
            std::thread::sleep(TRY_EVERY);
        }
    }
    ask()
}

/// What is there, or nothing where it provably is not.
///
/// # Errors
/// Whatever else was said: nobody knows whether it is there.
pub fn if_there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if Meaning::of(&error) == Meaning::Absent => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a folder has this name.
///
/// # Errors
/// It cannot be told.
pub fn is_folder(path: &Path) -> io::Result<bool> {
    let found = if_there(insist(|| std::fs::metadata(path))).map_err(naming(path))?;
    Ok(found.is_some_and(|found| found.is_dir()))
}

/// Adds the path to what the kernel said; keeps the kind, by which callers decide.
pub fn naming(path: &Path) -> impl FnOnce(io::Error) -> io::Error + '_ {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.shown()))
}

/// What to change, where starting again cannot help; `None` where it may.
pub fn remedy(error: &io::Error) -> Option<&'static str> {
    use io::ErrorKind::{
        InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied,
        ReadOnlyFilesystem, Unsupported,
    };
    match error.kind() {
        PermissionDenied => Some("check owner and mode there, or name another place"),
        ReadOnlyFilesystem => Some("it is mounted read-only: name a place that can be written"),
        NotFound => Some("it has to be there: install or make it, or name another"),
        NotADirectory => Some("a file is in the place of a folder: name another place"),
        IsADirectory => Some("a folder is in the place of a file: name another place"),
        InvalidFilename => Some("the name is too long or not valid there: choose a shorter one"),
        InvalidInput => Some("the name or value cannot be used: choose another"),
        Unsupported => Some("this file system or kernel cannot do that: name another place"),
        _ => None,
    }
}

/// The same behind what was tried, in brackets; nothing where starting again may help.
pub fn advice(error: &io::Error) -> String {
    remedy(error).map_or_else(String::new, |remedy| format!(" ({remedy})"))
}

/// What to do about something that could not be written, behind the error.
pub fn to_write(error: &io::Error) -> String {
    let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    let todo = if full { Some("free some space") } else { remedy(error) };
    format!("{error}; {}", todo.unwrap_or("the storage is ill: start again when it answers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_name_is_an_absence_and_only_contents_are_damaged() {
        let meaning = |number| Meaning::of(&io::Error::from_raw_os_error(number));
        // ENOENT, ENOTDIR, ELOOP.
        assert!([2, 20, 40].map(meaning) == [Meaning::Absent; 3]);
        // EPERM, EACCES, EISDIR, EROFS, ENAMETOOLONG.
        assert!([1, 13, 21, 30, 36].map(meaning) == [Meaning::NotAllowed; 5]);
        // EINTR, EIO, EAGAIN, ENOMEM, ENFILE, EMFILE, ENOTCONN, ETIMEDOUT, EHOSTDOWN, ESTALE.
        assert!([4, 5, 11, 12, 23, 24, 107, 110, 112, 116].map(meaning) == [Meaning::NotNow; 10]);
        let short = io::Error::new(io::ErrorKind::UnexpectedEof, "picture.jpg: too short");
        assert_eq!(Meaning::of(&short), Meaning::Damaged);
    }

    #[test]
    fn a_hiccup_is_asked_again_and_an_absence_is_believed() {
        let told = |errors: &[i32]| {
            let mut left = errors.iter();
            insist(|| left.next().map_or(Ok(7), |n| Err(io::Error::from_raw_os_error(*n))))
        };
        // EIO, EMFILE; ENOENT.
        assert_eq!(told(&[5, 24]).ok(), Some(7));
        assert_eq!(told(&[5, 5, 24]).unwrap_err().raw_os_error(), Some(24));
        assert_eq!(told(&[2]).unwrap_err().raw_os_error(), Some(2));
        assert_eq!(if_there(told(&[])).unwrap(), Some(7));
        assert_eq!(if_there(told(&[2])).unwrap(), None);
        assert!(if_there(told(&[13])).is_err());
    }

    #[test]
    fn what_stays_until_somebody_changes_it_says_what_to_change() {
        // EPERM, ENOENT, EACCES, ENOTDIR, EISDIR, EINVAL, EROFS, ENAMETOOLONG.
        for permanent in [1, 2, 13, 20, 21, 22, 30, 36] {
            let error = io::Error::from_raw_os_error(permanent);
            assert!(remedy(&error).is_some(), "{error}");
            // With a name added, as files and storages do.
            assert!(remedy(&io::Error::new(error.kind(), "RUN/lock: ...")).is_some());
        }
        // EINTR, EIO, EAGAIN, ENOMEM, EMFILE, ENOSPC, EDQUOT, ETIMEDOUT, ESTALE.
        for passing in [4, 5, 11, 12, 24, 28, 122, 110, 116] {
            let error = io::Error::from_raw_os_error(passing);
            assert!(remedy(&error).is_none(), "{error}");
        }
        // Room is asked for where there is none, and only there.
        for (number, todo) in [
            (28, "free some space"),
            (122, "free some space"),
            (5, "start again when it answers"),
            (116, "start again when it answers"),
            (30, "mounted read-only"),
        ] {
            let said = to_write(&io::Error::from_raw_os_error(number));
            assert!(said.contains(todo), "{number}: {said}");
        }
    }
}
