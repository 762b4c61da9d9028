//! Whole runs with real processes, real Open MPI and real SIGKILL: what the README promises.
//! One test function per promise; they share one calm run.

use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use kintsugi::cluster::world::World;
use kintsugi::observe::event::Kind;
use kintsugi::observe::log::read_events;
use kintsugi::observe::result::{RunResult, Status};
use kintsugi_ffi::os::{Signal, kill};

use crate::support::{
    alone, assert_audited, assert_nothing_runs, completed, kintsugi, launch, plan, processes_of,
    project, result_of, run, run_dir, shared_memory_of, start, wait_for_step,
};

/// Seconds any of these runs may take.
const LIMIT: u64 = 90;

/// The run that lost nothing.
fn calm() -> &'static RunResult {
    static CALM: OnceLock<RunResult> = OnceLock::new();
    CALM.get_or_init(|| completed("calm", &[]).1)
}

/// With its lost ranks replaced, the run must end as the calm one.
fn ends_as_the_calm_run(name: &str, overrides: &[&str], recoveries: usize) {
    let (_, result) = completed(name, overrides);
    assert_eq!(result.state_sha256, calm().state_sha256, "{name}: other bits than the calm run");
    assert_eq!(result.lost_steps, 0, "{name}");
    assert!(result.exact, "{name}");
    assert_eq!(result.recoveries.len(), recoveries, "{name}: {:?}", result.recoveries);
    assert!(result.recoveries.iter().all(|record| record.rung == "respawn"), "{name}");
}

