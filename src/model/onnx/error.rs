//! Why an ONNX file gives no model, or a model no ONNX file.

use crate::config::Shown;
use crate::model::spec::ModelError;

use super::wire::Broken;

/// Why an import or an export came to nothing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum OnnxError {
    #[error("not an ONNX model: {0}")]
    Format(String),
    #[error("{what}: {found} are more than the {most} that are read")]
    TooMany { what: &'static str, found: usize, most: usize },
    #[error("node {} ({}): {reason}", node.shown(), op.shown())]
    Node { node: String, op: String, reason: String },
    #[error("tensor {}: {reason}", name.shown())]
    Tensor { name: String, reason: String },
    #[error("the model's input or output: {0}")]
    Ends(String),
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl From<Broken> for OnnxError {
    fn from(Broken(reason): Broken) -> Self {
        Self::Format(reason)
    }
}
