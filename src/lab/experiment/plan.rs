//! What an experiment means: which runs, with which command lines. Pure.

use std::collections::BTreeMap;

use super::file::{Arm, Changes, Experiment, Failure, slug};
use super::sweep;
use crate::config::Bytes;
use crate::lab::keys::keys;
use crate::lab::report::which;

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
    /// Its `key=value` pairs, ranks among them.
    pub fn overrides(&self) -> Vec<String> {
        let pairs = self.arguments.windows(2).filter_map(|pair| match pair[0].as_str() {
            "-s" => Some(pair[1].clone()),
            "-n" => Some(format!("run.ranks={}", pair[1])),
            _ => None,
        });
        pairs.collect()
    }

    /// Which it is, in words.
    pub fn name(&self) -> String {
        which(&self.arm, self.seed)
    }
}

impl Experiment {
    /// The experiment with what the command line changes, its sweep turned into arms.
    ///
    /// # Errors
    /// The key whose value makes no sense, and what to write instead.
    pub fn with(mut self, changes: &Changes) -> Result<Self, String> {
        self.check_places(changes)?;
        if let Some(count) = changes.seeds {
            self.seeds = Some((1..=count).collect());
            sweep::forget_seeds(&mut self.sweep);
        }
        self.seconds = changes.seconds.or(self.seconds);
        self.jobs = changes.jobs.or(self.jobs);
        self = sweep::expanded(self)?;
        self.check()?;
        Ok(self)
    }

    /// The runs in the order they are made: all arms of the first seed, then of the second, so
    /// that an experiment that is cut short can be compared.
    pub fn plan(&self, changes: &Changes) -> Vec<PlannedRun> {
        let pairs =
            self.seeds().iter().flat_map(|seed| self.arms.iter().map(move |arm| (arm, *seed)));
        pairs
            .map(|(arm, seed)| PlannedRun {
                arm: arm.name.clone(),
                seed,
                folder: format!("{}-{seed}", slug(&arm.name)),
                arguments: self.arguments(arm, seed, changes),
                page_cache: arm.page_cache,
            })
            .collect()
    }

    /// A run of one step of the first arm: makes the data set where it is made on first use (each
    /// seed has its own), and fills caches, so that this arm pays for neither.
    pub fn warm_up(&self, changes: &Changes, seed: u64) -> PlannedRun {
        let name = "warm-up".to_string();
        let arm = Arm { name: name.clone(), ..self.arms[0].clone() };
        let last = [
            "train.steps=1",
            "train.max_seconds=3600.0",
            "evaluation.every=\"never\"",
            "schedule.warm_up=0.0",
            "faults.plan=[]",
        ];
        let set = changes.set.iter().cloned().chain(last.map(String::from)).collect();
        let changes = Changes { set, ..changes.clone() };
        let arguments = self.arguments(&arm, seed, &changes);
        PlannedRun {
            arm: name.clone(),
            seed,
            folder: format!(".{name}"),
            arguments,
            page_cache: None,
        }
    }

    fn arguments(&self, arm: &Arm, seed: u64, changes: &Changes) -> Vec<String> {
        let planned = self.planned(arm, seed).into_iter();
        let planned = planned.map(|(key, value)| (key.to_owned(), value.to_string()));
        let written = keys(&self.set).into_iter().chain(keys(&arm.set));
        let written = written.map(|(key, value)| (key, value.to_string()));
        let mut arguments = vec!["-n".to_string(), self.ranks(arm).to_string()];
        arguments.push(self.config.to_string_lossy().into_owned());
        for (key, value) in last_of_each(planned.chain(written).chain(changes.pairs())) {
            let pair = if value.is_empty() { key } else { format!("{key}={value}") };
            arguments.extend(["-s".to_string(), pair]);
        }
        arguments
    }

    /// The keys that follow from the experiment's own.
    fn planned(&self, arm: &Arm, seed: u64) -> Vec<(&'static str, toml::Value)> {
        let mut planned = vec![
            ("run.name", slug(&arm.name).into()),
            ("run.seed", toml::Value::Integer(seed as i64)),
        ];
        let seconds = self.seconds.unwrap_or_default();
        if self.seconds.is_some() {
            planned.push(("train.max_seconds", seconds.into()));
        }
        if let Some(schedule) = &self.schedule {
            let checkpoints = ("checkpoint.every", schedule.checkpoints);
            for (key, parts) in [checkpoints, ("evaluation.every", schedule.evaluations)] {
                planned.extend(parts.map(|parts| (key, part_of(seconds, parts).into())));
            }
        }
        let failures = self.failures(arm);
        planned.extend(failures.map(|failures| ("faults.plan", faults(failures, seconds))));
        planned
    }
}

