//! Worlds that change their size on purpose, with real processes: ranks that were lost come back,
//! `kintsugi scale` adds and removes ranks, and whatever dies meanwhile only makes the world
//! smaller. All of these end with the bits of the calm run.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use kintsugi::cluster::world::World;
use kintsugi::observe::event::{Kind, ResizeRecord};
use kintsugi::observe::log::read_events;
use kintsugi::observe::result::{RunResult, Status};
use kintsugi_ffi::os::{Signal, kill};

use crate::support::{
    Ended, alone, assert_audited, assert_nothing_runs, kintsugi, launch, plan, result_of, run,
    run_dir, shared_memory_of, start, wait_for_step,
};

/// Seconds any of these runs may take.
const LIMIT: u64 = 120;
/// No machine takes so many steps within that.
const NEVER_REACHED: u64 = 100_000_000;

const SHRINK: &str = r#"recovery.ladder=["shrink"]"#;

/// 60 steps, an epoch is 20; four ranks unless they die.
fn completed(name: &str, overrides: &[&str]) -> RunResult {
    let folder = run_dir(&format!("regrow-{name}"));
    let ended = run(&mut launch(&folder, overrides), LIMIT);
    ended_as(Status::Completed, name, &folder, &ended)
}

fn ended_as(status: Status, name: &str, folder: &Path, ended: &Ended) -> RunResult {
    let code = if status == Status::Completed { 0 } else { 85 };
    assert_eq!(ended.code, Some(code), "{name}: {}", ended.stderr);
    let result = result_of(folder);
    assert_eq!(result.status, status, "{name}");
    assert_eq!(result.lost_steps, 0, "{name}");
    assert_audited(folder);
    assert_nothing_runs(folder);
    result
}

fn calm() -> &'static RunResult {
    static CALM: OnceLock<RunResult> = OnceLock::new();
    CALM.get_or_init(|| completed("calm", &[]))
}

/// (cause, from, to) of each change of size.
fn sizes(result: &RunResult) -> Vec<(&str, u32, u32)> {
    let size = |record: &ResizeRecord| (record.from, record.to);
    result
        .resizes
        .iter()
        .map(|record| (record.cause.as_str(), size(record).0, size(record).1))
        .collect()
}

