//! The plan's words in oneDNN's.

use kintsugi_ffi::dnnl;

use crate::engine::error::EngineError;
use crate::engine::plan::operation::{
    Algorithm, Direction, Function, Lrn, Norm, Pooling, Refusal, Role, SoftmaxForm, Statistics,
    Window,
};
use crate::engine::plan::placement::{self, Span};
use crate::engine::plan::tensor::ElementType;
use crate::model::saved::Activation;

const _: () = assert!(placement::ALIGN_BYTES.is_multiple_of(dnnl::buffer::ALIGN_BYTES));

impl From<dnnl::Error> for EngineError {
    fn from(error: dnnl::Error) -> Self {
        Self::Device(error.to_string())
    }
}

impl From<dnnl::Error> for Refusal {
    fn from(error: dnnl::Error) -> Self {
        Self(error.to_string())
    }
}

/// A range of the arena.
pub fn span(span: Span) -> dnnl::Span {
    dnnl::Span { offset: span.offset, bytes: span.bytes }
}

/// An element type.
pub fn element(element: ElementType) -> dnnl::Element {
    match element {
        ElementType::F32 => dnnl::Element::F32,
        ElementType::Bf16 => dnnl::Element::Bf16,
        ElementType::Raw => dnnl::Element::Other,
    }
}

/// The role of an argument.
pub fn role(role: Role) -> dnnl::Arg {
    match role {
        Role::Src => dnnl::Arg::Src,
        Role::Src1 => dnnl::Arg::Src1,
        Role::Dst => dnnl::Arg::Dst,
        Role::Weights => dnnl::Arg::Weights,
        Role::Bias => dnnl::Arg::Bias,
        Role::Mean => dnnl::Arg::Mean,
        Role::Variance => dnnl::Arg::Variance,
        Role::Scale => dnnl::Arg::Scale,
        Role::Shift => dnnl::Arg::Shift,
        Role::Workspace => dnnl::Arg::Workspace,
        Role::Scratchpad => dnnl::Arg::Scratchpad,
        Role::DiffSrc => dnnl::Arg::DiffSrc,
        Role::DiffDst => dnnl::Arg::DiffDst,
        Role::DiffWeights => dnnl::Arg::DiffWeights,
        Role::DiffBias => dnnl::Arg::DiffBias,
        Role::DiffScale => dnnl::Arg::DiffScale,
        Role::DiffShift => dnnl::Arg::DiffShift,
        Role::Source(at) => dnnl::Arg::Source(at),
    }
}

/// What a forward pass is for.
pub fn direction(direction: Direction) -> dnnl::Direction {
    match direction {
        Direction::Training => dnnl::Direction::Training,
        Direction::Inference => dnnl::Direction::Inference,
    }
}

/// Whether ReLU is applied within.
pub fn activation(activation: Activation) -> dnnl::Activation {
    match activation {
        Activation::None => dnnl::Activation::None,
        Activation::Relu => dnnl::Activation::Relu,
    }
}

/// How two tensors become one.
pub fn algorithm(algorithm: Algorithm) -> dnnl::Algorithm {
    match algorithm {
        Algorithm::Add => dnnl::Algorithm::Add,
        Algorithm::Multiply => dnnl::Algorithm::Multiply,
        Algorithm::AddRelu => dnnl::Algorithm::AddRelu,
    }
}

/// Which pooling.
pub fn pooling(kind: Pooling) -> dnnl::Pooling {
    match kind {
        Pooling::Max => dnnl::Pooling::Max,
        Pooling::Average => dnnl::Pooling::Average,
        Pooling::AverageInside => dnnl::Pooling::AverageInside,
    }
}

/// What becomes of each element.
pub fn function(function: Function) -> dnnl::Function {
    match function {
        Function::Relu => dnnl::Function::Relu,
        Function::Relu6 => dnnl::Function::Relu6,
        Function::Sigmoid => dnnl::Function::Sigmoid,
        Function::Silu => dnnl::Function::Silu,
        Function::HardSigmoid => dnnl::Function::HardSigmoid,
        Function::HardSwish => dnnl::Function::HardSwish,
        Function::Scale(factor) => dnnl::Function::Scale(factor),
    }
}

/// What a softmax gives.
pub fn form(form: SoftmaxForm) -> dnnl::SoftmaxForm {
    match form {
        SoftmaxForm::Probabilities => dnnl::SoftmaxForm::Probabilities,
        SoftmaxForm::Logarithms => dnnl::SoftmaxForm::Logarithms,
    }
}

/// A sliding window.
pub fn window(window: Window) -> dnnl::Window {
    let Window { kernel, stride, padding, padding_end, dilation } = window;
    dnnl::Window { kernel, stride, padding, padding_end, dilation }
}

/// Batch normalisation.
pub fn norm(norm: Norm) -> dnnl::Norm {
    let statistics = match norm.statistics {
        Statistics::Batch => dnnl::Statistics::Batch,
        Statistics::Running => dnnl::Statistics::Running,
    };
    dnnl::Norm { statistics, epsilon: norm.epsilon, activation: activation(norm.activation) }
}

/// Local response normalisation.
pub fn lrn(lrn: Lrn) -> dnnl::Lrn {
    let Lrn { size, alpha, beta, k } = lrn;
    dnnl::Lrn { size, alpha, beta, k }
}
