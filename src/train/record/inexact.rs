//! What the console says where a run stops having the bits of a run without failures: other
//! instructions, or another build of the program, round otherwise (ARCHITECTURE.md, "One set, one
//! arithmetic").

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
    if others.is_empty() {
        let reason = "the state that it goes on from does not say what computed it: it is of an \
                      earlier release";
        return Kind::Inexact { reason: reason.into() };
    }
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
    let reason = format!("{named}{more}, not with {usual} as {whose}; {}", cure(&all));
    Kind::Inexact { reason }
}

/// What to do so that ranks that compute with these have equal bits.
fn cure(all: &[String]) -> String {
    let parts = all.iter().map(|kind| arithmetic::parts(kind));
    let parts = parts.map(|(device, build)| (device.to_owned(), build.to_owned()));
    let (devices, builds): (Vec<String>, Vec<String>) = parts.unzip();
    let (devices, builds) = (arithmetic::distinct(&devices), arithmetic::distinct(&builds));
    match (devices.len(), builds.len()) {
        (_, ..2) => engine::cure(&devices),
        (..2, _) => "for equal bits all ranks and all starts need one build of kintsugi".into(),
        _ => format!("{}, and with one build of kintsugi", engine::cure(&devices)),
    }
}

/// A step was committed of which so many samples were not those that the run's set was listed with:
/// what a run without failures has read there is not known. What there is to say, once.
pub fn altered(position: &mut Position, samples: u64) -> Option<Kind> {
    let was_exact = position.exact;
    position.exact &= samples == 0;
    let reason = format!(
        "{samples} samples of step {} are gone, cannot be read, have another length than when the \
         set was listed, or lie in a file that was written or touched since (logs/ names them); \
         for equal bits leave the set as it is while a run goes on, and start this one anew with \
         `launch --fresh`",
        position.step
    );
    (was_exact && samples > 0).then_some(Kind::Inexact { reason })
}

/// A last look at the files of the set has shown that one was written since the run began. What
/// there is to say, once.
pub fn rewritten(position: &mut Position) -> Option<Kind> {
    let was_exact = std::mem::replace(&mut position.exact, false);
    let reason = format!(
        "a file of the training set was written or touched while the run went on, which a look at \
         its end, behind step {}, has shown: what was read of it since the look before is not \
         known; for equal bits leave the set as it is while a run goes on, and start this one anew \
         with `launch --fresh`",
        position.step
    );
    was_exact.then_some(Kind::Inexact { reason })
}

/// A step was committed without an update whose gradients were not finite in another way each time
/// they were computed. What there is to say, once.
pub fn wavering(position: &mut Position, wavers: bool) -> Option<Kind> {
    let was_exact = position.exact;
    position.exact &= !wavers;
    let reason = format!(
        "gradients of step {} were not finite or did not fit, and others each time that it was \
         computed: a processor, a card or memory is damaged; find it, and go on without it",
        position.step
    );
    (was_exact && wavers).then_some(Kind::Inexact { reason })
}

/// A newcomer's replica of the state at hand differs from the survivors': one of them was damaged,
/// and nobody knows when. What there is to say, once.
pub fn doubtful(position: &mut Position) -> Option<Kind> {
    let was_exact = std::mem::replace(&mut position.exact, false);
    let reason = format!(
        "replicas of the state of step {} differ, and with recovery.integrity_every = \"off\" \
         there is none to go back to that was found equal",
        position.step
    );
    was_exact.then_some(Kind::Inexact { reason })
}

/// The epoch of the step before this position has ended. What there is to say where its samples
/// were others than in the first.
pub fn at_epochs_end(position: &mut Position) -> Option<Kind> {
    let (was_exact, same) = (position.exact, position.contents.end_epoch());
    position.exact &= same;
    let reason = format!(
        "the samples of epoch {}, read until step {}, were others than those of the first: files \
         of the set were written anew meanwhile, or nodes have copies that differ; leave the set \
         as it is while a run goes on, and start this one anew with `launch --fresh`",
        position.epoch(),
        position.step
    );
    (was_exact && !same).then_some(Kind::Inexact { reason })
}

/// The validation set, which was listed so, was read, with this sum over its contents; so many of
/// its samples were not as listed. What there is to say where it was another one than in its first
/// evaluation, or than when it was listed.
pub fn at_evaluation(position: &mut Position, listed: u64, sum: u64, altered: u64) -> Option<Kind> {
    let (was_exact, found) = (position.exact, position.contents.measured(listed, sum));
    let same = found && altered == 0;
    position.exact &= same;
    let than = match found {
        true => "the run's set was listed with",
        false => "at the first evaluation",
    };
    let reason = format!(
        "the validation samples read after step {} were others than {than}: errors, \
         the best checkpoint and train.patience may say something else than in a run without \
         failures; leave the set as it is while a run goes on",
        position.step
    );
    (was_exact && !same).then_some(Kind::Inexact { reason })
}

/// An attempt goes on from here. `None` where there is nothing to say: it is exact, or of the
/// exchange that never is.
pub fn at_start(position: &Position, exchange: ExchangeKind) -> Option<Kind> {
    let reason = "the state it goes on from has steps that other instructions, another build or \
                  other samples computed, errors of other samples, a step of which no two tries \
                  agreed, or replicas of it that differed";
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
    fn samples_that_are_not_as_listed_end_exactness_once_and_for_all() {
        let mut position = Position { step: 7, ..Position::start() };
        assert_eq!(altered(&mut position, 0), None);
        assert!(position.exact);
        let Some(Kind::Inexact { reason }) = altered(&mut position, 2) else { panic!("silent") };
        assert!(reason.starts_with("2 samples of step 7 "), "{reason}");
        assert_eq!(altered(&mut position, 2), None);
        assert_eq!(altered(&mut position, 0), None);
        assert!(!position.exact);
    }

    #[test]
    fn another_build_is_no_reason_to_ask_for_other_instructions() {
        let kinds = |of: [(&str, u64); 2]| of.map(|(device, build)| arithmetic::of(device, build));
        let rebuilt = cure(&kinds([("oneDNN 3.2.0 avx2", 1), ("oneDNN 3.2.0 avx2", 2)]));
        assert!(rebuilt.contains("one build") && !rebuilt.contains("ISA"), "{rebuilt}");
        let isa = cure(&kinds([("oneDNN 3.2.0 avx2", 1), ("oneDNN 3.2.0 avx512_core", 1)]));
        assert!(isa.ends_with("ISA=AVX2"), "{isa}");
        let both = cure(&kinds([("oneDNN 3.2.0 avx2", 1), ("oneDNN 3.2.0 avx512_core", 2)]));
        assert!(both.contains("ISA=AVX2") && both.contains("one build"), "{both}");
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
