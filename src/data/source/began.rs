//! How files of many samples were when their run began. Who comes to a run later lists them as they
//! are then: without this a file that was exchanged meanwhile would count as the one that the run
//! began with. Each host keeps its own, since the same files may be copies there, of other times.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use kintsugi_ffi::os;
use xxhash_rust::xxh3::xxh3_128;

use super::Source;
use crate::data::index::{Cache, Occasion, save};
use crate::data::unfinished::Unfinished;
use crate::observe::refusal::{if_there, insist, naming};

/// It is the run's owner's.
const MODE: u32 = 0o600;

/// Size and time by the number of the set, its listing and the place in it: where the files lie may
/// change while a run goes on, and what they hold may not. Another validation set has another
/// listing.
type Known = BTreeMap<String, (u64, i64)>;

fn place(folder: &Path, host: &str) -> PathBuf {
    folder.join(format!("files-{:032x}.run", xxh3_128(host.as_bytes())))
}

/// Tells the files of these sets how they were when the run began, and keeps it where it begins, or
/// where this host sees them for the first time.
///
/// # Errors
/// What is kept cannot be read or written.
pub fn recall(sets: &[&dyn Source], cache: Cache<'_>) -> io::Result<()> {
    recall_on(&os::hostname(), sets, cache)
}

fn recall_on(host: &str, sets: &[&dyn Source], cache: Cache<'_>) -> io::Result<()> {
    let mut files = Vec::new();
    for (number, set) in sets.iter().enumerate() {
        let listed = set.listed().into_iter().enumerate();
        let of = format!("{number}.{:016x}", set.fingerprint());
        files.extend(listed.map(|(place, (_, file))| (format!("{of}.{place}"), file)));
    }
    if files.is_empty() {
        return Ok(());
    }
    let place = place(cache.folder, host);
    let kept = match cache.occasion {
        // What an earlier start has kept that committed nothing is not asked for.
        Occasion::Begins => None,
        _ => if_there(insist(|| fs::read(&place))).map_err(naming(&place))?,
    };
    // Damaged, it is no worse than none.
    let kept = kept.and_then(|text| serde_json::from_slice::<Known>(&text).ok());
    let mut known = kept.clone().unwrap_or_default();
    for (key, file) in files {
        let Some(now) = file.listed() else { continue };
        file.began_as(*known.entry(key).or_insert(now));
    }
    if kept.as_ref() == Some(&known) {
        return Ok(());
    }
    // What is in its way, opening the part says.
    let _ = fs::create_dir(cache.folder);
    let part = Unfinished::open(&place, MODE)?;
    if !part.is_there() {
        // Another rank of this host has just kept the same.
        return Ok(());
    }
    save(&part, &place, &serde_json::to_vec(&known)?).inspect_err(|_| part.discard())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::source::tar::Tar;
    use crate::data::source::tar::tests::write;
    use crate::data::store::direct::Direct;

    /// Whether its samples count as rewritten, for who opens it so, on this host.
    fn is_rewritten(path: &Path, cache: &Path, occasion: Occasion, host: &str) -> bool {
        let store = Direct::default();
        let set = Tar::open(&store, path, "data.train", None, Some(cache)).expect("a shard");
        recall_on(host, &[&set], Cache { folder: cache, occasion }).expect("kept");
        set.is_rewritten(0, &store)
    }

    #[test]
    fn a_file_that_was_exchanged_since_the_run_began_is_another_for_who_comes_later() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, cache) = (folder.path().join("a.tar"), folder.path().join("cache"));
        let exchange = || {
            // Longer than a tick of the clock of files.
            std::thread::sleep(std::time::Duration::from_millis(20));
            write(&folder.path().join("new"), 0, &[0, 1]);
            fs::rename(folder.path().join("new"), &path).expect("exchanged");
        };
        exchange();
        assert!(!is_rewritten(&path, &cache, Occasion::Begins, "a"));
        for occasion in [Occasion::Joins, Occasion::GoesOn] {
            assert!(!is_rewritten(&path, &cache, occasion, "a"));
        }
        exchange();
        for occasion in [Occasion::Joins, Occasion::GoesOn] {
            assert!(is_rewritten(&path, &cache, occasion, "a"));
        }
        // Of a host that the run has not been on nothing is known, until it has.
        assert!(!is_rewritten(&path, &cache, Occasion::Joins, "b"));
        exchange();
        assert!(is_rewritten(&path, &cache, Occasion::Joins, "b"));
        assert!(!is_rewritten(&path, &cache, Occasion::Begins, "a"), "another run begins");
    }

    #[test]
    fn a_set_that_lies_elsewhere_is_the_same_only_where_its_files_are() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = folder.path().join("cache");
        let [of_first, of_moved] = ["a", "b"].map(|name| folder.path().join(name));
        let (first, moved) = (of_first.join("x.tar"), of_moved.join("x.tar"));
        let other = folder.path().join("y.tar");
        fs::create_dir(&of_first).expect("made");
        write(&first, 0, &[0, 1]);
        assert!(!is_rewritten(&first, &cache, Occasion::Begins, "a"));
        fs::rename(&of_first, &of_moved).expect("moved");
        assert!(!is_rewritten(&moved, &cache, Occasion::GoesOn, "a"));
        // Longer than a tick of the clock of files.
        std::thread::sleep(std::time::Duration::from_millis(20));
        write(&other, 0, &[0, 1]);
        assert!(is_rewritten(&other, &cache, Occasion::GoesOn, "a"));
        assert!(!is_rewritten(&moved, &cache, Occasion::GoesOn, "a"));
        // `data.validation` may become another set.
        let longer = folder.path().join("z.tar");
        write(&longer, 0, &[0, 1, 2]);
        assert!(!is_rewritten(&longer, &cache, Occasion::GoesOn, "a"));
    }
}
