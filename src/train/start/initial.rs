//! The weights that `model.init` names, for a run that begins: all that the model needs, and no
//! others than the run has begun with.

use std::path::Path;

use crate::config::{Config, Shown};
use crate::data::Normalization;
use crate::model::{Graph, Layout};

use crate::train::TrainError;
use crate::train::checkpoint::{Fitted, weights};

/// Reads them, and says what was done to make them fit.
///
/// # Errors
/// What does not fit, or is not what it was.
pub(in crate::train::start) fn load(
    path: &Path,
    graph: &Graph,
    layout: &Layout,
    config: &Config,
) -> Result<Fitted, TrainError> {
    // Errors of the reader name the path.
    let refuse = |error| TrainError::Configuration(format!("model.init: {error}"));
    let wrong = |reason: String| {
        TrainError::Configuration(format!("model.init = {}: {reason}", path.shown()))
    };
    let bytes = weights::bytes_of(path).map_err(refuse)?;
    if let Some(expected) = &config.model.init_hash
        && weights::hash_of(&bytes) != expected.to_lowercase()
    {
        return Err(wrong(format!(
            "these are not the weights of this run, whose XXH3-128 is {expected}: put them back, \
             or start anew with --fresh"
        )));
    }
    let fitted = weights::initial_weights((path, &bytes), graph, layout, config.run.seed);
    let mut fitted = fitted.map_err(refuse)?;
    let now = Some(Normalization::of(&config.data));
    let pictures = weights::other_pictures(&config.model.name, &fitted.about, now);
    fitted.remarks.extend(pictures);
    for remark in &mut fitted.remarks {
        *remark = format!("model.init = {}: {remark}", path.shown());
    }
    Ok(fitted)
}
