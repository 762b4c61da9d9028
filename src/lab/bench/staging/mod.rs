//! Training beside copying (Higuchi, Miwa, Yamaki and Honda): one epoch over a share that takes as
//! long to copy as to train on, in five modes that take turns.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::observe::console::say;
use crate::observe::pipeline::{Course, least_seconds};

use super::runs::Runs;
use super::{Bound, Case, Report, median};

mod share;

use share::{NONE, Share, local_folder, staged};

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The configuration to run
    #[arg(long, default_value = "configs/bench/staging.toml")]
    pub config: PathBuf,
    /// Ranks
    #[arg(short, long, default_value_t = 2, value_parser = crate::lab::crowd::ranks)]
    pub ranks: u32,
    /// Runs of each mode
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
}

/// A way to bring the files.
struct Mode {
    name: &'static str,
    /// `staging.mode`
    staging: &'static str,
    /// Further keys.
    keys: &'static [&'static str],
}

/// Read, decode and train in turn, as the paper's programs do.
const IN_TURN: &[&str] = &["data.prefetch=0"];
const BEFORE: &str = "before";
const DURING: &str = "during";
const MODES: [Mode; 5] = [
    Mode { name: "none_prefetch0", staging: NONE, keys: IN_TURN },
    Mode { name: NONE, staging: NONE, keys: &[] },
    Mode { name: BEFORE, staging: BEFORE, keys: &[] },
    Mode { name: "during_prefetch0", staging: DURING, keys: IN_TURN },
    Mode { name: DURING, staging: DURING, keys: &[] },
];
/// Runs that measure how long training takes over files that are at hand; the first one makes
/// everything warm.
const TRAINING_RUNS: u32 = 2;

/// What the runs of one mode took.
#[derive(Default)]
struct Measured {
    seconds: Vec<f64>,
    /// Over the least that their own copies and steps allow.
    over_least: Vec<f64>,
    /// Until the last file was there.
    copying: Vec<f64>,
}

/// Runs all modes in turn.
///
/// # Errors
/// What kept it from running, for a person.
pub fn run(options: &Options, runs: &Runs) -> Result<Report, String> {
    let keys = [format!("run.ranks={}", options.ranks)];
    let share = Share::draw(&options.config, &keys, runs.directory("set"))?;
    let bench = Bench { options, runs, share };
    let training = bench.training_seconds()?;
    let rate = (bench.share.bytes as f64 / training) as u64;
    say!("{} bytes, {training:.2} s of training: {rate} B/s", bench.share.bytes);
    let alone = case("training_alone", &[training], &BTreeMap::new());
    let mut report = Report::of("staging", vec![alone], BTreeMap::new());
    bench.modes(&mut report, training, rate)?;
    Ok(report)
}

struct Bench<'a> {
    options: &'a Options,
    runs: &'a Runs,
    share: Share,
}

impl Bench<'_> {
    fn modes(&self, report: &mut Report, training: f64, rate: u64) -> Result<(), String> {
        let throttle = format!("data.throttle={{rate=\"{rate}B/s\"}}");
        let mut measured: [Measured; MODES.len()] = Default::default();
        for turn in 0..self.options.repeats {
            for at in 0..MODES.len() {
                // Nobody is always the first.
                let at = (at + turn as usize) % MODES.len();
                self.one_run(&MODES[at], turn, &throttle, &mut measured[at])?;
            }
        }
        add(report, training, &measured);
        Ok(())
    }

    /// One epoch over files that are at hand.
    fn training_seconds(&self) -> Result<f64, String> {
        let mut seconds = f64::NAN;
        for turn in 0..TRAINING_RUNS {
            seconds = self.course(&format!("training-{turn}"), &[])?.seconds;
        }
        Ok(seconds)
    }

    /// One epoch with these keys.
    fn course(&self, name: &str, keys: &[String]) -> Result<Course, String> {
        let steps = format!("train.steps={}", self.share.order.steps_per_epoch());
        let fixed = [steps.as_str(), "observe.tensorboard=false", self.share.key.as_str()];
        let keys = [&fixed.map(String::from), keys].concat();
        let run_dir = self.runs.directory(name);
        let events =
            self.runs.launched(&self.options.config, self.options.ranks, &run_dir, &keys)?;
        Course::of(&events).ok_or_else(|| format!("{name}: the run had no steps"))
    }

    fn one_run(
        &self,
        mode: &Mode,
        turn: u32,
        throttle: &str,
        measured: &mut Measured,
    ) -> Result<(), String> {
        let local = local_folder(self.runs, &format!("local-{}-{turn}", mode.name))?;
        let mut keys = vec![throttle.to_owned()];
        keys.extend(staged(mode.staging, &local));
        keys.extend(mode.keys.iter().map(|key| (*key).to_owned()));
        let course = self.course(&format!("{}-{turn}", mode.name), &keys)?;
        let began = course.began;
        measured.seconds.push(course.seconds);
        say!(
            "turn {} of {}, {}: {:.2} s",
            turn + 1,
            self.options.repeats,
            mode.name,
            course.seconds
        );
        if mode.staging == DURING {
            let course = self.share.with_copies(course, &local)?;
            measured.over_least.push(course.seconds / least_seconds(&course.stages));
        }
        if mode.staging != NONE {
            let last = self.share.copied_at(&local)?.last().copied().unwrap_or_default();
            measured.copying.push(last - began);
        }
        // The copies stay until the end: ext4 is slow to make files where some were removed
        // minutes ago.
        Ok(())
    }
}

/// What the modes took, beside each other and beside what they are promised to take.
fn add(report: &mut Report, training: f64, measured: &[Measured]) {
    let of = |name: &str| {
        let at = MODES.iter().position(|mode| mode.name == name).expect("one of the modes");
        &measured[at]
    };
    let ratio = |a: &str, b: &str| median(&of(a).seconds) / median(&of(b).seconds);
    for (mode, measured) in MODES.iter().zip(measured) {
        let parts = BTreeMap::from([("copying".to_string(), measured.copying.clone())]);
        let parts = if measured.copying.is_empty() { BTreeMap::new() } else { parts };
        report.cases.push(case(mode.name, &measured.seconds, &parts));
        let over_training = median(&measured.seconds) / training;
        report.ratios.insert(format!("{}/training_alone", mode.name), over_training);
    }
    report.ratios.insert("during/none_prefetch0".into(), ratio(DURING, "none_prefetch0"));
    let over_least = |name: &str| median(&of(name).over_least);
    report.bounds.extend([
        Bound::at_most("during/recurrence", over_least(DURING), 1.05),
        Bound::at_most("during_prefetch0/recurrence", over_least("during_prefetch0"), 1.05),
        Bound::at_most("during/before", ratio(DURING, BEFORE), 0.55),
        Bound::at_most("during/none", ratio(DURING, NONE), 1.03),
    ]);
}

/// A case of samples in seconds.
fn case(name: &str, seconds: &[f64], parts: &BTreeMap<String, Vec<f64>>) -> Case {
    Case { unit: "s".into(), ..Case::of(name, seconds, parts) }
}
