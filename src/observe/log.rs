//! Writes events and ledger lines, reads them back. A line is one JSON object. Writers die in the
//! middle of a line: the next one ends the torn line with a mark, and readers pass over it.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::config::Shown;

use super::event::Event;
use super::refusal::{if_there, insist};
use super::storage::Storage;

/// The events of a run, below its folder.
pub const EVENTS_FILE: &str = "events.jsonl";

/// How a line ends that its writer did not finish.
const TORN_MARK: &str = "#torn";

/// Appends lines to one file. Several writers may take turns (the lowest live rank writes).
pub struct JsonLines<T> {
    storage: Arc<dyn Storage>,
    path: PathBuf,
    /// Whether the file may end in the middle of a line: before the first line, after a failure.
    may_be_torn: bool,
    /// Whether other processes append between our lines, and may die or fail doing so.
    among_others: bool,
    lines: PhantomData<fn(&T)>,
}

/// Writes `RUN/events.jsonl`.
pub type EventLog = JsonLines<Event>;

impl JsonLines<Event> {
    /// The log of the run whose folder is the storage's root.
    pub fn new(storage: Arc<dyn Storage>) -> Self {
        // Injected faults are recorded by whomever they strike, beside the writer.
        Self { among_others: true, ..Self::at(storage, EVENTS_FILE) }
    }
}

impl<T: Serialize> JsonLines<T> {
    /// Lines of the file at `path`, which is made with the first one.
    pub fn at(storage: Arc<dyn Storage>, path: impl Into<PathBuf>) -> Self {
        let (may_be_torn, among_others) = (true, false);
        Self { storage, path: path.into(), may_be_torn, among_others, lines: PhantomData }
    }

    /// Appends one line in one write. After an error (a full disk) the next call first ends what
    /// was left of the line.
    pub fn append(&mut self, line: &T) -> io::Result<()> {
        let text = serde_json::to_string(line).map_err(io::Error::other)?;
        if self.may_be_torn || self.among_others {
            let last = self.storage.read_end(&self.path, 1);
            // Behind a whole line the mark does no harm.
            if !last.is_ok_and(|last| last.last().is_none_or(|byte| *byte == b'\n')) {
                self.storage.append_line(&self.path, TORN_MARK)?;
            }
            self.may_be_torn = false;
        }
        self.storage.append_line(&self.path, &text).inspect_err(|_| self.may_be_torn = true)
    }

    pub(super) fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// What one line of a file is.
enum Line<T> {
    Whole(T),
    /// Blank, or left unfinished by a writer that died.
    Passed,
    Corrupt(String),
}

fn parse_line<T: DeserializeOwned>(bytes: &[u8]) -> Line<T> {
    let bytes = bytes.trim_ascii();
    if bytes.is_empty() || bytes.ends_with(TORN_MARK.as_bytes()) {
        return Line::Passed;
    }
    match serde_json::from_slice(bytes) {
        Ok(value) => Line::Whole(value),
        Err(error) => Line::Corrupt(error.to_string()),
    }
}

/// All whole lines of `body`. A torn last line (no newline) is passed over; a line that is whole
/// but cannot be read is an error that names `path` and the line's number.
pub fn parse_lines<T: DeserializeOwned>(path: &Path, body: &[u8]) -> io::Result<Vec<T>> {
    let mut values = Vec::new();
    let whole = body.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
    for (index, line) in body[..whole].split(|&byte| byte == b'\n').enumerate() {
        match parse_line(line) {
            Line::Whole(value) => values.push(value),
            Line::Passed => {}
            Line::Corrupt(reason) => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!(
                        "{}, line {}: {reason}; move the line elsewhere to read the rest",
                        path.shown(),
                        index + 1
                    ),
                ));
            }
        }
    }
    Ok(values)
}

/// What [`Storage::read_end`] returned for `bytes_max`, without the line that it may have cut in
/// two.
pub fn whole_lines(end: &[u8], bytes_max: usize) -> &[u8] {
    if end.len() < bytes_max {
        return end;
    }
    let first = end.iter().position(|&byte| byte == b'\n').map_or(end.len(), |at| at + 1);
    &end[first..]
}

/// The last whole lines of a file, of at most so many bytes.
///
/// # Errors
/// It cannot be read, or a line of them cannot.
pub fn last_lines<T: DeserializeOwned>(
    storage: &dyn Storage,
    path: &Path,
    bytes_max: usize,
) -> io::Result<Vec<T>> {
    let end = storage.read_end(path, bytes_max)?;
    parse_lines(path, whole_lines(&end, bytes_max))
}

/// Reads a file of lines; see [`parse_lines`].
pub fn read_lines<T: DeserializeOwned>(path: &Path) -> io::Result<Vec<T>> {
    let body = std::fs::read(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.shown())))?;
    parse_lines(path, &body)
}

/// All events of a file.
pub fn read_events(path: &Path) -> io::Result<Vec<Event>> {
    read_lines(path)
}

/// Most bytes that one poll takes from the file.
const POLL_BYTES_MAX: u64 = 8 << 20;

