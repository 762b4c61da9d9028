//! Batch norms: sums of chunks of pixels, these in order, then every element.

use crate::engine::cuda::backend::{chunks, pixels};
use crate::engine::cuda::call::{Argument, At, Call, Launch, THREADS};
use crate::engine::cuda::layout::{CHANNELS_LAST, elements, lanes};
use crate::engine::plan::operation::{Direction, Norm, Pass, Refusal, Role, Statistics};
use crate::engine::plan::tensor::Desc;
use crate::model::saved::Activation;

/// What every kernel of a batch norm is told.
struct Normed<'a> {
    norm: Norm,
    data: &'a Desc,
    /// How a pixel and a channel are found: pixels, those of a plane, channels, lanes of a pixel.
    address: [usize; 4],
    /// Pixels of a block, and how many blocks.
    chunks: [usize; 2],
}

/// What the card is told.
pub fn batch_norm(
    norm: Norm,
    data: &Desc,
    pass: &Pass<usize>,
    at: &dyn Fn(Role) -> At,
) -> Result<Vec<Call>, Refusal> {
    let (pixels, c) = (pixels(data), data.dims[1]);
    let pitch = if data.order == CHANNELS_LAST { lanes(c) } else { 0 };
    let address = [pixels, data.dims[2..].iter().product(), c, pitch];
    let (chunk, count) = chunks(pixels);
    let normed = Normed { norm, data, address, chunks: [chunk, count] };
    match pass {
        Pass::Forward(direction) => normed.forward(*direction, at),
        Pass::Backward(_) => normed.backward(at),
    }
}

impl Normed<'_> {
    fn has_relu(&self) -> bool {
        self.norm.activation == Activation::Relu
    }

    /// A block for each chunk, and for each of so many channels.
    fn grid(&self) -> [usize; 2] {
        [self.chunks[1], self.address[2].div_ceil(THREADS)]
    }

    fn forward(&self, direction: Direction, at: &dyn Fn(Role) -> At) -> Result<Vec<Call>, Refusal> {
        let (element, c) = (self.data.element, self.address[2]);
        let (src, dst, mean, variance) =
            (at(Role::Src), at(Role::Dst), at(Role::Mean), at(Role::Variance));
        let mut calls = Vec::new();
        if self.norm.statistics == Statistics::Batch {
            let partials = at(Role::Scratchpad);
            let launch = Launch::of("norm_partials", element).at(&[src, partials]);
            calls.push(launch.ints(&self.chunks).ints(&self.address).over(self.grid())?);
            let launch = Launch::new("norm_statistics").at(&[partials, mean, variance]);
            calls.push(launch.ints(&self.chunks).ints(&[self.address[0], c]).threads(c)?);
        }
        let kept = self.has_relu() && direction == Direction::Training;
        let mask = if kept { at(Role::Workspace) } else { dst };
        let places = [src, mean, variance, at(Role::Scale), at(Role::Shift), dst, mask];
        let launch = Launch::of("norm_forward", element).at(&places);
        let launch = launch.ints(&[usize::from(kept), usize::from(self.has_relu())]);
        let launch = launch.arguments(&[Argument::Float(self.norm.epsilon)]);
        let launch = launch.ints(&[elements(self.data)]).ints(&self.address);
        calls.push(launch.threads(elements(self.data))?);
        Ok(calls)
    }

    fn backward(&self, at: &dyn Fn(Role) -> At) -> Result<Vec<Call>, Refusal> {
        let (element, c, epsilon) =
            (self.data.element, self.address[2], [Argument::Float(self.norm.epsilon)]);
        let (src, gradient, mean, variance) =
            (at(Role::Src), at(Role::DiffDst), at(Role::Mean), at(Role::Variance));
        let mask = if self.has_relu() { at(Role::Workspace) } else { src };
        let masked = [usize::from(self.has_relu())];
        let partials = at(Role::Scratchpad);
        let launch = Launch::of("norm_backward_partials", element).at(&[src, gradient, mask]);
        let launch = launch.ints(&masked).at(&[mean, variance]).arguments(&epsilon);
        let launch = launch.at(&[partials]).ints(&self.chunks).ints(&self.address);
        let sums = launch.over(self.grid())?;
        let (shift, scale) = (at(Role::DiffShift), at(Role::DiffScale));
        let launch = Launch::new("norm_sums").at(&[partials, shift, scale]);
        let gradients = launch.ints(&[self.chunks[1], c]).threads(c)?;
        let running = usize::from(self.norm.statistics == Statistics::Running);
        let launch = Launch::of("norm_backward", element).at(&[src, gradient, mask]);
        let launch = launch.ints(&masked);
        let launch = launch.at(&[mean, variance, at(Role::Scale), shift, scale]);
        let launch = launch.arguments(&epsilon).ints(&[running]).at(&[at(Role::DiffSrc)]);
        let launch = launch.ints(&[elements(self.data)]).ints(&self.address);
        Ok(vec![sums, gradients, launch.threads(elements(self.data))?])
    }
}
