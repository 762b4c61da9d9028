//! Forward and backward on a device. Everybody outside opens an engine and holds a `Compute`.
//!
//! `compile` turns a graph and a batch size into a `program`: steps over values, each value with
//! the steps between which it lives. `arena` places the values (pure). `weights` holds parameters
//! in the layouts that the steps want. `cpu` runs steps. Layers only say which steps they need and
//! which values their backward pass reads: moving exactly these is out-of-core training.

mod arena;
mod compile;
mod compute;
mod cpu;
mod error;
mod layer;
mod program;
mod weights;

pub use compute::{Compute, Outcome};
pub use error::EngineError;

use crate::config::{ConfigError, Device};
use crate::model::{Graph, Layout};

/// An engine for the calling thread on a device, with a team of `threads` OpenMP threads (a
/// constant of the run: it decides the last bits). `layout` must be the graph's own. A device or
/// precision that this version lacks is refused as the configuration refuses it.
pub fn open(
    device: &Device,
    graph: &Graph,
    layout: &Layout,
    threads: usize,
) -> Result<Box<dyn Compute>, EngineError> {
    let not_yet = |key: &str, value: &str, instead: &str| {
        let refusal = ConfigError::not_yet(key, &format!("{value:?}"), instead);
        Err(EngineError::Device(refusal.to_string()))
    };
    if device.precision != "f32" {
        return not_yet("device.precision", &device.precision, "\"f32\"");
    }
    match device.kind.as_str() {
        "cpu" | "auto" => Ok(Box::new(cpu::executor::Executor::new(graph, layout, threads)?)),
        kind => not_yet("device.kind", kind, "\"cpu\""),
    }
}
