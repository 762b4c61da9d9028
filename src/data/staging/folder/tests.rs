//! A staging folder among readers, other processes and damage.

use super::*;
use crate::data::store::memory::MemoryStore;

fn store() -> MemoryStore {
    let mut store = MemoryStore::default();
    store.put("/set/a.jpg", *b"first");
    store.put("/set/b.jpg", *b"second");
    store.put("/set/many.bin", *b"0123456789");
    store
}

fn fetch(folder: &Folder, name: &str) -> (Found, Vec<u8>) {
    let mut bytes = Vec::new();
    let found = folder.fetch(&Location::whole(Path::new(name), 0), &mut bytes);
    (found, bytes)
}

#[test]
fn a_copy_is_used_by_whoever_opens_the_folder_later() {
    let place = tempfile::tempdir().expect("temporary folder");
    let root = place.path().join("stage");
    let folder = Folder::open(&root).expect("opened");
    assert_eq!(fetch(&folder, "/set/a.jpg").0, Found::Not);
    assert_eq!(folder.copy(&store(), Path::new("/set/a.jpg")), Ok(Done::Made(5)));
    assert_eq!(fetch(&folder, "/set/a.jpg"), (Found::Here, b"first".to_vec()));
    let other = Folder::open(&root).expect("opened");
    assert_eq!(fetch(&other, "/set/a.jpg").0, Found::Not, "it has not been compared yet");
    let again = other.copy(&MemoryStore::default(), Path::new("/set/a.jpg"));
    assert_eq!(again, Ok(Done::Found(5)));
    assert_eq!(fetch(&other, "/set/a.jpg"), (Found::Here, b"first".to_vec()));
    other.copy(&store(), Path::new("/set/many.bin")).expect("copied");
    folder.catch_up();
    let mut bytes = Vec::new();
    let part = Location::range(Path::new("/set/many.bin"), 3, 4);
    assert_eq!(folder.fetch(&part, &mut bytes), Found::Here);
    assert_eq!((bytes.as_slice(), folder.bytes()), (b"3456".as_slice(), 15));
}

#[test]
fn a_copy_whose_file_has_changed_since_at_its_length_is_made_again() {
    let place = tempfile::tempdir().expect("temporary folder");
    let (root, file) = (place.path().join("stage"), place.path().join("batch.bin"));
    let (name, store) = (file.to_str().expect("text"), Direct::default());
    let later = |done: Done, bytes: &[u8]| {
        let folder = Folder::open(&root).expect("opened");
        assert_eq!(fetch(&folder, name).0, Found::Not);
        assert_eq!(folder.copy(&store, &file), Ok(done));
        assert_eq!(fetch(&folder, name), (Found::Here, bytes.to_vec()));
    };
    let write = |bytes: &[u8], seconds: u64| {
        fs::write(&file, bytes).expect("written");
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        File::open(&file).and_then(|file| file.set_modified(time)).expect("set");
    };
    write(b"labels", 1_000);
    later(Done::Made(6), b"labels");
    later(Done::Found(6), b"labels");
    write(b"mended", 999);
    later(Done::Made(6), b"mended");
    later(Done::Found(6), b"mended");
    // Of a file that cannot be asked for, the copy is all there is.
    fs::remove_file(&file).expect("removed");
    later(Done::Found(6), b"mended");
}

#[test]
fn a_copy_that_changed_is_forgotten_and_can_be_made_again() {
    let place = tempfile::tempdir().expect("temporary folder");
    let root = place.path().join("stage");
    let folder = Folder::open(&root).expect("opened");
    for (name, damage) in [("/set/a.jpg", &b"fi"[..]), ("/set/b.jpg", b"secOnd")] {
        folder.copy(&store(), Path::new(name)).expect("copied");
        fs::write(Key::of(Path::new(name)).path(&root), damage).expect("written");
        assert!(matches!(fetch(&folder, name).0, Found::Damaged(_)), "{name}");
        assert_eq!(fetch(&folder, name).0, Found::Not);
        folder.copy(&store(), Path::new(name)).expect("copied");
        assert_eq!(fetch(&folder, name).0, Found::Here);
    }
    let many = Path::new("/set/many.bin");
    folder.copy(&store(), many).expect("copied");
    fs::write(Key::of(many).path(&root), b"0123456780").expect("written");
    let later = Folder::open(&root).expect("opened");
    assert_eq!(later.copy(&store(), many), Ok(Done::Found(10)));
    let mut bytes = Vec::new();
    let found = later.fetch(&Location::range(many, 0, 2), &mut bytes);
    assert_eq!(found, Found::Damaged("its bytes have changed".into()));
}

