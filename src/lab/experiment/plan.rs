//! The experiment file and what it means: which runs, with which command lines. Pure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::config::{Bytes, Shown};
use crate::lab::keys::keys;

/// A year.
const SECONDS_MAX: f64 = 3.2e7;

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
    /// MPI ranks.
    pub ranks: u32,
    /// T: the wall time that every run has.
    pub seconds: f64,
    /// One run of every arm for each.
    pub seeds: Vec<u64>,
    /// When things happen, in parts of T.
    pub schedule: Schedule,
    /// Configuration keys of all arms.
    #[serde(default)]
    pub set: toml::Table,
    /// What is compared.
    #[serde(rename = "arm")]
    pub arms: Vec<Arm>,
}

/// When things happen, in parts of T.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// Checkpoints in T.
    pub checkpoints: f64,
    /// Evaluations in T.
    pub evaluations: f64,
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
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arm {
    /// Its name in the report: `detect/respawn`.
    pub name: String,
    /// What breaks here; unset = as the schedule says.
    #[serde(default)]
    pub failures: Option<Vec<Failure>>,
    /// Room that the kernel's page cache has, beside what the run's processes hold; unset = as it
    /// comes. Needs a memory control group.
    #[serde(default)]
    pub page_cache: Option<Bytes>,
    /// Configuration keys of this arm.
    #[serde(default)]
    pub set: toml::Table,
}

/// What the command line changes.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
pub struct Changes {
    /// Changes a configuration key in every run.
    #[arg(short = 's', long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Runs every arm with seeds 1..=N.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub seeds: Option<u64>,
    /// Wall time of every run; failures, checkpoints and evaluations scale with it.
    #[arg(long, value_name = "T")]
    pub seconds: Option<f64>,
}

/// One run to make.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedRun {
    /// The arm's name.
    pub arm: String,
    /// The seed.
    pub seed: u64,
    /// The run directory's name below the experiment's.
    pub folder: String,
    /// What comes after `launch`, without the run directory.
    pub arguments: Vec<String>,
    /// Room for the kernel's page cache.
    pub page_cache: Option<Bytes>,
}

impl PlannedRun {
    /// Its `key=value` pairs.
    pub fn overrides(&self) -> Vec<String> {
        let pairs = self.arguments.windows(2).filter(|pair| pair[0] == "-s");
        pairs.map(|pair| pair[1].clone()).collect()
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
        Ok((experiment, text))
    }

    /// The experiment with what the command line changes.
    ///
    /// # Errors
    /// The key whose value makes no sense, and what to write instead.
    pub fn with(mut self, changes: &Changes) -> Result<Self, String> {
        if let Some(seconds) = changes.seconds {
            self.seconds = seconds;
        }
        if let Some(count) = changes.seeds {
            self.seeds = (1..=count).collect();
        }
        self.check()?;
        Ok(self)
    }

    fn check(&self) -> Result<(), String> {
        let refuse = |key: &str, value: String, wanted: &str| {
            Err(format!("{key} = {value} in the experiment: {wanted}"))
        };
        if !(self.seconds > 0.0 && self.seconds <= SECONDS_MAX) {
            let wanted = "give every run some seconds, a year at most";
            return refuse("seconds", self.seconds.to_string(), wanted);
        }
        if self.ranks == 0 {
            return refuse("ranks", "0".into(), "start at least one rank");
        }
        if self.seeds.is_empty() {
            return refuse("seeds", "[]".into(), "name at least one seed, such as [1]");
        }
        for (key, parts) in
            [("checkpoints", self.schedule.checkpoints), ("evaluations", self.schedule.evaluations)]
        {
            if !(parts.is_finite() && parts >= 1.0) {
                return refuse(key, parts.to_string(), "how many in the whole time: 1 or more");
            }
        }
        let of_arms = self.arms.iter().filter_map(|arm| arm.failures.as_ref()).flatten();
        for failure in self.schedule.failures.iter().chain(of_arms) {
            if !(0.0..1.0).contains(&failure.at) {
                return refuse("failures.at", failure.at.to_string(), "a part of the time, 0 to 1");
            }
            if failure.rank >= self.ranks {
                return refuse("failures.rank", failure.rank.to_string(), "a rank below `ranks`");
            }
        }
        let folders: Vec<String> = self.arms.iter().map(|arm| slug(&arm.name)).collect();
        if folders.is_empty() {
            return refuse("arm", "[]".into(), "add [[arm]] with a name");
        }
        for (index, folder) in folders.iter().enumerate() {
            if folder.is_empty() || folders[..index].contains(folder) {
                let name = self.arms[index].name.clone();
                return refuse("arm.name", name, "a name unlike the other arms' names");
            }
        }
        Ok(())
    }

