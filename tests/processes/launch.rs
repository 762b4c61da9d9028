//! The supervisor against ranks that crash, hang, refuse to die and lie, under a real mpirun. The
//! ranks are a shell script, so that only the supervisor is on trial. After every test nothing of
//! the run may be left: no process, no folder.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kintsugi::observe::result::{RunResult, Status};
use kintsugi_ffi::os::{self, Signal};

use crate::stranger::Stranger;
use crate::support::beside_its_like;
use crate::tree::tree;

/// No launch of these tests may take longer.
const LIMIT: Duration = Duration::from_secs(60);

/// How long anything may outlive a launch that ended by itself, and one that was killed.
const AT_ONCE: Duration = Duration::ZERO;
const AFTER_KILL: Duration = Duration::from_secs(20);

/// A rank: `FAKE` says how it behaves. Arguments: train CONFIG --run-dir RUN --attempt N ...
const RANK: &str = r#"#!/bin/bash
run=$4 attempt=$6 rank=$OMPI_COMM_WORLD_RANK
result() {
  [ "$rank" = 0 ] || return 0
  printf '{"run_id":"r","attempt":%s,"status":"%s","reason":"the script says so","steps":5,
    "epochs":1,"samples":50,"seconds":1.0,"validation":null,"state_sha256":null,"exact":true,
    "recoveries":[],"restarts":[],"lost_steps":0,"goodput":1.0}' "$attempt" "$1" > "$run/partial"
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
  lie-*) exit 0 ;;
  crash-*) exit 1 ;;
  forever-*) step 1; forever ;;
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
    trap 'result interrupted; exit 0' USR1
    step 1; touch "$run/up-$attempt-$rank"
    for _ in $(seq 600); do sleep 0.1; done ;;
  *) echo "no such behaviour: $FAKE" >&2; exit 9 ;;
esac
"#;

/// A run of its own, which checks at its end that nothing is left of it.
struct Lab {
    folder: tempfile::TempDir,
}

impl Lab {
    fn new() -> Self {
        let lab = Self { folder: tempfile::tempdir().unwrap() };
        let script = lab.folder.path().join("rank.sh");
        std::fs::write(&script, RANK).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        lab
    }

    fn run(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    fn launch(&self, fake: &str, more: &[&str]) -> Launch {
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/mlp_synthetic.toml");
        let output = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.path().join("output.txt"))
            .unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_kintsugi"))
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

    fn text(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("output.txt")).unwrap_or_default()
    }

    fn result(&self) -> RunResult {
        let bytes = std::fs::read(self.run().join("result.json"));
        let bytes = bytes.unwrap_or_else(|e| panic!("no result: {e}\n{}", self.text()));
        serde_json::from_slice(&bytes).unwrap()
    }

    /// Until both ranks of the attempt say that they are up.
    fn wait_up(&self, attempt: u32) {
        let up = |rank: u32| self.run().join(format!("up-{attempt}-{rank}")).exists();
        assert!(wait_for(|| up(0) && up(1)), "the ranks did not start:\n{}", self.text());
    }

