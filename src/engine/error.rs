//! Why a micro-batch could not be computed.

use crate::model::Graph;

/// What went wrong; devices speak through `reason`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum EngineError {
    #[error("layer `{layer}`: {reason}")]
    Layer { layer: String, reason: String },
    /// What the configuration asks for and this machine or version does not do: usage.
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Device(String),
    /// The device is gone for this process, whatever it asks next.
    #[error("{0}")]
    Lost(String),
    #[error("the layout does not describe this graph: {0}")]
    Layout(String),
    #[error("{what}: {given} values given, {wanted} wanted")]
    Length { what: &'static str, given: usize, wanted: usize },
    #[error("label {label} of sample {sample} is not below the {classes} classes of the model")]
    Label { sample: usize, label: u32, classes: usize },
}

impl EngineError {
    /// Whether somebody has to change what he asks for: no device has failed, and no code.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Layer { .. })
    }

    /// What a device said of a node; one past the last is the loss.
    pub fn of_node(graph: &Graph, node: usize, reason: String) -> Self {
        let layer = graph.nodes.get(node).map_or("loss", |node| &node.name).to_string();
        Self::Layer { layer, reason }
    }
}
