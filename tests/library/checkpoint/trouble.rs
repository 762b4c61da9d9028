//! A storage that fails while a checkpoint is written, and what stays afterwards.

use super::*;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use kintsugi::train::checkpoint::CheckpointError;
use proptest::prelude::*;

/// More than the operations of one write.
const OPERATIONS_MAX: usize = 100;

/// Writes step 2 beside step 1 (and once over an older step 2) with trouble from operation `first`
/// on, for every `first` that matters, and shows the storage, well again, to `check`, with the
/// step that must be there whatever happened.
fn write_in_trouble(
    kind: ErrorKind,
    failing: usize,
    check: impl Fn(&MemoryStorage, &WriterReport, u64),
) {
    for replaces in [false, true] {
        let mut ended = false;
        for first in 0..OPERATIONS_MAX {
            let (wear, storage) = wearing(kind);
            write(&storage, 1);
            if replaces {
                write(&storage, 2);
            }
            wear.strike(first, failing);
            let report = write_keeping(&storage, 2, 1);
            ended = wear.count.load(Ordering::Relaxed) <= first;
            wear.strike(usize::MAX, 0);
            check(&storage, &report, if replaces { 2 } else { 1 });
            if ended {
                assert!(report.result.is_ok(), "trouble after the end is no trouble");
                break;
            }
        }
        assert!(ended, "a write is less than {OPERATIONS_MAX} operations");
    }
}

#[test]
fn s5_a_storage_that_fails_once_anywhere_never_costs_the_older_checkpoint() {
    use ErrorKind::{Other, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    for kind in [StorageFull, QuotaExceeded, ReadOnlyFilesystem, Other] {
        write_in_trouble(kind, 1, |storage, report, held| {
            if report.result.is_err() {
                let left = names(storage);
                let temporary = left.iter().filter(|name| name.contains(".tmp-")).count();
                assert_eq!(temporary, 0, "{kind:?}: {left:?}");
            }
            store::clean(storage);
            let expected = if report.result.is_ok() { 2 } else { held };
            assert_eq!(newest_step(storage), Some(expected), "{kind:?}: {report:?}");
            assert!(write_keeping(storage, 3, 1).result.is_ok(), "the next one is written");
            assert_eq!(names(storage), ["step-00000003"], "{kind:?}");
        });
    }
}

#[test]
fn s5_a_writer_killed_anywhere_leaves_a_whole_checkpoint_and_rubbish_that_is_cleaned() {
    write_in_trouble(ErrorKind::Other, usize::MAX, |storage, _, held| {
        // A reader that comes before the next writer's cleaning finds the same one.
        let before = newest_step(storage);
        assert!(before >= Some(held));
        store::clean(storage);
        assert_eq!(newest_step(storage), before);
        assert!(names(storage).iter().all(|name| store::step_of(name).is_some()));
    });
}

#[test]
fn s5_a_full_disk_says_what_to_change() {
    let (wear, storage) = wearing(ErrorKind::StorageFull);
    wear.strike(2, 1);
    let error = write_keeping(&storage, 1, 1).result.unwrap_err().to_string();
    assert!(error.contains("lower checkpoint.keep"), "{error}");
    assert_eq!(names(&storage), Vec::<String>::new());
}

/// What becomes of the room of what is removed.
#[derive(Clone, Copy, PartialEq)]
enum Removed {
    GivesRoom,
    /// Others take it at once.
    GivesNone,
}

/// A storage with room for so many checkpoints: a write fails while as many are named.
fn small(room: usize, removed: Removed) -> MemoryStorage {
    let held = Arc::new(AtomicUsize::new(0));
    MemoryStorage::with_faults(move |operation: Operation, path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match operation {
            Operation::WriteWhole if held.load(Ordering::Relaxed) == room => {
                return Some(Fault::Fails(ErrorKind::StorageFull));
            }
            // One is published by its new name, and what goes loses its own first.
            Operation::Rename if name.contains(".tmp-") => {
                held.fetch_add(1, Ordering::Relaxed);
            }
            Operation::Rename if removed == Removed::GivesRoom => {
                held.fetch_sub(1, Ordering::Relaxed);
            }
            _ => {}
        }
        None
    })
}

#[test]
fn s5_without_room_for_one_more_an_older_one_goes_first_and_the_newest_never() {
    let storage = small(3, Removed::GivesRoom);
    for step in 1..=6 {
        let report = write_keeping(&storage, step, 9);
        report.result.unwrap();
        assert_eq!(report.gave_way.len(), usize::from(step > 3), "no more than there has to be");
    }
    assert_eq!(names(&storage), ["step-00000004", "step-00000005", "step-00000006"]);
    let storage = small(3, Removed::GivesNone);
    for step in 1..=3 {
        write_keeping(&storage, step, 9).result.unwrap();
    }
    let report = write_keeping(&storage, 4, 9);
    assert!(report.warnings().any(|text| text.contains("step-00000001 was removed")), "{report:?}");
    for step in 5..=8 {
        let error = write_keeping(&storage, step, 9).result.unwrap_err();
        assert!(error.is_without_room(), "{error}");
    }
    assert_eq!(names(&storage), ["step-00000003"]);
}

