//! oneDNN's numbers for the words of `operation`.

use std::ffi::{c_int, c_uint};

use super::sys;
use crate::operation::{
    Activation, Algorithm, Direction, Function, Norm, Pooling, Role, SoftmaxForm, Statistics,
};

pub(super) fn direction(direction: Direction) -> c_int {
    match direction {
        Direction::Training => sys::FORWARD_TRAINING,
        Direction::Inference => sys::FORWARD_INFERENCE,
    }
}

/// Of a ReLU behind a sum it knows nothing: that is an attribute.
pub(super) fn binary(algorithm: Algorithm) -> c_int {
    match algorithm {
        Algorithm::Add | Algorithm::AddRelu => sys::BINARY_ADD,
        Algorithm::Multiply => sys::BINARY_MUL,
    }
}

pub(super) fn pooling(kind: Pooling) -> c_int {
    match kind {
        Pooling::Max => sys::POOLING_MAX,
        Pooling::Average => sys::POOLING_AVG_INCLUDE_PADDING,
        Pooling::AverageInside => sys::POOLING_AVG_EXCLUDE_PADDING,
    }
}

pub(super) fn softmax(form: SoftmaxForm) -> c_int {
    match form {
        SoftmaxForm::Probabilities => sys::SOFTMAX_ACCURATE,
        SoftmaxForm::Logarithms => sys::SOFTMAX_LOG,
    }
}

/// A function's name, and its constants alpha and beta. Those that are seen from their result say
/// so.
pub(super) fn eltwise(function: Function) -> (c_int, f32, f32) {
    match function {
        Function::Relu => (sys::ELTWISE_RELU_USE_DST, 0.0, 0.0),
        Function::Relu6 => (sys::ELTWISE_CLIP_V2_USE_DST, 0.0, 6.0),
        Function::Sigmoid => (sys::ELTWISE_LOGISTIC_USE_DST, 0.0, 0.0),
        Function::Silu => (sys::ELTWISE_SWISH, 1.0, 0.0),
        Function::HardSigmoid => (sys::ELTWISE_HARDSIGMOID, 1.0 / 6.0, 0.5),
        Function::HardSwish => (sys::ELTWISE_HARDSWISH, 1.0 / 6.0, 0.5),
        Function::Scale(factor) => (sys::ELTWISE_LINEAR, factor, 0.0),
    }
}

pub(super) fn norm_flags(norm: Norm) -> c_uint {
    let mut flags = sys::NORM_USE_SCALE | sys::NORM_USE_SHIFT;
    if norm.statistics == Statistics::Running {
        flags |= sys::NORM_USE_GLOBAL_STATS;
    }
    if norm.activation == Activation::Relu {
        flags |= sys::NORM_FUSE_RELU;
    }
    flags
}

/// `DNNL_ARG_*`.
pub(super) fn arg(role: Role) -> c_int {
    match role {
        Role::Src => 1,
        Role::Src1 => 2,
        Role::Dst => 17,
        Role::Weights => 33,
        Role::Bias => 41,
        Role::Mean => 49,
        Role::Variance => 50,
        Role::Scale => 51,
        Role::Shift => 52,
        Role::Workspace => 64,
        Role::Scratchpad => 80,
        Role::DiffSrc => 129,
        Role::DiffDst => 145,
        Role::DiffWeights => 161,
        Role::DiffBias => 169,
        Role::DiffScale => 255,
        Role::DiffShift => 256,
        Role::Source(index) => 1024 + index as c_int,
    }
}
