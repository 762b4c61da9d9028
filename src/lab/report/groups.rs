//! Which runs are seeds of one arm, where nobody has said so: those whose configurations are equal
//! but for `run.seed`. The same seed again is an arm of its own. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use toml::{Table, Value};

use super::Run;
use crate::config::Config;
use crate::lab::keys::keys;

/// Keys that tell arms of one name apart, at most; with more the folder does.
const KEYS_NAMED_MAX: usize = 3;

/// An arm that is being put together.
struct Group {
    name: String,
    /// `section.key` and value, without the seed.
    keys: BTreeMap<String, Value>,
    /// Places among all runs.
    runs: Vec<usize>,
}

/// Gives every run the name of its arm: `run.name`, and what tells it from others of that name.
pub fn name_arms(runs: &mut [Run]) {
    let mut groups: Vec<Group> = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        let keys = keys_of(run);
        let takes = |group: &Group| {
            let again = group.runs.iter().any(|&other| runs[other].seed == run.seed);
            !keys.is_empty() && (&group.name, &group.keys) == (&run.arm, &keys) && !again
        };
        match groups.iter().position(takes) {
            Some(group) => groups[group].runs.push(at),
            None => groups.push(Group { name: run.arm.clone(), keys, runs: vec![at] }),
        }
    }
    let labels: Vec<String> = groups.iter().map(|group| label(group, &groups, runs)).collect();
    for (group, label) in groups.iter().zip(labels) {
        group.runs.iter().for_each(|&at| runs[at].arm.clone_from(&label));
    }
}

/// None where its configuration cannot be read: then it is like no other.
fn keys_of(run: &Run) -> BTreeMap<String, Value> {
    // What a file of an earlier release does not say has its default here.
    let config = toml::from_str::<Config>(&run.config).ok();
    let table = config.and_then(|config| Table::try_from(config).ok());
    let table = table.or_else(|| run.config.parse().ok()).unwrap_or_default();
    let mut keys = keys(&table);
    keys.remove("run.seed");
    keys
}

fn label(group: &Group, groups: &[Group], runs: &[Run]) -> String {
    let alike: Vec<&Group> = groups.iter().filter(|other| other.name == group.name).collect();
    if alike.len() == 1 {
        return group.name.clone();
    }
    let names: BTreeSet<&String> = alike.iter().flat_map(|other| other.keys.keys()).collect();
    let differ =
        |key: &&String| alike.iter().any(|other| other.keys.get(*key) != group.keys.get(*key));
    let differing: Vec<&String> = names.into_iter().filter(differ).collect();
    let same = |other: &&&Group| other.keys == group.keys;
    if differing.len() > KEYS_NAMED_MAX || alike.iter().filter(same).count() > 1 {
        let folder = Path::new(&runs[group.runs[0]].path);
        let folder = folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy();
        return format!("{} ({folder})", group.name);
    }
    let told = differing.iter().map(|key| match group.keys.get(*key) {
        Some(value) => format!("{} {value}", short(key, &differing)),
        None => format!("{} unset", short(key, &differing)),
    });
    format!("{}: {}", group.name, told.collect::<Vec<_>>().join(", "))
}

/// A key without its section, where that tells it from the others: legends have little room.
fn short<'a>(key: &'a str, all: &[&String]) -> &'a str {
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
            synchronous: true,
            arithmetic: None,
            max_seconds: None,
            config: format!("[run]\nname = \"cnn\"\nseed = {seed}\n{more}"),
            events: Vec::new(),
            ledger: Vec::new(),
            result: None,
            room: None,
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
    fn a_seed_is_not_averaged_with_itself() {
        let named = arms(vec![run("a", 1, ""), run("a.old-1", 1, ""), run("b", 2, "")]);
        assert_eq!(named, ["cnn (a)", "cnn (a.old-1)", "cnn (a)"]);
    }

    #[test]
    fn a_configuration_that_cannot_be_read_is_like_no_other() {
        let broken = |path| Run { config: "what".into(), ..run(path, 1, "") };
        let other = Run { seed: 2, ..broken("b") };
        assert_eq!(arms(vec![broken("a"), other]), ["cnn (a)", "cnn (b)"]);
    }
}
