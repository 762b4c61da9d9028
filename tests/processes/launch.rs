//! The supervisor against ranks that crash, hang, refuse to die and lie. After every test nothing
//! of the run may be left: no process, no folder.

use std::os::unix::fs::FileExt;
use std::process::Command;

use kintsugi::observe::result::Status;
use kintsugi_ffi::os::{self, Signal};

use crate::fake_ranks::{AFTER_KILL, AT_ONCE, Lab, wait_for};
use crate::stranger::Stranger;
use crate::support::beside_its_like;
use crate::tree::tree;

#[test]
fn a_completed_run_exits_0_and_then_0_at_once() {
    let _turn = beside_its_like();
    let lab = Lab::new();
    assert_eq!(lab.launch("complete", &[]).code(), Some(0), "{}", lab.text());
    assert!(lab.text().starts_with("run directory: "), "{}", lab.text());
    lab.assert_nothing_left(AT_ONCE);
    // As if it had not lived to write this. The second one would crash if it started any rank.
    let pages = ["metrics.csv", "report.html"].map(|page| lab.run().join(page));
    pages.iter().for_each(|page| std::fs::remove_file(page).unwrap());
    assert_eq!(lab.launch("crash", &[]).code(), Some(0));
    assert!(pages.iter().all(|page| page.exists()), "{}", lab.text());
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
fn what_is_frozen_with_its_launch_for_longer_than_a_hang_goes_on_when_it_is_woken() {
    let _turn = beside_its_like();
    let lab = Lab::new();
    let launch = lab.launch("steady", &["-s", "recovery.time_limit=2s"]);
    lab.wait_up(1);
    let all = lab.processes();
    all.iter().for_each(|(pid, _)| os::kill(*pid, Signal::Stop).unwrap());
    std::thread::sleep(std::time::Duration::from_secs(4));
    all.iter().for_each(|(pid, _)| os::kill(*pid, Signal::Continue).unwrap());
    assert_eq!(launch.code(), Some(0), "{}", lab.text());
    assert_eq!(lab.result().attempt, 1, "{}", lab.text());
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
fn a_start_that_hangs_is_not_waited_for_longer_because_it_is_asked_to_stop() {
    let _turn = beside_its_like();
    let lab = Lab::new();
    let limits = ["-s", "recovery.start_limit=5s", "-s", "recovery.time_limit=10min"];
    let launch = lab.launch("mute", &limits);
    lab.wait_up(1);
    launch.signal(Signal::User1);
    assert_eq!(launch.code(), Some(85), "{}", lab.text());
    assert_eq!(lab.result().status, Status::Interrupted);
    lab.assert_nothing_left(AT_ONCE);
}

#[test]
fn where_nothing_is_to_be_saved_nobody_is_waited_for() {
    let _turn = beside_its_like();
    let lab = Lab::new();
    let limits = ["-s", "recovery.start_limit=10min", "-s", "recovery.time_limit=10min"];
    let launch = lab.launch("mute", &limits);
    lab.wait_up(1);
    launch.signal(Signal::Terminate);
    assert_eq!(launch.code(), Some(85), "{}", lab.text());
    let result = lab.result();
    assert_eq!(result.status, Status::Interrupted);
    assert!(result.reason.contains("with nothing to save"), "{}", result.reason);
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
        assert_eq!(lab.result().reason, "asked to stop; so it does");
        assert!(!lab.text().contains("not by this launch"), "{}", lab.text());
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
    lock.write_all_at(format!("{holder:<255}\n").as_bytes(), 0).unwrap();
    let second = lab.launch("crash", &[]);
    assert!(wait_for(|| lab.text().contains("holds")));
    second.signal(Signal::Terminate);
    assert_eq!(second.code(), Some(85), "{}", lab.text());
    assert!(lab.text().contains("asked to stop before the ranks were started"), "{}", lab.text());
    lab.assert_nothing_left(AT_ONCE);
}

#[test]
fn in_a_job_of_slurm_a_launch_ends_with_the_script_that_started_it() {
    let _turn = beside_its_like();
    let lab = Lab::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("slurm_script");
    std::fs::write(&file, r#""$@" & wait"#).unwrap();
    let mut script = Command::new("sh");
    script.arg(file).arg(env!("CARGO_BIN_EXE_kintsugi")).env("SLURM_JOB_ID", "1");
    let script = lab.launch_by(script, "polite", &[]);
    lab.wait_up(1);
    script.signal(Signal::Kill);
    assert_eq!(script.code(), None);
    lab.assert_nothing_left(AFTER_KILL);
    assert_eq!(lab.result().status, Status::Interrupted, "{}", lab.text());
    assert!(lab.text().contains("the job's script has ended"), "{}", lab.text());
}

#[test]
fn that_somebody_else_told_a_rank_to_stop_is_said() {
    let _turn = beside_its_like();
    let lab = Lab::new();
    assert_eq!(lab.launch("told", &[]).code(), Some(85), "{}", lab.text());
    assert!(lab.text().contains("a rank was told to stop, not by this launch"), "{}", lab.text());
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
    // The same command goes on with the next attempt, which tells why the first one's ranks ended.
    assert_eq!(lab.launch("complete", &[]).code(), Some(0), "{}", lab.text());
    assert_eq!(lab.result().attempt, 2);
    let told = std::fs::read_to_string(lab.run().join("logs/attempt-1.end")).unwrap();
    assert_eq!(told, "verdict: the launcher is gone\n");
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
    assert_eq!(kintsugi::run_folder::lock::current_attempt(&lab.run()).unwrap(), Some(2));
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
