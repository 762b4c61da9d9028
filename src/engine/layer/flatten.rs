//! Flattening to a vector per sample. Moves nothing where only linear layers read the result:
//! they take four dimensions in any layout.

use kintsugi_ffi::dnnl::Order;

use super::{InputGradients, Layer};
use crate::engine::EngineError;
use crate::engine::program::{Builder, Tensor};
use crate::model::{Graph, LayerKind};

/// `[c, h, w]` as `[c * h * w]`.
pub struct Flatten;

/// Whether all that reads `node` treats four dimensions as it would two.
fn only_linear_reads(graph: &Graph, node: usize) -> bool {
    graph.consumers(node).iter().all(|&to| match graph.nodes[to].kind {
        LayerKind::Linear { .. } => true,
        LayerKind::Relu | LayerKind::Dropout { .. } | LayerKind::Flatten => {
            only_linear_reads(graph, to)
        }
        _ => false,
    })
}

impl Layer for Flatten {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Tensor, EngineError> {
        let last = builder.node + 1 == builder.graph.nodes.len();
        if !last && only_linear_reads(builder.graph, builder.node) {
            return Ok(inputs[0].clone());
        }
        let [features, _, _] = builder.graph.nodes[builder.node].shape;
        let flat = builder.desc(&[builder.batch, features], Order::Plain)?;
        builder.convert(&inputs[0], &flat)
    }

    fn backward(
        &mut self,
        _builder: &mut Builder<'_>,
        gradient: &Tensor,
        _wanted: &[bool],
    ) -> Result<InputGradients, EngineError> {
        // Whoever reads it converts it, dimensions included.
        Ok(vec![Some(gradient.clone())])
    }

    fn saved(&self) -> Vec<Tensor> {
        Vec::new()
    }
}
