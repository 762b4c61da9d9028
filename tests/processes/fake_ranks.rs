//! A run whose ranks are a shell script under a real mpirun, so that only the supervisor is on
//! trial.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kintsugi::observe::result::RunResult;
use kintsugi_ffi::os::{self, Signal};

/// No launch of these tests may take longer.
const LIMIT: Duration = Duration::from_secs(60);

/// How long anything may outlive a launch that ended by itself, and one that was killed.
pub const AT_ONCE: Duration = Duration::ZERO;
pub const AFTER_KILL: Duration = Duration::from_secs(20);

/// A rank: `FAKE` says how it behaves. Arguments: train CONFIG --run-dir RUN --attempt N ...
const RANK: &str = r#"#!/bin/bash
run=$4 attempt=$6 rank=$OMPI_COMM_WORLD_RANK
result() {
  [ "$rank" = 0 ] || return 0
  printf '{"run_id":"r","attempt":%s,"status":"%s","reason":"%s","steps":5,
    "epochs":1,"samples":50,"seconds":1.0,"validation":null,"state_sha256":null,"exact":true,
    "recoveries":[],"restarts":[],"lost_steps":0,"goodput":1.0}' "$attempt" "$1" \
    "${2:-the script says so}" > "$run/partial"
  mv "$run/partial" "$run/result.json"
}
step() {
  [ "$rank" = 0 ] || return 0
  local fields='{"epoch":0,"loss":1.0,"error":0.5,"samples":10,"learning_rate":0.1,"seconds":0.1}'
  local head='{"v":1,"time":0.0,"seconds":1.0,"attempt":%s,"generation":0,"step":%s,"rank":0,'
  printf "$head"'"event":"step","fields":%s}\n' "$attempt" "$1" "$fields" >> "$run/events.jsonl"
}
forever() { trap '' TERM INT USR1 HUP; touch "$run/up-$attempt-$rank"; while :; do sleep 5; done; }
case "$FAKE-$attempt" in
  complete-*|crash_once-[2-9]*|hang_once-[2-9]*|lose_once-[2-9]*) result completed; step 5 ;;
  crash_once-1) step 3; sleep 0.3; kill -9 $$ ;;
  hang_once-1) step 3; forever ;;
  lose_once-1) result job_lost ;;
  told-*) result interrupted 'asked to stop; so it does'; exit 0 ;;
  lie-*) exit 0 ;;
  crash-*) exit 1 ;;
  forever-*) step 1; forever ;;
  steady-*)
    for number in $(seq 60); do step "$number"; touch "$run/up-$attempt-$rank"; sleep 0.1; done
    result completed ;;
  mute-*) forever ;;
  unmet-1)
    [ "$rank" = 0 ] && forever
    end="$run/logs/attempt-1-pid-$$.end"
    echo "rank that had not started MPI: 1" > "$end"
    echo "memory: probably out of memory" >> "$end"
    echo "status: signal 9 (SIGKILL)" >> "$end"
    forever ;;
  deserted-1)
    step 3
    echo "status: signal 9 (SIGKILL)" > "$run/logs/attempt-1-pid-$$.end"
    # mpirun lives on, and no process of it is a rank.
    exec sleep 600 ;;
  unmet-*|deserted-*) result completed; step 5 ;;
  refuse-*) printf 'configuration\nthe data set has 3 classes\n' > "$run/failure.txt"; exit 2 ;;
  polite-*)
    trap 'result interrupted "asked to stop; so it does"; exit 0' USR1
    step 1; touch "$run/up-$attempt-$rank"
    for _ in $(seq 600); do sleep 0.1; done ;;
  *) echo "no such behaviour: $FAKE" >&2; exit 9 ;;
esac
"#;

/// A run of its own, which checks at its end that nothing is left of it.
pub struct Lab {
    pub folder: tempfile::TempDir,
}

