//! The runs of a folder: what each is, how far it came, what tells it from the others; two of them
//! side by side; and what their folders take.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use serde::Serialize;
use toml::Value;

use crate::lab::report::axis::{Axis, Ruler};
use crate::lab::report::compare::{Bits, compare};
use crate::lab::report::groups::{Keys, configuration, differences};
use crate::lab::report::summary::{RunSummary, summarise};
use crate::lab::report::{NONE, Run, Study, Table, tables};
use crate::observe::event::{RESTART, name_of};
use crate::observe::refusal::{if_there, naming};
use crate::observe::spans::{amount, clock};

/// One run of a list.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Listed {
    /// Of its folder.
    pub name: String,
    /// As it was named, or found.
    pub path: String,
    pub status: String,
    pub seed: u64,
    pub steps: u64,
    /// Samples committed, in training sets.
    pub epochs: Option<f64>,
    /// A fraction.
    pub best_error: Option<f64>,
    /// Of all its files.
    pub bytes: u64,
    /// Since its last event.
    pub age_seconds: Option<f64>,
    /// Keys whose value is not that of most runs of the list; unset where it is `null`.
    pub differs: BTreeMap<String, Option<Value>>,
}

/// A run that was read, and how it stands.
#[derive(Debug)]
pub struct Found {
    /// What it holds.
    pub run: Run,
    /// In a word or two.
    pub status: String,
    /// Of all its files.
    pub bytes: u64,
}

/// Runs with how they stand, in the order given.
pub fn listed(found: &[Found]) -> Vec<Listed> {
    let keys: Vec<Keys> = found.iter().map(|found| configuration(&found.run.config)).collect();
    let differing = differences(&keys.iter().collect::<Vec<_>>());
    let mut list = Vec::new();
    for (at, Found { run, status, bytes }) in found.iter().enumerate() {
        let path = Path::new(&run.path);
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let own = differing.iter().filter_map(|difference| {
            let value = &difference.values[at];
            let is_usual = usual(&difference.values) == value;
            (!is_usual).then(|| (difference.key.clone(), value.clone()))
        });
        let epochs = Ruler::new(run, Axis::Epochs);
        list.push(Listed {
            name,
            path: run.path.clone(),
            status: status.clone(),
            seed: run.seed,
            steps: run.events.last().map_or(0, |event| event.step),
            epochs: run.events.last().and_then(|last| Some(epochs?.at(last))),
            best_error: summary_of(run).min_error,
            bytes: *bytes,
            age_seconds: run.events.last().map(|event| seconds_since(event.time)),
            differs: own.collect(),
        });
    }
    list
}

/// What most have; of several that are as frequent the one that is met first.
fn usual(values: &[Option<Value>]) -> &Option<Value> {
    let count = |value: &Option<Value>| values.iter().filter(|other| *other == value).count();
    let mut best = &values[0];
    for value in values {
        if count(value) > count(best) {
            best = value;
        }
    }
    best
}

fn seconds_since(time: f64) -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    (now.map_or(0.0, |now| now.as_secs_f64()) - time).max(0.0)
}

/// Of all files in a folder; links are not followed.
///
/// # Errors
/// Something in it cannot be looked at.
pub fn bytes_of(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    // Whatever lies in a run that goes on may be gone meanwhile.
    let entries = if_there(std::fs::read_dir(folder)).map_err(naming(folder))?;
    for entry in entries.into_iter().flatten() {
        let entry = entry.map_err(naming(folder))?;
        bytes += match if_there(entry.metadata()).map_err(naming(&entry.path()))? {
            Some(found) if found.is_dir() => bytes_of(&entry.path())?,
            Some(found) => found.len(),
            None => 0,
        };
    }
    Ok(bytes)
}

