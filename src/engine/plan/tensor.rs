//! Tensors as a plan sees them: element type, dimensions, order, and where they are.

use std::rc::Rc;

pub use kintsugi_ffi::operation::ElementType;

use crate::config::Precision;

impl Precision {
    /// What tensors are made of.
    pub fn element(self) -> ElementType {
        match self {
            Self::F32 | Self::Tf32 => ElementType::F32,
            Self::Bf16 => ElementType::Bf16,
        }
    }
}

/// Physical order of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Whatever the device prefers: only in what is asked for.
    Any,
    /// Row-major in the order of the dimensions.
    Plain,
    /// One of the device's own, by a number that the backend of this plan gave it.
    Device(usize),
}

/// How a tensor lies in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Desc {
    /// Sizes in elements.
    pub dims: Vec<usize>,
    /// What they are.
    pub element: ElementType,
    /// Their order.
    pub order: Order,
    /// Bytes from the first element to the last, padding included.
    pub bytes: usize,
}

impl Desc {
    /// Row-major.
    pub fn plain(dims: &[usize], element: ElementType) -> Self {
        let bytes = dims.iter().product::<usize>() * element.bytes();
        Self { dims: dims.to_vec(), element, order: Order::Plain, bytes }
    }

    /// In whatever order the device prefers.
    pub fn any(dims: &[usize], element: ElementType) -> Self {
        Self { order: Order::Any, ..Self::plain(dims, element) }
    }
}

/// Where a tensor is while a step runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place<V = usize> {
    /// In the arena: the number of one of the plan's values, or where that lies.
    Value(V),
    /// A parameter or statistic in some order: an index into the plan's weights.
    Weight(usize),
    /// The caller's images.
    Image,
}

impl<V> Place<V> {
    /// The same of a value in other words.
    pub fn map<W>(self, value: impl FnOnce(V) -> W) -> Place<W> {
        match self {
            Self::Value(own) => Place::Value(value(own)),
            Self::Weight(weight) => Place::Weight(weight),
            Self::Image => Place::Image,
        }
    }

    /// The value, if it is one.
    pub fn value(self) -> Option<V> {
        match self {
            Self::Value(value) => Some(value),
            Self::Weight(_) | Self::Image => None,
        }
    }

    /// The weight, if it is one.
    pub fn weight(self) -> Option<usize> {
        match self {
            Self::Weight(weight) => Some(weight),
            Self::Value(_) | Self::Image => None,
        }
    }
}

/// A tensor as layers hand it on: where it is and how it lies there.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// Where.
    pub place: Place,
    /// How.
    pub desc: Rc<Desc>,
}
