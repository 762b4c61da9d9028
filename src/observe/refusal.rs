//! What the kernel's refusals mean to a person: some go by themselves, others stay until somebody
//! changes something.

use std::io;

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

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