#[test]
fn every_read_of_a_part_of_a_copy_is_checked_whenever_it_was_damaged() {
    let (place, mut store) = (tempfile::tempdir().expect("temporary folder"), store());
    let whole: Vec<u8> = (0..300_000u32).map(|at| (at % 251) as u8).collect();
    store.put("/set/large.bin", whole.clone());
    let (folder, large) =
        (Folder::open(place.path()).expect("opened"), Path::new("/set/large.bin"));
    folder.copy(&store, large).expect("copied");
    let read = |offset: usize, length: usize| {
        let (mut bytes, part) = (vec![1; 9], Location::range(large, offset as u64, length as u64));
        (folder.fetch(&part, &mut bytes), bytes)
    };
    // Within a part, over several, up to the end, and nothing.
    for (offset, length) in [(0, 1), (70_000, 30), (65_000, 140_000), (299_990, 10), (5, 0)] {
        let expected = (Found::Here, whole[offset..offset + length].to_vec());
        assert_eq!(read(offset, length), expected, "{offset} {length}");
    }
    // Behind its first read: one bit, at its length.
    let mut damaged = whole.clone();
    damaged[150_000] ^= 4;
    fs::write(Key::of(large).path(place.path()), damaged).expect("written");
    assert_eq!(read(0, 100).0, Found::Here, "the damage lies elsewhere");
    assert_eq!(read(149_990, 20).0, Found::Damaged("its bytes have changed".into()));
    assert_eq!(read(0, 100).0, Found::Not, "none of it is used any more");
}

#[test]
fn a_file_that_becomes_another_while_its_run_goes_on_is_known_and_one_before_it_is_not() {
    let place = tempfile::tempdir().expect("temporary folder");
    let (root, file) = (place.path().join("stage"), place.path().join("a.jpg"));
    let store = Direct::default();
    // Long enough for another time on any file system here.
    let write = |bytes: &[u8]| {
        std::thread::sleep(std::time::Duration::from_millis(30));
        fs::write(&file, bytes).expect("written");
    };
    let copied = |folder: Folder| {
        folder.copy(&store, &file).expect("copied");
        folder
    };
    let opened = |occasion| Folder::open(&root).expect("opened").opened_for(occasion);
    write(b"ahead");
    copied(Folder::open(&root).expect("opened"));
    write(b"first");
    let begins = opened(Occasion::Begins);
    let joins = copied(opened(Occasion::Joins));
    begins.catch_up();
    let early = [&begins, &joins].map(|folder| folder.is_rewritten(&file));
    assert_eq!(early, [false; 2], "it was copied ahead of the run, and not used");
    drop(joins);
    write(b"first");
    assert!(!copied(opened(Occasion::Joins)).is_rewritten(&file), "touched, and the same");
    write(b"other");
    let joins = copied(opened(Occasion::Joins));
    begins.catch_up();
    // Whoever made it, whoever learns of it, whoever comes later.
    let goes_on = opened(Occasion::GoesOn);
    assert!([&joins, &begins, &goes_on].iter().all(|folder| folder.is_rewritten(&file)));
    // Another run begins, with the copies of this one.
    drop((begins, joins, goes_on));
    write(b"mended");
    assert!(!copied(opened(Occasion::Begins)).is_rewritten(&file));
    assert!(!opened(Occasion::GoesOn).is_rewritten(&file));
}

