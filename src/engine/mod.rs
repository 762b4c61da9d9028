//! Forward and backward on a device. Activation memory belongs to the executor.
//!
//! `compile` turns a graph and a batch size into a `program`: steps over values, each value with
//! the steps between which it lives. `arena` places the values (pure). `weights` holds parameters
//! in the layouts that the steps want. `executor` runs steps. Layers only say which steps they
//! need and which values their backward pass reads: moving exactly these is out-of-core training.

pub mod arena;
pub mod compile;
pub mod device;
pub mod executor;
pub mod layer;
pub mod program;
pub mod weights;

use kintsugi_ffi::dnnl;

/// Why a micro-batch could not be computed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum EngineError {
    #[error("layer `{layer}`: {source}")]
    Layer { layer: String, source: dnnl::Error },
    #[error(transparent)]
    Device(#[from] dnnl::Error),
    #[error("the layout does not describe this graph: {0}")]
    Layout(String),
    #[error("{what}: {given} values given, {wanted} wanted")]
    Length { what: &'static str, given: usize, wanted: usize },
    #[error("label {label} of sample {sample} is not below the {classes} classes of the model")]
    Label { sample: usize, label: u32, classes: usize },
    #[error("no parameters were loaded: call `load` first")]
    NotLoaded,
}
