//! The parts of a run's state by name. Whoever keeps a state goes over its parts; only who computes
//! with one calls it by its name.

use crate::cluster::resident::Shape;
use crate::config::ExchangeKind;
use crate::model::Layout;

/// The trained elements, as the layout places them.
pub const PARAMETERS: &str = "parameters";
/// Running statistics, as the layout places them.
pub const STATISTICS: &str = "statistics";
/// SGD's velocity; as long as the parameters.
pub const MOMENTUM: &str = "momentum";
/// What was received last, Algorithm 1 of SPRINT (Tsuji et al.); as long as the parameters.
pub const W_OLD: &str = "w_old";

/// What a run keeps beside weights and statistics.
pub fn of_optimizer(exchange: ExchangeKind) -> &'static [&'static str] {
    match exchange {
        ExchangeKind::Synchronous => &[MOMENTUM],
        ExchangeKind::Asynchronous => &[W_OLD],
    }
}

/// The whole state, in the order of its slots.
pub fn shape(layout: &Layout, exchange: ExchangeKind) -> Shape {
    let of_optimizer = of_optimizer(exchange).iter().map(|name| (*name, layout.parameters));
    let parts = std::iter::once((PARAMETERS, layout.parameters))
        .chain(of_optimizer)
        .chain(std::iter::once((STATISTICS, layout.statistics)));
    Shape::of(&parts.collect::<Vec<_>>())
}

/// Whether a part belongs to the optimizer.
pub fn is_of_optimizer(name: &str) -> bool {
    name != PARAMETERS && name != STATISTICS
}