#[test]
fn a_copy_that_a_run_took_unseen_or_had_in_an_earlier_release_counts_as_used() {
    let place = tempfile::tempdir().expect("temporary folder");
    let (root, file) = (place.path().join("stage"), place.path().join("a.jpg"));
    let store = Direct::default();
    let copied = |folder: Folder| {
        folder.copy(&store, &file).expect("copied");
        folder
    };
    let opened = |occasion| Folder::open(&root).expect("opened").opened_for(occasion);
    fs::write(&file, b"ahead").expect("written");
    copied(Folder::open(&root).expect("opened"));
    // It cannot be looked at: what there is of it is used.
    fs::remove_file(&file).expect("removed");
    copied(opened(Occasion::Begins));
    fs::write(&file, b"other").expect("written");
    assert!(copied(opened(Occasion::Joins)).is_rewritten(&file));
    // An earlier release does not say when its run began, and not when a copy was made.
    fs::remove_file(root.join("BEGAN")).expect("removed");
    let manifest = root.join("MANIFEST");
    let text = fs::read_to_string(&manifest).expect("there");
    let lines = text.lines().map(|line| match line.split_once(",\"made_ns\"") {
        Some((line, _)) => format!("{line}}}\n"),
        None => format!("{line}\n"),
    });
    fs::write(&manifest, lines.collect::<String>()).expect("written");
    fs::write(&file, b"third, longer").expect("written");
    assert!(copied(opened(Occasion::GoesOn)).is_rewritten(&file));
}

#[test]
fn what_a_killed_writer_left_is_written_again_from_its_start() {
    let place = tempfile::tempdir().expect("temporary folder");
    let folder = Folder::open(&place.path().join("stage")).expect("opened");
    let path = Key::of(Path::new("/set/a.jpg")).path(folder.root());
    fs::create_dir(path.parent().expect("below the root")).expect("made");
    let mut part = path.into_os_string();
    part.push(".part");
    fs::write(&part, b"much longer than the file itself").expect("written");
    assert_eq!(folder.copy(&store(), Path::new("/set/a.jpg")), Ok(Done::Made(5)));
    assert_eq!(fetch(&folder, "/set/a.jpg"), (Found::Here, b"first".to_vec()));
    assert!(!Path::new(&part).exists());
}

#[test]
fn a_copy_that_another_process_is_making_is_waited_for() {
    let place = tempfile::tempdir().expect("temporary folder");
    let root = place.path().join("stage");
    let (folder, other) = (Folder::open(&root).expect("opened"), Folder::open(&root).expect("too"));
    let path = Key::of(Path::new("/set/a.jpg")).path(&root);
    fs::create_dir(path.parent().expect("below the root")).expect("made");
    let part = Unfinished::open(&path, COPY_MODE).expect("locked");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| folder.copy(&MemoryStore::default(), Path::new("/set/a.jpg")));
        let copied = write(&store(), Path::new("/set/a.jpg"), &part.file);
        let (copied, _) = copied.expect("copied");
        fs::rename(&part.path, &path).expect("renamed");
        other
            .enter(Path::new("/set/a.jpg"), Key::of(Path::new("/set/a.jpg")), copied)
            .expect("entered");
        drop(part);
        assert_eq!(waits.join().expect("no panic"), Ok(Done::Found(5)), "it read nothing itself");
    });
}

#[test]
fn each_side_of_a_copy_has_its_own_errors() {
    let place = tempfile::tempdir().expect("temporary folder");
    let root = place.path().join("stage");
    let folder = Folder::open(&root).expect("opened");
    let missing = folder.copy(&store(), Path::new("/set/none.jpg"));
    assert!(matches!(missing, Err(CopyError::Source(_))), "{missing:?}");
    fs::remove_dir_all(&root).expect("removed");
    let removed = folder.copy(&store(), Path::new("/set/a.jpg"));
    assert!(matches!(removed, Err(CopyError::Folder(_))), "{removed:?}");
}

#[test]
fn the_last_process_that_is_done_with_a_folder_removes_it() {
    let place = tempfile::tempdir().expect("temporary folder");
    let root = place.path().join("stage");
    let (one, two) = (Folder::open(&root).expect("opened"), Folder::open(&root).expect("opened"));
    one.retire();
    remove_unused(&root);
    assert!(root.exists());
    // It was killed.
    drop(two);
    remove_unused(&root);
    assert!(!root.exists());
    Folder::open(&root).expect("opened").retire();
    assert_eq!(fs::read_dir(place.path()).expect("read").count(), 0);
}
