//! What a run that begins keeps of what comes from outside: it goes on with no other model and no
//! other weights.

use crate::config;
use crate::model::catalogue;
use crate::train::checkpoint::weights;

/// Fills in what a run that begins keeps of its model file, and of the bytes of `model.init`.
///
/// # Errors
/// The key, and why it cannot be read.
pub fn fix(model: &mut config::Model) -> Result<(), String> {
    catalogue::keep_text(model).map_err(|error| format!("model.name: {error}"))?;
    weights::name(model).map_err(|error| format!("model.init: {error}"))
}
