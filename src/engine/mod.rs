//! Forward and backward on a device. Everybody outside opens an engine and holds a `Compute`.
//!
//! `plan` is pure: steps over values, while and where each lives, what backward reads. `cpu` has
//! the kernels that realise a plan, and runs it; another device has its own beside it.

mod compute;
mod cpu;
mod error;
pub mod plan;
mod source;

pub use compute::{Compute, Outcome};
pub use error::EngineError;
pub use source::{Flat, WeightSource};

use crate::config::{ConfigError, Device};
use crate::model::{Graph, Layout};
use cpu::executor::Executor;
use plan::tensor::ElementType;

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
    let Some(element) = ElementType::of_precision(&device.precision) else {
        return not_yet("device.precision", &device.precision, "\"f32\"");
    };
    match device.kind.as_str() {
        "cpu" | "auto" => Ok(Box::new(Executor::new(graph, layout, element, threads)?)),
        kind => not_yet("device.kind", kind, "\"cpu\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{catalogue, layout};

    #[test]
    fn what_this_version_lacks_is_refused_as_the_configuration_refuses_it() {
        let graph = catalogue::build("mlp", [3, 8, 8], 10, 0.1).expect("in the catalogue");
        let of = |kind: &str, precision: &str| {
            let device =
                Device { kind: kind.into(), precision: precision.into(), ..Device::default() };
            open(&device, &graph, &layout::of(&graph), 1).map(drop).map_err(|e| e.to_string())
        };
        let refusal = |key: &str, value: &str, instead: &str| {
            Err(ConfigError::not_yet(key, value, instead).to_string())
        };
        assert_eq!(of("auto", "f32"), Ok(()));
        assert_eq!(of("cpu", "bf16"), refusal("device.precision", "\"bf16\"", "\"f32\""));
        assert_eq!(of("cpu", "f8"), refusal("device.precision", "\"f8\"", "\"f32\""));
        assert_eq!(of("cuda", "f32"), refusal("device.kind", "\"cuda\"", "\"cpu\""));
    }
}
