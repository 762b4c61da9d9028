//! What an engine computes, within what, and who is told of it: the same on every device.

use super::compute::Watch;
use super::memory::limits::Limits;
use super::plan::builder::Request;
use super::plan::operation::Direction;
use super::plan::tensor::ElementType;
use crate::model::{Graph, Layout, layout};

/// Of one worker.
pub struct Subject {
    /// The model.
    pub graph: Graph,
    /// Its tensors.
    pub layout: Layout,
    /// What activations are made of.
    pub element: ElementType,
    /// Tensors without gradients.
    pub frozen: Vec<bool>,
    /// Of the near tier.
    pub limits: Limits,
    /// Is told of copies and of steps that run again.
    pub watch: Watch,
    /// Whether memory is filled with what is no number before a micro-batch, and where a value has
    /// left: for who wants to see what is read.
    pub soiled: bool,
}

impl Subject {
    /// Of which nobody is told.
    pub fn new(graph: &Graph, element: ElementType, frozen: &[bool], limits: &Limits) -> Self {
        Self {
            graph: graph.clone(),
            layout: layout::of(graph),
            element,
            frozen: frozen.to_vec(),
            limits: limits.clone(),
            watch: Box::new(|_| {}),
            soiled: false,
        }
    }

    /// A program of it.
    pub fn request(&self, batch: usize, direction: Direction) -> Request<'_> {
        let Self { graph, layout, element, frozen, .. } = self;
        Request { graph, layout, batch, direction, element: *element, frozen }
    }
}