#[test]
fn a_killed_rank_is_replaced_and_the_bits_are_the_same() {
    let _turn = alone();
    let kill = plan(&[r#"{kind="kill", rank=3, step=20, phase="in_all_reduce"}"#]);
    ends_as_the_calm_run("rank-3", &[&kill], 1);
}

#[test]
fn the_leader_is_not_special() {
    let _turn = alone();
    let kill = plan(&[r#"{kind="kill", who="leader", step=20, phase="after_vote"}"#]);
    ends_as_the_calm_run("leader", &[&kill], 1);
}

#[test]
fn ranks_are_replaced_where_a_step_has_fewer_samples_than_owners() {
    let _turn = alone();
    let few = "train.global_batch=5";
    let (_, calm) = completed("few-calm", &[few]);
    let kills = plan(&[r#"{kind="kill", rank=2, step=10}"#, r#"{kind="kill", rank=0, step=25}"#]);
    let warm = ["recovery.spares=2", "recovery.warm_spares=true"];
    for (name, spares) in [("few", &[][..]), ("few-warm", &warm[..])] {
        let (_, result) = completed(name, &[&[few, &kills][..], spares].concat());
        assert_eq!(result.state_sha256, calm.state_sha256, "{name}: other bits");
        assert_eq!((result.recoveries.len(), result.lost_steps), (2, 0), "{name}");
    }
}

#[test]
fn every_phase_of_a_step_can_be_struck() {
    let _turn = alone();
    let phases = ["before_load", "in_forward", "in_update", "in_snapshot", "in_evaluation"];
    let faults: Vec<String> = phases
        .iter()
        .enumerate()
        .map(|(index, phase)| {
            // Evaluation follows the commit of step 20 or 40: it stands before step 41.
            let step = if *phase == "in_evaluation" { 41 } else { 6 * (index as u64 + 1) };
            let rank = if *phase == "in_snapshot" { 0 } else { index % 4 };
            format!(r#"{{kind="kill", rank={rank}, step={step}, phase="{phase}"}}"#)
        })
        .collect();
    let faults: Vec<&str> = faults.iter().map(String::as_str).collect();
    let (_, result) = completed("phases", &[&plan(&faults)]);
    assert_eq!(result.state_sha256, calm().state_sha256);
    assert_eq!(result.recoveries.len(), phases.len(), "{:?}", result.recoveries);
}

#[test]
fn a_shrunk_world_goes_on_with_the_dead_ranks_share() {
    let _turn = alone();
    let kill = plan(&[r#"{kind="kill", rank=2, step=20, phase="in_all_reduce"}"#]);
    let ladder = r#"recovery.ladder=["shrink"]"#;
    let overrides = [kill.as_str(), ladder, "recovery.regrow=never"];
    let (folder, result) = completed("shrink", &overrides);
    assert_eq!(result.recoveries.len(), 1);
    assert_eq!((result.recoveries[0].ranks, result.lost_steps), (3, 0));
    assert!(result.exact);
    assert_eq!(result.state_sha256, calm().state_sha256);
    let world: World =
        serde_json::from_slice(&std::fs::read(folder.join("world.json")).unwrap()).unwrap();
    let owners: Vec<usize> = (0..3).map(|rank| world.owners_of(rank).len()).collect();
    assert_eq!(owners, vec![4, 4, 4], "12 owners, shared by the three that live");
}

#[test]
fn a_restart_from_a_checkpoint_says_what_it_lost() {
    let _turn = alone();
    let kill = plan(&[r#"{kind="kill", rank=2, step=33, phase="in_all_reduce"}"#]);
    let overrides = [kill.as_str(), r#"recovery.ladder=["restart"]"#, "recovery.resident=off"];
    let (_, result) = completed("restart", &overrides);
    assert_eq!(result.restarts.len(), 1, "{:?}", result.restarts);
    let from = result.restarts[0].step;
    assert!([20, 0].contains(&from), "restarted from step {from}");
    assert_eq!(result.lost_steps, 32 - from, "32 steps were committed, {from} were kept");
    assert_eq!(result.state_sha256, calm().state_sha256, "a restart repeats the same steps");
}

#[test]
fn a_kill_from_outside_is_survived_at_any_moment() {
    let _turn = alone();
    let folder = run_dir("outside");
    let slow = ["train.steps=400", "evaluation.every=never"];
    let mut running = start(&mut launch(&folder, &slow), Duration::from_secs(LIMIT));
    for (kills, rank) in [0usize, 2].into_iter().enumerate() {
        wait_for_step(&folder, 10 + 50 * kills as u64, &mut running);
        let world: World =
            serde_json::from_slice(&std::fs::read(folder.join("world.json")).unwrap()).unwrap();
        kill(world.members[rank].pid, Signal::Kill).expect("the rank lives");
    }
    let ended = running.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let reference = run_dir("outside-calm");
    let ended = run(&mut launch(&reference, &slow), LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let (struck, calm) = (result_of(&folder), result_of(&reference));
    assert_eq!(struck.state_sha256, calm.state_sha256);
    let lost: usize = struck.recoveries.iter().map(|record| record.lost.len()).sum();
    assert_eq!((lost, struck.lost_steps), (2, 0), "{:?}", struck.recoveries);
    assert_nothing_runs(&folder);
    assert_eq!(shared_memory_of(&folder), [""; 0], "files are left in /dev/shm");
}

#[test]
fn ctrl_c_leaves_a_checkpoint_and_the_same_command_goes_on() {
    let _turn = alone();
    let folder = run_dir("interrupted");
    let overrides = ["train.steps=600", "evaluation.every=never", "checkpoint.every=1000steps"];
    let mut running = start(&mut launch(&folder, &overrides), Duration::from_secs(LIMIT));
    wait_for_step(&folder, 20, &mut running);
    kill(running.pid(), Signal::Interrupt).expect("launch lives");
    let ended = running.wait();
    assert_eq!(ended.code, Some(85), "{}", ended.stderr);
    let interrupted = result_of(&folder);
    assert_eq!(interrupted.status, Status::Interrupted);
    assert!(interrupted.steps < 600);
    assert_nothing_runs(&folder);
    let ended = run(&mut launch(&folder, &overrides), LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let reference = run_dir("interrupted-calm");
    assert_eq!(run(&mut launch(&reference, &overrides), LIMIT).code, Some(0));
    let (continued, calm) = (result_of(&folder), result_of(&reference));
    assert_eq!(continued.state_sha256, calm.state_sha256);
    assert_eq!(continued.lost_steps, 0);
    assert_audited(&folder);
}

#[test]
fn a_stop_while_a_replacement_starts_waits_for_it_and_writes_a_checkpoint() {
    let _turn = alone();
    let folder = run_dir("stopped-in-spawn");
    let kill_one = plan(&[r#"{kind="kill", rank=2, step=20, phase="in_all_reduce"}"#]);
    let overrides = [&kill_one, "train.steps=100000000", "evaluation.every=never"];
    let mut running = start(&mut launch(&folder, &overrides), Duration::from_secs(LIMIT));
    let spawned = |(_, line): &(u32, String)| line.contains(" --join ");
    let until = Instant::now() + Duration::from_secs(LIMIT);
    while !processes_of(&folder).iter().any(spawned) {
        assert!(!running.has_ended() && Instant::now() < until, "nobody is replaced");
        std::thread::sleep(Duration::from_millis(1));
    }
    kill(running.pid(), Signal::Terminate).expect("launch lives");
    let ended = running.wait();
    assert_eq!(ended.code, Some(85), "{}", ended.stderr);
    let result = result_of(&folder);
    assert_eq!(result.reason, "asked to stop; a checkpoint is written", "{}", ended.stderr);
    assert_eq!(result.recoveries.len(), 1, "{:?}", result.recoveries);
    assert_eq!(shared_memory_of(&folder), [""; 0], "the checkpoint holds it all");
    assert_audited(&folder);
}

#[test]
fn the_asynchronous_exchange_survives_a_kill() {
    let _turn = alone();
    let kill = plan(&[r#"{kind="kill", rank=1, step=5, phase="in_all_reduce"}"#]);
    let overrides = [
        "run.ranks=2",
        kill.as_str(),
        "train.exchange=asynchronous",
        "train.workers=2",
        "train.epochs=6",
        "train.steps=100000",
        // Not a whole number of steps: an epoch ends with a short one.
        "data.synthetic_samples=145",
        "optimizer.momentum=0.5",
    ];
    let (_, result) = completed("asynchronous", &overrides);
    assert_eq!(result.recoveries.len(), 1, "{:?}", result.recoveries);
    assert_eq!(result.samples, 6 * 145, "six epochs were asked for");
}

/// A mpirun with these flags, and no `launch`.
fn plain_mpirun(folder: &Path, flags: &[&str]) -> std::process::Command {
    let line = run(launch(folder, &[]).arg("--dry-run"), 20);
    let mpirun = line.stdout.split_whitespace().find(|word| word.ends_with("/mpirun"));
    let mpirun = mpirun.unwrap_or_else(|| panic!("no mpirun in: {}", line.stdout));
    let mut command = std::process::Command::new(mpirun);
    command.args(["--allow-run-as-root", "--oversubscribe"]).args(flags);
    command.arg(env!("CARGO_BIN_EXE_kintsugi")).arg("train");
    command.arg(project("configs/mlp_synthetic.toml")).arg("--run-dir").arg(folder);
    command
}

#[test]
fn ranks_of_a_plain_mpirun_tell_themselves_what_a_replacement_needs() {
    let _turn = alone();
    let folder = run_dir("plain-killed");
    let mut command = plain_mpirun(&folder, &["--with-ft", "ulfm", "-n", "3"]);
    command.args(["-s", "faults.plan=[{kind=\"kill\", rank=1, step=30}]"]);
    let ended = run(&mut command, LIMIT);
    assert!(!ended.stderr.contains("warning: mpirun"), "{}", ended.stderr);
    let result = result_of(&folder);
    assert_eq!(result.status, Status::Completed, "{}", ended.stderr);
    let rungs: Vec<&str> = result.recoveries.iter().map(|found| found.rung.as_str()).collect();
    assert_eq!(rungs, ["respawn"], "{}", ended.stderr);
    assert_audited(&folder);
}

#[test]
fn plain_mpirun_works_and_warns_of_missing_flags() {
    let _turn = alone();
    let folder = run_dir("plain");
    let ended = run(&mut plain_mpirun(&folder, &["-n", "2"]), LIMIT);
    assert!(ended.stderr.contains("--with-ft"), "no warning of the missing flag: {}", ended.stderr);
    let result = result_of(&folder);
    assert_eq!(result.status, Status::Completed);
    let events = read_events(&folder.join("events.jsonl")).unwrap();
    assert!(events.iter().any(|event| matches!(event.kind, Kind::Evaluation { .. })));
}

/// As where each node has a configuration of its own.
#[test]
fn ranks_of_a_plain_mpirun_with_other_keys_do_not_begin() {
    let _turn = alone();
    for other in ["optimizer.learning_rate=0.06", "train.steps=7"] {
        let folder = run_dir("plain-others");
        let mut command = plain_mpirun(&folder, &["-n", "1"]);
        command.args([":", "-n", "1", env!("CARGO_BIN_EXE_kintsugi"), "train"]);
        command.arg(project("configs/mlp_synthetic.toml")).arg("--run-dir").arg(&folder);
        command.args(["-s", other]);
        let ended = run(&mut command, LIMIT);
        assert_ne!(ended.code, Some(0), "{}", ended.stderr);
        assert!(ended.stderr.contains("were started with other keys"), "{}", ended.stderr);
        assert!(!folder.join("ledger.jsonl").exists(), "a step was committed");
        assert_nothing_runs(&folder);
    }
}

#[test]
fn a_world_of_one_trains_too() {
    let _turn = alone();
    let folder = run_dir("one");
    let mut command = kintsugi();
    command.arg("train").arg(project("configs/mlp_synthetic.toml"));
    command.arg("--run-dir").arg(&folder);
    let ended = run(&mut command, LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(result_of(&folder).steps, 60);
    assert_audited(&folder);
}
