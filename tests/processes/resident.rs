//! State that outlives the processes, with real processes and real SIGKILL: everything killed at
//! one instant, the supervisor too, slots that are damaged or of another run, newcomers that map
//! what the dead left. A machine without room for the slots (/dev/shm) fails these tests.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use kintsugi::cluster::resident::folder::{Found, inventory, member_of};
use kintsugi::cluster::world::{Member, World};
use kintsugi::config::seed::Stream;
use kintsugi::observe::event::Kind;
use kintsugi::observe::log::read_events;
use kintsugi::observe::result::{LAUNCHER_GONE, RunResult, Status};
use kintsugi::train::checkpoint::store;
use kintsugi_ffi::os::{Signal, kill};

use crate::support::{
    alone, assert_audited, assert_nothing_runs, kill_all, kintsugi, launch, processes_of,
    result_of, run, run_dir, shared_memory_of, start, wait_for_step,
};

/// Seconds any of these runs may take.
const LIMIT: u64 = 120;
/// No checkpoint that could be read: what goes on goes on from memory.
const STEPS: &str = "train.steps=300";
const LONG: [&str; 3] = [STEPS, "evaluation.every=100steps", "checkpoint.every=never"];

/// The run of 300 steps that lost nothing.
fn calm() -> &'static RunResult {
    static CALM: OnceLock<RunResult> = OnceLock::new();
    CALM.get_or_init(|| {
        let folder = run_dir("resident-calm");
        let ended = run(&mut launch(&folder, &LONG), LIMIT);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        result_of(&folder)
    })
}

/// The slot files of a run.
fn slots_of(folder: &Path) -> Vec<Found> {
    let name = std::path::absolute(folder).unwrap().display().to_string();
    let all = inventory(Path::new("/dev/shm")).unwrap();
    all.into_iter().filter(|found| found.run_dir == name).collect()
}

/// The run has ended as the calm one, from memory alone, and left nothing.
fn ended_as_the_calm_run(folder: &Path, restarts: usize) -> RunResult {
    let result = ended_with_its_bits(folder, restarts);
    assert_eq!(result.lost_steps, 0, "{:?}", result.restarts);
    result
}

fn ended_with_its_bits(folder: &Path, restarts: usize) -> RunResult {
    let result = result_of(folder);
    assert_eq!(result.status, Status::Completed);
    let from: Vec<&str> = result.restarts.iter().map(|restart| restart.from.as_str()).collect();
    assert_eq!(from, vec!["resident"; restarts], "{:?}", result.restarts);
    assert_eq!(result.state_sha256, calm().state_sha256, "other bits than the calm run");
    for restart in &result.restarts {
        let lost: Vec<u32> = restart.lost.iter().map(|lost| lost.rank).collect();
        assert_eq!(lost, [0, 1, 2, 3], "everybody was killed: {:?}", restart.lost);
    }
    assert!(!folder.join("checkpoints").exists(), "a checkpoint was there to be read");
    assert_audited(folder);
    assert_nothing_runs(folder);
    assert_eq!(slots_of(folder), vec![], "slots are left in /dev/shm");
    result
}

/// Kills everything `kills` times, at moments drawn from `seed`.
fn killed_at_random_moments(name: &str, seed: u64, kills: u64) {
    let folder = run_dir(name);
    let mut running = start(&mut launch(&folder, &LONG), Duration::from_secs(LIMIT));
    let supervisor = running.pid();
    let mut moments = Stream::new(&[seed, 77]);
    for number in 0..kills {
        // Ninety steps are left after the last.
        let share = 220.0 / kills as f64;
        let step = (share * (number as f64 + 0.2 + 0.7 * moments.unit())) as u64;
        wait_for_step(&folder, step.max(2), &mut running);
        std::thread::sleep(Duration::from_micros((20_000.0 * moments.unit()) as u64));
        kill_all(&folder, Some(supervisor));
    }
    let ended = running.wait();
    let replay = format!("seed {seed}: KINTSUGI_RESIDENT_SEED={seed}");
    assert_eq!(ended.code, Some(0), "{replay}\n{}", ended.stderr);
    println!("{replay}: {kills} kills");
    ended_as_the_calm_run(&folder, kills as usize);
    assert_eq!(shared_memory_of(&folder), [""; 0], "files are left in /dev/shm");
}

fn seed() -> u64 {
    let text = std::env::var("KINTSUGI_RESIDENT_SEED").unwrap_or_else(|_| "1".into());
    text.parse().expect("KINTSUGI_RESIDENT_SEED is a number")
}

