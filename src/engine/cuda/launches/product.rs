//! Products with weights by cuDNN's plans, and what a plan leaves to be done: the bias, the
//! activation, lanes that it does not write, a gradient as the state has it.

use super::bias::finished;
use super::copies::copied;
use super::elementwise::cleared;
use crate::engine::cuda::backend::{Product, Settled, result_bytes};
use crate::engine::cuda::call::{At, Call};
use crate::engine::cuda::layout::lie_alike;
use crate::engine::plan::operation::{ProductPass, Refusal, Role};
use crate::engine::plan::placement::Span;
use crate::engine::plan::tensor::{Desc, Place};

/// What the card is told.
pub fn product(
    operation: &Settled,
    product: &Product,
    at: &dyn Fn(Role) -> At,
) -> Result<Vec<Call>, Refusal> {
    let (Settled::Conv { src, weights, bias, dst, pass, .. }
    | Settled::Linear { src, weights, bias, dst, pass }) = operation
    else {
        return Err(Refusal("no plan is of such an operation".into()));
    };
    let scratch = Scratch::new(at(Role::Scratchpad), result_bytes(operation, product));
    let call = |src, weights, dst| Call::Product {
        plan: product.plan,
        src,
        weights,
        dst,
        workspace: scratch.workspace,
    };
    // The lanes of groups are not written by a plan.
    let grouped = weights.dims.len() == 5;
    let clear = |desc: &Desc, at: At| cleared(desc, at).filter(|_| grouped);
    match pass {
        ProductPass::Forward { .. } => {
            let to = at(Role::Dst);
            let mut calls: Vec<Call> = clear(dst, to).into_iter().collect();
            calls.push(call(at(Role::Src), at(Role::Weights), to));
            calls.extend(finished(dst, bias.is_some(), pass, at)?);
            Ok(calls)
        }
        ProductPass::BackwardData(_) => {
            let to = at(Role::DiffSrc);
            let product = call(to, at(Role::Weights), at(Role::DiffDst));
            Ok(clear(src, to).into_iter().chain([product]).collect())
        }
        ProductPass::BackwardWeights(_) => {
            let (from, to) = (at(Role::DiffDst), at(Role::DiffWeights));
            let is_final = lie_alike(weights, &product.weights);
            let result = if is_final { to } else { scratch.result };
            let mut calls = vec![call(at(Role::Src), result, from)];
            if !is_final {
                let origin = vec![0; weights.dims.len()];
                calls.extend(copied(&product.weights, result, weights, to, &origin)?);
            }
            calls.extend(finished(dst, bias.is_some(), pass, at)?);
            Ok(calls)
        }
    }
}

/// The parts of a scratchpad, which begins somewhat behind its start.
struct Scratch {
    result: At,
    workspace: At,
}

impl Scratch {
    fn new(scratchpad: At, result_bytes: usize) -> Self {
        let Place::Value(span) = scratchpad else {
            // Nothing is in it.
            return Self { result: scratchpad, workspace: scratchpad };
        };
        let align = kintsugi_ffi::cuda::cudnn::WORKSPACE_ALIGN_BYTES;
        let at = |offset| Place::Value(Span { offset, ..span });
        let start = span.offset.next_multiple_of(align);
        Self { result: at(start), workspace: at(start + result_bytes) }
    }
}
