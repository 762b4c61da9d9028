//! The parts of a run's state by name. Whoever keeps a state goes over its parts; only who computes
//! with one calls it by its name.

use crate::cluster::resident::Shape;
use crate::config::{Config, ExchangeKind, OptimizerKind};
use crate::model::Layout;

/// The trained elements, as the layout places them.
pub const PARAMETERS: &str = "parameters";
/// Running statistics, as the layout places them.
pub const STATISTICS: &str = "statistics";
/// The velocity of SGD and LARS; as long as the parameters.
pub const MOMENTUM: &str = "momentum";
/// AdamW's running mean of gradients, by torch's name; as long as the parameters.
pub const EXP_AVG: &str = "exp_avg";
/// AdamW's running mean of squared gradients, by torch's name; as long as the parameters.
pub const EXP_AVG_SQ: &str = "exp_avg_sq";
/// What was received last, Algorithm 1 of SPRINT (Tsuji et al.); as long as the parameters.
pub const W_OLD: &str = "w_old";

/// The running average of the weights and behind it that of the running statistics, by its usual
/// name: weights are judged with the statistics that belong to them.
pub const AVERAGE: &str = "ema";

/// What a run keeps beside weights and statistics, in the order of their names in a checkpoint,
/// which is also that of the digest.
pub fn of_optimizer(config: &Config) -> Vec<&'static str> {
    if config.train.exchange == ExchangeKind::Asynchronous {
        return vec![W_OLD];
    }
    let average = config.optimizer.ema_decay.map(|_| AVERAGE);
    let of_rule: &[&str] = match config.optimizer.name {
        OptimizerKind::Sgd | OptimizerKind::Lars => &[MOMENTUM],
        OptimizerKind::AdamW => &[EXP_AVG, EXP_AVG_SQ],
    };
    average.into_iter().chain(of_rule.iter().copied()).collect()
}

/// The whole state of a run of this configuration, in the order of its slots.
pub fn shape(layout: &Layout, config: &Config) -> Shape {
    let of_optimizer = of_optimizer(config).into_iter().map(|name| (name, elements(name, layout)));
    let parts = std::iter::once((PARAMETERS, layout.parameters))
        .chain(of_optimizer)
        .chain(std::iter::once((STATISTICS, layout.statistics)));
    Shape::of(&parts.collect::<Vec<_>>())
}

/// How long one of the optimizer's parts is.
fn elements(name: &str, layout: &Layout) -> usize {
    match name {
        AVERAGE => layout.parameters + layout.statistics,
        _ => layout.parameters,
    }
}

/// Whether a part belongs to the optimizer.
pub fn is_of_optimizer(name: &str) -> bool {
    name != PARAMETERS && name != STATISTICS
}

/// Whether a part has an element for every parameter, in the layout's order, before all others.
pub fn is_over_parameters(name: &str) -> bool {
    name != STATISTICS
}
