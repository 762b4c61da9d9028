//! The card as a plan's backend: how each operation's tensors lie, and what it needs besides.
//! There is one kernel for each, so that choosing is settling what was left open. Pure.

use super::layout::{self, CHANNELS_LAST, elements};
use crate::engine::plan::operation::{
    Argument, Backend, Choice, Direction, Kernel, Operation, Pass, Pooling, ProductPass, Refusal,
    Role, Statistics,
};
use crate::engine::plan::tensor::{Desc, ElementType, Order};
use crate::model::saved::Activation;

/// An operation whose tensors lie somehow.
pub type Settled = kintsugi_ffi::operation::Operation<Desc, Kernel>;

/// Pixels of which one block of a batch norm sums, at least, and the most blocks of a channel. Both
/// decide the order of sums, so they follow from sizes alone, never from the card.
const CHUNK_PIXELS_MIN: usize = 64;
const CHUNKS_MAX: usize = 512;

/// What one plan chose.
#[derive(Default)]
pub struct Cuda {
    chosen: Vec<Settled>,
}

impl Cuda {
    /// An operation that was chosen.
    pub fn operation(&self, kernel: Kernel) -> &Settled {
        &self.chosen[kernel]
    }
}

impl Backend for Cuda {
    fn choose(&mut self, operation: &Operation<'_>) -> Result<Choice, Refusal> {
        let chosen = settle(operation)?;
        let roles = chosen.roles().into_iter();
        let argument =
            |(role, access)| describe(&chosen, role).map(|desc| Argument { role, access, desc });
        let arguments = roles.filter_map(argument).collect();
        let scratch_bytes = scratch_bytes(&chosen);
        self.chosen.push(chosen);
        Ok(Choice { kernel: self.chosen.len() - 1, arguments, scratch_bytes })
    }
}

fn settle(operation: &Operation<'_>) -> Result<Settled, Refusal> {
    let settled = |desc: &&Desc| Ok::<_, Refusal>(layout::settled(desc));
    let mut chosen = operation.map(settled, |&kernel| kernel)?;
    match &mut chosen {
        Settled::Conv { src, weights, dst, pass, .. } => {
            for data in [src, dst] {
                *data = layout::channels_last(&data.dims, data.element);
            }
            *weights = match pass {
                // It goes out, in the order of the state.
                ProductPass::BackwardWeights(_) => Desc::plain(&weights.dims, ElementType::F32),
                _ => layout::filter(&weights.dims, weights.element),
            };
        }
        Settled::Pool { kind, src, dst, window, .. } => {
            *dst = match src.order {
                CHANNELS_LAST => layout::channels_last(&dst.dims, dst.element),
                _ => Desc::plain(&dst.dims, dst.element),
            };
            let [rows, columns] = window.kernel;
            if *kind == Pooling::Max && rows * columns > usize::from(u8::MAX) {
                return Err(Refusal(format!("max pooling over {rows} x {columns} elements")));
            }
        }
        Settled::Softmax { data, .. } if layout::is_padded(data) => {
            *data = Desc::plain(&data.dims, data.element);
        }
        _ => {}
    }
    Ok(chosen)
}

/// How an argument lies; `None` where the operation has no such argument.
pub fn describe(operation: &Settled, role: Role) -> Option<Desc> {
    let desc = match operation {
        Settled::Reorder { from, to } | Settled::Cut { from, to, .. } => match role {
            Role::Src => from.clone(),
            _ => to.clone(),
        },
        Settled::Concat { sources, axis } => match role {
            Role::Source(at) => sources.get(at)?.clone(),
            _ => concatenated(sources, *axis),
        },
        Settled::Binary { a, b, to, .. } => match role {
            Role::Src => a.clone(),
            Role::Src1 => b.clone(),
            _ => to.clone(),
        },
        Settled::Conv { src, weights, bias, dst, .. }
        | Settled::Linear { src, weights, bias, dst, .. } => match role {
            Role::Src | Role::DiffSrc => src.clone(),
            Role::Weights | Role::DiffWeights => weights.clone(),
            Role::Bias | Role::DiffBias => bias.clone()?,
            _ => dst.clone(),
        },
        Settled::Pointwise { data, .. } | Settled::Softmax { data, .. } => data.clone(),
        Settled::Lrn { data, .. } => match role {
            Role::Workspace => return None,
            _ => data.clone(),
        },
        Settled::Pool { kind, src, dst, pass, .. } => match role {
            Role::Workspace => {
                let kept = *kind == Pooling::Max && is_trained(pass);
                return kept.then(|| bytes_of_elements(dst));
            }
            Role::Src | Role::DiffSrc => src.clone(),
            _ => dst.clone(),
        },
        Settled::BatchNorm { norm, data, pass } => match role {
            Role::Workspace => {
                let kept = norm.activation == Activation::Relu && is_trained(pass);
                return kept.then(|| bytes_of_elements(data));
            }
            Role::Src | Role::Dst | Role::DiffSrc | Role::DiffDst => data.clone(),
            _ => Desc::plain(&data.dims[1..2], ElementType::F32),
        },
    };
    Some(desc)
}

fn is_trained(pass: &Pass<Kernel>) -> bool {
    !matches!(pass, Pass::Forward(Direction::Inference))
}

/// One byte for each element.
fn bytes_of_elements(of: &Desc) -> Desc {
    let (dims, element) = (of.dims.clone(), ElementType::Raw);
    Desc { dims, element, order: Order::Plain, bytes: elements(of) }
}

/// Channels last where one of its parts lies so.
fn concatenated(sources: &[Desc], axis: usize) -> Desc {
    let mut dims = sources.first().map_or(Vec::new(), |first| first.dims.clone());
    let element = sources.first().map_or(ElementType::F32, |first| first.element);
    dims[axis] = sources.iter().map(|source| source.dims[axis]).sum();
    match sources.iter().any(|source| source.order == CHANNELS_LAST) {
        true => layout::channels_last(&dims, element),
        false => Desc::plain(&dims, element),
    }
}

/// How many pixels a block of a batch norm sums, and how many blocks that makes.
pub fn chunks(pixels: usize) -> (usize, usize) {
    let chunk = pixels.div_ceil(CHUNKS_MAX).max(CHUNK_PIXELS_MIN);
    (chunk, pixels.div_ceil(chunk))
}

/// Pixels of a tensor with channels: all but these.
pub fn pixels(data: &Desc) -> usize {
    data.dims.iter().product::<usize>() / data.dims[1]
}

fn scratch_bytes(operation: &Settled) -> usize {
    match operation {
        Settled::BatchNorm { norm, data, pass } => {
            let sums = match pass {
                Pass::Forward(_) => norm.statistics == Statistics::Batch,
                Pass::Backward(_) => true,
            };
            let (_, chunks) = chunks(pixels(data));
            if sums { chunks * 2 * data.dims[1] * ElementType::F32.bytes() } else { 0 }
        }
        _ => 0,
    }
}
