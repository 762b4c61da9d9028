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

/// Since when the bits of a run are not those of a run without failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// Since before the state that an attempt goes on from.
    Before,
    /// Since this attempt: it sums in another grouping than those before it.
    Now,
}

/// An attempt begins that is not exact. `None` where there is nothing to say.
pub fn at_start(train: &Train, since: Since, ranks: usize) -> Option<Kind> {
    if train.exchange == ExchangeKind::Asynchronous {
        return None;
    }
    let why = match since {
        Since::Now => format!("other ranks than these {ranks} summed its steps so far"),
        Since::Before => {
            "the state it goes on from has steps of a world that had changed its size".into()
        }
    };
    Some(Kind::Warning { message: format!("the run is no longer exact: {why}; {CURE}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_that_is_not_exact_says_why() {
        let train = Train::default();
        let said = |since| match at_start(&train, since, 4) {
            Some(Kind::Warning { message }) => message,
            _ => String::new(),
        };
        assert!(said(Since::Now).contains("than these 4"));
        assert!(said(Since::Before).contains("had changed its size"));
        let asynchronous = Train { exchange: ExchangeKind::Asynchronous, ..Train::default() };
        assert!(at_start(&asynchronous, Since::Now, 4).is_none(), "it never is");
    }
}
