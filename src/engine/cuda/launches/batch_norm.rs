//! Batch norms: sums of chunks of pixels, these together, then every element.

use crate::engine::cuda::call::{Argument, At, Call, Launch};
use crate::engine::cuda::layout::{elements, pixels};
use crate::engine::cuda::norm_blocks::{Groups, NormBlocks};
use crate::engine::plan::operation::{Direction, Norm, Pass, Refusal, Role, Statistics};
use crate::engine::plan::tensor::Desc;
use crate::model::saved::Activation;

/// Channels of a block that puts chunks together.
const STATISTICS_CHANNELS: usize = 8;
/// Channels of a block that sums planes.
const PLANES_CHANNELS: usize = 256;

/// What every kernel of a batch norm is told.
struct Normed<'a> {
    norm: Norm,
    data: &'a Desc,
    blocks: NormBlocks,
    pixels: usize,
    channels: usize,
    /// Pixels of a plane.
    plane: usize,
}

/// What the card is told.
pub fn batch_norm(
    norm: Norm,
    data: &Desc,
    pass: &Pass<usize>,
    at: &dyn Fn(Role) -> At,
) -> Result<Vec<Call>, Refusal> {
    let plane = data.dims[2..].iter().product();
    let (pixels, channels) = (pixels(data), data.dims[1]);
    let normed = Normed { norm, data, blocks: NormBlocks::new(data), pixels, channels, plane };
    match pass {
        Pass::Forward(direction) => normed.forward(*direction, at),
        Pass::Backward(_) => normed.backward(at),
    }
}

impl Normed<'_> {
    fn has_relu(&self) -> bool {
        self.norm.activation == Activation::Relu
    }

    /// One of the kernels that see the data.
    fn launch(&self, kernel: &str) -> Launch {
        let order = if self.blocks.groups.is_some() { "norm" } else { "norm_planes" };
        Launch::of(&format!("{order}_{kernel}"), self.data.element)
    }

    fn over(&self, launch: Launch, groups: Groups, span: usize) -> Result<Call, Refusal> {
        let Groups { pitch, width, across, .. } = groups;
        let launch = launch.ints(&[self.pixels, self.channels, pitch, width, across, span]);
        launch.over([self.pixels.div_ceil(span) * across, 1])
    }

    /// Over all chunks.
    fn summing(&self, launch: Launch) -> Result<Call, Refusal> {
        let NormBlocks { groups, chunk, chunks } = self.blocks;
        let Some(groups) = groups else {
            let launch = launch.ints(&[chunk, chunks, self.pixels, self.plane, self.channels]);
            return launch.over([chunks, self.channels.div_ceil(PLANES_CHANNELS)]);
        };
        self.over(launch, groups, chunk)
    }

    fn forward(&self, direction: Direction, at: &dyn Fn(Role) -> At) -> Result<Vec<Call>, Refusal> {
        let (src, dst, mean, variance) =
            (at(Role::Src), at(Role::Dst), at(Role::Mean), at(Role::Variance));
        let mut calls = Vec::new();
        if self.norm.statistics == Statistics::Batch {
            let partials = at(Role::Scratchpad);
            calls.push(self.summing(self.launch("partials").at(&[src, partials]))?);
            let launch = Launch::new("norm_statistics").at(&[partials, mean, variance]);
            let NormBlocks { chunk, chunks, .. } = self.blocks;
            let launch = launch.ints(&[chunk, chunks, self.pixels, self.channels]);
            calls.push(launch.over([self.channels.div_ceil(STATISTICS_CHANNELS), 1])?);
        }
        let keeps = self.has_relu() && direction == Direction::Training;
        let kept = if keeps { at(Role::Workspace) } else { dst };
        let places = [src, mean, variance, at(Role::Scale), at(Role::Shift), dst, kept];
        let launch = self.launch("forward").at(&places);
        let launch = launch.ints(&[usize::from(keeps), usize::from(self.has_relu())]);
        let launch = launch.arguments(&[Argument::Float(self.norm.epsilon)]);
        calls.push(match self.blocks.groups {
            Some(groups) => self.over(launch, groups, groups.span)?,
            None => {
                let count = elements(self.data);
                launch.ints(&[count, self.plane, self.channels]).threads(count)?
            }
        });
        Ok(calls)
    }

    fn backward(&self, at: &dyn Fn(Role) -> At) -> Result<Vec<Call>, Refusal> {
        let epsilon = [Argument::Float(self.norm.epsilon)];
        let (src, scale, partials) = (at(Role::Src), at(Role::Scale), at(Role::Scratchpad));
        let moments = [at(Role::Mean), at(Role::Variance), scale];
        let kept = if self.has_relu() { at(Role::Workspace) } else { src };
        let seen = [src, at(Role::DiffDst), kept];
        let relu = [usize::from(self.has_relu())];
        let launch = self.launch("backward_partials").at(&seen).ints(&relu).at(&moments);
        let sums = self.summing(launch.arguments(&epsilon).at(&[partials]))?;
        let gradients = [at(Role::DiffShift), at(Role::DiffScale)];
        let launch = Launch::new("norm_sums").at(&[partials]).at(&gradients);
        let launch = launch.ints(&[self.blocks.chunks, self.channels]);
        let summed = launch.over([self.channels.div_ceil(STATISTICS_CHANNELS), 1])?;
        let running = usize::from(self.norm.statistics == Statistics::Running);
        let launch = self.launch("backward").at(&seen).ints(&relu).at(&moments).at(&gradients);
        let launch = launch.arguments(&epsilon).ints(&[running]).at(&[at(Role::DiffSrc)]);
        let all = match self.blocks.groups {
            Some(groups) => self.over(launch, groups, groups.span)?,
            None => {
                let count = elements(self.data);
                launch.ints(&[count, self.pixels, self.plane, self.channels]).threads(count)?
            }
        };
        Ok(vec![sums, summed, all])
    }
}
