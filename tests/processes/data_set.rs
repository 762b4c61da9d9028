//! A data set that goes away while it is learned from, as an unmounted share does: no step is
//! committed without its samples, the run waits, and goes on when they are back.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kintsugi::cluster::world::World;
use kintsugi::observe::event::Kind;
use kintsugi::observe::ledger;
use kintsugi::observe::log::read_events;
use kintsugi::observe::result::Status;
use kintsugi_ffi::os::{Signal, kill};

use crate::share::Share;
use crate::support::{
    Running, alone, assert_audited, assert_nothing_runs, result_of, start, wait_for_step,
};

const LIMIT: Duration = Duration::from_secs(60);

/// Never reached within `LIMIT`.
const ENDLESS: &str = "train.steps=1000000";

/// The set can be taken away.
impl Share {
    fn run(&self) -> PathBuf {
        self.0.join("run")
    }

    fn start(&self, command: &str, run: &Path, overrides: &[&str]) -> Running {
        let overrides = [&[ENDLESS], overrides].concat();
        start(&mut self.command(command, run, &overrides), LIMIT)
    }

    fn take_away(&self) {
        std::fs::rename(self.set(), self.0.join("away")).unwrap();
    }

    fn bring_back(&self) {
        std::fs::rename(self.0.join("away"), self.set()).unwrap();
    }
}

/// The committed step at which a run waits.
fn wait_for_waiting(run: &Path) -> u64 {
    let until = Instant::now() + LIMIT;
    loop {
        let events = read_events(&run.join("events.jsonl")).unwrap_or_default();
        if let Some(event) = events.iter().find(|e| matches!(e.kind, Kind::Waiting { .. })) {
            return event.step;
        }
        assert!(Instant::now() < until, "it does not wait");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Lines that a person has to see: each rank waits once, and one line stands for all of them until
/// something is committed. A rank that reads ahead may wait before the last steps are.
fn lines_about_waiting(run: &Path) -> usize {
    let (mut lines, mut ranks, mut said) = (0, BTreeSet::new(), false);
    for event in read_events(&run.join("events.jsonl")).unwrap() {
        match event.kind {
            Kind::Waiting { .. } => {
                assert!(ranks.insert(event.rank), "rank {} said it twice", event.rank);
                lines += usize::from(!std::mem::replace(&mut said, true));
            }
            Kind::Step { .. } => said = false,
            _ => {}
        }
    }
    assert!(lines > 0, "nobody waited");
    lines
}

fn committed(run: &Path) -> u64 {
    let entries = ledger::read(&run.join("ledger.jsonl")).unwrap();
    ledger::effective(&entries).last().map_or(0, |line| line.step)
}

#[test]
fn a_run_waits_for_its_data_ends_with_75_and_goes_on_with_its_bits() {
    let _turn = alone();
    let share = Share::new("share-launch");
    let run = share.run();
    let mut running = share.start("launch", &run, &["data.patience=1s"]);
    wait_for_step(&run, 5, &mut running);
    share.take_away();
    let ended = running.wait();
    assert_eq!(ended.code, Some(75), "{}", ended.stderr);
    let said = ended.stderr.matches("waiting up to 1s (data.patience)").count();
    assert_eq!(said, lines_about_waiting(&run), "{}", ended.stderr);
    let result = result_of(&run);
    assert_eq!((result.status, result.attempt), (Status::JobLost, 1), "{}", ended.stderr);
    assert!(result.reason.contains("data.patience"), "{}", result.reason);
    assert_eq!(result.steps, committed(&run));
    assert_eq!(result.bad_images.train, 0, "nothing was taken for a bad picture");
    // It is not back yet.
    let ended = share.start("launch", &run, &["data.patience=0s"]).wait();
    assert_eq!(ended.code, Some(75), "{}", ended.stderr);
    assert_eq!(committed(&run), result.steps);

    share.bring_back();
    let steps = format!("train.steps={}", result.steps + 20);
    let ended = share.start("launch", &run, &[&steps]).wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_audited(&run);
    let calm = share.0.join("calm");
    let ended = share.start("launch", &calm, &[&steps]).wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(result_of(&run).state_sha256, result_of(&calm).state_sha256);
    assert_nothing_runs(&run);
}

#[test]
fn data_that_come_back_in_time_cost_nothing() {
    let _turn = alone();
    let share = Share::new("share-back");
    let run = share.run();
    let mut running = share.start("launch", &run, &[]);
    wait_for_step(&run, 5, &mut running);
    share.take_away();
    let waits = wait_for_waiting(&run);
    share.bring_back();
    wait_for_step(&run, waits + 20, &mut running);
    // Asked to stop, it ends as ever.
    kill(running.pid(), Signal::Terminate).unwrap();
    let ended = running.wait();
    assert_eq!(ended.code, Some(85), "{}", ended.stderr);
    let result = result_of(&run);
    assert_eq!((result.attempt, result.bad_images.train), (1, 0));
    assert!(result.recoveries.is_empty(), "{:?}", result.recoveries);
    assert_audited(&run);
}

#[test]
fn a_run_that_waits_can_be_stopped() {
    let _turn = alone();
    for command in ["launch", "train"] {
        let share = Share::new(&format!("share-stop-{command}"));
        let run = share.run();
        let exchange = match command {
            "train" => "train.exchange=asynchronous",
            _ => "train.exchange=synchronous",
        };
        let memory = share.0.join("memory");
        std::fs::create_dir(&memory).unwrap();
        let resident = format!("recovery.resident_dir={}", memory.display());
        let mut running = share.start(command, &run, &[exchange, &resident]);
        wait_for_step(&run, 5, &mut running);
        share.take_away();
        wait_for_waiting(&run);
        kill(running.pid(), Signal::Terminate).unwrap();
        let ended = running.wait();
        assert_eq!(ended.code, Some(85), "{command}: {}", ended.stderr);
        let result = result_of(&run);
        assert_eq!(result.status, Status::Interrupted);
        assert!(result.reason.contains("a checkpoint is written"), "{}", result.reason);
        assert_eq!(result.steps, committed(&run));
        assert_eq!(std::fs::read_dir(&memory).unwrap().count(), 0, "the checkpoint holds it all");
        assert_nothing_runs(&run);
    }
}

#[test]
fn a_spare_that_cannot_read_the_data_set_holds_no_repair_up() {
    let _turn = alone();
    let share = Share::new("share-spare");
    let run = share.run();
    let ladder = "recovery.ladder=[\"spare\", \"shrink\"]";
    let mut running = share.start("launch", &run, &["recovery.spares=1", ladder]);
    wait_for_step(&run, 5, &mut running);
    share.take_away();
    let waits = wait_for_waiting(&run);
    let world = || World::decode(&std::fs::read(run.join("world.json")).ok()?).ok();
    let pid = world().unwrap().member_at(1).unwrap().pid;
    kill(pid, Signal::Kill).unwrap();
    let until = Instant::now() + LIMIT;
    while world().is_none_or(|world| world.ranks() != 1) {
        assert!(Instant::now() < until && !running.has_ended(), "nobody goes on without it");
        std::thread::sleep(Duration::from_millis(5));
    }
    share.bring_back();
    wait_for_step(&run, waits + 5, &mut running);
    kill(running.pid(), Signal::Terminate).unwrap();
    let ended = running.wait();
    assert_eq!(ended.code, Some(85), "{}", ended.stderr);
    let rungs: Vec<String> =
        result_of(&run).recoveries.iter().map(|repair| repair.rung.clone()).collect();
    assert_eq!(rungs, ["shrink"], "{}", ended.stderr);
    assert_audited(&run);
}
