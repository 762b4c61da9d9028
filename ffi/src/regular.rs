//! Files that a person names: only regular ones are opened, and no more of them is read than a
//! bound. A pipe would hold up who opens it, and a device may give bytes for ever.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// The bytes of a regular file, which a link may lead to.
///
/// # Errors
/// The kernel's; it is something else than a file, by its name; it has more than `bytes_max` bytes.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let (file, mut bytes) = (open(path)?, Vec::new());
    let length = file.metadata()?.len().min(bytes_max);
    // Room is asked for once: memory that is not there is an error, not an end.
    bytes.try_reserve(usize::try_from(length).unwrap_or(usize::MAX))?;
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > bytes_max {
        true => {
            let why = format!("it has more than {bytes_max} bytes");
            Err(io::Error::new(io::ErrorKind::FileTooLarge, why))
        }
        false => Ok(bytes),
    }
}

/// The same of a text.
///
/// # Errors
/// As `read`; it is not UTF-8.
pub fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let bytes = read(path, bytes_max)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Opens it to read.
fn open(path: &Path) -> io::Result<File> {
    // Opening alone does something to some devices.
    refuse_others(std::fs::metadata(path)?.file_type())?;
    let mut options = OpenOptions::new();
    // Whatever has the name by now does not hold up who opens it.
    options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path)?;
    refuse_others(file.metadata()?.file_type())?;
    Ok(file)
}

fn refuse_others(kind: FileType) -> io::Result<()> {
    let (kind, other) = match kind {
        kind if kind.is_file() => return Ok(()),
        kind if kind.is_dir() => (io::ErrorKind::IsADirectory, "a folder"),
        kind if kind.is_fifo() => (io::ErrorKind::InvalidInput, "a pipe"),
        kind if kind.is_socket() => (io::ErrorKind::InvalidInput, "a socket"),
        _ => (io::ErrorKind::InvalidInput, "a device"),
    };
    Err(io::Error::new(kind, format!("it is {other}; only files are read")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private;

    #[test]
    fn only_files_are_opened_and_no_more_is_read_than_the_bound() {
        let folder = std::env::temp_dir().join(format!("kintsugi-regular-{}", private::word()));
        private::make_folder(&folder).expect("a new folder");
        let (file, link, pipe) = (folder.join("file"), folder.join("link"), folder.join("pipe"));
        let socket = folder.join("socket");
        std::fs::write(&file, "five!").expect("written");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("coreutils");
        assert!(made.success());
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("bound");
        for path in [&file, &link] {
            assert_eq!(read(path, 5).expect("a file"), b"five!");
            let long = read(path, 4).expect_err("too long");
            assert_eq!(long.to_string(), "it has more than 4 bytes");
        }
        for (path, says) in [
            (folder.as_path(), "it is a folder; only files are read"),
            (&pipe, "it is a pipe; only files are read"),
            (&socket, "it is a socket; only files are read"),
            (Path::new("/dev/zero"), "it is a device; only files are read"),
        ] {
            assert_eq!(read(path, 100).expect_err(says).to_string(), says);
        }
        assert_eq!(
            read(&folder.join("none"), 9).expect_err("absent").kind(),
            io::ErrorKind::NotFound
        );
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
