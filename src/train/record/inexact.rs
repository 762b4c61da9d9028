//! What the console says where a run stops having the bits of a run without failures: other
//! instructions round otherwise (ARCHITECTURE.md, "One set, one arithmetic").

use crate::cluster::world::World;
use crate::config::ExchangeKind;
use crate::engine;
use crate::observe::event::Kind;
use crate::train::state::arithmetic;
use crate::train::state::position::Position;

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
    let reason = format!(
        "{named}{more}, not with {usual} as {whose}; {}",
        engine::cure(&arithmetic::distinct(&all))
    );
    Kind::Inexact { reason }
}

/// An attempt goes on from here. `None` where there is nothing to say: it is exact, or of the
/// exchange that never is.
pub fn at_start(position: &Position, exchange: ExchangeKind) -> Option<Kind> {
    let reason = "the state it goes on from has steps that were computed with other instructions";
    (!position.exact && exchange == ExchangeKind::Synchronous)
        .then(|| Kind::Inexact { reason: reason.into() })
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
                Some(Kind::Inexact { reason }) => reason,
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
        let said = |exact, exchange| {
            at_start(&Position { exact, ..Position::start() }, exchange).is_some()
        };
        assert!(said(false, ExchangeKind::Synchronous));
        assert!(!said(true, ExchangeKind::Synchronous));
        assert!(!said(false, ExchangeKind::Asynchronous), "it never is");
    }
}