#[test]
fn everything_killed_at_once_goes_on_without_a_checkpoint() {
    let _turn = alone();
    killed_at_random_moments("resident-random", seed(), 3);
}

/// Weights to begin with, of which the last is no number.
fn weights_with_a_flaw() -> String {
    let folder = run_dir("resident-weights");
    let few = ["train.steps=3", "evaluation.every=never"];
    assert_eq!(run(&mut launch(&folder, &few), LIMIT).code, Some(0));
    let file = folder.join("weights.safetensors");
    let mut export = kintsugi();
    export.args(["checkpoint", "export"]).args([&folder, &file]);
    assert_eq!(run(&mut export, LIMIT).code, Some(0));
    let mut bytes = std::fs::read(&file).unwrap();
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&file, bytes).unwrap();
    file.display().to_string()
}

#[test]
fn a_start_that_is_refused_leaves_no_slots() {
    let _turn = alone();
    let weights = format!("model.init={}", weights_with_a_flaw());
    let folder = run_dir("resident-refused");
    let ended = run(&mut launch(&folder, &[STEPS, &weights]), LIMIT);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("model.init"), "{}", ended.stderr);
    assert!(ended.stderr.contains("no finite number"), "{}", ended.stderr);
    assert_nothing_runs(&folder);
    assert_eq!(slots_of(&folder), vec![], "slots are left in /dev/shm");
    assert_eq!(shared_memory_of(&folder), [""; 0], "files are left in /dev/shm");
}

/// All ranks die one after another, and one of them has started a replacement: it has nobody to
/// wait for, and the next attempt does not wait for it. One that has become a member by then
/// repairs the world alone: that blow came too late.
#[test]
fn a_replacement_whose_world_has_died_ends_at_once() {
    const TRIES_MAX: usize = 5;
    let _turn = alone();
    let restarts = (0..TRIES_MAX).map(|_| restarts_after_its_world_has_died());
    let counts: Vec<usize> = restarts.take_while(|count| *count != 1).collect();
    assert!(counts.len() < TRIES_MAX, "restarts where one was expected: {counts:?}");
}

fn restarts_after_its_world_has_died() -> usize {
    let folder = run_dir("resident-orphans");
    let mut running = start(&mut launch(&folder, &LONG), Duration::from_secs(LIMIT));
    wait_for_step(&folder, 20, &mut running);
    let world = World::decode(&std::fs::read(folder.join("world.json")).unwrap()).unwrap();
    let (last, others) = world.members.split_last().unwrap();
    kill(last.pid, Signal::Kill).unwrap();
    let replaced = || processes_of(&folder).iter().any(|(_, line)| line.contains(" --join "));
    let until = Instant::now() + Duration::from_secs(LIMIT);
    while !replaced() {
        assert!(!running.has_ended() && Instant::now() < until, "nobody replaces it");
    }
    for member in others {
        let _ = kill(member.pid, Signal::Kill);
    }
    let ended = running.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let result = result_of(&folder);
    assert_eq!(result.state_sha256, calm().state_sha256);
    let ends = std::fs::read_dir(folder.join("logs")).unwrap().flatten();
    let ends = ends.filter(|entry| entry.path().extension().is_some_and(|end| end == "end"));
    let words = ends.map(|entry| std::fs::read_to_string(entry.path()).unwrap());
    let waited: Vec<String> = words.filter(|words| words.contains("hung")).collect();
    assert_eq!(waited, [""; 0], "it waited until its guardian ended it");
    assert_audited(&folder);
    assert_nothing_runs(&folder);
    assert!(result.restarts.len() < 2, "{:?}", result.restarts);
    result.restarts.len()
}

/// For `make soak`: twenty moments, four a run.
#[test]
fn twenty_times_in_soak() {
    if std::env::var_os("KINTSUGI_SOAK_MINUTES").is_none() {
        println!("skipped: twenty kills of everything (make soak)");
        return;
    }
    let _turn = alone();
    for seed in 100..105 {
        killed_at_random_moments("resident-soak", seed, 4);
    }
}

/// Starts a run, kills it together with its supervisor behind some steps, and returns its folder
/// once nothing of it runs any more.
fn killed_with_its_supervisor(name: &str, overrides: &[&str]) -> PathBuf {
    let folder = run_dir(name);
    let mut running = start(&mut launch(&folder, overrides), Duration::from_secs(LIMIT));
    wait_for_step(&folder, 60, &mut running);
    kill_all(&folder, None);
    let ended = running.wait();
    assert_eq!(ended.code, None, "{}", ended.stderr);
    assert_nothing_runs(&folder);
    assert_eq!(slots_of(&folder).len(), 4, "the slots of an unfinished run stay");
    folder
}

