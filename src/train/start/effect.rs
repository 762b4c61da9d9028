//! Keys that can have no effect on this model: as the configuration's own (`config/effect.rs`), but
//! they need its tensors.

use crate::config::Config;
use crate::model::{Layout, TensorKind};

use crate::train::update::freeze::frozen;

/// Why this run is not what its keys ask for.
pub(in crate::train) fn refusal(config: &Config, layout: &Layout) -> Option<String> {
    let freeze = &config.model.freeze;
    let tensors = layout.tensors.iter().zip(frozen(layout, freeze));
    let weights = tensors.filter(|(tensor, _)| tensor.kind != TensorKind::Statistic);
    let trained = weights.filter(|(_, frozen)| !frozen).map(|(tensor, _)| tensor);
    let trained: Vec<_> = trained.collect();
    let Some(last) = trained.iter().max_by_key(|tensor| tensor.node) else {
        return Some(format!(
            "model.freeze = {freeze:?} freezes every tensor of the model, and nothing would be \
             trained: leave out what begins the name of its last layer"
        ));
    };
    let factor = config.optimizer.body_factor.filter(|factor| *factor != 1.0)?;
    trained.iter().all(|tensor| tensor.node == last.node).then(|| {
        format!(
            "optimizer.body_factor = {factor} has no effect: it is of all but the last trained \
             layer, and only that of {} is trained: leave it out",
            last.name
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{catalogue, layout};

    /// Of a run that trains what begins so.
    fn refused(trained: &[&str], body_factor: Option<f64>) -> String {
        let layout = layout::of(&catalogue::build("cnn11", [3, 32, 32], 10, 0.1).unwrap());
        let names = layout.tensors.iter().map(|tensor| tensor.name.clone());
        let is_trained = |name: &String| trained.iter().any(|begins| name.starts_with(begins));
        let mut config = Config::default();
        config.model.freeze = names.filter(|name| !is_trained(name)).collect();
        config.optimizer.body_factor = body_factor;
        refusal(&config, &layout).unwrap_or_default()
    }

    #[test]
    fn what_would_train_nothing_or_has_nothing_to_multiply_is_refused() {
        assert_eq!(refused(&["fc11."], None), "");
        assert!(refused(&[], None).contains("freezes every tensor"));
        assert!(refused(&["bn1.running"], None).contains("freezes every tensor"));
        assert_eq!(refused(&["fc10.", "fc11."], Some(0.1)), "");
        assert!(refused(&["fc11."], Some(0.1)).contains("only that of fc11."));
        assert_eq!(refused(&["fc11."], Some(1.0)), "");
    }
}
