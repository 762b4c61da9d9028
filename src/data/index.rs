//! What was learned of a set, saved so that it is learned once: of all processes that need it one
//! learns it, the others wait and read; a later start reads. Whoever reads judges what is saved:
//! an index that is stale or damaged is made anew.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::part::Part;

/// Other processes that make one index and are waited for, each in turn.
const TURNS_MAX: usize = 64;
/// Everybody who may read the set may read its index: less what the process's mask takes.
const INDEX_MODE: u32 = 0o666;

/// What was asked for, and whether it is saved.
#[derive(Debug, PartialEq, Eq)]
pub enum Learned<T> {
    /// It was saved before, or is now.
    Saved(T),
    /// It can be saved nowhere: the last place's reason.
    Unsaved(T, String),
}

impl<T> Learned<T> {
    /// Wherever it came from.
    pub fn value(self) -> T {
        match self {
            Self::Saved(value) | Self::Unsaved(value, _) => value,
        }
    }
}

/// Takes what is saved in one of `places`, by their order; else makes it and saves it in the first
/// that takes it, whose folder is made if need be. `read` gives nothing for what is not to be trusted, `bytes` is the saved form.
///
/// # Errors
/// Those of `make`.
pub fn learn<T, E>(
    places: &[PathBuf],
    read: impl Fn(&Path) -> Option<T>,
    make: impl Fn() -> Result<T, E>,
    bytes: impl Fn(&T) -> Vec<u8>,
) -> Result<Learned<T>, E> {
    if let Some(saved) = places.iter().find_map(|place| read(place)) {
        return Ok(Learned::Saved(saved));
    }
    let mut reason = "there is no folder for it".to_owned();
    for place in places {
        match make_in(place, &read, &make, &bytes)? {
            Ok(value) => return Ok(Learned::Saved(value)),
            Err((error, None)) => reason = error.to_string(),
            Err((error, Some(value))) => return Ok(Learned::Unsaved(value, error.to_string())),
        }
    }
    make().map(|value| Learned::Unsaved(value, reason))
}

/// Why a place did not take it, and what was made, if it came so far.
type Refused<T> = (io::Error, Option<T>);

fn make_in<T, E>(
    place: &Path,
    read: impl Fn(&Path) -> Option<T>,
    make: impl Fn() -> Result<T, E>,
    bytes: impl Fn(&T) -> Vec<u8>,
) -> Result<Result<T, Refused<T>>, E> {
    if let Some(folder) = place.parent() {
        // What is in its way, opening the part says.
        let _ = fs::create_dir(folder);
    }
    for _ in 0..TURNS_MAX {
        let part = match Part::open(place, INDEX_MODE) {
            Ok(part) => part,
            Err(error) => return Ok(Err((error, None))),
        };
        // Who held it has saved it, or died and left it.
        if let Some(saved) = read(place) {
            part.discard();
            return Ok(Ok(saved));
        }
        if !part.is_there() {
            continue;
        }
        let value = make().inspect_err(|_| part.discard())?;
        return Ok(match save(&part, place, &bytes(&value)) {
            Ok(()) => Ok(value),
            Err(error) => {
                part.discard();
                Err((error, Some(value)))
            }
        });
    }
    Ok(Err((io::Error::other("others never finish it"), None)))
}

fn save(part: &Part, place: &Path, bytes: &[u8]) -> io::Result<()> {
    part.file.set_len(0)?;
    (&part.file).write_all(bytes)?;
    fs::rename(&part.path, place)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn read(place: &Path) -> Option<String> {
        fs::read_to_string(place).ok().filter(|text| text.ends_with('.'))
    }

    fn ask(places: &[PathBuf], made: &AtomicU32) -> Learned<String> {
        let make = || {
            let number = made.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(std::time::Duration::from_millis(20));
            Ok::<_, ()>(format!("{number}."))
        };
        learn(places, read, make, |text| text.clone().into_bytes()).expect("made")
    }

    #[test]
    fn of_many_who_ask_at_once_one_makes_it_and_later_ones_read() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (places, made) = ([folder.path().join("index")], AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| assert_eq!(ask(&places, &made), Learned::Saved("0.".into())));
            }
        });
        assert_eq!(ask(&places, &made), Learned::Saved("0.".into()));
        assert_eq!(fs::read_dir(folder.path()).expect("there").count(), 1, "no part is left");
        // What is damaged is made anew; a part of a dead process is taken over.
        fs::write(&places[0], "0").expect("written");
        fs::write(folder.path().join("index.part"), "half of a longer one").expect("written");
        assert_eq!(ask(&places, &made), Learned::Saved("1.".into()));
        assert_eq!(read(&places[0]).as_deref(), Some("1."));
    }

    #[test]
    fn a_place_that_cannot_be_written_is_passed_over() {
        let folder = tempfile::tempdir().expect("temporary folder");
        fs::write(folder.path().join("file"), "").expect("written");
        let places = [folder.path().join("file/index"), folder.path().join("new/index")];
        let made = AtomicU32::new(0);
        assert_eq!(ask(&places, &made), Learned::Saved("0.".into()));
        assert_eq!(ask(&places, &made), Learned::Saved("0.".into()), "found in the second place");
        assert!(matches!(ask(&places[..1], &made), Learned::Unsaved(text, _) if text == "1."));
        assert!(matches!(ask(&[], &made), Learned::Unsaved(text, why)
            if text == "2." && why.contains("no folder")));
    }

    #[test]
    fn what_cannot_be_made_leaves_nothing() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let place = [folder.path().join("index")];
        let failed = learn(&place, read, || Err("no"), |text: &String| text.clone().into_bytes());
        assert_eq!(failed, Err("no"));
        assert_eq!(fs::read_dir(folder.path()).expect("there").count(), 0);
    }
}
