//! Hung, slow and crashing ranks, for real: each is found by its own guardian, named with its
//! cause, replaced, and the run ends with the calm run's bits. No innocent rank is killed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use kintsugi::cluster::world::World;
use kintsugi::observe::event::{Event, Kind, Lost};
use kintsugi::observe::log::read_events;
use kintsugi::observe::result::RunResult;
use kintsugi_ffi::os::{Signal, kill, process_is_alive};
use kintsugi_ffi::shared::SharedWords;

use crate::support::{
    self, alone, assert_audited, assert_nothing_runs, kintsugi, launch, processes_of, result_of,
    run_dir, shared_memory_of, start, wait_for_step,
};

/// Seconds any of these runs may take.
const LIMIT: u64 = 180;

/// A rank without a sign of life for so long is killed.
const LIFE_LIMIT: Duration = Duration::from_secs(1);

/// Steps of the runs that are struck from outside: seconds, not minutes.
const LONG: [&str; 2] = ["train.steps=400", "evaluation.every=never"];

/// The hash of the run that lost nothing.
fn calm(name: &str, overrides: &[&str]) -> Option<String> {
    let (_, result) = completed(&format!("calm-{name}"), overrides);
    assert!(result.recoveries.is_empty(), "a calm run: {result:?}");
    result.state_sha256
}

fn calm_short() -> &'static Option<String> {
    static CALM: OnceLock<Option<String>> = OnceLock::new();
    CALM.get_or_init(|| calm("short", &[]))
}

fn calm_long() -> &'static Option<String> {
    static CALM: OnceLock<Option<String>> = OnceLock::new();
    CALM.get_or_init(|| calm("long", &LONG))
}

fn world_of(folder: &Path) -> Option<World> {
    serde_json::from_slice(&std::fs::read(folder.join("world.json")).ok()?).ok()
}

fn events_of(folder: &Path) -> Vec<Event> {
    read_events(&folder.join("events.jsonl")).unwrap_or_default()
}

fn lost_of(result: &RunResult) -> Vec<Lost> {
    result.recoveries.iter().flat_map(|record| record.lost.clone()).collect()
}

/// Launches with these overrides; the run must complete without a restart and be audited clean.
fn completed(name: &str, overrides: &[&str]) -> (PathBuf, RunResult) {
    let (folder, result) = support::completed(&format!("guard-{name}"), overrides);
    assert!(result.restarts.is_empty(), "{name}: {:?}", result.restarts);
    (folder, result)
}

/// A fault of a rank, and words that its cause must have.
struct Planned {
    kind: &'static str,
    rank: u32,
    step: u32,
    phase: &'static str,
    words: &'static [&'static str],
}

