//! A repair has succeeded once steps were committed after it: a replacement that dies before (out
//! of memory, say) would be replaced for ever. Until then the next repair goes on from its place
//! on the ladder. Pure but for a note.

use super::machine::{self, Machine, UNPROVEN};
use super::position::Position;
use super::{Hooks, Note, Policy};

/// Committed steps that prove a repair: both slots of the state are written then, and every
/// program of a step has run.
pub const PROVING_STEPS: u32 = 3;

/// What the last repair has used up of the ladder. Commits are the same on all survivors, and so
/// is this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unproved {
    position: Option<Position>,
    /// Committed since.
    steps: u32,
    /// It was no repair: the world has grown on purpose.
    growth: bool,
}

impl Unproved {
    /// Where the last repair stood, unless steps have proven it.
    pub fn position(&self) -> Option<Position> {
        self.position
    }

    /// A repair ended at this position.
    pub fn repaired(&mut self, position: Position) {
        *self = Self { position: Some(position), steps: 0, growth: false };
    }

    /// The world has grown: whoever dies now is not replaced again, where it can do with fewer.
    pub fn grew(&mut self, policy: &Policy) {
        let position = Some(machine::grow(policy).position());
        *self = Self { position, steps: 0, growth: true };
    }

    /// Whether a growth is yet to be proven.
    pub fn of_growth(&self) -> bool {
        self.growth
    }

    /// A step was committed.
    pub fn committed(&mut self) {
        self.steps += 1;
        if self.steps >= PROVING_STEPS {
            *self = Self::default();
        }
    }

    /// Tells a person what it costs.
    pub(super) fn note(&self, policy: &Policy, machine: &Machine, hooks: &mut dyn Hooks) {
        let rung = |index: usize| policy.ladder.get(index).copied();
        let Some(position) = self.position.filter(|before| *before != machine.position()) else {
            return;
        };
        let reason = UNPROVEN.to_owned();
        match (rung(position.rung), machine.rung()) {
            (Some(from), Some(to)) if from != to => hooks.note(Note::RungDown { from, to, reason }),
            (Some(rung), Some(_)) => hooks.note(Note::Retry { rung, reason }),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::machine::{Action, Event, Repair};
    use super::*;
    use crate::config::Rung::{self, Respawn, Restart, Shrink, Spare};

    fn policy(ladder: &[Rung], tries_max: u32) -> Policy {
        Policy { ladder: ladder.to_vec(), tries_max, limit: Duration::from_secs(60), ranks_min: 1 }
    }

    /// A repair of which every phase succeeds, but for spares: there are none. What it did.
    fn repair(policy: &Policy, unproved: &mut Unproved) -> Action {
        let mut machine = match unproved.position() {
            None => machine::begin(policy),
            Some(position) => machine::begin_after(policy, position),
        };
        assert_eq!(machine.action(), Action::Revoke, "the living are counted first");
        machine.on(Event::Counted(Position::default()));
        if machine.action() == Action::Repair(Repair::Promote) {
            machine.on(Event::Unavailable("no spare is waiting".into()));
        }
        let done = machine.action();
        for _ in 0..3 {
            machine.on(Event::Done);
        }
        if machine.action() == Action::Resumed {
            unproved.repaired(machine.position());
        }
        done
    }

    fn commit(unproved: &mut Unproved, steps: u32) {
        (0..steps).for_each(|_| unproved.committed());
    }

    #[test]
    fn a_replacement_that_dies_before_it_has_proven_itself_is_a_failed_try() {
        let policy = policy(&[Spare, Respawn, Shrink, Restart], 3);
        let respawn = Action::Repair(Repair::Respawn);
        for steps in 0..PROVING_STEPS {
            let mut unproved = Unproved::default();
            for _ in 0..3 {
                assert_eq!(repair(&policy, &mut unproved), respawn, "{steps} steps between");
                commit(&mut unproved, steps);
            }
            // Fewer and fewer ranks are no try of anything.
            for _ in 0..5 {
                assert_eq!(repair(&policy, &mut unproved), Action::Repair(Repair::Drop));
                commit(&mut unproved, steps);
            }
            commit(&mut unproved, PROVING_STEPS);
            assert_eq!(repair(&policy, &mut unproved), respawn);
        }
    }

    #[test]
    fn without_a_smaller_world_the_next_rung_is_a_restart_and_it_says_why() {
        let policy = policy(&[Respawn, Restart], 2);
        let mut unproved = Unproved::default();
        for _ in 0..2 {
            assert_eq!(repair(&policy, &mut unproved), Action::Repair(Repair::Respawn));
        }
        let end = repair(&policy, &mut unproved);
        assert!(matches!(&end, Action::GaveUp(why) if why.contains("proven itself")), "{end:?}");
    }

    #[test]
    fn a_growth_whose_newcomer_dies_at_once_leaves_the_smaller_world() {
        let policy = policy(&[Spare, Respawn, Shrink], 3);
        let mut unproved = Unproved::default();
        unproved.grew(&policy);
        assert!(unproved.of_growth());
        assert_eq!(repair(&policy, &mut unproved), Action::Repair(Repair::Drop));
        assert!(!unproved.of_growth());
        commit(&mut unproved, PROVING_STEPS);
        assert_eq!(repair(&policy, &mut unproved), Action::Repair(Repair::Respawn));
    }

    proptest! {
        /// Whatever is committed between deaths, a ladder brings processes in at most `tries` times
        /// a rung in a row, and any number of times where each has proven itself.
        #[test]
        fn replacements_in_a_row_are_bounded_unless_each_has_proven_itself(
            spares in any::<bool>(), tries in 1u32..5,
            between in proptest::collection::vec(0u32..2 * PROVING_STEPS, 1..60),
        ) {
            let ladder: &[Rung] = match spares {
                true => &[Spare, Respawn, Shrink, Restart],
                false => &[Respawn, Shrink, Restart],
            };
            let (policy, mut unproved, mut row) = (policy(ladder, tries), Unproved::default(), 0);
            for steps in between {
                let expected = if row < tries { Repair::Respawn } else { Repair::Drop };
                prop_assert_eq!(repair(&policy, &mut unproved), Action::Repair(expected));
                commit(&mut unproved, steps);
                row = if steps >= PROVING_STEPS { 0 } else { row + 1 };
            }
        }
    }
}