    /// The runs in the order they are made: all arms of the first seed, then of the second, so
    /// that an experiment that is cut short can be compared.
    pub fn plan(&self, changes: &Changes) -> Vec<PlannedRun> {
        let pairs =
            self.seeds.iter().flat_map(|seed| self.arms.iter().map(move |arm| (arm, *seed)));
        pairs
            .map(|(arm, seed)| PlannedRun {
                arm: arm.name.clone(),
                seed,
                folder: format!("{}-{seed}", slug(&arm.name)),
                arguments: self.arguments(arm, seed, &changes.set),
                page_cache: arm.page_cache,
            })
            .collect()
    }

    /// A run of one step: makes the data set where it is made on first use, and fills caches, so
    /// that the first arm pays for neither.
    pub fn warm_up(&self, changes: &Changes) -> PlannedRun {
        let name = "warm-up".to_string();
        let arm = Arm {
            name: name.clone(),
            failures: Some(Vec::new()),
            page_cache: None,
            set: toml::Table::new(),
        };
        let last = ["train.steps=1", "train.max_seconds=3600.0", "evaluation.every=\"never\""];
        let typed: Vec<String> =
            changes.set.iter().cloned().chain(last.map(String::from)).collect();
        let arguments = self.arguments(&arm, self.seeds[0], &typed);
        let folder = format!(".{name}");
        PlannedRun { arm: name, seed: self.seeds[0], folder, arguments, page_cache: None }
    }

    fn arguments(&self, arm: &Arm, seed: u64, typed: &[String]) -> Vec<String> {
        let failures = arm.failures.as_ref().unwrap_or(&self.schedule.failures);
        let planned: [(&str, toml::Value); 6] = [
            ("run.name", slug(&arm.name).into()),
            ("run.seed", toml::Value::Integer(seed as i64)),
            ("train.max_seconds", self.seconds.into()),
            ("checkpoint.every", part_of(self.seconds, self.schedule.checkpoints).into()),
            ("evaluation.every", part_of(self.seconds, self.schedule.evaluations).into()),
            ("faults.plan", self.faults(failures)),
        ];
        let planned = planned.map(|(key, value)| (key.to_owned(), value.to_string()));
        let written = keys(&self.set).into_iter().chain(keys(&arm.set));
        let written = written.map(|(key, value)| (key, value.to_string()));
        // `launch` says what is wrong with one that is no pair.
        let typed = typed.iter().map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let typed = typed.map(|(key, value)| (key.trim().to_owned(), value.to_owned()));
        let mut arguments = vec!["-n".to_string(), self.ranks.to_string()];
        arguments.push(self.config.to_string_lossy().into_owned());
        for (key, value) in last_of_each(planned.into_iter().chain(written).chain(typed)) {
            let pair = if value.is_empty() { key } else { format!("{key}={value}") };
            arguments.extend(["-s".to_string(), pair]);
        }
        arguments
    }

    fn faults(&self, failures: &[Failure]) -> toml::Value {
        let planned = failures.iter().map(|failure| {
            toml::Value::from(BTreeMap::from([
                ("kind", toml::Value::from(failure.kind.as_str())),
                ("who", "rank".into()),
                ("rank", i64::from(failure.rank).into()),
                ("seconds", (failure.at * self.seconds).into()),
            ]))
        });
        toml::Value::Array(planned.collect())
    }
}

/// A later value of a key stands in the place of the earlier one.
fn last_of_each(pairs: impl Iterator<Item = (String, String)>) -> Vec<(String, String)> {
    let mut kept: Vec<(String, String)> = Vec::new();
    for (key, value) in pairs {
        match kept.iter_mut().find(|(known, _)| *known == key) {
            Some((_, earlier)) => *earlier = value,
            None => kept.push((key, value)),
        }
    }
    kept
}

/// T / parts, as a duration that configurations understand; at least a millisecond.
fn part_of(seconds: f64, parts: f64) -> String {
    format!("{}ms", (seconds / parts * 1000.0).round().max(1.0))
}

