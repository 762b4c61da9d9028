//! The experiment file: its keys, and what is refused of them. `configs/experiment/README.md` has
//! the keys in a table, which a test below holds to the schema.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Table;

use crate::config::{Bytes, Shown, parse};
use crate::lab::keys::keys;
use crate::lab::report::Paper;

/// What `seeds` is, as a key of a sweep.
pub(super) const SEED: &str = "run.seed";
/// Runs of an experiment, and its arms and its seeds: a grid may grow fast.
pub(super) const RUNS_MAX: usize = 10_000;
/// A year.
const SECONDS_MAX: f64 = 3.2e7;
/// Bytes of a folder's name, with the seed and what is appended to it.
const FOLDER_BYTES_MAX: usize = 200;

/// The file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// The report's heading.
    pub title: String,
    /// Why these arms are compared, in a sentence or two.
    #[serde(default)]
    pub description: String,
    /// The configuration that all arms start from; relative to the experiment file.
    pub config: PathBuf,
    /// MPI ranks; unset: as the configuration says.
    pub ranks: Option<u32>,
    /// T: the wall time that every run has; unset: the configuration ends them.
    pub seconds: Option<f64>,
    /// Runs at a time, each on as many processors of this machine; unset: one, on all.
    pub jobs: Option<u32>,
    /// One run of every arm for each; unset: the configuration's.
    pub seeds: Option<Vec<u64>>,
    /// When things happen, in parts of T.
    pub schedule: Option<Schedule>,
    /// Configuration keys of all arms.
    #[serde(default)]
    pub set: Table,
    /// Configuration keys with lists of values: every arm with every combination of them.
    #[serde(default)]
    pub sweep: Table,
    /// What a paper says of arms, by their names.
    #[serde(default)]
    pub paper: BTreeMap<String, Paper>,
    /// What is compared.
    #[serde(default, rename = "arm")]
    pub arms: Vec<Arm>,
}

/// When things happen, in parts of T.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// Checkpoints in T.
    pub checkpoints: Option<f64>,
    /// Evaluations in T.
    pub evaluations: Option<f64>,
    /// What breaks in the arms that do not say otherwise.
    #[serde(default)]
    pub failures: Vec<Failure>,
}

/// A planned failure.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// When, as a part of T (0..1).
    pub at: f64,
    /// Whom it strikes.
    #[serde(default)]
    pub rank: u32,
    /// How (`faults.plan.kind`).
    #[serde(default = "kill")]
    pub kind: String,
}

fn kill() -> String {
    "kill".to_string()
}

/// One way to do it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arm {
    /// Its name in the report: `detect/respawn`.
    pub name: String,
    /// MPI ranks of this arm; unset: the experiment's.
    pub ranks: Option<u32>,
    /// What breaks here; unset = as the schedule says.
    pub failures: Option<Vec<Failure>>,
    /// Room that the kernel's page cache has, beside what the run's processes hold; unset = as it
    /// comes. Needs a memory control group.
    pub page_cache: Option<Bytes>,
    /// Configuration keys of this arm.
    #[serde(default)]
    pub set: Table,
}

/// What the command line changes.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
pub struct Changes {
    /// Changes a configuration key in every run.
    #[arg(short = 's', long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Runs every arm with seeds 1..=N.
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=RUNS_MAX as u64))]
    pub seeds: Option<u64>,
    /// Wall time of every run; failures, checkpoints and evaluations scale with it.
    #[arg(long, value_name = "T")]
    pub seconds: Option<f64>,
    /// Makes N runs at a time, each on an equal share of this machine's processors.
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub jobs: Option<u32>,
}

impl Changes {
    /// What was typed as keys and values. `launch` says what is wrong with one that is no pair.
    pub fn pairs(&self) -> impl Iterator<Item = (String, String)> {
        let pairs = self.set.iter().map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        pairs.map(|(key, value)| (key.trim().to_owned(), value.to_owned()))
    }
}