/// For a terminal.
pub fn table(list: &[Listed]) -> String {
    const DIFFERS_MAX: usize = 60;
    let seeds = list.iter().any(|run| run.seed != list[0].seed);
    let mut table =
        Table::new(["run", "status", "epochs", "best error", "size", "age", "what differs"]);
    let or_none = |text: Option<String>| text.unwrap_or_else(|| NONE.to_string());
    for run in list {
        let seed = seeds.then(|| format!("seed {}", run.seed));
        let own = run.differs.iter().map(|(key, value)| match value {
            Some(value) => format!("{key} {value}"),
            None => format!("{key} unset"),
        });
        let differs = seed.into_iter().chain(own).collect::<Vec<_>>().join(", ");
        let differs = match differs.char_indices().nth(DIFFERS_MAX) {
            Some((end, _)) => format!("{}...", &differs[..end]),
            None => differs,
        };
        table.row([
            run.name.clone(),
            run.status.clone(),
            or_none(run.epochs.map(|epochs| format!("{epochs:.2}"))),
            or_none(run.best_error.map(|error| format!("{:.2} %", error * 100.0))),
            amount(run.bytes),
            or_none(run.age_seconds.map(clock)),
            differs,
        ]);
    }
    table.text()
}

/// Two runs side by side.
#[derive(Debug, Clone, Serialize)]
pub struct Pair {
    /// Keys that differ, with the first's value and the second's; names and seeds too.
    pub keys: BTreeMap<String, [Option<Value>; 2]>,
    /// What came of each.
    pub results: [RunSummary; 2],
    /// Whether both computed the same.
    pub bits: Bits,
}

/// Compares them.
pub fn pair(runs: &[Run; 2]) -> Pair {
    let keys = [&runs[0], &runs[1]].map(|run| configuration(&run.config));
    let differing = differences(&[&keys[0], &keys[1]]).into_iter();
    let two = |values: Vec<Option<Value>>| [0, 1].map(|at| values.get(at).cloned().flatten());
    let mut keys: BTreeMap<String, [Option<Value>; 2]> =
        differing.map(|difference| (difference.key, two(difference.values))).collect();
    if runs[0].seed != runs[1].seed {
        let seeds = [&runs[0], &runs[1]].map(|run| Some(Value::Integer(run.seed as i64)));
        keys.insert("run.seed".to_owned(), seeds);
    }
    let bits = compare(&runs[0], &runs[1]);
    Pair { keys, results: [&runs[0], &runs[1]].map(summary_of), bits }
}

/// One run in figures, by itself.
fn summary_of(run: &Run) -> RunSummary {
    let study = Study { runs: vec![run.clone()], ..Study::default() };
    summarise(&study).remove(0)
}

impl Pair {
    /// For a terminal.
    pub fn table(&self) -> String {
        let [a, b] = &self.results;
        let mut keys = Table::new(["key", &a.path, &b.path]);
        let written =
            |value: &Option<Value>| value.as_ref().map_or("unset".into(), Value::to_string);
        for (key, [a, b]) in &self.keys {
            keys.row([key.clone(), written(a), written(b)]);
        }
        let keys = match self.keys.is_empty() {
            true => "the configurations are the same\n".to_string(),
            false => keys.text(),
        };
        let mut results = Table::new(["result", &a.path, &b.path]);
        let percent = |error: Option<f64>| {
            error.map_or(NONE.into(), |error| format!("{:.2} %", error * 100.0))
        };
        let mut row = |name: &str, of: &dyn Fn(&RunSummary) -> String| {
            results.row([name.to_string(), of(a), of(b)]);
        };
        row("status", &|run| run.status.as_ref().map_or("no result".into(), name_of));
        row("steps", &|run| run.steps.to_string());
        row("time", &|run| clock(run.seconds));
        row("final error", &|run| percent(run.final_error));
        row("best error", &|run| percent(run.min_error));
        let restarts = |run: &RunSummary| {
            run.recoveries.iter().filter(|episode| episode.rung == RESTART).count()
        };
        row("recoveries", &|run| (run.recoveries.len() - restarts(run)).to_string());
        row("restarts", &|run| restarts(run).to_string());
        row("steps lost", &|run| run.lost_steps.to_string());
        row("goodput", &|run| percent(run.goodput));
        format!("{keys}\n{}\nthe same bits? {}\n", results.text(), tables::bits(self.bits))
    }
}
