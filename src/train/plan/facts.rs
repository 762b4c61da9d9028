//! Constants of the run that its files carry.

use std::sync::Arc;
use std::time::Duration;

use crate::config::{Config, Every};
use crate::data::Normalization;
use crate::data::sampler::Order;
use crate::model::{Layout, Shape};

/// What a checkpoint says besides numbers; the same for the whole run.
#[derive(Debug, Clone, PartialEq)]
pub struct About {
    /// Names and places of the tensors.
    pub layout: Arc<Layout>,
    /// Catalogue name or file stem.
    pub model_name: String,
    /// Class names in label order.
    pub classes: Vec<String>,
    /// One input sample.
    pub input: Shape,
    /// What pictures are normalised with; `None`: nobody knows.
    pub normalization: Option<Normalization>,
}

impl About {
    /// Of a run with these classes and inputs.
    pub fn of(config: &Config, layout: &Arc<Layout>, classes: Vec<String>, input: Shape) -> Self {
        Self {
            layout: Arc::clone(layout),
            model_name: config.model.name.clone(),
            classes,
            input,
            normalization: Some(Normalization::of(&config.data)),
        }
    }
}

/// Constants of the run that its files carry.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Model and classes.
    pub about: About,
    /// Names the run.
    pub run_id: String,
    /// Of what decides the arithmetic.
    pub config_fingerprint: u64,
    /// Of the training set.
    pub data_fingerprint: u64,
    /// `checkpoint.every`.
    pub every: Every,
    /// `checkpoint.keep`.
    pub keep: u32,
    /// `checkpoint.keep_best`: whether those of the best evaluation stay too.
    pub keep_best: bool,
    /// `checkpoint.mtbf`.
    pub mtbf: Duration,
    /// Longest wait for a checkpoint that must be written before the run ends.
    pub last_limit: Duration,
    /// Which samples make which step.
    pub order: Order,
}