impl Experiment {
    /// Reads a file. Returns its text too, for the report.
    ///
    /// # Errors
    /// What is wrong with it, for a person.
    pub fn load(path: &Path) -> Result<(Self, String), String> {
        let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", path.shown());
        let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
        let mut experiment: Self = toml::from_str(&text).map_err(|error| wrong(&error))?;
        let beside = path.parent().unwrap_or(Path::new(""));
        experiment.config = beside.join(&experiment.config);
        let own = parse::read(&experiment.config, &[]).map_err(|error| wrong(&error))?;
        experiment.ranks.get_or_insert(own.run.ranks);
        if !keys(&experiment.sweep).contains_key(SEED) {
            experiment.seeds.get_or_insert(vec![own.run.seed]);
        }
        Ok((experiment, text))
    }

    /// Keys that an experiment has in another place, and those that a sweep has.
    pub(super) fn check_places(&self, changes: &Changes) -> Result<(), String> {
        let elsewhere = [
            (SEED, "seeds = [...] in the file, or --seeds"),
            ("run.ranks", "ranks = ... in the file, of all arms or of one"),
        ];
        let tables = std::iter::once(&self.set).chain(self.arms.iter().map(|arm| &arm.set));
        let written = tables.flat_map(keys).map(|(key, _)| key);
        for key in written.chain(changes.pairs().map(|(key, _)| key)) {
            if let Some((key, instead)) = elsewhere.iter().find(|(known, _)| *known == key) {
                return Err(format!("{key} is set in the experiment: write {instead}"));
            }
        }
        let swept = keys(&self.sweep);
        match changes.pairs().find(|(key, _)| swept.contains_key(key)) {
            Some((key, _)) => {
                Err(format!("-s {key}: the file's sweep has this key; change it there"))
            }
            None => Ok(()),
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let refuse = |key: &str, value: String, wanted: &str| {
            Err(format!("{key} = {value} in the experiment: {wanted}"))
        };
        if let Some(seconds) = self.seconds
            && !(seconds > 0.0 && seconds <= SECONDS_MAX)
        {
            let wanted = "give every run some seconds, a year at most";
            return refuse("seconds", seconds.to_string(), wanted);
        }
        if self.ranks == Some(0) || self.arms.iter().any(|arm| arm.ranks == Some(0)) {
            return refuse("ranks", "0".into(), "start at least one rank");
        }
        if self.jobs == Some(0) {
            return refuse("jobs", "0".into(), "make one run at a time, or more");
        }
        if let Some(arm) = self.arms.iter().find(|arm| arm.page_cache.is_some())
            && self.jobs() > 1
        {
            let wanted = format!(
                "{} has room of its own for the page cache, and is measured alone: jobs = 1",
                arm.name
            );
            return refuse("jobs", self.jobs().to_string(), &wanted);
        }
        let seeds = self.seeds();
        if seeds.is_empty() {
            return refuse("seeds", "[]".into(), "name at least one seed, such as [1]");
        }
        let (arms, all) = (self.arms.len(), self.arms.len().saturating_mul(seeds.len()));
        if all > RUNS_MAX {
            return Err(format!(
                "{arms} arms x {} seeds are {all} runs, and {RUNS_MAX} are the most of an \
                 experiment: write fewer seeds, or sweep fewer values",
                seeds.len()
            ));
        }
        if let Some(at) = (1..seeds.len()).find(|&at| seeds[..at].contains(&seeds[at])) {
            return refuse("seeds", format!("{seeds:?}"), &format!("{} is there twice", seeds[at]));
        }
        self.check_schedule()?;
        let folders: Vec<String> = self.arms.iter().map(|arm| slug(&arm.name)).collect();
        for (index, folder) in folders.iter().enumerate() {
            let name = self.arms[index].name.clone();
            if folder.is_empty() || folders[..index].contains(folder) {
                return refuse("arm.name", name, "a name unlike the other arms' names");
            }
            if folder.len() > FOLDER_BYTES_MAX {
                return refuse("arm.name", name, "a shorter name: it is its folder's");
            }
        }
        match self.paper.keys().find(|name| self.arms.iter().all(|arm| arm.name != **name)) {
            Some(name) => refuse("paper", name.clone(), "the name of an arm, as --check tells it"),
            None => Ok(()),
        }
    }

    fn check_schedule(&self) -> Result<(), String> {
        let refuse = |key: &str, value: String, wanted: &str| {
            Err(format!("{key} = {value} in the experiment: {wanted}"))
        };
        let of_arms = || self.arms.iter().filter(|arm| arm.failures.is_some());
        if self.seconds.is_none() && (self.schedule.is_some() || of_arms().next().is_some()) {
            return Err("schedule and failures are in parts of the time: write `seconds` too, or \
                        set checkpoint.every, evaluation.every and faults.plan"
                .into());
        }
        let schedule = self.schedule.as_ref();
        let parts = schedule.map(|schedule| {
            [("checkpoints", schedule.checkpoints), ("evaluations", schedule.evaluations)]
        });
        for (key, parts) in parts.into_iter().flatten() {
            if let Some(parts) = parts
                && !(parts.is_finite() && parts >= 1.0)
            {
                return refuse(key, parts.to_string(), "how many in the whole time: 1 or more");
            }
        }
        for arm in &self.arms {
            for failure in self.failures(arm).unwrap_or_default() {
                if !(0.0..1.0).contains(&failure.at) {
                    let wanted = "a part of the time, 0 to 1";
                    return refuse("failures.at", failure.at.to_string(), wanted);
                }
                if failure.rank >= self.ranks(arm) {
                    let wanted = format!("a rank below the {} of {}", self.ranks(arm), arm.name);
                    return refuse("failures.rank", failure.rank.to_string(), &wanted);
                }
            }
        }
        Ok(())
    }

    /// One run of every arm for each.
    pub fn seeds(&self) -> &[u64] {
        self.seeds.as_deref().unwrap_or_default()
    }

    /// Runs at a time.
    pub fn jobs(&self) -> u32 {
        self.jobs.unwrap_or(1)
    }

    /// MPI ranks of an arm.
    pub fn ranks(&self, arm: &Arm) -> u32 {
        arm.ranks.or(self.ranks).unwrap_or(1)
    }

    /// What breaks in an arm; `None`: what the configuration plans.
    pub fn failures<'a>(&'a self, arm: &'a Arm) -> Option<&'a [Failure]> {
        let own = arm.failures.as_ref();
        let all = self.schedule.as_ref().map(|schedule| &schedule.failures);
        own.or(all).map(Vec::as_slice)
    }
}

/// A name as part of a path: `detect/respawn` becomes `detect-respawn`.
pub fn slug(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let joined: String = name.chars().map(plain).collect();
    joined.split('-').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::keys::fields_of;
    use crate::lab::memory::file::{
        Case, FarTier, LargestBatch, ManagedMemory, PinnedOrCached, Speed, StepTime,
    };

    const TABLE: &str =
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/configs/experiment/README.md"));

    /// Those that begin its rows.
    fn documented(heading: &str) -> BTreeSet<String> {
        let section = TABLE.split("\n## ").find(|section| section.starts_with(heading));
        let rows = section.expect(heading).lines().filter_map(|line| line.strip_prefix("| `"));
        rows.flat_map(|row| row.split(" | ").next().unwrap_or_default().split('`').step_by(2))
            .map(str::to_owned)
            .collect()
    }

    fn named(prefix: &str, fields: &[&str]) -> Vec<String> {
        fields.iter().map(|field| format!("{prefix}{field}")).collect()
    }

    #[test]
    fn the_table_of_keys_is_the_schema() {
        let schema: BTreeSet<String> = [
            named("", fields_of::<Experiment>()),
            named("schedule.", fields_of::<Schedule>()),
            named("failures.", fields_of::<Failure>()),
            named("arm.", fields_of::<Arm>()),
        ]
        .concat()
        .into_iter()
        .filter(|key| !["schedule", "arm"].contains(&key.as_str()))
        .collect();
        assert_eq!(documented("Runs"), schema);
    }

    #[test]
    fn the_table_of_measures_is_theirs() {
        let schema: BTreeSet<String> = [
            fields_of::<LargestBatch>(),
            fields_of::<FarTier>(),
            fields_of::<StepTime>(),
            fields_of::<ManagedMemory>(),
            fields_of::<PinnedOrCached>(),
        ]
        .concat()
        .into_iter()
        .chain(["kind"])
        .filter(|key| !["case", "link"].contains(key))
        .map(|key| format!("measure.{key}"))
        .chain(named("measure.case.", fields_of::<Case>()))
        .chain(named("measure.link.", fields_of::<Speed>()))
        .collect();
        assert_eq!(documented("Measures"), schema);
    }
}