fn faults(failures: &[Failure], seconds: f64) -> toml::Value {
    let planned = failures.iter().map(|failure| {
        toml::Value::from(BTreeMap::from([
            ("kind", toml::Value::from(failure.kind.as_str())),
            ("who", "rank".into()),
            ("rank", i64::from(failure.rank).into()),
            ("seconds", (failure.at * seconds).into()),
        ]))
    });
    toml::Value::Array(planned.collect())
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Shown;

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
    fn the_warm_up_is_a_step_of_the_first_arm_without_its_failures() {
        let plan = "set.faults.plan = [{ kind = \"kill\", rank = 0, step = 1 }]";
        let first = format!("set.data.train = \"a\"\nranks = 3\n{plan}");
        let text = FILE.replacen("failures = []", &first, 1);
        let changes = Changes::default();
        let experiment = experiment(&text).with(&changes).unwrap();
        assert_eq!(value(&experiment.plan(&changes)[0], "faults.plan").len(), 1);
        let warm_up = experiment.warm_up(&changes, 2);
        assert_eq!(
            (value(&warm_up, "data.train"), value(&warm_up, "faults.plan")),
            (vec!["\"a\""], vec!["[]"])
        );
        assert_eq!((value(&warm_up, "train.steps"), &warm_up.arguments[1][..]), (vec!["1"], "3"));
        assert_eq!((warm_up.folder.as_str(), warm_up.page_cache), (".warm-up", None));
    }

    #[test]
    fn what_is_typed_replaces_what_is_written() {
        let set = vec!["train.steps=7".to_string(), "model.name=mlp".to_string()];
        let text = FILE.replace("page_cache = \"48MiB\"", "");
        let changes = Changes { seconds: Some(36.0), seeds: Some(1), jobs: Some(2), set };
        let experiment = experiment(&text).with(&changes).unwrap();
        assert_eq!(experiment.jobs(), 2);
        let runs = experiment.plan(&changes);
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
        let seeds = format!("{:?}", (0..5001).collect::<Vec<_>>());
        let many = changed("[1, 2]", &seeds);
        assert!(many.starts_with("2 arms x 5001 seeds are 10002 runs"), "{many}");
        assert!(changed("ranks = 4", "ranks = 0").contains("ranks = 0"));
        assert!(changed("ranks = 4", "jobs = 0").contains("jobs = 0"));
        // Its second arm limits the page cache.
        assert!(changed("ranks = 4", "jobs = 2").contains("detect/respawn has room of its own"));
        assert!(changed("ranks = 4", "ranks = 2").contains("failures.rank = 2"));
        assert!(changed("at = 0.225", "at = 1.5").contains("failures.at = 1.5"));
        assert!(changed("seconds = 720", "seconds = 0").contains("seconds = 0"));
        assert!(changed("[1, 2]", "[]").contains("seeds"));
        assert!(changed("detect/respawn", "Calm").contains("arm.name = Calm"));
        let paper = "paper.warm = { none = 1.5 }\nranks = 4";
        assert!(changed("ranks = 4", paper).contains("paper = warm in the experiment: the name"));
        assert!(changed("[1, 2]", "[2, 2]").contains("2 is there twice"));
        assert!(changed("seconds = 720\n", "").contains("write `seconds` too"));
        assert!(changed("set.recovery.ladder", "set.run.seed = 3 #").contains("run.seed"));
    }

    #[test]
    fn without_a_time_the_configuration_ends_the_runs() {
        let text = "title = \"t\"\nconfig = \"quick.toml\"\nseeds = [3]\n[[arm]]\n\
                    name = \"a\"\nranks = 2\n";
        let changes = Changes::default();
        let runs = experiment(text).with(&changes).unwrap().plan(&changes);
        let only = ["-n", "2", "quick.toml", "-s", "run.name=\"a\"", "-s", "run.seed=3"];
        assert_eq!(runs[0].arguments, only);
        assert!(runs[0].overrides().contains(&"run.ranks=2".to_string()));
    }

    #[test]
    fn what_the_sweep_has_is_not_typed_too() {
        let text = "title = \"t\"\nconfig = \"quick.toml\"\nseeds = [3]\n\
                    sweep = { train.steps = [1, 2] }";
        let told = |typed: &str| {
            let changes = Changes { set: vec![typed.into()], ..Changes::default() };
            experiment(text).with(&changes).unwrap_err()
        };
        assert!(told("train.steps=9").contains("the file's sweep has this key"));
        assert!(told("run.seed=9").contains("--seeds"));
        let more = Changes { seeds: Some(2), ..Changes::default() };
        assert_eq!(experiment(text).with(&more).unwrap().plan(&more).len(), 4);
        for seed in ["run.seed", "\"run.seed\""] {
            let text = text
                .replace("seeds = [3]", "")
                .replace("= {", &format!("= {{ {seed} = [5, 6, 7],"));
            assert_eq!(experiment(&text).with(&more).unwrap().plan(&more).len(), 4, "{seed}");
        }
    }

    #[test]
    fn the_files_in_configs_are_well_formed() {
        let experiments = ["demo", "paper", "bundles", "staging", "page-cache", "ranks", "curves"];
        let experiments = experiments.map(|name| format!("experiment/{name}"));
        for name in experiments.into_iter().chain(["recipe/sweep".into()]) {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("configs/{name}.toml"));
            let (experiment, _) = Experiment::load(&path).unwrap();
            let experiment = experiment.with(&Changes::default()).unwrap();
            assert!(experiment.config.exists(), "{}", experiment.config.shown());
            assert!(experiment.plan(&Changes::default()).len() >= 4);
        }
    }
}