fn goes_on(folder: &Path, overrides: &[&str]) -> String {
    let ended = run(&mut launch(folder, overrides), LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let logs = std::fs::read_dir(folder.join("logs")).unwrap().flatten();
    logs.map(|entry| std::fs::read_to_string(entry.path()).unwrap_or_default()).collect()
}

#[test]
fn a_killed_supervisor_is_started_again_and_nothing_is_lost() {
    let _turn = alone();
    let folder = killed_with_its_supervisor("resident-launch", &LONG);
    goes_on(&folder, &LONG);
    let result = ended_as_the_calm_run(&folder, 1);
    let [restart] = &result.restarts[..] else { panic!("one: {:?}", result.restarts) };
    assert!(restart.step >= 60, "{restart:?}");
    assert!(restart.lost.iter().all(|lost| lost.cause == LAUNCHER_GONE), "{restart:?}");
}

/// Flips one bit of every state in a file: `at` bytes behind the start of its momentum or header.
fn flip(path: &Path, at: &[u64]) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    for &at in at {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], at).unwrap();
    }
}

/// A weight of each slot: behind three pages of headers, the position and half a page.
fn weights_of(found: &Found) -> [u64; 2] {
    let head = 3 * 4096;
    let body = (found.bytes - head) / 2;
    let weight = (256 << 10) + 2048 + 400;
    [head + weight, head + body + weight]
}

#[test]
fn a_damaged_slot_is_refused_by_name_and_the_others_are_believed() {
    let _turn = alone();
    let folder = killed_with_its_supervisor("resident-flip", &LONG);
    let slots = slots_of(&folder);
    let key = |found: &Found| found.newest.clone().unwrap().key;
    // The last step may have been committed by a few alone when all were killed. One that is not
    // ahead is damaged: so whoever is ahead has nobody to differ from, and nothing is lost.
    let damaged = slots.iter().min_by_key(|found| key(found)).unwrap();
    let all_are_even = slots.iter().all(|found| key(found) == key(damaged));
    flip(&damaged.path, &weights_of(damaged));
    let log = goes_on(&folder, &LONG);
    let is_said = log.contains("differs from what most ranks hold");
    assert_eq!(is_said, all_are_even, "{slots:?}: {log}");
    // Had it been damaged before the end, its gradients would be in what the others hold.
    assert_eq!(ended_as_the_calm_run(&folder, 1).exact, !is_said);
}

#[test]
fn when_all_slots_are_damaged_the_checkpoint_is_taken() {
    let _turn = alone();
    // Slow until the kill: time for a disk that is slow to take the first checkpoint.
    let slow = r#"faults.plan=[{kind="slow", who="rank", rank=0, step=21, pause="200ms"}]"#;
    let overrides = [STEPS, "evaluation.every=100steps", "checkpoint.every=20steps", slow];
    let folder = killed_with_its_supervisor("resident-all-bad", &overrides);
    for found in slots_of(&folder) {
        // The step in both headers.
        flip(&found.path, &[8 * 8, 4096 + 8 * 8]);
    }
    let log = goes_on(&folder, &overrides);
    assert!(log.contains("is damaged"), "nobody said so: {log}");
    let result = result_of(&folder);
    assert_eq!(result.restarts[0].from, "checkpoint", "{:?}", result.restarts);
    assert_eq!(result.state_sha256, calm().state_sha256);
    assert_audited(&folder);
    assert_eq!(slots_of(&folder), vec![], "slots are left in /dev/shm");
}

/// Steps whose checkpoints were published, in their order.
fn checkpoints_of(folder: &Path) -> Vec<u64> {
    let events = read_events(&folder.join("events.jsonl")).unwrap();
    let steps = events.into_iter().filter_map(|event| match event.kind {
        Kind::Checkpoint { name, .. } => store::step_of(&name),
        _ => None,
    });
    steps.collect()
}

