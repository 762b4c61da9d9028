//! A run directory that is moved or removed under a world of one: the run ends and says so, and
//! nothing grows where the folder was.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Far more than the first step takes.
const LIMIT: Duration = Duration::from_secs(120);

/// Ended, whatever becomes of its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A run that lasts until something ends it.
fn train(run_dir: &Path, stderr: &Path) -> Running {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/mlp_synthetic.toml");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kintsugi"));
    command.arg("train").arg(config).arg("--run-dir").arg(run_dir);
    command.args(["-s", "train.steps=100000000", "-s", "evaluation.every=never"]);
    command.args(["-s", "recovery.resident=off"]);
    command.stdout(Stdio::null()).stderr(std::fs::File::create(stderr).unwrap());
    Running(command.spawn().unwrap())
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "{what} did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn checkpoints(run_dir: &Path) -> usize {
    let entries = std::fs::read_dir(run_dir.join("checkpoints"));
    entries.map_or(0, |entries| {
        entries.flatten().filter(|e| e.path().join("MANIFEST.json").exists()).count()
    })
}

/// Takes the folder away by `away`, and waits for the end of its run.
fn ends_when(away: impl Fn(&Path)) {
    let above = tempfile::tempdir().unwrap();
    let (run, stderr) = (above.path().join("run"), above.path().join("stderr"));
    let mut running = train(&run, &stderr);
    wait_until("a checkpoint", || checkpoints(&run) > 0);
    away(&run);
    wait_until("the end", || running.0.try_wait().unwrap().is_some());
    let said = std::fs::read_to_string(&stderr).unwrap();
    assert_eq!(running.0.wait().unwrap().code(), Some(2), "{said}");
    assert!(said.contains("was moved, removed or replaced under the run"), "{said}");
    let left = std::fs::read_dir(&run).map_or(0, Iterator::count);
    assert_eq!(left, 0, "something grew in the old place");
}

#[test]
fn a_run_whose_folder_is_renamed_ends_and_nothing_grows_under_the_old_name() {
    ends_when(|run| std::fs::rename(run, run.with_file_name("elsewhere")).unwrap());
}

#[test]
fn a_run_whose_folder_is_replaced_ends_and_leaves_the_new_one_alone() {
    ends_when(|run| {
        std::fs::rename(run, run.with_file_name("elsewhere")).unwrap();
        std::fs::create_dir(run).unwrap();
    });
}
