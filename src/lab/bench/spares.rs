//! What a waiting spare costs: the processor time that it takes beside steps that sum 95 MB, and
//! beside steps that sum 1 MB, as the kernel accounts it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use kintsugi_ffi::os::Signal;

use crate::cluster::world::World;
use crate::config::Shown;
use crate::observe::console::say;
use crate::observe::log::read_events;

use super::runs::{Runs, launch};
use super::{Case, Report};

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The configuration with large steps
    #[arg(long, default_value = "configs/bench/95mb.toml")]
    pub large: PathBuf,
    /// The configuration with small steps
    #[arg(long, default_value = "configs/mlp_synthetic.toml")]
    pub small: PathBuf,
    /// Ranks
    #[arg(short, long, default_value_t = 4, value_parser = crate::lab::crowd::ranks)]
    pub ranks: u32,
    /// Seconds of each run
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..))]
    pub seconds: u32,
    /// Runs of each kind
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub turns: u32,
}

/// Beside the measured seconds: until a run has begun, and until it has ended.
const MARGIN: Duration = Duration::from_secs(120);
/// The spare has joined and connected by then.
const WARM_UP_STEPS: u64 = 5;
const LOOK: Duration = Duration::from_millis(100);
/// More than any run reaches in its time.
const STEPS: &str = "train.steps=100000000";
/// 230,000 parameters on pictures of 16 pixels.
const ONE_MEGABYTE: &str = "model.width=0.5";
/// Percent of one core that a spare may take.
const TARGETS: [f64; 2] = [3.0, 1.0];

/// Runs both kinds in turn.
///
/// # Errors
/// What kept it from running, for a person.
pub fn run(options: &Options, runs: &Runs) -> Result<Report, String> {
    let mut shares = [const { Vec::new() }; 2];
    for turn in 0..options.turns {
        let arms = [("95MB", &options.large, None), ("1MB", &options.small, Some(ONE_MEGABYTE))];
        for ((name, config, key), shares) in arms.into_iter().zip(&mut shares) {
            let run_dir = runs.directory(&format!("{name}-{turn}"));
            let share = one_run(runs, options, config, key, &run_dir)?;
            say!("turn {} of {}: beside {name}: {share:.2} %", turn + 1, options.turns);
            shares.push(share);
        }
    }
    let none = BTreeMap::new();
    let mut cases = Vec::new();
    let mut ratios = BTreeMap::new();
    for ((name, shares), target) in ["95MB", "1MB"].iter().zip(&shares).zip(TARGETS) {
        let mut case = Case::of(&format!("spare_beside_{name}_steps"), shares, &none);
        case.unit = "% of a core".into();
        ratios.insert(format!("{name}: share/target of {target} %"), case.median / target);
        cases.push(case);
    }
    Ok(Report::of("spares", cases, ratios))
}

/// Percent of a core that the spare of one run took.
fn one_run(
    runs: &Runs,
    options: &Options,
    config: &Path,
    key: Option<&str>,
    run_dir: &Path,
) -> Result<f64, String> {
    let mut command = launch(config, options.ranks, run_dir)?;
    command.args(["--spares", "1"]);
    let seconds = format!("train.max_seconds={}", options.seconds);
    let calm = ["evaluation.every=never", "checkpoint.every=never"];
    let keys = [STEPS, seconds.as_str()].into_iter().chain(calm).chain(key);
    command.args(keys.flat_map(|key| ["-s", key]));
    let mut launch = runs.start(command.stderr(Stdio::null()))?;
    let limit = Duration::from_secs(options.seconds.into()) + MARGIN;
    let share = watch(runs, run_dir, &mut launch, limit);
    // It has ended, or has to: it takes its ranks with it.
    let _ = kintsugi_ffi::os::kill(launch.id(), Signal::Terminate);
    launch.wait().map_err(|error| format!("waiting for launch: {error}"))?;
    share.ok_or_else(|| format!("{}: no spare was seen to wait", run_dir.shown()))
}

/// From the first steps to the last sight of the spare.
fn watch(runs: &Runs, run_dir: &Path, launch: &mut Child, limit: Duration) -> Option<f64> {
    let begun = Instant::now();
    let mut first: Option<(u32, Instant, u64)> = None;
    let mut last = None;
    let goes_on = || begun.elapsed() < limit && !runs.asked_to_end();
    while goes_on() && matches!(launch.try_wait(), Ok(None)) {
        match first {
            None => first = spare_after_warm_up(run_dir),
            Some((pid, ..)) => {
                last = processor_ns(pid).map(|ns| (Instant::now(), ns)).or(last);
            }
        }
        std::thread::sleep(LOOK);
    }
    let ((_, since, before), (until, after)) = (first?, last?);
    Some(after.saturating_sub(before) as f64 / (until - since).as_nanos().max(1) as f64 * 100.0)
}

fn spare_after_warm_up(run_dir: &Path) -> Option<(u32, Instant, u64)> {
    let events = read_events(&run_dir.join("events.jsonl")).ok()?;
    events.iter().find(|event| event.step >= WARM_UP_STEPS)?;
    let world = World::read(run_dir).ok()?;
    let pid = world.spares().next()?.pid;
    Some((pid, Instant::now(), processor_ns(pid)?))
}

/// Nanoseconds that all threads of a process have run; `None` once it has ended.
fn processor_ns(pid: u32) -> Option<u64> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let ran = |thread: std::fs::DirEntry| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    let all: Vec<u64> = threads.filter_map(ran).collect();
    (!all.is_empty()).then(|| all.iter().sum())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_that_computes_is_accounted() {
        // Not this one: threads of other tests end in it, and take their time with them.
        let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let before = processor_ns(busy.id()).unwrap();
        let begun = Instant::now();
        let mut after = before;
        while after <= before && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(LOOK);
            after = processor_ns(busy.id()).unwrap();
        }
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(after > before, "{after} ns after {before}");
        assert_eq!(processor_ns(busy.id()), None);
    }
}
