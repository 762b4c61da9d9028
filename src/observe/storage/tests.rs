//! Both storages keep the same promises.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::observe::refusal::to_write;

use super::{Fault, FileSystem, MemoryStorage, Operation, Storage, sync};

fn on_both(claim: impl Fn(&dyn Storage)) {
    let folder = tempfile::tempdir().unwrap();
    claim(&FileSystem::new(folder.path()));
    claim(&MemoryStorage::new());
}

#[test]
fn where_nothing_can_be_made_durable_it_is_said_so() {
    // A file system without fsync: the kernel's answer is EINVAL.
    let error = sync(&File::open("/proc/self/status").unwrap()).unwrap_err();
    let said = to_write(&error);
    assert!(said.starts_with("fsync: Invalid argument"), "{said}");
    assert!(said.contains("this file system or kernel cannot do that"), "{said}");
}

#[test]
fn a_folder_that_is_held_is_changed_nowhere_else() {
    let above = tempfile::tempdir().unwrap();
    let (run, elsewhere) = (above.path().join("run"), above.path().join("elsewhere"));
    assert!(FileSystem::holding(&run).is_err(), "there is nothing to hold");
    std::fs::create_dir(&run).unwrap();
    let storage = FileSystem::holding(&run).unwrap();
    storage.append_line("events".as_ref(), "{}").unwrap();
    assert_eq!(storage.moved(), None);
    std::fs::rename(&run, &elsewhere).unwrap();
    let refuses = || {
        let (a, b) = (Path::new("events"), Path::new("b/c"));
        let changes = [
            storage.append_line(a, "{}"),
            storage.write_whole(a, &[b"x"]),
            storage.replace(a, b"x"),
            storage.create_new(b, b"x"),
            storage.create_dir(b),
            storage.rename(a, b),
            storage.remove(a),
        ];
        for change in changes {
            let text = change.unwrap_err().to_string();
            assert!(text.contains("was moved, removed or replaced"), "{text}");
        }
    };
    refuses();
    assert!(!run.exists(), "nothing grows in the old place");
    std::fs::create_dir(&run).unwrap();
    refuses();
    assert_eq!(std::fs::read_dir(&run).unwrap().count(), 0, "nor in another run of the name");
    std::fs::remove_dir(&run).unwrap();
    std::fs::rename(&elsewhere, &run).unwrap();
    storage.append_line("events".as_ref(), "{}").unwrap();
    assert_eq!(storage.read("events".as_ref()).unwrap(), b"{}\n{}\n");
}

#[test]
fn a_written_file_is_read_back_whole_and_replaced_whole() {
    on_both(|storage| {
        let path = Path::new("a.json");
        storage.write_whole(path, &[b"one ", b"two"]).unwrap();
        assert_eq!(storage.read(path).unwrap(), b"one two");
        storage.write_whole(path, &[b"three"]).unwrap();
        assert_eq!(storage.read(path).unwrap(), b"three");
        assert_eq!(storage.list(Path::new("")).unwrap(), ["a.json"]);
    });
}

#[test]
fn only_one_of_two_claims_a_name() {
    on_both(|storage| {
        storage.create_dir(Path::new("faults")).unwrap();
        let path = Path::new("faults/plan-0");
        storage.create_new(path, b"first").unwrap();
        let second = storage.create_new(path, b"second").unwrap_err();
        assert_eq!(second.kind(), ErrorKind::AlreadyExists);
        assert_eq!(storage.read(path).unwrap(), b"first");
    });
}

#[test]
fn lines_are_appended_and_a_file_is_read_from_its_end() {
    on_both(|storage| {
        let path = Path::new("lines");
        assert_eq!(storage.read_end(path, 1).unwrap(), b"");
        storage.append_line(path, "a").unwrap();
        storage.append_line(path, "b").unwrap();
        assert_eq!(storage.read(path).unwrap(), b"a\nb\n");
        assert_eq!(storage.read_end(path, 1).unwrap(), b"\n");
        assert_eq!(storage.read_end(path, 100).unwrap(), b"a\nb\n");
        storage.write_whole(path, &[b"torn"]).unwrap();
        assert_eq!(storage.read_end(path, 2).unwrap(), b"rn");
    });
}

#[test]
fn folders_are_renamed_with_what_they_hold_and_absent_things_are_gone_already() {
    on_both(|storage| {
        storage.create_dir(Path::new("new/deep")).unwrap();
        storage.write_whole(Path::new("new/deep/x"), &[b"1"]).unwrap();
        storage.rename(Path::new("new"), Path::new("old")).unwrap();
        assert_eq!(storage.read(Path::new("old/deep/x")).unwrap(), b"1");
        assert_eq!(storage.list(Path::new("new")).unwrap(), Vec::<String>::new());
        storage.remove(Path::new("old")).unwrap();
        storage.remove(Path::new("old")).unwrap();
        assert_eq!(storage.list(Path::new("")).unwrap(), Vec::<String>::new());
    });
}

#[test]
fn a_full_target_folder_is_not_replaced() {
    on_both(|storage| {
        for folder in ["a", "b"] {
            storage.create_dir(Path::new(folder)).unwrap();
            storage.write_whole(&Path::new(folder).join("x"), &[folder.as_bytes()]).unwrap();
        }
        let refused = storage.rename(Path::new("a"), Path::new("b")).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::DirectoryNotEmpty);
        assert_eq!(storage.read(Path::new("b/x")).unwrap(), b"b");
    });
}

#[test]
fn errors_name_the_path() {
    on_both(|storage| {
        let missing = storage.read(Path::new("no/such")).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        assert!(missing.to_string().contains("no/such"), "{missing}");
        let orphan = storage.write_whole(Path::new("no/such"), &[b"x"]).unwrap_err();
        assert_eq!(orphan.kind(), ErrorKind::NotFound);
    });
}

#[test]
fn a_failed_write_leaves_the_old_file_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let storage = FileSystem::new(folder.path());
    // A folder in the way of the rename makes the last step fail.
    storage.create_dir(Path::new("target/inside")).unwrap();
    storage.write_whole(Path::new("target"), &[b"x"]).unwrap_err();
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn injected_faults_strike_the_named_operation_only() {
    let appends = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&appends);
    let storage = MemoryStorage::with_faults(move |operation, _| {
        let second = operation == Operation::AppendLine && seen.fetch_add(1, Ordering::SeqCst) == 1;
        second.then_some(Fault::Tears(2))
    });
    let path = Path::new("lines");
    storage.append_line(path, "one").unwrap();
    storage.append_line(path, "two").unwrap_err();
    storage.append_line(path, "three").unwrap();
    assert_eq!(storage.read(path).unwrap(), b"one\ntwthree\n");
}

#[test]
fn lines_of_many_writers_never_interleave() {
    let folder = tempfile::tempdir().unwrap();
    let storage = FileSystem::new(folder.path());
    let lines_per_writer = 200;
    std::thread::scope(|scope| {
        for writer in 0..4u8 {
            let storage = &storage;
            scope.spawn(move || {
                let line = char::from(b'a' + writer).to_string().repeat(300);
                for _ in 0..lines_per_writer {
                    storage.append_line(Path::new("shared"), &line).unwrap();
                }
            });
        }
    });
    let text = String::from_utf8(storage.read(Path::new("shared")).unwrap()).unwrap();
    assert_eq!(text.lines().count(), 4 * lines_per_writer);
    for line in text.lines() {
        assert_eq!(line.len(), 300);
        assert!(line.bytes().all(|byte| byte == line.as_bytes()[0]));
    }
}
