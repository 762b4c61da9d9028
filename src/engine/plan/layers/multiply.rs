//! Element-wise product of two inputs. The second may have one value per channel, as the gates of
//! squeeze-and-excitation have (Hu et al. 2018): its gradient is then summed over height and width.

use super::pointwise;
use crate::engine::error::EngineError;
use crate::engine::plan::builder::Builder;
use crate::engine::plan::layer::{Forward, InputGradients, Kept, Layer};
use crate::engine::plan::operation::{
    Algorithm, Direction, Function, Operation, Pass, Pooling, Role, Window,
};
use crate::engine::plan::tensor::Tensor;
use crate::model::Shape;
use crate::model::saved::Auxiliary;

/// A tensor and its factor.
pub struct Multiply;

/// Shapes of both inputs of this node.
fn shapes(builder: &Builder<'_>) -> [Shape; 2] {
    let graph = builder.request.graph;
    let inputs = &graph.nodes[builder.node].inputs;
    [graph.shape_of(inputs[0]), graph.shape_of(inputs[1])]
}

/// `tensor` times `factor`, in the order of the first.
fn product(
    builder: &mut Builder<'_>,
    tensor: &Tensor,
    factor: &Tensor,
) -> Result<Tensor, EngineError> {
    let desc = tensor.desc.clone();
    let factor = match factor.desc.dims == desc.dims {
        true => builder.convert(factor, &desc)?,
        false => builder.plain(factor)?,
    };
    let choice = builder.choose(&Operation::Binary {
        algorithm: Algorithm::Multiply,
        a: &desc,
        b: &factor.desc,
        to: &desc,
    })?;
    let result = builder.result(&choice, Role::Dst)?;
    let arguments = [(Role::Src, tensor), (Role::Src1, &factor), (Role::Dst, &result)];
    builder.run(&choice, &arguments, &[(tensor, &result)]);
    Ok(result)
}

/// The sum over height and width: their mean, times their number.
fn summed(builder: &mut Builder<'_>, tensor: &Tensor, shape: Shape) -> Result<Tensor, EngineError> {
    let [channels, height, width] = shape;
    let to = builder.any_order(&builder.dims([channels, 1, 1]));
    let choice = builder.choose(&Operation::Pool {
        kind: Pooling::Average,
        src: &tensor.desc,
        dst: &to,
        window: Window::whole([height, width]),
        pass: Pass::Forward(Direction::Inference),
    })?;
    let mean = builder.result(&choice, Role::Dst)?;
    builder.run(&choice, &[(Role::Src, tensor), (Role::Dst, &mean)], &[]);
    pointwise::apply(builder, Function::Scale((height * width) as f32), &mean)
}

impl Layer for Multiply {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Forward, EngineError> {
        let [shape, factor_shape] = shapes(builder);
        let input = builder.spatial(&inputs[0], shape)?;
        let factor = builder.spatial(&inputs[1], factor_shape)?;
        let output = product(builder, &input, &factor)?;
        Ok(Forward { input, output, auxiliary: vec![(Auxiliary::Factor, factor)] })
    }

    fn backward(
        &mut self,
        builder: &mut Builder<'_>,
        kept: &Kept,
        gradient: &Tensor,
        wanted: &[bool],
    ) -> Result<InputGradients, EngineError> {
        let [shape, factor_shape] = shapes(builder);
        let (input, factor) = (kept.input()?, kept.written(Auxiliary::Factor)?);
        let gradient = builder.convert(gradient, &input.desc.clone())?;
        let of_factor = match wanted[1] {
            false => None,
            true => {
                let each = product(builder, &gradient, input)?;
                let whole = factor_shape == shape;
                Some(if whole { each } else { summed(builder, &each, shape)? })
            }
        };
        let of_input = match wanted[0] {
            false => None,
            true => Some(product(builder, &gradient, factor)?),
        };
        Ok(vec![of_input, of_factor])
    }
}
