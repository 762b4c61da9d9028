//! The file of measures, and what it means.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use crate::config::{Bytes, Device, Memory, MemoryMode, MemoryPolicy, Rate, Shown};
use crate::engine::memory::limits::Limits;
use crate::lab::bench::step::Shape;

/// The whole file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Study {
    /// The page's heading.
    pub title: String,
    /// What it is about, in a sentence or two.
    #[serde(default)]
    pub description: String,
    /// Part by part.
    #[serde(rename = "measure")]
    pub measures: Vec<Measure>,
}

/// One of them.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Measure {
    /// The largest micro-batch within a budget.
    LargestBatch(LargestBatch),
    /// What leaves for the far tier.
    FarTier(FarTier),
    /// What a step takes.
    StepTime(StepTime),
    /// What a driver does with managed memory.
    ManagedMemory(ManagedMemory),
    /// Memory of the host that is pinned for a far tier, or left to files.
    PinnedOrCached(PinnedOrCached),
}

/// `kind = "largest_batch"`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LargestBatch {
    /// Its heading.
    pub title: String,
    /// Bytes of the near tier.
    pub budget: Bytes,
    /// Catalogue names, and model files relative to this one.
    pub models: Vec<String>,
    /// Widths and heights.
    pub image_sizes: Vec<u32>,
    /// The first is what the others are compared with.
    #[serde(rename = "case")]
    pub cases: Vec<Case>,
    /// Whether a step of the largest is computed, too.
    #[serde(default)]
    pub confirm: Confirm,
}

/// Whether what was placed is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confirm {
    /// No.
    #[default]
    Nothing,
    /// A step of the largest micro-batch.
    Step,
}

/// A way to hold values.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// In the report.
    pub name: String,
    /// Keys of `[memory]`.
    #[serde(default)]
    pub memory: Memory,
    /// Of the link's rate: 1, or less where the process computes on the wrong node (simulated).
    #[serde(default = "whole")]
    pub link_share: f64,
    /// Figures of a paper: of the largest batches by `"model size"`, of others by model.
    #[serde(default)]
    pub paper: BTreeMap<String, f64>,
}

fn whole() -> f64 {
    1.0
}

/// `kind = "far_tier"`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FarTier {
    /// Its heading.
    pub title: String,
    /// As in `LargestBatch`.
    pub models: Vec<String>,
    /// Width and height.
    pub image_size: u32,
    /// Samples.
    pub batch: usize,
    /// Ways to hold values.
    #[serde(rename = "case")]
    pub cases: Vec<Case>,
    /// What the paper says of memory, by model; perhaps of so many processes.
    #[serde(default)]
    pub paper: BTreeMap<String, Bytes>,
    /// See `paper`.
    #[serde(default = "one_process")]
    pub processes: u64,
}

/// `kind = "step_time"`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepTime {
    /// Its heading.
    pub title: String,
    /// As in `LargestBatch`.
    pub models: Vec<String>,
    /// Width and height.
    pub image_size: u32,
    /// Samples of a step, each a point.
    pub batches: Vec<usize>,
    /// The near tier is what so many samples take in core; unset: whatever is needed.
    #[serde(default)]
    pub budget_batch: Option<usize>,
    /// Computing threads.
    #[serde(default = "one")]
    pub threads: usize,
    /// Steps of each point.
    #[serde(default = "few")]
    pub steps: usize,
    /// Links, each a point; unset: copies are as fast as they go.
    #[serde(default, rename = "link")]
    pub links: Vec<Speed>,
    /// What is drawn over the batch.
    #[serde(default)]
    pub drawn: Drawn,
    /// The first is what the others are compared with.
    #[serde(rename = "case")]
    pub cases: Vec<Case>,
}

fn one_process() -> u64 {
    1
}

fn one() -> usize {
    1
}

fn few() -> usize {
    3
}

/// A link.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Speed {
    /// In the report.
    pub name: String,
    /// Of the rate at which all that the first model's backward pass reads crosses once while a
    /// step is computed in core.
    pub times: f64,
}

/// What a figure shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Drawn {
    /// Time of an image.
    #[default]
    SecondsPerImage,
    /// Images in a second.
    ImagesPerSecond,
}