/// Polls of one reading, should the file grow faster than it is read.
const POLLS_MAX: usize = 512;

/// Follows an event file that another process writes; the file may not exist yet, and may be
/// replaced by a new one.
#[derive(Debug)]
pub struct EventTail {
    path: PathBuf,
    offset: u64,
    identity: Option<u64>,
    unfinished: Vec<u8>,
}

impl EventTail {
    /// From the beginning of the file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), offset: 0, identity: None, unfinished: Vec::new() }
    }

    /// Events written since the last call, at most 8 MiB of them; none where the file cannot be
    /// read just now. For whoever asks again.
    pub fn poll(&mut self) -> Vec<Event> {
        self.try_poll().unwrap_or_default()
    }

    /// The same. None where there is no file.
    ///
    /// # Errors
    /// It cannot be read now: the next call begins where this one did.
    pub fn try_poll(&mut self) -> io::Result<Vec<Event>> {
        match if_there(self.read_more()) {
            Ok(Some(bytes)) => Ok(self.take_in(&bytes)),
            Ok(None) => Ok(Vec::new()),
            Err(error) => {
                Err(io::Error::new(error.kind(), format!("{}: {error}", self.path.shown())))
            }
        }
    }

    /// All that is left to read.
    ///
    /// # Errors
    /// What is left after those that were handed on cannot be read now.
    pub fn read_on(&mut self, mut on: impl FnMut(Event)) -> io::Result<()> {
        for _ in 0..POLLS_MAX {
            let events = insist(|| self.try_poll())?;
            if events.is_empty() {
                break;
            }
            events.into_iter().for_each(&mut on);
        }
        Ok(())
    }

    fn take_in(&mut self, bytes: &[u8]) -> Vec<Event> {
        self.unfinished.extend_from_slice(bytes);
        let Some(last) = self.unfinished.iter().rposition(|&byte| byte == b'\n') else {
            return Vec::new();
        };
        let rest = self.unfinished.split_off(last + 1);
        let whole = std::mem::replace(&mut self.unfinished, rest);
        let mut events = Vec::new();
        for line in whole.split(|&byte| byte == b'\n') {
            if let Line::Whole(event) = parse_line(line) {
                events.push(event);
            }
        }
        events
    }

    fn read_more(&mut self) -> io::Result<Vec<u8>> {
        let mut file = File::open(&self.path)?;
        let metadata = file.metadata()?;
        let identity = identity(&metadata);
        if identity != self.identity || metadata.len() < self.offset {
            self.identity = identity;
            self.offset = 0;
            self.unfinished.clear();
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = Vec::new();
        file.take(POLL_BYTES_MAX).read_to_end(&mut bytes)?;
        self.offset += bytes.len() as u64;
        Ok(bytes)
    }
}

