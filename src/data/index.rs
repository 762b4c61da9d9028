//! What was learned of a set, saved so that it is learned once: of all processes that need it one
//! learns it, the others wait and read; a later start reads. Whoever reads judges what is saved:
//! an index that is stale or damaged is made anew.

use std::borrow::Cow;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::config::Shown;

use super::unfinished::Unfinished;

/// Where what is learned of a run's sets lies, and when somebody asks for it.
#[derive(Debug, Clone, Copy)]
pub struct Cache<'a> {
    /// `RUN/cache`.
    pub folder: &'a Path,
    /// What the set is opened for.
    pub occasion: Occasion,
}

/// What a run's set is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occasion {
    /// The run begins: the set is what it is now.
    Begins,
    /// An attempt goes on from earlier steps: the set must hold what the run began with.
    GoesOn,
    /// A process joins a running world: it needs what the others have.
    Joins,
}

/// Other processes that make one index and are waited for, each in turn.
const TURNS_MAX: usize = 64;

/// Something that is learned once.
pub trait Index {
    /// What is learned.
    type Value;
    /// Why it cannot be.
    type Error;
    /// What is saved there; nothing where it is not to be trusted.
    fn read(&self, place: &Path) -> Option<Self::Value>;
    /// Learns it.
    fn make(&self) -> Result<Self::Value, Self::Error>;
    /// Its saved form, or why it has none.
    fn bytes<'a>(&self, value: &'a Self::Value) -> Result<Cow<'a, [u8]>, String>;
    /// Who may use the saved form, as bits of a file's mode, less what the process's mask takes.
    fn mode(&self) -> u32;
}

/// What was asked for, and whether it is saved.
#[derive(Debug, PartialEq, Eq)]
pub enum Learned<T> {
    /// It was saved before, and read.
    Read(T),
    /// It was made now, and saved there.
    Saved(T, PathBuf),
    /// It can be saved nowhere: the last place's reason.
    Unsaved(T, String),
}

impl<T> Learned<T> {
    /// Wherever it came from.
    pub fn value(self) -> T {
        match self {
            Self::Read(value) | Self::Saved(value, _) | Self::Unsaved(value, _) => value,
        }
    }
}

/// Takes what is saved in one of `places`, by their order; else makes it and saves it in the first
/// that takes it, whose folder is made if need be.
///
/// # Errors
/// Those of `make`.
pub fn learn<I: Index>(index: &I, places: &[PathBuf]) -> Result<Learned<I::Value>, I::Error> {
    if let Some(saved) = places.iter().find_map(|place| index.read(place)) {
        return Ok(Learned::Read(saved));
    }
    let mut reason = "there is no folder for it".to_owned();
    for place in places {
        match learn_in(index, place)? {
            Ok(learned) => return Ok(learned),
            Err(error) => reason = format!("{}: {error}", place.shown()),
        }
    }
    index.make().map(|value| Learned::Unsaved(value, reason))
}

/// The inner error: the place does not take it.
fn learn_in<I: Index>(index: &I, place: &Path) -> Result<io::Result<Learned<I::Value>>, I::Error> {
    if let Some(folder) = place.parent() {
        // What is in its way, opening the part says.
        let _ = fs::create_dir(folder);
    }
    for _ in 0..TURNS_MAX {
        let part = match Unfinished::open(place, index.mode()) {
            Ok(part) => part,
            Err(error) => return Ok(Err(error)),
        };
        // Who held it has saved it, or died and left it.
        if let Some(saved) = index.read(place) {
            part.discard();
            return Ok(Ok(Learned::Read(saved)));
        }
        if !part.is_there() {
            continue;
        }
        let value = index.make().inspect_err(|_| part.discard())?;
        let saved = index.bytes(&value).and_then(|bytes| {
            save(&part, place, &bytes).map_err(|error| format!("{}: {error}", place.shown()))
        });
        return Ok(Ok(match saved {
            Ok(()) => Learned::Saved(value, place.to_owned()),
            Err(reason) => {
                part.discard();
                Learned::Unsaved(value, reason)
            }
        }));
    }
    Ok(Err(io::Error::other("others never finish it")))
}

