//! Which runs are seeds of one arm, where nobody has said so: those whose configurations are equal
//! but for what names a run. The same seed again is an arm of its own. And what tells arms apart.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use toml::{Table, Value};
use xxhash_rust::xxh3::xxh3_64;

use super::Run;
use crate::config::Config;
use crate::lab::keys::{keys, told};

/// Keys that tell arms of one name apart, at most; with more the folder does.
const KEYS_NAMED_MAX: usize = 3;
/// Characters that they have, at most.
const VALUES_NAMED_MAX: usize = 48;
/// What says which run it is, and nothing of what it does.
const NAMING: [&str; 2] = ["run.name", "run.seed"];
/// What holds a whole file.
const FILE: &str = "model.text";
/// Sections that say what fails and what is done about it.
const HANDLING: [&str; 3] = ["checkpoint.", "faults.", "recovery."];

/// `section.key` and value.
pub type Keys = BTreeMap<String, Value>;

/// A resolved configuration without the keys that only name a run; none where it cannot be read.
pub fn configuration(text: &str) -> Keys {
    // What a file of an earlier release does not say has its default here.
    let config = toml::from_str::<Config>(text).ok();
    let table = config.and_then(|config| Table::try_from(config).ok());
    let table = table.or_else(|| text.parse().ok()).unwrap_or_default();
    let mut keys = keys(&table);
    keys.retain(|key, _| !NAMING.contains(&key.as_str()));
    // Which file it is is enough.
    if let Some(Value::String(text)) = keys.get_mut(FILE) {
        *text = format!("XXH3 {:016x}", xxh3_64(text.as_bytes()));
    }
    keys
}

/// A key whose value is not the same in all of several configurations.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// `section.key`.
    pub key: String,
    /// What each of them says; `None` where it is not set.
    pub values: Vec<Option<Value>>,
}

impl Difference {
    /// Whether it is about failures and what is done about them, and about nothing else.
    pub fn is_handling(&self) -> bool {
        HANDLING.iter().any(|section| self.key.starts_with(section))
    }
}

/// All keys in which configurations differ.
pub fn differences(of: &[&Keys]) -> Vec<Difference> {
    let names: BTreeSet<&String> = of.iter().flat_map(|keys| keys.keys()).collect();
    let all = names.into_iter().map(|key| Difference {
        key: key.clone(),
        values: of.iter().map(|keys| keys.get(key).cloned()).collect(),
    });
    all.filter(|difference| difference.values.iter().any(|v| *v != difference.values[0])).collect()
}

/// An arm that is being put together.
struct Group {
    keys: Keys,
    /// Whether an earlier arm has its configuration and a run of its seed.
    again: bool,
    /// Places among all runs.
    runs: Vec<usize>,
}

/// Gives every run the name of its arm: its runs' names, and what tells it from others of that
/// name.
pub fn name_arms(runs: &mut [Run]) {
    let mut groups: Vec<Group> = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        let keys = configuration(&run.config);
        let is_alike = |group: &&mut Group| !keys.is_empty() && group.keys == keys;
        let mut alike = groups.iter_mut().filter(is_alike).peekable();
        let again = alike.peek().is_some();
        let takes = |group: &&mut Group| group.runs.iter().all(|&at| runs[at].seed != run.seed);
        match alike.find(takes) {
            Some(group) => group.runs.push(at),
            None => groups.push(Group { keys, again, runs: vec![at] }),
        }
    }
    let names: Vec<String> = groups.iter().map(|group| name(group, runs)).collect();
    let labels = (0..groups.len()).map(|at| label(at, &groups, &names, runs));
    let labels: Vec<String> = labels.collect();
    for (group, label) in groups.iter().zip(&labels) {
        // Folders of one name tell nothing apart.
        let label = match labels.iter().filter(|other| *other == label).count() {
            1 => label.clone(),
            _ => format!("{label} in {}", runs[group.runs[0]].path),
        };
        group.runs.iter().for_each(|&at| runs[at].arm.clone_from(&label));
    }
}

/// What its runs are called.
fn name(group: &Group, runs: &[Run]) -> String {
    let mut names: Vec<&str> = group.runs.iter().map(|&at| runs[at].arm.as_str()).collect();
    names.dedup();
    match names.as_slice() {
        [first, second, others @ ..] if !others.is_empty() => {
            format!("{first}, {second} and {} more", others.len())
        }
        few => few.join(", "),
    }
}

fn label(at: usize, groups: &[Group], names: &[String], runs: &[Run]) -> String {
    let (group, name) = (&groups[at], &names[at]);
    let folder = || {
        let folder = Path::new(&runs[group.runs[0]].path);
        folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned()
    };
    if group.again {
        return format!("{name}, the same seed again ({})", folder());
    }
    let is_alike = |other: &usize| names[*other] == *name && !groups[*other].again;
    let alike: Vec<&Keys> =
        (0..groups.len()).filter(is_alike).map(|other| &groups[other].keys).collect();
    if alike.len() == 1 {
        return name.clone();
    }
    let place = alike.iter().position(|keys| **keys == group.keys);
    match (place, apart(&alike)) {
        (Some(place), Some(told)) => format!("{name}: {}", told[place]),
        _ => format!("{name} ({})", folder()),
    }
}

