//! Copy workers that are processes of their own, as Higuchi et al. have them: started before MPI,
//! they read, write and hash, and know neither training nor MPI. A rank tells each, file by file,
//! what to copy; the walk, the gate and the pace stay with the rank. They end with it, and one that
//! dies is missed at its next answer.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kintsugi_ffi::{os, process};
use serde::{Deserialize, Serialize};

use crate::config::{Data, Shown};
use crate::data::set::open;

use super::folder::{CopyError, Done, Folder};

/// This program, also where its file was replaced by a new build since it started.
const PROGRAM: &str = "/proc/self/exe";
/// The subcommand (`cli::copy`).
pub const SUBCOMMAND: &str = "copy";
/// Longest time that one file may take; a worker that does not answer counts as dead.
const ANSWER_MAX: Duration = Duration::from_secs(600);
/// Longest line: a path has at most 4 KiB, a byte at most four characters.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// What a worker is told first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Charge {
    /// The set whose files are copied.
    pub data: Data,
    /// Where to.
    pub folder: PathBuf,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Made(u64),
    Found(u64),
    Source(String),
    Folder(String),
}

impl From<Result<Done, CopyError>> for Answer {
    fn from(copied: Result<Done, CopyError>) -> Self {
        match copied {
            Ok(Done::Made(bytes)) => Self::Made(bytes),
            Ok(Done::Found(bytes)) => Self::Found(bytes),
            Err(CopyError::Source(reason)) => Self::Source(reason),
            Err(CopyError::Folder(reason)) => Self::Folder(reason),
        }
    }
}

impl From<Answer> for Result<Done, CopyError> {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Made(bytes) => Ok(Done::Made(bytes)),
            Answer::Found(bytes) => Ok(Done::Found(bytes)),
            Answer::Source(reason) => Err(CopyError::Source(reason)),
            Answer::Folder(reason) => Err(CopyError::Folder(reason)),
        }
    }
}

/// A rank's end of one worker.
#[derive(Debug)]
pub struct Porter {
    orders: UnixStream,
    answers: BufReader<UnixStream>,
    /// Ended with this value.
    child: Option<Child>,
}

/// Starts so many workers; fewer where the machine gives no more. To be called by the thread that
/// lives as long as the rank does: they end with it. `run` is for whoever lists processes.
///
/// # Errors
/// Not one could be started.
pub fn hire(workers: u32, run: &Path) -> io::Result<Vec<Porter>> {
    let mut hired = Vec::new();
    for _ in 0..workers {
        match Porter::start(run) {
            Ok(porter) => hired.push(porter),
            Err(error) if hired.is_empty() => return Err(error),
            Err(error) => {
                tracing::warn!("{} of {workers} copy workers: {error}", hired.len());
                break;
            }
        }
    }
    Ok(hired)
}

impl Porter {
    fn start(run: &Path) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let (input, output) = (OwnedFd::from(theirs.try_clone()?), OwnedFd::from(theirs));
        let mut command = Command::new(PROGRAM);
        command.arg(SUBCOMMAND).arg(run);
        command.stdin(Stdio::from(input)).stdout(Stdio::from(output));
        process::supervise(&mut command, os::Signal::Kill);
        let child = command.spawn()?;
        Self::over(ours, Some(child))
    }

    fn over(stream: UnixStream, child: Option<Child>) -> io::Result<Self> {
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        stream.set_write_timeout(Some(ANSWER_MAX))?;
        Ok(Self { answers: BufReader::new(stream.try_clone()?), orders: stream, child })
    }

    /// What it works on, said once.
    ///
    /// # Errors
    /// It is dead.
    pub fn charge(&mut self, charge: &Charge) -> io::Result<()> {
        send(&mut self.orders, charge)
    }

    /// Has a file copied.
    ///
    /// # Errors
    /// It is dead, or does not answer. What it was doing may be half done.
    pub fn copy(&mut self, file: &Path) -> io::Result<Result<Done, CopyError>> {
        // Its path, whose bytes need not be text.
        send(&mut self.orders, &file.as_os_str().as_bytes())?;
        let answer: Option<Answer> = receive(&mut self.answers)?;
        answer.map(Into::into).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl Drop for Porter {
    fn drop(&mut self) {
        // It reads the end of its orders, and is not waited for unless it is dead already: a file
        // at hand may take long.
        let _ = self.orders.shutdown(std::net::Shutdown::Both);
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn send(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message).map_err(io::Error::other)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// `None`: the other side is gone.
fn receive<T: for<'de> Deserialize<'de>>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    let read = io::Read::take(&mut *from, LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    match read {
        0 => Ok(None),
        _ => serde_json::from_slice(&line).map(Some).map_err(io::Error::other),
    }
}

/// The life of a worker, until its orders end.
///
/// # Errors
/// Its rank is gone, or its set or folder cannot be opened: the rank sees that it has ended.
pub fn serve(orders: &mut impl BufRead, answers: &mut impl Write) -> io::Result<()> {
    let Some(Charge { data, folder }) = receive(orders)? else { return Ok(()) };
    let store = open::store(&data).map_err(io::Error::other)?;
    let place = folder.shown();
    let folder = Folder::open(&folder)
        .map_err(|error| io::Error::new(error.kind(), format!("{place}: {error}")))?
        .of_a_run();
    while let Some(file) = receive::<Vec<u8>>(orders)? {
        let answer = Answer::from(folder.copy(&*store, Path::new(OsStr::from_bytes(&file))));
        send(answers, &answer)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_copies_what_it_is_told_and_a_dead_one_is_missed() {
        let root = tempfile::tempdir().expect("temporary folder");
        let file = root.path().join(OsStr::from_bytes(b"a\xff.jpg"));
        std::fs::write(&file, vec![7; 100]).expect("written");
        let folder = root.path().join("stage");
        let (ours, theirs) = UnixStream::pair().expect("connected");
        let works = std::thread::spawn(move || {
            let mut orders = BufReader::new(theirs.try_clone()?);
            serve(&mut orders, &mut &theirs)
        });
        let mut porter = Porter::over(ours, None).expect("connected");
        let charge = Charge { data: Data::default(), folder: folder.clone() };
        porter.charge(&charge).expect("told");
        assert_eq!(porter.copy(&file).expect("lives"), Ok(Done::Made(100)));
        assert_eq!(porter.copy(&file).expect("lives"), Ok(Done::Found(100)));
        let absent = porter.copy(&root.path().join("b.jpg")).expect("lives");
        assert!(matches!(absent, Err(CopyError::Source(_))), "{absent:?}");
        drop(porter);
        works.join().expect("no panic").expect("an end of orders is no error");
        assert_eq!(Folder::open(&folder).expect("opened").files(), 1);

        let (ours, theirs) = UnixStream::pair().expect("connected");
        let mut porter = Porter::over(ours, None).expect("connected");
        drop(theirs);
        assert!(porter.charge(&charge).is_err() || porter.copy(&file).is_err());
    }
}