/// Writes what the file is to hold, and gives it its name.
///
/// # Errors
/// The kernel's.
pub(in crate::data) fn save(part: &Unfinished, place: &Path, bytes: &[u8]) -> io::Result<()> {
    part.file.set_len(0)?;
    (&part.file).write_all(bytes)?;
    fs::rename(&part.path, place)
}

/// By this machine's clock, nanoseconds since 1970.
pub(in crate::data) fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Each time that it is made it has another number; with its point it is whole.
    #[derive(Default)]
    struct Counted {
        made: AtomicU32,
        limit: u32,
    }

    impl Index for Counted {
        type Value = String;
        type Error = &'static str;
        fn read(&self, place: &Path) -> Option<String> {
            fs::read_to_string(place).ok().filter(|text| text.ends_with('.'))
        }
        fn make(&self) -> Result<String, &'static str> {
            let number = self.made.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(std::time::Duration::from_millis(20));
            if number < self.limit { Ok(format!("{number}.")) } else { Err("no more") }
        }
        fn bytes<'a>(&self, value: &'a String) -> Result<Cow<'a, [u8]>, String> {
            match value.as_str() {
                "9." => Err("nine has no form".into()),
                text => Ok(text.as_bytes().into()),
            }
        }
        fn mode(&self) -> u32 {
            0o600
        }
    }

    fn counted(limit: u32) -> Counted {
        Counted { limit, ..Counted::default() }
    }

    #[test]
    fn of_many_who_ask_at_once_one_makes_it_and_later_ones_read() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (places, index) = ([folder.path().join("index")], counted(9));
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| assert_eq!(learn(&index, &places).expect("made").value(), "0."));
            }
        });
        assert_eq!(learn(&index, &places), Ok(Learned::Read("0.".into())));
        assert_eq!(fs::read_dir(folder.path()).expect("there").count(), 1, "no part is left");
        // What is damaged is made anew; a part of a dead process is taken over.
        fs::write(&places[0], "0").expect("written");
        fs::write(folder.path().join("index.part"), "half of a longer one").expect("written");
        assert_eq!(learn(&index, &places), Ok(Learned::Saved("1.".into(), places[0].clone())));
        assert_eq!(index.read(&places[0]).as_deref(), Some("1."));
    }

    #[test]
    fn a_place_that_cannot_be_written_is_passed_over() {
        let folder = tempfile::tempdir().expect("temporary folder");
        fs::write(folder.path().join("file"), "").expect("written");
        let places = [folder.path().join("file/index"), folder.path().join("new/index")];
        let index = counted(9);
        assert_eq!(learn(&index, &places), Ok(Learned::Saved("0.".into(), places[1].clone())));
        assert_eq!(learn(&index, &places), Ok(Learned::Read("0.".into())), "in the second place");
        let unsaved = |places: &[PathBuf], made: &str, why: &str| {
            let learned = learn(&index, places).expect("made");
            let Learned::Unsaved(text, reason) = learned else { panic!("{learned:?}") };
            assert!(text == made && reason.contains(why), "{text} {reason}");
        };
        unsaved(&places[..1], "1.", "file/index: ");
        unsaved(&[], "2.", "no folder");
        index.made.store(9, Ordering::Relaxed);
        let index = Counted { limit: 10, ..index };
        let learned = learn(&index, &[folder.path().join("nine")]);
        assert_eq!(learned, Ok(Learned::Unsaved("9.".into(), "nine has no form".into())));
        assert!(!folder.path().join("nine.part").exists());
    }

    #[test]
    fn what_cannot_be_made_leaves_nothing() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let failed = learn(&counted(0), &[folder.path().join("index")]);
        assert_eq!(failed, Err("no more"));
        assert_eq!(fs::read_dir(folder.path()).expect("there").count(), 0);
    }
}
