//! Repairs that are over and not yet written down. How a process died is told by its guardian, and
//! a repair can be faster than that: the record waits for the word, training does not. Every
//! survivor keeps it, since the one that is to write it may die meanwhile.

use std::time::Duration;

use crate::observe::event::{Kind, Lost, RecoveryRecord};

use crate::train::record::cause;
use crate::train::record::journal::Stamp;
use crate::train::repair::mending::Unreported;
use crate::train::repair::mending::rung_name;
use crate::train::trainer::Trainer;

/// How often a word is looked for where nothing else is left to do.
const WITNESS_POLL: Duration = Duration::from_millis(2);

/// Committed steps after its time until a record counts as written by whoever was to write it:
/// ranks look at their clocks within one step of each other.
const STEPS_UNTIL_WRITTEN: u32 = 2;

/// Whether a record's witness is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::train) enum Patience {
    /// There are steps to go on with.
    None,
    /// Nothing comes after.
    UntilDue,
}

/// A repair to be written down.
#[derive(Debug)]
pub(in crate::train) struct Owed {
    repair: Unreported,
    /// Of the commit after it.
    stamp: Stamp,
    /// When it is written with what is known (monotonic).
    due: Duration,
    /// Committed steps since it was due.
    steps_after: u32,
}

impl Trainer {
    /// Takes on what is to be written of repairs, on every rank that lived through them;
    /// `begun_seconds`: what the newest took from its end until everybody computed.
    pub(in crate::train) fn owe(&mut self, repairs: Vec<Unreported>, begun_seconds: Option<f64>) {
        let newest = repairs.len().saturating_sub(1);
        let stamp = self.journal.stamp(self.place());
        let due = self.clock.now() + self.plan.witness_wait;
        for (index, mut repair) in repairs.into_iter().enumerate() {
            if let (Some(seconds), true) = (begun_seconds, index == newest) {
                repair.repaired.seconds.insert("first_step".into(), seconds);
            }
            self.owed.push_back(Owed { repair, stamp, due, steps_after: 0 });
        }
    }

    /// Writes down all that is left, before an end.
    pub(in crate::train) fn report_rest(&mut self) {
        self.report_begin(None);
        self.settle(Patience::UntilDue);
    }

    /// Writes down what can be told, oldest first; forgets what another rank has written.
    pub(in crate::train) fn settle(&mut self, patience: Patience) {
        while let Some(owed) = self.owed.front() {
            let is_writer = self.is_first_of(&owed.repair.holders);
            let Some(owed) = self.owed.front_mut() else { return };
            let late = self.clock.now() >= owed.due;
            if !is_writer {
                owed.steps_after += u32::from(late);
                if owed.steps_after <= STEPS_UNTIL_WRITTEN {
                    return;
                }
                self.owed.pop_front();
                continue;
            }
            let attempt = self.world.attempt;
            let storage = self.keeper.storage().as_ref();
            let mut lost = owed.repair.repaired.lost.iter();
            if !late && !lost.all(|member| cause::is_told(storage, attempt, member)) {
                if patience == Patience::None {
                    return;
                }
                self.clock.sleep(WITNESS_POLL);
                continue;
            }
            if let Some(owed) = self.owed.pop_front() {
                self.write_down(owed);
            }
        }
    }

    fn write_down(&mut self, owed: Owed) {
        let Owed { repair: Unreported { generation, ranks, repaired, .. }, stamp, .. } = owed;
        let attempt = self.world.attempt;
        // Whoever was to write it may have died since: just before it did, or just after.
        let again = generation < self.world.generation || !self.replica.living.is_empty();
        if again && self.journal.recovered_generations(attempt).contains(&generation) {
            return;
        }
        let (storage, clock) = (self.keeper.storage().as_ref(), self.clock.as_ref());
        let lost = repaired.lost.iter().map(|member| Lost {
            member: member.member,
            rank: member.rank,
            host: member.host.clone(),
            cause: cause::of(storage, clock, attempt, member),
        });
        let record = RecoveryRecord {
            generation,
            step: repaired.step + 1,
            lost: lost.collect(),
            rung: rung_name(repaired.rung).into(),
            ranks,
            seconds: repaired.seconds,
        };
        self.journal.event_of(stamp, Kind::Recovered(record));
    }
}