impl Lab {
    pub fn new() -> Self {
        let lab = Self { folder: tempfile::tempdir().unwrap() };
        let script = lab.folder.path().join("rank.sh");
        std::fs::write(&script, RANK).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        lab
    }

    pub fn run(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    pub fn launch(&self, fake: &str, more: &[&str]) -> Launch {
        self.launch_by(Command::new(env!("CARGO_BIN_EXE_kintsugi")), fake, more)
    }

    /// `command` becomes the program when it gets its arguments.
    pub fn launch_by(&self, mut command: Command, fake: &str, more: &[&str]) -> Launch {
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/mlp_synthetic.toml");
        let output = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.path().join("output.txt"))
            .unwrap();
        let child = command
            .args(["launch", "-n", "2", "--run-dir"])
            .arg(self.run())
            .arg(config)
            .args(["-s", "recovery.time_limit=20s", "-s", "recovery.node_timeout=1s"])
            .args(more)
            .env("KINTSUGI_RANK_PROGRAM", self.folder.path().join("rank.sh"))
            .env("FAKE", fake)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        Launch { child }
    }

    pub fn text(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("output.txt")).unwrap_or_default()
    }

    pub fn result(&self) -> RunResult {
        let bytes = std::fs::read(self.run().join("result.json"));
        let bytes = bytes.unwrap_or_else(|e| panic!("no result: {e}\n{}", self.text()));
        serde_json::from_slice(&bytes).unwrap()
    }

    /// Until both ranks of the attempt say that they are up.
    pub fn wait_up(&self, attempt: u32) {
        let up = |rank: u32| self.run().join(format!("up-{attempt}-{rank}")).exists();
        assert!(wait_for(|| up(0) && up(1)), "the ranks did not start:\n{}", self.text());
    }

    /// Pids whose command line names this run.
    pub fn processes(&self) -> Vec<(u32, String)> {
        let name = self.folder.path().display().to_string();
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| *pid != std::process::id())
            .filter_map(|pid| {
                let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
                let line = String::from_utf8_lossy(&line).replace('\0', " ");
                line.contains(&name).then_some((pid, line))
            })
            .collect()
    }

    pub fn mpirun(&self) -> u32 {
        let lock = std::fs::read(self.run().join("lock")).unwrap();
        let lock: serde_json::Value = serde_json::from_slice(&lock).unwrap();
        u32::try_from(lock["mpirun"].as_u64().unwrap()).unwrap()
    }

    /// Folders of the run's jobs. The run's id is the one in mpirun's job name.
    pub fn folders(&self) -> Vec<PathBuf> {
        let run = kintsugi::launch::start::run_dir::RunDir::at(&self.run()).unwrap();
        let prefix = format!("kintsugi-{}-", run.id());
        ["/tmp", "/dev/shm"]
            .iter()
            .flat_map(|root| std::fs::read_dir(root).unwrap().flatten())
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
            .map(|entry| entry.path())
            .collect()
    }

    /// At once after an orderly end; `within` after a violent one.
    #[track_caller]
    pub fn assert_nothing_left(&self, within: Duration) {
        let end = Instant::now() + within;
        let left = || !(self.processes().is_empty() && self.folders().is_empty());
        while left() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(self.processes(), vec![], "processes are left\n{}", self.text());
        assert_eq!(self.folders(), Vec::<PathBuf>::new(), "folders are left\n{}", self.text());
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for (pid, _) in self.processes() {
            let _ = os::kill(pid, Signal::Kill);
        }
    }
}

pub struct Launch {
    child: Child,
}

impl Launch {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        os::kill(self.child.id(), signal).unwrap();
    }

    /// The exit code; a launch that does not end fails the test.
    #[track_caller]
    pub fn code(mut self) -> Option<i32> {
        let mut status = None;
        wait_for(|| {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        if status.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        status.expect("the launch does not end").code()
    }
}

pub fn wait_for(mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        if condition() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}
