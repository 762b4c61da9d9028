//! Depthwise convolutions by the own kernels: no plan of cuDNN's is as fast as memory.

use crate::engine::cuda::backend::Settled;
use crate::engine::cuda::call::{At, Call, Launch};
use crate::engine::cuda::depthwise_blocks::DepthwiseBlocks;
use crate::engine::cuda::layout::{LANES, lanes};
use crate::engine::plan::operation::{ProductPass, Refusal, Role, Window};
use crate::engine::plan::tensor::Desc;

/// What the card is told, if it is one; the bias is left.
pub fn depthwise(
    operation: &Settled,
    at: &dyn Fn(Role) -> At,
) -> Option<Result<Vec<Call>, Refusal>> {
    let blocks = DepthwiseBlocks::of(operation)?;
    let Settled::Conv { src, dst, window, pass, .. } = operation else { return None };
    Some(calls(&blocks, src, dst, window, pass, at))
}

fn calls(
    blocks: &DepthwiseBlocks,
    src: &Desc,
    dst: &Desc,
    window: &Window,
    pass: &ProductPass<usize>,
    at: &dyn Fn(Role) -> At,
) -> Result<Vec<Call>, Refusal> {
    let (channels, pitch) = (src.dims[1], lanes(src.dims[1]));
    let DepthwiseBlocks { kernel, strips, width, across, span, sets } = *blocks;
    let chunks = blocks.chunks();
    let launch = |pass: &str, places: [At; 3]| {
        let launch = Launch::of(&format!("depthwise_{pass}_{kernel}"), src.element).at(&places);
        let launch = launch.ints(&src.dims[2..]).ints(&dst.dims[2..]).ints(&[channels, pitch]);
        let launch = launch.ints(&window.kernel).ints(&window.stride).ints(&window.padding);
        let launch = launch.ints(&window.dilation).ints(&strips).ints(&[width, across, span]);
        launch.over([chunks * across * sets, 1])
    };
    match pass {
        ProductPass::Forward { .. } => {
            let places = [at(Role::Src), at(Role::Weights), at(Role::Dst)];
            Ok(vec![launch("forward", places)?])
        }
        ProductPass::BackwardData(_) => {
            let places = [at(Role::Weights), at(Role::DiffDst), at(Role::DiffSrc)];
            Ok(vec![launch("backward_data", places)?])
        }
        ProductPass::BackwardWeights(_) => {
            let partials = at(Role::Scratchpad);
            let places = [at(Role::Src), at(Role::DiffDst), partials];
            let elements = window.kernel[0] * window.kernel[1];
            let together = Launch::new("depthwise_sums").at(&[partials, at(Role::DiffWeights)]);
            let together = together.ints(&[chunks, elements, channels, pitch]);
            let groups = elements * pitch / LANES;
            Ok(vec![launch("backward_weights", places)?, together.over([groups, 1])?])
        }
    }
}
