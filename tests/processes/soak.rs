//! Hours of random kills, for `make soak`: every run must end with the calm run's bits, be audited
//! clean and leave nothing behind, and survivors must not grow. Without `KINTSUGI_SOAK_MINUTES` it
//! says that it was skipped.

use std::path::Path;
use std::time::{Duration, Instant};

use kintsugi::cluster::world::World;
use kintsugi::observe::event::Kind;
use kintsugi::observe::log::read_events;
use kintsugi::observe::result::RunResult;

use crate::support::{
    Running, alone, assert_audited, assert_nothing_runs, has_completed, kintsugi, launch,
    result_of, run, run_dir, start,
};

/// Longest short run.
const LIMIT_SECONDS: u64 = 180;

const LONG: [&str; 2] = ["train.steps=1500", "evaluation.every=500steps"];

/// Mean seconds between two kills of the storm.
const STORM_MTBF: &str = "10";
/// Memory that a survivor may gain per recovery: parked communicators.
const GROWTH_BYTES_MAX: f64 = 0.25e6;
/// Recoveries that a survivor's growth is judged over, at least.
const RECOVERIES_MIN: f64 = 5.0;
/// How often survivors are measured.
const MEASURE_EVERY: Duration = Duration::from_secs(2);

fn minutes() -> Option<f64> {
    let minutes = std::env::var("KINTSUGI_SOAK_MINUTES").ok();
    if minutes.is_none() {
        println!("skipped: soak (set KINTSUGI_SOAK_MINUTES, or use make soak)");
    }
    minutes.map(|minutes| minutes.parse().expect("KINTSUGI_SOAK_MINUTES is a number"))
}

fn calm(name: &str, overrides: &[&str], limit_seconds: u64) -> RunResult {
    let folder = run_dir(name);
    assert_eq!(run(&mut launch(&folder, overrides), limit_seconds).code, Some(0));
    let result = result_of(&folder);
    std::fs::remove_dir_all(folder).unwrap();
    result
}

#[test]
fn hours_of_kills_end_with_the_calm_bits() {
    let _turn = alone();
    let Some(minutes) = minutes() else { return };
    // Short runs first; the storm then takes all of the time.
    planned_kills(minutes / 3.0);
    storm(minutes);
}

/// Short runs under dense random kills.
fn planned_kills(minutes: f64) {
    let end = Instant::now() + Duration::from_secs_f64(60.0 * minutes);
    let calm = calm("soak-calm", &LONG, LIMIT_SECONDS);
    let (mut runs, mut recoveries, mut lost) = (0, 0, 0);
    for seed in 1.. {
        if Instant::now() >= end && runs > 0 {
            break;
        }
        let folder = run_dir(&format!("soak-{seed}"));
        let random = format!("faults.seed={seed}");
        let overrides = [LONG[0], LONG[1], "faults.mtbf_seconds=1.0", &random];
        let ended = run(&mut launch(&folder, &overrides), LIMIT_SECONDS);
        let replay = format!(
            "replay: kintsugi launch -n 4 configs/mlp_synthetic.toml -s {}",
            overrides.join(" -s ")
        );
        assert_eq!(ended.code, Some(0), "{replay}\n{}", ended.stderr);
        let result = has_completed(&ended, &folder);
        assert_eq!(result.state_sha256, calm.state_sha256, "{replay}");
        runs += 1;
        recoveries += result.recoveries.len();
        lost += result.recoveries.iter().map(|record| record.lost.len()).sum::<usize>();
        std::fs::remove_dir_all(&folder).unwrap();
    }
    println!(
        "soak: {runs} runs, {recoveries} recoveries, {lost} ranks lost, all with the calm bits"
    );
}

