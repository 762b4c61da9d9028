//! Hot spares with real processes, real Open MPI and real SIGKILL: promoted first, harmless when
//! they die, and the run ends with the bits of one that lost nobody.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use kintsugi::cluster::world::{Role, World};
use kintsugi::observe::event::{Event, Kind};
use kintsugi::observe::log::read_events;
use kintsugi::observe::result::{RunResult, Status};
use kintsugi_ffi::os::{Signal, kill};

use crate::support::{
    Running, alone, assert_audited, assert_nothing_runs, completed, launch, plan, result_of,
    run_dir, start, wait_for_step,
};

/// What any of these runs may take.
const LIMIT_SECONDS: u64 = 120;
const LIMIT: Duration = Duration::from_secs(LIMIT_SECONDS);

/// The run that lost nothing, without spares.
fn calm() -> &'static RunResult {
    static CALM: OnceLock<RunResult> = OnceLock::new();
    CALM.get_or_init(|| completed("spares-calm", &[]).1)
}

/// What a run that must end as the calm one left behind.
struct Survived {
    folder: PathBuf,
    rungs: Vec<String>,
    lost: usize,
}

impl Survived {
    fn states(&self) -> Vec<String> {
        let events = read_events(&self.folder.join("events.jsonl")).unwrap();
        let spare = |kind: &Kind| match kind {
            Kind::Spare { state, .. } => Some(state.clone()),
            _ => None,
        };
        events.iter().filter_map(|event| spare(&event.kind)).collect()
    }

    fn world(&self) -> World {
        world_of(&self.folder)
    }

    /// How newcomers came to their state.
    fn ways(&self) -> Vec<String> {
        let events = read_events(&self.folder.join("events.jsonl")).unwrap();
        let names = events.into_iter().filter_map(|event| match event.kind {
            Kind::Phase { name, .. } if name.starts_with("state_") => Some(name),
            _ => None,
        });
        names.collect()
    }
}

fn world_of(folder: &Path) -> World {
    serde_json::from_slice(&std::fs::read(folder.join("world.json")).unwrap()).unwrap()
}

/// Launches with so many spares; the run must end as the calm one.
fn ends_as_the_calm_run(name: &str, spares: u32, overrides: &[&str]) -> Survived {
    let spares = format!("recovery.spares={spares}");
    let (folder, _) = completed(name, &[overrides, &[&*spares]].concat());
    as_the_calm_run(name, folder)
}

fn as_the_calm_run(name: &str, folder: PathBuf) -> Survived {
    let result = result_of(&folder);
    assert_eq!(result.status, Status::Completed, "{name}");
    assert_eq!(result.state_sha256, calm().state_sha256, "{name}: other bits than the calm run");
    assert_eq!((result.lost_steps, result.exact), (0, true), "{name}: {:?}", result.restarts);
    let rungs = result.recoveries.iter().map(|record| record.rung.clone()).collect();
    let lost = result.recoveries.iter().map(|record| record.lost.len()).sum();
    Survived { folder, rungs, lost }
}

#[test]
fn spares_that_nobody_needs_change_nothing() {
    let _turn = alone();
    let run = ends_as_the_calm_run("spares-idle", 2, &[]);
    assert_eq!((run.rungs, run.lost), (Vec::<String>::new(), 0));
}

