//! What the console says where a run stops having the bits of a run without failures: plain sums
//! are grouped by ranks (ARCHITECTURE.md, "Owners").

use crate::cluster::world::World;
use crate::config::{ExchangeKind, Train};
use crate::observe::event::Kind;

const CURE: &str = "train.reproducible=true sums alike for any number of ranks";

/// A step was committed by fewer ranks.
pub fn from_now_on(world: &World) -> Kind {
    let message = format!(
        "the run is no longer exact: from here on {} ranks sum its gradients, in another grouping \
         than before; {CURE}",
        world.ranks()
    );
    Kind::Warning { message }
}

/// An attempt begins behind a step whose bits are not those of a run without failures, or makes
/// them so. `before`: the state it goes on from was exact. `None` where there is nothing to say.
pub fn at_start(train: &Train, (before, now): (bool, bool), ranks: usize) -> Option<Kind> {
    if now || train.exchange == ExchangeKind::Asynchronous {
        return None;
    }
    let why = match before {
        true => format!("other ranks than these {ranks} summed its steps so far"),
        false => "the state it goes on from has steps of a world that had changed its size".into(),
    };
    Some(Kind::Warning { message: format!("the run is no longer exact: {why}; {CURE}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_says_why_it_is_not_exact_and_nothing_where_it_is() {
        let train = Train::default();
        let said = |before, now| match at_start(&train, (before, now), 4) {
            Some(Kind::Warning { message }) => message,
            _ => String::new(),
        };
        assert_eq!(said(true, true), "");
        assert!(said(true, false).contains("than these 4"));
        assert!(said(false, false).contains("had changed its size"));
        let asynchronous = Train { exchange: ExchangeKind::Asynchronous, ..Train::default() };
        assert!(at_start(&asynchronous, (true, false), 4).is_none(), "it never is");
    }
}
