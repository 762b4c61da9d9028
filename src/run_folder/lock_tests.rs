//! Who holds a run, and who gets it.

use super::*;

fn take(run_dir: &Path) -> Result<RunLock, LockError> {
    RunLock::take(run_dir, Duration::ZERO, &mut || false, &mut |_| {})
}

#[test]
fn attempts_are_counted_over_launches() {
    let run = tempfile::tempdir().unwrap();
    assert_eq!(current_attempt(run.path()).unwrap(), None);
    let mut lock = take(run.path()).unwrap();
    assert_eq!(lock.raise().unwrap(), 1);
    assert_eq!(lock.raise().unwrap(), 2);
    assert_eq!(current_attempt(run.path()).unwrap(), Some(2));
    drop(lock);
    assert_eq!(take(run.path()).unwrap().raise().unwrap(), 3);
}

#[test]
fn a_raised_attempt_cuts_the_old_supervisor_off() {
    let run = tempfile::tempdir().unwrap();
    let mut lock = take(run.path()).unwrap();
    lock.raise().unwrap();
    let later = Holder { attempt: 2, ..lock.held.clone() };
    write(&File::options().write(true).open(run.path().join("lock")).unwrap(), &later).unwrap();
    assert!(matches!(lock.check(), Err(LockError::Superseded { attempt: 2 })));
    assert!(lock.raise().is_err());
    assert_eq!(current_attempt(run.path()).unwrap(), Some(2));
}

#[test]
fn who_is_asked_to_stop_waits_for_the_run_no_longer() {
    let run = tempfile::tempdir().unwrap();
    let mut lock = take(run.path()).unwrap();
    lock.held.host = "elsewhere".into();
    lock.store().unwrap();
    let long = Duration::from_secs(3600);
    let waited = RunLock::take(run.path(), long, &mut || true, &mut |_| {});
    assert!(matches!(waited, Err(LockError::Stopped)));
}

#[test]
fn whoever_gets_the_run_meanwhile_is_ended_too_and_named() {
    let run = tempfile::tempdir().unwrap();
    let mut lock = take(run.path()).unwrap();
    lock.raise().unwrap();
    let hold = |lock: &mut RunLock, host: &str| {
        lock.held.host = host.into();
        lock.store().unwrap();
    };
    hold(&mut lock, "first");
    let (said, heard) = std::sync::mpsc::channel();
    let path = run.path().to_owned();
    let waits = std::thread::spawn(move || {
        let mut say = |line: &str| said.send(line.to_owned()).unwrap();
        RunLock::take(&path, Duration::from_secs(3600), &mut || false, &mut say).map(drop)
    });
    let next = || heard.recv_timeout(Duration::from_secs(60)).unwrap();
    let told = next();
    assert!(told.contains("on first) holds") && !told.contains("asking"), "{told}");
    // Cut off, it is waited for.
    while current_attempt(run.path()).unwrap() != Some(2) {
        std::thread::sleep(POLL);
    }
    hold(&mut lock, "second");
    assert!(next().contains("on second) holds"));
    drop(lock);
    waits.join().unwrap().unwrap();
}

#[test]
fn a_launch_is_gone_when_its_process_is() {
    let run = tempfile::tempdir().unwrap();
    let storage = storage::FileSystem::new(run.path());
    assert!(!launch_is_gone(&storage), "there was none");
    let mut lock = take(run.path()).unwrap();
    lock.record_mpirun(7).unwrap();
    assert!(!launch_is_gone(&storage));
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    lock.held.supervisor = ended.id();
    lock.store().unwrap();
    assert!(launch_is_gone(&storage));
    lock.held.host = "elsewhere".into();
    lock.store().unwrap();
    assert!(!launch_is_gone(&storage), "nobody here knows");
    lock.held = Holder { mpirun: 0, host: os::hostname(), ..lock.held.clone() };
    lock.store().unwrap();
    assert!(!launch_is_gone(&storage), "a rank's own");
}

#[test]
fn a_holder_on_another_host_is_cut_off_but_not_signalled() {
    let run = tempfile::tempdir().unwrap();
    let mut lock = take(run.path()).unwrap();
    lock.raise().unwrap();
    lock.held.host = "elsewhere".into();
    lock.store().unwrap();
    let error = take(run.path()).unwrap_err();
    assert!(matches!(&error, LockError::Held { host, .. } if host == "elsewhere"));
    assert!(lock.check().is_err());
}

#[test]
fn a_folder_that_is_moved_replaced_or_removed_is_not_ours_any_more() {
    let above = tempfile::tempdir().unwrap();
    let (run, elsewhere) = (above.path().join("run"), above.path().join("elsewhere"));
    std::fs::create_dir(&run).unwrap();
    let mut lock = take(&run).unwrap();
    lock.raise().unwrap();
    std::fs::rename(&run, &elsewhere).unwrap();
    let moved = |lock: &RunLock| match lock.check() {
        Err(LockError::Moved { path }) => path == run,
        _ => false,
    };
    assert!(moved(&lock) && lock.raise().is_err(), "nobody has the name");
    std::fs::create_dir(&run).unwrap();
    let other = take(&run).unwrap();
    assert!(moved(&lock) && other.check().is_ok(), "another run has it");
    drop(other);
    std::fs::remove_dir_all(&run).unwrap();
    std::fs::rename(&elsewhere, &run).unwrap();
    lock.check().unwrap();
}

#[test]
fn a_lock_is_for_those_who_may_write_the_run_s_folder_and_for_no_others() {
    let run = tempfile::tempdir().unwrap();
    let lock = run.path().join("lock");
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    };
    let mode_after = |folder: u32, found: u32| {
        set(run.path(), folder);
        set(&lock, found);
        drop(take(run.path()).unwrap());
        lock.metadata().unwrap().permissions().mode() & PERMISSIONS
    };
    drop(take(run.path()).unwrap());
    assert_eq!(lock.metadata().unwrap().permissions().mode() & PERMISSIONS, 0o600);
    assert_eq!(mode_after(0o2775, 0o664), 0o660, "the team's second member can lock it");
    assert_eq!(mode_after(0o2775, 0o600), 0o600, "no bit is added");
    assert_eq!(mode_after(0o755, 0o664), 0o600);
    assert_eq!(mode_after(0o700, 0o666), 0o600);
}

#[test]
fn a_torn_lock_does_not_stop_a_run() {
    let run = tempfile::tempdir().unwrap();
    std::fs::write(run.path().join("lock"), b"{\"attempt\":").unwrap();
    assert_eq!(take(run.path()).unwrap().raise().unwrap(), 1);
}
