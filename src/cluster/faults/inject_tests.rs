//! The injector over a storage in memory and a clock that stands still.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;

use crate::config::{Span, Who};
use crate::observe::console::say;

use super::*;

/// Files in memory that count how often they are asked.
#[derive(Default)]
struct Memory {
    files: Mutex<BTreeMap<PathBuf, Vec<u8>>>,
    calls: AtomicUsize,
    full: AtomicBool,
}

impl Memory {
    fn names(&self) -> Vec<String> {
        let files = lock(&self.files);
        files.keys().map(|path| path.to_string_lossy().into_owned()).collect()
    }
}

impl Storage for Memory {
    fn append_line(&self, path: &Path, _: &str) -> io::Result<()> {
        assert_eq!(path, Path::new(FOLDER).join(STRUCK), "claims are whole files");
        Ok(())
    }
    fn write_whole(&self, _: &Path, _: &[&[u8]]) -> io::Result<()> {
        unreachable!("a claim must not overwrite another's")
    }
    fn create_new(&self, path: &Path, body: &[u8]) -> io::Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.full.load(Ordering::Relaxed) {
            return Err(ErrorKind::StorageFull.into());
        }
        match lock(&self.files).entry(path.to_owned()) {
            std::collections::btree_map::Entry::Occupied(_) => Err(ErrorKind::AlreadyExists.into()),
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(body.to_vec());
                Ok(())
            }
        }
    }
    fn read(&self, _: &Path) -> io::Result<Vec<u8>> {
        unreachable!("claims are for people to read")
    }
    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let files = lock(&self.files);
        let below = files.keys().filter_map(|path| path.strip_prefix(folder).ok());
        Ok(below.map(|path| path.to_string_lossy().into_owned()).collect())
    }
    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        unreachable!("claims stay")
    }
    fn remove(&self, _: &Path) -> io::Result<()> {
        unreachable!("claims stay")
    }
    fn create_dir(&self, _: &Path) -> io::Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// A clock that is set by hand; the run began at second 1000 of its wall.
#[derive(Default)]
struct Hand(AtomicU64);

impl Hand {
    fn set(&self, seconds: f64) {
        self.0.store((seconds * 1e3) as u64, Ordering::Relaxed);
    }
}

impl Clock for Hand {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
    fn unix_seconds(&self) -> f64 {
        1000.0 + self.now().as_secs_f64()
    }
    fn sleep(&self, time: Duration) {
        self.0.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
    }
}

/// Notes what it was told to do, and returns.
#[derive(Default)]
struct Ledger(Mutex<Vec<(FaultKind, Point)>>);

impl Strike for Ledger {
    fn strike(&self, kind: FaultKind, point: Point) {
        lock(&self.0).push((kind, point));
    }
}

#[derive(Default)]
struct Bench {
    storage: Arc<Memory>,
    clock: Arc<Hand>,
    struck: Arc<Ledger>,
}

impl Bench {
    /// A process of the run, started now.
    fn process(&self, faults: &Faults) -> Injector {
        let (storage, clock) = (self.storage.clone(), self.clock.clone());
        Injector::new(faults, storage, clock, 1000.0, self.struck.clone())
    }

    fn struck(&self) -> Vec<(FaultKind, Point)> {
        lock(&self.struck.0).clone()
    }

    fn calls(&self) -> usize {
        self.storage.calls.load(Ordering::Relaxed)
    }
}

fn planned(kind: FaultKind, step: Option<u64>, seconds: Option<f64>) -> Faults {
    let phase = Some(Point::InForward);
    let fault = PlannedFault { kind, who: Who::Rank, rank: 1, step, seconds, phase, pause: None };
    Faults { plan: vec![fault], ..Faults::default() }
}

fn random(mtbf_seconds: f64) -> Faults {
    Faults { mtbf_seconds: Some(mtbf_seconds), seed: 3, plan: Vec::new() }
}

fn standing(rank: u32, step: u64) -> Standing {
    Standing { rank, ranks: 4, step, ..Standing::default() }
}

#[test]
fn a_fault_without_a_point_strikes_at_the_first_that_a_plan_can_name() {
    let mut faults = planned(FaultKind::Kill, Some(5), None);
    faults.plan[0].phase = None;
    let bench = Bench::default();
    let injector = bench.process(&faults);
    for point in [Point::InStep, Point::InRepair, Point::InBucket, Point::InComparison] {
        injector.at(point, &standing(1, 4));
    }
    assert!(bench.struck().is_empty(), "{:?}", bench.struck());
    injector.at(Point::BeforeLoad, &standing(1, 4));
    assert_eq!(bench.struck(), [(FaultKind::Kill, Point::BeforeLoad)]);
}