#[test]
fn a_checkpoint_that_was_due_while_nothing_ran_is_written_at_the_first_step() {
    let _turn = alone();
    // A start takes longer than this, so that a boundary lies in it.
    let overrides = [STEPS, "evaluation.every=100steps", "checkpoint.every=150ms"];
    let folder = killed_with_its_supervisor("resident-due", &overrides);
    // Where it was killed before the first one was due, there is no folder.
    let names = std::fs::read_dir(folder.join("checkpoints")).into_iter().flatten().flatten();
    let before = names.filter_map(|entry| store::step_of(&entry.file_name().to_string_lossy()));
    let before = before.max().unwrap_or(0);
    goes_on(&folder, &overrides);
    let result = result_of(&folder);
    let gone_on = result.restarts[0].step;
    let next = checkpoints_of(&folder).into_iter().find(|step| *step > before);
    // Where the newest one is of the last step, nothing was due.
    let expected = if before == gone_on { next } else { Some(gone_on + 1) };
    assert_eq!(next, expected, "before: {before}; {:?}", result.restarts);
    assert_eq!(result.state_sha256, calm().state_sha256);
}

#[test]
fn slots_of_another_run_in_the_same_folder_are_refused() {
    let _turn = alone();
    let folder = killed_with_its_supervisor("resident-foreign", &LONG);
    std::fs::remove_dir_all(&folder).unwrap();
    let log = goes_on(&folder, &LONG);
    assert!(log.contains("belongs to another run"), "nobody said so: {log}");
    ended_as_the_calm_run(&folder, 0);
}

/// How newcomers came to their state.
fn ways(folder: &Path) -> Vec<String> {
    let events = read_events(&folder.join("events.jsonl")).unwrap();
    let names = events.into_iter().filter_map(|event| match event.kind {
        Kind::Phase { name, .. } if name.starts_with("state_") => Some(name),
        _ => None,
    });
    names.collect()
}

#[test]
fn a_newcomer_maps_what_the_dead_left() {
    let _turn = alone();
    let folder = run_dir("resident-mapped");
    let kills = r#"faults.plan=[{kind="kill", rank=2, step=90, phase="in_all_reduce"},
        {kind="kill", rank=0, step=150, phase="in_backward"}]"#;
    let overrides = [LONG[0], LONG[1], LONG[2], kills];
    let ended = run(&mut launch(&folder, &overrides), LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ways(&folder), ["state_mapped", "state_mapped"]);
    ended_as_the_calm_run(&folder, 0);
}

#[test]
fn without_resident_state_it_is_sent() {
    let _turn = alone();
    let folder = run_dir("resident-sent");
    let kill = r#"faults.plan=[{kind="kill", rank=2, step=90, phase="in_all_reduce"}]"#;
    let overrides = [LONG[0], LONG[1], LONG[2], kill, "recovery.resident=off"];
    let ended = run(&mut launch(&folder, &overrides), LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ways(&folder), ["state_sent"]);
    ended_as_the_calm_run(&folder, 0);
}

/// Stops a rank and returns its slots, which hold what the others' do: while it is stopped nobody
/// commits anything, and its file can be changed at leisure. One that was caught between the vote
/// and its commit is let go on.
fn stopped_in_step(folder: &Path, victim: &Member) -> Found {
    const TRIES_MAX: usize = 50;
    for _ in 0..TRIES_MAX {
        kill(victim.pid, Signal::Stop).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let slots = slots_of(folder);
        let step = |found: &Found| found.newest.as_ref().map_or(0, |header| header.key.step);
        let newest = slots.iter().map(step).max();
        let mine = |found: &Found| member_of(&found.path) == Some(victim.member);
        let found = slots.into_iter().find(mine).unwrap();
        if Some(step(&found)) == newest {
            return found;
        }
        kill(victim.pid, Signal::Continue).unwrap();
        std::thread::sleep(Duration::from_millis(7));
    }
    panic!("it was never stopped within a step");
}

#[test]
fn a_newcomer_whose_mapped_state_is_wrong_leaves_and_the_next_one_gets_the_survivors() {
    let _turn = alone();
    let folder = run_dir("resident-evicted");
    // Its guardian is not to end what this test has stopped.
    let often = "recovery.integrity_every=20steps";
    let keys = [LONG[0], LONG[1], LONG[2], "recovery.step_timeout=off", often];
    let mut running = start(&mut launch(&folder, &keys), Duration::from_secs(LIMIT));
    wait_for_step(&folder, 60, &mut running);
    let world = World::decode(&std::fs::read(folder.join("world.json")).unwrap()).unwrap();
    let victim = &world.members[1];
    let found = stopped_in_step(&folder, victim);
    flip(&found.path, &weights_of(&found));
    kill(victim.pid, Signal::Kill).unwrap();
    let ended = running.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let result = ended_with_its_bits(&folder, 0);
    assert!(result.exact);
    assert_eq!(result.recoveries.len(), 2, "{:?}", result.recoveries);
    assert_eq!(ways(&folder), ["state_mapped", "state_copied"]);
    // The dead rank may have been damaged long before: all go back to what was found equal.
    assert!(result.lost_steps <= 20, "{:?}", result.recoveries);
    assert_eq!(result.recoveries[1].lost_steps, result.lost_steps);
}