/// These ranks must be lost, in this order, for these causes, and nobody else.
fn are_lost(name: &str, faults: &[Planned], more: &[&str]) {
    let text = |fault: &Planned| {
        let Planned { kind, rank, step, phase, .. } = fault;
        format!(r#"{{kind="{kind}", rank={rank}, step={step}, phase="{phase}"}}"#)
    };
    let plan: Vec<String> = faults.iter().map(text).collect();
    let plan = format!("faults.plan=[{}]", plan.join(", "));
    let mut overrides = vec![plan.as_str()];
    overrides.extend(more);
    let (_, result) = completed(name, &overrides);
    assert_eq!(result.state_sha256, *calm_short(), "{name}: other bits than the calm run");
    assert_eq!(result.lost_steps, 0, "{name}");
    let lost = lost_of(&result);
    let ranks: Vec<u32> = lost.iter().map(|lost| lost.rank).collect();
    assert_eq!(ranks, faults.iter().map(|f| f.rank).collect::<Vec<_>>(), "{name}: {lost:?}");
    for (lost, Planned { kind, phase, words, .. }) in lost.iter().zip(faults) {
        assert!(lost.cause.contains(&format!("injected {kind} {phase}")), "{name}: {lost:?}");
        for word in *words {
            assert!(lost.cause.contains(word), "{name}: no {word:?} in {:?}", lost.cause);
        }
    }
}

/// Waits until `pid` is gone; how long that took.
fn wait_for_death(pid: u32) -> Duration {
    let begun = Instant::now();
    while process_is_alive(pid) {
        assert!(begun.elapsed() < Duration::from_secs(20), "process {pid} is not killed");
        std::thread::sleep(Duration::from_millis(5));
    }
    begun.elapsed()
}

/// Stops these ranks one after the other; the run must lose them and nobody else. Returns how
/// long each lived on, and after how many seconds it was replaced: every rank, the newcomer
/// included, computes.
fn stopped_from_outside(
    name: &str,
    overrides: &[&str],
    ranks: &[usize],
) -> (Vec<Duration>, Vec<f64>) {
    let folder = run_dir(&format!("guard-{name}"));
    let mut running = start(&mut launch(&folder, overrides), Duration::from_secs(LIMIT));
    let (mut members, mut waits, mut stopped_at) = (Vec::new(), Vec::new(), Vec::new());
    for (index, &rank) in ranks.iter().enumerate() {
        wait_for_step(&folder, 20 + 100 * index as u64, &mut running);
        let world = world_of(&folder).unwrap();
        let member = world.member_at(rank).unwrap();
        stopped_at.push(unix_seconds());
        kill(member.pid, Signal::Stop).expect("the rank lives");
        waits.push(wait_for_death(member.pid));
        members.push(member.member);
    }
    let ended = running.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let result = result_of(&folder);
    assert_eq!((result.lost_steps, result.restarts.len()), (0, 0));
    let lost = lost_of(&result);
    let lost_members: Vec<u32> = lost.iter().map(|lost| lost.member).collect();
    assert_eq!(lost_members, members, "the stopped ones and nobody else: {lost:?}");
    for lost in &lost {
        assert!(lost.cause.starts_with("stopped: no beat for "), "{lost:?}");
        assert!(lost.cause.contains("killed by its guardian"), "{lost:?}");
    }
    assert_eq!(result.state_sha256, calm(name, overrides), "other bits than the calm run");
    assert_audited(&folder);
    assert_nothing_runs(&folder);
    assert_eq!(shared_memory_of(&folder), [""; 0], "files are left in /dev/shm");
    let events = read_events(&folder.join("events.jsonl")).unwrap();
    let repaired = events.iter().filter(|event| matches!(event.kind, Kind::Recovered(_)));
    let replaced: Vec<f64> = repaired.zip(&stopped_at).map(|(event, at)| event.time - at).collect();
    assert_eq!(replaced.len(), ranks.len(), "a repair each");
    (waits, replaced)
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64()
}

#[test]
fn a_stopped_rank_is_killed_by_its_guardian_whichever_it_is() {
    let _turn = alone();
    stopped_from_outside("stopped", &LONG, &[2, 0, 3]);
}

/// For `make soak`.
#[test]
fn twenty_stopped_ranks_are_replaced_within_twice_the_limit() {
    if std::env::var_os("KINTSUGI_SOAK_MINUTES").is_none() {
        println!("skipped: twenty stopped ranks (make soak)");
        return;
    }
    let _turn = alone();
    let ranks: Vec<usize> = (0..20).map(|stop| (3 * stop + stop / 4) % 4).collect();
    let steps = ["train.steps=2200", "evaluation.every=never"];
    let (mut waits, mut replaced) = stopped_from_outside("twenty", &steps, &ranks);
    waits.sort();
    replaced.sort_by(f64::total_cmp);
    println!("twenty stopped ranks, killed: median {:?}, longest {:?}", waits[10], waits[19]);
    println!("replaced: median {:.2} s, longest {:.2} s", replaced[10], replaced[19]);
    assert!(replaced[19] <= 2.0 * LIFE_LIMIT.as_secs_f64(), "{replaced:?}");
}

#[test]
fn a_rank_that_stops_in_any_phase_is_found() {
    let _turn = alone();
    let words = &["stopped: no beat for", "killed by its guardian"];
    let stop = |rank, step, phase| Planned { kind: "stop", rank, step, phase, words };
    let faults =
        [stop(0, 7, "after_vote"), stop(2, 15, "in_backward"), stop(1, 25, "in_all_reduce")];
    are_lost("stopping", &faults, &[]);
}

#[test]
fn a_deadlocked_or_looping_rank_is_found_and_those_who_wait_for_it_are_not() {
    let _turn = alone();
    let words = &["hung: no progress for", "computing a step", "killed by its guardian"];
    let hang = |kind, rank, step, phase| Planned { kind, rank, step, phase, words };
    let faults = [
        hang("deadlock", 1, 15, "in_forward"),
        hang("loop", 3, 25, "in_forward"),
        hang("deadlock", 0, 30, "before_vote"),
        hang("loop", 2, 37, "in_update"),
    ];
    // Longer than a disk takes for a rank's own files, shorter than half of the whole limit.
    are_lost("hanging", &faults, &["recovery.step_timeout=6s"]);
}

#[test]
fn the_limit_is_learned_when_it_is_not_set_and_evaluations_have_their_own() {
    let _turn = alone();
    let words = &["hung: no progress for", "computing a step"];
    let (kind, rank) = ("deadlock", 1);
    let step = Planned { kind, rank, step: 30, phase: "in_backward", words };
    // Evaluation follows the commit of step 40: it stands before step 41.
    let words = &["hung: no progress for", "while evaluating"];
    let evaluation = Planned { kind, rank: 2, step: 41, phase: "in_evaluation", words };
    are_lost("learned", &[step, evaluation], &["recovery.time_limit=16s"]);
}

#[test]
fn every_way_to_die_is_named() {
    let _turn = alone();
    let words: [(&str, &[&str]); 6] = [
        ("kill", &["signal 9 (SIGKILL)"]),
        ("exit", &["exit code 0"]),
        ("panic", &["a panic InForward"]),
        ("segv", &["signal 11 (SIGSEGV)"]),
        ("oom", &["memory allocation"]),
        ("device_error", &["the device failed", "signal 9 (SIGKILL)"]),
    ];
    let faults = words.into_iter().zip([7, 14, 21, 28, 35, 42]).map(|((kind, words), step)| {
        Planned { kind, rank: step % 3 + 1, step, phase: "in_forward", words }
    });
    are_lost("dying", &faults.collect::<Vec<_>>(), &[]);
}

#[test]
fn a_slow_rank_is_reported_and_replaced_where_that_is_asked_for() {
    let _turn = alone();
    let slow = r#"faults.plan=[{kind="slow", rank=2, step=30, phase="in_forward"}]"#;
    let steps = ["train.steps=90", "evaluation.every=never"];
    let (folder, result) = completed("slow-reported", &[slow, steps[0], steps[1]]);
    assert!(result.recoveries.is_empty(), "a report only: {:?}", result.recoveries);
    let events = events_of(&folder);
    let named = |event: &Event| match &event.kind {
        Kind::Warning { message } => message.starts_with("rank 2 (") && message.contains("is slow"),
        _ => false,
    };
    assert_eq!(events.iter().filter(|event| named(event)).count(), 1, "named once");
    let mut paces = events.iter().filter_map(|event| match &event.kind {
        Kind::Pace { rank_seconds } => Some(rank_seconds.clone()),
        _ => None,
    });
    let last = paces.next_back().expect("per-rank times are written");
    assert!(last[2] > 0.1 && last[2] > 3.0 * last[1], "{last:?}");
    let calm = result.state_sha256;

    let replace = [slow, steps[0], steps[1], "recovery.replace_slow=true"];
    let (_, result) = completed("slow-replaced", &replace);
    let lost = lost_of(&result);
    assert_eq!(lost.iter().map(|lost| lost.rank).collect::<Vec<_>>(), [2], "{lost:?}");
    assert!(lost[0].cause.contains("slow: ") && lost[0].cause.contains("times"), "{lost:?}");
    assert_eq!(result.state_sha256, calm);
}

/// As SLURM does it: SIGTSTP to each of them, which stops who does not catch it, and SIGSTOP later.
#[test]
fn no_rank_of_a_suspended_job_is_killed() {
    let _turn = alone();
    let folder = run_dir("guard-suspended");
    let mut running = start(&mut launch(&folder, &LONG), Duration::from_secs(LIMIT));
    wait_for_step(&folder, 20, &mut running);
    for signal in ["TSTP", "STOP", "CONT"] {
        let all = processes_of(&folder).into_iter().map(|(pid, _)| pid.to_string());
        let all: Vec<String> = all.collect();
        let mut kill = Command::new("kill");
        assert!(kill.arg(format!("-{signal}")).args(&all).status().unwrap().success());
        std::thread::sleep(3 * LIFE_LIMIT);
    }
    let ended = running.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let result = result_of(&folder);
    assert_eq!((result.recoveries.len(), result.restarts.len()), (0, 0), "{result:?}");
    assert_eq!(result.state_sha256, *calm_long());
}

#[test]
fn off_leaves_a_stopped_rank_to_its_debugger() {
    let _turn = alone();
    let folder = run_dir("guard-off");
    let off = [LONG[0], LONG[1], "recovery.step_timeout=off", "recovery.time_limit=60s"];
    let mut running = start(&mut launch(&folder, &off), Duration::from_secs(LIMIT));
    wait_for_step(&folder, 20, &mut running);
    let pid = world_of(&folder).unwrap().member_at(1).unwrap().pid;
    kill(pid, Signal::Stop).expect("the rank lives");
    std::thread::sleep(Duration::from_secs(4));
    assert!(process_is_alive(pid), "nobody may kill it");
    kill(pid, Signal::Continue).expect("the rank lives");
    let ended = running.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let result = result_of(&folder);
    assert!(result.recoveries.is_empty(), "{:?}", result.recoveries);
    assert_eq!(result.state_sha256, *calm_long());
}

#[test]
fn a_guardian_follows_its_rank_and_takes_the_ranks_segment_along() {
    let _turn = alone();
    let folder = run_dir("guard-follows");
    let mut running = start(&mut launch(&folder, &LONG), Duration::from_secs(LIMIT));
    wait_for_step(&folder, 20, &mut running);
    let guardians = |folder: &Path| -> Vec<(u32, String)> {
        let ours = processes_of(folder).into_iter();
        ours.filter(|(_, line)| line.contains(" guard ")).collect()
    };
    assert_eq!(guardians(&folder).len(), 4, "each rank has one");
    let segments = segments_of(&folder);
    assert_eq!(segments.len(), 4, "{segments:?}");
    let pid = world_of(&folder).unwrap().member_at(3).unwrap().pid;
    let watches = format!(" guard {pid} ");
    let guardian = guardians(&folder).into_iter().find(|(_, line)| line.contains(&watches));
    let (guardian, _) = guardian.expect("the rank has a guardian");
    kill(pid, Signal::Kill).expect("the rank lives");
    wait_for_death(pid);
    wait_for_death(guardian);
    wait_for_recovery(&folder, &mut running);
    assert_eq!(guardians(&folder).len(), 4, "the replacement has its own");
    // A replacement, alone in its job, has none.
    let (after, dead) = (segments_of(&folder), segments.iter().find(|name| name.ends_with(".3")));
    assert!(dead.is_some_and(|dead| !after.contains(dead)), "still there: {after:?}");
    assert_eq!(after.len(), 3, "those of the living stay: {after:?}");
    let ended = running.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(result_of(&folder).state_sha256, *calm_long());
}

/// A replacement cannot tell a launcher that is stopped from one that has forgotten it. The blow
/// has to fall in the milliseconds before its MPI asks, so there are several tries.
#[test]
fn a_replacement_whom_mpirun_does_not_answer_starts_itself_again_and_takes_its_place() {
    const TRIES_MAX: u64 = 5;
    let _turn = alone();
    let folder = run_dir("guard-forgotten");
    let mut running = start(&mut launch(&folder, &LONG), Duration::from_secs(LIMIT));
    let (mut again, mut tries) = (Vec::new(), 0);
    while again.is_empty() && tries < TRIES_MAX {
        wait_for_step(&folder, 20 + 60 * tries, &mut running);
        kill(world_of(&folder).unwrap().member_at(1).unwrap().pid, Signal::Kill).unwrap();
        let (newcomer, has_begun_again) = stop_mpirun_while_one_starts(&folder, &mut running);
        tries += 1;
        wait_for_recoveries(&folder, tries as usize, &mut running);
        // Where its leader's patience ended first, another one has the rank.
        let replaced = world_of(&folder).unwrap().member_at(1).unwrap().pid;
        let guards = |line: &str| line.contains(&format!(" guard {replaced} "));
        let guardians = processes_of(&folder).into_iter().filter(|(_, line)| guards(line)).count();
        assert_eq!(guardians, 1, "one guardian, also after a second start");
        again.extend((has_begun_again && replaced == newcomer).then_some(newcomer));
    }
    let ended = running.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let again = again.first().unwrap_or_else(|| panic!("in {tries} tries mpirun answered first"));
    let result = result_of(&folder);
    // Before its log is looked for, which another attempt has by another name.
    assert_eq!(result.restarts, [], "{}", ended.stderr);
    assert!(result.recoveries.len() as u64 >= tries, "{:?}", result.recoveries);
    let log = folder.join(format!("logs/attempt-1-pid-{again}.log"));
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("started itself again"), "{log}");
    assert_eq!(result.state_sha256, *calm_long());
    assert_audited(&folder);
    assert_nothing_runs(&folder);
}

