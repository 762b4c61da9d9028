//! `results.json`: what was run and what came of it, rewritten after every run, so that nothing is
//! lost when a later one fails; and the way back from it to a study for the report.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::file::Experiment;
use super::plan::PlannedRun;
use crate::config::Shown;
use crate::lab::report::best::{Best, best};
use crate::lab::report::read::read_run;
use crate::lab::report::scaling::{Slope, slopes};
use crate::lab::report::summary::{RunSummary, summarise};
use crate::lab::report::{PageRoom, Paper, Study, few, html, which};
use crate::observe::machine::machine;
use crate::observe::storage::{FileSystem, Storage};

/// The file, below the experiment's folder.
pub const RESULTS_FILE: &str = "results.json";
/// The page beside it.
pub const REPORT_FILE: &str = "report.html";

/// What the report needs to know beside the run directories.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Index {
    /// The experiment's title.
    pub title: String,
    /// Its description.
    pub description: String,
    /// The command line that made it.
    pub command: String,
    /// The experiment file's text.
    pub experiment: String,
    /// The machine, in words.
    pub machine: String,
    /// T, where time ends the runs.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// All runs, by name.
    #[serde(default)]
    pub planned: Vec<String>,
    /// What a paper says, by arm.
    #[serde(default)]
    pub paper: BTreeMap<String, Paper>,
    /// The runs made so far: arm and folder below the experiment's.
    pub runs: Vec<Entry>,
}

/// One run of the index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Entry {
    pub arm: String,
    pub seed: u64,
    pub folder: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<PageRoom>,
}

/// The whole file.
#[derive(Debug, Serialize)]
struct Results<'a> {
    #[serde(flatten)]
    index: &'a Index,
    best: Option<Best>,
    slopes: Vec<Slope>,
    summaries: &'a [RunSummary],
}

impl Index {
    /// Nothing made yet.
    pub fn new(experiment: &Experiment, text: &str, plan: &[PlannedRun], command: String) -> Self {
        let mut description = experiment.description.trim().to_owned();
        if let Some(seconds) = experiment.seconds {
            description.push_str(&format!(" T = {seconds} s."));
        }
        let ranks = experiment.arms.first().map(|arm| experiment.ranks(arm));
        let alike = |ranks: &u32| experiment.arms.iter().all(|arm| experiment.ranks(arm) == *ranks);
        if let Some(ranks) = ranks.filter(alike) {
            let ranks = if ranks == 1 { "One rank".into() } else { format!("{ranks} ranks") };
            description.push_str(&format!(" {ranks}."));
        }
        Self {
            title: experiment.title.clone(),
            description: description.trim().to_owned(),
            command,
            experiment: text.to_string(),
            machine: machine(),
            seconds: experiment.seconds,
            planned: plan.iter().map(PlannedRun::name).collect(),
            paper: experiment.paper.clone(),
            runs: Vec::new(),
        }
    }

    /// So many runs were made at a time, on so many processors each.
    pub fn side_by_side(&mut self, jobs: usize, processors: usize) {
        let each =
            if processors == 1 { "one processor" } else { &format!("{processors} processors") };
        let places = format!("; {jobs} runs at a time, each on {each}, changing places");
        self.machine.push_str(&places);
    }

    /// Adds a run that left a directory; `room`: what it had for pages of files.
    pub fn add(&mut self, run: &PlannedRun, room: Option<PageRoom>) {
        let folder = PathBuf::from(&run.folder);
        self.runs.push(Entry { arm: run.arm.clone(), seed: run.seed, folder, room });
        // Of several at a time a later one may end first.
        let (planned, name) = (&self.planned, |run: &Entry| which(&run.arm, run.seed));
        self.runs.sort_by_key(|run| planned.iter().position(|one| *one == name(run)));
    }

    /// Runs that are planned and not there, in words.
    pub fn missing(&self) -> Option<String> {
        let made = |name: &&String| self.runs.iter().any(|run| which(&run.arm, run.seed) == **name);
        let missing: Vec<String> =
            self.planned.iter().filter(|name| !made(name)).cloned().collect();
        let (count, all) = (missing.len(), self.planned.len());
        (count > 0).then(|| format!("Not here, of {all} runs: {count} ({}).", few(&missing)))
    }

    /// Reads the index of a finished or unfinished experiment.
    pub fn read(out: &Path) -> io::Result<Self> {
        let path = out.join(RESULTS_FILE);
        let text = std::fs::read(&path)?;
        serde_json::from_slice(&text).map_err(|error| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.shown()))
        })
    }

    /// The study that its run directories make.
    pub fn study(&self, out: &Path) -> io::Result<Study> {
        let mut runs = Vec::new();
        for entry in &self.runs {
            let mut run = read_run(&out.join(&entry.folder), Some(&entry.arm))?;
            run.seed = entry.seed;
            run.room = entry.room;
            run.paper = self.paper.get(&entry.arm).copied().unwrap_or_default();
            run.path = entry.folder.to_string_lossy().into_owned();
            runs.push(run);
        }
        let description = [Some(self.description.clone()), self.missing()];
        // Runs are made seed by seed; the arms keep the order of the first seed.
        Ok(Study {
            title: self.title.clone(),
            description: description.into_iter().flatten().collect::<Vec<_>>().join(" "),
            command: self.command.clone(),
            experiment: Some(self.experiment.clone()),
            machine: self.machine.clone(),
            runs,
        })
    }

    /// Writes `results.json` and `report.html`. Returns what they say.
    pub fn write(&self, out: &Path) -> io::Result<(Study, Vec<RunSummary>)> {
        let study = self.study(out)?;
        let summaries = summarise(&study);
        let best = best(&study, &summaries);
        let slopes = slopes(&study, &summaries);
        let results = Results { index: self, best, slopes, summaries: &summaries };
        let storage = FileSystem::new(out);
        let text = serde_json::to_vec_pretty(&results)?;
        storage.write_whole(Path::new(RESULTS_FILE), &[&text])?;
        storage.write_whole(Path::new(REPORT_FILE), &[html(&study).as_bytes()])?;
        Ok((study, summaries))
    }
}
