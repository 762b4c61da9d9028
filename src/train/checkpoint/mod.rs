//! Checkpoints: a folder `RUN/checkpoints/step-00001234` with `model.safetensors`,
//! `optimizer.safetensors`, `state.bin` and, last, `MANIFEST.json`. `wire` is state.bin, `tensors`
//! the two safetensors files, `manifest` what makes the four one thing, `reading` finds
//! and verifies folders through `Storage`, `store` writes and retires them, `writer` does so behind
//! the loop, `best` says which one stays whatever its age, `weights` takes them in and out
//! (`foreign`: files that others wrote), `interval` says how often.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

use crate::cluster::resident::{Shape, SlotView};
use crate::data::Normalization;
use crate::model::layout::are_below;
use crate::model::parts::{PARAMETERS, STATISTICS};
use crate::model::{Layout, TensorKind};
use crate::observe::refusal::Meaning;

use crate::train::state::digest::{Whereabouts, state_sha256};

pub mod best;
mod differences;
mod foreign;
pub mod interval;
pub mod manifest;
pub mod reading;
pub mod store;
pub mod tensors;
pub mod weights;
pub mod wire;
pub mod writer;

pub use differences::Differences;
pub use foreign::{Answers, Fitted};
pub use interval::{automatic, young_daly};
pub use store::{WriterReport, newest_verified};
pub use wire::TrainState;
pub use writer::{Copying, Ticket, Writer};

/// The whole state after a committed step.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// Names and places of the tensors.
    pub layout: Arc<Layout>,
    /// Catalogue name or file stem.
    pub model_name: String,
    /// Class names in label order.
    pub classes: Vec<String>,
    /// One input sample.
    pub input: crate::model::Shape,
    /// As of `About`.
    pub normalization: Option<Normalization>,
    /// Trained elements.
    pub parameters: Vec<f32>,
    /// Running statistics.
    pub statistics: Vec<f32>,
    /// The optimizer's parts by name, each as long as `parameters`; an average of running
    /// statistics lies behind that of the weights.
    pub optimizer: Vec<(String, Vec<f32>)>,
    /// Everything else.
    pub state: TrainState,
}

impl Snapshot {
    /// The state's digest.
    pub fn state_sha256(&self) -> String {
        let state = &self.state;
        let (step, cursor, seed, order) = (state.step, state.cursor, state.seed, &state.order);
        let position = Whereabouts { step, cursor, seed, order };
        let of_optimizer: Vec<&[f32]> = self.optimizer.iter().map(|(_, part)| &part[..]).collect();
        state_sha256(&self.layout, &self.parameters, &self.statistics, &of_optimizer, position)
    }

    /// Which tensor holds what no weights have. No synchronous step makes one (`optimizer.rs`):
    /// there, memory was damaged.
    pub fn poisoned(&self) -> Option<String> {
        self.layout.tensors.iter().find_map(|tensor| {
            let (own, name) = (tensor.range(), &tensor.name);
            let (values, before) = match tensor.kind {
                TensorKind::Statistic => (&self.statistics, self.layout.parameters),
                TensorKind::Weight | TensorKind::Bias => (&self.parameters, 0),
            };
            let values = &values[own.clone()];
            match tensor.unsound(values) {
                // An earlier release's asynchronous runs have variances below 0.
                Some(_) if tensor.is_variance() && are_below(values, f32::INFINITY) => {}
                Some(what) => return Some(format!("{name} holds {what}")),
                None => {}
            }
            // Nothing where a part has no such tensors.
            let of = |part: &[f32]| {
                let own = part.get(before + own.start..before + own.end);
                own.is_none_or(|own| are_below(own, f32::INFINITY))
            };
            let part = self.optimizer.iter().find(|(_, values)| !of(values));
            part.map(|(part, _)| format!("the {part} of {name} holds a value that is no number"))
        })
    }