#[test]
fn a_guardian_whose_rank_is_gone_already_says_that_it_ended_before_mpi_had_started() {
    let folder = tempfile::tempdir().unwrap();
    let last_words = folder.path().join("attempt-1-pid-42.end");
    let (_words, file) = SharedWords::create(c"kintsugi-test").unwrap();
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let mut guardian = kintsugi();
    guardian.args(["guard", &gone.id().to_string(), "--step", "off", "--start", "1s"]);
    guardian.args(["--time", "1s", "--rank", "3", "--last-words"]).arg(&last_words);
    assert!(guardian.stdin(file).status().unwrap().success());
    let words = std::fs::read_to_string(last_words).unwrap();
    assert_eq!(kintsugi::cluster::guard::last_words::unmet(&words), Some(3), "{words}");
}

#[test]
fn the_last_step_is_told_though_its_writer_dies_behind_the_vote() {
    let _turn = alone();
    let kill = r#"faults.plan=[{kind="kill", rank=0, step=8, phase="after_vote"}]"#;
    let (folder, _) = completed("last", &["train.steps=8", "evaluation.every=never", kill]);
    let events = events_of(&folder);
    let told = events.iter().rfind(|event| matches!(event.kind, Kind::Step { .. }));
    assert_eq!(told.map(|event| event.step), Some(8));
}

