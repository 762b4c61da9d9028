//! What the console says where a run stops having the bits of a run without failures: plain sums
//! are grouped by ranks (ARCHITECTURE.md, "Owners"), and other instructions round otherwise.

use crate::cluster::world::World;
use crate::config::{ExchangeKind, Train};
use crate::engine;
use crate::observe::event::Kind;
use crate::train::state::arithmetic;
use crate::train::state::position::Position;

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

/// Ranks that compute otherwise than the others, or than before, that are named.
const NAMED_MAX: usize = 4;

/// From here on the ranks of this world compute with these, in their order. What there is to say
/// where the run's bits are other ones from now on.
pub fn compute_with(position: &mut Position, kinds: &[String], world: &World) -> Option<Kind> {
    let (was_exact, before) = (position.exact, position.arithmetic.clone());
    let before = Some(before).filter(|kind| position.step > 0 && !kind.is_empty());
    let same = position.compute_with(kinds);
    (was_exact && !same).then(|| other_arithmetic(before.as_deref(), kinds, world))
}

fn other_arithmetic(before: Option<&str>, kinds: &[String], world: &World) -> Kind {
    let first = kinds.first().map_or("", String::as_str);
    let (usual, whose) = match before {
        Some(before) => (before, "the steps so far"),
        None => (first, "rank 0"),
    };
    let others: Vec<usize> = (0..kinds.len()).filter(|rank| kinds[*rank] != usual).collect();
    let named = others.iter().take(NAMED_MAX).map(|rank| {
        let host = world.member_at(*rank).map_or("", |member| member.host.as_str());
        format!("rank {rank} (on {host}) computes with {}", kinds[*rank])
    });
    let named = named.collect::<Vec<_>>().join(", ");
    let more = match others.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let all: Vec<String> = kinds.iter().cloned().chain([usual.to_owned()]).collect();
    let message = format!(
        "the run is no longer exact: {named}{more}, not with {usual} as {whose}; {}",
        engine::cure(&arithmetic::distinct(&all))
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
            "the state it goes on from has steps of a world that had changed its size, or computed \
             with other instructions"
                .into()
        }
    };
    Some(Kind::Warning { message: format!("the run is no longer exact: {why}; {CURE}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_computes_otherwise_is_named_with_what_to_do() {
        let kinds =
            |isa: &[&str]| isa.iter().map(|isa| format!("oneDNN 3.2.0 {isa}")).collect::<Vec<_>>();
        let world = World::initial(1, Vec::new(), 4);
        let said = |step, before: &[&str], now: &[&str]| {
            let arithmetic = kinds(before).concat();
            let mut position = Position { step, arithmetic, ..Position::start() };
            match compute_with(&mut position, &kinds(now), &world) {
                Some(Kind::Warning { message }) => message,
                _ => String::new(),
            }
        };
        assert_eq!(said(7, &["avx2"], &["avx2", "avx2"]), "");
        let newcomer = said(7, &["avx512_core_amx"], &["avx512_core_amx", "avx2"]);
        assert!(newcomer.contains("rank 1 (on ) computes with oneDNN 3.2.0 avx2, not with"));
        assert!(newcomer.contains("so far") && newcomer.ends_with("ISA=AVX2"), "{newcomer}");
        let all = said(0, &[], &["avx2", "avx512_core", "avx2"]);
        assert!(all.contains("rank 1") && all.contains("avx2 as rank 0"), "{all}");
    }

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