/// Tells a file from another one that took its name.
fn identity(metadata: &std::fs::Metadata) -> Option<u64> {
    Some(std::os::unix::fs::MetadataExt::ino(metadata))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::event::{Kind, VERSION};
    use crate::observe::storage::{Fault, FileSystem, MemoryStorage, Operation};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn event(step: u64) -> Event {
        let kind = Kind::Epoch { epoch: step / 10 };
        let seconds = step as f64 * 0.1;
        let time = 1.7e9 + seconds;
        Event { v: VERSION, time, seconds, attempt: 1, generation: 0, step, rank: 0, kind }
    }

    fn steps(events: &[Event]) -> Vec<u64> {
        events.iter().map(|event| event.step).collect()
    }

    #[test]
    fn what_is_appended_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = EventLog::new(Arc::new(FileSystem::new(folder.path())));
        for step in 0..5 {
            log.append(&event(step)).unwrap();
        }
        let read = read_events(&folder.path().join(EVENTS_FILE)).unwrap();
        assert_eq!(read, (0..5).map(event).collect::<Vec<_>>());
    }

    #[test]
    fn an_event_is_one_object_with_the_documented_keys() {
        let text = serde_json::to_string(&event(3)).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let mut keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        let documented =
            ["attempt", "event", "fields", "generation", "rank", "seconds", "step", "time", "v"];
        assert_eq!(keys, documented);
        assert_eq!(value["event"], "epoch");
    }

    #[test]
    fn a_diverged_loss_is_read_back_as_not_a_number() {
        let mut diverged = event(1);
        diverged.kind = Kind::Evaluation {
            error: 0.9,
            average_error: None,
            loss: f64::NAN,
            samples: 10,
            seconds: f64::INFINITY,
        };
        let text = serde_json::to_string(&diverged).unwrap();
        let read: Event = serde_json::from_str(&text).unwrap();
        let Kind::Evaluation { error, loss, .. } = read.kind else { panic!("{read:?}") };
        assert!(loss.is_nan() && error == 0.9);
    }

    #[test]
    fn a_torn_last_line_is_passed_over_at_every_length() {
        let line = serde_json::to_string(&event(2)).unwrap();
        let before = format!("{}\n", serde_json::to_string(&event(1)).unwrap());
        for length in 0..=line.len() {
            let body = format!("{before}{}", &line[..length]);
            let read: Vec<Event> = parse_lines(Path::new("e"), body.as_bytes()).unwrap();
            assert_eq!(steps(&read), [1], "cut at {length}");
        }
    }

    #[test]
    fn a_corrupt_middle_line_is_named() {
        let good = serde_json::to_string(&event(1)).unwrap();
        let body = format!("{good}\n{{\"v\": 1, \"ti\n{good}\n");
        let error = parse_lines::<Event>(Path::new("RUN/e"), body.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("RUN/e, line 2"), "{error}");
    }

    #[test]
    fn a_new_writer_ends_the_line_its_predecessor_left_torn() {
        let storage = Arc::new(MemoryStorage::new());
        EventLog::new(storage.clone()).append(&event(1)).unwrap();
        let mut body = storage.read(Path::new(EVENTS_FILE)).unwrap();
        body.extend_from_slice(br#"{"v":1,"time":17"#);
        storage.write_whole(Path::new(EVENTS_FILE), &[&body]).unwrap();
        let mut successor = EventLog::new(storage.clone());
        successor.append(&event(2)).unwrap();
        successor.append(&event(3)).unwrap();
        let body = storage.read(Path::new(EVENTS_FILE)).unwrap();
        let read: Vec<Event> = parse_lines(Path::new(EVENTS_FILE), &body).unwrap();
        assert_eq!(steps(&read), [1, 2, 3]);
    }

    #[test]
    fn a_line_that_another_process_left_torn_spoils_nothing() {
        let storage = Arc::new(MemoryStorage::new());
        let mut log = EventLog::new(storage.clone());
        log.append(&event(1)).unwrap();
        let mut body = storage.read(Path::new(EVENTS_FILE)).unwrap();
        body.extend_from_slice(br#"{"v":1,"ti"#);
        storage.write_whole(Path::new(EVENTS_FILE), &[&body]).unwrap();
        log.append(&event(2)).unwrap();
        let body = storage.read(Path::new(EVENTS_FILE)).unwrap();
        let read: Vec<Event> = parse_lines(Path::new(EVENTS_FILE), &body).unwrap();
        assert_eq!(steps(&read), [1, 2]);
    }

    #[test]
    fn a_writer_goes_on_after_the_disk_was_full() {
        let full = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&full);
        let storage = Arc::new(MemoryStorage::with_faults(move |operation, _| {
            let strikes = operation == Operation::AppendLine && seen.load(Ordering::SeqCst);
            strikes.then_some(Fault::Tears(9))
        }));
        let mut log = EventLog::new(storage.clone());
        log.append(&event(1)).unwrap();
        full.store(true, Ordering::SeqCst);
        log.append(&event(2)).unwrap_err();
        full.store(false, Ordering::SeqCst);
        log.append(&event(3)).unwrap();
        let body = storage.read(Path::new(EVENTS_FILE)).unwrap();
        let read: Vec<Event> = parse_lines(Path::new(EVENTS_FILE), &body).unwrap();
        assert_eq!(steps(&read), [1, 3]);
    }

    #[test]
    fn a_tail_sees_each_event_once_however_the_bytes_arrive() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(EVENTS_FILE);
        let mut tail = EventTail::new(&path);
        assert_eq!(tail.poll(), []);
        let mut body = Vec::new();
        for step in 0..20 {
            body.extend_from_slice(serde_json::to_string(&event(step)).unwrap().as_bytes());
            body.push(b'\n');
        }
        let mut seen = Vec::new();
        for end in (0..body.len()).step_by(37).chain([body.len()]) {
            let grown = std::fs::OpenOptions::new().append(true).create(true).open(&path);
            let from = std::fs::metadata(&path).unwrap().len() as usize;
            io::Write::write_all(&mut grown.unwrap(), &body[from..end]).unwrap();
            seen.extend(steps(&tail.poll()));
        }
        assert_eq!(seen, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn a_tail_starts_over_when_the_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(EVENTS_FILE);
        let storage = Arc::new(FileSystem::new(folder.path()));
        EventLog::new(storage.clone()).append(&event(7)).unwrap();
        let mut tail = EventTail::new(&path);
        assert_eq!(steps(&tail.poll()), [7]);
        storage.rename(Path::new(EVENTS_FILE), Path::new("old.jsonl")).unwrap();
        EventLog::new(storage).append(&event(1)).unwrap();
        assert_eq!(steps(&tail.poll()), [1]);
    }

    #[test]
    fn a_log_that_cannot_be_read_is_no_log_without_events() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(EVENTS_FILE);
        assert_eq!(EventTail::new(&path).try_poll().unwrap(), [], "there is none");
        // It opens, and says EISDIR to whoever reads.
        std::fs::create_dir(&path).unwrap();
        let error = EventTail::new(&path).read_on(|_| {}).unwrap_err();
        assert!(error.to_string().contains(EVENTS_FILE), "{error}");
        assert_eq!(EventTail::new(&path).poll(), [], "for whoever asks again");
    }
}
