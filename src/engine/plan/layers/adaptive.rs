//! Average pooling to a size, whatever the image's is. Where the size divides it, all windows are
//! of one size; else they overlap by an element here and there, and no kernel knows them.

use super::pool::Pool;
use crate::engine::error::EngineError;
use crate::engine::plan::adaptive::{Adaptive, Pass};
use crate::engine::plan::builder::Builder;
use crate::engine::plan::layer::{Forward, InputGradients, Kept, Layer};
use crate::engine::plan::steps::Action;
use crate::engine::plan::tensor::Tensor;
use crate::model::window::{AvgPool, Pair};

/// How it is done.
pub enum AdaptiveAverage {
    /// Not known before the forward pass.
    Unplanned,
    /// The image has this size.
    Same,
    /// Windows of one size.
    Even(Pool),
    /// Windows of several.
    Uneven,
}

impl AdaptiveAverage {
    fn windows(builder: &Builder<'_>) -> Adaptive {
        let graph = builder.request.graph;
        let node = &graph.nodes[builder.node];
        let [channels, height, width] = graph.shape_of(node.inputs[0]);
        let [_, rows, columns] = node.shape;
        let planes = builder.request.batch * channels;
        Adaptive { planes, from: [height, width], to: [rows, columns] }
    }

    fn plan(windows: &Adaptive) -> Self {
        let Adaptive { from, to, .. } = *windows;
        if from == to {
            return Self::Same;
        }
        if !from[0].is_multiple_of(to[0]) || !from[1].is_multiple_of(to[1]) {
            return Self::Uneven;
        }
        let kernel = Pair([from[0] / to[0], from[1] / to[1]]);
        Self::Even(Pool::average(AvgPool { kernel, stride: kernel, ..AvgPool::new(1, 1) }))
    }
}

/// The step that computes the one from the other, in f32.
fn average(
    builder: &mut Builder<'_>,
    from: &Tensor,
    pass: Pass,
    dims: &[usize],
) -> Result<Tensor, EngineError> {
    let windows = AdaptiveAverage::windows(builder);
    let plain = builder.row_major_f32(&from.desc.dims);
    let from = builder.convert(from, &plain)?;
    let to = builder.value(builder.row_major_f32(dims));
    if let Some(value) = to.place.value() {
        let reads = from.place.value().into_iter().collect();
        let action = Action::Average { windows, pass, from: from.place, to: value };
        builder.step(action, reads, vec![value]);
    }
    builder.plain(&to)
}

impl Layer for AdaptiveAverage {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Forward, EngineError> {
        let windows = Self::windows(builder);
        *self = Self::plan(&windows);
        let graph = builder.request.graph;
        let node = &graph.nodes[builder.node];
        match self {
            Self::Even(pool) => pool.forward(builder, inputs),
            Self::Unplanned | Self::Same => Ok(Forward::new(inputs[0].clone(), inputs[0].clone())),
            Self::Uneven => {
                let input = builder.spatial(&inputs[0], graph.shape_of(node.inputs[0]))?;
                let to = builder.dims(node.shape);
                let output = average(builder, &input, Pass::Forward, &to)?;
                Ok(Forward::new(input, output))
            }
        }
    }

    fn backward(
        &mut self,
        builder: &mut Builder<'_>,
        kept: &Kept,
        gradient: &Tensor,
        wanted: &[bool],
    ) -> Result<InputGradients, EngineError> {
        match self {
            Self::Even(pool) => pool.backward(builder, kept, gradient, wanted),
            Self::Unplanned | Self::Same => Ok(vec![Some(gradient.clone())]),
            Self::Uneven => {
                let graph = builder.request.graph;
                let node = &graph.nodes[builder.node];
                let gradient = builder.spatial(gradient, node.shape)?;
                let to = builder.dims(graph.shape_of(node.inputs[0]));
                Ok(vec![Some(average(builder, &gradient, Pass::Backward, &to)?)])
            }
        }
    }
}
