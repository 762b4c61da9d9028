//! What a product leaves to be done: the bias and the activation, and the bias's gradient.

use super::elementwise::pointwise;
use crate::engine::cuda::backend::bias_parts;
use crate::engine::cuda::call::{At, Call, Launch};
use crate::engine::cuda::layout::{elements, pitch, pixels};
use crate::engine::plan::operation::{Function, Pass, ProductPass, Refusal, Role};
use crate::engine::plan::tensor::Desc;
use crate::model::saved::Activation;

/// What the card is told when the product is there. Forward it has been rounded: the bias is added
/// to that. Backward, with respect to weights, the scratchpad is free.
pub fn finished(
    dst: &Desc,
    has_bias: bool,
    pass: &ProductPass<usize>,
    at: &dyn Fn(Role) -> At,
) -> Result<Vec<Call>, Refusal> {
    match pass {
        ProductPass::Forward { activation, .. } if has_bias => {
            Ok(vec![added(dst, *activation, at(Role::Dst), at(Role::Bias))?])
        }
        ProductPass::Forward { activation: Activation::Relu, direction } => {
            let to = at(Role::Dst);
            let pass = Pass::Forward(*direction);
            Ok(vec![pointwise(Function::Relu, dst, &pass, &|_| to)?])
        }
        ProductPass::BackwardWeights(_) if has_bias => summed(dst, at),
        _ => Ok(Vec::new()),
    }
}

/// Adds the bias, in place.
fn added(dst: &Desc, activation: Activation, to: At, bias: At) -> Result<Call, Refusal> {
    let relu = usize::from(activation == Activation::Relu);
    let launch = Launch::of("add_bias", dst.element).at(&[to, bias]);
    let launch = launch.ints(&[relu, elements(dst), dst.dims[1], pitch(dst)]);
    launch.threads(elements(dst))
}

/// Sums a result's gradient over all pixels. Many of them are a matrix of fewer and longer rows
/// first, whose columns are parts of channels.
fn summed(dst: &Desc, at: &dyn Fn(Role) -> At) -> Result<Vec<Call>, Refusal> {
    let (from, to) = (at(Role::DiffDst), at(Role::DiffBias));
    let (channels, pitch, parts) = (dst.dims[1], pitch(dst), bias_parts(dst));
    let launch = Launch::of("column_sums", dst.element);
    if parts == 1 {
        let launch = launch.at(&[from, to]).ints(&[pixels(dst), channels, pitch]);
        return Ok(vec![launch.threads(channels)?]);
    }
    let (partials, wide) = (at(Role::Scratchpad), parts * pitch);
    let launch = launch.at(&[from, partials]).ints(&[pixels(dst) / parts, wide, wide]);
    let together = Launch::new("row_sums").at(&[partials, to]).ints(&[parts, channels, pitch]);
    Ok(vec![launch.threads(wide)?, together.threads(channels)?])
}
