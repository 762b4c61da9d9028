//! What `--help` and the documents promise. `forms.txt` has a row for every argument of every
//! command, with its help text and each form that it may have; a form is played, or names the test
//! that plays it. An argument without a row, a text that changed, a choice without a form: each
//! fails.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::Arg;

use table::{Play, rows, wrong};

mod table;

/// Documents whose blocks of commands people copy.
const DOCUMENTS: [&str; 10] = [
    "README.md",
    "ARCHITECTURE.md",
    "configs/README.md",
    "configs/experiment/README.md",
    "cluster-scripts/README.md",
    "benches/README.md",
    "tests/README.md",
    "src/data/README.md",
    "src/train/repair/README.md",
    "ulfm-shim/README.md",
];
/// Where jobs under SLURM are written down.
const JOBS: &str = "cluster-scripts/one-machine/selftest-nodes";

/// What is told of an argument.
struct Told {
    help: String,
    choices: Vec<String>,
    /// The words that give it; of a positional argument that of its command.
    words: Vec<String>,
}

/// Every argument that a `--help` shows.
fn arguments() -> BTreeMap<String, Told> {
    let (mut found, mut left) = (BTreeMap::new(), vec![(String::new(), kintsugi::cli::command())]);
    while let Some((path, command)) = left.pop() {
        let ours = |arg: &&Arg| {
            !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str())
        };
        for arg in command.get_arguments().filter(ours) {
            let name = match arg.get_long() {
                Some(long) => format!("--{long}"),
                None => arg.get_value_names().unwrap()[0].to_string(),
            };
            found.insert(format!("{path} {name}"), told(arg, command.get_name()));
        }
        let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
        left.extend(visible.map(|command| {
            let path = format!("{path} {}", command.get_name());
            (path.trim().to_owned(), command.clone())
        }));
    }
    found
}

fn told(arg: &Arg, command: &str) -> Told {
    let mut help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let text = |value: &clap::builder::OsStr| value.to_string_lossy().into_owned();
    let defaults: Vec<String> = arg.get_default_values().iter().map(text).collect();
    let takes = arg.get_action().takes_values();
    if takes && !defaults.is_empty() {
        help += &format!(" [default: {}]", defaults.join(", "));
    }
    let choices = arg.get_possible_values().into_iter().filter(|_| takes);
    let choices: Vec<String> = choices.map(|value| value.get_name().to_owned()).collect();
    if !choices.is_empty() {
        help += &format!(" [{}]", choices.join(", "));
    }
    let long = arg.get_long_and_visible_aliases().unwrap_or_default();
    let short = arg.get_short_and_visible_aliases().unwrap_or_default();
    let mut words: Vec<String> = long.iter().map(|name| format!("--{name}")).collect();
    words.extend(short.iter().map(|letter| format!("-{letter}")));
    if words.is_empty() {
        words.push(command.to_owned());
    }
    Told { help, choices, words }
}

#[test]
fn every_argument_has_a_row_and_every_row_its_argument() {
    let (arguments, rows) = (arguments(), rows());
    let mut wrong = Vec::new();
    for (key, Told { help, choices, .. }) in &arguments {
        let Some(row) = rows.get(key) else {
            wrong.push(format!("[{key}]\nhelp {help}"));
            continue;
        };
        if row.help != *help {
            wrong.push(format!("[{key}]\nhelp {help}"));
        }
        let has = |choice: &String| row.forms.iter().any(|form| form.name == *choice);
        if row.forms.is_empty() || !choices.iter().all(has) {
            wrong.push(format!("[{key}] lacks forms"));
        }
    }
    let gone = rows.keys().filter(|key| !arguments.contains_key(*key));
    wrong.extend(gone.map(|key| format!("[{key}] is no argument")));
    assert!(wrong.is_empty(), "add to tests/library/forms/forms.txt:\n{}", wrong.join("\n"));
}

/// A row that names a test must not outlive it, and one that is played plays its argument, unless
/// it is about its absence.
#[test]
fn every_row_knows_its_argument() {
    let (mut wrong, arguments) = (BTreeSet::new(), arguments());
    for (key, row) in rows() {
        let (command, _) = key.rsplit_once(' ').unwrap();
        let Some(Told { words, .. }) = arguments.get(&key) else { continue };
        for form in &row.forms {
            let absent = form.name.starts_with("unset");
            let knows = match &form.play {
                Play::Alone(line) | Play::Ranks(line) => {
                    line.words.join(" ").starts_with(command)
                        && (absent || line.words.iter().any(|word| words.contains(word)))
                }
                Play::Test { file, name } => {
                    let text = std::fs::read_to_string(project(file)).unwrap_or_default();
                    let known = words.iter().any(|word| text.contains(&format!("\"{word}\"")));
                    known && text.contains(&format!("fn {name}("))
                }
                Play::Job(name) => {
                    let text = std::fs::read_to_string(project(JOBS)).unwrap();
                    let variable = words[0].trim_start_matches('-').replace('-', "_");
                    let known = text.contains(&variable.to_uppercase());
                    known && text.contains(&format!("\n{name}() {{\n"))
                }
            };
            if !knows {
                wrong.insert(format!("[{key}] {}", form.name));
            }
        }
    }
    assert!(wrong.is_empty(), "not played: {wrong:#?}");
}

fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn every_form_that_needs_no_ranks_does_what_its_row_says() {
    let wrong = wrong(|play| match play {
        Play::Alone(line) => Some(line),
        _ => None,
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// The words of a line, as a shell takes them: what stands in quotes is one.
fn typed(line: &str) -> Vec<String> {
    let (mut words, mut quote) = (vec![String::new()], None);
    for letter in line.chars() {
        match (quote, letter) {
            (None, '\'' | '"') => quote = Some(letter),
            (Some(open), _) if open == letter => quote = None,
            (None, ' ') => words.push(String::new()),
            _ => words.last_mut().unwrap().push(letter),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn every_command_in_a_document_is_one() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for document in DOCUMENTS {
        let text = std::fs::read_to_string(project(document)).unwrap();
        let blocks = text.split("```").skip(1).step_by(2);
        let joined = blocks.map(|block| block.replace("\\\n", " ")).collect::<String>();
        for line in joined.lines() {
            let line = line.split(" #").next().unwrap().trim();
            let Some((_, words)) = line.split_once("kintsugi ") else { continue };
            let words = words.split(['|', '>', '&', ';']).next().unwrap();
            let words = std::iter::once("kintsugi".to_owned()).chain(typed(words));
            seen += 1;
            if let Err(error) = kintsugi::cli::command().try_get_matches_from(words) {
                wrong.push(format!("{document}: {line}: {}", error.kind()));
            }
        }
    }
    assert!(seen > 10 && wrong.is_empty(), "{seen} commands: {wrong:#?}");
}
