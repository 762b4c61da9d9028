//! A device on paper, for tests: every tensor is row-major, no kernel wants memory of its own.

use super::operation::{
    Access, Argument, Backend, Choice, Direction, Operation, Pass, Pooling, Refusal, Role,
};
use super::tensor::{Desc, ElementType};
use crate::model::saved::Activation;

/// Counts the kernels that it was asked for.
#[derive(Default)]
pub struct Paper {
    kernels: usize,
}

/// Whether an operation that may have a workspace has one: what backward reads, and nothing else.
fn has_workspace(operation: &Operation<'_>) -> bool {
    let pass = match operation {
        Operation::Pool { pass, .. }
        | Operation::Lrn { pass, .. }
        | Operation::BatchNorm { pass, .. } => *pass,
        _ => return false,
    };
    let needed = match operation {
        Operation::Pool { kind, .. } => *kind == Pooling::Max,
        Operation::BatchNorm { norm, .. } => norm.activation == Activation::Relu,
        _ => true,
    };
    needed && pass != Pass::Forward(Direction::Inference)
}

/// How an argument lies; `None` where paper needs no workspace.
fn desc(operation: &Operation<'_>, role: Role) -> Option<Desc> {
    let per_channel = |data: &Desc| Desc::plain(&data.dims[1..2], ElementType::F32);
    let raw = |bytes: usize| Some(Desc::plain(&[bytes], ElementType::Raw));
    let plain = |desc: &Desc| Some(Desc::plain(&desc.dims, desc.element));
    let elements = |desc: &Desc| desc.dims.iter().product::<usize>();
    use Operation as Op;
    if role == Role::Workspace && !has_workspace(operation) {
        return None;
    }
    match operation {
        Op::Reorder { from, .. } | Op::Cut { from, .. } if role == Role::Src => plain(from),
        Op::Binary { b, .. } if role == Role::Src1 => plain(b),
        Op::Reorder { to, .. } | Op::Cut { to, .. } | Op::Binary { to, .. } => plain(to),
        Op::Concat { sources, axis } => match role {
            Role::Source(at) => plain(sources[at]),
            _ => {
                let mut dims = sources[0].dims.clone();
                dims[*axis] = sources.iter().map(|source| source.dims[*axis]).sum();
                Some(Desc::plain(&dims, sources[0].element))
            }
        },
        Op::Conv { src, weights, bias, dst, .. } | Op::Linear { src, weights, bias, dst, .. } => {
            match role {
                Role::Src | Role::DiffSrc => plain(src),
                Role::Weights | Role::DiffWeights => plain(weights),
                Role::Bias | Role::DiffBias => bias.and_then(plain),
                _ => plain(dst),
            }
        }
        Op::Pointwise { data, .. } | Op::Softmax { data, .. } => plain(data),
        Op::Pool { src, dst, .. } => match role {
            Role::Src | Role::DiffSrc => plain(src),
            Role::Workspace => raw(elements(dst)),
            _ => plain(dst),
        },
        Op::Lrn { data, .. } => match role {
            Role::Workspace => raw(data.element.bytes() * elements(data)),
            _ => plain(data),
        },
        Op::BatchNorm { data, .. } => match role {
            Role::Workspace => raw(elements(data)),
            Role::Src | Role::Dst | Role::DiffSrc | Role::DiffDst => plain(data),
            _ => Some(per_channel(data)),
        },
    }
}

impl Backend for Paper {
    fn choose(&mut self, operation: &Operation<'_>) -> Result<Choice, Refusal> {
        let argument = |(role, access): (Role, Access)| {
            Some(Argument { role, access, desc: desc(operation, role)? })
        };
        let arguments = operation.roles().into_iter().filter_map(argument).collect();
        self.kernels += 1;
        Ok(Choice { kernel: self.kernels - 1, arguments, scratch_bytes: 0 })
    }
}