/// `kind = "managed_memory"`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManagedMemory {
    /// Its heading.
    pub title: String,
    /// Which of the used units leaves first.
    #[serde(default)]
    pub policy: MemoryPolicy,
}

/// `kind = "pinned_or_cached"`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PinnedOrCached {
    /// Its heading.
    pub title: String,
    /// As in `LargestBatch`.
    pub model: String,
    /// Width and height.
    pub image_size: u32,
    /// Samples of a step.
    pub batch: usize,
    /// The near tier is what so many samples take in core.
    pub budget_batch: usize,
    /// What the host has for the far tier and for files.
    pub host_memory: Bytes,
    /// All samples, encoded.
    pub data_set: Bytes,
    /// One of them.
    pub sample: Bytes,
    /// At which what is not in memory is read.
    pub storage: Rate,
}

impl Measure {
    /// Its heading.
    pub fn title(&self) -> &str {
        match self {
            Self::LargestBatch(of) => &of.title,
            Self::FarTier(of) => &of.title,
            Self::StepTime(of) => &of.title,
            Self::ManagedMemory(of) => &of.title,
            Self::PinnedOrCached(of) => &of.title,
        }
    }

    fn models(&mut self) -> &mut [String] {
        match self {
            Self::LargestBatch(of) => &mut of.models,
            Self::FarTier(of) => &mut of.models,
            Self::StepTime(of) => &mut of.models,
            Self::ManagedMemory(_) => &mut [],
            Self::PinnedOrCached(of) => std::slice::from_mut(&mut of.model),
        }
    }

    /// Its models, and how large pictures are for them.
    fn shapes(&self) -> Vec<Shape> {
        let all = |models: &[String], image_size: u32| {
            models.iter().map(|model| shape(model, image_size, 1, 1)).collect::<Vec<_>>()
        };
        match self {
            Self::LargestBatch(of) => {
                of.image_sizes.iter().flat_map(|size| all(&of.models, *size)).collect()
            }
            Self::FarTier(of) => all(&of.models, of.image_size),
            Self::StepTime(of) => all(&of.models, of.image_size),
            Self::ManagedMemory(_) => Vec::new(),
            Self::PinnedOrCached(of) => all(std::slice::from_ref(&of.model), of.image_size),
        }
    }

    fn cases(&self) -> &[Case] {
        match self {
            Self::LargestBatch(of) => &of.cases,
            Self::FarTier(of) => &of.cases,
            Self::StepTime(of) => &of.cases,
            Self::ManagedMemory(_) | Self::PinnedOrCached(_) => &[],
        }
    }

    /// What its papers' figures may be of.
    fn subjects(&self) -> Vec<String> {
        match self {
            Self::LargestBatch(of) => {
                let sizes = |model: &String| {
                    let name = name_of_model(model);
                    of.image_sizes.iter().map(move |size| format!("{name} {size}"))
                };
                of.models.iter().flat_map(sizes).collect()
            }
            Self::FarTier(of) => of.models.iter().map(|model| name_of_model(model)).collect(),
            Self::StepTime(of) => of.models.iter().map(|model| name_of_model(model)).collect(),
            Self::ManagedMemory(_) | Self::PinnedOrCached(_) => Vec::new(),
        }
    }