/// What a process finds set that has started itself again.
const STARTED_AGAIN: &[u8] = b"KINTSUGI_STARTED_AGAIN=";

/// Stops mpirun as soon as there is a replacement, until that has started itself again, or long
/// enough; its pid, and whether it has.
fn stop_mpirun_while_one_starts(
    folder: &Path,
    running: &mut crate::support::Running,
) -> (u32, bool) {
    // Ten looks of its own take a second, more on busy processors; its leader waits ten.
    const STOPPED_MAX: Duration = Duration::from_secs(5);
    let mpirun = processes_of(folder).into_iter().find(|(_, line)| line.contains("prterun "));
    let (mpirun, _) = mpirun.expect("mpirun runs");
    let limit = Instant::now() + Duration::from_secs(10);
    let known: Vec<u32> =
        world_of(folder).unwrap().members.iter().map(|member| member.pid).collect();
    loop {
        let starts = |(pid, line): &(u32, String)| line.contains(" --join") && !known.contains(pid);
        if let Some((newcomer, _)) = processes_of(folder).into_iter().find(starts) {
            kill(mpirun, Signal::Stop).expect("mpirun lives");
            let has_begun_again = || {
                let all = std::fs::read(format!("/proc/{newcomer}/environ")).unwrap_or_default();
                all.split(|byte| *byte == 0).any(|word| word.starts_with(STARTED_AGAIN))
            };
            let until = Instant::now() + STOPPED_MAX;
            while !has_begun_again() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(20));
            }
            let begun = has_begun_again();
            kill(mpirun, Signal::Continue).expect("mpirun lives");
            return (newcomer, begun);
        }
        assert!(!running.has_ended() && Instant::now() < limit, "nobody is started");
    }
}

fn wait_for_recovery(folder: &Path, running: &mut crate::support::Running) {
    wait_for_recoveries(folder, 1, running);
}

fn wait_for_recoveries(folder: &Path, count: usize, running: &mut crate::support::Running) {
    let limit = Instant::now() + Duration::from_secs(30);
    let recovered = |event: &Event| matches!(event.kind, Kind::Recovered(_));
    while events_of(folder).iter().filter(|event| recovered(event)).count() < count {
        assert!(!running.has_ended() && Instant::now() < limit, "nobody recovered");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Shared memory segments of the run's one attempt.
fn segments_of(folder: &Path) -> Vec<String> {
    let run = kintsugi::launch::start::run_dir::RunDir::at(folder).unwrap();
    let places = kintsugi::launch::traces::folders::of_run(&run.id());
    let segments = places.iter().find(|place| place.starts_with("/dev/shm")).unwrap();
    let entries = std::fs::read_dir(segments).unwrap().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
