//! `kintsugi bench`: two things compared in one run, interleaved, with the ratio. Never a timed
//! test.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::lab::probe_mpi;
use crate::lab::report::statistics::median;
use crate::lab::report::{Table, command_line};

pub mod all_reduce;
pub mod calm;
pub mod checkpoint;
mod judge;
pub mod loader;
pub mod memory;
pub mod recovery;
pub mod runs;
pub mod step;
mod turns;

/// What a bench prints with `--json`: one object on the last line of stdout.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// `all-reduce`, `calm`, `checkpoint`, `loader`, `memory`, `recovery`, `step`.
    pub bench: String,
    /// The line that made it.
    pub command: String,
    /// Where.
    pub machine: Machine,
    /// What was measured.
    pub cases: Vec<Case>,
    /// Of medians of cases interleaved in this one run.
    pub ratios: BTreeMap<String, f64>,
    /// What figures are promised to be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bounds: Vec<Bound>,
}

/// A figure that is promised not to be larger than this.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bound {
    /// What it is.
    pub bound: String,
    /// As measured.
    pub value: f64,
    /// As promised.
    pub limit: f64,
    /// Whether the one is within the other.
    pub holds: bool,
}

/// A file that runs are to be of: asked for before anything is begun.
fn configuration(name: &str) -> Result<PathBuf, String> {
    let file = PathBuf::from(name);
    let is_there = file.is_file().then_some(file);
    is_there.ok_or_else(|| "no such file (the project's own are named from its folder)".into())
}

impl Report {
    fn of(bench: &str, cases: Vec<Case>, ratios: BTreeMap<String, f64>) -> Self {
        let (bench, command) = (bench.to_owned(), command_line());
        Self { bench, command, machine: machine(), cases, ratios, bounds: Vec::new() }
    }
}

impl Bound {
    /// A figure that is not a number holds nothing.
    pub fn at_most(bound: &str, value: f64, limit: f64) -> Self {
        Self { bound: bound.into(), value, limit, holds: value <= limit }
    }
}

/// Where a bench ran.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    /// Hardware threads.
    pub cores: usize,
    /// Main memory.
    pub memory_bytes: Option<u64>,
    /// Its MPI compiler wrapper.
    pub mpicc: String,
}

/// One thing measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Case {
    /// Its name.
    pub case: String,
    /// Of min, median, max and phases.
    pub unit: String,
    /// Samples.
    pub n: usize,
    /// Smallest.
    pub min: f64,
    /// Middle.
    pub median: f64,
    /// Largest.
    pub max: f64,
    /// Medians of its parts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub phases: BTreeMap<String, f64>,
    /// Weights and optimizer state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_bytes: Option<u64>,
}

/// This machine.
pub fn machine() -> Machine {
    Machine {
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory_bytes: kintsugi_ffi::cgroup::total_memory_bytes(),
        mpicc: kintsugi_ffi::mpi::mpicc().to_string(),
    }
}

impl Case {
    /// A case of samples in milliseconds; `phases` are samples of its parts.
    pub fn of(name: &str, samples: &[f64], phases: &BTreeMap<String, Vec<f64>>) -> Self {
        Self {
            case: name.to_string(),
            unit: "ms".into(),
            n: samples.len(),
            min: samples.iter().copied().fold(f64::INFINITY, f64::min),
            median: median(samples),
            max: samples.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            phases: phases.iter().map(|(name, part)| (name.clone(), median(part))).collect(),
            state_bytes: None,
        }
    }
}

/// The mpirun that `launch` would take.
fn find_mpirun() -> Result<PathBuf, String> {
    probe_mpi::find_mpirun().map_err(|error| error.to_string())
}

/// For people.
pub fn table(report: &Report) -> String {
    let mut table = Table::new(["case", "n", "min", "median", "max", ""]);
    let figure = |value: &f64| format!("{value:.3}");
    for case in &report.cases {
        let [min, median, max] = [&case.min, &case.median, &case.max].map(figure);
        table.row([case.case.clone(), case.n.to_string(), min, median, max, case.unit.clone()]);
        let alone = |value| ["".into(), "".into(), figure(value)];
        for (name, median) in &case.phases {
            table.row([&[format!("    {name}")], &alone(median)[..]].concat());
        }
    }
    for (name, ratio) in &report.ratios {
        table.row([name.clone(), String::new(), String::new(), figure(ratio)]);
    }
    for Bound { bound, value, limit, holds } in &report.bounds {
        let holds = if *holds { "holds" } else { "MISSED" };
        let (blank, limit) = (String::new(), format!("at most {limit:.3}: {holds}"));
        table.row([bound.clone(), blank.clone(), blank.clone(), figure(value), blank, limit]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_holds_up_to_its_limit_and_not_for_no_figure() {
        assert!(Bound::at_most("a", 1.05, 1.05).holds);
        assert!(!Bound::at_most("a", 1.051, 1.05).holds);
        assert!(!Bound::at_most("a", f64::NAN, 1.05).holds);
    }
}
