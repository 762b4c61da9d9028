//! Why a micro-batch could not be computed.

/// What went wrong; devices speak through `reason`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum EngineError {
    #[error("layer `{layer}`: {reason}")]
    Layer { layer: String, reason: String },
    #[error("{0}")]
    Device(String),
    #[error("the layout does not describe this graph: {0}")]
    Layout(String),
    #[error("{what}: {given} values given, {wanted} wanted")]
    Length { what: &'static str, given: usize, wanted: usize },
    #[error("label {label} of sample {sample} is not below the {classes} classes of the model")]
    Label { sample: usize, label: u32, classes: usize },
    #[error("no parameters were loaded: call `load` first")]
    NotLoaded,
}

impl From<kintsugi_ffi::dnnl::Error> for EngineError {
    fn from(error: kintsugi_ffi::dnnl::Error) -> Self {
        Self::Device(error.to_string())
    }
}