#[test]
fn a_planned_fault_fires_once_and_never_again_after_a_restart() {
    let (bench, faults) = (Bench::default(), planned(FaultKind::Kill, Some(5), None));
    let first = bench.process(&faults);
    assert_eq!(first.at(Point::InForward, &standing(1, 3)), None);
    assert_eq!(bench.calls(), 0, "nothing is asked of the disk before the fault is due");
    assert_eq!(first.at(Point::InForward, &standing(1, 4)), None);
    assert_eq!(bench.struck(), [(FaultKind::Kill, Point::InForward)]);
    assert_eq!(bench.storage.names(), ["faults/plan-0"]);
    first.at(Point::InForward, &standing(1, 4));
    bench.process(&faults).at(Point::InForward, &standing(1, 4));
    assert_eq!(bench.struck().len(), 1);
}

#[test]
fn kinds_that_the_caller_performs_are_returned() {
    for kind in [FaultKind::Nan, FaultKind::BitFlip, FaultKind::Slow] {
        let bench = Bench::default();
        let injector = bench.process(&planned(kind, Some(1), None));
        assert_eq!(injector.at(Point::InForward, &standing(1, 0)), Some(kind));
        assert_eq!(injector.at(Point::InForward, &standing(1, 0)), None);
    }
}

#[test]
fn a_slow_rank_is_held_up_in_every_forward_pass_from_then_on() {
    for pause in [None, Some(Duration::from_millis(250))] {
        let (bench, mut faults) = (Bench::default(), planned(FaultKind::Slow, Some(1), None));
        faults.plan[0].pause = pause.map(Span);
        let injector = bench.process(&faults);
        injector.at(Point::InForward, &standing(1, 0));
        for step in 1..4 {
            let before = bench.clock.now();
            injector.at(Point::InBackward, &standing(1, step));
            assert_eq!(bench.clock.now(), before);
            injector.at(Point::InForward, &standing(1, step));
            assert_eq!(bench.clock.now(), before + pause.unwrap_or(SLOW_PAUSE));
        }
    }
}

#[test]
fn what_was_stopped_and_continued_goes_on_as_if_nothing_had_been() {
    let bench = Bench::default();
    let injector = bench.process(&planned(FaultKind::Stop, Some(1), None));
    assert_eq!(injector.at(Point::InForward, &standing(1, 0)), None);
    assert_eq!(bench.struck(), [(FaultKind::Stop, Point::InForward)]);
}

#[test]
fn seconds_count_from_the_runs_first_start() {
    let (bench, faults) = (Bench::default(), planned(FaultKind::Kill, None, Some(90.0)));
    bench.clock.set(60.0);
    let later_attempt = bench.process(&faults);
    bench.clock.set(89.9);
    later_attempt.at(Point::InForward, &standing(1, 10));
    assert!(bench.struck().is_empty());
    bench.clock.set(90.0);
    later_attempt.at(Point::InBackward, &standing(1, 10));
    later_attempt.at(Point::InForward, &standing(2, 10));
    assert!(bench.struck().is_empty(), "another point, another rank");
    later_attempt.at(Point::InForward, &standing(1, 10));
    assert_eq!(bench.struck().len(), 1);
}

#[test]
fn recording_happens_before_the_strike_and_after_the_claim() {
    let bench = Bench::default();
    let injector = bench.process(&planned(FaultKind::Kill, Some(1), None));
    let (storage, struck) = (bench.storage.clone(), bench.struck.clone());
    let seen = Arc::new(AtomicUsize::new(0));
    let count = seen.clone();
    injector.set_recording(Box::new(move |kind, point, standing| {
        assert_eq!((*kind, point, standing.rank), (FaultKind::Kill, Point::InForward, 1));
        assert_eq!(storage.names().len(), 1);
        assert!(lock(&struck.0).is_empty());
        count.fetch_add(1, Ordering::Relaxed);
    }));
    injector.at(Point::InForward, &standing(1, 0));
    assert_eq!(seen.load(Ordering::Relaxed), 1);
}

#[test]
fn a_fault_that_cannot_be_claimed_does_not_fire() {
    let bench = Bench::default();
    bench.storage.full.store(true, Ordering::Relaxed);
    let injector = bench.process(&planned(FaultKind::Kill, Some(1), None));
    injector.at(Point::InForward, &standing(1, 0));
    assert!(bench.struck().is_empty());
}

#[test]
fn two_threads_of_a_rank_are_struck_once() {
    let bench = Bench::default();
    let injector = bench.process(&planned(FaultKind::Nan, Some(1), None));
    let ask = || injector.at(Point::InForward, &standing(1, 0)).is_some();
    let hits: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|t| usize::from(t.join().unwrap())).sum()
    });
    assert_eq!(hits, 1);
}