/// What tells each of several configurations from the others, in a few words; `None` where that
/// takes many, or two are equal.
pub fn apart(of: &[&Keys]) -> Option<Vec<String>> {
    let differing = differences(of);
    let keys: Vec<&String> = differing.iter().map(|difference| &difference.key).collect();
    let words = |of: &&Keys| {
        let each = keys.iter().map(|key| {
            let value = of.get(*key).map_or("unset".into(), told);
            format!("{} {value}", short(key, &keys))
        });
        each.collect::<Vec<_>>().join(", ")
    };
    if keys.len() > KEYS_NAMED_MAX || (1..of.len()).any(|at| of[..at].contains(&of[at])) {
        return None;
    }
    let all: Vec<String> = of.iter().map(words).collect();
    // Of a plan of faults or a list of paths the table tells.
    all.iter().all(|words| words.chars().count() <= VALUES_NAMED_MAX).then_some(all)
}

/// An arm's name up to a colon, and the rest of it: `GROUP: ARM`.
pub fn named(arm: &str) -> (&str, &str) {
    arm.split_once(": ").unwrap_or(("", arm))
}

/// A key without its section, where that tells it from the others: legends have little room.
pub fn short<'a>(key: &'a str, all: &[&String]) -> &'a str {
    let name = key.rsplit_once('.').map_or(key, |(_, name)| name);
    let alike = all.iter().filter(|other| other.rsplit('.').next() == Some(name)).count();
    if alike == 1 { name } else { key }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(path: &str, seed: u64, more: &str) -> Run {
        Run {
            arm: "cnn".into(),
            seed,
            path: format!("runs/{path}"),
            config: format!("[run]\nname = \"cnn\"\nseed = {seed}\n{more}"),
            ..Run::default()
        }
    }

    fn arms(mut runs: Vec<Run>) -> Vec<String> {
        name_arms(&mut runs);
        runs.into_iter().map(|run| run.arm).collect()
    }

    const RATE: &str = "[optimizer]\nlearning_rate = 0.5\n";

    #[test]
    fn runs_that_differ_in_their_seed_alone_are_one_arm() {
        assert_eq!(arms(vec![run("a", 1, ""), run("b", 2, ""), run("c", 3, "")]), ["cnn"; 3]);
    }

    #[test]
    fn other_configurations_are_other_arms_and_say_what_differs() {
        let named = arms(vec![run("a", 1, ""), run("b", 1, RATE), run("c", 2, RATE)]);
        assert!(named[0].starts_with("cnn: learning_rate "), "{}", named[0]);
        assert_eq!(named[1..], ["cnn: learning_rate 0.5"; 2]);
        let unset = arms(vec![run("a", 1, ""), run("b", 1, "[train]\nsteps = 7\n")]);
        assert_eq!(unset, ["cnn: steps unset", "cnn: steps 7"]);
        assert_eq!(short("model.name", &[&"run.name".into(), &"model.name".into()]), "model.name");
    }

    #[test]
    fn values_that_are_no_label_are_left_to_the_table() {
        let plan = "[[faults.plan]]\nkind = \"kill\"\nwho = \"rank\"\nrank = 2\nstep = 40\n";
        assert_eq!(arms(vec![run("a", 1, ""), run("b", 1, plan)]), ["cnn (a)", "cnn (b)"]);
    }

    #[test]
    fn a_seed_is_not_averaged_with_itself() {
        let named = arms(vec![run("a", 1, ""), run("a.old-1", 1, ""), run("b", 2, "")]);
        assert_eq!(named, ["cnn", "cnn, the same seed again (a.old-1)", "cnn"]);
        let rates = arms(vec![run("a", 1, ""), run("b", 1, RATE), run("c", 1, RATE)]);
        let again = "cnn, the same seed again (c)";
        assert_eq!(rates[1..], ["cnn: learning_rate 0.5", again], "{rates:?}");
    }

    #[test]
    fn folders_of_one_name_are_no_arm_together() {
        let plan = "[[faults.plan]]\nkind = \"kill\"\nwho = \"rank\"\nrank = 2\nstep = 40\n";
        let named = arms(vec![run("a/run", 1, ""), run("b/run", 1, plan)]);
        assert_eq!(named, ["cnn (run) in runs/a/run", "cnn (run) in runs/b/run"]);
        let again = arms(vec![run("a/run", 1, ""), run("b/run", 1, ""), run("c/run", 1, "")]);
        let of = |folder: &str| format!("cnn, the same seed again (run) in runs/{folder}/run");
        assert_eq!(again, ["cnn".to_string(), of("b"), of("c")]);
    }

    #[test]
    fn a_name_tells_nothing_of_what_a_run_does() {
        let named = |name: &str, seed| Run { arm: name.into(), ..run(name, seed, "") };
        assert_eq!(arms(vec![named("a", 1), named("b", 2)]), ["a, b"; 2]);
        let again = arms(vec![named("a", 1), named("b", 1)]);
        assert_eq!(again, ["a", "b, the same seed again (b)"]);
    }

    #[test]
    fn what_differs_is_told_with_every_value() {
        let [a, b] = ["", RATE].map(|more| configuration(&run("a", 1, more).config));
        let found = differences(&[&a, &b, &a]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].key, "optimizer.learning_rate");
        assert_eq!(found[0].values[1], Some(Value::Float(0.5)));
        assert_eq!(found[0].values[0], found[0].values[2]);
        assert!(!found[0].is_handling());
    }

    #[test]
    fn a_configuration_that_cannot_be_read_is_like_no_other() {
        let broken = |path| Run { config: "what".into(), ..run(path, 1, "") };
        let other = Run { seed: 2, ..broken("b") };
        assert_eq!(arms(vec![broken("a"), other]), ["cnn (a)", "cnn (b)"]);
    }
}
