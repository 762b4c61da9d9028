//! What another user of the machine puts where this user's files would lie, and what he can read of
//! them. As root only; elsewhere each test says that it was skipped.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kintsugi::cluster::resident::{Folder, Identity, Shape, SlotFile, Slots};
use kintsugi::launch::LaunchError;
use kintsugi::launch::start::run_dir::RunDir;
use kintsugi::launch::traces::job_name::job_name;
use kintsugi::launch::traces::{folders, janitor};
use kintsugi::run_folder::lock::RunLock;

use crate::stranger::{Stranger, USER};

/// Where everybody makes names.
const MEMORY: &str = "/dev/shm";

/// A run that no other test has; what anybody left under its name goes with it.
struct RunName(String);

impl RunName {
    fn new(number: u32) -> Self {
        Self(format!("{:08x}", std::process::id() ^ (number << 24)))
    }

    fn slots(&self) -> Folder {
        Folder::new(Path::new(MEMORY), &self.0)
    }

    fn path(&self, root: &str, rest: &str) -> PathBuf {
        Path::new(root).join(format!("kintsugi-{}-{rest}", self.0))
    }
}

impl Drop for RunName {
    fn drop(&mut self) {
        for root in ["/tmp", MEMORY] {
            for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
                if entry.file_name().to_string_lossy().starts_with(&format!("kintsugi-{}-", self.0))
                {
                    let path = entry.path();
                    let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir_all(&path));
                }
            }
        }
    }
}