/// Runs `ranks` processes for `seconds`, each asking at every point every 10 ms.
fn soak(bench: &Bench, faults: &Faults, ranks: u32, seconds: f64) -> Vec<Injector> {
    let mut processes: Vec<Injector> = (0..ranks).map(|_| bench.process(faults)).collect();
    let mut now = bench.clock.now().as_secs_f64();
    let end = now + seconds;
    while now < end {
        bench.clock.set(now);
        for rank in 0..ranks {
            for point in Point::OF_A_STEP {
                let before = bench.struck().len();
                let standing = Standing { rank, ranks, ..Standing::default() };
                processes[rank as usize].at(point, &standing);
                if bench.struck().len() > before {
                    processes[rank as usize] = bench.process(faults);
                }
            }
        }
        now += 0.01;
    }
    processes
}

#[test]
fn every_random_fault_fires_exactly_once_whoever_it_strikes() {
    let (bench, faults) = (Bench::default(), random(0.5));
    soak(&bench, &faults, 4, 30.0);
    let due = RandomFaults::new(0.5, 3).take_while(|fault| fault.seconds < 29.0).count();
    assert!(due > 30);
    let fired = bench.struck().len();
    assert!((due..=due + 8).contains(&fired), "{due} due, {fired} fired");
    assert_eq!(bench.storage.names().len(), fired, "one claim for each");
}

#[test]
fn a_shrink_does_not_save_the_victims_of_ranks_that_are_gone() {
    let (bench, faults) = (Bench::default(), random(0.5));
    soak(&bench, &faults, 4, 5.0);
    soak(&bench, &faults, 1, 15.0);
    let due = RandomFaults::new(0.5, 3).take_while(|fault| fault.seconds < 19.0).count();
    assert!(bench.struck().len() >= due, "{due} due, {} fired", bench.struck().len());
}

#[test]
fn between_random_faults_the_disk_is_left_alone() {
    let (bench, faults) = (Bench::default(), random(1000.0));
    let first = RandomFaults::new(1000.0, 3).next().unwrap().seconds;
    let injector = bench.process(&faults);
    injector.at(Point::InForward, &standing(1, 0));
    let calls = bench.calls();
    for _ in 0..1000 {
        bench.clock.set(first - 1.0);
        injector.at(Point::InForward, &standing(1, 0));
    }
    assert_eq!(bench.calls(), calls);
}

#[test]
fn a_spare_is_never_drawn() {
    let (bench, faults) = (Bench::default(), random(0.5));
    let injector = bench.process(&faults);
    bench.clock.set(60.0);
    let spare = Standing { spare: true, ..standing(0, 1) };
    for point in Point::OF_A_STEP {
        injector.at(point, &spare);
    }
    assert!(bench.struck().is_empty());
}

#[test]
fn nothing_planned_means_nothing_asked() {
    let bench = Bench::default();
    for injector in [Injector::none(), bench.process(&Faults::default())] {
        for point in Point::OF_A_STEP {
            assert_eq!(injector.at(point, &standing(0, 0)), None);
        }
    }
    assert_eq!(bench.calls(), 0);
}

/// `make soak` asks, on a machine that does nothing else.
#[test]
#[ignore = "a claim about time"]
fn asking_is_cheap_while_nothing_is_due() {
    const ASKS: u32 = 1_000_000;
    let bench = Bench::default();
    let faults = Faults { mtbf_seconds: Some(1e9), ..planned(FaultKind::Kill, Some(9), None) };
    let clock = Arc::new(crate::observe::clock::RealClock::default());
    let started = clock.unix_seconds();
    let strike = bench.struck.clone();
    let armed = Injector::new(&faults, bench.storage.clone(), clock, started, strike);
    for (name, injector) in [("none", Injector::none()), ("armed", armed)] {
        let begun = std::time::Instant::now();
        for _ in 0..ASKS {
            std::hint::black_box(&injector).at(Point::InForward, &standing(1, 3));
        }
        let each = begun.elapsed() / ASKS;
        say!("{name}: {each:?} for each question");
        // Far above what it takes (tens of ns), far below a system call and a lock for each.
        assert!(each < Duration::from_micros(2), "{name}: {each:?}");
    }
}

#[test]
fn a_planned_fault_that_never_struck_is_named_by_its_number() {
    let bench = Bench::default();
    let mut faults = planned(FaultKind::Nan, Some(5), None);
    faults.plan.extend(planned(FaultKind::Nan, Some(5000), None).plan);
    let process = bench.process(&faults);
    let numbers = |process: &Injector| -> Vec<usize> {
        process.unclaimed().into_iter().map(|(number, _)| number).collect()
    };
    assert_eq!(numbers(&process), [1, 2]);
    assert_eq!(process.at(Point::InForward, &standing(1, 4)), Some(FaultKind::Nan));
    assert_eq!(numbers(&process), [2]);
    assert_eq!(numbers(&bench.process(&faults)), [2], "whoever was struck");
    assert_eq!(numbers(&Injector::none()), [0; 0]);
}
