//! From SIGKILL to the next committed step, by mode of staging, where the newcomer finds no copies
//! as on a node that is new to the run: at the kill those of the dead rank's owners are removed
//! and struck from the manifest. The others' stay, as on their nodes.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use kintsugi_ffi::os::{self, Signal};

use crate::cluster::world::World;
use crate::config::Shown;
use crate::data::staging::key::Key;
use crate::observe::console::say;
use crate::observe::event::{Event, Kind};
use crate::observe::log::{EVENTS_FILE, EventTail, read_events};

use super::super::runs::{Runs, launch};
use super::super::{Bound, Case, Report, median};
use super::share::{Share, copies_below, local_folder, staged};

/// What is measured over.
pub struct FirstStep<'a> {
    /// The configuration.
    pub config: &'a Path,
    /// Ranks; the last one is killed.
    pub ranks: u32,
    /// Where it runs.
    pub runs: &'a Runs,
    /// What it trains on.
    pub share: &'a Share,
    /// Bytes a second of the emulated storage.
    pub rate: u64,
}

/// A mode of staging, behind the emulated storage or not.
struct Arm {
    name: &'static str,
    staging: &'static str,
    throttled: bool,
}

const PLAIN: &str = "plain";
const DURING: &str = "during";
const ARMS: [Arm; 4] = [
    Arm { name: PLAIN, staging: "none", throttled: false },
    Arm { name: "none", staging: "none", throttled: true },
    Arm { name: "before", staging: "before", throttled: true },
    Arm { name: DURING, staging: "during", throttled: true },
];
/// Steps of the second epoch before the kill, and after it.
const STEPS_BEFORE: u64 = 6;
const STEPS_AFTER: u64 = 6;
/// How often it is looked whether the rank was struck: far less than a newcomer's start takes.
const LOOK: Duration = Duration::from_millis(2);
/// Longest that one run may take.
const RUN_MAX: Duration = Duration::from_secs(300);

/// What one kill showed.
struct Struck {
    /// From the kill to the end of the next committed step.
    ms: f64,
    /// Bytes of the newcomer's first micro-batches.
    fetched_bytes: u64,
}

impl FirstStep<'_> {
    /// So many kills in each mode, taking turns; adds what came of it.
    ///
    /// # Errors
    /// What kept it from running, for a person.
    pub fn add_to(&self, report: &mut Report, repeats: u32) -> Result<(), String> {
        let mut measured: [Vec<f64>; ARMS.len()] = Default::default();
        let mut fetched_bytes = 0;
        for turn in 0..repeats {
            for (arm, measured) in ARMS.iter().zip(&mut measured) {
                let struck = self.one_run(arm, turn)?;
                fetched_bytes = struck.fetched_bytes;
                say!("kill {} of {repeats}, {}: {:.0} ms", turn + 1, arm.name, struck.ms);
                measured.push(struck.ms);
            }
        }
        let of = |name: &str| {
            let at = ARMS.iter().position(|arm| arm.name == name).expect("one of the arms");
            median(&measured[at])
        };
        for (arm, measured) in ARMS.iter().zip(&measured) {
            let name = format!("kill to first step, {}", arm.name);
            report.cases.push(Case::of(&name, measured, &BTreeMap::new()));
            let ratio = of(arm.name) / of(PLAIN);
            report.ratios.insert(format!("first step: {}/{PLAIN}", arm.name), ratio);
        }
        let fetch_ms = fetched_bytes as f64 / self.rate as f64 * 1e3;
        let later = of(DURING) - of(PLAIN);
        report.bounds.push(Bound::at_most("first step: ms later than plain", later, fetch_ms));
        Ok(())
    }

    fn one_run(&self, arm: &Arm, turn: u32) -> Result<Struck, String> {
        let name = format!("first-step-{}-{turn}", arm.name);
        let run_dir = self.runs.directory(&name);
        let local = local_folder(self.runs, &format!("{name}-local"))?;
        let events = self.watched(arm, &run_dir, &local)?;
        let seconds = until_next_step(&events).ok_or_else(|| {
            format!("{}: the run did not go on after the kill; run doctor", run_dir.shown())
        })?;
        let owners = owners_of_last(&run_dir, self.ranks)?;
        if arm.staging != "none" && !copied_again(&local, &self.files_of(&owners))? {
            return Err(format!("{name}: the newcomer found copies: it was faster than the bench"));
        }
        let first = self.share.files_of(self.kill_step(), &owners);
        let sizes = first.iter().filter_map(|file| Some(std::fs::metadata(file).ok()?.len()));
        Ok(Struck { ms: seconds * 1e3, fetched_bytes: sizes.sum() })
    }

    /// In the second epoch, when everything that is copied is there.
    fn kill_step(&self) -> u64 {
        self.share.order.steps_per_epoch() + STEPS_BEFORE
    }

    /// All files of these owners.
    fn files_of(&self, owners: &[u32]) -> HashSet<PathBuf> {
        let steps = 0..self.share.order.steps_per_epoch();
        steps.flat_map(|step| self.share.files_of(step, owners)).collect()
    }

    /// The events of a run of which the last rank is killed and its copies removed.
    fn watched(&self, arm: &Arm, run_dir: &Path, local: &Path) -> Result<Vec<Event>, String> {
        let (rank, step) = (self.ranks - 1, self.kill_step());
        let mut command = launch(self.config, self.ranks, run_dir)?;
        let mut keys = vec![
            self.share.key.clone(),
            format!(
                "faults.plan=[{{kind=\"kill\",rank={rank},step={step},phase=\"in_backward\"}}]"
            ),
            format!("train.steps={}", step + STEPS_AFTER),
            "recovery.ladder=[\"respawn\"]".into(),
            "observe.tensorboard=false".into(),
        ];
        keys.extend(staged(arm.staging, local, &["staging.keep=true"]));
        if arm.throttled {
            keys.push(format!("data.throttle={{rate=\"{}B/s\"}}", self.rate));
        }
        command.args(keys.iter().flat_map(|key| ["-s", key])).stderr(Stdio::null());
        let mut child = self.runs.start(&mut command)?;
        let mut tail = EventTail::new(run_dir.join(EVENTS_FILE));
        let (begun, mut emptied) = (Instant::now(), Ok(()));
        let mut is_due = arm.staging != "none";
        while matches!(child.try_wait(), Ok(None)) {
            if is_due && tail.poll().iter().any(is_blow) {
                is_due = false;
                emptied = self.empty(run_dir, local);
            }
            if self.runs.asked_to_end() || begun.elapsed() > RUN_MAX {
                let _ = os::kill(child.id(), Signal::Terminate);
                break;
            }
            std::thread::sleep(LOOK);
        }
        child.wait().map_err(|error| format!("waiting for {}: {error}", run_dir.shown()))?;
        emptied?;
        let read = read_events(&run_dir.join(EVENTS_FILE));
        read.map_err(|error| format!("{}: {error}", run_dir.shown()))
    }

    /// The dead rank's owners have no copies any more.
    fn empty(&self, run_dir: &Path, local: &Path) -> Result<(), String> {
        let files = self.files_of(&owners_of_last(run_dir, self.ranks)?);
        let root = copies_below(local)?;
        let manifest = root.join(MANIFEST);
        let failed = |error: std::io::Error| format!("{}: {error}", manifest.shown());
        let text = std::fs::read_to_string(&manifest).map_err(failed)?;
        let stays = |line: &&str| file_of(line).is_none_or(|(file, _)| !files.contains(&file));
        let left: String = text.lines().filter(stays).map(|line| format!("{line}\n")).collect();
        let beside = manifest.with_extension("new");
        std::fs::write(&beside, left).map_err(failed)?;
        std::fs::rename(&beside, &manifest).map_err(failed)?;
        for file in files {
            std::fs::remove_file(Key::of(&file).path(&root)).map_err(failed)?;
        }
        Ok(())
    }
}