    /// Pids whose command line names this run.
    fn processes(&self) -> Vec<(u32, String)> {
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

    fn mpirun(&self) -> u32 {
        let lock = std::fs::read(self.run().join("lock")).unwrap();
        let lock: serde_json::Value = serde_json::from_slice(&lock).unwrap();
        u32::try_from(lock["mpirun"].as_u64().unwrap()).unwrap()
    }

    /// Folders of the run's jobs. The run's id is the one in mpirun's job name.
    fn folders(&self) -> Vec<PathBuf> {
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
    fn assert_nothing_left(&self, within: Duration) {
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

struct Launch {
    child: Child,
}

impl Launch {
    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: Signal) {
        os::kill(self.child.id(), signal).unwrap();
    }

    /// The exit code; a launch that does not end fails the test.
    #[track_caller]
    fn code(mut self) -> Option<i32> {
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

fn wait_for(mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        if condition() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

#[test]
fn a_completed_run_exits_0_and_then_0_at_once() {
    let _turn = beside_its_like();
    let lab = Lab::new();
    assert_eq!(lab.launch("complete", &[]).code(), Some(0), "{}", lab.text());
    assert!(lab.text().starts_with("run directory: "), "{}", lab.text());
    lab.assert_nothing_left(AT_ONCE);
    // The second launch would crash if it started any rank.
    assert_eq!(lab.launch("crash", &[]).code(), Some(0));
    assert!(lab.text().contains("this run is complete"), "{}", lab.text());
    // Another value of a fixed key is refused by name.
    assert_eq!(lab.launch("crash", &["-s", "run.seed=9"]).code(), Some(2));
    assert!(lab.text().contains("run.seed: 1 -> 9"), "{}", lab.text());
    // Anew, beside the old one.
    assert_eq!(lab.launch("complete", &["--fresh"]).code(), Some(0), "{}", lab.text());
    assert!(lab.folder.path().join("run.old-1/result.json").exists());
    // And once more: of the two old ones the newer stays.
    assert_eq!(lab.launch("complete", &["--fresh"]).code(), Some(0), "{}", lab.text());
    assert!(lab.folder.path().join("run.old-2/result.json").exists());
    assert!(!lab.folder.path().join("run.old-1").exists(), "{}", lab.text());
    lab.assert_nothing_left(AT_ONCE);
}

#[test]
fn a_crash_starts_another_attempt() {
    let _turn = beside_its_like();
    let lab = Lab::new();
    assert_eq!(lab.launch("crash_once", &[]).code(), Some(0), "{}", lab.text());
    assert_eq!((lab.result().status, lab.result().attempt), (Status::Completed, 2));
    assert!(lab.run().join("logs/mpirun-1.log").exists());
    lab.assert_nothing_left(AT_ONCE);
}

#[test]
fn a_hang_starts_another_attempt() {
    let _turn = beside_its_like();
    let lab = Lab::new();
    let launch = lab.launch("hang_once", &["-s", "recovery.time_limit=2s"]);
    assert_eq!(launch.code(), Some(0), "{}", lab.text());
    assert_eq!(lab.result().attempt, 2);
    assert!(lab.text().contains("recovery.time_limit"), "{}", lab.text());
    lab.assert_nothing_left(AT_ONCE);
}

#[test]
fn a_world_that_never_commits_a_step_is_started_three_times() {
    let _turn = beside_its_like();
    let lab = Lab::new();
    let launch = lab.launch("mute", &["-s", "recovery.start_limit=1s"]);
    assert_eq!(launch.code(), Some(93), "{}", lab.text());
    assert_eq!((lab.result().status, lab.result().attempt), (Status::NoProgress, 3));
    lab.assert_nothing_left(AT_ONCE);
}

#[test]
fn a_rank_that_ends_before_mpi_has_started_ends_the_attempt_and_is_named() {
    let _turn = beside_its_like();
    let lab = Lab::new();
    let launch = lab.launch("unmet", &["-s", "recovery.start_limit=10min"]);
    assert_eq!(launch.code(), Some(0), "{}", lab.text());
    assert_eq!(lab.result().attempt, 2);
    let text = lab.text();
    let cause = "ended before MPI had started: probably out of memory; signal 9 (SIGKILL)";
    let told: Vec<&str> = text.lines().filter(|line| line.contains(cause)).collect();
    assert!(told[0].starts_with("warning: the start fails: rank 1, process "), "{text}");
    assert!(told[1].ends_with("starting again (attempt 2)") && told.len() == 2, "{text}");
    lab.assert_nothing_left(AT_ONCE);
}

#[test]
fn an_attempt_that_no_rank_is_left_of_ends_though_mpirun_goes_on() {
    let _turn = beside_its_like();
    let lab = Lab::new();
    let launch = lab.launch("deserted", &["-s", "recovery.time_limit=10min"]);
    assert_eq!(launch.code(), Some(0), "{}", lab.text());
    assert_eq!(lab.result().attempt, 2);
    assert!(lab.text().contains("no rank is left; the first to end: process "), "{}", lab.text());
    lab.assert_nothing_left(AT_ONCE);
}

#[test]
fn exit_code_0_without_a_result_is_no_success() {
    let _turn = beside_its_like();
    for fake in ["lie", "crash"] {
        let lab = Lab::new();
        assert_eq!(lab.launch(fake, &[]).code(), Some(93), "{}", lab.text());
        assert!(lab.result().reason.contains("without a result"), "{}", lab.result().reason);
        lab.assert_nothing_left(AT_ONCE);
    }
}

#[test]
fn without_the_restart_rung_a_lost_job_is_the_end() {
    let _turn = beside_its_like();
    let lab = Lab::new();
    let ladder = ["-s", "recovery.ladder=[\"respawn\"]"];
    assert_eq!(lab.launch("lose_once", &ladder).code(), Some(75), "{}", lab.text());
    // With the rung the same run goes on.
    assert_eq!(lab.launch("lose_once", &[]).code(), Some(0), "{}", lab.text());
    assert_eq!(lab.result().attempt, 2);
    lab.assert_nothing_left(AT_ONCE);
}

#[test]
fn what_the_ranks_refuse_leaves_everything_as_it_was() {
    let _turn = beside_its_like();
    let lab = Lab::new();
    assert_eq!(lab.launch("refuse", &[]).code(), Some(2), "{}", lab.text());
    assert!(lab.text().contains("the data set has 3 classes"), "{}", lab.text());
    assert!(!lab.run().exists(), "there was no run");
    assert_eq!(lab.launch("complete", &[]).code(), Some(0), "{}", lab.text());
    let completed = tree(&lab.run());
    for more in [&["-s", "train.steps=900"][..], &["--fresh"], &["-s", "run.seed=9"]] {
        assert_eq!(lab.launch("refuse", more).code(), Some(2), "{more:?} {}", lab.text());
        assert!(tree(&lab.run()) == completed, "{more:?} {}", lab.text());
    }
    let weights = "model.init=/no/such/weights";
    let refused = lab.launch("crash", &["--fresh", "-s", weights]);
    assert_eq!(refused.code(), Some(2), "{}", lab.text());
    assert!(tree(&lab.run()) == completed && !lab.folder.path().join("run.old-1").exists());
    // The second launch would crash if it started any rank.
    assert_eq!(lab.launch("crash", &[]).code(), Some(0), "{}", lab.text());
    lab.assert_nothing_left(AT_ONCE);
}

#[test]
fn ctrl_c_lets_the_ranks_write_their_checkpoint() {
    let _turn = beside_its_like();
    for signal in [Signal::Interrupt, Signal::Terminate, Signal::User1] {
        let lab = Lab::new();
        let launch = lab.launch("polite", &[]);
        lab.wait_up(1);
        launch.signal(signal);
        assert_eq!(launch.code(), Some(85), "{signal:?}\n{}", lab.text());
        assert_eq!(lab.result().reason, "the script says so");
        lab.assert_nothing_left(AT_ONCE);
    }
}

#[test]
fn who_is_asked_to_stop_while_another_launch_holds_the_run_ends_and_says_so() {
    let _turn = beside_its_like();
    let lab = Lab::new();
    let first = lab.launch("polite", &[]);
    lab.wait_up(1);
    first.signal(Signal::Interrupt);
    assert_eq!(first.code(), Some(85), "{}", lab.text());
    let lock = std::fs::File::options().write(true).open(lab.run().join("lock")).unwrap();
    lock.lock().unwrap();
    let holder = r#"{"attempt":1,"supervisor":1,"mpirun":0,"host":"elsewhere"}"#;
    std::os::unix::fs::FileExt::write_all_at(&lock, format!("{holder:<255}\n").as_bytes(), 0)
        .unwrap();
    let second = lab.launch("crash", &[]);
    assert!(wait_for(|| lab.text().contains("holds")));
    second.signal(Signal::Terminate);
    assert_eq!(second.code(), Some(85), "{}", lab.text());
    assert!(lab.text().contains("asked to stop before the ranks were started"), "{}", lab.text());
    lab.assert_nothing_left(AT_ONCE);
}

#[test]
fn ranks_that_ignore_every_signal_are_ended_in_bounded_time() {
    let _turn = beside_its_like();
    let lab = Lab::new();
    let launch = lab.launch("forever", &["-s", "recovery.time_limit=10min"]);
    lab.wait_up(1);
    launch.signal(Signal::Interrupt);
    assert!(wait_for(|| lab.text().contains("stopping")));
    // The second one does not wait for the ten minutes.
    launch.signal(Signal::Interrupt);
    assert_eq!(launch.code(), Some(85), "{}", lab.text());
    assert_eq!(lab.result().status, Status::Interrupted);
    lab.assert_nothing_left(AT_ONCE);
}

#[test]
fn nothing_outlives_a_killed_supervisor() {
    let _turn = beside_its_like();
    let lab = Lab::new();
    let launch = lab.launch("forever", &["-s", "recovery.time_limit=30s"]);
    lab.wait_up(1);
    launch.signal(Signal::Kill);
    assert_eq!(launch.code(), None);
    lab.assert_nothing_left(AFTER_KILL);
    // The same command goes on with the next attempt.
    assert_eq!(lab.launch("complete", &[]).code(), Some(0), "{}", lab.text());
    assert_eq!(lab.result().attempt, 2);
}

#[test]
fn nothing_outlives_a_killed_mpirun() {
    let _turn = beside_its_like();
    let lab = Lab::new();
    let launch = lab.launch("forever", &["-s", "recovery.time_limit=30s"]);
    lab.wait_up(1);
    os::kill(lab.mpirun(), Signal::Kill).unwrap();
    lab.wait_up(2);
    os::kill(lab.mpirun(), Signal::Kill).unwrap();
    lab.wait_up(3);
    // Supervisor and mpirun at once: only the janitor is left to end the ranks.
    launch.signal(Signal::Stop);
    os::kill(lab.mpirun(), Signal::Kill).unwrap();
    os::kill(launch.pid(), Signal::Kill).unwrap();
    assert_eq!(launch.code(), None);
    lab.assert_nothing_left(AFTER_KILL);
}

#[test]
fn a_second_launch_takes_the_run_over() {
    let _turn = beside_its_like();
    let lab = Lab::new();
    let first = lab.launch("polite", &[]);
    lab.wait_up(1);
    let second = lab.launch("polite", &[]);
    assert_eq!(first.code(), Some(85), "{}", lab.text());
    lab.wait_up(2);
    assert_eq!(kintsugi::run_folder::lock::current_attempt(&lab.run()), Some(2));
    second.signal(Signal::Terminate);
    assert_eq!(second.code(), Some(85), "{}", lab.text());
    lab.assert_nothing_left(AT_ONCE);
}

#[test]
fn a_frozen_launch_is_cut_off_and_replaced() {
    let _turn = beside_its_like();
    let lab = Lab::new();
    let first = lab.launch("forever", &["-s", "recovery.time_limit=30s"]);
    lab.wait_up(1);
    first.signal(Signal::Stop);
    // Its own patience is two seconds; then the frozen one is killed.
    let second = lab.launch("complete", &["-s", "recovery.time_limit=2s"]);
    assert_eq!(second.code(), Some(0), "{}", lab.text());
    assert_eq!(first.code(), None);
    // The cut-off attempt was the first, the cut itself the second.
    assert_eq!(lab.result().attempt, 3);
    lab.assert_nothing_left(AT_ONCE);
}

#[test]
fn folders_of_an_attempt_whose_janitor_was_killed_too_go_with_the_launch() {
    let _turn = beside_its_like();
    let lab = Lab::new();
    let launch = lab.launch("hang_once", &["-s", "recovery.time_limit=10min"]);
    lab.wait_up(1);
    let mut victims: Vec<u32> = lab.processes().into_iter().map(|(pid, _)| pid).collect();
    victims.retain(|pid| *pid != launch.pid());
    victims.push(janitor_of(launch.pid()));
    for signal in [Signal::Stop, Signal::Kill] {
        for &pid in &victims {
            // The others' deaths end some of them.
            let _ = os::kill(pid, signal);
        }
    }
    assert_eq!(launch.code(), Some(0), "{}", lab.text());
    assert_eq!(lab.result().attempt, 2);
    lab.assert_nothing_left(AT_ONCE);
}

/// The process that clears up after a launch's attempt.
fn janitor_of(launch: u32) -> u32 {
    let children = format!("/proc/{launch}/task/{launch}/children");
    let children = std::fs::read_to_string(children).unwrap();
    let mut pids = children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok());
    let sweeps = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(b"sweep")
    };
    pids.find(sweeps).expect("a janitor")
}

#[test]
fn folders_that_another_user_made_first_are_not_used() {
    let _turn = beside_its_like();
    let Some(stranger) = Stranger::new("planted folders") else { return };
    let lab = Lab::new();
    let run = kintsugi::launch::start::run_dir::RunDir::at(&lab.run()).unwrap().id();
    let mut planted = Vec::new();
    for root in ["/tmp", "/dev/shm"] {
        for attempt in [1, 2] {
            let path = format!("{root}/kintsugi-{run}-{attempt}");
            stranger.does(&format!("mkdir -m 777 {path}"));
            planted.push(path);
        }
    }
    assert_eq!(lab.launch("crash_once", &[]).code(), Some(0), "{}", lab.text());
    assert_eq!(lab.text().matches("another user of this machine").count(), 1, "{}", lab.text());
    for path in planted {
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0, "{path} is in use");
        std::fs::remove_dir(path).unwrap();
    }
    lab.assert_nothing_left(AT_ONCE);
}
