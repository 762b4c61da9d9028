//! When a saved listing is trusted; and a million files, where somebody asks for it.

use std::fs;
use std::time::{Duration, Instant, SystemTime};

use super::*;
use crate::config::Shown;
use crate::data::index::{Cache, Occasion};
use crate::data::source::Source;
use crate::data::source::image_folder::ImageFolder;
use crate::data::store::direct::Direct;

const KEY: &str = "data.train";

/// Gives a folder the time of an hour ago.
fn settle(folder: &Path) {
    let before = SystemTime::now() - Duration::from_secs(3600);
    fs::File::open(folder).and_then(|folder| folder.set_modified(before)).expect("ours");
}

fn place() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let place = tempfile::tempdir().expect("temporary folder");
    let (root, cache) = (place.path().join("set"), place.path().join("cache"));
    for name in ["a/2.jpg", "a/1.png", "a/deep/x.jpg", "a.b/0.jpg", "b/3.jpg"] {
        fs::create_dir_all(root.join(name).parent().expect("below")).expect("made");
        fs::write(root.join(name), name).expect("written");
    }
    (place, root, cache)
}

fn settle_all(root: &Path) {
    for folder in ["a/deep", "a", "a.b", "b", ""] {
        settle(&root.join(folder));
    }
}

fn names(set: &ImageFolder) -> Vec<String> {
    (0..set.len()).map(|id| set.name(id)).collect()
}

fn open(root: &Path, cache: &Path) -> ImageFolder {
    let cache = Cache { folder: cache, occasion: Occasion::Begins };
    ImageFolder::open(&Direct::default(), root, KEY, Some(cache)).expect("opens")
}

fn is_saved(cache: &Path) -> bool {
    fs::read_dir(cache).is_ok_and(|entries| entries.count() == 1)
}

#[test]
fn a_listing_is_saved_when_its_folders_have_settled_and_trusted_until_one_changes() {
    let (_kept, root, cache) = place();
    let plain = ImageFolder::open(&Direct::default(), &root, KEY, None).expect("opens");
    let sorted = ["a/1.png", "a/2.jpg", "a/deep/x.jpg", "a.b/0.jpg", "b/3.jpg"];
    let expected: Vec<String> = sorted.iter().map(|name| root.join(name).shown()).collect();
    assert_eq!(names(&plain), expected);
    // It was made just now.
    assert_eq!(open(&root, &cache).fingerprint(), plain.fingerprint());
    assert!(!is_saved(&cache));
    settle_all(&root);
    for _ in 0..2 {
        let set = open(&root, &cache);
        assert_eq!((names(&set), set.fingerprint()), (expected.clone(), plain.fingerprint()));
        assert_eq!(set.classes(), plain.classes());
        assert_eq!(set.location(4), plain.location(4));
        assert!(is_saved(&cache));
    }
    // It is believed: a name that comes without a new time is not seen.
    let deep = root.join("a/deep");
    let before = fs::metadata(&deep).and_then(|facts| facts.modified()).expect("there");
    fs::write(deep.join("new.jpg"), "x").expect("written");
    fs::File::open(&deep).and_then(|folder| folder.set_modified(before)).expect("ours");
    assert_eq!(open(&root, &cache).len(), 5);
    settle(&deep);
    assert_eq!(open(&root, &cache).len(), 6, "any other time than the one it had is news");
    fs::write(root.join("b/4.jpg"), "x").expect("written");
    assert_eq!(open(&root, &cache).len(), 7, "a folder that changed is listed");
    fs::create_dir(root.join("c")).expect("made");
    fs::write(root.join("c/1.jpg"), "x").expect("written");
    settle_all(&root);
    assert_eq!(open(&root, &cache).classes().len(), 4, "so is a class that came");
}

#[test]
fn what_a_saved_listing_says_is_believed_and_a_damaged_one_is_not() {
    let (_kept, root, cache) = place();
    settle_all(&root);
    let fingerprint = open(&root, &cache).fingerprint();
    // Written in place: no folder has another time.
    fs::write(root.join("b/3.jpg"), "longer than it was before").expect("written");
    let set = open(&root, &cache);
    assert_eq!(
        (set.fingerprint(), set.location(4).expect("a file").extent.length()),
        (fingerprint, 7)
    );
    let index = fs::read_dir(&cache).expect("there").flatten().next().expect("one").path();
    let mut bytes = fs::read(&index).expect("there");
    bytes[50] ^= 1;
    fs::write(&index, bytes).expect("written");
    let set = open(&root, &cache);
    assert_eq!(set.location(4).expect("a file").extent.length(), 25);
    assert_ne!(set.fingerprint(), fingerprint);
}

#[test]
fn ranks_that_start_together_list_once() {
    let (_kept, root, cache) = place();
    settle_all(&root);
    let prints: Vec<u64> = std::thread::scope(|scope| {
        let ranks: Vec<_> =
            (0..6).map(|_| scope.spawn(|| open(&root, &cache).fingerprint())).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    });
    assert!(prints.iter().all(|print| *print == prints[0]));
    assert!(is_saved(&cache));
}

/// Bytes of this process's memory, by the name of the line.
fn memory(line: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let found = status.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':'));
    let kilobytes = found.and_then(|text| text.trim().split(' ').next()?.parse::<u64>().ok());
    kilobytes.expect("a number") * 1024
}

/// Issue 22, point 6: `cargo test --release --lib -- --ignored --nocapture a_million`. The folder
/// is `$KINTSUGI_MILLION`, else /dev/shm.
#[test]
#[ignore = "makes a million files"]
fn a_million_files() {
    let base = std::env::var_os("KINTSUGI_MILLION").unwrap_or_else(|| "/dev/shm".into());
    let place = tempfile::Builder::new().prefix("kintsugi-million-").tempdir_in(base);
    let place = place.expect("temporary folder");
    let (root, cache) = (place.path().join("set"), place.path().join("cache"));
    for class in 0..1000 {
        let folder = root.join(format!("n{class:08}"));
        fs::create_dir_all(&folder).expect("made");
        // Some file systems allow 65,000 links to a file.
        let first = folder.join("0.JPEG");
        fs::write(&first, "x").expect("written");
        for number in 1..1000 {
            let name = folder.join(format!("n{class:08}_{number}.JPEG"));
            fs::hard_link(&first, name).expect("linked");
        }
        settle(&folder);
    }
    settle(&root);
    let before = memory("RssAnon");
    for start in ["first", "later", "later"] {
        let begun = Instant::now();
        let set = open(&root, &cache);
        let seconds = begun.elapsed().as_secs_f64();
        assert_eq!(set.len(), 1_000_000);
        let own = memory("RssAnon").saturating_sub(before) / 1_000_000;
        let (shared, peak) = (memory("RssFile") + memory("RssShmem"), memory("VmHWM"));
        crate::observe::console::say!(
            "{start} start {seconds:.2} s, fingerprint {:016x}: {own} MB of its own, {} MB mapped, \
             peak of the process {} MB",
            set.fingerprint(),
            shared / 1_000_000,
            peak / 1_000_000,
        );
    }
}
