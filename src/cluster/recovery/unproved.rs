//! A repair has succeeded once a step was committed after it: a replacement that dies before (out
//! of memory, say) would be replaced for ever. Until then the next repair goes on from its place
//! on the ladder. So it does where many repairs in a row have lasted a step or two each. Pure.

use super::descent::Descent;
use super::machine::{self, Machine, UNPROVEN};
use super::{Note, Policy};

/// Committed steps after which a repair is history: both slots of the state are written then.
pub const SETTLED_STEPS: u32 = 3;
/// Repairs in a row that had fewer steps each, after which each counts as a failed try.
pub const ROW_MAX: u32 = 8;

/// What the last repair has used up of the ladder. Commits are the same on all survivors, and so
/// is this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unproved {
    descent: Option<Descent>,
    /// Committed since.
    steps: u32,
    /// Repairs, this one included, that no more than a step or two lie between.
    row: u32,
    /// It was no repair: the world has grown on purpose.
    growth: bool,
}

impl Unproved {
    /// Where the last repair stood, unless steps have proven it.
    pub fn descent(&self) -> Option<Descent> {
        self.descent.filter(|_| self.steps == 0 || self.growth || self.row > ROW_MAX)
    }

    /// A repair ended at this descent.
    pub fn repaired(&mut self, descent: Descent) {
        let row = self.row + 1;
        *self = Self { descent: Some(descent), steps: 0, row, growth: false };
    }

    /// The world has grown: whoever dies now is not replaced again, where it can do with fewer.
    pub fn grew(&mut self, policy: &Policy) {
        let descent = Some(machine::grow(policy).descent());
        *self = Self { descent, steps: 0, row: 0, growth: true };
    }

    /// Whether a growth is yet to be proven.
    pub fn of_growth(&self) -> bool {
        self.growth
    }

    /// A step was committed.
    pub fn committed(&mut self) {
        self.steps += 1;
        if self.steps >= SETTLED_STEPS {
            *self = Self::default();
        }
    }

    /// What a person should read of what it costs.
    pub(super) fn note(&self, policy: &Policy, machine: &Machine) -> Option<Note> {
        let before = self.descent().filter(|before| *before != machine.descent())?;
        let from = policy.ladder.get(before.rung).copied()?;
        Some(Note::of(from, machine.rung()?, UNPROVEN.to_owned()))
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
        Policy::new(ladder.to_vec(), tries_max, Duration::from_secs(60))
    }

    /// A repair of which every phase succeeds, but for spares: there are none. What it did.
    fn repair(policy: &Policy, unproved: &mut Unproved) -> Action {
        let mut machine = match unproved.descent() {
            None => machine::begin(policy),
            Some(descent) => machine::begin_after(policy, descent),
        };
        assert_eq!(machine.action(), Action::Revoke, "the living are counted first");
        machine.on(Event::Counted(Descent::default()));
        if machine.action() == Action::Repair(Repair::Promote) {
            machine.on(Event::Unavailable("no spare is waiting".into()));
        }
        let done = machine.action();
        for _ in 0..3 {
            machine.on(Event::Done);
        }
        if machine.action() == Action::Resumed {
            unproved.repaired(machine.descent());
        }
        done
    }

    fn commit(unproved: &mut Unproved, steps: u32) {
        (0..steps).for_each(|_| unproved.committed());
    }

    const RESPAWN: Action = Action::Repair(Repair::Respawn);
    const DROP: Action = Action::Repair(Repair::Drop);

    #[test]
    fn a_replacement_that_dies_before_the_next_commit_is_a_failed_try() {
        let policy = policy(&[Spare, Respawn, Shrink, Restart], 3);
        let mut unproved = Unproved::default();
        for _ in 0..3 {
            assert_eq!(repair(&policy, &mut unproved), RESPAWN);
        }
        // Fewer and fewer ranks are no try of anything.
        for _ in 0..5 {
            assert_eq!(repair(&policy, &mut unproved), DROP);
        }
        commit(&mut unproved, 1);
        assert_eq!(repair(&policy, &mut unproved), RESPAWN);
    }

    #[test]
    fn repairs_that_last_a_step_each_are_failed_tries_where_there_are_many_in_a_row() {
        let policy = policy(&[Spare, Respawn, Shrink, Restart], 3);
        for steps in 1..SETTLED_STEPS {
            let mut unproved = Unproved::default();
            for number in 0..ROW_MAX + 3 {
                assert_eq!(repair(&policy, &mut unproved), RESPAWN, "repair {number}");
                commit(&mut unproved, steps);
            }
            assert_eq!(repair(&policy, &mut unproved), DROP, "{steps} steps between");
            commit(&mut unproved, SETTLED_STEPS);
            assert_eq!(repair(&policy, &mut unproved), RESPAWN);
        }
    }

    #[test]
    fn without_a_smaller_world_the_next_rung_is_a_restart_and_it_says_why() {
        let policy = policy(&[Respawn, Restart], 2);
        let mut unproved = Unproved::default();
        for _ in 0..2 {
            assert_eq!(repair(&policy, &mut unproved), RESPAWN);
        }
        let end = repair(&policy, &mut unproved);
        assert!(matches!(&end, Action::GaveUp(why) if why.contains("proven itself")), "{end:?}");
    }

    #[test]
    fn a_growth_whose_newcomer_dies_at_once_leaves_the_smaller_world() {
        let policy = policy(&[Spare, Respawn, Shrink], 3);
        let mut unproved = Unproved::default();
        unproved.grew(&policy);
        commit(&mut unproved, SETTLED_STEPS - 1);
        assert!(unproved.of_growth());
        assert_eq!(repair(&policy, &mut unproved), DROP);
        assert!(!unproved.of_growth());
        commit(&mut unproved, SETTLED_STEPS);
        assert_eq!(repair(&policy, &mut unproved), RESPAWN);
    }

    proptest! {
        /// Whatever is committed between deaths: without a commit processes are brought in at most
        /// `tries` times in a row, and a few times more where fewer steps than settle a repair are.
        #[test]
        fn replacements_in_a_row_are_bounded_unless_steps_settle_each(
            spares in any::<bool>(), tries in 1u32..5,
            between in proptest::collection::vec(0u32..2 * SETTLED_STEPS, 1..90),
        ) {
            let ladder: &[Rung] = match spares {
                true => &[Spare, Respawn, Shrink, Restart],
                false => &[Respawn, Shrink, Restart],
            };
            let (policy, mut unproved) = (policy(ladder, tries), Unproved::default());
            let (mut without_step, mut unsettled) = (0, 0);
            for steps in between {
                let done = repair(&policy, &mut unproved);
                if without_step == 0 && unsettled <= ROW_MAX {
                    prop_assert_eq!(&done, &RESPAWN, "the top of the ladder");
                }
                if without_step >= tries || unsettled >= ROW_MAX + tries {
                    prop_assert_eq!(&done, &DROP);
                }
                commit(&mut unproved, steps);
                without_step = if steps == 0 { without_step + 1 } else { 0 };
                unsettled = if steps < SETTLED_STEPS { unsettled + 1 } else { 0 };
            }
        }
    }
}
