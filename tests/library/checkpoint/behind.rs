//! The background writer: the loop never waits for a disk.

use super::*;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use kintsugi::train::checkpoint::Writer;

/// For what takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

fn filled(writer: &Writer, step: u64) -> Option<Snapshot> {
    let source = snapshot(step);
    Some(writer.try_begin()?.fill(&about(), source.slot(SHAPE, &[]).unwrap(), source.state.clone()))
}

fn submit_and_wait(writer: &Writer, step: u64) {
    writer.submit(filled(writer, step).unwrap());
    assert!(writer.finish(PATIENCE));
}

#[test]
fn the_writer_writes_behind_and_reports() {
    let storage = Arc::new(MemoryStorage::new());
    let writer = Writer::new(storage.clone(), 2, Box::new(|| true));
    let copied = filled(&writer, 3).unwrap();
    assert_eq!(copied, snapshot(3));
    writer.submit(copied);
    assert!(writer.finish(PATIENCE));
    let reports = writer.poll();
    assert_eq!(reports.len(), 1);
    assert!(reports[0].result.is_ok());
    assert!(reports[0].bytes > 4 * (2 * PARAMETERS + STATISTICS) as u64);
    assert_eq!(newest_step(&*storage), Some(3));
    assert!(writer.poll().is_empty(), "an outcome is told once");
}

#[test]
fn buffers_are_used_again() {
    let writer = Writer::new(Arc::new(MemoryStorage::new()), 1, Box::new(|| true));
    let mut places = Vec::new();
    for step in 1..6 {
        let copied = filled(&writer, step).unwrap();
        places.push(copied.optimizer[0].1.as_ptr() as usize);
        writer.submit(copied);
        assert!(writer.finish(PATIENCE));
    }
    places.dedup();
    assert_eq!(places.len(), 1);
}

#[test]
fn a_ticket_that_is_dropped_gives_its_buffers_back() {
    let writer = Writer::new(Arc::new(MemoryStorage::new()), 1, Box::new(|| true));
    for _ in 0..10 {
        assert!(writer.try_begin().is_some());
    }
}

type Gate = Arc<(Mutex<bool>, Condvar)>;

/// A storage that hangs in its writes until the gate is opened, as a dead file server does.
fn hanging() -> (Gate, Arc<MemoryStorage>) {
    let gate: Gate = Gate::default();
    let shared = Arc::clone(&gate);
    let storage = MemoryStorage::with_faults(move |operation, _: &Path| {
        if operation == Operation::WriteWhole {
            let open = shared.0.lock().unwrap();
            drop(shared.1.wait_timeout_while(open, PATIENCE, |open| !*open).unwrap());
        }
        None
    });
    (gate, Arc::new(storage))
}

#[test]
fn a_hanging_disk_costs_skipped_checkpoints_and_no_step() {
    let (gate, storage) = hanging();
    let writer = Writer::new(storage.clone(), 9, Box::new(|| true));
    writer.submit(filled(&writer, 1).unwrap());
    // The first one may still be in the queue; wait until the thread has it in hand.
    let second = (0..2000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(1));
        filled(&writer, 2)
    });
    assert!(filled(&writer, 9).is_none(), "one in hand, one being filled");
    writer.submit(second.unwrap());
    assert!(filled(&writer, 3).is_none(), "one in hand, one in the queue");
    assert!(!writer.finish(Duration::from_millis(50)));
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    assert!(writer.finish(PATIENCE));
    assert_eq!(writer.poll().iter().filter(|report| report.result.is_ok()).count(), 2);
    assert_eq!(names(&*storage), ["step-00000001", "step-00000002"]);
}

#[test]
fn a_failed_checkpoint_is_reported_and_the_next_one_is_written() {
    let (wear, storage) = wearing(std::io::ErrorKind::StorageFull);
    let storage = Arc::new(storage);
    let writer = Writer::new(storage.clone(), 2, Box::new(|| true));
    submit_and_wait(&writer, 1);
    wear.strike(3, 1);
    submit_and_wait(&writer, 2);
    submit_and_wait(&writer, 3);
    let outcomes: Vec<bool> = writer.poll().iter().map(|report| report.result.is_ok()).collect();
    assert_eq!(outcomes, [true, false, true]);
    assert_eq!(names(&*storage), ["step-00000001", "step-00000003"]);
}

#[test]
fn a_new_writer_removes_what_a_dead_one_left() {
    let storage = Arc::new(MemoryStorage::new());
    write(&*storage, 5);
    for rubbish in ["step-00000006.tmp-1", "step-00000005.old"] {
        let folder = Path::new(store::FOLDER).join(rubbish);
        storage.create_dir(&folder).unwrap();
        storage.write_whole(&folder.join("model.safetensors"), &[b"half"]).unwrap();
    }
    let writer = Writer::new(storage.clone(), 2, Box::new(|| true));
    submit_and_wait(&writer, 7);
    assert_eq!(names(&*storage), ["step-00000005", "step-00000007"]);
}

#[test]
fn a_writer_whose_thread_died_says_so_and_nobody_waits_for_it() {
    let storage = Arc::new(MemoryStorage::with_faults(|operation, _: &Path| {
        assert!(operation != Operation::CreateDir, "a storage with a bug");
        None
    }));
    let writer = Writer::new(storage, 2, Box::new(|| true));
    submit_and_wait(&writer, 1);
    writer.submit(snapshot(2));
    let reports = writer.poll();
    assert!(reports.iter().any(|report| report.step == 2 && report.result.is_err()));
}