/// Of a staging folder.
const MANIFEST: &str = "MANIFEST";

/// The file that a line of a manifest tells of, and the generation that copied it.
fn file_of(line: &str) -> Option<(PathBuf, u64)> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    Some((line["file"].as_str()?.into(), line["generation"].as_u64()?))
}

/// Whether a newcomer copied one of these files.
fn copied_again(local: &Path, files: &HashSet<PathBuf>) -> Result<bool, String> {
    let manifest = copies_below(local)?.join(MANIFEST);
    let text = std::fs::read_to_string(&manifest);
    let text = text.map_err(|error| format!("{}: {error}", manifest.shown()))?;
    let anew = |(file, generation): (PathBuf, u64)| generation > 0 && files.contains(&file);
    Ok(text.lines().filter_map(file_of).any(anew))
}

fn owners_of_last(run_dir: &Path, ranks: u32) -> Result<Vec<u32>, String> {
    Ok(World::read(run_dir)?.owners_of(ranks as usize - 1))
}

fn is_blow(event: &Event) -> bool {
    matches!(event.kind, Kind::FaultInjected { .. })
}

/// Seconds from the blow to the end of the first step that was committed after it.
fn until_next_step(events: &[Event]) -> Option<f64> {
    let at = events.iter().position(is_blow)?;
    let (blow, after) = (&events[at], &events[at..]);
    let is_next = |event: &&Event| {
        matches!(event.kind, Kind::Step { .. }) && event.generation > 0 && event.step > blow.step
    };
    Some(after.iter().find(is_next)?.time - blow.time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::event::VERSION;

    #[test]
    fn the_step_that_the_kill_interrupted_is_the_first_one_after_it() {
        let event = |time, generation, step, kind| Event {
            v: VERSION,
            time,
            seconds: time,
            attempt: 1,
            generation,
            step,
            rank: 0,
            kind,
        };
        let step = Kind::Step {
            epoch: 0,
            loss: 1.0,
            error: 0.5,
            samples: 8,
            learning_rate: 0.1,
            seconds: 0.1,
        };
        let (kind, phase) = ("kill".to_string(), "in_backward".to_string());
        let blow = Kind::FaultInjected { kind, phase, target: 1, pid: 9 };
        let mut events = vec![event(1.0, 0, 5, step.clone()), event(2.0, 0, 5, blow)];
        assert_eq!(until_next_step(&events), None);
        events.push(event(2.25, 1, 6, step));
        assert_eq!(until_next_step(&events), Some(0.25));
    }

    #[test]
    fn a_line_of_a_manifest_names_its_file() {
        let line = r#"{"file":"/a/b.jpg","key":"00","bytes":1,"xxh3":"0","generation":2}"#;
        assert_eq!(file_of(line), Some(("/a/b.jpg".into(), 2)));
        assert_eq!(file_of("torn"), None);
    }
}