    fn check(&self) -> Result<(), String> {
        let subjects = self.subjects();
        for case in self.cases() {
            let strange = case.paper.keys().find(|subject| !subjects.contains(subject));
            if let Some(strange) = strange {
                return Err(format!("paper.\"{}\": write one of {subjects:?}", strange.shown()));
            }
            if case.memory.link.is_some() {
                return Err("memory.link: write [[measure.link]] instead".into());
            }
            let is_timed = matches!(self, Self::StepTime(_));
            if !(0.01..=1.0).contains(&case.link_share) || case.link_share < 1.0 && !is_timed {
                return Err("link_share: of a step_time, from 0.01 to 1".into());
            }
        }
        let (cases, models) = (self.cases().len(), subjects.len());
        match self {
            Self::LargestBatch(_) | Self::FarTier(_) | Self::StepTime(_)
                if cases == 0 || models == 0 =>
            {
                Err("models, case: name one at least".into())
            }
            Self::LargestBatch(of) if of.cases.iter().any(Case::is_unified) => {
                Err("memory.mode = \"unified\": it has no least; write another".into())
            }
            Self::FarTier(FarTier { batch: 0, .. })
            | Self::PinnedOrCached(PinnedOrCached { batch: 0, .. })
            | Self::PinnedOrCached(PinnedOrCached { budget_batch: 0, .. })
            | Self::StepTime(StepTime { budget_batch: Some(0), .. }) => {
                Err("batch, budget_batch: write 1 or more".into())
            }
            Self::StepTime(of)
                if of.links.len() < 2 && of.cases.iter().any(|case| !case.paper.is_empty()) =>
            {
                Err("case.paper: of a step_time it is what the fastest link gains over the \
                     slowest: write two links at least"
                    .into())
            }
            Self::FarTier(of) if of.paper.keys().any(|model| !subjects.contains(model)) => {
                Err(format!("paper: write some of {subjects:?}"))
            }
            Self::FarTier(of) if !(1..=4096).contains(&of.processes) => {
                Err("processes: write 1 to 4096".into())
            }
            Self::StepTime(of) => {
                let counts = [&of.batches[..], &[of.threads, of.steps]].concat();
                let is_slow = |speed: &Speed| !(0.001..=1000.0).contains(&speed.times);
                match () {
                    () if counts.contains(&0) => {
                        Err("batches, threads, steps: write 1 or more".into())
                    }
                    () if of.links.iter().any(is_slow) => {
                        Err("link.times: write 0.001 to 1000".into())
                    }
                    () => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}

impl Case {
    fn is_unified(&self) -> bool {
        self.memory.mode == MemoryMode::Unified
    }

    /// What an engine may hold.
    pub fn limits(&self, budget_bytes: Option<u64>) -> Limits {
        let budget_bytes = budget_bytes.map(|bytes| bytes as usize);
        let limits = Limits::of_worker(&Device::default(), &self.memory, 1);
        Limits { budget_bytes, ..limits }
    }
}

impl Study {
    /// Reads a file of measures, and its text; `None`: it has none.
    ///
    /// # Errors
    /// What is wrong with it, for a person.
    pub fn load(path: &Path) -> Result<Option<(Self, String)>, String> {
        let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", path.shown());
        let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
        let table: toml::Table = toml::from_str(&text).map_err(|error| wrong(&error))?;
        if !table.contains_key("measure") {
            return Ok(None);
        }
        let mut study: Self = toml::from_str(&text).map_err(|error| wrong(&error))?;
        let beside = path.parent().unwrap_or(Path::new(""));
        for measure in &mut study.measures {
            measure.check().map_err(|error| wrong(&format!("{}: {error}", measure.title())))?;
            let files = measure.models().iter_mut().filter(|model| model.ends_with(".toml"));
            files.for_each(|model| *model = beside.join(&*model).to_string_lossy().into_owned());
        }
        Ok(Some((study, text)))
    }

    /// Builds every model once at each of its sizes. How many that were.
    ///
    /// # Errors
    /// All that cannot be built, with the measures that want them.
    pub fn build_models(&self) -> Result<usize, String> {
        let (mut seen, mut wrong) = (BTreeSet::new(), Vec::new());
        for measure in &self.measures {
            for shape in measure.shapes() {
                if seen.insert((shape.model.clone(), shape.image_size))
                    && let Err(reason) = shape.built()
                {
                    wrong.push(format!("{}: {reason}", measure.title()));
                }
            }
        }
        if wrong.is_empty() { Ok(seen.len()) } else { Err(wrong.join("\n")) }
    }
}

/// As it is told: of a file its stem.
pub fn name_of_model(model: &str) -> String {
    let stem = Path::new(model).file_stem().filter(|_| model.ends_with(".toml"));
    stem.map_or(model.into(), |stem| stem.to_string_lossy().into_owned())
}

/// A step of this model.
pub fn shape(model: &str, image_size: u32, batch: usize, threads: usize) -> Shape {
    Shape { model: model.into(), image_size, batch, threads }
}
