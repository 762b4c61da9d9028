//! The report: events of several runs, grouped by arm, to one self-contained HTML page with
//! learning curves, recovery phases, checkpoint parts and tables (Tsuji et al., Fig. 5-8, Tables 2
//! and 3). Everything but `read` is pure.

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::observe::event::{Event, Kind, Setup};
use crate::observe::ledger::Entry;
use crate::observe::result::RunResult;

pub mod axis;
pub mod bar_chart;
pub mod best;
pub mod compare;
pub mod cost;
mod curves;
mod drawing;
pub mod episodes;
mod figures;
pub mod groups;
pub mod line_chart;
mod markup;
mod one_run;
mod page;
mod page_cache;
pub mod read;
pub mod scaling;
pub mod series;
mod sheet;
mod staging;
pub mod statistics;
pub mod summary;
pub mod svg;
pub mod tables;

pub use markup::{NONE, Table, document as page_of, figure, keys, svg_file};
pub use page::render as html;

/// Runs that a sentence names.
const NAMED_MAX: usize = 4;

/// What a run had for pages of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageRoom {
    /// Bytes that it was given.
    pub bytes: u64,
    /// Bytes that files took in its second half: the middle of all looks.
    pub files_bytes: u64,
}

/// By how many per cent less time an arm whose files are staged took in a paper than others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// Than where nothing is staged.
    pub none: Option<f64>,
    /// Than where files are staged before training.
    pub before: Option<f64>,
}

/// One run as it left its directory.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Run {
    /// What it is a run of: `detect/respawn`.
    pub arm: String,
    /// Its seed.
    pub seed: u64,
    /// Where it lies.
    pub path: String,
    /// Whether its order of sums is fixed (`train.exchange`): then bits can be compared.
    pub synchronous: bool,
    /// The fingerprint of what decides its arithmetic, where its configuration can be read.
    pub arithmetic: Option<u64>,
    /// `train.max_seconds`.
    pub max_seconds: Option<f64>,
    /// Its resolved configuration, as text.
    pub config: String,
    /// `events.jsonl`.
    pub events: Vec<Event>,
    /// `ledger.jsonl`.
    pub ledger: Vec<Entry>,
    /// `result.json`, once there is one.
    pub result: Option<RunResult>,
    /// What it had for pages of files, where that was limited.
    pub room: Option<PageRoom>,
    /// What a paper says of its arm.
    pub paper: Paper,
}

impl Run {
    /// Its configuration, where that can be read.
    pub fn settings(&self) -> Option<Config> {
        toml::from_str(&self.config).ok()
    }

    /// Seconds of the run's own clock at its last event.
    pub fn seconds(&self) -> f64 {
        self.events.iter().map(|event| event.seconds).fold(0.0, f64::max)
    }

    /// What its last attempt ran on, where it says so: earlier releases did not.
    pub fn setup(&self) -> Option<&Setup> {
        self.events.iter().rev().find_map(|event| match &event.kind {
            Kind::Setup(setup) => Some(setup),
            _ => None,
        })
    }

    /// Processor, cores and memory, in words.
    pub fn machine(&self) -> Option<&str> {
        self.setup().map(|setup| setup.machine.as_str())
    }
}

/// Which run it is, in words.
pub fn which(arm: &str, seed: u64) -> String {
    format!("{arm}, seed {seed}")
}

/// The first of several, and how many more there are.
pub fn few(names: &[String]) -> String {
    let more = match names.len() {
        n if n > NAMED_MAX => format!("; and {} more", n - NAMED_MAX),
        _ => String::new(),
    };
    names[..names.len().min(NAMED_MAX)].join("; ") + &more
}

/// What a report is about.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Study {
    /// The heading.
    pub title: String,
    /// What the arms have in common and why they are compared, in a sentence or two.
    pub description: String,
    /// The command line that made it.
    pub command: String,
    /// The experiment file's text, where there is one.
    pub experiment: Option<String>,
    /// The machine, in words.
    pub machine: String,
    /// All runs, in the order of their arms.
    pub runs: Vec<Run>,
}

impl Study {
    /// The arms' names, in the order of their first runs.
    pub fn arms(&self) -> Vec<&str> {
        let mut arms: Vec<&str> = Vec::new();
        for run in &self.runs {
            if !arms.contains(&run.arm.as_str()) {
                arms.push(&run.arm);
            }
        }
        arms
    }

    /// The runs of one arm.
    pub fn runs_of<'a>(&'a self, arm: &'a str) -> impl Iterator<Item = &'a Run> {
        self.runs.iter().filter(move |run| run.arm == arm)
    }

    /// The time that every run had: `train.max_seconds` if all agree, else the longest run's.
    pub fn total_seconds(&self) -> f64 {
        let longest = self.runs.iter().map(Run::seconds).fold(0.0, f64::max);
        let limit = self.runs.first().and_then(|run| run.max_seconds);
        let agreed = limit.filter(|_| self.runs.iter().all(|run| run.max_seconds == limit));
        match agreed {
            // A limit that no run came near says nothing about the picture.
            Some(limit) if limit <= longest * 1.2 => limit,
            _ => longest,
        }
    }
}

/// What was typed, quoted for a shell; the program by its name.
pub fn command_line() -> String {
    let quote = |argument: String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+".contains(c);
        if !argument.is_empty() && argument.chars().all(plain) {
            argument
        } else {
            format!("'{}'", argument.replace('\'', r"'\''"))
        }
    };
    let typed: Vec<String> = std::env::args().skip(1).map(quote).collect();
    format!("kintsugi {}", typed.join(" "))
}