#[test]
fn a_killed_rank_is_replaced_by_a_spare() {
    let _turn = alone();
    let kill = plan(&[r#"{kind="kill", rank=2, step=20, phase="in_all_reduce"}"#]);
    for (name, warm) in [("spares-cold", "false"), ("spares-warm", "true")] {
        let warm = format!("recovery.warm_spares={warm}");
        let run = ends_as_the_calm_run(name, 1, &[&kill, &warm]);
        assert_eq!((run.rungs.as_slice(), run.lost), (&["spare".to_string()][..], 1), "{name}");
        assert_eq!(run.states(), ["promoted"]);
        assert_eq!(run.ways(), ["state_mapped"], "{name}: it takes the dead rank's slot");
        // It keeps the number that it waited with.
        assert_eq!(run.world().member_at(2).map(|m| m.member), Some(4), "{name}");
    }
}

#[test]
fn more_deaths_than_spares_take_the_next_rung_for_the_rest() {
    let _turn = alone();
    let kill = plan(&[
        r#"{kind="kill", rank=0, step=15, phase="in_backward"}"#,
        r#"{kind="kill", rank=3, step=15, phase="in_backward"}"#,
        r#"{kind="kill", rank=1, step=30, phase="before_vote"}"#,
    ]);
    let run = ends_as_the_calm_run("spares-few", 1, &[&kill]);
    assert_eq!(run.lost, 3);
    assert_eq!(run.rungs.last().map(String::as_str), Some("respawn"), "{:?}", run.rungs);
}

#[test]
fn a_spare_that_dies_in_its_promotion_is_followed_by_the_next() {
    let _turn = alone();
    for (name, second) in [
        ("spares-merge", r#"{kind="kill", who="spare", step=20, phase="in_merge"}"#),
        ("spares-restore", r#"{kind="kill", who="newcomer", step=20, phase="in_restore"}"#),
    ] {
        let kill = plan(&[r#"{kind="kill", rank=1, step=20, phase="in_all_reduce"}"#, second]);
        let run = ends_as_the_calm_run(name, 2, &[&kill]);
        assert_eq!(run.rungs, ["spare"], "{name}");
    }
}

#[test]
fn a_survivor_that_dies_in_a_promotion_is_replaced_too() {
    let _turn = alone();
    for phase in ["in_shrink", "in_merge", "in_restore"] {
        let second = format!(r#"{{kind="kill", rank=0, step=20, phase="{phase}"}}"#);
        let first = r#"{kind="kill", rank=3, step=20, phase="in_forward"}"#;
        let run = ends_as_the_calm_run("spares-survivor", 2, &[&plan(&[first, &second])]);
        assert_eq!(run.lost, 2, "{phase}");
        assert!(run.rungs.iter().all(|rung| rung == "spare"), "{phase}: {:?}", run.rungs);
    }
}

/// A run that takes some seconds, killed from outside.
fn long_run(name: &str, spares: u32) -> (PathBuf, Running) {
    let folder = run_dir(name);
    let spares = format!("recovery.spares={spares}");
    let overrides = ["train.steps=400", "evaluation.every=never", spares.as_str()];
    let running = start(&mut launch(&folder, &overrides), LIMIT);
    (folder, running)
}

fn long_calm() -> &'static Option<String> {
    static CALM: OnceLock<Option<String>> = OnceLock::new();
    CALM.get_or_init(|| {
        let (folder, running) = long_run("spares-long-calm", 0);
        let ended = running.wait();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        result_of(&folder).state_sha256
    })
}

/// Waits until the run's events satisfy something.
fn wait_until(
    folder: &Path,
    running: &mut Running,
    what: &str,
    mut reached: impl FnMut(&[Event]) -> bool,
) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !reached(&read_events(&folder.join("events.jsonl")).unwrap_or_default()) {
        assert!(!running.has_ended(), "the run ended before {what}");
        assert!(Instant::now() < limit, "no {what} within a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn kill_member(folder: &Path, role: Role) {
    let world = world_of(folder);
    let member = world.members.iter().rfind(|m| m.role == role).expect("one of that role");
    kill(member.pid, Signal::Kill).expect("it lives");
}

#[test]
fn dead_spares_are_no_failure_and_a_rank_that_dies_then_is_respawned() {
    let _turn = alone();
    let (folder, mut running) = long_run("spares-dead", 2);
    for (kills, step) in [(1, 20), (2, 40)] {
        wait_for_step(&folder, step, &mut running);
        kill_member(&folder, Role::Spare);
        let lost = |e: &&Event| matches!(&e.kind, Kind::Spare { state, .. } if state == "lost");
        let seen = |events: &[Event]| events.iter().filter(lost).count() == kills;
        wait_until(&folder, &mut running, "news of a dead spare", seen);
    }
    kill_member(&folder, Role::Active);
    let ended = running.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let result = result_of(&folder);
    assert_eq!(&result.state_sha256, long_calm());
    let rungs: Vec<&str> = result.recoveries.iter().map(|r| r.rung.as_str()).collect();
    assert_eq!(rungs, ["respawn"], "two dead spares needed no repair");
    assert_nothing_runs(&folder);
    assert_audited(&folder);
}

#[test]
fn a_rank_and_a_spare_at_once() {
    let _turn = alone();
    let (folder, mut running) = long_run("spares-both", 2);
    wait_for_step(&folder, 20, &mut running);
    kill_member(&folder, Role::Spare);
    kill_member(&folder, Role::Active);
    let ended = running.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let result = result_of(&folder);
    assert_eq!(&result.state_sha256, long_calm());
    let rungs: Vec<&str> = result.recoveries.iter().map(|r| r.rung.as_str()).collect();
    assert_eq!(rungs, ["spare"]);
    assert_nothing_runs(&folder);
}

#[test]
fn a_run_without_respawn_is_renewed_when_its_spares_are_used_up() {
    let _turn = alone();
    let kill = plan(&[r#"{kind="kill", rank=1, step=20, phase="in_all_reduce"}"#]);
    let ladder = r#"recovery.ladder=["spare", "shrink", "restart"]"#;
    let overrides = [kill.as_str(), ladder, "recovery.resident=off", "checkpoint.every=never"];
    let run = ends_as_the_calm_run("spares-renewed", 1, &overrides);
    assert_eq!(run.rungs, ["spare"]);
    let restarts = result_of(&run.folder).restarts;
    assert_eq!(restarts.len(), 1, "{restarts:?}");
    assert_eq!(restarts[0].step, 20, "from the boundary of the step that was repaired");
    let world = run.world();
    assert_eq!((world.ranks(), world.spares().count()), (4, 1), "at full strength again");
}

#[test]
fn a_renewed_run_goes_on_from_memory_and_writes_no_checkpoint() {
    let _turn = alone();
    let kill = plan(&[r#"{kind="kill", rank=1, step=20, phase="in_all_reduce"}"#]);
    let ladder = r#"recovery.ladder=["spare", "shrink", "restart"]"#;
    let overrides = [kill.as_str(), ladder, "checkpoint.every=never"];
    let run = ends_as_the_calm_run("spares-renewed-memory", 1, &overrides);
    assert_eq!(run.rungs, ["spare"]);
    let result = result_of(&run.folder);
    let from: Vec<_> = result.restarts.iter().map(|r| (r.from.as_str(), r.step)).collect();
    assert_eq!((from, result.lost_steps), (vec![("resident", 20)], 0));
    let events = read_events(&run.folder.join("events.jsonl")).unwrap();
    let written = events.iter().filter(|e| matches!(e.kind, Kind::Checkpoint { .. })).count();
    assert_eq!(written, 0);
}

#[test]
fn twenty_kills_with_two_spares_end_as_the_calm_run() {
    let _turn = alone();
    let phases = ["in_forward", "in_all_reduce", "before_vote", "after_vote", "in_update"];
    let kills: Vec<String> = (0..20)
        .map(|kill| {
            let (rank, step, phase) = (kill % 4, 4 + 2 * kill, phases[kill % phases.len()]);
            format!(r#"{{kind="kill", rank={rank}, step={step}, phase="{phase}"}}"#)
        })
        .collect();
    let kills: Vec<&str> = kills.iter().map(String::as_str).collect();
    let run = ends_as_the_calm_run("spares-twenty", 2, &[&plan(&kills)]);
    assert_eq!(run.lost, 20, "{:?}", run.rungs);
    assert_eq!(run.rungs[..2], ["spare", "spare"]);
}
