//! A local disk without room for a run's copies, from the start or from some file on, and a run's
//! own disk without room for what it tells: a small tmpfs, which only root can mount.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use kintsugi::observe::result::RunResult;
use kintsugi_ffi::process;

use crate::share::Share;
use crate::support::{Ended, alone, has_completed, launch, run, start, wait_for_step};

const LIMIT_SECONDS: u64 = 120;
/// Staging leaves this much of a disk free, and needs little more here.
const SPARE_KILOBYTES: u64 = 16 << 10;
const STEPS: &str = "train.steps=60";
/// All copies take a second and a half, and each step without them a tenth.
const SLOW: &str = "data.throttle={rate=\"100kB/s\", latency=\"1ms\"}";

/// Mounted while it lives.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None`, with a line that is counted, where this process may not mount.
    fn new(at: PathBuf, kilobytes: u64) -> Option<Self> {
        std::fs::create_dir(&at).unwrap();
        let size = format!("size={kilobytes}k");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&at);
        let can = process::user_id() == 0 && mount.output().is_ok_and(|end| end.status.success());
        if !can {
            let line = b"skipped: a full local disk (needs root that may mount)\n";
            std::io::stdout().write_all(line).unwrap();
        }
        can.then_some(Self(at))
    }

    /// Nothing more can be written to it.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.0.join("somebody's")).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    }

    /// The opposite of `fill`.
    fn make_room(&self) {
        std::fs::remove_file(self.0.join("somebody's")).unwrap();
    }

    /// Names that begin as those of staged copies, their folder and their lock.
    fn staged(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.0).unwrap().flatten();
        let ours = entries.filter(|e| e.file_name().to_string_lossy().starts_with("kintsugi-"));
        ours.map(|entry| entry.path()).collect()
    }

    fn copies(&self) -> usize {
        fn files(folder: &Path) -> usize {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|e| if e.path().is_dir() { files(&e.path()) } else { 1 }).sum()
        }
        self.staged().iter().filter(|path| path.is_dir()).map(|path| files(path)).sum()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).output();
    }
}

/// A run that completed and left nothing; what it said.
fn completed(dir: &Path, ended: Ended) -> (String, RunResult) {
    let result = has_completed(&ended, dir);
    (ended.stderr, result)
}

#[test]
fn a_full_local_disk_is_one_warning_and_the_run_goes_on_from_the_shared_store() {
    let _alone = alone();
    let share = Share::new("full-disk");
    let Some(full) = SmallDisk::new(share.0.join("full"), SPARE_KILOBYTES / 2) else { return };
    let Some(filled) = SmallDisk::new(share.0.join("filled"), SPARE_KILOBYTES + 4096) else {
        return;
    };
    let dir = share.0.join("calm");
    let (_, calm) = completed(&dir, run(&mut share.command("launch", &dir, &[STEPS]), 60));
    let keys = |disk: &SmallDisk| {
        let folder = format!("staging.folder={}", disk.0.display());
        [folder, "staging.mode=during".into(), STEPS.into(), SLOW.into()]
    };
    let launch = |name: &str, disk: &SmallDisk| {
        let keys = keys(disk);
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        share.command("launch", &share.0.join(name), &keys)
    };
    let said_once = |said: &str, reason: &str| {
        let stopped = "staging has stopped, training reads the shared store: ";
        assert_eq!(said.matches(stopped).count(), 1, "one warning for all ranks: {said}");
        assert!(said.contains(reason), "{reason}: {said}");
        assert!(said.contains("set staging.folder to a larger local disk"), "{said}");
    };

    let (said, result) =
        completed(&share.0.join("too-small"), run(&mut launch("too-small", &full), LIMIT_SECONDS));
    said_once(&said, "no room in ");
    assert_eq!(result.state_sha256, calm.state_sha256);
    // Other workers copy while one looks how much room there is.
    let bytes = result.data.bytes;
    assert!(bytes.shared > 10 * bytes.local, "{bytes:?}");

    let limit = Duration::from_secs(LIMIT_SECONDS);
    // Copying alone is slow; it ends where the disk is full.
    let mut fills = launch("fills", &filled);
    let mut running = start(fills.args(["-s", "staging.rate=10kB/s"]), limit);
    let until = Instant::now() + limit;
    while filled.copies() < 10 {
        assert!(!running.has_ended() && Instant::now() < until, "nothing is staged");
        std::thread::sleep(Duration::from_millis(2));
    }
    filled.fill();
    let (said, result) = completed(&share.0.join("fills"), running.wait());
    said_once(&said, "No space left on device");
    assert_eq!(result.state_sha256, calm.state_sha256);
    let bytes = result.data.bytes;
    assert!(bytes.local > 0 && bytes.shared > bytes.local, "both tiers: {bytes:?}");
    assert_eq!(filled.staged(), Vec::<PathBuf>::new(), "nothing is left");
}

/// Nobody hears of steps meanwhile, for longer than a world may go without any.
#[test]
fn a_world_whose_disk_is_full_for_a_while_goes_on() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::new(folder.path().join("disk"), 16 << 10) else { return };
    let run_dir = disk.0.join("run");
    let limits = ["recovery.time_limit=6s", "recovery.step_timeout=3s"];
    let length = ["train.steps=100000000", "train.max_seconds=14"];
    let quiet = ["checkpoint.every=1h", "evaluation.every=never", "run.ranks=2"];
    let limit = Duration::from_secs(LIMIT_SECONDS);
    let keys = [&limits[..], &length, &quiet].concat();
    let mut running = start(&mut launch(&run_dir, &keys), limit);
    wait_for_step(&run_dir, 1, &mut running);
    disk.fill();
    std::thread::sleep(Duration::from_secs(9));
    disk.make_room();
    let (said, result) = completed(&run_dir, running.wait());
    assert_eq!((result.attempt, result.exact), (1, true), "{said}");
    assert_eq!((&result.recoveries[..], &result.restarts[..]), (&[][..], &[][..]), "{said}");
}