/// Slots in a file that is named after member 4 and holds step 7.
fn state(folder: &Folder) -> Slots {
    let mut slots = Slots::vacant(Shape::of(&[("weights", 9)]));
    slots.move_to(folder.create(slots.file_bytes(), "/runs/a").unwrap()).unwrap();
    slots.identify(Identity { run: 1, member: 4, attempt: 1, ..Identity::default() });
    slots.begin();
    slots.commit(7, 0, b"");
    slots
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn nobody_else_reads_or_locks_a_slot_file() {
    let Some(stranger) = Stranger::new("reads slots") else { return };
    let run = RunName::new(1);
    let slots = state(&run.slots());
    let path = slots.file().unwrap().path().to_owned();
    assert_eq!(mode(&path), 0o600);
    let read = |path: &Path| stranger.tries(&format!("cat {} > /dev/null", path.display()));
    assert!(!read(&path).status.success());
    drop(slots);
    // A file that others could read is closed to them by whoever takes it.
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    assert!(read(&path).status.success());
    // Another test's process may hold the lock from its fork on, until it becomes what it starts.
    let tries = std::iter::repeat_with(|| {
        std::thread::sleep(Duration::from_millis(10));
        SlotFile::take(&path).unwrap()
    });
    let taken = tries.take(1000).flatten().next().expect("its owner is gone");
    assert!(!read(taken.path()).status.success());
}

#[test]
fn a_slot_file_of_another_user_is_neither_taken_nor_replaced_nor_removed() {
    let Some(stranger) = Stranger::new("plants slots") else { return };
    let run = RunName::new(2);
    let folder = run.slots();
    let planted = run.path(MEMORY, "4.slots");
    stranger.does(&format!("head -c 40000 /dev/zero > {0}; chmod 666 {0}", planted.display()));
    assert!(SlotFile::take(&planted).is_err());
    assert_eq!((folder.files().unwrap(), folder.take_free().count()), (Vec::new(), 0));
    let slots = state(&folder);
    let path = slots.file().unwrap().path().to_owned();
    assert_ne!(path, planted);
    assert_eq!(folder.of_member(4), path, "its neighbours find it");
    assert_eq!(folder.newest().unwrap().map(|key| key.step), Some(7));
    folder.clear();
    assert!(planted.exists() && !path.exists());
    assert_eq!(std::fs::read(&planted).unwrap(), vec![0; 40000]);
}

#[test]
fn a_link_or_a_second_name_for_another_file_is_not_followed() {
    let Some(stranger) = Stranger::new("plants links") else { return };
    let run = RunName::new(3);
    let place = tempfile::tempdir().unwrap();
    let precious = place.path().join("precious");
    std::fs::write(&precious, vec![7; 40000]).unwrap();
    let link = run.path(MEMORY, "5.slots");
    stranger.does(&format!("ln -s {} {}", precious.display(), link.display()));
    assert!(SlotFile::take(&link).is_err());
    assert_eq!(run.slots().inherit().count(), 0);
    assert_eq!(std::fs::read(&precious).unwrap(), vec![7; 40000]);
}

#[test]
fn folders_and_processes_of_another_user_are_left_alone() {
    let Some(stranger) = Stranger::new("plants folders") else { return };
    let run = RunName::new(4);
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("precious"), "").unwrap();
    let (theirs, link) = (run.path("/tmp", "1"), run.path(MEMORY, "2.0badcafe"));
    stranger.does(&format!("mkdir -m 777 {}", theirs.display()));
    stranger.does(&format!("ln -s {} {}", place.path().display(), link.display()));
    // A link of our own is followed as little.
    let own = run.path(MEMORY, "3.0badcafe");
    symlink(place.path(), &own).unwrap();
    let mut bystander = bystander(&job_name(&run.0, 1));
    janitor::clear_stale(&run.0).unwrap();
    assert!(theirs.exists() && link.exists() && place.path().join("precious").exists());
    assert_eq!(bystander.try_wait().unwrap(), None, "it is not ours to end");
    assert_eq!(janitor::job_of(bystander.id()), None);
    let mut strangers = folders::strangers(&run.0, Path::new(MEMORY));
    strangers.sort();
    assert_eq!(strangers, [link, theirs]);
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

/// A process of the second user that says it is of this job.
fn bystander(job: &str) -> Child {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new("sleep");
    command.arg("60").env("KINTSUGI_JOB", job).uid(USER).gid(USER).stdin(Stdio::null());
    let child = command.spawn().unwrap();
    // It has its environment once it has its name.
    let name = format!("/proc/{}/comm", child.id());
    while std::fs::read_to_string(&name).unwrap() != "sleep\n" {
        std::thread::yield_now();
    }
    child
}

#[test]
fn a_run_directory_that_another_user_planted_is_refused() {
    let Some(stranger) = Stranger::new("plants a run directory") else { return };
    let run = RunName::new(5);
    let path = run.path("/tmp", "run");
    stranger.does(&format!("mkdir -m 777 {}", path.display()));
    let mut run = RunDir::at(&path).unwrap();
    let Err(error @ LaunchError::Planted { user: USER, .. }) = run.refuse_planted() else {
        panic!("taken")
    };
    assert_eq!(error.exit_code(), 2);
    // Where it came between the look and the making.
    assert!(matches!(run.create(), Err(LaunchError::Planted { user: USER, .. })));
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
}

#[test]
fn a_team_s_second_member_locks_a_run_that_the_group_may_write() {
    let Some(stranger) = Stranger::new("locks a team's run") else { return };
    let run = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(run.path(), None, Some(USER)).unwrap();
    std::fs::set_permissions(run.path(), PermissionsExt::from_mode(0o2770)).unwrap();
    let file = run.path().join("lock");
    std::fs::write(&file, "").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o664)).unwrap();
    drop(RunLock::take(run.path(), std::time::Duration::ZERO, &mut || false, &mut |_| {}).unwrap());
    assert_eq!(mode(&file), 0o660);
    stranger.does(&format!("exec 9<>{} && flock -n 9", file.display()));
}

#[test]
fn nobody_else_locks_a_run() {
    let Some(stranger) = Stranger::new("locks a run") else { return };
    let run = tempfile::tempdir().unwrap();
    std::fs::set_permissions(run.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let file = run.path().join("lock");
    // One that others could read is closed to them.
    std::fs::write(&file, "").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    let lock = || RunLock::take(run.path(), std::time::Duration::ZERO, &mut || false, &mut |_| {});
    let held = lock().unwrap();
    assert!(!stranger.tries(&format!("exec 9<{}", file.display())).status.success());
    drop(held);
    std::fs::remove_file(&file).unwrap();
    drop(lock().unwrap());
    assert_eq!(mode(&file), 0o600);
}