#[test]
fn s5_what_a_person_can_put_right_does_not_mark_a_checkpoint() {
    let denied = Arc::new(AtomicBool::new(false));
    let shared = Arc::clone(&denied);
    let storage = MemoryStorage::with_faults(move |operation, _: &Path| {
        let strikes = operation == Operation::Read && shared.load(Ordering::Relaxed);
        strikes.then_some(Fault::Fails(ErrorKind::PermissionDenied))
    });
    write(&storage, 1);
    write(&storage, 2);
    denied.store(true, Ordering::Relaxed);
    let error = newest_verified(&storage, &expectation()).unwrap_err();
    assert!(error.to_string().contains("check the owner"), "{error}");
    denied.store(false, Ordering::Relaxed);
    assert_eq!(newest_step(&storage), Some(2));
}

/// EIO, EMFILE, ENOTCONN have no kinds of their own that can be made here; none of them is an
/// absence, or says that what was written is not there any more.
#[test]
fn s5_checkpoints_that_cannot_be_read_for_a_moment_stay_what_they_are() {
    for kind in [ErrorKind::Other, ErrorKind::NotConnected, ErrorKind::TimedOut] {
        let (wear, storage) = wearing(kind);
        write(&storage, 1);
        write(&storage, 2);
        for first in 0..OPERATIONS_MAX {
            // One that fails is asked again; what goes on failing is refused, and nothing older is
            // taken instead.
            wear.strike(first, 1);
            assert_eq!(newest_step(&storage), Some(2), "{kind:?} at {first}");
            let ended = wear.count.load(Ordering::Relaxed) <= first;
            wear.strike(first, usize::MAX);
            let found = newest_verified(&storage, &expectation());
            wear.strike(usize::MAX, 0);
            assert_eq!(names(&storage), ["step-00000001", "step-00000002"], "{kind:?}");
            if ended {
                break;
            }
            assert!(found.is_err_and(|error| error.is_passing()), "{kind:?} at {first}");
        }
        assert_eq!(newest_step(&storage), Some(2));
    }
}

#[test]
fn s6_a_cut_off_writer_publishes_nothing() {
    let storage = MemoryStorage::new();
    write(&storage, 1);
    let report = store::write(&storage, &snapshot(2), 1, &|| false, &RealClock::default());
    assert!(matches!(report.result, Err(CheckpointError::CutOff(_))));
    assert_eq!(names(&storage), ["step-00000001"]);
}

#[test]
fn as_many_stay_as_are_to_be_kept() {
    let storage = MemoryStorage::new();
    for step in 1..=5 {
        write_keeping(&storage, step * 10, 2).result.unwrap();
    }
    assert_eq!(names(&storage), ["step-00000040", "step-00000050"]);
}

#[test]
fn marked_checkpoints_do_not_pile_up() {
    let storage = MemoryStorage::new();
    for step in 1..=5 {
        write(&storage, step);
        store::mark_bad(&storage, &store::name_of(step), "as a test");
    }
    write(&storage, 6);
    let left = ["step-00000004.bad", "step-00000005.bad", "step-00000006"];
    assert_eq!(names(&storage), left);
}

#[test]
fn after_a_rollback_steps_of_the_abandoned_past_are_not_taken_up_again() {
    let storage = MemoryStorage::new();
    write(&storage, 10);
    write(&storage, 30);
    write(&storage, 20);
    assert_eq!(newest_step(&storage), Some(20));
}

#[test]
fn only_own_names_are_steps() {
    assert_eq!(store::step_of("step-00001234"), Some(1234));
    assert_eq!(store::step_of("step-123456789"), Some(123_456_789));
    for name in ["step-1234", "step-00001234.bad", "step-+0001234", "step--0001234", "x", "step-"] {
        assert_eq!(store::step_of(name), None, "{name}");
    }
}

proptest! {
    #[test]
    fn retention_keeps_the_written_one_the_newest_before_it_and_the_best(
        steps in prop::collection::btree_set(0u64..50, 1..12),
        written in any::<prop::sample::Index>(),
        keep in 0u32..5,
        best in proptest::option::of(any::<prop::sample::Index>())
    ) {
        let all: Vec<u64> = steps.into_iter().collect();
        let written = all[written.index(all.len())];
        let best: Vec<u64> = best.into_iter().map(|best| all[best.index(all.len())]).collect();
        let present: Vec<String> = all.iter().map(|&step| store::name_of(step)).collect();
        let (delete, later) = store::retention(&present, written, keep, &best);
        let stays = |step: &u64| {
            let name = store::name_of(*step);
            !delete.contains(&name) && !later.contains(&name)
        };
        let left: Vec<u64> = all.iter().rev().copied().filter(stays).collect();
        let kept = keep.max(1) as usize;
        let newest: Vec<u64> =
            all.iter().rev().copied().filter(|&step| step <= written).take(kept).collect();
        let is_kept = |step: &u64| {
            newest.contains(step) || (best.contains(step) && *step <= written)
        };
        prop_assert_eq!(left, all.iter().rev().copied().filter(is_kept).collect::<Vec<u64>>());
        prop_assert!(later.iter().all(|name| store::step_of(name).unwrap() > written));
    }
}