#[test]
fn a_lost_rank_comes_back_at_the_epochs_end() {
    let _turn = alone();
    let kill = plan(&[r#"{kind="kill", rank=2, step=10, phase="in_all_reduce"}"#]);
    let result = completed("epoch", &[&kill, SHRINK]);
    assert_eq!(result.recoveries.len(), 1, "{:?}", result.recoveries);
    assert_eq!((result.recoveries[0].rung.as_str(), result.recoveries[0].ranks), ("shrink", 3));
    assert_eq!(sizes(&result), [("regrow", 3, 4)]);
    assert_eq!(result.resizes[0].step, 20);
    assert!(result.resizes[0].seconds.contains_key("first_step"), "{:?}", result.resizes);
    assert!(result.exact);
    assert_eq!(result.state_sha256, calm().state_sha256);
}

#[test]
fn a_rank_that_never_comes_back_is_not_waited_for() {
    let _turn = alone();
    let kill = plan(&[r#"{kind="kill", rank=2, step=10, phase="in_all_reduce"}"#]);
    let result = completed("never", &[&kill, SHRINK, "recovery.regrow=never"]);
    assert_eq!(sizes(&result), []);
    assert_eq!(result.state_sha256, calm().state_sha256);
}

#[test]
fn deaths_while_the_world_grows_fall_back_to_the_living() {
    let _turn = alone();
    // The leader in its spawn, a survivor in the merge, the newcomer in its restore: each growth
    // after the first kill meets the next one. Faults in a resize name the step that is next.
    let faults = [
        r#"{kind="kill", rank=3, step=5, phase="in_all_reduce"}"#,
        r#"{kind="kill", rank=0, step=21, phase="in_spawn"}"#,
        r#"{kind="kill", rank=1, step=41, phase="in_merge"}"#,
    ];
    let result = completed("deaths", &[&plan(&faults), SHRINK]);
    let lost: usize = result.recoveries.iter().map(|record| record.lost.len()).sum();
    assert_eq!(lost, 3, "{:?}", result.recoveries);
    assert_eq!(result.state_sha256, calm().state_sha256);
}

#[test]
fn a_newcomer_that_dies_while_it_is_restored_comes_at_the_next_epoch() {
    let _turn = alone();
    let faults = [
        r#"{kind="kill", rank=3, step=5, phase="in_all_reduce"}"#,
        r#"{kind="kill", who="newcomer", step=21, phase="in_restore"}"#,
    ];
    let result = completed("newcomer", &[&plan(&faults), SHRINK]);
    let whole: Vec<_> = sizes(&result).into_iter().filter(|(_, _, to)| *to == 4).collect();
    assert_eq!(whole, [("regrow", 3, 4)], "{:?}", result.resizes);
    assert_eq!(result.state_sha256, calm().state_sha256);
}

fn scale(folder: &Path, ranks: &str) -> Command {
    let mut command = kintsugi();
    command.arg("scale").arg(folder).arg(ranks).args(["--wait", "60s"]);
    command
}

#[test]
fn a_running_world_is_scaled_up_beyond_its_start_and_down_again() {
    let _turn = alone();
    let folder = run_dir("regrow-scale");
    // It lasts until it is told to end: on any machine it is there for every request.
    let long = |folder: &Path, steps: u64| {
        let steps = format!("train.steps={steps}");
        // Checkpoints of steps that take two milliseconds would be all that the disk does.
        let seldom = "checkpoint.every=10000steps";
        launch(folder, &["evaluation.every=never", seldom, &steps])
    };
    let mut running = start(&mut long(&folder, NEVER_REACHED), Duration::from_secs(LIMIT));
    wait_for_step(&folder, 10, &mut running);
    let too_many = run(&mut scale(&folder, "13"), LIMIT);
    assert_eq!(too_many.code, Some(2));
    assert!(too_many.stderr.contains("13 ranks but train.owners = 12"), "{}", too_many.stderr);
    for ranks in ["6", "2", "3"] {
        let ended = run(&mut scale(&folder, ranks), 90);
        assert_eq!(ended.code, Some(0), "{ranks}: {}{}", ended.stdout, ended.stderr);
        let world = std::fs::read(folder.join("world.json")).unwrap();
        let world = World::decode(&world).unwrap();
        assert_eq!(
            (world.ranks().to_string(), world.target.to_string()),
            (ranks.into(), ranks.into())
        );
        let most = (0..world.ranks()).map(|rank| world.owners_of(rank).len()).max();
        assert_eq!(most, Some(12 / world.ranks()), "{:?}", world.owners);
    }
    kill(running.pid(), Signal::Terminate).unwrap();
    let ended = running.wait();
    let result = ended_as(Status::Interrupted, "scale", &folder, &ended);
    assert_eq!(sizes(&result), [("scale", 4, 6), ("scale", 6, 2), ("scale", 2, 3)]);
    assert!(result.recoveries.is_empty(), "who leaves does not die: {:?}", result.recoveries);
    let events = read_events(&folder.join("events.jsonl")).unwrap();
    assert!(!events.iter().any(|event| matches!(event.kind, Kind::FailureDetected { .. })));
    let late = run(&mut scale(&folder, "4"), LIMIT);
    assert_eq!(late.code, Some(1), "nobody is there to be asked: {}", late.stderr);
    assert_eq!(shared_memory_of(&folder), [""; 0], "files are left in /dev/shm");
    let reference = run_dir("regrow-scale-calm");
    let ended = run(&mut long(&reference, result.steps), LIMIT);
    let calm = ended_as(Status::Completed, "scale-calm", &reference, &ended);
    assert_eq!(result.state_sha256, calm.state_sha256);
}

#[test]
fn behind_a_replaced_leader_a_smaller_world_is_told_of_once() {
    let _turn = alone();
    let folder = run_dir("regrow-replaced");
    let kill_leader = plan(&[r#"{kind="kill", rank=0, step=5}"#]);
    let steps = format!("train.steps={NEVER_REACHED}");
    let keys = ["evaluation.every=never", "checkpoint.every=10000steps", &steps, &kill_leader];
    let mut running = start(&mut launch(&folder, &keys), Duration::from_secs(LIMIT));
    wait_for_step(&folder, 20, &mut running);
    let ended = run(&mut scale(&folder, "2"), 90);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    kill(running.pid(), Signal::Terminate).unwrap();
    let result = ended_as(Status::Interrupted, "replaced", &folder, &running.wait());
    assert_eq!(result.recoveries.len(), 1, "{:?}", result.recoveries);
    assert_eq!(sizes(&result), [("scale", 4, 2)]);
}