/// A name as part of a path: `detect/respawn` becomes `detect-respawn`.
fn slug(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let joined: String = name.chars().map(plain).collect();
    joined.split('-').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
title = "t"
config = "../quick.toml"
ranks = 4
seconds = 720
seeds = [1, 2]
schedule = { checkpoints = 12, evaluations = 144, failures = [{ at = 0.225, rank = 2 }] }
set = { train = { steps = 1000000 }, optimizer = { name = "sgd" } }

[[arm]]
name = "calm"
failures = []

[[arm]]
name = "detect/respawn"
page_cache = "48MiB"
set.recovery.ladder = ["respawn", "restart"]
"#;

    fn experiment(text: &str) -> Experiment {
        toml::from_str(text).unwrap()
    }

    fn value<'a>(run: &'a PlannedRun, key: &str) -> Vec<&'a str> {
        let prefix = format!("{key}=");
        run.arguments.iter().filter_map(|argument| argument.strip_prefix(&prefix)).collect()
    }

    #[test]
    fn fractions_become_keys() {
        let changes = Changes::default();
        let runs = experiment(FILE).with(&changes).unwrap().plan(&changes);
        let names: Vec<_> = runs.iter().map(|run| run.folder.as_str()).collect();
        assert_eq!(names, ["calm-1", "detect-respawn-1", "calm-2", "detect-respawn-2"]);
        let respawn = &runs[1];
        assert_eq!(respawn.page_cache, Some(Bytes(48 << 20)));
        assert!(respawn.overrides().contains(&"train.max_seconds=720.0".to_string()));
        assert_eq!(value(respawn, "train.max_seconds"), ["720.0"]);
        assert_eq!(value(respawn, "checkpoint.every"), ["\"60000ms\""]);
        assert_eq!(value(respawn, "evaluation.every"), ["\"5000ms\""]);
        assert_eq!(value(respawn, "recovery.ladder"), [r#"["respawn", "restart"]"#]);
        let plan: toml::Table =
            format!("plan = {}", value(respawn, "faults.plan")[0]).parse().unwrap();
        assert_eq!(plan["plan"][0]["seconds"].as_float(), Some(162.0));
        assert_eq!(plan["plan"][0]["rank"].as_integer(), Some(2));
        assert_eq!(value(&runs[0], "faults.plan"), ["[]"]);
        assert_eq!(runs[0].arguments[..3], ["-n", "4", "../quick.toml"]);
    }

    #[test]
    fn what_is_typed_replaces_what_is_written() {
        let set = vec!["train.steps=7".to_string(), "model.name=mlp".to_string()];
        let changes = Changes { seconds: Some(36.0), seeds: Some(1), set };
        let runs = experiment(FILE).with(&changes).unwrap().plan(&changes);
        assert_eq!(runs.len(), 2);
        assert_eq!(value(&runs[0], "train.steps"), ["7"]);
        assert_eq!(value(&runs[0], "model.name"), ["mlp"]);
        assert_eq!(value(&runs[0], "evaluation.every"), ["\"250ms\""]);
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let changed = |from: &str, to: &str| {
            let text = FILE.replace(from, to);
            assert_ne!(text, FILE);
            experiment(&text).with(&Changes::default()).unwrap_err().to_string()
        };
        assert!(changed("ranks = 4", "ranks = 0").contains("ranks = 0"));
        assert!(changed("ranks = 4", "ranks = 2").contains("failures.rank = 2"));
        assert!(changed("at = 0.225", "at = 1.5").contains("failures.at = 1.5"));
        assert!(changed("seconds = 720", "seconds = 0").contains("seconds = 0"));
        assert!(changed("[1, 2]", "[]").contains("seeds"));
        assert!(changed("detect/respawn", "Calm").contains("arm.name = Calm"));
    }

    #[test]
    fn the_files_in_configs_are_well_formed() {
        for name in ["demo", "paper", "bundles", "staging", "page-cache"] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join(format!("configs/experiment/{name}.toml"));
            let (experiment, _) = Experiment::load(&path).unwrap();
            let experiment = experiment.with(&Changes::default()).unwrap();
            assert!(experiment.config.exists(), "{}", experiment.config.shown());
            assert!(experiment.plan(&Changes::default()).len() >= 4);
        }
    }
}