    /// The state as a slot of this shape: for `Slots::replace`.
    ///
    /// # Errors
    /// The name of a part that the checkpoint lacks.
    pub fn slot<'a>(&'a self, shape: Shape, extra: &'a [u8]) -> Result<SlotView<'a>, &'static str> {
        let part = |name: &'static str| match name {
            PARAMETERS => Ok(&self.parameters[..]),
            STATISTICS => Ok(&self.statistics[..]),
            _ => {
                let found = self.optimizer.iter().find(|(part, _)| part == name);
                found.map(|(_, values)| &values[..]).ok_or(name)
            }
        };
        let parts: Result<Vec<&[f32]>, _> = shape.parts().iter().map(|p| part(p.name)).collect();
        let (step, generation) = (self.state.step, self.state.generation);
        Ok(SlotView::new(shape, step, generation, &parts?, extra))
    }
}

/// What a run needs a checkpoint to be. `None` is not compared.
#[derive(Debug, Clone, PartialEq)]
pub struct Expectation {
    /// Names and shapes; tensors are found by name.
    pub layout: Arc<Layout>,
    /// As in the configuration.
    pub model_name: String,
    /// Of what decides the arithmetic.
    pub config_fingerprint: Option<u64>,
    /// Of the training set.
    pub data_fingerprint: Option<u64>,
    /// The run that wrote it.
    pub run_id: Option<String>,
}

/// What a checkpoint differs in, where it is the configuration.
pub const CONFIGURATION: &str = "configuration";

/// Why a checkpoint was not written or not taken.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// The storage said no.
    #[error("checkpoint: cannot {action} {path}: {source}{}", advice(source))]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what, relative to the storage's root.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Torn, flipped, incomplete.
    #[error("checkpoint {name} is damaged: {reason}")]
    Damaged {
        /// The folder.
        name: String,
        /// Which file, and how.
        reason: String,
    },
    /// Renamed or removed while it was read.
    #[error(
        "checkpoint {name} is not there any more: the run has retired it meanwhile (it keeps the \
             newest checkpoint.keep); name the run directory, which stands for its newest"
    )]
    Gone {
        /// The folder.
        name: String,
    },
    /// Its state holds what no weights have.
    #[error(
        "checkpoint {name} was not written: {what}: an asynchronous run has diverged, or the \
             memory of this machine is damaged (no synchronous step makes one); older checkpoints \
             stay"
    )]
    Poisoned {
        /// The folder.
        name: String,
        /// The first such tensor, and what of it.
        what: String,
    },
    /// Written by a later release.
    #[error(
        "checkpoint {name} has format {format}; this release reads up to {known}: use a newer \
             kintsugi or another checkpoint"
    )]
    Newer {
        /// The folder.
        name: String,
        /// Its format.
        format: u32,
        /// The newest that is read here.
        known: u32,
    },
    /// Of another model, configuration, data set or run.
    #[error(
        "checkpoint {name} was written with {what} {found}, but this run has {expected}: \
             continue with the old {what}, or start anew in another run directory"
    )]
    Other {
        /// The folder.
        name: String,
        /// "model", `CONFIGURATION`, "training set", "run".
        what: &'static str,
        /// In the checkpoint.
        found: String,
        /// Here.
        expected: String,
    },
    /// There are checkpoints, and none verifies.
    #[error("no checkpoint verifies ({}); put a good one in place, or remove checkpoints/*.bad to \
             start from the first step", .0.join("; "))]
    AllBad(Vec<String>),
    /// A later attempt of the run has taken over.
    #[error("checkpoint {0} was not published: a later attempt of this run has started")]
    CutOff(String),
    /// The writer has one checkpoint in hand and one in its queue.
    #[error("checkpoint {0} was skipped: the one before it is still being written")]
    Busy(String),
    /// The writer's thread is not there.
    #[error("checkpoint {0} was not written: the writer's thread has ended")]
    WriterGone(String),
}

impl CheckpointError {
    /// Whether the storage is full, or this user's share of it.
    pub fn is_without_room(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        let Self::Io { source, .. } = self else { return false };
        matches!(source.kind(), StorageFull | QuotaExceeded)
    }

    /// Whether nothing is known of the checkpoints until a later try.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Io { source, .. } if Meaning::of(source) == Meaning::NotNow)
    }
}

/// What to change when the storage says no.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free some space, or lower checkpoint.keep (and name this run by --run-dir)"
        }
        io::ErrorKind::ReadOnlyFilesystem => "; use a run directory that can be written",
        io::ErrorKind::PermissionDenied => "; check the owner of the run directory",
        _ => "",
    }
}
