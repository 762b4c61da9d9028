//! The card as a plan's backend: how each operation's tensors lie, and what it needs besides.
//! There is one kernel for each, so that choosing is settling what was left open. Pure.

use super::depthwise_blocks::DepthwiseBlocks;
use super::layout::{self, CHANNELS_LAST, elements};
use super::norm_blocks::NormBlocks;
use crate::engine::plan::operation::{
    Argument, Backend, Choice, Direction, Kernel, Operation, Pass, Pooling, ProductPass, Refusal,
    Role, Statistics,
};
use crate::engine::plan::tensor::{Desc, ElementType, Order};
use crate::model::saved::Activation;

/// An operation whose tensors lie somehow.
pub type Settled = kintsugi_ffi::operation::Operation<Desc, Kernel>;

/// Pixels below which one thread sums a channel's, and the most threads that do.
const BIAS_PIXELS_MIN: usize = 4096;
const BIAS_PARTS_MAX: usize = 256;

/// cuDNN's plan for a product with weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Product {
    /// By its number.
    pub plan: usize,
    /// Memory that it works in.
    pub workspace_bytes: usize,
    /// How weights lie that it reads, and how the gradient lies that it writes.
    pub weights: Desc,
}

/// Who knows plans for products. Without one the own kernels compute.
pub trait Planner {
    /// The plan for a convolution or a matrix; `None` where there is none.
    ///
    /// # Errors
    /// What went wrong, other than that there is none.
    fn plan(&mut self, operation: &Settled) -> Result<Option<Product>, Refusal>;
}

/// What one plan chose.
#[derive(Default)]
pub struct Cuda<'p> {
    planner: Option<&'p mut dyn Planner>,
    chosen: Vec<(Settled, Option<Product>)>,
}

impl<'p> Cuda<'p> {
    /// One that asks for plans.
    pub fn new(planner: Option<&'p mut dyn Planner>) -> Self {
        Self { planner, chosen: Vec::new() }
    }

    /// An operation that was chosen, and its plan.
    pub fn operation(&self, kernel: Kernel) -> (&Settled, Option<&Product>) {
        let (chosen, product) = &self.chosen[kernel];
        (chosen, product.as_ref())
    }
}

impl Backend for Cuda<'_> {
    fn choose(&mut self, operation: &Operation<'_>) -> Result<Choice, Refusal> {
        let chosen = settle(operation)?;
        let is_product = matches!(chosen, Settled::Conv { .. } | Settled::Linear { .. });
        // The own kernels are the fastest for these.
        let is_planned = is_product && DepthwiseBlocks::of(&chosen).is_none();
        let product = match &mut self.planner {
            Some(planner) if is_planned => planner.plan(&chosen)?,
            _ => None,
        };
        let roles = chosen.roles().into_iter();
        let argument =
            |(role, access)| describe(&chosen, role).map(|desc| Argument { role, access, desc });
        let arguments = roles.filter_map(argument).collect();
        let scratch_bytes = match &product {
            Some(product) => product_scratch_bytes(&chosen, product),
            None => scratch_bytes(&chosen),
        };
        self.chosen.push((chosen, product));
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
                // The shifts: what ReLU let pass is computed again, and backward has none.
                let kept = norm.activation == Activation::Relu && is_trained(pass);
                return kept.then(|| Desc::plain(&data.dims[1..2], ElementType::F32));
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

/// Where a plan's scratchpad begins, and what lies there: cuDNN wants more of a workspace's address
/// than a plan of values gives.
const WORKSPACE_ALIGN_BYTES: usize = kintsugi_ffi::cuda::cudnn::WORKSPACE_ALIGN_BYTES;

fn product_scratch_bytes(operation: &Settled, product: &Product) -> usize {
    let bytes = result_bytes(operation, product) + product.workspace_bytes;
    let aligned = if bytes == 0 { 0 } else { bytes + WORKSPACE_ALIGN_BYTES };
    // Both are over when a bias is summed.
    aligned.max(scratch_bytes(operation))
}

/// What a gradient of weights takes that a plan writes in its own order, before it is laid out as
/// the state has it. Then comes the workspace.
pub fn result_bytes(operation: &Settled, product: &Product) -> usize {
    match operation {
        Settled::Conv { weights, pass: ProductPass::BackwardWeights(_), .. }
        | Settled::Linear { weights, pass: ProductPass::BackwardWeights(_), .. }
            if !layout::lie_alike(weights, &product.weights) =>
        {
            product.weights.bytes.next_multiple_of(WORKSPACE_ALIGN_BYTES)
        }
        _ => 0,
    }
}

/// Parts that a result's pixels are shared out to where a bias's gradient is summed: a divisor of
/// their number, so that the parts are columns of a wider matrix. By sizes alone, as all orders of
/// sums are.
pub fn bias_parts(dst: &Desc) -> usize {
    let pixels = layout::pixels(dst);
    let divides = |parts: &usize| pixels.is_multiple_of(*parts);
    let parts = (2..=BIAS_PARTS_MAX).rev().find(divides).filter(|_| pixels >= BIAS_PIXELS_MIN);
    parts.unwrap_or(1)
}

fn scratch_bytes(operation: &Settled) -> usize {
    // A depthwise gradient is there when a bias is summed.
    let sums = DepthwiseBlocks::scratch_bytes(operation);
    let others = match operation {
        Settled::Conv { bias: Some(_), dst, pass: ProductPass::BackwardWeights(_), .. }
        | Settled::Linear { bias: Some(_), dst, pass: ProductPass::BackwardWeights(_), .. } => {
            match bias_parts(dst) {
                1 => 0,
                parts => parts * layout::pitch(dst) * ElementType::F32.bytes(),
            }
        }
        Settled::BatchNorm { norm, data, pass } => {
            let sums = match pass {
                Pass::Forward(_) => norm.statistics == Statistics::Batch,
                Pass::Backward(_) => true,
            };
            let rows = NormBlocks::new(data).chunks * 2;
            if sums { rows * data.dims[1] * ElementType::F32.bytes() } else { 0 }
        }
        _ => 0,
    };
    sums.max(others)
}