/// One long run whose ranks 1 to 3 `kintsugi chaos` kills all along: rank 0 lives through every
/// repair, leads each, and so shows what a recovery leaves behind. Its calm twin, which comes
/// first, is one rank that need not wait for others: its bits are the same.
fn storm(minutes: f64) {
    let rate_steps = 1500;
    let keys = [LONG[1], "checkpoint.every=500steps"];
    let short = calm("soak-rate", &[&[LONG[0]], &keys[..]].concat(), LIMIT_SECONDS);
    let steps = (f64::from(rate_steps) * (60.0 * minutes / short.seconds).max(1.0)) as u64;
    let steps = format!("train.steps={steps}");
    let overrides = [&[steps.as_str()], &keys[..]].concat();
    // Twice the estimate and ten minutes: the machine may be shared.
    let limit = (120.0 * minutes) as u64 + 600;
    let calm = calm("soak-storm-calm", &[&["run.ranks=1"][..], &overrides].concat(), limit);
    let folder = run_dir("soak-storm");
    let mut running = start(&mut launch(&folder, &overrides), Duration::from_secs(3 * limit));
    wait_for_world(&folder, &mut running);
    let mut chaos = kintsugi();
    chaos.arg("chaos").arg(&folder).args(["--mtbf", STORM_MTBF, "--ranks", "1,2,3"]);
    let storm = start(&mut chaos, Duration::from_secs(3 * limit));
    let measured = measure(&folder, &mut running);
    let ended = running.wait();
    let struck = storm.wait().stdout;
    assert_eq!(ended.code, Some(0), "{struck}\n{}", ended.stderr);
    let result = result_of(&folder);
    assert_eq!(result.state_sha256, calm.state_sha256, "other bits than the calm run:\n{struck}");
    assert_eq!(result.lost_steps, 0);
    assert_audited(&folder);
    assert_nothing_runs(&folder);
    println!("storm: {} recoveries in {:.0} s", result.recoveries.len(), result.seconds);
    assert_no_growth(&measured);
    std::fs::remove_dir_all(&folder).unwrap();
}

fn wait_for_world(folder: &Path, running: &mut Running) {
    let limit = Instant::now() + Duration::from_secs(60);
    while rank_0(folder).is_none() {
        assert!(!running.has_ended() && Instant::now() < limit, "no world within a minute");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn rank_0(folder: &Path) -> Option<u32> {
    let world: World =
        serde_json::from_slice(&std::fs::read(folder.join("world.json")).ok()?).ok()?;
    world.member_at(0).map(|member| member.pid)
}

/// A look at the survivor.
#[derive(Debug, Clone, Copy)]
struct Measurement {
    recoveries: usize,
    resident_bytes: f64,
    open_files: usize,
}

fn measure(folder: &Path, running: &mut Running) -> Vec<Measurement> {
    let pid = rank_0(folder).expect("the world is there");
    let mut all = Vec::new();
    while !running.has_ended() {
        if let (Some(resident_bytes), Some(open_files)) = (resident_bytes(pid), open_files(pid)) {
            let events = read_events(&folder.join("events.jsonl")).unwrap_or_default();
            let recovered = |kind: &Kind| matches!(kind, Kind::Recovered(_));
            let recoveries = events.iter().filter(|event| recovered(&event.kind)).count();
            all.push(Measurement { recoveries, resident_bytes, open_files });
        }
        std::thread::sleep(MEASURE_EVERY);
    }
    all
}

fn resident_bytes(pid: u32) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<f64>().ok().map(|kilobytes| kilobytes * 1024.0)
}

fn open_files(pid: u32) -> Option<usize> {
    std::fs::read_dir(format!("/proc/{pid}/fd")).ok().map(Iterator::count)
}

/// From the first recovery on, when all that is loaded lazily is loaded: medians of the first and
/// of the last quarter, since a moment within a repair has more of everything.
fn assert_no_growth(measured: &[Measurement]) {
    let struck: Vec<_> = measured.iter().filter(|at| at.recoveries >= 1).copied().collect();
    let quarter = struck.len().div_ceil(4);
    let (early, late) = (&struck[..quarter], &struck[struck.len() - quarter..]);
    let recoveries =
        median(late, |at| at.recoveries as f64) - median(early, |at| at.recoveries as f64);
    assert!(recoveries >= RECOVERIES_MIN, "{recoveries} recoveries are too few: give more MINUTES");
    let bytes = median(late, |at| at.resident_bytes) - median(early, |at| at.resident_bytes);
    let files = median(late, |at| at.open_files as f64) - median(early, |at| at.open_files as f64);
    println!(
        "growth: {:.3} MB, {files} open files, {recoveries} recoveries of rank 0",
        bytes / 1e6
    );
    assert!(bytes / recoveries <= GROWTH_BYTES_MAX, "{bytes} bytes in {recoveries} recoveries");
    assert!(files <= 0.0, "{files} open files more");
}

fn median(measured: &[Measurement], of: impl Fn(&Measurement) -> f64) -> f64 {
    let mut values: Vec<f64> = measured.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().expect("there were recoveries")
}