#[test]
fn a_folder_without_room_is_one_warning_and_no_more() {
    let _turn = alone();
    let folder = run_dir("resident-nowhere");
    let overrides = [LONG[0], LONG[1], LONG[2], "recovery.resident_dir=/no/such/folder"];
    let ended = run(&mut launch(&folder, &overrides), LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let events = read_events(&folder.join("events.jsonl")).unwrap();
    let warnings = events.iter().filter(|event| {
        let Kind::Warning { message } = &event.kind else { return false };
        message.contains("resident state is off") && message.contains(" of rank 0 on ")
    });
    assert_eq!(warnings.count(), 1);
    ended_as_the_calm_run(&folder, 0);
}

/// A file that the kernel opens for nobody who would write to it, since it is being executed: of
/// all passing errors the one that a test can bring about. What lay there comes back with `end`.
struct Busy {
    program: std::process::Child,
    path: PathBuf,
    kept: PathBuf,
}

impl Busy {
    fn put_on(path: &Path) -> Self {
        let kept = path.with_extension("kept");
        std::fs::rename(path, &kept).unwrap();
        std::fs::copy("/bin/sleep", path).unwrap();
        let program = std::process::Command::new(path).arg("600").spawn().unwrap();
        Self { program, path: path.to_owned(), kept }
    }

    fn end(self) {
        assert!(self.path.exists(), "removed without having been read");
        std::fs::rename(&self.kept, &self.path).unwrap();
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// Killed with its supervisor at step 90; its slots lie in the folder that is returned.
fn killed_with_slots_in_a_folder(name: &str, ranks: &str) -> (PathBuf, Vec<PathBuf>, [String; 3]) {
    let folder = run_dir(name);
    let place = run_dir(&format!("{name}-slots"));
    std::fs::create_dir_all(&place).unwrap();
    let overrides = [
        ranks.to_owned(),
        format!("recovery.resident_dir={}", place.display()),
        "train.steps=200".to_owned(),
    ];
    let given: Vec<&str> = LONG.into_iter().chain(overrides.iter().map(String::as_str)).collect();
    let mut running = start(&mut launch(&folder, &given), Duration::from_secs(LIMIT));
    wait_for_step(&folder, 90, &mut running);
    kill_all(&folder, None);
    running.wait();
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    (folder, files, overrides)
}

#[test]
fn slots_that_cannot_be_read_now_are_waited_for() {
    let _turn = alone();
    let (folder, files, overrides) = killed_with_slots_in_a_folder("resident-busy", "run.ranks=1");
    let given: Vec<&str> = LONG.into_iter().chain(overrides.iter().map(String::as_str)).collect();
    let busy = Busy::put_on(&files[0]);
    let refused = || {
        let ended = run(&mut launch(&folder, &given), LIMIT);
        assert_eq!(ended.code, Some(93), "no progress: {}", ended.stderr);
        assert!(ended.stderr.contains("resident state cannot be read now"), "{}", ended.stderr);
    };
    refused();
    // A record that could not be written does not say how far the run has come.
    let [ledger, aside] = ["ledger.jsonl", "ledger.aside"].map(|name| folder.join(name));
    std::fs::rename(&ledger, &aside).unwrap();
    refused();
    std::fs::rename(&aside, &ledger).unwrap();
    busy.end();
    let ended = run(&mut launch(&folder, &given), LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(result_of(&folder).lost_steps, 0, "{:?}", result_of(&folder).restarts);
}

#[test]
fn slots_that_cannot_be_read_now_cost_nothing_where_another_rank_holds_the_state() {
    let _turn = alone();
    let (folder, files, overrides) = killed_with_slots_in_a_folder("resident-one", "run.ranks=2");
    let given: Vec<&str> = LONG.into_iter().chain(overrides.iter().map(String::as_str)).collect();
    let _busy = Busy::put_on(&files[0]);
    let ended = run(&mut launch(&folder, &given), LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(result_of(&folder).lost_steps, 0, "{:?}", result_of(&folder).restarts);
}
